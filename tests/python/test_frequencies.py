"""trope.frequencies: the rules compared with their formulas, and refusals. test_frequencies_of_models.py tests configs of
models.

The formulas are computed in double, and agree up to rounding (EXACT).
"""

import copy
import ctypes
import itertools
import json
import math
import os
import pathlib
import pickle
import random
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest
import reference
from reference import default, longrope_mscale, yarn_mscale
from refusals import refused as refused_call

from trope import Error
from trope._config_keys import (
    COMMON_KEYS, FALLBACKS, IGNORED_KEYS, ROPE_KEYS, ROTATES, RULE_KEYS, SIZE_KEYS, UNREADABLE_KEYS,
)  # fmt: skip
from trope.frequencies import Frequencies, frequencies, frequency_list

EXACT = 1e-12
ORIGINAL = "original_max_position_embeddings"


def divisors(pairs, seed):
    """Random LongRoPE factors [pairs], whose range grows with the pair."""
    generator = random.Random(seed)
    return [1 + 40 * i * generator.random() / pairs for i in range(pairs)]


# A complete and valid set of keywords for each rule, with 64 pairs.
RULES = {
    "default": {"rope_theta": 10000.0, "head_dim": 128},
    "linear": {"rope_theta": 10000.0, "head_dim": 128, "factor": 4.0},
    "dynamic": {"rope_theta": 10000.0, "head_dim": 128, "factor": 2.0, "max_position_embeddings": 2048},
    "yarn": {
        "rope_theta": 1e6, "head_dim": 128, "factor": 4.0, ORIGINAL: 32768, "beta_fast": 24.0, "beta_slow": 2.0,
        "mscale": 0.7, "mscale_all_dim": 1.3, "truncate": False,
    },
    "longrope": {
        "rope_theta": 10000.0, "head_dim": 128, ORIGINAL: 4096, "factor": 32.0,
        "short_factor": divisors(64, 1), "long_factor": divisors(64, 2),
    },
    "llama3": {
        "rope_theta": 500000.0, "head_dim": 128, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        ORIGINAL: 8192,
    },
    "proportional": {"rope_theta": 1e6, "head_dim": 128, "partial_rotary_factor": 0.25, "factor": 2.0},
}  # fmt: skip
NEEDED = {
    "default": ("rope_theta", "head_dim"),
    "linear": ("rope_theta", "head_dim", "factor"),
    "dynamic": ("rope_theta", "head_dim", "factor", "max_position_embeddings"),
    "yarn": ("rope_theta", "head_dim", "factor"),
    "longrope": ("rope_theta", "head_dim", "short_factor", "long_factor"),
    "llama3": ("rope_theta", "head_dim", "factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "proportional": ("rope_theta", "head_dim", "partial_rotary_factor"),
}


def made(rule, **changed):
    keys = {"rope_type": rule, **RULES[rule], **changed}
    return frequencies(**{key: value for key, value in keys.items() if value is not None})


def close(got, inv_freq, attention_factor=1.0, tolerance=EXACT):
    assert len(got) == len(inv_freq)
    assert got.inv_freq == pytest.approx(inv_freq, rel=tolerance, abs=0)
    assert got.attention_factor == pytest.approx(attention_factor, rel=EXACT, abs=0)


def refused(argument, *args, **keys):
    return str(refused_call(argument, frequencies, *args, **keys))


# ---- The rules, compared with their formulas ----

DIVISORS = RULES["longrope"]["short_factor"], RULES["longrope"]["long_factor"]
SHORT, LONG = (reference.longrope(128, 1e4, each) for each in DIVISORS)
YARN = reference.yarn(128, 1e6, 4.0, 32768, 24, 2, False)[0]
NO_OPTIONS = dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"))
LLAMA3 = reference.llama3(128, 5e5, 8.0, 1.0, 4.0, 8192)
FORMULAS = [  # (rule, changes to RULES, frequencies, attention factor)
    ("default", {}, default(128), 1.0),
    ("default", dict(partial_rotary_factor=0.3), default(38), 1.0),
    ("linear", {}, reference.linear(128, 1e4, 4.0), 1.0),
    *(("dynamic", dict(seq_len=n), reference.dynamic(128, 1e4, 2.0, n or 0, 2048), 1.0)
      for n in (None, 100, 2048, 2049, 30000)),
    ("yarn", {}, YARN, yarn_mscale(4, 0.7) / yarn_mscale(4, 1.3)),
    ("yarn", NO_OPTIONS, *reference.yarn(128, 1e6, 4.0, 32768)),
    ("yarn", dict(attention_factor=0.5), YARN, 0.5),
    *(("yarn", {key: value}, YARN, yarn_mscale(4)) for key in ("mscale", "mscale_all_dim") for value in (None, 0.0)),
    ("yarn", {ORIGINAL: None, "max_position_embeddings": 32768}, YARN, yarn_mscale(4, 0.7) / yarn_mscale(4, 1.3)),
    *(("longrope", dict(seq_len=n), f, longrope_mscale(32, 4096)) for n, f in ((None, SHORT), (4096, SHORT), (4097, LONG))),
    ("longrope", dict(seq_len=4097, attention_factor=1.19), LONG, 1.19),
    ("longrope", dict(attention_factor=1.19, factor=None), SHORT, 1.19),
    ("longrope", dict(factor=None, max_position_embeddings=131072), SHORT, longrope_mscale(32, 4096)),
    ("longrope", dict(factor=0.5), SHORT, 1.0),
    ("longrope", {ORIGINAL: None, "max_position_embeddings": 4096}, SHORT, longrope_mscale(32, 4096)),  # in transformers 4
    ("llama3", {}, LLAMA3, 1.0),
    ("proportional", {}, reference.proportional(128, 1e6, 2.0, 0.25), 1.0),
    ("proportional", dict(factor=None), reference.proportional(128, 1e6, 1.0, 0.25), 1.0),
    ("ntk_alpha", {}, reference.ntk_alpha(128, 1e4, 1000.0), 1.0),
]  # fmt: skip
# Tencent's rule, which RULES does not have. Keys beside alpha are not read.
HUNYUAN = {"rope_type": "dynamic", "rope_theta": 1e4, "head_dim": 128, "alpha": 1000.0, "factor": 1.0, "beta_fast": 32,
           "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip


@pytest.mark.parametrize("rule, changed, inv_freq, attention_factor", FORMULAS, ids=lambda v: str(v)[:30])
def test_rules_match_their_formulas(rule, changed, inv_freq, attention_factor):
    got = frequencies(**HUNYUAN) if rule == "ntk_alpha" else made(rule, **changed)
    close(got, inv_freq, attention_factor)
    assert got.rule == rule and got.rotary_dim == 2 * len(inv_freq)


def test_the_case_of_llama3_has_pairs_of_all_kinds():
    changed = set(LLAMA3) - set(default(128, 5e5))
    assert 20 < len(changed) < 64 and 0 < len(changed - {f / 8 for f in default(128, 5e5)}) < len(changed)


def test_yarn_with_a_null_factor_uses_the_ratio_of_lengths():
    config = {"head_dim": 128, "rope_theta": 1e6, "max_position_embeddings": 131072}
    keys = {key: value for key, value in RULES["yarn"].items() if key in RULE_KEYS["yarn"] and key != "factor"}
    assert frequencies({**config, "rope_scaling": {"rope_type": "yarn", **keys, "factor": None}}) == made("yarn")
    refused("factor", {**config, "rope_scaling": {"rope_type": "yarn", **keys}})


@pytest.mark.parametrize("rule", RULES)
def test_attributes_of_the_result(rule):
    got = made(rule)
    assert (got.rule, len(got), got.rotary_dim) == (rule, 64, 128)
    assert type(got.inv_freq) is tuple and all(type(f) is float for f in got.inv_freq)
    assert type(got.attention_factor) is float
    assert repr(rule) in repr(got)


def test_head_sizes_come_from_the_keys_that_transformers_reads():
    base = {"rope_theta": 10000.0}
    for keys, dim in (
        ({"head_dim": 96}, 96),
        ({"hidden_size": 4096, "num_attention_heads": 32}, 128),
        ({"hidden_size": 4096, "num_attention_heads": 32, "head_dim": 64}, 64),
        ({"n_embd": 4096, "n_head": 16}, 256),
        ({"d_model": 2048, "n_heads": 16}, 128),
        ({"head_dim": 96, "partial_rotary_factor": 0.25}, 24),
        ({"hidden_size": 6144, "num_attention_heads": 64, "rotary_pct": 0.25}, 24),
        ({"hidden_size": 7168, "num_attention_heads": 128, "qk_rope_head_dim": 64}, 64),
        ({"head_dim": 192, "qk_rope_head_dim": 64}, 64),
        ({"head_dim": 128, "qk_rope_head_dim": 64, "partial_rotary_factor": 0.5}, 64),
        ({"head_dim": 128, "qk_rope_head_dim": 32, "model_type": "mistral4"}, 32),
        ({"model_type": "deepseek_v3", "head_dim": 128, "qk_rope_head_dim": 32}, 32),
        ({"model_type": "deepseek_v3"}, 64),
        ({"qk_rope_head_dim": 64, "model_type": "deepseek_v4", "partial_rotary_factor": 0.125}, 64),
        ({"model_type": "deepseek_v4", "partial_rotary_factor": 0.125}, 64),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16}, 128),
        ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "head_dim": 64}, 64),
        ({"model_type": "jetmoe", "hidden_size": 1024, "num_attention_heads": 16, "kv_channels": 128}, 128),
        ({"model_type": "zamba2", "attention_head_dim": 160, "kv_channels": 80, "use_mem_rope": True}, 160),
        ({"model_type": "hunyuan_v1_moe", "hidden_size": 4096, "num_attention_heads": 32, "attention_head_dim": 128}, 128),
        ({"model_type": "glm4", "head_dim": 128}, 64),
        ({"model_type": "glm4", "head_dim": 128, "partial_rotary_factor": 1.0}, 128),
        ({"n_embd": 4096, "n_head": 16, "rotary_dim": 64}, 64),
        ({"rotary_dim": 64}, 64),
        ({"head_dim": 128, "rotary_dim": 64, "partial_rotary_factor": 0.5}, 64),
    ):  # fmt: skip
        close(frequencies({**base, **keys}, rope_type="default"), default(dim))


