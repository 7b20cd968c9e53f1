"""trope apply refuses all kinds of bad files, tensors and options. It exits with status 2, prints one line that names file,
tensor and rule, and leaves no file."""

import json
import math
import os
import struct

import numpy as np
import pytest
from apply_support import HALF, THETA, Tensor, apply, encode, pack, random, refused, rng, run, tensor

SHAPE, BYTES = (4, 2, 3, 8), 4 * 2 * 3 * 8 * 4
DAMAGED = 1500  # number of files with random damage


def zeros(dtype, *shape):
    return Tensor(dtype, np.zeros(shape, int if dtype[0] == "I" else float))


def beside(**tensors):
    return {"q": zeros("F32", *SHAPE), **tensors}


def packed(*cu, **tensors):
    cu = {"cu_seqlens": tensor("I32", np.array(cu, int))} if cu else {}
    return {"q": zeros("F32", 4, 2, 8), **cu, **tensors}


# ---- Tensors ----

ROWS = np.arange(5)[:, None] * np.ones(8)
TENSORS = [
    # Operands
    ({"q": zeros("I32", *SHAPE)}, ["'q'", "I32", "must have dtype"]),
    ({"q": zeros("F32", 4, 8)}, ["'q'", "[4, 8]", "4 dims"]),
    ({"q": zeros("F32", 4, 1, 1, 2, 8)}, ["'q'", "4 dims"]),
    ({"q": zeros("F32", 4, 2, 0, 8)}, ["'q'", "heads"]),
    ({"q": zeros("F32", 4, 2, 3, 0)}, ["'q'", "heads"]),
    (beside(k=zeros("F16", *SHAPE)), ["'k'", "'q'", "dtype"]),
    (beside(v=zeros("F32", 4, 1, 3, 8)), ["'v'", "'q'", "batch"]),
    (beside(x=zeros("F32", 5, 2, 3, 8)), ["'x'", "'q'", "tokens"]),
    (beside(k=zeros("F32", 8, 3, 8)), ["'k'"]),
    ({"q": zeros("F32", 4, 2, 3, 7)}, ["'q'", "--rotary-dim", "divisible"]),
    ({"q": zeros("F32", 1, 1, 1, 1026)}, ["'q'", "--rotary-dim", "1024"]),
    (beside(k=zeros("F32", 4, 2, 3, 4)), ["--rotary-dim", "4 and 8"]),
    ({"freqs": zeros("F32", 4, 8)}, ["q, k, x, v"]),
    (beside(keys=zeros("F32", *SHAPE)), ["'keys'", "unknown name", "--name"]),
    ({"Q": zeros("F32", *SHAPE)}, ["'Q'", "unknown name"]),
    ({"": zeros("F32", *SHAPE)}, ["''", "unknown name"]),
    ({"q\nk": zeros("F32", *SHAPE)}, ["'q?k'", "unknown name"]),
    ({"q\0": zeros("F32", *SHAPE)}, ["'q?'", "unknown name"]),
    ({"\u03c6": zeros("F32", *SHAPE)}, ["'?'", "unknown name"]),
    ({"q" * 100000: zeros("F32", *SHAPE)}, ["unknown name"]),
    # Angles
    (beside(freqs=zeros("F32", 4, 8), cos=zeros("F32", 4, 8), sin=zeros("F32", 4, 8)), ["'freqs'", "'cos'", "one of"]),
    (beside(freqs=zeros("F32", 4, 8), inv_freq=zeros("F64", 4)), ["'freqs'", "'inv_freq'"]),
    (beside(cos=zeros("F32", 4, 8)), ["'cos'", "'sin'"]),
    (beside(sin=zeros("F32", 4, 8)), ["'sin'", "'cos'"]),
    (beside(cos=zeros("F32", 4, 8), sin=zeros("F32", 4, 4)), ["'sin'", "'cos'"]),
    (beside(cos=zeros("F32", 4, 8), sin=zeros("F64", 4, 8)), ["'sin'", "'cos'"]),
    (beside(cos=zeros("F64", 4, 8), sin=zeros("F64", 4, 8)), ["'cos'", "F64", "dtype"]),
    (beside(freqs=zeros("F64", 4, 8)), ["'freqs'", "F64", "dtype"]),
    (beside(freqs=zeros("F32", 8)), ["'freqs'", "rows, cols"]),
    (beside(freqs=zeros("F32", 1, 1, 1, 1, 4, 8)), ["'freqs'", "rows, cols"]),
    (beside(freqs=zeros("F32", 4, 5, 3, 8)), ["'freqs'", "dims of 1"]),
    (beside(freqs=zeros("F32", 5, 4, 8)), ["'freqs'", "batch"]),
    (beside(freqs=zeros("F32", 4, 6)), ["'freqs'", "--rotary-dim"]),
    (beside(freqs=zeros("F32", 4, 0)), ["'freqs'", "columns"]),
    (beside(freqs=zeros("F32", 3, 8)), ["'freqs'", "rows"]),
    (beside(freqs_cis=zeros("F32", 4, 4)), ["'freqs_cis'", "complex"]),
    (beside(inv_freq=zeros("F16", 4)), ["'inv_freq'", "F16", "dtype"]),
    (beside(inv_freq=zeros("F32", 1, 4)), ["'inv_freq'", "rotary_dim / 2"]),
    (beside(inv_freq=tensor("F32", [1] * 5)), ["'q'", "at least 10 elements"]),
    (beside(inv_freq=zeros("F32", 0)), ["'inv_freq'", "elements"]),
    (beside(inv_freq=tensor("F32", [1, math.inf, 1, 1])), ["'inv_freq'", "infinity"]),
    # Positions
    (packed(cu_seqlens=zeros("F32", 2)), ["'cu_seqlens'", "I32 or I64"]),
    (packed(cu_seqlens=zeros("I32", 1, 2)), ["'cu_seqlens'", "sequences + 1"]),
    (packed(cu_seqlens=zeros("I32", 0)), ["'cu_seqlens'", "sequences + 1"]),
    (packed(0, 3, 2), ["'cu_seqlens'"]),
    (packed(0, 5), ["'cu_seqlens'"]),
    (packed(2, 2), ["'cu_seqlens'", "begin with 0", "these are lengths"]),
    (packed(2, 4), ["'cu_seqlens'", "begin with 0"]),
    (packed(0, 3), ["'cu_seqlens'", "ends at 3", "--padding"]),
    (beside(cu_seqlens=tensor("I32", [0, 4])), ["'cu_seqlens'", "batch"]),
    (packed(cu_seqlens_padded=tensor("I32", [0, 4])), ["'cu_seqlens_padded'", "'cu_seqlens'"]),
    (packed(0, 4, cu_seqlens_padded=tensor("I32", [0, 4, 4])), ["'cu_seqlens_padded'"]),
    (packed(0, 4, cu_seqlens_padded=tensor("I64", [0, 4])), ["'cu_seqlens_padded'"]),
    (packed(0, 4, cu_seqlens_padded=tensor("I32", [0, 4])), ["padding"]),
    (beside(start_positions=zeros("I32", 3)), ["'start_positions'", "[batch]"]),
    (packed(0, 4, start_positions=zeros("I32", 2)), ["'start_positions'", "[sequences]"]),
    (beside(start_positions=zeros("F32", 2)), ["'start_positions'", "I32 or I64"]),
    (beside(start_positions=zeros("I32", 2), position_ids=zeros("I32", 4)), ["'start_positions'", "'position_ids'"]),
    (beside(position_ids=zeros("F32", 4)), ["'position_ids'", "I32 or I64"]),
    (beside(position_ids=zeros("I32", 5)), ["'position_ids'", "tokens"]),
    (beside(position_ids=zeros("I32", 3, 4)), ["'position_ids'", "batch"]),
    (beside(position_ids=zeros("I32", 5, 2, 4)), ["'position_ids'", "axes"]),
    (beside(position_ids=zeros("I32", 1, 1, 2, 4)), ["'position_ids'", "axes, batch, tokens"]),
    (beside(freqs=tensor("F32", ROWS), position_ids=tensor("I32", [0, 1, 2, 5])), ["'position_ids'", "rows"]),
    (beside(freqs=tensor("F32", ROWS), position_ids=tensor("I64", [0, 1, 2, 2**63 - 1])), ["'position_ids'", "not in the rows"]),
]  # fmt: skip


