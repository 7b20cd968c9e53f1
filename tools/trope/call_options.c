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
const choice isa_choices[] = {{"auto", TROPE_ISA_AUTO},
                              {"portable", TROPE_ISA_PORTABLE},
                              {"avx2", TROPE_ISA_AVX2},
                              {"avx512", TROPE_ISA_AVX512},
                              {NULL, 0}};
static const choice rounding_choices[] = {{"once", TROPE_ROUND_ONCE}, {"native", TROPE_ROUND_NATIVE}, {NULL, 0}};
static const choice axis_map_choices[] = {
    {"windows", 0}, {"sections", TROPE_AXES_SECTIONS}, {"interleaved", TROPE_AXES_INTERLEAVED}, {NULL, 0}};
static const choice padding_choices[] = {
    {"zero", TROPE_PADDING_ZERO}, {"copy", TROPE_PADDING_COPY}, {"rotate", TROPE_PADDING_ROTATE}, {NULL, 0}};
static const choice range_choices[] = {{"poison", TROPE_RANGE_POISON}, {"clamp", TROPE_RANGE_CLAMP}, {NULL, 0}};
static const choice cp_choices[] = {{"none", 0},
                                    {"contiguous", TROPE_CP_CONTIGUOUS},
                                    {"zigzag", TROPE_CP_ZIGZAG},
                                    {"striped", TROPE_CP_STRIPED},
                                    {"flat", TROPE_CP_FLAT},
                                    {NULL, 0}};

#define IN(type, field) .offset = offsetof(type, field)

const option_spec machine_specs[] = {
    {"device", 0, OPTION_CHOICE, IN(machine_options, device), .choices = device_choices,
     .help = "where to run, default CUDA where there is a device"},
    {"threads", 0, OPTION_INT32, IN(machine_options, threads), .high = INT32_MAX, .help = "CPU threads, 0 = all"},
    {"isa", 0, OPTION_CHOICE, IN(machine_options, isa), .choices = isa_choices, .help = "CPU instruction set"},
    {.name = NULL}};

const option_spec rotation_specs[] = {
    {"layout", 0, OPTION_CHOICE, IN(rotation_options, layout), .choices = layout_choices,
     .help = "dimensions, outermost first (default sbhd, thd for 3)"},
    {"pairing", 0, OPTION_CHOICE, IN(rotation_options, pairing), .choices = pairing_choices,
     .help = "pairs of the forward call's input"},
    {"pairing-out", 0, OPTION_CHOICE, IN(rotation_options, pairing_out), .choices = pairing_choices,
     .help = "pairs of its output, default as the input's"},
    {"rotary-dim", 0, OPTION_INT32, IN(rotation_options, rotary_dim), .high = INT32_MAX,
     .help = "elements of a head to rotate"},
    {"rotary-offset", 0, OPTION_INT32, IN(rotation_options, rotary_offset), .high = INT32_MAX, .help = "first of them"},
    {"windows", 0, OPTION_INT32, IN(rotation_options, parts), .low = 1, .high = CALL_MAX_AXES,
     .help = "equal parts of the rotated elements, each paired within itself"},
    {"inverse", 0, OPTION_FLAG, IN(rotation_options, inverse), .help = "turn the other way"},
    {"rounding", 0, OPTION_CHOICE, IN(rotation_options, rounding), .choices = rounding_choices, .help = "of f16 and bf16"},
    {"mscale", 0, OPTION_REAL, IN(rotation_options, mscale), .help = "factor of cos and sin, default the rule's, or 1"},
    {"base", 0, OPTION_REAL, IN(rotation_options, base), .help = "base of the frequencies, default 10000"},
    {"scaling", 0, OPTION_TEXT, IN(rotation_options, scaling), .help = "RULE:key=value,... such as llama3:factor=8,..."},
    {.name = NULL}};