# ---- Refusals ----


@pytest.mark.parametrize("rule, key", [(rule, key) for rule in RULES for key in NEEDED[rule]])
def test_a_missing_key_is_named(rule, key):
    argument = "max_position_embeddings" if (rule, key) == ("yarn", ORIGINAL) else key
    keys = {name: value for name, value in RULES[rule].items() if name != key}
    refused(argument, rope_type=rule, **keys)
    refused(argument, rope_type=rule, **{**keys, key: None})


UNUSED = [(rule, key) for rule in RULES for key in sorted(ROPE_KEYS.difference(RULE_KEYS[rule], COMMON_KEYS))]


@pytest.mark.parametrize("rule, key", [pair for pair in UNUSED if pair != ("dynamic", "alpha")])
def test_a_key_that_the_rule_does_not_use_is_named(rule, key):
    value = {"truncate": True, "short_factor": [1.0] * 64, "long_factor": [1.0] * 64}.get(key, 2.0)
    if (rule, key) == ("dynamic", ORIGINAL):  # transformers 4 allows this key and does not read it
        assert made(rule, **{key: value}) == made(rule)
    else:
        refused(key, rope_type=rule, **RULES[rule], **{key: value})
    config = {"rope_scaling": {"rope_type": rule, key: None}}
    outside = {name: value for name, value in RULES[rule].items() if name != key}
    assert frequencies(config, **outside).rule == rule  # null means not given


