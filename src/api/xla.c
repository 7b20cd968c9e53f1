/* trope_xla_rotate, the custom call of trope.jax. XLA passes the attribute `call`, which python/trope/jax/_call.py makes,
 * and a buffer for each argument and each result. The attribute holds a prepared call without addresses, and tells which
 * pointer of which struct each buffer is for. The handler trusts no number in it: it copies the structs, sets their
 * pointers, and checks that each array of the call fills its buffer. */
#include <stddef.h>
#include <string.h>

#include <xla/ffi/api/c_api.h>

#include "api/args.h"
#include "core/element.h"
#include "core/pairs.h"
#include "core/require.h"
#include "trope/trope.h"

#define MAX_PAIRS   (TROPE_MAX_ROTARY_DIM / 2)
#define MAX_BUFFERS (7 * TROPE_MAX_OPERANDS + 10) /* 7 of each operand and its norm, 10 of the call */
#define MAX_HOST    (TROPE_MAX_OPERANDS + 5)      /* args, operands, norms and their pointers, phase_step, pair_axis */

/* The bytes "trope 1" and 0. The number changes with the format of the attribute. */
#define MAGIC 0x00312065706f7274ull
static const char function[] = "trope_xla_rotate";

/* The pointers that a buffer can be for. _call.py has the same numbers. */
typedef enum pointer_kind {
    POINTER_SRC,
    POINTER_DST,
    POINTER_FORWARD_SRC,
    POINTER_FREQS,
    POINTER_COS,
    POINTER_SIN,
    POINTER_POSITION_IDS,
    POINTER_START_POSITIONS,
    POINTER_CU_SEQLENS,
    POINTER_CU_SEQLENS_PADDED,
    POINTER_D_FREQS,
    POINTER_D_INV_FREQ,
    POINTER_WORKSPACE,
    POINTER_WEIGHT,
    POINTER_RSTD,
    POINTER_D_WEIGHT,
    POINTER_KINDS
} pointer_kind;

/* The start of the attribute. After it come trope_args, the operands, the norms (zeros if an operand has none), the
 * phase steps, a `slot` for each argument and then for each result, and pair_axis. */
typedef struct header {
    uint64_t magic;
    int32_t backward;
    int32_t operands;
    int32_t norms; /* 0, or as many as operands */
    int32_t phase_steps;
    int32_t axes; /* the length of pair_axis */
    int32_t slots;
} header;

typedef struct slot {
    int32_t kind;  /* pointer_kind */
    int32_t index; /* of the operand or norm; 0 for a pointer of trope_args */
} slot;

/* The handler's copy of the attribute. */
typedef struct ffi_call {
    header head;
    trope_args args;
    trope_operand operands[TROPE_MAX_OPERANDS];
    trope_norm norm[TROPE_MAX_OPERANDS];
    const trope_norm *norms[TROPE_MAX_OPERANDS];
    uint64_t phase_step[MAX_PAIRS];
    slot slots[MAX_BUFFERS];
    uint8_t pair_axis[MAX_PAIRS];
    trope_buffer buffers[MAX_BUFFERS + MAX_HOST];
    int buffer_count;
} ffi_call;

/* ---- the attribute ---- */

typedef struct reader {
    const char *next;
    size_t left;
} reader;

static trope_status read_bytes(reader *r, void *to, size_t bytes)
{
    REQUIRE(bytes <= r->left, TROPE_ERROR_ARGUMENT, "call ends %zu bytes too early", bytes - r->left);
    memcpy(to, r->next, bytes);
    r->next += bytes;
    r->left -= bytes;
    return TROPE_OK;
}

static trope_status check_count(const char *name, int32_t count, int32_t most)
{
    REQUIRE(count >= 0 && count <= most, TROPE_ERROR_ARGUMENT, "call has %d %s, which must be 0 to %d", count, name, most);
    return TROPE_OK;
}

