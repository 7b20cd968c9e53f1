"""trope.liger compared in float64 with the formulas that Liger Kernel documents. test_theirs.py compares it with Liger
Kernel itself. test_dropins.py tests what all drop-in modules have in common."""

import pytest

torch = pytest.importorskip("torch")

from checks import assert_rounded, check, device, random, upstreams  # noqa: E402, F401 (device is a fixture)
from reference import axes_of_pairs, of_table, rotate  # noqa: E402
from refusals import refused  # noqa: E402
from trope import liger  # noqa: E402

LOW = (torch.bfloat16, torch.float16)
B, S, D = 2, 5, 8  # batch, tokens, head_dim


def make_tables(*shape, **options):
    """cos and sin, whose halves differ."""
    return random(*shape, **options), random(*shape, **options)


def make_heads(heads, head_dim=D, **options):
    """A tensor (batch, heads, tokens, head_dim) that is, as in models, a view of (batch, tokens, heads, head_dim)."""
    return random(B, S, heads, head_dim, **options).transpose(1, 2)


def formula(x, cos, sin, columns="half", pairing="half"):
    """Rotates x [batch, heads, tokens, head_dim] by tables [batch or 1, tokens, columns], in the dtypes of its
    arguments."""
    return rotate(x.transpose(1, 2), of_table(cos, sin, columns), pairing).transpose(1, 2)


def check_qk(function, q, k, formula):
    """Checks function(q, k), its gradients, and the strides of its results. The formula takes a single tensor, in
    float64."""
    results = check(function, [q, k], lambda q, k: (formula(q), formula(k)))
    for x, y in zip((q, k), results):
        assert y.dtype == x.dtype and y.stride() == x.stride()


# ---- liger_rotary_pos_emb ----


@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.float64, torch.float64)]
                         + [(dtype, torch.float32) for dtype in LOW] + [(dtype, dtype) for dtype in LOW])  # fmt: skip
@pytest.mark.parametrize("batch", [(), (1,), (B,)])
@pytest.mark.parametrize("width", [8, 6])
def test_rope(device, dtype, table, batch, width):
    """One table for all batch entries, or one for each. With width 6, only the first 6 elements of a head rotate."""
    tables = make_tables(*batch, S, width, dtype=table, device=device)
    q, k = (make_heads(heads, dtype=dtype, device=device) for heads in (6, 2))
    check_qk(
        lambda *qk: liger.liger_rotary_pos_emb(*qk, *tables), q, k, lambda t: formula(t, *(t.double() for t in tables))
    )


@pytest.mark.parametrize("shape", [(2, 1, S, D), (2, S, 1, D), (1, 1, S, D)])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_tables_with_a_dimension_for_heads(device, shape, unsqueeze_dim):
    """The tables' dimension of 1 for heads is found at unsqueeze_dim or, as in Liger, at dimension 1."""
    tables = make_tables(*shape, device=device)
    q, k = make_heads(3, device=device), make_heads(1, device=device)
    if shape[1] != 1 and unsqueeze_dim == 1:
        refused("cos", liger.liger_rotary_pos_emb, q, k, *tables, words="no dimension of 1", unsqueeze_dim=1)
        return
    rows = [t.squeeze(1 if shape[1] == 1 else 2) for t in tables]
    check_qk(lambda *qk: liger.liger_rotary_pos_emb(*qk, *tables, None, unsqueeze_dim), q, k, lambda t: formula(t, *rows))


