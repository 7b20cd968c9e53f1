/* Parses --scaling RULE:key=value,...: the fields of trope_frequency_args by name. */
#ifndef TOOLS_TROPE_SCALING_H
#define TOOLS_TROPE_SCALING_H

#include "trope/trope.h"

typedef struct scaling_rule {
    trope_frequency_args args; /* its factor lists point into this struct: do not copy it */
    double short_factor[TROPE_MAX_ROTARY_DIM / 2];
    double long_factor[TROPE_MAX_ROTARY_DIM / 2];
} scaling_rule;

/* If text is NULL, the default rule is used. Returns nonzero after a complaint. */
int scaling_parse(const char *text, int32_t rotary_dim, scaling_rule *rule);

#endif
