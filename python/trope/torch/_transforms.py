"""torch.func transforms (grad, vjp, jvp, vmap), forward-mode derivatives and batched gradients.

The Functions here have setup_context, jvp and vmap, which these transforms need. The Functions of _autograd have none of
them and cost 50 us less per call, so this module is only for calls in which a transform is active.

A rotation is linear in its tensors. Its jvp is therefore the call itself, and a vmap dimension is merged into the heads.
"""

import functools

import torch
from torch.autograd import Function, forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._errors import Error
from .._spec import DIMS
from . import _autograd, _formulas, _launch


def are_active(tensors=()):
    """Whether a call of these tensors is transformed. Batched gradients are visible only in the tensors."""
    return _launch.are_transforms_active() or _launch.are_batched(tensors)


def is_followed(t):
    """Whether a transform differentiates by t, or has a batch of it. The values of t must then not leave the graph."""
    if not _launch.are_transforms_active():
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(t) or forward_ad.unpack_dual(t).tangent is not None


# ---- vmap ----


def _unbatch(arrays, dims, b):
    return [t if d is None else t.select(d, b) for t, d in zip(arrays, dims)]


def _each(apply, size, names, arrays, dims):
    """Makes a call for each entry of the batch, and stacks the results in dimension 0."""
    if size == 0:
        raise Error(
            "tensors: vmap over an empty dimension is not for angles or shared_heads that need a call for each entry",
            "tensors",
        )
    results = [apply(names, _unbatch(arrays, dims, b)) for b in range(size)]
    return tuple(torch.stack(of_one) for of_one in zip(*results))


def _as_heads(apply, size, layout, names, arrays, dims):
    """Makes one call, with the heads of all entries of the batch. Returns (results, their dimensions)."""
    heads, beside = DIMS[layout].heads, len(names)
    moved = [t if d is None else t.movedim(d, heads) for t, d in zip(arrays, dims)]
    if size == 0:
        empty = [t.clone() for t in moved[beside:]]
        return tuple(empty), tuple(None if d is None else heads for d in dims[beside:])
    folded = [t if d is None else t.flatten(heads, heads + 1) for t, d in zip(moved, dims)]
    results = [
        y if d is None else y.unflatten(heads, x.shape[heads : heads + 2])
        for y, x, d in zip(apply(names, folded), moved[beside:], dims[beside:])
    ]
    return tuple(results), tuple(None if d is None else heads for d in dims[beside:])


def _vmap_rotation(apply, size, spec, names, arrays, dims):
    """Returns (results, their dimensions) of a rotation. `dims`: the batch dimensions of side arrays and tensors."""
    shares_angles = all(d is None for d in dims[: len(names)])
    if shares_angles and not any(spec.shared_heads):
        return _as_heads(apply, size, spec.layout, names, arrays, dims)
    results = _each(apply, size, names, arrays, dims)
    return results, (0,) * len(results)


# ---- the Functions ----


def _refuse_tangents_of_tables(names, tangents):
    for name, tangent in zip(names, tangents):
        if name in ("cos", "sin") and tangent is not None:
            _formulas.refuse_table(name, "has a tangent")


def _sum(parts):
    """Returns the sum of derivatives, where None is 0."""
    present = [part for part in parts if part is not None]
    return None if not present else sum(present[1:], present[0])


def _with_outer_tangents(jvp):
    """Lets the jvp of a Function see tangents of the transforms around it.

    In a jvp, PyTorch switches forward mode off for all levels of torch.func, so that forward mode over forward mode returns
    zeros without an error (seen in 2.11). Here forward mode stays on, and the values of the jvp's own level are unwrapped.
    """

    @functools.wraps(jvp)
    def call(ctx, *tangents):
        arrays = ctx.saved_tensors
        if not _launch.are_functions_transformed():
            return jvp(ctx, arrays, tangents)
        with forward_ad._set_fwd_grad_enabled(True):
            arrays, tangents = (
                [t if t is None else forward_ad.unpack_dual(t).primal for t in ts] for ts in (arrays, tangents)
            )
            return jvp(ctx, arrays, tangents)

    return call


