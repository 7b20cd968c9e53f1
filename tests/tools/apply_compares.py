"""trope apply --expect: what it prints and how it exits, for equal, close and different tensors."""

import math
import os
import random
import struct
import subprocess

import harness
import safetensors
from harness import check, run
from safetensors import Tensor

SBHD = ["--layout", "sbhd"]
ROTATED = SBHD + ["--pairing", "half", "--rope-theta", 10000]
SHAPE = [3, 1, 2, 4]
COUNT = math.prod(SHAPE)


def nudged(dtype, value, steps):
    """The number that is some steps of the dtype further from zero."""
    kind = {"F32": "fI", "F64": "dQ", "F16": "eH"}.get(dtype)
    if dtype == "BF16":
        return safetensors.bf16_value(safetensors.bf16_bits(value) + steps)
    bits = struct.unpack("<" + kind[1], struct.pack("<" + kind[0], value))[0] + steps
    return struct.unpack("<" + kind[0], struct.pack("<" + kind[1], bits))[0]


def compare(directory, changed, *options):
    """Runs --expect against a result in which changed(values) was called on the values of v."""
    source, other = os.path.join(directory, "in.safetensors"), os.path.join(directory, "other.safetensors")
    tensors, _ = safetensors.read(source)
    changed(tensors["v"].values)
    safetensors.write(other, tensors)
    return run("apply", source, "--expect", other, "--rotary-dim", 0, *SBHD, *options)


def row(result, name):
    """The columns of a tensor: name, dtype, elements, largest error, largest ulp, differing, over, first."""
    for line in result.stdout.splitlines():
        if line.split()[:1] == [name]:
            return line.split(None, 7)
    check(False, "a row of", name, result.stdout, result.stderr)
    return ["?"] * 8


def keep(values):
    pass


def in_a_dtype(dtype):
    values = [0.5 + i / 16 for i in range(COUNT)]
    with harness.folder() as directory:
        source = os.path.join(directory, "in.safetensors")
        safetensors.write(source, {"q": Tensor(dtype, SHAPE, values), "v": Tensor(dtype, SHAPE, values)})
        result = compare(directory, keep)
        check(result.returncode == 0 and row(result, "v")[3:] == ["0", "0", "0", "0", "-"], dtype, "equal", result.stdout)

        def move(values):
            values[5] = nudged(dtype, values[5], 3)
            values[17] = nudged(dtype, values[17], 1)

        error = abs(nudged(dtype, values[5], 3) - values[5])
        result = compare(directory, move)
        found = row(result, "v")
        check(result.returncode == 1, dtype, "different is exit status 1", result.returncode)
        check(found[1:3] == [dtype, str(COUNT)] and found[4:] == ["3", "2", "2", "[0, 0, 1, 1]"], dtype, "row", found)
        check(abs(float(found[3]) - error) <= 1e-5 * error, dtype, "largest error", found[3], error)
        check(row(result, "q")[3:7] == ["0", "0", "0", "0"], dtype, "q is equal")
        check("DIFFERENT" in result.stdout, "a verdict")
        result = compare(directory, move, "--ulp", 1)
        check(result.returncode == 1 and row(result, "v")[5:7] == ["2", "1"], dtype, "--ulp 1", result.stdout)
        result = compare(directory, move, "--ulp", 3)
        check(result.returncode == 0 and row(result, "v")[5:7] == ["2", "0"], dtype, "--ulp 3", result.stdout)
        check("equal within 3 ulp" in result.stdout, "a verdict", result.stdout)
        check(harness.files(directory) == ["in.safetensors", "other.safetensors"], "no output without -o")


