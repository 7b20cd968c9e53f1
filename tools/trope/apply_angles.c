/* The angles of a call: a table and how its bytes are read, inv_freq, or a rule; and the elements that they rotate. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apply.h"
#include "command.h"

/* Layouts of tables, without the columns: axes, batch and rows (s, as of --layout). Other dims, which are 1, may stand
 * between these. */
enum { TABLE_S = 1, TABLE_BS, TABLE_SB, TABLE_AS, TABLE_ABS, TABLE_LAYOUTS };
static const char *const table_dims[TABLE_LAYOUTS] = {"", "s", "bs", "sb", "as", "abs"};

const choice table_layout_choices[] = {{"sd", TABLE_S},   {"bsd", TABLE_BS},   {"sbd", TABLE_SB},
                                       {"asd", TABLE_AS}, {"absd", TABLE_ABS}, {NULL, 0}};
const choice column_choices[] = {
    {"pair", TROPE_COLUMNS_PAIR}, {"half", TROPE_COLUMNS_HALF}, {"interleaved", TROPE_COLUMNS_INTERLEAVED}, {NULL, 0}};
const choice table_row_choices[] = {{"positions", APPLY_ROWS_POSITIONS}, {"tokens", APPLY_ROWS_TOKENS}, {NULL, 0}};

/* Which tensors are there */

static const safetensor *table_of(const apply_call *call)
{
    const safetensor *const *t = call->group->tensors;
    return t[APPLY_FREQS] ? t[APPLY_FREQS] : t[APPLY_COS] ? t[APPLY_COS] : t[APPLY_FREQS_CIS];
}

static int is_complex(const apply_call *call, const safetensor *table)
{
    return table == call->group->tensors[APPLY_FREQS_CIS];
}

/* Dims before the columns. A complex table may have its two parts in a last dim. */
static int leading_dims(const apply_call *call, const safetensor *table)
{
    return table->rank - 1 - (is_complex(call, table) && table->type != VALUE_C64);
}

static int find_source(apply_call *call)
{
    static const apply_role sources[] = {APPLY_FREQS, APPLY_COS, APPLY_FREQS_CIS, APPLY_INV_FREQ};
    const safetensor *const *t = call->group->tensors;
    if (!t[APPLY_COS] != !t[APPLY_SIN])
        return apply_refuse(call, t[t[APPLY_COS] ? APPLY_COS : APPLY_SIN], "needs '%s' beside it",
                            t[APPLY_COS] ? "sin" : "cos");
    for (int i = 0; i < 4; i++) {
        const safetensor *tensor = t[sources[i]];
        if (tensor && call->angles)
            return apply_refuse(call, call->angles,
                                "angles must come from one of freqs, cos with sin, freqs_cis and inv_freq, but '%.64s' is "
                                "there too",
                                tensor->name);
        call->angles = tensor ? tensor : call->angles;
    }
    if (call->angles && (call->options->rotation.rope_theta != 0 || call->options->rotation.scaling))
        return apply_refuse(call, call->angles, "gives the angles, so --rope-theta and --scaling must be left out");
    return 0;
}

/* Rows */

/* What a table's rows must be enough for. */
typedef struct table_need {
    int64_t batch, tokens, rows;
    int has_axes; /* whether options say which pairs an axis drives */
} table_need;

static int has_axes(const apply_call *call)
{
    return call->options->sequence.axis_map || call->options->rotation.parts > 1;
}

/* Gives the leading dims of a table to the letters of a layout: bit i of `chosen` says that dim i has one. Returns nonzero
 * if they do not fit. */
