/* A config is nothing but options from a file: each key sets the option that has its meaning, by the handler of the
 * command line. What keys mean, and where they are looked for, is as in transformers 4 and 5, and as in
 * python/trope/frequencies.py. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "command.h"
#include "config.h"
#include "safetensors.h"

enum { LARGEST_CONFIG = 1 << 24, TEXT_SIZE = 65536 };

/* What no key says: how a model pairs elements, which part of a head rotates where that is not all of it, and the share of
 * it that rotates where partial_rotary_factor is missing. A name of a text model may end with _text. */
typedef struct family {
    const char *pairing, *pairing_out; /* pairing_out: NULL = as pairing */
    int is_last;                       /* whether the last elements of a head rotate, not the first */
    double partial_rotary_factor;
    const char *models;
} family;

static const family families[] = {
    {"half", NULL, 0, 1,
     " apertus arcee dbrx dots1 exaone4 falcon falcon_h1 gemma gemma2 gemma3 gemma3n gemma4 gpt_oss granite granitemoe"
     " granitemoehybrid hunyuan_v1_dense hunyuan_v1_moe lfm2 llama minimax_m2 ministral ministral3 mistral mixtral"
     " mllama_text_model modernbert olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe"
     " qwen3_vl qwen3_vl_moe seed_oss smollm3 starcoder2 "},
    {"half", NULL, 0, 0.25, " gpt_neox qwen3_5 qwen3_5_moe qwen3_next stablelm "},
    {"half", NULL, 0, 0.5, " bamba glm4_moe nemotron persimmon phi "},
    {"interleaved", NULL, 0, 1, " codegen cohere cohere2 ernie4_5 ernie4_5_moe gptj helium llama4 "},
    {"interleaved", NULL, 0, 0.5, " glm glm4 "},
    {"interleaved", NULL, 1, 1, " deepseek_v2 "},
    {"interleaved", "half", 1, 1, " deepseek_v3 deepseek_v32 glm4_moe_lite "},
};

/* Models whose full and sliding layers have two bases, in configs of transformers 4: their keys, and what the class has
 * where these are missing (0: they must be given). Of both only full layers are scaled, unless it says otherwise. */
typedef struct two_bases {
    const char *models;
    const char *full_key, *sliding_key;
    double full, sliding;
    int both_scaled;
} two_bases;

static const two_bases layered[] = {
    {" gemma3 gemma3n t5gemma2 t5gemma2_decoder ", "rope_theta", "rope_local_base_freq", 1000000, 10000, 0},
    {" modernbert modernbert-decoder ", "global_rope_theta", "local_rope_theta", 0, 0, 1},
    {" olmo3 ", "rope_theta", "rope_theta", 0, 0, 0},
};
enum { LAYERED_COUNT = sizeof layered / sizeof layered[0] };

/* Keys that change the frequencies, of all layers or of some, in a way that is not read here. */
static const char *const unreadable_keys[] = {"swa_rope_theta",  "compress_rope_theta", "partial_rotary_factors",
                                              "rope_ratio",      "layer_rope_theta",    "rope_scaling_layers",
                                              "per_layer_config"};

/* A key that says whether a model rotates, and the values with which it does. `models`: those that read it so, and do not
 * rotate without it; "" = all others. As in python/trope/_config_keys.py, with a space before and behind each name. */
typedef struct rotation_key {
    const char *key, *values, *models;
} rotation_key;

static const rotation_key rotation_keys[] = {
    {"alibi", " false ", ""},
    {"position_embedding_type", " rotary ", " esm "},
    {"position_embedding_type", " rope ", " granitemoehybrid "},
    {"position_embedding_type", " rope rotary ", ""},
    {"position_embeddings_type", " rotary ", ""},
    {"use_mem_rope", " true ", " zamba2 "},
    {"use_mem_rope", " true ", ""},
    {"use_rope", " true ", ""},
    {"use_rotary_embedding", " true ", ""},
};

