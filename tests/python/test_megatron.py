"""trope.megatron compared bit by bit with Megatron-Core's unfused formulas. Eager PyTorch computes them operation by
operation in the tensors' dtype, and autograd gives the transpose. Tables are random, so that their halves differ. In-place
MLA and the patch have their own files. test_dropins.py tests what all drop-in modules have in common."""

import itertools
import types

import pytest

torch = pytest.importorskip("torch")

import trope.megatron as tm  # noqa: E402
import trope.torch  # noqa: E402
from checks import check, check_results, device, random  # noqa: E402, F401 (device is a fixture)
from dropins import Group  # noqa: E402
from reference import axes_of_pairs, of_table, packed_positions, rotate, to_columns  # noqa: E402
from refusals import refused  # noqa: E402
from trope.megatron._rope import _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
BATCH, HEADS, DIM, ROTARY, TOKENS, ROWS = 3, 4, 24, 16, 16, 80
NOPE, V_DIM = 10, 6  # MLA: elements of a head that do not rotate, and of a value
LENGTHS = [16, 0, 32, 8]  # lengths in the whole stream, divisible by 8: two chunks for each of four ranks
TOTAL = sum(LENGTHS)


def make_config(**options):
    known = dict(rotary_interleaved=False, multi_latent_attention=False, apply_rope_fusion=True, mrope_section=None)
    return types.SimpleNamespace(**dict(known, **options))


def make_freqs(device, rows=TOKENS, batch=1, columns=ROTARY):
    return (torch.rand(rows, batch, 1, columns, device=device) - 0.5) * 8


def make_tables(device, dtype, rows=ROWS, columns=ROTARY):
    """cos and sin tables for MLA, whose halves differ."""
    freqs = make_freqs(device, rows, columns=columns)
    return (freqs.cos() * 1.3).to(dtype), (freqs.sin() * 1.3).to(dtype)


def make_cu_seqlens(device, lengths=LENGTHS):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def make_sbhd(device, dtype=torch.float32):
    return random(TOKENS, BATCH, HEADS, DIM, device=device, dtype=dtype)


