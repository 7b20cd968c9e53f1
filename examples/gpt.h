/* A small GPT over bytes, forward and backward, on a packed batch of documents.
 *
 *     x = embed[byte]
 *     per layer:  x += project(attention(rope(qkv(norm(x)))))     causal, within each document, grouped queries
 *                 x += down(square(relu(up(norm(x)))))
 *     logits = head(norm(x)),  loss = mean over the tokens of -log softmax(logits)[next byte]
 *
 * Only rotate() uses positions: it rotates Q and K in place in the packed QKV buffer.
 *
 * The including file chooses the scalar type. train_packed.c defines GPT_DOUBLE as 0 and trains in float.
 * gradient_check.c defines it as 1, because finite differences need the precision. Nothing else differs.
 *
 * Arrays are row-major; T tokens, C width, H query heads, G groups (= key/value heads), D head_dim:
 *     x, dx [T, C]      qkv, dqkv [T, G, (H/G + 2) * D]      attention weights [H, T, MAX_SEQUENCE]      logits [T, 256]
 */
#ifndef EXAMPLE_GPT_H
#define EXAMPLE_GPT_H

#include "corpus.h"
#include "random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <trope/trope.h>

#if GPT_DOUBLE
typedef double real;
#define REAL_EXP  exp
#define REAL_SQRT sqrt
enum { REAL_DTYPE = TROPE_F64 };
#else
typedef float real;
#define REAL_EXP  expf
#define REAL_SQRT sqrtf
enum { REAL_DTYPE = TROPE_F32 };
#endif

enum { VOCABULARY = 256, MAX_HEAD_DIM = 128, MAX_BLOCKS = 128 };

struct gpt_shape {
    int layers;
    int width;       /* C */
    int groups;      /* G, key/value heads */
    int q_per_group; /* query heads that share one key/value head */
    int head_dim;    /* D, even */
    int hidden;      /* of the MLP */
    int rope;        /* 1 = rotate Q and K, 0 = use no positions */
};

/* The weights. Each tensor of the layers is stored as [layers, rows, cols]. */
enum { EMBED, NORM_ATTENTION, QKV, PROJECT, NORM_MLP, UP, DOWN, NORM_HEAD, HEAD, TENSORS };

struct tensor {
    const char *name;
    int copies; /* layers, or 1 */
    int rows;
    int cols;
    int64_t offset; /* in the arrays weights and gradients */
};

/* y = x / rms(x) * gain for each token. scale stores 1 / rms. */
struct norm {
    real *x, *y, *scale;
    real *gain, *dgain;
};

/* Q, K and V of all heads in one buffer, the attention weights, and the results of the heads. */
struct attention {
    real *qkv, *weights, *out;
};

/* Values of a layer that the forward pass stores for the backward pass. */
struct layer {
    struct norm norm_attention;
    struct attention attention;
    struct norm norm_mlp;
    real *up, *activated;
};

struct gpt {
    struct gpt_shape shape;
    struct tensor tensors[TENSORS];
    int64_t parameters;
    real *weights, *gradients; /* [parameters] */

    double inv_freq[MAX_HEAD_DIM / 2]; /* trope's angles in radians per position, one per pair */
    double attention_factor;
    double rope_seconds; /* time spent in trope */

    int tokens; /* of a batch */
    struct layer *layers;
    struct norm norm_head;
    real *logits;                 /* replaced by their gradient after the forward pass */
    real *dx, *dnormed, *dhidden; /* gradients; the layers share them */
    struct attention dattention;

    void *blocks[MAX_BLOCKS]; /* all memory, for gpt_free */
    int block_count;
};

/* -------------------------------------------------------------------------------------------------------------------
 * RoPE, by trope. */

static double seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int qkv_width(const struct gpt_shape *s)
{
    return s->groups * (s->q_per_group + 2) * s->head_dim;
}

static void require(trope_status status)
{
    if (status == TROPE_OK)
        return;
    fprintf(stderr, "train_packed: %s\n", trope_last_error());
    exit(2);
}

