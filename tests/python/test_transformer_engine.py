"""trope.transformer_engine against its formulas in float64: y = x cos + partner sin, in each element its own angle, by
autograd for the transpose. Tables are random, so that halves differ, and so are upstream gradients."""

import enum
import itertools

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.transformer_engine as te  # noqa: E402

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
FORMATS = ["sbhd", "bshd", "thd"]
TOLERANCES = {
    torch.float64: dict(rtol=1e-12, atol=1e-12),
    torch.float32: dict(rtol=1e-5, atol=2e-6),
    torch.bfloat16: dict(rtol=2.0**-8, atol=4e-6),
}
BATCH, HEADS, DIM, ROTARY, ROWS = 3, 2, 24, 16, 96
LENGTHS = [16, 0, 32, 8]  # of the whole stream, for four ranks in two chunks


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(7)
    return request.param


def make_freqs(device, rows=ROWS, columns=ROTARY, dtype=torch.float32):
    return (torch.rand(rows, 1, 1, columns, dtype=dtype, device=device) - 0.5) * 8


def make_cu_seqlens(device):
    return torch.tensor([0] + list(itertools.accumulate(LENGTHS)), dtype=torch.int32, device=device)


def make_shape(tensor_format, cp_size, *ends):
    tokens = {"sbhd": (16 // cp_size, BATCH), "bshd": (BATCH, 16 // cp_size), "thd": (sum(LENGTHS) // cp_size,)}
    return tokens[tensor_format] + ends


def make_start_positions(device, tensor_format):
    return torch.randint(0, 30, (len(LENGTHS) if tensor_format == "thd" else BATCH,), dtype=torch.int32, device=device)


def zigzag(length, cp_size, cp_rank):
    """The positions of a rank's tokens of one sequence of so many in all: chunks rank and 2 cp_size - 1 - rank."""
    if cp_size == 1:
        return torch.arange(length)
    chunks = torch.arange(length).view(2 * cp_size, length // (2 * cp_size))
    return torch.cat((chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]))


def find_positions(tensor_format, start_positions=None, cp_size=1, cp_rank=0, length=16):
    """Positions that broadcast against the tokens of a tensor."""
    if tensor_format == "thd":
        starts = [0] * len(LENGTHS) if start_positions is None else start_positions.tolist()
        return torch.cat([zigzag(n, cp_size, cp_rank) + start for n, start in zip(LENGTHS, starts)])
    starts = torch.zeros(BATCH, dtype=torch.long) if start_positions is None else start_positions.long().cpu()
    positions = zigzag(length, cp_size, cp_rank)[:, None] + starts
    return positions if tensor_format == "sbhd" else positions.T


def reference(x, freqs, positions, interleaved):
    """x [tokens.., heads, d] in float64."""
    angles = freqs[positions.to(freqs.device), 0, 0].double().unsqueeze(-2)
    window, rest = x[..., : freqs.shape[-1]], x[..., freqs.shape[-1] :]
    if interleaved:
        partner = torch.stack((-window[..., 1::2], window[..., 0::2]), -1).flatten(-2)
    else:
        first, second = window.chunk(2, -1)
        partner = torch.cat((-second, first), -1)
    return torch.cat((window * angles.cos() + partner * angles.sin(), rest), -1)


def check(result, expected, dtype):
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, **TOLERANCES[dtype])


CALLS = list(itertools.product(FORMATS, [1, 2, 4], [False, True], [False, True]))


@pytest.mark.parametrize("tensor_format, cp_size, has_start, interleaved", CALLS)
@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_values_and_gradients(device, dtype, tensor_format, cp_size, has_start, interleaved):
    freqs = make_freqs(device)
    start = make_start_positions(device, tensor_format) if has_start else None
    cu_seqlens = make_cu_seqlens(device) if tensor_format == "thd" else None
    for cp_rank in range(cp_size):
        t = torch.randn(make_shape(tensor_format, cp_size, HEADS, DIM), device=device).to(dtype).requires_grad_()
        exact = t.detach().double().requires_grad_()
        positions = find_positions(tensor_format, start, cp_size, cp_rank)
        expected = reference(exact, freqs, positions, interleaved)
        y = te.apply_rotary_pos_emb(t, freqs, tensor_format, start, interleaved, True, cu_seqlens, cp_size, cp_rank)
        assert y.is_contiguous()
        check(y, expected, dtype)
        dy = torch.randn(y.shape, device=device).to(dtype)
        for upstream in (dy, dy[:1].expand(y.shape), torch.ones((), dtype=dtype, device=device).expand(y.shape)):
            (dx,) = torch.autograd.grad(y, t, upstream, retain_graph=True)
            (d_exact,) = torch.autograd.grad(expected, exact, upstream.double(), retain_graph=True)
            check(dx, d_exact, dtype)


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_gradient_of_a_sum(device, tensor_format):
    freqs, cu_seqlens = make_freqs(device), make_cu_seqlens(device)
    t = torch.randn(make_shape(tensor_format, 1, HEADS, DIM), device=device, requires_grad=True)
    te.apply_rotary_pos_emb(t, freqs, tensor_format, cu_seqlens=cu_seqlens).sum().backward()
    exact = t.detach().double().requires_grad_()
    reference(exact, freqs, find_positions(tensor_format), False).sum().backward()
    check(t.grad, exact.grad, torch.float32)


def rearrange(x, how):
    """The same values in other memory."""
    if how == "last":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "slice":
        return torch.stack((x, x, x), -2)[..., 1, :]
    return x.flip(-2).contiguous().flip(-2)


@pytest.mark.parametrize("how", ["first", "last", "slice", "copy"])
@pytest.mark.parametrize("tensor_format", FORMATS)
def test_memory_changes_no_bits(device, tensor_format, how):
    freqs, cu_seqlens = make_freqs(device), make_cu_seqlens(device)
    x = torch.randn(make_shape(tensor_format, 1, HEADS, DIM), device=device)
    dy = torch.randn(x.shape, device=device)
    results = []
    for t, upstream in ((x.clone(), dy), (rearrange(x, how), rearrange(dy, how))):
        t.requires_grad_()
        y = te.apply_rotary_pos_emb(t, freqs, tensor_format, cu_seqlens=cu_seqlens)
        assert y.is_contiguous()
        results.append((y, torch.autograd.grad(y, t, upstream)[0]))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    backward = te.fused_rope_backward(rearrange(dy, how), freqs, None, tensor_format, False, cu_seqlens, 1, 0)
    assert backward.is_contiguous() and torch.equal(backward, results[0][1])


class NVTE_QKV_Format(enum.IntEnum):
    """As TransformerEngine has it, but for the numbers, which mean nothing."""

    NVTE_THD = 0
    NVTE_SBHD = 1
    NVTE_BSHD = 2
    NVTE_BHSD = 3


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_functions_of_the_extension(device, tensor_format):
    freqs, start = make_freqs(device), make_start_positions(device, tensor_format)
    cu_seqlens = make_cu_seqlens(device) if tensor_format == "thd" else None
    t = torch.randn(make_shape(tensor_format, 2, HEADS, DIM), device=device, requires_grad=True)
    expected = te.apply_rotary_pos_emb(t, freqs, tensor_format, start, True, cu_seqlens=cu_seqlens, cp_size=2, cp_rank=1)
    dy = torch.randn(expected.shape, device=device)
    (dx,) = torch.autograd.grad(expected, t, dy)
    for word in (tensor_format, NVTE_QKV_Format["NVTE_" + tensor_format.upper()]):
        y = te.fused_rope_forward(t, freqs, start, word, True, cu_seqlens, 2, 1)
        assert not y.requires_grad and torch.equal(y, expected)
        assert torch.equal(te.fused_rope_backward(dy, freqs, start, word, True, cu_seqlens, 2, 1), dx)


def test_function_has_the_order_of_transformer_engine(device):
    freqs, start, cu_seqlens = make_freqs(device), make_start_positions(device, "thd"), make_cu_seqlens(device)
    t = torch.randn(make_shape("thd", 2, HEADS, DIM), device=device, requires_grad=True)
    y = te.FusedRoPEFunc.apply(t, freqs, start, "thd", True, cu_seqlens, 2, 1)
    check(y, reference(t.double(), freqs, find_positions("thd", start, 2, 1), True), torch.float32)
    assert all(issubclass(function, torch.autograd.Function) for function in (te.FusedRoPEFunc, te.FusedQKVRoPEFunc))


def test_fused_is_not_read_and_cu_seqlens_with_thd_alone(device):
    freqs, t = make_freqs(device), torch.randn(16, BATCH, HEADS, DIM, device=device).bfloat16()
    y = te.apply_rotary_pos_emb(t, freqs, fused=True)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs, fused=False), y)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs, cu_seqlens=make_cu_seqlens(device)), y)


