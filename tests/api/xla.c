/* Calls trope_xla_rotate through a call frame like XLA's. It must give the bits of a call of the library, and refuse a
 * wrong attribute and wrong buffers. Each buffer ends at an inaccessible page, so an access beyond it ends the test.
 *
 *     xla [--device cuda]    without a stream, like XLA's CPU; cuda: on a stream, for an emulated CUDA in host memory */
#include <sys/mman.h>
#include <unistd.h>

#include <xla/ffi/api/c_api.h>

#include "support/call.h"
#include "support/check.h"
#include "support/random.h"

/* ---- XLA ---- */

struct XLA_FFI_Error {
    char message[1024];
    XLA_FFI_Error_Code code;
};

static struct XLA_FFI_Error last_error;

static XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *args)
{
    snprintf(last_error.message, sizeof last_error.message, "%s", args->message);
    last_error.code = args->errc;
    return &last_error;
}

static void destroy_error(XLA_FFI_Error_Destroy_Args *args)
{
    (void)args;
}

/* XLA's CPU backend has no stream. */
static int32_t device = TROPE_DEVICE_CPU;

static XLA_FFI_Error *get_stream(XLA_FFI_Stream_Get_Args *args)
{
    args->stream = NULL; /* the legacy stream */
    return device == TROPE_DEVICE_CPU ? &last_error : NULL;
}

static XLA_FFI_Api make_api(void)
{
    XLA_FFI_Api api;
    memset(&api, 0, sizeof api);
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.XLA_FFI_Error_Create = create_error;
    api.XLA_FFI_Error_Destroy = destroy_error;
    api.XLA_FFI_Stream_Get = get_stream;
    return api;
}

/* ---- a call as the attribute and the buffers ---- */

enum { MAX_BUFFERS = 16, MAX_BYTES = 1 << 16 };
enum {
    SRC,
    DST,
    FORWARD_SRC,
    FREQS,
    COS,
    SIN,
    IDS,
    STARTS,
    CU,
    CU_PADDED,
    D_FREQS,
    D_INV_FREQ,
    WORKSPACE,
    WEIGHT,
    RSTD,
    D_WEIGHT,
    KINDS
};

typedef struct place {
    int32_t kind, index;
} place;

typedef struct head {
    uint64_t magic;
    int32_t backward, operands, norms, phase_steps, axes, slots;
} head;

typedef struct ffi {
    head h;
    call c;
    uint64_t steps[TROPE_MAX_ROTARY_DIM / 2];
    uint8_t axes[TROPE_MAX_ROTARY_DIM / 2];
    place places[MAX_BUFFERS];
    int arguments; /* how many of the first buffers are arguments; the others are results */
    XLA_FFI_Buffer buffers[MAX_BUFFERS];
    int64_t dims[MAX_BUFFERS][4];
    int has_attribute;
    XLA_FFI_DataType attribute_type;
} ffi;

/* The end of the memory of each buffer and of the attribute. An inaccessible page follows. */
static unsigned char *homes[MAX_BUFFERS + 1];

static void make_homes(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i <= MAX_BUFFERS; i++) {
        unsigned char *start = mmap(NULL, MAX_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED || mprotect(start + MAX_BYTES, page, PROT_NONE))
            abort();
        homes[i] = start + MAX_BYTES;
    }
}

static size_t element_bytes(XLA_FFI_DataType type)
{
    return type == XLA_FFI_DataType_U8                                     ? 1
           : type == XLA_FFI_DataType_F16 || type == XLA_FFI_DataType_BF16 ? 2
           : type == XLA_FFI_DataType_F64 || type == XLA_FFI_DataType_S64  ? 8
                                                                           : 4;
}

static size_t bytes_of(const XLA_FFI_Buffer *b)
{
    size_t bytes = element_bytes(b->dtype);
    for (int64_t d = 0; d < b->rank; d++)
        bytes *= (size_t)b->dims[d];
    return bytes;
}

static void set_dims(ffi *f, int i, int64_t rank, const int64_t *dims)
{
    memcpy(f->dims[i], dims, (size_t)rank * sizeof *dims);
    f->buffers[i].rank = rank;
    f->buffers[i].dims = f->dims[i];
    f->buffers[i].data = homes[i] - bytes_of(&f->buffers[i]);
}

