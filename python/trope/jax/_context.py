"""Tokens that are split over the devices of a jax.shard_map: a cp_rank that is traced, and a warning if it is missing."""

import functools
import math
import warnings

import jax
from jax import numpy as jnp

from .._errors import Error
from .._spec import DIMS
from .._values import INT32_MAX
from . import _call, _sharding


# ---- cp_rank as an array ----


def check_rank(rank):
    """Returns cp_rank, which is a jax array, as an int if its value is known, otherwise as it is."""
    if rank.ndim or rank.dtype not in (jnp.int32, jnp.int64):
        message = "cp_rank must be an integer, or one int32 or int64 as jax.lax.axis_index returns it, not %s%s"
        raise Error(message % (rank.dtype, list(rank.shape)), "cp_rank")
    return rank if isinstance(rank, jax.core.Tracer) else int(rank)


def rotate(rank, tensors, spec, side, weights):
    """Returns the results of a call whose cp_rank is traced. `spec` has another rank, and is otherwise that of the call.

    A call reads position ids that are computed from the rank. If the rank decides more than positions that start at 0, the
    program has the calls of all ranks, and makes one of them.
    """
    size, tokens = spec.cp_size, tensors[0].shape[DIMS[spec.layout].tokens]
    if side.position_ids is not None and side.cu_seqlens is None:
        return _sharding.rotate(tensors, spec, side, weights)  # the rank has no effect
    nearest = jnp.clip(rank, 0, size - 1).astype(jnp.int32)
    tensors, weights, side = _vary_like(rank, (tensors, weights, side))

    def call(static_rank):
        return _sharding.rotate(tensors, spec._replace(cp_rank=static_rank), side, weights)

    if side.cu_seqlens is not None or side.start_positions is not None or size * tokens > INT32_MAX:
        results = jax.lax.switch(nearest, [functools.partial(call, each) for each in range(size)])
    else:
        for each in {0, size - 1}:  # between them, they have the largest position in each cp_layout
            jax.eval_shape(functools.partial(call, each))
        ids = _positions(spec.cp_layout, size, nearest, tokens)
        whole = spec._replace(cp_size=1, cp_rank=0, cp_layout="")
        results = _sharding.rotate(tensors, whole, side._replace(position_ids=ids), weights)
    return results if _is_index_of_axes(rank, size) else [_mark(y, nearest == rank) for y in results]


def _vary_like(rank, arrays):
    """Makes the types of all arrays vary over the mesh axes that the rank varies over. Gradients are then summed over these
    axes, which lax.switch does not do for an index that varies."""

    def vary(x):
        missing = tuple(_call.varying_axes(rank) - _call.varying_axes(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(vary, arrays)


def _positions(cp_layout, size, rank, tokens):
    """Returns the position of each token of a rank: trope_plan_cp of src/varlen/context_parallel.h as an array."""
    i = jnp.arange(tokens, dtype=jnp.int32)
    if cp_layout == "striped":
        return i * size + rank
    if cp_layout == "zigzag":
        half = tokens // 2
        return jnp.where(i < half, rank * half, (2 * size - 2 - rank) * half) + i
    return i + rank * tokens


def _is_index_of_axes(rank, size):
    """Whether rank varies over mesh axes of `size` devices, as the index of these axes does. It is then in its range."""
    axes = _call.varying_axes(rank)
    shape = jax.sharding.get_abstract_mesh().shape
    return bool(axes) and math.prod(shape[axis] for axis in axes) == size


@jax.custom_jvp
def _mark(y, is_rank):
    """Makes y NaN unless is_rank, which is false if cp_rank is wrong. This is another pass over y. Derivatives are those of
    y, which saves a pass in backward."""
    return jnp.where(is_rank, y, jnp.nan)


_mark.defjvp(lambda primals, tangents: (_mark(*primals), tangents[0]))


# ---- A missing cp_rank ----

_warned: set = set()


def warn_of_counting(tensors, side):
    """Warns once for each set of mesh axes if positions restart on each device. JAX cannot say which axis splits tokens."""
    if side.position_ids is not None or side.start_positions is not None or side.cu_seqlens is not None:
        return
    axes = _splitting_axes(tensors)
    if not axes or axes in _warned:
        return
    message = (
        "trope.jax.rotate counts positions from 0 on each device of the mesh axes %s. If one of them splits the tokens,"
        " pass cp_size, cp_layout and cp_rank=jax.lax.axis_index(axis), or position_ids. If none does, cp_size=1 and"
        " cp_rank=0 turn this warning off."
    )
    warnings.warn(message % ", ".join(map(repr, axes)), stacklevel=4)
    _warned.add(axes)


def _splitting_axes(tensors):
    """Returns the names of the manual mesh axes over which tensors may be split."""
    mesh = jax.sharding.get_abstract_mesh()
    axes = mesh.manual_axes
    if axes and _call.varying_axes(jax.lax.axis_index(axes[0])):
        varying = frozenset().union(*map(_call.varying_axes, tensors))
        axes = [axis for axis in axes if axis in varying]  # otherwise unknown: jax.pmap, or check_vma=False
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)