/* Language models that never rotate, though some of their configs have a rope_theta; and models that rotate by the two axes
 * of an image, which no rule describes. */
static const char models_without[] =
    " albert bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small bloom camembert convbert"
    " cpmant ctrl data2vec-text deberta deberta-v2 distilbert electra ernie falcon_mamba flaubert fnet fsmt funnel gpt-sw3"
    " gpt2 gpt_bigcode gpt_neo ibert inkling2_loop inkling2 inkling jamba kimi_linear led longformer longt5 luke m2m_100"
    " mamba mamba2 marian mbart megatron-bert mobilebert moshi_depth mpnet mpt mra mt5 mvp nemotron_h nllb-moe"
    " nystromformer openai-gpt opt pegasus pegasus_x plbart prophetnet reformer rembert roberta roberta-prelayernorm"
    " roc_bert rwkv squeezebert switch_transformers t5 umt5 xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod yoso zamba"
    " dinov3_vit eomt_dinov3 llama4_vision_model pixtral sapiens2 ";

/* How the classes of models give the axes of mrope_section to pairs, whatever mrope_interleaved says. */
static const char mixed_models[] = " cohere_compass cosmos3_edge hy_v4_vl qwen3_5 qwen3_5_moe qwen3_omni_moe"
                                   " qwen3_omni_moe_thinker qwen3_omni_moe_talker qwen3_vl qwen3_vl_moe qwen4_exp ";
static const char section_models[] = " glm4v glm4v_moe glm_image glm_ocr paddleocr_vl qwen2_5_omni qwen2_5_omni_thinker"
                                     " qwen2_5_omni_talker qwen2_5_vl qwen2_vl ";

/* Keys of a rope dict that are read elsewhere, or mean nothing for frequencies. */
static const char *const other_keys[] = {"rope_type",
                                         "type",
                                         "rope_theta",
                                         "mrope_section",
                                         "mrope_interleaved",
                                         "xdrope_section",
                                         "interleaved",
                                         "finetuned",
                                         "max_position_embeddings",
                                         "llama_4_scaling_beta",
                                         "original_max_position_embeddings"};

/* One config. */
typedef struct config {
    const char *path, *layer_type;
    const cJSON *root, *rope; /* rope: NULL = there is none */
    const cJSON *layers;      /* the dict that has a rope dict for each layer type; NULL = one is for all */
    const family *family;     /* NULL = not known */
    const char *model_type;   /* "" = there is none */
    const two_bases *two;     /* NULL = one base, or rope dicts by layer type */
    int slides;               /* with two: sliding layers are meant */
    option_group *groups;
    config_texts *texts;
} config;

static int refuse(const config *c, const char *key, const char *rule)
{
    return complain_about(c->path, NULL, "%s %s", key, rule);
}

static int is_given(const cJSON *item)
{
    return item && !cJSON_IsNull(item);
}

static const cJSON *find(const cJSON *object, const char *key)
{
    const cJSON *item = object ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
    return is_given(item) ? item : NULL;
}

static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : "";
}

static int is_listed(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(name, names[i]))
            return 1;
    return 0;
}
#define IS_LISTED(name, names) is_listed(name, names, sizeof names / sizeof names[0])

/* Whether a list of models, with a space before and behind each, has this one, or the one whose text model it is. */
static int names_model(const char *models, const char *model_type)
{
    char name[72];
    const size_t length = strlen(model_type);
    const size_t bare = length > 5 && !strcmp(model_type + length - 5, "_text") ? length - 5 : length;
    snprintf(name, sizeof name, " %.*s ", bare < 64 ? (int)bare : 0, model_type);
    return bare && bare < 64 && strstr(models, name);
}