/* Finds Q and K in the packed QKV buffer. V is in the same buffer and is not touched. */
static void find_q_and_k(const struct gpt_shape *s, real *qkv, int tokens, trope_operand operands[2])
{
    trope_qkv packed = {.struct_size = sizeof packed,
                        .buffer = qkv,
                        .batch = 1,
                        .tokens = tokens,
                        .layout = TROPE_THD,
                        .order = TROPE_QKV_GROUPS,
                        .dtype = REAL_DTYPE,
                        .q_heads = s->groups * s->q_per_group,
                        .kv_heads = s->groups,
                        .head_dim = s->head_dim,
                        .rotary_dim = s->head_dim};
    require(trope_fill_qkv(&operands[0], &packed, TROPE_Q));
    require(trope_fill_qkv(&operands[1], &packed, TROPE_K));
}

/* Rotates Q and K of all sequences in one call. `direction` is trope_forward for Q and K, or trope_backward for their
 * gradients. Both work in place, so the arguments are the same. */
static void rotate(struct gpt *m, real *qkv, const struct batch *batch, trope_status (*direction)(const trope_args *))
{
    if (!m->shape.rope)
        return;
    trope_operand operands[2];
    find_q_and_k(&m->shape, qkv, batch->tokens, operands);
    trope_args args = {.struct_size = sizeof args,
                       .device = TROPE_DEVICE_CPU,
                       .threads = 1, /* each model runs in its own thread */
                       .dtype = REAL_DTYPE,
                       .operands = operands,
                       .operand_count = 2,
                       .operand_size = sizeof operands[0],
                       .batch = 1,
                       .tokens = batch->tokens,
                       .pairing = TROPE_PAIRING_HALF,
                       .inv_freq = m->inv_freq,
                       .mscale = m->attention_factor,
                       .cu_seqlens = batch->cu_seqlens,
                       .cu_seqlens_dtype = TROPE_I32,
                       .sequences = batch->sequences,
                       .padding = TROPE_PADDING_ZERO}; /* the batch has tokens after its last document */
    double start = seconds();
    require(direction(&args));
    m->rope_seconds += seconds() - start;
}

/* -------------------------------------------------------------------------------------------------------------------
 * Matrices are views of arrays, so transposes and slices cost nothing. */

struct matrix {
    real *data;
    int rows, cols;
    int64_t row_step, col_step; /* element (i, j) is data[i * row_step + j * col_step] */
};

static struct matrix matrix(real *data, int rows, int cols)
{
    return (struct matrix){data, rows, cols, cols, 1};
}

static struct matrix transposed(struct matrix m)
{
    return (struct matrix){m.data, m.cols, m.rows, m.col_step, m.row_step};
}

static struct matrix slice(struct matrix m, int row, int col, int rows, int cols)
{
    return (struct matrix){m.data + row * m.row_step + col * m.col_step, rows, cols, m.row_step, m.col_step};
}

/* A product is computed in tiles of TILE_ROWS x TILE_COLS sums. The sums stay in registers for DEPTH terms at a time. */
enum { TILE_ROWS = 4, TILE_COLS = 16, DEPTH = 256 };

static inline void add_scaled(real *sum, real x, const real *row)
{
#pragma omp simd
    for (int j = 0; j < TILE_COLS; j++)
        sum[j] += x * row[j];
}

/* Computes one tile: c += a b. panel holds the rows of b. A tile at the edge repeats a's last row and drops the result. */
static void multiply_tile(struct matrix c, struct matrix a, const real *panel)
{
    real sum0[TILE_COLS] = {0}, sum1[TILE_COLS] = {0}, sum2[TILE_COLS] = {0}, sum3[TILE_COLS] = {0};
    const real *sum[TILE_ROWS] = {sum0, sum1, sum2, sum3}, *row[TILE_ROWS];
    for (int i = 0; i < TILE_ROWS; i++)
        row[i] = a.data + (i < a.rows ? i : a.rows - 1) * a.row_step;
    for (int k = 0; k < a.cols; k++, panel += TILE_COLS) {
        add_scaled(sum0, row[0][k * a.col_step], panel);
        add_scaled(sum1, row[1][k * a.col_step], panel);
        add_scaled(sum2, row[2][k * a.col_step], panel);
        add_scaled(sum3, row[3][k * a.col_step], panel);
    }
    for (int i = 0; i < c.rows; i++)
        for (int j = 0; j < c.cols; j++)
            c.data[i * c.row_step + j * c.col_step] += sum[i][j];
}

