/* The amount of work. Sanitizer builds define NUMERICS_THIN and run one in NUMERICS_THIN random cases. */
#ifndef TESTS_NUMERICS_SCALE_H
#define TESTS_NUMERICS_SCALE_H

#ifndef NUMERICS_THIN
#define NUMERICS_THIN 1
#endif

#endif