/* Sets an option to text that is printed, on account of a key. */
__attribute__((format(printf, 4, 5))) static int set(const config *c, const char *option, const char *key,
                                                     const char *format, ...)
{
    char source[4096];
    char **texts = realloc(c->texts->texts, (size_t)(c->texts->count + 1) * sizeof *texts);
    char *text = malloc(TEXT_SIZE);
    va_list arguments;
    if (texts)
        c->texts->texts = texts;
    if (!texts || !text) {
        free(text);
        return complain("out of memory");
    }
    texts[c->texts->count++] = text;
    va_start(arguments, format);
    vsnprintf(text, TEXT_SIZE, format, arguments);
    va_end(arguments);
    snprintf(source, sizeof source, "%s: %s", c->path, key);
    return options_set(c->groups, option, text, source);
}

static int set_number(const config *c, const char *option, const cJSON *item)
{
    if (!cJSON_IsNumber(item))
        return refuse(c, item->string, "must be a number");
    return set(c, option, item->string, "%.17g", item->valuedouble);
}

/* The rope dict */

static const cJSON *sub_dict(const cJSON *rope)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, rope) if (cJSON_IsObject(item)) return item;
    return NULL;
}

static int needs_layer_type(const config *c, const char *types)
{
    return complain("--layer-type: is missing, as the layers of %s rotate differently: %s", c->path, types);
}

/* The model's entry, or that of the model which has the same keys; NULL if layers have one base. */
static const two_bases *bases_of(const config *c)
{
    for (int i = 0; i < LAYERED_COUNT; i++)
        if (names_model(layered[i].models, c->model_type))
            return &layered[i];
    if (find(c->root, "rope_local_base_freq"))
        return &layered[0];
    return find(c->root, "global_rope_theta") ? &layered[1] : NULL;
}

static int choose_base_of_two(config *c)
{
    if (find(c->root, "rope_parameters"))
        return refuse(c, "rope_parameters", "must be by layer type: full_attention, sliding_attention");
    if (!c->layer_type)
        return needs_layer_type(c, "full_attention or sliding_attention");
    c->slides = !strcmp(c->layer_type, "sliding_attention");
    if (!c->slides && strcmp(c->layer_type, "full_attention"))
        return complain("--layer-type: must be full_attention or sliding_attention, not %.64s", c->layer_type);
    c->rope = c->slides && !c->two->both_scaled ? NULL : c->rope;
    return 0;
}

/* Whether both are there and say something else. */
static int differ(const cJSON *a, const cJSON *b)
{
    return a && b && !cJSON_Compare(a, b, 1);
}

/* Beside the dicts of layer types transformers reads truncate alone. */
static int check_beside(const config *c)
{
    const cJSON *item, *layer;
    cJSON_ArrayForEach(item, c->layers)
    {
        if (cJSON_IsObject(item) || !is_given(item) || !strcmp(item->string, "truncate"))
            continue;
        cJSON_ArrayForEach(layer, c->layers) if (cJSON_IsObject(layer) && !find(layer, item->string)) return refuse(
            c, item->string, "stands beside the dicts of layer types, where nothing reads it: move it into each of them");
    }
    return 0;
}

static int choose_rope(config *c)
{
    const cJSON *now = find(c->root, "rope_parameters"), *once = find(c->root, "rope_scaling");
    char names[256] = "";
    const cJSON *item;
    if (differ(now, once))
        return refuse(c, "rope_scaling", "contradicts rope_parameters");
    c->rope = now ? now : once;
    if (c->rope && !cJSON_IsObject(c->rope))
        return refuse(c, c->rope->string, "must be an object or null");
    c->two = sub_dict(c->rope) ? NULL : bases_of(c);
    if (c->two)
        return choose_base_of_two(c);
    if (!sub_dict(c->rope))
        return c->layer_type ? complain("--layer-type: all layers that rotate rotate alike in %s: leave it out", c->path)
                             : 0;
    cJSON_ArrayForEach(item, c->rope) if (cJSON_IsObject(item))
    {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%.64s", used ? ", " : "", item->string);
    }
    if (!c->layer_type)
        return needs_layer_type(c, names);
    c->layers = c->rope;
    if (check_beside(c))
        return RESULT_REFUSED;
    c->rope = find(c->rope, c->layer_type);
    return cJSON_IsObject(c->rope) ? 0 : complain("--layer-type: must be one of %s, not %.64s", names, c->layer_type);
}

