"""trope.apex against apex's formulas: to the bit where cos and sin are given and tensors have half precision, since eager
PyTorch rounds as apex does, and in float64. Tables are random, so that halves differ, and so are upstream gradients."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from trope import apex  # noqa: E402

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
HALVES = [torch.bfloat16, torch.float16]
DTYPES = [torch.float32, torch.float64] + HALVES
# Of half precision: cos, two products and their sum are rounded, of up to about 4.
TOLERANCES = {
    torch.float64: dict(rtol=1e-12, atol=1e-12),
    torch.float32: dict(rtol=1e-5, atol=2e-6),
    torch.bfloat16: dict(rtol=2.0**-8, atol=2.0**-5),
    torch.float16: dict(rtol=2.0**-11, atol=2.0**-8),
}
S, B, H, D, ROTARY = 20, 3, 2, 24, 16
LENGTHS = [7, 0, 12, 1]


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(11)
    return request.param


def make(*shape, device, dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype)


def make_freqs(device, rows=S, columns=ROTARY):
    return (torch.rand(rows, 1, 1, columns, device=device) - 0.5) * 8


def rotate_half(x, sign=1):
    first, second = x.chunk(2, -1)
    return torch.cat((-sign * second, sign * first), -1)


def forward_reference(x, cos, sin):
    """In the dtype of x, each operation rounded. The tables have one column an element, and dimensions that broadcast."""
    cos, sin, window = cos.to(x.dtype), sin.to(x.dtype), x[..., : cos.shape[-1]]
    return torch.cat((window * cos + rotate_half(window) * sin, x[..., cos.shape[-1] :]), -1)


def backward_reference(dy, cos, sin):
    """The transpose: the sine of an element is that of its partner."""
    cos, sin, window = cos.to(dy.dtype), sin.to(dy.dtype), dy[..., : cos.shape[-1]]
    partner = window.roll(cos.shape[-1] // 2, -1)
    return torch.cat((window * cos - partner * rotate_half(sin), dy[..., cos.shape[-1] :]), -1)


def check(result, x, reference, tables, bits):
    """`reference` in the dtype of x, to the bit, or in float64."""
    assert result.dtype == x.dtype
    if bits:
        assert torch.equal(result, reference(x, *tables))
    exact = reference(x.double(), *(table.double() for table in tables))
    torch.testing.assert_close(result.double(), exact, **TOLERANCES[x.dtype])


def is_transposed(y):
    return y.transpose(0, 1).is_contiguous() and not y.is_contiguous()


def make_upstreams(y):
    """Contiguous, transposed, of a sum."""
    dy = torch.randn(y.shape, device=y.device).to(y.dtype)
    one = torch.ones((), dtype=y.dtype, device=y.device)
    return dy, dy.transpose(0, 1).contiguous().transpose(0, 1), one.expand(y.shape)


def rearrange(x, how):
    """The same values in other memory."""
    if how == "last":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    return torch.stack((x, x, x), -2)[..., 1, :]


def test_the_transpose_of_the_reference(device):
    """That backward_reference is what autograd makes of forward_reference."""
    x = make(S, B, H, D, device=device, dtype=torch.float64).requires_grad_()
    tables = [make_freqs(device).double() for _ in "cs"]
    y = forward_reference(x, *tables)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy)[0], backward_reference(dy, *tables))


# ---- sbhd ----


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cached(device, dtype, own_tables, transpose):
    tables = [make_freqs(device).cos().to(dtype if own_tables else torch.float32) for _ in "cs"]
    x = make(S, B, H, D, device=device, dtype=dtype).requires_grad_()
    y = apex.fused_apply_rotary_pos_emb_cached(x, *tables, transpose)
    assert is_transposed(y) if transpose else y.is_contiguous()
    check(y, x, forward_reference, tables, dtype in HALVES)
    plain = apex.forward_cached(x, *tables, transpose)
    assert not plain.requires_grad and plain.stride() == y.stride() and torch.equal(plain, y)
    for dy in make_upstreams(y):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        check(dx, dy, backward_reference, tables, dtype in HALVES)
        plain = apex.backward_cached(dy, *tables, transpose)
        assert is_transposed(plain) if transpose else plain.is_contiguous()
        assert torch.equal(plain, dx)


def share_equal(a, b):
    return (a == b).double().mean().item()


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_freqs(device, dtype, transpose):
    freqs = make_freqs(device)
    exact_tables, tables = (freqs.double().cos(), freqs.double().sin()), (freqs.cos(), freqs.sin())
    x = make(S, B, H, D, device=device, dtype=dtype).requires_grad_()
    y = apex.fused_apply_rotary_pos_emb(x, freqs, transpose)
    assert is_transposed(y) if transpose else y.is_contiguous()
    check(y, x, forward_reference, exact_tables, False)
    plain = apex.forward(x, freqs, transpose)
    assert not plain.requires_grad and plain.stride() == y.stride() and torch.equal(plain, y)
    for dy in make_upstreams(y):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        check(dx, dy, backward_reference, exact_tables, False)
        plain = apex.backward(dy, freqs, transpose)
        assert is_transposed(plain) if transpose else plain.is_contiguous()
        assert torch.equal(plain, dx)
    if dtype in HALVES:  # cosines that PyTorch rounds otherwise are rare
        assert share_equal(y, forward_reference(x, *tables)) > 0.995


def test_f32_is_a_fused_product_and_sum(device):
    """As nvcc compiles apex's line. The double below rounds twice, which is rarely another f32."""
    x, (cos, sin) = make(S, B, 16, ROTARY, device=device), [make_freqs(device) for _ in "cs"]
    y = apex.forward_cached(x, cos, sin, False)
    fused = (x.double() * cos.double() + (rotate_half(x) * sin).double()).float()
    assert share_equal(y, fused) > 0.999
    assert share_equal(y, forward_reference(x, cos, sin)) < 0.95