def special_values():
    nan, inf = math.nan, math.inf
    values = [nan, inf, -inf, 0.0, -0.0, 1.0, 2.0 ** -149, -(2.0 ** -149)] + [1.0] * (COUNT - 8)
    with harness.folder() as directory:
        safetensors.write(os.path.join(directory, "in.safetensors"), {"v": Tensor("F32", SHAPE, values)})

        def equal(values):
            values[3], values[4] = -0.0, 0.0

        result = compare(directory, equal)
        check(result.returncode == 0 and row(result, "v")[5] == "0", "NaN equals NaN, 0 equals -0", result.stdout)
        for index, other, ulp, error in ((0, 1.0, "inf", "inf"), (5, nan, "inf", "inf"),
                                         (1, -inf, str(2 * 0x7F800000), "inf"), (6, -(2.0 ** -149), "2", None),
                                         (1, nudged("F32", inf, -1), "1", "inf")):
            def change(values):
                values[index] = other

            result = compare(directory, change)
            found = row(result, "v")
            check(result.returncode == 1 and found[4:7] == [ulp, "1", "1"], values[index], "beside", other, found)
            check(error is None or found[3] == error, values[index], "beside", other, "error", found[3])
            if ulp == "inf":
                check(compare(directory, change, "--ulp", 2 ** 63 - 1).returncode == 1, "no --ulp allows a NaN")
                where = "expected file" if math.isnan(other) else "result"
                check("1 of 24 elements are NaN in the %s only" % where in result.stdout, "NaN is said", result.stdout)
            if index == 1 and other != -inf:
                check("1 of 24 elements are infinite in the result only" in result.stdout, "infinity is said",
                      result.stdout)

        safetensors.write(os.path.join(directory, "in.safetensors"), {"v": Tensor("F32", SHAPE, [nan] * COUNT)})
        result = compare(directory, keep)
        check(result.returncode == 2 and "nothing but NaN" in result.stderr, "NaN is compared with nothing", result.stderr)
        result = compare(directory, keep, "-o", os.path.join(directory, "out.safetensors"))
        check(result.returncode == 2 and harness.files(directory) == ["in.safetensors", "other.safetensors"],
              "and then nothing is written", result.stderr)