/* A key of the rope dict, or of the config. */
static const cJSON *find_key(const config *c, const char *key)
{
    const cJSON *inner = find(c->rope, key);
    return inner ? inner : find(c->root, key);
}

/* The rule's name on the command line, of its name in a config. */
static const char *rule_named(const config *c, const char *name)
{
    const int is_phi3 = !strcmp(c->model_type, "phi3") || !strcmp(c->model_type, "phi4_multimodal");
    if (!*name || !strcmp(name, "mrope"))
        return "default";
    if (!strcmp(name, "su") || (is_phi3 && !strcmp(name, "yarn")))
        return "longrope";
    return !strcmp(name, "deepseek_yarn") ? "yarn" : name;
}

static const char *rule_of(const config *c)
{
    const cJSON *now = find(c->rope, "rope_type"), *once = find(c->rope, "type");
    return rule_named(c, text_of(now ? now : once));
}

/* Where the length that a rule begins from is: models whose config has it beside the rope dict mean that one. */
static const cJSON *original_length(const config *c, const char *rule)
{
    const cJSON *own = c->layer_type ? NULL : find(c->root, "original_max_position_embeddings");
    const cJSON *inner = find(c->rope, "original_max_position_embeddings");
    if (!strcmp(rule, "dynamic"))
        return find(c->root, "max_position_embeddings");
    if (own || inner)
        return own ? own : inner;
    const int falls_back = !strcmp(rule, "yarn") || (!strcmp(rule, "longrope") && find(c->rope, "factor"));
    return falls_back ? find(c->root, "max_position_embeddings") : NULL;
}

static int add_list(const config *c, FILE *text, const cJSON *list)
{
    const char *separator = "";
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item))
            return refuse(c, list->string, "must be a list of numbers");
        fprintf(text, "%s%.17g", separator, item->valuedouble);
        separator = ";";
    }
    return 0;
}

/* ",key=value" of a key of the rope dict. 0 stands for what is not given in mscale and its like. */
static int add_key(const config *c, FILE *text, const char *rule, const cJSON *item)
{
    if (!is_given(item) || IS_LISTED(item->string, other_keys))
        return 0;
    if (!strcmp(item->string, "partial_rotary_factor") && strcmp(rule, "proportional"))
        return 0;
    if (!strncmp(item->string, "mscale", 6)) {
        const cJSON *one = find(c->rope, "mscale"), *all = find(c->rope, "mscale_all_dim");
        if (!one || !all || one->valuedouble == 0 || all->valuedouble == 0) /* one alone has no effect in transformers */
            return 0;
    }
    const int is_list = !strcmp(item->string, "short_factor") || !strcmp(item->string, "long_factor");
    fprintf(text, ",%s=", item->string);
    if (is_list && cJSON_IsArray(item))
        return add_list(c, text, item);
    if (cJSON_IsBool(item))
        fprintf(text, "%s", cJSON_IsTrue(item) ? "true" : "false");
    else if (cJSON_IsNumber(item) && !is_list)
        fprintf(text, "%.17g", item->valuedouble);
    else
        return refuse(c, item->string, is_list ? "must be a list of numbers" : "must be a number, true or false");
    return 0;
}