static int assign_dims(const safetensor *table, int dims, int layout, unsigned chosen, const table_need *need,
                       apply_table *found)
{
    const char *letter = table_dims[layout];
    int64_t step = 1;
    *found = (apply_table){.axes = 1, .batch = 1, .rows = 1};
    for (int i = 0; i < dims; i++) {
        if (!(chosen >> i & 1)) {
            if (table->shape[i] != 1)
                return 1;
            continue;
        }
        int64_t *size = *letter == 'a' ? &found->axes : *letter == 'b' ? &found->batch : &found->rows;
        *size = table->shape[i];
        letter += *letter != 0;
    }
    for (int i = dims - 1; i >= 0; i--) {
        if (!(chosen >> i & 1))
            continue;
        letter--;
        found->stride[*letter == 'a' ? 0 : *letter == 'b' ? 1 : 2] = table->shape[i] > 1 ? step : 0;
        step *= table->shape[i];
    }
    if (found->axes > 1 && (!need->has_axes || found->axes > TROPE_MAX_AXES))
        return 1;
    return found->rows < need->rows || (found->batch != 1 && found->batch != need->batch);
}

static int bits_of(unsigned x)
{
    return x ? 1 + bits_of(x & (x - 1)) : 0;
}

/* The ways to read the dims of a table: their number, the last of them in *found, and their names in `names`. */
static int table_readings(const apply_call *call, const safetensor *table, const table_need *need, apply_table *found,
                          char *names, size_t size)
{
    const int dims = leading_dims(call, table);
    int count = 0;
    names[0] = 0;
    for (int layout = TABLE_S; layout < TABLE_LAYOUTS; layout++) {
        if (call->options->table_layout && call->options->table_layout != layout)
            continue;
        for (unsigned chosen = 0; chosen < 1u << dims; chosen++) {
            apply_table reading;
            if (bits_of(chosen) != (int)strlen(table_dims[layout]) ||
                assign_dims(table, dims, layout, chosen, need, &reading) ||
                (count && !memcmp(&reading, found, offsetof(apply_table, columns))))
                continue;
            const size_t used = strlen(names);
            snprintf(names + used, size - used, "%s%sd", used ? " or " : "", table_dims[layout]);
            *found = reading;
            count++;
        }
    }
    return count;
}

/* As far as it is known before the positions are. */
int apply_table_fits(const apply_call *call, int64_t batch, int64_t tokens)
{
    const safetensor *table = table_of(call), *const *t = call->group->tensors;
    const int by_index = !t[APPLY_POSITION_IDS] && !t[APPLY_START_POSITIONS] && !t[APPLY_CU_SEQLENS] &&
                         call->options->sequence.out_of_range < 0;
    const table_need need = {batch, tokens, by_index ? tokens : 1, has_axes(call)};
    apply_table found;
    char names[64];
    if (!table || leading_dims(call, table) < 1 || leading_dims(call, table) > 4)
        return 1;
    return table_readings(call, table, &need, &found, names, sizeof names) > 0;
}

/* Which row a token has: that of its position, or its own, as in tables that a model has made for its tokens. */
static int choose_rows(apply_call *call, const safetensor *table)
{
    apply_table *t = &call->table;
    const int32_t said = call->options->table_rows;
    const int fits_tokens = t->rows == call->args.tokens;
    if (said == APPLY_ROWS_TOKENS && !fits_tokens)
        return apply_refuse(call, table,
                            "must have as many rows as there are tokens (%" PRId64 "), with --table-rows tokens",
                            call->args.tokens);
    if (!said && fits_tokens && !call->counts_tokens)
        return apply_refuse(call, table,
                            "has a row for each token, and positions (%" PRId64 " to %" PRId64
                            ") that are not 0, 1, 2, ...: --table-rows positions or tokens says which row a token has",
                            call->first_position, call->last_position);
    t->by_token = said == APPLY_ROWS_TOKENS;
    if (t->by_token && call->options->sequence.out_of_range >= 0)
        return complain("--out-of-range: has no effect with --table-rows tokens");
    if (!t->by_token && call->options->sequence.out_of_range < 0 &&
        (call->first_position < 0 || call->last_position >= t->rows)) {
        const safetensor *ids = call->group->tensors[APPLY_POSITION_IDS],
                         *starts = call->group->tensors[APPLY_START_POSITIONS];
        const safetensor *blamed = ids ? ids : starts ? starts : table;
        return apply_refuse(call, blamed,
                            "positions %" PRId64 " to %" PRId64 " are not in the rows of '%.64s', 0 to %" PRId64
                            "; --out-of-range says what becomes of them",
                            call->first_position, call->last_position, table->name, t->rows - 1);
    }
    return 0;
}

