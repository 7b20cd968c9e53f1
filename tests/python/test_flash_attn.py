"""trope.flash_attn against the formulas that flash-attention documents, in float64; and against the real one, if there."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from trope import flash_attn as fa  # noqa: E402
from trope.torch import _launch  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
by_device = pytest.mark.parametrize("device", DEVICES)
by_pairing = pytest.mark.parametrize("interleaved", [False, True])


def rand(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).to(device)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.fixture
def launches(monkeypatch):
    """The calls of the library that a test makes."""
    calls, launch = [], _launch.launch
    monkeypatch.setattr(_launch, "launch", lambda *args: calls.append(args[2]) or launch(*args))
    return calls


def expected(x, cos, sin, interleaved, positions, conjugate=False):
    """x [tokens..., heads, headdim] rotated by row positions[tokens...] of the table, in float64."""
    x, half = x.double(), cos.shape[1]
    c, s = cos.double()[positions].unsqueeze(-2), sin.double()[positions].unsqueeze(-2)
    s = -s if conjugate else s
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    x1, x2 = (turning[..., ::2], turning[..., 1::2]) if interleaved else turning.chunk(2, -1)
    y1, y2 = x1 * c - x2 * s, x1 * s + x2 * c
    turned = torch.stack((y1, y2), -1).flatten(-2) if interleaved else torch.cat((y1, y2), -1)
    return torch.cat((turned, rest), -1)


def gradient(function, x, dy):
    """What autograd has for the reference."""
    x = x.detach().double().requires_grad_()
    return torch.autograd.grad(function(x), x, dy.double())[0]


def same(y, reference, dtype=None):
    """Whether y is the reference, rounded once to its dtype after fp32 (which cancels to a few units of 2^-24)."""
    dtype = dtype or y.dtype
    assert y.shape == reference.shape
    error = (y.detach().double() - reference).abs()
    slack = 2.0**-50 if dtype == torch.float64 else 2.0**-20
    return bool((error <= EPS[dtype] * reference.abs() * 1.001 + slack).all())


def positions_of(batch, seqlen, offsets, device):
    index = torch.arange(seqlen, device=device).expand(batch, seqlen)
    return index + (offsets[:, None] if isinstance(offsets, torch.Tensor) else offsets)


def rows_of(bounds, offsets=None):
    """The position of each token of packed sequences."""
    starts = offsets or [0] * (len(bounds) - 1)
    return torch.cat([torch.arange(b - a) + start for a, b, start in zip(bounds, bounds[1:], starts)])


# ---- apply_rotary_emb ----


@by_device
@by_pairing
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, "int32", "int64"])
@pytest.mark.parametrize("dtype, half", [(torch.float32, 8), (torch.bfloat16, 6), (torch.float16, 8), (torch.float64, 4)])
def test_forward_and_gradient(device, interleaved, inplace, offsets, dtype, half):
    x, dy = rand(2, 5, 3, 16, dtype=dtype, device=device), rand(2, 5, 3, 16, dtype=dtype, device=device)
    cos, sin = rand(12, half, dtype=dtype, device=device), rand(12, half, dtype=dtype, device=device)
    if isinstance(offsets, str):
        offsets = torch.tensor([7, 2], dtype=getattr(torch, offsets), device=device)
    rows = positions_of(2, 5, offsets, device)
    leaf = x.clone().requires_grad_()
    given = leaf * 1
    y = fa.apply_rotary_emb(given, cos, sin, interleaved, inplace, offsets)
    assert same(y, expected(x, cos, sin, interleaved, rows))
    assert torch.equal(given.detach(), y.detach() if inplace else x) and (y is given) == inplace
    kept = dy.clone()
    y.backward(dy)
    assert torch.equal(dy, kept)
    assert same(leaf.grad, gradient(lambda t: expected(t, cos, sin, interleaved, rows), x, dy))


@by_device
@pytest.mark.parametrize("table", [torch.float32, torch.float16, torch.bfloat16])
def test_table_of_another_dtype(device, table):
    """Which flash-attention refuses, and quack does not."""
    x, (cos, sin) = rand(1, 6, 2, 8, dtype=torch.bfloat16, device=device), rand(2, 6, 4, dtype=table, device=device)
    assert same(fa.apply_rotary_emb(x, cos, sin), expected(x, cos, sin, False, positions_of(1, 6, 0, device)))


@by_device
@by_pairing
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("offsets", [0, 2, [3, 9, 0, 1]])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_packed_sequences(device, interleaved, inplace, offsets, index):
    """With an empty one, and two tokens after the last, which stay as they are."""
    bounds = [0, 4, 4, 7, 11]
    x, dy, cos, sin = (rand(*shape, device=device) for shape in ((13, 3, 10), (13, 3, 10), (9, 4), (9, 4)))
    rows = rows_of(bounds, offsets if isinstance(offsets, list) else [offsets] * 4).to(device)
    given = torch.tensor(offsets, dtype=index, device=device) if isinstance(offsets, list) else offsets
    cu_seqlens = torch.tensor(bounds, dtype=index, device=device)

    def reference(t):
        return torch.cat((expected(t[:11], cos, sin, interleaved, rows), t[11:].double()))

    leaf = x.clone().requires_grad_()
    y = fa.apply_rotary_emb(leaf * 1, cos, sin, interleaved, inplace, given, cu_seqlens, max_seqlen=4)
    assert same(y, reference(x))
    y.backward(dy)
    assert same(leaf.grad, gradient(reference, x, dy))


@by_device
@by_pairing
def test_conjugate(device, interleaved):
    x, cos, sin = rand(2, 4, 3, 12, device=device), rand(6, 5, device=device), rand(6, 5, device=device)
    y = fa.apply_rotary(x, cos, sin, seqlen_offsets=2, interleaved=interleaved, conjugate=True)
    assert same(y, expected(x, cos, sin, interleaved, positions_of(2, 4, 2, device), conjugate=True))
    back = fa.apply_rotary(y.clone(), angles := torch.cos(sin), torch.sin(sin), interleaved=interleaved, inplace=True)
    assert same(back, expected(y, angles, torch.sin(sin), interleaved, positions_of(2, 4, 0, device)))
    fa.apply_rotary(back, angles, torch.sin(sin), interleaved=interleaved, inplace=True, conjugate=True)
    assert torch.allclose(back, y, atol=1e-6)


@by_device
def test_none_is_no_offset(device):
    """quack's default."""
    x, cos, sin = rand(1, 4, 2, 8, device=device), rand(4, 4, device=device), rand(4, 4, device=device)
    assert torch.equal(fa.apply_rotary_emb(x, cos, sin, seqlen_offsets=None), fa.apply_rotary_emb(x, cos, sin))


