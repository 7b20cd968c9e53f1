"""Compares trope.transformer_engine with its formulas in float64, where each element has its own angle. Tables are random,
so that their halves differ. test_dropins.py tests the common properties of all drop-ins."""

import enum
import itertools

import numpy
import pytest

torch = pytest.importorskip("torch")

import trope.transformer_engine as te  # noqa: E402
from checks import check, device, upstreams  # noqa: E402, F401 (device is a fixture)
from reference import angles_of, default, of_table, packed_positions, positions_on_rank, rotate, to_columns  # noqa: E402
from refusals import refused  # noqa: E402

FORMATS = ["sbhd", "bshd", "thd"]
BATCH, HEADS, DIM, ROTARY, ROWS, TOKENS = 3, 2, 24, 16, 96, 16
LENGTHS = [16, 0, 32, 8]  # of the whole sequences, which four ranks can cut into two chunks each
SLACK = 2.0**-18  # the error of fp32 with freqs up to 4
SPLIT = [2 * DIM, DIM, DIM]


def make_freqs(device, rows=ROWS, columns=ROTARY, dtype=torch.float32, batch=1):
    return (torch.rand(rows, batch, 1, columns, dtype=dtype, device=device) - 0.5) * 8


class Call:
    """The options of a call. words: the arguments, in the order of the extension. positions: the position of each token."""

    def __init__(self, device, tensor_format="sbhd", start=False, interleaved=False, cp_size=1, cp_rank=0):
        self.device, self.tensor_format, self.interleaved = device, tensor_format, interleaved
        ends = [0, *itertools.accumulate(LENGTHS)]
        sequences = len(LENGTHS) if tensor_format == "thd" else BATCH
        starts = torch.randint(0, 30, (sequences,), dtype=torch.int32, device=device) if start else None
        cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device) if tensor_format == "thd" else None
        self.words = dict(
            tensor_format=tensor_format, start_positions=starts, interleaved=interleaved, cu_seqlens=cu_seqlens,
            cp_size=cp_size, cp_rank=cp_rank,
        )  # fmt: skip
        cp = ("zigzag" if cp_size > 1 else "none"), cp_size, cp_rank
        starts = [0] * sequences if starts is None else starts.tolist()
        if tensor_format == "thd":
            positions, _ = packed_positions(ends[-1] // cp_size, ends, starts=starts, cp=cp)
        else:
            positions = numpy.array(starts)[:, None] + positions_on_rank(TOKENS // cp_size, *cp)
        self.positions = torch.from_numpy(positions if tensor_format != "sbhd" else positions.T).to(device)

    def make(self, *ends, dtype=torch.float32):
        return torch.randn(*self.positions.shape, *ends, device=self.device).to(dtype)

    def formula(self, x, freqs):
        """Rotates x [tokens.., heads, d] in float64."""
        entries = torch.arange(freqs.shape[1], device=self.device)
        entries = entries[:, None] if self.tensor_format == "bshd" else entries if self.tensor_format == "sbhd" else 0
        angles = freqs[self.positions, entries, 0].double()
        pairing = "interleaved" if self.interleaved else "half"
        return rotate(x.double(), of_table(angles.cos(), angles.sin(), pairing), pairing)

    def formula_of_qkv(self, qkv, q_freqs, k_freqs, split):
        q, k, v = qkv.split(split, -1)
        return self.formula(q.unflatten(-1, (-1, split[1])).flatten(-3, -2), q_freqs), self.formula(k, k_freqs), v


CALLS = list(itertools.product(FORMATS, [False, True], [False, True], [1, 2, 4]))


def of_all_ranks(device, tensor_format, start, interleaved, cp_size):
    return [Call(device, tensor_format, start, interleaved, cp_size, cp_rank) for cp_rank in range(cp_size)]


@pytest.mark.parametrize("words", CALLS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_and_gradients(device, dtype, words):
    freqs = make_freqs(device)
    for call in of_all_ranks(device, *words):
        (y,) = check(
            lambda t: te.apply_rotary_pos_emb(t, freqs, **call.words),
            call.make(HEADS, DIM, dtype=dtype),
            lambda t: call.formula(t, freqs),
            slack=SLACK,
        )
        assert y.is_contiguous()


class NVTE_QKV_Format(enum.IntEnum):
    """TransformerEngine's enum, with other numbers. Results must not depend on the numbers."""

    NVTE_THD = 0
    NVTE_SBHD = 1
    NVTE_BSHD = 2
    NVTE_BHSD = 3


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_functions_of_the_extension(device, tensor_format):
    """Also tests the autograd functions, whose arguments have TransformerEngine's order."""
    freqs, call = make_freqs(device), Call(device, tensor_format, True, True, 2, 1)
    _, start, interleaved, cu_seqlens, *ranks = call.words.values()
    t = call.make(HEADS, DIM).requires_grad_()
    expected = te.apply_rotary_pos_emb(t, freqs, **call.words)
    assert torch.equal(te.FusedRoPEFunc.apply(t, freqs, start, tensor_format, interleaved, cu_seqlens, *ranks), expected)
    assert all(issubclass(function, torch.autograd.Function) for function in (te.FusedRoPEFunc, te.FusedQKVRoPEFunc))
    dy = torch.randn(expected.shape, device=device)
    (dx,) = torch.autograd.grad(expected, t, dy)
    for word in (tensor_format, NVTE_QKV_Format["NVTE_" + tensor_format.upper()]):
        y = te.fused_rope_forward(t, freqs, start, word, interleaved, cu_seqlens, *ranks)
        assert not y.requires_grad and torch.equal(y, expected)
        assert torch.equal(te.fused_rope_backward(dy, freqs, start, word, interleaved, cu_seqlens, *ranks), dx)


def test_unknown_formats_of_the_extension_are_refused():
    for word in (NVTE_QKV_Format.NVTE_BHSD, 1):
        refused(
            "qkv_format", te.fused_rope_forward, torch.randn(16, 1, 2, 24), make_freqs("cpu"), None, word, False, None, 1, 0
        )


def test_fused_is_ignored_and_cu_seqlens_is_read_only_with_thd(device):
    freqs, t = make_freqs(device), torch.randn(16, BATCH, HEADS, DIM, device=device).bfloat16()
    y = te.apply_rotary_pos_emb(t, freqs, fused=True)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs, fused=False), y)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs, cu_seqlens=Call(device, "thd").words["cu_seqlens"]), y)


