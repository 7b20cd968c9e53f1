"""A call of the library as a custom call of XLA: the attribute that describes it, its buffers, and the check while tracing.

src/api/xla.c reads the attribute.
"""

import ctypes
import functools
import struct
from typing import NamedTuple

import jax
import numpy

from .. import _abi, _prepared
from .._norms import NormArrays, rstd_shape
from .._options import ARRAYS, NO_ARRAYS, Side
from .._spec import result_shape

TARGET = "trope_rotate"
_HEADER = struct.Struct("<Q6i")
_MAGIC = int.from_bytes(b"trope 1\0", "little")
# The numbers of pointer_kind in xla.c.
_KINDS = {
    name: number
    for number, name in enumerate(
        "src dst forward_src freqs cos sin position_ids start_positions cu_seqlens cu_seqlens_padded d_freqs d_inv_freq"
        " workspace weight rstd d_weight".split()
    )
}
_REAL = {"float64": "float64"}


class Call(NamedTuple):
    """The static part of a call. It can be hashed, so compiled code is cached by it. Tuples have an entry for each tensor.

    backward      the library's function: trope_backward or trope_forward
    spec          the settings
    side          the names of the arrays besides the tensors, in the order of ARRAYS
    dst           whether the call returns the rotated tensor, or its gradient
    forward_src   whether the call reads x of the forward call
    d_freqs       whether the call computes the gradient of the table
    weight, rstd, d_weight   whether the norms have these arrays; rstd is written in forward and read in backward
    in_place      whether results may use the memory of the tensors
    """

    backward: bool
    spec: object
    side: tuple
    dst: tuple
    forward_src: tuple
    d_freqs: bool = False
    weight: tuple = ()
    rstd: tuple = ()
    d_weight: tuple = ()
    in_place: bool = False


class Arguments(NamedTuple):
    """The arguments of a Call. The lists have an entry for each tensor, which is None if the array is absent."""

    srcs: list
    forward_srcs: list
    side: tuple
    weights: list
    rstds: list


class Results(NamedTuple):
    """The results of a Call, like Arguments."""

    dsts: list
    d_freqs: object
    rstds: list
    d_weights: list


def _take(rest, present):
    return [next(rest) if there else None for there in present]


def _none(call):
    return (False,) * len(call.dst)


def arguments_of(call, flat):
    """Returns the Arguments of a call. `flat` has the arrays that are present, in order."""
    rest = iter(flat)
    count = len(call.dst)
    srcs = _take(rest, (True,) * count)
    forward_srcs = _take(rest, call.forward_src)
    side = Side(**dict(zip(call.side, rest))) if call.side else NO_ARRAYS
    weights = _take(rest, call.weight or _none(call))
    rstds = _take(rest, call.rstd if call.rstd and call.backward else _none(call))
    return Arguments(srcs, forward_srcs, side, weights, rstds)


def flatten(arguments):
    """Returns the arguments, or results, that are present, in order."""
    flat = []
    for given in arguments:
        flat += [x for x in (given if isinstance(given, (list, tuple)) else [given]) if x is not None]
    return flat


def results_of(call, flat):
    """Returns the Results of a call. `flat` has the arrays that are present, in order."""
    rest = iter(flat)
    dsts = _take(rest, call.dst)
    d_freqs = next(rest) if call.d_freqs else None
    rstds = _take(rest, call.rstd if call.rstd and not call.backward else _none(call))
    return Results(dsts, d_freqs, rstds, _take(rest, call.d_weight or _none(call)))


def _real(dtype):
    """Returns the dtype of the arithmetic, of rstd and of the gradients of tables and weights."""
    return numpy.dtype(_REAL.get(numpy.dtype(dtype).name, "float32"))


