"""trope.megatron against Megatron-Core's unfused formulas in eager PyTorch, operation by operation in the tensors' dtype,
so that bits are compared, and by autograd for the transpose. Tables are random, so that halves differ, and so are upstream
gradients. MLA in place and the patch have files of their own."""

import itertools
import types

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.megatron as tm  # noqa: E402
from trope.megatron._rope import _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd  # noqa: E402

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
BATCH, HEADS, DIM, ROTARY, TOKENS, ROWS = 3, 4, 24, 16, 16, 80
NOPE, V_DIM = 10, 6  # MLA: of a head's DIM + ... elements those that do not turn, and those of a value
LENGTHS = [16, 0, 32, 8]  # of the whole stream, for four ranks in two chunks
TOTAL = sum(LENGTHS)


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(11)
    return request.param


class Group:
    """What is asked of a process group."""

    def __init__(self, size=1, rank=0):
        self.size, self.rank = (lambda: size), (lambda: rank)


def make_config(**options):
    known = dict(rotary_interleaved=False, multi_latent_attention=False, apply_rope_fusion=True, mrope_section=None)
    return types.SimpleNamespace(**dict(known, **options))


def make_freqs(device, rows=TOKENS, batch=1, columns=ROTARY):
    return (torch.rand(rows, batch, 1, columns, device=device) - 0.5) * 8


def make_tables(device, dtype, rows=ROWS, columns=ROTARY):
    """cos and sin of MLA, whose halves differ."""
    freqs = make_freqs(device, rows, columns=columns)
    return (freqs.cos() * 1.3).to(dtype), (freqs.sin() * 1.3).to(dtype)


def make_cu_seqlens(device, lengths=LENGTHS):
    return torch.tensor([0] + list(itertools.accumulate(lengths)), dtype=torch.int32, device=device)


def random(*shape, device, dtype=torch.float32):
    return torch.randn(*shape, device=device).to(dtype).requires_grad_()


def zigzag(length, cp_size, cp_rank):
    """The positions of a rank's tokens of one sequence: chunks cp_rank and 2 cp_size - 1 - cp_rank."""
    if cp_size == 1:
        return torch.arange(length)
    chunks = torch.arange(length).view(2 * cp_size, length // (2 * cp_size))
    return torch.cat((chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]))


def find_rows(cp_size=1, cp_rank=0, in_stream=False, lengths=LENGTHS):
    """The rows of the table that a rank's tokens have in thd, sequence by sequence."""
    starts = [0] + list(itertools.accumulate(lengths))
    return torch.cat([zigzag(n, cp_size, cp_rank) + in_stream * start for n, start in zip(lengths, starts)])


def find_cos_sin(freqs):
    """trope's cosine and sine of f32 freqs, as a rotation of unit vectors shows them. They are within an ulp of 1 of the
    exact ones; what is compared after that is bits."""
    angles = freqs.detach().reshape(-1, 1, 1, 1)
    unit = torch.tensor([1.0, 0.0], device=freqs.device).expand(len(angles), 1, 1, 2)
    words = dict(layout="sbhd", pairing="half", angle_columns="pair", rounding="native_f32")
    turned = trope.torch.rotate(unit, freqs=angles[:, 0, 0], **words)[:, 0, 0]
    cos, sin = (x.view(freqs.shape) for x in turned.unbind(-1))
    for found, exact in ((cos, freqs.double().cos()), (sin, freqs.double().sin())):
        assert (found - exact).abs().max() <= 2.0**-23
    return cos, sin


def reference(
    t, cos, sin, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False,
):  # fmt: skip
    """Megatron's unfused formula: t [..., d], cos and sin [..., d2] in f32 before mscale (or, of MLA, in t's dtype)."""
    columns = cos.shape[-1]
    window, rest = t[..., :columns], t[..., columns:]
    if mla_rotary_interleaved:
        window = torch.cat((window[..., 0::2], window[..., 1::2]), -1)
    if rotary_interleaved:
        partner = torch.stack((-window[..., 1::2], window[..., 0::2]), -1).flatten(-2)
    else:
        first, second = window.chunk(2, -1)
        partner = torch.cat((-second, first), -1)
    cos, sin = (cos * mscale).to(t.dtype), (sin * (-mscale if inverse else mscale)).to(t.dtype)
    window = window * cos + partner * sin
    if mla_rotary_interleaved and mla_output_remove_interleaving:
        window = torch.stack(window.chunk(2, -1), -1).flatten(-2)
    return torch.cat((window, rest), -1)