static trope_status read_header(reader *r, header *h)
{
    CHECK(read_bytes(r, h, sizeof *h));
    REQUIRE(h->magic == MAGIC, TROPE_ERROR_ARGUMENT, "%s", "call is not of this version of trope");
    REQUIRE(h->backward == 0 || h->backward == 1, TROPE_ERROR_ARGUMENT, "call has direction %d, which must be 0 or 1",
            h->backward);
    CHECK(check_count("operands", h->operands, TROPE_MAX_OPERANDS));
    REQUIRE(h->norms == 0 || h->norms == h->operands, TROPE_ERROR_ARGUMENT, "call has %d norms for %d operands", h->norms,
            h->operands);
    CHECK(check_count("phase steps", h->phase_steps, MAX_PAIRS));
    CHECK(check_count("axes", h->axes, MAX_PAIRS));
    return check_count("buffers", h->slots, MAX_BUFFERS);
}

static trope_status read_call(const void *data, size_t size, ffi_call *c)
{
    reader r = {data, size};
    CHECK(read_header(&r, &c->head));
    const header *h = &c->head;
    CHECK(read_bytes(&r, &c->args, sizeof c->args));
    CHECK(read_bytes(&r, c->operands, sizeof c->operands[0] * (size_t)h->operands));
    CHECK(read_bytes(&r, c->norm, sizeof c->norm[0] * (size_t)h->norms));
    CHECK(read_bytes(&r, c->phase_step, sizeof c->phase_step[0] * (size_t)h->phase_steps));
    CHECK(read_bytes(&r, c->slots, sizeof c->slots[0] * (size_t)h->slots));
    CHECK(read_bytes(&r, c->pair_axis, (size_t)h->axes));
    REQUIRE(r.left == 0, TROPE_ERROR_ARGUMENT, "call ends %zu bytes too late", r.left);
    return TROPE_OK;
}

/* ---- the pointers ---- */

static void clear_pointers(ffi_call *c)
{
    trope_args *a = &c->args;
    a->stream = NULL;
    a->freqs = a->cos = a->sin = NULL;
    a->inv_freq = NULL;
    a->position_ids = a->start_positions = a->cu_seqlens = a->cu_seqlens_padded = NULL;
    a->status = NULL;
    a->d_freqs = a->d_inv_freq = NULL;
    a->workspace = NULL;
    a->workspace_size = 0;
    for (int i = 0; i < c->head.operands; i++) {
        c->operands[i].src = c->operands[i].forward_src = NULL;
        c->operands[i].dst = NULL;
        c->norm[i].weight = NULL;
        c->norm[i].rstd = c->norm[i].d_weight = c->norm[i].token_sums = NULL;
    }
}

static void add_buffer(ffi_call *c, const void *base, size_t bytes)
{
    if (bytes)
        c->buffers[c->buffer_count++] = (trope_buffer){base, (int64_t)bytes};
}

/* Sets the pointers to host memory, all of which is in the handler's copy. */
static void set_host_pointers(ffi_call *c)
{
    const header *h = &c->head;
    trope_args *a = &c->args;
    a->operands = c->operands;
    a->operand_count = h->operands;
    a->pair_axis = h->axes ? c->pair_axis : NULL;
    a->phase_step = h->phase_steps ? c->phase_step : NULL;
    a->norms = h->norms ? c->norms : NULL;
    add_buffer(c, a, sizeof *a);
    add_buffer(c, c->operands, sizeof c->operands[0] * (size_t)h->operands);
    add_buffer(c, c->norms, sizeof c->norms[0] * (size_t)h->norms);
    add_buffer(c, c->phase_step, sizeof c->phase_step[0] * (size_t)h->phase_steps);
    add_buffer(c, c->pair_axis, (size_t)h->axes);
    for (int i = 0; i < h->norms; i++) {
        c->norms[i] = c->norm[i].struct_size ? &c->norm[i] : NULL;
        add_buffer(c, c->norms[i], c->norms[i] ? sizeof c->norm[i] : 0);
    }
}