@by_device
@pytest.mark.parametrize("inplace", [False, True])
def test_expanded_gradient(device, inplace):
    """Of a sum: one element for all."""
    leaf, cos, sin = rand(2, 4, 3, 10, device=device).requires_grad_(), rand(5, 4, device=device), rand(5, 4, device=device)
    fa.apply_rotary_emb(leaf * 1, cos, sin, inplace=inplace).sum().backward()
    reference = gradient(lambda t: expected(t, cos, sin, False, positions_of(2, 4, 0, device)), leaf, torch.ones_like(leaf))
    assert same(leaf.grad, reference)


@by_device
@pytest.mark.parametrize("inplace", [False, True])
def test_strides(device, inplace):
    """Of sbhd memory, of a slice of more heads, and of elements that are not neighbours."""
    cos, sin = rand(5, 4, device=device), rand(5, 4, device=device)
    views = [
        rand(5, 2, 3, 8, device=device).transpose(0, 1),
        rand(2, 5, 9, 8, device=device)[:, :, 3:6],
        rand(2, 5, 8, 3, device=device).transpose(2, 3),
    ]
    for x in views:
        before, strides = x.clone(), x.stride()
        y = fa.apply_rotary_emb(x, cos, sin, inplace=inplace)
        assert same(y, expected(before, cos, sin, False, positions_of(2, 5, 0, device)))
        assert y.stride() == (strides if inplace else torch.empty_like(x).stride())
        assert (y is x) == inplace