def check_bits(results, expected, inputs, expected_inputs=None):
    """Results and gradients for random upstream ones, also where these have zero strides."""
    results, expected = ([x] if torch.is_tensor(x) else list(x) for x in (results, expected))
    inputs = [inputs] if torch.is_tensor(inputs) else list(inputs)
    for y, right in zip(results, expected):
        assert y.dtype == right.dtype and y.is_contiguous() and torch.equal(y, right)
    assert len(results) == len(expected)
    full = [torch.randn(y.shape, device=y.device).to(y.dtype) for y in results]
    for upstream in (full, [dy[:1].expand(dy.shape) for dy in full]):
        found = torch.autograd.grad(results, inputs, upstream, retain_graph=True)
        right = torch.autograd.grad(
            expected, inputs if expected_inputs is None else expected_inputs, upstream, retain_graph=True
        )
        for dx, d_right in zip(found, right):
            assert torch.equal(dx, d_right)


# ---- rope_utils ----

OPTIONS = {
    "plain": {},
    "interleaved": dict(rotary_interleaved=True),
    "mscale": dict(mscale=1.3),
    "mla": dict(mla_rotary_interleaved=True, mscale=1.3),
    "remove": dict(mla_rotary_interleaved=True, mla_output_remove_interleaving=True, mscale=1.3),
    "remove_of_nothing": dict(mla_output_remove_interleaving=True),
    "inverse": dict(inverse=True, mscale=0.7),
    "inverse_interleaved": dict(inverse=True, rotary_interleaved=True),
    "inverse_mla": dict(inverse=True, mla_rotary_interleaved=True, mla_output_remove_interleaving=True),
}


def apply(t, freqs, options, **others):
    """apply_rotary_pos_emb, of whose options one is the config's."""
    options = dict(options)
    config = make_config(rotary_interleaved=options.pop("rotary_interleaved", False))
    return tm.apply_rotary_pos_emb(t, freqs, config, **options, **others)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sbhd(device, dtype, batch, options):
    """batch: that of freqs, as M-RoPE has it."""
    options, freqs = OPTIONS[options], make_freqs(device, batch=batch)
    t = random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=dtype)
    expected = reference(t, *find_cos_sin(freqs), **options)
    check_bits(apply(t, freqs, options), expected, t)
    check_bits(_apply_rotary_pos_emb_bshd(t, freqs, **options), expected, t)
    longer = torch.cat((freqs, make_freqs(device, 5, batch)))  # already cut tables, of which fused RoPE reads the first
    assert torch.equal(apply(t, longer, options), expected)


def test_sbhd_is_near_eager_with_its_cosine(device):
    """Without trope's cosine: all but the few elements whose cosine or sine rounds to another bf16."""
    freqs, t = make_freqs(device, batch=BATCH), random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=torch.bfloat16)
    found, right = apply(t, freqs, {}), reference(t, freqs.cos(), freqs.sin())
    assert (found != right).float().mean() < 0.01
    assert (found - right).abs().max() <= 2.0**-7 * t.abs().max() * 2


@pytest.mark.parametrize("dims", [3, 4])
def test_sbd(device, dims):
    """Of no heads, with freqs of as many dimensions or one more."""
    freqs, t = make_freqs(device, batch=BATCH), random(TOKENS, BATCH, DIM, device=device, dtype=torch.bfloat16)
    cos, sin = find_cos_sin(freqs)
    found = _apply_rotary_pos_emb_bshd(t, freqs[:, :, 0] if dims == 3 else freqs)
    check_bits(found, reference(t, cos[:, :, 0], sin[:, :, 0]), t)


