"""Safetensors files from lists of numbers and back, with nothing but the standard library."""

import json
import math
import struct
from collections import namedtuple

Tensor = namedtuple("Tensor", "dtype shape values")  # values: a flat list

FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I32": "i", "I64": "q", "BF16": "H", "U8": "B", "C64": "f"}


def bf16_bits(x):
    if math.isnan(x):
        return 0x7FC0
    try:
        bits = struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        return 0x7F80 if x > 0 else 0xFF80
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def encode(tensor):
    values = [bf16_bits(x) for x in tensor.values] if tensor.dtype == "BF16" else tensor.values
    return struct.pack("<%d%s" % (len(values), FORMATS[tensor.dtype]), *values)


def decode(dtype, data):
    size = struct.calcsize("<" + FORMATS[dtype])
    values = struct.unpack("<%d%s" % (len(data) // size, FORMATS[dtype]), data)
    return [bf16_value(x) for x in values] if dtype == "BF16" else list(values)


def rounded(dtype, values):
    """The values as the dtype holds them."""
    return decode(dtype, encode(Tensor(dtype, [len(values)], values)))


def pack(header, data=b""):
    """A file of a header, as bytes or as something to write as JSON, and data."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def entries(tensors, metadata=None):
    """Header and data of {name: Tensor}."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        part = encode(tensor)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return header, data


def write(path, tensors, metadata=None):
    header, data = entries(tensors, metadata)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(pack(text + b" " * (-len(text) % 8), data))


def read(path):
    """{name: Tensor} and the metadata, or None."""
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + length]), content[8 + length:]
    metadata = header.pop("__metadata__", None)
    tensors, end = {}, 0
    for name, entry in header.items():
        begin, after = entry["data_offsets"]
        assert begin == end, "tensors are not one after the other"
        end = after
        tensors[name] = Tensor(entry["dtype"], entry["shape"], decode(entry["dtype"], data[begin:after]))
    assert end == len(data), "bytes left over"
    assert length % 8 == 0, "the data is not aligned"
    return tensors, metadata
