/* The rules for one sequence of a packed stream: whether its bounds are valid, which tokens of this rank belong to it, and
 * which positions they have. position.h includes this file with 64-bit integers. CUDA includes it a second time with 32-bit
 * integers, which are enough for most calls and need half the registers. The includer defines INTEGER, FN(name) and
 * DIVIDE(divisor, n).
 *
 * `before` is the number of boundaries at or before a token: 0 before the first sequence, sequence + 1 in a sequence, and
 * count + 1 after the last sequence. */

/* The boundaries of a sequence or a gap, as offsets in the stream of all ranks. A sequence is stored at [begin, end). Its
 * boundaries in cu_seqlens are unpadded_begin and unpadded_end. */
typedef struct FN(bounds) {
    INTEGER begin, end, unpadded_begin, unpadded_end;
} FN(bounds);

TROPE_HD trope_bounds_fault FN(check_bounds)(const trope_position_source *s, FN(bounds) b)
{
    const INTEGER split = (INTEGER)s->cp.split.divisor;
    if (b.begin < 0 || b.end < b.begin)
        return TROPE_BOUNDS_ORDER;
    if (b.unpadded_begin < 0 || b.unpadded_end < b.unpadded_begin)
        return TROPE_BOUNDS_UNPADDED_ORDER;
    if (b.end > (INTEGER)s->tokens * (INTEGER)s->cp.size)
        return TROPE_BOUNDS_END;
    const INTEGER stored = b.end - b.begin;
    if (b.unpadded_end - b.unpadded_begin > stored)
        return TROPE_BOUNDS_ROOM;
    if (split == 1) /* only split sequences have chunks */
        return TROPE_BOUNDS_VALID;
    if ((INTEGER)DIVIDE(&s->cp.split, b.begin) * split != b.begin)
        return TROPE_BOUNDS_BEGIN_SPLIT;
    const INTEGER local = (INTEGER)DIVIDE(&s->cp.split, stored);
    return local * split != stored || (local & (s->cp.chunks - 1)) ? TROPE_BOUNDS_LENGTH_SPLIT : TROPE_BOUNDS_VALID;
}

/* Returns the token of this rank at an offset in the stream of all ranks. */
TROPE_HD INTEGER FN(cp_local)(const trope_cp *cp, INTEGER global)
{
    return (INTEGER)DIVIDE(&cp->split, global) - (INTEGER)cp->skipped;
}

/* Returns the smallest offset in the stream of all ranks that comes after a token of this rank. */
TROPE_HD INTEGER FN(cp_after)(const trope_cp *cp, INTEGER token)
{
    return (token + (INTEGER)cp->skipped + 1) * (INTEGER)cp->split.divisor;
}

/* Returns the position of token i of a sequence (or batch entry) with `local` tokens on this rank. */
TROPE_HD INTEGER FN(cp_position)(const trope_cp *cp, INTEGER local, INTEGER i)
{
    const INTEGER chunk = local >> (cp->chunks - 1);
    const int32_t lead = i < chunk ? cp->lead[0] : cp->lead[1]; /* with one chunk, both leads are equal */
    return (lead * chunk + i) * (INTEGER)cp->step + (INTEGER)cp->first;
}

/* Tokens [begin, end) of a batch entry, which are one sequence or one gap (padding outside all sequences). */
typedef struct FN(span) {
    INTEGER begin, end; /* tokens of this rank; with FLAT, of the whole sequence, which may extend to other ranks */
    INTEGER sequence;   /* -1 for a gap */
    INTEGER unpadded;   /* tokens whose index in the sequence is at least this are padding */
    int64_t first;      /* added to the index to give the position */
} FN(span);

TROPE_HD int FN(is_gap)(const trope_position_source *s, INTEGER before)
{
    return before <= 0 || before > (INTEGER)s->count;
}

/* Returns the span between these boundaries: a sequence, the gap before the first sequence, or the gap after the last one.
 * `start` is the start position of the sequence, 0 without start positions. */
TROPE_HD FN(span) FN(span_of_bounds)(const trope_position_source *s, INTEGER before, FN(bounds) b, int64_t start)
{
    const int is_gap = FN(is_gap)(s, before);
    FN(span) span;
    span.begin = FN(cp_local)(&s->cp, before > 0 ? b.begin : 0);
    span.end = before <= (INTEGER)s->count ? FN(cp_local)(&s->cp, b.end) : (INTEGER)s->tokens;
    span.sequence = is_gap ? -1 : before - 1;
    span.unpadded = is_gap ? 0 : b.unpadded_end - b.unpadded_begin;
    span.first = is_gap ? 0 : s->stream ? b.unpadded_begin : start;
    return span;
}

TROPE_HD INTEGER FN(index_in_sequence)(const trope_position_source *s, const FN(span) * span, INTEGER token)
{
    const INTEGER i = token - span->begin;
    return span->sequence < 0 ? i : FN(cp_position)(&s->cp, span->end - span->begin, i);
}

TROPE_HD int FN(is_padding)(const FN(span) * span, INTEGER index)
{
    return index >= span->unpadded;
}

#undef INTEGER
#undef FN
#undef DIVIDE
