"""trope.liger against the formulas that Liger Kernel documents, in float64; and against the real one, if it is there."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
from trope import liger  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
EPS = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
by_device = pytest.mark.parametrize("device", DEVICES)
LOW = (torch.bfloat16, torch.float16)


def rand(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).to(device)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def both(*shape, **options):
    """cos and sin."""
    return rand(*shape, **options), rand(*shape, **options)


def heads_of(batch, heads, tokens, head_dim, dtype=torch.float32, device="cpu"):
    """(batch, heads, tokens, head_dim) as models have it: a view of (batch, tokens, heads, head_dim)."""
    return rand(batch, tokens, heads, head_dim, dtype=dtype, device=device).transpose(1, 2)


def rotate_half(x):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)


def formula(x, cos, sin):
    """q * cos + rotate_half(q) * sin, of as many leading elements as cos has columns, in the dtype of what it is given."""
    width = cos.shape[-1]
    return torch.cat((x[..., :width] * cos + rotate_half(x[..., :width]) * sin, x[..., width:]), -1)


def in_double(x, cos, sin):
    return formula(x.double(), cos.double(), sin.double())


def gradient(function, x, dy):
    """What autograd has for the reference."""
    x = x.detach().double().requires_grad_()
    return torch.autograd.grad(function(x), x, dy.double())[0]


def same(y, reference):
    """Whether y is the reference, rounded once to its dtype after fp32 (which cancels to a few units of 2^-24)."""
    assert y.shape == reference.shape
    error = (y.detach().double() - reference).abs()
    slack = 2.0**-50 if y.dtype == torch.float64 else 2.0**-20
    return bool((error <= EPS[y.dtype] * reference.abs() * 1.001 + slack).all())


def check(function, q, k, reference, expand=False):
    """function(q, k), its gradients, that nothing is written over, and the order of dimensions in memory. `reference` is of
    one tensor, in float64."""
    leaves = [q.detach().clone(memory_format=torch.preserve_format).requires_grad_(), k.detach().clone().requires_grad_()]
    given = [leaf * 1 for leaf in leaves]
    kept = [t.detach().clone() for t in given]
    d = [rand(*q.shape, dtype=q.dtype, device=q.device), rand(*k.shape, dtype=k.dtype, device=k.device)]
    kept_d = [t.clone() for t in d]
    results = function(*given)
    for x, y, before in zip(given, results, kept):
        assert same(y, reference(before)) and y.dtype == x.dtype
        assert torch.equal(x.detach(), before) and y.stride() == x.stride()
    if expand:
        sum(y.sum() for y in results).backward()
        d = [torch.ones_like(t) for t in d]
    else:
        torch.autograd.backward(results, d)
        assert all(torch.equal(t, before) for t, before in zip(d, kept_d))
    for leaf, x, dy in zip(leaves, kept, d):
        assert same(leaf.grad, gradient(reference, x, dy))


# ---- liger_rotary_pos_emb ----


@by_device
@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.float64, torch.float64)]
                         + [(dtype, torch.float32) for dtype in LOW] + [(dtype, dtype) for dtype in LOW])  # fmt: skip
@pytest.mark.parametrize("batch", [None, 1, 2])
@pytest.mark.parametrize("width", [8, 6])
@pytest.mark.parametrize("expand", [False, True])
def test_rope(device, dtype, table, batch, width, expand):
    """Tables whose halves differ, for all batch entries or each its own; a part of the heads."""
    cos, sin = (rand(*((5, width) if batch is None else (batch, 5, width)), dtype=table, device=device) for _ in range(2))
    q, k = heads_of(2, 6, 5, 8, dtype, device), heads_of(2, 2, 5, 8, dtype, device)

    def reference(t):
        c, s = (cos, sin) if batch is None else (cos.unsqueeze(1), sin.unsqueeze(1))
        return in_double(t, c, s)

    check(lambda *qk: liger.liger_rotary_pos_emb(*qk, cos, sin), q, k, reference, expand)


@by_device
@pytest.mark.parametrize("shape", [(2, 1, 5, 8), (2, 5, 1, 8), (1, 1, 5, 8)])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_tables_that_have_heads(device, shape, unsqueeze_dim):
    """Also where unsqueeze_dim is another one: as Liger, it is found where it is 1."""
    if shape[1] != 1 and unsqueeze_dim == 1:
        with pytest.raises(trope.Error, match="no dimension of 1"):
            rope(*qk(), *both(*shape), unsqueeze_dim=1)
        return
    cos, sin = both(*shape, device=device)
    q, k = heads_of(2, 3, 5, 8, device=device), heads_of(2, 1, 5, 8, device=device)
    c, s = (t if shape[1] == 1 else t.transpose(1, 2) for t in (cos, sin))
    check(lambda *qk: liger.liger_rotary_pos_emb(*qk, cos, sin, None, unsqueeze_dim), q, k, lambda t: in_double(t, c, s))


@by_device
@pytest.mark.parametrize("columns", [4, 3, 8])
def test_rotary_dim(device, columns):
    """A column a pair: as many, or the first of more; or one for each element."""
    width = {4: 8, 3: 6, 8: 4}[columns]  # of 8 columns, rotary_dim 4 uses two
    cos, sin = both(1, 5, columns, device=device)
    q, k = heads_of(2, 3, 5, 8, device=device), heads_of(2, 2, 5, 8, device=device)
    c, s = (torch.cat([t[:, None, :, : width // 2]] * 2, -1) for t in (cos, sin))
    check(lambda *qk: liger.liger_rotary_pos_emb(*qk, cos, sin, rotary_dim=width), q, k, lambda t: in_double(t, c, s))
    cos, sin = both(1, 5, 6, device=device)
    check(lambda *qk: liger.liger_rope(*qk, cos, sin, rotary_dim=6), q, k, lambda t: in_double(t, cos, sin))


@by_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpt_oss(device, dtype):
    cos, sin = both(2, 5, 4, device=device)
    q, k = heads_of(2, 6, 5, 8, dtype, device), heads_of(2, 1, 5, 8, dtype, device)

    def reference(t):
        first, second, c, s = *t.double().chunk(2, -1), cos.double().unsqueeze(1), sin.double().unsqueeze(1)
        return torch.cat((first * c - second * s, second * c + first * s), -1)

    check(lambda *qk: liger.liger_rotary_pos_emb_gpt_oss(*qk, cos, sin), q, k, reference)


@by_device
def test_strides(device):
    """Slices of a packed projection, contiguous ones, expanded ones, and tables with gaps between columns."""
    tables = rand(2, 5, 8, 2, device=device)
    cos, sin = tables[..., 0], tables[..., 1]
    packed = rand(2, 5, 7, 8, device=device)
    pairs = [
        (packed[:, :, :4].transpose(1, 2), packed[:, :, 4:6].transpose(1, 2)),
        (rand(2, 4, 5, 8, device=device), rand(2, 2, 5, 8, device=device)),
        (rand(1, 1, 5, 8, device=device).expand(2, 4, 5, 8), rand(2, 2, 8, 5, device=device).transpose(2, 3)),
    ]
    for q, k in pairs:
        for x, y in zip((q, k), liger.liger_rotary_pos_emb(q, k, cos, sin)):
            assert same(y, in_double(x, cos.unsqueeze(1), sin.unsqueeze(1))) and y.stride() == torch.empty_like(x).stride()
    y = liger.liger_rotary_pos_emb(*pairs[1], cos, sin.contiguous())[0]
    assert same(y, in_double(pairs[1][0], cos.unsqueeze(1), sin.unsqueeze(1)))


@by_device
def test_float32_with_tables_of_16_bits(device):
    """Which Liger rounds q and k to; the formula does not."""
    cos, sin = rand(1, 5, 8, dtype=torch.bfloat16, device=device), rand(1, 5, 8, dtype=torch.bfloat16, device=device)
    q, k = heads_of(2, 3, 5, 8, device=device), heads_of(2, 2, 5, 8, device=device)
    check(lambda *qk: liger.liger_rotary_pos_emb(*qk, cos, sin), q, k, lambda t: in_double(t, cos[:, None], sin[:, None]))


def test_second_derivatives():
    cos, sin = rand(1, 3, 6, dtype=torch.float64), rand(1, 3, 6, dtype=torch.float64)
    q, k = heads_of(1, 2, 3, 8, torch.float64).requires_grad_(), heads_of(1, 1, 3, 8, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *qk: liger.liger_rotary_pos_emb(*qk, cos, sin), (q, k))
    assert torch.autograd.gradgradcheck(lambda *qk: [y**2 for y in liger.liger_rotary_pos_emb(*qk, cos, sin)], (q, k))


# ---- The other functions ----


@by_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expand", [False, True])
def test_vision(device, dtype, table, expand):
    """In fp32 and rounded once, also if the tables have the dtype of q."""
    cos, sin = rand(7, 8, dtype=table, device=device), rand(7, 8, dtype=table, device=device)
    q, k = rand(7, 3, 8, dtype=dtype, device=device), rand(7, 3, 8, dtype=dtype, device=device)
    c, s = cos[:, None], sin[:, None]
    check(lambda *qk: liger.liger_rotary_pos_emb_vision(*qk, cos, sin), q, k, lambda t: in_double(t, c, s), expand)


def mrope(table, sections):
    """The table [batch, 1, seq, head_dim] that Qwen2-VL makes of [3, batch, seq, head_dim]."""
    pieces = table.split(list(sections) * 2, -1)
    return torch.cat([piece[i % len(sections)] for i, piece in enumerate(pieces)], -1).unsqueeze(1)


@by_device
@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                          (torch.bfloat16, torch.bfloat16)])  # fmt: skip
@pytest.mark.parametrize("sections", [[2, 3, 3], (4, 4, 0), [0, 8, 0], [8, 0, 0]])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("expand", [False, True])
def test_multimodal(device, dtype, table, sections, batch, expand):
    cos, sin = both(3, batch, 5, 16, dtype=table, device=device)
    q, k = heads_of(2, 4, 5, 16, dtype, device), heads_of(2, 2, 5, 16, dtype, device)
    c, s = mrope(cos, sections), mrope(sin, sections)
    function = liger.liger_multimodal_rotary_pos_emb
    check(lambda *qk: function(*qk, cos, sin, sections), q, k, lambda t: in_double(t, c, s), expand)


def multiply(x, table):
    """x [batch, seq, heads, head_dim] as complex numbers, times table [batch or 1, seq, 1, head_dim / 2], in float64."""
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(z * table.to(torch.complex128)).flatten(-2)


def complex_table(*shape, device="cpu"):
    return torch.complex(rand(*shape), rand(*shape)).to(device)


@by_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(5, 4), (1, 5, 4), (2, 5, 4), (9, 4), (2, 9, 4)])
@pytest.mark.parametrize("expand", [False, True])
def test_llama4_text(device, dtype, shape, expand):
    """More rows than tokens: the first. A table of each batch entry is its own."""
    table = complex_table(*shape, device=device)
    rows = (table if table.dim() == 3 else table[None])[:, :5, None]
    q, k = rand(2, 5, 6, 8, dtype=dtype, device=device), rand(2, 5, 2, 8, dtype=dtype, device=device)
    check(lambda *qk: liger.liger_llama4_text_rotary_pos_emb(*qk, table), q, k, lambda t: multiply(t, rows), expand)


@by_device
@pytest.mark.parametrize("shape", [(5, 4), (5, 1, 4), (1, 5, 4), (1, 5, 1, 4), (2, 5, 1, 4), (2, 5, 4)])
def test_llama4_vision(device, shape):
    table = complex_table(*shape, device=device)
    rows = table.reshape(-1, 5, 1, 4)
    q, k = rand(2, 5, 3, 8, dtype=torch.bfloat16, device=device), rand(2, 5, 3, 8, dtype=torch.bfloat16, device=device)
    check(lambda *qk: liger.liger_llama4_vision_rotary_pos_emb(*qk, table), q, k, lambda t: multiply(t, rows))


@by_device
def test_llama4_tables_as_they_lie(device):
    """Columns in reverse memory, and a conjugate one, which torch has negated only in name."""
    q, k = rand(1, 5, 3, 8, device=device), rand(1, 5, 2, 8, device=device)
    for table in (complex_table(4, 5, device=device).T, complex_table(5, 4, device=device).conj()):
        assert same(liger.liger_llama4_text_rotary_pos_emb(q, k, table)[0], multiply(q, table[None, :, None]))


# ---- liger_kernel.ops ----


@by_device
@pytest.mark.parametrize("more", [(), (32,), (None,)])
def test_llama4_function(device, more):
    """By the order of its arguments, with the block size of Liger's kernel, which changes nothing."""
    table = complex_table(9, 4, device=device)
    q, k = rand(2, 5, 6, 8, device=device), rand(2, 5, 2, 8, device=device)
    rows = table[None, :5, None]
    check(lambda *qk: liger.LigerLlama4RopeFunction.apply(*qk, table, *more), q, k, lambda t: multiply(t, rows))


