/* What the kernels of the rotation have in common: what they are told of a call, and lanes of heads that are made of
 * 16-byte vectors.
 *
 * A thread has one lane of a head: two vectors, of the same pairs in every head, so that heads of a row are turned by
 * the same registers. Threads that have the same lane of different heads of a row share the work of finding its sines. */
#ifndef TROPE_FWD_CUDA_LANES_CUH
#define TROPE_FWD_CUDA_LANES_CUH

#include "fwd/cuda/rows.cuh"
#include "fwd/cuda/tiles.cuh"

/* What is asked for before the tile is on its way lies together: parameters that nobody has read yet take long to come. */
struct tiled_operand {
    uint32_t blocks_of_turn;
    uint32_t tile_bytes; /* of a warp */
    tiling tiles;
    tiled_tensor src, dst;
    fast_divisor lanes; /* that rotate, of a head: those that a warp has at once */
    uint32_t all_lanes;
    uint32_t head_threads;       /* a bit for each of these lanes, from 0 on */
    uint32_t rows_at_once;       /* of a warp */
    uint32_t turn_rows;          /* whose turns there is room for; 0: it is only copied */
    uint32_t share_bits;         /* threads that share the work of finding a lane's turns, as a power of two */
    uint32_t share_rows;         /* rows that a warp finds the turns of at once */
    fast_divisor heads_at_once;  /* of each of these rows */
    uint32_t window;             /* bytes from where a head starts in its tile to its rotary window */
    uint32_t before_window;      /* bytes of a head in memory that are before what its tile has */
    uint32_t head_bytes;         /* in memory */
    uint32_t part_pairs;         /* in each of the plan's windows */
    uint32_t stays;              /* in L2, from its load to its store */
    uint32_t low_step, high_gap; /* pairs from a lane's first run to the next lane's, and to its second run */
};

struct tiled_call {
    fast_divisor turn;                         /* blocks, in which every operand has some */
    uint32_t first_of_turn[MAX_CUDA_OPERANDS]; /* UINT32_MAX where there is no operand */
    uint32_t turns_at, rows_at;                /* in shared memory, where tiles come first: coefficients, and rows */
    uint32_t turns_bytes;                      /* of a warp */
    cuda_rows rows;
    int32_t interleaved_src, interleaved_dst; /* as in the plan */
    cuda_plan plan;
};

/* What is changed in place stays in L2 from its load to its store, which is quicker above all where only a part of a line
 * is stored, and is then as good as anything else there. Other tiles are needed once. */
__device__ __forceinline__ uint64_t load_policy(const tiled_operand &o)
{
    return o.stays ? evict_last() : evict_first();
}

__device__ __forceinline__ uint64_t store_policy(const tiled_operand &o)
{
    return o.stays ? evict_normal() : evict_first();
}

/* ---- lanes ---- */

/* Two vectors of a head. Whichever way it is paired they are vector j of the first half of a window and vector j of its
 * second half, so that neighbouring threads have neighbouring vectors. The pairs are in two runs, which are one after the
 * other in a half-paired head. */
