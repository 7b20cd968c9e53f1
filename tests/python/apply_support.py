"""Support for tests of `python -m trope apply`: writes files of tensors, runs the command in this process, and reads its
output with the safetensors library."""

import contextlib
import io
import json
import os
import struct
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import reference

safetensors = pytest.importorskip("safetensors", reason="safetensors is missing: tools/install_python test")

from trope._apply.command import main  # noqa: E402

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "C64": "<c8", "U8": "u1"}
# Error bounds. HALF_STEP bounds the final rounding, relative to the result. ARITHMETIC bounds the error of fp32 or double,
# relative to the pair.
HALF_STEP = {"F64": 2.0**-53, "F32": 2.0**-24, "F16": 2.0**-11, "BF16": 2.0**-8}
ARITHMETIC = {"F64": 1e-13, "F32": 6e-7, "F16": 6e-7, "BF16": 6e-7}
HALF = ["--pairing", "half"]
THETA = ["--rope-theta", 10000]


class Tensor(NamedTuple):
    dtype: str  # as the file names it
    values: np.ndarray  # rounded to the dtype

    @property
    def bytes(self):
        values = bf16_bits(self.values) if self.dtype == "BF16" else self.values.astype(NUMPY.get(self.dtype, "u1"))
        return values.tobytes()


def bf16_bits(values):
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def tensor(dtype, values):
    """A Tensor of these numbers, rounded to the dtype."""
    return decode(dtype, np.shape(values), Tensor(dtype, np.asarray(values)).bytes)


def decode(dtype, shape, data):
    values = np.frombuffer(data, NUMPY.get(dtype, "u1"))
    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return Tensor(dtype, values.reshape(shape))


rng = np.random.default_rng(20261128)


def random(dtype, *shape):
    return tensor(dtype, rng.uniform(-2, 2, shape))


def indices(dtype, *shape, high=60):
    return tensor(dtype, rng.integers(0, high, shape))


def pack(header, data=b""):
    """The bytes of a file: its header, given as bytes or as an object that becomes JSON, and its data."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def encode(tensors, metadata=None):
    """The bytes of a file that holds the tensors in this order."""
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": t.values.shape, "data_offsets": [len(data), len(data) + len(t.bytes)]}
        data += t.bytes
    text = json.dumps(header).encode()
    return pack(text + b" " * (-len(text) % 8), data)


def read(path):
    """The tensors of a file, in the order of its header, as safetensors reads them."""
    with open(path, "rb") as file:
        data = file.read()
    found = dict(safetensors.deserialize(data))
    length = struct.unpack("<Q", data[:8])[0]
    names = [name for name in json.loads(data[8 : 8 + length]) if name != "__metadata__"]
    assert length % 8 == 0, "the data is not aligned"
    return {name: decode(found[name]["dtype"], found[name]["shape"], bytes(found[name]["data"])) for name in names}


class Result(NamedTuple):
    status: int
    out: str
    err: str
    tensors: dict  # None if nothing was written


def run(*arguments):
    """Runs main() in this process, with os.fsync disabled to save time. Does not read the output file."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("os.fsync"):
        status = main([str(argument) for argument in arguments])
    return Result(status, out.getvalue(), err.getvalue(), None)


def apply(folder, tensors, *options, config=None, source=None):
    """Runs the command in a folder. The input file holds these tensors or, if given, the bytes `source`. Reads the output
    and deletes it. The command must leave no other file."""
    path, target = folder / "in.safetensors", folder / "out.safetensors"
    path.write_bytes(encode(tensors) if source is None else source)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
        options = ["--config", folder, *options]
    result = run(path, "-o", target, *options)
    left = set(os.listdir(folder)) - {"in.safetensors", "config.json"}
    assert left == ({"out.safetensors"} if result.status == 0 else set()), (left, result.err)
    if result.status == 0:
        result = result._replace(tensors=read(target))
        target.unlink()
    return result


