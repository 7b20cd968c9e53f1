"""The primitives of trope.jax. Each is one call of the library, with its derivatives and its rule for jax.vmap.

    rotation   y = M x, or its transpose            angle_gradient    dL/d freqs, from dy and x
    scaling    y = g x, for a table g               normed            a rotation with norms
                                                    normed_gradient   all gradients of normed

JAX transposes the calls that are linear: rotations, scalings, and angle gradients. The other derivatives are calls of
`tangent`, a linear map with a formula for forward mode and a cheaper one for reverse mode. All derivatives are made of the
same primitives (_formulas.py), so they can be differentiated again.
"""

import functools

import jax
from jax._src.dispatch import prim_requires_devices_during_lowering  # JAX has no public name for it
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from .. import _abi
from .._errors import Error
from .._options import ARRAYS
from .._spec import DIMS
from . import _formulas, _partition
from ._call import PLATFORMS, Arguments, Call, arguments_of, flatten, results_of, varying_axes


def bind(primitive, call, flat):
    """Makes a call. Its arguments and results are the arrays that are present, in order."""
    axes = frozenset().union(*map(varying_axes, flat))
    flat = _partition.place(call, [vary(x, axes) for x in flat])
    return primitive.bind(*flat, call=call)


def vary(x, axes):
    """Makes the type of x vary over these manual mesh axes. The gradient is then summed over them."""
    missing = axes - varying_axes(x)
    return jax.lax.pcast(x, tuple(sorted(missing, key=str)), to="varying") if missing else x


# ---- derivatives ----


def _present(tangents):
    """Returns the tangents, or upstream gradients, with None for 0."""
    return [None if isinstance(t, ad.Zero) or t.dtype == jax.dtypes.float0 else t for t in tangents]


def _with_zeros(results, tangents):
    return results, [ad.Zero(jax.typeof(y).to_tangent_aval()) if t is None else t for y, t in zip(results, tangents)]


def _sum(parts):
    """Returns the sum of derivatives, where None is 0."""
    present = [part for part in parts if part is not None]
    return None if not present else sum(present[1:], present[0])


def _cotangents(call, flat, srcs, forward_srcs=None, side=None):
    """Returns the gradients of the arguments by which a call is transposed, in order, and None for the others."""
    gradients = [
        *srcs,
        *[d for d, there in zip(forward_srcs or [None] * len(srcs), call.forward_src) if there],
        *[(side or {}).get(name) for name in call.side],
    ]
    return [_partition.like(d, x.aval) if ad.is_undefined_primal(x) else None for x, d in zip(flat, gradients)]


def _rotation_jvp(primals, tangents, call):
    given, moved = arguments_of(call, primals), arguments_of(call, _present(tangents))
    for name in ("cos", "sin"):
        if getattr(moved.side, name) is not None:
            message = "%s has a derivative to compute, which is possible only for freqs: give freqs, or use stop_gradient"
            raise Error(message % name, name)
    turns = moved.side.freqs is not None
    results = bind(rotation, call._replace(in_place=call.in_place and not turns), primals)
    parts = [_formulas.rotate_some(call.backward, call.spec, given.side, moved.srcs)]
    if turns:
        moved = [None] * len(call.dst) + [moved.side.freqs if name == "freqs" else None for name in call.side]
        parts.append(differentiate("rotation", call, primals, moved, results))
    return _with_zeros(results, [_sum(each) for each in zip(*parts)])


def _rotation_transpose(grads, *flat, call):
    side = arguments_of(call, flat).side
    return _cotangents(call, flat, _formulas.rotate_some(not call.backward, call.spec, side, _present(grads)))


def _scaling_jvp(primals, tangents, call):
    spec, given, moved = call.spec, arguments_of(call, primals), arguments_of(call, _present(tangents))
    results = bind(scaling, call._replace(in_place=False), primals)
    parts = [_formulas.rotate_some(False, spec, given.side, moved.srcs, scales=True)]
    if moved.side.cos is not None:
        parts.append(scale(spec, moved.side.cos, given.side, given.srcs))
    return _with_zeros(results, [_sum(each) for each in zip(*parts)])