NUMBERS = [(rule, key) for rule in RULES for key, value in RULES[rule].items() if type(value) in (int, float)]


@pytest.mark.parametrize("value", ["8", True, math.nan, math.inf, -math.inf, [], 10**400], ids=lambda v: repr(v)[:5])
@pytest.mark.parametrize("rule, key", NUMBERS)
def test_a_value_that_is_not_a_number_is_named(rule, key, value):
    refused(key, rope_type=rule, **{**RULES[rule], key: value})


@pytest.mark.parametrize("rule, key", NUMBERS)
def test_an_impossible_number_is_named(rule, key):
    refused(key, rope_type=rule, **{**RULES[rule], key: -2})


@pytest.mark.parametrize("rule, key, value", [
    ("default", "rope_theta", 1.0),
    ("default", "rope_theta", 0.0),
    ("default", "head_dim", 0),
    ("default", "head_dim", 127),
    ("default", "head_dim", 128.0),
    ("proportional", "head_dim", 127),
    ("default", "head_dim", 2048),
    ("default", "partial_rotary_factor", 0.0),
    ("default", "partial_rotary_factor", 1.5),
    ("default", "partial_rotary_factor", 0.2),
    ("default", "partial_rotary_factor", 1e-9),
    ("linear", "factor", 0.0),
    ("dynamic", "max_position_embeddings", 1),
    ("dynamic", "max_position_embeddings", 2048.0),
    ("dynamic", "head_dim", 2),
    ("yarn", "truncate", 0),
    ("yarn", "truncate", "false"),
    ("yarn", "attention_factor", 0.0),
    ("yarn", "attention_factor", -1.0),
    ("yarn", "beta_fast", 1.0),
    ("yarn", ORIGINAL, 1.0),
    ("longrope", "factor", 0.0),
    ("longrope", "attention_factor", 0.0),
    ("longrope", "short_factor", [1.0] * 63),
    ("longrope", "short_factor", [1.0] * 128),
    ("longrope", "long_factor", [1.0] * 63 + ["1"]),
    ("longrope", "long_factor", [1.0] * 63 + [math.nan]),
    ("longrope", "long_factor", [1.0] * 63 + [0.0]),
    ("longrope", "long_factor", "1" * 64),
    ("llama3", "high_freq_factor", 1.0),
    ("llama3", "low_freq_factor", 0.0),
    ("proportional", "factor", 0.0),
    ("proportional", "partial_rotary_factor", 1.01),
])  # fmt: skip
def test_an_impossible_value_is_named(rule, key, value):
    refused(key, rope_type=rule, **{**RULES[rule], key: value})


@pytest.mark.parametrize("rule", RULES)
def test_seq_len_is_only_for_rules_that_use_it(rule):
    if rule in ("dynamic", "longrope"):
        for value in (0, -1, 2.0, True, "5"):
            refused("seq_len", rope_type=rule, **RULES[rule], seq_len=value)
    else:
        refused("seq_len", rope_type=rule, **RULES[rule], seq_len=4096)


BASE = {"head_dim": 64, "rope_theta": 1e4}


def scaled(**rope):
    return {**BASE, "rope_scaling": rope}


@pytest.mark.parametrize("name", ["ntk", "axial", "Default", "", 3, ["yarn"]])
def test_an_unknown_rule_is_named_with_all_known_rules(name):
    for key in ("rope_type", "type"):
        message = refused("rope_type", scaled(**{key: name}))
        assert repr(name) in message and all(repr(rule) in message for rule in RULES)
    refused("rope_type", rope_type=name, **BASE)


def test_mrope_is_the_same_type_as_default():
    both = {"type": "mrope", "rope_type": "default", "mrope_section": [16, 8, 8]}  # Qwen2-VL, in transformers 4.5x
    assert frequencies(scaled(**both)).rule == "default"


@pytest.mark.parametrize("key, value", [
    ("mrope_section", [16, 8, 8]), ("mrope_interleaved", True), ("interleaved", True), ("xdrope_section", [8] * 4),
    ("llama_4_scaling_beta", 0.1), ("finetuned", True), ("max_position_embeddings", 9),
])  # fmt: skip
def test_keys_without_effect_on_frequencies_are_accepted(key, value):
    config = {"head_dim": 64, "rope_theta": 1e4}
    assert frequencies({**config, "rope_scaling": {"type": "default", key: value}}) == frequencies(config)


def test_the_rule_may_repeat_the_length_of_the_config():
    rope = {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 2048}
    assert frequencies({**BASE, "max_position_embeddings": 2048, "rope_scaling": rope}).rule == "dynamic"


