"""trope apply takes no guess: what the data says is read from it, and where two readings fit, the call is refused with the
option that chooses. What it has understood is said."""

import math
import os
import random

import harness
import rope
import safetensors
from harness import check, run
from rope import Rotation
from safetensors import Tensor

PAIRED = ["--pairing", "half"]
THETA = ["--rope-theta", 10000]


def tensor(dtype, *shape):
    return Tensor(dtype, list(shape), safetensors.rounded(dtype, [random.uniform(-2, 2) for _ in range(math.prod(shape))]))


def positive(dtype, count):
    """Frequencies."""
    return Tensor(dtype, [count], safetensors.rounded(dtype, [random.uniform(0.01, 2) for _ in range(count)]))


def apply(tensors, *options):
    """The process, and the tensors that it wrote, {} if it wrote none."""
    with harness.folder() as directory:
        source, target = os.path.join(directory, "in.safetensors"), os.path.join(directory, "out.safetensors")
        safetensors.write(source, tensors)
        result = run("apply", source, "-o", target, *options)
        check(os.path.exists(target) == (result.returncode == 0), "a file exactly where it succeeds", result.stderr)
        return result, safetensors.read(target)[0] if result.returncode == 0 else {}


def refused(name, tensors, words, *options):
    result, _ = apply(tensors, *options)
    check(result.returncode == 2 and result.stderr.count("\n") == 1, name, "is refused in one line:", result.stderr)
    for word in words:
        check(word in result.stderr, name, "has no", repr(word), "in", result.stderr)


def right(name, tensors, layout, rotation, *options, says=()):
    """Every q, k and x is what `rotation` makes of it, and standard error has the words."""
    result, found = apply(tensors, *options)
    if not check(result.returncode == 0, name, "exit status", result.returncode, result.stderr):
        return
    for word in says:
        check(word in result.stderr, name, "does not say", repr(word), "in", result.stderr)
    for operand, source in tensors.items():
        if operand.split(".")[-1] not in ("q", "k", "x"):
            continue
        want, size = rotation.apply(layout, source.shape, source.values)
        got = found[operand].values
        worst = max(abs(g - w) / (s or 1e-30) for g, w, s in zip(got, want, size) if g != w or s) if got else 0
        check(worst < 2e-6, name, operand, "is off by", worst)


def angles_of(frequency, position=lambda b, t: t):
    """Ordinary RoPE: frequency(i) radians a position for pair i."""

    def angles(b, t, i):
        a = position(b, t) * frequency(i)
        return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

    return angles


def theta(dim):
    return lambda i: rope.default(dim)[i]


def table(function, positions, columns):
    """[positions, columns] of function(frequency * position) as F32 would hold it: columns maps a column to its pair."""
    dim = 2 * (1 + max(columns))
    frequencies = rope.default(dim)
    return safetensors.rounded("F32", [function(p * frequencies[i]) for p in positions for i in columns])


def pairs(n):
    return list(range(n))


def halves(n):
    return pairs(n) * 2


