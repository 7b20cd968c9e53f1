"""Norms in calls of trope.torch: results and derivatives against formulas, RMSNorm modules, and PyTorch's own tools."""

import contextlib
import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from checks import DEVICES, assert_rounded, check  # noqa: E402
from reference import norm, rotate  # noqa: E402
from refusals import refused  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from trope._spec import DIMS  # noqa: E402
from trope.torch import _norm_modules, _norms, _ops  # noqa: E402

INV_FREQ = trope.Frequencies([1.0, 0.3, 0.1, 0.03])
PLAIN = dict(layout="bshd", pairing="half", inv_freq=INV_FREQ)
TABLE = dict(layout="bshd", pairing="half", angle_columns="pair")
EPS = 1e-3  # large enough to change results
ORDERS = {
    "bshd": (0, 1, 2, 3),
    "sbhd": (1, 0, 2, 3),
    "bhsd": (0, 2, 1, 3),
    "thd": (0, 1, 2),
}  # the permutation to [batch, tokens, heads, head_dim]

pytestmark = pytest.mark.parametrize("device", DEVICES)


def random(*shape, device, dtype=torch.float32, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype).requires_grad_(grad)


def formula(x, weight, freqs=None, layout="bshd", plus_one=False, scope="head", order="before"):
    """Computes the result with operations of PyTorch in the dtype of x. The position of a token is its index."""
    x = x.permute(ORDERS[layout])
    if freqs is None:
        freqs = torch.arange(x.shape[-3], device=x.device, dtype=x.dtype)[:, None] * torch.tensor(
            INV_FREQ.inv_freq, dtype=torch.float64
        ).to(x)
    coefficients = (freqs.cos(), freqs.sin()) * 2
    if order == "before":
        result = rotate(norm(x, weight, EPS, plus_one, scope), coefficients, "half")
    else:
        result = norm(rotate(x, coefficients, "half"), weight, EPS, plus_one, scope)
    return result.permute(tuple(np.argsort(ORDERS[layout])))


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "bhsd", "thd"])
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("scope", ["head", "token"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_and_gradients(device, layout, order, scope, dtype):
    sizes = dict(b=2, s=5, t=7, h=3, d=8)
    x = random(*[sizes[dim] for dim in layout], device=device, dtype=dtype)
    for shape, plus_one in (((8,), True), ((3, 8), False), ((24,), True)):
        options = dict(plus_one=plus_one, scope=scope, order=order)
        weight = random(*shape, device=device, dtype=dtype)

        def call(x, weight):
            given = trope.Norm(weight, eps=EPS, **options)
            return trope.torch.rotate(x, norms=given, **dict(PLAIN, layout=layout))

        # The gradient of a weight is a sum of many terms. It is rounded to f32, and then to the dtype of the weight.
        check(call, (x, weight), lambda x, w: formula(x, w, layout=layout, **options), slack=2.0**-16)


def call_of_all(q, k, v, weight, own, freqs):
    """q and k have norms of different kinds. v has no norm, and is only copied."""
    norms = trope.Norm(weight, eps=EPS), trope.Norm(own, eps=EPS, plus_one=True, scope="token", order="after"), None
    return trope.torch.rotate(q, k, v, norms=norms, freqs=freqs, rotary_dim=(8, 8, trope.COPY), **TABLE)


def formula_of_all(q, k, v, weight, own, freqs):
    normed = formula(k, own, freqs, plus_one=True, scope="token", order="after")
    return formula(q, weight, freqs), normed, v * 1


def inputs_of_all(device, dtype=torch.float64, grad=True):
    shapes = (2, 3, 4, 8), (2, 3, 2, 8), (2, 3, 2, 6), (8,), (2, 8), (3, 4)
    return [random(*shape, device=device, dtype=dtype, grad=grad, seed=i) for i, shape in enumerate(shapes)]


def test_derivatives_of_several_tensors(device):
    inputs = inputs_of_all(device)
    check(call_of_all, inputs, formula_of_all, slack=2.0**-16)
    assert torch.autograd.gradcheck(call_of_all, inputs)
    assert torch.autograd.gradgradcheck(call_of_all, inputs)


def test_third_derivatives(device):
    """Autograd can differentiate every derivative again, except for angles, which have only two derivatives."""
    q, _, _, weight, _, freqs = inputs_of_all(device)
    freqs = freqs.detach()

    def call(function, q, weight):
        y = function(q, weight)
        for dy in (random(*y.shape, device=device, dtype=torch.float64, seed=i) for i in range(3)):
            (y,) = torch.autograd.grad((y * dy).sum(), q, create_graph=True)
        return y.detach(), torch.autograd.grad(y.sum(), weight)[0]

    ours = call(lambda q, w: trope.torch.rotate(q, norms=trope.Norm(w, eps=EPS), freqs=freqs, **TABLE), q, weight)
    theirs = call(lambda q, w: formula(q, w, freqs), q, weight)
    for found, wanted in zip(ours, theirs):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (3,), (4,), (5,), (2, 3), (0, 4), (2, 5)])
