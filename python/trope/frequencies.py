"""The frequencies of a rotary position embedding: given as numbers, by keywords, or by a Hugging Face config.

    frequencies("Llama-3.1-8B/config.json")
    frequencies(model.config, layer_type="sliding_attention")
    frequencies(rope_type="llama3", rope_theta=500000.0, head_dim=128, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=8192)

The rules are those of the library (trope_frequencies, section 6 of include/trope/trope.h). What keys mean, and where they are
looked for, is as in transformers 5 (modeling_rope_utils.py and the configs of models/), for configs as 4 and 5 write them.
transformers goes on with a warning, or a default, where a key is missing or is one that the rule does not use; here that is
an Error that names the key, so that what was forgotten is not trained with.
"""

import ctypes
import json
import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping

from ._abi import MAX_ROTARY_DIM, RULES, Error, FrequencyArgs, check, lib

# ---- Tables of keys ----

# Old names of rope_type: Phi-3's, Qwen2-VL's, HunYuan-VL's and Sarvam's configs in transformers have these.
OLD_RULES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic", "deepseek_yarn": "yarn"}
# Models whose config has "yarn" for what is LongRoPE (Phi3Config.convert_rope_params_to_dict).
YARN_IS_LONGROPE = ("phi3", "phi4_multimodal")

COMMON_KEYS = ("rope_type", "rope_theta", "partial_rotary_factor")
ORIGINAL = "original_max_position_embeddings"
RULE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "alpha"),
    "yarn": ("factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
}
ROPE_KEYS = frozenset(COMMON_KEYS).union(*RULE_KEYS.values())
# Keys beside those that mean nothing for frequencies. mrope_section, mrope_interleaved, interleaved, xdrope_section: which
# position a pair has (trope_fill_pair_axis). llama_4_scaling_beta: a scale of q (Ministral 3). finetuned: that YaRN was
# trained. max_position_embeddings: transformers reads the config's own, which this one must not contradict. type: an older
# name of rope_type.
IGNORED_KEYS = frozenset(
    ("mrope_section", "mrope_interleaved", "interleaved", "xdrope_section", "llama_4_scaling_beta", "finetuned",
     "max_position_embeddings", "type"))
# Keys that are another rule's, but are written by models beside this one, where nothing reads them (HunYuan's has alpha).
UNREAD_KEYS = {
    "dynamic": frozenset((ORIGINAL,)),
    "ntk_alpha": frozenset((ORIGINAL, "factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")),
}

# Keys of the config itself, and other names that models have for them.
SIZE_KEYS = {
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "qk_rope_head_dim": ("qk_rope_head_dim",),
    "rotary_dim": ("rotary_dim",),
    "max_position_embeddings": ("max_position_embeddings",),
}
# Keys of the config that stand in for those of the rope dict (rotary_pct, rotary_emb_base: GPT-NeoX).
FALLBACKS = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}
# Keys by which layers differ, of configs that transformers turns into rope_parameters by layer type when it loads them.
UNREADABLE_KEYS = ("swa_rope_theta", "compress_rope_theta", "partial_rotary_factors", "rope_ratio")
# Models whose rotary_dim of the config is the rotated part (others write one that transformers does not read).
READS_ROTARY_DIM = (None, "gptj", "codegen", "minimax_m2")

# Models with two rotations in a config of transformers 4, which has one rope_scaling: the keys of base of full and sliding
# layers with what their classes have for them (None: it must be there), and whether rope_scaling is for both.
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

# What classes of transformers 5.24 have where a config says nothing, and what is not hidden_size / num_attention_heads or 1:
# released files leave it out (gemma-3-12b-it has no head_dim). 0: no constant, it must be given.
CLASS_HEAD_DIM = {
    0: "zamba2 gemma4_text gemma4_unified_text",
}
CLASS_PARTIAL = {
    0.5: "phi",
}