class Rotate(Function):
    """M x of tensors, or M' x: apply(transposed, spec, names, *side arrays, *tensors) returns a tuple."""

    @staticmethod
    def forward(transposed, spec, names, *arrays):
        side = _autograd._spread(names, arrays)
        return tuple(_launch.rotate(transposed, spec, side, arrays[len(names) :]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.transposed, ctx.spec, names, *arrays = inputs
        for name, needed in zip(names, ctx.needs_input_grad[3:]):
            if name in ("cos", "sin") and needed:
                _formulas.refuse_table(name, "requires a gradient")
        ctx.names, ctx.wants_freqs = names, "freqs" in names and ctx.needs_input_grad[3]
        ctx.set_materialize_grads(False)
        # Only the gradient of the angles needs the tensors themselves. Without it, a caller may change them.
        ctx.save_for_backward(*(arrays if ctx.wants_freqs else arrays[: len(names)]))
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx, *grads):
        names, saved = ctx.names, ctx.saved_tensors
        d_freqs, d_tensors = _formulas.rotation_backward(
            Transformed, ctx.transposed, ctx.spec, _autograd._spread(names, saved), saved[len(names) :], grads,
            ctx.wants_freqs, ctx.needs_input_grad[-len(grads) :],
        )  # fmt: skip
        of_beside = [None] * len(names)
        if ctx.wants_freqs:
            of_beside[0] = d_freqs
        return (None, None, None, *of_beside, *d_tensors)

    @staticmethod
    @_with_outer_tangents
    def jvp(ctx, saved, tangents):
        names, transposed, spec = ctx.names, ctx.transposed, ctx.spec
        side, tensors = _autograd._spread(names, saved), saved[len(names) :]
        _refuse_tangents_of_tables(names, tangents[3:])
        results = _formulas.rotate_some(Transformed, transposed, spec, side, tangents[3 + len(names) :])
        if "freqs" in names and tangents[3] is not None:
            along = each_entry(_formulas.along_freqs, Transformed, transposed, spec, side, tangents[3], list(tensors))
            results = [_sum(parts) for parts in zip(results, along)]
        for i, x in enumerate(tensors):
            if results[i] is None:
                results[i] = torch.zeros_like(_launch.new_result(transposed, spec, i, x))
        return tuple(results)

    @staticmethod
    def vmap(info, in_dims, transposed, spec, names, *arrays):
        def apply(names, arrays):
            return Rotate.apply(transposed, spec, names, *arrays)

        return _vmap_rotation(apply, info.batch_size, spec, names, arrays, in_dims[3:])


class AngleGradient(Function):
    """dL/d freqs: apply(spec, names, *side arrays, *dys, *xs). The first side array is freqs."""

    @staticmethod
    def forward(spec, names, *arrays):
        return _launch.find_angle_gradient(spec, _autograd._spread(names, arrays), *_autograd._cut(names, arrays))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec, ctx.names, *arrays = inputs
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx, g):
        names, arrays = ctx.names, ctx.saved_tensors
        dys, xs = _autograd._cut(names, arrays)
        side = _autograd._spread(names, arrays)
        d_freqs, d_dys, d_xs = each_entry(_formulas.angle_gradient_backward, Transformed, ctx.spec, side, dys, xs, g)
        return (None, None, d_freqs) + (None,) * (len(names) - 1) + (*d_dys, *d_xs)

    @staticmethod
    @_with_outer_tangents
    def jvp(ctx, arrays, tangents):
        names, spec = ctx.names, ctx.spec
        side = _autograd._spread(names, arrays)
        dys, xs = _autograd._cut(names, arrays)
        parts = []
        of_dys, of_xs = _autograd._cut(names, tangents[2:])
        for tangents_of, is_dy in ((of_dys, True), (of_xs, False)):
            if any(t is not None for t in tangents_of):
                given = [torch.zeros_like(x) if t is None else t for t, x in zip(tangents_of, dys if is_dy else xs)]
                parts.append(Transformed.angle_gradient(spec, side, given if is_dy else dys, xs if is_dy else given))
        if tangents[2] is not None:
            parts.append(each_entry(_formulas.angle_gradient_along_freqs, Transformed, spec, side, dys, xs, tangents[2]))
        return _sum(parts)

    @staticmethod
    def vmap(info, in_dims, spec, names, *arrays):
        def apply(names, arrays):
            return (AngleGradient.apply(spec, names, *arrays),)

        (result,) = _each(apply, info.batch_size, names, arrays, in_dims[2:])
        return result, 0