def refused(folder, tensors, words, *options, **more):
    """Checks that a run is refused by a one-line error that contains these words, and writes no file."""
    result = apply(folder, tensors, *options, **more)
    assert result.status == 2 and result.out == "", result
    assert result.err.startswith("trope apply: ") and result.err.count("\n") == 1 and result.err.endswith("\n"), result.err
    for word in words:
        assert word in result.err, (word, result.err)


def assert_close(found, exact, size, loose=False):
    """Checks that a tensor equals `exact`, rounded once. If `loose`, the error may be 5 half steps, relative to `size`.
    size: |x1| + |x2| of each element's pair, and 0 for copied elements."""
    bound = 5 * HALF_STEP[found.dtype] * size if loose else HALF_STEP[found.dtype] * np.abs(exact)
    bound = bound + ARITHMETIC[found.dtype] * size
    wrong = ~((np.abs(found.values - exact) <= bound) | (np.isnan(found.values) & np.isnan(exact)))
    assert not wrong.any(), (int(wrong.sum()), found.values[wrong][0], exact[wrong][0])


ANGLES = {"freqs", "cos", "freqs_cis", "rope_cache", "inv_freq", "cos_sin_cache"}
OPERANDS = ("q", "k", "x", "v", "query", "q_proj", "k_proj")


def expect(folder, layout, tensors, angles, *options, coefficients=None, padding=None, loose=False, config=None, **how):
    """Runs the command and compares q, k and x with the reference. All other tensors must be unchanged, except for padding
    in v.

    angles        [tokens..., pairs], which broadcast
    coefficients  (cos1, sin1, cos2, sin2) as in reference.rotate, if they are not the cosines and sines of angles
    padding       (which tokens are padding, the value of --padding)
    how           other arguments of reference.rotate
    """
    common = ["--layout", layout] + HALF * ("--pairing" not in options and config is None)
    has_angles = ANGLES & {name.split(".")[-1] for name in tensors} or config
    result = apply(
        folder, tensors, *common, *THETA * (not has_angles and "--rope-theta" not in options), *options, config=config
    )
    assert result.status == 0 and result.out == "", result.err
    assert list(result.tensors) == list(tensors)
    for name, source in tensors.items():
        found = result.tensors[name]
        assert (found.dtype, found.values.shape) == (source.dtype, source.values.shape)
        role = name.split(".")[-1]
        if role in OPERANDS:
            x = reference.from_layout(source.values.astype(np.float64), layout)
            y, size = (x, np.zeros_like(x)) if role == "v" else rotate(x, angles, coefficients, how)
            y = y if padding is None else reference.pad(y, x, *padding)
            exact, size = (reference.to_layout(a, layout) for a in (y, np.broadcast_to(size, y.shape)))
            assert_close(found, exact, size, loose)
        else:
            assert found.bytes == source.bytes, name
    return result


def rotate(x, angles, coefficients, how):
    """Returns x rotated by the reference, and a size for error bounds: |x1| + |x2| of each element's pair, times the
    largest coefficient."""
    how = {"pairing": "half", **how}
    coefficients = reference.of_angles(np.broadcast_to(angles, x.shape[:-2] + angles.shape[-1:])) if coefficients is None else (
        tuple(np.broadcast_to(c, x.shape[:-2] + c.shape[-1:]) for c in coefficients)
    )  # fmt: skip
    width = 2 * coefficients[0].shape[-1]
    scale = max(np.abs(c).max() for c in coefficients) if coefficients[0].size else 1
    sizes = reference.magnitude(x, width, **{key: value for key, value in how.items() if key != "inverse"})
    return reference.rotate(x, coefficients, **how), scale * sizes


def cos_sin(angles, dtype="F32", factor=1.0):
    return {"cos": tensor(dtype, factor * np.cos(angles)), "sin": tensor(dtype, factor * np.sin(angles))}
