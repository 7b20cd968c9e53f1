"""Compares the pairing, window, direction and axes of each model in trope._models with its attention in transformers.

One attention layer of each model runs with random weights on equal tokens. trope.torch.rotate, with model_rotation and
frequencies, must map the input of the model's rotary function to its output. If this function gets only a part of each
head, the test also compares the queries. They differ only by their positions: the query of token p is the query of token 0,
at position 0, rotated by the position of p. The queries alone would not suffice, because MLA reorders elements while it
rotates. A wrong pairing or window gives an error of the order of 1.
"""

import importlib
import inspect
import re
import sys

import pytest
import refusals
from test_frequencies_of_models import transformers_mapping

import trope
from trope import frequencies
from trope._config_keys import FAMILIES, READS_PARTIAL, UNKNOWN
from trope._models import AXES, READS_INTERLEAVE, ModelRotation, model_rotation

# The positions of each axis. They are small, so that the float32 angles of transformers are accurate to 3e-6.
POSITIONS = [[0, 3, 11, 17, 29, 38], [0, 5, 2, 31, 8, 23], [0, 1, 36, 9, 19, 4]]
TOKENS = len(POSITIONS[0])
TOLERANCE = 1e-5  # relative to the largest element

# Keys that a model needs besides the sizes in small_config: to be small, to rotate, or to pass its own checks.
TWO_TYPES = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
KEYS = {
    "cohere_compass": {
        **TWO_TYPES, "head_dim": 128,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": None},
    },
    "deepseek_v4": {"layer_types": ["sliding_attention", "heavily_compressed_attention"], "num_hidden_layers": 2},
    "dots3_note": {"num_key_value_heads": 4},
    "ernie4_5_vl_moe": {"hidden_size": 512},
    "esm": {"position_embedding_type": "rotary"},
    "esmc": {"num_key_value_heads": 4},
    "glm4v": {"hidden_size": 256},
    "glm_image": {"hidden_size": 256},
    "glm_ocr": {"head_dim": 64},
    "gradium_phonon_tts": {"hidden_size": 768},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "helium": {"head_dim": 64},
    "laguna": TWO_TYPES,
    "mellum": TWO_TYPES,
    "minimax_m3_vl": {"rotary_dim": 128},
    "qwen4_exp": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}, "indexer_n_heads": 2,
        "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 8, "indexer_compress_ratio": 4,
    },
    "zamba2": {"use_mem_rope": True},
}  # fmt: skip
# Values that only the classes have, and not the configs.
ROPE = {"gptj": {"rope_theta": 10000.0}, "codegen": {"rope_theta": 10000.0}}
# The rotary embedding and the attention of the language model, for modules where other classes have similar names.
CLASSES = {
    "evolla": ("EvollaRotaryEmbedding", "EvollaAttention"),
    "glm_image": ("GlmImageTextRotaryEmbedding", "GlmImageTextAttention"),
    "granite4_vision": ("Granite4VisionTextRotaryEmbedding", "Granite4VisionTextAttention"),
    "higgs_audio_v2": ("HiggsAudioV2RotaryEmbedding", "HiggsAudioV2Attention"),
    "longcat_flash": ("LongcatFlashRotaryEmbedding", "LongcatFlashMLA"),
    "neomme": ("NeoMMERotaryEmbedding", "NeoMMEAttention"),
    "minimax": ("MiniMaxRotaryEmbedding", "MiniMaxAttention"),
    "qwen2_5_omni": ("Qwen2_5OmniRotaryEmbedding", "Qwen2_5OmniAttention"),
    "qwen3_omni_moe_talker": ("Qwen3OmniMoeTalkerRotaryEmbedding", "Qwen3OmniMoeThinkerTextAttention"),
    "qwen3_omni_moe_talker_code_predictor":
        ("Qwen3OmniMoeRotaryEmbedding", "Qwen3OmniMoeTalkerCodePredictorAttention"),
}  # fmt: skip
# For models without classes of their own: the model_type of the classes that transformers uses.
CLASSES_OF = {
    "exaone": "llama", "internlm3": "llama", "iquestcoder": "llama", "sarvam_mla": "deepseek_v3", "sarvam_moe": "glm4_moe",
}  # fmt: skip
OTHER_CLASSES = re.compile("Vision|Audio|Cross|Image|Mamba|Linear|Window|Sam|Indexer|Output|Norm")