def test_gradients_of_only_some_inputs(device, needed):
    """The backward call leaves out tensors without a gradient, even the tensor with the widest window."""
    given = inputs_of_all(device, grad=False)
    leaves = [x.requires_grad_(i in needed) for i, x in enumerate(given)]
    wanted_from = [x.detach().clone().requires_grad_(i in needed) for i, x in enumerate(given)]
    results, formulas = call_of_all(*leaves), formula_of_all(*wanted_from)
    for which in range(3):
        upstream = random(*results[which].shape, device=device, dtype=torch.float64, seed=5)
        if not formulas[which].requires_grad:
            continue
        found, wanted = [
            torch.autograd.grad(ys[which], [xs[i] for i in needed], upstream, retain_graph=True, allow_unused=True)
            for ys, xs in ((results, leaves), (formulas, wanted_from))
        ]
        for d, right in zip(found, wanted):
            assert (d is None or not d.any()) if right is None else torch.allclose(d, right, rtol=1e-11, atol=1e-11)


def test_gradients_of_narrower_tensors(device):
    q, v = random(2, 3, 2, 8, device=device, dtype=torch.float64), random(2, 3, 1, 8, device=device, dtype=torch.float64)
    weight = random(8, device=device, dtype=torch.float64, grad=True)

    def call(weight):
        norms = trope.Norm(weight, eps=EPS), None
        return trope.torch.rotate(q, v, norms=norms, rotary_dim=(4, 8), **PLAIN)[0]

    assert torch.autograd.gradcheck(call, (weight,)) and torch.autograd.gradgradcheck(call, (weight,))


def test_learned_frequencies(device):
    x = random(2, 3, 2, 8, device=device, dtype=torch.float64, grad=True)
    inv_freq = torch.tensor(INV_FREQ.inv_freq, dtype=torch.float64, device=device, requires_grad=True)

    def call(x, inv_freq):
        return trope.torch.rotate(x, norms=trope.Norm(eps=EPS), **dict(PLAIN, inv_freq=inv_freq))

    assert torch.autograd.gradcheck(call, (x, inv_freq)) and torch.autograd.gradgradcheck(call, (x, inv_freq))


def test_padding(device):
    """Zeroed padding is 0 and has no gradient. Copied padding is not normalised."""
    x = random(6, 2, 8, device=device, dtype=torch.float64, grad=True)
    weight = random(8, device=device, dtype=torch.float64, grad=True)
    packed = dict(layout="thd", pairing="half", inv_freq=INV_FREQ)
    packed.update(
        cu_seqlens=torch.tensor([0, 2, 3], device=device), cu_seqlens_padded=torch.tensor([0, 4, 6], device=device)
    )
    unpadded = torch.tensor([True, True, False, False, True, False], device=device)

    def call(x, weight, padding):
        return trope.torch.rotate(x, norms=trope.Norm(weight, eps=EPS), padding=padding, **packed)

    positions = torch.tensor([0, 1, 0, 0, 0, 0], device=device, dtype=torch.float64)
    freqs = positions[:, None] * torch.tensor(INV_FREQ.inv_freq, device=device, dtype=torch.float64)
    normed = formula(x, weight, freqs, "thd")
    for padding, rest in (("zero", torch.zeros_like(x)), ("copy", x)):
        wanted, found = torch.where(unpadded[:, None, None], normed, rest), call(x, weight, padding)
        torch.testing.assert_close(found, wanted)
        dy = random(*x.shape, device=device, dtype=torch.float64)
        for d, right in zip(*[torch.autograd.grad(y, (x, weight), dy, retain_graph=True) for y in (found, wanted)]):
            torch.testing.assert_close(d, right)
    assert torch.autograd.gradgradcheck(lambda *given: call(*given, "zero"), (x, weight))
    (dx,) = torch.autograd.grad(call(x, weight, "copy").sum(), x, create_graph=True)
    refused("norms", torch.autograd.grad, dx.sum(), x, words="copy")


