"""Facts about the configs of Hugging Face models, for trope.frequencies: keys, their other names, and the values that
classes of transformers 5.24 use if a config does not have them.

These tables grow with transformers. Their readers, _config.py and frequencies.py, do not need to grow with them.
"""

# ---- Keys of the rope dict (rope_parameters, formerly rope_scaling) ----

# Old names of rope_type, in configs of Phi-3, Qwen2-VL, HunYuan-VL and Sarvam. transformers replaces them in the same way.
OLD_RULES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic", "deepseek_yarn": "yarn"}
# Models whose config uses the name "yarn" for LongRoPE (Phi3Config.convert_rope_params_to_dict).
YARN_IS_LONGROPE = ("phi3", "phi4_multimodal")
# Models for which "dynamic" with alpha is the rule "ntk_alpha", as in transformers: another base, for any length.
READS_ALPHA = (None, "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl", "hunyuan_vl_text")

ORIGINAL = "original_max_position_embeddings"
COMMON_KEYS = ("rope_type", "rope_theta", "partial_rotary_factor")
RULE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "ntk_alpha": ("alpha",),
    "yarn": ("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
}
ROPE_KEYS = frozenset(COMMON_KEYS).union(*RULE_KEYS.values())
# Keys of another rule that models write besides the keys of their rule, and that transformers does not read.
UNREAD_KEYS = {
    "dynamic": (ORIGINAL,),
    "ntk_alpha": (ORIGINAL, "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
}
# Keys that do not affect frequencies. mrope_section, mrope_interleaved, interleaved and xdrope_section choose the axis of
# positions of each pair (trope_fill_pair_axis). llama_4_scaling_beta is a scale of q (Ministral 3). finetuned tells how
# YaRN was applied. max_position_embeddings must not contradict the config's own, which is read. type is the old name of
# rope_type.
IGNORED_KEYS = (
    "mrope_section", "mrope_interleaved", "interleaved", "xdrope_section", "llama_4_scaling_beta", "finetuned",
    "max_position_embeddings", "type",
)  # fmt: skip

# ---- Keys of the config itself ----

# Sizes, each with its other names in models. (kv_channels: JetMoE. It has another meaning in Zamba 2.)
SIZE_KEYS = {
    "head_dim": ("head_dim", "attention_head_dim"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "rotary_dim": ("rotary_dim",),
    "max_position_embeddings": ("max_position_embeddings",),
}
# Keys that replace keys of the rope dict (rotary_emb_base, rotary_pct: GPT-NeoX).
FALLBACKS = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}
# Models whose rotary_dim is the number of elements of a head that rotate. transformers ignores it in other models.
READS_ROTARY_DIM = (None, "gptj", "codegen", "minimax_m2")
# Keys that give layers different rotations or bases, in configs that only the model's own code reads.
UNREADABLE_KEYS = ("swa_rope_theta", "compress_rope_theta", "partial_rotary_factors", "rope_ratio")

# Keys that tell whether a model rotates at all: (values with which models rotate, {model: its own values}). The dict has
# the models whose class reads the key differently. They do not rotate if the key is missing or null. Other models rotate
# without the key. (no_rope_layers and layer_rope_theta are about single layers, see _config.py.)
ROTATES = {
    "alibi": ((False,), {}),
    "position_embedding_type": (("rope", "rotary"), {"esm": ("rotary",), "granitemoehybrid": ("rope",)}),
    "position_embeddings_type": (("rotary",), {}),
    "use_mem_rope": ((True,), {"zamba2": (True,)}),
    "use_rope": ((True,), {}),
    "use_rotary_embedding": ((True,), {}),
}
# Keys of the config itself with names about rotations. This package reads them, or refuses some of their values.
KEYS_OF_ROTATIONS = frozenset(
    ("rope_parameters", "rope_scaling", "rope_interleave", "qk_rope_head_dim", "rotary_dim", "rope_local_base_freq",
     "global_rope_theta", "local_rope_theta", "no_rope_layers", "no_rope_layer_interval", "layer_rope_theta",
     "rope_scaling_layers")
).union(ROTATES, UNREADABLE_KEYS, *FALLBACKS.values())  # fmt: skip
# Keys with such names that do not affect the rotation, with any value or with these values.
ANY = "any value"
MEANINGLESS_KEYS = {
    "ignore_keys_at_rope_validation": ANY,  # the keys that transformers skips when it checks the rope dict
    "k_rope_only_layernorm": ANY,  # a norm before the rotation
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_value": (False,),  # RoFormer rotates v only if this is true
}
# Language models whose classes never rotate, although some of their configs have rope_theta (Nemotron-H, Kimi Linear).
NO_ROTATION = frozenset(
    "albert bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small bloom camembert convbert "
    "cpmant ctrl data2vec-text deberta deberta-v2 distilbert electra ernie falcon_mamba flaubert fnet fsmt funnel gpt-sw3 "
    "gpt2 gpt_bigcode gpt_neo ibert inkling2_loop_text inkling2_text inkling_text jamba kimi_linear led longformer longt5 "
    "luke m2m_100 mamba mamba2 marian mbart megatron-bert mobilebert moshi_depth mpnet mpt mra mt5 mvp nemotron_h nllb-moe "
    "nystromformer openai-gpt opt pegasus pegasus_x plbart prophetnet reformer rembert roberta roberta-prelayernorm "
    "roc_bert rwkv squeezebert switch_transformers t5 umt5 xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod yoso "
    "zamba".split()
)
# Image models, which compute frequencies in another way for every rope_type.
OTHER_ROTATION = ("dinov3_vit", "eomt_dinov3", "llama4_vision_model", "pixtral", "sapiens2")

# Models with two rotations. Their configs of transformers 4 have only one rope_scaling. An entry has the key of the base of
# full layers, the class's value of the key (None: it is required), and the same for sliding layers. Its last value tells
# whether both are scaled.
GEMMA3 = ("rope_theta", 1000000.0, "rope_local_base_freq", 10000.0, False)
MODERNBERT = ("global_rope_theta", None, "local_rope_theta", None, True)
OLMO3 = ("rope_theta", None, "rope_theta", None, False)
LAYERED = {
    "gemma3_text": GEMMA3,
    "gemma3n_text": GEMMA3,
    "t5gemma2_text": GEMMA3,
    "t5gemma2_decoder": GEMMA3,
    "modernbert": MODERNBERT,
    "modernbert-decoder": MODERNBERT,
    "olmo3": OLMO3,
}
# Models whose full_attention layers have another head_dim: global_head_dim, or per_layer_config in a loaded config.
GLOBAL_HEAD_DIM = ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text")

# Defaults of classes of transformers 5.24: the head_dim if it is not hidden_size / num_attention_heads, and the
# partial_rotary_factor if it is not 1. Released files leave these keys out (gemma-3-12b-it has no head_dim: it is 256, not
# 3840 / 16). 0: there is no default, and the key is required.
_HEAD_DIM = {
    0: "zamba2",
    32: "axk2 minicpm3",
    64: "axk1 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa gpt_oss hy_v4 hy_v4_vl_text longcat_flash "
    "mistral_large4_text muse_spark_text neomme neucodec openai_privacy_filter qwen2_5_omni_dit sarvam_mla sarvam_moe "
    "voxtral_realtime_encoder xcodec2 youtu",
    80: "timesfm2_5",
    128: "afmoe beam cohere2_moe cosmos3_edge_text cwm dia_decoder dia_encoder ernie4_5 flint glm glm4 helium "
    "higgs_audio_v2 hrm_text hy_v3 internlm3 iquestcoder kolibri1 laguna lara_mini lfm3 llama4_text mellum minimax_m2 "
    "minimax_m3_vl_text ministral3 mistral4 molmo2_text muse_glimmer_assistant muse_glimmer_text paddleocr_vl_text "
    "pe_audio_encoder pe_audio_video_encoder pe_video_encoder qwen2_5_omni_talker qwen3 "
    "qwen3_omni_moe_talker_code_predictor qwen3_vl_text seed_oss solar_open step3p5 zaya",
    192: "mimo_v2_flash",
    256: "diffusion_gemma_text dory dots3_note_text embedding_gemma2_text gemma gemma2 gemma3_text gemma3n_text "
    "gemma4_text gemma4_unified_text qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp_text t5_gemma_module "
    "t5gemma2_decoder t5gemma2_text vaultgemma",
    512: "deepseek_v4",
}
_PARTIAL = {
    0: "dots3_note_text efficientloftr mistral4 neomme",
    0.125: "deepseek_v4",
    0.2: "musicflamingo",
    0.25: "gpt_neox qwen3_5_moe_text qwen3_5_text qwen3_next stablelm",
    0.334: "mimo_v2_flash",
    0.5: "bamba dots3_note_audio_encoder glm glm4 glm4_moe glm4v_moe_text glmasr_encoder nemotron persimmon phi "
    "recurrent_gemma",
    0.9: "moonshine",
}


def of_model(table, model_type):
    """Returns the entry of a table for a model, also for a language model whose model_type lacks the suffix _text."""
    return table.get(model_type, table.get("%s_text" % model_type))


def _by_model(groups):
    return {model: value for value, models in groups.items() for model in models.split()}


CLASS_HEAD_DIM = _by_model(_HEAD_DIM)
CLASS_PARTIAL = _by_model(_PARTIAL)
