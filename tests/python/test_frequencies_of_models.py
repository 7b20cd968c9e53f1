"""trope.frequencies: configs of many models compared with transformers, configs with several layer types, and nested
configs.

transformers computes inv_freq in float32, trope in double. RTOL bounds the error of float32. The power base^x has an error
of ln(base) * 2^-25, because x, which is below 1, is rounded with an error of up to 2^-25. This is 5e-7 for the largest base
here (1e7). The power itself and the reciprocal add 1e-7 each. Where llama3 blends f / 8 with f, these errors grow by a
factor of up to 7 / 3. The largest error seen is 3.3e-7. Attention factors are Python floats in transformers too.
"""

import copy
import functools
import importlib
import json
import os
import sys
from types import SimpleNamespace

import pytest
from reference import default, linear, yarn
from test_frequencies import ORIGINAL, close, divisors, refused

from trope import Error
from trope._config_keys import NO_ROTATION, OTHER_ROTATION, ROTATES
from trope.frequencies import frequencies

RTOL = 2e-6

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 8192, "rope_type": "llama3"}
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 2,
         "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0}  # fmt: skip
PHI3 = {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32,
        "num_hidden_layers": 2, "max_position_embeddings": 131072, ORIGINAL: 4096, "rope_theta": 10000.0,
        "pad_token_id": 0}  # fmt: skip
DEEPSEEK = {"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
            "num_hidden_layers": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "max_position_embeddings": 163840, "rope_theta": 10000}  # fmt: skip
OLMO3 = {"model_type": "olmo3", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4,
         "max_position_embeddings": 65536, "rope_theta": 500000}  # fmt: skip
YARN_OLMO3 = {"rope_type": "yarn", "factor": 8.0, ORIGINAL: 8192, "beta_fast": 32.0, "beta_slow": 1.0,
              "attention_factor": 1.2079441541679836}  # fmt: skip
BOTH = ("full_attention", "sliding_attention")

