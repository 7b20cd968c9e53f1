"""trope apply gives the results of the formulas for every layout, dtype, source of angles and position rule."""

import itertools

import numpy as np
import pytest
import reference
from apply_support import (
    HALF, THETA, Tensor, apply, assert_close, cos_sin, expect, indices, random, refused, rng, rotate, tensor,
)  # fmt: skip

from trope._apply import command, device

SHAPES = {"sbhd": (5, 2, 3, 8), "bshd": (2, 5, 3, 8), "bhsd": (2, 3, 5, 8), "thd": (10, 3, 8)}


def by_index(tokens, frequencies):
    return reference.angles_of(np.arange(tokens), frequencies)


# ---- Layouts, dtypes, heads, directions ----


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("layout", SHAPES)
def test_every_layout_and_dtype(tmp_path, layout, dtype):
    tokens = 10 if layout == "thd" else 5
    expect(tmp_path, layout, {"x": random(dtype, *SHAPES[layout])}, by_index(tokens, reference.default(8)))


def test_operands_may_have_different_heads(tmp_path):
    tensors = {"v": random("BF16", 6, 2, 1, 16), "q": random("BF16", 6, 2, 4, 8), "k": random("BF16", 6, 2, 2, 8)}
    expect(tmp_path, "sbhd", tensors, by_index(6, reference.default(8)))
    x = {"q": random("F32", 6, 1, 2, 12), "k": random("F32", 6, 1, 2, 12)}
    expect(tmp_path, "sbhd", x, by_index(6, reference.default(8)), "--rotary-offset", 4, offset=4)
    alone = {"v": random("F16", 6, 2, 4, 8)}
    result = apply(tmp_path, alone, "--layout", "sbhd")
    assert result.tensors["v"].bytes == alone["v"].bytes


@pytest.mark.parametrize("source, target", list(itertools.product(["half", "interleaved"], repeat=2)))
def test_pairings_and_directions(tmp_path, source, target):
    x, angles = {"x": random("F32", 2, 7, 3, 16)}, by_index(7, reference.default(16))
    for backward, inverse, in_place in itertools.product((False, True), repeat=3):
        options = ["--pairing", source, "--pairing-out", target]
        options += ["--backward"] * backward + ["--inverse"] * inverse + ["--in-place"] * in_place
        how = {"pairing": source, "pairing_out": target, "backward": backward, "inverse": inverse}
        expect(tmp_path, "bshd", x, angles, *options, **how)


