/* The call that a row of a test table starts from and changes. */
#ifndef TESTS_API_ROW_CALL_H
#define TESTS_API_ROW_CALL_H

#include "api/valid_call.h"

/* The args of the current call, and its first two operands. */
static trope_args *a;
__attribute__((unused)) static trope_operand *q, *k;

__attribute__((unused)) static void begin(call *c)
{
    a = call_args(c);
    q = &c->operands[0];
    k = &c->operands[1];
}

#endif