def small_config(model, **keys):
    """Returns the config of a language model in transformers, with small sizes if its class accepts them."""
    mapping = transformers_mapping()
    names = [name for name in (model + "_text", model + "_text_model", model) if name in mapping]
    if not names:
        pytest.skip("transformers %s does not have %s" % (sys.modules["transformers"].__version__, model))
    make = mapping[names[0]]
    known = inspect.signature(make).parameters
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {key: value for key, value in sizes.items() if key in known}
    if "head_dim" in known and known["head_dim"].default is None:
        sizes["head_dim"] = 128 if model in AXES else 64
    elif model in AXES and "head_dim" not in known:
        sizes["hidden_size"] = 512
    config = make(**{**sizes, **KEYS.get(model, {}), **keys})
    config._attn_implementation = "trope_probe"
    if model == "dbrx":  # its attention looks for rope_theta in a place where transformers 5.24 no longer has it
        config.attn_config.rope_theta, config.attn_config.clip_qkv = config.rope_parameters["rope_theta"], 1e9
    return config


def class_of(module, model, kind):
    """Returns the class of a language model's rotary embedding (kind "Embedding") or attention (kind "Attention")."""
    if model in CLASSES:
        return getattr(module, CLASSES[model][kind == "Attention"])
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
        and ("Rotary" in name if kind == "Embedding" else name.endswith("Attention")) and not OTHER_CLASSES.search(name)
    ]  # fmt: skip
    texts = [name for name in names if "Text" in name]
    return getattr(module, (texts or names)[0])


class Probe:
    """Records a run of an attention layer. rotated: (input, output) of its rotary function. queries: the queries."""

    def __init__(self, monkeypatch, module):
        self.rotated, self.queries = [], []
        for name, function in list(vars(module).items()):
            if re.match(r"_?apply_(rotary|.*rope)", name) and "vision" not in name:
                monkeypatch.setattr(module, name, self.record(function))
        transformers = importlib.import_module("transformers")
        transformers.AttentionInterface.register("trope_probe", self.attend)

    def record(self, function):
        def wrapped(x, *args, **kwargs):
            result = function(x, *args, **kwargs)
            self.rotated.append((x, result[0] if isinstance(result, tuple) else result))
            return result

        return wrapped

    def attend(self, module, query, key, value, *args, **kwargs):
        self.queries.append(query)
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


def layer_index(config, layer_type):
    """Returns the index of the first rotating layer, if the config lists these, or else of a layer of this type. Without
    such a layer, a layer with a sliding window is chosen, because it rotates."""
    rotating = getattr(config, "no_rope_layers", None) or getattr(config, "layer_rope_theta", None)
    if rotating:
        return [bool(value) for value in rotating].index(True)
    types = list(getattr(config, "layer_types", None) or ())
    wanted = {"main": "sliding_attention", "compress": "heavily_compressed_attention"}.get(layer_type, layer_type)
    return next((types.index(name) for name in (wanted, "sliding_attention") if name in types), 0)


def call(function, options):
    """Calls a function with the options that it accepts, and with None for other required arguments."""
    known = inspect.signature(function).parameters
    for name, value in known.items():
        if value.default is value.empty and value.kind is value.POSITIONAL_OR_KEYWORD:
            options = {name: None, **options}
    return function(**{name: value for name, value in options.items() if name in known})