@pytest.mark.parametrize("freqs_dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_of_freqs(device, freqs_dtype):
    t, freqs = torch.randn(16, BATCH, HEADS, DIM, device=device), make_freqs(device, dtype=torch.float64).to(freqs_dtype)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs), te.apply_rotary_pos_emb(t, freqs.float()))
    expected = reference(t.double(), freqs, find_positions("sbhd"), False)
    check(te.apply_rotary_pos_emb(t.double(), freqs), expected, torch.float64)


def test_tokens_behind_the_last_sequence_are_zero(device):
    cu_seqlens = make_cu_seqlens(device)
    t = torch.randn(sum(LENGTHS) + 5, HEADS, DIM, device=device, requires_grad=True)
    y = te.apply_rotary_pos_emb(t, make_freqs(device), "thd", cu_seqlens=cu_seqlens)
    dx = torch.autograd.grad(y, t, torch.randn(y.shape, device=device))[0]
    for x in (y, dx):
        assert x[: sum(LENGTHS)].abs().sum(-1).min() > 0 and x[sum(LENGTHS) :].abs().max() == 0


@pytest.mark.parametrize("tensor_format, interleaved", [("sbhd", False), ("thd", True)])
def test_gradient_of_freqs(device, tensor_format, interleaved):
    freqs = make_freqs(device, dtype=torch.float64).requires_grad_()
    exact = freqs.detach().clone().requires_grad_()
    cu_seqlens = make_cu_seqlens(device)
    t = torch.randn(make_shape(tensor_format, 1, HEADS, DIM), dtype=torch.float64, device=device)
    y = te.apply_rotary_pos_emb(rearrange(t, "last"), freqs, tensor_format, None, interleaved, cu_seqlens=cu_seqlens)
    assert y.is_contiguous()
    dy = torch.randn(y.shape, dtype=torch.float64, device=device)
    y.backward(dy)
    reference(t, exact, find_positions(tensor_format), interleaved).backward(dy)
    check(freqs.grad, exact.grad, torch.float64)
    with pytest.raises(trope.Error, match="freqs requires a gradient"):
        te.FusedRoPEFunc.apply(t, freqs)
    with torch.no_grad():
        assert torch.equal(te.apply_rotary_pos_emb(t, freqs, tensor_format, None, interleaved, cu_seqlens=cu_seqlens), y)