static int read_rows(apply_call *call, const safetensor *table)
{
    const trope_args *args = &call->args;
    const int dims = leading_dims(call, table);
    table_need need = {args->batch, args->tokens, 1, has_axes(call)};
    char names[64];
    if (dims < 1 || dims > 4)
        return apply_refuse(call, table, "must be [rows, cols], with batch, axes or dims of 1 before or behind the rows");
    /* First those with rows enough for the positions; one that is too short is told from one that does not fit. */
    if (call->options->sequence.out_of_range < 0 && args->position_axes <= 1)
        need.rows = call->last_position < args->tokens ? call->last_position + 1 : args->tokens;
    int count = table_readings(call, table, &need, &call->table, names, sizeof names);
    if (!count) {
        need.rows = 1;
        count = table_readings(call, table, &need, &call->table, names, sizeof names);
    }
    if (!count) {
        need.has_axes = 1;
        if (table_readings(call, table, &need, &call->table, names, sizeof names))
            return apply_refuse(call, table, "may be %s, a table an axis: --axis-map says which pairs an axis drives",
                                names);
        return apply_refuse(call, table,
                            "must be rows and columns, the same for all of the batch or for each entry (%" PRId64
                            "), and have dims of 1 otherwise%s%s",
                            args->batch, call->options->table_layout ? ", with --table-layout " : "",
                            choice_name(table_layout_choices, call->options->table_layout));
    }
    if (count > 1)
        return apply_refuse(call, table, "may be %s (s rows, b batch, a axes, d columns): --table-layout says which",
                            names);
    return choose_rows(call, table);
}

/* Columns */

/* What the columns of a table look like. */
typedef struct column_signs {
    int halves, neighbours, all; /* whether these are equal, in every row */
} column_signs;

/* Clears the signs that a row contradicts, in any part. A column has `step` bytes. */
static void look_at_row(const char *row, int32_t columns, size_t step, int32_t parts, column_signs *signs)
{
    const int32_t width = columns / parts;
    for (int32_t part = 0; part < parts; part++, row += (size_t)width * step) {
        for (int32_t i = 0; i + 1 < width; i++) {
            const char *column = row + (size_t)i * step;
            const int same = !memcmp(column, column + step, step);
            signs->all &= same;
            signs->neighbours &= same || i % 2;
            if (i < width / 2)
                signs->halves &= !memcmp(column, column + (size_t)(width / 2) * step, step);
        }
    }
}

static column_signs look_at_columns(const safetensor *table, int complex, int32_t columns, int32_t parts)
{
    const int whole = columns % (2 * parts) == 0;
    column_signs signs = {whole, whole, whole};
    const size_t step = (size_t)value_size(table->type) * (complex && table->type != VALUE_C64 ? 2 : 1);
    const char *row = table->data;
    for (uint64_t bytes = safetensor_bytes(table); bytes && whole; bytes -= (size_t)columns * step) {
        look_at_row(row, columns, step, parts, &signs);
        row += (size_t)columns * step;
    }
    return signs;
}

/* A NaN is somebody's mistake, and so is an infinite angle. */
static int check_finite(const apply_call *call, const safetensor *table)
{
    const int32_t type = table->type == VALUE_C64 ? TROPE_F32 : table->type;
    const uint64_t count = table->type == VALUE_C64 ? 2 * table->elements : table->elements;
    for (uint64_t i = 0; i < count; i++) {
        const double x = value_load(type, table->data, (int64_t)i);
        if (!isfinite(x))
            return apply_refuse(call, table, "holds %s, in element %" PRIu64, isnan(x) ? "NaN" : "infinity", i);
    }
    return 0;
}