def run_attention(monkeypatch, model, config, layer_type, positions):
    """Returns the Probe of an attention layer on equal tokens at these positions, [axes, 1, tokens] or [1, tokens]."""
    torch = importlib.import_module("torch")
    torch.manual_seed(1)
    owner = transformers_mapping()[CLASSES_OF[model]] if model in CLASSES_OF else type(config)
    module = importlib.import_module(owner.__module__.replace("configuration_", "modeling_"))
    probe = Probe(monkeypatch, module)
    options = {"layer_idx": layer_index(config, layer_type), "layer_type": layer_type, "is_causal": True, "num_heads": 4}
    attention = call(class_of(module, model, "Attention"), {"config": config, **options}).eval()
    for weight in attention.parameters():
        weight.data.normal_(0, 0.05) if weight.dim() > 1 else weight.data.fill_(1)
    if hasattr(attention, "_attn"):  # GPT-J and other old models
        attention._attn = lambda query, *rest, **more: (query, probe.queries.append(query))
    if hasattr(attention, "softmax_scaling"):  # Mistral Large 4 scales queries by their positions
        del attention.softmax_scaling
        attention.softmax_scaling = lambda query, *rest, **more: query
    width = getattr(config, "attention_hidden_size", config.hidden_size)
    hidden = torch.randn(1, 1, width).expand(1, TOKENS, -1).contiguous()
    rotary = class_of(module, model, "Embedding")(config)
    tables = rotary(hidden, positions, **({"layer_type": layer_type} if layer_type else {}))
    tables = {layer_type: tables} if model == "deepseek_v4" else tables
    mask = None if model == "zaya" else torch.zeros(1, 1, TOKENS, TOKENS)
    given = {"hidden_states": hidden, "position_embeddings": tables, "position_ids": positions, "attention_mask": mask}
    with torch.no_grad():
        call(attention.forward, given)
    return probe


def compare(x, y, how, angles, positions, pairing, pairing_out, mscale):
    """Checks that trope rotates x to y, the result of a model."""
    trope_torch = importlib.import_module("trope.torch")
    got = trope_torch.rotate(
        x.contiguous(), layout="bhsd" if x.shape[2] == TOKENS else "bshd", pairing=pairing, pairing_out=pairing_out,
        inv_freq=angles, inverse=how.inverse, mscale=mscale, pair_axis=how.pair_axis, position_ids=positions,
        rotary_dim=how.rotary_dim, rotary_offset=x.shape[-1] - how.rotary_dim if how.is_trailing else 0,
    )  # fmt: skip
    error, largest = float((got - y).abs().max()), float(y.abs().max())
    assert error <= TOLERANCE * largest, (error, largest)


def layer_types_of(config):
    """Returns the layer types that have a rope dict and a layer. If there are none, returns all types with a rope dict, or
    [None] without rope dicts."""
    rope, types = getattr(config, "rope_parameters", None) or {}, getattr(config, "layer_types", None) or ()
    names = [name for name, value in rope.items() if isinstance(value, dict)]
    return [name for name in names if name in types] or names or [None]


def check(monkeypatch, model, config):
    """Checks the layers of a config, on the GPU if there is one."""
    torch = importlib.import_module("torch")
    with torch.device(importlib.import_module("checks").DEVICE):
        for layer_type in layer_types_of(config):
            check_layer(monkeypatch, model, config, layer_type)


def check_layer(monkeypatch, model, config, layer_type):
    torch = importlib.import_module("torch")
    keys = ROPE.get(model, {})
    how, angles = model_rotation(config, layer_type, **keys), frequencies(config, layer_type=layer_type, **keys)
    positions = torch.tensor(POSITIONS)[:, None] if how.pair_axis else torch.tensor(POSITIONS[:1])
    probe = run_attention(monkeypatch, model, config, layer_type, positions)
    x, y = probe.rotated[0]
    compare(x, y, how, angles, positions, how.pairing, how.pairing_out, angles.attention_factor)
    query = probe.queries[0] if probe.queries else x
    if query.shape[-1] != x.shape[-1]:  # the function gets only the part of the head that rotates
        first, pairing = query[:, :, :1].expand_as(query), how.pairing_out or how.pairing
        compare(first, query, how, angles, positions, pairing, None, 1.0)
    else:
        assert probe.queries or x.shape[-1] == config.hidden_size // config.num_attention_heads