def test_strides(device):
    x, weight = random(2, 3, 4, 8, device=device), random(8, device=device)
    given = trope.Norm(weight, eps=EPS)
    wanted = trope.torch.rotate(x, norms=given, **PLAIN)
    dy = random(2, 3, 4, 8, device=device, seed=2)
    leaf = x.clone().requires_grad_()
    (d_wanted,) = torch.autograd.grad(trope.torch.rotate(leaf, norms=given, **PLAIN), leaf, dy)
    for views in (lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), lambda t: torch.stack((t, t), -1)[..., 0]):
        leaf = views(x).detach().requires_grad_()
        y = trope.torch.rotate(leaf, norms=given, **PLAIN)
        assert torch.equal(y, wanted) and y.stride() == (leaf * 1).stride()
        assert torch.equal(torch.autograd.grad(y, leaf, views(dy))[0], d_wanted)


def test_views_of_a_flat_parameter(device):
    """With FSDP, weights are slices of one buffer. Their gradients make up the gradient of the buffer."""
    flat = random(16, device=device, grad=True)
    q, k = random(2, 3, 4, 8, device=device), random(2, 3, 2, 8, device=device)
    norms = [trope.Norm(part, eps=EPS) for part in flat.split(8)]
    sum(y.square().sum() for y in trope.torch.rotate(q, k, norms=norms, **PLAIN)).backward()
    alone = [part.detach().clone().requires_grad_() for part in flat.split(8)]
    norms = [trope.Norm(part, eps=EPS) for part in alone]
    sum(y.square().sum() for y in trope.torch.rotate(q, k, norms=norms, **PLAIN)).backward()
    assert torch.equal(flat.grad, torch.cat([part.grad for part in alone]))


# ---- Modules ----


def perturbed(module, device, dtype):
    module = module.to(device, dtype)
    with torch.no_grad():
        module.weight.copy_(random(module.weight.numel(), device=device).reshape(module.weight.shape))
    return module


@pytest.mark.parametrize("rounding", ["once", "native"])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_of_torch(device, rounding, eps):
    """With native rounding, bf16 results have the module's bits, with rare exceptions. If eps is None, the eps of the dtype
    of the arithmetic is used."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        module = perturbed(torch.nn.RMSNorm(64, eps=eps), device, dtype)
        x = random(2, 30, 4, 64, device=device, dtype=dtype) * (1e-4 if eps is None else 1)
        options = dict(layout="bshd", pairing="half", inv_freq=[0.1] * 32, rounding=rounding)
        y = trope.torch.rotate(x, norms=module, **options)
        used = eps or (2.0**-52 if dtype == torch.float64 else 2.0**-23)
        same = trope.Norm(module.weight, eps=used, rounding="product" if rounding == "native" else None)
        assert trope.kernel_name(x, norms=module, **options) == trope.kernel_name(x, norms=same, **options)
        if rounding == "native" and dtype == torch.bfloat16:
            assert (y == trope.torch.rotate(module(x), **options)).float().mean() > 0.999
            continue
        exact = norm(x.double(), module.weight.double(), used)
        assert_rounded(y, trope.torch.rotate(exact, **dict(options, rounding="once")), slack=2.0**-18)


def test_rms_norm_of_torch_over_all_heads(device):
    x = random(2, 3, 4, 8, device=device, dtype=torch.float64)
    for module in (torch.nn.RMSNorm(32), torch.nn.RMSNorm((4, 8)), torch.nn.RMSNorm((4, 8), elementwise_affine=False)):
        module = module.to(device, torch.float64)
        if module.weight is not None:
            perturbed(module, device, torch.float64)
        shape = x.shape if len(module.normalized_shape) == 2 else (2, 3, 32)
        wanted = trope.torch.rotate(module(x.reshape(shape)).reshape(x.shape), **PLAIN)
        torch.testing.assert_close(trope.torch.rotate(x, norms=module, **PLAIN), wanted)


@pytest.mark.parametrize("name", sorted(_norm_modules._OF_TRANSFORMERS))
def test_modules_of_transformers(device, name):
    """With native rounding, rotate has the bits of a known module's forward, except where the last bit of rstd differs."""
    pytest.importorskip("transformers")
    module = find_module(name)
    if module is None:
        pytest.skip("this transformers has no %s" % name)
    module = perturbed(module(64, eps=1e-5), device, torch.bfloat16)
    x = random(2, 50, 4, 64, device=device, dtype=torch.bfloat16)
    options = dict(layout="bshd", pairing="half", inv_freq=[0.1] * 32, rounding="native")
    y = trope.torch.rotate(x, norms=module, **options)
    assert (y == trope.torch.rotate(module(x), **options)).float().mean() > 0.999


