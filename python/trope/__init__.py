"""trope: rotary position embedding (RoPE) for training, forward and backward, on CPUs and NVIDIA GPUs.

    q, k = trope.rotate(q, k, layout="bshd", pairing="half", inv_freq=trope.frequencies("config.json"))

The functions take arrays of NumPy, PyTorch, JAX (on the CPU), CuPy, and of any library that has the array interface or
DLPack. trope.torch is the interface for PyTorch, with autograd, torch.compile and CUDA graphs. trope.rotate calls it for
torch tensors. trope.jax is the interface for JAX, with jit, grad, vmap and sharding. trope.transformer_engine, trope.apex,
trope.flash_attn and trope.liger are drop-in modules: they keep the names of the libraries that they replace.

Importing trope needs neither NumPy nor PyTorch nor a GPU.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Literal, Sequence, Tuple, TypeVar, overload

from . import _abi, _arrays, _prepared
from ._abi import COPY
from ._errors import Error
from ._log import LoggedCall, log_calls
from ._norms import Norm, NormArrays, refuse_norm, resolve_norms
from ._options import ARRAYS, Options, Side, document, with_gradients
from ._spec import intern, resolve, result_shape
from ._values import flag, integer, integers, listed, one_each, shown, word
from .frequencies import Frequencies, frequencies

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Array = TypeVar("_Array")
__version__ = _abi.lib.trope_version().decode()
__all__ = [
    "COPY", "Error", "Frequencies", "LoggedCall", "Norm", "Options", "frequencies", "info", "kernel_name", "log_calls",
    "pair_axis", "rotate", "rotate_", "rotate_backward", "rotate_backward_",
]  # fmt: skip


def info() -> str:
    """Returns lines "name: value" about the library and this machine: version, backends, instruction sets, devices."""
    return _abi.lib.trope_info().decode()


def pair_axis(order: Literal["sections", "interleaved", "alternating", "hwt"], sections: Sequence[int]) -> tuple[int, ...]:
    """Returns the axis of each pair, in an order that models use.

    Arguments:
        order: "sections": axis by axis (Qwen2-VL [16, 24, 24]). "interleaved": i % 3 while i < 3 * sections[i % 3],
            otherwise 0 (Qwen3-VL). "alternating": i % 2 (Kimi's vision tower). "hwt": 1 + i % 2, then axis 0 for the last
            sections[0] pairs (Ernie 4.5 VL).
        sections: the number of pairs of axis 0, 1, ..., for up to four axes.
    Return:
        a tuple of sum(sections) ints, for the option pair_axis of rotate.
    """
    word(order, _abi.AXIS_ORDERS, "order")
    given = listed(sections)
    if given is None or not 1 <= len(given) <= _abi.MAX_AXES:
        raise Error("sections must be a list of 1 to %d integers, not %s" % (_abi.MAX_AXES, shown(sections)), "sections")
    sections = integers(given, "sections", 0, _abi.MAX_ROTARY_DIM // 2)
    pairs = sum(sections)
    if not 1 <= pairs <= _abi.MAX_ROTARY_DIM // 2:
        message = "sections %s add up to %d pairs, but the sum must be 1 to %d"
        raise Error(message % (list(sections), pairs, _abi.MAX_ROTARY_DIM // 2), "sections")
    axes = (ctypes.c_uint8 * pairs)()
    padded = (ctypes.c_int32 * _abi.MAX_AXES)(*sections)
    status = _abi.lib.trope_fill_pair_axis(axes, pairs, _abi.AXIS_ORDERS[order], padded)
    if status != _abi.OK:
        raise Error("sections %s are not valid with order %r: %s" % (list(sections), order, _abi.reason()), "sections")
    return tuple(axes)


def _has_torch(arrays):
    torch = sys.modules.get("torch")
    return torch is not None and any(isinstance(array, torch.Tensor) for array in arrays)


def _torch_functions():
    from . import torch as functions

    return functions


def _describe_all(arrays, name, describe=_arrays.describe):
    return [None if x is None else describe(x, "%s[%d]" % (name, i)) for i, x in enumerate(arrays)]


def _describe_tensors(tensors, describe=_arrays.describe):
    if not tensors:
        raise Error("tensors: none is given", "tensors")
    return [describe(x, "tensors[%d]" % i) for i, x in enumerate(tensors)]


def _describe_options(options):
    """Returns the options, with each array among them replaced by an Array."""
    described = {}
    for name in ARRAYS:
        x = options.get(name)
        if x is not None:
            described[name] = (_arrays.describe_destination if name == "status" else _arrays.describe)(x, name)
    return {**options, **described} if described else options


def _resolve(srcs, options, find_norm=refuse_norm):
    """Returns (Spec, Side, weights) of a call of Arrays. weights: the Array or None of each norm's weight, or ().

    find_norm: see resolve_norms.
    """
    norms = options.get("norms")
    spec, side = resolve(srcs, _describe_options({**options, "norms": None} if norms is not None else options))
    if norms is None:
        return spec, side, ()
    spec, weights = resolve_norms(spec, srcs, norms, find_norm)
    for i, settings in enumerate(spec.norms):
        if settings.group:
            name = "norms[%d].process_group" % i
            raise Error("%s is only for trope.torch, which uses torch.distributed" % name, name)
    return intern(spec), side, _describe_weights(weights)


def _describe_weights(weights):
    weights = [x.detach() if hasattr(x, "detach") else x for x in weights]
    return [None if x is None else _arrays.describe(x, "norms[%d].weight" % i) for i, x in enumerate(weights)]


def _launch(backward, spec, srcs, dsts, forward_srcs, side, norms, stream):
    """Runs one call on Arrays. Lists have None where an array is absent. norms has NormArrays for each tensor."""
    arrays = srcs + dsts + forward_srcs + list(side) + [array for one in norms for array in one]
    devices = {array.meta.device for array in arrays if array is not None}
    if len(devices) != 1:
        raise Error("tensors: the arrays of a call are on several devices: %s" % ", ".join(sorted(devices)), "tensors")
    if stream is not None:
        integer(stream, "stream", 0, 2**64 - 1)
        if "cpu" in devices:
            raise Error("stream is only for arrays on CUDA, and these are on the CPU", "stream")
    metas = [None if array is None else array.meta for array in arrays]
    key = (backward, id(spec)) + tuple(None if m is None else (m.shape, m.strides, str(m.dtype), m.device) for m in metas)

    def make():
        count, end = len(srcs), 3 * len(srcs) + len(side)
        cut = metas[:count], metas[count : 2 * count], metas[2 * count : 3 * count]
        of_norms = [
            NormArrays(*metas[at : at + len(NormArrays._fields)]) for at in range(end, len(metas), len(NormArrays._fields))
        ]
        return _prepared.PreparedCall(backward, spec, *cut, Side(*metas[3 * count : end]), of_norms)

    has_gradient = side.d_freqs is not None or side.d_inv_freq is not None or (backward and len(norms) > 0)
    addresses = [array.pointer or 0 for array in arrays if array is not None]
    _prepared.run(key, make, addresses, stream, _allocate if has_gradient else None)


def _allocate(size):
    """Allocates scratch memory on the CPU, aligned to 16 bytes."""
    memory = ctypes.create_string_buffer(size + 16)
    return memory, (ctypes.addressof(memory) + 15) & ~15


def _rotate(
    backward, tensors, out, in_place, stream, options, forward_src=None, d_freqs=None, d_inv_freq=None, d_weights=None
):
    srcs = _describe_tensors(tensors, _arrays.describe_destination if in_place else _arrays.describe)
    spec, side, weights = _resolve(srcs, options)
    if spec.accumulate and (out is None or not backward):
        raise Error("accumulate is only for rotate_backward with out, because it adds to out", "accumulate")
    results = None
    if in_place:
        dsts = srcs
    else:
        if out is None:
            out = results = [_new_result(backward, spec, i, x, srcs[i]) for i, x in enumerate(tensors)]
        dsts = _describe_all(one_each(out, "out", len(tensors)), "out", _arrays.describe_destination)
    forwards = _describe_all(one_each(forward_src, "forward_src", len(tensors)), "forward_src")
    if d_freqs is not None:
        d_freqs = _arrays.describe_destination(d_freqs, "d_freqs")
    if d_inv_freq is not None:
        d_inv_freq = _arrays.describe_destination(d_inv_freq, "d_inv_freq")
    side = with_gradients(side, d_freqs, d_inv_freq)
    d_weights = _describe_all(one_each(d_weights, "d_weights", len(tensors)), "d_weights", _arrays.describe_destination)
    _launch(backward, spec, srcs, dsts, forwards, side, _of_norms(weights, d_weights), stream)
    if in_place:
        return tensors[0] if len(tensors) == 1 else tensors
    if results is not None:
        out = [_arrays.like_source(result, x) for result, x in zip(results, tensors)]
    out = one_each(out, "out", len(tensors))
    return out[0] if len(tensors) == 1 else tuple(out)


def _of_norms(weights, d_weights):
    """Returns NormArrays for each tensor, or () if there are no norms."""
    if not weights:
        for i, d_weight in enumerate(d_weights):
            if d_weight is not None:
                raise Error("d_weights is given, and norms is not", "d_weights")
        return ()
    return [NormArrays(weight, d_weight=d_weight) for weight, d_weight in zip(weights, d_weights)]


def _new_result(backward, spec, i, x, array):
    shape = tuple(result_shape(backward, spec, i, array.meta.shape))
    return _arrays.new_result(x, array, shape, "tensors[%d]" % i)


@overload
def rotate(
    x: _Array, /, *, out: _Array | Sequence[_Array] | None = None, stream: int | None = None, **options: Unpack[Options]
) -> _Array: ...
@overload
def rotate(
    x: _Array,
    y: _Array,
    /,
    *more: _Array,
    out: Sequence[_Array] | None = None,
    stream: int | None = None,
    **options: Unpack[Options],
) -> Tuple[_Array, ...]: ...
def rotate(*tensors, out=None, stream=None, **options):
    if _has_torch(tensors):
        return _torch_functions().rotate(*tensors, out=out, **_without_stream(stream, options))
    return _rotate(False, tensors, out, False, stream, options)


@overload
def rotate_(x: _Array, /, *, stream: int | None = None, **options: Unpack[Options]) -> _Array: ...
@overload
def rotate_(
    x: _Array, y: _Array, /, *more: _Array, stream: int | None = None, **options: Unpack[Options]
) -> Tuple[_Array, ...]: ...
def rotate_(*tensors, stream=None, **options):
    if _has_torch(tensors):
        return _torch_functions().rotate_(*tensors, **_without_stream(stream, options))
    return _rotate(False, tensors, None, True, stream, options)


@overload
def rotate_backward(
    x: _Array,
    /,
    *,
    out: _Array | Sequence[_Array] | None = None,
    forward_src: _Array | Sequence[_Array] | None = None,
    d_freqs: _Array | None = None,
    d_inv_freq: _Array | None = None,
    d_weights: _Array | Sequence[_Array | None] | None = None,
    stream: int | None = None,
    **options: Unpack[Options],
) -> _Array: ...
@overload
def rotate_backward(
    x: _Array,
    y: _Array,
    /,
    *more: _Array,
    out: Sequence[_Array] | None = None,
    forward_src: Sequence[_Array | None] | None = None,
    d_freqs: _Array | None = None,
    d_inv_freq: _Array | None = None,
    d_weights: _Array | Sequence[_Array | None] | None = None,
    stream: int | None = None,
    **options: Unpack[Options],
) -> Tuple[_Array, ...]: ...
def rotate_backward(
    *tensors, out=None, forward_src=None, d_freqs=None, d_inv_freq=None, d_weights=None, stream=None, **options
):
    if _has_torch(tensors):
        gradients = dict(d_freqs=d_freqs, d_inv_freq=d_inv_freq, d_weights=d_weights)
        options = _without_stream(stream, options)
        return _torch_functions().rotate_backward(*tensors, out=out, forward_src=forward_src, **gradients, **options)
    return _rotate(True, tensors, out, False, stream, options, forward_src, d_freqs, d_inv_freq, d_weights)


@overload
def rotate_backward_(x: _Array, /, *, stream: int | None = None, **options: Unpack[Options]) -> _Array: ...
@overload
def rotate_backward_(
    x: _Array, y: _Array, /, *more: _Array, stream: int | None = None, **options: Unpack[Options]
) -> Tuple[_Array, ...]: ...
def rotate_backward_(*tensors, stream=None, **options):
    if _has_torch(tensors):
        return _torch_functions().rotate_backward_(*tensors, **_without_stream(stream, options))
    return _rotate(True, tensors, None, True, stream, options)


def _without_stream(stream, options):
    if stream is not None:
        raise Error("stream is not for torch tensors, which use PyTorch's current stream", "stream")
    return options


document(
    rotate,
    "Rotates all tensors in one call: y = M x for each pair.",
    """
    Example:
        >>> import numpy, trope
        >>> q = numpy.ones((1, 3, 2, 4), "float32")  # batch, tokens, heads, head_dim
        >>> k = numpy.ones((1, 3, 1, 4), "float32")
        >>> frequencies = trope.frequencies(rope_type="default", rope_theta=10000.0, head_dim=4)
        >>> q, k = trope.rotate(q, k, layout="bshd", pairing="half", inv_freq=frequencies)
        >>> print(k[0, :, 0].round(2))
        [[ 1.    1.    1.    1.  ]
         [-0.3   0.99  1.38  1.01]
         [-1.33  0.98  0.49  1.02]]
""",
)
document(rotate_, "Rotates in place: x = M x.")
document(
    rotate_backward,
    "Applies the transpose, dx = M' dy, with the arguments of the forward call. Also computes the gradient of the angles.",
)
document(
    rotate_backward_,
    "Applies the transpose in place: x = M' x. With mscale 1, this undoes rotate_.",
)


def kernel_name(*tensors: Any, backward: bool = False, **options: Unpack[Options]) -> str:
    """Returns the name of the kernel that rotate(*tensors, **options) would run, such as "cpu-avx512-bf16-half"."""
    flag(backward, "backward")
    find_norm = refuse_norm
    if _has_torch(tensors):
        find_norm = _torch_functions()._norm_modules.find_norm
        tensors = [x.detach() if hasattr(x, "detach") else x for x in tensors]
        options = {name: x.detach() if hasattr(x, "detach") else x for name, x in options.items() if name != "max_position"}
    srcs = _describe_tensors(tensors)
    spec, side, weights = _resolve(srcs, options, find_norm)
    metas = [array.meta for array in srcs]
    shapes = [tuple(result_shape(backward, spec, i, meta.shape)) for i, meta in enumerate(metas)]
    dsts = [m._replace(shape=shape, strides=_arrays.contiguous_strides(shape)) for m, shape in zip(metas, shapes)]
    has_norm = [backward and settings.scope != "" for settings in spec.norms] or [False] * len(srcs)
    forward_srcs = [dst if has else None for dst, has in zip(dsts, has_norm)]
    side_metas = Side(*(None if array is None else array.meta for array in side))
    of_norms = [NormArrays(None if array is None else array.meta) for array in weights]
    prepared = _prepared.PreparedCall(backward, spec, metas, dsts, forward_srcs, side_metas, of_norms)
    # No results are allocated: these addresses belong to no array.
    nowhere = [2**46 + (i << 42) for i in range(len(srcs) + sum(has_norm))]
    beside = [array.pointer or 0 for array in (*side, *weights) if array is not None]
    return prepared.find_kernel([a.pointer or 0 for a in srcs] + nowhere + beside, backward)