def _scaling_transpose(grads, *flat, call):
    given, grads = arguments_of(call, flat), _present(grads)
    if ad.is_undefined_primal(given.side.cos):
        d_g = _formulas.scaling_gradient(call.spec, given.side, given.srcs, grads)
        return _cotangents(call, flat, [None] * len(grads), side={"cos": d_g})
    return _cotangents(call, flat, _formulas.rotate_some(False, call.spec, given.side, grads, scales=True))


def _angle_gradient_jvp(primals, tangents, call):
    given, moved = arguments_of(call, primals), arguments_of(call, _present(tangents))
    along = functools.partial(_formulas.angle_gradient, call.spec, given.side)
    parts = [along(moved.srcs, given.forward_srcs), along(given.srcs, moved.forward_srcs)]
    if moved.side.freqs is not None:
        parts.append(_formulas.angle_gradient_along_freqs(call.spec, *given[:3], moved.side.freqs))
    return _with_zeros(bind(angle_gradient, call, primals), [_sum(parts)])


def _angle_gradient_transpose(grads, *flat, call):
    (g,) = _present(grads)
    dys, xs, side = arguments_of(call, flat)[:3]
    if g is None:
        return [None] * len(flat)
    if any(map(ad.is_undefined_primal, dys)):
        return _cotangents(call, flat, _formulas.angle_gradient_transpose(False, call.spec, side, g, xs))
    d_xs = _formulas.angle_gradient_transpose(True, call.spec, side, g, dys, xs)
    return _cotangents(call, flat, [None] * len(dys), d_xs)


def _normed_jvp(primals, tangents, call):
    """The results of a call with call.rstd are also rstd of each norm, which has no derivative of its own."""
    count = sum(call.dst) + sum(call.rstd)
    has_norm = tuple(settings.scope != "" for settings in call.spec.norms)
    results = bind(normed, call._replace(rstd=has_norm, in_place=False), primals)
    dsts = results[: len(call.dst)]
    moved = differentiate("normed", call, [*primals, *results[len(dsts) :]], _present(tangents), dsts)
    return _with_zeros(results[:count], [*moved, *[None] * (count - len(dsts))])


def _normed_gradient_jvp(primals, tangents, call):
    results = bind(normed_gradient, call._replace(in_place=False), primals)
    return results, differentiate("normed_gradient", call, primals, _present(tangents), results)


# ---- linear maps with a formula for each mode ----


def differentiate(kind, call, saved, moved, results):
    """Returns the tangents of results of a call. saved: what the formulas of `kind` need, which starts with the arguments.
    moved: the tangents of the arguments, or None."""
    wanted = tuple(t is not None for t in moved) + (False,) * (len(saved) - len(moved))
    types = tuple(jax.typeof(y).to_tangent_aval() for y in results)
    return tangent.bind(*saved, *[t for t in moved if t is not None], kind=kind, call=call, wanted=wanted, types=types)


def _push(*flat, kind, call, wanted, types):
    saved, rest = flat[: len(wanted)], iter(flat[len(wanted) :])
    moved = [next(rest) if is_wanted else None for is_wanted in wanted]
    return tuple(y.astype(t.dtype) for y, t in zip(_formulas.FORWARD[kind](call, saved, moved), types))


def _tangent_jvp(primals, tangents, **params):
    count = len(params["wanted"])
    tangents = _present(tangents)
    parts = []
    if any(t is not None for t in tangents[count:]):
        moved = [jax.numpy.zeros_like(x) if t is None else t for x, t in zip(primals[count:], tangents[count:])]
        parts.append(tangent.bind(*primals[:count], *moved, **params))
    if any(t is not None for t in tangents[:count]):
        of_saved = [*tangents[:count], *[None] * (len(tangents) - count)]
        parts.append(_formulas.jvp_by_some(functools.partial(_push, **params), primals, of_saved))
    results = tangent.bind(*primals, **params)
    return _with_zeros(results, [_sum(each) for each in zip(*parts)] if parts else [None] * len(results))