@pytest.mark.parametrize("freqs_dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_of_freqs(device, freqs_dtype):
    call, freqs = Call(device), make_freqs(device, dtype=torch.float64).to(freqs_dtype)
    t = call.make(HEADS, DIM)
    assert torch.equal(te.apply_rotary_pos_emb(t, freqs), te.apply_rotary_pos_emb(t, freqs.float()))
    check(lambda t: te.apply_rotary_pos_emb(t, freqs), t.double(), lambda t: call.formula(t, freqs), slack=SLACK)


def test_tokens_after_the_last_sequence_are_zero(device):
    call, freqs, count = Call(device, "thd"), make_freqs(device), sum(LENGTHS)
    check(
        lambda t: te.apply_rotary_pos_emb(t, freqs, "thd", cu_seqlens=call.words["cu_seqlens"]),
        torch.randn(count + 5, HEADS, DIM, device=device),
        lambda t: torch.cat((call.formula(t[:count], freqs), 0 * t[count:])),
        slack=SLACK,
    )


@pytest.mark.parametrize("tensor_format, batch", [("sbhd", 1), ("sbhd", BATCH), ("bshd", 1), ("bshd", BATCH), ("thd", 1)])
@pytest.mark.parametrize("cp_size", [1, 2])
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradient_of_freqs(device, tensor_format, cp_size, interleaved, batch):
    """freqs may also differ between batch entries, as in TransformerEngine's unfused code."""
    call = Call(device, tensor_format, False, interleaved, cp_size, cp_size - 1)
    freqs = make_freqs(device, dtype=torch.float64, batch=batch)
    t, function = call.make(HEADS, DIM, dtype=torch.float64), te.apply_rotary_pos_emb
    (y,) = check(lambda t, f: function(t, f, **call.words), [t, freqs], call.formula, slack=2.0**-12)
    assert y.is_contiguous()
    if batch > 1:
        check(lambda t: function(t, freqs.float(), **call.words), t.float(), lambda t: call.formula(t, freqs), slack=SLACK)
    else:
        learned = freqs.requires_grad_()
        refused("freqs", te.FusedRoPEFunc.apply, t, learned, None, "sbhd", words="requires a gradient")
        with torch.no_grad():
            assert torch.equal(function(t, learned, **call.words), y)


# ---- Packed QKV ----


def check_qkv(call, qkv, q_freqs, k_freqs=None, split=SPLIT, function=te.apply_fused_qkv_rotary_pos_emb):
    """Checks the values and the gradient. V must have the same bits."""
    k_freqs = q_freqs if k_freqs is None else k_freqs
    results = check(
        lambda qkv: function(qkv, q_freqs, k_freqs, split, **call.words),
        qkv,
        lambda qkv: call.formula_of_qkv(qkv, q_freqs, k_freqs, split),
        slack=SLACK,
    )
    assert all(y.is_contiguous() for y in results) and torch.equal(results[2], qkv.split(split, -1)[2])
    return results


@pytest.mark.parametrize("groups, per_group", [(1, 5), (3, 2)])
@pytest.mark.parametrize("words", CALLS, ids=str)
def test_qkv(device, words, groups, per_group):
    freqs, split = make_freqs(device), [per_group * DIM, DIM, DIM]
    for call in of_all_ranks(device, *words):
        dtype = torch.bfloat16 if call.interleaved else torch.float32
        check_qkv(call, call.make(groups, sum(split), dtype=dtype), freqs, split=split)


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_qkv_with_tables_and_v_of_different_widths(device, tensor_format):
    call, split = Call(device, tensor_format), [2 * DIM, DIM, 10]
    check_qkv(call, call.make(3, sum(split)), make_freqs(device), make_freqs(device, columns=8), split)


@pytest.mark.parametrize(
    "tensor_format, groups, per_group", [("sbhd", 3, 2), ("sbhd", 1, 20), ("bshd", 3, 20), ("bshd", 3, 4)]
)
def test_qkv_is_one_launch(device, launches, tensor_format, groups, per_group):
    freqs, split, call = make_freqs(device), [per_group * DIM, DIM, DIM], Call(device, tensor_format)
    check_qkv(call, call.make(groups, sum(split)), freqs, split=split)
    assert launches == [3] * 4  # forward, and backward for three upstream gradients
    launches.clear()
    te.apply_fused_qkv_rotary_pos_emb(call.make(groups, sum(split)), freqs, freqs.clone(), split, tensor_format)
    assert launches == [2, 1]  # one launch for q and v, and one for k


def test_qkv_tables_that_are_aliases(device):
    """k's table is detach() of q's table: it has the same memory, but no gradient. So q's table must not get k's
    gradient."""
    freqs, qkv = make_freqs(device).requires_grad_(), torch.randn(16, BATCH, 1, 3 * DIM, device=device)
    found = []
    for k_freqs in (freqs.detach(), freqs.detach().clone()):
        q, k, _ = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, k_freqs, [DIM] * 3)
        found += torch.autograd.grad(q.sum() + 3 * k.sum(), freqs)
    assert torch.equal(*found)


