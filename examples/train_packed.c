/* train_packed: trains a small GPT on packed documents, with rotary position embedding by trope.
 *
 *     corpus.c          turns documents of different lengths into one packed stream with cu_seqlens
 *     gpt.h             the model; rotate() calls trope, which rotates Q and K in place in the packed QKV buffer,
 *                       forward and backward
 *     gradient_check.c  the same model in double, compared with finite differences
 *     train_packed.c    this file: options, the check, Adam, the training loop, the verdict
 *
 * The program does this:
 *  1. It reads the documents and keeps every tenth for validation.
 *  2. It checks the gradient of the whole model at random weights: the double model against finite differences, and the
 *     float model, which is the one that is trained, against the double one.
 *  3. It trains two models side by side, from the same weights and on the same batches. One rotates Q and K. The other
 *     can only infer positions from the causal mask.
 *  4. It compares their loss on the documents that neither has seen. The loss with RoPE must be lower by at least MARGIN.
 *
 * On one machine the same seed gives the same numbers. Exit status: 0 = success, 1 = a check failed, 2 = bad usage or an
 * unreadable text. */
#define GPT_DOUBLE 0
#include "gpt.h"
#include "gradient_check.h"

#define MARGIN        0.1  /* nats per byte */
#define DOUBLE_BOUND  1e-6 /* for the double gradient against finite differences */
#define FLOAT_BOUND   1e-5 /* for the float gradient against the double one */
#define LEARNING_RATE 6e-3 /* peak value */
enum { BATCH_TOKENS = 1024, WARMUP = 20, ROWS = 8, CHECK_TOKENS = 192 };
enum { ROPE, PLAIN, MODELS }; /* the two models */

struct options {
    const char *text;
    int steps;
    int threads;
    uint64_t seed;
    int check_only;
};

/* A model in training. Adam keeps running means of each gradient and of its square. */
struct trainer {
    struct gpt gpt;
    real *mean, *square;
    double loss; /* summed since the last line of the table */
};

/* -------------------------------------------------------------------------------------------------------------------
 * Options. */

static void print_help(void)
{
    puts("train_packed [options]: train a small GPT on packed documents, with and without RoPE\n"
         "\n"
         "  --text FILE    documents separated by lines \"%\" (default: examples/corpus.txt)\n"
         "  --steps N      batches to train on (default 480)\n"
         "  --seed N       seed of the weights and the order of the documents (default 1)\n"
         "  --threads N    1, or 2 (the default): one for each model\n"
         "  --check-only   check the gradient, do not train\n  --help         print this text\n"
         "\n"
         "Exit status: 0 all is well; 1 the gradient is wrong, or RoPE is not clearly better than no positions; 2 bad\n"
         "usage or an unreadable text.");
}

/* Returns the number after option argv[i]. It must be at least 1. */
static long number_after(int argc, char **argv, int i)
{
    char *end = "x";
    long value = i + 1 < argc ? strtol(argv[i + 1], &end, 10) : 0;
    if (*end || value < 1 || value > 1000000000) {
        fprintf(stderr, "train_packed: %s needs a whole number, at least 1\n", argv[i]);
        exit(2);
    }
    return value;
}

static struct options parse(int argc, char **argv)
{
    struct options o = {.steps = 480, .seed = 1, .threads = MODELS};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            print_help();
            exit(0);
        } else if (!strcmp(argv[i], "--check-only")) {
            o.check_only = 1;
        } else if (!strcmp(argv[i], "--text") && i + 1 < argc) {
            o.text = argv[++i];
        } else if (!strcmp(argv[i], "--steps")) {
            o.steps = (int)number_after(argc, argv, i++);
        } else if (!strcmp(argv[i], "--seed")) {
            o.seed = (uint64_t)number_after(argc, argv, i++);
        } else if (!strcmp(argv[i], "--threads")) {
            o.threads = (int)number_after(argc, argv, i++);
        } else {
            fprintf(stderr, "train_packed: unknown option, or one without its value: %s (see --help)\n", argv[i]);
            exit(2);
        }
    }
    o.threads = o.threads < MODELS ? o.threads : MODELS;
    return o;
}

/* Returns the path of the corpus in the source tree, independently of the current folder. */
static const char *default_text(void)
{
    const char *paths[] = {EXAMPLE_CORPUS, "examples/corpus.txt", "corpus.txt"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        FILE *f = fopen(paths[i], "rb");
        if (f) {
            fclose(f);
            return paths[i];
        }
    }
    fprintf(stderr, "train_packed: no corpus at %s or at examples/corpus.txt; give a text with --text\n", paths[0]);
    exit(2);
}

/* -------------------------------------------------------------------------------------------------------------------
 * The gradient check. */