/* Computes c += a b for at most TILE_COLS columns. */
static void multiply_columns(struct matrix c, struct matrix a, struct matrix b)
{
    real panel[DEPTH * TILE_COLS];
    for (int k = 0; k < a.cols; k += DEPTH) {
        int depth = a.cols - k < DEPTH ? a.cols - k : DEPTH;
        for (int i = 0; i < depth; i++)
            for (int j = 0; j < TILE_COLS; j++)
                panel[i * TILE_COLS + j] = j < b.cols ? b.data[(k + i) * b.row_step + j * b.col_step] : 0;
        for (int i = 0; i < c.rows; i += TILE_ROWS) {
            int rows = c.rows - i < TILE_ROWS ? c.rows - i : TILE_ROWS;
            multiply_tile(slice(c, i, 0, rows, c.cols), slice(a, i, k, rows, depth), panel);
        }
    }
}

/* Computes c += a b. */
static void multiply_add(struct matrix c, struct matrix a, struct matrix b)
{
    for (int j = 0; j < c.cols; j += TILE_COLS) {
        int cols = c.cols - j < TILE_COLS ? c.cols - j : TILE_COLS;
        multiply_columns(slice(c, 0, j, c.rows, cols), a, slice(b, 0, j, b.rows, cols));
    }
}

/* Computes c = a b. */
static void multiply(struct matrix c, struct matrix a, struct matrix b)
{
    for (int i = 0; i < c.rows; i++)
        memset(c.data + i * c.row_step, 0, (size_t)c.cols * sizeof *c.data);
    multiply_add(c, a, b);
}

/* -------------------------------------------------------------------------------------------------------------------
 * The parts of the network, each forward and backward. */

static void norm_forward(const struct norm *n, int tokens, int width)
{
    for (int t = 0; t < tokens; t++) {
        const real *x = n->x + (int64_t)t * width;
        real *y = n->y + (int64_t)t * width, square = 0;
#pragma omp simd reduction(+ : square)
        for (int c = 0; c < width; c++)
            square += x[c] * x[c];
        n->scale[t] = 1 / REAL_SQRT(square / (real)width + (real)1e-5);
        for (int c = 0; c < width; c++)
            y[c] = x[c] * n->scale[t] * n->gain[c];
    }
}

/* Adds the gradients to dx and dgain. */
static void norm_backward(const struct norm *n, real *dx, const real *dy, int tokens, int width)
{
    for (int t = 0; t < tokens; t++) {
        const real *x = n->x + (int64_t)t * width, *dyt = dy + (int64_t)t * width;
        real *dxt = dx + (int64_t)t * width, scale = n->scale[t], dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int c = 0; c < width; c++)
            dot += dyt[c] * n->gain[c] * x[c];
        dot *= scale * scale / (real)width;
        for (int c = 0; c < width; c++) {
            dxt[c] += scale * (dyt[c] * n->gain[c] - x[c] * dot);
            n->dgain[c] += dyt[c] * x[c] * scale;
        }
    }
}

/* For y = x w, computes dw += x' dy and dx = dy w'. */
static void linear_backward(struct matrix dx, struct matrix dw, struct matrix dy, struct matrix x, struct matrix w)
{
    multiply_add(dw, transposed(x), dy);
    multiply(dx, dy, transposed(w));
}

