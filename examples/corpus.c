/* Reads, splits and packs documents: see corpus.h. */
#include "corpus.h"
#include "random.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t size)
{
    void *p = calloc(1, size);
    if (!p) {
        fprintf(stderr, "train_packed: out of memory\n");
        exit(2);
    }
    return p;
}

/* Returns the file's bytes and a final newline, or NULL. The file may be a pipe. */
static char *read_file(const char *path, int64_t *size)
{
    FILE *f = fopen(path, "rb");
    size_t room = 1 << 16, used = 0, got = f != NULL;
    char *bytes = allocate(room);
    while (f && got) {
        used += got = fread(bytes + used, 1, room - 1 - used, f);
        if (used == room - 1) {
            char *larger = memcpy(allocate(2 * room), bytes, used);
            free(bytes);
            bytes = larger;
            room *= 2;
        }
    }
    if (!f || ferror(f)) {
        fprintf(stderr, "train_packed: cannot read %s: %s\n", path, strerror(errno));
        free(bytes);
        bytes = NULL;
    } else {
        bytes[used] = '\n';
    }
    if (f)
        fclose(f);
    *size = (int64_t)used + 1;
    return bytes;
}

/* Appends a document without its trailing newlines, and the zero byte that ends it. */
static int64_t add_document(struct corpus *corpus, int64_t end, const char *bytes, int64_t size)
{
    while (size > 0 && bytes[size - 1] == '\n')
        size--;
    if (size == 0)
        return end;
    memcpy(corpus->text + end, bytes, (size_t)size);
    corpus->text[end + size] = 0;
    corpus->document_count++;
    return end + size + 1;
}

static int64_t split_documents(struct corpus *corpus, const char *bytes, int64_t size)
{
    int64_t end = 1, begin = 0; /* the first byte is the zero before the first document */
    for (int64_t line = 0, next; line < size; line = next) {
        next = (const char *)memchr(bytes + line, '\n', (size_t)(size - line)) - bytes + 1;
        if (next - line == 2 && bytes[line] == '%') {
            end = add_document(corpus, end, bytes + begin, line - begin);
            begin = next;
        }
    }
    return add_document(corpus, end, bytes + begin, size - begin);
}

/* Cuts every document, with its leading zero, into sequences of at most MAX_SEQUENCE tokens. */
static void cut_pieces(struct corpus *corpus, int64_t size)
{
    int document = 0;
    corpus->pieces = allocate((size_t)(size / MAX_SEQUENCE + corpus->document_count + 1) * sizeof *corpus->pieces);
    for (int64_t begin = 0, end; begin + 1 < size; begin = end, document++) {
        end = (const uint8_t *)memchr(corpus->text + begin + 1, 0, (size_t)(size - begin - 1)) - corpus->text;
        for (int64_t at = begin; at < end; at += MAX_SEQUENCE) {
            struct piece *piece = &corpus->pieces[corpus->piece_count];
            int tenth = (corpus->document_count >= 20 ? document : corpus->piece_count) % 10 == 9;
            *piece = (struct piece){at, end - at < MAX_SEQUENCE ? (int)(end - at) : MAX_SEQUENCE, tenth};
            corpus->piece_count++;
        }
    }
}

int corpus_load(struct corpus *corpus, const char *path)
{
    memset(corpus, 0, sizeof *corpus);
    int64_t size;
    char *bytes = read_file(path, &size);
    if (!bytes)
        return -1;
    for (int64_t i = 0; i < size; i++)
        if (!bytes[i])
            bytes[i] = ' '; /* zero separates documents */
    corpus->text = allocate((size_t)size + 2);
    cut_pieces(corpus, split_documents(corpus, bytes, size));
    free(bytes);
    if (corpus->piece_count >= 20)
        return 0;
    fprintf(stderr, "train_packed: %s is too short: it makes %d sequences, at least 20 are needed\n", path,
            corpus->piece_count);
    corpus_free(corpus);
    return -1;
}

void corpus_free(struct corpus *corpus)
{
    free(corpus->text);
    free(corpus->pieces);
}

static void shuffle(struct reader *reader)
{
    for (int i = reader->count - 1; i > 0; i--) {
        int j = (int)(random_bits(&reader->random) % (uint64_t)(i + 1));
        int other = reader->order[j];
        reader->order[j] = reader->order[i];
        reader->order[i] = other;
    }
    reader->next = 0;
}

struct reader reader_new(const struct corpus *corpus, int held_out, uint64_t seed)
{
    struct reader reader = {.corpus = corpus, .random = seed};
    reader.order = allocate((size_t)corpus->piece_count * sizeof *reader.order);
    for (int i = 0; i < corpus->piece_count; i++)
        if (corpus->pieces[i].held_out == held_out)
            reader.order[reader.count++] = i;
    if (!held_out)
        shuffle(&reader);
    return reader;
}

void reader_free(struct reader *reader)
{
    free(reader->order);
}

struct batch batch_new(int tokens)
{
    struct batch batch = {.tokens = tokens};
    batch.cu_seqlens = allocate((size_t)(tokens + 1) * sizeof *batch.cu_seqlens);
    batch.input = allocate((size_t)tokens);
    batch.target = allocate((size_t)tokens * sizeof *batch.target);
    batch_clear(&batch);
    return batch;
}

void batch_free(struct batch *batch)
{
    free(batch->cu_seqlens);
    free(batch->input);
    free(batch->target);
}

void batch_clear(struct batch *batch)
{
    batch->sequences = 0;
    batch->cu_seqlens[0] = 0;
    memset(batch->input, 0, (size_t)batch->tokens);
    for (int t = 0; t < batch->tokens; t++)
        batch->target[t] = -1;
}

int batch_used(const struct batch *batch)
{
    return batch->cu_seqlens[batch->sequences];
}

void batch_append(struct batch *batch, const uint8_t *text, int length)
{
    int begin = batch_used(batch);
    for (int i = 0; i < length; i++) {
        batch->input[begin + i] = text[i];
        batch->target[begin + i] = text[i + 1];
    }
    batch->cu_seqlens[++batch->sequences] = begin + length;
}

/* Appends the reader's next sequence, if there is one and it fits. */
static int append_next(struct batch *batch, struct reader *reader)
{
    if (reader->next == reader->count)
        return 0;
    const struct piece *piece = &reader->corpus->pieces[reader->order[reader->next]];
    if (piece->length > batch->tokens - batch_used(batch))
        return 0;
    batch_append(batch, reader->corpus->text + piece->begin, piece->length);
    reader->next++;
    return 1;
}

void batch_fill_training(struct batch *batch, struct reader *reader)
{
    batch_clear(batch);
    while (append_next(batch, reader))
        if (reader->next == reader->count)
            shuffle(reader);
}

int batch_fill_validation(struct batch *batch, struct reader *reader)
{
    batch_clear(batch);
    while (append_next(batch, reader))
        ;
    return batch->sequences;
}