/* Adds a buffer of random elements. Arguments must be added before results. */
static void add(ffi *f, int kind, int index, XLA_FFI_DataType type, int64_t rank, const int64_t *dims)
{
    const int i = f->h.slots++;
    f->places[i] = (place){kind, index};
    f->buffers[i].struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    f->buffers[i].dtype = type;
    set_dims(f, i, rank, dims);
    f->arguments +=
        kind != DST && kind != D_FREQS && kind != WORKSPACE && kind != D_WEIGHT && !(kind == RSTD && !f->h.backward);
}

#define ADD(f, kind, index, type, ...)                                                                                     \
    add(f, kind, index, XLA_FFI_DataType_##type, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                       \
        (int64_t[]){__VA_ARGS__})

static void fill(const ffi *f, uint64_t seed)
{
    random_state r = {seed};
    for (int i = 0; i < f->h.slots; i++) {
        const XLA_FFI_Buffer *b = &f->buffers[i];
        const size_t size = element_bytes(b->dtype);
        for (size_t at = 0; at < bytes_of(b); at += size) {
            const float real = (float)random_real(&r) + 2;
            uint32_t bits;
            memcpy(&bits, &real, sizeof bits);
            if (b->dtype == XLA_FFI_DataType_S32)
                bits = f->places[i].kind == CU ? (uint32_t[]){0, 2, 5}[at / 4] : (uint32_t)random_between(&r, 0, 4);
            if (size == 2)
                bits >>= 16; /* bf16 */
            memcpy((char *)b->data + at, &bits, size < 4 ? size : 4);
        }
    }
}

static void append(unsigned char **to, const void *from, size_t bytes)
{
    memcpy(*to, from, bytes);
    *to += bytes;
}

/* Writes the attribute next to the inaccessible page, and returns its size. */
static size_t write_attribute(const ffi *f)
{
    static unsigned char bytes[MAX_BYTES];
    unsigned char *end = bytes;
    append(&end, &f->h, sizeof f->h);
    append(&end, &f->c.args, sizeof f->c.args);
    append(&end, f->c.operands, sizeof f->c.operands[0] * (size_t)f->h.operands);
    append(&end, f->c.norm, sizeof f->c.norm[0] * (size_t)f->h.norms);
    append(&end, f->steps, sizeof f->steps[0] * (size_t)f->h.phase_steps);
    append(&end, f->places, sizeof f->places[0] * (size_t)f->h.slots);
    append(&end, f->axes, (size_t)f->h.axes);
    const size_t size = (size_t)(end - bytes);
    memcpy(homes[MAX_BUFFERS] - size, bytes, size);
    return size;
}

/* Calls the handler with an attribute of `size` bytes. Returns its error, or NULL. */
static const struct XLA_FFI_Error *run_with(ffi *f, size_t size)
{
    const XLA_FFI_Api api = make_api();
    XLA_FFI_ArgType types[MAX_BUFFERS];
    XLA_FFI_RetType result_types[MAX_BUFFERS];
    void *pointers[MAX_BUFFERS];
    for (int i = 0; i < MAX_BUFFERS; i++) {
        types[i] = XLA_FFI_ArgType_BUFFER;
        result_types[i] = XLA_FFI_RetType_BUFFER;
        pointers[i] = &f->buffers[i];
    }
    XLA_FFI_Array array = {f->attribute_type, size, homes[MAX_BUFFERS] - size};
    XLA_FFI_ByteSpan name = {"call", 4}, other_name = {"another", 7};
    XLA_FFI_ByteSpan *names[] = {&other_name, &name};
    XLA_FFI_AttrType attribute_types[] = {XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_ARRAY};
    void *attributes[] = {&array, &array};
    XLA_FFI_CallFrame frame = {
        .struct_size = XLA_FFI_CallFrame_STRUCT_SIZE,
        .api = &api,
        .stage = XLA_FFI_ExecutionStage_EXECUTE,
        .args = {.size = f->arguments, .types = types, .args = pointers},
        .rets = {.size = f->h.slots - f->arguments, .types = result_types, .rets = pointers + f->arguments},
        .attrs = {.size = 1 + f->has_attribute, .types = attribute_types, .names = names, .attrs = attributes}};
    memset(&last_error, 0, sizeof last_error);
    return trope_xla_rotate(&frame);
}

static const struct XLA_FFI_Error *run(ffi *f)
{
    return run_with(f, write_attribute(f));
}

/* ---- calls ---- */

