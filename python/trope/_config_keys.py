"""Facts about the configs of Hugging Face models, for trope.frequencies: keys, their other names, and the values that
classes of transformers 5.24 use if a config does not have them.

These tables grow with transformers. Their readers, _config.py, frequencies.py and _models.py, do not need to grow with
them.
"""

from __future__ import annotations

from typing import NamedTuple

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
# Models that rotate by the axes of an image or a video, for every rope_type.
OTHER_ROTATION = frozenset(
    "cohere_compass_vision dinov3_vit dots3_note_vision_encoder edgetam_video eomt_dinov3 ernie4_5_vl_moe_vision "
    "exaone4_5_vision gemma4_vision glm4v_moe_vision glm4v_vision glm5_next_vision glm_image_vision glm_ocr_vision "
    "inkling2_vision kimi_k25_vision lfm3_vl_vision llama4_vision_model minimax_m3_vl_vision mlcd mlcd_vision_model "
    "muse_glimmer_vision muse_spark_vision paddleocr_vl_vision pixtral qwen2_5_omni_vision_encoder qwen2_5_vl_vision "
    "qwen2_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision "
    "qwen4_exp_vision sam2_video sam3_tracker_video sam3_vit_model sapiens2 step3p5_vision video_llama_3_vision".split()
)

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
    64: "axk1 bailing_hybrid deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa gpt_oss hy_v4 hy_v4_vl_text "
    "longcat_flash mistral_large4_text muse_spark_text neomme neucodec openai_privacy_filter qwen2_5_omni_dit "
    "sarvam_mla sarvam_moe voxtral_realtime_encoder xcodec2 youtu",
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
    0: "deepseek_v4 dots3_note_text efficientloftr mistral4 neomme",
    0.2: "musicflamingo",
    0.25: "gpt_neox qwen3_5_moe_text qwen3_5_text qwen3_next stablelm",
    0.334: "mimo_v2_flash",
    0.5: "bamba dots3_note_audio_encoder glm glm4 glm4_moe glm4v_moe_text glmasr_encoder nemotron persimmon phi "
    "recurrent_gemma",
    0.9: "moonshine",
}


def bare(model_type):
    """Returns a model_type without the suffix that language models have in multimodal models, "" for None."""
    name = model_type or ""
    return name.removesuffix("_model").removesuffix("_text") if "_text" in name else name


def of_model(table, model_type):
    """Returns the entry of a table for a model, also for a language model whose model_type lacks the suffix _text."""
    return table.get(model_type, table.get("%s_text" % model_type))


def _by_model(groups):
    return {model: value for value, models in groups.items() for model in models.split()}


CLASS_HEAD_DIM = _by_model(_HEAD_DIM)
CLASS_PARTIAL = _by_model(_PARTIAL)

# ---- Families of models. The model_type of a language model is without its suffix _text or _text_model here ----


class Family(NamedTuple):
    pairing: str
    pairing_out: str | None = None
    is_trailing: bool = False
    inverse: bool = False


UNKNOWN = Family(None)
_MODELS = {
    Family("half"): "afmoe apertus apertus1p5 arcee aria bamba beam bitnet chameleon cohere_compass cosmos3_edge csm "
    "csm_depth_decoder_model cwm dbrx deepseek_ocr2 dia_decoder dia_encoder diffllama diffusion_gemma "
    "doge dory dots1 embedding_gemma2 emu3 esm esmc eurobert evolla exaone exaone4 exaone_moe falcon "
    "falcon_h1 flex_olmo flint gemma gemma2 gemma3 gemma3n gemma4 gemma4_unified glm4_moe glm4v_moe "
    "glm_image glmasr_encoder gpt_neox gpt_neox_japanese gpt_oss gradium_phonon_tts granite "
    "granite4_vision granite_docling granite_swa granitemoe granitemoe_swa granitemoehybrid "
    "granitemoeshared gte higgs_audio_v2 hrm hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 "
    "iquestcoder jais2 jetmoe jina_embeddings_v3 kolibri1 laguna lara_mini lfm2 lfm2_moe lfm3 llama "
    "mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl ministral ministral3 mistral mixtral mllama "
    "modernbert modernbert-decoder molmo2 muse_glimmer muse_spark nemotron neomme nomic_bert olmo olmo2 "
    "olmo3 olmo_hybrid olmoe paddleocr_vl persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_5_omni "
    "qwen2_5_omni_talker qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next "
    "qwen3_omni_moe qwen3_omni_moe_talker qwen3_omni_moe_talker_code_predictor qwen3_vl qwen3_vl_moe "
    "qwen4_exp recurrent_gemma sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 step3p5 "
    "t5_gemma_module t5gemma2 t5gemma2_decoder ultrabert unlimited_ocr vaultgemma voxtral_realtime zamba2 "
    "zaya",
    Family("half", inverse=True): "nanochat",
    Family("half", is_trailing=True): "hy_v4 minicpm3",
    Family("interleaved"): "blt_global_transformer blt_local_decoder blt_local_encoder blt_patcher codegen cohere cohere2 "
    "cohere2_moe ernie4_5 ernie4_5_moe ernie4_5_vl_moe glm glm4 glm4v glm_ocr gptj helium llama4 openai_privacy_filter",
    Family("interleaved", is_trailing=True): "deepseek_v2 deepseek_v4 hy_v4_vl",
    Family("interleaved", "half", True): "axk1 axk2 bailing_hybrid deepseek_v3 deepseek_v32 dots3_note glm4_moe_lite "
    "glm_moe_dsa longcat_flash mistral4 mistral_large4 sarvam_mla youtu",
}  # fmt: skip
FAMILIES = {model: family for family, models in _MODELS.items() for model in models.split()}

