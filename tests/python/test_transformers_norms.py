"""trope.transformers.patch(model, fuse_norm=True): rotations compute the norms of q and k in tiny random models."""

import collections
import importlib

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers", minversion="5")

from test_transformers import (  # noqa: E402, F401 (seed is a fixture of all tests)
    BF16, F16, F32, FAMILIES, IMAGES, MOE, SIZES, SLIDING, differing, make, rope, run, seed, words,
)  # fmt: skip

from checks import DEVICES  # noqa: E402
from refusals import refused  # noqa: E402
from trope import _abi, _fused_norms, _prepared  # noqa: E402
from trope import transformers as patches  # noqa: E402
from trope.torch import _norms  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


# ---- Models ----

EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
SMALL_EXPERTS = dict(EXPERTS, moe_intermediate_size=32)
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
              layer_types=["linear_attention", "full_attention"], shared_expert_intermediate_size=32)  # fmt: skip
DOTS = dict(head_dim=16, n_shared_experts=1, first_k_dense_replace=1, **dict(MOE, n_group=1))
AFMOE = dict(head_dim=16, num_dense_layers=1, global_attn_every_n_layers=2, **SMALL_EXPERTS, **SLIDING)
GLM = dict(head_dim=32, use_qk_norm=True, first_k_dense_replace=1, **MOE, **rope(partial_rotary_factor=0.5))
MINIMAX = dict(head_dim=32, num_local_experts=4, num_experts_per_tok=2, **rope(partial_rotary_factor=0.5))
GEMMA3N = dict(head_dim=32, num_kv_shared_layers=0, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64,
               laurel_rank=8, activation_sparsity_pattern=[0.0, 0.0], altup_num_inputs=2, **SLIDING)  # fmt: skip

# The class, its config, and how many norms in two layers are computed by rotations, and how many by modules.
NORMED = {
    "qwen3": (*FAMILIES["qwen3"][:2], 4, 0),
    "qwen3_moe": ("Qwen3Moe", dict(head_dim=16, **SMALL_EXPERTS), 4, 0),
    "apertus": ("Apertus", rope(), 4, 0),
    "dots1": ("Dots1", DOTS, 4, 0),
    "doge": ("Doge", {}, 4, 0),
    "lfm2": ("Lfm2", dict(layer_types=["conv", "full_attention"]), 2, 0),
    "glm4_moe": ("Glm4Moe", GLM, 4, 0),
    # Models with a layer that does not rotate.
    "exaone4": ("Exaone4", SLIDING, 2, 2),
    "afmoe": ("Afmoe", AFMOE, 2, 2),
    "flint": ("Flint", dict(head_dim=16, **SLIDING), 2, 2),
    # 1 + weight. qwen3_next also has a gate beside q, and a window.
    "gemma3": (*FAMILIES["gemma3"][:2], 4, 0),
    "qwen3_next": ("Qwen3Next", dict(head_dim=32, **SMALL_EXPERTS, **LINEAR, **rope(partial_rotary_factor=0.25)), 2, 0),
    # pow(mean + eps, -0.5). gemma4 and gemma3n rotate q and k by separate calls.
    "gemma4": (*FAMILIES["gemma4"][:2], 4, 0),
    "gemma3n": ("Gemma3n", GEMMA3N, 4, 0),
    # Norms over all heads of a token.
    "olmo2": ("Olmo2", {}, 4, 0),
    "olmo3": ("Olmo3", SLIDING, 4, 0),
    "olmoe": ("Olmoe", EXPERTS, 4, 0),
    "flex_olmo": ("FlexOlmo", EXPERTS, 4, 0),
    "minimax_m2": ("MiniMaxM2", MINIMAX, 4, 0),
    # Norms after the rotation.
    "hunyuan_v1_dense": ("HunYuanDenseV1", dict(head_dim=16), 4, 0),
    "llama4": (*FAMILIES["llama4"][:2], 4, 0),
    "nanochat": (*FAMILIES["nanochat"][:2], 4, 0),
}


def build(cls, options):
    cls = getattr(hf, cls + "ForCausalLM")
    return make(cls, cls.config_class(**{**SIZES, **options}))


def normed(name, **more):
    cls, options, _, _ = NORMED[name]
    return build(cls, {**options, **more})


def attention(model, layer=-1):
    """Returns the attention of a layer, by default of the last one."""
    found = [m for m in model.modules() if type(m).__name__.endswith("Attention")]
    return found[layer]


def is_within(y, eager):
    """Whether logits are within the bound of docs/python.md, which is a fraction of the largest logit."""
    return (y.double() - eager.double()).abs().max() <= LOGITS[y.dtype] * eager.double().abs().max()


LOGITS = {F32: 2.0**-16, BF16: 2.0**-6}
GRADIENTS = {F32: 2.0**-14, BF16: 2.0**-3}
OF_NORMS = {F32: 2.0**-15, BF16: 2.0**-5}  # gradients of the weights of norms


def is_norm(name):
    """Whether a parameter is the weight of a norm of q or k."""
    return _fused_norms._NAME.fullmatch(name.split(".")[-2])


