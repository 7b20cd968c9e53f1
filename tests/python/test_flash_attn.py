"""trope.flash_attn compared in float64 with the formulas that flash-attention documents. test_theirs.py compares it with
flash-attention itself. test_dropins.py tests what all drop-in modules have in common."""

import pytest

torch = pytest.importorskip("torch")

from checks import DEVICES, assert_rounded, check, device, random  # noqa: E402, F401 (device is a fixture)
from reference import of_table, packed_positions, rotate  # noqa: E402
from refusals import refused  # noqa: E402
from trope import flash_attn as fa  # noqa: E402

by_pairing = pytest.mark.parametrize("interleaved", [False, True])


def make_tables(*shape, **options):
    return random(*shape, **options), random(*shape, **options)


def formula(x, cos, sin, rows, interleaved=False, conjugate=False):
    """x [tokens..., heads, headdim] rotated by row rows[tokens...] of the table, in float64."""
    coefficients = of_table(cos[rows].double(), sin[rows].double(), "pair")
    return rotate(x.double(), coefficients, "interleaved" if interleaved else "half", inverse=conjugate)


def formula_of_heads(t, heads, tables, rows, interleaved=False):
    """Rotates q and k of t [tokens..., all heads, headdim] by their tables, and leaves v unchanged."""
    q, k, v = t.split(heads, -2)
    return torch.cat([*(formula(x, *table, rows, interleaved) for x, table in zip((q, k), tables)), v], -2)


def rows_of(batch, seqlen, offsets, device):
    index = torch.arange(seqlen, device=device).expand(batch, seqlen)
    return index + (offsets[:, None] if torch.is_tensor(offsets) else offsets)


def rows_of_packed(bounds, offsets, device):
    return torch.from_numpy(packed_positions(bounds[-1], bounds, starts=offsets)[0]).to(device)


# ---- apply_rotary_emb ----