# ---- Keys that a class ignores, or cannot use ----

# Models that use partial_rotary_factor. Others ignore the factor and rotate whole heads, or fail.
READS_PARTIAL = frozenset(
    "bamba glm glm4 glm4_moe glm4v glm4v_moe glm_image glm_ocr glmasr_encoder gpt_neox gpt_neox_japanese laguna "
    "mimo_v2_flash minimax_m2 minimax_m3_vl nemotron neomme persimmon phi phi3 phi4_multimodal qwen3_5 qwen3_5_moe "
    "qwen3_next qwen4_exp recurrent_gemma sarvam_moe stablelm step3p5 zaya".split()
)
# Models with trailing windows, whose window is head_dim * partial_rotary_factor. That of the others is qk_rope_head_dim.
TRAILING_BY_PARTIAL = ("deepseek_v4", "dots3_note", "mistral4")
# Audio and other models whose position has one axis: the ones that use partial_rotary_factor, and the ones that do not.
_OTHERS_WITH_PARTIAL = (
    "dots3_note_audio_encoder efficientloftr moonshine moonshine_streaming musicflamingo nemotron3_5_transcribe_asr_audio "
    "nemotron3_5_transcribe_word_timestamp nemotron3_diarization_audio".split()
)
_OTHERS = (
    "EvollaModel deepseek_ocr2_encoder hunyuan_vl idefics kyutai_speech_to_text lasr_encoder mimi mimi_decoder "
    "mimi_encoder moshi muse_glimmer_assistant neucodec pe_audio_encoder pe_audio_video_encoder pe_video_encoder "
    "pocket_tts pocket_tts_audio_tokenizer pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder "
    "qwen2_5_omni_dit timesfm2_5 voxtral_realtime_encoder xcodec2".split()
)
NEOX = ("gpt_neox", "gpt_neox_japanese")
# Keys that only these models use, of all models in this file.
READ_BY = {
    "partial_rotary_factor": READS_PARTIAL.union(_OTHERS_WITH_PARTIAL, TRAILING_BY_PARTIAL, ["glm4_moe_lite"]),
    "rotary_pct": NEOX,
    "rotary_emb_base": NEOX,
    "rotary_dim": ("codegen", "gptj", "minimax_m2"),
    "qk_rope_head_dim": [model for model, family in FAMILIES.items() if family.is_trailing],
    "attention_head_dim": ("hunyuan_vl", "zamba2"),
    "n_embd": ("codegen", "gptj"),
    "n_head": ("codegen", "gptj"),
    "d_model": ("dbrx", "voxtral_realtime_encoder"),
    "n_heads": ("dbrx",),
    "global_head_dim": [bare(model) for model in GLOBAL_HEAD_DIM],
}
# Keys that these models do not use, unlike all others. (rope_theta: outside the rope dict. type: in it.)
NOT_READ_BY = {
    "rope_theta": (*NEOX, "step3p5", "ultrabert"),
    "rope_scaling": ("cohere2_moe",),
    "rope_type": ("codegen", "esm", "gptj"),
    "type": ("neomme",),
    "head_dim": ("deepseek_ocr2", "dots3_note_audio_encoder", "unlimited_ocr"),
}
_KNOWN = frozenset(FAMILIES).union(map(bare, _OTHERS + _OTHERS_WITH_PARTIAL))
# Models whose class has its own rope_parameters, which it uses if a config has no rope dict, whatever rope_theta is.
OWN_ROPE = frozenset(
    "apertus apertus1p5 beam cosmos3_edge cwm deepseek_v4 diffusion_gemma dory dots3_note embedding_gemma2 gemma4 "
    "gemma4_unified gpt_oss higgs_audio_v2 laguna lfm3 mellum mimo_v2_flash ministral3 mistral4 mistral_large4 "
    "moonshine_streaming muse_spark nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_word_timestamp neomme "
    "openai_privacy_filter step3p5 ultrabert zaya".split()
)
# Models whose class computes with this base, whatever rope_theta is.
OWN_BASE = {"codegen": 10000.0, "gptj": 10000.0}


def reads(model_type, key):
    """Whether the class of a model uses a key. Unknown models use all keys."""
    name = bare(model_type)
    return name not in _KNOWN or name in READ_BY.get(key, _KNOWN) and name not in NOT_READ_BY.get(key, ())
