/* Times: the clock, and what several of them come to. */
#ifndef TOOLS_TROPE_SECONDS_H
#define TOOLS_TROPE_SECONDS_H

/* Of a clock that only goes forward. */
double seconds_now(void);
/* In ascending order. */
void seconds_sort(double *seconds, int count);
/* The mean of the two in the middle of an even number. Sorts, too. */
double seconds_median(double *seconds, int count);

#endif