def test_the_original_length_may_be_beside_the_rope_dict_but_must_not_contradict_it():
    config = {"head_dim": 128, "rope_theta": 500000.0, ORIGINAL: 8192}
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    assert frequencies({**config, "rope_scaling": rope}) == made("llama3")
    assert frequencies({**config, "rope_scaling": {**rope, ORIGINAL: 8192}}) == made("llama3")
    message = refused(ORIGINAL, {**config, "rope_scaling": {**rope, ORIGINAL: 64}})
    assert "8192" in message and "64" in message
    assert frequencies({"head_dim": 64, "rope_theta": 1e4, ORIGINAL: 4096}).rule == "default"  # Phi-3-mini-4k


NO_DICTS, NO_LISTS = [3, True, "text", [], [{}], b"x"], [3, "text", {}, True]
BAD_LAYERS = [3, "text", [], {"x": {}}, {"0": 3}, {"-1": {}}, {"7": {"head_dim": 64}}, {None: {}}, {"0": None}]
BAD_SIZES = ["x", True, 2.5, 0, -1, []]
LENGTHS = {**BASE, "max_position_embeddings": 2048}
TWO_LAYERS = {**BASE, "layer_types": ["a", "b"]}
DYNAMIC = {"type": "dynamic", "factor": 2.0}
LISTS = {"short_factor": [1.0] * 32, "long_factor": [1.0] * 32}
UNREADABLE = [  # (argument that the error names, config)
    # Keys of the rope dict.
    ("type", scaled(type="linear", rope_type="dynamic", factor=2.0)),
    *((key, scaled(rope_type="default", **{key: 1.0}))
      for key in ("foo", "short_mscale", "attn_factor", "factors", "rope_thetas")),
    ("factor", scaled(factor=8.0)),  # without a type
    ("max_position_embeddings", {**LENGTHS, "rope_scaling": {**DYNAMIC, "max_position_embeddings": 4096}}),
    ("alpha", {**LENGTHS, "model_type": "llama", "rope_scaling": {**DYNAMIC, "alpha": 2.0}}),
    *((ORIGINAL, {**LENGTHS, "rope_scaling": {"rope_type": rule, "factor": None, ORIGINAL: value, **lists}})
      for rule, lists in (("yarn", {}), ("longrope", LISTS)) for value in (0, -1, 0.0)),
    ("full_attention", {**BASE, "rope_parameters": {"full_attention": None}}),  # null is not a layer type
    # Sizes of heads.
    ("head_dim", {"hidden_size": 4096, "rope_theta": 1e4}),
    ("head_dim", {"num_attention_heads": 32, "rope_theta": 1e4}),
    ("attention_head_dim", {**BASE, "attention_head_dim": 128}),
    ("attention_head_dim", {"hidden_size": 4096, "num_attention_heads": 32, "attention_head_dim": 64, "rope_theta": 1e4,
                            "model_type": "hunyuan_v1_moe"}),
    ("n_embd", {"hidden_size": 1024, "n_embd": 2048, "n_head": 8, "rope_theta": 1e4}),
    ("qk_rope_head_dim", {**BASE, "head_dim": 192, "qk_rope_head_dim": 64, "partial_rotary_factor": 0.5}),
    ("qk_rope_head_dim", {**BASE, "qk_rope_head_dim": 0}),
    ("rotary_dim", {**BASE, "head_dim": 128, "rotary_dim": 64, "partial_rotary_factor": 0.25}),
    ("rotary_dim", {**BASE, "head_dim": 128, "rotary_dim": 64, "model_type": "minimax_m3_vl_text"}),
    ("qk_rope_head_dim", {"rotary_dim": 64, "qk_rope_head_dim": 32, "rope_theta": 1e4}),
    ("head_dim", {"model_type": "zamba2", "hidden_size": 2560, "num_attention_heads": 32, "use_mem_rope": True,
                  "rope_theta": 1e4}),
    # Keys that contradict each other, or that change a rotation in ways that one list of frequencies cannot express.
    ("rope_scaling", {**scaled(type="linear", factor=2.0), "rope_parameters": {"rope_type": "default"}}),
    ("rotary_emb_base", {**BASE, "rotary_emb_base": 5e4}),
    ("rotary_pct", {**BASE, "partial_rotary_factor": 0.5, "rotary_pct": 0.25}),
    ("rope_ratio", {**BASE, "rope_ratio": 2.0}),
    ("swa_rope_theta", {**BASE, "swa_rope_theta": 2.0}),
    ("layer_rope_theta", {**BASE, "layer_rope_theta": [1e4, 5e5]}),
    ("partial_rotary_factor", {**scaled(type="default"), "model_type": "neomme"}),
    ("model_type", {**BASE, "model_type": "pixtral"}),
    # Values of a wrong type.
    *((key, {**BASE, key: value}) for value in NO_DICTS for key in ("text_config", "rope_scaling", "rope_parameters")),
    *(("per_layer_config", {**TWO_LAYERS, "per_layer_config": value}) for value in BAD_LAYERS),
    ("head_dim", {**TWO_LAYERS, "per_layer_config": {"0": {"head_dim": "64"}}}),
    *((key, {**BASE, key: value})
      for key in ("layer_rope_theta", "rope_scaling_layers", "no_rope_layers") for value in NO_LISTS),
    *(("layer_types", {**BASE, "per_layer_config": {}, "layer_types": value}) for value in NO_LISTS),
    *(("model_type", {**BASE, "model_type": value}) for value in (3, [], {}, True, b"llama")),
    # Objects that are not configs.
    *(("config", config) for config in (3, 1.5, True, [1], b"config.json", (), {1}, frozenset(), "a\0b")),
]  # fmt: skip