def find_module(name):
    """Returns the class with this name in a model of transformers, or None."""
    import os

    import transformers

    models = os.path.join(os.path.dirname(transformers.__file__), "models")
    for model in sorted(os.listdir(models)):
        file = os.path.join(models, model, "modeling_%s.py" % model)
        if os.path.exists(file):
            with open(file, encoding="utf-8") as text:
                if "class %s(" % name in text.read():
                    return getattr(importlib.import_module("transformers.models.%s.modeling_%s" % (model, model)), name)
    return None


@pytest.mark.parametrize("name", ["Qwen3RMSNorm", "Gemma3RMSNorm"])
def test_gradients_of_modules(device, name):
    pytest.importorskip("transformers")
    module = perturbed(find_module(name)(8, eps=EPS), device, torch.float32)
    x, dy = random(2, 3, 4, 8, device=device, grad=True), random(2, 3, 4, 8, device=device, seed=2)
    found, wanted = [
        torch.autograd.grad(y, (x, module.weight), dy)
        for y in (trope.torch.rotate(x, norms=module, **PLAIN), trope.torch.rotate(module(x), **PLAIN))
    ]
    for d, right in zip(found, wanted):
        torch.testing.assert_close(d, right, rtol=1e-5, atol=1e-5)


def test_modules_that_are_refused(device):
    x = random(2, 3, 4, 8, device=device)

    class Qwen3RMSNorm(torch.nn.RMSNorm):
        """Has the name of a known class, but is not from transformers."""

    parametrized = torch.nn.RMSNorm(8)
    torch.nn.utils.parametrize.register_parametrization(parametrized, "weight", torch.nn.Identity())
    for module, words in (
        (torch.nn.LayerNorm(8), "LayerNorm.*not known"),
        (Qwen3RMSNorm(8), "Qwen3RMSNorm.*not known"),
        (parametrized, "ParametrizedRMSNorm.*not known"),
        (torch.compile(torch.nn.RMSNorm(8)), "OptimizedModule.*not known"),
        (torch.nn.RMSNorm(16), "16 elements.*4 heads of 8"),
        (torch.nn.RMSNorm((2, 16)), "2 x 16 elements.*4 heads of 8"),
        (torch.nn.RMSNorm((3, 4, 8)), "3 x 4 x 8 elements.*4 heads of 8"),
        (torch.ones(8), "Tensor"),
        (torch.nn.RMSNorm, "type"),
    ):
        refused("norms[0]", trope.torch.rotate, x, norms=module, words=words, **PLAIN)
    refused("norms[0].eps", trope.torch.rotate, x, norms=torch.nn.RMSNorm(8, eps=0.0), **PLAIN)


def double(module, x):
    return 2 * torch.nn.functional.rms_norm(x, (8,), module.weight, EPS)


def set_weight(module, *shape):
    module.weight = torch.nn.Parameter(torch.ones(*shape))


# Changes after which a module computes something else, and words of the refusal.
CHANGED = {
    "forward hook": (lambda m, patch: m.register_forward_hook(lambda m, args, y: 2 * y), "has forward hooks"),
    "pre-hook": (lambda m, patch: m.register_forward_pre_hook(lambda m, args: (2 * args[0],)), "has forward pre-hooks"),
    "forward": (lambda m, patch: patch.setattr(m, "forward", lambda x: double(m, x)), "has its own forward"),
    "forward of the class": (lambda m, patch: patch.setattr(type(m), "forward", double), "whose forward has been replaced"),
    "2-D weight": (lambda m, patch: set_weight(m, 4, 8), r"weight has shape \[4, 8\]"),
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("name", ["torch", "Qwen3RMSNorm", "Gemma3RMSNorm"])
def test_modules_that_have_been_changed_are_refused(device, name, change, monkeypatch):
    if name != "torch":
        pytest.importorskip("transformers")
    module = (torch.nn.RMSNorm if name == "torch" else find_module(name))(8, eps=EPS)
    x, (make_change, words) = random(2, 3, 4, 8, device=device), CHANGED[change]
    trope.torch.rotate(x, norms=module.to(device), **PLAIN)
    make_change(module, monkeypatch)
    refused("norms[0]", trope.torch.rotate, x, norms=module, words=words, **PLAIN)


def test_global_hooks_are_refused(device):
    x, module = random(2, 3, 4, 8, device=device), torch.nn.RMSNorm(8).to(device)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, y: 2 * y)
    try:
        refused("norms[0]", trope.torch.rotate, x, norms=module, words="global module hooks", **PLAIN)
    finally:
        hook.remove()
    trope.torch.rotate(x, norms=module, **PLAIN)


