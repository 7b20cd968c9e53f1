/* Every pair of memories of a call. If the call writes one of them and they overlap, the call is refused with a text that is
 * true for this pair. If it only reads both, they may overlap. */
#include "api/fields.h"
#include "api/valid_call.h"
#include "support/check.h"

enum { SLOTS = 32, SLOT_BYTES = 4096 };

/* Each memory of a call has a slot, and ends inside it. */
static _Alignas(64) char slots[SLOTS][SLOT_BYTES];

typedef struct memory {
    char name[32];
    void **pointer; /* NULL: a struct, or an array that validation reads. It stays in its slot */
    char *slot;
    int is_written;
} memory;

typedef struct listed_call {
    trope_args *args;
    memory list[SLOTS];
    int count;
} listed_call;

/* ---- calls that together have all memories ---- */

static call *with_status(call *c)
{
    static int32_t status;
    c->args.status = &status;
    return c;
}

static call *axes_and_status(void)
{
    return with_status(axes());
}

static call *starts_and_status(void)
{
    return with_status(starts());
}

static call *padded_and_status(void)
{
    return with_status(padded());
}

static call *gradient_and_status(void)
{
    return with_status(gradient());
}

static call *shared(void)
{
    call *c = dense();
    c->operands[0].shared_heads = c->operands[1].shared_heads = TROPE_SHARED_ALL;
    return c;
}

static call *accumulating(void)
{
    call *c = gradient();
    c->operands[0].accumulate = c->operands[1].accumulate = 1;
    return c;
}

/* The backward call of a norm with all of its arrays. */
static call *norm_gradient_of_ranks(void)
{
    call *c = norm_gradient();
    norm_of_q.scope = TROPE_NORM_TOKEN;
    norm_of_q.rstd = out.rstd;
    norm_of_q.rstd_use = TROPE_RSTD_READ;
    norm_of_q.token_sums = in.sums;
    norm_of_q.token_sums_use = TROPE_SUMS_READ;
    norm_of_q.heads_of_all_ranks = 2 * Q_HEADS;
    return c;
}

enum { FORWARD = 1, BACKWARD = 2 };
static const struct {
    const char *name;
    call *(*make)(void);
    int directions;
} calls[] = {{"table", table, FORWARD | BACKWARD},
             {"phase", phase, FORWARD | BACKWARD},
             {"steps", steps, FORWARD | BACKWARD},
             {"axes", axes_and_status, FORWARD | BACKWARD},
             {"starts", starts_and_status, FORWARD | BACKWARD},
             {"padded", padded_and_status, FORWARD | BACKWARD},
             {"shared", shared, FORWARD | BACKWARD},
             {"gradient", gradient_and_status, BACKWARD},
             {"phase_gradient", phase_gradient, BACKWARD},
             {"accumulating", accumulating, BACKWARD},
             {"normed", normed, FORWARD},
             {"norm_of_ranks", norm_of_ranks, FORWARD},
             {"sums_of_ranks", sums_of_ranks, FORWARD},
             {"norm_gradient", norm_gradient, BACKWARD},
             {"norm_gradient_of_ranks", norm_gradient_of_ranks, BACKWARD}};

/* ---- the memories of a call ---- */

static int is_one_of(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name))
            return 1;
    return 0;
}

static int is_written(const char *name, const trope_norm *norm)
{
    static const char *const results[] = {"dst", "status", "d_freqs", "d_inv_freq", "workspace", "d_weight", NULL};
    return is_one_of(results, name) || (!strcmp(name, "rstd") && norm->rstd_use == TROPE_RSTD_WRITE) ||
           (!strcmp(name, "token_sums") && norm->token_sums_use == TROPE_SUMS_WRITE);
}

/* Copies `bytes` bytes to the next slot, which becomes a memory of the call. */
static void *add_memory(listed_call *c, const char *name, const void *from, size_t bytes)
{
    memory *m = &c->list[c->count];
    m->slot = slots[c->count++];
    snprintf(m->name, sizeof m->name, "%s", name);
    return memcpy(m->slot, from, bytes);
}

/* Adds the memories that the pointers of a struct point to. */
static void add_pointers(listed_call *c, const char *owner, void *object, const field *fields, size_t count)
{
    static const char *const others[] = {"stream", "operands", "norms", NULL};
    static const char *const read_at_once[] = {"inv_freq", "phase_step", "pair_axis", NULL};
    char name[32];
    for (size_t i = 0; i < count; i++) {
        void **const pointer = (void *)((char *)object + fields[i].offset);
        if (fields[i].kind != FIELD_POINTER || is_one_of(others, fields[i].name) || !*pointer)
            continue;
        memory *m = &c->list[c->count];
        snprintf(name, sizeof name, "%s%s", owner, fields[i].name);
        m->is_written = is_written(fields[i].name, &norm_of_q);
        m->pointer = is_one_of(read_at_once, fields[i].name) ? NULL : pointer;
        *pointer = add_memory(c, name, *pointer, 4);
    }
}

