"""trope apply gives what the formulas give, for every layout, dtype, source of angles and rule of positions."""

import math
import os
import random

import harness
import rope
import safetensors
from harness import check, run
from rope import Rotation
from safetensors import Tensor

OPERANDS, ROTATED, ANGLES = ("q", "k", "x", "v"), {"q", "k", "x"}, {"freqs", "cos", "freqs_cis", "inv_freq"}
HALF_STEP = {"F64": 2.0 ** -53, "F32": 2.0 ** -24, "F16": 2.0 ** -11, "BF16": 2.0 ** -8}
SMALLEST = {"F64": 0, "F32": 2.0 ** -149, "F16": 2.0 ** -24, "BF16": 2.0 ** -133}


def tensor(dtype, shape):
    count = math.prod(shape)
    return Tensor(dtype, list(shape), safetensors.rounded(dtype, [random.uniform(-2, 2) for _ in range(count)]))


def close(dtype, got, want, size, loose):
    """size is 0 for an element that is copied, which must be exact."""
    if math.isnan(want) or size == 0:
        return math.isnan(got) if math.isnan(want) else got == want
    arithmetic = 1e-13 if dtype == "F64" else 6e-7
    store = 5 * HALF_STEP[dtype] * size if loose else HALF_STEP[dtype] * abs(want)
    return abs(got - want) <= store + arithmetic * size + SMALLEST[dtype]


def compare(name, source, result, expected, loose=False):
    want, size = expected
    check(result.dtype == source.dtype and result.shape == source.shape, name, "has dtype and shape",
          result.dtype, result.shape)
    wrong = [i for i in range(len(want)) if not close(source.dtype, result.values[i], want[i], size[i], loose)]
    if not check(not wrong, name, "%d of %d elements are wrong" % (len(wrong), len(want))):
        i = wrong[0]
        print("  first: element %d is %r, expected %r" % (i, result.values[i], want[i]))


def apply(directory, tensors, *options, metadata=None):
    """Runs the tool on tensors; returns the result's tensors, or None."""
    source, target = os.path.join(directory, "in.safetensors"), os.path.join(directory, "out.safetensors")
    safetensors.write(source, tensors, metadata)
    result = run("apply", source, "-o", target, *options)
    if not check(result.returncode == 0, "exit status", result.returncode, options, result.stderr.strip()):
        return None
    check(result.stdout == "", "silent without --expect", options)
    found, _ = safetensors.read(target)
    for name, given in tensors.items():
        same = given._replace(values=safetensors.rounded(given.dtype, given.values))
        check(name in OPERANDS or repr(found[name]) == repr(same), name, "is in the result as it was")
    os.remove(target)
    check(harness.files(directory) == ["in.safetensors"], "no other file is left", harness.files(directory))
    return found


def said(tensors, rotation, options):
    """options with what a call that rotates must be told, unless they say it."""
    more = ["--pairing", "half"] if rotation.angles and "--pairing" not in options else []
    if rotation.angles and not ANGLES & set(tensors) and "--rope-theta" not in options:
        more += ["--rope-theta", 10000]
    if "--rotary-offset" not in options and any(tensors[n].shape[-1] > rotation.dim > 0 for n in ROTATED & set(tensors)):
        more += ["--rotary-offset", 0]
    return more + list(options)


def expect(name, layout, tensors, rotation, *options, loose=False):
    """Rotates q, k and x with `rotation`, copies v, and compares."""
    with harness.folder() as directory:
        found = apply(directory, tensors, "--layout", layout, *said(tensors, rotation, options))
        if found is None:
            print("  in", name)
            return
        operands = [n for n in OPERANDS if n in tensors]
        check(list(found) == list(tensors), name, "has the tensors", list(found))
        for operand in operands:
            source = tensors[operand]
            turn = Rotation(None, 0, keep=rotation.keep) if operand == "v" else rotation
            want = turn.apply(layout, source.shape, source.values)
            compare("%s: %s" % (name, operand), source, found[operand], want, loose)