def test_changed_parts_of_modules_of_transformers_are_refused(device, monkeypatch):
    """The method _norm of Gemma 3, on the module and on the class, and the option with_scale of Gemma 4."""
    pytest.importorskip("transformers")
    x, gemma4 = random(2, 3, 4, 8, device=device), find_module("Gemma4RMSNorm")(8).to(device)
    for of_class in (False, True):
        gemma3 = find_module("Gemma3RMSNorm")(8).to(device)
        with monkeypatch.context() as context:
            context.setattr(type(gemma3) if of_class else gemma3, "_norm", lambda *given: given[-1])
            refused("norms[0]", trope.torch.rotate, x, norms=gemma3, words="whose _norm has been replaced", **PLAIN)
    gemma4.with_scale = False
    refused("norms[0]", trope.torch.rotate, x, norms=gemma4, words="has no weight", **PLAIN)


@pytest.mark.parametrize("layout", DIMS)
def test_norms_over_several_dimensions(device, layout):
    """A module over the last dimensions is refused unless these are all heads of a token. (Tokens and groups are as many as
    heads, so that the module itself can always run.)"""
    shape = [8 if dim == "d" else 2 if dim == "b" else 4 for dim in layout]
    x, options, count = random(*shape, device=device), dict(PLAIN, layout=layout), 2 + ("g" in layout)
    for last in (2, 3):
        module = perturbed(torch.nn.RMSNorm(shape[-last:], eps=EPS), device, torch.float32)
        if last == count and layout.endswith("hd"):
            wanted = trope.torch.rotate(module(x), **options)
            torch.testing.assert_close(trope.torch.rotate(x, norms=module, **options), wanted, rtol=1e-5, atol=1e-5)
        else:
            refused("norms[0]", trope.torch.rotate, x, norms=module, words="normalises", **options)


# ---- PyTorch's tools ----


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_graph_breaks(device, backend):
    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q_norm, self.own = torch.nn.RMSNorm(8, eps=EPS), torch.nn.Parameter(random(2, 8, device="cpu"))

        def forward(self, q, k, v, freqs):
            norms = self.q_norm, trope.Norm(self.own, eps=EPS, scope="token"), None
            return trope.torch.rotate(q * 1, k * 1, v, norms=norms, freqs=freqs, rotary_dim=(8, 8, trope.COPY), **TABLE)

    module = Attention().to(device)
    q, k, v, _, _, freqs = inputs_of_all(device, torch.float32)
    leaves = [q, k, v, freqs, *module.parameters()]
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    ours, theirs = compiled(q, k, v, freqs), module(q, k, v, freqs)
    upstream = [random(*y.shape, device=device, seed=i) for i, y in enumerate(ours)]
    assert all(map(torch.equal, ours, theirs))
    assert all(map(torch.equal, *[torch.autograd.grad(ys, leaves, upstream) for ys in (ours, theirs)]))
    with torch.no_grad():
        assert all(map(torch.equal, compiled(q, k, v, freqs), theirs))
    torch._dynamo.reset()


def test_compile_with_dynamic_shapes(device):
    modules = [torch.nn.RMSNorm(shape, eps=EPS).to(device) for shape in (8, 32, (4, 8))]
    for given in (trope.Norm(random(8, device=device, grad=True), eps=EPS), *modules):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x: trope.torch.rotate(x, norms=given, **PLAIN), fullgraph=True, backend="aot_eager", dynamic=True
        )
        for tokens in (3, 5, 8):
            x = random(2, tokens, 4, 8, device=device)
            assert torch.equal(compiled(x), trope.torch.rotate(x, norms=given, **PLAIN))
    torch._dynamo.reset()


@pytest.mark.parametrize("owner", ["module", "class"])
def test_compiled_code_notices_another_forward(device, owner, monkeypatch):
    torch._dynamo.reset()
    module, x = torch.nn.RMSNorm(8, eps=EPS).to(device), random(2, 3, 4, 8, device=device)
    compiled = torch.compile(lambda x: trope.torch.rotate(x, norms=module, **PLAIN), backend="aot_eager")
    assert torch.equal(compiled(x), trope.torch.rotate(x, norms=module, **PLAIN))
    monkeypatch.setattr(*(module, "forward", module.extra_repr) if owner == "module" else (type(module), "forward", double))
    refused("norms[0]", compiled, x, words="forward")
    torch._dynamo.reset()