/* Entry i: cosine and sine, or the angle and 0. */
static void load_entry(const apply_call *call, int64_t i, double entry[2])
{
    const safetensor *table = table_of(call), *sine = call->group->tensors[APPLY_SIN];
    const int complex = is_complex(call, table);
    const int32_t type = table->type == VALUE_C64 ? TROPE_F32 : table->type;
    entry[0] = value_load(type, table->data, complex ? 2 * i : i);
    entry[1] = complex ? value_load(type, table->data, 2 * i + 1) : sine ? value_load(type, sine->data, i) : 0;
}

/* The bits of a number from its first 1 to its last. */
static int significant_bits(double x)
{
    int exponent;
    const uint64_t digits = (uint64_t)ldexp(fabs(frexp(x, &exponent)), 53);
    return digits ? 53 - __builtin_ctzll(digits) : 0;
}

/* cos^2 + sin^2 is 1, or the square of an attention factor, in every entry. The entries show how they were rounded: a file
 * may hold bf16 numbers as F32. */
static int check_factor(const apply_call *call, const safetensor *table, int64_t entries)
{
    double least = INFINITY, most = 0, entry[2];
    int bits = 8;
    for (int64_t i = 0; i < entries; i++) {
        load_entry(call, i, entry);
        const double square = entry[0] * entry[0] + entry[1] * entry[1];
        least = square < least ? square : least;
        most = square > most ? square : most;
        for (int part = 0; part < 2 && bits < 24; part++)
            bits = significant_bits(entry[part]) > bits ? significant_bits(entry[part]) : bits;
    }
    /* Two roundings of each are up to 8 units, and the sine and cosine of a GPU a few more in F32. */
    const double rounding = 12 * ldexp(1, -(bits < 24 ? bits : 24)) + 0x1p-18;
    if (least > 0 && isfinite(most) && most - least <= rounding * most)
        return 0;
    return apply_refuse(
        call, table,
        "is no table of cosines and sines: cos^2 + sin^2 is %g in one place and %g in another, and must be 1 "
        "everywhere, or the square of an attention factor",
        least, most);
}

/* At position 0 nothing turns. `row` is one of batch entries and axes, too; `number` that among the positions or tokens. */
static int check_origin(const apply_call *call, const safetensor *table, int64_t row, int64_t number)
{
    const apply_table *t = &call->table;
    const int is_angle = table == call->group->tensors[APPLY_FREQS];
    double entry[2];
    int turns = 0;
    for (int32_t column = 0; column < t->columns; column++) {
        load_entry(call, row * t->columns + column, entry);
        turns |= is_angle ? entry[0] != 0 : entry[1] != 0 || entry[0] <= 0;
    }
    if (!turns)
        return 0;
    return apply_refuse(
        call, table, "must have %s in row %" PRId64 ", that of position 0%s%s",
        is_angle ? "angles of 0" : "sin 0 and a positive cos", number,
        is_angle ? ": rows may begin at another one" : ": cos and sin may be exchanged, or rows begin at another one",
        !t->by_token && t->rows == call->args.tokens ? ", or be those of tokens, as --table-rows tokens says" : "");
}

/* Refuses what no model has, though it has the shape of a table. Of a table by tokens it is known which of them are at
 * position 0 if something in the file says the positions. */