@pytest.mark.parametrize("tensor_format", ["sbhd", "bshd"])
@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
def test_freqs_of_each_batch_entry(device, tensor_format, cp_size, interleaved):
    """As TransformerEngine's unfused code takes them: each entry is rotated as it is alone with its own freqs."""
    freqs = (torch.rand(ROWS, BATCH, 1, ROTARY, device=device) - 0.5) * 8
    freqs.requires_grad_()
    t = torch.randn(make_shape(tensor_format, cp_size, HEADS, DIM), device=device, requires_grad=True)
    y = te.apply_rotary_pos_emb(t, freqs, tensor_format, interleaved=interleaved, cp_size=cp_size, cp_rank=cp_size - 1)
    positions = zigzag(16, cp_size, cp_size - 1)
    batch, tokens = tensor_format.index("b"), tensor_format.index("s")
    expected = torch.stack(
        [reference(t.select(batch, i), freqs[:, i : i + 1], positions, interleaved) for i in range(BATCH)],
        batch,
    )
    check(y, expected, torch.float32)
    dy = torch.randn_like(y)
    wanted = [grad.double() for grad in torch.autograd.grad(expected, (t, freqs), dy.double())]
    got = torch.autograd.grad(y, (t, freqs), dy)
    check(got[0], wanted[0], torch.float32)
    torch.testing.assert_close(got[1].double(), wanted[1], rtol=1e-4, atol=1e-4)
    given = t.detach().requires_grad_()
    compact = te.apply_rotary_pos_emb(
        given, freqs.detach(), tensor_format, None, interleaved, True, None, cp_size, cp_size - 1
    )
    assert torch.equal(compact, y) and y.shape[tokens] == 16 // cp_size
    (dx,) = torch.autograd.grad(compact, given, dy)
    check(dx, wanted[0], torch.float32)