def test_in_place_and_out_under_compile(device):
    given, x = trope.Norm(random(8, device=device), eps=EPS), random(2, 3, 4, 8, device=device)
    wanted, out = trope.torch.rotate(x, norms=given, **PLAIN), torch.empty_like(x)
    torch.compile(lambda x: trope.torch.rotate_(x, norms=given, **PLAIN), fullgraph=True, backend="aot_eager")(
        changed := x.clone()
    )
    torch.compile(
        lambda x: trope.torch.rotate(x, out=out, norms=given, **PLAIN), fullgraph=True, backend="aot_eager"
    )(x)  # fmt: skip
    assert torch.equal(changed, wanted) and torch.equal(out, wanted)
    torch._dynamo.reset()


@contextlib.contextmanager
def fake_ranks():
    """A context with a group of two ranks that exchange nothing. Yields its name."""
    distributed = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=distributed.FakeStore(), rank=1, world_size=2)
    try:
        yield torch.distributed.group.WORLD.group_name
    finally:
        torch.distributed.destroy_process_group()


def test_operators(device):
    """torch.library checks schemas, fake kernels and autograd of the operators. gradgradcheck checks second derivatives."""
    q, k, v, weight, own, freqs = inputs_of_all(device)
    kinds = [trope.Norm(weight, eps=EPS), trope.Norm(own, eps=EPS, scope="token", order="after"), None]
    options = dict(TABLE, freqs=freqs, rotary_dim=(8, 8, trope.COPY), norms=kinds)
    spec, side, _ = trope.torch._resolve((q, k, v), options)
    rest = _norms._arguments(side, spec)
    torch.library.opcheck(torch.ops.trope.rotate_normed, ([q, k, v], [weight, own], [], True, *rest))
    rstds = torch.ops.trope.rotate_normed([q, k, v], [weight, own], [], True, *rest)[3:]
    dys = [random(*x.shape, device=device, dtype=torch.float64, seed=8, grad=True) for x in (q, k, v)]
    wants = True, [True] * 3, [True, True, False]
    arrays = [dy.detach().requires_grad_() for dy in dys], [q, k, v], [weight, own], [rstd.detach() for rstd in rstds], []
    torch.library.opcheck(torch.ops.trope.rotate_normed_backward, (*arrays, *wants, *rest))
    xs, weights, rstds = ([t.detach() for t in given] for given in ((q, k, v), (weight, own), rstds))
    plain = _norms._arguments(side._replace(freqs=freqs.detach()), spec)
    torch.library.opcheck(torch.ops.trope.rotate_normed, (xs, weights, [], False, *plain))
    with fake_ranks() as group:
        on_ranks = spec.norms[1]._replace(ranks=2, rank=1, group=group)
        plain = _norms._arguments(
            side._replace(freqs=freqs.detach()), spec._replace(norms=(spec.norms[0], on_ranks, spec.norms[2]))
        )
        for backward in (False, True):
            arrays = backward, xs, [x.clone() for x in xs], weights, rstds if backward else [], [False, True, False]
            torch.library.opcheck(torch.ops.trope.norm_sums, (*arrays, *plain))

    def call(q, k, v, weight, own, freqs):
        side = trope.torch._resolve((q, k, v), dict(options, freqs=freqs))[1]
        return _norms.rotate(spec, side, (q, k, v), (weight, own, None), False)

    inputs = inputs_of_all(device)
    assert torch.autograd.gradcheck(call, inputs) and torch.autograd.gradgradcheck(call, inputs)


def test_operators_check_their_arguments(device):
    x, weight = random(2, 3, 4, 8, device=device), random(8, device=device)
    spec, side, _ = trope.torch._resolve((x,), dict(PLAIN, norms=trope.Norm(weight, eps=EPS)))
    rest, operator = _norms._arguments(side, spec), torch.ops.trope.rotate_normed
    assert torch.equal(
        operator([x], [weight], [], False, *rest)[0], trope.torch.rotate(x, norms=trope.Norm(weight, eps=EPS), **PLAIN)
    )
    for arguments, name in (
        (([x], [], [], False, *rest), "norms[0].weight"),
        (([x], [weight, weight], [], False, *rest), "norms"),
        (([x], [weight], [x], False, *rest), "norms"),
        (([x, x], [weight], [], False, *rest), "norms"),
        (([x], [weight[:4]], [], False, *rest), "norms[0].weight"),
        (([x.clone().requires_grad_()], [weight], [], False, *rest), "writes_rstd"),
    ):
        refused(name, operator, *arguments)


