#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "call_options.h"
#include "command.h"
#include "scaling.h"

const choice layout_choices[] = {
    {"sbhd", TROPE_SBHD}, {"bshd", TROPE_BSHD}, {"bhsd", TROPE_BHSD}, {"thd", TROPE_THD}, {NULL, 0}};
const choice pairing_choices[] = {{"half", TROPE_PAIRING_HALF}, {"interleaved", TROPE_PAIRING_INTERLEAVED}, {NULL, 0}};
const choice dtype_choices[] = {
    {"f32", TROPE_F32}, {"f16", TROPE_F16}, {"bf16", TROPE_BF16}, {"f64", TROPE_F64}, {NULL, 0}};
const choice device_choices[] = {
    {"auto", TROPE_DEVICE_AUTO}, {"cpu", TROPE_DEVICE_CPU}, {"cuda", TROPE_DEVICE_CUDA}, {NULL, 0}};
const choice isa_choices[] = {{"auto", TROPE_ISA_AUTO},     {"portable", TROPE_ISA_PORTABLE}, {"avx2", TROPE_ISA_AVX2},
                              {"avx512", TROPE_ISA_AVX512}, {"neon", TROPE_ISA_NEON},         {NULL, 0}};
static const choice rounding_choices[] = {
    {"once", TROPE_ROUND_ONCE}, {"native", TROPE_ROUND_NATIVE}, {"native-f32", TROPE_ROUND_NATIVE_F32}, {NULL, 0}};
static const choice padding_choices[] = {
    {"zero", TROPE_PADDING_ZERO}, {"copy", TROPE_PADDING_COPY}, {"rotate", TROPE_PADDING_ROTATE}, {NULL, 0}};
static const choice cp_choices[] = {{"contiguous", TROPE_CP_CONTIGUOUS},
                                    {"zigzag", TROPE_CP_ZIGZAG},
                                    {"striped", TROPE_CP_STRIPED},
                                    {"flat", TROPE_CP_FLAT},
                                    {NULL, 0}};

#define IN(type, field) .offset = offsetof(type, field)

const option_spec machine_specs[] = {
    {"device", 0, OPTION_CHOICE, IN(machine_options, device), .choices = device_choices,
     .help = "device of the calls, default CUDA if there is one"},
    {"threads", 0, OPTION_INT32, IN(machine_options, threads), .high = 4096, .help = "CPU threads, 0 = all"},
    {"isa", 0, OPTION_CHOICE, IN(machine_options, isa), .choices = isa_choices, .help = "CPU instruction set"},
    {.name = NULL}};

const option_spec rotation_specs[] = {
    {"layout", 0, OPTION_CHOICE, IN(rotation_options, layout), .choices = layout_choices,
     .help = "order of the dimensions, outermost first"},
    {"pairing", 0, OPTION_CHOICE, IN(rotation_options, pairing), .choices = pairing_choices,
     .help = "pairing of the forward call's input"},
    {"pairing-out", 0, OPTION_CHOICE, IN(rotation_options, pairing_out), .choices = pairing_choices,
     .help = "pairing of its output, default that of the input"},
    {"rotary-dim", 0, OPTION_INT32, IN(rotation_options, rotary_dim), .high = INT32_MAX,
     .help = "number of elements of a head that rotate"},
    {"partial-rotary-factor", 0, OPTION_NONZERO, IN(rotation_options, partial_rotary_factor),
     .help = "the same, as a fraction of head_dim"},
    {"rotary-offset", 0, OPTION_INT32, IN(rotation_options, rotary_offset), .low = INT32_MIN + 1, .high = INT32_MAX,
     .help = "first element that rotates; negative values count from the end of the head"},
    {"windows", 0, OPTION_INT32, IN(rotation_options, parts), .low = 1, .high = CALL_MAX_PARTS,
     .help = "number of equal parts of the rotated elements; each pair lies in one part"},
    {"inverse", 0, OPTION_FLAG, IN(rotation_options, inverse), .help = "rotate by the negative angles"},
    {"rounding", 0, OPTION_CHOICE, IN(rotation_options, rounding), .choices = rounding_choices, .help = "default once"},
    {"mscale", 0, OPTION_NONZERO, IN(rotation_options, mscale),
     .help = "factor of cos and sin, default: that of the --scaling rule, or 1"},
    {"rope-theta", 0, OPTION_NONZERO, IN(rotation_options, rope_theta), .help = "base of the frequencies"},
    {"seq-len", 0, OPTION_INT64, IN(rotation_options, seq_len), .low = 1, .high = INT64_MAX,
     .help = "current sequence length, for --scaling dynamic and longrope"},
    {"scaling", 0, OPTION_TEXT, IN(rotation_options, scaling),
     .help = "RULE:key=value,... with the keys of a config.json: llama3:factor=8,..."},
    {.name = NULL}};