/* Makes a call whose memories are all in slots. (Its index arrays and frequencies may be 0.) */
static listed_call make_call(size_t n)
{
    listed_call c = {.count = 0};
    call *const from = calls[n].make();
    memset(slots, 0, sizeof slots);
    c.args = add_memory(&c, "args", call_args(from), sizeof *c.args);
    trope_operand *operands = add_memory(&c, "operands", from->operands, 2 * sizeof *operands);
    c.args->operands = operands;
    if (c.args->norms) {
        const trope_norm **norms = add_memory(&c, "norms", norms_of_call, sizeof norms_of_call);
        trope_norm *norm = add_memory(&c, "norms[0]", &norm_of_q, sizeof norm_of_q);
        c.args->norms = norms;
        norms[0] = norm;
        add_pointers(&c, "norms[0].", norm, norm_fields, FIELD_COUNT(norm_fields));
    }
    if (c.args->workspace)
        c.args->workspace_size = SLOT_BYTES / 2;
    add_pointers(&c, "", c.args, args_fields, FIELD_COUNT(args_fields));
    add_pointers(&c, "operands[0].", &operands[0], operand_fields, FIELD_COUNT(operand_fields));
    add_pointers(&c, "operands[1].", &operands[1], operand_fields, FIELD_COUNT(operand_fields));
    return c;
}

/* ---- pairs ---- */

/* Whether the memories are src and dst of one operand. */
static int are_src_and_dst(const memory *a, const memory *b)
{
    const size_t length = strlen("operands[0].");
    return !strncmp(a->name, b->name, length) && !strcmp(a->name + length, "src") && !strcmp(b->name + length, "dst");
}

static void check_refused(const listed_call *c, const memory *a, const memory *b, int backward)
{
    const memory *const writer = a->is_written ? a : b, *const other = a->is_written ? b : a;
    const trope_operand *const o = c->args->operands;
    const char *const rule = are_src_and_dst(a, b) && !o->shared_heads && !o->accumulate
                                 ? "src and dst must have the same address and strides (in place), or not overlap"
                                 : "memory that the call writes must not overlap its other memory";
    const char *const function = backward ? "trope_backward" : "trope_forward";
    char text[256], reversed[256];
    const trope_status status = backward ? trope_backward(c->args) : trope_forward(c->args);
    snprintf(text, sizeof text, "%s: %s overlaps %s: %s", function, writer->name, other->name, rule);
    snprintf(reversed, sizeof reversed, "%s: %s overlaps %s: %s", function, other->name, writer->name, rule);
    CHECK_MESSAGE(status == TROPE_ERROR_OVERLAP, "%s: %s", text, trope_status_name(status));
    CHECK_MESSAGE(!strcmp(text, trope_last_error()) || (other->is_written && !strcmp(reversed, trope_last_error())),
                  "\"%s\" must be \"%s\"", trope_last_error(), text);
}

/* Moves one memory of a pair to the other. dst does not move to the address of its src: that would be a call in place. */
static void check_pair(const listed_call *c, const memory *a, const memory *b, int backward)
{
    const int is_refused = a->is_written || b->is_written;
    const memory *const moved = b->pointer && (b->is_written || !is_refused) ? b : a, *const other = moved == a ? b : a;
    char name[64];
    if (!moved->pointer)
        return;
    *moved->pointer = other->slot + (are_src_and_dst(a, b) ? 16 : 0);
    if (is_refused) {
        check_refused(c, a, b, backward);
    } else {
        const trope_status status = trope_kernel_name(c->args, backward, name, sizeof name);
        CHECK_MESSAGE(!status, "%s and %s are only read: %s", a->name, b->name, trope_last_error());
    }
    *moved->pointer = moved->slot;
}

static void check_call(size_t n, int backward)
{
    const listed_call c = make_call(n);
    char name[64];
    CHECK_MESSAGE(!trope_kernel_name(c.args, backward, name, sizeof name), "%s: %s", calls[n].name, trope_last_error());
    for (int i = 0; i < c.count; i++)
        for (int j = i + 1; j < c.count; j++)
            check_pair(&c, &c.list[i], &c.list[j], backward);
}

int main(void)
{
    for (size_t n = 0; n < sizeof calls / sizeof *calls; n++)
        for (int backward = 0; backward < 2; backward++)
            if (calls[n].directions & (backward ? BACKWARD : FORWARD))
                check_call(n, backward);
    return check_result();
}
