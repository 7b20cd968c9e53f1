/* Times: a clock, and statistics of several times. */
#ifndef TOOLS_TROPE_SECONDS_H
#define TOOLS_TROPE_SECONDS_H

/* Returns the time of a monotonic clock. */
double seconds_now(void);
/* Sorts in ascending order. */
void seconds_sort(double *seconds, int count);
/* Returns the median; of an even number, the mean of the middle two. Also sorts. */
double seconds_median(double *seconds, int count);

#endif