def test_windows_offsets_factors_and_rounding(tmp_path):
    x = {"x": random("F32", 2, 7, 3, 24)}
    for windows in (2, 3):
        frequencies = reference.default(24 // windows) * windows
        expect(tmp_path, "bshd", x, by_index(7, frequencies), "--windows", windows, parts=windows)
    whole = by_index(7, reference.default(24))
    expect(tmp_path, "bshd", x, whole, "--mscale", 1.25, mscale=1.25)
    expect(tmp_path, "bshd", x, by_index(7, reference.default(24, 500.0)), "--rope-theta", 500)
    part = by_index(7, reference.default(8))
    expect(tmp_path, "bshd", x, part, "--rotary-dim", 8, "--rotary-offset", 6, offset=6)
    expect(tmp_path, "bshd", x, part, "--partial-rotary-factor", "0.34", "--rotary-offset", -8, offset=16)
    expect(tmp_path, "bshd", {"x": random("BF16", 2, 7, 3, 24)}, whole, "--rounding", "native", loose=True)
    nothing = apply(tmp_path, x, "--layout", "bshd", "--rotary-dim", 0)
    assert nothing.tensors["x"].bytes == x["x"].bytes


def test_threads_instruction_sets_layouts_and_calls_in_place_give_the_same_bits(tmp_path):
    x = random("BF16", 8, 2, 3, 32)

    def bits(tensors, layout, *options):
        return apply(tmp_path, tensors, "--layout", layout, *HALF, *THETA, *options).tensors["x"].bytes

    first = bits({"x": x}, "sbhd")
    for options in (["--threads", 1], ["--threads", 3], ["--isa", "portable"], ["--isa", "auto"], ["--in-place"],
                    ["--isa", "portable", "--in-place"], ["--device", "cpu"], ["--device", "auto"]):  # fmt: skip
        assert bits({"x": x}, "sbhd", *options) == first, options
    assert bits({"x": Tensor("BF16", x.values.reshape(8, 6, 32))}, "thd") == first
    assert bits({"x": Tensor("BF16", x.values.reshape(8, 2, 96))}, "sbhd", "--head-dim", 32) == first


# ---- Angles ----


def table(rows, columns):
    """Random angles [rows, columns]. Row 0 is 0."""
    angles = rng.uniform(-2, 2, (rows, columns))
    angles[0] = 0
    return angles


SHAPES_OF_TABLES = [(5, 8), (5, 4), (1, 5, 8), (2, 5, 8), (5, 1, 1, 8), (2, 1, 5, 8), (2, 5, 1, 8), (8, 8)]


@pytest.mark.parametrize("shape", SHAPES_OF_TABLES, ids=str)
@pytest.mark.parametrize("backward", [False, True])
def test_tables_of_every_shape(tmp_path, shape, backward):
    rows = max(size for size in shape[:-1])
    angles = np.stack([table(rows, shape[-1]) for _ in range(2 if 2 in shape else 1)])
    freqs = tensor("F32", angles.reshape(shape))
    values = freqs.values.reshape(angles.shape)[:, :5]
    form = "half" if shape[-1] == 8 else "pair"
    coefficients = reference.of_table(np.cos(values), np.sin(values), form)
    options = ["--columns", form] * (form == "half") + ["--backward"] * backward
    x = {"q": random("F32", 5, 2, 3, 8), "freqs": freqs}
    expect(tmp_path, "sbhd", x, None, *options, coefficients=coefficients, backward=backward)


@pytest.mark.parametrize(
    "operand, dtype", [("BF16", "BF16"), ("BF16", "F32"), ("F16", "F16"), ("F64", "F64"), ("F64", "F32")]
)
def test_cosines_of_every_dtype_and_factor(tmp_path, operand, dtype):
    for factor in (1.0, 1.1719, 0.5):  # attention factors
        tables = cos_sin(table(5, 8), dtype, factor)
        coefficients = reference.of_table(tables["cos"].values.astype(float), tables["sin"].values.astype(float), "half")
        x = {"q": random(operand, 5, 2, 3, 8), **tables}
        expect(tmp_path, "sbhd", x, None, "--columns", "half", coefficients=coefficients)


def test_bf16_values_stored_as_f32_and_interleaved_columns(tmp_path):
    tables = {name: t._replace(dtype="F32") for name, t in cos_sin(table(5, 8), "BF16", 1.1719).items()}
    coefficients = reference.of_table(tables["cos"].values.astype(float), tables["sin"].values.astype(float), "interleaved")
    x = {"q": random("F32", 5, 2, 3, 8), **tables}
    options = ["--pairing", "interleaved", "--columns", "interleaved"]
    expect(tmp_path, "sbhd", x, None, *options, coefficients=coefficients, pairing="interleaved")


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_inverse_frequencies(tmp_path, dtype):
    for values in ([1.5, 0.25, 0.3, 0.001], [1.0, 0.1, 0.0, 0.0]):  # the proportional rule gives zeros at the end
        inv_freq = tensor(dtype, values)
        x = {"q": random("F64", 9, 1, 2, 12), "inv_freq": inv_freq}
        expect(tmp_path, "sbhd", x, by_index(9, inv_freq.values.astype(float)), "--rotary-offset", 0)


ORIGINAL = "original_max_position_embeddings"
RULES = [
    ("default", reference.default(16), 1, []),
    ("linear:factor=4", reference.linear(16, 1e4, 4.0), 1, []),
    ("dynamic:factor=2,%s=32" % ORIGINAL, reference.dynamic(16, 1e4, 2.0, 40.0, 32.0), 1, ["--seq-len", 40]),
    ("llama3:factor=8,%s=64,low_freq_factor=1,high_freq_factor=4" % ORIGINAL,
     reference.llama3(16, 1e4, 8.0, 1.0, 4.0, 64.0), 1, []),
    ("yarn:factor=4,%s=64" % ORIGINAL, *reference.yarn(16, 1e4, 4.0, 64.0), []),
    ("yarn:factor=4,%s=64,truncate=false" % ORIGINAL, *reference.yarn(16, 1e4, 4.0, 64.0, truncate=False), []),
    ("yarn:factor=4,%s=64,attention_factor=1.5" % ORIGINAL, reference.yarn(16, 1e4, 4.0, 64.0)[0], 1.5, []),
    ("yarn:factor=4,%s=64" % ORIGINAL, reference.yarn(16, 1e4, 4.0, 64.0)[0], 0.5, ["--mscale", 0.5]),
    ("longrope:%s=32,attention_factor=1.25,short_factor=1;1;1;1;1;1;1;1,long_factor=1;1.5;2;2.5;3;3.5;4;4.5" % ORIGINAL,
     reference.longrope(16, 1e4, [1 + i / 2 for i in range(8)]), 1.25, ["--seq-len", 40]),
    ("proportional:factor=2,partial_rotary_factor=0.5", reference.proportional(16, 1e4, 2.0, 0.5), 1, []),
]  # fmt: skip


@pytest.mark.parametrize("text, frequencies, mscale, options", RULES)
def test_every_rule_of_frequencies(tmp_path, text, frequencies, mscale, options):
    x = {"q": random("F64", 40, 1, 1, 16)}
    expect(tmp_path, "sbhd", x, by_index(40, frequencies), "--scaling", text, *options, mscale=mscale)


# ---- Positions ----


@pytest.mark.parametrize("dtype", ["I32", "I64"])
def test_position_ids_and_start_positions(tmp_path, dtype):
    frequencies = reference.default(12)
    x = random("F32", 2, 5, 2, 12)
    for shape in ((5,), (2, 5)):
        ids = indices(dtype, *shape)
        expect(tmp_path, "bshd", {"x": x, "position_ids": ids}, reference.angles_of(ids.values, frequencies))
    starts = indices(dtype, 2)
    positions = starts.values[:, None] + np.arange(5)
    expect(tmp_path, "bshd", {"x": x, "start_positions": starts}, reference.angles_of(positions, frequencies))
    for shape in ((3, 2, 5), (3, 1, 5)):
        ids = indices(dtype, *shape)
        for order, sections in (("sections", [3, 2, 1]), ("interleaved", [3, 2, 1])):
            angles = reference.angles_of(ids.values, frequencies, reference.axes_of_pairs(order, sections))
            options = ["--axis-map", order, "--axis-sections", "3,2,1"]
            expect(tmp_path, "bshd", {"x": x, "position_ids": ids}, angles, *options)
    alike = tensor(dtype, np.tile(ids.values[:1], (3, 1, 1)))
    expect(tmp_path, "bshd", {"x": x, "position_ids": alike}, reference.angles_of(alike.values[0], frequencies))
    planes = indices(dtype, 2, 1, 5)
    angles = reference.angles_of(planes.values, reference.default(6) * 2, [0] * 3 + [1] * 3)
    expect(tmp_path, "bshd", {"x": x, "position_ids": planes}, angles, "--windows", 2, parts=2)


def packed(folder, tokens, *options, padding="zero", cp=("none", 1, 0), stream=False, cu, **others):
    """Runs `expect` on q and v of packed sequences. others: the options padded and starts of reference.packed_positions."""
    dtype = rng.choice(["I32", "I64"])
    tensors = {"q": random("F32", tokens, 2, 8), "v": random("F32", tokens, 1, 4), "cu_seqlens": tensor(dtype, cu)}
    for key, name in (("padded", "cu_seqlens_padded"), ("starts", "start_positions")):
        if key in others:
            tensors[name] = tensor(dtype, others[key])
    positions, is_padding = reference.packed_positions(tokens, cu, stream=stream, cp=cp, **others)
    needs_padding = is_padding.any() or "padded" in others or padding != "zero"
    options = ["--padding", padding] * bool(needs_padding) + list(options) + ["--packed-positions"] * stream
    if cp[1] > 1:
        options += ["--cp-layout", cp[0], "--cp-size", cp[1], "--cp-rank", cp[2]]
    angles = reference.angles_of(positions, reference.default(8))
    expect(folder, "thd", tensors, angles, *options, padding=(is_padding, padding))


@pytest.mark.parametrize("padding", ["zero", "copy", "rotate"])
def test_padding_of_packed_sequences(tmp_path, padding):
    packed(tmp_path, 14, padding=padding, cu=[0, 0, 3, 3, 8, 9, 12])
    packed(tmp_path, 16, padding=padding, cu=[0, 3, 5, 5, 9], padded=[0, 4, 8, 10, 15])
    v = {"v": random("BF16", 1, 2, 9, 4), "cu_seqlens": tensor("I32", [0, 3, 7])}
    found = apply(tmp_path, v, "--layout", "bhsd", "--padding", padding).tensors["v"].values
    kept = v["v"].values.copy()
    kept[:, :, 7:] *= padding != "zero"
    assert (found == kept).all()


def test_positions_of_packed_sequences_and_ranks(tmp_path):
    packed(tmp_path, 12, cu=[0, 5, 12], starts=[100, 7])
    packed(tmp_path, 12, cu=[0, 5, 12], stream=True)
    for layout, rank in itertools.product(("contiguous", "zigzag", "striped"), (0, 1)):
        packed(tmp_path, 12, cu=[0, 8, 8, 12, 24], cp=(layout, 2, rank))
        packed(tmp_path, 12, cu=[0, 5, 8, 19], padded=[0, 8, 12, 24], cp=(layout, 2, rank))
    for rank in (0, 1, 2):
        packed(tmp_path, 5, cu=[0, 4, 11, 15], cp=("flat", 3, rank))
    for layout in ("contiguous", "zigzag", "striped"):
        angles = reference.angles_of(reference.positions_on_rank(6, layout, 4, 2), reference.default(8))
        options = ["--cp-size", 4, "--cp-rank", 2, "--cp-layout", layout]
        expect(tmp_path, "sbhd", {"q": random("F32", 6, 2, 1, 8)}, angles, *options)
    for layout in ("contiguous", "zigzag", "striped", "flat"):  # a single rank: whole sequences, of any length
        packed(tmp_path, 9, "--cp-size", 1, "--cp-rank", 0, "--cp-layout", layout, cu=[0, 3, 8, 9])


def test_positions_outside_of_a_table(tmp_path):
    freqs, ids = tensor("F32", table(4, 8)), np.array([0, 3, 4, 1, -1, 2])
    tensors = {"q": random("F32", 6, 1, 2, 8), "freqs": freqs, "position_ids": tensor("I32", ids)}
    common = ["--layout", "sbhd", *HALF, "--columns", "half"]
    values = freqs.values.astype(float)[np.clip(ids, 0, 3)]
    coefficients = reference.of_table(np.cos(values), np.sin(values), "half")
    expect(tmp_path, "sbhd", tensors, None, *common[4:], "--out-of-range", "clamp", coefficients=coefficients)
    poisoned = tuple(np.where((ids < 0) | (ids > 3), np.nan, c.T).T for c in coefficients)
    exact, size = rotate(reference.from_layout(tensors["q"].values, "sbhd"), None, poisoned, {})
    result = apply(tmp_path, tensors, *common, "--out-of-range", "poison", "--quiet")
    assert result.err.count("\n") == 1 and "NaN" in result.err
    assert_close(result.tensors["q"], reference.to_layout(exact, "sbhd"), np.full((6, 1, 2, 8), 4.0))
    refused(tmp_path, tensors, ["position_ids", "rows of 'freqs'", "--out-of-range"], *common)


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (5, 0, 3, 8)])
def test_tensors_without_elements(tmp_path, shape):
    x = {"q": random("F32", *shape), "start_positions": tensor("I32", np.zeros(shape[1]))}
    result = apply(tmp_path, x, "--layout", "sbhd", *HALF, *THETA)
    assert result.status == 0 and result.tensors["q"].values.shape == shape


