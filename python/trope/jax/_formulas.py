"""The derivatives of the primitives. python/trope/torch/_formulas.py explains the formulas.

Every derivative is a rotation, its transpose, the gradient of the angles, or a product with a table's values at each token.
"""

import jax
from jax import numpy as jnp

from .._errors import Error
from .._norms import count_heads
from .._spec import DIMS, subset, widen


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


def scaling_backward(spec, side, tensors, grads):
    """Returns the gradients of Scaling: (d_g, d_tensors). The side has cos = g and sin = 0. A grad of None is 0."""
    g = side.cos
    d_tensors = rotate_some(False, spec, side, grads, scales=True)
    keep = [i for i, grad in enumerate(grads) if grad is not None and spec.rotary_dims[i] > 0]
    if not keep:
        return jnp.zeros_like(g), d_tensors
    # At angles of 0, M is the identity, so the gradient of the angles is <dy, J x>. With J' x instead of x, it is <dy, x>.
    turned = [quarter_turn(tensors[i], spec, i, spec.pairing, -1) for i in keep]
    some, turned = as_wide(subset(spec, keep), spec, turned)
    _, given = as_wide(subset(spec, keep), spec, [grads[i] for i in keep])
    zero = side._replace(freqs=jnp.zeros_like(g), cos=None, sin=None)
    return _primitives.find_angle_gradient(some, zero, given, turned).astype(g.dtype), d_tensors


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


def rotation_backward(transposed, spec, side, tensors, grads, wants_freqs, wants_tensors):
    """Returns the gradients of y = M x (or M' x): (d_freqs or None, [d_tensor or None, ...]). A grad of None is 0."""
    keep = [i for i, grad in enumerate(grads) if grad is not None]
    d_tensors = [None] * len(grads)
    if wants_tensors:
        d_tensors = rotate_some(not transposed, spec, side, grads)
    turning = [i for i in keep if spec.rotary_dims[i] > 0]
    if not wants_freqs or not turning:
        return None, d_tensors
    some, given = as_wide(subset(spec, turning), spec, [grads[i] for i in turning])
    _, inputs = as_wide(subset(spec, turning), spec, [tensors[i] for i in turning])
    if transposed:
        given, inputs = inputs, given
    return _primitives.find_angle_gradient(some, side, given, inputs).astype(side.freqs.dtype), d_tensors


def _along_freqs(transposed, spec, side, g, tensors):
    """Returns the derivative of M x, or M' x, if the angles move in direction g. g has the shape of the table."""
    sign = -1 if spec.inverse else 1
    if transposed:
        back = _primitives.rotate(True, spec, side, _scale(spec, side, g, tensors))
        return [quarter_turn(x, spec, i, spec.pairing, -sign) for i, x in enumerate(back)]
    turned = [quarter_turn(x, spec, i, spec.pairing, sign) for i, x in enumerate(tensors)]
    return _scale(spec, side, g, _primitives.rotate(False, spec, side, turned))


def angle_gradient_backward(spec, side, dys, xs, g):
    """Returns the gradients of <g, d_freqs(dy, x, freqs)>: (d_freqs, [d_dy, ...], [d_x, ...])."""
    keep = [i for i, x in enumerate(xs) if x is not None]
    count = len(xs)
    some, dys = as_wide(subset(spec, keep), spec, [dys[i] for i in keep])
    _, xs = as_wide(subset(spec, keep), spec, [xs[i] for i in keep])
    d_dys = _along_freqs(False, some, side, g, xs)
    d_xs = _along_freqs(True, some, side, g, dys)
    sign = -1 if spec.inverse else 1
    minus_turned = [quarter_turn(x, some, i, spec.pairing, -1) for i, x in enumerate(xs)]
    d_freqs = -g * sign * _primitives.find_angle_gradient(some, side, dys, minus_turned).astype(g.dtype)

    def spread(gradients):
        result = [None] * count
        for i, gradient in zip(keep, gradients):
            result[i] = gradient
        return result

    return d_freqs.astype(side.freqs.dtype), spread(d_dys), spread(d_xs)


# ---- Norms ----


def normed_backward(spec, given, rstds, grads, wants_freqs, wants_tensors, wants_weights):
    """Returns (d_freqs, d_tensors, d_weights) of Normed. None: the gradient is 0, or not wanted. A grad of None is 0."""
    count = len(grads)
    turns = [wants_freqs and width > 0 for width in spec.rotary_dims]
    wanted = [turns[i] or wants_tensors[i] or wants_weights[i] for i in range(count)]
    of = [i for i in range(count) if wanted[i] and grads[i] is not None]
    d_tensors, d_weights = [None] * count, [None] * count
    if not of:
        return None, d_tensors, d_weights

    def pick(values, fill=None):
        return [values[i] for i in of] + [fill] * (len(some.rotary_dims) - len(of))

    some, dys = as_wide(subset(spec, of), spec, [grads[i] for i in of])
    _, xs = as_wide(subset(spec, of), spec, [given.srcs[i] for i in of])
    # The tensor that as_wide adds gets a result that nobody reads, because the library refuses a tensor without a result.
    wants_tensors, wants_weights = pick(wants_tensors, True), pick(wants_weights, False)
    turns = pick(turns, False)
    d_freqs, dxs, dws = _primitives.find_normed_gradients(
        some, given.side, dys, xs, pick(given.weights), pick(rstds), any(turns), wants_tensors, wants_weights
    )
    for at, i in enumerate(of):
        d_tensors[i] = dxs[at]
        d_weights[i] = None if dws[at] is None else dws[at].astype(given.weights[i].dtype)
    return None if d_freqs is None else d_freqs.astype(given.side.freqs.dtype), d_tensors, d_weights


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


def normed_gradient_backward(call, given, grads):
    """Returns the gradients of <grads, results of NormedGradient> with respect to freqs, dys, xs and weights."""
    spec, side, count = call.spec, given.side, len(call.dst)
    if spec.padding == "copy":
        raise Error("norms: with padding 'copy' a gradient of a norm cannot be differentiated again", "norms")
    xs = [jnp.zeros_like(dy) if x is None else x for x, dy in zip(given.forward_srcs, given.srcs)]

    def results(freqs, xs, weights):
        return _formula(spec, side._replace(freqs=freqs), xs, weights)

    def gradients(freqs, dys, xs, weights):
        ys, pull = jax.vjp(results, freqs, xs, weights)
        d_freqs, d_xs, d_weights = pull([dy.astype(y.dtype) for dy, y in zip(dys, ys)])
        first = [d_freqs if grads.d_freqs is not None else None]
        first += [d if grad is not None else None for d, grad in zip(d_xs, grads.dsts)]
        return first + [d if grad is not None else None for d, grad in zip(d_weights, grads.d_weights)]

    inputs = side.freqs, given.srcs, xs, given.weights
    upstream = [grads.d_freqs, *grads.dsts, *grads.d_weights]
    first, pull = jax.vjp(gradients, *inputs)
    d_freqs, d_dys, d_xs, d_weights = pull([None if d is None else g.astype(d.dtype) for d, g in zip(first, upstream)])
    return d_freqs, d_dys, [d_xs[i] if call.forward_src[i] else None for i in range(count)], d_weights


from . import _primitives  # noqa: E402 (it imports this module)