def common(tensors):
    """All options that a file of these tensors requires."""
    has_angles = {"freqs", "freqs_cis", "cos", "sin", "inv_freq"} & set(tensors)
    layout = "thd" if [len(t.values.shape) for t in tensors.values()][0] == 3 else "sbhd"
    return ["--layout", layout, *HALF] + THETA * (not has_angles)


@pytest.mark.parametrize(
    "tensors, words", TENSORS, ids=lambda value: "-".join(value)[:60] if isinstance(value, list) else ""
)
def test_tensors_that_are_refused(tmp_path, tensors, words):
    refused(tmp_path, tensors, ["in.safetensors", *words] if "'" in words[0] else words, *common(tensors))


# ---- Options ----

ORIGINAL = "original_max_position_embeddings"
FACTORS = "longrope:%s=8,factor=2,short_factor=%%s,long_factor=%%s" % ORIGINAL
OPTIONS = [
    (["--layout", "thd"], ["'q'", "3 dims", "thd"]),
    (["--layout", "shbd"], ["--layout", "shbd", "bhsd"]),
    (["--pairing", "neox"], ["--pairing", "neox"]),
    (["--turn", 3], ["--turn", "not an option"]),
    (["-x"], ["-x", "not an option"]),
    (["--rotary-dim"], ["--rotary-dim", "needs a value"]),
    (["--rotary-dim", "8x"], ["--rotary-dim", "8x"]),
    (["--rotary-dim", " 8"], ["--rotary-dim", "whole number"]),
    (["--rotary-dim", "1_0"], ["--rotary-dim", "whole number"]),
    (["--rotary-dim", -2], ["--rotary-dim", "-2"]),
    (["--threads", 2**80], ["--threads"]),
    (["--threads", 65536], ["--threads", "4096"]),
    (["--mscale", "nan"], ["--mscale", "finite"]),
    (["--mscale", 0], ["--mscale", "must not be 0"]),
    (["--rope-theta", 0], ["--rope-theta", "must not be 0"]),
    (["--rope-theta", -1], ["--rope-theta"]),
    (["--rotary-dim", 16], ["'q'", "16 elements"]),
    (["--rotary-dim", 7], ["'q'", "--rotary-dim"]),
    (["--rotary-dim", 8, "--rotary-dim", 8], ["--rotary-dim", "twice"]),
    (["--rotary-dim", 8, "--partial-rotary-factor", 1], ["--partial-rotary-factor", "--rotary-dim"]),
    (["--partial-rotary-factor", 2], ["--partial-rotary-factor", "at most 1"]),
    (["--inverse", "--inverse"], ["--inverse", "twice"]),
    (["--rotary-d", 8], ["--rotary-d", "written out", "--rotary-dim"]),
    (["--rope_theta=3"], ["--rope_theta=3", "--rope-theta"]),
    (["--base", 3], ["--base", "--rope-theta"]),
    (["--interleaved"], ["--interleaved", "--pairing"]),
    (["--rotary-percent", 1], ["--rotary-percent", "--partial-rotary-factor"]),
    (["--mrope-section", 1], ["--mrope-section", "--axis-sections"]),
    (["--rotary-offset", 9], ["'q'", "--rotary-offset"]),
    (["--windows", 3], ["'q'", "--windows"]),
    (["--windows", 5], ["--windows", "[1, 4]"]),
    (["--axis-map", "sections", "--axis-sections", "2,2,0", "--windows", 2], ["axis", "windows"]),
    (["--axis-map", "sections", "--axis-sections", "2,1,1"], ["--axis-map", "no effect"]),
    (["--axis-map", "sections"], ["--axis-map", "--axis-sections"]),
    (["--axis-sections", "1,1,2"], ["axis"]),
    (["--axis-map", "sections", "--axis-sections", "1,2"], ["--axis-sections"]),
    (["--axis-map", "sections", "--axis-sections", "1,2,9999999999"], ["--axis-sections"]),
    (["--axis-map", "sections", "--axis-sections", "1,1,1"], ["--axis-sections", "sections"]),
    (["--scaling", "ntk:factor=2"], ["--scaling", "ntk", "llama3"]),
    (["--scaling", "linear:factors=2"], ["--scaling", "linear", "factors"]),
    (["--scaling", "linear:beta_fast=2"], ["--scaling", "linear", "beta_fast"]),
    (["--scaling", "linear:factor"], ["--scaling", "key=value"]),
    (["--scaling", "linear:factor=two"], ["--scaling", "two"]),
    (["--scaling", "linear"], ["--scaling", "factor"]),
    (["--scaling", "linear:factor=0"], ["--scaling", "factor"]),
    (["--scaling", "linear:factor=2,factor=4"], ["--scaling", "twice"]),
    (["--scaling", "default:factor=2"], ["--scaling", "default"]),
    (["--scaling", "yarn:factor=2"], ["--scaling", ORIGINAL]),
    (["--scaling", "yarn:factor=2,mscale=2,%s=64" % ORIGINAL], ["--scaling", "mscale_all_dim"]),
    (["--scaling", "llama3:factor=8"], ["--scaling", ORIGINAL]),
    (["--scaling", "llama3:factor=8,%s=64" % ORIGINAL], ["--scaling", "low_freq_factor"]),
    (["--scaling", "proportional:factor=2"], ["--scaling", "partial_rotary_factor"]),
    (["--scaling", "dynamic:factor=2"], ["--scaling", ORIGINAL]),
    (["--scaling", "longrope:%s=32,factor=2" % ORIGINAL], ["--scaling", "short_factor"]),
    (["--scaling", FACTORS % ("1;2;3", "1;1;1;1")], ["short_factor", "4 numbers"]),
    (["--scaling", FACTORS % ("1;1;1;1", "1;2;3;4;5")], ["long_factor", "4 numbers"]),
    (["--scaling", "dynamic:factor=2,%s=2" % ORIGINAL], ["--seq-len", "up to 3"]),
    (["--scaling", "dynamic:factor=2,%s=2" % ORIGINAL, "--seq-len", 3], ["--seq-len", "contradicts"]),
    (["--seq-len", 8], ["--seq-len", "no effect"]),
    (["--cp-size", 2, "--cp-rank", 2, "--cp-layout", "zigzag"], ["--cp-rank"]),
    (["--cp-size", 2, "--cp-rank", 0], ["--cp-layout", "missing"]),
    (["--cp-size", 2, "--cp-layout", "flat"], ["--cp-rank", "missing"]),
    (["--cp-rank", 0, "--cp-layout", "flat"], ["--cp-size", "missing"]),
    (["--packed-positions"], ["--packed-positions", "cu_seqlens"]),
    (["--padding", "zero"], ["--padding", "no effect"]),
    (["--out-of-range", "clamp"], ["--out-of-range", "no effect"]),
    (["--columns", "half"], ["--columns", "no effect"]),
    (["--table-rows", "tokens"], ["--table-rows", "no effect"]),
    (["--ulp", 1], ["--ulp", "no effect"]),
    (["--ulp", -1], ["--ulp"]),
    (["--layer-type", "full_attention"], ["--layer-type", "--config"]),
    (["--config", "/no/such/file"], ["/no/such/file", "No such file"]),
    (["more.safetensors"], ["one input file, got 2"]),
    (["--name", "q=other"], ["--name", "'other'"]),
]  # fmt: skip


