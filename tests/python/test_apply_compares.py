"""trope apply --expect: what it prints, and its exit status, for equal, close and different tensors."""

import math

import numpy as np
import pytest
from apply_support import HALF, THETA, bf16_bits, encode, pack, random, read, rng, run, tensor

SBHD = ["--layout", "sbhd"]
ROTATED = [*SBHD, *HALF, *THETA]
SHAPE = (3, 1, 2, 4)
COUNT = math.prod(SHAPE)
BITS = {"F64": np.uint64, "F32": np.uint32, "F16": np.uint16}


def nudged(dtype, value, steps):
    """The number that is `steps` steps of the dtype farther from zero than `value`."""
    if dtype == "BF16":
        bits = bf16_bits(np.array([value])) + np.uint16(steps)
        return float((bits.astype(np.uint32) << 16).view(np.float32)[0])
    bits = tensor(dtype, [value]).values.view(BITS[dtype])
    return float((bits + np.int64(steps).astype(BITS[dtype])).view("f%d" % bits.itemsize)[0])


def compare(folder, values, changes, *options, dtype="F32"):
    """Compares two files with --expect. The v of the first has these values, and the v of the second differs by `changes`,
    which is {index: value}. Both files have the same q."""
    v = tensor(dtype, np.reshape(values, SHAPE))
    other = v.values.astype(float).copy()
    for index, value in changes.items():
        other.flat[index] = value
    (folder / "in").write_bytes(encode({"q": v, "v": v}))
    (folder / "other").write_bytes(encode({"q": v, "v": tensor(dtype, other)}))
    return run(folder / "in", "--expect", folder / "other", "--rotary-dim", 0, *SBHD, *options)


def row(result, name="v"):
    """The columns of a tensor's line: name, dtype, elements, largest error, largest ulp, differing, over, first."""
    (line,) = [line for line in result.out.splitlines() if line.split()[:1] == [name]]
    return line.split(None, 7)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_distances_in_ulp(tmp_path, dtype):
    values = [0.5 + i / 16 for i in range(COUNT)]
    changes = {5: nudged(dtype, values[5], 3), 17: nudged(dtype, values[17], 1)}
    error = abs(changes[5] - values[5])
    equal = compare(tmp_path, values, {}, dtype=dtype)
    assert equal.status == 0 and row(equal)[3:] == ["0", "0", "0", "0", "-"]
    for options, status, over in (([], 1, "2"), (["--ulp", 1], 1, "1"), (["--ulp", 3], 0, "0")):
        result = compare(tmp_path, values, changes, *options, dtype=dtype)
        found = row(result)
        assert result.status == status, result.out
        assert found[1:3] == [dtype, str(COUNT)] and found[4:] == ["3", "2", over, "[0, 0, 1, 1]"], found
        assert abs(float(found[3]) - error) <= 1e-5 * error
        assert row(result, "q")[3:7] == ["0", "0", "0", "0"]
        assert ("equal within 3 ulp" if status == 0 else "DIFFERENT") in result.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "other"]


def test_nan_infinity_and_zeros(tmp_path):
    nan, inf = math.nan, math.inf
    values = [nan, inf, -inf, 0.0, -0.0, 1.0, 2.0**-149, -(2.0**-149)] + [1.0] * (COUNT - 8)
    equal = compare(tmp_path, values, {3: -0.0, 4: 0.0})
    assert equal.status == 0 and row(equal)[5] == "0" and "1 of 24 elements are NaN in both" in equal.out
    for index, other, ulp, error, words in (
        (0, 1.0, "inf", "inf", "1 of 24 elements are NaN in the result only"),
        (5, nan, "inf", "inf", "1 of 24 elements are NaN in the expected file only"),
        (1, -inf, str(2 * 0x7F800000), "inf", "DIFFERENT"),
        (6, -(2.0**-149), "2", None, "DIFFERENT"),
        (1, nudged("F32", inf, -1), "1", "inf", "1 of 24 elements are infinite in the result only"),
        (5, inf, None, "inf", "1 of 24 elements are infinite in the expected file only"),
    ):
        result = compare(tmp_path, values, {index: other})
        found = row(result)
        assert result.status == 1 and found[5:7] == ["1", "1"] and ulp in (None, found[4]), found
        assert error in (None, found[3]) and words in result.out
        if ulp == "inf":
            assert compare(tmp_path, values, {index: other}, "--ulp", 2**63 - 1).status == 1