@by_device
def test_tables_as_they_lie(device):
    """cos and sin of one tensor, of different strides, and expanded rows."""
    x, both = rand(1, 4, 2, 8, device=device), rand(4, 4, 2, device=device)
    rows = positions_of(1, 4, 0, device)
    cos, sin = both[..., 0], both[..., 1]
    assert same(fa.apply_rotary_emb(x, cos, sin), expected(x, cos, sin, False, rows))
    sin = sin.contiguous()
    assert same(fa.apply_rotary_emb(x, cos, sin), expected(x, cos, sin, False, rows))
    cos, sin = cos[:1].expand(4, 4), sin[:1].expand(4, 4)
    assert same(fa.apply_rotary_emb(x, cos, sin), expected(x, cos, sin, False, rows))


# ---- In place, and autograd ----


@by_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("view", [False, True])
def test_leaf_in_place(device, dtype, view):
    """As flash-attention's own tests have it: the data changes, and the gradient is that of what was given."""
    x, dy = rand(2, 4, 3, 8, dtype=dtype, device=device), rand(2, 4, 3, 8, dtype=dtype, device=device)
    cos, sin = rand(4, 4, dtype=dtype, device=device), rand(4, 4, dtype=dtype, device=device)
    leaf = x.clone().requires_grad_()
    y = fa.apply_rotary_emb(leaf.view(2, 4, 3, 8) if view else leaf, cos, sin, inplace=True)
    assert y.data_ptr() == leaf.data_ptr() and same(leaf, expected(x, cos, sin, False, positions_of(2, 4, 0, device)))
    y.backward(dy)
    assert same(leaf.grad, gradient(lambda t: expected(t, cos, sin, False, positions_of(2, 4, 0, device)), x, dy))


@by_device
def test_what_was_given_is_rotated_for_autograd(device):
    x, dy, cos, sin = (rand(*shape, device=device) for shape in ((2, 4, 3, 8), (2, 4, 3, 8), (4, 4), (4, 4)))
    leaf = x.clone().requires_grad_()
    given = leaf * 1
    fa.apply_rotary_emb(given, cos, sin, inplace=True)
    (given * 2).backward(dy)
    assert same(leaf.grad, gradient(lambda t: 2 * expected(t, cos, sin, False, positions_of(2, 4, 0, device)), x, dy))


@by_device
def test_gradient_that_others_share_is_not_written_over(device):
    """A sum gives the same gradient to both of its terms, which flash-attention's backward in place would rotate for both."""
    cos, sin, d = rand(4, 4, device=device), rand(4, 4, device=device), rand(2, 4, 3, 8, device=device)
    x, z = (rand(2, 4, 3, 8, device=device).requires_grad_() for _ in range(2))
    scaled = z * 2  # made first, so that its backward is last
    (fa.apply_rotary_emb(x * 1, cos, sin, inplace=True) + scaled).backward(d.clone())
    assert torch.equal(z.grad, 2 * d)
    assert same(x.grad, gradient(lambda t: expected(t, cos, sin, False, positions_of(2, 4, 0, device)), x, d))