def test_derivatives_of_derivatives(device):
    freqs, start = make_freqs(device, 8, 4), torch.tensor([3], dtype=torch.int32, device=device)
    t = torch.randn(4, 1, 2, 6, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda t: te.FusedRoPEFunc.apply(t, freqs, start), t)
    qkv = torch.randn(4, 1, 2, 4 * 6, dtype=torch.float64, device=device, requires_grad=True)

    def packed(qkv):
        return te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [12, 6, 6], start_positions=start)

    assert torch.autograd.gradcheck(packed, qkv) and torch.autograd.gradgradcheck(packed, qkv)
    results = packed(qkv)
    upstreams = [torch.randn_like(y).requires_grad_() for y in results]
    (d_qkv,) = torch.autograd.grad(results, qkv, upstreams, create_graph=True)
    once_more = torch.randn_like(qkv)  # <once_more, M' dy>, whose derivative by dy is M once_more
    assert all(map(torch.equal, torch.autograd.grad(d_qkv, upstreams, once_more), packed(once_more)))


# ---- Packed QKV ----


def reference_qkv(qkv, q_freqs, k_freqs, split, positions, interleaved):
    q, k, v = qkv.split(split, -1)
    q = q.reshape(*q.shape[:-2], -1, split[1])
    return reference(q, q_freqs, positions, interleaved), reference(k, k_freqs, positions, interleaved), v


def check_qkv(qkv, q_freqs, k_freqs, split, positions, interleaved, results, upstreams):
    """Values and the gradient; V to the bit."""
    exact = qkv.detach().double().requires_grad_()
    expected = reference_qkv(exact, q_freqs, k_freqs, split, positions, interleaved)
    for result, right in zip(results, expected):
        assert result.is_contiguous() and result.shape == right.shape
        check(result, right, qkv.dtype)
    assert torch.equal(results[2].double(), expected[2])
    (d_qkv,) = torch.autograd.grad(results, qkv, upstreams, retain_graph=True)
    (d_exact,) = torch.autograd.grad(expected, exact, [dy.double() for dy in upstreams])
    assert d_qkv.is_contiguous()
    check(d_qkv, d_exact, qkv.dtype)


def make_upstreams(results, how):
    """Contiguous; transposed, as attention that is [b, h, s, d] gives them; of a sum."""
    if how == "sum":
        return [torch.ones((), dtype=y.dtype, device=y.device).expand(y.shape) for y in results]
    upstreams = [torch.randn(y.shape, device=y.device).to(y.dtype) for y in results]
    return [rearrange(dy, "first") for dy in upstreams] if how == "transposed" else upstreams


@pytest.mark.parametrize("groups, per_group", [(1, 5), (3, 2)])
@pytest.mark.parametrize("tensor_format, cp_size, has_start, interleaved", CALLS)
def test_qkv(device, tensor_format, cp_size, has_start, interleaved, groups, per_group):
    freqs, split = make_freqs(device), [per_group * DIM, DIM, DIM]
    start = make_start_positions(device, tensor_format) if has_start else None
    cu_seqlens = make_cu_seqlens(device) if tensor_format == "thd" else None
    dtype = torch.bfloat16 if interleaved else torch.float32
    for cp_rank in range(cp_size):
        qkv = torch.randn(make_shape(tensor_format, cp_size, groups, sum(split)), device=device).to(dtype).requires_grad_()
        results = te.apply_fused_qkv_rotary_pos_emb(
            qkv, freqs, freqs, split, tensor_format, start, interleaved, cu_seqlens, cp_size, cp_rank
        )
        positions = find_positions(tensor_format, start, cp_size, cp_rank)
        for how in ("plain", "transposed", "sum"):
            check_qkv(qkv, freqs, freqs, split, positions, interleaved, results, make_upstreams(results, how))


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_qkv_with_two_tables_of_other_widths_and_other_v(device, tensor_format):
    q_freqs, k_freqs, split = make_freqs(device), make_freqs(device, columns=8), [2 * DIM, DIM, 10]
    cu_seqlens = make_cu_seqlens(device) if tensor_format == "thd" else None
    qkv = torch.randn(make_shape(tensor_format, 1, 3, sum(split)), device=device, requires_grad=True)
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, q_freqs, k_freqs, split, tensor_format, cu_seqlens=cu_seqlens)
    upstreams = make_upstreams(results, "plain")
    check_qkv(qkv, q_freqs, k_freqs, split, find_positions(tensor_format), False, results, upstreams)