@pytest.mark.parametrize("argument, config", UNREADABLE, ids=lambda v: str(v)[:40])
def test_the_error_of_an_unreadable_config_names_the_key(argument, config):
    refused(argument, config)


def test_the_error_of_a_missing_size_names_all_keys_that_can_give_it():
    message = refused("head_dim", {"hidden_size": 4096, "rope_theta": 1e4})
    assert all(key in message for key in ("hidden_size", "num_attention_heads", "qk_rope_head_dim", "n_embd"))


LONGROPE = {**RULES["longrope"], "rope_type": "longrope"}
BAD_KEYWORDS = [  # calls without a config: (argument that the error names, all keywords)
    ("max_position_embeddings", dict(rope_type="yarn", factor=2.0, **BASE)),
    (ORIGINAL, {**LONGROPE, "max_position_embeddings": 4096, ORIGINAL: None, "factor": None}),
    ("seq_len", {**HUNYUAN, "seq_len": 5}),
    *((key, {**BASE, key: 1.0}) for key in ("foo", "short_mscale", "attn_factor", "factors", "rope_thetas")),
    *(("layer_type", {**BASE, "layer_type": value}) for value in (5, [], True, b"full_attention", {})),
    *((key, {**BASE, key: value})  # checked even if the rule does not use them
      for key in ("max_position_embeddings", "hidden_size", "num_attention_heads") for value in BAD_SIZES),
    ("alpha", dict(rope_type="dynamic", rope_theta=1e4, head_dim=4, alpha=1e300)),
    ("inv_freq", {**LONGROPE, "short_factor": [1e-30] * 64}),  # the resulting frequencies are too large
]  # fmt: skip


@pytest.mark.parametrize("argument, keywords", BAD_KEYWORDS, ids=lambda v: str(v)[:40])
def test_the_error_of_an_impossible_keyword_names_it(argument, keywords):
    refused(argument, **keywords)


def test_layers_that_are_not_scaled_are_refused():
    config = {"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 3, "rope_scaling": {"type": "linear", "factor": 2.0}}
    refused("rope_scaling_layers", {**config, "rope_scaling_layers": [1]})
    assert frequencies({**config, "rope_scaling_layers": [0, 1, 2]}) == frequencies(config)
    assert frequencies({**config, "rope_scaling": None, "rope_scaling_layers": [1]}).rule == "default"


def test_layers_may_have_the_same_base_or_no_rotation():
    config = {"head_dim": 64, "rope_theta": 1e4, "layer_rope_theta": [1e4, 0, 1e4]}  # 0: a layer without rotation
    close(frequencies(config), default(64))


def config_class(to_dict):
    return type("Config", (), {"to_dict": to_dict})


def test_unreadable_config_files_and_empty_objects_are_refused(tmp_path):
    for text in (b"[1]", b"{", b"3", b"[" * 100000, b'"\xff"'):
        path = tmp_path / "config.json"
        path.write_bytes(text)
        refused("config", path)
    refused("head_dim", object())
    for missing in ("none.json", "none"):
        with pytest.raises(FileNotFoundError):
            frequencies(str(tmp_path / missing))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):
        frequencies(tmp_path / "empty")


def test_a_config_object_that_cannot_be_read_is_refused():
    for returned in (None, 3, [1], "text"):
        refused("config", config_class(lambda self, returned=returned: returned)())
    message = refused("config", config_class(lambda self: 1 / 0)())
    assert "ZeroDivisionError" in message
    refused("config", config_class(lambda self: {}))  # the class instead of an instance
    failing = type("Config", (), {"head_dim": property(lambda self: 1 / 0)})
    refused("head_dim", failing())


def test_the_error_of_an_unknown_keyword_has_a_hint():
    typos = {"rope_teta": "rope_theta", "headdim": "head_dim", "partial_rotary_factors": "partial_rotary_factor"}
    for wrong, right in typos.items():
        assert "did you mean %s?" % right in refused(wrong, rope_theta=1e4, head_dim=64, **{wrong: 1})
    assert "did you mean" not in refused("zzz", zzz=1)
    config = {"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factr": 2.0}}
    assert "did you mean factor?" in refused("factr", config)


class NoAnswer:  # like an array, its comparisons have no truth value
    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("no truth value")

    def __repr__(self):
        raise RuntimeError("no repr")


RUBBISH = [
    None, True, False, 0, 1, -1, 1.5, 0.0, -0.0, math.nan, math.inf, 10**400, "", "x", "10000", b"x", [], [1], [None], (),
    {}, {"a": 1}, {"full_attention": {}}, {0: None}, {None: {}}, [[]], set(), object(), NoAnswer(), 1j, range(3), type, len,
]  # fmt: skip
ANY_KEY = sorted(ROPE_KEYS.union(SIZE_KEYS, IGNORED_KEYS, ROTATES, UNREADABLE_KEYS, *FALLBACKS.values())) + [
    "model_type", "text_config", "rope_scaling", "rope_parameters", "per_layer_config", "global_head_dim", "layer_types",
    "layer_rope_theta", "rope_scaling_layers", "num_hidden_layers", "no_rope_layers", "no_rope_layer_interval",
    "kv_channels", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "vision_config", "full_attention",
]  # fmt: skip
MODEL_TYPES = "gemma3_text gemma4_text hunyuan_vl jetmoe llama modernbert olmo3 phi3 qwen2".split()


