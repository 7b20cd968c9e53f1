"""trope apply --config: a Hugging Face config.json replaces options, and the results match the formulas of its model."""

import importlib

import numpy as np
import pytest
import reference
from apply_support import HALF, Tensor, apply, expect, indices, random, refused, tensor
from refusals import refused as refused_call

from trope import frequencies

TOKENS = 40
ORIGINAL = "original_max_position_embeddings"
LLAMA = {"model_type": "llama", "rope_theta": 500000.0, "hidden_size": 64, "num_attention_heads": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64}
YARN = {"factor": 4.0, ORIGINAL: 64, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK = {"model_type": "deepseek_v3", "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "rope_theta": 10000,
            "rope_scaling": {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}}  # fmt: skip
GEMMA = {"model_type": "gemma3", "text_config": {
    "model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}}  # fmt: skip
BY_LAYER = {"model_type": "gemma3_text", "head_dim": 32, "rope_parameters": {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}  # fmt: skip
PHI3 = {"model_type": "phi3", "rope_theta": 10000.0, "max_position_embeddings": 128, ORIGINAL: 32,
        "rope_scaling": {"type": "su", "short_factor": [1.0 + i / 8 for i in range(16)],
                         "long_factor": [2.0 + i for i in range(16)]}}  # fmt: skip
DYNAMIC = {**LLAMA, "max_position_embeddings": 32, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
FULL, SLIDING = ["--layer-type", "full_attention"], ["--layer-type", "sliding_attention"]
BARE = {"rope_theta": 10000.0}

_yarn, _yarn_mscale = reference.yarn(32, 500000.0, 4.0, 64.0)
_of_mla = dict(pairing="interleaved", pairing_out="half", offset=16)
# (config, options, frequencies for a head_dim of 32, arguments of reference.rotate)
RIGHT = [
    (LLAMA, [], reference.default(32, 500000.0), {}),
    ({**LLAMA, "rope_scaling": LLAMA3}, [], reference.llama3(32, 500000.0, 8.0, 1.0, 4.0, 64.0), {}),
    ({"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}, [],
     reference.llama3(32, 500000.0, 8.0, 1.0, 4.0, 64.0), {}),
    ({**LLAMA, "rope_scaling": {"rope_type": "yarn", **YARN}}, [], _yarn, {"mscale": _yarn_mscale}),
    (DEEPSEEK, [], reference.yarn(16, 10000.0, 4.0, 64.0)[0], _of_mla),
    (DEEPSEEK, ["--backward"], reference.yarn(16, 10000.0, 4.0, 64.0)[0], {**_of_mla, "backward": True}),
    ({**DEEPSEEK, "rope_interleave": False}, [], reference.yarn(16, 10000.0, 4.0, 64.0)[0], {"offset": 16}),
    ({"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 10000}, [], reference.default(8), {}),
    ({"model_type": "stablelm", **BARE}, [], reference.default(8), {}),
    ({"model_type": "qwen3_5", **BARE}, [], reference.default(8), {}),
    ({"model_type": "glm4", "head_dim": 32, "partial_rotary_factor": 0.5, **BARE}, [], reference.default(16),
     {"pairing": "interleaved"}),
    ({"model_type": "gptj", "rotary_dim": 8, **BARE}, [], reference.default(8), {"pairing": "interleaved"}),
    (GEMMA, FULL, reference.linear(32, 1000000.0, 8), {}),
    (GEMMA, SLIDING, reference.default(32), {}),
    (BY_LAYER, FULL, reference.linear(32, 1000000.0, 8), {}),
    (BY_LAYER, SLIDING, reference.default(32), {}),
    ({"model_type": "llama"}, ["--rope-theta", 500000], reference.default(32, 500000.0), {}),
    (LLAMA, [*HALF, "--rope-theta", 500000, "--scaling", "default"], reference.default(32, 500000.0), {}),
    (PHI3, ["--seq-len", 40], reference.longrope(32, 10000.0, [2.0 + i for i in range(16)]),
     {"mscale": reference.longrope_mscale(4.0, 32.0)}),
    (DYNAMIC, ["--seq-len", 50], reference.dynamic(32, 500000.0, 2.0, 50.0, 32.0), {}),
    ({**DYNAMIC, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}, "model_type": "hunyuan_v1_dense"}, [],
     reference.ntk_alpha(32, 500000.0, 1000.0), {}),
    ({"model_type": "gemma4_text", "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5}, **BARE}, [],
     reference.proportional(32, 10000.0, 1.0, 0.5), {}),
    ({"model_type": "mine", **BARE}, [*HALF, "--rotary-dim", 32], reference.default(32), {}),
    ({"model_type": "mine", "rotary_dim": None, "partial_rotary_factor": 0.25, **BARE}, HALF, reference.default(8), {}),
    ({"model_type": "nanochat", **BARE}, [], reference.default(32), {"inverse": True}),
    ({"model_type": "smollm3", "no_rope_layers": [1, 0], **BARE}, [], reference.default(32), {}),
]  # fmt: skip


@pytest.mark.parametrize("config, options, frequencies, how", RIGHT, ids=range(len(RIGHT)))
def test_a_config_replaces_options(tmp_path, config, options, frequencies, how):
    angles = reference.angles_of(np.arange(TOKENS), frequencies)
    expect(tmp_path, "bshd", {"q": random("F64", 1, TOKENS, 2, 32)}, angles, *options, config=config, **how)


# (config, options, words that the error must contain). test_frequencies.py tests what the config reader refuses.
WRONG = [
    (GEMMA, [], ["--layer-type", "full_attention", "sliding_attention"]),
    (BY_LAYER, ["--layer-type", "full"], ["--layer-type", "full_attention"]),
    (LLAMA, FULL, ["--layer-type", "leave it out"]),
    ({"model_type": "mine", **BARE}, [], ["--pairing", "'mine'"]),
    ({"model_type": "mine", **BARE}, HALF, ["--rotary-dim", "'mine'"]),
    (LLAMA, ["--pairing", "interleaved"], ["--pairing", "model_type", "half"]),
    (LLAMA, ["--rope-theta", 10000], ["--rope-theta", "rope_theta", "500000"]),
    ({**LLAMA, "rope_scaling": LLAMA3}, ["--scaling", "default"], ["--scaling", "rope_scaling", "llama3"]),
    (DEEPSEEK, ["--pairing-out", "interleaved"], ["--pairing-out", "half"]),
    (LLAMA, ["--rotary-dim", 16], ["--rotary-dim", "config", "32"]),
    ({**LLAMA, "head_dim": 64}, [], ["'q'", "--head-dim (64)"]),
    ({"model_type": "llama"}, [], ["--rope-theta", "missing", "config"]),
    (DEEPSEEK, ["--inverse"], ["--inverse", "--backward"]),
    ({"model_type": "nanochat", **BARE}, ["--inverse"], ["--inverse", "--backward"]),
    (PHI3, [], ["--seq-len", "up to 39"]),
    (LLAMA, ["--seq-len", 50], ["--seq-len", "no effect"]),
    ({**LLAMA, "rope_scaling": {**LLAMA3, "beta_fast": 32}}, [], ["beta_fast", "llama3"]),
    ({**LLAMA, "rope_thetha": 10000.0}, [], ["rope_thetha", "not a known key", "rope_theta"]),
    ({**LLAMA, "rotary_fraction": 0.5}, [], ["rotary_fraction", "not a known key"]),
    ({**LLAMA, "text_config": {"model_type": "llama", **BARE}}, [], ["rope_theta", "text_config"]),
    ({"model_type": "nemotron_h", **BARE}, [*HALF, "--rotary-dim", 32], ["model_type", "without a rotary embedding"]),
    ({"model_type": "falcon", "alibi": True, **BARE}, [], ["alibi", "does not rotate"]),
    ({"model_type": "zamba2", **BARE}, [], ["use_mem_rope"]),
    ([], [], ["JSON object"]),
]  # fmt: skip


@pytest.mark.parametrize("config, options, words", WRONG, ids=range(len(WRONG)))
def test_configs_that_are_refused(tmp_path, config, options, words):
    q = {"q": random("F64", 1, TOKENS, 2, 32)}
    refused(tmp_path, q, words, "--layout", "bshd", *options, config=config)


def test_a_factor_that_the_class_ignores_has_the_error_of_trope_frequencies(tmp_path):
    config = {**LLAMA, "partial_rotary_factor": 0.5}
    words = [str(refused_call("partial_rotary_factor", frequencies, config))]
    q, angles = random("F64", 1, TOKENS, 2, 32), reference.angles_of(np.arange(TOKENS), reference.default(16))
    for tensors in ({"q": q}, {"q": q, "freqs": tensor("F64", np.tile(angles, 2))}):
        refused(tmp_path, tensors, words, "--layout", "bshd", config=config)


def test_inverse_frequencies_that_no_language_model_has_give_a_warning(tmp_path):
    falling = np.array(reference.default(32, 500000.0))
    q, options = random("F64", 1, TOKENS, 2, 32), ["--layout", "bshd", "--quiet"]
    for values, warned in ((falling, False), (2 * np.pi / falling, True), (np.degrees(falling), True), (falling[::-1], True)):
        tensors = {"q": q, "inv_freq": tensor("F32", values)}
        result = apply(tmp_path, tensors, *options, config=LLAMA)
        assert result.status == 0 and ("warning" in result.err) == warned and result.err.count("\n") == warned, result.err
        assert not warned or "'inv_freq'" in result.err and "in.safetensors" in result.err
        (tmp_path / "config.json").unlink()
        assert apply(tmp_path, tensors, *options, *HALF).err == ""  # angles of pixels may grow


def test_files_that_are_not_a_config_are_refused(tmp_path):
    q, path = {"q": random("F64", 1, TOKENS, 2, 32)}, tmp_path / "config.json"
    twice = '{"model_type": "llama", "rope_theta": 10000, "rope_theta": 500000}'
    for content, words in (("{", ["JSON"]), ("{}\0", ["JSON"]), (twice, ["rope_theta", "only once"]), ("\udcff", ["JSON"])):
        path.write_text(content, errors="surrogateescape")
        refused(tmp_path, q, [str(path), *words], "--layout", "bshd", "--config", path)


def test_the_model_type_sets_the_order_of_axes(tmp_path):
    """mrope_section has an effect if position_ids have several axes. It has no effect without position_ids."""
    ids, q = indices("I64", 3, 1, TOKENS), random("F64", 1, TOKENS, 2, 32)
    tensors, frequencies = {"q": q, "position_ids": ids}, reference.default(32, 500000.0)
    four = {"q": q, "position_ids": tensor("I64", np.concatenate([np.arange(TOKENS)[None, None], ids.values]))}

    def config(model, **keys):
        rope = {"type": "mrope", "mrope_section": [6, 5, 5], **keys}
        return {**LLAMA, "model_type": model, "partial_rotary_factor": 1.0, "rope_scaling": rope}

    for model, order, keys in (
        ("qwen2_vl", "sections", {}), ("qwen2_vl_text", "sections", {"mrope_interleaved": False}),
        ("qwen3_vl", "interleaved", {}), ("qwen3_5_text", "interleaved", {"mrope_interleaved": True}),
        ("mine", "sections", {"mrope_interleaved": False}), ("mine", "interleaved", {"mrope_interleaved": True}),
    ):  # fmt: skip
        angles = reference.angles_of(ids.values, frequencies, reference.axes_of_pairs(order, [6, 5, 5]))
        common = HALF * (model == "mine")
        expect(tmp_path, "bshd", tensors, angles, *common, config=config(model, **keys))
        line = reference.angles_of(np.arange(TOKENS), frequencies)
        expect(tmp_path, "bshd", {"q": q}, line, *common, config=config(model, **keys))
        words = ["'position_ids'", "4 axes", "position_ids[1:]"]
        refused(tmp_path, four, words, *common, "--layout", "bshd", config=config(model, **keys))
    expect(tmp_path, "bshd", tensors, angles, *HALF, "--axis-map", "interleaved", config=config("mine"))
    for wrong, options, words in (
        (config("mine"), HALF, ["mrope_interleaved", "missing"]),
        (config("qwen3_vl", mrope_interleaved=False), [], ["mrope_interleaved"]),
        (config("qwen2_vl"), ["--axis-map", "interleaved"], ["--axis-map", "mrope_section"]),
        (config("llama"), [], ["mrope_section", "one axis"]),
    ):
        refused(tmp_path, tensors, words, "--layout", "bshd", *options, config=wrong)


def test_angles_in_the_file_take_precedence_over_the_config(tmp_path):
    """The config still sets the pairing and rotary_dim, which must fit the file's angles."""
    angles = reference.angles_of(np.arange(TOKENS), reference.default(16))
    tensors = {"q": random("F64", 1, TOKENS, 2, 32), "freqs": tensor("F64", np.tile(angles, 2))}
    config = {"model_type": "glm4", "head_dim": 32, "partial_rotary_factor": 0.5, **BARE}
    expect(tmp_path, "bshd", tensors, angles, config=config, pairing="interleaved")
    refused(tmp_path, tensors, ["'freqs'"], "--layout", "bshd", config={**config, "partial_rotary_factor": 1.0})


# ---- Comparison with models of transformers ----

NEW = ("csm cwm emu3 minimax mistral4 ernie4_5_vl_moe paddleocr_vl glm_ocr longcat_flash vaultgemma zamba2").split()


@pytest.mark.parametrize("model", NEW)
def test_a_config_of_transformers_rotates_as_its_model_does(tmp_path, monkeypatch, model):
    """A model's rotation maps x to y. --config must map the same x, at the same positions, to y."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    models = importlib.import_module("test_models")
    config = models.small_config(model)
    for layer_type in models.layer_types_of(config):
        has_axes = model in models.AXES
        positions = torch.tensor(models.POSITIONS)[:, None] if has_axes else torch.tensor(models.POSITIONS[:1])
        probe = models.run_attention(monkeypatch, model, config, layer_type, positions)
        x, y = (found.detach().numpy() for found in probe.rotated[0])
        layout = "bhsd" if x.shape[2] == models.TOKENS else "bshd"
        tensors = {"q": Tensor("F32", np.ascontiguousarray(x)), "position_ids": tensor("I64", positions.numpy())}
        options = [] if layer_type is None else ["--layer-type", layer_type]
        result = apply(tmp_path, tensors, "--layout", layout, *options, config=config.to_dict())
        assert result.status == 0, result.err
        assert np.abs(result.tensors["q"].values - y).max() <= models.TOLERANCE * np.abs(y).max()
        assert np.abs(x - y).max() > 0.1 * np.abs(y).max()  # the model has rotated x