class Scale(Function):
    """g x of the elements that rotate: apply(spec, names, g, *side arrays, *tensors) returns a tuple. `names` are the
    names of the arrays.

    This is a rotation with cos = g and sin = 0 that has derivatives by g. The formulas of higher derivatives use it.
    """

    @staticmethod
    def forward(spec, names, g, *arrays):
        side = _autograd._spread(names, arrays)
        return tuple(_launch.rotate(False, spec, _formulas.as_cos(g, side), arrays[len(names) :]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec, ctx.names, *arrays = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)

    @staticmethod
    def backward(ctx, *grads):
        g, *arrays = ctx.saved_tensors
        beside = len(ctx.names)
        side, tensors = _autograd._spread(ctx.names, arrays), arrays[beside:]
        grads = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(grads, tensors)]
        d_g = None
        if ctx.needs_input_grad[2]:
            d_g = each_entry(_formulas.scale_gradient, Transformed, ctx.spec, g, side, tensors, grads)
        return (None, None, d_g) + (None,) * beside + tuple(Transformed.scale(ctx.spec, g, side, grads))

    @staticmethod
    @_with_outer_tangents
    def jvp(ctx, saved, tangents):
        g, *arrays = saved
        beside = len(ctx.names)
        side, tensors = _autograd._spread(ctx.names, arrays), arrays[beside:]
        given = [torch.zeros_like(x) if t is None else t for t, x in zip(tangents[3 + beside :], tensors)]
        results = each_entry(Transformed.scale, ctx.spec, g, side, given)
        if tangents[2] is not None:
            along = each_entry(Transformed.scale, ctx.spec, tangents[2], side, list(tensors))
            results = [y + d for y, d in zip(results, along)]
        return tuple(results)

    @staticmethod
    def vmap(info, in_dims, spec, names, g, *arrays):
        def apply(_, arrays):
            return Scale.apply(spec, names, *arrays)

        return _vmap_rotation(apply, info.batch_size, spec, ("cos", *names), (g, *arrays), in_dims[2:])


# ---- batched gradients ----

MOST_LEVELS = 8  # the limit of nested batches


def _level_of(t):
    """Returns the level of the innermost batch of t. PyTorch has no function for it, and a backward on CUDA runs in a
    thread that does not know the level.

    If t lacks the level, _remove_batch_dim returns as many entries as it is asked for: here 0.
    """
    return max(level for level in range(1, MOST_LEVELS) if torch._remove_batch_dim(t, level, 0, 0).shape[0])


def _of_batches(arrays, call):
    """Calls call(size, arrays, batch dimensions), which returns (results, their dimensions), and batches its results."""
    are_batched = [isinstance(t, torch.Tensor) and _launch.are_batched((t,)) for t in arrays]
    levels = [_level_of(t) if b else 0 for t, b in zip(arrays, are_batched)]
    level = max(levels)
    dims = [0 if of_one == level else None for of_one in levels]
    arrays = [t if d is None else torch._remove_batch_dim(t, level, 1, 0) for t, d in zip(arrays, dims)]
    size = next(t.shape[0] for t, d in zip(arrays, dims) if d == 0)
    results, dims = call(size, arrays, dims)
    # In forward mode, PyTorch requires the batch to be the first dimension in memory.
    return [y if d is None else torch._add_batch_dim(y.movedim(d, 0).contiguous(), 0, level) for y, d in zip(results, dims)]


def each_entry(function, *arguments):
    """Returns function(*arguments), with one call for each entry if some arguments are batches of gradients.

    Batches have rules for few operations of PyTorch, so a formula must not see them. Arguments and results may be lists.
    """
    leaves, tree = tree_flatten(arguments)
    if not any(isinstance(t, torch.Tensor) and _launch.are_batched((t,)) for t in leaves):
        return function(*arguments)
    trees = []

    def call(size, leaves, dims):
        entries = []
        for b in range(size):
            entry, of_result = tree_flatten(each_entry(function, *tree_unflatten(_unbatch(leaves, dims, b), tree)))
            entries.append(entry)
            trees.append(of_result)
        stacked = [None if parts[0] is None else torch.stack(parts) for parts in zip(*entries)]
        return stacked, [None if y is None else 0 for y in stacked]

    return tree_unflatten(_of_batches(leaves, call), trees[0])


class Transformed:
    """The calls that the formulas are made of, for active transforms."""

    @staticmethod
    def rotate(transposed, spec, side, tensors):
        names, arrays = _autograd._present(side)
        arrays = [*arrays, *tensors]
        if not _launch.are_batched(arrays):
            return list(Rotate.apply(transposed, spec, names, *arrays))

        def apply(names, arrays):
            return Transformed.rotate(transposed, spec, _autograd._spread(names, arrays), arrays[len(names) :])

        return _of_batches(arrays, lambda size, arrays, dims: _vmap_rotation(apply, size, spec, names, arrays, dims))

    @staticmethod
    def scale(spec, g, side, tensors):
        names, arrays = _autograd._present(side._replace(freqs=None, cos=None, sin=None))
        return list(Scale.apply(spec, names, g, *arrays, *tensors))

    @staticmethod
    def angle_gradient(spec, side, dys, xs):
        names, arrays = _autograd._present(side)
        arrays = [*arrays, *dys, *xs]
        if not _launch.are_batched(arrays):
            return AngleGradient.apply(spec, names, *arrays)

        def apply(names, arrays):
            return (Transformed.angle_gradient(spec, _autograd._spread(names, arrays), *_autograd._cut(names, arrays)),)

        (result,) = _of_batches(arrays, lambda size, arrays, dims: (_each(apply, size, names, arrays, dims), (0,)))
        return result