@pytest.mark.parametrize("options, words", OPTIONS, ids=lambda value: " ".join(map(str, value))[:60])
def test_options_that_are_refused(tmp_path, options, words):
    given = ["--layout", "sbhd", *HALF, *THETA]
    more = [word for pair in zip(given[::2], given[1::2]) if pair[0] not in options for word in pair]
    refused(tmp_path, beside(), words, *more, *options)


def test_options_that_are_missing_or_contradict_the_file(tmp_path, monkeypatch):
    given = ["--layout", "sbhd", *HALF]
    for tensors, options, words in (
        (beside(), given, ["--rope-theta", "missing"]),
        (beside(), given[:2] + THETA, ["--pairing", "missing"]),
        (beside(freqs=tensor("F32", ROWS)), given + THETA, ["'freqs'", "--rope-theta"]),
        (beside(inv_freq=tensor("F32", [1] * 4)), given + ["--rotary-dim", 4], ["'inv_freq'", "half of --rotary-dim (2)"]),
        (beside(position_ids=zeros("I64", 4)), given + THETA + ["--cp-size", 2, "--cp-rank", 0, "--cp-layout", "flat"],
         ["'position_ids'", "--cp-size"]),
        ({"v": zeros("F32", *SHAPE)}, given[:2] + ["--windows", 2], ["--windows", "nothing is rotated"]),
        ({"v": zeros("F32", *SHAPE)}, given, ["--pairing", "nothing is rotated"]),
        ({"q": zeros("F32", 6, 2, 8), "cu_seqlens": tensor("I64", [0, 6, 12])},
         ["--layout", "thd", *HALF, *THETA, "--cp-size", 2, "--cp-rank", 0, "--cp-layout", "zigzag"],
         ["'cu_seqlens'", "sequence 0"]),
    ):  # fmt: skip
        refused(tmp_path, tensors, words, *options)
    path = tmp_path / "in.safetensors"
    assert "one input file, got 0" in run("-o", path).err and "-o OUT or --expect" in run(path).err
    monkeypatch.setitem(os.sys.modules, "torch", None)  # PyTorch cannot be imported
    refused(tmp_path, beside(), ["--device cuda", "PyTorch"], *given, *THETA, "--device", "cuda")