def test_a_tensor_of_nan_cannot_be_compared(tmp_path):
    result = compare(tmp_path, [math.nan] * COUNT, {}, "-o", tmp_path / "out")
    assert result.status == 2 and "only NaN" in result.err
    assert not (tmp_path / "out").exists()


def test_large_tensors_are_compared_in_chunks(tmp_path):
    shape = (1 << 16, 1, 2, 128)  # 32 MB: more than one chunk
    here = rng.integers(0, 1 << 16, shape, np.uint16)
    changed = np.sort(rng.choice(here.size, 1000, replace=False))
    here.flat[changed] = rng.integers(1, 0x4000, 1000)
    there = here.copy()
    there.flat[changed] ^= 1
    for name, bits in (("in", here), ("other", there)):
        entry = {"dtype": "BF16", "shape": shape, "data_offsets": [0, bits.nbytes]}
        (tmp_path / name).write_bytes(pack({"v": entry}, bits.tobytes()))
    result = run(tmp_path / "in", "--expect", tmp_path / "other", "--rotary-dim", 0, *SBHD)
    assert row(result)[4:7] == ["1", "1000", "1000"], result
    assert row(result)[7] == str([int(i) for i in np.unravel_index(changed[0], shape)])
    nans = int(((here & 0x7FFF) > 0x7F80).sum())
    assert "%d of %d elements are NaN in both" % (nans, here.size) in result.out


def test_output_and_comparison_in_one_run(tmp_path):
    source, other, out = (tmp_path / name for name in ("in", "other", "out"))
    source.write_bytes(encode({"x": tensor("F32", np.arange(COUNT).reshape(SHAPE) / 8)}))
    assert run(source, "-o", other, *ROTATED).status == 0
    assert run(source, "-o", out, "--expect", other, *ROTATED).status == 0
    assert out.read_bytes() == other.read_bytes()
    out.unlink()
    assert run(source, "-o", out, "--expect", source, *ROTATED).status == 1 and out.exists()
    assert run(other, "--inverse", "--expect", source, "--ulp", 4096, *ROTATED).status == 0
    assert run(source, "--expect", other, *ROTATED, "--in-place").status == 0


def test_other_tensors_must_be_the_same(tmp_path):
    """The expected file may also hold tensors that are not rotated. They must equal the input's."""
    source, other = tmp_path / "in", tmp_path / "other"
    x, mask = random("F32", *SHAPE), random("F32", 5)
    rows = np.outer(np.arange(3), np.arange(1, 5)) / 8  # position 0 has angles of 0
    freqs, changed = tensor("F32", rows), tensor("F32", rows + (rows == rows.max()))
    for name, mine, others, status in (
        ("freqs", freqs, None, 0), ("freqs", freqs, freqs, 0), ("freqs", None, freqs, 2), ("freqs", freqs, changed, 2),
        ("attention_mask", mask, mask, 0), ("attention_mask", mask, random("F32", 5), 2),
    ):  # fmt: skip
        for path, t in ((source, mine), (other, others)):
            path.write_bytes(encode({"x": x} if t is None else {"x": x, name: t}))
        result = run(source, "--expect", other, "--rotary-dim", 0, *SBHD)
        assert result.status == status and (status == 0 or "'%s'" % name in result.err), result.err


def test_files_that_cannot_be_compared(tmp_path):
    source, other, out = (tmp_path / name for name in ("in", "other", "out"))
    x = random("F32", *SHAPE)
    source.write_bytes(encode({"x": x}))
    for tensors in ({"q": x}, {"x": random("F32", COUNT, 1, 1, 1)}, {"x": random("F16", *SHAPE)}, {"x": x, "y": x}):
        other.write_bytes(encode(tensors))
        result = run(source, "-o", out, "--expect", other, *ROTATED)
        assert result.status == 2 and result.err.count("\n") == 1 and str(other) in result.err and "tensor '" in result.err
    other.write_bytes(b"1234")
    assert run(source, "-o", out, "--expect", other, *ROTATED).status == 2
    assert run(source, "-o", out, "--expect", tmp_path / "none", *ROTATED).status == 2
    assert not out.exists()
    (tmp_path / "link").symlink_to("other")
    other.write_bytes(encode({"x": x}))
    result = run(source, "-o", tmp_path / "link", "--expect", other, *ROTATED)
    assert result.status == 2 and "same file" in result.err and read(other)["x"].bytes == x.bytes
    result = run(source, "-o", "-", "--expect", other, *ROTATED)
    assert result.status == 2 and "-o -" in result.err