enum { BATCH = 2, TOKENS = 5, HEADS = 3, DIM = 8, PAIRS = DIM / 2, ROWS = 9 };

static void add_norm(ffi *f, int32_t weight_per_head)
{
    f->h.norms = f->h.operands;
    f->c.norm[0] = (trope_norm){.struct_size = sizeof(trope_norm),
                                .weight_dtype = TROPE_F32,
                                .weight_per_head = weight_per_head,
                                .scope = TROPE_NORM_HEAD,
                                .order = TROPE_NORM_BEFORE,
                                .eps = 1e-5};
}

static void add_operand(ffi *f, int32_t layout, int32_t heads)
{
    static float nowhere;
    trope_operand *o = call_add(&f->c, &nowhere, layout, heads, DIM, DIM);
    o->src = o->dst = NULL;
    f->h.operands++;
    f->h.norms += f->h.norms > 0;
}

static void make(ffi *f, int32_t dtype, int64_t batch)
{
    memset(f, 0, sizeof *f);
    memcpy(&f->h.magic, "trope 1", 8);
    f->c = call_make(dtype, batch, TOKENS);
    f->c.args.device = 0;
    f->has_attribute = 1;
    f->attribute_type = XLA_FFI_DataType_U8;
}

/* Forward: two tensors, inv_freq, ids, a norm that writes rstd. */
static void make_forward(ffi *f)
{
    make(f, TROPE_F32, BATCH);
    add_operand(f, TROPE_BSHD, HEADS);
    add_operand(f, TROPE_BSHD, 1);
    add_norm(f, 1);
    f->c.norm[0].rstd_use = TROPE_RSTD_WRITE;
    f->h.phase_steps = PAIRS;
    trope_phase_steps((double[]){1, 0.5, 0.25, 0.1}, PAIRS, f->steps);
    f->c.args.ids_layout = TROPE_IDS_BATCH_TOKENS;
    f->c.args.position_dtype = TROPE_I32;
    ADD(f, SRC, 0, F32, BATCH, TOKENS, HEADS, DIM);
    ADD(f, SRC, 1, F32, BATCH, TOKENS, 1, DIM);
    ADD(f, IDS, 0, S32, BATCH, TOKENS);
    ADD(f, WEIGHT, 0, F32, HEADS, DIM);
    ADD(f, DST, 0, F32, BATCH, TOKENS, HEADS, DIM);
    ADD(f, DST, 1, F32, BATCH, TOKENS, 1, DIM);
    ADD(f, RSTD, 0, F32, BATCH, TOKENS, HEADS);
}

/* Forward in bf16: tables of cos and sin, with an axis for each part. */
static void make_tables(ffi *f)
{
    make(f, TROPE_BF16, BATCH);
    add_operand(f, TROPE_SBHD, HEADS);
    f->c.args.parts = 2;
    call_freqs(&f->c, NULL, TROPE_COLUMNS_PAIR, ROWS);
    f->c.args.angle_layout = TROPE_TABLE_AXES_BATCH_ROWS;
    f->c.args.angle_dtype = TROPE_BF16;
    f->c.args.position_dtype = TROPE_I32;
    f->h.axes = PAIRS;
    memcpy(f->axes, (uint8_t[]){0, 1, 1, 0}, PAIRS);
    ADD(f, SRC, 0, BF16, TOKENS, BATCH, HEADS, DIM);
    ADD(f, COS, 0, BF16, 2, BATCH, ROWS, PAIRS);
    ADD(f, SIN, 0, BF16, 2, BATCH, ROWS, PAIRS);
    ADD(f, STARTS, 0, S32, BATCH);
    ADD(f, DST, 0, BF16, TOKENS, BATCH, HEADS, DIM);
}

