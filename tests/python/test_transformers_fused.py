"""trope.transformers.patch(model, fuse_norm=True): what attentions may do with a postponed norm; fused models with
autocast, torch.compile, checkpointing, caches, copies and threads."""

import copy
import importlib
import json
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers", minversion="5")

from refusals import refused  # noqa: E402
from test_transformers import (
    BF16,
    F32,
    FAMILIES,
    SIZES,
    differing,
    run,
    seed,
    words,
)  # noqa: E402, F401 (seed is a fixture)
from test_transformers_norms import NORMED, attention, far, is_within, normed  # noqa: E402

from trope import _fused_norms  # noqa: E402
from trope import transformers as patches  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("default_device")]


# ---- Code between a norm and the rotation ----

qwen3 = importlib.import_module("transformers.models.qwen3.modeling_qwen3")
apply_rotary_pos_emb = qwen3.apply_rotary_pos_emb


class Attention(torch.nn.Module):
    """An attention that returns q. `between` gets the input and the result of the norm, and returns the q to rotate."""

    def __init__(self, norm=None, between=lambda x, q: q, rotates=True):
        super().__init__()
        self.q_norm = norm or qwen3.Qwen3RMSNorm(16)
        with torch.no_grad():
            self.q_norm.weight.copy_(1 + torch.randn_like(self.q_norm.weight) / 4)
        self.between, self.rotates = between, rotates

    def forward(self, x, k, cos, sin):
        x = x * 1
        q = self.q_norm(x)
        q = self.between(x, q)
        if self.rotates:
            q, k = apply_rotary_pos_emb(q, k, cos, sin)
        return q