def make_thd(device, dtype, cp_size=1, rows=ROWS):
    return random(TOTAL // cp_size, HEADS, DIM, device=device, dtype=dtype), make_freqs(device, rows)


def find_rows(cp_size=1, cp_rank=0, in_stream=False, lengths=LENGTHS):
    """The table rows that a rank's tokens have in thd, sequence by sequence."""
    ends, cp = [0, *itertools.accumulate(lengths)], ("zigzag" if cp_size > 1 else "none", cp_size, cp_rank)
    return torch.from_numpy(packed_positions(ends[-1] // cp_size, ends, stream=in_stream, cp=cp)[0])


def find_cos_sin(freqs):
    """trope's cosines and sines of f32 freqs, found by rotating unit vectors. Their errors must be at most 2^-23. The tests
    use them to compare bits."""
    angles = freqs.detach().reshape(-1, 1, 1, 1)
    unit = torch.tensor([1.0, 0.0], device=freqs.device).expand(len(angles), 1, 1, 2)
    words = dict(layout="sbhd", pairing="half", angle_columns="pair", rounding="native_f32")
    turned = trope.torch.rotate(unit, freqs=angles[:, 0, 0], **words)[:, 0, 0]
    cos, sin = (x.view(freqs.shape) for x in turned.unbind(-1))
    for found, exact in ((cos, freqs.double().cos()), (sin, freqs.double().sin())):
        assert (found - exact).abs().max() <= 2.0**-23
    return cos, sin


def formula(
    t, cos, sin, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False,
):  # fmt: skip
    """Megatron's unfused formula: t [tokens..., heads, d], cos and sin [tokens..., 1, d2] before mscale, in f32 or, for
    MLA, in t's dtype."""
    tables = [(table.squeeze(-2) * mscale).to(t.dtype) for table in (cos, sin)]
    coefficients = of_table(*tables, "interleaved" if rotary_interleaved else "half")
    pairing = "interleaved" if rotary_interleaved or mla_rotary_interleaved else "half"
    pairing_out = "half" if mla_rotary_interleaved and not mla_output_remove_interleaving else None
    return rotate(t, coefficients, pairing, pairing_out, inverse=inverse)


def formula_of_freqs(freqs, rows=None, **options):
    """Returns the formula for sbhd tensors or, with `rows`, for thd tensors whose tokens have these rows of freqs."""
    cos, sin = (table if rows is None else table[rows, 0] for table in find_cos_sin(freqs))
    return lambda t: formula(t, cos[: len(t)], sin[: len(t)], **options)


def check_bits(function, inputs, formula, **options):
    results = check(function, inputs, formula, bits=True, **options)
    assert all(y.is_contiguous() for y in results)


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
    """Calls apply_rotary_pos_emb. The option rotary_interleaved becomes a key of the config."""
    options = dict(options)
    config = make_config(rotary_interleaved=options.pop("rotary_interleaved", False))
    return tm.apply_rotary_pos_emb(t, freqs, config, **options, **others)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sbhd(device, dtype, batch, options):
    """batch: the batch size of freqs, which is not 1 in M-RoPE. Fused RoPE reads the first rows of a longer table, since
    Megatron has already cut freqs for the rank."""
    options, freqs, t = OPTIONS[options], make_freqs(device, batch=batch), make_sbhd(device, dtype)
    right = formula_of_freqs(freqs, **options)
    check_bits(lambda t: apply(t, freqs, options), t, right)
    check_bits(lambda t: _apply_rotary_pos_emb_bshd(t, freqs, **options), t, right)
    assert torch.equal(apply(t, torch.cat((freqs, make_freqs(device, 5, batch))), options), right(t))


def test_sbhd_is_near_eager_code_with_the_cosine_of_pytorch(device):
    """The formula with PyTorch's cosine differs in only a few elements, whose cosine or sine rounds to another bf16."""
    freqs, t = make_freqs(device, batch=BATCH), make_sbhd(device, torch.bfloat16)
    found, right = apply(t, freqs, {}), formula(t, freqs.cos(), freqs.sin())
    assert (found != right).float().mean() < 0.01
    assert (found - right).abs().max() <= 2.0**-7 * t.abs().max() * 2


@pytest.mark.parametrize("dims", [3, 4])
def test_sbd(device, dims):
    """t has no heads. freqs has as many dimensions as t, or one more."""
    freqs, t = make_freqs(device, batch=BATCH), random(TOKENS, BATCH, DIM, device=device, dtype=torch.bfloat16)
    given, right = freqs[:, :, 0] if dims == 3 else freqs, formula_of_freqs(freqs)
    check_bits(lambda t: _apply_rotary_pos_emb_bshd(t, given), t, lambda t: right(t.unsqueeze(-2)).squeeze(-2))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize("cp_size", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_thd(device, dtype, cp_size, in_stream, options):
    options, cu_seqlens = OPTIONS[options], make_cu_seqlens(device)
    for cp_rank in range(cp_size):
        t, freqs = make_thd(device, dtype, cp_size, TOTAL if in_stream else max(LENGTHS))
        right, group = formula_of_freqs(freqs, find_rows(cp_size, cp_rank, in_stream), **options), Group(cp_size, cp_rank)
        check_bits(lambda t: apply(t, freqs, options, cu_seqlens=cu_seqlens, cp_group=group), t, right)
        found = _apply_rotary_pos_emb_thd(t, cu_seqlens.long(), freqs, cp_group=group, **options)
        assert torch.equal(found, right(t))
    refused("cp_group", _apply_rotary_pos_emb_thd, t, cu_seqlens, freqs, words="is missing")


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
    """Attention passes only cu_seqlens_q_padded. So the padding after a sequence rotates as if the sequence continued."""
    lengths, freqs, t = [8, 16, 24], make_freqs(device, 40), random(48, HEADS, DIM, device=device, dtype=torch.bfloat16)
    words = dict(cu_seqlens=make_cu_seqlens(device, lengths), cp_group=Group())
    check_bits(lambda t: apply(t, freqs, {}, **words), t, formula_of_freqs(freqs, find_rows(lengths=lengths)))


RULES = [  # (rows of freqs, max_seqlen, cp_size, whether there is a row for each token of the stream)
    (TOTAL, None, 1, True), (TOTAL, None, 2, True), (TOTAL + 1, None, 1, False), (TOTAL + 1, None, 2, False),
    (max(LENGTHS), None, 1, False), (max(LENGTHS), None, 2, False), (TOTAL - 1, None, 1, False),
    (max(LENGTHS), max(LENGTHS), 1, False), (max(LENGTHS), max(LENGTHS), 2, False),
    (TOTAL, max(LENGTHS), 1, True), (TOTAL, max(LENGTHS), 2, True), (TOTAL, TOTAL, 1, False),
    (TOTAL, "not given", 1, True), (TOTAL, "not given", 2, True), (TOTAL + 1, "not given", 1, False),
]  # fmt: skip


@pytest.mark.parametrize("rows, max_seqlen, cp_size, in_stream", RULES)
def test_freqs_of_the_stream_or_of_one_sequence(device, rows, max_seqlen, cp_size, in_stream):
    (t, freqs), rank = make_thd(device, torch.bfloat16, cp_size, rows), 1 % cp_size
    words = dict(cu_seqlens=make_cu_seqlens(device), cp_group=Group(cp_size, rank))
    words.update({} if max_seqlen == "not given" else dict(max_seqlen=max_seqlen))
    check_bits(lambda t: apply(t, freqs, {}, **words), t, formula_of_freqs(freqs, find_rows(cp_size, rank, in_stream)))


def test_freqs_of_the_stream_end_with_cu_seqlens(device):
    """Without max_seqlen, tokens after the last sequence do not count as part of the stream."""
    t, freqs = random(TOTAL + 5, HEADS, DIM, device=device), make_freqs(device, TOTAL)
    found = apply(t, freqs, {}, cu_seqlens=make_cu_seqlens(device), cp_group=Group(), max_seqlen=None)
    assert torch.equal(found[:TOTAL], formula_of_freqs(freqs, find_rows(in_stream=True))(t[:TOTAL]))


@pytest.mark.parametrize("max_seqlen", [None, TOTAL])
def test_compiled_freqs_of_the_stream_or_of_one_sequence(device, max_seqlen):
    """Without max_seqlen, torch.compile breaks the graph where the last element of cu_seqlens is read."""
    (t, freqs), config = make_thd(device, torch.bfloat16, 1, TOTAL), make_config()
    words = dict(cu_seqlens=make_cu_seqlens(device), cp_group=Group(), max_seqlen=max_seqlen)
    call = torch.compile(
        lambda t: tm.apply_rotary_pos_emb(t, freqs, config, **words), backend="eager", fullgraph=max_seqlen is not None
    )
    assert torch.equal(call(t), formula_of_freqs(freqs, find_rows(in_stream=max_seqlen is None))(t))


def test_positions_beyond_the_table(device):
    """With max_seqlen, positions beyond the table use its last row. Without it, they give an error, or NaN on a GPU."""
    rows = max(LENGTHS) - 4
    (t, freqs), words = make_thd(device, torch.bfloat16, 1, rows), dict(
        cu_seqlens=make_cu_seqlens(device), cp_group=Group()
    )
    last = formula_of_freqs(freqs, find_rows().clamp(max=rows - 1))
    check_bits(lambda t: apply(t, freqs, {}, max_seqlen=rows, **words), t, last)
    if device == "cpu":
        refused("freqs", apply, t, freqs, {}, **words)
    else:
        missing = apply(t, freqs, {}, **words)[..., :ROTARY].isnan().all(-1).all(-1)
        assert torch.equal(missing.cpu(), find_rows() >= rows)


def test_tokens_after_the_last_sequence_are_zero(device):
    freqs, words = make_freqs(device, ROWS), dict(cu_seqlens=make_cu_seqlens(device), cp_group=Group())
    turn = formula_of_freqs(freqs, find_rows())
    check_bits(
        lambda t: apply(t, freqs, {}, **words),
        random(TOTAL + 5, HEADS, DIM, device=device),
        lambda t: torch.cat((turn(t[:TOTAL]), 0 * t[TOTAL:])),
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_functions_of_transformer_engine(device, interleaved):
    freqs, words = make_freqs(device, batch=BATCH), dict(rotary_interleaved=interleaved)
    check_bits(
        lambda t: tm.fused_apply_rotary_pos_emb(t, freqs, interleaved=interleaved),
        make_sbhd(device, torch.bfloat16),
        formula_of_freqs(freqs, **words),
    )
    (t, freqs), cu_seqlens = make_thd(device, torch.bfloat16, 2, TOTAL), make_cu_seqlens(device)
    right = formula_of_freqs(freqs, find_rows(2, 1), **words)  # positions in each sequence
    check_bits(lambda t: tm.fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, 2, 1, interleaved), t, right)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.bfloat16])
def test_with_cos_sin(device, interleaved, table_dtype):
    t, columns = make_sbhd(device, torch.bfloat16), "interleaved" if interleaved else "half"
    cos, sin = (x[:, 0, 0] for x in make_tables(device, table_dtype, TOKENS + 1, ROTARY // 2))
    wide = [to_columns(x, columns)[:TOKENS, None, None] for x in (cos, sin)]
    for other_sin in (sin, sin.T.contiguous().T):
        function = lambda t: tm.apply_rotary_pos_emb_with_cos_sin(t, cos, other_sin, interleaved)  # noqa: E731
        check_bits(function, t, lambda t: formula(t, *wide, interleaved))


def test_multi_latent_attention_of_the_config(device):
    freqs, t = make_freqs(device), make_sbhd(device)
    for mla in (False, True):
        expected = formula_of_freqs(freqs, mla_rotary_interleaved=mla)(t)
        config = make_config(multi_latent_attention=mla)
        assert torch.equal(tm.apply_rotary_pos_emb(t, freqs, config, mla_rotary_interleaved=None), expected)
        assert torch.equal(_apply_rotary_pos_emb_bshd(t, freqs, multi_latent_attention=mla), expected)


def second_derivatives(y, inputs, dy):
    """The first derivatives for the upstream gradient dy, and then the derivatives of a function of these first
    derivatives."""
    first = torch.autograd.grad(y, inputs, dy, create_graph=True)
    return (*first, *torch.autograd.grad(first[0].sin().sum() + first[1].square().sum(), (*inputs, dy), allow_unused=True))


def test_gradient_of_freqs_and_second_derivatives(device):
    words, cu_seqlens, rows = dict(mla_rotary_interleaved=True, mscale=1.3), make_cu_seqlens(device), find_rows(2, 1)
    t, dy = (random(TOTAL // 2, 2, ROTARY, dtype=torch.float64, device=device, grad=True) for _ in range(2))
    freqs = make_freqs(device, max(LENGTHS)).double().requires_grad_()
    found = second_derivatives(apply(t, freqs, words, cu_seqlens=cu_seqlens, cp_group=Group(2, 1)), (t, freqs), dy)
    right = second_derivatives(formula(t, freqs[rows, 0].cos(), freqs[rows, 0].sin(), **words), (t, freqs), dy)
    for derivative, expected in zip(found, right):
        torch.testing.assert_close(derivative, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("freqs_dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_of_freqs(device, freqs_dtype):
    freqs, t = make_freqs(device).to(freqs_dtype), make_sbhd(device, torch.bfloat16)
    assert torch.equal(apply(t, freqs, {}), formula_of_freqs(freqs.float())(t))


def test_strides_of_freqs_change_no_bits(device):
    freqs, t = make_freqs(device, batch=BATCH), make_sbhd(device)
    assert torch.equal(apply(t, freqs.transpose(0, 3).contiguous().transpose(0, 3), {}), apply(t, freqs, {}))


# ---- MLA ----

MLA = [("sbhd", 1), ("sbhd", 2), ("thd", 1), ("thd", 2)]  # (layout, cp_size)


def make_mla(device, dtype, layout, cp_size, *ends):
    """A tensor, cu_seqlens or None, and the table rows of the tokens. In sbhd, tables are already cut for the rank, so that
    cp_size does not matter."""
    if layout == "sbhd":
        return random(TOKENS, BATCH, *ends, device=device, dtype=dtype), None, torch.arange(TOKENS)[:, None]
    t = random(TOTAL // cp_size, *ends, device=device, dtype=dtype)
    return t, make_cu_seqlens(device), find_rows(cp_size, cp_size - 1)


def formula_of_mla(x, cos, sin, rows, inverse=False, remove_interleaving=False, nope_dim=NOPE):
    """Rotates x, except for the first nope_dim elements of each head."""
    turned = formula(x[..., nope_dim:], cos[rows, 0], sin[rows, 0], False, True, 1.0, inverse, remove_interleaving)
    return torch.cat((x[..., :nope_dim], turned), -1)


@pytest.mark.parametrize("inverse, remove", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("layout, cp_size", MLA)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mla_q(device, dtype, layout, cp_size, inverse, remove):
    tables = make_tables(device, dtype)
    t, cu_seqlens, rows = make_mla(device, dtype, layout, cp_size, HEADS, NOPE + ROTARY)
    words = *tables, NOPE, ROTARY, cu_seqlens, cp_size - 1, cp_size, False
    right = lambda t: formula_of_mla(t, *tables, rows, inverse, remove)  # noqa: E731
    check_bits(lambda t: tm.fused_mla_rope_out_of_place(t, *words, inverse, remove), t, right)
    if not inverse and not remove:
        check_bits(lambda t: tm.fused_apply_mla_rope_for_q(t, *words), t, right, in_place=True)
    in_place = lambda t: tm.fused_mla_rope_inplace(t, *words, inverse=inverse, remove_interleaving=remove)  # noqa: E731
    check_bits(in_place, t, right, in_place=True)
    leaf = t.clone().requires_grad_()
    result = in_place(leaf)
    t.requires_grad_()
    assert result.data_ptr() == leaf.data_ptr() and torch.equal(leaf, result)
    check_results(result, leaf, right(t), t, bits=True)


def test_mla_rope_first(device):
    tables = make_tables(device, torch.bfloat16)
    t, _, rows = make_mla(device, torch.bfloat16, "sbhd", 1, HEADS, ROTARY + NOPE)
    check_bits(
        lambda t: tm.fused_mla_rope_inplace(t, *tables, NOPE, ROTARY, rope_first=True),
        t,
        lambda t: torch.cat((formula_of_mla(t[..., :ROTARY], *tables, rows, nope_dim=0), t[..., ROTARY:]), -1),
        in_place=True,
    )


def test_mla_position_ids(device):
    tables = make_tables(device, torch.bfloat16)
    t, cu_seqlens, _ = make_mla(device, torch.bfloat16, "thd", 1, HEADS, NOPE + ROTARY)
    ids = torch.randint(0, ROWS, (TOTAL,), device=device)
    words = dict(cu_seqlens_q=cu_seqlens, position_ids=ids, cp_size=2, cp_rank=1)
    for function, in_place in ((tm.fused_mla_rope_out_of_place, False), (tm.fused_mla_rope_inplace, True)):
        call = lambda t: function(t, *tables, NOPE, ROTARY, **words)  # noqa: E731
        check_bits(call, t, lambda t: formula_of_mla(t, *tables, ids), in_place=in_place)


def formula_of_kv(kv, k_pos_emb, cos, sin, rows, remove=False):
    turned = formula_of_mla(k_pos_emb, cos, sin, rows, remove_interleaving=remove, nope_dim=0)
    return torch.cat((kv[..., :NOPE], turned.expand(*kv.shape[:-1], ROTARY)), -1), kv[..., NOPE:].contiguous()


def sum_heads(dy):
    """The sum over heads in the order of trope's tree, rounded to the dtype once."""
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
    tables = make_tables(device, dtype)
    kv, cu_seqlens, rows = make_mla(device, dtype, layout, cp_size, HEADS, NOPE + V_DIM)
    k_pos_emb = make_mla(device, dtype, layout, cp_size, 1, ROTARY)[0].requires_grad_()
    words = *tables, ROTARY, NOPE, V_DIM, cu_seqlens, cp_size - 1, cp_size
    functions = [lambda *both: tm.fused_mla_rope_kv_split(*both, *words, remove_interleaving=remove)]
    functions += [] if remove else [lambda *both: tm.fused_apply_mla_rope_for_kv(*both, *words)]
    for function in functions:
        frozen = k_pos_emb.detach()
        check_bits(lambda kv: function(kv, frozen), kv, lambda kv: formula_of_kv(kv, frozen, *tables, rows, remove))
    launches.clear()
    results = functions[0](kv, k_pos_emb)
    upstream = [torch.randn(y.shape, device=device).to(dtype) for y in results]
    found = torch.autograd.grad(results[0], k_pos_emb, upstream[0])[0]
    assert launches == [3] * 2
    # PyTorch's gradient of a head that is rotated and then expanded is the same, except for the order of its sum.
    turned = formula_of_mla(k_pos_emb, *tables, rows, remove_interleaving=remove, nope_dim=0)
    assert torch.equal(found, torch.autograd.grad(turned, k_pos_emb, sum_heads(upstream[0][..., NOPE:]))[0])


def test_mla_kv_of_a_view_and_second_derivatives(device):
    """k_pos_emb is a view of a larger tensor. Second derivatives are compared too, with an upstream gradient for only one
    result."""
    tables = make_tables(device, torch.float64)
    shapes = (TOTAL, HEADS, NOPE + V_DIM), (TOTAL, 5 + ROTARY), (TOTAL, HEADS, NOPE + ROTARY)
    kv, both, dy = (random(*shape, dtype=torch.float64, device=device, grad=True) for shape in shapes)
    words, found = (ROTARY, NOPE, V_DIM, make_cu_seqlens(device)), []
    for call in (
        lambda k_pos_emb: tm.fused_mla_rope_kv_split(kv, k_pos_emb, *tables, *words),
        lambda k_pos_emb: formula_of_kv(kv, k_pos_emb, *tables, find_rows()),
    ):
        key, value = call(both[:, 5:].unsqueeze(1))
        mixed = torch.autograd.grad(key.square().sum() + value.sin().sum(), (kv, both), retain_graph=True)
        found.append([*mixed, *(t for t in second_derivatives(key, (kv, both), dy) if t is not None)])
    assert len(found[0]) == len(found[1])
    for x, right in zip(*found):
        torch.testing.assert_close(x, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout, cp_size", MLA)
def test_mla_concat(device, launches, layout, cp_size):
    tables = make_tables(device, torch.bfloat16)
    nope, cu_seqlens, rows = make_mla(device, torch.bfloat16, layout, cp_size, HEADS, NOPE)
    rope = make_mla(device, torch.bfloat16, layout, cp_size, HEADS, ROTARY)[0]
    check_bits(
        lambda *both: tm.fused_mla_rope_concat(*both, *tables, cu_seqlens, cp_size - 1, cp_size),
        [nope, rope],
        lambda *both: formula_of_mla(torch.cat(both, -1), *tables, rows),
    )
    assert launches == [2] * 4  # forward, and three upstream gradients


# ---- Packed QKV ----


def check_qkv(qkv, q_freqs, k_freqs, split, words, rows=None, interleaved=False):
    def right(qkv):
        q, k, v = qkv.split(split, -1)
        q, k = (t.unflatten(-1, (-1, split[1])).flatten(-3, -2) for t in (q, k))
        turn_q, turn_k = (formula_of_freqs(f, rows, rotary_interleaved=interleaved) for f in (q_freqs, k_freqs))
        return turn_q(q), turn_k(k), v

    check_bits(lambda qkv: tm.apply_fused_qkv_rotary_pos_emb(qkv, q_freqs, k_freqs, split, *words), qkv, right)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_qkv(device, launches, dtype, tables, interleaved):
    q_freqs = make_freqs(device)
    k_freqs = q_freqs if tables == 1 else make_freqs(device, columns=8)
    qkv, words = random(TOKENS, BATCH, 2, 5 * DIM, device=device, dtype=dtype), ("sbhd", None, interleaved)
    tm.apply_fused_qkv_rotary_pos_emb(qkv, q_freqs, k_freqs, [3 * DIM, DIM, DIM], *words)
    assert launches == ([3] if tables == 1 else [2, 1])
    check_qkv(qkv, q_freqs, k_freqs, [3 * DIM, DIM, DIM], words, interleaved=interleaved)


def test_packed_qkv_of_packed_sequences(device):
    freqs, qkv = make_freqs(device, ROWS), random(TOTAL // 2, 2, 3 * DIM, device=device, dtype=torch.bfloat16)
    check_qkv(qkv, freqs, freqs, [DIM] * 3, ("thd", None, False, make_cu_seqlens(device), 2, 1), find_rows(2, 1))


# ---- M-RoPE with three tables ----


@pytest.mark.parametrize("fp32_compute", [False, True])
@pytest.mark.parametrize("interleaved_mrope", [False, True])
@pytest.mark.parametrize("layout, cp_size", [("sbhd", 1), ("thd", 1), ("thd", 2)])
def test_mrope(device, layout, cp_size, interleaved_mrope, fp32_compute):
    section, cu_seqlens = [4, 2, 2], make_cu_seqlens(device)
    freqs = (torch.rand(3, *((BATCH, TOKENS) if layout == "sbhd" else (1, TOTAL)), ROTARY // 2, device=device) - 0.5) * 8
    if layout == "sbhd":
        t, rows = make_sbhd(device, torch.bfloat16), slice(None)
        call = lambda t: tm.fused_apply_mrope(t, freqs, section, interleaved_mrope, fp32_compute=fp32_compute)  # noqa: E731
    else:
        t, rows = make_thd(device, torch.bfloat16, cp_size)[0], find_rows(cp_size, 0, True)
        words = section, interleaved_mrope, False, cp_size, 0, fp32_compute
        call = lambda t: tm.fused_apply_mrope_thd(t, cu_seqlens, freqs, *words)  # noqa: E731
    axes = axes_of_pairs("interleaved" if interleaved_mrope else "sections", section)
    angles = torch.stack([freqs[axis, ..., i] for i, axis in enumerate(axes)], -1).transpose(0, 1)[rows]
    angles = torch.cat((angles, angles), -1).unsqueeze(-2)
    cos, sin = find_cos_sin(angles if layout == "sbhd" else angles[:, 0])
    check_bits(call, t, lambda t: formula(t.float() if fp32_compute else t, cos, sin).to(t.dtype))


# ---- No tokens ----


def test_no_tokens(device):
    tables = make_tables(device, torch.float32)
    kv = random(0, BATCH, HEADS, NOPE + V_DIM, device=device, grad=True)
    k_pos_emb = random(0, BATCH, 1, ROTARY, device=device, grad=True)
    key, value = tm.fused_mla_rope_kv_split(kv, k_pos_emb, *tables, ROTARY, NOPE, V_DIM)
    assert key.shape == (0, BATCH, HEADS, NOPE + ROTARY) and value.shape == (0, BATCH, HEADS, V_DIM)
    t = random(0, BATCH, HEADS, DIM, device=device, grad=True)
    y = apply(t, make_freqs(device), {})
    for dx, x in zip(torch.autograd.grad(key.sum() + value.sum() + y.sum(), (kv, k_pos_emb, t)), (kv, k_pos_emb, t)):
        assert dx.shape == x.shape
