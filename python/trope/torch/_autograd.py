"""Eager autograd: cheaper than the operators of torch.library, which torch.compile takes. (So are Functions without
setup_context: with it, torch looks at the signature of forward in every call, which takes 50 us. _transforms.py has such ones.)

Functions get those of the arrays beside the tensors that are there, and `slots`, their places in plan.Side: each argument
of a Function costs, and mostly there are none or one.
"""

import torch
from torch.autograd import Function

from .._errors import Error
from . import _formulas, _launch

SIDE, STATUS = 8, 7  # inputs of plan.Side: freqs first, status last


def _present(side):
    """(slots, arrays) of what is there."""
    slots = tuple([i for i, t in enumerate(side) if t is not None])
    return slots, [side[i] for i in slots]


def _spread(slots, arrays):
    """`side` again, from the first arrays."""
    side = [None] * SIDE
    for slot, t in zip(slots, arrays):
        side[slot] = t
    return side


def _without_status(slots, arrays):
    """(slots, arrays) for a backward, which reports nothing: the caller may set the status to 0 meanwhile."""
    if STATUS not in slots:
        return slots, arrays
    at = slots.index(STATUS)
    return slots[:at] + slots[at + 1 :], (*arrays[:at], *arrays[at + 1 :])


class Rotate(Function):
    """M x of tensors, or M' x: apply(transposed, spec, slots, *arrays beside, *tensors) gives a tuple."""

    @staticmethod
    def forward(ctx, transposed, spec, slots, *arrays):
        beside = len(slots)
        ctx.transposed, ctx.spec = transposed, spec
        ctx.wants_freqs = slots[:1] == (0,) and ctx.needs_input_grad[3]
        ctx.set_materialize_grads(False)
        # The tensors themselves are needed for the gradient of the angles alone.
        ctx.slots, saved = _without_status(slots, arrays)
        ctx.save_for_backward(*(saved if ctx.wants_freqs else saved[: len(ctx.slots)]))
        ctx.has_beside, ctx.none = beside > 0, (None,) * (beside - 1)
        return tuple(_launch.rotate(transposed, spec, _spread(slots, arrays), arrays[beside:]))

    @staticmethod
    def backward(ctx, *grads):
        saved, slots, beside = ctx.saved_tensors, ctx.slots, len(ctx.slots)
        d_freqs, d_tensors = _formulas.rotation_backward(
            Eager, ctx.transposed, ctx.spec, _spread(slots, saved), saved[beside:], grads, ctx.wants_freqs,
            ctx.needs_input_grad[-len(grads) :],
        )  # fmt: skip
        return (None, None, None) + (d_freqs,) * ctx.has_beside + ctx.none + tuple(d_tensors)


class AngleGradient(Function):
    """dL/d freqs: apply(spec, slots, *arrays beside, *dys, *xs); the first beside is freqs."""

    @staticmethod
    def forward(ctx, spec, slots, *arrays):
        ctx.spec, ctx.slots = spec, slots
        ctx.save_for_backward(*arrays)
        return _launch.find_angle_gradient(spec, _spread(slots, arrays), *_cut(slots, arrays))

    @staticmethod
    def backward(ctx, g):
        arrays, slots = ctx.saved_tensors, ctx.slots
        dys, xs = _cut(slots, arrays)
        with torch.no_grad():
            d_freqs, d_dys, d_xs = _transforms.each_entry(
                _formulas.angle_gradient_backward, Eager, ctx.spec, _spread(slots, arrays), dys, xs, g
            )
        grads = [d_freqs, *d_dys, *d_xs]
        if torch.is_grad_enabled():
            grads = NoThird.apply(len(grads), *grads, g, *arrays)
        return (None, None, grads[0]) + (None,) * (len(slots) - 1) + tuple(grads[1:])


class NoThird(Function):
    """Gradients, which must not be differentiated: apply(count, *gradients, *what they are of). once_differentiable hangs
    its error on tensors of its own, which torch.autograd.grad passes by: the result lacked them in silence."""

    @staticmethod
    def forward(ctx, count, *arrays):
        return tuple([t.detach() for t in arrays[:count]])

    @staticmethod
    def backward(ctx, *grads):
        raise Error("the gradient of freqs can be differentiated once", "freqs")


def _cut(slots, arrays):
    """dys and xs."""
    middle = (len(slots) + len(arrays)) // 2
    return arrays[len(slots) : middle], arrays[middle:]


class Rotated(Function):
    """Tells autograd that tensors[i] is rotated in place: apply(spec, i, slots, x, *arrays beside). It touches no data.

    x is the first tensor, for if it is a view, autograd takes the first gradient as that of what it is a view of.
    """

    @staticmethod
    def forward(ctx, spec, i, slots, x, *arrays):
        ctx.spec, ctx.i, ctx.none = spec, i, (None,) * len(slots)
        ctx.mark_dirty(x)
        ctx.slots, saved = _without_status(slots, arrays)
        ctx.save_for_backward(*saved)
        return x

    @staticmethod
    def backward(ctx, grad):
        side = _spread(ctx.slots, ctx.saved_tensors)
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
        slots, arrays = _present(side)
        return list(Rotate.apply(transposed, spec, slots, *arrays, *tensors))

    @staticmethod
    def angle_gradient(spec, side, dys, xs):
        if _transforms.are_active((*dys, *xs, *side)):
            return _transforms.Transformed.angle_gradient(spec, side, dys, xs)
        if not torch.is_grad_enabled():
            return _launch.find_angle_gradient(spec, side, dys, xs)
        slots, arrays = _present(side)
        return AngleGradient.apply(spec, slots, *arrays, *dys, *xs)

    @staticmethod
    def scale(spec, g, side, tensors):
        if _transforms.are_active((g, *tensors, *side)):
            return _transforms.Transformed.scale(spec, g, side, tensors)
        return Eager.rotate(False, spec, (None, g, torch.zeros_like(g), *side[3:]), tensors)

    @staticmethod
    def mark_rotated(spec, i, side, x):
        slots, arrays = _present(side)
        Rotated.apply(spec, i, slots, x, *arrays)


from . import _transforms  # noqa: E402 (it is made of what is above)