# ---- With PyTorch: on CUDA, or on the CPU if there is no GPU ----

ANGLES = reference.angles_of(np.arange(6), reference.default(16))
BY_TORCH = [
    (["--layout", "bhsd", "--backward", *THETA], {"q": random("F32", 2, 3, 6, 16), "v": random("F32", 2, 1, 6, 4)}),
    (["--layout", "bshd"], {"q": random("BF16", 2, 6, 3, 16), **cos_sin(ANGLES, "BF16")}),
    (["--layout", "bshd", "--in-place"], {"q": random("F16", 2, 6, 3, 16), "freqs": tensor("F32", ANGLES)}),
    (["--padding", "zero", *THETA], {"q": random("F32", 9, 2, 16), "cu_seqlens": tensor("I32", [0, 3, 7])}),
    (["--cp-size", 2, "--cp-rank", 1, "--cp-layout", "zigzag", "--rounding", "native", *THETA],
     {"q": random("BF16", 20, 2, 32), "cu_seqlens": tensor("I32", [0, 16, 40]), "start_positions": tensor("I64", [100, 7])}),
    (["--layout", "sbhd", "--axis-map", "sections", "--axis-sections", "4,2,2", *THETA],
     {"q": random("F32", 4, 1, 2, 16), "position_ids": indices("I64", 3, 1, 4)}),
    (["--layout", "sbhd", "--out-of-range", "poison"],
     {"q": random("BF16", 4, 1, 2, 16), "freqs": tensor("F32", ANGLES), "position_ids": tensor("I64", [5, 6, -1, 0])}),
    (["--layout", "sbhd", "--mscale", 1.25], {"q": random("F32", 4, 1, 2, 16), "inv_freq": tensor("F64", [1, 0.5, 0.2] + [0.1] * 5)}),
]  # fmt: skip


@pytest.mark.parametrize("options, tensors", BY_TORCH, ids=range(len(BY_TORCH)))
def test_pytorch_gives_the_same_file(tmp_path, monkeypatch, options, tensors):
    torch = pytest.importorskip("torch")
    with_numpy = apply(tmp_path, tensors, *HALF, *options)
    if torch.cuda.is_available():
        with_torch = apply(tmp_path, tensors, *HALF, *options, "--device", "cuda")
    else:
        monkeypatch.setattr(device.Cuda, "_upload", lambda self, array: self._host(array).clone())
        monkeypatch.setattr(command, "find_device", lambda options: device.Cuda(torch))
        with_torch = apply(tmp_path, tensors, *HALF, *options)
    assert with_numpy.status == with_torch.status == 0, with_torch.err
    assert {n: t.bytes for n, t in with_numpy.tensors.items()} == {n: t.bytes for n, t in with_torch.tensors.items()}
    assert with_numpy.err == with_torch.err