@pytest.mark.parametrize("how", ["first", "last", "slice"])
def test_memory_changes_no_bits(device, how):
    freqs, x, dy = make_freqs(device), make(S, B, H, D, device=device), make(S, B, H, D, device=device)
    for transpose in (False, True):
        y = apex.forward(rearrange(x, how), freqs, transpose)
        assert torch.equal(y, apex.forward(x, freqs, transpose)) and (is_transposed(y) if transpose else y.is_contiguous())
        assert torch.equal(apex.backward(rearrange(dy, how), freqs, transpose), apex.backward(dy, freqs, transpose))


# ---- thd ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["first", "slice"])
def test_thd(device, dtype, how):
    freqs, tokens = make_freqs(device), sum(LENGTHS)
    cu_seqlens = torch.tensor([0] + LENGTHS, device=device).cumsum(0).int()
    rows = torch.cat([torch.arange(n, device=device) for n in LENGTHS])
    tables = [f(freqs[rows, 0].double()) for f in (torch.cos, torch.sin)]
    x = make(tokens + 3, H, D, device=device, dtype=dtype).requires_grad_()
    y = apex.fused_apply_rotary_pos_emb_thd(rearrange(x, how), cu_seqlens, freqs)
    assert y.is_contiguous() and y[tokens:].abs().max() == 0
    check(y[:tokens], x[:tokens], forward_reference, tables, False)
    assert torch.equal(apex.forward_thd(x, cu_seqlens, freqs), y)
    for dy in make_upstreams(y):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        check(dx[:tokens], dy[:tokens], backward_reference, tables, False)
        assert dx[tokens:].abs().max() == 0 and torch.equal(apex.backward_thd(dy, cu_seqlens, freqs), dx)


# ---- Images ----