# {name: (config, layer types or lengths to test)}. These are released configs, in the form of transformers 4 or 5. They are
# cut to a few layers and to the keys that decide frequencies.
FAMILIES = {
    "Llama 2": ({**LLAMA, "rope_theta": 10000.0, "rope_scaling": None}, {}),
    "Llama 3.1": ({**LLAMA, "rope_scaling": LLAMA3}, {}),
    "Llama, linear by its old name": ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}, {}),
    "Llama, dynamic": ({**LLAMA, "max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
                       {"seq_len": (None, 100, 4096, 4097, 100000)}),
    "Qwen 2.5, YaRN": ({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 2,
                        "max_position_embeddings": 32768, "rope_theta": 1000000.0,
                        "rope_scaling": {"type": "yarn", "factor": 4.0, ORIGINAL: 32768}}, {}),
    "Qwen 3": ({"model_type": "qwen3", "head_dim": 128, "hidden_size": 1024, "num_attention_heads": 16,
                "num_hidden_layers": 2, "rope_scaling": None, "max_position_embeddings": 40960, "rope_theta": 1000000}, {}),
    "Qwen 3 without head_dim": ({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16,
                                 "num_hidden_layers": 2, "rope_theta": 1000000}, {}),
    "DeepSeek V3": ({**DEEPSEEK, "rope_scaling": {"type": "yarn", "factor": 40, ORIGINAL: 4096, "beta_fast": 32,
                                                  "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}, {}),
    "DeepSeek V2's mscale": ({**DEEPSEEK, "rope_scaling": {"type": "yarn", "factor": 40, ORIGINAL: 4096, "beta_fast": 32,
                                                           "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0}}, {}),
    "DeepSeek, null factor": ({**DEEPSEEK, "rope_scaling": {"rope_type": "yarn", "factor": None, ORIGINAL: 4096}}, {}),
    "Phi-3-mini-128k": ({**PHI3, "rope_scaling": {"type": "longrope", "short_factor": divisors(48, 3),
                                                  "long_factor": divisors(48, 4)}},
                        {"seq_len": (None, 4096, 4097, 131072)}),
    "Phi-3, yarn that is LongRoPE": ({**PHI3, "rope_scaling": {"type": "yarn", "short_factor": divisors(48, 3),
                                                               "long_factor": divisors(48, 4)}}, {"seq_len": (None, 4097)}),
    "Phi-3-mini-4k": ({**PHI3, "max_position_embeddings": 4096, "rope_scaling": None}, {}),
    "Phi-4-mini": ({**PHI3, "num_attention_heads": 24, "partial_rotary_factor": 0.75,
                    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": divisors(48, 5)}},
                   {"seq_len": (None, 5000)}),
    "Gemma 3 12B": ({"model_type": "gemma3", "text_config": {
        "model_type": "gemma3_text", "hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8,
        "num_hidden_layers": 12, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16}},
        {"layer_type": BOTH}),
    "Gemma 3 27B": ({"model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "num_attention_heads": 32,
                     "num_hidden_layers": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                     "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {"layer_type": BOTH}),
    "Gemma 3, transformers 5": ({"model_type": "gemma3_text", "head_dim": 256, "hidden_size": 2560, "num_hidden_layers": 6,
                                 "num_attention_heads": 8, "rope_parameters": {
                                     "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                                     "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
                                {"layer_type": BOTH}),
    "Gemma 4": ({"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "hidden_size": 2560,
                 "num_attention_heads": 8, "num_hidden_layers": 6, "rope_parameters": {
                     "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                     "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, {"layer_type": BOTH}),
    "Gemma 4, one head_dim": ({"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 256, "hidden_size": 2560,
                               "num_attention_heads": 8, "num_hidden_layers": 6, "rope_parameters": {
                                   "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "factor": 4.0,
                                                      "partial_rotary_factor": 0.5},
                                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
                              {"layer_type": BOTH}),
    "gpt-oss": ({"model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "num_attention_heads": 64,
                 "num_hidden_layers": 2, "max_position_embeddings": 131072, "rope_theta": 150000, "rope_scaling": {
                     "rope_type": "yarn", "factor": 32.0, ORIGINAL: 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                     "truncate": False}}, {}),
    "GPT-NeoX 20B": ({"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 2,
                      "max_position_embeddings": 2048, "rotary_emb_base": 10000, "rotary_pct": 0.25}, {}),
    "Pythia without rotary_pct": ({"model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 16,
                                   "num_hidden_layers": 2, "rotary_emb_base": 10000}, {}),
    "GLM-4": ({"model_type": "glm4", "head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32,
               "num_hidden_layers": 2, "partial_rotary_factor": 0.5, "rope_theta": 10000.0}, {}),
    "GLM-4 without partial_rotary_factor": ({"model_type": "glm4", "head_dim": 128, "hidden_size": 4096,
                                             "num_attention_heads": 32, "num_hidden_layers": 2, "rope_theta": 10000.0}, {}),
    "Qwen2-VL": ({"model_type": "qwen2_vl", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 2,
                  "max_position_embeddings": 32768, "rope_theta": 1000000.0, "vision_config": {"embed_dim": 1280},
                  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, {}),
    "Qwen3-VL": ({"model_type": "qwen3_vl", "text_config": {
        "model_type": "qwen3_vl_text", "head_dim": 128, "hidden_size": 2560, "num_attention_heads": 32,
        "num_hidden_layers": 2, "rope_theta": 5000000, "rope_scaling": {
            "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}}}, {}),
    "Qwen3-Next": ({"model_type": "qwen3_next", "head_dim": 256, "hidden_size": 2048, "num_attention_heads": 16,
                    "num_hidden_layers": 4, "partial_rotary_factor": 0.25, "rope_theta": 10000000}, {}),
    "StableLM": ({"model_type": "stablelm", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 2,
                  "partial_rotary_factor": 0.25, "rope_theta": 10000}, {}),
    "Persimmon": ({"model_type": "persimmon", "hidden_size": 4096, "num_attention_heads": 64, "num_hidden_layers": 2,
                   "partial_rotary_factor": 0.5, "rope_theta": 25000.0}, {}),
    "Phi-2": ({"model_type": "phi", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 2,
               "partial_rotary_factor": 0.4, "rope_theta": 10000.0}, {}),
    "MiniMax M2": ({"model_type": "minimax_m2", "head_dim": 128, "hidden_size": 3072, "num_attention_heads": 48,
                    "num_hidden_layers": 2, "rotary_dim": 64, "rope_theta": 5000000}, {}),
    "HunYuan": ({"model_type": "hunyuan_v1_dense", "head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32,
                 "num_hidden_layers": 2, "max_position_embeddings": 32768, "rope_theta": 10000.0, "rope_scaling": {
                     "type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                     "mscale_all_dim": 1.0}}, {}),
    "OLMo 3": ({**OLMO3, "rope_scaling": YARN_OLMO3}, {"layer_type": BOTH}),
    "OLMo 3, transformers 5": ({**{key: OLMO3[key] for key in OLMO3 if key != "rope_theta"}, "rope_parameters": {
        "full_attention": {**YARN_OLMO3, "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}}}, {"layer_type": BOTH}),
    "ModernBERT": ({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 4,
                    "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}, {"layer_type": BOTH}),
    "Ministral 3": ({"model_type": "ministral3", "head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32,
                     "num_hidden_layers": 2, "max_position_embeddings": 262144, "rope_parameters": {
                         "rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, ORIGINAL: 16384,
                         "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "llama_4_scaling_beta": 0.1, "max_position_embeddings": 262144}}, {}),
    "JetMoE": ({"model_type": "jetmoe", "hidden_size": 2048, "kv_channels": 128, "num_key_value_heads": 16,
                "num_hidden_layers": 2, "rope_theta": 10000.0}, {}),
    "DeepSeek V4": ({"model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64, "hidden_size": 4096,
                     "num_attention_heads": 64, "num_hidden_layers": 4, "rope_parameters": {
                         "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.125},
                         "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 16.0, ORIGINAL: 65536,
                                      "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
                                      "partial_rotary_factor": 0.125}}}, {"layer_type": ("main", "compress")}),
    "MiMo V2 Flash": ({"model_type": "mimo_v2_flash", "head_dim": 192, "hidden_size": 4096, "num_attention_heads": 64,
                       "num_hidden_layers": 6, "rope_parameters": {
                           "full_attention": {"rope_type": "default", "rope_theta": 5000000.0},
                           "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}, {"layer_type": BOTH}),
}  # fmt: skip


def transformers_mapping():
    """The config class of each model_type. Skips the test without transformers 5, or without PyTorch, which it needs."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no network access, and no wait for it
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.0")
    return importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING


def transformers_config(config):
    """The config as transformers loads it. Skips the test if this version lacks the model."""
    mapping = transformers_mapping()
    if config["model_type"] not in mapping:
        pytest.skip("transformers %s does not have %s" % (sys.modules["transformers"].__version__, config["model_type"]))
    return mapping[config["model_type"]].from_dict(copy.deepcopy(config))


def rotary_classes(text):
    """The classes of rotary embeddings in the module of the model that this config class belongs to."""
    name = type(text).__module__.replace("configuration_", "modeling_")
    module = importlib.import_module(name)
    names = [n for n in vars(module) if n.endswith("RotaryEmbedding") and "Vision" not in n]
    return [getattr(module, n) for n in names if getattr(module, n).__module__ == name]


def transformers_frequencies(loaded, layer_type, seq_len):
    """(inv_freq, attention_factor) as transformers computes them for this config."""
    text = copy.deepcopy(loaded.get_text_config())
    if seq_len is not None:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        inv_freq, factor = ROPE_INIT_FUNCTIONS[text.rope_parameters["rope_type"]](text, "cpu", seq_len=seq_len)
        return inv_freq.tolist(), factor
    rotary, prefix = rotary_classes(text)[0](text), layer_type + "_" if layer_type else ""
    return getattr(rotary, prefix + "inv_freq").tolist(), getattr(rotary, prefix + "attention_scaling")


def forms(config, loaded, folder):
    """The config as a dict, as a file, as transformers loads it, and as transformers writes it: complete, or without
    defaults."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "written.json").write_text(loaded.to_json_string(use_diff=True))
    (folder / "whole.json").write_text(loaded.to_json_string(use_diff=False))
    return config, folder / "config.json", loaded, loaded.to_dict(), folder / "written.json", folder / "whole.json"


@pytest.mark.parametrize("name", FAMILIES)
def test_configs_of_models_match_transformers(name, tmp_path):
    config, ways = FAMILIES[name]
    loaded = transformers_config(config)
    for given in forms(config, loaded, tmp_path):
        for layer_type in ways.get("layer_type", (None,)):
            for seq_len in ways.get("seq_len", (None,)):
                inv_freq, factor = transformers_frequencies(loaded, layer_type, seq_len)
                got = frequencies(given, layer_type=layer_type, seq_len=seq_len)
                close(got, inv_freq, factor, RTOL)
        if "layer_type" in ways:
            refused("layer_type", given)


def test_frequencies_keep_the_order_of_the_rule_if_a_model_reorders_its_pairs():
    config = {"model_type": "ernie4_5_vl_moe_text", "hidden_size": 2560, "num_attention_heads": 20, "num_hidden_layers": 2,
              "rope_theta": 500000.0, "rope_scaling": {"type": "default", "mrope_section": [22, 22, 20]}}  # fmt: skip
    inv_freq, _ = transformers_frequencies(transformers_config(config), None, None)
    close(frequencies(config), sorted(inv_freq, reverse=True), 1.0, RTOL)


@functools.lru_cache(None)
def class_defaults():
    """(config class, its defaults as a dict) for each model of transformers whose rotation is set by rope_parameters."""
    mapping = transformers_mapping()
    found = []
    for model in mapping:
        try:
            config = mapping[model]().get_text_config()
            whole = json.loads(config.to_json_string(use_diff=False))
        except Exception:  # the class needs arguments, or packages that are missing
            continue
        rope = whole.get("rope_parameters")
        if rope and rope.get("rope_type") != "axial" and whole["model_type"] not in OTHER_ROTATION:
            found.append((type(config), whole))
    return found


def without(whole, key):
    """A copy of a config without `key`."""
    left = copy.deepcopy(whole)
    for place in (left, left["rope_parameters"], *left["rope_parameters"].values()):
        if isinstance(place, dict):
            place.pop(key, None)
    if key == "head_dim" and left.get("hidden_size"):
        left["hidden_size"] *= 2  # otherwise a head_dim derived from hidden_size may be right by chance
        left.pop("per_layer_config", None)
    return left


def dim_in_transformers(config_class, left, layer_type):
    """rotary_dim, computed from the keys of the config that the class makes of `left`."""
    config = config_class.from_dict(copy.deepcopy(left))
    whole = json.loads(config.to_json_string(use_diff=False))
    rope = whole["rope_parameters"][layer_type] if layer_type else whole["rope_parameters"]
    of_type = [i for i, name in enumerate(whole.get("layer_types") or ()) if name == layer_type]
    own = {int(i): values for i, values in whole.get("per_layer_config", {}).items()}.get(of_type[0] if of_type else None)
    head = (own or whole).get("head_dim") or whole.get("head_dim") or getattr(config, "head_dim", None)
    head = head or whole["hidden_size"] // config.num_attention_heads
    partial = 1.0 if rope["rope_type"] == "proportional" else rope.get("partial_rotary_factor") or 1.0
    return int(head * partial)


# Models whose loaded config lacks partial_rotary_factor: MiMo's rotary class has it, and DeepSeek V4's class adds it only
# to old configs.
NOT_LOADED = ("deepseek_v4", "mimo_v2_flash")


@pytest.mark.parametrize("key", ["head_dim", "partial_rotary_factor"])
def test_a_missing_key_has_the_default_of_its_class_or_is_refused(key):
    models, wrong = set(), []
    for config_class, whole in class_defaults():
        left = without(whole, key)
        for layer_type in [name for name, value in left["rope_parameters"].items() if isinstance(value, dict)] or [None]:
            try:
                expected = dim_in_transformers(config_class, left, layer_type)
                got = frequencies(left, layer_type=layer_type).rotary_dim
            except Error:
                continue
            except Exception:  # a class that checks sizes against each other
                continue
            models.add(whole["model_type"])
            if got != expected and whole["model_type"] not in NOT_LOADED:
                wrong.append((whole["model_type"], layer_type, got, expected))
    assert not wrong
    assert len(models) > 100


def own_frequencies(config, layer_type):
    """The inverse frequencies that the rotary classes in a config's module compute, each list sorted."""
    found, name = [], layer_type + "_inv_freq" if layer_type else "inv_freq"
    try:
        classes = rotary_classes(config)
    except ModuleNotFoundError:  # the model has the classes of another model
        return []
    for rotary in classes:
        try:
            buffers = dict(rotary(copy.deepcopy(config)).named_buffers())
        except Exception:  # a class for another part of the model
            continue
        found += [sorted(buffers[name].flatten().tolist())] if name in buffers else []
    return found


def is_of_class(got, config, layer_type):
    """Whether frequencies are those of a rotary class of the config, or whether no class has any for the layer type."""
    own = own_frequencies(config, layer_type)
    return not own or any(sorted(got.inv_freq) == pytest.approx(each, rel=2 * RTOL, abs=0) for each in own)


def layer_types_of(whole):
    return [name for name, value in (whole.get("rope_parameters") or {}).items() if isinstance(value, dict)] or [None]


# Models whose class does not rotate with its own defaults, rotates an odd number of elements, or has two attentions of
# different sizes.
REFUSED_DEFAULTS = {
    "blt": "head_dim", "moonshine": "head_dim",
    "esm": "position_embedding_type", "granitemoehybrid": "position_embedding_type", "zamba2": "use_mem_rope",
    "glm4_moe": "partial_rotary_factor", "glm4v_moe_text": "partial_rotary_factor", "qwen3_omni_moe_text": "head_dim",
    "efficientloftr": "partial_rotary_factor", "minimax_m3_vl_text": "rotary_dim",
}  # fmt: skip


def test_the_saved_defaults_of_a_class_have_its_frequencies():
    refusals, wrong = {}, []
    for config_class, whole in class_defaults():
        try:
            config = config_class.from_dict(copy.deepcopy(whole))
        except Exception:  # the class cannot read an infinity in its own JSON
            continue
        for layer_type in layer_types_of(whole):
            try:
                got = frequencies(whole, layer_type=layer_type)
            except Error as error:
                refusals[whole["model_type"]] = error.argument
                continue
            if not is_of_class(got, config, layer_type):
                wrong.append((whole["model_type"], layer_type, got))
    assert not wrong
    assert refusals.items() <= REFUSED_DEFAULTS.items()
    assert "minimax_m3_vl_text" in refusals


def test_the_error_of_an_ignored_size_names_the_class_and_what_it_rotates():
    config = transformers_config({"model_type": "minimax_m3_vl"})  # its default rotary_dim is 64
    for given in (config, config.to_dict()):
        message = refused("rotary_dim", given)
        assert "64" in message and "class of a minimax_m3_vl does not use" in message and "128" in message


def everywhere(**keys):
    """A change that gives all rope dicts these keys."""
    def change(config):
        rope = config["rope_parameters"]
        for each in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
            each.update(keys)

    return change


def instead(*keys, **others):
    """A change that puts other keys of the config in the place of these keys of the config and its rope dicts."""
    def change(config):
        rope = config["rope_parameters"]
        for place in (config, rope, *rope.values()):
            for key in keys if isinstance(place, dict) else ():
                place.pop(key, None)
        config.update(others)

    return change


# Changes to the saved defaults of a class, by keys that some classes use and others do not.
CHANGES = {
    "partial_rotary_factor": instead(partial_rotary_factor=0.5),
    "partial_rotary_factor of the rope dict": everywhere(partial_rotary_factor=0.5),
    "partial_rotary_factor of 1": everywhere(partial_rotary_factor=1.0),
    "rotary_pct": instead(rotary_pct=0.5),
    "rotary_dim": instead(rotary_dim=16),
    "qk_rope_head_dim": instead("head_dim", qk_rope_head_dim=48),
    "head_dim without qk_rope_head_dim": instead("qk_rope_head_dim", head_dim=48),
    "neither of both": instead("qk_rope_head_dim", "head_dim"),
    "head_dim of null": instead(head_dim=None),
    "attention_head_dim": instead("head_dim", attention_head_dim=48),
    "d_model": instead("hidden_size", "head_dim", d_model=1536),
    "global_head_dim": instead(global_head_dim=96),
    "rope_theta beside the rope dict": instead("rope_theta", rope_theta=777.0),
    "rotary_emb_base": instead("rope_theta", rotary_emb_base=777.0),
    "rope_theta alone": instead("rope_parameters", rope_theta=777.0),
    "rope_scaling": instead("rope_parameters", rope_theta=777.0, rope_scaling={"type": "linear", "factor": 4.0}),
}  # fmt: skip
# Models that fail with such a config: MLA with a head_dim that is not qk_rope_head_dim, and mistral4 with the rule linear.
# JetMoE overwrites its kv_channels by a null head_dim. Sliding layers of OLMo 3 have rope_theta, see _old_layers.
FAILING = ("axk1", "deepseek_v3", "glm4_moe_lite", "jetmoe", "longcat_flash", "mistral4", "olmo3", "youtu")


@pytest.mark.parametrize("name", CHANGES)
def test_a_key_that_a_class_ignores_never_changes_the_frequencies(name):
    taken, wrong = 0, []
    for config_class, whole in class_defaults():
        changed = copy.deepcopy(whole)
        try:
            CHANGES[name](changed)
            config = config_class.from_dict(copy.deepcopy(changed))
        except Exception:  # the class refuses the value
            continue
        loaded = json.loads(config.to_json_string(use_diff=False))
        for layer_type in {*layer_types_of(changed), *layer_types_of(loaded)}:
            try:
                got = frequencies(changed, layer_type=layer_type)
            except Error:
                continue
            taken += 1
            if not is_of_class(got, config, layer_type) and whole["model_type"] not in FAILING:
                wrong.append((whole["model_type"], layer_type, got))
    assert not wrong
    assert taken


# ---- Configs as dicts: with layer types, with contradicting keys, and nested in other configs ----

FULL, SLIDING = BOTH
ONE = {"head_dim": 64, "rope_theta": 1e4}
TWO = {
    "head_dim": 64,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, ORIGINAL: 4096}
UNLIMITED = {key: YARN[key] for key in YARN if key != ORIGINAL}
LAYERS = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}
LINEAR = {"rope_type": "linear", "factor": 8.0}
GEMMA = {"head_dim": 64, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": LINEAR}  # of transformers 4
GEMMA_5 = {"model_type": "gemma3_text", "head_dim": 64, "rope_scaling": {**LINEAR, "rope_theta": 1e6}}
BERT = {"hidden_size": 768, "num_attention_heads": 12, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
OLMO = {"model_type": "olmo3", "head_dim": 64, "rope_theta": 1e6, "rope_scaling": LINEAR}
WIDE = {**TWO, "layer_types": [SLIDING, FULL] * 2}
PART = {"hidden_size": 1024, "num_attention_heads": 16, "rope_theta": 1e4}
# head_dim is only an attribute, as with attribute_map, and not in the dict.
INNER_TEXT = SimpleNamespace(head_dim=64, rope_theta=1e4, to_dict=lambda: {"rope_theta": 1e4})
OF_TEXT = SimpleNamespace(text_config=INNER_TEXT, to_dict=lambda: {"text_config": INNER_TEXT.to_dict()})
LINEAR_64, OF_YARN = (linear(64, 1e6, 8.0),), yarn(64, 1e6, 4.0, 4096)


def with_rope(**rope):
    return {"head_dim": 64, "rope_parameters": rope}


def with_yarn(of_full, truncate=..., **others):
    """A config with two layer types. The first has the dict `of_full`, for YaRN. If truncate is given, it is beside the two
    dicts."""
    beside = {} if truncate is ... else {"truncate": truncate}
    return {**with_rope(full_attention=of_full, sliding_attention={"rope_theta": 1e4}, **beside), **others}


TAKEN = [  # (config, requested layer type, (frequencies, attention factor if not 1))
    (TWO, FULL, LINEAR_64),
    (TWO, SLIDING, (default(64),)),
    # A layer type without rotation.
    (with_rope(full_attention=None, sliding_attention={"rope_theta": 1e4}), None, (default(64),)),
    (with_rope(full_attention=None, sliding_attention={"rope_theta": 1e4}), SLIDING, (default(64),)),
    # If all layer types have a key, its value beside the layer types, or in the config itself, is not read.
    (with_rope(**LAYERS, rope_theta=5.0), SLIDING, (default(64),)),
    ({**TWO, "rope_theta": 5.0}, FULL, LINEAR_64),
    ({**TWO, "rope_theta": 5.0}, SLIDING, (default(64),)),
    # transformers reads truncate beside the dicts of layer types, but not in them.
    *((with_yarn({**YARN, "truncate": value}), FULL, OF_YARN) for value in (True, None)),
    *((with_rope(full_attention={**YARN, "truncate": value}), FULL, OF_YARN) for value in (True, None)),
    *((with_yarn(YARN, value), FULL, yarn(64, 1e6, 4.0, 4096, truncate=value)) for value in (True, False)),
    *((with_yarn(YARN, value), SLIDING, (default(64),)) for value in (True, False)),
    # As in transformers, a layer type without its own original length uses max_position_embeddings.
    (with_yarn(YARN, **{ORIGINAL: 8192}), FULL, OF_YARN),
    (with_yarn(UNLIMITED, **{ORIGINAL: 8192, "max_position_embeddings": 4096}), FULL, OF_YARN),
    # Configs of transformers 4 with two bases.
    *((config, layer_type, expected)
      for config in (GEMMA, {**GEMMA, "model_type": "gemma3_text"},
                     {"head_dim": 64, "model_type": "gemma3_text", "rope_scaling": LINEAR})
      for layer_type, expected in ((FULL, LINEAR_64), (SLIDING, (default(64),)))),
    (BERT, FULL, (default(64, 160000.0),)),
    (BERT, SLIDING, (default(64),)),
    (OLMO, FULL, LINEAR_64),
    (OLMO, SLIDING, (default(64, 1e6),)),
    ({**GEMMA_5, "rope_theta": 1e6}, FULL, LINEAR_64),
    # Nested configs.
    ({"model_type": "x", "text_config": ONE, "vision_config": {**PART, "rope_theta": 100.0}}, None, (default(64),)),
    (SimpleNamespace(text_config=SimpleNamespace(**ONE), hidden_size=7), None, (default(64),)),
    ({**ONE, "text_config": ONE}, None, (default(64),)),  # Qwen2-VL, as transformers 4.5x writes it
    (OF_TEXT, None, (default(64),)),
    ({"model_type": "gemma3", "text_config": {"hidden_size": 3840, "num_attention_heads": 16}}, FULL, (default(256, 1e6),)),
]  # fmt: skip
WRONG_FLAGS = (False, 0, 0.0, "", "false", [], 1, "true")
OF_OTHER_HEADS = {"1": {"head_dim": 128}}
REFUSED = [  # (argument that the error names, config, requested layer type)
    ("layer_type", TWO, None),
    ("layer_type", TWO, "linear_attention"),
    ("layer_type", ONE, FULL),
    ("layer_type", with_rope(full_attention=None, sliding_attention={"rope_theta": 1e4}), FULL),
    *(("layer_type", config, None) for config in (GEMMA, BERT, OLMO)),
    # A key beside the layer types, if one of the layer types lacks it.
    ("rope_type", with_rope(**LAYERS, rope_type="default"), SLIDING),
    ("factor", with_rope(**LAYERS, factor=2.0), SLIDING),
    # transformers does not read truncate in the dict of a layer type. It reads null as false.
    *(("truncate", with_yarn({**YARN, "truncate": value}), FULL) for value in WRONG_FLAGS),
    *(("truncate", with_rope(full_attention={**YARN, "truncate": value}), FULL) for value in WRONG_FLAGS),
    *(("truncate", with_rope(full_attention={**YARN, "truncate": not value}, truncate=value), None)
      for value in (True, False)),
    *(("truncate", with_rope(full_attention=YARN, truncate=value), None) for value in (None, 0, "false")),
    ("truncate", {"head_dim": 64, "rope_parameters": {**YARN, "truncate": None}}, None),
    # Layers with another head_dim.
    ("per_layer_config", {**WIDE, "per_layer_config": OF_OTHER_HEADS}, FULL),
    ("global_head_dim", {**WIDE, "model_type": "gemma4_text"}, FULL),
    # Bases in the form of transformers 4, and in both forms at once.
    ("rope_theta", {**GEMMA, "rope_theta": 0.0}, FULL),
    ("local_rope_theta", {**BERT, "local_rope_theta": None}, FULL),
    ("rope_parameters", {"model_type": "gemma3_text", "rope_parameters": LAYERS[FULL]}, FULL),
    ("rope_theta", {**GEMMA_5, "rope_theta": 1e4}, FULL),
    ("local_rope_theta", {**BERT, "global_rope_theta": 1e6, "rope_scaling": GEMMA_5["rope_scaling"]}, FULL),
    # Nested configs.
    ("rope_theta", {**ONE, "rope_theta": 5.0, "text_config": ONE}, None),
    ("head_dim", {**ONE, "head_dim": 128, "text_config": ONE}, None),
    ("head_dim", {}, None),
]  # fmt: skip


@pytest.mark.parametrize("config, layer_type, expected", TAKEN, ids=lambda v: str(v)[:40])
def test_frequencies_of_a_config_and_a_layer_type(config, layer_type, expected):
    close(frequencies(config, layer_type=layer_type), *expected)


@pytest.mark.parametrize("argument, config, layer_type", REFUSED, ids=lambda v: str(v)[:40])
def test_contradicting_configs_and_missing_layer_types_are_refused(argument, config, layer_type):
    refused(argument, config, layer_type=layer_type)


def test_refusals_name_the_layer_types_and_the_nested_configs():
    assert "'full_attention', 'sliding_attention'" in refused("layer_type", TWO)
    message = refused("head_dim", {"encoder_config": PART, "decoder_config": PART, "rope_theta": 1e4, "other_config": {}})
    assert "'encoder_config', 'decoder_config'" in message and "other_config" not in message
    refused("layer_type", layer_type=FULL, **ONE)
    refused("head_dim")


@pytest.mark.parametrize("truncate", [True, False])
def test_transformers_reads_truncate_beside_the_dicts_of_layer_types(truncate):
    of_full = {key: YARN_OLMO3[key] for key in ("rope_type", "factor", ORIGINAL)}
    rope = {FULL: {**of_full, "rope_theta": 5e5}, SLIDING: {"rope_theta": 5e5, "rope_type": "default"}}
    config = {**OLMO3, "rope_parameters": {**rope, "truncate": truncate}}
    expected = transformers_frequencies(transformers_config(config), "full_attention", None)
    close(frequencies(config, layer_type="full_attention"), *expected, RTOL)


def test_layers_of_another_head_dim():
    for wide in ({"global_head_dim": 128}, {"per_layer_config": {**OF_OTHER_HEADS, "3": {"head_dim": 128}}}):
        assert frequencies({**WIDE, **wide}, layer_type=FULL).rotary_dim == 128
        assert frequencies({**WIDE, **wide}, layer_type=SLIDING).rotary_dim == 64


@pytest.mark.parametrize("rope_name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("outer, inner, other", [
    ("rope_theta", "rope_theta", 5e5), ("rotary_emb_base", "rope_theta", 5e5),
    ("partial_rotary_factor", "partial_rotary_factor", 0.5), ("rotary_pct", "partial_rotary_factor", 0.5),
])  # fmt: skip
def test_a_key_of_the_config_must_not_contradict_its_rope_dict(rope_name, outer, inner, other):
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 0.25, "rope_type": "default"}
    config = {"head_dim": 128, rope_name: rope}
    expected = frequencies(config)
    assert frequencies({**config, outer: rope[inner]}) == expected
    message = refused(outer, {**config, outer: other})
    assert rope_name in message and str(other) in message and str(rope[inner]) in message
    refused(outer, SimpleNamespace(**config, **{outer: other}))


# ---- Models that do not rotate ----

@pytest.mark.parametrize("key, value", [
    ("alibi", True), ("alibi", 1), ("alibi", "true"), ("use_mem_rope", False), ("use_rotary_embedding", False),
    ("use_rope", False), ("position_embedding_type", "absolute"), ("position_embedding_type", "nope"),
    ("position_embedding_type", "alibi"), ("position_embedding_type", []), ("position_embeddings_type", "relative_key"),
    ("no_rope_layers", [0, 0]), ("no_rope_layer_interval", 1), ("layer_rope_theta", [0, 0]),
])  # fmt: skip
def test_a_key_that_switches_the_rotation_off_is_named(key, value):
    refused(key, {**ONE, key: value})


@pytest.mark.parametrize("keys", [
    {"alibi": False}, {"use_mem_rope": True}, {"position_embedding_type": "rope"}, {"position_embedding_type": "rotary"},
    {"position_embedding_type": None}, {"position_embeddings_type": "rotary"}, {"no_rope_layers": [1, 0]},
    {"no_rope_layer_interval": 4}, {"no_rope_layers": [1, 1], "no_rope_layer_interval": 1}, {"layer_rope_theta": [0, 1e4]},
    {"layer_types": ["full_attention", "sliding_attention"]},
])  # fmt: skip
def test_keys_of_models_and_layers_that_rotate_are_accepted(keys):
    assert frequencies({**ONE, **keys}) == frequencies(ONE)


@pytest.mark.parametrize("model, key", [(model, key) for key, (_, models) in ROTATES.items() for model in models])
def test_a_model_that_rotates_only_with_a_key_needs_it(model, key):
    rotating = ROTATES[key][1][model][0]
    config = {**ONE, "model_type": model}
    assert frequencies({**config, key: rotating}) == frequencies(ONE)
    refused(key, config)
    refused(key, {**config, key: None})
    loaded = transformers_config({"model_type": model})
    assert getattr(loaded, key) != rotating
    refused(key, loaded)


def test_falcon_with_alibi_does_not_rotate():
    loaded = transformers_config({"model_type": "falcon", "alibi": True})
    for config in (loaded, loaded.to_dict()):
        refused("alibi", config)
    assert frequencies(transformers_config({"model_type": "falcon"})).rotary_dim == 64


def test_a_model_without_a_rotary_embedding_is_refused_with_any_keys():
    for model in NO_ROTATION:
        refused("model_type", {**ONE, "model_type": model})


def test_refused_models_have_no_rotary_embedding_in_transformers():
    mapping, wrong = transformers_mapping(), []
    for model in NO_ROTATION.intersection(mapping):
        module = importlib.import_module(mapping[model].__module__.replace("configuration_", "modeling_"))
        names = [name for name in vars(module) if "Rotary" in name and not name.startswith("apply")]
        if names and model not in ("inkling2_text", "moshi_depth"):  # classes of its vision model, or its main decoder
            wrong.append((model, names))
    assert not wrong