/* The bytes of an element, or 0 for a type that no array of a call has. */
static size_t element_bytes(XLA_FFI_DataType type)
{
    switch (type) {
    case XLA_FFI_DataType_U8:
        return 1;
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16:
        return 2;
    case XLA_FFI_DataType_F32:
    case XLA_FFI_DataType_S32:
        return 4;
    case XLA_FFI_DataType_F64:
    case XLA_FFI_DataType_S64:
        return 8;
    default:
        return 0;
    }
}

static trope_status count_bytes(const XLA_FFI_Buffer *b, int64_t *bytes)
{
    *bytes = (int64_t)element_bytes(b->dtype);
    REQUIRE(*bytes, TROPE_ERROR_ARGUMENT, "a buffer has elements of XLA's type %d, which no call uses", (int)b->dtype);
    for (int64_t d = 0; d < b->rank; d++)
        REQUIRE(b->dims[d] >= 0 && !__builtin_mul_overflow(*bytes, b->dims[d], bytes), TROPE_ERROR_OVERFLOW,
                "dimension %lld of a buffer is %lld", (long long)d, (long long)b->dims[d]);
    return TROPE_OK;
}

static XLA_FFI_DataType float_type(int32_t dtype)
{
    static const XLA_FFI_DataType types[] = {[TROPE_F32] = XLA_FFI_DataType_F32,
                                             [TROPE_F16] = XLA_FFI_DataType_F16,
                                             [TROPE_BF16] = XLA_FFI_DataType_BF16,
                                             [TROPE_F64] = XLA_FFI_DataType_F64};
    return dtype >= TROPE_F32 && dtype <= TROPE_F64 ? types[dtype] : XLA_FFI_DataType_INVALID;
}

static XLA_FFI_DataType index_type(int32_t dtype)
{
    return dtype == TROPE_I32 ? XLA_FFI_DataType_S32 : dtype == TROPE_I64 ? XLA_FFI_DataType_S64 : XLA_FFI_DataType_INVALID;
}

/* A pointer of a struct, and the element type of its memory. */
typedef struct pointer {
    void **place;
    XLA_FFI_DataType type;
    int is_result;
} pointer;

#define PLACE(field) ((void **)(uintptr_t) & (field))

static pointer operand_pointer(ffi_call *c, slot s)
{
    trope_operand *o = &c->operands[s.index];
    trope_norm *n = &c->norm[s.index];
    const XLA_FFI_DataType type = float_type(c->args.dtype);
    const XLA_FFI_DataType real = c->args.dtype == TROPE_F64 ? XLA_FFI_DataType_F64 : XLA_FFI_DataType_F32;
    switch (s.kind) {
    case POINTER_SRC:
        return (pointer){PLACE(o->src), type, 0};
    case POINTER_DST:
        return (pointer){PLACE(o->dst), type, 1};
    case POINTER_FORWARD_SRC:
        return (pointer){PLACE(o->forward_src), type, 0};
    case POINTER_WEIGHT:
        return (pointer){PLACE(n->weight), float_type(n->weight_dtype), 0};
    case POINTER_RSTD:
        return (pointer){PLACE(n->rstd), real, n->rstd_use == TROPE_RSTD_WRITE};
    default:
        return (pointer){PLACE(n->d_weight), real, 1};
    }
}

