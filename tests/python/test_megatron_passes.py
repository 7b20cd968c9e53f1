"""The passes over whole tensors that trope.megatron makes: only its own calls, no copy of a tensor or of a gradient. MLA in
place writes into an upstream gradient, but only if nothing else can read it."""

import collections
import contextlib
import functools
import importlib
import os
import sys

import pytest

torch = pytest.importorskip("torch")

from checks import DEVICE, device, random  # noqa: E402, F401 (device is a fixture)
from megatron_layers import (  # noqa: E402
    make_layer, make_transformer_layer, model_parallel, one_process, real_cuda, run_layer,
)  # fmt: skip
from test_megatron import BATCH, HEADS, NOPE, ROTARY, TOKENS, formula_of_mla, make_tables  # noqa: E402

import trope.megatron as tm  # noqa: E402

WRITERS = "add add_ cat clone copy_ fill_ mul mul_ neg sub sum zero_"  # of ATen; contiguous and reshape call clone


def find_passes(function):
    """Returns {(operation, shapes): number of calls} of the operations that write tensors with dimensions."""
    function()
    writers = {"aten::" + name for name in WRITERS.split()}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        function()
    events = [event for event in profile.events() if event.name in writers and any(event.input_shapes)]
    return collections.Counter((event.name, str(event.input_shapes)) for event in events)


class Attention(torch.autograd.Function):
    """Returns a scalar. Its backward returns make_gradient(shape) for each tensor."""

    @staticmethod
    def forward(ctx, make_gradient, *tensors):
        ctx.make_gradient, ctx.shapes = make_gradient, [t.shape for t in tensors]
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx, grad):
        return (None, *[ctx.make_gradient(shape) for shape in ctx.shapes])


# ---- Passes ----


def test_mla_copies_nothing(device):
    """Gradients are in the order of q, or transposed, as from an attention that takes the batch first."""
    tables = make_tables(device, torch.bfloat16)
    shapes = (TOKENS, BATCH, HEADS, NOPE + ROTARY), (TOKENS, BATCH, HEADS, 2 * NOPE), (TOKENS, BATCH, 1, ROTARY)
    flat = [random(TOKENS * BATCH, h * d, device=device, dtype=torch.bfloat16, grad=True) for _, _, h, d in shapes]

    def transposed(shape):
        return torch.empty(shape[1], shape[0], *shape[2:], dtype=torch.bfloat16, device=device).transpose(0, 1)

    def call(make_gradient):
        q, kv, k_pe = [x.view(shape) for x, shape in zip(flat, shapes)]
        q = tm.fused_apply_mla_rope_for_q(q, *tables, NOPE, ROTARY)
        k, v = tm.fused_apply_mla_rope_for_kv(kv, k_pe, *tables, ROTARY, NOPE, NOPE)
        torch.autograd.grad(Attention.apply(make_gradient, q, k, v), flat)

    for make_gradient in (lambda shape: torch.empty(shape, dtype=torch.bfloat16, device=device), transposed):
        assert not find_passes(lambda: call(make_gradient))


@pytest.fixture(scope="module")
def megatron_core():
    pytest.importorskip("megatron.core", reason="Megatron-Core cannot be imported")


@pytest.fixture(scope="module")
def parallel(megatron_core, tmp_path_factory):
    with one_process(tmp_path_factory.mktemp("gloo") / "store"), model_parallel():
        yield


@pytest.mark.parametrize("fuse_norm", [False, True])
@pytest.mark.parametrize("kind", ["sbhd", "thd", "transformer layer"])
def test_layers_make_no_pass_that_megatron_does_not_make(parallel, kind, fuse_norm):
    packed, dtype = kind == "thd", torch.bfloat16
    make = make_transformer_layer if kind == "transformer layer" else make_layer
    layer = make(qk_layernorm=True, normalization="RMSNorm", bf16=True, params_dtype=dtype).to(DEVICE, dtype)
    x, dy = torch.randn(2, 24, 1 if packed else 2, 64).to(DEVICE, dtype)
    emb = torch.randn(16 if packed else 24, 1, 1, 16).to(DEVICE)
    passes = []
    for patch in (contextlib.nullcontext, functools.partial(tm.patch, fuse_norm=fuse_norm)):
        with patch() as handle, real_cuda():
            passes.append(find_passes(lambda: run_layer(layer, packed, x, emb, dy)))
    assert handle.calls["apply_rotary_pos_emb"] == 4 and sum(handle.norms.values()) == 4 * fuse_norm
    assert not passes[1] - passes[0]