@pytest.mark.parametrize("columns, rotary_dim", [(4, 8), (3, 6), (8, 4), (6, 6)])
def test_rotary_dim(device, columns, rotary_dim):
    """Tables have one column for each element, or one for each pair. With a column for each pair, columns beyond rotary_dim
    / 2 are not used."""
    tables = make_tables(1, S, columns, device=device)
    q, k = make_heads(3, device=device), make_heads(2, device=device)
    if columns == rotary_dim:
        check_qk(lambda *qk: liger.liger_rope(*qk, *tables, rotary_dim=6), q, k, lambda t: formula(t, *tables))
    else:
        used = [t[..., : rotary_dim // 2] for t in tables]
        rope = liger.liger_rotary_pos_emb
        check_qk(lambda *qk: rope(*qk, *tables, rotary_dim=rotary_dim), q, k, lambda t: formula(t, *used, "pair"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt_oss(device, dtype):
    tables = make_tables(2, S, D // 2, device=device)
    q, k = (make_heads(heads, dtype=dtype, device=device) for heads in (6, 1))
    check_qk(lambda *qk: liger.liger_rotary_pos_emb_gpt_oss(*qk, *tables), q, k, lambda t: formula(t, *tables, "pair"))


def test_strided_tables_and_expanded_heads(device):
    """q and k are slices of a packed QKV projection or expanded heads. Tables have gaps between columns."""
    cos, sin = random(2, S, D, 2, device=device).unbind(-1)
    packed = random(2, S, 7, D, device=device)
    for q, tables in (
        (packed[:, :, :4].transpose(1, 2), (cos, sin)),
        (packed[:1, :, :1].transpose(1, 2).expand(2, 4, S, D), (cos, sin)),
        (make_heads(4, device=device), (cos, sin.contiguous())),
    ):
        for x, y in zip(
            (q, packed[:, :, 4:6].transpose(1, 2)),
            liger.liger_rotary_pos_emb(q, packed[:, :, 4:6].transpose(1, 2), *tables),
        ):
            assert_rounded(y, formula(x.double(), *tables))
            assert y.stride() == torch.empty_like(x).stride()


def test_float32_with_16_bit_tables(device):
    """Liger rounds q and k to the dtype of the tables. The formula does not."""
    tables = make_tables(1, S, D, dtype=torch.bfloat16, device=device)
    q, k = make_heads(3, device=device), make_heads(2, device=device)
    check_qk(lambda *qk: liger.liger_rotary_pos_emb(*qk, *tables), q, k, lambda t: formula(t, *tables))


# ---- The other functions ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_vision(device, dtype, table):
    """The arithmetic is in fp32 and rounded once, even if the tables have the dtype of q."""
    tables = make_tables(7, D, dtype=table, device=device)
    q, k = (random(7, 3, D, dtype=dtype, device=device) for _ in "qk")
    coefficients = of_table(*tables, "half")
    check_qk(lambda *qk: liger.liger_rotary_pos_emb_vision(*qk, *tables), q, k, lambda t: rotate(t, coefficients, "half"))


def select_axes(table, sections):
    """The table [batch, seq, head_dim] that Qwen2-VL selects from [3, batch, seq, head_dim]."""
    axes = axes_of_pairs("sections", sections)
    return torch.stack([table[axis, ..., i] for i, axis in enumerate(axes + axes)], -1)


@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                          (torch.bfloat16, torch.bfloat16)])  # fmt: skip
@pytest.mark.parametrize("sections", [[2, 3, 3], (4, 4, 0), [0, 8, 0], [8, 0, 0]])
@pytest.mark.parametrize("batch", [1, B])
def test_multimodal(device, dtype, table, sections, batch):
    """LigerQwen2VLMRopeFunction is called with the arguments in the order of liger_kernel.ops."""
    tables = make_tables(3, batch, S, 16, dtype=table, device=device)
    q, k = (make_heads(heads, 16, dtype=dtype, device=device) for heads in (4, 2))
    selected = [select_axes(t, sections) for t in tables]
    for function, more in ((liger.liger_multimodal_rotary_pos_emb, ()), (liger.LigerQwen2VLMRopeFunction.apply, (1,))):
        check_qk(lambda *qk: function(*qk, *tables, sections, *more), q, k, lambda t: formula(t, *selected))


def multiply(x, table):
    """x [batch, seq, heads, head_dim], read as complex numbers, times table [batch or 1, seq, head_dim / 2]."""
    return rotate(x, of_table(table.real, table.imag, "pair"), "interleaved")


def make_complex(*shape, device="cpu"):
    return torch.complex(*make_tables(*shape, device=device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 5, 4), (9, 4), (2, 9, 4)])
def test_llama4_text(device, dtype, shape):
    """If a table has more rows than there are tokens, the first rows are used. Each batch entry may have its own table.
    Liger's Function also takes a block size, which has no effect."""
    table = make_complex(*shape, device=device)
    q, k = (random(2, S, heads, D, dtype=dtype, device=device) for heads in (6, 2))
    for function, more in (
        (liger.liger_llama4_text_rotary_pos_emb, ()),
        (liger.LigerLlama4RopeFunction.apply, (32,)),
        (liger.LigerLlama4RopeFunction.apply, (None,)),
    ):
        check_qk(lambda *qk: function(*qk, table, *more), q, k, lambda t: multiply(t, table[..., :S, :]))


@pytest.mark.parametrize("shape", [(5, 4), (5, 1, 4), (1, 5, 4), (1, 5, 1, 4), (2, 5, 1, 4), (2, 5, 4)])
def test_llama4_vision(device, shape):
    table = make_complex(*shape, device=device)
    q, k = (random(2, S, 3, D, dtype=torch.bfloat16, device=device) for _ in "qk")
    rows = table.reshape(-1, S, 4)
    check_qk(lambda *qk: liger.liger_llama4_vision_rotary_pos_emb(*qk, table), q, k, lambda t: multiply(t, rows))


def test_llama4_tables_transposed_or_conjugated(device):
    """One table is transposed. The other is a conjugate, for which torch only sets a flag and leaves the memory
    unchanged."""
    q, k = random(1, S, 3, D, device=device), random(1, S, 2, D, device=device)
    for table in (make_complex(4, S, device=device).T, make_complex(S, 4, device=device).conj()):
        check_qk(lambda *qk: liger.liger_llama4_text_rotary_pos_emb(*qk, table), q, k, lambda t: multiply(t, table))


# ---- liger_kernel.ops ----


@pytest.mark.parametrize("shape", [(S, D), (1, S, D), (2, 1, S, D)])
def test_forward_and_backward(device, shape):
    tables = make_tables(*shape, device=device)
    rows = [t.reshape(-1, S, D) for t in tables]
    q, k = make_heads(4, device=device), make_heads(1, device=device)
    new_q, new_k, *new_tables = liger.rope_forward(q, k, *tables)
    assert all(map(torch.equal, new_tables, rows))
    exact = [x.double().requires_grad_() for x in (q, k)]
    expected = [formula(x, *rows) for x in exact]
    for y, right in zip((new_q, new_k), expected):
        assert_rounded(y, right)
    for upstream in upstreams([q, k]):
        kept = [dy.clone() for dy in upstream]
        right = torch.autograd.grad(expected, exact, [dy.double() for dy in upstream], retain_graph=True)
        for dx, dx_right in zip(liger.rope_backward(*upstream, *new_tables), right):
            assert_rounded(dx, dx_right)
        assert all(map(torch.equal, upstream, kept))


def test_rope_backward_with_rotary_dim(device):
    cos, sin = make_tables(1, S, 3, device=device)
    dq, dk = make_heads(4, device=device), make_heads(2, device=device)
    for dy, dx in zip((dq, dk), liger.rope_backward(dq, dk, cos, sin, rotary_dim=6)):
        assert_rounded(dx, formula(dy.double(), cos, -sin, "pair"))


def test_autograd_function(device):
    tables, apply = make_tables(1, S, D, device=device), liger.LigerRopeFunction.apply
    q, k = make_heads(4, device=device), make_heads(1, device=device)
    check_qk(lambda *qk: apply(*qk, *tables, None, 1, D), q, k, lambda t: formula(t, *tables))
