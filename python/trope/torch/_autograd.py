"""Eager autograd: cheaper than the operators of torch.library, which torch.compile takes. (So are Functions without
setup_context: with it, torch looks at the signature of forward in every call, which takes 50 us. _transforms.py has such ones.)

Functions get those of the arrays beside the tensors that are there, and their names: each argument of a Function costs, and
mostly there are none or one.
"""

import torch
from torch.autograd import Function

from .._errors import Error
from .._options import ARRAYS, NO_ARRAYS, Side
from . import _formulas, _launch


def _present(side):
    """(names, arrays) of what is there, freqs first."""
    if side is NO_ARRAYS:
        return (), []
    names = tuple([name for name, t in zip(ARRAYS, side) if t is not None])
    return names, [getattr(side, name) for name in names]


def _spread(names, arrays):
    """The Side again, from the first arrays."""
    return Side(**dict(zip(names, arrays))) if names else NO_ARRAYS


def _without_status(names, arrays):
    """(names, arrays) for a backward, which reports nothing: the caller may set the status to 0 meanwhile."""
    if "status" not in names:
        return names, arrays
    at = names.index("status")
    return names[:at] + names[at + 1 :], (*arrays[:at], *arrays[at + 1 :])


class Rotate(Function):
    """M x of tensors, or M' x: apply(transposed, spec, names, *arrays beside, *tensors) gives a tuple."""

    @staticmethod
    def forward(ctx, transposed, spec, names, *arrays):
        beside = len(names)
        ctx.transposed, ctx.spec = transposed, spec
        ctx.wants_freqs = "freqs" in names and ctx.needs_input_grad[3]
        ctx.set_materialize_grads(False)
        # The tensors themselves are needed for the gradient of the angles alone.
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
    """dL/d freqs: apply(spec, names, *arrays beside, *dys, *xs); the first beside is freqs."""

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
    """Gradients, which must not be differentiated: apply(count, *gradients, *what they are of). once_differentiable hangs
    its error on tensors of its own, which torch.autograd.grad passes by: the result lacked them in silence."""

    @staticmethod
    def forward(ctx, count, *arrays):
        return tuple([t.detach() for t in arrays[:count]])

    @staticmethod
    def backward(ctx, *grads):
        raise Error("the gradient of freqs can be differentiated once", "freqs")


def _cut(names, arrays):
    """dys and xs."""
    middle = (len(names) + len(arrays)) // 2
    return arrays[len(names) : middle], arrays[middle:]


class Rotated(Function):
    """Tells autograd that tensors[i] is rotated in place: apply(spec, i, names, x, *arrays beside). It touches no data.

    x is the first tensor, for if it is a view, autograd takes the first gradient as that of what it is a view of.
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
    """What the formulas are made of. Without autograd where nobody differentiates (further)."""

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
