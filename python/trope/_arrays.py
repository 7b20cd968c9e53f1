"""Describes arrays of other libraries, by the array interface or by DLPack: their addresses and layouts, without a copy."""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from ._errors import Error
from ._prepared import BYTES, Meta, name_of_dtype


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


_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}  # the number of bits follows
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}  # CPU, CUDA, pinned, managed
_READ_ONLY = 1

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = c_char_p, [ctypes.py_object]


class Array:
    """The library's description of an array.

    meta      its Meta, whose shape and dtype are also `shape` and `dtype`
    pointer   its address, or None if it has no elements
    writable  False: it must not be a destination; None: its library does not tell
    kept      the object that keeps it alive
    """

    __slots__ = ("meta", "pointer", "writable", "kept")

    def __init__(self, meta, pointer, writable, kept):
        self.meta, self.pointer, self.writable, self.kept = meta, pointer, writable, kept

    @property
    def shape(self):
        return self.meta.shape

    @property
    def dtype(self):
        return self.meta.dtype


def _by_interface(x, interface, device, argument):
    """Describes an array by numpy's __array_interface__, or __cuda_array_interface__ (CuPy, Numba): strides in bytes."""
    try:
        return _read_interface(x, interface, device, argument)
    except Error:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise Error("%s has an array interface that cannot be read: %r" % (argument, error), argument) from error


def _read_interface(x, interface, device, argument):
    shape, code, name = tuple(interface["shape"]), interface["typestr"], name_of_dtype(x.dtype)
    size = int(code[2:] or 0) or 1
    if code[0] == ">" and sys.byteorder == "little":
        raise Error("%s has another byte order than this machine (%s)" % (argument, code), argument)
    if name in BYTES and size != BYTES[name]:
        raise Error("%s has dtype %s, but its elements have %d bytes (%s)" % (argument, name, size, code), argument)
    if hasattr(x, "mask"):
        raise Error("%s is a masked array, and its mask would be lost: pass its data" % argument, argument)
    strides = interface.get("strides") or [size * stride for stride in contiguous_strides(shape)]
    if len(strides) != len(shape) or any(stride % size for stride in strides):
        message = (
            "%s has strides of %s bytes, but it must have a multiple of its element size (%d bytes) for each dimension"
        )
        raise Error(message % (argument, tuple(strides), size), argument)
    pointer, read_only = interface["data"]
    if not isinstance(pointer, int):
        raise Error("%s has an array interface without an address" % argument, argument)
    meta = Meta(shape, tuple(stride // size for stride in strides), name, device)
    return _checked(Array(meta, pointer or None, not read_only, interface), argument)


def _checked(array, argument):
    if array.pointer is None and 0 not in array.shape:
        raise Error("%s has elements, but no address" % argument, argument)
    return array


def _capsule(x):
    """Returns a DLPack capsule of the newest version that x supports. It has no stream, because calls have that option."""
    try:
        return x.__dlpack__(max_version=(1, 0))
    except TypeError:
        return x.__dlpack__()


def _by_dlpack(x, argument):
    try:
        capsule = _capsule(x)
    except Exception as error:
        message = "%s is a %s that cannot be read by DLPack: %s"
        raise Error(message % (argument, type(x).__name__, error), argument) from error
    name = _get_name(capsule)
    address = _get_pointer(capsule, name)
    versioned = name == b"dltensor_versioned"
    managed = _Versioned.from_address(address) if versioned else None
    tensor = managed.tensor if versioned else _Tensor.from_address(address)
    dtype = "%s%d" % (_DLPACK_CODES.get(tensor.dtype.code, "code %d, bits " % tensor.dtype.code), tensor.dtype.bits)
    device = _DLPACK_DEVICES.get(tensor.device.type)
    if tensor.dtype.lanes != 1:
        raise Error(
            "%s has a dtype with %d lanes, which the library does not support" % (argument, tensor.dtype.lanes), argument
        )
    if device is None:
        message = "%s is on a device that the library does not support (DLPack: %d)"
        raise Error(message % (argument, tensor.device.type), argument)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    writable = not managed.flags & _READ_ONLY if versioned else None
    pointer = tensor.data + tensor.byte_offset if tensor.data else None
    return _checked(Array(Meta(shape, strides, dtype, device), pointer, writable, capsule), argument)


def contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def describe(x, argument):
    """Returns the Array of x, which has the array interface or DLPack."""
    interface = getattr(x, "__array_interface__", None)
    if interface is not None and hasattr(x, "dtype"):
        return _by_interface(x, interface, "cpu", argument)
    interface = getattr(x, "__cuda_array_interface__", None) if not hasattr(x, "__dlpack__") else None
    if interface is not None:
        return _by_interface(x, interface, "cuda", argument)
    if hasattr(x, "__dlpack__"):
        jax = sys.modules.get("jax")
        if jax is not None and isinstance(x, jax.core.Tracer):
            raise Error("%s is traced by JAX and has no values yet: use trope.jax.rotate" % argument, argument)
        if hasattr(x, "is_neg") and x.is_neg():  # PyTorch negates lazily: values in memory have the other sign
            raise Error("%s is a tensor that is negated lazily: pass its resolve_neg()" % argument, argument)
        return _by_dlpack(x, argument)
    message = "%s must be an array (of NumPy, PyTorch, JAX, or anything with DLPack), not %s"
    raise Error(message % (argument, type(x).__name__), argument)


def describe_destination(x, argument):
    array = describe(x, argument)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):  # autograd would not see the write
        raise Error("%s is a torch tensor, and the tensors of the call are not: pass its numpy()" % argument, argument)
    if array.writable is False or type(x).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise Error("%s cannot be written (%s)" % (argument, type(x).__name__), argument)
    return array


def new_result(x, array, shape, argument):
    """Makes a NumPy array of the dtype of x, with its order of dimensions. array: the Array of x."""
    import numpy

    if array.meta.device != "cpu":
        message = "out is missing: %s is on %s, where only the library that made it can make a new array"
        raise Error(message % (argument, array.meta.device), "out")
    if isinstance(x, numpy.ndarray):
        return numpy.empty_like(x, shape=shape, subok=False)
    if array.meta.dtype == "bfloat16" and not hasattr(x, "dtype"):
        raise Error("out is missing: %s has dtype bfloat16, which NumPy lacks" % argument, "out")
    return numpy.empty(shape, getattr(x, "dtype", array.meta.dtype))


def like_source(result, x):
    """Returns a NumPy result as an array of x's library, if that library has an array namespace."""
    import numpy

    if isinstance(x, numpy.ndarray):
        return result
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    return result if namespace is None else namespace.asarray(result)
