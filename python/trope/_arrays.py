"""Arrays of other libraries: where they are and how they lie, by the array interface or by DLPack, without a copy."""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from ._abi import Error
from ._plan import Meta


class _Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("index", c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    """DLTensor (dlpack.h)."""

    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _Type),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned (dlpack.h, 1.0)."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_DLPACK_TYPES = {
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    (0, 32): "int32",
    (0, 64): "int64",
}
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # CPU, CUDA, pinned, managed
_READ_ONLY = 1

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = c_char_p, [ctypes.py_object]


class Array:
    """An array as the library sees it.

    meta      its Meta
    pointer   its address
    writable  False: it must not be a destination; None: its library does not say
    kept      what keeps it alive
    """

    __slots__ = ("meta", "pointer", "writable", "kept")

    def __init__(self, meta, pointer, writable, kept):
        self.meta, self.pointer, self.writable, self.kept = meta, pointer, writable, kept


def _by_interface(x, interface, device):
    """numpy's __array_interface__, or __cuda_array_interface__ (CuPy, Numba): strides in bytes."""
    shape = tuple(interface["shape"])
    size = int(interface["typestr"][2:])
    strides = interface.get("strides") or [size * stride for stride in _contiguous_strides(shape)]
    if any(stride % size for stride in strides):
        raise Error("an array has strides of %s bytes, which elements of %d bytes do not have" % (tuple(strides), size))
    if interface["typestr"][0] == ">" and sys.byteorder == "little":
        raise Error("an array has the byte order of another machine (%s)" % interface["typestr"])
    pointer, read_only = interface["data"]
    meta = Meta(shape, tuple(stride // size for stride in strides), x.dtype, device)
    return Array(meta, pointer or None, not read_only, interface)


def _capsule(x):
    """A DLPack capsule of the newest version that x gives. No stream: the caller says one for the whole call."""
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:
        return x.__dlpack__()


def _by_dlpack(x, argument):
    try:
        capsule = _capsule(x)
    except Exception as error:
        raise Error("%s is a %s that gives no DLPack: %s" % (argument, type(x).__name__, error), argument) from error
    name = _get_name(capsule)
    address = _get_pointer(capsule, name)
    versioned = name == b"dltensor_versioned"
    managed = _Versioned.from_address(address) if versioned else None
    tensor = managed.tensor if versioned else _Tensor.from_address(address)
    dtype = _DLPACK_TYPES.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    device = _DLPACK_DEVICES.get(tensor.device.type)
    if dtype is None or device is None:
        raise Error("%s has a dtype or a device that the library does not have" % argument, argument)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else _contiguous_strides(shape)
    writable = not managed.flags & _READ_ONLY if versioned else None
    pointer = tensor.data + tensor.byte_offset if tensor.data else None
    return Array(Meta(shape, strides, dtype, device), pointer, writable, capsule)


def _contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def describe(x, argument):
    """The Array of x, which has the array interface or DLPack."""
    interface = getattr(x, "__array_interface__", None)
    if interface is not None and hasattr(x, "dtype"):
        return _by_interface(x, interface, "cpu")
    interface = getattr(x, "__cuda_array_interface__", None) if not hasattr(x, "__dlpack__") else None
    if interface is not None:
        return _by_interface(x, interface, "cuda")
    if hasattr(x, "__dlpack__"):
        return _by_dlpack(x, argument)
    raise Error(
        "%s must be an array (NumPy, PyTorch, JAX, or anything with DLPack), not %s" % (argument, type(x).__name__),
        argument,
    )


def describe_destination(x, argument):
    array = describe(x, argument)
    if array.writable is False or type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise Error("%s cannot be written (%s)" % (argument, type(x).__name__), argument)
    return array


def empty_like(x, shape, argument):
    """A new array of x's library, dtype and order of dimensions."""
    import numpy

    array = describe(x, argument)
    if array.meta.device != "cpu":
        raise Error("%s is on %s: give `out` (torch tensors have trope.torch)" % (argument, array.meta.device), "out")
    if isinstance(x, numpy.ndarray):
        return numpy.empty_like(x, shape=shape, subok=False)
    return numpy.empty(shape, x.dtype)


def like_source(result, x):
    """A result of NumPy as an array of x's library."""
    import numpy

    if isinstance(x, numpy.ndarray):
        return result
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    return result if namespace is None else namespace.asarray(result)