static pointer args_pointer(ffi_call *c, slot s)
{
    trope_args *a = &c->args;
    const XLA_FFI_DataType real = a->dtype == TROPE_F64 ? XLA_FFI_DataType_F64 : XLA_FFI_DataType_F32;
    switch (s.kind) {
    case POINTER_FREQS:
        return (pointer){PLACE(a->freqs), float_type(a->angle_dtype), 0};
    case POINTER_COS:
        return (pointer){PLACE(a->cos), float_type(a->angle_dtype), 0};
    case POINTER_SIN:
        return (pointer){PLACE(a->sin), float_type(a->angle_dtype), 0};
    case POINTER_POSITION_IDS:
        return (pointer){PLACE(a->position_ids), index_type(a->position_dtype), 0};
    case POINTER_START_POSITIONS:
        return (pointer){PLACE(a->start_positions), index_type(a->position_dtype), 0};
    case POINTER_CU_SEQLENS:
        return (pointer){PLACE(a->cu_seqlens), index_type(a->cu_seqlens_dtype), 0};
    case POINTER_CU_SEQLENS_PADDED:
        return (pointer){PLACE(a->cu_seqlens_padded), index_type(a->cu_seqlens_dtype), 0};
    case POINTER_D_FREQS:
        return (pointer){PLACE(a->d_freqs), real, 1};
    case POINTER_D_INV_FREQ:
        return (pointer){PLACE(a->d_inv_freq), XLA_FFI_DataType_F64, 1};
    default:
        return (pointer){PLACE(a->workspace), XLA_FFI_DataType_U8, 1};
    }
}

static int is_of_operand(int32_t kind)
{
    return kind <= POINTER_FORWARD_SRC || kind >= POINTER_WEIGHT;
}

/* Sets the pointer that a buffer is for. */
static trope_status set_pointer(ffi_call *c, slot s, const XLA_FFI_Buffer *buffer, int is_result)
{
    const char *const what = is_result ? "result" : "argument";
    REQUIRE(s.kind >= 0 && s.kind < POINTER_KINDS, TROPE_ERROR_ARGUMENT, "call has a buffer of the unknown kind %d",
            s.kind);
    const int32_t count = !is_of_operand(s.kind) ? 1 : s.kind >= POINTER_WEIGHT ? c->head.norms : c->head.operands;
    REQUIRE(s.index >= 0 && s.index < count, TROPE_ERROR_ARGUMENT, "call has a buffer of kind %d with index %d of %d",
            s.kind, s.index, count);
    const pointer p = is_of_operand(s.kind) ? operand_pointer(c, s) : args_pointer(c, s);
    REQUIRE(p.is_result == is_result, TROPE_ERROR_ARGUMENT, "the buffer of kind %d must not be among the %ss", s.kind,
            what);
    REQUIRE(p.type == buffer->dtype && p.type != XLA_FFI_DataType_INVALID, TROPE_ERROR_ARGUMENT,
            "the buffer of kind %d has elements of XLA's type %d, and must have type %d", s.kind, (int)buffer->dtype,
            (int)p.type);
    REQUIRE(!*p.place, TROPE_ERROR_ARGUMENT, "call has two buffers of kind %d and index %d", s.kind, s.index);
    int64_t bytes;
    CHECK(count_bytes(buffer, &bytes));
    REQUIRE(buffer->data && bytes, TROPE_ERROR_NULL, "the buffer of kind %d has no elements", s.kind);
    *p.place = buffer->data;
    add_buffer(c, buffer->data, (size_t)bytes);
    if (s.kind == POINTER_WORKSPACE)
        c->args.workspace_size = (uint64_t)bytes;
    return TROPE_OK;
}

static trope_status set_pointers(ffi_call *c, const XLA_FFI_CallFrame *frame)
{
    const int64_t arguments = frame->args.size, results = frame->rets.size;
    REQUIRE(c->head.slots == arguments + results, TROPE_ERROR_ARGUMENT, "call has %d buffers, and XLA passes %lld",
            c->head.slots, (long long)(arguments + results));
    for (int64_t i = 0; i < arguments; i++) {
        REQUIRE(frame->args.types[i] == XLA_FFI_ArgType_BUFFER, TROPE_ERROR_ARGUMENT, "argument %lld is no buffer",
                (long long)i);
        CHECK(set_pointer(c, c->slots[i], frame->args.args[i], 0));
    }
    for (int64_t i = 0; i < results; i++) {
        REQUIRE(frame->rets.types[i] == XLA_FFI_RetType_BUFFER, TROPE_ERROR_ARGUMENT, "result %lld is no buffer",
                (long long)i);
        CHECK(set_pointer(c, c->slots[arguments + i], frame->rets.rets[i], 1));
    }
    return TROPE_OK;
}