@pytest.mark.parametrize("tensor_format", FORMATS)
@pytest.mark.parametrize("how", ["first", "last", "slice"])
def test_qkv_in_other_memory(device, tensor_format, how):
    freqs, split, cu_seqlens = make_freqs(device), [2 * DIM, DIM, DIM], make_cu_seqlens(device)
    qkv = torch.randn(make_shape(tensor_format, 1, 3, sum(split)), device=device, requires_grad=True)
    other = rearrange(qkv, how)
    results = te.apply_fused_qkv_rotary_pos_emb(other, freqs, freqs, split, tensor_format, cu_seqlens=cu_seqlens)
    check_qkv(qkv, freqs, freqs, split, find_positions(tensor_format), False, results, make_upstreams(results, "plain"))


@pytest.mark.parametrize(
    "tensor_format, groups, per_group", [("sbhd", 3, 2), ("sbhd", 1, 20), ("bshd", 3, 20), ("bshd", 3, 4)]
)
def test_qkv_is_one_launch(device, launches, tensor_format, groups, per_group):
    freqs, split = make_freqs(device), [per_group * DIM, DIM, DIM]
    qkv = torch.randn(make_shape(tensor_format, 1, groups, sum(split)), device=device, requires_grad=True)
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, split, tensor_format)
    assert launches == [3]
    for kind in ("plain", "transposed"):
        torch.autograd.grad(results, qkv, make_upstreams(results, kind), retain_graph=True)
    assert launches == [3] * 3
    check_qkv(qkv, freqs, freqs, split, find_positions(tensor_format), False, results, make_upstreams(results, "plain"))
    launches.clear()
    te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs.clone(), split, tensor_format)
    assert launches == [2, 1]  # q with v, and k by itself


def test_qkv_tables_that_are_aliases(device):
    """k's gradient is not q's: detach() gives the same memory, and no gradient."""
    freqs, qkv = make_freqs(device).requires_grad_(), torch.randn(16, BATCH, 1, 3 * DIM, device=device)
    found = []
    for k_freqs in (freqs.detach(), freqs.detach().clone()):
        q, k, _ = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, k_freqs, [DIM] * 3)
        found += torch.autograd.grad(q.sum() + 3 * k.sum(), freqs)
    assert torch.equal(*found)


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_qkv_functions_of_the_extension(device, tensor_format):
    freqs, split, start = make_freqs(device), [2 * DIM, DIM, DIM], make_start_positions(device, tensor_format)
    cu_seqlens = make_cu_seqlens(device) if tensor_format == "thd" else None
    qkv = torch.randn(make_shape(tensor_format, 2, 3, sum(split)), device=device, requires_grad=True)
    results = te.FusedQKVRoPEFunc.apply(qkv, freqs, freqs, split, start, tensor_format, True, 2, 1, cu_seqlens)
    upstreams = make_upstreams(results, "plain")
    check_qkv(qkv, freqs, freqs, split, find_positions(tensor_format, start, 2, 1), True, results, upstreams)
    (d_qkv,) = torch.autograd.grad(results, qkv, upstreams)
    for word in (tensor_format, NVTE_QKV_Format["NVTE_" + tensor_format.upper()]):
        plain = te.fused_qkv_rope_forward(qkv, freqs, freqs, start, split, word, True, 2, 1, cu_seqlens)
        assert not any(y.requires_grad for y in plain) and all(map(torch.equal, plain, results))
        back = te.fused_qkv_rope_backward(*upstreams, freqs, freqs, split, word, True, 2, 1, start, cu_seqlens)
        assert torch.equal(back, d_qkv)


def test_qkv_gradient_of_freqs(device):
    split, tables = [2 * DIM, DIM, DIM], [make_freqs(device, dtype=torch.float64).requires_grad_() for _ in "qk"]
    exact = [table.detach().clone().requires_grad_() for table in tables]
    qkv = torch.randn(16, BATCH, 3, sum(split), dtype=torch.float64, device=device)
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, *tables, split)
    upstreams = make_upstreams(results, "plain")
    torch.autograd.backward(results[:2], upstreams[:2])
    torch.autograd.backward(reference_qkv(qkv, *exact, split, find_positions("sbhd"), False)[:2], upstreams[:2])
    for table, right in zip(tables, exact):
        check(table.grad, right.grad, torch.float64)
    for i, name in enumerate(("q_freqs", "k_freqs")):
        with pytest.raises(trope.Error, match=name + " requires a gradient"):
            te.FusedQKVRoPEFunc.apply(qkv, *(table if i == j else table.detach() for j, table in enumerate(tables)), split)