static void square_relu_forward(real *y, const real *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

static void square_relu_backward(real *dy, const real *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dy[i] *= x[i] > 0 ? 2 * x[i] : 0;
}

/* Turns row i of the scores into the weights of tokens 0 .. i. The weights of later tokens are 0. */
static void causal_softmax(struct matrix scores, real scale)
{
    for (int i = 0; i < scores.rows; i++) {
        real *row = scores.data + i * scores.row_step, most = row[0], sum = 0;
        for (int j = 1; j <= i; j++)
            most = row[j] > most ? row[j] : most;
        for (int j = 0; j <= i; j++)
            sum += row[j] = REAL_EXP(scale * (row[j] - most));
        for (int j = 0; j <= i; j++)
            row[j] /= sum;
        memset(row + i + 1, 0, (size_t)(scores.cols - i - 1) * sizeof *row);
    }
}

/* Turns dweights into the gradient of the scores. */
static void causal_softmax_backward(struct matrix dweights, struct matrix weights, real scale)
{
    for (int i = 0; i < weights.rows; i++) {
        const real *w = weights.data + i * weights.row_step;
        real *dw = dweights.data + i * dweights.row_step, dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int j = 0; j <= i; j++)
            dot += w[j] * dw[j];
        for (int j = 0; j < weights.cols; j++)
            dw[j] = w[j] * (dw[j] - dot) * scale;
    }
}

/* The rows of one document and the columns of one head in each buffer. */
struct head {
    struct matrix q, k, v, weights, out;
};

static struct head head_of(const struct gpt *m, struct attention a, const struct batch *batch, int sequence, int head)
{
    const struct gpt_shape *s = &m->shape;
    int begin = batch->cu_seqlens[sequence], length = batch->cu_seqlens[sequence + 1] - begin, d = s->head_dim;
    int group = head / s->q_per_group, group_col = group * (s->q_per_group + 2) * d;
    struct matrix qkv = matrix(a.qkv, m->tokens, qkv_width(s));
    struct matrix out = matrix(a.out, m->tokens, s->groups * s->q_per_group * d);
    struct matrix weights = matrix(a.weights + (int64_t)head * m->tokens * MAX_SEQUENCE, m->tokens, MAX_SEQUENCE);
    return (struct head){
        .q = slice(qkv, begin, group_col + head % s->q_per_group * d, length, d),
        .k = slice(qkv, begin, group_col + s->q_per_group * d, length, d),
        .v = slice(qkv, begin, group_col + (s->q_per_group + 1) * d, length, d),
        .weights = slice(weights, begin, 0, length, length),
        .out = slice(out, begin, head * d, length, d),
    };
}

static real score_scale(const struct gpt_shape *s)
{
    return 1 / REAL_SQRT((real)s->head_dim);
}

/* Attention stays within a document. */
static void attention_forward(const struct gpt *m, struct attention a, const struct batch *batch)
{
    const struct gpt_shape *s = &m->shape;
    int width = s->groups * s->q_per_group * s->head_dim, used = batch_used(batch);
    memset(a.out + (int64_t)used * width, 0, (size_t)(m->tokens - used) * (size_t)width * sizeof *a.out);
    for (int sequence = 0; sequence < batch->sequences; sequence++)
        for (int head = 0; head < s->groups * s->q_per_group; head++) {
            struct head h = head_of(m, a, batch, sequence, head);
            multiply(h.weights, h.q, transposed(h.k));
            causal_softmax(h.weights, score_scale(s));
            multiply(h.out, h.weights, h.v);
        }
}

/* Reads d.out and computes d.qkv. The query heads of a group add to the same K and V. */
static void attention_backward(const struct gpt *m, struct attention a, struct attention d, const struct batch *batch)
{
    const struct gpt_shape *s = &m->shape;
    memset(d.qkv, 0, (size_t)m->tokens * (size_t)qkv_width(s) * sizeof *d.qkv);
    for (int sequence = 0; sequence < batch->sequences; sequence++)
        for (int head = 0; head < s->groups * s->q_per_group; head++) {
            struct head h = head_of(m, a, batch, sequence, head);
            struct head dh = head_of(m, d, batch, sequence, head);
            multiply_add(dh.v, transposed(h.weights), dh.out);
            multiply(dh.weights, dh.out, transposed(h.v));
            causal_softmax_backward(dh.weights, h.weights, score_scale(s));
            multiply(dh.q, dh.weights, h.k);
            multiply_add(dh.k, transposed(dh.weights), h.q);
        }
}