def spoil(generator, config, depth=0):
    """The config with some values replaced by rubbish, also in nested dicts."""
    spoiled = {}
    for key, value in config.items():
        spoiled[key] = spoil(generator, value, depth + 1) if isinstance(value, dict) else value
    for _ in range(generator.choice([0, 0, 0, 1, 2])):
        key = generator.choice(ANY_KEY if generator.random() < 0.5 or not spoiled else list(spoiled))
        nested = depth < 2 and generator.random() < 0.2
        spoiled[key] = spoil(generator, {}, depth + 1) if nested else generator.choice(RUBBISH)
    return spoiled


@pytest.mark.parametrize("seed", range(20))
def test_random_configs_and_keywords_raise_only_trope_errors(seed):
    generator = random.Random(seed)
    taken = refusals = 0
    for _ in range(300):
        rule, layered = generator.choice(list(RULES)), generator.random() < 0.5
        rope = {"rope_type": rule, **{key: value for key, value in RULES[rule].items() if key in ROPE_KEYS}}
        rope = {"full_attention": rope, "sliding_attention": {"rope_theta": 1e4}} if layered else rope
        config = {"head_dim": 128, "max_position_embeddings": 2048, "model_type": generator.choice(MODEL_TYPES)}
        config = spoil(generator, {**config, generator.choice(["rope_scaling", "rope_parameters"]): rope})
        form = generator.choice([lambda c: c, lambda c: {"text_config": c}, lambda c: config_class(lambda self: c)()])
        keys = {"layer_type": "full_attention"} if layered else {}
        if generator.random() < 0.3:
            keys[generator.choice([*ANY_KEY, "layer_type", "seq_len"])] = generator.choice(RUBBISH)
        try:
            frequencies(form(config), **keys)
            taken += 1
        except Error as error:
            assert isinstance(error.argument, str) and error.argument
            refusals += 1
    assert taken > 20 and refusals > 100