@by_device
@pytest.mark.parametrize("is_leaf", [False, True])
def test_what_autograd_has_saved_is_not_lost(device, is_leaf):
    cos, sin, leaf = rand(4, 4, device=device), rand(4, 4, device=device), rand(1, 4, 2, 8, device=device).requires_grad_()
    given = leaf if is_leaf else leaf * 1
    square = given * given
    fa.apply_rotary_emb(given, cos, sin, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@by_device
@pytest.mark.parametrize("way", ["unbind", "view", "chunk"])
def test_views_in_place(device, way):
    """Two of one projection; autograd would refuse those of unbind and chunk."""
    cos, sin, base = rand(4, 4, device=device), rand(4, 4, device=device), rand(2, 4, 3, 2, 8, device=device)
    leaf = base.clone().requires_grad_()
    given = leaf * 1
    if way == "chunk":
        q, k, v = (t.squeeze(2) for t in given.chunk(3, 2))
    else:
        q, k, v = given.unbind(2) if way == "unbind" else (given[:, :, i] for i in range(3))
    dy = [rand(2, 4, 2, 8, device=device) for _ in range(3)]
    rotated = [fa.apply_rotary_emb(t, cos, sin, inplace=True) for t in (q, k)]
    rows = positions_of(2, 4, 0, device)
    references = [expected(base[:, :, i], cos, sin, False, rows) for i in range(2)]
    assert all(same(y, reference) for y, reference in zip(rotated, references))
    assert same(given.detach()[:, :, 1], references[1])
    sum((y * d).sum() for y, d in zip((*rotated, v), dy)).backward()
    for i in range(2):
        assert same(leaf.grad[:, :, i], gradient(lambda t: expected(t, cos, sin, False, rows), base[:, :, i], dy[i]))
    assert torch.equal(leaf.grad[:, :, 2], dy[2])


@by_device
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_place_without_autograd(device, mode):
    cos, sin, x = rand(4, 4, device=device), rand(4, 4, device=device), rand(1, 4, 2, 8, device=device)
    leaf = x.clone().requires_grad_()
    with mode():
        y = fa.apply_rotary_emb(leaf, cos, sin, inplace=True)
    assert y is leaf and same(leaf, expected(x, cos, sin, False, positions_of(1, 4, 0, device)))


def test_second_derivatives():
    cos, sin = rand(5, 3, dtype=torch.float64), rand(5, 3, dtype=torch.float64)
    x, qkv = (rand(*shape, dtype=torch.float64).requires_grad_() for shape in ((1, 3, 2, 8), (1, 3, 3, 2, 8)))
    for function, given in (
        (lambda t: fa.apply_rotary_emb(t * 1, cos, sin, inplace=True, seqlen_offsets=1), x),
        (lambda t: fa.apply_rotary_emb_qkv_(t * 1, cos, sin), qkv),
        (lambda t: fa.apply_rotary_emb_qkv_(t * 1, cos, sin, sin, cos, interleaved=True), qkv),
    ):
        assert torch.autograd.gradcheck(function, given)
        assert torch.autograd.gradgradcheck(lambda t: function(t) ** 2, given)


# ---- qkv and kv ----


def rotate_parts(t, heads, tables, interleaved, rows):
    """t [tokens..., all heads, headdim]: q and k by their tables, v as it is."""
    q, k, v = t.double().split(heads, -2)
    return torch.cat([*(expected(x, *table, interleaved, rows) for x, table in zip((q, k), tables)), v], -2)


def check_qkv(
    given_shape, heads, call, reference_shape, tables, rows, interleaved, device, dtype, leaf=False, expand=False
):  # fmt: skip
    """In place and its gradient, where `call` gets qkv and the reference a view of it with all heads in one dimension."""
    qkv, d = (rand(*given_shape, dtype=dtype, device=device) for _ in range(2))
    source = qkv.clone().requires_grad_()
    given = source if leaf else source * 1
    y = call(given)

    def reference(t):
        return rotate_parts(t.reshape(reference_shape), heads, tables, interleaved, rows).reshape(given_shape)

    assert y.data_ptr() == given.data_ptr() and (y is given) == (not leaf)
    assert same(given, reference(qkv))
    if expand:
        y.sum().backward()
        d = torch.ones_like(d)
    else:
        kept = d.clone()
        y.backward(d)
        assert torch.equal(d, kept)
    assert same(source.grad, gradient(reference, qkv, d))


@by_device
@by_pairing
@pytest.mark.parametrize("own_k", [False, True])
@pytest.mark.parametrize("heads_q", [None, 5])
@pytest.mark.parametrize("offsets", [0, 2, "tensor"])
@pytest.mark.parametrize("leaf, expand, dtype", [(False, False, torch.bfloat16), (True, True, torch.float32)])
def test_qkv(device, interleaved, own_k, heads_q, offsets, leaf, expand, dtype):
    tables = [[rand(9, 3, dtype=dtype, device=device) for _ in range(2)] for _ in range(2 if own_k else 1)]
    offsets = torch.tensor([5, 1], device=device) if offsets == "tensor" else offsets
    rows = positions_of(2, 4, offsets, device)
    heads = [5, 2, 2] if heads_q else [3, 3, 3]
    shape = (2, 4, 9, 8) if heads_q else (2, 4, 3, 3, 8)
    more = dict(zip(("cos_k", "sin_k"), tables[1])) if own_k else {}
    more.update(interleaved=interleaved, seqlen_offsets=offsets, num_heads_q=heads_q)
    check_qkv(
        shape, heads, lambda t: fa.apply_rotary_emb_qkv_(t, *tables[0], **more), (2, 4, 9, 8), [tables[0], tables[-1]],
        rows, interleaved, device, dtype, leaf, expand,
    )  # fmt: skip


@by_device
@pytest.mark.parametrize("way", ["three", "heads", "headdim", "merged heads", "merged three", "merged headdim"])
@pytest.mark.parametrize("own_k", [False, True])
def test_packed_qkv(device, way, own_k):
    """quack's keywords."""
    bounds, tokens, heads = [0, 3, 3, 8], 8, [2, 1, 1] if "three" not in way else [2, 2, 2]
    front = (2, 4) if "merged" in way else (tokens,)
    back = {"three": (3, 2, 8), "heads": (4, 8), "headdim": (32,)}[way.rpartition(" ")[2]]
    tables = [[rand(8, 4, device=device) for _ in range(2)] for _ in range(2 if own_k else 1)]
    more = dict(zip(("cos_k", "sin_k"), tables[1])) if own_k else {}
    if "three" not in way:
        more["num_heads_q"] = 2
    if "headdim" in way:
        more["headdim"] = 8
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=device)
    check_qkv(
        (*front, *back), heads,
        lambda t: fa.apply_rotary_emb_qkv_(t, *tables[0], cu_seqlens=cu_seqlens, max_seqlen=5, **more),
        (tokens, sum(heads), 8), [tables[0], tables[-1]], rows_of(bounds).to(device), False, device, torch.float32,
    )  # fmt: skip


