#include "support/token_sums.h"

#include <stdlib.h>
#include <string.h>

#include "support/reference.h"

int64_t token_sums_heads(const call *k, int operand)
{
    const trope_norm *n = &k->norm[operand];
    if (!n->token_sums)
        return 0;
    return n->token_sums_use == TROPE_SUMS_READ ? n->heads_of_all_ranks : reference_heads(&k->args, operand);
}

/* Copies the sums of the part's tokens, for one operand, from the whole call or back to it. */
static void copy_rows(const call *whole, const call *part, int i, int64_t row, int is_back)
{
    const size_t size = whole->args.dtype == TROPE_F64 ? 8 : 4;
    const int64_t rows = whole->args.batch * whole->args.tokens, count = part->args.batch * part->args.tokens;
    for (int64_t head = 0; head < token_sums_heads(whole, i); head++) {
        char *const in_whole = (char *)whole->norm[i].token_sums + (size_t)(head * rows + row) * size;
        char *const in_part = (char *)part->norm[i].token_sums + (size_t)(head * count) * size;
        memcpy(is_back ? in_whole : in_part, is_back ? in_part : in_whole, (size_t)count * size);
    }
}

void token_sums_take(const call *whole, call *part, int64_t row)
{
    const int64_t count = part->args.batch * part->args.tokens;
    for (int i = 0; i < whole->args.operand_count; i++) {
        if (!whole->norm[i].token_sums)
            continue;
        part->norm[i].token_sums = malloc((size_t)(token_sums_heads(whole, i) * count) * sizeof(double) + 1);
        copy_rows(whole, part, i, row, 0);
    }
}

void token_sums_return(const call *whole, call *part, int64_t row)
{
    for (int i = 0; i < whole->args.operand_count; i++) {
        if (whole->norm[i].token_sums_use == TROPE_SUMS_WRITE)
            copy_rows(whole, part, i, row, 1);
        if (whole->norm[i].token_sums)
            free(part->norm[i].token_sums);
    }
}