@pytest.mark.parametrize("tensor_format", FORMATS)
def test_qkv_functions_of_the_extension(device, tensor_format):
    freqs, call = make_freqs(device), Call(device, tensor_format, True, True, 2, 1)
    _, start, interleaved, cu_seqlens, *ranks = call.words.values()
    qkv = call.make(3, sum(SPLIT)).requires_grad_()
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, SPLIT, **call.words)
    own = te.FusedQKVRoPEFunc.apply(qkv, freqs, freqs, SPLIT, start, tensor_format, interleaved, *ranks, cu_seqlens)
    assert all(map(torch.equal, own, results))
    upstream = upstreams(results)[0]
    (d_qkv,) = torch.autograd.grad(results, qkv, upstream)
    for word in (tensor_format, NVTE_QKV_Format["NVTE_" + tensor_format.upper()]):
        plain = te.fused_qkv_rope_forward(qkv, freqs, freqs, start, SPLIT, word, interleaved, *ranks, cu_seqlens)
        assert not any(y.requires_grad for y in plain) and all(map(torch.equal, plain, results))
        back = te.fused_qkv_rope_backward(*upstream, freqs, freqs, SPLIT, word, interleaved, *ranks, start, cu_seqlens)
        assert torch.equal(back, d_qkv)


def test_qkv_gradient_of_freqs(device):
    call, tables = Call(device), [make_freqs(device, dtype=torch.float64) for _ in "qk"]
    qkv = call.make(3, sum(SPLIT), dtype=torch.float64)
    check(
        lambda *tables: te.apply_fused_qkv_rotary_pos_emb(qkv, *tables, SPLIT)[:2],
        tables,
        lambda *tables: call.formula_of_qkv(qkv, *tables, SPLIT)[:2],
        slack=2.0**-12,
    )
    for i, name in enumerate(("q_freqs", "k_freqs")):
        learned = [table.clone().requires_grad_(i == j) for j, table in enumerate(tables)]
        refused(name, te.FusedQKVRoPEFunc.apply, qkv, *learned, SPLIT, words="requires a gradient")