@by_device
def test_qkv_without_sequences_by_headdim(device):
    tables = [rand(4, 4, device=device), rand(4, 4, device=device)]
    check_qkv(
        (2, 4, 32), [2, 1, 1], lambda t: fa.apply_rotary_emb_qkv_(t, *tables, num_heads_q=2, headdim=8), (2, 4, 4, 8),
        [tables, tables], positions_of(2, 4, 0, device), False, device, torch.float32,
    )  # fmt: skip


@by_device
@pytest.mark.parametrize("own_k, number", [(False, 1), (True, 2), ("the same", 1)])
def test_number_of_launches(device, launches, own_k, number):
    cos, sin, leaf = (rand(*shape, device=device) for shape in ((4, 4), (4, 4), (2, 4, 3, 2, 8)))
    leaf.requires_grad_()
    tables = (cos, sin) if own_k == "the same" else (cos.clone(), sin.clone()) if own_k else ()
    y = fa.apply_rotary_emb_qkv_(leaf * 1, cos, sin, *tables)
    assert len(launches) == number
    y.sum().backward()
    assert len(launches) == 2 * number


@by_device
def test_qkv_of_other_strides(device):
    """sbhd memory, and more columns than qkv has."""
    cos, sin = rand(4, 4, device=device), rand(4, 4, device=device)
    rows = positions_of(2, 4, 0, device)
    for x in (rand(4, 2, 3, 2, 8, device=device).transpose(0, 1), rand(2, 4, 3, 2, 12, device=device)[..., :8]):
        before, strides = x.clone(), x.stride()
        assert fa.apply_rotary_emb_qkv_(x, cos, sin) is x and x.stride() == strides
        reference = rotate_parts(before.reshape(2, 4, 6, 8), [2, 2, 2], [(cos, sin)] * 2, False, rows)
        assert same(x.reshape(2, 4, 6, 8), reference)


@by_device
@by_pairing
@pytest.mark.parametrize("expand", [False, True])
def test_kv(device, interleaved, expand):
    tables, offsets = [rand(9, 3, device=device), rand(9, 3, device=device)], torch.tensor([5, 0], device=device)
    x, d, rows = rand(2, 4, 2, 3, 8, device=device), rand(2, 4, 2, 3, 8, device=device), positions_of(2, 4, offsets, device)

    def reference(t):
        return torch.stack((expected(t[:, :, 0], *tables, interleaved, rows), t[:, :, 1].double()), 2)

    leaf = x.clone().requires_grad_()
    given = leaf * 1
    y = fa.apply_rotary_emb_kv_(given, *tables, interleaved, offsets)
    assert y is given and same(y, reference(x))
    y.sum().backward() if expand else y.backward(d)
    assert same(leaf.grad, gradient(reference, x, torch.ones_like(d) if expand else d))