/* Backward: packed sequences, all gradients. */
static void make_backward(ffi *f)
{
    make(f, TROPE_F32, 1);
    f->h.backward = 1;
    add_operand(f, TROPE_THD, HEADS);
    add_norm(f, 0);
    f->c.norm[0].rstd_use = TROPE_RSTD_READ;
    f->c.operands[0].forward_src_layout = TROPE_THD;
    call_freqs(&f->c, NULL, TROPE_COLUMNS_HALF, ROWS);
    f->c.args.cu_seqlens_dtype = TROPE_I32;
    f->c.args.sequences = 2;
    f->c.args.d_freqs_layout = TROPE_TABLE_ROWS;
    ADD(f, SRC, 0, F32, TOKENS, HEADS, DIM);
    ADD(f, FORWARD_SRC, 0, F32, TOKENS, HEADS, DIM);
    ADD(f, FREQS, 0, F32, ROWS, DIM);
    ADD(f, CU, 0, S32, 3);
    ADD(f, WEIGHT, 0, F32, DIM);
    ADD(f, RSTD, 0, F32, 1, TOKENS, HEADS);
    ADD(f, DST, 0, F32, TOKENS, HEADS, DIM);
    ADD(f, D_FREQS, 0, F32, ROWS, DIM);
    ADD(f, D_WEIGHT, 0, F32, DIM);
    ADD(f, WORKSPACE, 0, U8, 1 << 14);
}

static void (*const makers[])(ffi *) = {make_forward, make_tables, make_backward};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* Makes the same call directly. */
static trope_status run_directly(const ffi *f)
{
    call c = f->c;
    trope_args *a = call_args(&c);
    a->device = device;
    a->phase_step = f->h.phase_steps ? f->steps : NULL;
    a->pair_axis = f->h.axes ? f->axes : NULL;
    for (int i = 0; i < f->h.slots; i++) {
        const place p = f->places[i];
        void *data = f->buffers[i].data;
        trope_operand *o = &c.operands[p.index];
        trope_norm *n = &c.norm[p.index];
        const void **const pointers[] = {[SRC] = &o->src,
                                         [FORWARD_SRC] = &o->forward_src,
                                         [FREQS] = &a->freqs,
                                         [COS] = &a->cos,
                                         [SIN] = &a->sin,
                                         [IDS] = &a->position_ids,
                                         [STARTS] = &a->start_positions,
                                         [CU] = &a->cu_seqlens,
                                         [WEIGHT] = &n->weight,
                                         [KINDS] = NULL};
        if (pointers[p.kind])
            *pointers[p.kind] = data;
        if (p.kind == DST)
            o->dst = data;
        if (p.kind == RSTD)
            n->rstd = data;
        if (p.kind == D_FREQS)
            a->d_freqs = data;
        if (p.kind == D_WEIGHT)
            n->d_weight = data;
        if (p.kind == WORKSPACE) {
            a->workspace = data;
            a->workspace_size = bytes_of(&f->buffers[i]);
        }
    }
    return f->h.backward ? trope_backward(a) : trope_forward(a);
}

/* Copies all results to `to`, and returns their size in bytes. */
static size_t copy_results(const ffi *f, unsigned char *to)
{
    unsigned char *end = to;
    for (int i = f->arguments; i < f->h.slots; i++)
        if (f->places[i].kind != WORKSPACE)
            append(&end, f->buffers[i].data, bytes_of(&f->buffers[i]));
    return (size_t)(end - to);
}

static void has_the_bits_of_a_call(void)
{
    static unsigned char expected[4 * MAX_BYTES], found[4 * MAX_BYTES], before[MAX_BYTES];
    for (int m = 0; m < MAKERS; m++) {
        ffi f;
        makers[m](&f);
        fill(&f, 7);
        CHECK_MESSAGE(run_directly(&f) == TROPE_OK, "call %d: %s", m, trope_last_error());
        const size_t bytes = copy_results(&f, expected);
        fill(&f, 7);
        const size_t size = write_attribute(&f);
        memcpy(before, homes[MAX_BUFFERS] - size, size);
        const struct XLA_FFI_Error *error = run_with(&f, size);
        CHECK_MESSAGE(!error, "call %d: %s", m, error ? error->message : "");
        CHECK(copy_results(&f, found) == bytes && memcmp(found, expected, bytes) == 0);
        CHECK_MESSAGE(memcmp(before, homes[MAX_BUFFERS] - size, size) == 0, "call %d: the attribute has changed", m);
    }
}

static void rotates_in_place(void)
{
    static unsigned char expected[MAX_BYTES];
    ffi f;
    make_tables(&f);
    fill(&f, 9);
    CHECK(run_directly(&f) == TROPE_OK);
    const size_t bytes = copy_results(&f, expected);
    fill(&f, 9);
    f.buffers[4].data = f.buffers[0].data;
    CHECK(!run(&f) && memcmp(f.buffers[0].data, expected, bytes) == 0);
}