template <int DTYPE, int ANGLES> struct tile_lane {
    typedef typename elements<DTYPE>::real real;
    typedef vector_pair<DTYPE> vectors;
    enum { V = vectors::WIDTH, RUN = V / 2, BYTES = 16 / V };

    uint32_t first, second; /* bytes from the window's start */
    uint32_t low, high;     /* the first pair of each run */
    uint32_t skipped;       /* pairs of the windows before */

    template <bool USUAL_ROWS>
    __device__ __forceinline__ void locate(const tiled_call &call, const tiled_operand &o, uint32_t lane)
    {
        skipped = USUAL_ROWS ? 0 : (uint32_t)pairs_before((int)o.part_pairs, (int)(lane * V));
        first = (lane * V + skipped) * BYTES;
        second = first + o.part_pairs * BYTES;
        low = lane * o.low_step + (call.interleaved_src ? skipped / 2 : 0);
        high = low + o.high_gap;
    }

    __device__ __forceinline__ vectors load(const char *window) const
    {
        vectors v;
        v.bits[0] = *(const uint4 *)(window + first);
        v.bits[1] = *(const uint4 *)(window + second);
        return v;
    }

    __device__ __forceinline__ void store(const vectors &v, char *window) const
    {
        *(uint4 *)(window + first) = v.bits[0];
        *(uint4 *)(window + second) = v.bits[1];
    }

    /* The same in memory. The compiler leaves the loads where they are. */
    __device__ __forceinline__ vectors load_from_memory(const char *window, uint64_t policy) const
    {
        vectors v;
        load_vector(window + first, policy, &v.bits[0]);
        load_vector(window + second, policy, &v.bits[1]);
        return v;
    }

    __device__ __forceinline__ void store_to_memory(const vectors &v, char *window, uint64_t policy) const
    {
        store_vector(window + first, policy, v.bits[0]);
        store_vector(window + second, policy, v.bits[1]);
    }

    /* Pairs that were read half-paired and are written interleaved, or the other way round. */
    __device__ __forceinline__ void store_rearranged(const tiled_operand &o, bool interleave, vectors v, char *window) const
    {
        if (interleave) {
            v.join();
            *(uint4 *)(window + 2 * low * BYTES) = v.bits[0];
            *(uint4 *)(window + 2 * high * BYTES) = v.bits[1];
            return;
        }
        window += skipped * BYTES;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            *(uint2 *)(window + (i * o.part_pairs + low) * BYTES) = make_uint2(v.bits[i].x, v.bits[i].y);
            *(uint2 *)(window + (i * o.part_pairs + high) * BYTES) = make_uint2(v.bits[i].z, v.bits[i].w);
        }
    }
};

/* What a lane's pairs are turned by in one row. It is found in shares, by the threads that have the same lane of different
 * heads, and comes to each of them through shared memory. */
