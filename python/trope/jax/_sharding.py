"""What becomes of a caller's tensors: one call of the tensors that vary over the same mesh axes (inside jax.shard_map), and
refusals of types that say that a dimension is split which a call cannot split (jax.sharding.AxisType.Explicit)."""

import jax

from .._errors import Error
from .._options import ARRAYS
from .._spec import DIMS
from . import _call, _formulas, _partition, _primitives


def rotate(tensors, spec, side, weights):
    """Returns the results of a call.

    Makes one call for each group of tensors that vary over the same manual mesh axes. (Most programs have one group.) With
    one call for all tensors, results would vary even if their tensors are the same on each device."""
    _refuse_splits(tensors, spec, side, weights)
    beside = _axes(side)
    groups: dict = {}
    for i, x in enumerate(tensors):
        groups.setdefault(_axes([x, weights[i] if weights else None]) | beside, []).append(i)
    results = [None] * len(tensors)
    for of in groups.values():
        some, given = _formulas.as_wide(_formulas.subset(spec, of), spec, [tensors[i] for i in of])
        of_weights = [weights[i] for i in of] + [None] * (len(given) - len(of)) if weights else []
        in_place = any(isinstance(x, jax.core.Tracer) for x in given)
        if weights and any(settings.scope for settings in some.norms):
            ys = _primitives.rotate_normed(some, side, given, of_weights, in_place)
        else:
            ys = _primitives.rotate(False, some._replace(norms=()), side, given, in_place)
        for i, y in zip(of, ys):
            results[i] = y
    return results


def _axes(arrays):
    return frozenset().union(*(_call.varying_axes(x) for x in arrays if x is not None))


def _refuse_splits(tensors, spec, side, weights):
    """Refuses types that say that a dimension is split which the call cannot split."""
    if not any(entry is not None for x in tensors for entry in _partition.entries_of(x)):
        return
    count = len(tensors)
    names = tuple(name for name in ARRAYS if getattr(side, name) is not None)
    has_weight = tuple(weight is not None for weight in weights)
    call = _call.Call(False, spec, names, (True,) * count, (False,) * count, weight=has_weight)
    flat = _call.flatten(_call.Arguments(tensors, [], side, weights or [], []))
    factors, axes = _partition.split_of(call, flat, _partition.mesh_of(flat))
    for i, x in enumerate(tensors):
        _refuse_other_splits(i, x, factors, axes, spec.layout)


def _refuse_other_splits(i, x, factors, axes, layout):
    expected = tuple(factors.spec_of(factors.srcs[i], axes))
    for dim, (given, kept) in enumerate(zip(_partition.entries_of(x), expected)):
        if given != kept and given is not None:
            what = {
                DIMS[layout].tokens: "tokens, but with cu_seqlens or context parallel options each device needs all of them"
                " (position_ids instead of cu_seqlens can be split)",
                DIMS[layout].heads: "heads, but each device needs all of them",
            }.get(dim, "dimension %d, which the call cannot split" % dim)
            message = "tensors[%d] is split over mesh axis %r in %s: use jax.sharding.reshard"
            raise Error(message % (i, given, what), "tensors[%d]" % i)