static void answers_metadata(void)
{
    XLA_FFI_Metadata metadata = {.struct_size = XLA_FFI_Metadata_STRUCT_SIZE};
    XLA_FFI_Metadata_Extension extension = {
        .extension_base = {.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE, .type = XLA_FFI_Extension_Metadata},
        .metadata = &metadata};
    XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE, .extension_start = &extension.extension_base};
    CHECK(!trope_xla_rotate(&frame));
    CHECK(metadata.api_version.major_version == 0 && metadata.api_version.minor_version == 4);
    CHECK(metadata.traits == XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
}

/* ---- refused ---- */

static void check_refused(ffi *f, const char *change, const char *text)
{
    const struct XLA_FFI_Error *error = run(f);
    CHECK_MESSAGE(error && error->code == XLA_FFI_Error_Code_INVALID_ARGUMENT, "%s: not refused", change);
    CHECK_MESSAGE(error && strstr(error->message, text), "%s: \"%s\" is not in \"%s\"", change, text,
                  error ? error->message : "");
}

#define REFUSED(maker, change, text)                                                                                       \
    do {                                                                                                                   \
        ffi f;                                                                                                             \
        maker(&f);                                                                                                         \
        fill(&f, 3);                                                                                                       \
        change;                                                                                                            \
        check_refused(&f, #maker ", " #change, text);                                                                      \
    } while (0)
#define SHAPE(i, ...) set_dims(&f, i, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

static void refuses_a_wrong_attribute(void)
{
    REFUSED(make_forward, f.has_attribute = 0, "call is missing");
    REFUSED(make_forward, f.attribute_type = XLA_FFI_DataType_S8, "array of bytes");
    REFUSED(make_forward, f.h.magic++, "not of this version");
    REFUSED(make_forward, f.h.backward = 2, "direction 2");
    REFUSED(make_forward, f.h.norms = 1, "1 norms for 2 operands");
    REFUSED(make_forward, (f.h.phase_steps--, f.steps[0] = 0), "phase_step reaches");
    REFUSED(make_forward, f.h.phase_steps = 0, "inv_freq");
    REFUSED(make_tables, f.h.axes = 3, "pair_axis reaches");
    REFUSED(make_tables, f.axes[0] = 4, "pair_axis[0] (4)");
    REFUSED(make_forward, f.c.args.struct_size--, "struct_size");
    REFUSED(make_forward, f.c.args.struct_size++, "struct_size");
    REFUSED(make_forward, f.c.args.operand_size = 8, "operand_size");
    REFUSED(make_forward, f.c.norm[0].struct_size = 16, "norms[0].struct_size");
    REFUSED(make_forward, f.c.args.pairing = 7, "pairing (7)");
}

/* A count of the attribute's first struct that the handler's copy has no room for. The attribute itself stays short. */
static void check_count_is_refused(size_t at, int32_t count, const char *text)
{
    ffi f;
    make_forward(&f);
    fill(&f, 3);
    const size_t size = write_attribute(&f);
    memcpy(homes[MAX_BUFFERS] - size + at, &count, sizeof count);
    const struct XLA_FFI_Error *error = run_with(&f, size);
    CHECK_MESSAGE(error && strstr(error->message, text), "\"%s\" is not in \"%s\"", text, error ? error->message : "");
}

static void refuses_counts_beyond_the_limits(void)
{
    const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        check_count_is_refused(offsetof(head, operands), wrong[i], "operands, which must be 0 to 16");
        check_count_is_refused(offsetof(head, phase_steps), wrong[i], "phase steps, which must be 0 to 512");
        check_count_is_refused(offsetof(head, axes), wrong[i], "axes, which must be 0 to 512");
        check_count_is_refused(offsetof(head, slots), wrong[i], "buffers, which must be 0 to");
    }
    check_count_is_refused(offsetof(head, operands), TROPE_MAX_OPERANDS + 1, "must be 0 to");
    check_count_is_refused(offsetof(head, phase_steps), TROPE_MAX_ROTARY_DIM / 2 + 1, "must be 0 to");
    check_count_is_refused(offsetof(head, axes), TROPE_MAX_ROTARY_DIM / 2 + 1, "must be 0 to");
}

