/* Checks of index data that the host can read: the CPU backend's, and those of trope_positions. */
#ifndef TROPE_VARLEN_CHECK_H
#define TROPE_VARLEN_CHECK_H

#include "core/plan.h"

/* cu_seqlens ascend, fit the tensor and can be split over the ranks, and without a padding policy hold every token. */
trope_status trope_check_sequences(const char *function, const trope_sequences *s);

/* Every position that a rotated row of the plan uses is inside the angle rows. With a status word a position outside is
 * reported there and poisoned, and the call goes on. */
trope_status trope_check_positions(const char *function, const trope_plan *plan);

#endif