def arrays(dtype=F32):
    tensors = torch.randn(2, 4, 5, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    return [x.to(dtype) for x in tensors]


def both(model, given, **fused):
    """Returns the result and the gradients of x and the weight for eager, the same for the patched model, and [(fused
    norms, norms computed by modules)]."""
    results = []
    given[0].requires_grad_()
    for patch in (None, lambda: patches.patch(model, fuse_norm=True)):
        handle = patch and patch()
        y = model(*given)
        results.append((y.detach(), *torch.autograd.grad(y.sin().sum(), (given[0], model.q_norm.weight))))
    handle.undo()
    return *results, handle._norms()


BETWEEN = {
    "scaled": lambda x, q: q * 2,
    "added": lambda x, q: 1 + q,
    "tensor": lambda x, q: x + q,
    "function": lambda x, q: torch.transpose(torch.transpose(q, 1, 2), 1, 2),
    "method": lambda x, q: q.clamp(-1, 1),
    "in place": lambda x, q: q.clamp_(-1, 1),
    "operator in place": lambda x, q: q.__iadd__(1),
    "index": lambda x, q: q[..., :],
    "set": lambda x, q: (q.__setitem__((0, 0), 0.0), q)[1],
    "columns": lambda x, q: q.transpose(-1, -2).transpose(-1, -2),
    "other view": lambda x, q: q.view(2, 4, 5, 2, 8).flatten(-2),
    "compared": lambda x, q: torch.where(q == q.amax(), q, x),
    "read": lambda x, q: (q.sum(), q)[1],
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_attention_that_changes_q_before_the_rotation(name):
    """The module computes the norm, and the bits are eager's."""
    eager, patched, norms = both(Attention(between=BETWEEN[name]), arrays())
    assert all(torch.equal(x, y) for x, y in zip(eager, patched))
    assert norms == [(0, 1)]


@pytest.mark.parametrize("view", ["transpose", "view", "shape"])
def test_views_between_norm_and_rotation(view):
    between = {
        "transpose": lambda x, q: q.transpose(1, 2).transpose(2, 1),
        "view": lambda x, q: q.view(q.shape),
        "shape": lambda x, q: q.view(q.size(0), *q.shape[1:-1], 16) if q.dim() == 4 and q.dtype == F32 else None,
    }[view]
    eager, patched, norms = both(Attention(between=between), arrays())
    assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(eager, patched))
    assert norms == [(1, 0)]


def test_an_attention_that_does_not_rotate():
    eager, patched, norms = both(Attention(between=lambda x, q: torch.sin(q), rotates=False), arrays())
    assert all(torch.equal(x, y) for x, y in zip(eager, patched)) and norms == [(0, 1)]


def test_a_norm_that_nothing_reads():
    """If the norm's result leaves the attention or is lost, the call is refused when the attention returns."""
    for between in (lambda x, q: q, lambda x, q: x):
        model = Attention(between=between, rotates=False)
        with patches.patch(model, fuse_norm=True):
            refused("fuse_norm", model, *arrays(), words="Attention has postponed q_norm, but nothing has read")


def test_an_input_that_is_written_to():
    """The write comes after the call of the norm, and before the norm is computed."""
    for rotates in (True, False):
        model = Attention(between=lambda x, q: (x.add_(1), q if rotates else q.sin())[1], rotates=rotates)
        with torch.no_grad(), patches.patch(model, fuse_norm=True):
            refused("fuse_norm", model, *arrays(), words="written to before")


def test_clipped_q():
    """OLMoE's clip_qkv writes to the result of the norm."""
    model, inputs, weights = normed("olmoe", clip_qkv=0.5), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    with patches.patch(model, fuse_norm=True) as handle:
        fused, others = run(model, inputs, weights)
    assert torch.equal(fused, eager) and not differing(gradients, others) and handle._norms() == [(0, 4)]


def test_a_weight_of_another_dtype():
    """q is bf16, and the weight is f32. A norm of Qwen 3 then gives f32, so its module computes it. A norm of Gemma 3 gives
    bf16, and is fused."""
    gemma3 = importlib.import_module("transformers.models.gemma3.modeling_gemma3")
    for norm, counts in ((qwen3.Qwen3RMSNorm(16), (0, 1)), (gemma3.Gemma3RMSNorm(16), (1, 0))):
        x, _, cos, sin = arrays(BF16)
        k = x.float() if counts[1] else x
        tables = (cos.float(), sin.float()) if counts[1] else (cos, sin)
        eager, patched, norms = both(Attention(norm), [x, k, *tables])
        assert norms == [counts] and eager[0].dtype == patched[0].dtype == (F32 if counts[1] else BF16)
        assert torch.allclose(eager[0], patched[0], rtol=2.0**-7, atol=2.0**-7)


def test_a_rotation_in_another_dtype():
    """bf16 q and f32 tables give f32. The norm is not fused, because the rotation would not round it to bf16."""
    gemma3 = importlib.import_module("transformers.models.gemma3.modeling_gemma3")
    x, k, cos, sin = arrays(BF16)
    for model in (Attention(gemma3.Gemma3RMSNorm(16).to(BF16)), After(gemma3.Gemma3RMSNorm(16).to(BF16))):
        eager, patched, norms = both(model, [x, k, cos.float(), sin.float()])
        assert norms == [(0, 1)] and eager[0].dtype == F32 and torch.equal(eager[0], patched[0])


def test_a_norm_with_another_gradient():
    class Detached(qwen3.Qwen3RMSNorm):
        def forward(self, x):
            return super().forward(x.detach()) + (x - x.detach())

    refused(
        "fuse_norm", patches.patch, Attention(Detached(16)), fuse_norm=True, words="is a Detached, which is not an RMS norm"
    )


def test_float64():
    """The norm is not fused, because modules normalise float64 in float32, and the rotation would not."""
    eager, patched, norms = both(Attention().double(), arrays(torch.float64))
    assert norms == [(0, 1)] and all(torch.equal(x, y) for x, y in zip(eager, patched))


def test_inference_mode():
    model = normed("qwen3")
    with torch.inference_mode():
        eager = model(**words()).logits
        with patches.patch(model, fuse_norm=True) as handle:
            assert model(**words()).logits.shape == eager.shape and handle.fused == 4


def test_forwards_that_are_refused():
    """A forward is refused if it uses a norm in another way than by a call with one argument, or if this call is part of a
    larger expression. It is also refused if two classes share it."""

    class Asks(Attention):
        def forward(self, x, k, cos, sin):
            return apply_rotary_pos_emb(self.q_norm(x) if self.q_norm is not None else x, k, cos, sin)[0]

    class Keyword(Attention):
        def forward(self, x, k, cos, sin):
            q = self.q_norm(hidden_states=x)
            return apply_rotary_pos_emb(q, k, cos, sin)[0]

    class Argument(Attention):
        def forward(self, x, k, cos, sin):
            return apply_rotary_pos_emb(self.q_norm(x), k, cos, sin)[0]

    for cls, words in (
        (Asks, "is not only called"),
        (Keyword, "is not only called"),
        (Argument, "apply_rotary_pos_emb.* is between"),
    ):
        refused("fuse_norm", patches.patch, cls(), fuse_norm=True, words="%s: .*%s" % (cls.__name__, words))

    class Shares(torch.nn.Module):
        forward = Argument.forward
        __init__ = Argument.__init__

    refused(
        "fuse_norm", patches.patch, Argument(), fuse_norm=True, words="Argument.forward is also a method of other classes"
    )


def test_another_module_in_place_of_a_norm():
    """A module that replaces the norm after the patch, and is of another kind, is called as in eager code."""
    model = Attention()
    with patches.patch(model, fuse_norm=True) as handle:
        given = arrays()
        for norm in (torch.nn.Identity(), torch.nn.LayerNorm(16), torch.nn.RMSNorm(16)):
            model.q_norm = norm
            wanted, _ = qwen3.apply_rotary_pos_emb(norm(given[0]), *given[1:])
            assert torch.equal(model(*given), wanted)
        assert handle._norms() == [(0, 3)]


class After(torch.nn.Module):
    """An attention with its norm after the rotation. `between` gets the result of the rotation, and returns the input of
    the norm. `behind` gets this input and the result of the norm."""

    def __init__(self, norm=None, between=lambda q: q, behind=lambda turned, q: q.sin()):
        super().__init__()
        self.q_norm = norm or qwen3.Qwen3RMSNorm(16)
        self.between, self.behind = between, behind

    def forward(self, x, k, cos, sin):
        q, k = apply_rotary_pos_emb(x, k, cos, sin)
        turned = self.between(q)
        q = self.q_norm(turned)
        return self.behind(turned, q)


def test_reads_of_a_rotation_before_or_after_its_norm():
    """The rotation and the norm have the right results, whichever is read first."""
    cases = [
        (After(), (1, 0)),
        (After(between=lambda q: q * 2), (0, 1)),
        (After(between=lambda q: (q.sum(), q)[1]), (0, 1)),
        (After(behind=lambda turned, q: turned + q), (1, 0)),
        (After(behind=lambda turned, q: q - turned), (1, 0)),
        (After(behind=lambda turned, q: turned.sin()), (1, 0)),
    ]
    for model, counts in cases:
        with torch.no_grad():
            model.q_norm.weight.normal_()
        given = arrays()
        wanted = model(*given)
        with patches.patch(model, fuse_norm=True) as handle:
            assert torch.allclose(model(*given), wanted, rtol=1e-4, atol=1e-5)
        assert handle._norms() == [counts]


def test_another_rotation_in_the_same_forward():
    """The other rotation is by a function that leaves tokens out. It is not postponed, and takes no norm."""
    dino = importlib.import_module("transformers.models.dinov3_vit.modeling_dinov3_vit")
    x, k, cos, sin = arrays()

    def turn(q):
        return dino.apply_rotary_pos_emb(q, k, cos[0, 1:], sin[0, 1:])[0]

    with torch.device("meta"):
        other = dino.DINOv3ViTModel(dino.DINOv3ViTConfig(num_hidden_layers=1))
    for model in (After(between=turn), Attention(between=lambda x, q: turn(q))):
        wanted = model(x, k, cos, sin)
        with patches.patch(other) as handle, patches.patch(model, fuse_norm=True) as fusing:
            assert torch.equal(model(x, k, cos, sin), wanted)
        assert handle.calls == 1 and fusing._norms() == [(0, 1)]


def test_a_rotation_that_nothing_reads():
    model = After(behind=lambda turned, q: q)
    with patches.patch(model, fuse_norm=True):
        refused("fuse_norm", model, *arrays(), words="After has postponed the rotation, but nothing has read")


def test_an_input_of_a_rotation_that_is_written_to():
    given = arrays()
    model = After(between=lambda q: (given[0].add_(1), q)[1])
    with torch.no_grad(), patches.patch(model, fuse_norm=True):
        refused("fuse_norm", model, *given, words="written to before")


# ---- Norms of one class that normalise in different ways ----


class Norm(torch.nn.Module):
    """An RMS norm with settings of several kinds."""

    scale = 1.0

    def __init__(self, size=16, zero_centered=False, group=16, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self._zero_centered, self.group, self.eps = zero_centered, group, eps

    @property
    def offset(self):
        return 1.0 if self._zero_centered else 0.0

    def normalise(self, x):
        x = x.view(*x.shape[:-1], -1, self.group)
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2)

    def forward(self, x):
        weight = self.offset + self.weight.float()
        return (self.normalise(x.float()) * weight * self.scale * getattr(self, "factor", 1.0)).to(x.dtype)


OTHERS = {"option": dict(zero_centered=True), "group": dict(group=8), "eps": dict(eps=0.5)}


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_was_never_given_to_patch(name):
    """Its norm has the class of a fused norm and another setting. The module computes it."""
    one, other, given = Attention(Norm()), Attention(Norm(**OTHERS[name])), arrays()
    wanted = other(*given)
    with patches.patch(one, fuse_norm=True) as handle:
        assert torch.equal(other(*given), wanted) and handle._norms() == [(0, 1)]
        one(*given)
        assert handle._norms() == [(1, 1)]


def test_a_weight_of_another_length():
    """A group of 16 elements is a head of 16, but not a head of 32."""
    one, other, (x, k, cos, sin) = Attention(Norm()), Attention(Norm(32)), arrays()
    given = torch.cat([x, 3 * x], -1), k.repeat(1, 1, 1, 2), cos.repeat(1, 1, 2), sin.repeat(1, 1, 2)
    wanted = other(*given)
    with patches.patch(one, fuse_norm=True) as handle:
        assert torch.equal(other(*given), wanted) and handle._norms() == [(0, 1)]
        refused("fuse_norm", patches.patch, other, fuse_norm=True, words="Norm, which is not an RMS norm")


def test_patch_tries_every_norm():
    """The second layer of a model, or a second model, has the class of a norm that was tried, and another setting."""
    refusals = {"option": r"different ways: Norm .*; Norm .*1 \+ weight", "group": "is a Norm, which is not an RMS norm"}
    for name, words in refusals.items():
        layers = [Attention(Norm()), Attention(Norm(**OTHERS[name]))]
        refused("fuse_norm", patches.patch, torch.nn.ModuleList(layers), fuse_norm=True, words=words + r".*\(1.q_norm\)")
        with patches.patch(layers[0], fuse_norm=True):
            refused("fuse_norm", patches.patch, layers[1], fuse_norm=True, words=words)


def test_settings_that_do_not_change_the_formula():
    """Norms with another eps or length, in one model or in two, are fused if patch has tried them."""
    layers, given = [Attention(Norm()), Attention(Norm(eps=0.5)), Attention(Norm(eps=0.25))], arrays()
    wanted = [layer(*given) for layer in layers]
    with patches.patch(torch.nn.ModuleList(layers[:2]), fuse_norm=True) as handle:
        with patches.patch(layers[2], fuse_norm=True):
            assert all(torch.allclose(layer(*given), y, rtol=1e-4, atol=1e-5) for layer, y in zip(layers, wanted))
    assert handle._norms() == [(3, 0)]


CHANGES = {
    "attribute": lambda norm, patch: setattr(norm, "group", 8),
    "eps": lambda norm, patch: setattr(norm, "eps", 0.5),
    "eps as a tensor": lambda norm, patch: setattr(norm, "eps", torch.tensor(0.5)),
    "attribute of a property": lambda norm, patch: setattr(norm, "_zero_centered", True),
    "new attribute": lambda norm, patch: setattr(norm, "factor", 2.0),
    "attribute of the class": lambda norm, patch: patch.setattr(Norm, "scale", 2.0),
    "method": lambda norm, patch: setattr(norm, "normalise", lambda x: x * 2),
    "method of the class": lambda norm, patch: patch.setattr(Norm, "normalise", lambda norm, x: x * 2),
    "forward of the class": lambda norm, patch: patch.setattr(Norm, "forward", lambda norm, x: x * 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_the_patch(change, monkeypatch):
    """A change of what the norm's forward reads is noticed by eager and by compiled code: the module computes the norm."""
    torch._dynamo.reset()
    model, given = Attention(Norm()), arrays()
    compiled, unchanged = torch.compile(model, fullgraph=True, backend="aot_eager"), model(*given)
    with patches.patch(model, fuse_norm=True) as handle:
        assert torch.equal(model(*given), compiled(*given)) and handle._norms() == [(1, 0)]
        CHANGES[change](model.q_norm, monkeypatch)
        eager, traced = model(*given), compiled(*given)
        assert handle._norms() == [(1, 1)]
    wanted = model(*given)
    assert torch.equal(eager, wanted) and torch.equal(traced, wanted) and not torch.allclose(wanted, unchanged)
    torch._dynamo.reset()


def test_a_copy_with_another_setting():
    model, given = Attention(Norm()), arrays()
    with patches.patch(model, fuse_norm=True) as handle:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model.q_norm))):
            other = other if isinstance(other, Attention) else Attention(other)
            other(*given)
            other.q_norm._zero_centered = True
            fused = other(*given)
            with torch.no_grad():
                wanted = qwen3.apply_rotary_pos_emb(other.q_norm(given[0]), *given[1:])[0]
            assert torch.equal(fused, wanted)
        assert handle._norms() == [(2, 2)]