def test_gradients_that_are_not_there(device):
    freqs, split = make_freqs(device), [2 * DIM, DIM, DIM]
    qkv = torch.randn(16, BATCH, 3, sum(split), device=device, requires_grad=True)
    q, k, v = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, split)
    (d_qkv,) = torch.autograd.grad(v, qkv, torch.ones_like(v), retain_graph=True)
    assert d_qkv[..., : 3 * DIM].abs().max() == 0 and torch.equal(d_qkv[..., 3 * DIM :], torch.ones_like(v))


# ---- Other ----


def test_no_tokens(device):
    freqs = make_freqs(device)
    t = torch.randn(0, BATCH, HEADS, DIM, device=device, requires_grad=True)
    te.apply_rotary_pos_emb(t, freqs).sum().backward()
    qkv = torch.randn(0, BATCH, 3, 4 * DIM, device=device, requires_grad=True)
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [2 * DIM, DIM, DIM])
    assert [tuple(y.shape) for y in results] == [(0, BATCH, 6, DIM), (0, BATCH, 3, DIM), (0, BATCH, 3, DIM)]
    sum(y.sum() for y in results).backward()
    assert t.grad.shape == t.shape and qkv.grad.shape == qkv.shape


def compiles(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


def test_compile(device):
    freqs, t = make_freqs(device), torch.randn(16, BATCH, HEADS, DIM, device=device, requires_grad=True)
    qkv = torch.randn(16, BATCH, 3, 4 * DIM, device=device, requires_grad=True)
    calls = [
        (lambda t: (te.apply_rotary_pos_emb(rearrange(t, "last"), freqs) * 2,), t),
        (lambda qkv: te.apply_fused_qkv_rotary_pos_emb(rearrange(qkv, "first"), freqs, freqs, [2 * DIM, DIM, DIM]), qkv),
        (lambda qkv: te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs[:, :, :, :8], [2 * DIM, DIM, DIM]), qkv),
    ]
    for call, x in calls:
        eager, compiled = call(x), compiles(call)(x)
        upstreams = make_upstreams(eager, "plain")
        for y, right in zip(compiled, eager):
            assert y.is_contiguous() and torch.equal(y, right)
        assert torch.equal(*(torch.autograd.grad(ys, x, upstreams)[0] for ys in (compiled, eager)))


def make_table(max_seq_len, dim, base, interleaved, scale=1.0, offset=0):
    inv_freq = base ** (-torch.arange(0, dim, 2).double() / dim)
    angles = (torch.arange(max_seq_len).double()[:, None] + offset) * scale * inv_freq
    return torch.stack((angles, angles), -1 if interleaved else -2).flatten(1)[:, None, None]


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_position_embedding(interleaved):
    def check_table(module, expected, *arguments):
        table = module(*arguments)
        assert table.dtype == torch.float32 and table.is_contiguous()
        torch.testing.assert_close(table.double().cpu(), expected, rtol=1e-6, atol=1e-6)

    module = te.RotaryPositionEmbedding(32, interleaved=interleaved)
    check_table(module, make_table(40, 32, 1e4, interleaved), 40)
    check_table(module, make_table(40, 32, 1e4, interleaved, offset=7), 40, 7)
    with torch.autocast(module.inv_freq.device.type, dtype=torch.bfloat16):
        check_table(module, make_table(40, 32, 1e4, interleaved), 40)
    partial = te.RotaryPositionEmbedding(32, 0.5, rotary_base=500.0, interleaved=interleaved)
    check_table(partial, make_table(40, 16, 500.0, interleaved), 40)
    scaled = te.RotaryPositionEmbedding(32, 1.0, 4, 16, interleaved=interleaved)
    check_table(scaled, make_table(64, 32, 1e4, interleaved, 1 / 4), 64)
    check_table(scaled, make_table(80, 32, 1e4, interleaved, 16 / 80), 80)
    assert list(module.state_dict()) == ["inv_freq"]


def refused(argument, call, *arguments, **options):
    with pytest.raises(trope.Error) as caught:
        call(*arguments, **options)
    assert caught.value.argument == argument and argument in str(caught.value)