def _tangent_transpose(grads, *flat, kind, call, wanted, types):
    saved, moved = flat[: len(wanted)], flat[len(wanted) :]
    gradients = _formulas.REVERSE[kind](call, saved, _present(grads), wanted)
    gradients = [d for d, is_wanted in zip(gradients, wanted) if is_wanted]
    gradients = [_partition.like(d, x.aval) if ad.is_undefined_primal(x) else None for x, d in zip(moved, gradients)]
    return [None] * len(saved) + gradients


def _batch_tangent(tangent, axis_data, flat, dims, **params):
    if all(dim is None for dim in dims):
        return tangent.bind(*flat, **params), (None,) * len(params["types"])
    return jax.vmap(functools.partial(_push, **params), tuple(dims))(*flat), (0,) * len(params["types"])


# ---- the primitives ----


@functools.lru_cache(maxsize=1024)
def _compiled(primitive, params):
    def run(*flat):
        return primitive.bind(*flat, **dict(params))

    run.__name__ = run.__qualname__ = primitive.name  # errors of JAX name it
    return jax.jit(run)


def _run(primitive, *flat, **params):
    with jax.disable_jit(False):
        return _compiled(primitive, tuple(params.items()))(*flat)


def _refuse_platform(ctx, *flat, call):
    platform = ", ".join(ctx.platforms or ctx.module_context.platforms)
    if platform == "cuda":
        raise Error("trope.jax cannot run on cuda: the library at %s was built without CUDA" % _abi.lib._name)
    raise Error("trope.jax runs on cpu and cuda, and cannot run on %s" % platform)


def _define(name, types, jvp, transpose, batch):
    primitive = Primitive("trope_" + name)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(_run, primitive))
    primitive.def_abstract_eval(types)
    prim_requires_devices_during_lowering.add(primitive)
    ad.primitive_jvps[primitive] = jvp
    if transpose:
        ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = functools.partial(batch, primitive)
    return primitive


def _define_call(name, jvp, transpose=None):
    primitive = _define(name, _partition.type_results, jvp, transpose, _batch)
    mlir.register_lowering(primitive, _refuse_platform)
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, mlir.lower_fun(_partition.lower, multiple_results=True), platform=platform)
    return primitive


# ---- The calls that the formulas are made of ----


def _names(side):
    return tuple([name for name in ARRAYS if getattr(side, name) is not None])


def rotate(transposed, spec, side, tensors, in_place=False, primitive=None):
    """Returns M x of each tensor, or M' x."""
    count = len(tensors)
    call = Call(transposed, spec, _names(side), (True,) * count, (False,) * count, in_place=in_place)
    return list(bind(primitive or rotation, call, flatten(Arguments(list(tensors), [], side, [], []))))


def scale(spec, g, side, tensors):
    side = side._replace(freqs=None, cos=g, sin=jax.numpy.zeros_like(g))
    return rotate(False, spec, side, tensors, primitive=scaling)


def find_angle_gradient(spec, side, dys, xs):
    """Returns dL/d freqs from dy and x of each tensor."""
    count = len(dys)
    reads = tuple(width > 0 for width in spec.rotary_dims)
    call = Call(True, spec, _names(side), (False,) * count, reads, d_freqs=True)
    xs = [x if is_read else None for x, is_read in zip(xs, reads)]
    return bind(angle_gradient, call, flatten(Arguments(list(dys), xs, side, [], [])))[0]


def rotate_normed(spec, side, tensors, weights, in_place=False):
    count = len(tensors)
    has_weight = tuple(weight is not None for weight in weights)
    call = Call(
        False, spec, _names(side), (True,) * count, (False,) * count, weight=has_weight, in_place=in_place
    )  # fmt: skip
    return list(bind(normed, call, flatten(Arguments(list(tensors), [], side, weights, []))))