@by_device
def test_multimodal_function(device):
    """By the order of its arguments."""
    cos, sin = rand(3, 2, 5, 8, device=device), rand(3, 2, 5, 8, device=device)
    q, k = heads_of(2, 4, 5, 8, device=device), heads_of(2, 2, 5, 8, device=device)
    axes = [0, 1, 2, 2, 0, 1, 2, 2]  # of the eight elements
    c, s = (torch.stack([t[axis, ..., i] for i, axis in enumerate(axes)], -1)[:, None] for t in (cos, sin))
    function = liger.LigerQwen2VLMRopeFunction.apply
    check(lambda *qk: function(*qk, cos, sin, [1, 1, 2], 1), q, k, lambda t: in_double(t, c, s))


@by_device
@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (2, 1, 5, 8)])
@pytest.mark.parametrize("expand", [False, True])
def test_forward_and_backward(device, shape, expand):
    cos, sin = both(*shape, device=device)
    q, k = heads_of(2, 4, 5, 8, device=device), heads_of(2, 1, 5, 8, device=device)
    d = [rand(1, 1, 1, 1, device=device).expand_as(t) if expand else rand(*t.shape, device=device) for t in (q, k)]
    c, s = (t.reshape(-1, 1, 5, 8) for t in (cos, sin))
    new_q, new_k, new_cos, new_sin = liger.rope_forward(q, k, cos, sin)
    assert same(new_q, in_double(q, c, s)) and same(new_k, in_double(k, c, s))
    assert torch.equal(new_cos, c.squeeze(1)) and torch.equal(new_sin, s.squeeze(1))
    kept = [t.clone() for t in d]
    results = liger.rope_backward(*d, new_cos, new_sin)
    for x, dy, before, dx in zip((q, k), d, kept, results):
        assert torch.equal(dy, before) and same(dx, gradient(lambda t: in_double(t, c, s), x, dy))