class Config:
    scale = 1.0


class Configured(Norm):
    config = Config()

    def forward(self, x):
        return super().forward(x) * self.config.scale


class Buffered(Norm):
    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))


class OverTokens(Norm):
    """Normalises the third dimension from the front, which is the last one only in a matrix of 3 dimensions."""

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(2, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Grouped(torch.nn.Module):
    eps = 1e-6

    def forward(self, x):
        x = x.float().unflatten(-1, (-1, 64))
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).flatten(-2).to(x.dtype)


def test_norms_that_are_refused():
    """The norms agree with trope.Norm for some inputs, or as long as something that cannot be watched does not change."""
    for cls, words in (
        (Configured, "q_norm reads its attribute config, a Config"),
        (Buffered, "is a Buffered, which is not an RMS norm"),
        (OverTokens, "is a OverTokens, which is not an RMS norm"),
        (Grouped, "is a Grouped, which is not an RMS norm"),
        (lambda: Norm(0), "q_norm has an empty weight"),
    ):
        model = Attention()
        model.q_norm = cls()
        refused("fuse_norm", patches.patch, model, fuse_norm=True, words=words)


# ---- Autocast, torch.compile, checkpointing, caches, copies, threads ----


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "nanochat"])
def test_autocast(name):
    """Weights are f32. Norms of Qwen 3 then give f32, and are not fused. The rotation rounds to bf16, as it does without
    fuse_norm. This adds two roundings for each layer to the differences from eager's gradients."""
    model, inputs, weights = normed(name), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights, autocast=True)
    with patches.patch(model, fuse_norm=True) as handle:
        fused, others = run(model, inputs, weights, autocast=True)
    assert handle._norms() == [(0, 4) if name == "qwen3" else (4, 0)]
    assert is_within(fused, eager) and fused.dtype == eager.dtype == BF16 and not far(gradients, others, BF16)


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "exaone4", "gemma4", "hunyuan_v1_dense", "llama4"])
def test_compile(name):
    """Compiled code has no graph break, and the bits of eager calls with fuse_norm."""
    torch._dynamo.reset()
    model, inputs, weights = normed(name).to(BF16), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    with patches.patch(model, fuse_norm=True) as handle:
        same_bits(model, compiled, inputs, weights)
        with pytest.warns(UserWarning, match="fused does not count the calls of compiled code"):
            assert handle.fused == NORMED[name][2]
    torch._dynamo.reset()