def find_normed_gradients(spec, side, dys, xs, weights, rstds, wants_freqs, wants_tensors, wants_weights):
    """Returns (d_freqs, d_tensors, d_weights). None: the gradient is not wanted."""
    reads = tuple(s.scope != "" or (wants_freqs and width > 0) for s, width in zip(spec.norms, spec.rotary_dims))
    present = [tuple(x is not None for x in given) for given in (weights, rstds)]
    call = Call(
        True, spec, _names(side), tuple(wants_tensors), reads, wants_freqs, *present, tuple(wants_weights), in_place=True
    )
    xs = [x if is_read else None for x, is_read in zip(xs, reads)]
    results = results_of(call, bind(normed_gradient, call, flatten(Arguments(list(dys), xs, side, weights, rstds))))
    return results.d_freqs, results.dsts, results.d_weights


# ---- jax.vmap ----


def _batch(primitive, axis_data, flat, dims, call):
    if all(dim is None for dim in dims):
        results = bind(primitive, call, flat)
        return results, (None,) * len(results)
    if any(entry is not None for x in flat for entry in _partition.entries_of(x)):
        types = tuple(map(jax.typeof, flat))
        results = _split_map(primitive, call, types, tuple(dims), axis_data.explicit_mesh_axis)(*flat)
        return results, (0,) * len(results)
    whole = _fold(call, flat, dims, axis_data.size)
    if whole is not None:
        call, arguments, unfold = whole
        results = unfold(bind(primitive, call, arguments))
        return results, (0,) * len(results)
    return _map(primitive, call, flat, dims)


@functools.lru_cache(maxsize=1024)
def _split_map(primitive, call, types, dims, mapped):
    """Returns a function that maps the calls on each device, for its part of arrays whose types say how they are split.
    `mapped`: the mesh axes that split the mapped dimension, or None."""
    mesh = _partition.mesh_of(types)
    without = lambda sizes, dim: tuple(sizes) if dim is None else (*sizes[:dim], *sizes[dim + 1 :])  # noqa: E731
    shapes = [jax.ShapeDtypeStruct(without(x.shape, dim), x.dtype) for x, dim in zip(types, dims)]
    entries = [without(_partition.entries_of(x), dim) for x, dim in zip(types, dims)]
    factors = _partition.Factors(call, shapes)
    axes = factors.axes_of(entries[: len(call.dst)], dict(mesh.shape))
    specs, results = _partition.specs_of(factors, axes)
    mapped = mapped if mapped is None or len(mapped) > 1 else mapped[0]
    specs = [s if dim is None else PartitionSpec(*s[:dim], mapped, *s[dim:]) for s, dim in zip(specs, dims)]
    one = _partition.each(call, factors, axes, functools.partial(bind, primitive))
    split = jax.shard_map(
        jax.vmap(one, dims),
        mesh=mesh,
        in_specs=tuple(specs),
        out_specs=tuple(PartitionSpec(mapped, *s) for s in results),
        axis_names=set(mesh.explicit_axes),
        # If tensors are split over different axes, all results of the call are typed as varying over all of them.
        check_vma=len({frozenset(_partition.axes_in(s)) for s in specs[: len(call.dst)]}) == 1,
    )
    return jax.jit(lambda *flat: split(*_partition.reshard(flat, mesh, specs)))


def _map(primitive, call, flat, dims):
    """Makes one call for each entry of the mapped dimension."""
    moved = [x if dim is None else jax.numpy.moveaxis(x, dim, 0) for x, dim in zip(flat, dims)]

    def one(mapped):
        rest = iter(mapped)
        return bind(primitive, call, [x if dim is None else next(rest) for x, dim in zip(moved, dims)])

    results = jax.lax.map(one, [x for x, dim in zip(moved, dims) if dim is not None])
    return tuple(results), (0,) * len(results)


# The layouts of packed streams, and the same layouts with a batch dimension.
_BATCHED = {"thd": "bshd", "tghd": "bsghd"}