@by_device
def test_backward_of_a_part(device):
    cos, sin = rand(1, 5, 3, device=device), rand(1, 5, 3, device=device)
    dq, dk = heads_of(2, 4, 5, 8, device=device), heads_of(2, 2, 5, 8, device=device)
    c, s = (torch.cat((t, t), -1)[:, None] for t in (cos, sin))
    for dy, dx in zip((dq, dk), liger.rope_backward(dq, dk, cos, sin, rotary_dim=6)):
        assert same(dx, gradient(lambda t: in_double(t, c, s), dy, dy))


@by_device
def test_function(device):
    cos, sin = both(1, 5, 8, device=device)
    q, k = heads_of(2, 4, 5, 8, device=device), heads_of(2, 1, 5, 8, device=device)
    apply = liger.LigerRopeFunction.apply
    check(lambda *qk: apply(*qk, cos, sin, None, 1, 8), q, k, lambda t: in_double(t, cos, sin))


# ---- torch.compile ----


@by_device
@pytest.mark.parametrize("name", ["rope", "multimodal", "llama4"])
def test_compile(device, name):
    cos, sin, table = rand(3, 2, 5, 8, device=device), rand(3, 2, 5, 8, device=device), complex_table(5, 4, device=device)
    function = {
        "rope": lambda q, k: liger.liger_rotary_pos_emb(q, k, cos[0], sin[0]),
        "multimodal": lambda q, k: liger.liger_multimodal_rotary_pos_emb(q, k, cos, sin, [1, 1, 2]),
        "llama4": lambda q, k: liger.liger_llama4_text_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), table),
    }[name]
    q, k, results = heads_of(2, 4, 5, 8, device=device), heads_of(2, 2, 5, 8, device=device), []
    for f in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaves = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        rotated = f(*leaves)
        sum(y.square().sum() for y in rotated).backward()
        results.append([*rotated, *(leaf.grad for leaf in leaves)])
    assert all(torch.equal(y, z) for y, z in zip(*results))