def test_checkpoint_and_saved_tensors(device):
    inputs = inputs_of_all(device, torch.float32)
    plain = call_of_all(*inputs)
    upstream = [random(*y.shape, device=device, seed=i) for i, y in enumerate(plain)]
    wanted = torch.autograd.grad(plain, inputs, upstream)
    for reentrant in (False, True):
        again = checkpoint(lambda *given: call_of_all(*given), *inputs, use_reentrant=reentrant)
        if reentrant:
            torch.autograd.backward(again, upstream)
            found = [x.grad for x in inputs]
        else:
            found = torch.autograd.grad(again, inputs, upstream)
        assert all(map(torch.equal, found, wanted))
    with torch.autograd.graph.save_on_cpu():
        again = call_of_all(*inputs)
    assert all(map(torch.equal, torch.autograd.grad(again, inputs, upstream), wanted))


def test_tensors_that_are_saved_for_backward(device):
    """For tensors with a norm, autograd saves the input, rstd and the weight. It saves no other inputs, and no results."""
    x, v, weight = (
        random(2, 3, 4, 8, device=device, grad=True),
        random(2, 3, 2, 8, device=device, grad=True),
        random(8, device=device),
    )
    kept = []

    def pack(t):
        kept.append(tuple(t.shape))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        trope.torch.rotate(x, v, norms=(trope.Norm(weight, eps=EPS), None), **PLAIN)
    assert sorted(kept) == [(2, 3, 4), (2, 3, 4, 8), (8,)]


def test_autocast(device):
    """Autocast changes nothing: results have the dtype of x, and gradients of weights have the dtype of the weights."""
    x, weight = random(2, 3, 4, 8, device=device, dtype=torch.bfloat16, grad=True), random(8, device=device, grad=True)
    given = trope.Norm(weight, eps=EPS)
    with torch.autocast(device, torch.bfloat16):
        y = trope.torch.rotate(x, norms=given, **PLAIN)
    plain = trope.torch.rotate(x, norms=given, **PLAIN)
    dy = random(2, 3, 4, 8, device=device, dtype=torch.bfloat16, seed=2)
    assert y.dtype == torch.bfloat16 and torch.equal(y, plain)
    found, wanted = [torch.autograd.grad(each, (x, weight), dy) for each in (y, plain)]
    assert [d.dtype for d in found] == [torch.bfloat16, torch.float32] and all(map(torch.equal, found, wanted))


def test_without_autograd(device):
    q, k, v, weight, own, freqs = inputs_of_all(device, torch.float32, grad=False)
    norms = trope.Norm(weight, eps=EPS), trope.Norm(own, eps=EPS, scope="token"), None
    options = dict(PLAIN, norms=norms, rotary_dim=(8, 8, trope.COPY))
    wanted = trope.torch.rotate(q, k, v, **options)
    out = [torch.empty_like(x) for x in (q, k, v)]
    trope.torch.rotate(q, k, v, out=out, **options)
    changed = [x.clone() for x in (q, k, v)]
    assert trope.torch.rotate_(*changed, **options)[0] is changed[0]
    by_numpy = dict(
        options,
        norms=tuple(given and trope.Norm(given.weight.cpu().numpy(), eps=EPS, scope=given.scope) for given in norms),
    )
    for results in (
        out,
        changed,
        [torch.from_numpy(y) for y in trope.rotate(*[x.cpu().numpy() for x in (q, k, v)], **by_numpy)],
    ):
        assert all(torch.equal(y.cpu(), right.cpu()) for y, right in zip(results, wanted))
    assert trope.kernel_name(q, k, v, **options) == trope.kernel_name(q, k, v, **by_numpy) or device == "cuda"
    leaves = [x.clone().requires_grad_() for x in (q, k, weight, own)]
    norms = trope.Norm(leaves[2], eps=EPS), trope.Norm(leaves[3], eps=EPS, scope="token")
    y = trope.torch.rotate(*leaves[:2], norms=norms, **PLAIN)
    dys = [random(*x.shape, device=device, seed=3) for x in y]
    wanted = torch.autograd.grad(y, leaves, dys)
    d_weights = [torch.empty_like(weight), torch.empty_like(own)]
    norms = [trope.Norm(given.weight.detach(), eps=EPS, scope=given.scope) for given in norms]
    found = trope.torch.rotate_backward(*dys, forward_src=(q, k), norms=norms, d_weights=d_weights, **PLAIN)
    assert all(map(torch.equal, [*found, *d_weights], wanted))
    versions = [d._version for d in d_weights]
    assert versions == [1, 1]  # autograd knows that they were written