const option_spec sequence_specs[] = {
    {"axis-map", 0, OPTION_CHOICE, IN(sequence_options, axis_map), .choices = axis_map_choices,
     .help = "which position axis drives each pair"},
    {"axis-sections", 0, OPTION_TEXT, IN(sequence_options, axis_sections), .help = "pairs of each axis, A,B,C"},
    {"padding", 0, OPTION_CHOICE, IN(sequence_options, padding), .choices = padding_choices,
     .help = "what tokens of no sequence become"},
    {"packed-positions", 0, OPTION_FLAG, IN(sequence_options, stream_positions), .help = "positions count from cu_seqlens"},
    {"out-of-range", 0, OPTION_CHOICE, IN(sequence_options, out_of_range), .choices = range_choices,
     .help = "positions outside the angle rows (default: refused)"},
    {"cp-size", 0, OPTION_INT32, IN(sequence_options, cp_size), .low = 1, .high = INT32_MAX,
     .help = "context parallel ranks"},
    {"cp-rank", 0, OPTION_INT32, IN(sequence_options, cp_rank), .high = INT32_MAX, .help = "the rank that the file is of"},
    {"cp-layout", 0, OPTION_CHOICE, IN(sequence_options, cp_layout), .choices = cp_choices,
     .help = "how ranks share a sequence"},
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

void sequence_to_args(const sequence_options *options, trope_args *args)
{
    args->stream_positions = options->stream_positions;
    args->cp_size = options->cp_size;
    args->cp_rank = options->cp_rank;
    args->cp_layout = options->cp_layout;
}

/* The pairs of each axis, as many as --axis-sections says. */
static int parse_sections(const char *text, int32_t *sections)
{
    int64_t given[CALL_MAX_AXES];
    if (parse_integers("axis-sections", text, 0, CALL_MAX_AXES, given))
        return RESULT_REFUSED;
    for (int i = 0; i < CALL_MAX_AXES; i++) {
        if (given[i] > TROPE_MAX_ROTARY_DIM)
            return complain("--axis-sections: a section must be at most %d", TROPE_MAX_ROTARY_DIM);
        sections[i] = (int32_t)given[i];
    }
    return 0;
}

/* Axis i drives the pairs of part i. */
static int axes_of_parts(int32_t pairs, uint8_t *pair_axis, const trope_args *args)
{
    int32_t sections[TROPE_MAX_AXES] = {0};
    for (int32_t i = 0; i < args->parts; i++)
        sections[i] = pairs / args->parts;
    return trope_fill_pair_axis(pair_axis, pairs, TROPE_AXES_SECTIONS, sections) ? complain("%s", trope_last_error()) : 0;
}

static int axes_of_sections(const sequence_options *options, int32_t pairs, uint8_t *pair_axis)
{
    int32_t sections[TROPE_MAX_AXES] = {0};
    if (options->axis_sections && parse_sections(options->axis_sections, sections))
        return RESULT_REFUSED;
    if (trope_fill_pair_axis(pair_axis, pairs, options->axis_map, sections))
        return complain("--axis-sections: %s", trope_last_error());
    return 0;
}

int axes_to_args(const sequence_options *options, int32_t pairs, uint8_t *pair_axis, trope_args *args)
{
    if (options->axis_map && args->parts > 1)
        return complain("--axis-map: must be left out with --windows %d, which drive the axes themselves", args->parts);
    if (!options->axis_map && options->axis_sections)
        return complain("--axis-sections: needs --axis-map sections or interleaved");
    if (!options->axis_map && args->position_axes <= 1)
        return 0;
    args->pair_axis = pair_axis;
    return options->axis_map ? axes_of_sections(options, pairs, pair_axis) : axes_of_parts(pairs, pair_axis, args);
}

int32_t columns_of_table(const trope_args *args, int per_element)
{
    const int32_t order = args->pairing_out ? args->pairing_out : args->pairing;
    if (!per_element)
        return TROPE_COLUMNS_PAIR;
    return order == TROPE_PAIRING_INTERLEAVED ? TROPE_COLUMNS_INTERLEAVED : TROPE_COLUMNS_HALF;
}

int frequencies_by_rule(const rotation_options *options, int32_t rotary_dim, double *inv_freq, double *mscale)
{
    const int32_t parts = options->parts;
    if (rotary_dim < 2 * parts || rotary_dim % (2 * parts) || rotary_dim > TROPE_MAX_ROTARY_DIM)
        return complain("rotary_dim (%d) must be divisible by 2 * parts (%d) and in [2, %d]", rotary_dim, 2 * parts,
                        TROPE_MAX_ROTARY_DIM);
    scaling_rule rule;
    if (scaling_parse(options->scaling, rotary_dim / parts, &rule))
        return RESULT_REFUSED;
    rule.args.base = options->base != 0 ? options->base : 10000;
    double attention_factor;
    if (trope_frequencies(&rule.args, inv_freq, &attention_factor))
        return complain("--base, --scaling: %s", trope_last_error());
    const int32_t pairs = rotary_dim / parts / 2;
    for (int32_t part = 1; part < parts; part++)
        memcpy(inv_freq + part * pairs, inv_freq, (size_t)pairs * sizeof *inv_freq);
    *mscale = options->mscale != 0 ? options->mscale : attention_factor;
    return 0;
}