def same_bits(model, compiled, inputs, weights):
    """Checks that both give the same bits, and returns the gradients."""
    (y, gradients), (other, others) = run(model, inputs, weights), run(compiled, inputs, weights)
    others = {each.removeprefix("_orig_mod."): g for each, g in others.items()}
    assert torch.equal(y, other) and not differing(gradients, others)
    return gradients


def test_compiled_code_notices_patch_and_undo():
    """Only fuse_norm is patched and undone, while the rotary function stays patched."""
    torch._dynamo.reset()
    model, inputs, weights = normed("qwen3"), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with patches.patch(model, compiled=True) as handle:
        plain = same_bits(model, compiled, inputs, weights)
        assert handle.traced == 2
        with patches.patch(model, fuse_norm=True):
            assert differing(plain, same_bits(model, compiled, inputs, weights))
        assert not differing(plain, same_bits(model, compiled, inputs, weights))
    torch._dynamo.reset()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "olmo2", "nanochat"])
def test_checkpointing(name, reentrant):
    model, inputs, weights = normed(name).to(BF16), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    with patches.patch(model, fuse_norm=True) as handle:
        fused, gradients = run(model, inputs, weights)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=reentrant))
        again, others = run(model, inputs, weights)
        assert torch.equal(fused, again) and not differing(gradients, others)
        assert handle.fused == 4 + 8  # each layer runs again in backward


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["qwen3", "exaone4", "gemma4", "olmo2", "llama4"])
def test_generate(name, implementation):
    """Generation with a key cache, one token at a time, gives the same tokens, even if some layers do not rotate."""
    model, ids = normed(name).eval(), words(7)["input_ids"]
    model.set_attn_implementation(implementation)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, eos_token_id=None)
    options["disable_compile"] = True  # on a GPU, generate compiles calls with a static cache, which are then not counted
    eager = model.generate(ids, **options)
    with patches.patch(model, fuse_norm=True) as handle:
        assert torch.equal(model.generate(ids, **options), eager)
        assert torch.equal(model.generate(ids, cache_implementation="static", **options), eager)
    assert handle._norms() == [tuple(2 * 5 * count for count in NORMED[name][2:])]