def test_meta_and_empty_tensors(device):
    weight = torch.ones(8, requires_grad=True)
    y = trope.torch.rotate(torch.empty(2, 3, 4, 8, device="meta"), norms=trope.Norm(weight.to("meta"), eps=EPS), **PLAIN)
    assert y.is_meta and y.shape == (2, 3, 4, 8)
    for shape in ((0, 3, 4, 8), (2, 0, 4, 8)):
        x, weight = torch.empty(shape, device=device, requires_grad=True), torch.ones(8, device=device, requires_grad=True)
        y = trope.torch.rotate(x, norms=trope.Norm(weight, eps=EPS), **PLAIN)
        dx, d_weight = torch.autograd.grad(y.sum(), (x, weight))
        assert dx.shape == shape and torch.equal(d_weight, torch.zeros_like(weight))


def test_rotary_embedding_takes_norms_in_a_call(device):
    x, given = random(2, 3, 4, 8, device=device), trope.Norm(random(8, device=device), eps=EPS)
    module = trope.torch.RotaryEmbedding(INV_FREQ, layout="bshd", pairing="half")
    assert torch.equal(module(x, norms=given), trope.torch.rotate(x, norms=given, **PLAIN))
    refused("norms", trope.torch.RotaryEmbedding, INV_FREQ, layout="bshd", pairing="half", norms=given)


def test_refusals(device):
    x, weight = random(2, 3, 4, 8, device=device), random(8, device=device)
    given = trope.Norm(weight, eps=EPS)
    learned = trope.Norm(weight.clone().requires_grad_(), eps=EPS)
    refused("norms", trope.torch.rotate_, x.clone(), norms=learned, words="rotate_", **PLAIN)
    refused("norms", trope.torch.rotate_, x.clone().requires_grad_() * 1, norms=given, words="rotate_", **PLAIN)
    refused("out", trope.torch.rotate, x, out=torch.empty_like(x), norms=learned, words="norms.0..weight", **PLAIN)
    with torch.no_grad():
        trope.torch.rotate_(x.clone(), norms=learned, **PLAIN)
    for function in (trope.torch.rotate_backward, trope.torch.rotate_backward_):
        refused("forward_src", function, x.clone(), norms=given, **PLAIN)
    refused("d_weights", trope.torch.rotate_backward, x, d_weights=weight, forward_src=x, words="norms is not", **PLAIN)
    name = "norms[0].weight"
    refused(name, trope.torch.rotate, x, norms=trope.Norm(weight.to_sparse(), eps=EPS), **PLAIN)
    refused(name, trope.torch.rotate, x, norms=trope.Norm(np.ones(8, np.float32), eps=EPS), words="torch tensor", **PLAIN)
    refused(name, trope.torch.rotate, x, norms=trope.Norm(torch.ones(8, device="meta"), eps=EPS), words="meta", **PLAIN)
    with torch.inference_mode():
        of_inference = torch.ones(8, device=device)
    leaf = x.clone().requires_grad_()
    refused(name, trope.torch.rotate, leaf, norms=trope.Norm(of_inference, eps=EPS), words="inference", **PLAIN)


def test_transforms_are_refused(device):
    x, weight = random(2, 3, 4, 8, device=device), random(8, device=device)
    given = trope.Norm(weight, eps=EPS)

    def call(x, weight=weight):
        return trope.torch.rotate(x, norms=trope.Norm(weight, eps=EPS), **PLAIN)

    refused("norms", torch.func.vmap(call), x[None])
    refused("norms", torch.func.grad(lambda x: call(x).sum()), x)
    refused("norms", torch.func.grad(lambda weight: call(x, weight).sum()), weight)
    refused("norms", torch.func.jvp, call, (x,), (x,))
    leaf = x.clone().requires_grad_()
    y = trope.torch.rotate(leaf, norms=given, **PLAIN)
    refused("norms", torch.autograd.grad, y, leaf, torch.stack((y, y)).detach(), is_grads_batched=True)
    (dx,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    refused("norms", torch.autograd.grad, dx, leaf, torch.stack((y, y)).detach(), is_grads_batched=True)
