"""In-place calls of trope.flash_attn under torch.compile: on leaves, whose data they write, and with changing shapes."""

import pytest

torch = pytest.importorskip("torch")

from checks import device, random  # noqa: E402, F401 (device is a fixture)
from trope import flash_attn as fa  # noqa: E402

K_TABLES = [torch.rand(6, 4) for _ in range(2)]
IN_PLACE = {
    "x": ((2, 4, 3, 8), lambda t, c, s: fa.apply_rotary_emb(t, c, s, inplace=True)),
    "x with offsets": (
        (2, 4, 3, 8),
        lambda t, c, s: fa.apply_rotary_emb(t, c, s, True, True, torch.tensor([1, 2], device=t.device)),
    ),
    "packed x": (
        (8, 3, 8),
        lambda t, c, s: fa.apply_rotary_emb(t, c, s, inplace=True, cu_seqlens=torch.tensor([0, 3, 8], device=t.device)),
    ),
    "a view of x": ((2, 12, 8), lambda t, c, s: fa.apply_rotary_emb(t.view(2, 4, 3, 8), c, s, inplace=True)),
    "qkv": ((2, 4, 3, 2, 8), lambda t, c, s: fa.apply_rotary_emb_qkv_(t, c, s, seqlen_offsets=2)),
    "qkv by two tables": (
        (2, 4, 3, 2, 8),
        lambda t, c, s: fa.apply_rotary_emb_qkv_(t, c, s, *(table.to(t) for table in K_TABLES)),
    ),
    "qkv of heads": ((2, 4, 6, 8), lambda t, c, s: fa.apply_rotary_emb_qkv_(t, c, s, num_heads_q=2)),
    "merged qkv with cu_seqlens": (
        (2, 4, 3, 2, 8),
        lambda t, c, s: fa.apply_rotary_emb_qkv_(t, c, s, cu_seqlens=torch.tensor([0, 3, 8], device=t.device)),
    ),
    "kv": ((2, 4, 2, 2, 8), lambda t, c, s: fa.apply_rotary_emb_kv_(t, c, s)),
    "two views": (
        (2, 4, 3, 2, 8),
        lambda t, c, s: fa.apply_rotary_emb(t[:, :, 0], c, s, inplace=True)
        * fa.apply_rotary_emb(t[:, :, 1], c, s, inplace=True),
    ),
    "twice": ((2, 4, 3, 2, 8), lambda t, c, s: fa.apply_rotary_emb_qkv_(fa.apply_rotary_emb_qkv_(t, c, s), c, s)),
    "result times input": ((2, 4, 3, 8), lambda t, c, s: fa.apply_rotary_emb(t, c, s, inplace=True) * t),
}


def check_compiled_leaf(device, call, backend, dynamic):
    """Checks that a compiled call gives the same bits as the eager call: the result, the leaf and its gradient. The
    upstream gradient must stay unchanged."""
    shape, function = IN_PLACE[call]
    cos, sin, x, results = random(6, 4, device=device), random(6, 4, device=device), random(*shape, device=device), []
    upstream = None
    torch._dynamo.reset()
    for f in (function, torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)):
        leaf = x.clone().requires_grad_()
        y = f(leaf, cos, sin)
        rotated = leaf.detach().clone()
        upstream = random(*y.shape, device=device) if upstream is None else upstream
        kept = upstream.clone()
        y.backward(upstream)
        assert torch.equal(upstream, kept)
        results.append((y.detach().clone(), rotated, leaf.grad))
    assert not torch.equal(results[0][1], x)
    for got, wanted in zip(results[1], results[0]):
        assert torch.equal(got, wanted)
    return y, leaf


@pytest.mark.parametrize("backend, dynamic", [("eager", False), ("aot_eager", False), ("aot_eager", True)])
@pytest.mark.parametrize("call", IN_PLACE)
def test_compile_of_a_leaf_in_place(device, call, backend, dynamic):
    check_compiled_leaf(device, call, backend, dynamic)


@pytest.mark.parametrize("call, dynamic", [("x", False), ("qkv", False), ("qkv of heads", True), ("two views", True)])
def test_inductor_of_a_leaf_in_place(device, call, dynamic):
    """The result shares the memory of the leaf, except for "two views", whose result is a product."""
    y, leaf = check_compiled_leaf(device, call, "inductor", dynamic)
    assert (y.data_ptr() == leaf.data_ptr()) == (call != "two views")


def test_compile_of_shapes_that_change(device):
    """As in flash-attention's own tests, one compiled function is called with and without num_heads_q."""
    torch._dynamo.reset()
    cos, sin = random(9, 4, device=device), random(9, 4, device=device)
    compiled = torch.compile(fa.apply_rotary_emb_qkv_, backend="aot_eager", fullgraph=True)
    for shape, heads in (((2, 4, 3, 2, 8), None), ((3, 5, 3, 2, 8), None), ((2, 6, 6, 8), 2), ((2, 7, 8, 12), 4)):
        leaves = [random(*shape, device=device).requires_grad_()]
        leaves.append(leaves[0].detach().clone().requires_grad_())
        d = random(*shape, device=device)
        for leaf, f in zip(leaves, (fa.apply_rotary_emb_qkv_, compiled)):
            f(leaf, cos, sin, num_heads_q=heads).backward(d)
        assert torch.equal(*leaves) and torch.equal(leaves[0].grad, leaves[1].grad)


def test_compile_of_a_leaf_without_autograd(device):
    """The leaf is rotated without autograd as well."""
    cos, sin, x = random(4, 4, device=device), random(4, 4, device=device), random(2, 4, 3, 2, 8, device=device)
    leaf, wanted = x.clone().requires_grad_(), fa.apply_rotary_emb_qkv_(x.clone(), cos, sin)
    torch._dynamo.reset()
    with torch.no_grad():
        y = torch.compile(fa.apply_rotary_emb_qkv_, backend="aot_eager", fullgraph=True)(leaf, cos, sin)
    assert torch.equal(y, wanted) and torch.equal(leaf, wanted)
