/* Documents of differing length, and how they become a packed batch.
 *
 * Attention frameworks call the result thd: the tokens of several sequences one after the other in a single stream,
 * [tokens, heads, head_dim], with cu_seqlens saying where each sequence begins. There is no padding between sequences;
 * what remains at the end of the stream, because the next sequence did not fit, is padding that belongs to none.
 *
 *     stream       \0 A B A T I S  \0 A B B O T  \0 A C E  .  .  .
 *     cu_seqlens   0               7             13        17         (4 offsets, 3 sequences, 20 tokens)
 *     position     0  1 2 3 4 5 6  0  1 2 3 4 5  0  1 2 3  -  -  -    (trope finds these by itself)
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

/* One sequence: the model reads text[begin .. begin + length) and predicts, at each byte, the one that follows. */
struct piece {
    int64_t begin;
    int length;
    int held_out; /* 1 = never trained on, for validation: every tenth document */
};

struct batch {
    int tokens; /* of the stream, with its padding */
    int sequences;
    int32_t *cu_seqlens; /* [sequences + 1] */
    uint8_t *input;      /* [tokens], the bytes */
    int16_t *target;     /* [tokens], the byte that follows each, -1 for padding */
};

/* Walks over the training pieces in an order shuffled for each epoch, or once over the held-out ones. */
struct reader {
    const struct corpus *corpus;
    int *order;
    int count;
    int next;
    uint64_t random;
};

/* Reads a text whose documents are separated by lines "%" (a fortune file). Returns 0, or -1 after a line on stderr. */
int corpus_load(struct corpus *corpus, const char *path);
void corpus_free(struct corpus *corpus);

struct reader reader_new(const struct corpus *corpus, int held_out, uint64_t seed);
void reader_free(struct reader *reader);

struct batch batch_new(int tokens);
void batch_free(struct batch *batch);
/* Empties the batch: no sequence, all padding. */
void batch_clear(struct batch *batch);
/* Appends text[0 .. length), whose targets are text[1 .. length], as one sequence; it must fit. */
void batch_append(struct batch *batch, const uint8_t *text, int length);
/* Tokens that belong to a sequence. */
int batch_used(const struct batch *batch);

/* Fills the batch with as many of the next sequences as fit. Training goes on for ever. */
void batch_fill_training(struct batch *batch, struct reader *reader);
/* The same for validation, once through; returns 0 when there is nothing left. */
int batch_fill_validation(struct batch *batch, struct reader *reader);

#endif