/* -------------------------------------------------------------------------------------------------------------------
 * The network. */

static struct matrix weight(const struct gpt *m, int tensor, int layer)
{
    const struct tensor *t = &m->tensors[tensor];
    return matrix(m->weights + t->offset + (int64_t)layer * t->rows * t->cols, t->rows, t->cols);
}

static struct matrix gradient(const struct gpt *m, int tensor, int layer)
{
    const struct tensor *t = &m->tensors[tensor];
    return matrix(m->gradients + t->offset + (int64_t)layer * t->rows * t->cols, t->rows, t->cols);
}

static void layer_forward(struct gpt *m, int l, const struct batch *batch)
{
    const struct gpt_shape *s = &m->shape;
    const struct layer *a = &m->layers[l];
    int t = m->tokens, c = s->width, attended = s->groups * s->q_per_group * s->head_dim;
    real *x_out = l + 1 < s->layers ? m->layers[l + 1].norm_attention.x : m->norm_head.x;
    size_t x_size = (size_t)t * (size_t)c * sizeof *x_out;

    norm_forward(&a->norm_attention, t, c);
    multiply(matrix(a->attention.qkv, t, qkv_width(s)), matrix(a->norm_attention.y, t, c), weight(m, QKV, l));
    rotate(m, a->attention.qkv, batch, trope_forward);
    attention_forward(m, a->attention, batch);
    memcpy(a->norm_mlp.x, a->norm_attention.x, x_size);
    multiply_add(matrix(a->norm_mlp.x, t, c), matrix(a->attention.out, t, attended), weight(m, PROJECT, l));

    norm_forward(&a->norm_mlp, t, c);
    multiply(matrix(a->up, t, s->hidden), matrix(a->norm_mlp.y, t, c), weight(m, UP, l));
    square_relu_forward(a->activated, a->up, (int64_t)t * s->hidden);
    memcpy(x_out, a->norm_mlp.x, x_size);
    multiply_add(matrix(x_out, t, c), matrix(a->activated, t, s->hidden), weight(m, DOWN, l));
}

/* m->dx holds the gradient of the layer's output before the call, and of its input after it. */
static void layer_backward(struct gpt *m, int l, const struct batch *batch)
{
    const struct gpt_shape *s = &m->shape;
    const struct layer *a = &m->layers[l];
    int t = m->tokens, c = s->width, attended = s->groups * s->q_per_group * s->head_dim;
    struct matrix dx = matrix(m->dx, t, c), dnormed = matrix(m->dnormed, t, c), dhidden = matrix(m->dhidden, t, s->hidden);
    struct matrix dout = matrix(m->dattention.out, t, attended), dqkv = matrix(m->dattention.qkv, t, qkv_width(s));

    linear_backward(dhidden, gradient(m, DOWN, l), dx, matrix(a->activated, t, s->hidden), weight(m, DOWN, l));
    square_relu_backward(m->dhidden, a->up, (int64_t)t * s->hidden);
    linear_backward(dnormed, gradient(m, UP, l), dhidden, matrix(a->norm_mlp.y, t, c), weight(m, UP, l));
    norm_backward(&a->norm_mlp, m->dx, m->dnormed, t, c);

    linear_backward(dout, gradient(m, PROJECT, l), dx, matrix(a->attention.out, t, attended), weight(m, PROJECT, l));
    attention_backward(m, a->attention, m->dattention, batch);
    rotate(m, m->dattention.qkv, batch, trope_backward);
    linear_backward(dnormed, gradient(m, QKV, l), dqkv, matrix(a->norm_attention.y, t, c), weight(m, QKV, l));
    norm_backward(&a->norm_attention, m->dx, m->dnormed, t, c);
}

