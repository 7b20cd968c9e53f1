/* Every combination of the options of a call, for --cases cross. */
#include <stdio.h>

#include "bench.h"

#define ALL (BENCH_TYPE(TROPE_F32) | BENCH_TYPE(TROPE_F16) | BENCH_TYPE(TROPE_BF16))

enum { LAYOUTS = 4, PAIRINGS = 2, WINDOWS = 3, DIRECTIONS = 2, PLACES = 2, SOURCES = 2 };
enum { CROSS = LAYOUTS * PAIRINGS * WINDOWS * DIRECTIONS * PLACES * SOURCES };

static bench_case cross_case(int i, char *name, size_t size)
{
    static const char *const layouts[] = {"sbhd", "bshd", "bhsd", "thd"}, *const windows[] = {"whole", "half", "mla"};
    const int layout = i % LAYOUTS, pairing = i / LAYOUTS % PAIRINGS, window = i / (LAYOUTS * PAIRINGS) % WINDOWS;
    const int rest = i / (LAYOUTS * PAIRINGS * WINDOWS), backward = rest % 2, in_place = rest / 2 % 2, freqs = rest / 4;
    snprintf(name, size, "x-%s-%s-%s-%s-%s-%s", layouts[layout], pairing ? "interleaved" : "halves", windows[window],
             backward ? "bwd" : "fwd", in_place ? "in" : "out", freqs ? "freqs" : "inv_freq");
    bench_case c = {.name = name, .dtypes = ALL, .heads = 32, .layout = TROPE_SBHD + layout};
    c.batch = layout == 3 ? 1 : 2;
    c.source.lengths = layout == 3 ? BENCH_SEQS_PARETO : BENCH_DENSE;
    c.pairing = pairing ? TROPE_PAIRING_INTERLEAVED : TROPE_PAIRING_HALF;
    c.head_dim = window == 2 ? 192 : 128;
    c.rotary_dim = window ? 64 : 128;
    c.rotary_offset = window == 2 ? 128 : 0;
    c.backward = backward;
    c.in_place = in_place;
    c.source.angles = freqs ? BENCH_FREQS_HALF : BENCH_INV_FREQ;
    return c;
}

bench_table bench_cross_cases(void)
{
    static bench_case all[CROSS];
    static char names[CROSS][64];
    for (int i = 0; i < CROSS; i++)
        all[i] = cross_case(i, names[i], sizeof names[i]);
    return (bench_table){all, CROSS};
}