const option_spec sequence_specs[] = {{"padding", 0, OPTION_CHOICE, IN(sequence_options, padding),
                                       .choices = padding_choices,
                                       .help = "what is written for tokens that are in no sequence"},
                                      {"packed-positions", 0, OPTION_FLAG, IN(sequence_options, stream_positions),
                                       .help = "positions count through the whole packed stream"},
                                      {"cp-size", 0, OPTION_INT32, IN(sequence_options, cp_size), .low = 1,
                                       .high = INT32_MAX, .help = "number of context parallel ranks"},
                                      {"cp-rank", 0, OPTION_INT32, IN(sequence_options, cp_rank), .high = INT32_MAX,
                                       .help = "context parallel rank that has these tensors"},
                                      {"cp-layout", 0, OPTION_CHOICE, IN(sequence_options, cp_layout),
                                       .choices = cp_choices, .help = "how the tokens of a sequence are split over ranks"},
                                      {.name = NULL}};

void rotation_to_args(const rotation_options *options, trope_args *args)
{
    args->pairing = options->pairing;
    args->pairing_out = options->pairing_out;
    args->parts = options->parts;
    args->inverse = options->inverse;
    args->rounding = options->rounding;
    args->mscale = options->mscale;
}

int sequence_to_args(const sequence_options *options, trope_args *args)
{
    const int given = (options->cp_size > 0) + (options->cp_rank >= 0) + (options->cp_layout > 0);
    if (given && given < 3)
        return complain("%s: is missing: --cp-size, --cp-rank and --cp-layout go together", !options->cp_size ? "--cp-size"
                                                                                            : options->cp_rank < 0
                                                                                                ? "--cp-rank"
                                                                                                : "--cp-layout");
    args->stream_positions = options->stream_positions;
    args->cp_size = options->cp_size;
    args->cp_rank = given ? options->cp_rank : 0;
    args->cp_layout = options->cp_layout;
    return 0;
}

int64_t cp_ranks(const sequence_options *options)
{
    return options->cp_size ? options->cp_size : 1;
}

int check_rotation(const rotation_options *options)
{
    const double partial = options->partial_rotary_factor;
    if (partial != 0 && options->rotary_dim >= 0)
        return complain("--partial-rotary-factor: contradicts --rotary-dim; give one of the two");
    return partial < 0 || partial > 1 ? complain("--partial-rotary-factor: %g must be over 0 and at most 1", partial) : 0;
}

int32_t rotary_dim_in(const rotation_options *options, int32_t head_dim)
{
    return options->partial_rotary_factor != 0 ? (int32_t)(head_dim * options->partial_rotary_factor) : options->rotary_dim;
}

int32_t rotary_offset_in(const rotation_options *options, int32_t head_dim)
{
    if (options->rotary_offset == ROTARY_OFFSET_NONE)
        return 0;
    return options->rotary_offset < 0 ? head_dim + options->rotary_offset : options->rotary_offset;
}

int32_t columns_of_table(const trope_args *args, int per_element)
{
    const int32_t order = args->pairing_out ? args->pairing_out : args->pairing;
    if (!per_element)
        return TROPE_COLUMNS_PAIR;
    return order == TROPE_PAIRING_INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF;
}

/* Sets the length. DYNAMIC and LONGROPE use other frequencies beyond the original length. */
static int set_length(const rotation_options *options, int64_t last_position, trope_frequency_args *rule)
{
    const int64_t length = options->seq_len;
    const int depends = rule->rule == TROPE_RULE_DYNAMIC || rule->rule == TROPE_RULE_LONGROPE;
    if (length && !depends)
        return complain("--seq-len: has no effect; only the rules dynamic and longrope depend on the length");
    if (depends && !length && (double)last_position >= rule->original_max_position)
        return complain("--seq-len: is missing: the positions go up to %" PRId64
                        ", and the rule depends on the length beyond %.0f",
                        last_position, rule->original_max_position);
    if (length && last_position >= length)
        return complain("--seq-len: %" PRId64 " contradicts the positions, which go up to %" PRId64, length, last_position);
    rule->seq_len = (double)length;
    return 0;
}