def far(gradients, others, dtype):
    """Returns the names of gradients that differ by more than docs/python.md allows."""
    assert gradients.keys() == others.keys()
    bounds = {name: (OF_NORMS if is_norm(name) else GRADIENTS)[dtype] for name in gradients}
    return [name for name, g in gradients.items() if (others[name] - g).norm() > bounds[name] * g.norm()]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", NORMED)
def test_family(name, dtype, device):
    """Logits and gradients are within bounds of eager's, and have eager's bits again after undo. (On a GPU they are only
    close, because experts are summed in no fixed order.)"""
    model, weights = normed(name).to(device, dtype), torch.randn(2, 11, 64).to(device)
    inputs = dict(input_ids=words()["input_ids"].to(device), use_cache=False)
    eager, gradients = run(model, inputs, weights)
    assert any(map(is_norm, gradients)) == (name not in ("llama4", "nanochat")) and eager.std() > 0
    with patches.patch(model, fuse_norm=True) as handle:
        fused, others = run(model, inputs, weights)
    assert handle._norms() == [NORMED[name][2:]] and handle.fused == NORMED[name][2]
    assert is_within(fused, eager) and fused.dtype == dtype
    assert not far(gradients, others, dtype)
    again, others = run(model, inputs, weights)
    if device == "cpu":
        assert torch.equal(again, eager) and not differing(gradients, others)
    else:
        assert is_within(again, eager) and not far(gradients, others, dtype)


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma4"])
def test_images(name):
    """Tests M-RoPE, and a vision tower that rotates heads part by part. The norms of the tower are not fused."""
    create, make_inputs, _ = IMAGES[name]
    model, inputs, weights = create(), make_inputs(), torch.randn(2, 14, 64)
    eager, gradients = run(model, inputs, weights)
    part = model
    if name == "gemma4":
        refused(
            "fuse_norm", patches.patch, model, fuse_norm=True, words="Gemma4VisionAttention does not rotate in its forward"
        )
        part = model.model.language_model
    with patches.patch(part, fuse_norm=True) as handle:
        fused, others = run(model, inputs, weights)
    assert handle._norms() == [(4, 0)] and is_within(fused, eager) and not far(gradients, others, F32)


# ---- Eager's rstd ----


def run_eager(model, inputs, monkeypatch):
    """Returns the logits, and the rstds of all norms of q and k: {module: a list with the rstd of each call}."""
    rstds, running = collections.defaultdict(list), []

    def keep(function, is_root):
        def root(x, *exponent):
            y = function(x, *exponent)
            if running and is_root(*exponent):
                rstds[running[0]].append(y.squeeze(-1).detach())
            return y

        return root

    hooks = []
    for path, module in model.named_modules():
        if _fused_norms._NAME.fullmatch(path.split(".")[-1]):
            hooks.append(module.register_forward_pre_hook(lambda module, args: running.append(module)))
            hooks.append(module.register_forward_hook(lambda module, args, y: running.remove(module)))
    with monkeypatch.context() as context, torch.no_grad():
        context.setattr(torch, "rsqrt", keep(torch.rsqrt, lambda: True))
        context.setattr(torch, "pow", keep(torch.pow, lambda exponent: exponent == -0.5))
        logits = model(**inputs).logits
    for hook in hooks:
        hook.remove()
    return logits, rstds


def read_rstds(rstds, monkeypatch):
    """Makes the norms of forward calls read these rstds (TROPE_RSTD_READ)."""
    modules, make_norm, make_rstds = [], _fused_norms.Kind.norm, _norms._new_rstds

    def norm(kind, module, *how):
        modules.append(module)
        return make_norm(kind, module, *how)

    def of_eager(spec, tensors):
        made = make_rstds(spec, tensors)
        for wanted in made:
            if wanted is not None:
                rstd = rstds[modules.pop(0)].pop(0)
                wanted.copy_(rstd if rstd.shape == wanted.shape else rstd.transpose(1, 2))
        return made

    monkeypatch.setattr(_fused_norms.Kind, "norm", norm)
    monkeypatch.setattr(_norms, "_new_rstds", of_eager)
    monkeypatch.setattr(_norms, "needs_gradient", lambda *call: True)  # such calls have an rstd
    monkeypatch.setattr(_abi, "RSTD_WRITE", _abi.RSTD_READ)
    monkeypatch.setattr(_prepared, "_prepared_calls", {})


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", NORMED)
def test_same_bits_as_eager_with_eagers_rstd(name, dtype, monkeypatch):
    """Each norm and rotation rounds as eager does, in every combination. So with eager's rstd, logits have eager's bits."""
    model, inputs = normed(name).to(dtype), words(15)
    eager, rstds = run_eager(model, inputs, monkeypatch)
    assert sum(map(len, rstds.values())) == sum(NORMED[name][2:])
    with patches.patch(model, fuse_norm=True) as handle, torch.no_grad():
        with monkeypatch.context() as context:
            read_rstds(rstds, context)
            fused = model(**inputs).logits
    assert torch.equal(fused, eager) and handle._norms() == [NORMED[name][2:]]


# ---- Refusals ----