static void refuses_all_other_lengths(void)
{
    for (int m = 0; m < MAKERS; m++) {
        ffi f;
        makers[m](&f);
        fill(&f, 3);
        const size_t whole = write_attribute(&f);
        for (size_t size = 0; size < whole; size++) { /* moves the first bytes next to the inaccessible page */
            write_attribute(&f);
            memmove(homes[MAX_BUFFERS] - size, homes[MAX_BUFFERS] - whole, size);
            const struct XLA_FFI_Error *error = run_with(&f, size);
            CHECK_MESSAGE(error && strstr(error->message, "too early"), "%zu of %zu bytes: not refused", size, whole);
        }
        write_attribute(&f);
        memmove(homes[MAX_BUFFERS] - whole - 1, homes[MAX_BUFFERS] - whole, whole);
        const struct XLA_FFI_Error *error = run_with(&f, whole + 1);
        CHECK(error && strstr(error->message, "1 bytes too late"));
    }
}

static void refuses_wrong_buffers(void)
{
    REFUSED(make_forward, f.arguments = 3, "must not be among the results");
    REFUSED(make_forward, f.arguments = 5, "must not be among the arguments");
    REFUSED(make_forward, f.places[2].kind = KINDS, "kind 16");
    REFUSED(make_forward, f.places[2].kind = -1, "kind -1");
    REFUSED(make_forward, f.places[1].index = 2, "index 2 of 2");
    REFUSED(make_forward, f.places[1].index = -1, "index -1 of 2");
    REFUSED(make_forward, f.places[2].index = 1, "index 1 of 1");
    REFUSED(make_forward, f.places[1].index = 0, "two buffers of kind 0");
    REFUSED(make_forward, f.places[2].kind = COS, "must have type 0");
    REFUSED(make_forward, (f.places[0].index = 1, f.places[1].index = 0), "operands[0].src reaches");
    REFUSED(make_forward, f.buffers[0].data = NULL, "has no elements");
    REFUSED(make_forward, f.buffers[0].dtype = XLA_FFI_DataType_S32, "must have type 11");
    REFUSED(make_forward, f.buffers[2].dtype = XLA_FFI_DataType_F32, "must have type 4");
    REFUSED(make_forward, f.buffers[6].dtype = XLA_FFI_DataType_S32, "must have type 11");
    REFUSED(make_forward, f.buffers[0].dtype = XLA_FFI_DataType_C64, "must have type 11");
    REFUSED(make_tables, f.buffers[0].dtype = XLA_FFI_DataType_F16, "must have type 16");
    REFUSED(make_tables, f.buffers[1].dtype = XLA_FFI_DataType_F16, "must have type 16");
    REFUSED(make_forward, SHAPE(0, BATCH, TOKENS, HEADS, DIM - 1), "operands[0].src reaches");
    REFUSED(make_forward, SHAPE(0, BATCH, TOKENS + 1, HEADS, DIM), "operands[0].src reaches");
    REFUSED(make_forward, SHAPE(2, BATCH, TOKENS - 1), "position_ids reaches");
    REFUSED(make_forward, SHAPE(3, DIM), "norms[0].weight reaches");
    REFUSED(make_forward, SHAPE(4, BATCH, TOKENS, HEADS + 1, DIM), "operands[0].dst reaches");
    REFUSED(make_forward, SHAPE(6, BATCH, TOKENS), "norms[0].rstd reaches");
    REFUSED(make_forward, f.dims[0][1] = -TOKENS, "dimension 1 of a buffer is -5");
    REFUSED(make_forward, (f.dims[0][0] = f.dims[0][1] = INT64_MAX / 2), "of a buffer is");
    REFUSED(make_tables, SHAPE(1, 1, BATCH, ROWS, PAIRS), "cos reaches");
    REFUSED(make_tables, SHAPE(2, 2, BATCH, ROWS, PAIRS + 1), "sin reaches");
    REFUSED(make_tables, SHAPE(3, BATCH + 1), "start_positions reaches");
    REFUSED(make_backward, SHAPE(2, ROWS - 1, DIM), "freqs reaches");
    REFUSED(make_backward, SHAPE(3, 2), "cu_seqlens reaches");
    REFUSED(make_backward, SHAPE(7, ROWS, PAIRS), "d_freqs reaches");
    REFUSED(make_backward, SHAPE(8, 1), "norms[0].d_weight reaches");
    REFUSED(make_backward, SHAPE(9, 16), "workspace_size (16)");
    REFUSED(make_forward, f.c.args.tokens++, "reaches");
    REFUSED(make_forward, f.c.args.batch = 1, "reaches");
    REFUSED(make_forward, f.c.args.dtype = TROPE_F16, "must have type 10");
    REFUSED(make_forward, f.c.operands[0].heads_per_group--, "reaches");
    REFUSED(make_backward, f.c.args.angle_rows++, "reaches");
    REFUSED(make_backward, f.c.args.sequences = 3, "reaches");
    REFUSED(make_forward, (f.c.operands[0].src_layout = TROPE_STRIDED, f.c.operands[0].src_stride[1] = DIM), "reaches");
    /* Expanded tensors of many tokens: the call would run for years. */
    REFUSED(make_backward,
            (f.c.args.tokens = 1ll << 40, f.c.operands[0].src_layout = TROPE_STRIDED, f.c.operands[0].src_stride[3] = DIM,
             f.c.operands[0].src_stride[4] = 1),
            "operands[0].src");
}

