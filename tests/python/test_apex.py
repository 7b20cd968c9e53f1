"""Compares trope.apex with apex's formulas. For half-precision tensors with given cos and sin, all bits must be equal,
because eager PyTorch rounds as apex does. Other results are compared in float64. Tables are random, so that their halves
differ. test_dropins.py tests what all drop-in modules have in common."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from checks import check, device, rearranged, upstreams  # noqa: E402, F401 (device is a fixture)
from reference import of_table, packed_positions, rotate  # noqa: E402
from trope import apex  # noqa: E402

HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, torch.float64] + HALVES
# Slack for half precision: cos, two products and their sum are each rounded. They can be as large as about 4.
NATIVE = {torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
S, B, H, D, ROTARY = 20, 3, 2, 24, 16
LENGTHS = [7, 0, 12, 1]


def make(*shape, device, dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype)


def make_freqs(device, rows=S, columns=ROTARY):
    return (torch.rand(rows, 1, 1, columns, device=device) - 0.5) * 8


def formula(cos, sin):
    """Returns the rotation by tables [..., 1, columns], computed in the dtype of x."""
    return lambda x: rotate(x, of_table(*(table.squeeze(-2).to(x.dtype) for table in (cos, sin)), "half"), "half")


def is_transposed(y):
    return y.transpose(0, 1).is_contiguous() and not y.is_contiguous()


def check_all(function, forward, backward, x, formula, bits=False, has_memory=torch.Tensor.is_contiguous):
    """Compares the autograd function with its formula, and the extension's forward and backward with the autograd
    function."""
    (y,) = check(function, x, formula, bits, NATIVE.get(x.dtype, 2.0**-20))
    plain = forward(x)
    assert has_memory(y) and has_memory(plain) and not plain.requires_grad and torch.equal(plain, y)
    leaf = x.detach().requires_grad_()
    for (dy,) in upstreams([y]):
        plain = backward(dy)
        assert has_memory(plain) and torch.equal(plain, torch.autograd.grad(function(leaf), leaf, dy)[0])


# ---- sbhd ----


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cached(device, dtype, own_tables, transpose):
    tables = [make_freqs(device).cos().to(dtype if own_tables else torch.float32) for _ in "cs"]
    check_all(
        lambda x: apex.fused_apply_rotary_pos_emb_cached(x, *tables, transpose),
        lambda x: apex.forward_cached(x, *tables, transpose),
        lambda dy: apex.backward_cached(dy, *tables, transpose),
        make(S, B, H, D, device=device, dtype=dtype),
        formula(*tables),
        dtype in HALVES,
        is_transposed if transpose else torch.Tensor.is_contiguous,
    )


def share_equal(a, b):
    return (a == b).double().mean().item()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_freqs(device, dtype, transpose):
    freqs, x = make_freqs(device), make(S, B, H, D, device=device, dtype=dtype)
    check_all(
        lambda x: apex.fused_apply_rotary_pos_emb(x, freqs, transpose),
        lambda x: apex.forward(x, freqs, transpose),
        lambda dy: apex.backward(dy, freqs, transpose),
        x,
        formula(freqs.double().cos(), freqs.double().sin()),
        False,
        is_transposed if transpose else torch.Tensor.is_contiguous,
    )
    if dtype in HALVES:  # PyTorch rounds only a few cosines differently
        assert share_equal(apex.forward(x, freqs, transpose), formula(freqs.cos(), freqs.sin())(x)) > 0.995


def test_f32_is_a_fused_multiply_add(device):
    """nvcc compiles apex's line to a fused multiply-add. `fused` below emulates it in double, and then rounds to f32. This
    second rounding rarely changes the result."""
    x, (cos, sin) = make(S, B, 16, ROTARY, device=device), [make_freqs(device) for _ in "cs"]
    y = apex.forward_cached(x, cos, sin, False)
    partner = torch.cat((-x[..., 8:], x[..., :8]), -1)
    fused = (x.double() * cos.double() + (partner * sin).double()).float()
    assert share_equal(y, fused) > 0.999
    assert share_equal(y, formula(cos, sin)(x)) < 0.95


# ---- thd ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_thd(device, dtype):
    freqs, tokens = make_freqs(device), sum(LENGTHS)
    ends = [0, *itertools.accumulate(LENGTHS)]
    cu_seqlens, rows = torch.tensor(ends, dtype=torch.int32, device=device), packed_positions(tokens, ends)[0]
    turn = formula(*(f(freqs[rows, 0].double()) for f in (torch.cos, torch.sin)))
    check_all(
        lambda x: apex.fused_apply_rotary_pos_emb_thd(x, cu_seqlens, freqs),
        lambda x: apex.forward_thd(x, cu_seqlens, freqs),
        lambda dy: apex.backward_thd(dy, cu_seqlens, freqs),
        make(tokens + 3, H, D, device=device, dtype=dtype),
        lambda x: torch.cat((turn(x[:tokens]), 0 * x[tokens:])),
    )


# ---- Images ----


@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns", [(3, 5), (4, 4), (1, 6), (6, 1)])
def test_images(device, dtype, own_tables, rows, columns):
    sizes = rows + 2, rows + 2, columns + 1, columns + 1
    tables = [make(1, n, 1, D // 2, device=device).cos().to(dtype if own_tables else torch.float32) for n in sizes]

    def turn(image):
        by_row = formula(*(table[:, :rows, None] for table in tables[:2]))
        by_column = formula(*(table[:, None, :columns] for table in tables[2:]))
        first, second = image.unflatten(1, (rows, columns)).chunk(2, -1)
        return torch.cat((by_row(first), by_column(second)), -1).flatten(1, 2)

    check_all(
        lambda x: apex.fused_apply_rotary_pos_emb_2d(x, rows, columns, *tables),
        lambda x: apex.forward_2d(x.unflatten(1, (rows, columns)), *tables),
        lambda dy: apex.backward_2d(dy.unflatten(1, (rows, columns)), *tables),
        make(B, rows * columns, H, D, device=device, dtype=dtype),
        turn,
        dtype in HALVES,
    )


@pytest.mark.parametrize("how", ["first", "last", "slice", "columns"])
def test_images_with_other_strides(device, how):
    tables = [make(1, 6, 1, D // 2, device=device) for _ in range(4)]
    x = make(B, 3, 5, H, D, device=device)
    other = x.transpose(1, 2).contiguous().transpose(1, 2) if how == "columns" else rearranged(x, how)
    assert torch.equal(apex.forward_2d(other, *tables), apex.forward_2d(x, *tables))
    assert torch.equal(apex.backward_2d(other, *tables), apex.backward_2d(x, *tables))


def test_tables_that_require_gradients_are_accepted_without_autograd(device):
    freqs, x = make_freqs(device), make(S, B, H, D, device=device)
    expected = apex.forward(x, freqs, False)
    assert torch.equal(apex.forward(x, freqs.requires_grad_(), False), expected)
    with torch.no_grad():
        assert torch.equal(apex.fused_apply_rotary_pos_emb(x, freqs), expected)


def test_sequences_longer_than_the_table_are_refused():
    cu_seqlens, x = torch.tensor([0, S], dtype=torch.int32), make(S, H, D, device="cpu")
    with pytest.raises(trope.Error, match="row"):
        apex.forward_thd(x, cu_seqlens, make_freqs("cpu", S - 1))