def test_meta():
    with torch.device("meta"):
        model = normed("olmo2")
        inputs = dict(words(), attention_mask=torch.zeros(2, 1, 11, 11), use_cache=False)
        eager, gradients = run(model, inputs, torch.randn(2, 11, 64))
        with patches.patch(model, fuse_norm=True) as handle:
            fused, others = run(model, inputs, torch.randn(2, 11, 64))
    assert handle.fused == 4 and fused.is_meta and fused.shape == eager.shape
    assert {each: g.shape for each, g in gradients.items()} == {each: g.shape for each, g in others.items()}


def test_copies_and_pickles():
    """Copies and pickles have no trace of the patch. They are fused as long as their class is."""
    model, inputs = normed("qwen3").eval(), words()
    eager, before = model(**inputs).logits, pickle.dumps(model)
    with patches.patch(model, fuse_norm=True) as handle:
        fused = model(**inputs).logits
        assert pickle.dumps(model) == before
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        assert all(torch.equal(each(**inputs).logits, fused) for each in copies) and handle.fused == 12
    assert all(torch.equal(each(**inputs).logits, eager) for each in copies) and handle.fused == 12


def members(cls):
    return dict(vars(cls)), (
        cls.forward.__wrapped__.__code__ if hasattr(cls.forward, "__wrapped__") else cls.forward.__code__
    )