# ---- Refusals ----


def qk(batch=2, heads=(4, 2), tokens=5, head_dim=8, **options):
    return [torch.zeros(batch, n, tokens, head_dim, **options) for n in heads]


def multimodal(c, s, sections, *more):
    c, s = (t.expand(3, *t.shape) for t in (c, s))
    return liger.liger_multimodal_rotary_pos_emb(*qk(), c, s, sections, *more)


rope, vision = liger.liger_rotary_pos_emb, liger.liger_rotary_pos_emb_vision
text, tower = liger.liger_llama4_text_rotary_pos_emb, liger.liger_llama4_vision_rotary_pos_emb


def zeros():
    return torch.zeros(2, 5, 3, 8)


def table_of():
    return torch.zeros(5, 4, dtype=torch.complex64)


REFUSALS = {
    "BLOCK_SIZE": (lambda c, s: liger.LigerLlama4RopeFunction.apply(zeros(), zeros(), table_of(), 0), "BLOCK_SIZE"),
    "rank of q of the function": (lambda c, s: liger.LigerLlama4RopeFunction.apply(zeros()[0], zeros(), table_of()), "q"),
    "real freqs": (lambda c, s: liger.LigerLlama4RopeFunction.apply(zeros(), zeros(), table_of().real), "freqs_cis"),
    "position_ids": (lambda c, s: rope(*qk(), c, s, torch.arange(5)), "position_ids"),
    "position_ids backward": (lambda c, s: liger.rope_backward(*qk(), c, s, torch.arange(5)), "position_ids"),
    "unsqueeze_dim": (lambda c, s: rope(*qk(), c, s, unsqueeze_dim=2), "unsqueeze_dim"),
    "rank of q": (lambda c, s: rope(torch.zeros(2, 5, 8), torch.zeros(2, 5, 8), c, s), "q"),
    "rank of k": (lambda c, s: rope(qk()[0], torch.zeros(2, 5, 8), c, s), "k"),
    "rank of dk": (lambda c, s: liger.rope_backward(qk()[0], torch.zeros(2, 5, 8), c, s), "dk"),
    "tokens of k": (lambda c, s: rope(qk()[0], qk(tokens=4)[1], c, s), "k"),
    "head_dim of k": (lambda c, s: rope(qk()[0], qk(head_dim=10)[1], c, s), "k"),
    "dtype of k": (lambda c, s: rope(qk()[0], qk()[1].bfloat16(), c, s), "k"),
    "rank of cos": (lambda c, s: rope(*qk(), c[0, 0], s[0, 0]), "cos"),
    "no head dimension": (lambda c, s: rope(*qk(), torch.zeros(2, 5, 2, 8), torch.zeros(2, 5, 2, 8)), "cos"),
    "shape of sin": (lambda c, s: rope(*qk(), c, s[..., :4]), "sin"),
    "dtype of sin": (lambda c, s: rope(*qk(), c, s.half()), "sin"),
    "rows": (lambda c, s: rope(*qk(tokens=4), c, s), "cos"),
    "batch": (lambda c, s: rope(*qk(batch=3), c, s), "cos"),
    "width": (lambda c, s: rope(*qk(head_dim=6), c, s), "cos"),
    "odd width": (lambda c, s: rope(*qk(), c[..., :5], s[..., :5]), "cos"),
    "rotary_dim": (lambda c, s: rope(*qk(), c, s, rotary_dim=10), "rotary_dim"),
    "odd rotary_dim": (lambda c, s: rope(*qk(), c, s, rotary_dim=5), "rotary_dim"),
    "columns": (lambda c, s: rope(*qk(), c[..., :3], s[..., :3], rotary_dim=8), "cos"),
    "gradient of cos": (lambda c, s: rope(*qk(), c.requires_grad_(), s), "cos"),
    "gradient of sin": (lambda c, s: rope(*qk(), c, s.requires_grad_()), "sin"),
    "full width of gpt-oss": (lambda c, s: liger.liger_rotary_pos_emb_gpt_oss(*qk(), c[..., :3], s[..., :3]), "cos"),
    "batch for vision": (lambda c, s: vision(*qk(), c[0], s[0]), "q"),
    "tables for vision": (lambda c, s: vision(torch.zeros(5, 3, 8), torch.zeros(5, 3, 8), c, s), "cos"),
    "rows for vision": (lambda c, s: vision(torch.zeros(4, 3, 8), torch.zeros(4, 3, 8), c[0], s[0]), "cos"),
    "tables for multimodal": (lambda c, s: multimodal(c[0], s[0], [1, 1, 2]), "cos"),
    "sections": (lambda c, s: multimodal(c, s, [2, 2, 4]), "mrope_section"),
    "number of sections": (lambda c, s: multimodal(c, s, [2, 2]), "mrope_section"),
    "layout for multimodal": (lambda c, s: multimodal(c, s, [1, 1, 2], 2), "unsqueeze_dim"),
    "part for multimodal": (lambda c, s: multimodal(c[..., :6], s[..., :6], [1, 1, 1]), "cos"),
    "real frequencies": (lambda c, s: text(zeros(), zeros(), torch.zeros(5, 4)), "freqs_cis"),
    "real frequencies for vision": (lambda c, s: tower(zeros(), zeros(), torch.zeros(5, 4)), "freqs_ci"),
    "few rows": (lambda c, s: text(zeros(), zeros(), complex_table(4, 4)), "freqs_cis"),
    "batch of text": (lambda c, s: text(zeros(), zeros(), complex_table(3, 5, 4)), "freqs_cis"),
    "columns of text": (lambda c, s: text(zeros(), zeros(), complex_table(5, 8)), "freqs_cis"),
    "gradient of text": (lambda c, s: text(zeros(), zeros(), complex_table(5, 4).requires_grad_()), "freqs_cis"),
    "rows of vision": (lambda c, s: tower(zeros(), zeros(), complex_table(6, 4)), "freqs_ci"),
    "rank of vision": (lambda c, s: tower(zeros(), zeros(), complex_table(2, 5, 3, 4)), "freqs_ci"),
    "dtype of xk": (lambda c, s: text(zeros(), zeros().half(), complex_table(5, 4)), "xk"),
    "heads first": (lambda c, s: tower(zeros(), torch.zeros(2, 3, 5, 8), complex_table(5, 4)), "key"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    call, argument = REFUSALS[name]
    with pytest.raises(trope.Error) as caught:
        call(rand(2, 5, 8), rand(2, 5, 8))
    assert caught.value.argument == argument, str(caught.value)


# ---- The real thing ----


@pytest.fixture
def theirs():
    if "cuda" not in DEVICES:
        pytest.skip("Liger's kernels need a GPU")
    return pytest.importorskip("liger_kernel.transformers.functional")


def near(y, z, x, tables, low):
    """Equal but for the last bit, since fp32 may be fused otherwise; and where Liger computes in 16 bits, for a rounding of
    each product."""
    bound = 2 * EPS[y.dtype] * z.double().abs() + 2.0**-20
    if low:
        c, s = (t.double().abs() for t in tables)
        bound = bound + EPS[y.dtype] * (x.double().abs() * c + rotate_half(x.double()).abs() * s)
    return bool(((y.double() - z.double()).abs() <= bound).all())


def compare(mine, others, q, k, tables, more=(), wide=None):
    """Forward, and backward of random gradients; Liger gets copies, since it writes over what it is given. `wide`: tables
    as the formula has them, where they have the dtype of q and k."""
    d, results = [rand(*t.shape, dtype=t.dtype, device=t.device) for t in (q, k)], []
    for function in (mine, others):
        leaves = [q.clone().requires_grad_(), k.clone().requires_grad_()]
        rotated = function(*(leaf * 1 for leaf in leaves), *tables, *more)
        torch.autograd.backward(rotated, [t.clone() for t in d])
        results.append([*(y.detach() for y in rotated), *(leaf.grad for leaf in leaves)])
    assert all(near(y, z, x, wide, wide is not None) for y, z, x in zip(*results, (q, k, *d)))


@pytest.mark.parametrize("dtype, table", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]
                         + [(dtype, dtype) for dtype in LOW])  # fmt: skip
def test_against_theirs(theirs, dtype, table):
    q, k = heads_of(2, 8, 37, 64, dtype, "cuda"), heads_of(2, 2, 37, 64, dtype, "cuda")
    cos, sin = (torch.cat([rand(2, 37, 32, dtype=table, device="cuda")] * 2, -1) for _ in range(2))
    wide = [t.unsqueeze(1) for t in (cos, sin)] if table in LOW else None
    compare(liger.liger_rope, theirs.liger_rope, q, k, (cos, sin), wide=wide)


@pytest.mark.parametrize("table", [torch.float32, torch.bfloat16])
def test_multimodal_against_theirs(theirs, table):
    q, k = heads_of(2, 8, 37, 64, torch.bfloat16, "cuda"), heads_of(2, 2, 37, 64, torch.bfloat16, "cuda")
    cos, sin = (torch.cat([rand(3, 2, 37, 32, dtype=table, device="cuda")] * 2, -1) for _ in range(2))
    sections = [8, 12, 12]
    wide = [mrope(t, sections) for t in (cos, sin)] if table in LOW else None
    compare(liger.liger_qwen2vl_mrope, theirs.liger_qwen2vl_mrope, q, k, (cos, sin), (sections,), wide)


def test_others_against_theirs(theirs):
    from liger_kernel.transformers import llama4_rope
    from liger_kernel.transformers import rope as their_rope

    table, mine, others = complex_table(1, 37, 32, device="cuda"), text, llama4_rope.liger_llama4_text_rotary_pos_emb
    q, k = rand(2, 37, 8, 64, device="cuda"), rand(2, 37, 2, 64, device="cuda")
    for dtype in (torch.float32, torch.bfloat16):
        compare(mine, others, q.to(dtype), k.to(dtype), (table,))
    cos, sin = (torch.cat([rand(37, 32, device="cuda")] * 2, -1) for _ in range(2))
    q = q[0].bfloat16()
    compare(vision, their_rope.liger_rotary_pos_emb_vision, q, q.flip(0), (cos, sin))
