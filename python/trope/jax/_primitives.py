"""The primitives of trope.jax. Each is one call of the library, with its derivative and its rule for jax.vmap.

    Rotation        y = M x, or its transpose           AngleGradient    dL/d freqs, from dy and x
    Scaling         y = g x, for a table g              Normed           a rotation with norms
                                                        NormedGradient   all gradients of Normed

The derivatives are made of the same primitives (_formulas.py), so they can be differentiated again.
"""

import functools

import jax
from jax.experimental.hijax import HiPrim, Zero

from .._errors import Error
from .._options import ARRAYS
from .._spec import DIMS
from . import _formulas
from ._call import Arguments, Call, arguments_of, flatten, launch, results_of
from ._partition import partitioned


@jax.tree_util.register_static
class _Static(tuple):
    """Residuals of a derivative that are known when a function is traced."""


@functools.lru_cache(maxsize=1024)
def _result_types(call, types):
    return tuple(jax.make_jaxpr(partitioned(call))(*types).out_avals)


class _Launch(HiPrim):
    """A call. Its arguments and results are the arrays that are present, in order."""

    def __init__(self, call, types):
        self.in_avals, self.out_aval = types, _result_types(call, types)
        self.params = {"call": call, "types": types}
        super().__init__()

    def expand(self, *flat):
        mesh = jax.typeof(flat[0]).sharding.mesh
        # Inside a shard_map over a part of the mesh, XLA cannot ask for a partition.
        if mesh.manual_axes and mesh.auto_axes:
            return tuple(launch(self.call, *flat))
        return partitioned(self.call)(*flat)

    def batch(self, axis_data, flat, dims):
        whole = _fold(self.call, flat, dims, axis_data.size)
        if whole is not None:
            call, arguments, unfold = whole
            results = bind(type(self), call, arguments)
            return unfold(results), (0,) * len(results)
        return _map(type(self), self.call, flat, dims)

    def jvp(self, primals, tangents):
        """jax.checkpoint calls this instead of vjp_fwd. It uses the same vjp, so forward mode stays unsupported."""
        wanted = tuple(not isinstance(t, Zero) for t in tangents)

        def merge(flat):
            rest = iter(flat)
            return [next(rest) if is_wanted else x for x, is_wanted in zip(primals, wanted)]

        @jax.custom_vjp
        def call(*flat):
            return self(*merge(flat))

        def backward(saved, grads):
            return tuple(d for d, is_wanted in zip(self.vjp_bwd_retval(saved, grads), wanted) if is_wanted)

        call.defvjp(lambda *flat: self.vjp_fwd(wanted, *merge(flat)), backward)
        pick = [tuple(x for x, is_wanted in zip(given, wanted) if is_wanted) for given in (primals, tangents)]
        return jax.jvp(call, *pick)

    def _split(self, grads):
        """Returns the upstream gradients as Results. None means 0."""
        return results_of(self.call, [None if isinstance(grad, Zero) else grad for grad in grads])


def bind(kind, call, flat):
    """Makes a call. kind: the class of its primitive."""
    types = tuple(jax.typeof(x) for x in flat)
    return kind(call, types)(*flat)


def _cotangents(call, srcs, forward_srcs=None, side=None, weights=None):
    """Returns the gradients of all arguments of a call, in order. None: the argument has no gradient."""
    count = len(call.dst)
    nothing = [None] * count
    side = side or {}
    rstds = [True for there in (call.rstd if call.backward else ()) if there]
    return (
        *srcs,
        *[d for d, there in zip(forward_srcs or nothing, call.forward_src) if there],
        *[side.get(name) for name in call.side],
        *[d for d, there in zip(weights or nothing, call.weight) if there],
        *[None for _ in rstds],
    )


class Rotation(_Launch):
    """M x, or M' x if call.backward."""

    def vjp_fwd(self, wanted, *flat):
        call, wanted = self.call, arguments_of(self.call, wanted)
        for name in ("cos", "sin"):
            if getattr(wanted.side, name):
                message = "%s has a gradient to compute, which is possible only for freqs: give freqs, or use stop_gradient"
                raise Error(message % name, name)
        given = arguments_of(call, flat)
        wants_freqs = bool(wanted.side.freqs)
        tensors = given.srcs if wants_freqs else []
        results = bind(Rotation, call._replace(in_place=call.in_place and not wants_freqs), flat)
        return results, (given.side, tensors, _Static((wants_freqs, any(wanted.srcs))))

    def vjp_bwd_retval(self, saved, grads):
        side, tensors, (wants_freqs, wants_tensors) = saved
        d_freqs, d_tensors = _formulas.rotation_backward(
            self.call.backward, self.call.spec, side, tensors, self._split(grads).dsts, wants_freqs, wants_tensors
        )
        return _cotangents(self.call, d_tensors, side={"freqs": d_freqs})


class Scaling(_Launch):
    """The product of each element of the windows with g at its token: a rotation whose table is cos = g, sin = 0."""

    def vjp_fwd(self, wanted, *flat):
        given = arguments_of(self.call, flat)
        return bind(Scaling, self.call._replace(in_place=False), flat), (given.side, given.srcs)

    def vjp_bwd_retval(self, saved, grads):
        side, tensors = saved
        d_g, d_tensors = _formulas.scaling_backward(self.call.spec, side, tensors, self._split(grads).dsts)
        return _cotangents(self.call, d_tensors, side={"cos": d_g})