def make_thd(device, dtype, cp_size=1, rows=ROWS, heads=HEADS):
    return random(TOTAL // cp_size, heads, DIM, device=device, dtype=dtype), make_freqs(device, rows)


def reference_thd(t, freqs, rows, options):
    cos, sin = find_cos_sin(freqs)
    return reference(t, cos[rows, 0], sin[rows, 0], **options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("cp_size", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_thd(device, dtype, cp_size, in_stream, options):
    options, cu_seqlens = OPTIONS[options], make_cu_seqlens(device)
    for cp_rank in range(cp_size):
        t, freqs = make_thd(device, dtype, cp_size, TOTAL if in_stream else max(LENGTHS))
        expected = reference_thd(t, freqs, find_rows(cp_size, cp_rank, in_stream), options)
        group = Group(cp_size, cp_rank)
        check_bits(apply(t, freqs, options, cu_seqlens=cu_seqlens, cp_group=group), expected, t)
        found = _apply_rotary_pos_emb_thd(t, cu_seqlens.long(), freqs, cp_group=group, **options)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("cp_size", [2, 4])
@pytest.mark.parametrize("in_stream", [False, True])
def test_ranks_together_are_one_rank(device, cp_size, in_stream):
    t, freqs = make_thd(device, torch.bfloat16, rows=TOTAL if in_stream else max(LENGTHS))
    options = dict(options={"mscale": 1.3}, cu_seqlens=make_cu_seqlens(device))
    whole, together = apply(t, freqs, cp_group=Group(), **options), torch.zeros_like(t)
    for cp_rank in range(cp_size):
        tokens = find_rows(cp_size, cp_rank, True)  # where the rank's tokens are in the stream
        together[tokens] = apply(t[tokens], freqs, cp_group=Group(cp_size, cp_rank), **options)
    assert torch.equal(together, whole)


def test_padded_cu_seqlens(device):
    """What attention passes is cu_seqlens_q_padded alone: padding turns like the sequence that it is behind."""
    lengths = [8, 16, 24]
    freqs, t = make_freqs(device, 40), random(48, HEADS, DIM, device=device, dtype=torch.bfloat16)
    found = apply(t, freqs, {}, cu_seqlens=make_cu_seqlens(device, lengths), cp_group=Group())
    check_bits(found, reference_thd(t, freqs, find_rows(lengths=lengths), {}), t)


RULES = [  # rows of freqs, max_seqlen, cp_size, whether they are one for each token of the stream
    (TOTAL, None, 1, True), (TOTAL, None, 2, True), (TOTAL + 1, None, 1, False), (TOTAL + 1, None, 2, False),
    (max(LENGTHS), None, 1, False), (max(LENGTHS), None, 2, False), (TOTAL - 1, None, 1, False),
    (max(LENGTHS), max(LENGTHS), 1, False), (max(LENGTHS), max(LENGTHS), 2, False),
    (TOTAL, max(LENGTHS), 1, True), (TOTAL, max(LENGTHS), 2, True), (TOTAL, TOTAL, 1, False),
    (TOTAL, "not given", 1, True), (TOTAL, "not given", 2, True), (TOTAL + 1, "not given", 1, False),
]  # fmt: skip


@pytest.mark.parametrize("rows, max_seqlen, cp_size, in_stream", RULES)
def test_whose_positions_freqs_have(device, rows, max_seqlen, cp_size, in_stream):
    t, freqs = make_thd(device, torch.bfloat16, cp_size, rows)
    others = {} if max_seqlen == "not given" else dict(max_seqlen=max_seqlen)
    found = apply(t, freqs, {}, cu_seqlens=make_cu_seqlens(device), cp_group=Group(cp_size, 1 % cp_size), **others)
    check_bits(found, reference_thd(t, freqs, find_rows(cp_size, 1 % cp_size, in_stream), {}), t)


def test_freqs_of_the_stream_end_with_cu_seqlens(device):
    """Without max_seqlen, tokens behind the last sequence do not count."""
    t, freqs = random(TOTAL + 5, HEADS, DIM, device=device), make_freqs(device, TOTAL)
    words = dict(cu_seqlens=make_cu_seqlens(device), cp_group=Group(), max_seqlen=None)
    found = apply(t, freqs, {}, **words)
    assert torch.equal(found[:TOTAL], reference_thd(t[:TOTAL], freqs, find_rows(in_stream=True), {}))


@pytest.mark.parametrize("max_seqlen", [None, TOTAL])
def test_whose_positions_freqs_have_if_compiled(device, max_seqlen):
    """Without max_seqlen, torch.compile breaks the graph where the last of cu_seqlens is read."""
    t, freqs = make_thd(device, torch.bfloat16, 1, TOTAL)
    cu_seqlens, config, group = make_cu_seqlens(device), make_config(), Group()

    def call(t):
        return tm.apply_rotary_pos_emb(t, freqs, config, cu_seqlens, cp_group=group, max_seqlen=max_seqlen)

    compiled = torch.compile(call, backend="eager", fullgraph=max_seqlen is not None)
    assert torch.equal(compiled(t), call(t))
    assert torch.equal(call(t), reference_thd(t, freqs, find_rows(in_stream=max_seqlen is None), {}))


def test_beyond_the_table(device):
    """With max_seqlen, the last row; else an error, or NaN."""
    rows = max(LENGTHS) - 4
    t, freqs = make_thd(device, torch.bfloat16, 1, rows)
    words = dict(cu_seqlens=make_cu_seqlens(device), cp_group=Group())
    found = apply(t, freqs, {}, max_seqlen=rows, **words)
    check_bits(found, reference_thd(t, freqs, find_rows().clamp(max=rows - 1), {}), t)
    if device == "cpu":
        refused("freqs", apply, t, freqs, {}, **words)
    else:
        missing = apply(t, freqs, {}, **words)[..., :ROTARY].isnan().all(-1).all(-1)
        assert torch.equal(missing.cpu(), find_rows() >= rows)


def test_tokens_behind_the_last_sequence_are_zero(device):
    freqs, t = make_freqs(device, ROWS), random(TOTAL + 5, HEADS, DIM, device=device)
    y = apply(t, freqs, {}, cu_seqlens=make_cu_seqlens(device), cp_group=Group())
    dx = torch.autograd.grad(y, t, torch.randn(y.shape, device=device))[0]
    for x in (y, dx):
        assert x[:TOTAL].abs().sum(-1).min() > 0 and x[TOTAL:].abs().max() == 0
    assert torch.equal(y[:TOTAL], reference_thd(t[:TOTAL], freqs, find_rows(), {}))


@pytest.mark.parametrize("interleaved", [False, True])
def test_functions_of_transformer_engine(device, interleaved):
    freqs, t = make_freqs(device, batch=BATCH), random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=torch.bfloat16)
    expected = reference(t, *find_cos_sin(freqs), interleaved)
    check_bits(tm.fused_apply_rotary_pos_emb(t, freqs, interleaved=interleaved), expected, t)
    t, freqs = make_thd(device, torch.bfloat16, 2, TOTAL)
    expected = reference_thd(t, freqs, find_rows(2, 1), dict(rotary_interleaved=interleaved))  # in the sequence
    check_bits(tm.fused_apply_rotary_pos_emb_thd(t, make_cu_seqlens(device), freqs, 2, 1, interleaved), expected, t)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
def test_with_cos_sin(device, interleaved, table_dtype):
    t = random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=torch.bfloat16)
    cos, sin = (x[:, 0, 0] for x in make_tables(device, table_dtype, TOKENS + 1, ROTARY // 2))
    expand = (lambda x: x.repeat_interleave(2, -1)) if interleaved else (lambda x: torch.cat((x, x), -1))
    expected = reference(t, *(expand(x)[:TOKENS, None, None] for x in (cos, sin)), interleaved)
    check_bits(tm.apply_rotary_pos_emb_with_cos_sin(t, cos, sin, interleaved), expected, t)
    check_bits(tm.apply_rotary_pos_emb_with_cos_sin(t, cos, sin.T.contiguous().T, interleaved), expected, t)


def test_config_says_multi_latent_attention(device):
    freqs, t = make_freqs(device), random(TOKENS, BATCH, HEADS, DIM, device=device)
    for mla in (False, True):
        expected = reference(t, *find_cos_sin(freqs), mla_rotary_interleaved=mla)
        config = make_config(multi_latent_attention=mla)
        assert torch.equal(tm.apply_rotary_pos_emb(t, freqs, config, mla_rotary_interleaved=None), expected)
        assert torch.equal(_apply_rotary_pos_emb_bshd(t, freqs, multi_latent_attention=mla), expected)


def test_gradient_of_freqs_and_second_derivatives(device):
    words, cu_seqlens = dict(mla_rotary_interleaved=True, mscale=1.3), make_cu_seqlens(device)
    t = torch.randn(TOTAL // 2, 2, ROTARY, dtype=torch.float64, device=device, requires_grad=True)
    freqs = make_freqs(device, max(LENGTHS)).double().requires_grad_()
    rows, dy = find_rows(2, 1), torch.randn(TOTAL // 2, 2, ROTARY, dtype=torch.float64, device=device)
    first = []
    for y in (
        apply(t, freqs, words, cu_seqlens=cu_seqlens, cp_group=Group(2, 1)),
        reference(t, freqs[rows, 0].cos(), freqs[rows, 0].sin(), **words),
    ):
        grads = torch.autograd.grad(y, (t, freqs), dy, create_graph=True)
        first.append((*grads, *torch.autograd.grad(grads[0].sin().sum() + grads[1].square().sum(), (t, freqs))))
    for found, right in zip(*first):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("freqs_dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_of_freqs(device, freqs_dtype):
    freqs, t = make_freqs(device).to(freqs_dtype), torch.randn(TOKENS, BATCH, HEADS, DIM, device=device).bfloat16()
    assert torch.equal(apply(t, freqs, {}), reference(t, *find_cos_sin(freqs.float())))


@pytest.mark.parametrize("how", ["transposed", "slice"])
def test_memory_changes_no_bits(device, how):
    freqs, x = make_freqs(device, batch=BATCH), torch.randn(TOKENS, BATCH, HEADS, DIM, device=device)
    t = x.transpose(0, 2).contiguous().transpose(0, 2) if how == "transposed" else torch.stack((x, x), 2)[:, :, 0]
    y = apply(t, freqs.transpose(0, 3).contiguous().transpose(0, 3), {})
    assert y.is_contiguous() and torch.equal(y, apply(x, freqs, {}))


# ---- MLA ----

MLA = [  # format, cp_size
    ("sbhd", 1), ("sbhd", 2), ("thd", 1), ("thd", 2),
]  # fmt: skip


def make_mla(device, dtype, layout, cp_size, *ends):
    """A tensor, cu_seqlens or None, and the rows of its tokens. In sbhd tables are cut already, whatever cp_size is."""
    if layout == "sbhd":
        return random(TOKENS, BATCH, *ends, device=device, dtype=dtype), None, torch.arange(TOKENS)[:, None]
    t = random(TOTAL // cp_size, *ends, device=device, dtype=dtype)
    return t, make_cu_seqlens(device), find_rows(cp_size, cp_size - 1)


def reference_mla(x, cos, sin, rows, inverse=False, remove_interleaving=False, nope_dim=NOPE):
    """Of what turns, behind nope_dim elements of x that do not."""
    cos, sin = (table[rows, 0, 0].unsqueeze(-2) for table in (cos, sin))
    turned = reference(x[..., nope_dim:], cos, sin, False, True, 1.0, inverse, remove_interleaving)
    return torch.cat((x[..., :nope_dim], turned), -1)


@pytest.mark.parametrize("inverse, remove", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("layout, cp_size", MLA)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mla_q(device, dtype, layout, cp_size, inverse, remove):
    cos, sin = make_tables(device, dtype)
    t, cu_seqlens, rows = make_mla(device, dtype, layout, cp_size, HEADS, NOPE + ROTARY)
    words = cos, sin, NOPE, ROTARY, cu_seqlens, cp_size - 1, cp_size, False
    expected = reference_mla(t, cos, sin, rows, inverse, remove)
    check_bits(tm.fused_mla_rope_out_of_place(t, *words, inverse, remove), expected, t)
    if not inverse and not remove:
        check_bits(tm.fused_apply_mla_rope_for_q(t.clone(), *words), expected, t)
    leaf = t.detach().clone().requires_grad_()
    for copy, origin in ((t.clone(), t), (leaf, leaf)):
        result = tm.fused_mla_rope_inplace(copy, *words, inverse=inverse, remove_interleaving=remove)
        assert result.data_ptr() == copy.data_ptr() and torch.equal(copy, expected)
        check_bits(result, expected, origin, t)


def test_mla_rope_first(device):
    cos, sin = make_tables(device, torch.bfloat16)
    t, _, rows = make_mla(device, torch.bfloat16, "sbhd", 1, HEADS, ROTARY + NOPE)
    found = tm.fused_mla_rope_inplace(t.clone(), cos, sin, NOPE, ROTARY, rope_first=True)
    expected = reference_mla(t[..., :ROTARY], cos, sin, rows, nope_dim=0)
    check_bits(found, torch.cat((expected, t[..., ROTARY:]), -1), t)


def test_mla_position_ids(device):
    cos, sin = make_tables(device, torch.bfloat16)
    t, cu_seqlens, rows = make_mla(device, torch.bfloat16, "thd", 1, HEADS, NOPE + ROTARY)
    ids = torch.randint(0, ROWS, (TOTAL,), device=device)
    words = dict(cu_seqlens_q=cu_seqlens, position_ids=ids, cp_size=2, cp_rank=1)
    expected = reference_mla(t, cos, sin, ids)
    check_bits(tm.fused_mla_rope_out_of_place(t, cos, sin, NOPE, ROTARY, **words), expected, t)
    assert torch.equal(tm.fused_mla_rope_inplace(t.detach().clone(), cos, sin, NOPE, ROTARY, **words), expected)


def reference_kv(kv, k_pos_emb, cos, sin, rows, remove=False):
    turned = reference_mla(k_pos_emb, cos, sin, rows, remove_interleaving=remove, nope_dim=0)
    key = torch.cat((kv[..., :NOPE], turned.expand(*kv.shape[:-1], ROTARY)), -1)
    return key, kv[..., NOPE:].contiguous()


def sum_heads(dy):
    """The sum over heads, by trope's tree, rounded to the dtype once."""
    total = dy.to(torch.promote_types(dy.dtype, torch.float32))
    while total.shape[-2] > 1:
        if total.shape[-2] % 2:
            total = torch.cat((total, torch.zeros_like(total[..., :1, :])), -2)
        total = total[..., ::2, :] + total[..., 1::2, :]
    return total.to(dy.dtype)


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("layout, cp_size", MLA)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mla_kv(device, launches, dtype, layout, cp_size, remove):
    cos, sin = make_tables(device, dtype)
    kv, cu_seqlens, rows = make_mla(device, dtype, layout, cp_size, HEADS, NOPE + V_DIM)
    k_pos_emb = make_mla(device, dtype, layout, cp_size, 1, ROTARY)[0]
    words = cos, sin, ROTARY, NOPE, V_DIM, cu_seqlens, cp_size - 1, cp_size
    results = tm.fused_mla_rope_kv_split(kv, k_pos_emb, *words, remove_interleaving=remove)
    expected = reference_kv(kv, k_pos_emb, cos, sin, rows, remove)
    check_bits(results, expected, kv)
    assert launches == [3] * 3
    if not remove:
        check_bits(tm.fused_apply_mla_rope_for_kv(kv, k_pos_emb, *words), expected, kv)
    upstream = [torch.randn(y.shape, device=device).to(dtype) for y in results]
    found = torch.autograd.grad(results, k_pos_emb, upstream)[0]
    # As autograd of a head that is rotated and then expanded, but for the order of the sum.
    turned = reference_mla(k_pos_emb, cos, sin, rows, remove_interleaving=remove, nope_dim=0)
    expected = torch.autograd.grad(turned, k_pos_emb, sum_heads(upstream[0][..., NOPE:]))[0]
    assert torch.equal(found, expected)


def test_mla_kv_of_a_slice_and_twice(device):
    """Views of larger tensors, second derivatives, and gradients of which one is not there."""
    cos, sin = make_tables(device, torch.float64)
    kv = torch.randn(TOTAL, HEADS, NOPE + V_DIM, dtype=torch.float64, device=device, requires_grad=True)
    both = torch.randn(TOTAL, 5 + ROTARY, dtype=torch.float64, device=device, requires_grad=True)
    dy = torch.randn(TOTAL, HEADS, NOPE + ROTARY, dtype=torch.float64, device=device, requires_grad=True)
    words = cos, sin, ROTARY, NOPE, V_DIM, make_cu_seqlens(device)
    found = []
    for call in (
        lambda k_pos_emb: tm.fused_mla_rope_kv_split(kv, k_pos_emb, *words),
        lambda k_pos_emb: reference_kv(kv, k_pos_emb, cos, sin, find_rows()),
    ):
        key, value = call(both[:, 5:].unsqueeze(1))
        first = torch.autograd.grad(key, (kv, both), dy, create_graph=True)
        second = torch.autograd.grad(first[0].sin().sum() + first[1].square().sum(), dy)
        mixed = torch.autograd.grad(key.square().sum() + value.sin().sum(), (kv, both))
        found.append((*first, *second, *mixed))
    for x, right in zip(*found):
        torch.testing.assert_close(x, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout, cp_size", MLA)
def test_mla_concat(device, launches, layout, cp_size):
    cos, sin = make_tables(device, torch.bfloat16)
    nope, cu_seqlens, rows = make_mla(device, torch.bfloat16, layout, cp_size, HEADS, NOPE)
    rope = make_mla(device, torch.bfloat16, layout, cp_size, HEADS, ROTARY)[0]
    found = tm.fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens, cp_size - 1, cp_size)
    check_bits(found, reference_mla(torch.cat((nope, rope), -1), cos, sin, rows), (nope, rope))
    assert launches == [2] * 3


# ---- Packed QKV ----


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_qkv(device, launches, dtype, tables, interleaved):
    q_freqs = make_freqs(device)
    k_freqs = q_freqs if tables == 1 else make_freqs(device, columns=8)
    qkv = random(TOKENS, BATCH, 2, 5 * DIM, device=device, dtype=dtype)
    results = tm.apply_fused_qkv_rotary_pos_emb(qkv, q_freqs, k_freqs, [3 * DIM, DIM, DIM], interleaved=interleaved)
    assert launches == ([3] if tables == 1 else [2, 1])
    q, k, v = qkv.split((3 * DIM, DIM, DIM), -1)
    q = reference(q.reshape(TOKENS, BATCH, 6, DIM), *find_cos_sin(q_freqs), interleaved)
    k = reference(k, *find_cos_sin(k_freqs), interleaved)
    check_bits(results, (q, k, v.contiguous()), qkv)


def test_packed_qkv_of_packed_sequences(device):
    freqs, qkv = make_freqs(device, ROWS), random(TOTAL // 2, 2, 3 * DIM, device=device, dtype=torch.bfloat16)
    words = "thd", None, False, make_cu_seqlens(device), 2, 1
    results = tm.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [DIM] * 3, *words)
    q, k, v = qkv.chunk(3, -1)
    q, k = (reference_thd(x, freqs, find_rows(2, 1), {}) for x in (q, k))
    check_bits(results, (q, k, v.contiguous()), qkv)


# ---- M-RoPE with three tables ----


def select_axes(freqs, section, interleaved_mrope):
    """[b, s, pairs] of [3, b, s, pairs]."""
    if interleaved_mrope:
        axes = [i % 3 if i < 3 * section[i % 3] else 0 for i in range(sum(section))]
    else:
        axes = [axis for axis, pairs in enumerate(section) for _ in range(pairs)]
    return torch.stack([freqs[axis, ..., i] for i, axis in enumerate(axes)], -1)


@pytest.mark.parametrize("fp32_compute", [False, True])
@pytest.mark.parametrize("interleaved_mrope", [False, True])
@pytest.mark.parametrize("layout, cp_size", MLA[:1] + MLA[2:])
def test_mrope(device, layout, cp_size, interleaved_mrope, fp32_compute):
    section, dtype = [4, 2, 2], torch.bfloat16
    if layout == "sbhd":
        t, rows = random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=dtype), slice(None)
        freqs = (torch.rand(3, BATCH, TOKENS, ROTARY // 2, device=device) - 0.5) * 8
        found = tm.fused_apply_mrope(t, freqs, section, interleaved_mrope, fp32_compute=fp32_compute)
    else:
        t, rows = make_thd(device, dtype, cp_size)[0], find_rows(cp_size, 0, True)
        freqs = (torch.rand(3, 1, TOTAL, ROTARY // 2, device=device) - 0.5) * 8
        words = section, interleaved_mrope, False, cp_size, 0, fp32_compute
        found = tm.fused_apply_mrope_thd(t, make_cu_seqlens(device), freqs, *words)
    angles = select_axes(freqs, section, interleaved_mrope).transpose(0, 1)[rows]
    angles = torch.cat((angles, angles), -1)
    cos, sin = find_cos_sin(angles.unsqueeze(2) if layout == "sbhd" else angles)
    expected = reference(t.float() if fp32_compute else t, cos, sin).to(dtype)
    check_bits(found, expected, t)


# ---- No tokens, torch.compile, refusals ----


def test_no_tokens(device):
    cos, sin = make_tables(device, torch.float32)
    kv = random(0, BATCH, HEADS, NOPE + V_DIM, device=device)
    k_pos_emb = random(0, BATCH, 1, ROTARY, device=device)
    key, value = tm.fused_mla_rope_kv_split(kv, k_pos_emb, cos, sin, ROTARY, NOPE, V_DIM)
    assert key.shape == (0, BATCH, HEADS, NOPE + ROTARY) and value.shape == (0, BATCH, HEADS, V_DIM)
    t = random(0, BATCH, HEADS, DIM, device=device)
    y = apply(t, make_freqs(device), {})
    for dx, x in zip(torch.autograd.grad(key.sum() + value.sum() + y.sum(), (kv, k_pos_emb, t)), (kv, k_pos_emb, t)):
        assert dx.shape == x.shape


def test_compile(device):
    freqs, (cos, sin) = make_freqs(device, TOTAL), make_tables(device, torch.bfloat16)
    cu_seqlens, config = make_cu_seqlens(device), make_config()
    thd = random(TOTAL, HEADS, DIM, device=device, dtype=torch.bfloat16)
    kv = random(TOTAL, HEADS, NOPE + V_DIM, device=device, dtype=torch.bfloat16)
    k_pos_emb = random(TOTAL, 1, ROTARY, device=device, dtype=torch.bfloat16)
    qkv = random(TOTAL, 2, 2, 4 * DIM, device=device, dtype=torch.bfloat16)
    calls = [
        (lambda t: (tm.apply_rotary_pos_emb(t, freqs, config, cu_seqlens, 1.3, Group(), True),), (thd,)),
        (lambda *both: tm.fused_mla_rope_kv_split(*both, cos, sin, ROTARY, NOPE, V_DIM, cu_seqlens), (kv, k_pos_emb)),
        (lambda qkv: tm.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, [2 * DIM, DIM, DIM]), (qkv,)),
        (lambda *both: (tm.fused_mla_rope_concat(*both, cos, sin, cu_seqlens),), (kv, k_pos_emb.expand(-1, HEADS, -1))),
    ]
    for call, inputs in calls:
        compiled, eager = torch.compile(call, backend="aot_eager", fullgraph=True)(*inputs), call(*inputs)
        upstream = [torch.randn(y.shape, device=device).to(y.dtype) for y in eager]
        for y, right in zip(compiled, eager):
            assert y.is_contiguous() and torch.equal(y, right)
        for dx, right in zip(*(torch.autograd.grad(ys, inputs, upstream) for ys in (compiled, eager))):
            assert torch.equal(dx, right)


def refused(argument, call, *arguments, **options):
    with pytest.raises(trope.Error) as caught:
        call(*arguments, **options)
    assert caught.value.argument == argument and argument in str(caught.value)


def test_refusals_of_freqs():
    freqs, t, config = make_freqs("cpu"), torch.randn(TOKENS, BATCH, HEADS, DIM), make_config()
    call, thd = tm.apply_rotary_pos_emb, dict(cu_seqlens=make_cu_seqlens("cpu"), cp_group=Group())
    refused("t", call, t[0, 0], freqs, config)
    refused("t", call, t, freqs, config, **thd)
    refused("freqs", call, t, freqs[:, 0], config)
    refused("freqs", call, t, freqs.expand(-1, -1, HEADS, -1), config)
    refused("freqs", call, t, make_freqs("cpu", batch=2), config)
    refused("freqs", call, t, make_freqs("cpu", columns=DIM + 2), config)
    refused("freqs", call, t, make_freqs("cpu", columns=7), config)
    refused("freqs", call, t, freqs[:-1], config)
    refused("freqs", call, t[:, 0], make_freqs("cpu", 80, 2), config, **thd)
    refused("cp_group", _apply_rotary_pos_emb_thd, t[:, 0], thd["cu_seqlens"], freqs)
    refused("mla_rotary_interleaved", call, t, freqs, make_config(rotary_interleaved=True), mla_rotary_interleaved=True)
    refused("mscale", call, t, freqs, config, mscale=0.0)
    refused("transpose_output_memory", tm.fused_apply_rotary_pos_emb, t, freqs, True)
    uneven = make_cu_seqlens("cpu", [6, 26])
    refused("cu_seqlens", call, t[:, 0], make_freqs("cpu", 80), config, cu_seqlens=uneven, cp_group=Group(2, 0))


def test_refusals_of_cos_and_sin():
    (cos, sin), t = make_tables("cpu", torch.float32), torch.randn(TOKENS, BATCH, HEADS, NOPE + ROTARY)
    call = tm.fused_mla_rope_out_of_place
    refused("t", call, t, cos, sin, NOPE + 2, ROTARY)
    refused("t", call, t, cos, sin, NOPE, ROTARY, make_cu_seqlens("cpu"))
    refused("cos", call, t, cos[:, 0], sin, NOPE, ROTARY)
    refused("cos", call, t, cos[: TOKENS - 1], sin, NOPE, ROTARY)
    refused("sin", call, t, cos, sin[..., 2:], NOPE, ROTARY)
    refused("sin", call, t, cos, sin[:TOKENS], NOPE, ROTARY)
    refused("cos", call, t, cos.requires_grad_(), sin, NOPE, ROTARY)
    cos = cos.detach()
    refused("rotary_interleaved", call, t, cos, sin, NOPE, ROTARY, rotary_interleaved=True)
    refused("position_ids", call, t, cos, sin, NOPE, ROTARY, position_ids=torch.arange(TOKENS))
    kv, k_pos_emb = torch.randn(TOKENS, BATCH, HEADS, NOPE + V_DIM), torch.randn(TOKENS, BATCH, 1, ROTARY)
    split = ROTARY, NOPE, V_DIM
    refused("kv", tm.fused_mla_rope_kv_split, kv, k_pos_emb, cos, sin, ROTARY, NOPE, V_DIM + 1)
    refused("k_pos_emb", tm.fused_mla_rope_kv_split, kv, k_pos_emb[:, :, 0], cos, sin, *split)
    refused("cos", tm.fused_mla_rope_kv_split, kv, k_pos_emb, cos.requires_grad_(), sin, *split)
    refused("nope", tm.fused_mla_rope_concat, kv, k_pos_emb, cos.detach(), sin)
    half = cos.detach()[:TOKENS, 0, 0, :8]
    refused("cos", tm.apply_rotary_pos_emb_with_cos_sin, t, half[:-1], half)
    refused("sin", tm.apply_rotary_pos_emb_with_cos_sin, t, half, half[None])


def test_refusals_of_mrope():
    t, freqs = torch.randn(TOKENS, BATCH, HEADS, DIM), torch.randn(3, BATCH, TOKENS, 8)
    refused("rotary_interleaved", tm.fused_apply_mrope, t, freqs, [4, 2, 2], rotary_interleaved=True)
    refused("freqs", tm.fused_apply_mrope, t, freqs[:, :1], [4, 2, 2])
    refused("freqs", tm.fused_apply_mrope, t, torch.randn(3, BATCH, TOKENS, 13), [4, 4, 5])
    refused("mrope_section", tm.fused_apply_mrope, t, freqs, [4, 2, 1])
    refused("mrope_section", tm.fused_apply_mrope, t, freqs, [4, 4])
    refused("freqs", tm.fused_apply_mrope_thd, t[:, 0], make_cu_seqlens("cpu", [16]), freqs, [4, 2, 2])