def test_all_forms_of_a_config_give_the_same_frequencies(tmp_path):
    config = {"head_dim": 64, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}}
    expected = frequencies(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with_dict = type("Config", (), {"to_dict": lambda self: dict(config)})()
    attributes = SimpleNamespace(**config)
    new = {"head_dim": 64, "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2}}
    file = tmp_path / "config.json"
    for form in (tmp_path, str(tmp_path), file, str(file), with_dict, attributes, new):
        assert frequencies(form) == expected
    assert frequencies(head_dim=64, rope_theta=1e4, rope_type="linear", factor=2) == expected


# ---- Two rope dicts in a config ----

IN_BOTH = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 64}
WITH_BASE = {**IN_BOTH, "rope_theta": 1e4}


@pytest.mark.parametrize("old, new", [
    (IN_BOTH, WITH_BASE), (WITH_BASE, IN_BOTH), (WITH_BASE, WITH_BASE), ({**IN_BOTH, "mscale": None}, WITH_BASE),
    ({**{key: IN_BOTH[key] for key in IN_BOTH if key != "rope_type"}, "type": "yarn"}, WITH_BASE),
])  # fmt: skip
def test_two_rope_dicts_may_say_the_same(old, new):
    expected = frequencies({**BASE, "rope_scaling": IN_BOTH})
    assert frequencies({**BASE, "rope_scaling": old, "rope_parameters": new}) == expected


@pytest.mark.parametrize("old, new, words", [
    ({**WITH_BASE, "factor": 2.0}, WITH_BASE, ["factor: 2.0", "factor: 4.0"]),
    ({**WITH_BASE, "rope_theta": 5e5}, WITH_BASE, ["rope_theta: 500000.0", "rope_theta: 10000.0"]),
    (WITH_BASE, {"rope_type": "default", "rope_theta": 1e4}, ["rope_type: 'yarn'", "rope_type: 'default'"]),
    ({**IN_BOTH, "beta_fast": 24}, WITH_BASE, ["beta_fast: 24", "no beta_fast"]),
    ({"rope_type": "linear", "factor": 2.0}, {"full_attention": IN_BOTH}, ["no ", ": "]),
])  # fmt: skip
def test_the_error_of_two_rope_dicts_shows_what_differs(old, new, words):
    message = refused("rope_scaling", {**BASE, "rope_scaling": old, "rope_parameters": new})
    assert all(word in message for word in words + ["rope_parameters"]), message


def test_a_base_in_one_of_two_rope_dicts_only_is_refused_without_the_same_base_beside_them():
    config = {"head_dim": 64, "rope_scaling": IN_BOTH, "rope_parameters": WITH_BASE}  # transformers would not use this base
    assert "no rope_theta" in refused("rope_scaling", config)
    text = {**BASE, "rope_scaling": {**IN_BOTH, "factor": 2.0}}
    message = refused("rope_scaling", {"text_config": text, "rope_scaling": IN_BOTH})
    assert "factor: 4.0" in message and "factor: 2.0" in message


# ---- Keywords beside a config ----


@pytest.mark.parametrize("rule", RULES)
def test_keywords_complete_the_config(rule):
    expected = made(rule)
    keys = {"rope_type": rule, **RULES[rule]}
    for added in keys:
        rope = {key: value for key, value in keys.items() if key in ROPE_KEYS and key != added}
        config = {key: value for key, value in keys.items() if key not in ROPE_KEYS and key != added}
        for name in ("rope_scaling", "rope_parameters"):
            assert frequencies({**config, name: rope}, **{added: keys[added]}) == expected, added


@pytest.mark.parametrize("rule", RULES)
def test_keywords_must_not_contradict_the_config(rule):
    keys = {"rope_type": rule, **RULES[rule]}
    rope = {key: value for key, value in keys.items() if key in ROPE_KEYS}
    config = {**{key: value for key, value in keys.items() if key not in ROPE_KEYS}, "rope_scaling": rope}
    before = copy.deepcopy(config)
    assert frequencies(config, **keys) == made(rule)
    for key in keys:
        other = {"rope_type": "linear" if rule != "linear" else "default", "truncate": True}.get(key, 17)
        refused(key, config, **{key: other})
    assert config == before  # the config is unchanged


def test_keywords_must_not_contradict_keys_of_the_config_itself():
    config = {"head_dim": 64, "rotary_emb_base": 1e4, "rotary_pct": 0.5, ORIGINAL: 4096}
    assert frequencies(config, rope_theta=1e4, partial_rotary_factor=0.5) == frequencies(config)
    refused("rope_theta", config, rope_theta=2e4)
    refused("partial_rotary_factor", config, partial_rotary_factor=1.0)
    refused(ORIGINAL, config, rope_type="yarn", factor=2.0, **{ORIGINAL: 8192})


def test_old_names_of_rules_are_accepted():
    keys = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 2.0, ORIGINAL: 64}
    config = {"head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 128}
    expected = frequencies({**config, "rope_scaling": {"rope_type": "longrope", **keys}})
    for names in ({"type": "su"}, {"rope_type": "su"}, {"type": "su", "rope_type": "longrope"}):
        assert frequencies({**config, "rope_scaling": {**names, **keys}}, rope_type="longrope") == expected
        assert frequencies({**config, "rope_scaling": {**names, **keys}}, rope_type="su") == expected
    assert frequencies({**config, "model_type": "phi3", "rope_scaling": {"type": "yarn", **keys}}) == expected
    refused("short_factor", {**config, "rope_scaling": {"type": "yarn", **keys}})
    assert frequencies({**config, "rope_scaling": {"type": "mrope"}}).rule == "default"
    assert frequencies({**config, "rope_scaling": {"type": "xdrope", "alpha": 9.0}}).rule == "ntk_alpha"
    assert frequencies({**config, "rope_scaling": {"type": "deepseek_yarn", "factor": 2.0}}).rule == "yarn"


# ---- The class ----


def test_given_frequencies_are_not_changed():
    got = Frequencies([1, 0.5, -0.25, 0.0], attention_factor=2)
    assert (got.inv_freq, got.attention_factor, got.rotary_dim, got.rule) == ((1.0, 0.5, -0.25, 0.0), 2.0, 8, "given")
    numpy = pytest.importorskip("numpy")
    assert type(Frequencies([1.0], numpy.float32(2)).attention_factor) is float
    assert Frequencies(numpy.array([1, 0.5, -0.25, 0.0]), attention_factor=numpy.float32(2)) == got
    assert Frequencies(numpy.array([0.1], dtype="f4")).inv_freq == (float(numpy.float32(0.1)),)


class NumPyHasNoSuch:  # an array as from ml_dtypes and other libraries
    def __init__(self, dtype, values=(1.0, 0.5), **attributes):
        self.dtype, self.shape, self.values = dtype, (len(values),), values
        vars(self).update(attributes)

    def tolist(self):
        return list(self.values)


def refused_list(inv_freq, *words):
    for make, argument in ((Frequencies, "inv_freq"), (lambda given: frequency_list(given, "angles"), "angles")):
        with pytest.raises(Error) as caught:
            make(inv_freq)
        assert caught.value.argument == argument
        assert all(word in str(caught.value) for word in (argument, *words)), str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64", "object"])
def test_arrays_that_are_not_float32_or_float64_are_refused_by_dtype(dtype):
    refused_list(NumPyHasNoSuch(dtype), dtype, "float32 or float64")
    refused_list(NumPyHasNoSuch(SimpleNamespace(name=dtype)), dtype, "float32 or float64")
    refused_list(NumPyHasNoSuch("torch." + dtype), "has dtype %s:" % dtype)


def test_numpy_arrays_are_refused_by_dtype_and_shape():
    numpy = pytest.importorskip("numpy")
    for dtype in ("float16", "int32", "int64", "bool", "complex64", "complex128", "object", "U3"):
        refused_list(numpy.ones(4, dtype=dtype), "float32 or float64")
    refused_list(numpy.ones((1, 4)), "[1, 4]")
    refused_list(numpy.ones(()), "[]")
    refused_list(numpy.ones(0), "1 to 512")
    refused_list([numpy.float16(1)], "float16")
    refused_list([numpy.bool_(True)])
    refused_list([numpy.ones(2)])
    assert frequency_list([numpy.float32(0.5), numpy.float64(2), numpy.int64(3)]) == (0.5, 2.0, 3.0)
    for order in "<>":
        assert frequency_list(numpy.array([0.5, 2], dtype=order + "f4")) == (0.5, 2.0)


def test_ml_dtypes_are_refused():
    numpy, ml_dtypes = pytest.importorskip("numpy"), pytest.importorskip("ml_dtypes")
    refused_list(numpy.ones(4, dtype=ml_dtypes.bfloat16), "bfloat16")
    refused_list([ml_dtypes.bfloat16(1)], "bfloat16")


def test_torch_tensors_are_refused_by_dtype_shape_and_device():
    torch = pytest.importorskip("torch")
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool", "complex64"):
        refused_list(torch.ones(4).to(getattr(torch, dtype)), dtype, "float32 or float64")
    refused_list(torch.ones(2, 2), "[2, 2]")
    refused_list(torch.ones(()), "[]")
    refused_list(torch.ones(4, device="meta"), "meta", "CPU tensor", "trope.frequencies")
    refused_list([torch.tensor(1.0)])
    refused_list(torch.tensor([1.0, math.nan]))
    assert frequency_list(torch.tensor([0.5, 2.0], requires_grad=True)) == (0.5, 2.0)
    if torch.cuda.is_available():
        refused_list(torch.ones(4, device="cuda"), "cuda", "CPU tensor", "trope.frequencies")


def test_arrays_on_other_devices_or_without_values_are_refused():
    refused_list(NumPyHasNoSuch("float32", __cuda_array_interface__={}), "cuda", "CPU tensor")
    refused_list(NumPyHasNoSuch("float32", device=SimpleNamespace(type="xpu")), "xpu", "CPU tensor")
    refused_list(NumPyHasNoSuch("float32", tolist=None), "CPU tensor")  # like a traced tensor, whose tolist fails


@pytest.mark.parametrize("given", [
    None, 1.0, 1j, "1.0", b"12", bytearray(b"12"), {1.0: 2.0}, {1.0, 2.0}, frozenset([1.0]), object(), Frequencies, True,
    [None], ["1"], [1j], [True], [[1.0]], [[1.0, 2.0], [3.0]], [()], [object()], [10**400], [math.nan], [math.inf],
    [], (), [1.0] * 513, iter("ab"),
], ids=lambda given: repr(given)[:12])  # fmt: skip
def test_values_that_are_not_a_list_of_numbers_are_refused(given):
    refused_list(given)


def test_iterators_are_read_once_and_may_fail():
    assert frequency_list(1 / i for i in (1, 2)) == (1.0, 0.5)
    refused_list(itertools.count(1.0), "1 to 512")
    with pytest.raises(Error, match="ZeroDivisionError"):
        frequency_list(1 / i for i in (1, 0))


@pytest.mark.parametrize("argument, value", [
    ("attention_factor", 0.0), ("attention_factor", math.nan), ("attention_factor", None), ("attention_factor", "1"),
    ("rule", None), ("inv_freq", [2.0**64]),
])  # fmt: skip
def test_impossible_frequencies_are_refused(argument, value):
    refused_call(argument, Frequencies, **{"inv_freq": [1.0], argument: value})


def test_frequencies_cannot_be_changed():
    got = made("yarn")
    for name in (*Frequencies.__slots__, "phase_steps", "other"):
        with pytest.raises(AttributeError):
            setattr(got, name, 1)
        with pytest.raises(AttributeError):
            delattr(got, name)


def test_equal_frequencies_are_the_same_dict_key():
    everything = [made(rule) for rule in RULES]
    assert len(set(everything)) == len(everything)
    assert {made(rule): rule for rule in RULES} == dict(zip(everything, RULES))
    assert [hash(made(rule)) for rule in RULES] == [hash(got) for got in everything]
    got = Frequencies([1.0, 0.5])
    for other in (Frequencies([1.0, 0.25]), Frequencies([1.0]), Frequencies([1.0, 0.5], 2.0),
                  Frequencies([1.0, 0.5], 1.0, "x"), (1.0, 0.5), None):
        assert got != other and not got == other


# pi to 60 digits.
PI = Fraction(3141592653589793238462643383279502884197169399375105820974944, 10**60)


def steps_of(inv_freq):
    """round(2^64 f / 2 pi) modulo 2^64, exactly."""
    return [round(2**64 * Fraction(f) / (2 * PI)) % 2**64 for f in inv_freq]


@pytest.mark.parametrize("rule", RULES)
def test_phase_steps_are_computed_once(rule):
    got = made(rule)
    assert got.phase_steps is got.phase_steps
    assert got.phase_steps._type_ is ctypes.c_uint64
    assert list(got.phase_steps) == steps_of(got.inv_freq)
    given = Frequencies([-1.0, 3.0, 1e9, 1.5e19, 1e-30])
    assert list(given.phase_steps) == steps_of(given.inv_freq)


@pytest.mark.parametrize("again", [lambda got: pickle.loads(pickle.dumps(got)), copy.copy, copy.deepcopy] +
                         [lambda got, protocol=p: pickle.loads(pickle.dumps(got, protocol)) for p in (2, 3, 4, 5)])
def test_pickled_and_copied_frequencies_are_the_same(again):
    for rule in RULES:
        got, other = made(rule), again(made(rule))
        assert type(other) is Frequencies and other == got and hash(other) == hash(got) and repr(other) == repr(got)
        assert list(other.phase_steps) == list(got.phase_steps)
    assert b"phase" not in pickle.dumps(got)


PROGRAM = """
import os, pickle, sys
from trope.frequencies import frequencies
heavy = {"numpy", "torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
got = frequencies(rope_type="linear", rope_theta=10000.0, head_dim=64, factor=3.0)
reader, writer = os.pipe()
child = os.fork()
if not child:
    other = frequencies(rope_type="linear", rope_theta=10000.0, head_dim=64, factor=3.0)
    ok = got == other and bytes(got.phase_steps) == bytes(other.phase_steps)
    os.write(writer, pickle.dumps(got if ok else None))
    os._exit(0)
os.close(writer)
data = b"".join(iter(lambda: os.read(reader, 65536), b""))
os.waitpid(child, 0)
assert pickle.loads(data) == got
print(hash(got))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_frequencies_survive_fork_and_pickle_without_heavy_imports():
    package = str(pathlib.Path(sys.modules["trope"].__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": package, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
