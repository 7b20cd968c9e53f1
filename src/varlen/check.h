/* Checks of index data that the host can read, for the CPU backend and for trope_positions. */
#ifndef TROPE_VARLEN_CHECK_H
#define TROPE_VARLEN_CHECK_H

#include "core/plan.h"

/* Checks that cu_seqlens ascend, fit the tensor and can be split over the ranks. Without a padding policy, they must
 * include every token. */
trope_status trope_check_sequences(const char *function, const trope_position_source *s);

/* Checks that every position of a rotated token is inside the angle rows. In a call with a status word, other positions are
 * reported there and poisoned, and the call continues. */
trope_status trope_check_positions(const char *function, const trope_plan *plan);

#endif
