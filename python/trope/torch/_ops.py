"""The operators trope::rotate and trope::angle_gradient, for torch.compile, torch.export and every dispatch mode."""

import functools

import torch

from .._errors import Error
from .._options import ARRAYS, SETTINGS, TABLE, Side, Spec
from .._spec import find_columns, make_spec
from ..frequencies import Frequencies
from . import _formulas, _launch
from ._autograd import NoThird

SIDE = ARRAYS.index("status")  # the number of arrays before status, which an operator without side effects cannot write
_SCHEMA = ", ".join("%s %s" % (TABLE[name].type, TABLE[name].per_tensor or name) for name in (*ARRAYS[:SIDE], *SETTINGS))
_OPTIONAL_WORDS = [name for name, option in SETTINGS.items() if option.type == "str" and option.default is None]


def _side_of(arrays):
    """Returns the Side of an operator's arrays. More arrays may follow them."""
    return Side(*arrays[:SIDE])


def _spec_of(options):
    """Returns the Spec of an operator's last arguments."""
    return Spec(*(tuple(option) if isinstance(option, (list, tuple)) else option for option in options))


def _ready_spec(options, count, side):
    """Returns the checked Spec for `count` tensors. Its phase steps are made only once."""
    spec = _spec_of(options)
    if spec.accumulate:
        raise Error("accumulate is True, but an operator only returns new results", "accumulate")
    if side.freqs is not None and (side.cos is not None or side.sin is not None):
        raise Error("freqs is given beside cos or sin: give one of the two", "freqs")
    table = "freqs" if side.freqs is not None else "cos" if side.cos is not None else None
    return _checked(spec, count, table, None if table is None else find_columns(getattr(side, table), table))


@functools.lru_cache(maxsize=1024)
def _checked(spec, count, table, columns):
    given = dict(zip(SETTINGS, spec))
    given["inv_freq"] = Frequencies(spec.inv_freq) if spec.inv_freq else None
    for name in ("pair_axis", *_OPTIONAL_WORDS):
        given[name] = given[name] or None
    return make_spec((0,) * count, table, columns, **given)


def options_of(spec):
    """Returns the arguments of an operator for a Spec."""
    spec = spec._replace(inv_freq=tuple(getattr(spec.inv_freq, "inv_freq", spec.inv_freq)))
    return [list(option) if isinstance(option, tuple) else option for option in spec[: len(SETTINGS)]]


def _arguments(side, spec):
    """Returns the last arguments of an operator."""
    return [*side[:SIDE], *options_of(spec)]


_library = torch.library.Library("trope", "DEF")  # a call costs less than with torch.library.custom_op
_library.define("rotate(bool transposed, Tensor[] tensors, %s) -> Tensor[]" % _SCHEMA)
_library.define("angle_gradient(Tensor[] dys, Tensor[] xs, %s) -> Tensor" % _SCHEMA)


def _rotate(transposed, tensors, *rest):
    _launch.refuse_transforms()
    side = _side_of(rest)
    return _launch.rotate(transposed, _ready_spec(rest[SIDE:], len(tensors), side), side, tensors)


def _angle_gradient(dys, xs, *rest):
    _launch.refuse_transforms()
    side = _side_of(rest)
    if len(dys) != len(xs):
        raise Error("xs has %d tensors for %d dys" % (len(xs), len(dys)), "xs")
    if side.freqs is None and side.cos is None:
        raise Error("freqs is missing: the gradient belongs to a table", "freqs")
    return _launch.find_angle_gradient(_ready_spec(rest[SIDE:], len(dys), side), side, dys, xs)


for _device in ("CPU", "CUDA"):
    _library.impl("rotate", _rotate, _device)
    _library.impl("angle_gradient", _angle_gradient, _device)


@torch.library.register_fake("trope::rotate")
def _(transposed, tensors, *rest):
    spec = _spec_of(rest[SIDE:])
    return [_launch.new_result(transposed, spec, i, x) for i, x in enumerate(tensors)]


@torch.library.register_fake("trope::angle_gradient")
def _(dys, xs, *rest):
    side = _side_of(rest)
    table = side.freqs if side.freqs is not None else side.cos
    dtype = torch.float64 if dys[0].dtype == torch.float64 else torch.float32
    return torch.empty(table.shape, dtype=dtype, device=table.device)


class Operators:
    """The calls that the formulas are made of, made through operators."""

    @staticmethod
    def rotate(transposed, spec, side, tensors):
        return torch.ops.trope.rotate(transposed, tensors, *_arguments(side, spec))

    @staticmethod
    def scale(spec, g, side, tensors):
        return Operators.rotate(False, spec, _formulas.as_cos(g, side), tensors)

    @staticmethod
    def angle_gradient(spec, side, dys, xs):
        return torch.ops.trope.angle_gradient(dys, xs, *_arguments(side, spec))


def no_gradients_beside(spec):
    """Returns the gradients of an operator's last arguments, after freqs. They are None, but torch.library passes an empty
    list as a list of tensors, and expects a list back."""
    settings = [[] if isinstance(option, (list, tuple)) and not option else None for option in spec[: len(SETTINGS)]]
    return (None,) * (SIDE - 1) + tuple(settings)


def _save_rotate(ctx, inputs, output):
    transposed, tensors, *rest = inputs
    ctx.transposed, ctx.spec, ctx.count = transposed, _spec_of(rest[SIDE:]), len(tensors)
    side = _side_of(rest)
    _formulas.refuse_gradients_of_tables(side)
    ctx.wants_freqs = side.freqs is not None and side.freqs.requires_grad
    ctx.save_for_backward(*rest[:SIDE], *(tensors if ctx.wants_freqs else ()))


def _backward_rotate(ctx, grads):
    saved = ctx.saved_tensors
    d_freqs, d_tensors = _formulas.rotation_backward(
        Operators, ctx.transposed, ctx.spec, _side_of(saved), saved[SIDE:], grads, ctx.wants_freqs, (True,) * ctx.count
    )
    return (None, d_tensors, d_freqs) + no_gradients_beside(ctx.spec)


def _save_angle_gradient(ctx, inputs, output):
    dys, xs, *rest = inputs
    ctx.spec, ctx.count = _spec_of(rest[SIDE:]), len(dys)
    ctx.save_for_backward(*rest[:SIDE], *dys, *xs)


def _backward_angle_gradient(ctx, g):
    saved = ctx.saved_tensors
    side, dys, xs = _side_of(saved), list(saved[SIDE : SIDE + ctx.count]), list(saved[SIDE + ctx.count :])
    with torch.no_grad():
        d_freqs, d_dys, d_xs = _formulas.angle_gradient_backward(Operators, ctx.spec, side, dys, xs, g)
    if torch.is_grad_enabled():
        d_freqs, *rest = NoThird.apply(1 + 2 * ctx.count, d_freqs, *d_dys, *d_xs, g, *[t for t in saved if t is not None])
        d_dys, d_xs = rest[: ctx.count], rest[ctx.count :]
    return (d_dys, d_xs, d_freqs) + no_gradients_beside(ctx.spec)


torch.library.register_autograd("trope::rotate", _backward_rotate, setup_context=_save_rotate)
torch.library.register_autograd("trope::angle_gradient", _backward_angle_gradient, setup_context=_save_angle_gradient)