def by_position(frequencies, position):
    """Angles of position(b, t, pair) * frequency."""

    def angles(b, t, i):
        a = position(b, t, i) * frequencies[i]
        return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

    return angles


def by_index(frequencies):
    return by_position(frequencies, lambda b, t, i: t)


# Each function checks one part of what `trope apply` can be told.

SHAPES = {"sbhd": (5, 2, 3, 8), "bshd": (2, 5, 3, 8), "bhsd": (2, 3, 5, 8), "thd": (10, 3, 8)}


def layouts_and_dtypes():
    for layout, shape in SHAPES.items():
        for dtype in ("F64", "F32", "F16", "BF16"):
            expect("%s %s" % (layout, dtype), layout, {"x": tensor(dtype, shape)}, Rotation(by_index(rope.default(8)), 8))


def operands_of_different_heads():
    tensors = {"v": tensor("BF16", (6, 2, 1, 16)), "q": tensor("BF16", (6, 2, 4, 8)), "k": tensor("BF16", (6, 2, 2, 8))}
    expect("q, k and v", "sbhd", tensors, Rotation(by_index(rope.default(8)), 8))
    expect("only v", "sbhd", {"v": tensor("F16", (6, 2, 4, 8))}, Rotation(None, 0))
    expect("a narrower k", "sbhd", {"q": tensor("F32", (6, 1, 2, 12)), "k": tensor("F32", (6, 1, 2, 12))},
           Rotation(by_index(rope.default(8)), 8, offset=4), "--rotary-offset", 4)