template <int DTYPE, int ANGLES> struct lane_turns {
    typedef tile_lane<DTYPE, ANGLES> lane;
    typedef typename lane::real real;
    enum { RUN = lane::RUN, OWN = MAY_OWN_ANGLES<ANGLES> };
    enum { SHARE = RUN < 2 ? 1 : 2, SHARES = 2 * RUN / SHARE }; /* pairs that a thread finds at a time */
    enum { OF_SHARE = SHARE * (OWN ? 4 : 2) * sizeof(real) / 16, PLANES = SHARES * OF_SHARE }; /* 16-byte vectors */

    turns_of<real, RUN> run[2];

    /* Where a row's turns are: each vector of a lane is in a plane of its own, so that neighbouring threads have
     * neighbouring vectors. */
    struct space {
        char *first; /* of this thread's lane, in the first row */
        uint32_t plane;

        __device__ __forceinline__ char *of_row(uint32_t row) const
        {
            return first + row * PLANES * plane;
        }
    };

    typedef steps_of<ANGLES, SHARE> share_steps;

    static __device__ __forceinline__ int pair_of_share(const lane &at, uint32_t share)
    {
        return (int)(share * SHARE < RUN ? at.low : at.high) + (int)(share * SHARE % RUN);
    }

    static __device__ __forceinline__ share_steps load_steps(const lane &at, const uint64_t *steps, uint32_t share)
    {
        return share_steps(steps, pair_of_share(at, share));
    }

    /* Shares `share`, share + shares, ... of rows `row`, row + rows, ... below `end`, AT_ONCE of these rows at a time (the
     * first of them again where there are fewer). Their angles are asked for before the first of their sines is found.
     * Returns whether the elements of any pair are turned by different ones. */
    template <bool USUAL_ROWS, int AT_ONCE, class STEPS_OF, class ROW_OF>
    static __device__ __forceinline__ bool find_shares(const cuda_plan &plan, const lane &at, STEPS_OF steps_of_share,
                                                       uint32_t share, uint32_t shares, uint32_t row, uint32_t rows,
                                                       uint32_t end, ROW_OF row_of, const space &to)
    {
        bool own = false;
#pragma unroll 1
        for (uint32_t i = share; i < SHARES; i += shares) {
            const int pair = pair_of_share(at, i);
            const share_steps own_steps = steps_of_share(i);
            const uint32_t plane = i * OF_SHARE * to.plane;
#pragma unroll 1
            for (uint32_t first = row; first < end; first += AT_ONCE * rows) {
                uint32_t number[AT_ONCE];
                trope_row found[AT_ONCE];
                angles_of<real, SHARE> angles[AT_ONCE];
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
                    number[k] = k == 0 || first + k * rows < end ? first + k * rows : first;
                    found[k] = row_of(number[k]);
                    if (found[k].action == TROPE_ROW_ROTATE)
                        angles[k] = load_angles<ANGLES, USUAL_ROWS, real, SHARE>(plan, found[k], pair, own_steps);
                }
#pragma unroll
                for (int k = 0; k < AT_ONCE; k++) {
                    if (found[k].action == TROPE_ROW_ROTATE) {
                        turns_of<real, SHARE> t;
                        own |= find_turns<ANGLES, USUAL_ROWS, real, SHARE>(plan, found[k], pair, angles[k], &t);
                        store_share(t, to.of_row(number[k]) + plane, to.plane);
                    }
                }
            }
        }
        return own;
    }

    static __device__ __forceinline__ void store_share(const turns_of<real, SHARE> &t, char *to, uint32_t plane)
    {
        share s;
#pragma unroll
        for (int e = 0; e < SHARE; e++) {
            s.values[0][e] = t.c1[e];
            s.values[1][e] = t.s1[e];
            if constexpr (OWN) {
                s.values[2][e] = t.c2[e];
                s.values[3][e] = t.s2[e];
            }
        }
#pragma unroll
        for (int k = 0; k < OF_SHARE; k++)
            *(uint4 *)(to + k * plane) = s.vectors[k];
    }

    /* All of a row. OWN_TURNS: also what second elements are turned by. */
    template <bool OWN_TURNS> __device__ __forceinline__ void load_shares(const char *from, uint32_t plane)
    {
#pragma unroll
        for (int i = 0; i < SHARES; i++) {
            share s;
#pragma unroll
            for (int k = 0; k < (OWN && !OWN_TURNS ? OF_SHARE / 2 : OF_SHARE); k++)
                s.vectors[k] = *(const uint4 *)(from + (i * OF_SHARE + k) * plane);
            turns_of<real, RUN> &t = run[i * SHARE / RUN];
#pragma unroll
            for (int e = 0; e < SHARE; e++) {
                t.c1[i * SHARE % RUN + e] = s.values[0][e];
                t.s1[i * SHARE % RUN + e] = s.values[1][e];
                if constexpr (OWN_TURNS) {
                    t.c2[i * SHARE % RUN + e] = s.values[2][e];
                    t.s2[i * SHARE % RUN + e] = s.values[3][e];
                }
            }
        }
    }

    /* ---- or by a thread alone ---- */

    struct lane_angles {
        angles_of<real, RUN> run[2];

        template <bool USUAL_ROWS>
        __device__ __forceinline__ void load(const cuda_plan &plan, const trope_row &row, const lane &at,
                                             const steps_of<ANGLES, RUN> *steps)
        {
            if (row.action != TROPE_ROW_ROTATE)
                return;
            run[0] = load_angles<ANGLES, USUAL_ROWS, real, RUN>(plan, row, (int)at.low, steps[0]);
            run[1] = load_angles<ANGLES, USUAL_ROWS, real, RUN>(plan, row, (int)at.high, steps[1]);
        }
    };

    template <bool USUAL_ROWS>
    __device__ __forceinline__ void find(const cuda_plan &plan, const trope_row &row, const lane &at, const lane_angles &a)
    {
        find_turns<ANGLES, USUAL_ROWS, real, RUN>(plan, row, (int)at.low, a.run[0], &run[0]);
        find_turns<ANGLES, USUAL_ROWS, real, RUN>(plan, row, (int)at.high, a.run[1], &run[1]);
    }

    union share {
        uint4 vectors[OF_SHARE];
        real values[OWN ? 4 : 2][SHARE];
    };

    template <bool OWN_TURNS, bool NATIVE> __device__ __forceinline__ void turn(vector_pair<DTYPE> *v) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const turns_of<real, RUN> &t = run[i];
            real y[2][RUN];
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const typename pair_types<DTYPE>::pair x = {to_real<DTYPE>(v->get(0, i * RUN + e)),
                                                            to_real<DTYPE>(v->get(1, i * RUN + e))};
                const typename pair_types<DTYPE>::pair turned = rotate_pair<DTYPE, NATIVE>(
                    x, {t.c1[e], t.s1[e], OWN_TURNS ? t.c2[e] : t.c1[e], OWN_TURNS ? t.s2[e] : t.s1[e]});
                y[0][e] = turned.first;
                y[1][e] = turned.second;
            }
            v->template set<RUN>(0, i * RUN, y[0]);
            v->template set<RUN>(1, i * RUN, y[1]);
        }
    }
};

#endif