def test_without_fuse_norm_classes_are_unchanged():
    model, inputs = normed("qwen3"), words()
    before = members(qwen3.Qwen3Attention)
    eager = model(**inputs).logits
    with patches.patch(model) as handle:
        assert members(qwen3.Qwen3Attention) == before and torch.equal(model(**inputs).logits, eager)
        assert handle.fused == 0 and "norm" not in repr(handle)
    with patches.patch(model, fuse_norm=True):
        assert members(qwen3.Qwen3Attention) != before
    assert members(qwen3.Qwen3Attention) == before and not patches._fusions


def test_two_patches():
    """Norms are fused until the last patch with fuse_norm is undone, in any order."""
    model, inputs = normed("qwen3"), words()
    eager = model(**inputs).logits
    first = patches.patch(model, fuse_norm=True)
    second, third = patches.patch(model), patches.patch(model, fuse_norm=True)
    first.undo()
    fused = model(**inputs).logits
    assert not torch.equal(fused, eager) and (first.fused, second.fused, third.fused) == (0, 0, 4)
    third.undo()
    assert torch.equal(model(**inputs).logits, eager) and second.calls == 4 and third.fused == 4
    assert "4 norms fused, 0 computed by their modules" in repr(third)
    second.undo()


def test_models_of_one_class_with_different_norms():
    """Models of one class may have different norms."""
    one, two = normed("glm4_moe"), normed("glm4_moe")
    before = members(type(attention(one)))
    del attention(one, 0).k_norm, attention(one, 1).k_norm
    with patches.patch(one, fuse_norm=True) as first:
        two(**words())
        assert first._norms() == [(2, 0)]
        with patches.patch(two, fuse_norm=True) as second:
            two(**words())
            assert first._norms() == [(6, 0)] and second._norms() == [(4, 0)]
        two(**words())
        assert first._norms()[0][0] >= 8
    assert members(type(attention(one))) == before