def _fold(call, flat, dims, size):
    """Makes the mapped dimension a part of the batch, if the call treats all batch entries alike.

    Returns the call, its arguments and a function that unfolds its results, or None if one call cannot serve all entries.
    """
    spec = call.spec
    if call.d_freqs or any(call.d_weight) or "cu_seqlens" in call.side:
        return None
    layout = _BATCHED.get(spec.layout, spec.layout)
    at = DIMS[layout].batch
    given, mapped = arguments_of(call, flat), arguments_of(call, _entries(dims))
    inner = 1 if spec.layout in _BATCHED else given.srcs[0].shape[_shifted(at, mapped.srcs[0])]
    side = {}
    for name in call.side:
        x, dim = getattr(given.side, name), getattr(mapped.side, name)
        folded = _fold_beside(name, x, dim, size, inner)
        if folded is None:
            return None
        side[name] = folded

    def fold(x, dim):
        x = jax.numpy.broadcast_to(x, (size, *x.shape)) if dim < 0 else jax.numpy.moveaxis(x, dim, 0)
        if spec.layout in _BATCHED:
            return x
        x = jax.numpy.moveaxis(x, 0, at)
        return x.reshape(*x.shape[:at], size * inner, *x.shape[at + 2 :])

    def unfold(y):
        if spec.layout in _BATCHED:
            return y
        return jax.numpy.moveaxis(y.reshape(*y.shape[:at], size, inner, *y.shape[at + 1 :]), at, 0)

    def fold_rstd(x, dim):
        x = jax.numpy.broadcast_to(x, (size, *x.shape)) if dim < 0 else jax.numpy.moveaxis(x, dim, 0)
        return x.reshape(-1, *x.shape[2:])

    def unfold_all(results):
        dsts, _, rstds, _ = results_of(call, results)
        dsts = [None if y is None else unfold(y) for y in dsts]
        rstds = [None if y is None else y.reshape(size, -1, *y.shape[1:]) for y in rstds]
        return tuple(flatten([dsts, rstds]))

    def each(function, arrays, dims):
        return [None if x is None else function(x, dim) for x, dim in zip(arrays, dims)]

    if any(dim is not None and dim >= 0 for dim in mapped.weights):
        return None
    folded = Arguments(
        each(fold, given.srcs, mapped.srcs),
        each(fold, given.forward_srcs, mapped.forward_srcs),
        given.side._replace(**side),
        given.weights,
        each(fold_rstd, given.rstds, mapped.rstds),
    )
    return call._replace(spec=spec._replace(layout=layout)), flatten(folded), unfold_all


def _entries(dims):
    """Returns dims as integers: -1 for an array that is not mapped. (In Arguments, None means that it is absent.)"""
    return [-1 if dim is None else dim for dim in dims]


def _shifted(dim, mapped):
    """Returns the index of dimension `dim` of a call in an array that may also have the mapped dimension."""
    return dim + (0 <= mapped <= dim)


def _fold_beside(name, x, dim, size, inner):
    """Returns an array of the Side for the folded batch, or None if the call cannot be folded."""
    if name in ("freqs", "cos", "sin"):
        return x if dim < 0 and (x.ndim < 3 or x.shape[-3] == 1) else None
    x = jax.numpy.moveaxis(x, dim, 0) if dim >= 0 else x
    if name == "start_positions":
        return x.reshape(-1) if dim >= 0 else jax.numpy.tile(x, size)
    if dim < 0:  # position_ids
        is_of_all = x.ndim == 1 or x.shape[-2] == 1
        return x if is_of_all else jax.numpy.tile(x, (1,) * (x.ndim - 2) + (size, 1))
    rank = x.ndim - 1
    if rank == 1:
        x = x[:, None]
    if x.shape[-2] == 1 and inner > 1:
        x = jax.numpy.repeat(x, inner, -2)
    if rank < 3:
        return x.reshape(size * inner, x.shape[-1])
    return jax.numpy.moveaxis(x, 0, 1).reshape(x.shape[1], size * inner, x.shape[-1])

rotation = _define_call("rotation", _rotation_jvp, _rotation_transpose)
scaling = _define_call("scaling", _scaling_jvp, _scaling_transpose)
angle_gradient = _define_call("angle_gradient", _angle_gradient_jvp, _angle_gradient_transpose)
normed = _define_call("normed", _normed_jvp)
normed_gradient = _define_call("normed_gradient", _normed_gradient_jvp)
tangent = _define("tangent", lambda *flat, types, **params: types, _tangent_jvp, _tangent_transpose, _batch_tangent)
mlir.register_lowering(tangent, mlir.lower_fun(_push, multiple_results=True))