static int add_keys(const config *c, FILE *text, const char *rule)
{
    const cJSON *item, *original = original_length(c, rule), *now = find(c->root, "max_position_embeddings");
    const int is_scaled = strcmp(rule, "default") && strcmp(rule, "linear") && strcmp(rule, "proportional");
    fprintf(text, "%s:", rule);
    if (is_scaled && cJSON_IsNumber(original))
        fprintf(text, ",original_max_position_embeddings=%.17g", original->valuedouble);
    /* The factor is the ratio of the lengths where it is null (YaRN) or missing (LongRoPE). */
    const int is_ratio = (!strcmp(rule, "yarn") && cJSON_GetObjectItemCaseSensitive(c->rope, "factor")) ||
                         (!strcmp(rule, "longrope") && !find(c->rope, "attention_factor"));
    if (is_ratio && !find(c->rope, "factor") && cJSON_IsNumber(original) && cJSON_IsNumber(now))
        fprintf(text, ",factor=%.17g", now->valuedouble / original->valuedouble);
    cJSON_ArrayForEach(item, c->rope) if (add_key(c, text, rule, item)) return RESULT_REFUSED;
    return 0;
}

/* Of the dicts of layer types transformers reads none of these, but the one beside them; null would be false there. Adds
 * that one to the rule. */
static int add_truncate(const config *c, FILE *text, const char *rule)
{
    const cJSON *inner = c->rope ? cJSON_GetObjectItemCaseSensitive(c->rope, "truncate") : NULL;
    const cJSON *outer = c->layers ? cJSON_GetObjectItemCaseSensitive(c->layers, "truncate") : NULL;
    if ((inner && !cJSON_IsBool(inner)) || (outer && !cJSON_IsBool(outer)))
        return refuse(c, "truncate", "must be true or false");
    if (outer && differ(inner, outer))
        return refuse(c, "truncate", "contradicts the one beside the dicts of layer types, which transformers reads");
    if (c->layers && !outer && inner && !cJSON_IsTrue(inner))
        return refuse(c, "truncate",
                      "is in the dict of a layer type, where transformers does not read it: move it out of it");
    if (outer && !inner && !strcmp(rule, "yarn"))
        fprintf(text, ",truncate=%s", cJSON_IsTrue(outer) ? "true" : "false");
    return 0;
}

static int set_scaling(const config *c)
{
    const char *rule = rule_of(c);
    char *made = NULL;
    size_t size;
    FILE *text = open_memstream(&made, &size);
    int result = text ? add_keys(c, text, rule) || add_truncate(c, text, rule) : complain("out of memory");
    if (text && fclose(text))
        result = complain("out of memory");
    if (!result && size >= TEXT_SIZE)
        result = refuse(c, "rope_scaling", "is too long");
    if (!result) {
        char *list = made + strlen(rule) + 1; /* begins with a comma if it holds any */
        result = set(c, "scaling", "rope_scaling", *list ? "%s:%s" : "%s", rule, *list ? list + 1 : "");
    }
    free(made);
    return result;
}

/* The rope dict's goes first, as in transformers; check_agreement refuses another one beside it. */
static int set_base(const config *c)
{
    const char *key = !c->two ? "rope_theta" : c->slides ? c->two->sliding_key : c->two->full_key;
    const double of_class = !c->two ? 0 : c->slides ? c->two->sliding : c->two->full;
    const cJSON *inner = find(c->rope, "rope_theta"), *outer = find(c->root, key);
    if (c->two && differ(inner, outer))
        return refuse(c, key, "contradicts the rope_theta of rope_scaling");
    const cJSON *base = inner ? inner : outer || c->two ? outer : find(c->root, "rotary_emb_base");
    if (base)
        return set_number(c, "rope-theta", base);
    if (of_class != 0)
        return set(c, "rope-theta", "model_type", "%.17g", of_class);
    return options_given(c->groups, "rope-theta") ? 0 : complain("--rope-theta: is missing, as %s has no %s", c->path, key);
}

/* Which elements rotate */

static const family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (names_model(families[i].models, model_type))
            return &families[i];
    return NULL;
}