def test_two_kinds_of_norms_in_one_class():
    gemma3 = importlib.import_module("transformers.models.gemma3.modeling_gemma3")
    model = torch.nn.ModuleList([Attention(), Attention(gemma3.Gemma3RMSNorm(16))])
    refused(
        "fuse_norm",
        patches.patch,
        model,
        fuse_norm=True,
        words="Attention.q_norm normalise in different ways: Qwen3.*; Gemma3",
    )


def test_threads():
    """Three threads run the model. Before each call, they run an attention that fails before its rotation."""
    model, inputs = normed("qwen3"), words()
    failing = Attention(between=lambda x, q: 1 / 0)
    with patches.patch(torch.nn.ModuleList([model, failing]), fuse_norm=True):
        wanted, given, found = model(**inputs).logits, arrays(), []

        def work():
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    failing(*given)
                found.append(model(**inputs).logits)

        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(found) == 15 and all(torch.equal(each, wanted) for each in found)
    assert _fused_norms._calls.attention is None


def test_command(tmp_path, capsys):
    for name, words in (
        ("qwen3", "Qwen3Attention: q_norm: Qwen3RMSNorm rounds twice; k_norm"),
        ("llama", "normalises q and k"),
    ):
        cls, options = FAMILIES[name][:2]
        config = getattr(hf, cls + "Config")(**{**SIZES, **options}, architectures=[cls + "ForCausalLM"])
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
        status = patches.main([str(tmp_path), "--fuse-norm"])
        output = capsys.readouterr()
        assert words in (output.out if name == "qwen3" else output.err) and status == (name == "llama")