@by_pairing
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("offsets", [0, 3, "int32", "int64"])
@pytest.mark.parametrize("dtype, half", [(torch.float32, 8), (torch.bfloat16, 6), (torch.float16, 8), (torch.float64, 4)])
def test_forward_and_gradient(device, interleaved, inplace, offsets, dtype, half):
    x, tables = random(2, 5, 3, 16, dtype=dtype, device=device), make_tables(12, half, dtype=dtype, device=device)
    if isinstance(offsets, str):
        offsets = torch.tensor([7, 2], dtype=getattr(torch, offsets), device=device)
    rows = rows_of(2, 5, offsets, device)
    check(
        lambda x: fa.apply_rotary_emb(x, *tables, interleaved, inplace, offsets),
        x,
        lambda x: formula(x, *tables, rows, interleaved),
        in_place=inplace,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_table_of_another_dtype(device, dtype):
    """flash-attention refuses such tables. quack accepts them."""
    x, tables = random(1, 6, 2, 8, dtype=torch.bfloat16, device=device), make_tables(6, 4, dtype=dtype, device=device)
    assert_rounded(fa.apply_rotary_emb(x, *tables), formula(x, *tables, torch.arange(6, device=device)))


@by_pairing
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("offsets", [0, 2, [3, 9, 0, 1]])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_packed_sequences(device, interleaved, inplace, offsets, index):
    """One sequence is empty. Two tokens after the last sequence stay unchanged."""
    bounds, tables = [0, 4, 4, 7, 11], make_tables(9, 4, device=device)
    rows = rows_of_packed(bounds, offsets if isinstance(offsets, list) else [offsets] * 4, device)
    given = torch.tensor(offsets, dtype=index, device=device) if isinstance(offsets, list) else offsets
    cu_seqlens = torch.tensor(bounds, dtype=index, device=device)
    check(
        lambda x: fa.apply_rotary_emb(x, *tables, interleaved, inplace, given, cu_seqlens, max_seqlen=4),
        random(13, 3, 10, device=device),
        lambda x: torch.cat((formula(x[:11], *tables, rows, interleaved), x[11:])),
        in_place=inplace,
    )


@by_pairing
def test_conjugate(device, interleaved):
    x, tables, rows = random(2, 4, 3, 12, device=device), make_tables(6, 5, device=device), rows_of(2, 4, 2, device)
    words = dict(seqlen_offsets=2, interleaved=interleaved)
    y = fa.apply_rotary(x, *tables, conjugate=True, **words)
    assert_rounded(y, formula(x, *tables, rows, interleaved, conjugate=True))
    angles = tables[0].cos(), tables[0].sin()
    back = fa.apply_rotary(y.clone(), *angles, inplace=True, **words)
    assert_rounded(back, formula(y, *angles, rows, interleaved))
    fa.apply_rotary(back, *angles, inplace=True, conjugate=True, **words)
    assert torch.allclose(back, y, atol=1e-6)


def test_seqlen_offsets_of_none_are_zero(device):
    """None is quack's default."""
    x, tables = random(1, 4, 2, 8, device=device), make_tables(4, 4, device=device)
    assert torch.equal(fa.apply_rotary_emb(x, *tables, seqlen_offsets=None), fa.apply_rotary_emb(x, *tables))


def test_tables_with_any_strides(device):
    """cos and sin are slices of one tensor, have different strides, or have expanded rows."""
    x, both, rows = random(1, 4, 2, 8, device=device), random(4, 4, 2, device=device), torch.arange(4, device=device)
    cos, sin = both.unbind(-1)
    for tables in ((cos, sin), (cos, sin.contiguous()), (cos[:1].expand(4, 4), sin[:1].expand(4, 4))):
        assert_rounded(fa.apply_rotary_emb(x, *tables), formula(x, *tables, rows))


# ---- In place, and autograd ----


@pytest.fixture
def case(device):
    """An in-place rotation of tensors with 4 tokens, and its formula."""
    return InPlace(device)


class InPlace:
    def __init__(self, device):
        self.device, self.tables = device, make_tables(4, 4, device=device)
        self.x = random(2, 4, 3, 8, device=device)

    def rotate(self, t):
        return fa.apply_rotary_emb(t, *self.tables, inplace=True)

    def rotate_qkv(self, t):
        return fa.apply_rotary_emb_qkv_(t, *self.tables)

    def formula(self, t):
        return formula(t, *self.tables, torch.arange(4, device=self.device))

    def check_gradient(self, leaf, dy, formula):
        """Checks the gradient of `leaf`, which had the value self.x, for the upstream gradient dy."""
        exact = self.x.double().requires_grad_()
        assert_rounded(leaf.grad, torch.autograd.grad(formula(exact), exact, dy.double())[0])


def test_in_place_with_any_strides(case, device):
    """Tensors in sbhd memory, slices of tensors with more heads or columns, and elements that are not adjacent."""
    for x in (
        random(4, 2, 3, 8, device=device).transpose(0, 1),
        random(2, 4, 9, 8, device=device)[:, :, 3:6],
        random(2, 4, 8, 3, device=device).transpose(2, 3),
    ):
        before, strides = x.clone(), x.stride()
        assert case.rotate(x) is x and x.stride() == strides
        assert_rounded(x, case.formula(before))
    for x in (random(4, 2, 3, 2, 8, device=device).transpose(0, 1), random(2, 4, 3, 2, 12, device=device)[..., :8]):
        before, strides = x.flatten(2, 3).clone(), x.stride()
        assert case.rotate_qkv(x) is x and x.stride() == strides
        rotated = formula_of_heads(before, [2, 2, 2], [case.tables] * 2, torch.arange(4, device=device))
        assert_rounded(x.flatten(2, 3), rotated)


@pytest.mark.parametrize("view", [False, True])
def test_a_leaf_in_place(case, view):
    """As in flash-attention's own tests, the data changes, and the gradient is taken with respect to the original value."""
    leaf, dy = case.x.clone().requires_grad_(), torch.randn_like(case.x)
    y = case.rotate(leaf.view(2, 4, 3, 8) if view else leaf)
    assert y.data_ptr() == leaf.data_ptr()
    assert_rounded(leaf, case.formula(case.x))
    y.backward(dy)
    case.check_gradient(leaf, dy, case.formula)


def test_the_gradient_of_a_tensor_includes_its_rotation_in_place(case):
    leaf, dy = case.x.clone().requires_grad_(), torch.randn_like(case.x)
    given = leaf * 1
    assert case.rotate(given) is given
    (given * 2).backward(dy)
    case.check_gradient(leaf, dy, lambda t: 2 * case.formula(t))


def test_a_shared_upstream_gradient_is_not_overwritten(case):
    """A sum passes the same gradient to both of its terms. flash-attention's in-place backward would rotate it for both."""
    leaf, z, dy = case.x.clone().requires_grad_(), torch.randn_like(case.x).requires_grad_(), torch.randn_like(case.x)
    scaled = z * 2  # created first, so that its backward runs last
    (case.rotate(leaf * 1) + scaled).backward(dy.clone())
    assert torch.equal(z.grad, 2 * dy)
    case.check_gradient(leaf, dy, case.formula)


@pytest.mark.parametrize("is_leaf", [False, True])
def test_backward_refuses_a_saved_tensor_that_was_rotated(case, is_leaf):
    leaf = case.x.requires_grad_()
    given = leaf if is_leaf else leaf * 1
    square = given * given
    case.rotate(given)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@pytest.mark.parametrize("way", ["unbind", "view", "chunk"])
def test_views_in_place(case, device, way):
    """Two views of one projection are rotated. Autograd would refuse PyTorch's own in-place operations on views that unbind
    and chunk return."""
    split = {
        "unbind": lambda t: t.unbind(2),
        "view": lambda t: [t[:, :, i] for i in range(3)],
        "chunk": lambda t: [part.squeeze(2) for part in t.chunk(3, 2)],
    }[way]

    def rotate_two(t):
        q, k, v = split(t)
        results = case.rotate(q), case.rotate(k), v
        assert_rounded(t[:, :, 1], results[1].detach().double())
        return results

    def formula_of_two(t):
        q, k, v = t.unbind(2)
        return case.formula(q), case.formula(k), v

    check(lambda t: rotate_two(t * 1), random(2, 4, 3, 2, 8, device=device), formula_of_two)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_place_without_autograd(case, mode):
    leaf = case.x.clone().requires_grad_()
    with mode():
        y = case.rotate(leaf)
    assert y is leaf
    assert_rounded(leaf, case.formula(case.x))


# ---- qkv and kv ----


def check_qkv(shape, heads, call, tables, rows, interleaved=False, dtype=torch.float32):
    """Checks an in-place call and its gradient, with an intermediate qkv and with a leaf. The formula gets a view with all
    heads in one dimension."""
    qkv = random(*shape, dtype=dtype, device=rows.device)

    def reference(t):
        flat = t.reshape(*rows.shape, sum(heads), 8)
        return formula_of_heads(flat, heads, [tables[:2], tables[-2:]], rows, interleaved).reshape(shape)

    check(call, qkv, reference, in_place=True)
    leaf = qkv.clone().requires_grad_()
    y = call(leaf)
    assert y.data_ptr() == leaf.data_ptr()
    y.sum().backward()
    exact = qkv.double().requires_grad_()
    expected = reference(exact)
    assert_rounded(leaf, expected)
    assert_rounded(leaf.grad, torch.autograd.grad(expected.sum(), exact)[0])


def make_qkv_tables(own_k, rows, pairs, **options):
    """The tables in the order of the arguments: cos and sin of q, and then of k, if it has its own."""
    return make_tables(rows, pairs, **options) + (make_tables(rows, pairs, **options) if own_k else ())


@by_pairing
@pytest.mark.parametrize("own_k", [False, True])
@pytest.mark.parametrize("heads_q", [None, 5])
@pytest.mark.parametrize("offsets", [0, 2, "tensor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_qkv(device, interleaved, own_k, heads_q, offsets, dtype):
    tables = make_qkv_tables(own_k, 9, 3, dtype=dtype, device=device)
    offsets = torch.tensor([5, 1], device=device) if offsets == "tensor" else offsets
    words = dict(interleaved=interleaved, seqlen_offsets=offsets, num_heads_q=heads_q)
    shape, heads = ((2, 4, 9, 8), [5, 2, 2]) if heads_q else ((2, 4, 3, 3, 8), [3, 3, 3])
    rows = rows_of(2, 4, offsets, device)
    check_qkv(shape, heads, lambda t: fa.apply_rotary_emb_qkv_(t, *tables, **words), tables, rows, interleaved, dtype)


@pytest.mark.parametrize("way", ["three", "heads", "headdim", "merged heads", "merged three", "merged headdim"])
@pytest.mark.parametrize("own_k", [False, True])
def test_packed_qkv(device, way, own_k):
    """The keywords cu_seqlens, max_seqlen and headdim are quack's."""
    bounds, tables = [0, 3, 3, 8], make_qkv_tables(own_k, 8, 4, device=device)
    words = dict(cu_seqlens=torch.tensor(bounds, dtype=torch.int32, device=device), max_seqlen=5)
    words.update({} if "three" in way else dict(num_heads_q=2), **dict(headdim=8) if "headdim" in way else {})
    shape = ((2, 4) if "merged" in way else (8,)) + {"three": (3, 2, 8), "heads": (4, 8), "headdim": (32,)}[way.split()[-1]]
    heads, rows = [2, 2, 2] if "three" in way else [2, 1, 1], rows_of_packed(bounds, [0, 0, 0], device)
    check_qkv(shape, heads, lambda t: fa.apply_rotary_emb_qkv_(t, *tables, **words), tables, rows)


def test_qkv_by_headdim_without_packed_sequences(device):
    tables, rows = make_tables(4, 4, device=device), rows_of(2, 4, 0, device)
    words = dict(num_heads_q=2, headdim=8)
    check_qkv((2, 4, 32), [2, 1, 1], lambda t: fa.apply_rotary_emb_qkv_(t, *tables, **words), tables, rows)


@pytest.mark.parametrize("own_k, number", [(False, 1), (True, 2), ("the same", 1)])
def test_number_of_launches(device, launches, own_k, number):
    cos, sin = make_tables(4, 4, device=device)
    tables = (cos, sin) if own_k == "the same" else (cos.clone(), sin.clone()) if own_k else ()
    y = fa.apply_rotary_emb_qkv_(random(2, 4, 3, 2, 8, device=device, grad=True) * 1, cos, sin, *tables)
    assert len(launches) == number
    y.sum().backward()
    assert len(launches) == 2 * number


@by_pairing
def test_kv(device, interleaved):
    tables, offsets = make_tables(9, 3, device=device), torch.tensor([5, 0], device=device)
    rows = rows_of(2, 4, offsets, device)
    check(
        lambda kv: fa.apply_rotary_emb_kv_(kv, *tables, interleaved, offsets),
        random(2, 4, 2, 3, 8, device=device),
        lambda kv: torch.stack((formula(kv[:, :, 0], *tables, rows, interleaved), kv[:, :, 1]), 2),
        in_place=True,
    )


# ---- Other public names ----


@by_pairing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("batched", [False, True])
def test_apply_rotary_emb_torch_has_the_bits_of_eager_code(device, interleaved, dtype, batched):
    x = random(2, 5, 3, 12, dtype=dtype, device=device)
    tables = make_tables(*((2, 5, 4) if batched else (5, 4)), dtype=dtype, device=device)
    expected = rotate(x, of_table(*tables, "pair"), "interleaved" if interleaved else "half")
    assert torch.equal(fa.apply_rotary_emb_torch(x, *tables, interleaved), expected)


def test_autograd_functions_take_arguments_in_the_order_of_flash_attention(device):
    tables, tables_k = make_tables(9, 4, device=device), make_tables(9, 4, device=device)
    x, qkv, kv = (random(*shape, device=device) for shape in ((2, 4, 3, 8), (2, 4, 7, 8), (2, 4, 2, 3, 8)))
    rows, rotated = rows_of(2, 4, 3, device), x.clone()
    y = fa.ApplyRotaryEmb.apply(rotated, *tables, True, True, 3, None, None)
    assert y is rotated
    assert_rounded(y, formula(x, *tables, rows, True))
    y = fa.ApplyRotaryEmbQKV_.apply(qkv.clone(), *tables, *tables_k, True, 3, 3)
    assert_rounded(y, formula_of_heads(qkv.double(), [3, 2, 2], [tables, tables_k], rows, True))
    y = fa.ApplyRotaryEmbKV_.apply(kv.clone(), *tables, True, 3)
    assert_rounded(y[:, :, 0], formula(kv[:, :, 0], *tables, rows, True))
    assert torch.equal(y[:, :, 1], kv[:, :, 1])


@by_pairing
def test_rotate_half(device, interleaved):
    """A rotation is x cos + rotate_half(x) sin. With cos = 0 and sin = 1, the result is rotate_half(x)."""
    table, rows = torch.zeros(4, 4, device=device), rows_of(2, 4, 0, device)
    x = random(2, 4, 3, 8, device=device)
    check(lambda x: fa.rotate_half(x, interleaved), x, lambda x: formula(x, table, table + 1, rows, interleaved))
    refused("x", fa.rotate_half, random(2, 5), words="must be even")


def test_a_refused_call_writes_nothing():
    """test_dropins.py tests calls that write several tensors."""
    x = random(2, 4, 3, 10)
    kept = x.clone()
    for offsets in (3, torch.tensor([0, 3])):
        refused("seqlen_offsets", fa.apply_rotary_emb, x, *make_tables(6, 4), inplace=True, seqlen_offsets=offsets)
    assert torch.equal(x, kept)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU: the host checks positions on the CPU")
def test_positions_beyond_the_table_give_nan():
    x, tables = random(2, 4, 3, 10, device="cuda"), make_tables(6, 4, device="cuda")
    y = fa.apply_rotary_emb(x, *tables, seqlen_offsets=torch.tensor([0, 3], device="cuda"))
    bad = torch.isnan(y)
    assert bad[1, 3, :, :8].all() and int(bad.sum()) == 3 * 8 and torch.equal(y[..., 8:], x[..., 8:])