static int check_table(const apply_call *call, const safetensor *table, int64_t entries)
{
    const apply_table *t = &call->table;
    const trope_args *args = &call->args;
    const int is_known = args->position_ids || args->start_positions || args->cu_seqlens || args->cp_size > 1;
    if (table != call->group->tensors[APPLY_FREQS] && check_factor(call, table, entries))
        return RESULT_REFUSED;
    for (int64_t axis = 0; axis < t->axes; axis++) {
        for (int64_t b = 0; b < t->batch && !t->by_token; b++)
            if (check_origin(call, table, axis * t->stride[0] + b * t->stride[1], 0))
                return RESULT_REFUSED;
        for (int64_t i = 0; i < args->batch * args->tokens && t->by_token && is_known; i++) {
            const int64_t b = i / args->tokens, token = i % args->tokens;
            if (call->is_origin[i] &&
                check_origin(call, table, axis * t->stride[0] + b * t->stride[1] + token * t->stride[2], token))
                return RESULT_REFUSED;
        }
    }
    return 0;
}

/* The form of the columns where the width of the rotation is known to be as many as there are columns. */
static int form_of_elements(const apply_call *call, const safetensor *table, const column_signs *signs, int32_t *form)
{
    const int32_t said = call->options->columns;
    const int by_halves = signs->halves && !signs->neighbours, by_neighbours = signs->neighbours && !signs->halves;
    if ((said == TROPE_COLUMNS_HALF && by_neighbours) || (said == TROPE_COLUMNS_INTERLEAVED && by_halves))
        return apply_refuse(call, table, "has equal %s, which contradicts --columns %s",
                            by_halves ? "halves" : "neighbours", choice_name(column_choices, said));
    *form = said ? said : by_halves || signs->all ? TROPE_COLUMNS_HALF : by_neighbours ? TROPE_COLUMNS_INTERLEAVED : 0;
    if (*form)
        return 0;
    return apply_refuse(call, table,
                        "has a column for each of the %d elements that rotate, and %s: --columns half or interleaved says "
                        "which are a pair's",
                        call->table.columns,
                        signs->halves ? "both halves and neighbours are equal" : "the two of no pair are equal");
}

/* The elements of a head, 0 without a tensor. */
static int32_t head_of(const apply_call *call, const safetensor *tensor)
{
    trope_operand operand;
    return tensor && !apply_fill_operand(call, tensor, &operand) ? operand.head_dim : 0;
}

/* Of the tensors that rotate. */
static int32_t widest_head(const apply_call *call)
{
    int32_t widest = 0;
    for (int role = 0; role < APPLY_V; role++) {
        const int32_t head = head_of(call, call->group->tensors[role]);
        widest = head > widest ? head : widest;
    }
    return widest;
}

static int32_t narrowest_head(const apply_call *call)
{
    int32_t narrowest = widest_head(call);
    for (int role = 0; role < APPLY_V; role++) {
        const int32_t head = head_of(call, call->group->tensors[role]);
        narrowest = head && head < narrowest ? head : narrowest;
    }
    return narrowest;
}

/* What --rotary-dim or --partial-rotary-factor says, -1 if none of them is given. Returns nonzero after a complaint. */
static int said_width(const apply_call *call, int32_t *width)
{
    const rotation_options *rotation = &call->options->rotation;
    const int32_t narrowest = narrowest_head(call), widest = widest_head(call);
    *width = rotary_dim_in(rotation, widest);
    if (*width == rotary_dim_in(rotation, narrowest))
        return 0;
    return complain("--partial-rotary-factor: heads differ, of %d and of %d elements: --rotary-dim says what rotates",
                    narrowest, widest);
}

/* The width of the rotation by the columns of a table, where no option says it: as many where the two of a pair are
 * equal, twice as many where they are not, as they are in ordinary RoPE. */
static int width_of_columns(const apply_call *call, const safetensor *table, const column_signs *signs, int32_t *width)
{
    const int32_t columns = call->table.columns, said = call->options->columns, head = narrowest_head(call);
    if (said) {
        *width = said == TROPE_COLUMNS_PAIR ? 2 * columns : columns;
        return 0;
    }
    if (signs->all)
        return apply_refuse(
            call, table,
            "has columns that are all equal, so that they may be one a pair, or one an element: --rotary-dim "
            "says how many elements rotate");
    *width = signs->halves || signs->neighbours ? columns : 2 * columns;
    if (*width <= head || columns > head)
        return 0;
    return apply_refuse(call, table,
                        "has too many columns for one a pair in heads of %d, and no two equal ones for a pair: --columns "
                        "half or interleaved says that the angles of a pair differ",
                        head);
}