@pytest.mark.parametrize("model", FAMILIES)
def test_model_rotates_as_its_class_does(monkeypatch, model):
    check(monkeypatch, model, small_config(model))


@pytest.mark.parametrize("model", READS_INTERLEAVE)
@pytest.mark.parametrize("interleave", [True, False])
def test_rope_interleave_decides_the_pairing(monkeypatch, model, interleave):
    config = small_config(model, rope_interleave=interleave)
    how = model_rotation(config)
    assert (how.pairing, how.pairing_out) == (("interleaved", "half") if interleave else ("half", None))
    check(monkeypatch, model, config)


@pytest.mark.parametrize("model", AXES)
def test_mrope_section_gives_the_number_of_pairs_of_each_axis(monkeypatch, model):
    config = small_config(model)
    rope = config.rope_parameters["sliding_attention"] if model == "cohere_compass" else config.rope_parameters
    order, sections = AXES[model]
    changes = {"hwt": ([0, 0, 0], [-2, -2, 4]), "sections": ([2, -3, 1], [-3, 2, 1])}.get(order, ([2, -1, -1], [3, 0, -3]))
    for change in changes:
        rope["mrope_section"] = [section + more for section, more in zip(sections, change)]
        check(monkeypatch, model, config)


@pytest.mark.parametrize("model", sorted(READS_PARTIAL))
def test_partial_rotation_has_the_window_of_the_class(monkeypatch, model):
    config = small_config(model, **({"rotary_dim": 64} if model == "minimax_m3_vl" else {}))
    parts = [value for value in config.rope_parameters.values() if isinstance(value, dict)] or [config.rope_parameters]
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for rope in parts:
        rope["partial_rotary_factor"] = 0.5
        if model in AXES:
            height = head // 4 // 3
            rope["mrope_section"] = [head // 4 - 2 * height, height, height]
    for layer_type in layer_types_of(config):
        assert model_rotation(config, layer_type).rotary_dim == head // 2
    check(monkeypatch, model, config)


def test_proportional_frequencies_rotate_whole_heads():
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "type": None}  # the rule uses the factor
    assert rotation_of("gemma4_text", rope, global_head_dim=None).rotary_dim == 128
    assert rotation_of("llama", partial_rotary_factor=1.0).rotary_dim == 128


# ---- Configs as dicts ----

DICT = {"head_dim": 128, "rope_theta": 1e4}


def rotation_of(model_type, rope=None, **keys):
    own = {"qk_rope_head_dim": 128} if FAMILIES.get(model_type, UNKNOWN).is_trailing else {}
    rope = {"type": "default", **(rope or {})}
    return model_rotation({**DICT, **own, "model_type": model_type, "rope_scaling": rope, **keys})


def refused(argument, *args, **keys):
    refusals.refused(argument, rotation_of, *args, **keys)