def _result_shapes(call, arguments):
    """Returns the Results as jax.ShapeDtypeStructs."""
    first = arguments.srcs[0]
    real, spec = _real(first.dtype), call.spec
    of_norms = spec.norms or (None,) * len(call.dst)
    forward = [
        tuple(x.shape) if x is not None else tuple(result_shape(call.backward, spec, i, src.shape))
        for i, (src, x) in enumerate(zip(arguments.srcs, arguments.forward_srcs))
    ]
    table = arguments.side.freqs if arguments.side.freqs is not None else arguments.side.cos
    make = jax.ShapeDtypeStruct
    return Results(
        [make(shape, first.dtype) if there else None for there, shape in zip(call.dst, forward)],
        make(table.shape, real) if call.d_freqs else None,
        [
            make(rstd_shape(spec.layout, settings, src.shape), real) if there else None
            for there, settings, src in zip(
                call.rstd if call.rstd and not call.backward else _none(call), of_norms, arguments.srcs
            )
        ],
        [
            make(weight.shape, real) if there else None
            for there, weight in zip(call.d_weight or _none(call), arguments.weights)
        ],
    )


# ---- The prepared call ----


def _meta(x):
    """Describes an array of a call. XLA passes contiguous arrays."""
    if x is None:
        return None
    strides, step = [], 1
    for size in reversed(x.shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return _prepared.Meta(tuple(x.shape), tuple(strides), numpy.dtype(x.dtype).name, "cpu")


def _prepare(call, arguments, results):
    side = Side(*map(_meta, arguments.side[: len(ARRAYS)]), _meta(results.d_freqs), None)
    norms = [
        NormArrays(_meta(weight), _meta(rstd if call.backward else new_rstd), _meta(d_weight))
        for weight, rstd, new_rstd, d_weight in zip(arguments.weights, arguments.rstds, results.rstds, results.d_weights)
    ]
    metas = ([_meta(x) for x in given] for given in (arguments.srcs, results.dsts, arguments.forward_srcs))
    return _prepared.PreparedCall(call.backward, call.spec, *metas, side, norms if call.spec.norms else ())


def _find_workspace_size(prepared, backward):
    """Checks the call, except for the values of indices. Returns the bytes of scratch memory for any device."""
    prepared.find_kernel([2**46 + (i << 42) for i in range(len(prepared.slots))], backward)
    if not backward:
        return 0
    needed = 0
    for device in _abi.DEVICES.values():
        prepared.args.device, size = device, ctypes.c_uint64()
        status = _abi.lib.trope_workspace_size(prepared.reference, ctypes.byref(size))
        if status == _abi.OK:
            needed = max(needed, size.value)
        elif device == _abi.DEVICES["cpu"]:
            raise _abi.error_of_call(status, prepared.table_name)
    return needed


def _list_slots(arguments, results, has_workspace):
    """Returns (kind, index) of each buffer: first the arguments, and then the results."""
    slots = [("src", i) for i, _ in enumerate(arguments.srcs)]
    slots += [("forward_src", i) for i, x in enumerate(arguments.forward_srcs) if x is not None]
    slots += [(name, 0) for name in ARRAYS if getattr(arguments.side, name) is not None]
    slots += [("weight", i) for i, x in enumerate(arguments.weights) if x is not None]
    slots += [("rstd", i) for i, x in enumerate(arguments.rstds) if x is not None]
    slots += [("dst", i) for i, x in enumerate(results.dsts) if x is not None]
    slots += [("d_freqs", 0)] * (results.d_freqs is not None)
    slots += [("rstd", i) for i, x in enumerate(results.rstds) if x is not None]
    slots += [("d_weight", i) for i, x in enumerate(results.d_weights) if x is not None]
    return slots + [("workspace", 0)] * has_workspace


def _pack(prepared, call, slots):
    """Returns the bytes of the attribute, without addresses: equal calls have equal attributes."""
    args = _abi.Args.from_buffer_copy(prepared.args)
    for name in ("stream", "operands", "pair_axis", "phase_step", "norms"):
        setattr(args, name, None)
    args.device = 0
    steps = bytes(_prepared._phase_steps(call.spec.inv_freq)) if call.spec.inv_freq else b""
    axes = bytes(call.spec.pair_axis or ())
    head = _HEADER.pack(
        _MAGIC, call.backward, len(prepared.operands), len(prepared.norms), len(steps) // 8, len(axes), len(slots)
    )
    places = b"".join(struct.pack("<2i", _KINDS[kind], index) for kind, index in slots)
    return b"".join((head, bytes(args), bytes(prepared.operands), bytes(prepared.norms), steps, places, axes))


class _Ready(NamedTuple):
    attribute: object
    shapes: list
    aliases: dict


@functools.lru_cache(maxsize=1024)
def _make_ready(call, shapes):
    """Checks and prepares a call of arrays with these shapes and dtypes. If it has no work, the attribute is None."""
    given = arguments_of(call, [jax.ShapeDtypeStruct(*each) for each in shapes])
    results = _result_shapes(call, given)
    prepared = _prepare(call, given, results)
    size = _find_workspace_size(prepared, call.backward)
    flat = flatten(results)
    if any(0 in x.shape for x in given.srcs) or 0 in (results.d_freqs.shape if call.d_freqs else ()):
        return _Ready(None, flat, {})
    if size:
        flat.append(jax.ShapeDtypeStruct((size,), numpy.uint8))
    attribute = numpy.frombuffer(_pack(prepared, call, _list_slots(given, results, size > 0)), numpy.uint8)
    aliases, at = {}, 0
    for i, there in enumerate(call.dst):
        if there:
            if call.in_place and tuple(given.srcs[i].shape) == tuple(flat[at].shape):
                aliases[i] = at
            at += 1
    return _Ready(attribute, flat, aliases)


def _like(first, shape):
    """Returns the type of a result. It varies over the same manual mesh axes as the arguments."""
    if not varying_axes(first):
        return shape
    aval = jax.typeof(first)
    sharding = aval.sharding.update(spec=jax.sharding.PartitionSpec(*[None] * len(shape.shape)))
    return aval.update(shape=shape.shape, dtype=shape.dtype, weak_type=False, sharding=sharding)


def varying_axes(x):
    """Returns the manual mesh axes (of jax.shard_map) over which an array varies."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def launch(call, flat):
    """Makes a call on one device, which has the whole arrays. Returns a list of its results."""
    ready = _make_ready(call, tuple((tuple(x.shape), numpy.dtype(x.dtype)) for x in flat))
    shapes = [_like(flat[0], shape) for shape in ready.shapes]
    if ready.attribute is None:
        return [_zeros(flat[0], shape) for shape in ready.shapes]
    make = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases=ready.aliases)
    return make(*flat, call=ready.attribute)[: sum(map(bool, _present_results(call)))]


def _present_results(call):
    return (*call.dst, call.d_freqs, *(() if call.backward else call.rstd), *call.d_weight)


def _zeros(first, shape):
    zeros = jax.numpy.zeros(shape.shape, shape.dtype)
    return jax.lax.pcast(zeros, tuple(varying_axes(first)), to="varying")


def check(call, flat):
    """Raises trope.Error if the library would refuse a call of arrays with these shapes and dtypes. Returns the shapes and
    dtypes of the results."""
    ready = _make_ready(call, tuple((tuple(x.shape), numpy.dtype(x.dtype)) for x in flat))
    return ready.shapes[: sum(map(bool, _present_results(call)))]


def _register():
    """Registers the handler with XLA, also for exported programs. Returns the platforms that this build serves."""
    handler = jax.ffi.pycapsule(_abi.lib.trope_xla_rotate)
    lines = dict(line.split(": ", 1) for line in _abi.lib.trope_info().decode().splitlines() if ": " in line)
    platforms = ("cpu", "cuda") if "cuda" in lines.get("backends", "") else ("cpu",)
    for platform in platforms:
        jax.ffi.register_ffi_target(TARGET, handler, platform="CUDA" if platform == "cuda" else platform)
    return platforms


PLATFORMS = _register()