static int set_pairing(const config *c)
{
    const cJSON *turns = find(c->root, "rope_interleave");
    if (!c->family)
        return options_given(c->groups, "pairing")
                   ? 0
                   : complain("--pairing: is missing: it is not known how models of type '%.64s' (%s) pair elements",
                              c->model_type, c->path);
    const int reads_it = names_model(" deepseek_v3 glm4_moe_lite ", c->model_type); /* false: the weights are reordered */
    const int by_half = reads_it && cJSON_IsFalse(turns);
    if (turns && (!cJSON_IsBool(turns) || (!reads_it && !cJSON_IsTrue(turns) != !strcmp(c->family->pairing, "half"))))
        return refuse(c, "rope_interleave", "contradicts how the class of this model pairs elements");
    if (set(c, "pairing", "model_type", "%s", by_half ? "half" : c->family->pairing))
        return RESULT_REFUSED;
    if (!c->family->pairing_out || by_half)
        return 0;
    if (options_given(c->groups, "inverse"))
        return complain("--inverse: reads pairs as the model does, not as it writes them: --backward is the way back of %s",
                        c->model_type);
    return set(c, "pairing-out", "model_type", "%s", c->family->pairing_out);
}

/* The window in each head, of `dim` elements, or if that is 0 of a share of it, which is the first one. */
static int set_window(const config *c, const char *key, int dim, double share)
{
    if (dim ? set(c, "rotary-dim", key, "%d", dim) : set(c, "partial-rotary-factor", key, "%.17g", share))
        return RESULT_REFUSED;
    if (options_given(c->groups, "rotary-offset") || (!dim && share == 1))
        return 0;
    if (dim && c->family && c->family->is_last)
        return set(c, "rotary-offset", key, "-%d", dim);
    return set(c, "rotary-offset", key, "0");
}

static int set_rotary_dim(const config *c)
{
    const cJSON *pe = find(c->root, "qk_rope_head_dim"), *dim = find(c->root, "rotary_dim");
    const cJSON *partial = find_key(c, "partial_rotary_factor"), *percent = find(c->root, "rotary_pct");
    const cJSON *share = partial ? partial : percent;
    const cJSON *exact = pe ? pe : share ? NULL : dim;
    if (exact && (!cJSON_IsNumber(exact) || exact->valuedouble < 1 || exact->valuedouble > 65536))
        return refuse(c, exact->string, "must be a number of elements");
    if (exact)
        return set_window(c, exact->string, (int)exact->valuedouble, 1);
    if (share && !cJSON_IsNumber(share))
        return refuse(c, share->string, "must be a number");
    if (!strcmp(rule_of(c), "proportional"))
        return 0;
    if (share)
        return set_window(c, share->string, 0, share->valuedouble);
    if (c->family)
        return set_window(c, "model_type", 0, c->family->partial_rotary_factor);
    if (options_given(c->groups, "rotary-dim") || options_given(c->groups, "partial-rotary-factor"))
        return 0;
    return complain("--rotary-dim: is missing: it is not known how much of a head rotates in models of type '%.64s' (%s)",
                    c->model_type, c->path);
}

/* head_dim is said only where it is the head of what rotates: in MLA it is not. */
static int set_head_dim(const config *c)
{
    const cJSON *wide = find(c->root, "global_head_dim"), *head = find(c->root, "head_dim");
    if (wide && c->layer_type && !strcmp(c->layer_type, "full_attention"))
        head = wide;
    return head && !find(c->root, "qk_rope_head_dim") ? set_number(c, "head-dim", head) : 0;
}