WHOLE_HEADS = ["llama", "qwen2", "gemma2", "cohere", "nanochat", "llama4"]
NO_SECTIONS = [
    [64], [32, 32], [16, 16, 16, 16], [16, 24, 25], [16, 24, 23], [-8, 36, 36], [16.0, 24.0, 24.0], [True, 31, 32], [],
    "16,24,24", 64, [None, 32, 32], [[16], [24], [24]],
]  # fmt: skip
OF_X = {"mrope_interleaved": False}  # for an unknown model, this key decides the order of the axes
REFUSED = [  # the argument in the error, the model, its rope dict, other keys
    *(("partial_rotary_factor", model, {}, dict(partial_rotary_factor=0.5)) for model in WHOLE_HEADS),
    *(("rope_interleave", model, {}, dict(rope_interleave=value))  # transformers reads null as false
      for model in ("deepseek_v3", "llama", "deepseek_v2", "x") for value in (None, 0, 1, "false", [])),
    # Values that contradict a class that ignores the key.
    ("rope_interleave", "llama", {}, dict(rope_interleave=True)),
    ("rope_interleave", "deepseek_v2", {}, dict(rope_interleave=False)),
    ("rope_interleave", "deepseek_v32", {}, dict(rope_interleave=False)),
    # Sections.
    ("mrope_interleaved", "x", {"mrope_section": [24, 20, 20]}, {}),
    ("mrope_section", "x", {"mrope_interleaved": True}, {}),
    ("interleaved", "x", {"mrope_interleaved": True, "interleaved": False, "mrope_section": [24, 20, 20]}, {}),
    *(("mrope_section", model, {**(OF_X if model == "x" else {}), "mrope_section": section}, {})
      for model in ("qwen2_vl", "qwen3_vl", "ernie4_5_vl_moe", "x") for section in NO_SECTIONS),
    ("mrope_section", "ernie4_5_vl_moe", {"mrope_section": [23, 21, 20]}, {}),  # height and width must be equal
    ("mrope_section", "qwen3_vl", {"mrope_section": [2, 60, 2]}, {}),  # in interleaved order, height needs pair 178 of 64
    *(("mrope_section", model, {}, dict(head_dim=64)) for model in ("qwen2_vl", "qwen3_vl")),  # the class has 64 pairs
    # A model of one axis.
    ("mrope_section", "llama", {"mrope_section": [16, 24, 24]}, {}),
    ("mrope_interleaved", "llama", {"mrope_interleaved": True}, {}),
    # XD-RoPE: the elements of a pair have different axes.
    *(("xdrope_section", model, {"xdrope_section": [16] * 4}, {})
      for model in ("hunyuan_vl", "hunyuan_vl_text", "llama", "x")),
    ("mrope_section", "hunyuan_vl", {"mrope_section": [16] * 4}, {}),
]  # fmt: skip


@pytest.mark.parametrize("argument, model, rope, keys", REFUSED, ids=str)
def test_unsupported_configs_are_refused_by_key(argument, model, rope, keys):
    refused(argument, model, rope, **keys)


def test_all_fields_of_some_models():
    expected = {
        "llama": ("half", None, False, False, None, 128),
        "glm4": ("interleaved", None, False, False, None, 64),
        "nanochat": ("half", None, False, True, None, 128),
        "minicpm3": ("half", None, True, False, None, 128),
    }
    for model, fields in expected.items():
        assert rotation_of(model) == ModelRotation(*fields, model)
    how = rotation_of("deepseek_v3", qk_rope_head_dim=64, head_dim=None)
    assert how == ("interleaved", "half", True, False, None, 64, "deepseek_v3")
    how = rotation_of("qwen3_vl_text", {"mrope_section": [24, 20, 20]})
    assert how.pair_axis == trope.pair_axis("interleaved", [24, 20, 20])
    assert rotation_of("ernie4_5_vl_moe", {"mrope_section": [20, 20, 24]}).pair_axis == (1, 2) * 20 + (0,) * 24


def test_unknown_models_have_no_pairing():
    for config in ({}, {"model_type": "chatglm"}):
        how = model_rotation({**DICT, **config})
        assert how == (None, None, False, False, None, 128, config.get("model_type", ""))


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_vl_text", "mllama", "mllama_text_model", "emu3", "emu3_text_model"])
def test_language_models_may_have_the_name_of_the_multimodal_model(name):
    assert rotation_of(name).pairing == "half"
    if not name.endswith("_text_model"):
        assert model_rotation({"model_type": name.removesuffix("_text"), "text_config": DICT}).pairing == "half"


def test_accepts_keywords_and_layer_types_like_frequencies():
    assert model_rotation({"model_type": "llama"}, rope_theta=1e4, head_dim=64).rotary_dim == 64
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    config = {"model_type": "laguna", "head_dim": 64, "rope_parameters": rope}
    assert model_rotation(config, "full_attention").rotary_dim == 64
    assert model_rotation(config, layer_type="sliding_attention").rotary_dim == 32
    refusals.refused("layer_type", model_rotation, config)