def image_reference(of_half):
    """The same for both halves of [b, img_h, img_w, h, d]: tables cos_h, sin_h, cos_w, sin_w."""

    def both(x, cos_h, sin_h, cos_w, sin_w):
        (first, second), (rows, columns) = x.chunk(2, -1), x.shape[1:3]
        by_row = (table[:, :rows, None] for table in (cos_h, sin_h))
        by_column = (table[:, None, :columns] for table in (cos_w, sin_w))
        return torch.cat((of_half(first, *by_row), of_half(second, *by_column)), -1).flatten(1, 2)

    return both


@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, columns", [(3, 5), (4, 4), (1, 6), (6, 1)])
def test_images(device, dtype, own_tables, rows, columns):
    shapes = (1, rows + 2, 1, D // 2), (1, rows + 2, 1, D // 2), (1, columns + 1, 1, D // 2), (1, columns + 1, 1, D // 2)
    tables = [make(*shape, device=device).cos().to(dtype if own_tables else torch.float32) for shape in shapes]
    x = make(B, rows * columns, H, D, device=device, dtype=dtype).requires_grad_()
    image = x.detach().unflatten(1, (rows, columns))
    y = apex.fused_apply_rotary_pos_emb_2d(x, rows, columns, *tables)
    assert y.is_contiguous() and y.shape == x.shape
    check(y, image, image_reference(forward_reference), tables, dtype in HALVES)
    assert torch.equal(apex.forward_2d(image, *tables), y)
    for dy in make_upstreams(y):
        (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        d_image = dy.unflatten(1, (rows, columns))
        check(dx, d_image, image_reference(backward_reference), tables, dtype in HALVES)
        assert torch.equal(apex.backward_2d(d_image, *tables), dx)


@pytest.mark.parametrize("how", ["first", "last", "slice", "columns"])
def test_images_in_other_memory(device, how):
    tables = [make(1, 6, 1, D // 2, device=device) for _ in range(4)]
    x = make(B, 3, 5, H, D, device=device)
    other = x.transpose(1, 2).contiguous().transpose(1, 2) if how == "columns" else rearrange(x, how)
    assert torch.equal(apex.forward_2d(other, *tables), apex.forward_2d(x, *tables))
    assert torch.equal(apex.backward_2d(other, *tables), apex.backward_2d(x, *tables))


# ---- Of all ----


def make_calls(device, dtype=torch.float32):
    """(wrapper of x alone, x) for each."""
    freqs, cos, sin = (make_freqs(device) for _ in range(3))
    cu_seqlens = torch.tensor([0] + LENGTHS, device=device).cumsum(0).int()
    tables = [make(1, 6, 1, D // 2, device=device) for _ in range(4)]
    return [
        (lambda x: apex.fused_apply_rotary_pos_emb(x, freqs, True), make(S, B, H, D, device=device, dtype=dtype)),
        (lambda x: apex.fused_apply_rotary_pos_emb_cached(x, cos, sin), make(S, B, H, D, device=device, dtype=dtype)),
        (lambda x: apex.fused_apply_rotary_pos_emb_thd(x, cu_seqlens, freqs), make(S, H, D, device=device, dtype=dtype)),
        (lambda x: apex.fused_apply_rotary_pos_emb_2d(x, 4, 5, *tables), make(B, S, H, D, device=device, dtype=dtype)),
    ]


def test_derivatives_of_derivatives(device):
    for call, x in make_calls(device, torch.float64):
        x.requires_grad_()
        weights, once_more = torch.randn_like(x), torch.randn_like(x)
        dy = weights.clone().requires_grad_()
        (dx,) = torch.autograd.grad(call(x), x, dy, create_graph=True)
        (d_dy,) = torch.autograd.grad(dx, dy, once_more)  # <once_more, M' dy>, which is M once_more
        torch.testing.assert_close(d_dy, call(once_more))


def test_compile(device):
    for call, x in make_calls(device):
        x = rearrange(x, "last").requires_grad_()
        eager, compiled = call(x), torch.compile(call, backend="aot_eager", fullgraph=True)(x)
        assert compiled.stride() == eager.stride() and torch.equal(compiled, eager)
        dy = torch.randn_like(eager)
        assert torch.equal(*(torch.autograd.grad(y, x, dy)[0] for y in (compiled, eager)))


def test_no_grad_with_tables_that_require_one(device):
    freqs, x = make_freqs(device), make(S, B, H, D, device=device)
    expected = apex.forward(x, freqs, False)
    assert torch.equal(apex.forward(x, freqs.requires_grad_(), False), expected)
    with torch.no_grad():
        assert torch.equal(apex.fused_apply_rotary_pos_emb(x, freqs), expected)


def refused(argument, call, *arguments):
    with pytest.raises(trope.Error) as caught:
        call(*arguments)
    assert caught.value.argument == argument and argument in str(caught.value)


def test_refusals():
    x, freqs, learned = make(S, B, H, D, device="cpu"), make_freqs("cpu"), make_freqs("cpu").requires_grad_()
    refused("freqs", apex.forward, x, freqs[:-1], False)
    refused("freqs", apex.forward, x, make_freqs("cpu", S + 1), False)
    refused("freqs", apex.forward, x, freqs[:, 0], False)
    refused("freqs", apex.forward, x, make_freqs("cpu", columns=D + 2), False)
    refused("freqs", apex.forward, x, make_freqs("cpu", columns=5), False)
    refused("input", apex.forward, x[0], freqs, False)
    refused("output_grads", apex.backward, x[0], freqs, False)
    refused("t", apex.fused_apply_rotary_pos_emb, x[0], freqs)
    refused("freqs", apex.fused_apply_rotary_pos_emb, x, learned)
    refused("cos", apex.forward_cached, x, freqs[:-1], freqs, False)
    refused("sin", apex.forward_cached, x, freqs, freqs[..., :8], False)
    refused("sin", apex.forward_cached, x, freqs, freqs.bfloat16(), False)
    refused("sin_", apex.fused_apply_rotary_pos_emb_cached, x, freqs, learned)
    refused("input", apex.forward_thd, x, torch.tensor([0, S], dtype=torch.int32), freqs)
    refused("cu_seqlens", apex.forward_thd, x[:, 0], torch.tensor([0.0, S]), freqs)
    refused("cu_seqlens", apex.forward_thd, x[:, 0], torch.tensor([0, S + 1], dtype=torch.int32), freqs)
    with pytest.raises(trope.Error, match="row"):  # sequences longer than the table
        apex.forward_thd(x[:, 0], torch.tensor([0, S], dtype=torch.int32), freqs[:-1])


def test_refusals_of_images():
    image, x = make(B, 4, 5, H, D, device="cpu"), make(B, 20, H, D, device="cpu")
    tables = [make(1, 6, 1, D // 2, device="cpu") for _ in range(4)]
    names = ["cos_h", "sin_h", "cos_w", "sin_w"]
    for i, name in enumerate(names):
        for wrong in (tables[i][:, :3], tables[i][..., :-2], tables[i][0], tables[i].expand(B, -1, -1, -1)):
            refused(name, apex.forward_2d, image, *tables[:i], wrong, *tables[i + 1 :])
        learned = tables[i].clone().requires_grad_()
        refused(name, apex.fused_apply_rotary_pos_emb_2d, x, 4, 5, *tables[:i], learned, *tables[i + 1 :])
    refused("sin_h", apex.forward_2d, image, tables[0], tables[1].bfloat16(), *tables[2:])
    refused("input", apex.forward_2d, x, *tables)
    refused("output_grads", apex.backward_2d, image[..., :22], *tables)
    refused("t", apex.fused_apply_rotary_pos_emb_2d, x, 4, 4, *tables)
    refused("t", apex.fused_apply_rotary_pos_emb_2d, image, 4, 5, *tables)
