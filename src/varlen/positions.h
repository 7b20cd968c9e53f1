/* Checks of index data that the host can read: the CPU backend's, and those of trope_positions. */
#ifndef TROPE_VARLEN_POSITIONS_H
#define TROPE_VARLEN_POSITIONS_H

#include "core/plan.h"
#include "trope/trope.h"

/* cu_seqlens ascend, fit the tensor and can be split over the ranks. */
trope_status trope_check_sequences(const char *function, const trope_sequences *s);

/* Every position that a rotated row of the plan uses is inside the angle rows. With a status word a position outside is
 * reported there and poisoned, and the call goes on. */
trope_status trope_check_positions(const char *function, const trope_plan *plan);

#endif