/* Returns the loss of one token. Replaces its logits by their gradient times 1/count. */
static double cross_entropy(real *logits, int target, int count)
{
    real most = logits[0], sum = 0;
    for (int i = 1; i < VOCABULARY; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < VOCABULARY; i++)
        sum += logits[i] = REAL_EXP(logits[i] - most);
    double loss = -log((double)(logits[target] / sum));
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = (logits[i] / sum - (i == target)) / (real)count;
    return loss;
}

/* Returns the mean loss over the batch's tokens, in nats per byte. */
static double gpt_forward(struct gpt *m, const struct batch *batch)
{
    int c = m->shape.width;
    for (int t = 0; t < m->tokens; t++)
        memcpy(m->layers[0].norm_attention.x + (int64_t)t * c, weight(m, EMBED, 0).data + batch->input[t] * c,
               (size_t)c * sizeof(real));
    for (int l = 0; l < m->shape.layers; l++)
        layer_forward(m, l, batch);
    norm_forward(&m->norm_head, m->tokens, c);
    multiply(matrix(m->logits, m->tokens, VOCABULARY), matrix(m->norm_head.y, m->tokens, c), weight(m, HEAD, 0));

    int used = batch_used(batch);
    double loss = 0;
    for (int t = 0; t < used; t++)
        loss += cross_entropy(m->logits + (int64_t)t * VOCABULARY, batch->target[t], used);
    memset(m->logits + (int64_t)used * VOCABULARY, 0, (size_t)(m->tokens - used) * VOCABULARY * sizeof(real));
    return loss / used;
}

/* Computes the gradient of that loss into m->gradients. Call it after gpt_forward with the same batch. */
static void gpt_backward(struct gpt *m, const struct batch *batch)
{
    int t = m->tokens, c = m->shape.width;
    memset(m->gradients, 0, (size_t)m->parameters * sizeof(real));
    memset(m->dx, 0, (size_t)t * (size_t)c * sizeof(real));
    linear_backward(matrix(m->dnormed, t, c), gradient(m, HEAD, 0), matrix(m->logits, t, VOCABULARY),
                    matrix(m->norm_head.y, t, c), weight(m, HEAD, 0));
    norm_backward(&m->norm_head, m->dx, m->dnormed, t, c);
    for (int l = m->shape.layers - 1; l >= 0; l--)
        layer_backward(m, l, batch);
    real *dembed = gradient(m, EMBED, 0).data;
    for (int i = 0; i < t; i++)
        for (int j = 0; j < c; j++)
            dembed[batch->input[i] * c + j] += m->dx[(int64_t)i * c + j];
}

/* -------------------------------------------------------------------------------------------------------------------
 * Allocation and initialisation. */

static void *gpt_block(struct gpt *m, int64_t count, size_t size)
{
    void *block = calloc((size_t)count, size);
    if (!block || m->block_count == MAX_BLOCKS) {
        fprintf(stderr, "train_packed: out of memory\n");
        exit(2);
    }
    return m->blocks[m->block_count++] = block;
}

static real *gpt_reals(struct gpt *m, int64_t count)
{
    return gpt_block(m, count, sizeof(real));
}

static void name_tensors(struct gpt *m)
{
    const struct gpt_shape *s = &m->shape;
    const int l = s->layers, c = s->width;
    const struct tensor tensors[TENSORS] = {
        [EMBED] = {"embed", 1, VOCABULARY, c, 0},
        [NORM_ATTENTION] = {"norm, attention", l, 1, c, 0},
        [QKV] = {"qkv", l, c, qkv_width(s), 0},
        [PROJECT] = {"project", l, s->groups * s->q_per_group * s->head_dim, c, 0},
        [NORM_MLP] = {"norm, mlp", l, 1, c, 0},
        [UP] = {"up", l, c, s->hidden, 0},
        [DOWN] = {"down", l, s->hidden, c, 0},
        [NORM_HEAD] = {"norm, head", 1, 1, c, 0},
        [HEAD] = {"head", 1, c, VOCABULARY, 0},
    };
    for (int i = 0; i < TENSORS; i++) {
        m->tensors[i] = tensors[i];
        m->tensors[i].offset = m->parameters;
        m->parameters += (int64_t)tensors[i].copies * tensors[i].rows * tensors[i].cols;
    }
}

