/* Changes each field of each struct, in calls of all kinds. A field that was set is forgotten: it becomes 0. A field that
 * was 0 is set. The call must be refused with a message that names an argument, unless the field is in a list below.
 * docs/semantics.md explains the fields that may be forgotten. The library cannot catch this, because the call with 0 is
 * valid, too. */
#include "api/fields.h"
#include "api/valid_call.h"
#include "support/check.h"

/* ---- calls that together set every field ---- */

static call *starts_of_sequences(void)
{
    call *c = packed();
    c->args.start_positions = in.starts;
    c->args.position_dtype = TROPE_I32;
    return c;
}

static call *stream(void)
{
    call *c = packed();
    c->args.stream_positions = 1;
    return c;
}

static call *two_parts(void)
{
    call *c = dense();
    c->args.parts = 2;
    return c;
}

static call *copied(void)
{
    call *c = dense();
    c->operands[1].rotary_dim = TROPE_COPY;
    return c;
}

static call *shared(void)
{
    call *c = dense();
    c->operands[0].shared_heads = TROPE_SHARED_ALL;
    return c;
}

/* A call for backward only. */
static call *sums(void)
{
    call *c = strided();
    trope_operand *o = c->operands;
    o[0].shared_heads = TROPE_SHARED_ALL;
    o[0].dst_stride[TROPE_DIM_HEAD] = o[0].dst_stride[TROPE_DIM_GROUP] = 0;
    o[0].accumulate = o[1].accumulate = 1;
    return c;
}

static call *strided_d_freqs(void)
{
    call *c = gradient();
    c->args.d_freqs_layout = TROPE_TABLE_STRIDED;
    c->args.d_freqs_stride[1] = TOKENS * PAIRS;
    c->args.d_freqs_stride[2] = PAIRS;
    c->args.d_freqs_stride[3] = 1;
    return c;
}

/* Each field with a default has another value here. */
static call *no_defaults(void)
{
    static int32_t status;
    call *c = zigzag();
    c->args.threads = 2;
    c->args.isa = TROPE_ISA_PORTABLE;
    c->args.rounding = TROPE_ROUND_NATIVE;
    c->args.pairing_out = TROPE_PAIRING_INTERLEAVED;
    c->args.inverse = 1;
    c->args.mscale = 2;
    c->args.out_of_range = TROPE_RANGE_CLAMP;
    c->args.status = &status;
    c->operands[0].groups = 2;
    c->operands[0].heads_per_group = 1;
    return c;
}

/* Each head has weights of its own, and 1 is added to them. */
static call *norm_of_heads(void)
{
    call *c = normed();
    norm_of_q.weight_per_head = 1;
    norm_of_q.weight_plus_one = 1;
    return c;
}

/* All heads of a token have one rstd. */
static call *norm_of_token(void)
{
    call *c = normed();
    norm_of_q.scope = TROPE_NORM_TOKEN;
    return c;
}

#define BOTH 3 /* directions: 1 forward, 2 backward */
static const struct {
    const char *name;
    call *(*make)(void);
    int directions;
} calls[] = {{"dense", dense, BOTH},
             {"strided", strided, BOTH},
             {"table", table, BOTH},
             {"strided_table", strided_table, BOTH},
             {"phase", phase, BOTH},
             {"steps", steps, BOTH},
             {"ids", ids, BOTH},
             {"axes", axes, BOTH},
             {"strided_ids", strided_ids, BOTH},
             {"starts", starts, BOTH},
             {"starts_of_sequences", starts_of_sequences, BOTH},
             {"stream", stream, BOTH},
             {"packed", packed, BOTH},
             {"padded", padded, BOTH},
             {"zigzag", zigzag, BOTH},
             {"two_parts", two_parts, BOTH},
             {"copied", copied, BOTH},
             {"shared", shared, BOTH},
             {"no_defaults", no_defaults, BOTH},
             {"sums", sums, 2},
             {"gradient", gradient, 2},
             {"strided_gradient", strided_gradient, 2},
             {"strided_d_freqs", strided_d_freqs, 2},
             {"phase_gradient", phase_gradient, 2},
             {"normed", normed, 1},
             {"only_norm", only_norm, 1},
             {"norm_of_heads", norm_of_heads, 1},
             {"norm_of_token", norm_of_token, 1},
             {"norm_of_ranks", norm_of_ranks, 1},
             {"sums_of_ranks", sums_of_ranks, 1},
             {"norm_gradient", norm_gradient, 2}};

/* ---- fields that are not refused ---- */

/* If one of these is forgotten, the result is another valid call. */
static const char *const forgettable[] = {"tokens",
                                          "threads",
                                          "isa",
                                          "rounding",
                                          "pairing_out",
                                          "parts",
                                          "inverse",
                                          "mscale",
                                          "out_of_range",
                                          "angle_stride",
                                          "stream_positions",
                                          "ids_stride",
                                          "cp_rank",
                                          "status",
                                          "cu_seqlens_padded",
                                          "d_freqs_stride",
                                          "groups",
                                          "accumulate",
                                          "src_stride",
                                          "dst_stride",
                                          "shared_heads",
                                          "rotary_offset",
                                          "forward_src_stride",
                                          "norms",
                                          "weight_per_head",
                                          "weight_plus_one",
                                          "d_weight"};