static int set_axes(const config *c)
{
    const cJSON *sections = find(c->rope, "mrope_section");
    const int n = cJSON_GetArraySize(sections);
    if (!sections)
        return 0;
    if (!cJSON_IsArray(sections) || n != 3)
        return refuse(c, "mrope_section", "must be a list of three numbers");
    const cJSON *said = find(c->rope, "mrope_interleaved");
    const int mixes = names_model(mixed_models, c->model_type),
              is_known = mixes || names_model(section_models, c->model_type);
    if (said && !cJSON_IsBool(said))
        return refuse(c, "mrope_interleaved", "must be true or false");
    if (said && is_known && (cJSON_IsTrue(said) != 0) != mixes)
        return refuse(c, "mrope_interleaved",
                      mixes ? "is false, but the class of this model always interleaves the axes"
                            : "is true, but the class of this model always has the axes in sections");
    if (!said && !is_known && !options_given(c->groups, "axis-map"))
        return complain("--axis-map: is missing: it is not known how models of type '%.64s' (%s) order the axes of "
                        "mrope_section",
                        c->model_type, c->path);
    const int is_mixed = mixes || cJSON_IsTrue(said);
    if ((said || is_known) && set(c, "axis-map", "mrope_section", "%s", is_mixed ? "interleaved" : "sections"))
        return RESULT_REFUSED;
    return set(c, "axis-sections", "mrope_section", "%.0f,%.0f,%.0f", cJSON_GetArrayItem(sections, 0)->valuedouble,
               cJSON_GetArrayItem(sections, 1)->valuedouble, cJSON_GetArrayItem(sections, 2)->valuedouble);
}

/* The file */

/* For free(); NULL after a complaint. */
static char *read_text(const char *path)
{
    FILE *stream = fopen(path, "rb");
    char *text = stream ? malloc(LARGEST_CONFIG) : NULL;
    const size_t size = text ? fread(text, 1, LARGEST_CONFIG, stream) : 0;
    if (!stream || !text || ferror(stream) || size == LARGEST_CONFIG) {
        complain_about(path, NULL, stream && size == LARGEST_CONFIG ? "is too large for a config.json" : "%m");
        free(text);
        text = NULL;
    } else {
        text[size] = 0;
    }
    if (text && strlen(text) != size) {
        complain_about(path, NULL, "is not JSON: it has a zero byte");
        free(text);
        text = NULL;
    }
    if (stream)
        fclose(stream);
    return text;
}

/* text_config where there is one, as in transformers; its model_type may be left out. */
static void choose_root(config *c, const cJSON *root)
{
    const cJSON *text = find(root, "text_config");
    c->root = cJSON_IsObject(text) ? text : root;
    c->model_type = text_of(find(c->root, "model_type"));
    if (!*c->model_type)
        c->model_type = text_of(find(root, "model_type"));
    c->family = family_of(c->model_type);
}

/* What says one thing in two places must say the same in both: transformers takes the one, and others the other. */
static int check_agreement(const config *c, const cJSON *root)
{
    static const char *const shared[] = {"rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters",
                                         "original_max_position_embeddings"};
    static const char *const aliases[][2] = {{"rope_theta", "rotary_emb_base"}, {"partial_rotary_factor", "rotary_pct"}};
    const cJSON *now = find(c->rope, "rope_type"), *once = find(c->rope, "type");
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (differ(find(root, shared[i]), i < 2 && !c->layer_type ? find_key(c, shared[i]) : find(c->root, shared[i])))
            return refuse(c, shared[i],
                          root == c->root ? "contradicts that of rope_parameters or rope_scaling"
                                          : "contradicts that of text_config");
    for (size_t i = 0; i < 2; i++) {
        if (!c->layer_type && differ(find(c->root, aliases[i][0]), find(c->rope, aliases[i][0])))
            return refuse(c, aliases[i][0], "contradicts that of rope_parameters or rope_scaling");
        if (differ(find_key(c, aliases[i][0]), find(c->root, aliases[i][1])))
            return refuse(c, aliases[i][1], i ? "contradicts partial_rotary_factor" : "contradicts rope_theta");
    }
    if ((now && !cJSON_IsString(now)) || (once && !cJSON_IsString(once)))
        return refuse(c, now ? "rope_type" : "type", "must be a string");
    return now && once && strcmp(rule_named(c, text_of(now)), rule_named(c, text_of(once)))
               ? refuse(c, "type", "contradicts rope_type")
               : 0;
}