static int read_columns(apply_call *call, const safetensor *table, const column_signs *signs)
{
    const int32_t columns = call->table.columns, said = call->options->columns;
    int32_t width;
    if (said_width(call, &width))
        return RESULT_REFUSED;
    if (width < 0 && width_of_columns(call, table, signs, &width))
        return RESULT_REFUSED;
    call->rotary_dim = width;
    if (!width)
        return 0;
    if (columns != width && 2 * columns != width)
        return apply_refuse(call, table, "must have a column for each of the %d elements that rotate, or half as many",
                            width);
    if (said && (said == TROPE_COLUMNS_PAIR) != (columns != width))
        return apply_refuse(call, table, "has %d columns for --rotary-dim %d, which contradicts --columns %s", columns,
                            width, choice_name(column_choices, said));
    if (columns == width)
        return form_of_elements(call, table, signs, &call->table.column_form);
    if (!said && !signs->all && (signs->halves || signs->neighbours) && call->args.parts == 1)
        return apply_refuse(call, table,
                            "has equal %s, as tables with one column an element have, for --rotary-dim %d; --columns pair "
                            "says that this is meant",
                            signs->halves ? "halves" : "neighbours", columns);
    call->table.column_form = TROPE_COLUMNS_PAIR;
    return 0;
}

/* Tables */

static int check_table_type(const apply_call *call, const safetensor *table)
{
    const int double_goes = table->type == TROPE_F64 && call->args.dtype == TROPE_F64;
    if (table->type == VALUE_C64 ? is_complex(call, table)
                                 : value_is_real(table->type) && (table->type != TROPE_F64 || double_goes))
        return 0;
    return apply_refuse(call, table, "must have dtype F32, F16 or BF16, or F64 with F64 operands%s",
                        is_complex(call, table) ? ", or C64" : "");
}

static void give_table(apply_call *call, const safetensor *table)
{
    trope_args *args = &call->args;
    const apply_table *t = &call->table;
    const int complex = is_complex(call, table);
    const int64_t row = (complex ? 2 : 1) * (int64_t)t->columns;
    args->angle_dtype = table->type == VALUE_C64 ? TROPE_F32 : table->type;
    args->angle_columns = t->column_form;
    args->angle_rows = t->rows;
    args->angle_layout = TROPE_TABLE_STRIDED;
    for (int i = 0; i < 3; i++)
        args->angle_stride[i] = t->stride[i] * row;
    args->angle_stride[3] = complex ? 2 : 1;
    args->out_of_range =
        call->options->sequence.out_of_range < 0 ? TROPE_RANGE_POISON : call->options->sequence.out_of_range;
    if (table == call->group->tensors[APPLY_FREQS]) {
        args->freqs = table->data;
    } else {
        args->cos = table->data;
        args->sin =
            complex ? (const char *)table->data + value_size(args->angle_dtype) : call->group->tensors[APPLY_SIN]->data;
    }
}

/* Ids that are the index of each token, in place of the positions. */
static int give_token_ids(apply_call *call)
{
    trope_args *args = &call->args;
    call->token_ids = malloc((size_t)args->tokens * sizeof *call->token_ids);
    if (!call->token_ids)
        return complain("out of memory for %" PRId64 " token ids", args->tokens);
    for (int64_t t = 0; t < args->tokens; t++)
        call->token_ids[t] = t;
    args->start_positions = NULL;
    args->stream_positions = 0;
    args->position_ids = call->token_ids;
    args->position_dtype = TROPE_I64;
    args->ids_layout = TROPE_IDS_TOKENS;
    args->position_axes = 1;
    memset(args->ids_stride, 0, sizeof args->ids_stride);
    return 0;
}

