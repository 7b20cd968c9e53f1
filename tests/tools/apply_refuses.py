"""trope apply refuses every kind of bad file and bad option: exit status 2, one line that names file, tensor and rule, and
no file left behind."""

import json
import math
import os
import random
import resource
import struct

import harness
import safetensors
from harness import check, run
from safetensors import Tensor, pack

INT64 = 2 ** 63
DAMAGED = 300  # files with random damage


def zeros(dtype, *shape):
    return Tensor(dtype, list(shape), [0] * math.prod(shape))


GOOD = {"q": zeros("F32", 4, 2, 3, 8)}
BYTES = 4 * 2 * 3 * 8 * 4


def table(rows, columns):
    """F32 [rows, columns] with equal halves."""
    values = [float(r * (1 + c % (columns // 2))) for r in range(rows) for c in range(columns)]
    return Tensor("F32", [rows, columns], values)


def with_tensors(**tensors):
    return pack(*safetensors.entries(dict(GOOD, **tensors)))


def alone(**tensors):
    return pack(*safetensors.entries(tensors))


def packed(**tensors):
    return alone(q=zeros("F32", 4, 2, 8), **tensors)


def entry(shape=(4, 2, 3, 8), dtype="F32", begin=0, end=BYTES):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def q(**changes):
    """A file with one tensor q whose entry is changed."""
    return pack({"q": dict(entry(), **changes)}, bytes(BYTES))


def text(header, data=bytes(BYTES)):
    return pack(header.encode() if isinstance(header, str) else header, data)


def without(key):
    found = entry()
    del found[key]
    return pack({"q": found}, bytes(BYTES))


def two(a, b, bytes_of_data):
    """Tensors q and k of 8 floats at those offsets."""
    header = {n: entry((1, 1, 1, 8), "F32", *offsets) for n, offsets in (("q", a), ("k", b))}
    return pack(header, bytes(bytes_of_data))


ENTRY = '{"dtype":"F32","shape":[4,2,3,8],"data_offsets":[0,768]}'
GOOD_FILE = alone(**GOOD)
SAID = ["--layout", "sbhd", "--pairing", "half", "--rope-theta", 10000]  # all that it must be given

def said(content):
    """Options with all that a file with this content must be given."""
    by_rule = not any(name in content for name in (b'"freqs', b'"cos"', b'"sin"', b'"inv_freq"'))
    layout = "thd" if b"[4, 2, 8]" in content or b"[6, 2, 8]" in content else "sbhd"
    return ["--layout", layout, "--pairing", "half"] + ["--rope-theta", 10000] * by_rule


# What is wrong, the file, words that the line must hold.
FILES = [
    # The file and its header
    ("empty file", b"", ["0 bytes", "header length"]),
    ("seven bytes", b"\0" * 7, ["7 bytes", "header length"]),
    ("a header length beyond the file", struct.pack("<Q", 1000) + b"{}", ["header length (1000)", "beyond"]),
    ("a header length of 2^64 - 1", b"\xff" * 8 + b"{}", ["header length (18446744073709551615)"]),
    ("a huge header length", struct.pack("<Q", 100000001) + b"{}", ["header length (100000001)", "at most 100000000"]),
    ("a truncated header", GOOD_FILE[:20], ["header length", "beyond"]),
    ("an empty header", pack(b""), ["not a JSON object"]),
    ("a header that is not JSON", text("hello"), ["not a JSON object"]),
    ("a header that is cut off", text('{"q":' + ENTRY), ["not a JSON object"]),
    ("a header with something after it", text('{"q":' + ENTRY + "} x"), ["not a JSON object"]),
    ("a header that is an array", text("[]", b""), ["not a JSON object"]),
    ("a header that starts with a space", text(' {"q":' + ENTRY + "}"), ["not a JSON object"]),
    ("a header with a zero byte", text(b'{"q":\0' + ENTRY.encode() + b"}"), ["zero byte"]),
    ("a header that is not UTF-8", text(b'{"q\xff":' + ENTRY.encode() + b"}"), ["UTF-8"]),
    ("a header cut in a character", pack(b'{"q": "\xe2\x82'), ["UTF-8"]),
    ("a surrogate", text(b'{"q\xed\xa0\x80":' + ENTRY.encode() + b"}"), ["UTF-8"]),
    ("a zero in two bytes", text(b'{"q\xc0\x80":' + ENTRY.encode() + b"}"), ["UTF-8"]),
    ("a name beyond ASCII", text('{"\u03c6":'.encode() + ENTRY.encode() + b"}"), ["'??'", "unknown name"]),
    ("a header nested deeply", text('{"q":' + "[" * 100000 + "]" * 100000 + "}"), ["not a JSON object"]),
    ("no tensors", text("{}", b""), ["q, k, x, v"]),
    ("only inputs", alone(freqs=zeros("F32", 4, 8)), ["q, k, x, v"]),
    ("a name twice", text('{"q":' + ENTRY + ',"q":' + ENTRY + "}"), ["'q'", "only once"]),
    ("an unknown name", with_tensors(keys=zeros("F32", 4, 2, 3, 8)), ["'keys'", "unknown name"]),
    ("a name that differs in case", alone(Q=zeros("F32", 4, 2, 3, 8)), ["'Q'", "unknown name"]),
    ("an empty name", text('{"":' + ENTRY + "}"), ["''", "unknown name"]),
    ("a name with a line break", text('{"q\\nk":' + ENTRY + "}"), ["'q?k'", "unknown name"]),
    ("a name with a zero character", text('{"q\\u0000k":' + ENTRY + "}"), ["zero character"]),
    ("a very long name", text('{"' + "q" * 100000 + '":' + ENTRY + "}"), ["unknown name"]),
    ("metadata that is no object", pack({"__metadata__": "x", "q": entry()}, bytes(BYTES)), ["__metadata__", "object"]),
    ("metadata with a number", pack({"__metadata__": {"a": 1}, "q": entry()}, bytes(BYTES)), ["__metadata__", "'a'"]),
    ("metadata with a name twice", text('{"__metadata__":{"a":"1","a":"2"},"q":' + ENTRY + "}"), ["__metadata__", "'a'"]),
    # One entry
    ("an entry that is no object", text('{"q":3}'), ["'q'", "object"]),
    ("no dtype", without("dtype"), ["'q'", "dtype"]),
    ("no shape", without("shape"), ["'q'", "shape"]),
    ("no offsets", without("data_offsets"), ["'q'", "data_offsets"]),
    ("one thing too many", q(layout="sbhd"), ["'q'", "nothing else"]),
    ("a dtype twice", text('{"q":' + ENTRY[:-1] + ',"dtype":"F16"}}'), ["'q'", "nothing else"]),
    ("a dtype that is a number", q(dtype=32), ["'q'", "dtype", "string"]),
    ("an unknown dtype", q(dtype="F8_E4M3"), ["'q'", "F8_E4M3"]),
    ("a shape that is a number", q(shape=192), ["'q'", "shape", "array"]),
    ("a negative dim", q(shape=[4, -2, 3, 8]), ["'q'", "shape", "dim 1"]),
    ("a fractional dim", q(shape=[4, 2.5, 3, 8]), ["'q'", "shape", "dim 1"]),
    ("a dim that is text", q(shape=[4, "2", 3, 8]), ["'q'", "shape", "dim 1"]),
    ("a dim of 1e400", text('{"q":' + ENTRY.replace("[4,", "[1e400,") + "}"), ["'q'", "shape", "dim 0"]),
    ("a dim written 4.0", text('{"q":' + ENTRY.replace("[4,", "[4.0,") + "}"), ["fractional"]),
    ("a dim written 04", text('{"q":' + ENTRY.replace("[4,", "[04,") + "}"), ["leading zeros"]),
    ("a dim written 4e0", text('{"q":' + ENTRY.replace("[4,", "[4e0,") + "}"), ["exponent"]),
    ("a dim of 2^63", q(shape=[INT64, 2, 3, 8]), ["'q'", "shape", "dim 0"]),
    ("a size that overflows", q(shape=[2 ** 40, 2 ** 40, 1, 1]), ["'q'", "64 bits"]),
    ("bytes that overflow to the right number", q(shape=[2 ** 52, 2 ** 12, 1, 1], data_offsets=[0, 0]), ["'q'", "64 bits"]),
    ("nine dims", q(shape=[4, 2, 3, 8, 1, 1, 1, 1, 1]), ["'q'", "at most 8 dims"]),
    ("one offset", q(data_offsets=[0]), ["'q'", "data_offsets"]),
    ("three offsets", q(data_offsets=[0, 4, BYTES]), ["'q'", "data_offsets"]),
    ("a negative offset", q(data_offsets=[-4, BYTES - 4]), ["'q'", "data_offsets"]),
    ("a fractional offset", q(data_offsets=[0.5, BYTES + 0.5]), ["'q'", "data_offsets"]),
    ("offsets that decrease", q(data_offsets=[BYTES, 0]), ["'q'", "must not decrease"]),
    ("too few bytes for the shape", q(data_offsets=[0, BYTES - 4]), ["'q'", "764 bytes", "needs 768"]),
    ("too many bytes for the shape", q(shape=[4, 2, 3, 4]), ["'q'", "768 bytes", "needs 384"]),
    ("an offset beyond the file", pack({"q": entry()}, bytes(BYTES - 1)), ["'q'", "beyond the file"]),
    ("an offset beyond 2^53", q(data_offsets=[2 ** 60, 2 ** 60 + BYTES]), ["'q'", "data_offsets"]),
    ("bytes left over", pack({"q": entry()}, bytes(BYTES + 1)), ["769 bytes of data"]),
    ("overlapping tensors", two((0, 32), (16, 48), 48), ["'k'", "overlaps"]),
    ("the same bytes twice", two((0, 32), (0, 32), 32), ["overlaps"]),
    ("a hole between tensors", two((0, 32), (36, 68), 68), ["'k'", "hole"]),
    ("a hole at the start", two((4, 36), (36, 68), 68), ["'q'", "hole"]),
    # Operands
    ("integer operands", alone(q=zeros("I32", 4, 2, 3, 8)), ["'q'", "I32", "must have dtype"]),
    ("two dims", alone(q=zeros("F32", 4, 8)), ["'q'", "[4, 8]", "4 dims"]),
    ("five dims", alone(q=zeros("F32", 4, 1, 1, 2, 8)), ["'q'", "4 dims"]),
    ("no heads", alone(q=zeros("F32", 4, 2, 0, 8)), ["'q'", "heads"]),
    ("no elements in a head", alone(q=zeros("F32", 4, 2, 3, 0)), ["'q'", "heads"]),
    ("another dtype", with_tensors(k=zeros("F16", 4, 2, 3, 8)), ["'k'", "'q'", "dtype"]),
    ("another batch", with_tensors(v=zeros("F32", 4, 1, 3, 8)), ["'v'", "'q'", "batch"]),
    ("other tokens", with_tensors(x=zeros("F32", 5, 2, 3, 8)), ["'x'", "'q'", "tokens"]),
    ("other dims", with_tensors(k=zeros("F32", 8, 3, 8)), ["'k'"]),
    ("an odd head", alone(q=zeros("F32", 4, 2, 3, 7)), ["'q'", "--rotary-dim", "divisible"]),
    ("a head too wide to rotate", alone(q=zeros("F32", 1, 1, 1, 1026)), ["'q'", "--rotary-dim", "1024"]),
    # Angles
    ("freqs and cos", with_tensors(freqs=zeros("F32", 4, 8), cos=zeros("F32", 4, 8), sin=zeros("F32", 4, 8)),
     ["'freqs'", "'cos'", "one of"]),
    ("freqs and inv_freq", with_tensors(freqs=zeros("F32", 4, 8), inv_freq=zeros("F64", 4)), ["'freqs'", "'inv_freq'"]),
    ("cos and inv_freq", with_tensors(cos=zeros("F32", 4, 8), sin=zeros("F32", 4, 8), inv_freq=zeros("F64", 4)),
     ["'cos'", "'inv_freq'"]),
    ("cos without sin", with_tensors(cos=zeros("F32", 4, 8)), ["'cos'", "'sin'"]),
    ("sin without cos", with_tensors(sin=zeros("F32", 4, 8)), ["'sin'", "'cos'"]),
    ("sin of another shape", with_tensors(cos=zeros("F32", 4, 8), sin=zeros("F32", 4, 4)), ["'sin'", "'cos'"]),
    ("sin of another dtype", with_tensors(cos=zeros("F32", 4, 8), sin=zeros("F64", 4, 8)), ["'sin'", "'cos'"]),
    ("cos of a wrong dtype", with_tensors(cos=zeros("F64", 4, 8), sin=zeros("F64", 4, 8)), ["'cos'", "F64", "dtype"]),
    ("freqs of a wrong dtype", with_tensors(freqs=zeros("F64", 4, 8)), ["'freqs'", "F64", "dtype"]),
    ("freqs of one dim", with_tensors(freqs=zeros("F32", 8)), ["'freqs'", "rows, cols"]),
    ("freqs of six dims", with_tensors(freqs=zeros("F32", 1, 1, 1, 1, 4, 8)), ["'freqs'", "rows, cols"]),
    ("freqs per head", with_tensors(freqs=zeros("F32", 4, 5, 3, 8)), ["'freqs'", "dims of 1"]),
    ("freqs of another batch", with_tensors(freqs=zeros("F32", 5, 4, 8)), ["'freqs'", "batch"]),
    ("freqs of a wrong width", with_tensors(freqs=zeros("F32", 4, 6)), ["'freqs'", "--rotary-dim"]),
    ("freqs without columns", with_tensors(freqs=zeros("F32", 4, 0)), ["'freqs'", "columns"]),
    ("freqs wider than the head", with_tensors(freqs=Tensor("F32", [4, 1, 1, 16], table(4, 16).values)),
     ["'q'", "at least 16 elements"]),
    ("freqs with too few rows", with_tensors(freqs=zeros("F32", 3, 8)), ["'freqs'", "rows"]),
    ("inv_freq of a wrong dtype", with_tensors(inv_freq=zeros("F16", 4)), ["'inv_freq'", "F16", "dtype"]),
    ("inv_freq of two dims", with_tensors(inv_freq=zeros("F32", 1, 4)), ["'inv_freq'", "rotary_dim / 2"]),
    ("inv_freq for more than the head", with_tensors(inv_freq=Tensor("F32", [5], [1] * 5)),
     ["'q'", "at least 10 elements"]),
    ("an empty inv_freq", with_tensors(inv_freq=zeros("F32", 0)), ["'inv_freq'", "elements"]),
    ("inv_freq that is not finite", with_tensors(inv_freq=Tensor("F32", [4], [1, math.inf, 1, 1])), ["'inv_freq'"]),
    # Positions
    ("float cu_seqlens", packed(cu_seqlens=zeros("F32", 2)), ["'cu_seqlens'", "I32 or I64"]),
    ("cu_seqlens of two dims", packed(cu_seqlens=zeros("I32", 1, 2)), ["'cu_seqlens'", "sequences + 1"]),
    ("empty cu_seqlens", packed(cu_seqlens=zeros("I32", 0)), ["'cu_seqlens'", "sequences + 1"]),
    ("cu_seqlens that decrease", packed(cu_seqlens=Tensor("I32", [3], [0, 3, 2])), ["'cu_seqlens'"]),
    ("cu_seqlens beyond the tokens", packed(cu_seqlens=Tensor("I32", [2], [0, 5])), ["'cu_seqlens'"]),
    ("cu_seqlens with a batch", with_tensors(cu_seqlens=Tensor("I32", [2], [0, 4])), ["'cu_seqlens'", "batch"]),
    ("padded cu_seqlens alone", packed(cu_seqlens_padded=Tensor("I32", [2], [0, 4])),
     ["'cu_seqlens_padded'", "'cu_seqlens'"]),
    ("padded cu_seqlens of another length", packed(cu_seqlens=Tensor("I32", [2], [0, 4]),
                                                   cu_seqlens_padded=Tensor("I32", [3], [0, 4, 4])),
     ["'cu_seqlens_padded'"]),
    ("padded cu_seqlens of another dtype", packed(cu_seqlens=Tensor("I32", [2], [0, 4]),
                                                  cu_seqlens_padded=Tensor("I64", [2], [0, 4])),
     ["'cu_seqlens_padded'"]),
    ("starts of a wrong number", with_tensors(start_positions=zeros("I32", 3)), ["'start_positions'", "[batch]"]),
    ("starts for other sequences", packed(cu_seqlens=Tensor("I32", [2], [0, 4]),
                                          start_positions=zeros("I32", 2)), ["'start_positions'", "[sequences]"]),
    ("float starts", with_tensors(start_positions=zeros("F32", 2)), ["'start_positions'", "I32 or I64"]),
    ("starts and ids", with_tensors(start_positions=zeros("I32", 2), position_ids=zeros("I32", 4)),
     ["'start_positions'", "'position_ids'"]),
    ("float ids", with_tensors(position_ids=zeros("F32", 4)), ["'position_ids'", "I32 or I64"]),
    ("ids of other tokens", with_tensors(position_ids=zeros("I32", 5)), ["'position_ids'", "tokens"]),
    ("ids of another batch", with_tensors(position_ids=zeros("I32", 3, 4)), ["'position_ids'", "batch"]),
    ("ids of five axes", with_tensors(position_ids=zeros("I32", 5, 2, 4)), ["'position_ids'", "axes"]),
    ("ids of four dims", with_tensors(position_ids=zeros("I32", 1, 1, 2, 4)), ["'position_ids'", "axes, batch, tokens"]),
    ("ids beyond the rows", with_tensors(freqs=table(5, 8), position_ids=Tensor("I32", [4], [0, 1, 2, 5])),
     ["'position_ids'", "rows"]),
]

# What is wrong, the options, words that the line must hold. The file is a good one.
OPTIONS = [
    ("a layout of 3 dims", ["--layout", "thd"], ["'q'", "3 dims", "thd"]),
    ("an unknown layout", ["--layout", "shbd"], ["--layout", "shbd", "bhsd"]),
    ("an unknown pairing", ["--pairing", "neox"], ["--pairing", "neox"]),
    ("an unknown option", ["--turn", 3], ["--turn", "not an option"]),
    ("a missing value", ["--rotary-dim"], ["--rotary-dim", "needs a value"]),
    ("a number with more behind it", ["--rotary-dim", "8x"], ["--rotary-dim", "8x"]),
    ("a negative number", ["--rotary-dim", -2], ["--rotary-dim", "-2"]),
    ("a number of 80 bits", ["--threads", 2 ** 80], ["--threads"]),
    ("no number", ["--mscale", "nan"], ["--mscale", "finite"]),
    ("a rotary_dim that is too large", ["--rotary-dim", 16], ["'q'", "16 elements"]),
    ("an odd rotary_dim", ["--rotary-dim", 7], ["'q'", "--rotary-dim"]),
    ("an offset that is too large", ["--rotary-offset", 9], ["'q'", "--rotary-offset"]),
    ("windows that do not fit", ["--windows", 3], ["'q'", "--windows"]),
    ("five windows", ["--windows", 5], ["--windows", "[1, 4]"]),
    ("a map beside windows", ["--axis-map", "sections", "--axis-sections", "2,2,0", "--windows", 2], ["axis", "windows"]),
    ("sections without a map", ["--axis-sections", "1,1,2"], ["axis"]),
    ("a negative base", ["--rope-theta", -1], ["--rope-theta"]),
    ("an unknown rule", ["--scaling", "ntk:factor=2"], ["--scaling", "ntk", "llama3"]),
    ("an unknown key", ["--scaling", "linear:factors=2"], ["--scaling", "linear", "factors"]),
    ("another rule's key", ["--scaling", "linear:beta_fast=2"], ["--scaling", "linear", "beta_fast"]),
    ("a key without a value", ["--scaling", "linear:factor"], ["--scaling", "key=value"]),
    ("a factor that is no number", ["--scaling", "linear:factor=two"], ["--scaling", "two"]),
    ("a missing key", ["--scaling", "llama3:factor=8"], ["--scaling", "original_max_position_embeddings"]),
    ("too few factors", ["--scaling", "longrope:original_max_position_embeddings=8,short_factor=1;2;3,long_factor=1;1;1;1"],
     ["short_factor", "4 factors", "has 3"]),
    ("too many factors", ["--scaling", "longrope:original_max_position_embeddings=8,long_factor=1;2;3;4;5"],
     ["long_factor", "has more"]),
    ("sections that are no list", ["--axis-map", "sections", "--axis-sections", "1,2"], ["--axis-sections"]),
    ("sections that are too large", ["--axis-map", "sections", "--axis-sections", "1,2,9999999999"], ["--axis-sections"]),
    ("sections that do not add up", ["--axis-map", "sections", "--axis-sections", "1,1,1"],
     ["--axis-sections", "sections"]),
    ("a rank beyond the ranks", ["--cp-size", 2, "--cp-rank", 2, "--cp-layout", "zigzag"], ["--cp-rank"]),
    ("ranks without a layout", ["--cp-size", 2, "--cp-rank", 0], ["--cp-layout", "missing"]),
    ("packed positions without cu_seqlens", ["--packed-positions"], ["--packed-positions", "cu_seqlens"]),
    ("a device that is not there", ["--device", "cuda"], ["--device cuda", "no CUDA"]),
    ("a negative --ulp", ["--ulp", -1], ["--ulp"]),
]


def with_said(options):
    """SAID, but for what `options` say themselves."""
    pairs = zip(SAID[::2], SAID[1::2])
    return [word for pair in pairs if pair[0] not in options for word in pair] + list(options)


def refused(name, directory, before, result, words):
    line = result.stderr
    check(result.returncode == 2, name, "exit status is", result.returncode)
    one_line = line.startswith("trope apply: ") and line.count("\n") == 1 and line.endswith("\n")
    check(one_line, name, "is one line:", repr(line))
    check(result.stdout == "", name, "prints nothing else", result.stdout)
    for word in words:
        check(word in line, name, "has no", repr(word), "in", line.strip())
    check(harness.files(directory) == before, name, "leaves", harness.files(directory))


def bad_files():
    for name, content, words in FILES:
        with harness.folder() as directory:
            path = os.path.join(directory, "bad.safetensors")
            with open(path, "wb") as file:
                file.write(content)
            result = run("apply", path, "-o", os.path.join(directory, "out.safetensors"), *said(content))
            refused(name, directory, ["bad.safetensors"], result, ["bad.safetensors"] + words)


def every_truncation():
    """Of a good file: no cut makes another good one."""
    with harness.folder() as directory:
        path, out = os.path.join(directory, "bad.safetensors"), os.path.join(directory, "out.safetensors")
        for length in list(range(0, 100, 3)) + [len(GOOD_FILE) - 1, len(GOOD_FILE) - 8]:
            with open(path, "wb") as file:
                file.write(GOOD_FILE[:length])
            refused("cut to %d bytes" % length, directory, ["bad.safetensors"], run("apply", path, "-o", out, *SAID),
                    [path])


def random_damage():
    """A few bytes of a good header are changed: the result is refused or is a file, and nothing in between."""
    source = random.Random(11)
    good = with_tensors(v=zeros("F32", 4, 2, 1, 8), freqs=zeros("F32", 4, 8),
                        position_ids=Tensor("I32", [2, 4], [0, 1, 2, 3, 0, 1, 2, 3]))
    header = 8 + struct.unpack("<Q", good[:8])[0]
    with harness.folder() as directory:
        path, out = os.path.join(directory, "bad.safetensors"), os.path.join(directory, "out.safetensors")
        for trial in range(DAMAGED):
            content = bytearray(good)
            for _ in range(source.randint(1, 4)):
                content[source.randrange(header)] = source.choice(b'{}[]",:0123456789.-eE \\\xff\0dqk')
            with open(path, "wb") as file:
                file.write(content)
            result = run("apply", path, "-o", out, "--quiet", "--rotary-dim", 8, *SAID[:4])
            if result.returncode == 0:
                check("q" in safetensors.read(out)[0], "damage %d: a result" % trial, bytes(content[:header]))
                os.remove(out)
            refused_or_not = (0, "") if result.returncode == 0 else (2, "one line")
            lines = "one line" if result.stderr.count("\n") == 1 else result.stderr
            check((result.returncode, lines) == refused_or_not, "damage %d" % trial, bytes(content[:header]), result)
            check(harness.files(directory) == ["bad.safetensors"], "damage %d leaves a file" % trial)


def bad_options():
    with harness.folder() as directory:
        path, out = os.path.join(directory, "good.safetensors"), os.path.join(directory, "out.safetensors")
        with open(path, "wb") as file:
            file.write(GOOD_FILE)
        for name, options, words in OPTIONS:
            refused(name, directory, ["good.safetensors"], run("apply", path, "-o", out, *with_said(options)), words)
        for name, arguments, words in (("no input", ["-o", out], ["input"]), ("no output", [path], ["-o OUT", "--expect"]),
                                       ("two inputs", [path, path, "-o", out], ["one input"])):
            refused(name, directory, ["good.safetensors"], run("apply", *arguments), words)
        check(run("apply", path, "-o", out, *SAID).returncode == 0, "the file is a good one")
        os.remove(out)
        with open(path, "wb") as file:
            file.write(with_tensors(freqs=zeros("F32", 4, 8)))
        refused("a base beside freqs", directory, ["good.safetensors"], run("apply", path, "-o", out, *SAID),
                ["'freqs'", "--rope-theta"])
        with open(path, "wb") as file:
            file.write(with_tensors(inv_freq=Tensor("F32", [4], [1] * 4)))
        refused("inv_freq of another number", directory, ["good.safetensors"],
                run("apply", path, "-o", out, "--rotary-dim", 4, *SAID[:4]), ["'inv_freq'", "half of --rotary-dim (2)"])
        with open(path, "wb") as file:
            file.write(alone(q=zeros("F32", 6, 2, 8), cu_seqlens=Tensor("I64", [3], [0, 6, 12])))
        refused("an odd length under zigzag", directory, ["good.safetensors"],
                run("apply", path, "-o", out, "--cp-size", 2, "--cp-rank", 0, "--cp-layout", "zigzag", "--layout", "thd",
                    *SAID[2:]),
                ["'cu_seqlens'", "sequence 0"])


def bad_places():
    with harness.folder() as directory:
        path = os.path.join(directory, "good.safetensors")
        out = os.path.join(directory, "out.safetensors")
        with open(path, "wb") as file:
            file.write(GOOD_FILE)
        before = ["good.safetensors"]
        refused("no such file", directory, before, run("apply", path + ".not", "-o", out, *SAID),
                [path + ".not", "No such file"])
        refused("a folder", directory, before, run("apply", directory, "-o", out, *SAID), ["regular file"])
        nowhere = os.path.join(directory, "no", "out")
        refused("no such folder", directory, before, run("apply", path, "-o", nowhere, *SAID), ["no/out"])
        refused("a folder as output", directory, before, run("apply", path, "-o", directory, *SAID), ["regular file"])
        refused("a device as output", directory, before, run("apply", path, "-o", "/dev/null", *SAID), ["regular file"])
        refused("a line break", directory, before, run("apply", path + "\nx", "-o", out, *SAID), ["good.safetensors?x"])
        check(os.path.exists("/dev/null"), "/dev/null is still there")
        with open(path, "wb") as file:
            file.write(alone(q=zeros("F32", 200, 2, 3, 32)))
        # A disk that fills up while the file is written leaves no half of it. (The limit's signal stays ignored.)
        full = run("apply", path, "-o", out, *SAID, restore_signals=False,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
        refused("a full disk", directory, before, full, ["out.safetensors", "cannot write"])


harness.require_apply()
check(len(FILES) >= 25 and len({name for name, _, _ in FILES}) == len(FILES), "every kind of bad file has its name")
check(json.loads(ENTRY) == dict(entry(), shape=[4, 2, 3, 8]), "the entry in the table is a good one")
bad_files()
every_truncation()
random_damage()
bad_options()
bad_places()
harness.finish()
