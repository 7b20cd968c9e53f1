"""An autograd Function that rotates and copies parts of tensors into parts of new ones, in one launch."""

from typing import NamedTuple

from torch.autograd import Function

from .._dropin import gradients
from .._spec import resolve
from ..torch import _is_eager, _launch, rotate
from ..torch._autograd import _present, _spread


class _Operand(NamedTuple):
    """A part of a tensor, for resolve. rotary_dim is always given, so resolve only reads the number of dimensions."""

    shape: tuple


def _resolve_eager(count, options):
    """Returns the Spec of `count` operands, and the side arrays as _present returns them, for a Function of our own."""
    spec, side = resolve([_Operand((1,) * len(options["layout"]))] * count, options)
    return (spec, *_present(side))


class _Move(Function):
    """Rotates and copies parts of tensors to parts of new ones, in one launch. Backward goes the other way.

    apply(transposed, spec, names, parts, shapes, *side arrays, *tensors): parts(*tensors, *results) returns the operands as
    pairs of views (from, to). A transposed call goes from `to` to `from`, and its tensors are those of `to`, such as
    upstream gradients.
    """

    @staticmethod
    def forward(ctx, transposed, spec, names, parts, shapes, *arrays):
        beside, tensors = arrays[: len(names)], arrays[len(names) :]
        results = tuple([tensors[0].new_empty(shape) for shape in shapes])
        operands = parts(*results, *tensors) if transposed else parts(*tensors, *results)
        srcs, dsts = zip(*[(b, a) if transposed else (a, b) for a, b in operands])
        _launch.launch(transposed, spec, srcs, dsts, (None,) * len(srcs), _spread(names, beside))
        ctx.save_for_backward(*beside)
        ctx.words = not transposed, spec, names, parts, [t.shape for t in tensors]
        return results

    @staticmethod
    @gradients
    def backward(ctx, *grads):
        return (None,) * (5 + len(ctx.saved_tensors)) + _Move.apply(*ctx.words, *ctx.saved_tensors, *grads)


def _move(parts, shapes, tensors, options):
    """Calls _Move with options of rotate."""
    spec, names, arrays = _resolve_eager(len(options["rotary_dim"]), options)
    return _Move.apply(False, spec, names, parts, shapes, *arrays, *tensors)


def rotate_apart(t, rotary_dim, **options):
    """Does the same as trope.torch.rotate, for one tensor. The result and the gradient of t are contiguous, without a copy,
    for any strides of t and of the upstream gradient."""
    freqs = options.get("freqs")
    if not _is_eager((t,)) or (freqs is not None and freqs.requires_grad):
        return rotate(t, rotary_dim=rotary_dim, **options).contiguous()
    return _move(lambda t, y: [(t, y)], [t.shape], (t,), dict(options, rotary_dim=(rotary_dim,)))[0]