static int read_table(apply_call *call, const safetensor *table)
{
    const safetensor *sine = table == call->group->tensors[APPLY_COS] ? call->group->tensors[APPLY_SIN] : NULL;
    const int complex = is_complex(call, table), dims = leading_dims(call, table);
    if (check_table_type(call, table))
        return RESULT_REFUSED;
    if (sine && (sine->type != table->type || sine->rank != table->rank ||
                 memcmp(sine->shape, table->shape, (size_t)sine->rank * sizeof *sine->shape)))
        return apply_refuse(call, sine, "must have the dtype and shape of '%.64s'", table->name);
    if (complex && table->type != VALUE_C64 && (table->rank < 2 || table->shape[table->rank - 1] != 2))
        return apply_refuse(call, table, "must be complex, or end with a dim of 2, the real and the imaginary parts");
    if (read_rows(call, table))
        return RESULT_REFUSED;
    const int64_t columns = table->shape[dims];
    if (columns < 1 || columns > TROPE_MAX_ROTARY_DIM)
        return apply_refuse(call, table, "must have from 1 to %d columns", TROPE_MAX_ROTARY_DIM);
    if (!table->elements)
        return apply_refuse(call, table, "is empty, and the tensors beside it are not");
    call->table.columns = (int32_t)columns;
    if (check_finite(call, table) || (sine && check_finite(call, sine)) ||
        check_table(call, table, (int64_t)table->elements / (complex && table->type != VALUE_C64 ? 2 : 1)))
        return RESULT_REFUSED;
    column_signs signs = look_at_columns(table, complex, (int32_t)columns, call->args.parts);
    if (sine) {
        const column_signs more = look_at_columns(sine, 0, (int32_t)columns, call->args.parts);
        signs = (column_signs){signs.halves && more.halves, signs.neighbours && more.neighbours, signs.all && more.all};
    }
    return read_columns(call, table, &signs);
}

/* Without a table */

static int read_inv_freq(apply_call *call, const safetensor *inv_freq)
{
    int32_t said;
    if (inv_freq->type != TROPE_F32 && inv_freq->type != TROPE_F64)
        return apply_refuse(call, inv_freq, "must have dtype F32 or F64");
    if (inv_freq->rank != 1)
        return apply_refuse(call, inv_freq, "must be [rotary_dim / 2]");
    if (inv_freq->elements < 1 || inv_freq->elements > TROPE_MAX_ROTARY_DIM / 2)
        return apply_refuse(call, inv_freq, "must have from 1 to %d elements", TROPE_MAX_ROTARY_DIM / 2);
    if (check_finite(call, inv_freq) || said_width(call, &said))
        return RESULT_REFUSED;
    call->rotary_dim = said >= 0 ? said : 2 * (int32_t)inv_freq->elements;
    if (call->rotary_dim && (uint64_t)call->rotary_dim != 2 * inv_freq->elements)
        return apply_refuse(call, inv_freq, "must have half of --rotary-dim (%d) elements", call->rotary_dim / 2);
    for (uint64_t i = 0; i < inv_freq->elements; i++)
        call->inv_freq[i] = value_load(inv_freq->type, inv_freq->data, (int64_t)i);
    for (uint64_t i = 0; i < inv_freq->elements; i++) {
        const int ends = i > 0 && (i + 1 == inv_freq->elements || call->inv_freq[i + 1] == 0);
        if (call->inv_freq[i] < 0 || (call->inv_freq[i] == 0 && !ends))
            return apply_refuse(call, inv_freq,
                                "must be positive, and 0 only at the end, behind positive ones (the rule proportional): "
                                "element %" PRIu64 " is %g",
                                i, call->inv_freq[i]);
    }
    call->args.inv_freq = call->inv_freq;
    return 0;
}