static int64_t tensor_size(const struct tensor *t)
{
    return (int64_t)t->copies * t->rows * t->cols;
}

static struct norm new_norm(struct gpt *m, int tensor, int layer)
{
    int64_t count = (int64_t)m->tokens * m->shape.width;
    return (struct norm){.x = gpt_reals(m, count),
                         .y = gpt_reals(m, count),
                         .scale = gpt_reals(m, m->tokens),
                         .gain = weight(m, tensor, layer).data,
                         .dgain = gradient(m, tensor, layer).data};
}

static struct attention new_attention(struct gpt *m)
{
    const struct gpt_shape *s = &m->shape;
    int64_t heads = s->groups * s->q_per_group;
    return (struct attention){.qkv = gpt_reals(m, (int64_t)m->tokens * qkv_width(s)),
                              .weights = gpt_reals(m, heads * m->tokens * MAX_SEQUENCE),
                              .out = gpt_reals(m, heads * m->tokens * s->head_dim)};
}

/* Makes a model for batches of this many tokens. All weights are 0. */
static void gpt_new(struct gpt *m, const struct gpt_shape *shape, int tokens)
{
    memset(m, 0, sizeof *m);
    m->shape = *shape;
    m->tokens = tokens;
    name_tensors(m);
    m->weights = gpt_reals(m, m->parameters);
    m->gradients = gpt_reals(m, m->parameters);
    m->layers = gpt_block(m, shape->layers, sizeof *m->layers);
    for (int l = 0; l < shape->layers; l++)
        m->layers[l] = (struct layer){.norm_attention = new_norm(m, NORM_ATTENTION, l),
                                      .attention = new_attention(m),
                                      .norm_mlp = new_norm(m, NORM_MLP, l),
                                      .up = gpt_reals(m, (int64_t)tokens * shape->hidden),
                                      .activated = gpt_reals(m, (int64_t)tokens * shape->hidden)};
    m->norm_head = new_norm(m, NORM_HEAD, 0);
    m->logits = gpt_reals(m, (int64_t)tokens * VOCABULARY);
    m->dx = gpt_reals(m, (int64_t)tokens * shape->width);
    m->dnormed = gpt_reals(m, (int64_t)tokens * shape->width);
    m->dhidden = gpt_reals(m, (int64_t)tokens * shape->hidden);
    m->dattention = new_attention(m);

    trope_frequency_args rule = {
        .struct_size = sizeof rule, .rule = TROPE_RULE_DEFAULT, .rotary_dim = shape->head_dim, .base = 10000};
    require(trope_frequencies(&rule, m->inv_freq, &m->attention_factor));
}

static void gpt_free(struct gpt *m)
{
    while (m->block_count)
        free(m->blocks[--m->block_count]);
}

/* Fills the weights with normal numbers, scaled so that products keep their size. Weights of outputs that are added to x
 * are smaller if there are more layers. The gains are 1 plus `spread` times such numbers. */
static void gpt_randomize(struct gpt *m, uint64_t seed, double spread)
{
    for (int i = 0; i < TENSORS; i++) {
        const struct tensor *t = &m->tensors[i];
        int is_norm = i == NORM_ATTENTION || i == NORM_MLP || i == NORM_HEAD;
        double scale = is_norm ? spread : i == EMBED ? 1 : 1 / sqrt(t->rows);
        if (i == PROJECT || i == DOWN)
            scale /= sqrt(2.0 * m->shape.layers);
        for (int64_t j = 0; j < tensor_size(t); j++)
            m->weights[t->offset + j] = (real)((float)(is_norm + scale * random_normal(&seed)));
    }
}

#endif