class AngleGradient(_Launch):
    """dL/d freqs in f32 (f64 with f64 tensors)."""

    def vjp_fwd(self, wanted, *flat):
        given = arguments_of(self.call, flat)
        return bind(AngleGradient, self.call, flat), (given.srcs, given.forward_srcs, given.side)

    def vjp_bwd_retval(self, saved, grads):
        dys, xs, side = saved
        g = self._split(grads).d_freqs
        if g is None:
            return _cotangents(self.call, [None] * len(dys))
        d_freqs, d_dys, d_xs = _formulas.angle_gradient_backward(self.call.spec, side, dys, xs, g)
        return _cotangents(self.call, d_dys, d_xs, {"freqs": d_freqs})


class Normed(_Launch):
    """A rotation with norms. With call.rstd, its further results are rstd of each norm, which have no gradient."""

    def vjp_fwd(self, wanted, *flat):
        call, wanted = self.call, arguments_of(self.call, wanted)
        given = arguments_of(call, flat)
        wants = bool(wanted.side.freqs), tuple(map(bool, wanted.srcs)), tuple(map(bool, wanted.weights))
        has_norm = tuple(settings.scope != "" for settings in call.spec.norms)
        results = bind(Normed, call._replace(rstd=has_norm, in_place=False), flat)
        rstds = results_of(call._replace(rstd=has_norm), results).rstds
        return results[: len(self.out_aval)], (given, rstds, _Static(wants))

    def vjp_bwd_retval(self, saved, grads):
        given, rstds, wants = saved
        grads = self._split(grads).dsts
        d_freqs, d_tensors, d_weights = _formulas.normed_backward(self.call.spec, given, rstds, grads, *wants)
        return _cotangents(self.call, d_tensors, side={"freqs": d_freqs}, weights=d_weights)


class NormedGradient(_Launch):
    """The gradients of Normed. Its own derivative differentiates the formula in jax.numpy."""

    def vjp_fwd(self, wanted, *flat):
        call = self.call
        return bind(NormedGradient, call._replace(in_place=False), flat), arguments_of(call, flat)

    def vjp_bwd_retval(self, given, grads):
        d_freqs, d_dys, d_xs, d_weights = _formulas.normed_gradient_backward(self.call, given, self._split(grads))
        return _cotangents(self.call, d_dys, d_xs, {"freqs": d_freqs}, d_weights)


# ---- The calls that the formulas are made of ----


def _names(side):
    return tuple([name for name in ARRAYS if getattr(side, name) is not None])


def rotate(transposed, spec, side, tensors, in_place=False, kind=Rotation):
    """Returns M x of each tensor, or M' x."""
    count = len(tensors)
    call = Call(transposed, spec, _names(side), (True,) * count, (False,) * count, in_place=in_place)
    return list(bind(kind, call, flatten(Arguments(list(tensors), [], side, [], []))))


def scale(spec, g, side, tensors):
    side = side._replace(freqs=None, cos=g, sin=jax.numpy.zeros_like(g))
    return rotate(False, spec, side, tensors, kind=Scaling)


def find_angle_gradient(spec, side, dys, xs):
    """Returns dL/d freqs from dy and x of each tensor."""
    count = len(dys)
    reads = tuple(width > 0 for width in spec.rotary_dims)
    call = Call(True, spec, _names(side), (False,) * count, reads, d_freqs=True)
    xs = [x if is_read else None for x, is_read in zip(xs, reads)]
    return bind(AngleGradient, call, flatten(Arguments(list(dys), xs, side, [], [])))[0]


def rotate_normed(spec, side, tensors, weights, in_place=False):
    count = len(tensors)
    has_weight = tuple(weight is not None for weight in weights)
    call = Call(
        False, spec, _names(side), (True,) * count, (False,) * count, weight=has_weight, in_place=in_place
    )  # fmt: skip
    return list(bind(Normed, call, flatten(Arguments(list(tensors), [], side, weights, []))))


def find_normed_gradients(spec, side, dys, xs, weights, rstds, wants_freqs, wants_tensors, wants_weights):
    """Returns (d_freqs, d_tensors, d_weights). None: the gradient is not wanted."""
    reads = tuple(s.scope != "" or (wants_freqs and width > 0) for s, width in zip(spec.norms, spec.rotary_dims))
    present = [tuple(x is not None for x in given) for given in (weights, rstds)]
    call = Call(
        True, spec, _names(side), tuple(wants_tensors), reads, wants_freqs, *present, tuple(wants_weights), in_place=True
    )
    xs = [x if is_read else None for x, is_read in zip(xs, reads)]
    results = results_of(call, bind(NormedGradient, call, flatten(Arguments(list(dys), xs, side, weights, rstds))))
    return results.d_freqs, results.dsts, results.d_weights


# ---- jax.vmap ----


def _map(kind, call, flat, dims):
    """Makes one call for each entry of the mapped dimension."""
    moved = [x if dim is None else jax.numpy.moveaxis(x, dim, 0) for x, dim in zip(flat, dims)]

    def one(mapped):
        rest = iter(mapped)
        return bind(kind, call, [x if dim is None else next(rest) for x, dim in zip(moved, dims)])

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