static void refuses_wrong_sequences(void)
{
    ffi f;
    make_backward(&f);
    fill(&f, 3);
    memcpy(f.buffers[3].data, (int32_t[]){0, 6, 5}, 12);
    const struct XLA_FFI_Error *error = run(&f);
    CHECK(error && strstr(error->message, "cu_seqlens"));
}

/* ---- corrupted at random ---- */

static void corrupt(ffi *f, random_state *r)
{
    unsigned char *const parts[] = {(unsigned char *)&f->h,     (unsigned char *)&f->c.args, (unsigned char *)f->c.operands,
                                    (unsigned char *)f->c.norm, (unsigned char *)f->places,  (unsigned char *)f->axes,
                                    (unsigned char *)f->dims};
    const size_t sizes[] = {sizeof f->h,         sizeof f->c.args, 2 * sizeof f->c.operands[0],
                            sizeof f->c.norm[0], sizeof f->places, PAIRS,
                            sizeof f->dims};
    const int64_t part = random_between(r, 0, 6);
    unsigned char *at = parts[part] + random_between(r, 0, (int64_t)sizes[part] - 1);
    *at = random_between(r, 0, 1) ? (unsigned char)(*at ^ 1u << random_between(r, 0, 7)) : (unsigned char)random_bits(r);
}

/* With any corruption, the handler returns, and accesses nothing outside its buffers. */
static void survives_corruption(void)
{
    random_state r = {2026};
    long accepted = 0;
    const long rounds = device == TROPE_DEVICE_CPU ? 60000 : 1000;
    for (long i = 0; i < rounds; i++) {
        ffi f;
        makers[i % MAKERS](&f);
        fill(&f, (uint64_t)i);
        const int slots = f.h.slots, arguments = f.arguments;
        for (int64_t changes = random_between(&r, 1, 3); changes > 0; changes--)
            corrupt(&f, &r);
        const int claimed = f.h.slots;
        if (f.h.operands < 0 || f.h.operands > TROPE_MAX_OPERANDS || f.h.norms < 0 || f.h.norms > TROPE_MAX_OPERANDS ||
            f.h.phase_steps < 0 || f.h.phase_steps > TROPE_MAX_ROTARY_DIM / 2 || f.h.axes < 0 ||
            f.h.axes > TROPE_MAX_ROTARY_DIM / 2 || claimed < 0 || claimed > MAX_BUFFERS)
            continue; /* write_attribute would read beyond its arrays */
        const size_t size = write_attribute(&f);
        f.h.slots = slots; /* the frame has the true buffers, even if the attribute has another number of them */
        f.arguments = arguments;
        accepted += !run_with(&f, size);
    }
    /* Some changes leave the call valid: changes of mscale, of a rounding, or of bytes that nothing reads. */
    CHECK_MESSAGE(accepted > rounds / 50 && accepted < rounds / 2, "%ld of %ld accepted", accepted, rounds);
}

int main(int argc, char **argv)
{
    device = argc == 3 && !strcmp(argv[1], "--device") && !strcmp(argv[2], "cuda") ? TROPE_DEVICE_CUDA : TROPE_DEVICE_CPU;
    make_homes();
    has_the_bits_of_a_call();
    rotates_in_place();
    answers_metadata();
    refuses_a_wrong_attribute();
    refuses_counts_beyond_the_limits();
    refuses_all_other_lengths();
    refuses_wrong_buffers();
    if (device == TROPE_DEVICE_CPU) /* CUDA's kernels write NaN instead */
        refuses_wrong_sequences();
    survives_corruption();
    return check_result();
}
