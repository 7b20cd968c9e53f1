"""Safetensors files: the header is read once, and tensors are read by their offsets, as bytes.

The library safetensors checks a file, but does not read it, because it maps the whole file, and NumPy lacks some of its
dtypes.
"""

import json
import math
import os
import stat
import struct

import numpy as np

from .refused import refuse, refuse_file, refuse_tensor

CHUNK = 1 << 22  # the number of bytes that are read, compared or copied at once
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8", "C64": "<f4"}
REAL = ("F64", "F32", "F16", "BF16")
_OTHER_FORMATS = (
    (b"PK\3\4", "a zip archive, such as torch.save's .pt and NumPy's .npz"),
    (b"\x93NUMPY", "NumPy's .npy"),
    ((b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5"), "a pickle, such as an old .pt"),
    (b"GGUF", "GGUF"),
)


class Bf16:
    """An array of uint16 that the library reads as bfloat16, which NumPy does not have."""

    dtype = "bfloat16"

    def __init__(self, bits):
        self.bits, self.shape = bits, bits.shape

    @property
    def __array_interface__(self):
        return self.bits.__array_interface__


class Tensor:
    """A tensor of a file. Its data is at bytes `begin` to `end` of the file.

    data  its bits [shape], for C64 with a last dim of 2 floats; None until load() is called
    """

    __slots__ = ("name", "dtype", "shape", "begin", "end", "data")

    def __init__(self, name, dtype, shape, begin, end):
        self.name, self.dtype, self.shape, self.begin, self.end, self.data = name, dtype, shape, begin, end, None

    def __str__(self):
        return "%s %s" % (self.dtype, list(self.shape))

    @property
    def bytes(self):
        return self.end - self.begin

    @property
    def elements(self):
        return math.prod(self.shape)

    def view(self, buffer):
        """Returns the first bytes of a buffer as this tensor's elements, with bf16 as uint16."""
        shape = self.shape + (2,) if self.dtype == "C64" else self.shape
        return buffer[: self.bytes].view(_TYPES[self.dtype]).reshape(shape)


def library_array(array, dtype):
    """Returns the elements in the form for trope.rotate."""
    return Bf16(array) if dtype == "BF16" else array


def to_double(array, dtype):
    """Converts elements, or bits of BF16, to float64."""
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


class TensorFile:
    """A file that is open for reading.

    tensors   its Tensors in the order of their data
    metadata  the strings of the header's metadata, None if there are none
    """

    def __init__(self, path):
        self.path = path
        self.descriptor = -1
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self.descriptor)
        except (OSError, ValueError) as error:
            refuse_file(path, "%s", getattr(error, "strerror", None) or error)
        if not stat.S_ISREG(status.st_mode):
            refuse_file(path, "must be a regular file")
        entries = self._read_header(status.st_size)
        self.metadata = entries.pop("__metadata__", None)
        self.tensors = sorted(
            (Tensor(name, entry["dtype"], tuple(entry["shape"]), *self._place(entry)) for name, entry in entries.items()),
            key=lambda tensor: (tensor.begin, tensor.end),
        )
        self.by_name = {tensor.name: tensor for tensor in self.tensors}

    def _read_header(self, size):
        """Returns the JSON object of the header, after checks."""
        start = os.pread(self.descriptor, 8, 0)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        for sign, kind in _OTHER_FORMATS:
            if start.startswith(sign) and length + 8 > size:
                refuse_file(self.path, "is %s; only safetensors files can be read (safetensors.torch.save_file)", kind)
        _check(self.path)
        text = os.pread(self.descriptor, length, 8)
        self.data_start = 8 + length
        try:
            entries = json.loads(text, object_pairs_hook=self._unique)
        except ValueError as error:  # happens only if the file has been changed meanwhile
            refuse_file(self.path, "the header is not JSON: %s", error)
        for name, entry in entries.items():
            if name != "__metadata__" and (not isinstance(entry, dict) or len(entry) != 3):
                refuse_tensor(self.path, name, "must have dtype, shape and data_offsets, and nothing else")
        return entries

    def _unique(self, pairs):
        """Returns the dict of (name, value) pairs. Refuses equal names, because readers differ in which one they use."""
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            refuse_file(self.path, "the name '%s' must occur only once in the header", twice)
        return found

    def _place(self, entry):
        return (self.data_start + offset for offset in entry["data_offsets"])

    def read(self, tensor, buffer, offset=0):
        """Fills a buffer with bytes of a tensor, from `offset` on."""
        view, at = memoryview(buffer).cast("B"), tensor.begin + offset
        while len(view):
            try:
                count = os.preadv(self.descriptor, [view[: 1 << 30]], at)
            except OSError as error:
                refuse_tensor(self.path, tensor.name, "cannot be read: %s", error.strerror)
            if not count:
                refuse_tensor(self.path, tensor.name, "cannot be read: the file has become shorter")
            view, at = view[count:], at + count

    def load(self, tensor):
        """Returns the elements of a tensor, which stay in memory from then on."""
        if tensor.data is None:
            buffer = self.bytes_of(tensor)
            tensor.data = tensor.view(buffer) if tensor.dtype in _TYPES else buffer
        return tensor.data

    def bytes_of(self, tensor):
        buffer = allocate(tensor.bytes)
        self.read(tensor, buffer)
        return buffer

    def header(self):
        """Returns the header of a file with these tensors, padded so that the data begins at a multiple of 8."""
        entries = {} if self.metadata is None else {"__metadata__": self.metadata}
        end = 0
        for tensor in self.tensors:
            begin, end = end, end + tensor.bytes
            entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def close(self):
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def _check(path):
    """Checks a file with the library safetensors."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        refuse("needs the Python package safetensors: pip install safetensors")
    try:
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        refuse_file(path, "is not a safetensors file: %s", error)


def allocate(size):
    """Returns an array of bytes."""
    try:
        return np.empty(size, np.uint8)
    except (MemoryError, ValueError):
        refuse("out of memory for a tensor of %d bytes", size)