/* Of a name that is there twice, cJSON finds the first and Python the last. */
static int check_names(const config *c, const cJSON *root)
{
    const cJSON *const objects[] = {root, c->root, c->rope};
    for (size_t i = 0; i < 3; i++) {
        const char *twice = objects[i] ? safetensors_duplicate_name(objects[i]) : NULL;
        if (twice)
            return complain_about(c->path, NULL, "the key '%.64s' must occur only once", twice);
    }
    return 0;
}

/* Whether a list of values, with a space before and behind each, has that of a key. */
static int is_one_of(const char *values, const cJSON *item)
{
    char value[64];
    snprintf(value, sizeof value, " %.60s ", cJSON_IsBool(item) ? cJSON_IsTrue(item) ? "true" : "false" : text_of(item));
    return strstr(values, value) != NULL;
}

/* Whether a list is there, and all of it is 0: layers of Llama 4 and SmolLM3 rotate with 1. */
static int is_all_zero(const cJSON *list)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list) if (!cJSON_IsNumber(item) || item->valuedouble != 0) return 0;
    return cJSON_GetArraySize(list) > 0;
}

/* A model that does not rotate at all is refused by the key that says so. */
static int check_that_it_rotates(const config *c)
{
    const cJSON *rotating = find(c->root, "no_rope_layers"), *interval = find(c->root, "no_rope_layer_interval");
    if (names_model(models_without, c->model_type))
        return refuse(c, "model_type", "is one without a rotary embedding that a rule describes");
    for (size_t i = 0; i < sizeof rotation_keys / sizeof rotation_keys[0]; i++) {
        const rotation_key *k = &rotation_keys[i];
        const cJSON *item = find(c->root, k->key);
        const int is_own = names_model(k->models, c->model_type);
        if (!item && is_own)
            return refuse(c, k->key, "is missing, and a model of this type does not rotate without it");
        if (item && (is_own || !*k->models) && !is_one_of(k->values, item))
            return refuse(c, k->key, "says that this model does not rotate");
    }
    if (is_all_zero(rotating))
        return refuse(c, "no_rope_layers", "says that no layer rotates");
    return !rotating && interval && interval->valuedouble == 1
               ? refuse(c, "no_rope_layer_interval", "says that no layer rotates")
               : 0;
}

static int read_keys(config *c, const cJSON *root, const config_use *use)
{
    choose_root(c, root);
    if (check_that_it_rotates(c))
        return RESULT_REFUSED;
    if (names_model(" nanochat ", c->model_type))
        return refuse(c, "model_type", "nanochat turns the other way: leave --config out, and say so by --inverse");
    for (size_t i = 0; i < sizeof unreadable_keys / sizeof unreadable_keys[0]; i++)
        if (find(c->root, unreadable_keys[i]))
            return refuse(c, unreadable_keys[i], "is not read, though it changes frequencies");
    if (choose_rope(c) || check_names(c, root) || check_agreement(c, root))
        return RESULT_REFUSED;
    if (use->frequencies && (set_base(c) || set_scaling(c)))
        return RESULT_REFUSED;
    return set_pairing(c) || set_head_dim(c) || set_rotary_dim(c) || (use->axes && set_axes(c)) ? RESULT_REFUSED : 0;
}

int config_apply(const char *path, const char *layer_type, const config_use *use, option_group *groups, config_texts *texts)
{
    char inside[4096];
    struct stat status;
    if (!stat(path, &status) && S_ISDIR(status.st_mode)) {
        snprintf(inside, sizeof inside, "%s/config.json", path);
        path = inside;
    }
    char *text = read_text(path);
    if (!text)
        return RESULT_REFUSED;
    cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
    config c = {.path = path, .layer_type = layer_type, .groups = groups, .texts = texts};
    const int result = cJSON_IsObject(root)
                           ? read_keys(&c, root, use)
                           : complain_about(path, NULL, "is not a JSON object (of JSON without NaN and Infinity)");
    cJSON_Delete(root);
    free(text);
    return result;
}

void config_release(config_texts *texts)
{
    for (int i = 0; i < texts->count; i++)
        free(texts->texts[i]);
    free(texts->texts);
}