/* If one of these is set, the result is another valid call. (Calls in which this test sets workspace do not read it.) */
static const char *const choices[] = {"isa",
                                      "rounding",
                                      "pairing_out",
                                      "parts",
                                      "inverse",
                                      "mscale",
                                      "pair_axis",
                                      "out_of_range",
                                      "angle_stride",
                                      "position_axes",
                                      "cp_size",
                                      "status",
                                      "stream_positions",
                                      "padding",
                                      "workspace",
                                      "workspace_size",
                                      "groups",
                                      "accumulate",
                                      "shared_heads",
                                      "dst_stride",
                                      "norms",
                                      "weight_per_head",
                                      "weight_plus_one",
                                      "first_head"};

#define COUNT(array) (sizeof array / sizeof array[0])
static int times_forgotten[COUNT(forgettable)], times_given[COUNT(choices)];

static int is_listed(const char *const *list, int *times, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i], name))
            return ++times[i];
    return 0;
}

static void check_all_seen(const char *const *list, const int *times, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++)
        CHECK_MESSAGE(times[i], "%s: a call is always refused when this field is %s, so it must not be in the list",
                      list[i], what);
}

/* ---- one element of a field ---- */

/* Sets an element that was 0, and sets any other element to 0. Returns whether it was 0. */
static int change(unsigned char *element, size_t size, field_kind kind)
{
    static const double memory[4096];
    static const unsigned char zero[8];
    const int was_zero = !memcmp(element, zero, size);
    const int32_t one = 1;
    const int64_t one_too = 1;
    const double number = 1.5;
    const void *const pointer = memory;
    const void *const values[] = {&one, &one_too, &number, &pointer};
    memcpy(element, was_zero ? values[kind] : zero, size);
    return was_zero;
}

static void check_element(size_t n, int backward, int operand, const field *f, size_t offset)
{
    const size_t size = f->kind == FIELD_INT32 ? 4 : 8;
    call *c = calls[n].make();
    trope_args *args = call_args(c);
    unsigned char *owner = operand < 0    ? (unsigned char *)args
                           : operand == 2 ? (unsigned char *)&norm_of_q
                                          : (unsigned char *)&c->operands[operand];
    const int was_zero = change(owner + f->offset + offset, size, f->kind);
    if ((backward ? trope_backward(args) : trope_forward(args)) != TROPE_OK) {
        CHECK_MESSAGE(trope_last_error_argument()[0] && outputs_are_untouched(), "%s: %s", calls[n].name,
                      trope_last_error());
        return;
    }
    CHECK_MESSAGE(was_zero ? is_listed(choices, times_given, COUNT(choices), f->name)
                           : is_listed(forgettable, times_forgotten, COUNT(forgettable), f->name),
                  "%s, %s: %s (byte %zu, operand %d) is not refused when this element is %s", calls[n].name,
                  backward ? "backward" : "forward", f->name, offset, operand, was_zero ? "set" : "forgotten");
}

/* operand: the index of an operand, -1 for the args, or 2 for the norm of operand 0. */
static void check_fields(size_t n, int backward, int operand)
{
    const field *fields = operand < 0 ? args_fields : operand == 2 ? norm_fields : operand_fields;
    const size_t count = operand < 0    ? FIELD_COUNT(args_fields)
                         : operand == 2 ? FIELD_COUNT(norm_fields)
                                        : FIELD_COUNT(operand_fields);
    for (size_t i = 0; i < count; i++)
        for (size_t offset = 0; offset < fields[i].size; offset += fields[i].kind == FIELD_INT32 ? 4 : 8)
            check_element(n, backward, operand, &fields[i], offset);
}

static void check_call(size_t n, int backward)
{
    trope_args *args = call_args(calls[n].make());
    CHECK_MESSAGE((backward ? trope_backward(args) : trope_forward(args)) == TROPE_OK, "%s: %s", calls[n].name,
                  trope_last_error());
    const int last = args->norms ? 2 : 1;
    for (int operand = -1; operand <= last; operand++)
        check_fields(n, backward, operand);
}

/* trope_fill_qkv refuses each field that is changed in this way, except tokens, which may be 0. */
static void check_qkv(void)
{
    trope_operand o;
    for (size_t i = 0; i < FIELD_COUNT(qkv_fields); i++) {
        trope_qkv qkv = {.struct_size = sizeof qkv, .buffer = out.workspace, .batch = 1, .tokens = 4, .layout = TROPE_SBHD};
        qkv.order = TROPE_QKV_GROUPS;
        qkv.dtype = TROPE_F32;
        qkv.q_heads = qkv.kv_heads = 2;
        qkv.head_dim = qkv.rotary_dim = 8;
        change((unsigned char *)&qkv + qkv_fields[i].offset, qkv_fields[i].size, qkv_fields[i].kind);
        const trope_status status = trope_fill_qkv(&o, &qkv, TROPE_K);
        if (!strcmp(qkv_fields[i].name, "tokens"))
            CHECK_MESSAGE(status == TROPE_OK, "%s", trope_last_error());
        else
            CHECK_MESSAGE(status != TROPE_OK && !strcmp(trope_last_error_argument(), qkv_fields[i].name), "%s: %s",
                          qkv_fields[i].name, trope_last_error());
    }
}

int main(void)
{
    for (size_t n = 0; n < COUNT(calls); n++)
        for (int backward = 0; backward < 2; backward++)
            if (calls[n].directions >> backward & 1)
                check_call(n, backward);
    check_all_seen(forgettable, times_forgotten, COUNT(forgettable), "forgotten");
    check_all_seen(choices, times_given, COUNT(choices), "set");
    check_qkv();
    return check_result();
}