/* ---- the call ---- */

/* Checks that each array of the call fills its buffer. The function is not inlined, so that the library's copy of the call
 * is off the stack before the call runs. */
static __attribute__((noinline)) trope_status check_buffers(const ffi_call *c)
{
    trope_call call;
    CHECK(trope_copy_call(function, &c->args, &call));
    CHECK(trope_validate(function, &call.args, c->head.backward));
    trope_expand_layouts(&call, c->head.backward);
    return trope_validate_buffers(function, &call, c->head.backward, c->buffers, c->buffer_count);
}

static trope_status find_attribute(const XLA_FFI_CallFrame *frame, const XLA_FFI_Array **found)
{
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_ByteSpan *name = frame->attrs.names[i];
        if (name->len != 4 || memcmp(name->ptr, "call", 4) != 0)
            continue;
        *found = frame->attrs.attrs[i];
        REQUIRE(frame->attrs.types[i] == XLA_FFI_AttrType_ARRAY && (*found)->dtype == XLA_FFI_DataType_U8,
                TROPE_ERROR_ARGUMENT, "%s", "call must be an array of bytes");
        return TROPE_OK;
    }
    return trope_fail(TROPE_ERROR_ARGUMENT, "%s: call is missing", function);
}

#ifdef TROPE_CUDA
/* Sets the device and the stream that XLA runs this call on. XLA's CPU backend has no stream. */
static void set_device(const XLA_FFI_CallFrame *frame, trope_args *a)
{
    XLA_FFI_Stream_Get_Args get = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE, .ctx = frame->ctx};
    XLA_FFI_Error *error = frame->api->XLA_FFI_Stream_Get(&get);
    a->device = error ? TROPE_DEVICE_CPU : TROPE_DEVICE_CUDA;
    if (!error) {
        a->stream = get.stream;
        return;
    }
    XLA_FFI_Error_Destroy_Args destroy = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    frame->api->XLA_FFI_Error_Destroy(&destroy);
}
#else
static void set_device(const XLA_FFI_CallFrame *frame, trope_args *a)
{
    (void)frame;
    a->device = TROPE_DEVICE_CPU;
}
#endif

static trope_status rotate(const XLA_FFI_CallFrame *frame)
{
    const XLA_FFI_Array *attribute = NULL;
    ffi_call c;
    memset(&c, 0, sizeof c);
    CHECK(find_attribute(frame, &attribute));
    CHECK(read_call(attribute->data, attribute->size, &c));
    clear_pointers(&c);
    set_host_pointers(&c);
    CHECK(set_pointers(&c, frame));
    set_device(frame, &c.args);
    CHECK(check_buffers(&c));
    return c.head.backward ? trope_backward(&c.args) : trope_forward(&c.args);
}

/* ---- XLA ---- */

static XLA_FFI_Error_Code code_of(trope_status status)
{
    switch (status) {
    case TROPE_ERROR_UNSUPPORTED:
        return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case TROPE_ERROR_DEVICE:
        return XLA_FFI_Error_Code_INTERNAL;
    default:
        return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    }
}

/* Answers XLA's query for the interface version and the traits of the handler. */
static int answer_metadata(XLA_FFI_InternalExtension *extension)
{
    if (!extension || extension->type != XLA_FFI_Extension_Metadata)
        return 0;
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)(void *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
    return 1;
}

XLA_FFI_Error *trope_xla_rotate(XLA_FFI_CallFrame *call_frame)
{
    if (answer_metadata(call_frame->extension_start))
        return NULL;
    const trope_status status = rotate(call_frame);
    if (status == TROPE_OK)
        return NULL;
    XLA_FFI_Error_Create_Args create = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = trope_last_error(), .errc = code_of(status)};
    return call_frame->api->XLA_FFI_Error_Create(&create);
}