def pairings_parts_directions():
    frequencies = rope.default(16)
    x = {"x": tensor("F32", (2, 7, 3, 16))}
    for source in ("half", "interleaved"):
        for target in ("half", "interleaved"):
            for backward in (False, True):
                for inverse in (False, True):
                    options = ["--pairing", source, "--pairing-out", target]
                    options += ["--backward"] * backward + ["--inverse"] * inverse
                    rotation = Rotation(by_index(frequencies), 16, 0, source, target, inverse=inverse, backward=backward)
                    expect(" ".join(options), "bshd", x, rotation, *options)
    for parts in (2, 3):
        frequencies_of_part = rope.default(24 // parts)
        expect("%d parts" % parts, "bshd", {"x": tensor("F64", (2, 7, 3, 24))},
               Rotation(by_index(frequencies_of_part * parts), 24, parts=parts), "--windows", parts)
    expect("mscale", "bshd", x, Rotation(by_index(frequencies), 16, mscale=1.25), "--mscale", 1.25)
    expect("base", "bshd", x, Rotation(by_index(rope.default(16, 500.0)), 16), "--rope-theta", 500)
    expect("a part of the head", "bshd", x, Rotation(by_index(rope.default(8)), 8, offset=6), "--rotary-dim", 8,
           "--rotary-offset", 6)
    expect("nothing of the head", "bshd", x, Rotation(None, 0), "--rotary-dim", 0)
    half = {"x": tensor("BF16", (2, 7, 3, 16))}
    expect("native rounding", "bshd", half, Rotation(by_index(frequencies), 16), "--rounding", "native", loose=True)
    expect("in place", "bshd", half, Rotation(by_index(frequencies), 16), "--in-place")
    expect("in place, other pairing", "bshd", half, Rotation(by_index(frequencies), 16, 0, "interleaved", "half"),
           "--in-place", "--pairing", "interleaved", "--pairing-out", "half")


def table_angles(table, rows, cols, dim, pairing="half"):
    """Angles from columns, of freqs or of (cos, sin): one per pair, or one per element of the output."""

    def column(values, b, t, c):
        values = values.values
        per_batch = rows * cols
        return values[(b * per_batch if len(values) > per_batch else 0) + t * cols + c]

    def angles(b, t, i):
        first, second = (i, i) if cols == dim // 2 else rope.pair(pairing, dim, 1, i)
        if not isinstance(table, Tensor):
            return tuple(column(table[k], b, t, c) for c in (first, second) for k in (0, 1))
        a1, a2 = column(table, b, t, first), column(table, b, t, second)
        return math.cos(a1), math.sin(a1), math.cos(a2), math.sin(a2)

    return angles


def table(dtype, shape, rows, factor=None):
    """Random angles, which are 0 at position 0; or, with a factor, their cosines and sines times it."""
    cells = rows * shape[-1]
    angles = [0.0 if i % cells < shape[-1] else random.uniform(-2, 2) for i in range(math.prod(shape))]
    if factor is None:
        return Tensor(dtype, list(shape), safetensors.rounded(dtype, angles))
    return [Tensor(dtype, list(shape), safetensors.rounded(dtype, [factor * f(a) for a in angles]))
            for f in (math.cos, math.sin)]


def angle_tables():
    s, b, d = 5, 2, 8
    q = tensor("F32", (s, b, 3, d))
    for shape in ((s, d), (s, d // 2), (1, s, d), (b, s, d), (s, 1, 1, d), (b, 1, s, d), (b, s, 1, d), (s + 3, d)):
        rows = [n for n in shape[:-1] if n >= s][0]
        freqs = table("F32", shape, rows)
        angles = table_angles(freqs, rows, shape[-1], d)
        columns = ["--columns", "half"] if shape[-1] == d else []
        expect("freqs %s" % (shape,), "sbhd", {"q": q, "freqs": freqs}, Rotation(angles, d), *columns)
        expect("freqs %s backward" % (shape,), "sbhd", {"q": q, "freqs": freqs}, Rotation(angles, d, backward=True),
               "--backward", *columns)
    wide = tensor("F32", (s, b, 3, 24))
    freqs = table("F32", (s, 1, 1, d), s)
    expect("freqs of a part of the head", "sbhd", {"q": wide, "freqs": freqs}, Rotation(table_angles(freqs, s, d, d), d),
           "--columns", "half")
    freqs = table("F32", (s, d), s)
    expect("half as many freqs", "sbhd", {"q": wide, "freqs": freqs},
           Rotation(table_angles(freqs, s, d, 2 * d), 2 * d, offset=8), "--rotary-dim", 2 * d, "--rotary-offset", 8)
    expect("interleaved freqs", "sbhd", {"q": q, "freqs": freqs},
           Rotation(table_angles(freqs, s, d, d, "interleaved"), d, pairing="interleaved"), "--pairing", "interleaved",
           "--columns", "interleaved")
    for operand, dtype in (("BF16", "BF16"), ("BF16", "F32"), ("F16", "F16"), ("F64", "F64"), ("F64", "F32")):
        for factor in (1.0, 1.1719, 0.5):  # of attention
            cos, sin = table(dtype, (b, s, d), s, factor)
            tensors = {"q": tensor(operand, (s, b, 3, d)), "cos": cos, "sin": sin}
            angles = table_angles((cos, sin), s, d, d)
            expect("%s cos and sin, %s" % (dtype, operand), "sbhd", tensors, Rotation(angles, d), "--columns", "half")
    cos, sin = table("BF16", (b, s, d), s, 1.1719)  # as F32, which some dumps are
    tensors = {"q": q, "cos": cos._replace(dtype="F32"), "sin": sin._replace(dtype="F32")}
    expect("BF16 numbers as F32", "sbhd", tensors, Rotation(table_angles((cos, sin), s, d, d), d), "--columns", "half")
    f64 = {"q": tensor("F64", (s, b, 3, d)), "freqs": table("F64", (s, d), s)}
    expect("F64 freqs", "sbhd", f64, Rotation(table_angles(f64["freqs"], s, d, d), d),
           "--columns", "half")


def inverse_frequencies():
    for dtype in ("F32", "F64"):
        for values in ([1.5, 0.25, 0.3, 0.001], [1.0, 0.1, 0.0, 0.0]):  # the rule proportional ends with zeros
            inv_freq = Tensor(dtype, [4], safetensors.rounded(dtype, values))
            tensors = {"q": tensor("F64", (9, 1, 2, 12)), "inv_freq": inv_freq}
            expect("inv_freq %s" % dtype, "sbhd", tensors, Rotation(by_index(inv_freq.values), 8))


def frequency_rules():
    q = {"q": tensor("F64", (40, 1, 1, 16))}
    base = 10000.0
    rules = [
        ("linear:factor=4", [f / 4 for f in rope.default(16)], 1),
        ("dynamic:factor=2,original_max_position_embeddings=32", rope.dynamic(16, base, 2.0, 40.0, 32.0), 1),
        ("llama3:factor=8,original_max_position_embeddings=64,low_freq_factor=1,high_freq_factor=4",
         rope.llama3(16, base, 8.0, 1.0, 4.0, 64.0), 1),
        ("yarn:factor=4,original_max_position_embeddings=64", *rope.yarn(16, base, 4.0, 64.0)),
        ("yarn:factor=4,original_max_position_embeddings=64,attention_factor=1.5", rope.yarn(16, base, 4.0, 64.0)[0], 1.5),
        ("longrope:original_max_position_embeddings=32,attention_factor=1.25,short_factor=1;1;1;1;1;1;1;1,"
         "long_factor=1;1.5;2;2.5;3;3.5;4;4.5", [f / (1 + i / 2) for i, f in enumerate(rope.default(16))], 1.25),
        ("proportional:factor=2,partial_rotary_factor=0.5", rope.proportional(16, base, 2.0, 0.5), 1),
        ("default", rope.default(16), 1),
    ]
    for text, frequencies, mscale in rules:
        expect(text, "sbhd", q, Rotation(by_index(frequencies), 16, mscale=mscale), "--scaling", text,
               *["--seq-len", 40] * text.startswith(("dynamic", "longrope")))
    frequencies, _ = rope.yarn(16, base, 4.0, 64.0)
    expect("mscale over the rule's", "sbhd", q, Rotation(by_index(frequencies), 16, mscale=0.5), "--scaling", rules[3][0],
           "--mscale", 0.5)


def integers(dtype, shape, low=0, high=60):
    return Tensor(dtype, list(shape), [random.randint(low, high) for _ in range(math.prod(shape))])


def position_ids():
    frequencies, s, b = rope.default(12), 5, 2
    for dtype in ("I32", "I64"):
        x = tensor("F32", (b, s, 2, 12))
        ids = integers(dtype, (s,))
        expect("ids [s] " + dtype, "bshd", {"x": x, "position_ids": ids},
               Rotation(by_position(frequencies, lambda b, t, i: ids.values[t]), 12))
        ids2 = integers(dtype, (b, s))
        expect("ids [b, s] " + dtype, "bshd", {"x": x, "position_ids": ids2},
               Rotation(by_position(frequencies, lambda b, t, i: ids2.values[b * s + t]), 12))
        ids3 = integers(dtype, (3, b, s))

        def of_axis(axis):
            return by_position(frequencies, lambda b, t, i: ids3.values[(axis(i) * 2 + b) * s + t])

        expect("sections " + dtype, "bshd", {"x": x, "position_ids": ids3},
               Rotation(of_axis(lambda i: 0 if i < 3 else 1 if i < 5 else 2), 12), "--axis-map", "sections",
               "--axis-sections", "3,2,1")
        expect("interleaved axes " + dtype, "bshd", {"x": x, "position_ids": ids3},
               Rotation(of_axis(lambda i: i % 3 if i < 3 * (2, 2, 1)[i % 3] else 0), 12), "--axis-map", "interleaved",
               "--axis-sections", "3,2,1")
        alike = Tensor(dtype, ids3.shape, 3 * ids2.values)
        expect("axes that are equal " + dtype, "bshd", {"x": x, "position_ids": alike},
               Rotation(by_position(frequencies, lambda b, t, i: ids2.values[b * s + t]), 12))
        for_all = integers(dtype, (3, 1, s))
        expect("axes of all batch entries " + dtype, "bshd", {"x": x, "position_ids": for_all},
               Rotation(by_position(frequencies, lambda b, t, i: for_all.values[i // 2 * s + t]), 12), "--axis-map",
               "sections", "--axis-sections", "2,2,2")
        starts = integers(dtype, (b,))
        expect("starts " + dtype, "bshd", {"x": x, "start_positions": starts},
               Rotation(by_position(frequencies, lambda b, t, i: starts.values[b] + t), 12))
    plane = integers("I64", (2, 1, 5))
    expect("two axes, two parts", "bshd", {"x": tensor("F32", (b, s, 2, 12)), "position_ids": plane},
           Rotation(by_position(rope.default(6) * 2, lambda b, t, i: plane.values[i // 3 * s + t]), 12, parts=2),
           "--windows", 2)


def packed(name, tokens, options, padding="zero", **arguments):
    """A packed batch: arguments go to rope.packed_positions, and as tensors into the file."""
    dtype = random.choice(("I32", "I64"))
    tensors = {"q": tensor("F32", (tokens, 2, 8)), "v": tensor("F32", (tokens, 1, 4))}
    outside = any(is_padding for _, is_padding in rope.packed_positions(tokens, **arguments))
    policy = ["--padding", padding] if outside or arguments.get("padded") or padding != "zero" else []
    for key, file_name in (("cu", "cu_seqlens"), ("padded", "cu_seqlens_padded"), ("starts", "start_positions")):
        if arguments.get(key):
            tensors[file_name] = Tensor(dtype, [len(arguments[key])], arguments[key])
    where = rope.packed_positions(tokens, **arguments)
    rotation = Rotation(by_position(rope.default(8), lambda b, t, i: where[t][0]), 8,
                        keep=lambda b, t: padding if where[t][1] else "rotate")
    expect(name, "thd", tensors, rotation, *policy, *options)


def packed_sequences():
    for padding in ("zero", "copy", "rotate"):
        packed("packed, " + padding, 14, [], padding, cu=[0, 0, 3, 3, 8, 9, 12])
        packed("padded, " + padding, 16, [], padding, cu=[0, 3, 5, 5, 9], padded=[0, 4, 8, 10, 15])
        copied = {"v": tensor("F32", (9, 2, 4)), "cu_seqlens": Tensor("I32", [3], [0, 3, 7])}
        keep = lambda b, t: padding if t >= 7 else "copy"
        expect("packed, only v, " + padding, "thd", copied, Rotation(None, 0, keep=keep), "--padding", padding)
    packed("packed, starts", 12, [], cu=[0, 5, 12], starts=[100, 7])
    packed("packed positions", 12, ["--packed-positions"], cu=[0, 5, 12], packed=True)
    for layout in ("contiguous", "zigzag", "striped"):
        for rank in (0, 1):
            options = ["--cp-size", 2, "--cp-rank", rank, "--cp-layout", layout]
            packed("%s rank %d" % (layout, rank), 12, options, cu=[0, 8, 8, 12, 24], cp=(layout, 2, rank))
            packed("%s rank %d, padded" % (layout, rank), 12, options, cu=[0, 5, 8, 19], padded=[0, 8, 12, 24],
                   cp=(layout, 2, rank))
    for rank in (0, 1, 2):
        options = ["--cp-size", 3, "--cp-rank", rank, "--cp-layout", "flat"]
        packed("flat rank %d" % rank, 5, options, cu=[0, 4, 11, 15], cp=("flat", 3, rank))
    for layout in ("contiguous", "zigzag", "striped"):
        position = lambda b, t, i: rope.cp_position(layout, 4, 2, 6, t)
        expect("dense " + layout, "sbhd", {"q": tensor("F32", (6, 2, 1, 8))},
               Rotation(by_position(rope.default(8), position), 8), "--cp-size", 4, "--cp-rank", 2, "--cp-layout", layout)


def out_of_range():
    s, d = 6, 8
    tensors = {"q": tensor("F32", (s, 1, 2, d)), "freqs": table("F32", (4, d), 4)}
    tensors["position_ids"] = Tensor("I32", [s], [0, 3, 4, 1, -1, 2])
    ids = tensors["position_ids"].values
    by_table = table_angles(tensors["freqs"], 4, d, d)
    near = lambda b, t, i: by_table(b, min(max(ids[t], 0), 3), i)
    columns = ["--columns", "half"]
    expect("clamped", "sbhd", tensors, Rotation(near, d), "--out-of-range", "clamp", *columns)
    poisoned = Rotation(near, d, keep=lambda b, t: "rotate" if 0 <= ids[t] < 4 else "nan")
    expect("poisoned", "sbhd", tensors, poisoned, "--out-of-range", "poison", *columns)
    with harness.folder() as directory:
        path = os.path.join(directory, "in.safetensors")
        safetensors.write(path, tensors)
        columns += ["--layout", "sbhd", "--pairing", "half", "--quiet"]
        result = run("apply", path, "-o", path + ".out", "--out-of-range", "poison", *columns)
        check(result.returncode == 0 and result.stderr.count("\n") == 1 and "NaN" in result.stderr, "poison says so",
              result.stderr)
        result = run("apply", path, "-o", path + ".out2", *columns)
        check(result.returncode == 2 and "position_ids" in result.stderr, "out of range is refused", result.stderr)
        check("in.safetensors.out2" not in harness.files(directory), "no file after a refusal")


SBHD = ["--layout", "sbhd", "--pairing", "half", "--rope-theta", 10000]


def same_bits_everywhere():
    """Threads, instruction sets, layouts and a call in place give the very same bytes."""
    x = tensor("BF16", (8, 2, 3, 32))
    with harness.folder() as directory:
        first = apply(directory, {"x": x}, *SBHD)["x"].values
        for options in (["--threads", 1], ["--threads", 3], ["--isa", "portable"], ["--in-place"], ["--device", "cpu"],
                        ["--device", "auto"]):
            check(apply(directory, {"x": x}, *SBHD, *options)["x"].values == first, "same bits with", options)
        as_thd = Tensor("BF16", [8, 6, 32], x.values)
        thd = apply(directory, {"x": as_thd}, "--layout", "thd", *SBHD[2:])
        check(thd["x"].values == first, "same bits as thd")
        hidden = apply(directory, {"x": Tensor("BF16", [8, 2, 96], x.values)}, *SBHD, "--head-dim", 32)
        check(hidden["x"].values == first, "same bits with all heads in the last dim")


def files_are_files():
    """Metadata, empty tensors, unaligned data, the output over the input."""
    with harness.folder() as directory:
        path = os.path.join(directory, "in.safetensors")
        x = tensor("F32", (4, 1, 2, 8))
        metadata = {"run": "a \"quoted\" name\n\u00e9\\", "": "empty"}
        safetensors.write(path, {"x": x}, metadata)
        check(run("apply", path, "-o", path, *SBHD).returncode == 0, "the output may be the input")
        found, kept = safetensors.read(path)
        check(kept == metadata, "metadata is kept", kept)
        check(harness.files(directory) == ["in.safetensors"], "no other file", harness.files(directory))
        want = found["x"].values
        header, data = safetensors.entries({"x": x})
        text = safetensors.json.dumps(header).encode()
        for spaces in range(9):
            with open(path, "wb") as file:
                file.write(safetensors.pack(text + b" " * spaces, data))
            out = path + ".out"
            check(run("apply", path, "-o", out, *SBHD).returncode == 0, "a header with %d spaces" % spaces)
            check(safetensors.read(out)[0]["x"].values == want, "the same with %d spaces" % spaces)
            os.remove(out)
    with harness.folder() as directory:
        for shape in ((0, 2, 3, 8), (5, 0, 3, 8)):
            found = apply(directory, {"q": tensor("F32", shape)}, *SBHD)
            check(found and found["q"].shape == list(shape), "an empty tensor", shape)
        starts = {"q": tensor("F32", (5, 0, 3, 8)), "start_positions": Tensor("I32", [0], [])}
        check(apply(directory, starts, *SBHD), "an empty tensor with as many starts")


harness.require_apply()
random.seed(20240607)
layouts_and_dtypes()
operands_of_different_heads()
pairings_parts_directions()
angle_tables()
inverse_frequencies()
frequency_rules()
position_ids()
packed_sequences()
out_of_range()
same_bits_everywhere()
files_are_files()
harness.finish()