# ---- apply_rotary_emb_torch ----


@by_device
@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batched", [False, True])
def test_torch_has_the_same_bits(device, interleaved, dtype, batched):
    x = rand(2, 5, 3, 12, dtype=dtype, device=device)
    cos, sin = (rand(*((2, 5, 4) if batched else (5, 4)), dtype=dtype, device=device) for _ in range(2))

    def wide(table):
        return (table.repeat_interleave(2, -1) if interleaved else torch.cat((table, table), -1)).unsqueeze(-2)

    head, tail = x[..., :8], x[..., 8:]
    x1, x2 = (head[..., ::2], head[..., 1::2]) if interleaved else head.chunk(2, -1)
    turned = torch.stack((-x2, x1), -1).flatten(-2) if interleaved else torch.cat((-x2, x1), -1)
    reference = torch.cat((head * wide(cos) + turned * wide(sin), tail), -1)
    assert torch.equal(fa.apply_rotary_emb_torch(x, cos, sin, interleaved), reference)


# ---- The names of autograd Functions, and rotate_half ----


@by_device
def test_functions_have_the_order_of_flash_attention(device):
    cos, sin, cos_k, sin_k = (rand(9, 4, device=device) for _ in range(4))
    x, qkv, kv = (rand(*shape, device=device) for shape in ((2, 4, 3, 8), (2, 4, 7, 8), (2, 4, 2, 3, 8)))
    rows, rotated = positions_of(2, 4, 3, device), x.clone()
    y = fa.ApplyRotaryEmb.apply(rotated, cos, sin, True, True, 3, None, None)
    assert y is rotated and same(y, expected(x, cos, sin, True, rows))
    y = fa.ApplyRotaryEmbQKV_.apply(qkv.clone(), cos, sin, cos_k, sin_k, True, 3, 3)
    assert same(y, rotate_parts(qkv, [3, 2, 2], [(cos, sin), (cos_k, sin_k)], True, rows))
    y = fa.ApplyRotaryEmbKV_.apply(kv.clone(), cos, sin, True, 3)
    assert same(y[:, :, 0], expected(kv[:, :, 0], cos, sin, True, rows)) and torch.equal(y[:, :, 1], kv[:, :, 1])


@by_device
@by_pairing
def test_rotate_half(device, interleaved):
    """A rotation is x cos + rotate_half(x) sin; with cos 0 and sin 1 it is rotate_half alone."""
    x, d = rand(2, 4, 3, 8, device=device).requires_grad_(), rand(2, 4, 3, 8, device=device)
    zeros, ones = torch.zeros(4, 4, device=device), torch.ones(4, 4, device=device)
    y = fa.rotate_half(x, interleaved)
    assert same(y, expected(x.detach(), zeros, ones, interleaved, positions_of(2, 4, 0, device)))
    y.backward(d)
    assert torch.equal(x.grad, -fa.rotate_half(d, interleaved))


# ---- Refusals ----


def make(*shape, **options):
    return torch.zeros(*shape, **options)


def offset_by(offsets):
    return lambda c, s: fa.apply_rotary_emb(make(*X), c, s, seqlen_offsets=offsets)


def packed_by(bounds, **options):
    return lambda c, s: fa.apply_rotary_emb(make(8, 3, 8), c, s, cu_seqlens=torch.tensor(bounds), **options)