LAYER_NORM = "is a %s, which is not an RMS norm that trope.Norm reproduces bit for bit"
REFUSED = {
    "cohere.CohereModel": (dict(use_qk_norm=True), "CohereAttention.q_norm " + LAYER_NORM % "CohereLayerNorm"),
    "chameleon.ChameleonModel": (
        dict(vq_config=dict(latent_dim=8, base_channels=32, channel_multiplier=[1]), vocabulary_map={"<image>": 3}),
        "ChameleonAttention.q_norm " + LAYER_NORM % "ChameleonLayerNorm",
    ),
    "stablelm.StableLmModel": (dict(qk_layernorm=True), "q_layernorm " + LAYER_NORM % "StableLmLayerNormPerHead"),
    "persimmon.PersimmonModel": (dict(qk_layernorm=True), "PersimmonAttention.q_layernorm " + LAYER_NORM % "LayerNorm"),
    "phi.PhiModel": (dict(qk_layernorm=True), "PhiAttention.q_layernorm " + LAYER_NORM % "LayerNorm"),
    "esmc.EsmcModel": (dict(num_key_value_heads=4), "EsmcAttention.q_norm " + LAYER_NORM % "EsmcLayerNorm"),
    "dory.DoryModel": ({}, "DoryAttention.q_norm " + LAYER_NORM % "DoryL2Norm"),
    "zaya.ZayaModel": ({}, "ZayaAttention.qk_norm " + LAYER_NORM % "ZayaQKNorm"),
    "deepseek_v4.DeepseekV4Model": (FAMILIES["deepseek_v4"][1], "q_b_norm " + LAYER_NORM % "DeepseekV4UnweightedRMSNorm"),
    "muse_spark.MuseSparkTextModel": (
        dict(head_dim=16, **SLIDING),
        r"MuseSparkTextAttention: self.qk_norm\(query_states\) \* self.qk_scale_factor is between self.qk_norm and the rotation",
    ),
    "sapiens2.Sapiens2Model": ({}, "Sapiens2Attention: .*apply_rotary_pos_emb does not rotate all tokens"),
    "gemma4.Gemma4VisionModel": ({}, "Gemma4VisionAttention does not rotate in its forward, but in another function"),
    "llama.LlamaModel": ({}, "no attention of .*LlamaModel normalises q and k"),
    "glm4_moe.Glm4MoeModel": (dict(GLM, use_qk_norm=False), "no attention of .*Glm4MoeModel normalises"),
}


@pytest.mark.parametrize("path", REFUSED)
def test_models_that_are_refused(path):
    """The model is refused by name, before anything is changed. Without fuse_norm, it is patched."""
    options, message = REFUSED[path]
    module, cls = path.split(".")
    module = importlib.import_module("transformers.models.%s.modeling_%s" % (module, module))
    cls = getattr(module, cls)
    with torch.device("meta"):
        model = cls(cls.config_class(**(options if "Vision" in path or "Sapiens" in path else {**SIZES, **options})))
    refused("fuse_norm", patches.patch, model, fuse_norm=True, words=message)
    assert not patches._patched and not patches._fusions
    patches.patch(model).undo()


def test_fuse_norm_and_compiled_are_flags():
    refused("fuse_norm", patches.patch, normed("qwen3"), fuse_norm="yes")
    refused("compiled", patches.patch, normed("qwen3"), compiled="yes")


# ---- Hooks ----

HOOKS = {
    "forward": lambda norm: norm.register_forward_hook(lambda *given: None),
    "forward_pre": lambda norm: norm.register_forward_pre_hook(lambda *given: None),
    "full_backward": lambda norm: norm.register_full_backward_hook(lambda *given: None),
    "full_backward_pre": lambda norm: norm.register_full_backward_pre_hook(lambda *given: None),
    "module_forward": lambda norm: torch.nn.modules.module.register_module_forward_hook(lambda *given: None),
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_hooks(kind, name):
    """A norm with hooks is refused when the model is patched or, if the hooks are added later, when it is called."""
    model, inputs = normed("qwen3"), words()
    norm = getattr(attention(model), name)
    hook = HOOKS[kind](norm)
    refused("fuse_norm", patches.patch, model, fuse_norm=True, words="%s.*hooks" % ("norm" if "module" in kind else name))
    hook.remove()
    with patches.patch(model, fuse_norm=True):
        model(**inputs)
        hook = HOOKS[kind](norm)
        refused("fuse_norm", model, words="Qwen3Attention.%s.*hooks" % ("." if "module" in kind else name), **inputs)
        hook.remove()
        model(**inputs)


def test_a_norm_with_a_forward_of_its_own():
    """accelerate and kernels set a forward on an instance."""
    model, inputs = normed("qwen3"), words()
    norm = attention(model).k_norm
    norm.forward = norm.forward
    refused("fuse_norm", patches.patch, model, fuse_norm=True, words="layers.1.self_attn.k_norm has its own forward")
    del norm.forward
    with patches.patch(model, fuse_norm=True):
        norm.forward = lambda x: x
        refused("fuse_norm", model, words="Qwen3Attention.k_norm has its own forward", **inputs)
