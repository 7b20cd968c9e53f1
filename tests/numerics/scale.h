/* How much to do. Sanitizer builds define NUMERICS_THIN: one of so many random cases is enough there. */
#ifndef TESTS_NUMERICS_SCALE_H
#define TESTS_NUMERICS_SCALE_H

#ifndef NUMERICS_THIN
#define NUMERICS_THIN 1
#endif

#endif
