"""The derivatives of the primitives. python/trope/torch/_formulas.py explains the formulas.

Every derivative is a rotation, its transpose, the gradient of the angles, or a product with a table's values at each token.
"""

import jax
from jax import numpy as jnp

from .._errors import Error
from .._norms import count_heads
from .._spec import DIMS, subset, widen
from ._call import arguments_of


def as_wide(spec, whole, tensors):
    """Returns the Spec and the tensors of a call of some tensors of `whole`, with the zeros that widen asks for."""
    spec, shape = widen(spec, whole, tensors[0].shape)
    if shape is None:
        return spec, list(tensors)
    return spec, [*tensors, jnp.broadcast_to(jnp.zeros_like(tensors[0]).sum(), shape)]


# ---- Rotations ----


def _halves(x, spec, pairing):
    """Returns the first and second elements of the pairs of a window x[..., R], as [..., parts, pairs of a part]."""
    parts = x.reshape(*x.shape[:-1], spec.parts, x.shape[-1] // spec.parts)
    if pairing == "interleaved":
        return parts[..., 0::2], parts[..., 1::2]
    half = parts.shape[-1] // 2
    return parts[..., :half], parts[..., half:]


def quarter_turn(x, spec, i, pairing, sign):
    """Returns J x (sign 1) or J' x (sign -1) of tensors[i]. Elements outside the window are 0."""
    width, offset = spec.rotary_dims[i], spec.rotary_offsets[i]
    if width <= 0:
        return jnp.zeros_like(x)
    first, second = _halves(x[..., offset : offset + width], spec, pairing)
    turned = (-sign * second, sign * first)
    window = jnp.stack(turned, -1) if pairing == "interleaved" else jnp.concatenate(turned, -1)
    window = window.reshape(*x.shape[:-1], width)
    return jnp.concatenate([jnp.zeros_like(x[..., :offset]), window, jnp.zeros_like(x[..., offset + width :])], -1)


def _scale(spec, side, g, tensors):
    """Multiplies the windows by g at each token. g has the shape of the table. Padding becomes 0, unless it rotates."""
    plain = spec._replace(
        pairing=spec.pairing_out or spec.pairing,
        pairing_out="",
        inverse=False,
        mscale=1.0,
        rounding="once",
        padding="rotate" if spec.padding == "rotate" else "zero" if spec.padding else "",
        shared_heads=(0,) * len(spec.rotary_dims),
    )
    g = g.astype(jnp.float64 if tensors[0].dtype == jnp.float64 else jnp.float32)
    return _primitives.scale(plain, g, side, tensors)


def scaling_gradient(spec, side, tensors, grads):
    """Returns the gradient of Scaling's g. The side has sin = 0. A grad of None is 0."""
    # At angles of 0, M is the identity, so the gradient of the angles is <dy, J x>. With J' x instead of x, it is <dy, x>.
    turned = [quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(tensors)]
    return angle_gradient(spec, side._replace(freqs=side.sin, cos=None, sin=None), grads, turned)


def rotate_some(transposed, spec, side, tensors, scales=False):
    """Returns M x (or M' x) of the tensors. A tensor of None gives None. scales: the call is a Scaling."""
    keep = [i for i, t in enumerate(tensors) if t is not None]
    results = [None] * len(tensors)
    if keep:
        some, given = as_wide(subset(spec, keep), spec, [tensors[i] for i in keep])
        if scales:
            rotated = _primitives.scale(some, side.cos, side, given)
        else:
            rotated = _primitives.rotate(transposed, some, side, given, in_place=True)
        for i, y in zip(keep, rotated):
            results[i] = y
    return results


def angle_gradient(spec, side, dys, xs):
    """Returns dL/d freqs from dy and x of each tensor. A tensor of None is 0. None: the gradient is 0."""
    widths = spec.rotary_dims
    keep = [i for i, (dy, x) in enumerate(zip(dys, xs)) if dy is not None and x is not None and widths[i] > 0]
    if not keep:
        return None
    some, dys = as_wide(subset(spec, keep), spec, [dys[i] for i in keep])
    _, xs = as_wide(subset(spec, keep), spec, [xs[i] for i in keep])
    return _primitives.find_angle_gradient(some, side, dys, xs)


def along_freqs(transposed, spec, side, g, tensors):
    """Returns the derivative of M x, or M' x, if the angles move in direction g. g has the shape of the table."""
    sign = -1 if spec.inverse else 1
    if transposed:
        back = _primitives.rotate(True, spec, side, _scale(spec, side, g, tensors))
        return [quarter_turn(x, spec, i, spec.pairing, -sign) for i, x in enumerate(back)]
    turned = [quarter_turn(x, spec, i, spec.pairing, sign) for i, x in enumerate(tensors)]
    return _scale(spec, side, g, _primitives.rotate(False, spec, side, turned))


def _rotation_forward(call, saved, moved):
    given, g = arguments_of(call, saved), arguments_of(call, moved).side.freqs
    return along_freqs(call.backward, call.spec, given.side, g, given.srcs)


def _rotation_reverse(call, saved, grads, wanted):
    given = arguments_of(call, saved)
    pair = (given.srcs, grads) if call.backward else (grads, given.srcs)
    d_freqs = angle_gradient(call.spec, given.side, *pair)
    d_freqs = None if d_freqs is None else d_freqs.astype(given.side.freqs.dtype)
    return [None] * len(given.srcs) + [d_freqs if name == "freqs" else None for name in call.side]


def angle_gradient_transpose(of_xs, spec, side, g, tensors, xs=None):
    """Returns the gradients of <g, d_freqs(dy, x, freqs)> by dy, from x, or (if of_xs) by x, from dy."""
    keep = [i for i, x in enumerate(xs or tensors) if x is not None]
    some, given = as_wide(subset(spec, keep), spec, [tensors[i] for i in keep])
    result = [None] * len(tensors)
    for i, gradient in zip(keep, along_freqs(of_xs, some, side, g, given)):
        result[i] = gradient
    return result


def angle_gradient_along_freqs(spec, dys, xs, side, g):
    """Returns the derivative of d_freqs(dy, x, freqs) if freqs moves in direction g. An angle changes its own row only."""
    sign = -1 if spec.inverse else 1
    minus_turned = [None if x is None else quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(xs)]
    along = angle_gradient(spec, side, dys, minus_turned)
    return None if along is None else -g.astype(along.dtype) * sign * along


# ---- Norms ----


def _normed_reverse(call, saved, grads, wanted):
    spec, count = call.spec, len(grads)
    arguments = len(wanted) - sum(settings.scope != "" for settings in spec.norms)
    given, wants = arguments_of(call, saved[:arguments]), arguments_of(call, wanted[:arguments])
    rest = iter(saved[arguments:])
    rstds = [next(rest) if settings.scope else None for settings in spec.norms]
    turns = [bool(wants.side.freqs) and width > 0 for width in spec.rotary_dims]
    wants_weights = [bool(each) for each in wants.weights]
    of = [i for i in range(count) if grads[i] is not None and (turns[i] or wants.srcs[i] or wants_weights[i])]
    d_tensors, d_weights, d_freqs = [None] * count, [None] * count, None
    if of:
        some, dys = as_wide(subset(spec, of), spec, [grads[i] for i in of])
        _, xs = as_wide(subset(spec, of), spec, [given.srcs[i] for i in of])

        def pick(values, fill=None):
            return [values[i] for i in of] + [fill] * (len(some.rotary_dims) - len(of))

        # The tensor that as_wide adds gets a result that nobody reads: the library refuses a tensor without a result.
        d_freqs, dxs, dws = _primitives.find_normed_gradients(
            some, given.side, dys, xs, pick(given.weights), pick(rstds), any(pick(turns, False)),
            pick(wants.srcs, True), pick(wants_weights, False),
        )  # fmt: skip
        for at, i in enumerate(of):
            d_tensors[i] = dxs[at]
            d_weights[i] = None if dws[at] is None else dws[at].astype(given.weights[i].dtype)
    d_freqs = None if d_freqs is None else d_freqs.astype(given.side.freqs.dtype)
    of_side = [d_freqs if name == "freqs" else None for name in call.side]
    of_weights = [d for d, there in zip(d_weights, call.weight) if there]
    return [*d_tensors, *of_side, *of_weights, *[None] * (len(saved) - arguments)]


def _normalise(x, layout, settings, weight):
    """Returns n(x), computed by jax.numpy."""
    dims = DIMS[layout]
    inner = tuple(dim for dim in dims[2:] if dim is not None)
    over = inner if settings.scope == "token" else -1
    rstd = jax.lax.rsqrt((x * x).mean(over, keepdims=True) + settings.eps)
    if weight is None:
        return x * rstd
    weight = weight.astype(x.dtype)
    if weight.ndim > 1:
        sizes = [x.shape[dim] if dim in inner else 1 for dim in range(x.ndim)]
        weight = weight.reshape(count_heads(layout, x.shape), x.shape[-1]).reshape(sizes)
    return x * rstd * (1 + weight if settings.plus_one else weight)


def _formula(spec, side, tensors, weights):
    """Returns the results of a call with norms in the dtype of its arithmetic, before rounding to the tensors' dtype."""
    real = jnp.float64 if tensors[0].dtype == jnp.float64 else jnp.float32

    def normalise(xs, order):
        return [
            _normalise(x, spec.layout, settings, weight) if settings.scope and settings.order == order else x
            for x, settings, weight in zip(xs, spec.norms, weights)
        ]

    alone = spec._replace(norms=(), rounding="once")
    xs = normalise([x.astype(real) for x in tensors], "before")
    return normalise(_primitives.rotate(False, alone, side, xs), "after")


def _refuse_copied_padding(spec):
    """The formulas of jax.numpy do not know which tokens are padding. (Padding of zeros has no derivative.)"""
    if spec.padding == "copy":
        message = "norms: with padding 'copy' only the first gradient can be computed, in reverse mode"
        raise Error(message, "norms")


def jvp_by_some(function, primals, tangents):
    """Returns the tangents of a function's results. A tangent of None is 0."""
    of = [i for i, t in enumerate(tangents) if t is not None]

    def call(*some):
        merged = dict(zip(of, some))
        return function(*(merged.get(i, x) for i, x in enumerate(primals)))

    return jax.jvp(call, [primals[i] for i in of], [tangents[i] for i in of])[1]


def _normed_forward(call, saved, moved):
    _refuse_copied_padding(call.spec)

    def results(*saved):
        given = arguments_of(call, saved)
        return _formula(call.spec, given.side, given.srcs, given.weights)

    return jvp_by_some(results, saved, moved)


def _normed_gradients(call, saved):
    """Returns the results of NormedGradient, computed by jax.numpy."""
    _refuse_copied_padding(call.spec)
    given = arguments_of(call, saved)
    xs = [jnp.zeros_like(dy) if x is None else x for x, dy in zip(given.forward_srcs, given.srcs)]

    def results(freqs, xs, weights):
        return _formula(call.spec, given.side._replace(freqs=freqs), xs, weights)

    ys, pull = jax.vjp(results, given.side.freqs, xs, given.weights)
    d_freqs, d_xs, d_weights = pull([dy.astype(y.dtype) for dy, y in zip(given.srcs, ys)])
    gradients = *zip(d_xs, call.dst), (d_freqs, call.d_freqs), *zip(d_weights, call.d_weight)
    return [d for d, there in gradients if there]


def _normed_gradient_forward(call, saved, moved):
    return jvp_by_some(lambda *saved: _normed_gradients(call, saved), saved, moved)


def _normed_gradient_reverse(call, saved, grads, wanted):
    of = [i for i, is_wanted in enumerate(wanted) if is_wanted]

    def gradients(*some):
        merged = dict(zip(of, some))
        results = _normed_gradients(call, [merged.get(i, x) for i, x in enumerate(saved)])
        return [y for y, g in zip(results, grads) if g is not None]

    first, pull = jax.vjp(gradients, *(saved[i] for i in of))
    found = dict(zip(of, pull([g.astype(y.dtype) for y, g in zip(first, [g for g in grads if g is not None])])))
    return [found.get(i) for i in range(len(saved))]


# The formulas of the derivatives that are not calls of the library. A call has the arguments `saved`, which have the
# tangents `moved` in forward mode, and its results have the gradients `grads` in reverse mode. None is 0.
FORWARD = {"rotation": _rotation_forward, "normed": _normed_forward, "normed_gradient": _normed_gradient_forward}
REVERSE = {"rotation": _rotation_reverse, "normed": _normed_reverse, "normed_gradient": _normed_gradient_reverse}

from . import _primitives  # noqa: E402 (it imports this module)