X, QKV, TABLE = (2, 4, 3, 8), (2, 4, 3, 2, 8), (6, 4)
REFUSALS = {
    "rank of x": (lambda c, s: fa.apply_rotary_emb(make(4, 3, 8), c, s), "x"),
    "rank of packed x": (lambda c, s: fa.apply_rotary_emb(make(*X), c, s, cu_seqlens=torch.tensor([0, 8])), "x"),
    "rank of cos": (lambda c, s: fa.apply_rotary_emb(make(*X), c[None], s[None]), "cos"),
    "shape of sin": (lambda c, s: fa.apply_rotary_emb(make(*X), c, s[:5]), "sin"),
    "dtype of sin": (lambda c, s: fa.apply_rotary_emb(make(*X), c, s.half()), "sin"),
    "width": (lambda c, s: fa.apply_rotary_emb(make(2, 4, 3, 6), c, s), "cos"),
    "f64 tables": (lambda c, s: fa.apply_rotary_emb(make(*X), c.double(), s.double()), "cos"),
    "gradient of cos": (lambda c, s: fa.apply_rotary_emb(make(*X), c.requires_grad_(), s), "cos"),
    "gradient of sin in place": (lambda c, s: fa.apply_rotary_emb(make(*X), c, s.requires_grad_(), inplace=True), "sin"),
    "gradient of cos_k": (lambda c, s: fa.apply_rotary_emb_qkv_(make(*QKV), c, s, c.clone().requires_grad_(), s), "cos_k"),
    "short table": (lambda c, s: fa.apply_rotary_emb(make(*X), c[:3], s[:3]), "cos"),
    "short table for an offset": (offset_by(3), "seqlen_offsets"),
    "short table for max_seqlen": (packed_by([0, 8], max_seqlen=8), "cos"),
    "negative offset": (offset_by(-1), "seqlen_offsets"),
    "size of offsets": (offset_by(torch.tensor([0])), "seqlen_offsets"),
    "rank of offsets": (offset_by(torch.tensor(1)), "seqlen_offsets"),
    "dtype of offsets": (offset_by(torch.zeros(2)), "seqlen_offsets"),
    "offset out of range": (offset_by(torch.tensor([0, 3])), "seqlen_offsets"),
    "rank of cu_seqlens": (packed_by([[0, 8]]), "cu_seqlens"),
    "decreasing cu_seqlens": (packed_by([0, 4, 2]), "cu_seqlens"),
    "no num_heads_q": (lambda c, s: fa.apply_rotary_emb_qkv_(make(2, 4, 9, 8), c, s), "qkv"),
    "num_heads_q": (lambda c, s: fa.apply_rotary_emb_qkv_(make(2, 4, 9, 8), c, s, num_heads_q=4), "num_heads_q"),
    "no heads of k": (lambda c, s: fa.apply_rotary_emb_qkv_(make(2, 4, 9, 8), c, s, num_heads_q=9), "num_heads_q"),
    "two in qkv": (lambda c, s: fa.apply_rotary_emb_qkv_(make(2, 4, 2, 3, 8), c, s), "qkv"),
    "three-dimensional qkv": (lambda c, s: fa.apply_rotary_emb_qkv_(make(4, 9, 8), c, s, num_heads_q=3), "qkv"),
    "headdim": (lambda c, s: fa.apply_rotary_emb_qkv_(make(2, 4, 36), c, s, num_heads_q=2, headdim=8), "headdim"),
    "quack's order": (lambda c, s: fa.apply_rotary_emb_qkv_(make(*QKV), c, s, True), "cos_k"),
    "shape of sin_k": (lambda c, s: fa.apply_rotary_emb_qkv_(make(*QKV), c, s, c, s[:, :3]), "sin_k"),
    "short cos_k": (lambda c, s: fa.apply_rotary_emb_qkv_(make(*QKV), c, s, c[:2], s[:2]), "cos_k"),
    "no one stream": (
        lambda c, s: fa.apply_rotary_emb_qkv_(make(4, 2, 32).transpose(0, 1), c, s, num_heads_q=2, headdim=8,
                                              cu_seqlens=torch.tensor([0, 4, 8])), "qkv"),
    "rank of kv": (lambda c, s: fa.apply_rotary_emb_kv_(make(*X), c, s), "kv"),
    "three in kv": (lambda c, s: fa.apply_rotary_emb_kv_(make(*QKV), c, s), "kv"),
    "rows for torch": (lambda c, s: fa.apply_rotary_emb_torch(make(*X), c, s), "cos"),
    "dtype for torch": (lambda c, s: fa.apply_rotary_emb_torch(make(*X).bfloat16(), c[:4], s[:4]), "cos"),
    "scale_base": (lambda c, s: fa.RotaryEmbedding(8, scale_base=0), "scale_base"),
    "odd headdim": (lambda c, s: fa.rotate_half(make(2, 5)), "x"),
    "no headdim": (lambda c, s: fa.rotate_half(torch.tensor(1.0)), "x"),
    "integers": (lambda c, s: fa.rotate_half(torch.ones(2, 4, dtype=torch.int32)), "x"),
    "older order": (lambda c, s: fa.RotaryEmbedding(8, 10000.0, False, None, True), "device"),
    "no max_seqlen": (lambda c, s: fa.RotaryEmbedding(8)(make(*QKV), seqlen_offset=torch.tensor([0, 1])), "max_seqlen"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, argument = REFUSALS[name]
    with pytest.raises(trope.Error) as caught:
        call(rand(*TABLE), rand(*TABLE))
    assert caught.value.argument == argument, str(caught.value)


def test_nothing_is_written_by_a_refused_call():
    qkv, cos, sin = rand(*QKV), rand(*TABLE), rand(*TABLE)
    kept = qkv.clone()
    for offsets in (3, torch.tensor([0, 3])):
        with pytest.raises(trope.Error):
            fa.apply_rotary_emb_qkv_(qkv, cos, sin, seqlen_offsets=offsets)
    assert torch.equal(qkv, kept)


@pytest.mark.skipif("cuda" not in DEVICES, reason="positions that the host cannot see are on a GPU")
def test_beyond_the_table_is_nan():
    x, cos, sin = rand(2, 4, 3, 10, device="cuda"), rand(6, 4, device="cuda"), rand(6, 4, device="cuda")
    y = fa.apply_rotary_emb(x, cos, sin, seqlen_offsets=torch.tensor([0, 3], device="cuda"))
    bad = torch.isnan(y)
    assert bad[1, 3, :, :8].all() and int(bad.sum()) == 3 * 8 and torch.equal(y[..., 8:], x[..., 8:])


# ---- The real thing ----


@pytest.fixture
def theirs():
    if "cuda" not in DEVICES:
        pytest.skip("flash-attention's kernels need a GPU")
    rotary = pytest.importorskip("flash_attn.layers.rotary")
    return rotary


def close(y, z):
    """Equal, or apart by a rounding: fp32 sums of theirs may be fused otherwise."""
    eps = EPS[y.dtype]
    return bool(((y.double() - z.double()).abs() <= 2 * eps * z.double().abs() + 2.0**-20).all())


@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inplace", [False, True])
def test_against_theirs(theirs, interleaved, dtype, inplace):
    x, dy = rand(2, 37, 3, 64, dtype=dtype, device="cuda"), rand(2, 37, 3, 64, dtype=dtype, device="cuda")
    cos, sin = rand(80, 16, dtype=dtype, device="cuda"), rand(80, 16, dtype=dtype, device="cuda")
    offsets, results = torch.tensor([11, 40], device="cuda"), []
    for module in (fa, theirs):
        leaf = x.clone().requires_grad_()
        y = module.apply_rotary_emb(leaf, cos, sin, interleaved, inplace, offsets)
        y.backward(dy.clone())
        results.append((y.detach(), leaf.grad))
    assert close(results[0][0], results[1][0]) and close(results[0][1], results[1][1])


@by_pairing
def test_packed_against_theirs(theirs, interleaved):
    x, cos, sin = (rand(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((50, 3, 64), (30, 32), (30, 32)))
    cu_seqlens = torch.tensor([0, 20, 20, 50], dtype=torch.int32, device="cuda")
    arguments = (cos, sin, interleaved, False, 0, cu_seqlens, 30)
    assert close(fa.apply_rotary_emb(x, *arguments), theirs.apply_rotary_emb(x, *arguments))


def test_modules_against_theirs(theirs):
    for heads, more in (((3, 4), {}), ((8,), {"num_heads_q": 4})):
        qkv, results = rand(2, 37, *heads, 64, dtype=torch.bfloat16, device="cuda"), []
        for module in (fa, theirs):
            leaf = qkv.clone().requires_grad_()
            y = module.RotaryEmbedding(32, device="cuda")(leaf, seqlen_offset=5, **more)
            y.backward(qkv.flip(1).contiguous())
            results.append((y.detach(), leaf.grad))
        assert close(results[0][0], results[1][0]) and close(results[0][1], results[1][1])