def test_rope_interleave_may_repeat_what_the_class_does():
    assert rotation_of("llama", rope_interleave=False).pairing == "half"
    assert rotation_of("deepseek_v2", rope_interleave=True).pairing == "interleaved"


@pytest.mark.parametrize("model", AXES)
def test_mrope_interleaved_must_not_contradict_the_class(model):
    (order, sections), keys = AXES[model], {"partial_rotary_factor": 1.0}
    keys.update({"head_dim": None, "qk_rope_head_dim": 64} if model == "hy_v4_vl" else {"head_dim": 2 * sum(sections)})
    expected = rotation_of(model, **keys).pair_axis
    is_interleaved = order == "interleaved"
    for key in ("mrope_interleaved", "interleaved"):
        for rope in ({key: is_interleaved}, {key: is_interleaved, "mrope_section": list(sections)}):
            assert rotation_of(model, rope, **keys).pair_axis == expected
        refused(key, model, {key: not is_interleaved}, **keys)
        refused(key, model, {key: not is_interleaved, "mrope_section": list(sections)}, **keys)
        for value in (0, 1, "true", []):
            refused(key, model, {key: value}, **keys)


def test_keys_decide_the_order_of_axes_of_unknown_models():
    sections = [24, 20, 20]
    for rope, order in (({"mrope_interleaved": False}, "sections"), ({"interleaved": True}, "interleaved")):
        assert rotation_of("x", {**rope, "mrope_section": sections}).pair_axis == trope.pair_axis(order, sections)
    for model in ("x", "llama"):
        assert rotation_of(model, {"mrope_interleaved": False}).pair_axis is None


def test_sections_of_any_sizes_and_default_sections():
    assert rotation_of("qwen2_vl", {"mrope_section": [2, 60, 2]}).pair_axis == (0,) * 2 + (1,) * 60 + (2,) * 2
    for model in ("qwen2_vl", "qwen3_vl"):
        assert rotation_of(model).pair_axis == trope.pair_axis(*AXES[model])


@pytest.mark.parametrize("model", ["qwen2_vl", "qwen3_vl"])
def test_tables_of_qwen_vl_have_the_axis_of_each_pair(model):
    """Tables are [batch, tokens, head_dim] by halves, and each pair has the angle of its axis, as docs/recipes.md says."""
    torch = pytest.importorskip("torch")
    config = small_config(model)
    version = tuple(int(part) for part in sys.modules["transformers"].__version__.split(".")[:2])
    if version < (5, 17):
        pytest.skip("Qwen2-VL's tables are [3, batch, tokens, head_dim] before transformers 5.17")
    module = importlib.import_module("transformers.models.%s.modeling_%s" % (model, model))
    positions = torch.tensor(POSITIONS)[:, None].expand(3, 2, TOKENS)
    tables = class_of(module, model, "Embedding")(config)(torch.zeros(1), positions)
    axes = model_rotation(config).pair_axis
    inv_freq = torch.tensor(frequencies(config).inv_freq, dtype=torch.float64)
    angles = positions[list(axes)].permute(1, 2, 0) * inv_freq
    for table, function in zip(tables, (torch.cos, torch.sin)):
        assert table.shape == (2, TOKENS, 2 * len(axes))
        assert (table - function(torch.cat((angles, angles), -1))).abs().max() < 1e-5


def test_transformers_gives_the_elements_of_hunyuan_vl_pairs_different_axes():
    torch = pytest.importorskip("torch")
    section = {"mrope_section": [8, 8, 8, 8], "rope_type": "default", "rope_theta": 1e4}
    config = small_config("hunyuan_vl", rope_parameters=section)
    module = importlib.import_module("transformers.models.hunyuan_vl.modeling_hunyuan_vl")
    cos, _ = module.HunYuanVLRotaryEmbedding(config)(torch.zeros(1), torch.arange(4)[:, None, None])
    assert not torch.allclose(cos[..., :32], cos[..., 32:])