# ---- Files ----

ENTRY = '{"dtype":"F32","shape":[4,2,3,8],"data_offsets":[0,768]}'
GOOD = encode(beside())


def text(header, data=bytes(BYTES)):
    return pack(header.encode() if isinstance(header, str) else header, data)


def q(**changes):
    """A file with one tensor q whose header entry is changed. None removes a key."""
    entry = {**json.loads(ENTRY), **changes}
    return pack({"q": {key: value for key, value in entry.items() if value is not None}}, bytes(BYTES))


def two(a, b, size):
    """A file of tensors q and k, 8 floats each, at these offsets."""
    return pack(
        {n: {"dtype": "F32", "shape": [1, 1, 1, 8], "data_offsets": at} for n, at in (("q", a), ("k", b))}, bytes(size)
    )


FILES = {
    "an empty file": b"", "seven bytes": b"\0" * 7, "a length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "a length of 2^64 - 1": b"\xff" * 8 + b"{}", "a huge length": struct.pack("<Q", 100000001) + b"{}",
    "a cut header": GOOD[:20],
    "an empty header": pack(b""), "not JSON": text("hello"), "cut JSON": text('{"q":' + ENTRY),
    "text after the object": text('{"q":' + ENTRY + "} x"), "an array": text("[]", b""), "no tensors": text("{}", b""),
    "a zero byte": text(b'{"q":\0' + ENTRY.encode() + b"}"), "not UTF-8": text(b'{"q\xff":' + ENTRY.encode() + b"}"),
    "a surrogate": text(b'{"q\\ud800":' + ENTRY.encode() + b"}"),
    "deep nesting": text('{"q":' + "[" * 10**5 + "]" * 10**5 + "}"),
    "a name twice": text('{"q":' + ENTRY + ',"q":' + ENTRY + "}"), "metadata that is text": pack({"__metadata__": "x"}),
    "metadata with a number": pack({"__metadata__": {"a": 1}}), "an entry that is a number": text('{"q":3}'),
    "metadata with a name twice": text('{"__metadata__":{"a":"1","a":"2"},"q":' + ENTRY + "}"),
    "an entry that is a list": text('{"q":["F32",[4,2,3,8],[0,768]]}'), "an unknown key": q(layout="sbhd"),
    "a key twice": text('{"q":' + ENTRY[:-1] + ',"dtype":"F16"}}'), "no dtype": q(dtype=None), "no shape": q(shape=None),
    "no offsets": q(data_offsets=None), "a dtype that is a number": q(dtype=32), "an unknown dtype": q(dtype="F9"),
    "a shape that is a number": q(shape=192), "a negative dim": q(shape=[4, -2, 3, 8]), "a dim of text": q(shape=["4"]),
    "a fractional dim": q(shape=[4, 2.5, 3, 8]), "a dim of 1e400": text('{"q":' + ENTRY.replace("[4,", "[1e400,") + "}"),
    "a dim of 4.0": text('{"q":' + ENTRY.replace("[4,", "[4.0,") + "}"), "a dim of 2^64": q(shape=[2**64, 2, 3, 8]),
    "a dim of 04": text('{"q":' + ENTRY.replace("[4,", "[04,") + "}"), "a size that overflows": q(shape=[2**40, 2**40]),
    "an overflow to 0": q(shape=[2**52, 2**12, 1, 1], data_offsets=[0, 0]), "one offset": q(data_offsets=[0]),
    "three offsets": q(data_offsets=[0, 4, BYTES]), "a negative offset": q(data_offsets=[-4, BYTES - 4]),
    "offsets that decrease": q(data_offsets=[BYTES, 0]), "too few bytes": q(data_offsets=[0, BYTES - 4]),
    "too many bytes": q(shape=[4, 2, 3, 4]), "an offset beyond the file": GOOD[:-1], "bytes left over": GOOD + b"\0",
    "an overlap": two((0, 32), (16, 48), 48), "the same bytes": two((0, 32), (0, 32), 32),
    "a gap": two((0, 32), (36, 68), 68), "a gap at the start": two((4, 36), (36, 68), 68),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(tmp_path, name):
    refused(tmp_path, None, ["in.safetensors"], "--layout", "sbhd", *HALF, *THETA, source=FILES[name])


def test_truncated_files_and_files_of_other_formats_are_refused(tmp_path):
    for length in [*range(0, 100, 3), len(GOOD) - 8]:
        refused(tmp_path, None, ["in.safetensors"], "--layout", "sbhd", *HALF, *THETA, source=GOOD[:length])
    for start, word in (
        (b"PK\3\4", "zip"),
        (b"\x93NUMPY\1\0", ".npy"),
        (b"\x80\2\x8a\nl\xfc\x9c\x46", "pickle"),
        (b"GGUF", "GGUF"),
    ):
        refused(tmp_path, None, [word, "safetensors.torch"], *THETA, source=start + bytes(60))


def test_random_damage_gives_a_refusal_or_a_readable_result(tmp_path):
    """A few bytes of a valid header or of the indices are changed. If the file is still accepted, the result can be read
    and rotated back."""
    ids = tensor("I32", [[0, 1, 2, 3]] * 2)
    good = encode(beside(v=random("F32", 4, 2, 1, 8), freqs=tensor("F32", ROWS), position_ids=ids))
    header, letters = 8 + struct.unpack("<Q", good[:8])[0], b'{}[]",:0123456789.-eE \\\xff\0dqk'
    results = 0
    for trial in range(DAMAGED):
        content = bytearray(good)
        for _ in range(rng.integers(1, 5)):
            at = rng.integers(header) if trial % 4 else len(good) - 1 - rng.integers(32)  # the last 32 bytes are indices
            content[at] = letters[rng.integers(len(letters))]
        options = ["--quiet", "--rotary-dim", 8, "--layout", "sbhd", *HALF]
        result = apply(tmp_path, None, *options, source=bytes(content))
        if result.status == 0:
            results += 1
            again = apply(tmp_path, result.tensors, "--inverse", *options)  # the output can be read and rotated back
            assert again.status == 0 and set(again.tensors) == set(result.tensors)
        else:
            assert (result.status, result.err.count("\n")) == (2, 1), (bytes(content[:header]), result)
    assert 0 < results < DAMAGED / 2
