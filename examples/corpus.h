/* Documents of different lengths, and how they become a packed batch.
 *
 * Attention frameworks call the result thd: the tokens of several sequences follow each other in a single stream,
 * [tokens, heads, head_dim], and cu_seqlens holds the offset of each sequence. There is no padding between sequences. If
 * the next sequence does not fit, the rest of the stream is padding that belongs to no sequence.
 *
 *     stream       \0 A B A T I S  \0 A B B O T  \0 A C E  .  .  .
 *     cu_seqlens   0               7             13        17         (4 offsets, 3 sequences, 20 tokens)
 *     position     0  1 2 3 4 5 6  0  1 2 3 4 5  0  1 2 3  -  -  -    (trope computes these)
 */
#ifndef EXAMPLE_CORPUS_H
#define EXAMPLE_CORPUS_H

#include <stdint.h>

enum { MAX_SEQUENCE = 256 }; /* tokens; longer documents are cut into sequences of this length */

/* The text as one array: a zero byte, a document, a zero byte, a document, ..., a zero byte. */
struct corpus {
    uint8_t *text;
    struct piece *pieces;
    int piece_count;
    int document_count;
};

/* One sequence: the model reads text[begin .. begin + length) and predicts, at each byte, the next byte. */
struct piece {
    int64_t begin;
    int length;
    int held_out; /* 1 = kept for validation and never trained on: every tenth document */
};

struct batch {
    int tokens; /* of the stream, including padding */
    int sequences;
    int32_t *cu_seqlens; /* [sequences + 1] */
    uint8_t *input;      /* [tokens], the bytes */
    int16_t *target;     /* [tokens], the byte after each input byte, -1 for padding */
};

/* Visits the training pieces in an order that is shuffled in each epoch, or visits the held-out pieces once. */
struct reader {
    const struct corpus *corpus;
    int *order;
    int count;
    int next;
    uint64_t random;
};

/* Reads a text whose documents are separated by "%" lines (a fortune file). Returns 0, or -1 after a message on stderr. */
int corpus_load(struct corpus *corpus, const char *path);
void corpus_free(struct corpus *corpus);

struct reader reader_new(const struct corpus *corpus, int held_out, uint64_t seed);
void reader_free(struct reader *reader);

struct batch batch_new(int tokens);
void batch_free(struct batch *batch);
/* Empties the batch: it then has no sequence and only padding. */
void batch_clear(struct batch *batch);
/* Appends text[0 .. length) as one sequence with the targets text[1 .. length]. It must fit. */
void batch_append(struct batch *batch, const uint8_t *text, int length);
/* Returns the number of tokens that belong to a sequence. */
int batch_used(const struct batch *batch);

/* Fills the batch with as many of the next sequences as fit. Training repeats the corpus without end. */
void batch_fill_training(struct batch *batch, struct reader *reader);
/* The same for validation, which goes through the corpus once. Returns 0 when nothing is left. */
int batch_fill_validation(struct batch *batch, struct reader *reader);

#endif