def many_threads():
    """Each thread compares a part of a tensor: what is found is the same with any number of them."""
    shape = [1 << 14, 1, 2, 64]
    count = math.prod(shape)
    here = bytearray(random.randbytes(2 * count))  # BF16: one in 256 is NaN or infinite
    there = bytearray(here)
    changed = sorted(random.sample(range(count), 1000))
    for i in changed:
        there[2 * i:2 * i + 2] = here[2 * i:2 * i + 2] = struct.pack("<H", random.randrange(1, 0x4000))
        there[2 * i] ^= 1
    nans = sum(bits & 0x7FFF > 0x7F80 for bits in struct.unpack("<%dH" % count, here))
    where = [changed[0] // 128, 0, changed[0] // 64 % 2, changed[0] % 64]
    with harness.folder() as directory:
        source, other, _ = three_files(directory)
        for path, data in ((source, here), (other, there)):
            header = {"v": {"dtype": "BF16", "shape": shape, "data_offsets": [0, len(data)]}}
            with open(path, "wb") as file:
                file.write(safetensors.pack(header, bytes(data)))
        for threads in (1, 2, 7):
            result = run("apply", source, "--expect", other, "--rotary-dim", 0, *SBHD, "--threads", threads)
            check(row(result, "v")[4:7] == ["1", "1000", "1000"], threads, "threads", result.stdout)
            check(row(result, "v")[7].strip() == str(where), threads, "threads, first at", where, result.stdout)
            check("%d of %d elements are NaN in both" % (nans, count) in result.stdout, threads, "threads, NaN", nans)


def three_files(directory):
    return [os.path.join(directory, name) for name in ("in.safetensors", "other.safetensors", "out.safetensors")]


def output_and_comparison():
    values = [i / 8 for i in range(COUNT)]
    with harness.folder() as directory:
        source, other, out = three_files(directory)
        x = Tensor("F32", SHAPE, values)
        safetensors.write(source, {"x": x})
        check(run("apply", source, "-o", other, *ROTATED).returncode == 0, "a first result")
        result = run("apply", source, "-o", out, "--expect", other, *ROTATED)
        check(result.returncode == 0 and os.path.exists(out), "compared and written", result.stderr)
        with open(out, "rb") as a, open(other, "rb") as b:
            check(a.read() == b.read(), "the same result")
        os.remove(out)
        with open("/dev/full", "w") as full:
            result = subprocess.run([harness.TOOL, "apply", source, "-o", out, "--expect", other, "--quiet"]
                                    + [str(word) for word in ROTATED], stdout=full, stderr=subprocess.PIPE, text=True)
        check(result.returncode == 2 and result.stderr.count("\n") == 1 and not os.path.exists(out),
              "a comparison that cannot be printed", result.stderr)
        result = run("apply", source, "-o", out, "--expect", source, *ROTATED)
        check(result.returncode == 1 and os.path.exists(out), "written, though different", result.stderr)
        back = run("apply", other, "--inverse", "--expect", source, "--ulp", 4096, *ROTATED)
        check(back.returncode == 0, "the inverse gives the input again", back.stdout, back.stderr)
        # The other file may hold what else was dumped, if it is the same.
        rows = [i // 4 * (i % 4 + 1) / 8 for i in range(12)]  # position 0 has angles of 0
        freqs = {"freqs": Tensor("F32", [3, 4], rows)}
        for mine, others, status in ((freqs, {}, 0), (freqs, freqs, 0), ({}, freqs, 2),
                                     (freqs, {"freqs": Tensor("F32", [3, 4], rows[:-1] + [5.0])}, 2)):
            safetensors.write(source, {"x": x, **mine})
            safetensors.write(other, {"x": x, **others})
            result = run("apply", source, "--expect", other, "--rotary-dim", 0, *SBHD)
            check(result.returncode == status, "inputs in the other file", mine, others, result.stderr)
            check(status == 0 or "'freqs'" in result.stderr, "names freqs", result.stderr)


def refused():
    values = [i / 8 for i in range(COUNT)]
    x = Tensor("F32", SHAPE, values)
    others = {"missing": {"q": x}, "shape": {"x": Tensor("F32", [COUNT, 1, 1, 1], values)},
              "dtype": {"x": Tensor("F16", SHAPE, values)}, "unknown": {"x": x, "y": x}, "more": {"x": x, "k": x}}
    with harness.folder() as directory:
        source, other, out = three_files(directory)
        safetensors.write(source, {"x": x})
        for name, tensors in others.items():
            safetensors.write(other, tensors)
            result = run("apply", source, "-o", out, "--expect", other, *ROTATED)
            check(result.returncode == 2 and result.stderr.count("\n") == 1, name, "is refused", result.stderr)
            for word in ("other.safetensors", "tensor '"):
                check(word in result.stderr, name, "names file and tensor", result.stderr)
            check(harness.files(directory) == ["in.safetensors", "other.safetensors"], name, "leaves no file")
        with open(other, "wb") as file:
            file.write(b"1234")
        check(run("apply", source, "-o", out, "--expect", other, *ROTATED).returncode == 2, "no safetensors file")
        check(run("apply", source, "-o", out, "--expect", other + "x", *ROTATED).returncode == 2, "no file")
        safetensors.write(other, {"x": x})
        link = os.path.join(directory, "link")
        os.symlink("other.safetensors", link)
        result = run("apply", source, "-o", link, "--expect", other, *ROTATED)
        check(result.returncode == 2 and "same file" in result.stderr, "-o over the expected file", result.stderr)
        os.remove(link)
        check(safetensors.read(other)[0]["x"].values == x.values, "the expected file is as it was")
        check(harness.files(directory) == ["in.safetensors", "other.safetensors"], "leaves no file")


harness.require_apply()
random.seed(20261126)
for dtype in ("F64", "F32", "F16", "BF16"):
    in_a_dtype(dtype)
special_values()
many_threads()
output_and_comparison()
refused()
harness.finish()