def neighbours(n):
    return [i // 2 for i in range(2 * n)]


def cos_sin(shape, positions, columns):
    return {"cos": Tensor("F32", list(shape), table(math.cos, positions, columns)),
            "sin": Tensor("F32", list(shape), table(math.sin, positions, columns))}


# The layout


def layouts():
    four = {"q": tensor("F32", 2, 5, 3, 8), "k": tensor("F32", 2, 5, 3, 8)}
    rotation = Rotation(angles_of(theta(8)), 8)
    refused("four dims alone", four, ["'q'", "sbhd or bshd or bhsd", "--layout"], *PAIRED, *THETA)
    ids = Tensor("I64", [2, 5], [0, 1, 2, 3, 4] * 2)
    right("ids say bshd", {**four, "position_ids": ids}, "bshd", rotation, *PAIRED, *THETA,
          says=["q: bshd, batch 2, 5 tokens, 3 heads of 8; half pairs of elements 0 to 7, positions 0 to 4\n"])
    turned = {"q": tensor("F32", 2, 3, 5, 8), "k": tensor("F32", 2, 1, 5, 8)}
    right("heads that differ say bhsd", turned, "bhsd", rotation, *PAIRED, *THETA, says=["q: bhsd", "3 heads", "1 heads"])
    grouped = {"q": tensor("F32", 2, 5, 4, 8), "k": tensor("F32", 2, 5, 2, 8)}
    refused("sbhd or bshd", grouped, ["sbhd or bshd", "--layout"], *PAIRED, *THETA)
    refused("sbhd with [s, b, d], or bshd with [b, s, d]", {**grouped, **cos_sin((2, 5, 8), list(range(5)) * 2, halves(4))},
            ["sbhd or bshd", "--layout"], *PAIRED)
    right("a table says bshd", {**grouped, **cos_sin((2, 7, 8), list(range(7)) * 2, halves(4))}, "bshd", rotation, *PAIRED,
          says=["q: bshd", "cos: batch 2, a row for each of 7 positions, 8 columns, one an element, by halves"])
    refused("three dims", {"q": tensor("F32", 2, 5, 24)}, ["thd", "hidden", "--head-dim"], *PAIRED, *THETA)
    ends = Tensor("I32", [3], [0, 2, 5])
    where = rope.packed_positions(5, [0, 2, 5])
    right("cu_seqlens say thd", {"q": tensor("F32", 5, 3, 8), "cu_seqlens": ends}, "thd",
          Rotation(angles_of(theta(8), lambda b, t: where[t][0]), 8), *PAIRED, *THETA, says=["q: thd", "2 sequences"])
    hidden = tensor("F32", 2, 5, 24)
    result, found = apply({"q": hidden}, "--layout", "bshd", "--head-dim", 8, *PAIRED, *THETA)
    want, _ = rotation.apply("bshd", [2, 5, 3, 8], hidden.values)
    check(found and max(abs(a - b) for a, b in zip(found["q"].values, want)) < 1e-5, "[b, s, hidden]", result.stderr)
    refused("hidden that no head divides", {"q": hidden}, ["'q'", "--head-dim"], "--layout", "bshd", "--head-dim", 7,
            *PAIRED,
            *THETA)
    refused("another head than is said", four, ["'q'", "--head-dim (16)"], "--layout", "bshd", "--head-dim", 16, *PAIRED,
            *THETA)
    refused("nothing fits", {**four, "position_ids": Tensor("I64", [7], [0] * 7)}, ["no layout", "--layout"], *PAIRED,
            *THETA)


# Tables as models hold them


def tables():
    s, b, d = 5, 2, 16
    q, twice = {"q": tensor("F32", b, s, 3, d)}, list(range(5)) * 2
    said = ["--layout", "bshd"]
    half, interleaved = Rotation(angles_of(theta(d)), d), Rotation(angles_of(theta(d)), d, pairing="interleaved")
    right("gpt-oss: a column a pair", {**q, **cos_sin((b, s, d // 2), twice, pairs(8))}, "bshd", half, *said, *PAIRED,
          says=["8 columns, one a pair"])
    right("GLM-4: halves beside neighbours", {**q, **cos_sin((b, s, d), twice, halves(8))}, "bshd", interleaved, *said,
          "--pairing", "interleaved", says=["by halves", "interleaved pairs"])
    right("neighbours beside halves", {**q, **cos_sin((b, s, d), twice, neighbours(8))}, "bshd", half, *said, *PAIRED,
          says=["by neighbours", "half pairs"])
    freqs = Tensor("F32", [s, 1, 1, d], table(float, range(s), neighbours(8)))
    right("freqs by repeat_interleave", {**q, "freqs": freqs}, "bshd", half, *said, *PAIRED, says=["by neighbours"])
    # DeepSeek V4: half of the last elements of a head. GPT-NeoX: those of the first.
    wide = {"x": tensor("F32", b, s, 2, 40), **cos_sin((b, s, d // 2), twice, pairs(8))}
    refused("which part of a head", wide, ["'x'", "--rotary-offset 0", "--rotary-offset -16"], *said, *PAIRED)
    right("the last part", wide, "bshd", Rotation(angles_of(theta(d)), d, offset=24), *said, *PAIRED, "--rotary-offset",
          -16,
          says=["elements 24 to 39"])
    right("the first part", wide, "bshd", half, *said, *PAIRED, "--rotary-offset", 0)
    full = {"x": wide["x"], **cos_sin((s, d), range(s), halves(8))}
    right("all columns, a part of the head", full, "bshd", Rotation(angles_of(theta(d)), d, offset=24), *said, *PAIRED,
          "--rotary-offset", -16)
    refused("as many columns as half the elements that are said", full, ["'cos'", "equal halves", "--columns pair"], *said,
            *PAIRED, "--rotary-dim", 32, "--rotary-offset", 0)
    refused("a table of nothing", {**q, "freqs": Tensor("F32", [0, s, d], [])}, ["'freqs'", "is empty"], *said, *PAIRED)
    random_columns = {**q, "freqs": Tensor("F32", [s, d], [0.0] * d + tensor("F32", s - 1, d).values)}
    refused("columns of a pair that differ", random_columns, ["'freqs'", "--columns"], *said, *PAIRED)
    refused("equal neighbours where halves are said", {**q, "freqs": freqs}, ["neighbours", "--columns half"], *said,
            *PAIRED,
            "--columns", "half")
    equal = Tensor("F32", [s, 8], [i // 8 / 2 for i in range(40)])
    refused("equal columns", {**q, "freqs": equal}, ["all equal", "--rotary-dim"], *said, *PAIRED)
    not_a_number = Tensor("F32", [s, 8], [math.nan if i == 17 else i % 8 for i in range(40)])
    refused("NaN in freqs", {**q, "freqs": not_a_number}, ["'freqs'", "NaN", "element 17"], *said, *PAIRED)
    complex_table = [f(p * rope.default(d)[i]) for p in range(s) for i in range(8) for f in (math.cos, math.sin)]
    for dims in ([s, 8, 2], [1, s, 1, 8, 2]):
        right("freqs_cis %s" % dims, {**q, "freqs_cis": Tensor("F32", dims, complex_table)}, "bshd", interleaved, *said,
              "--pairing", "interleaved")
    right("freqs_cis C64", {**q, "freqs_cis": Tensor("C64", [s, 8], complex_table)}, "bshd", interleaved, *said,
          "--pairing", "interleaved")


def table_layouts():
    """Megatron's [s, b, 1, d], and rows that are tokens'."""
    d = 8
    for s, b in ((5, 2), (3, 3)):
        positions = [[random.randrange(40) for _ in range(b)] for _ in range(s)]
        positions[0] = [0] * b
        freqs = Tensor("F32", [s, b, 1, d], table(float, [p for row in positions for p in row], halves(4)))
        tensors = {"q": tensor("F32", s, b, 2, d), "freqs": freqs}
        said = ["--layout", "sbhd", *PAIRED]
        rotation = Rotation(angles_of(theta(d), lambda b, t: positions[t][b]), d)
        if s == b:
            refused("[s, b, 1, d] with s = b", tensors, ["'freqs'", "bsd or sbd", "--table-layout"], *said)
            said += ["--table-layout", "sbd"]
        right("[s, b, 1, d], s %d, b %d" % (s, b), tensors, "sbhd", rotation, *said)
    ids = [0, 2, 9, 4]
    gathered = cos_sin((1, 4, d), ids, halves(4))
    q = {"q": tensor("F32", 1, 4, 2, d), "position_ids": Tensor("I64", [1, 4], [0, 3, 1, 2])}
    said = ["--layout", "bshd", *PAIRED]
    refused("rows of tokens or of positions", {**q, **gathered}, ["'cos'", "--table-rows"], *said)
    right("rows of tokens", {**q, **gathered}, "bshd", Rotation(angles_of(theta(d), lambda b, t: ids[t]), d), *said,
          "--table-rows", "tokens", says=["each token by its own row", "position_ids: not used"])
    refused("a range of rows of tokens", {**q, **gathered}, ["--out-of-range", "no effect"], *said,
            "--table-rows", "tokens", "--out-of-range", "clamp")
    right("rows of positions", {**q, **gathered}, "bshd",
          Rotation(angles_of(theta(d), lambda b, t: ids[[0, 3, 1, 2][t]]), d), *said, "--table-rows", "positions")
    refused("too few rows", {"q": q["q"], **cos_sin((1, 3, d), range(3), halves(4))}, ["'cos'", "rows"], *said)
    # Qwen2-VL: a table an axis.
    axes = [[0] + [random.randrange(40) for _ in range(3)] for _ in range(3)]
    planes = cos_sin((3, 1, 4, d), [p for axis in axes for p in axis], halves(4))
    refused("a table an axis", {"q": q["q"], **planes}, ["'cos'", "--axis-map"], *said)
    more = {name: Tensor("F32", [4, 1, 4, d], t.values + t.values[:4 * d]) for name, t in planes.items()}
    refused("a table without a section", {"q": q["q"], **more}, ["'cos'", "4 axes", "--axis-sections"], *said, "--axis-map",
            "sections", "--axis-sections", "2,1,1")
    of_axis = [0, 0, 1, 2]

    def angles(b, t, i):
        a = axes[of_axis[i]][t] * rope.default(d)[i]
        return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

    right("[3, b, s, d]", {"q": q["q"], **planes}, "bshd", Rotation(angles, d), *said, "--axis-map", "sections",
          "--axis-sections", "2,1,1", says=["3 axes"])
    # Each axis of a table drives pairs, and each that drives pairs has a plane: what is behind a table is not read.
    two = {name: Tensor("F32", [2, 1, 4, d], t.values[:8 * d]) for name, t in planes.items()}
    refused("fewer axes than sections", {"q": q["q"], **two}, ["'cos'", "2 axes", "--axis-sections has 3", "use 3"], *said,
            "--axis-map", "sections", "--axis-sections", "2,1,1")
    refused("more axes than windows", {"q": q["q"], **planes}, ["'cos'", "3 axes", "--windows is 2"], *said, "--windows", 2,
            "--columns", "half")
    two = {"q": tensor("F32", 1, 4, 2, 12), **cos_sin((2, 1, 4, 12), [0, 1, 2, 3] * 2, halves(6))}
    refused("fewer axes than windows", two,
            ["'cos'", "2 axes", "--windows is 3"], *said, "--windows", 3, "--columns", "half")


def tables_that_are_none():
    """What has the shape of a table, and is none of any model, is refused."""
    d, s = 16, 5
    q, said = {"q": tensor("F32", 1, s, 2, d)}, ["--layout", "bshd", *PAIRED]
    good = cos_sin((s, d), range(s), halves(8))

    def changed(name, index, value, tensors=good):
        values = list(tensors[name].values)
        values[index] = value
        return {**tensors, name: Tensor(tensors[name].dtype, tensors[name].shape, values)}

    def scaled(factor, **only):
        return {name: Tensor("F32", [s, d], [factor * v for v in t.values]) if only.get(name, True) else t
                for name, t in good.items()}

    right("a table", {**q, **good}, "bshd", Rotation(angles_of(theta(d)), d), *said)
    right("with a factor", {**q, **scaled(1.25)}, "bshd", Rotation(angles_of(theta(d)), d, mscale=1.25), *said)
    none = ["'cos'", "no table of cosines and sines"]
    refused("a factor of cos alone", {**q, **scaled(1.25, sin=False)}, none, *said)
    refused("a row of another factor", {**q, **{n: Tensor("F32", [s, d], t.values[:-d] + [1.01 * v for v in t.values[-d:]])
                                                for n, t in good.items()}}, none, *said)
    refused("one entry that is off", {**q, **changed("cos", 2 * d + 3, 0.25)}, none, *said)
    refused("one entry that is a bit off", {**q, **changed("sin", 2 * d, good["sin"].values[2 * d] + 2e-5)}, none, *said)
    refused("cosines of zeros", {**q, **scaled(0.0)}, none, *said)
    refused("angles as cosines", {**q, **{n: Tensor("F32", [s, d], table(float, range(s), halves(8))) for n in good}}, none,
            *said)
    refused("a number that is too large", {**q, **changed("cos", 3, 3e38)}, none, *said)
    for name, value in (("cos", math.nan), ("sin", math.nan), ("sin", math.inf)):
        refused("%s in %s" % (value, name), {**q, **changed(name, 7, value)}, ["'%s'" % name, "element 7"], *said)
    turned = {"cos": good["sin"], "sin": good["cos"]}
    refused("cos and sin exchanged", {**q, **turned}, ["'cos'", "exchanged", "row 0"], *said)
    refused("a cosine of -1", {**q, **scaled(-1.0)}, ["'cos'", "positive cos"], *said)
    shifted = cos_sin((s, d), range(1, s + 1), halves(8))
    refused("rows from position 1 on", {**q, **shifted}, ["'cos'", "row 0", "--table-rows tokens"], *said)
    right("rows of tokens at other positions", {**q, **shifted}, "bshd",
          Rotation(angles_of(theta(d), lambda b, t: t + 1), d), *said, "--table-rows", "tokens")
    long = cos_sin((s + 2, d), range(1, s + 3), halves(8))
    refused("more rows from position 1 on", {**q, **long}, ["'cos'", "begin at another"], *said)
    first = {"position_ids": Tensor("I64", [s], [3, 4, 0, 1, 2])}
    refused("tokens whose positions say otherwise", {**q, **first, **shifted}, ["'cos'", "row 2", "position 0"], *said,
            "--table-rows", "tokens")
    agreeing = cos_sin((s, d), first["position_ids"].values, halves(8))
    right("tokens whose positions agree", {**q, **first, **agreeing}, "bshd",
          Rotation(angles_of(theta(d), lambda b, t: first["position_ids"].values[t]), d), *said, "--table-rows", "tokens")
    other = {"q": tensor("F32", 2, s, 2, d), **cos_sin((2, s, d), [*range(s), *range(1, s + 1)], halves(8))}
    refused("one batch entry from position 1 on", other, ["'cos'", "row 0"], *said)
    from_1, one = table(float, range(1, s + 1), halves(8)), [1e-9] + table(float, range(s), halves(8))[1:]
    refused("angles from position 1 on", {**q, "freqs": Tensor("F32", [s, d], from_1)}, ["'freqs'", "angles of 0"], *said)
    refused("one angle at position 0", {**q, "freqs": Tensor("F32", [s, d], one)}, ["'freqs'", "angles of 0"], *said)
    packed = {"q": tensor("F32", 6, 2, d), "cu_seqlens": Tensor("I32", [3], [0, 4, 6])}
    places = [0, 1, 2, 3, 0, 1]
    right("rows of packed tokens", {**packed, **cos_sin((6, d), places, halves(8))}, "thd",
          Rotation(angles_of(theta(d), lambda b, t: places[t]), d), *PAIRED, "--table-rows", "tokens")
    refused("rows that count on", {**packed, **cos_sin((6, d), range(6), halves(8))}, ["'cos'", "row 4", "position 0"],
            *PAIRED, "--table-rows", "tokens")
    pairs_of = [f(p * rope.default(d)[i]) for p in range(s) for i in range(8) for f in (math.sin, math.cos)]
    refused("freqs_cis turned round", {**q, "freqs_cis": Tensor("C64", [s, 8], pairs_of)}, ["'freqs_cis'", "row 0"], *said)
    for bad, where in (([1.0, -0.5, 0.1, 0.1], 1), ([1.0, 0.0, 0.1, 0.0], 1), ([0.0] * 4, 0), ([0.0, 1.0, 0.1, 0.1], 0),
                       ([1.0, 0.1, 0.0, -0.01], 2)):
        inv_freq = {"q": tensor("F32", 1, s, 2, 8), "inv_freq": Tensor("F32", [4], bad)}
        refused("inv_freq of %s" % bad, inv_freq, ["'inv_freq'", "positive", "element %d is" % where], *said)
    # What rounding does to a table is no reason, by whatever dtype and factor.
    for dtype in ("F32", "F16", "BF16"):
        for factor in (1.0, 1.0693, 1.3466, 0.7071):
            rounded = {n: Tensor(dtype, [400, d], safetensors.rounded(dtype, [
                factor * v for v in safetensors.rounded(dtype, table(f, range(400), halves(8)))]))
                       for n, f in (("cos", math.cos), ("sin", math.sin))}
            result, _ = apply({**q, **rounded}, *said)
            check(result.returncode == 0, dtype, factor, result.stderr)


# Positions and sequences


def sequences():
    said = ["--layout", "thd", *PAIRED, *THETA]
    q = {"q": tensor("F32", 9, 2, 8)}

    def with_ends(values):
        return {**q, "cu_seqlens": Tensor("I32", [len(values)], values)}

    refused("lengths", with_ends([4, 5]), ["'cu_seqlens'", "begin with 0", "these are lengths"], *said)
    refused("lengths, with a policy", with_ends([4, 5]), ["'cu_seqlens'", "begin with 0"], *said, "--padding", "zero")
    refused("no leading 0", with_ends([4, 9]), ["'cu_seqlens'", "begin with 0"], *said)
    refused("an end before the tokens", with_ends([0, 4]), ["'cu_seqlens'", "ends at 4", "--padding"], *said)
    where = rope.packed_positions(9, [0, 4])
    right("an end before the tokens, with a policy", with_ends([0, 4]), "thd",
          Rotation(angles_of(theta(8), lambda b, t: where[t][0]), 8, keep=lambda b, t: "zero" if t > 3 else "rotate"),
          *said,
          "--padding", "zero", says=["q: thd, batch 1, 9 tokens, 2 heads of 8; 5 tokens are padding"])
    refused("padding without sequences", q, ["--padding", "no effect"], *said, "--padding", "zero")
    refused("a range without a table", q, ["--out-of-range", "no effect"], *said, "--out-of-range", "clamp")
    cp = {"--cp-size": 2, "--cp-rank": 1, "--cp-layout": "contiguous"}
    for missing in cp:
        options = [word for name, value in cp.items() if name != missing for word in (name, value)]
        refused("without " + missing, q, [missing, "missing"], *said, *options)
    refused("an end beyond the tokens", with_ends([0, 4, 10]), ["'cu_seqlens'", "at most"], *said[2:])
    # One rank holds whole sequences, which may be odd, whatever its layout.
    for layout in ("contiguous", "zigzag", "striped", "flat"):
        one = ["--cp-size", 1, "--cp-rank", 0, "--cp-layout", layout]
        where = rope.packed_positions(9, [0, 3, 8, 9])
        right("one rank, " + layout, with_ends([0, 3, 8, 9]), "thd",
              Rotation(angles_of(theta(8), lambda b, t: where[t][0]), 8), *said, *one)
        right("one rank, dense, " + layout, {"q": tensor("F32", 2, 7, 2, 8)}, "bshd", Rotation(angles_of(theta(8)), 8),
              "--layout", "bshd", *PAIRED, *THETA, *one)
    last = {"q": tensor("F32", 9, 2, 8), "position_ids": Tensor("I64", [9], [0] * 8 + [2 ** 63 - 1]),
            **cos_sin((9, 8), range(9), halves(4))}
    refused("the last number of 64 bits", last, ["'position_ids'", "not in the rows", str(2 ** 63 - 1)], *said[:4],
            "--table-rows", "positions")
    ids = Tensor("I64", [3, 1, 9], [random.randrange(30) for _ in range(27)])
    x = {"q": tensor("F32", 1, 9, 2, 8), "position_ids": ids}
    refused("three axes without a map", x, ["'position_ids'", "--axis-map"], "--layout", "bshd", *PAIRED, *THETA)
    # Qwen2-VL's ids of transformers, which have those of the text in front.
    four = Tensor("I64", [4, 1, 9], list(range(50, 59)) + ids.values)
    axes = [*PAIRED, *THETA, "--layout", "bshd", "--axis-map", "sections", "--axis-sections"]
    refused("an axis without a section", {**x, "position_ids": four}, ["'position_ids'", "4 axes", "--axis-sections"],
            *axes, "2,1,1")

    def angles(b, t, i):
        a = ids.values[9 * (0, 0, 1, 2)[i] + t] * rope.default(8)[i]
        return math.cos(a), math.sin(a), math.cos(a), math.sin(a)

    right("an axis that drives no pair", {**x, "position_ids": four}, "bshd", Rotation(angles, 8), *axes, "0,2,1,1")
    refused("ranks beside ids", {**x, "position_ids": Tensor("I64", [9], list(range(9)))}, ["'position_ids'", "--cp-size"],
            "--layout", "bshd", *PAIRED, *THETA, *[word for pair in cp.items() for word in pair])


# Rules and other options


def options():
    q = {"q": tensor("F32", 5, 1, 2, 16)}
    said = ["--layout", "sbhd", *PAIRED, *THETA]
    for rule in ("linear", "yarn:original_max_position_embeddings=64",
                 "llama3:factor=8,original_max_position_embeddings=64",
                 "proportional:factor=2", "dynamic:factor=2", "longrope:original_max_position_embeddings=32,factor=2",
                 "linear:factor=0", "yarn:factor=0,original_max_position_embeddings=64", "linear:factor=2,factor=4",
                 "default:factor=2"):
        refused(rule, q, ["--scaling"], *said, "--scaling", rule)
    for rule in ("dynamic:factor=2,original_max_position_embeddings=4",
                 "longrope:factor=2,original_max_position_embeddings=4,short_factor=1;1;1;1;1;1;1;1,"
                 "long_factor=2;2;2;2;2;2;2;2"):
        refused("beyond the length of " + rule, q, ["--seq-len", "up to 4"], *said, "--scaling", rule)
        refused("less than the length of " + rule, q, ["--seq-len"], *said, "--scaling", rule, "--seq-len", 3)
        check(apply(q, *said, "--scaling", rule, "--seq-len", 5)[0].returncode == 0, "the length is said", rule)
    refused("no base", q, ["--rope-theta", "missing"], *said[:-2])
    refused("no pairing", q, ["--pairing", "missing"], "--layout", "sbhd", *THETA)
    for option in (["--rope-theta", 0], ["--mscale", 0]):
        refused("%s of 0" % option[0], q, [option[0], "must not be 0"],
                *[w for w in said if option[0] != "--rope-theta" or w not in THETA], *option)
    refused("twice", q, ["--rotary-dim", "twice"], *said, "--rotary-dim", 8, "--rotary-dim", 8)
    refused("a flag twice", q, ["--inverse", "twice"], *said, "--inverse", "--inverse")
    refused("an abbreviation", q, ["--rotary-d", "--rotary-dim"], *said, "--rotary-d", 8)
    refused("--ulp", q, ["--ulp", "no effect"], *said, "--ulp", 1)
    refused("--columns", q, ["--columns", "no effect"], *said, "--columns", "half")
    refused("--windows for nothing", {"v": q["q"]}, ["--windows", "nothing is rotated"], "--layout", "sbhd", "--windows", 2)
    refused("many threads", q, ["--threads"], *said, "--threads", 65536)
    refused("a k with narrower heads", {**q, "k": tensor("F32", 5, 1, 2, 8)}, ["--rotary-dim", "8 and of 16"], *said)
    for other, ours in (("--base", "--rope-theta"), ("--rope_theta=3", "--rope-theta"), ("--interleaved", "--pairing"),
                        ("--rotary-percent", "--partial-rotary-factor"), ("--mrope-section", "--axis-sections")):
        refused(other, q, [other, ours], *said, other)


def round_trip():
    """What goes with q is in the output, so that the way back needs no more than the way there."""
    ids = Tensor("I64", [5], [3, 1, 4, 1, 5])
    q = {"q": tensor("F32", 5, 1, 2, 16), "inv_freq": positive("F64", 8), "position_ids": ids}
    with harness.folder() as directory:
        source, target = os.path.join(directory, "in"), os.path.join(directory, "out")
        safetensors.write(source, q)
        there = ["--layout", "sbhd", *PAIRED]
        check(run("apply", source, "-o", target, *there).returncode == 0, "there")
        result = run("apply", target, "--inverse", "--expect", source, "--ulp", 4096, *there)
        check(result.returncode == 0, "and back", result.stdout, result.stderr)


def several_layers():
    """A call for each prefix, with what the whole file or a part of it shares."""
    layers = {}
    for layer in (0, 1):
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            layers["model.layers.%d.self_attn.%s" % (layer, name)] = tensor("F32", 5, 1, heads, 8)
    said = ["--layout", "sbhd", *PAIRED]
    freqs = positive("F64", 4)
    shared = {**layers, "model.rotary_emb.inv_freq": Tensor("F32", [4], safetensors.rounded("F32", freqs.values))}
    rotation = Rotation(angles_of(lambda i: shared["model.rotary_emb.inv_freq"].values[i]), 8)
    right("one inv_freq for two layers", shared, "sbhd", rotation, *said, says=["model.layers.0.self_attn.q: sbhd"])
    of_layer = {**layers, "model.layers.0.inv_freq": positive("F32", 4), "model.layers.1.inv_freq": positive("F32", 4)}
    result, found = apply(of_layer, *said)
    for layer in (0, 1):
        frequencies = of_layer["model.layers.%d.inv_freq" % layer].values
        for name in ("q", "k"):
            source = of_layer["model.layers.%d.self_attn.%s" % (layer, name)]
            want, _ = Rotation(angles_of(lambda i: frequencies[i]), 8).apply("sbhd", source.shape, source.values)
            got = found["model.layers.%d.self_attn.%s" % (layer, name)].values
            check(max(abs(a - b) for a, b in zip(got, want)) < 1e-5, "layer", layer, name, result.stderr)
    refused("two that may be meant", {**of_layer, "inv_freq": freqs}, ["'inv_freq'", "both", "model.layers"], *said)
    refused("one of another layer", {**layers, "model.layers.7.inv_freq": freqs},
            ["'model.layers.7.inv_freq'", "goes with no"],
            *said)
    refused("two names for q", {"q": layers["model.layers.0.self_attn.q"], "query": layers["model.layers.0.self_attn.q"]},
            ["'query'", "'q'"], *said, *THETA)


harness.require_apply()
random.seed(20261126)
layouts()
tables()
table_layouts()
tables_that_are_none()
sequences()
options()
round_trip()
several_layers()
harness.finish()