int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, int64_t last_position, double *inv_freq,
                        double *mscale)
{
    const int32_t parts = options->parts;
    if (rotary_dim < 2 * parts || rotary_dim % (2 * parts) || rotary_dim > TROPE_MAX_ROTARY_DIM)
        return complain("--rotary-dim: %d must be divisible by twice --windows (%d) and in [2, %d]", rotary_dim, 2 * parts,
                        TROPE_MAX_ROTARY_DIM);
    scaling_rule rule;
    if (!(options->rope_theta > 1))
        return options->rope_theta != 0 ? complain("--rope-theta: %g must be over 1", options->rope_theta)
                                        : complain("--rope-theta: is missing");
    if (scaling_parse(options->scaling, rotary_dim / parts, &rule) || set_length(options, last_position, &rule.args))
        return RESULT_REFUSED;
    rule.args.base = options->rope_theta;
    double attention_factor;
    if (trope_frequencies(&rule.args, inv_freq, &attention_factor))
        return complain_of_library(trope_last_error());
    const int32_t pairs = rotary_dim / parts / 2;
    for (int32_t part = 1; part < parts; part++)
        memcpy(inv_freq + part * pairs, inv_freq, (size_t)pairs * sizeof *inv_freq);
    *mscale = options->mscale != 0 ? options->mscale : attention_factor;
    return 0;
}

/* The option for each field of a call. */
static const char *const option_words[][2] = {
    {"layout", "--layout"},
    {"src_layout", "--layout"},
    {"pairing", "--pairing"},
    {"pairing_out", "--pairing-out"},
    {"rotary_dim", "--rotary-dim"},
    {"rotary_offset", "--rotary-offset"},
    {"parts", "--windows"},
    {"inverse", "--inverse"},
    {"rounding", "--rounding"},
    {"mscale", "--mscale"},
    {"base", "--rope-theta"},
    {"padding", "--padding"},
    {"stream_positions", "--packed-positions"},
    {"cp_size", "--cp-size"},
    {"cp_rank", "--cp-rank"},
    {"cp_layout", "--cp-layout"},
    {"threads", "--threads"},
    {"isa", "--isa"},
    {"device", "--device"},
    {"angle_rows", "rows of the table"},
    {"factor", "--scaling's factor"},
    {"original_max_position", "--scaling's original_max_position_embeddings"},
    {"seq_len", "--seq-len"},
    {"low_freq_factor", "--scaling's low_freq_factor"},
    {"high_freq_factor", "--scaling's high_freq_factor"},
    {"beta_fast", "--scaling's beta_fast"},
    {"beta_slow", "--scaling's beta_slow"},
    {"attention_factor", "--scaling's attention_factor"},
    {"mscale_all_dim", "--scaling's mscale_all_dim"},
    {"partial_rotary_factor", "--scaling's partial_rotary_factor"},
};

static const char *option_of(const char *word, size_t length)
{
    for (size_t i = 0; i < sizeof option_words / sizeof option_words[0]; i++)
        if (strlen(option_words[i][0]) == length && !strncmp(option_words[i][0], word, length))
            return option_words[i][1];
    return NULL;
}

/* Replaces fields by options. A word is a field if it is the first one, contains '_', or is followed by a value. Other
 * words are prose and stay. */
static void library_words(const char *message, char *text, size_t size)
{
    const char *c = strstr(message, ": ");
    size_t used = 0;
    c = c ? c + 2 : message; /* after the function's name */
    const char *start = c;
    text[0] = 0;
    while (*c && used + 1 < size) {
        size_t length = 0;
        while (isalnum((unsigned char)c[length]) || c[length] == '_')
            length++;
        const char *option = length ? option_of(c, length) : NULL;
        const int is_field = option && (c == start || memchr(c, '_', length) || !strncmp(c + length, " (", 2));
        length = length ? length : 1;
        used += (size_t)snprintf(text + used, size - used, "%.*s", is_field ? (int)strlen(option) : (int)length,
                                 is_field ? option : c);
        c += length;
    }
}

int complain_of_library(const char *message)
{
    char text[1024];
    library_words(message, text, sizeof text);
    return complain("%s", text);
}
