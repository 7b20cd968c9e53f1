"""Eager autograd: cheaper than an operator of torch.library, which torch.compile takes."""

import torch
from torch.autograd import Function

from .._abi import Error
from . import _formulas, _launch

SIDE = 8  # tensors beside the operands, in the order of plan.Side: freqs first


def _refuse_vmap(info, in_dims, *args):
    raise Error("torch.vmap over a rotation is not supported: let the dimension be part of batch or heads", "tensors")


class Rotate(Function):
    """M x of tensors, or M' x: apply(transposed, spec, *side, *tensors) gives a tuple."""

    vmap = staticmethod(_refuse_vmap)

    @staticmethod
    def forward(transposed, spec, *arrays):
        return tuple(_launch.rotate(transposed, spec, arrays[:SIDE], arrays[SIDE:]))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.transposed, ctx.spec, *arrays = inputs
        ctx.set_materialize_grads(False)
        ctx.count = len(arrays) - SIDE
        # The tensors themselves are needed for the gradient of the angles alone.
        ctx.save_for_backward(*(arrays if ctx.needs_input_grad[2] else arrays[:SIDE]))

    @staticmethod
    def backward(ctx, *grads):
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad
        d_freqs, d_tensors = _formulas.rotation_backward(
            Eager, ctx.transposed, ctx.spec, saved[:SIDE], saved[SIDE:], grads, needs[2], needs[2 + SIDE :]
        )
        return (None, None, d_freqs) + (None,) * (SIDE - 1) + tuple(d_tensors)


class AngleGradient(Function):
    """dL/d freqs: apply(spec, *side, *dys, *xs)."""

    vmap = staticmethod(_refuse_vmap)

    @staticmethod
    def forward(spec, *arrays):
        count = (len(arrays) - SIDE) // 2
        return _launch.find_angle_gradient(spec, arrays[:SIDE], arrays[SIDE : SIDE + count], arrays[SIDE + count :])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec, *arrays = inputs
        ctx.save_for_backward(*arrays)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        arrays = ctx.saved_tensors
        count = (len(arrays) - SIDE) // 2
        side, dys, xs = arrays[:SIDE], arrays[SIDE : SIDE + count], arrays[SIDE + count :]
        d_freqs, d_dys, d_xs = _formulas.angle_gradient_backward(Eager, ctx.spec, side, dys, xs, g)
        return (None, d_freqs) + (None,) * (SIDE - 1) + tuple(d_dys) + tuple(d_xs)


class Rotated(Function):
    """Tells autograd that a tensor has been rotated in place: apply(spec, *side, x), whose data is M x already."""

    vmap = staticmethod(_refuse_vmap)

    @staticmethod
    def forward(spec, *arrays):
        return arrays[SIDE]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.spec, *arrays = inputs
        ctx.mark_dirty(arrays[SIDE])
        ctx.save_for_backward(*arrays[:SIDE])

    @staticmethod
    def backward(ctx, grad):
        (d,) = Rotate.apply(True, ctx.spec, *ctx.saved_tensors, grad)
        return (None,) * (1 + SIDE) + (d,)


class Eager:
    """What the formulas are made of."""

    @staticmethod
    def rotate(transposed, spec, side, tensors):
        return list(Rotate.apply(transposed, spec, *side, *tensors))

    @staticmethod
    def angle_gradient(spec, side, dys, xs):
        return AngleGradient.apply(spec, *side, *dys, *xs)