# ---- The gradient of MLA in place ----

kept = []


def keep(x):
    kept.append(x)
    return x


FREE = {"tensor": lambda dy: dy.clone(), "view": lambda dy: torch.cat((dy, dy))[: len(dy)]}
SHARED = {
    "tensor": lambda dy: keep(dy.clone()),
    "base": lambda dy: keep(dy.clone())[:],
    "view": lambda dy: keep(dy.clone()[1:])._base,
    "alias": lambda dy: keep(dy.clone()).detach(),
    "storage": lambda dy: torch.empty_like(dy).set_(keep(dy.clone().untyped_storage()), 0, dy.shape),
    "dlpack": lambda dy: torch.from_dlpack(keep(torch.utils.dlpack.to_dlpack(dy.clone()))),
    "expanded": lambda dy: dy[:, :1].expand(dy.shape),
}


class Backward:
    """A backward of MLA in place, of q to y, for an upstream gradient make(dy)."""

    def __init__(self, device, make=FREE["tensor"]):
        kept.clear()
        tables, self.addresses = make_tables(device, torch.float32), []
        self.dy, self.make = torch.randn(TOKENS, BATCH, HEADS, NOPE + ROTARY, device=device), make
        self.q = torch.randn_like(self.dy).requires_grad_()
        self.formula = formula_of_mla(self.q, *tables, torch.arange(TOKENS)[:, None])
        t = self.q * 1
        t.register_hook(lambda grad: self.addresses.append(grad.data_ptr()))
        self.y = tm.fused_mla_rope_inplace(t, *tables, NOPE, ROTARY)

    def make_gradient(self, shape):
        gradient = self.make(self.dy)
        self.dy = gradient.clone()
        self.addresses.append(gradient.data_ptr())
        return gradient

    def differentiate(self, y, *others):
        """Checks the gradient of q for a result y, and returns those of the others."""
        dq, *found = torch.autograd.grad(Attention.apply(self.make_gradient, y), (self.q, *others))
        assert torch.equal(dq, torch.autograd.grad(self.formula, self.q, self.dy)[0])
        return found

    def is_in_place(self):
        upstream, rotated = self.addresses
        return upstream == rotated


@pytest.mark.parametrize("make", FREE.values(), ids=FREE)
def test_a_gradient_that_nothing_else_has_is_rotated_in_place(device, make):
    case = Backward(device, make)
    case.differentiate(case.y)
    assert case.is_in_place()


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_a_gradient_whose_memory_something_else_has_is_not_overwritten(device, make):
    case = Backward(device, make)
    case.differentiate(case.y)
    assert not case.is_in_place()


def test_a_gradient_that_autograd_gives_to_others_too_is_not_overwritten(device):
    """To a hook, to the caller, or to the other term of a sum. A caller's gradient stays his."""
    case = Backward(device)
    case.y.register_hook(lambda grad: kept.append(grad))
    case.differentiate(case.y)
    assert torch.equal(kept[0], case.dy)
    case = Backward(device)
    (dy,) = case.differentiate(case.y, case.y)
    assert torch.equal(dy, case.dy)
    case, other = Backward(device), torch.zeros(TOKENS, BATCH, HEADS, NOPE + ROTARY, device=device, requires_grad=True)
    (dy,) = case.differentiate(case.y + other, other)
    assert torch.equal(dy, case.dy)
    case = Backward(device)
    dy = case.dy.clone()
    case.y.backward(dy)
    assert torch.equal(dy, case.dy)


def test_a_models_calls_as_the_bench_times_them(megatron_core, monkeypatch, capsys):
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(__file__), "..", "..", "bench"))
    monkeypatch.setattr(sys, "argv", ["mla_patch.py", "--device", "cpu"])
    importlib.import_module("mla_patch").main()
    assert "trope rotated the gradient of q in place: True" in capsys.readouterr().out