def test_refusals_of_one_tensor():
    freqs, t = make_freqs("cpu"), torch.randn(16, BATCH, HEADS, DIM)
    call = te.apply_rotary_pos_emb
    refused("tensor_format", call, t, freqs, "bhsd")
    refused("t", call, t[0], freqs)
    refused("t", call, t, freqs, "thd", cu_seqlens=make_cu_seqlens("cpu"))
    refused("freqs", call, t, freqs[:, 0])
    of_entries, starts = freqs.expand(-1, BATCH, -1, -1), torch.zeros(BATCH, dtype=torch.int32)
    refused("freqs", call, t, freqs.expand(-1, BATCH + 1, -1, -1))
    refused("freqs", call, t, of_entries[:15])
    refused("freqs", call, t, of_entries, start_positions=starts)
    refused("freqs", call, t[:, 0], of_entries, "thd", cu_seqlens=torch.tensor([0, 16], dtype=torch.int32))
    refused("freqs", call, t, make_freqs("cpu", columns=DIM + 2))
    refused("freqs", call, t, make_freqs("cpu", columns=7))
    refused("freqs", call, t, freqs[:15])
    refused("freqs", call, t, freqs[:31], cp_size=2)
    refused("cp_rank", call, t, freqs, cp_size=2, cp_rank=2)
    refused("cu_seqlens", call, t[:, 0], freqs, "thd")
    refused("start_positions", call, t, freqs, start_positions=torch.zeros(BATCH + 1, dtype=torch.int32))
    refused("start_positions", call, t, freqs, start_positions=torch.zeros(BATCH))
    refused("start_positions", call, t, freqs, start_positions=torch.tensor([0, 0, ROWS - 15], dtype=torch.int32))
    refused("t", call, t[:15], freqs, cp_size=2)
    refused("cu_seqlens", call, t[:, 0], freqs, "thd", cu_seqlens=torch.tensor([0, 6, 32], dtype=torch.int32), cp_size=2)
    refused("qkv_format", te.fused_rope_forward, t, freqs, None, NVTE_QKV_Format.NVTE_BHSD, False, None, 1, 0)
    refused("qkv_format", te.fused_rope_forward, t, freqs, None, 1, False, None, 1, 0)
    refused("input", te.fused_rope_forward, t[0], freqs, None, "sbhd", False, None, 1, 0)
    refused("output_grads", te.fused_rope_backward, t[0], freqs, None, "sbhd", False, None, 1, 0)


def test_refusals_of_qkv():
    freqs, split = make_freqs("cpu"), [2 * DIM, DIM, DIM]
    qkv = torch.randn(16, BATCH, 3, sum(split))
    call = te.apply_fused_qkv_rotary_pos_emb
    refused("qkv", call, qkv[0], freqs, freqs, split)
    refused("tensor_format", call, qkv, freqs, freqs, split, "bhsd")
    refused("qkv_split_arg_list", call, qkv, freqs, freqs, [2 * DIM, 2 * DIM])
    refused("qkv_split_arg_list", call, qkv, freqs, freqs, [2 * DIM + 1, DIM, DIM - 1])
    refused("qkv_split_arg_list", call, qkv, freqs, freqs, [2 * DIM, DIM, DIM + 2])
    refused("q_freqs", call, qkv, freqs[:15], freqs, split)
    refused("k_freqs", call, qkv, freqs, freqs[:15], split)
    refused("k_freqs", call, qkv, freqs, freqs[:, 0], split)
    refused("q_freqs", call, qkv, make_freqs("cpu", columns=DIM + 2), freqs, split)
    refused("cu_seqlens", call, qkv[:, 0], freqs, freqs, split, "thd")
    refused("cp_rank", call, qkv, freqs, freqs, split, cp_size=2, cp_rank=-1)
    q, k, v = call(qkv, freqs, freqs, split)
    refused("q_grad_out", te.fused_qkv_rope_backward, q[:, :, 1:], k, v, freqs, freqs, split, "sbhd", False, 1, 0)
    refused("v_grad_out", te.fused_qkv_rope_backward, q, k, v[:-1], freqs, freqs, split, "sbhd", False, 1, 0)
    refused("k_grad_out", te.fused_qkv_rope_backward, q, k[0], v, freqs, freqs, split, "sbhd", False, 1, 0)
