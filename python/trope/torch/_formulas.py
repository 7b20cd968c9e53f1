"""The derivatives, written once for eager autograd and for the operators of torch.library.

Let y = M(a) x, let a be the angles of a pair, and let J be the quarter turn of each pair, (x1, x2) -> (-x2, x1). Then

    dL/dx = M' dy        dL/da of an element = (dy) (M J x)        d(M J x)/da = M J J x = -M x

Every derivative is a rotation, its transpose, the gradient of the angles (which sums over heads and tokens), or a product
with a table's values at each token. This product is a rotation too, with cos = the table and sin = 0. The library handles
positions, sequences and ranks, as in all calls.
"""

import torch

from .. import _spec
from .._errors import Error


def interned(spec):
    """Returns the one Spec object that equals this one. torch.compile cannot look it up; the operators do it themselves."""
    return spec if torch.compiler.is_compiling() else _spec.intern(spec)


def refuse_table(name, what):
    raise Error("%s %s, but gradients of cos and sin are not supported: pass freqs, or detach it" % (name, what), name)


def refuse_gradients_of_tables(side):
    for name, t in (("cos", side.cos), ("sin", side.sin)):
        if t is not None and t.requires_grad:
            refuse_table(name, "requires a gradient")


def subset(spec, keep):
    """Returns the Spec of some of the tensors."""
    some = _spec.subset(spec, keep)
    return some if some is spec else interned(some)


def as_wide(spec, whole, tensors):
    """Returns the Spec and the tensors of a call of some tensors of `whole`, with the zeros that _spec.widen asks for."""
    spec, zeros = _spec.widen(spec, whole, tensors[0].shape)
    return (spec, tensors) if zeros is None else (interned(spec), [*tensors, tensors[0].new_zeros(zeros)])


def _halves(x, spec, pairing):
    """Returns the first and second elements of the pairs of a window x[..., R], as views [..., parts, pairs of a part]."""
    parts = x.unflatten(-1, (spec.parts, x.shape[-1] // spec.parts))
    if pairing == "interleaved":
        return parts[..., 0::2], parts[..., 1::2]
    half = parts.shape[-1] // 2
    return parts[..., :half], parts[..., half:]


def quarter_turn(x, spec, i, pairing, sign):
    """Returns J x (sign 1) or J' x (sign -1) of tensors[i]. Elements outside the window are 0."""
    width, offset = spec.rotary_dims[i], spec.rotary_offsets[i]
    if width <= 0:
        return torch.zeros_like(x)
    is_whole = width == x.shape[-1]  # (batched gradients have no rule for a slice of the whole dimension)
    first, second = _halves(x if is_whole else x[..., offset : offset + width], spec, pairing)
    turned = (-sign * second, sign * first)
    window = torch.stack(turned, -1).flatten(-3) if pairing == "interleaved" else torch.cat(turned, -1).flatten(-2)
    if is_whole:
        return window
    return torch.cat([torch.zeros_like(x[..., :offset]), window, torch.zeros_like(x[..., offset + width :])], -1)


def _scale(api, spec, side, g, tensors):
    """Multiplies each element of the windows by the value of g at its token; g is like the table. Padding becomes 0."""
    plain = spec._replace(
        pairing=spec.pairing_out or spec.pairing,
        pairing_out="",
        inverse=False,
        mscale=1.0,
        rounding="once",
        padding="rotate" if spec.padding == "rotate" else "zero" if spec.padding else "",
        shared_heads=(0,) * len(spec.rotary_dims),
    )
    g = g.to(torch.float64 if tensors[0].dtype == torch.float64 else torch.float32).contiguous()
    return api.scale(interned(plain), g, side, tensors)


def as_cos(g, side):
    """Returns the Side of a rotation that multiplies by g: cos = g and sin = 0."""
    return side._replace(freqs=None, cos=g, sin=torch.zeros_like(g))


def scale_gradient(api, spec, g, side, tensors, grads):
    """Returns dL/dg of api.scale: the gradient of the angles for J' x, at angles of 0, where M J J' x = x."""
    turned = [quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(tensors)]
    side = side._replace(freqs=torch.zeros_like(g), cos=None, sin=None)
    return api.angle_gradient(spec, side, grads, turned).to(g.dtype)


def rotate_some(api, transposed, spec, side, tensors, of=None):
    """Returns M x (or M' x) of the tensors, and None for tensors that are None. `of`: their indices in the spec."""
    keep = [i for i, t in enumerate(tensors) if t is not None]
    results = [None] * len(tensors)
    if keep:
        some = subset(spec, keep if of is None else [of[i] for i in keep])
        some, given = as_wide(some, spec, [tensors[i] for i in keep])
        for i, y in zip(keep, api.rotate(transposed, some, side, given)):
            results[i] = y
    return results


def rotation_backward(api, transposed, spec, side, tensors, grads, wants_freqs, wants_tensors, which=None):
    """Returns the gradients of y = M x (or M' x): (d_freqs or None, [d_tensor or None, ...]). A grad of None is 0. `which`:
    the indices of the spec's tensors that grads belong to, by default all."""
    keep = [i for i, grad in enumerate(grads) if grad is not None]
    d_tensors = [None] * len(grads)
    if any(wants_tensors[i] for i in keep):
        d_tensors = rotate_some(api, not transposed, spec, side, grads, which)
    if not wants_freqs or not keep:
        return None, d_tensors
    turning = [i for i in keep if spec.rotary_dims[i] > 0]
    if not turning:
        return torch.zeros_like(side.freqs), d_tensors
    some, given = as_wide(subset(spec, turning), spec, [grads[i] for i in turning])
    _, inputs = as_wide(subset(spec, turning), spec, [tensors[i] for i in turning])
    d_freqs = api.angle_gradient(some, side, inputs, given) if transposed else api.angle_gradient(some, side, given, inputs)
    return d_freqs.to(side.freqs.dtype), d_tensors


def along_freqs(api, transposed, spec, side, g, tensors):
    """Returns the derivative of M x, or M' x, by the angles in the direction g, which has the shape of the table."""
    sign = -1 if spec.inverse else 1
    if transposed:
        back = api.rotate(True, spec, side, _scale(api, spec, side, g, list(tensors)))
        return [quarter_turn(x, spec, i, spec.pairing, -sign) for i, x in enumerate(back)]
    turned = [quarter_turn(x, spec, i, spec.pairing, sign) for i, x in enumerate(tensors)]
    return _scale(api, spec, side, g, api.rotate(False, spec, side, turned))


def angle_gradient_along_freqs(api, spec, side, dys, xs, g):
    """Returns the derivative of d_freqs(dy, x, freqs) in the direction g. An element depends only on its own angle."""
    sign = -1 if spec.inverse else 1
    minus_turned = [quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(xs)]
    return -g * sign * api.angle_gradient(spec, side, list(dys), minus_turned).to(g.dtype)


def angle_gradient_backward(api, spec, side, dys, xs, g):
    """Returns the gradients of <g, d_freqs(dy, x, freqs)>: (d_freqs, [d_dy, ...], [d_x, ...])."""
    d_dys = along_freqs(api, False, spec, side, g, xs)
    d_xs = along_freqs(api, True, spec, side, g, dys)
    return angle_gradient_along_freqs(api, spec, side, dys, xs, g), d_dys, d_xs