/* Makes a batch from the beginnings of the first documents, with an empty sequence and with padding at the end. */
static struct batch check_batch(const struct corpus *corpus)
{
    const int lengths[] = {61, 1, 0, 37, 75};
    struct batch batch = batch_new(CHECK_TOKENS);
    for (int i = 0; i < 5; i++) {
        const struct piece *piece = &corpus->pieces[i];
        batch_append(&batch, corpus->text + piece->begin, piece->length < lengths[i] ? piece->length : lengths[i]);
    }
    return batch;
}

/* Returns |a - b| / |b| of a tensor. */
static double float_error(const struct tensor *t, const real *a, const double *b)
{
    double difference = 0, size = 0;
    for (int64_t i = t->offset; i < t->offset + tensor_size(t); i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Prints a line and returns 1 if a value is above its bound or is NaN. */
static int check_row(const struct tensor *t, double element, double direction, double single)
{
    int bad = !(element < DOUBLE_BOUND) || !(direction < DOUBLE_BOUND) || !(single < FLOAT_BOUND);
    char shape[32];
    snprintf(shape, sizeof shape, "%d x %d x %d", t->copies, t->rows, t->cols);
    printf("  %-16s %14s %14.1e %14.1e %14.1e%s\n", t->name, shape, element, direction, single, bad ? "  WRONG" : "");
    return bad;
}

/* Returns the number of tensors with a wrong gradient. */
static int run_check(const struct gpt_shape *shape, const struct corpus *corpus, uint64_t seed)
{
    struct batch batch = check_batch(corpus);
    struct gradient_check check;
    struct gpt m;
    check_gradient(&check, shape, &batch, seed);
    gpt_new(&m, shape, CHECK_TOKENS);
    gpt_randomize(&m, seed, CHECK_SPREAD);
    gpt_forward(&m, &batch);
    gpt_backward(&m, &batch);

    printf("\ngradient of the loss at random weights, relative errors; %d tokens in %d sequences, and %d of padding\n",
           batch_used(&batch), batch.sequences, CHECK_TOKENS - batch_used(&batch));
    printf("  %-16s %14s %14s %14s %14s\n", "tensor", "shape", "elements", "direction", "float");
    int wrong = 0;
    for (int i = 0; i < TENSORS; i++)
        wrong += check_row(&m.tensors[i], check.element[i], check.direction[i],
                           float_error(&m.tensors[i], m.gradients, check.gradient));
    wrong += !(check.all < DOUBLE_BOUND);
    printf("  %-16s %14lld %14s %14.1e\n", "all", (long long)m.parameters, "", check.all);
    printf("  double against finite differences (bound %.0e), float against double (bound %.0e): %s\n", DOUBLE_BOUND,
           FLOAT_BOUND, wrong ? "FAIL" : "pass");
    free(check.gradient);
    gpt_free(&m);
    batch_free(&batch);
    return wrong;
}

/* -------------------------------------------------------------------------------------------------------------------
 * Training. */

static void trainer_new(struct trainer *t, const struct gpt_shape *shape, int rope, uint64_t seed)
{
    gpt_new(&t->gpt, shape, BATCH_TOKENS);
    t->gpt.shape.rope = rope;
    gpt_randomize(&t->gpt, seed, 0);
    t->mean = gpt_reals(&t->gpt, t->gpt.parameters);
    t->square = gpt_reals(&t->gpt, t->gpt.parameters);
    t->loss = 0;
}

/* Rises from 0 in WARMUP steps, then falls to a tenth along half a cosine. */
static double learning_rate(int step, int steps)
{
    double warm = fmin(1, (step + 1.0) / WARMUP), done = (double)step / steps;
    return LEARNING_RATE * warm * (0.55 + 0.45 * cos(3.14159265358979 * done));
}

/* Does one step of Adam (Kingma and Ba, arXiv:1412.6980). */
static void adam(struct trainer *t, int step, double rate)
{
    const real beta1 = (real)0.9, beta2 = (real)0.95;
    const real unbias1 = (real)(1 / (1 - pow(beta1, step + 1))), unbias2 = (real)(1 / (1 - pow(beta2, step + 1)));
    real *weights = t->gpt.weights, *mean = t->mean, *square = t->square;
    const real *gradients = t->gpt.gradients;
    for (int64_t i = 0; i < t->gpt.parameters; i++) {
        mean[i] = beta1 * mean[i] + (1 - beta1) * gradients[i];
        square[i] = beta2 * square[i] + (1 - beta2) * gradients[i] * gradients[i];
        weights[i] -= (real)rate * mean[i] * unbias1 / (REAL_SQRT(square[i] * unbias2) + (real)1e-8);
    }
}

/* Does a step of every model, each in its own thread. Returns the number of tokens that each model was trained on. */
static int train_step(struct trainer *models, const struct batch *batch, int step, const struct options *o)
{
#pragma omp parallel for num_threads(o->threads) schedule(static, 1)
    for (int i = 0; i < MODELS; i++) {
        models[i].loss += gpt_forward(&models[i].gpt, batch);
        gpt_backward(&models[i].gpt, batch);
        adam(&models[i], step, learning_rate(step, o->steps));
    }
    return batch_used(batch);
}

static void print_row(struct trainer *models, int step, int row_steps, double tokens_per_second)
{
    double rope = models[ROPE].loss / row_steps, plain = models[PLAIN].loss / row_steps;
    printf("  %6d %12.3f %18.3f %14.3f %14.0f\n", step, rope, plain, plain - rope, tokens_per_second);
    models[ROPE].loss = models[PLAIN].loss = 0;
}

/* Trains all models on the same batches and prints lines of the table from time to time. */
static void train(struct trainer *models, const struct corpus *corpus, const struct options *o)
{
    struct reader reader = reader_new(corpus, 0, o->seed);
    struct batch batch = batch_new(BATCH_TOKENS);
    printf("\n  %6s %12s %18s %14s %14s\n", "step", "loss: RoPE", "without positions", "RoPE lower by", "tokens/s");
    for (int row = 0, step = 0; row < ROWS; row++) {
        int first = step, last = (int)((int64_t)o->steps * (row + 1) / ROWS);
        double tokens = 0, start = seconds();
        for (; step < last; step++) {
            batch_fill_training(&batch, &reader);
            tokens += MODELS * train_step(models, &batch, step, o);
        }
        if (last > first)
            print_row(models, last, last - first, tokens / (seconds() - start));
    }
    reader_free(&reader);
    batch_free(&batch);
}

/* Returns the mean loss over all held-out documents and writes their size to `tokens`. */
static double validate(struct gpt *m, const struct corpus *corpus, int64_t *tokens)
{
    struct reader reader = reader_new(corpus, 1, 0);
    struct batch batch = batch_new(BATCH_TOKENS);
    double loss = 0;
    *tokens = 0;
    while (batch_fill_validation(&batch, &reader)) {
        loss += gpt_forward(m, &batch) * batch_used(&batch);
        *tokens += batch_used(&batch);
    }
    reader_free(&reader);
    batch_free(&batch);
    return loss / (double)*tokens;
}

/* Trains and compares the models. Returns 1 if RoPE is not better by MARGIN. */
static int run_training(const struct gpt_shape *shape, const struct corpus *corpus, const struct options *o)
{
    struct trainer models[MODELS];
    double loss[MODELS], start = seconds();
    int64_t tokens[MODELS];
    for (int i = 0; i < MODELS; i++)
        trainer_new(&models[i], shape, i == ROPE, o->seed);
    train(models, corpus, o);
    double trained = seconds();
#pragma omp parallel for num_threads(o->threads) schedule(static, 1)
    for (int i = 0; i < MODELS; i++)
        loss[i] = validate(&models[i].gpt, corpus, &tokens[i]);

    double gain = loss[PLAIN] - loss[ROPE];
    printf("\nvalidation loss, nats per byte, on %lld bytes of documents that neither model has seen\n",
           (long long)tokens[ROPE]);
    printf("  with RoPE %.3f, without positions %.3f: RoPE is lower by %.3f (at least %.1f): %s\n", loss[ROPE], loss[PLAIN],
           gain, MARGIN, gain >= MARGIN ? "pass" : "FAIL");
    printf("trained in %.1f s; trope rotated Q, K and their gradients in %.2f s of that\n", trained - start,
           models[ROPE].gpt.rope_seconds);
    for (int i = 0; i < MODELS; i++)
        gpt_free(&models[i].gpt);
    return !(gain >= MARGIN);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* also shows progress in a pipe */
    struct options o = parse(argc, argv);
    struct gpt_shape shape = {
        .layers = 2, .width = 64, .groups = 2, .q_per_group = 2, .head_dim = 16, .hidden = 256, .rope = 1};
    const char *path = o.text ? o.text : default_text();
    struct corpus corpus;
    if (corpus_load(&corpus, path))
        return 2;
    printf("trope %s: a GPT over bytes, trained on packed documents, with RoPE and without positions\n", trope_version());
    printf("model  %d layers, width %d, %d query heads on %d key/value heads of %d\n", shape.layers, shape.width,
           shape.groups * shape.q_per_group, shape.groups, shape.head_dim);
    printf("data   %s: %d documents, cut into %d sequences of at most %d\n", path, corpus.document_count,
           corpus.piece_count, MAX_SEQUENCE);
    int failed = run_check(&shape, &corpus, o.seed) > 0;
    if (!o.check_only && !failed)
        failed = run_training(&shape, &corpus, &o);
    corpus_free(&corpus);
    return failed;
}