/* All of the head from --rotary-offset on, unless less is said. Heads that differ have no width in common. */
static int width_by_rule(apply_call *call)
{
    const int32_t offset = call->options->rotation.rotary_offset;
    const int32_t narrowest = narrowest_head(call), widest = widest_head(call);
    if (said_width(call, &call->rotary_dim))
        return RESULT_REFUSED;
    if (call->rotary_dim >= 0)
        return 0;
    if (offset < 0 && offset != ROTARY_OFFSET_NONE)
        call->rotary_dim = -offset;
    else if (narrowest != widest)
        return complain("--rotary-dim: is missing: heads differ, of %d and of %d elements", narrowest, widest);
    else
        call->rotary_dim = widest - (offset == ROTARY_OFFSET_NONE ? 0 : offset);
    return 0;
}

/* What rotates has to lie inside of each head, and to be said where it is not all of it. */
static int check_window(const apply_call *call, const safetensor *tensor)
{
    trope_operand o;
    const int32_t parts = call->args.parts, width = call->rotary_dim;
    if (apply_fill_operand(call, tensor, &o))
        return RESULT_REFUSED;
    if (o.rotary_offset < 0 || o.rotary_offset > o.head_dim || width > o.head_dim - o.rotary_offset)
        return apply_refuse(call, tensor, "must have heads of at least %d elements to rotate, from --rotary-offset %d on",
                            width, o.rotary_offset);
    if (width > TROPE_MAX_ROTARY_DIM || width % (2 * parts))
        return apply_refuse(call, tensor,
                            "cannot rotate %d elements: --rotary-dim must be divisible by twice --windows (%d), at most %d",
                            width, 2 * parts, TROPE_MAX_ROTARY_DIM);
    if (width < o.head_dim && call->options->rotation.rotary_offset == ROTARY_OFFSET_NONE)
        return apply_refuse(call, tensor,
                            "has heads of %d, of which %d rotate: --rotary-offset 0 says that these are the first, "
                            "--rotary-offset -%d the last",
                            o.head_dim, width, width);
    return 0;
}

static int has_rotating(const apply_call *call)
{
    const safetensor *const *t = call->group->tensors;
    return t[APPLY_Q] || t[APPLY_K] || t[APPLY_X];
}

static int refuse_without_table(const apply_call *call)
{
    const apply_options *options = call->options;
    const char *option = options->columns                      ? "--columns"
                         : options->table_layout               ? "--table-layout"
                         : options->table_rows                 ? "--table-rows"
                         : options->sequence.out_of_range >= 0 ? "--out-of-range"
                                                               : NULL;
    return option ? complain("%s: has no effect without a table of angles", option) : 0;
}

/* Everything but the rotation by rule, whose frequencies need the width. */
static int read_source(apply_call *call)
{
    const safetensor *table = table_of(call);
    if (!table && refuse_without_table(call))
        return RESULT_REFUSED;
    if (!has_rotating(call))
        return 0;
    if (table)
        return read_table(call, table);
    return call->angles ? read_inv_freq(call, call->angles) : width_by_rule(call);
}

int apply_angles(apply_call *call)
{
    if (find_source(call) || read_source(call))
        return RESULT_REFUSED;
    for (int role = 0; role < APPLY_V; role++)
        if (call->rotary_dim && call->group->tensors[role] && check_window(call, call->group->tensors[role]))
            return RESULT_REFUSED;
    if (!call->rotary_dim)
        return 0;
    const safetensor *table = table_of(call);
    if (table) {
        give_table(call, table);
        return call->table.by_token ? give_token_ids(call) : 0;
    }
    if (call->angles)
        return 0;
    if (call->options->rotation.rope_theta == 0)
        return complain_about(call->file->path, NULL,
                              "holds no angles (freqs, freqs_cis, cos with sin, inv_freq): --rope-theta is missing, or "
                              "--config");
    call->args.inv_freq = call->inv_freq;
    return frequencies_by_rule(&call->options->rotation, call->rotary_dim, call->last_position, call->inv_freq,
                               &call->args.mscale);
}
