"""Calls inside jax.shard_map, and calls of arrays whose types say how they are split (jax.sharding.AxisType.Explicit)."""

import jax

from .._errors import Error
from .._options import ARRAYS, NO_ARRAYS, Side
from .._spec import DIMS
from . import _call, _formulas, _partition, _primitives


def rotate(tensors, spec, side, weights):
    """Returns the results of a call."""
    mesh = _explicit_mesh(tensors)
    return _rotate_parts(tensors, spec, side, weights) if mesh is None else _shard(mesh, tensors, spec, side, weights)


# ---- Values that vary over manual mesh axes ----


def _axes(arrays):
    axes = frozenset()
    for x in arrays:
        if x is not None:
            axes |= _call.varying_axes(x)
    return axes


def _vary(x, axes):
    """Makes the type of x vary over these axes. The gradient is then summed over them."""
    missing = axes - _call.varying_axes(x) if x is not None else ()
    return jax.lax.pcast(x, tuple(sorted(missing, key=str)), to="varying") if missing else x


def _rotate_parts(tensors, spec, side, weights):
    """Makes one call for each group of tensors that vary over the same manual mesh axes. (Most programs have one group.)
    With one call for all tensors, results would vary even if their tensors are the same on each device."""
    beside = _axes(side)
    groups: dict = {}
    for i, x in enumerate(tensors):
        groups.setdefault(_axes([x, weights[i] if weights else None]) | beside, []).append(i)
    results = [None] * len(tensors)
    for axes, of in groups.items():
        some, given = _formulas.as_wide(_formulas.subset(spec, of), spec, [_vary(tensors[i], axes) for i in of])
        of_weights = [_vary(weights[i], axes) for i in of] + [None] * (len(given) - len(of)) if weights else []
        of_side = Side(*(_vary(x, axes) for x in side)) if side is not NO_ARRAYS else side
        in_place = any(isinstance(x, jax.core.Tracer) for x in given)
        if weights and any(settings.scope for settings in some.norms):
            ys = _primitives.rotate_normed(some, of_side, given, of_weights, in_place)
        else:
            ys = _primitives.rotate(False, some._replace(norms=()), of_side, given, in_place)
        for i, y in zip(of, ys):
            results[i] = y
    return results


# ---- Types that say how arrays are split ----


def _explicit_mesh(tensors):
    """Returns the mesh if the type of a tensor says that it is split, otherwise None."""
    for x in tensors:
        sharding = jax.typeof(x).sharding
        if any(entry is not None for entry in sharding.spec):
            return sharding.mesh
    return None


def _entries(x, rank):
    spec = tuple(jax.typeof(x).sharding.spec)
    return spec + (None,) * (rank - len(spec))


def _shard(mesh, tensors, spec, side, weights):
    """Makes the call on each device for its part of the tensors, without communication."""
    count = len(tensors)
    names = tuple(name for name in ARRAYS if getattr(side, name) is not None)
    has_weight = tuple(weight is not None for weight in weights)
    call = _call.Call(False, spec, names, (True,) * count, (False,) * count, weight=has_weight)
    flat = _call.flatten(_call.Arguments(tensors, [], side, weights or [], []))
    factors = _partition.Factors(call, flat)
    axes = factors.axes_of([_entries(x, x.ndim) for x in tensors], dict(mesh.shape))
    for i, x in enumerate(tensors):
        _refuse_other_splits(i, x, factors, axes, spec.layout)
    specs = [factors.spec_of(one, axes) for one in _partition.flatten_factors(factors.arguments)]
    results = tuple(factors.spec_of(one, axes) for one in factors.results.dsts)

    def local(*flat):
        given, inner = flat, call
        if "s" in axes and factors.counts_tokens():
            inner, given = _partition.shift(call, flat, axes["s"])
        given = _call.arguments_of(inner, given)
        return tuple(_rotate_parts(given.srcs, spec, given.side, given.weights if weights else ()))

    flat = [jax.sharding.reshard(x, each) for x, each in zip(flat, specs)]
    split = jax.shard_map(local, mesh=mesh, in_specs=tuple(specs), out_specs=results, axis_names=set(mesh.explicit_axes))
    return list(split(*flat))


def _refuse_other_splits(i, x, factors, axes, layout):
    expected = tuple(factors.spec_of(factors.srcs[i], axes))
    for dim, (given, kept) in enumerate(zip(_entries(x, x.ndim), expected)):
        if given != kept and given is not None:
            what = {
                DIMS[layout].tokens: "tokens, but with cu_seqlens or context parallel options each device needs all of them"
                " (position_ids instead of cu_seqlens can be split)",
                DIMS[layout].heads: "heads, but each device needs all of them",
            }.get(dim, "dimension %d, which the call cannot split" % dim)
            message = "tensors[%d] is split over mesh axis %r in %s: use jax.sharding.reshard"
            raise Error(message % (i, given, what), "tensors[%d]" % i)