def test_missing_upstream_gradients(device):
    freqs, qkv = make_freqs(device), torch.randn(16, BATCH, 3, sum(SPLIT), device=device, requires_grad=True)
    q, k, v = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, SPLIT)
    (d_qkv,) = torch.autograd.grad(v, qkv, torch.ones_like(v), retain_graph=True)
    assert d_qkv[..., : 3 * DIM].abs().max() == 0 and torch.equal(d_qkv[..., 3 * DIM :], torch.ones_like(v))


# ---- Other ----


def test_no_tokens(device):
    freqs = make_freqs(device)
    t = torch.randn(0, BATCH, HEADS, DIM, device=device, requires_grad=True)
    te.apply_rotary_pos_emb(t, freqs).sum().backward()
    qkv = torch.randn(0, BATCH, 3, 4 * DIM, device=device, requires_grad=True)
    results = te.apply_fused_qkv_rotary_pos_emb(qkv, freqs, freqs, SPLIT)
    assert [tuple(y.shape) for y in results] == [(0, BATCH, 6, DIM), (0, BATCH, 3, DIM), (0, BATCH, 3, DIM)]
    sum(y.sum() for y in results).backward()
    assert t.grad.shape == t.shape and qkv.grad.shape == qkv.shape


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_position_embedding(interleaved):
    module = te.RotaryPositionEmbedding(32, interleaved=interleaved)
    partial = te.RotaryPositionEmbedding(32, 0.5, rotary_base=500.0, interleaved=interleaved)
    scaled = te.RotaryPositionEmbedding(32, 1.0, 4, 16, interleaved=interleaved)
    with torch.autocast(module.inv_freq.device.type, dtype=torch.bfloat16):
        under_autocast = module(40)
    for table, positions, frequencies in (
        (module(40), numpy.arange(40), default(32)),
        (module(40, 7), numpy.arange(40) + 7, default(32)),
        (under_autocast, numpy.arange(40), default(32)),
        (partial(40), numpy.arange(40), default(16, 500.0)),
        (scaled(64), numpy.arange(64) / 4, default(32)),
        (scaled(80), numpy.arange(80) * 16 / 80, default(32)),
    ):
        expected = to_columns(angles_of(positions, frequencies), "interleaved" if interleaved else "half")
        assert table.dtype == torch.float32 and table.is_contiguous() and table.shape[1:3] == (1, 1)
        torch.testing.assert_close(table[:, 0, 0].double().cpu(), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)
    assert list(module.state_dict()) == ["inv_freq"]
