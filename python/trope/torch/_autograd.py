"""Eager autograd, which costs less than the operators of torch.library that torch.compile uses. These Functions have no
setup_context: with it, torch inspects the signature of forward in every call, which takes 50 us. (The Functions of
_transforms.py have one.)

The Functions receive the names of the arrays besides the tensors, and only the arrays that are present. Each argument of a
Function costs time, and most calls have at most one such array.
"""

import torch
from torch.autograd import Function

from .._errors import Error
from .._options import ARRAYS, NO_ARRAYS, Side
from . import _formulas, _launch


def _present(side):
    """Returns (names, arrays) of the arrays that are present, freqs first."""
    if side is NO_ARRAYS:
        return (), []
    names = tuple([name for name, t in zip(ARRAYS, side) if t is not None])
    return names, [getattr(side, name) for name in names]


def _spread(names, arrays):
    """Returns the Side that _present took apart, from the first arrays."""
    return Side(**dict(zip(names, arrays))) if names else NO_ARRAYS


def _without_status(names, arrays):
    """Returns (names, arrays) without status. A backward does not report, and the caller may reset status before it."""
    if "status" not in names:
        return names, arrays
    at = names.index("status")
    return names[:at] + names[at + 1 :], (*arrays[:at], *arrays[at + 1 :])


class Rotate(Function):
    """M x of tensors, or M' x: apply(transposed, spec, names, *side arrays, *tensors) returns a tuple."""

    @staticmethod
    def forward(ctx, transposed, spec, names, *arrays):
        beside = len(names)
        ctx.transposed, ctx.spec = transposed, spec
        ctx.wants_freqs = "freqs" in names and ctx.needs_input_grad[3]
        ctx.set_materialize_grads(False)
        # Only the gradient of the angles needs the tensors themselves.
        ctx.names, saved = _without_status(names, arrays)
        ctx.save_for_backward(*(saved if ctx.wants_freqs else saved[: len(ctx.names)]))
        ctx.has_beside, ctx.none = beside > 0, (None,) * (beside - 1)
        return tuple(_launch.rotate(transposed, spec, _spread(names, arrays), arrays[beside:]))

    @staticmethod
    def backward(ctx, *grads):
        saved, names, beside = ctx.saved_tensors, ctx.names, len(ctx.names)
        d_freqs, d_tensors = _formulas.rotation_backward(
            Eager, ctx.transposed, ctx.spec, _spread(names, saved), saved[beside:], grads, ctx.wants_freqs,
            ctx.needs_input_grad[-len(grads) :],
        )  # fmt: skip
        return (None, None, None) + (d_freqs,) * ctx.has_beside + ctx.none + tuple(d_tensors)


class AngleGradient(Function):
    """dL/d freqs: apply(spec, names, *side arrays, *dys, *xs). The first side array is freqs."""

    @staticmethod
    def forward(ctx, spec, names, *arrays):
        ctx.spec, ctx.names = spec, names
        ctx.save_for_backward(*arrays)
        return _launch.find_angle_gradient(spec, _spread(names, arrays), *_cut(names, arrays))

    @staticmethod
    def backward(ctx, g):
        arrays, names = ctx.saved_tensors, ctx.names
        dys, xs = _cut(names, arrays)
        with torch.no_grad():
            d_freqs, d_dys, d_xs = _transforms.each_entry(
                _formulas.angle_gradient_backward, Eager, ctx.spec, _spread(names, arrays), dys, xs, g
            )
        grads = [d_freqs, *d_dys, *d_xs]
        if torch.is_grad_enabled():
            grads = NoThird.apply(len(grads), *grads, g, *arrays)
        return (None, None, grads[0]) + (None,) * (len(names) - 1) + tuple(grads[1:])


class NoThird(Function):
    """Gradients that must not be differentiated: apply(count, *gradients, *their inputs). once_differentiable is no
    alternative: it attaches its error to tensors of its own, which torch.autograd.grad ignores, so a term would be missing
    without an error."""

    @staticmethod
    def forward(ctx, count, *arrays):
        return tuple([t.detach() for t in arrays[:count]])

    @staticmethod
    def backward(ctx, *grads):
        raise Error("the gradient of freqs can be differentiated only once", "freqs")


def _cut(names, arrays):
    """Returns dys and xs."""
    middle = (len(names) + len(arrays)) // 2
    return arrays[len(names) : middle], arrays[middle:]


class Rotated(Function):
    """Tells autograd that tensors[i] is rotated in place: apply(spec, i, names, x, *side arrays). It touches no data.

    x is the first tensor, because if x is a view, autograd takes the first gradient as the gradient of its base.
    """

    @staticmethod
    def forward(ctx, spec, i, names, x, *arrays):
        ctx.spec, ctx.i, ctx.none = spec, i, (None,) * len(names)
        ctx.mark_dirty(x)
        ctx.names, saved = _without_status(names, arrays)
        ctx.save_for_backward(*saved)
        return x

    @staticmethod
    def backward(ctx, grad):
        side = _spread(ctx.names, ctx.saved_tensors)
        _, (d,) = _formulas.rotation_backward(Eager, False, ctx.spec, side, (), [grad], False, (True,), [ctx.i])
        return (None, None, None, d) + ctx.none


class Eager:
    """The calls that the formulas are made of. They bypass autograd where no input requires a gradient."""

    @staticmethod
    def rotate(transposed, spec, side, tensors):
        if _transforms.are_active((*tensors, *side)):
            return _transforms.Transformed.rotate(transposed, spec, side, tensors)
        if not torch.is_grad_enabled():
            return _launch.rotate(transposed, spec, side, tensors)
        names, arrays = _present(side)
        return list(Rotate.apply(transposed, spec, names, *arrays, *tensors))

    @staticmethod
    def angle_gradient(spec, side, dys, xs):
        if _transforms.are_active((*dys, *xs, *side)):
            return _transforms.Transformed.angle_gradient(spec, side, dys, xs)
        if not torch.is_grad_enabled():
            return _launch.find_angle_gradient(spec, side, dys, xs)
        names, arrays = _present(side)
        return AngleGradient.apply(spec, names, *arrays, *dys, *xs)

    @staticmethod
    def scale(spec, g, side, tensors):
        if _transforms.are_active((g, *tensors, *side)):
            return _transforms.Transformed.scale(spec, g, side, tensors)
        return Eager.rotate(False, spec, _formulas.as_cos(g, side), tensors)

    @staticmethod
    def mark_rotated(spec, i, side, x):
        names, arrays = _present(side)
        Rotated.apply(spec, i, names, x, *arrays)


from . import _transforms  # noqa: E402 (it is made of what is above)
