"""The derivatives, written once for eager autograd and for the operators of torch.library.

With y = M(a) x, a pair's angles a, and J the quarter turn of each pair, (x1, x2) -> (-x2, x1):

    dL/dx = M' dy        dL/da of an element = (dy) (M J x)        d(M J x)/da = M J J x = -M x

so that everything is a rotation, its transpose, the gradient of the angles (which sums over heads and tokens), or a product
with what a table has at a token, which is a rotation too: with cos = the table, sin = 0. Positions, sequences and ranks are
where they are in all calls: in the library.
"""

import torch

from .. import _spec
from .._errors import Error
from .._options import NO_NORM
from .._spec import DIMS


def interned(spec):
    """The one Spec that is equal to this one. torch.compile cannot look for it, and operators do so themselves."""
    return spec if torch.compiler.is_compiling() else _spec.intern(spec)


def refuse_table(name, what):
    raise Error("%s %s, and tables of cos and sin have none: give freqs, or detach it" % (name, what), name)


def refuse_gradients_of_tables(side):
    for name, t in (("cos", side.cos), ("sin", side.sin)):
        if t is not None and t.requires_grad:
            refuse_table(name, "requires a gradient")


def subset(spec, keep):
    """The Spec of some of the tensors."""
    if len(keep) == len(spec.rotary_dims):
        return spec
    names = ("rotary_dims", "rotary_offsets", "shared_heads") + (("norms",) if spec.norms else ())
    return interned(spec._replace(**{name: tuple(getattr(spec, name)[i] for i in keep) for name in names}))


def as_wide(spec, whole, tensors):
    """A call of some tensors of `whole`, which reads the same columns of the table, frequencies and axes of pairs.

    Their number is that of the widest rotary_dim. Beside tensors that are narrower, or only copied, one head of zeros has
    that width.
    """
    widest = max(whole.rotary_dims)
    if max(spec.rotary_dims) == widest:
        return spec, tensors
    dims, shape = DIMS[spec.layout], list(tensors[0].shape)
    shape[dims.heads], shape[dims.head_dim] = 1, widest
    spec = spec._replace(
        rotary_dims=(*spec.rotary_dims, widest),
        rotary_offsets=(*spec.rotary_offsets, 0),
        shared_heads=(*spec.shared_heads, 0),
        norms=(*spec.norms, NO_NORM) if spec.norms else (),
    )
    return interned(spec), [*tensors, tensors[0].new_zeros(shape)]


def _halves(x, spec, pairing):
    """First and second elements of the pairs of a window x[..., R], as views of [..., parts, pairs of a part]."""
    parts = x.unflatten(-1, (spec.parts, x.shape[-1] // spec.parts))
    if pairing == "interleaved":
        return parts[..., 0::2], parts[..., 1::2]
    half = parts.shape[-1] // 2
    return parts[..., :half], parts[..., half:]


def quarter_turn(x, spec, i, pairing, sign):
    """J x (sign 1) or J' x (-1) of tensors[i], 0 outside of the window."""
    width, offset = spec.rotary_dims[i], spec.rotary_offsets[i]
    if width <= 0:
        return torch.zeros_like(x)
    is_whole = width == x.shape[-1]  # (batched gradients have no rule for a slice that takes all)
    first, second = _halves(x if is_whole else x[..., offset : offset + width], spec, pairing)
    turned = (-sign * second, sign * first)
    window = torch.stack(turned, -1).flatten(-3) if pairing == "interleaved" else torch.cat(turned, -1).flatten(-2)
    if is_whole:
        return window
    return torch.cat([torch.zeros_like(x[..., :offset]), window, torch.zeros_like(x[..., offset + width :])], -1)


def _scale(api, spec, side, g, tensors):
    """Each element of the windows times what g, of the shape of the table, has for it at the token; 0 at padding."""
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
    """The Side of a rotation that multiplies by g: with cos = g and sin = 0."""
    return side._replace(freqs=None, cos=g, sin=torch.zeros_like(g))


def scale_gradient(api, spec, g, side, tensors, grads):
    """dL/dg of what api.scale computes: the gradient of angles of 0, at which M J x = J x, for x turned back by a quarter."""
    turned = [quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(tensors)]
    side = side._replace(freqs=torch.zeros_like(g), cos=None, sin=None)
    return api.angle_gradient(spec, side, grads, turned).to(g.dtype)


def rotate_some(api, transposed, spec, side, tensors, of=None):
    """M x (or M' x) of the tensors that are there, which are tensors `of` of the spec; None of those that are None."""
    keep = [i for i, t in enumerate(tensors) if t is not None]
    results = [None] * len(tensors)
    if keep:
        some = subset(spec, keep if of is None else [of[i] for i in keep])
        some, given = as_wide(some, spec, [tensors[i] for i in keep])
        for i, y in zip(keep, api.rotate(transposed, some, side, given)):
            results[i] = y
    return results


def rotation_backward(api, transposed, spec, side, tensors, grads, wants_freqs, wants_tensors, which=None):
    """Gradients of y = M x (or M' x): (d_freqs or None, [d_tensor or None, ...]). A grad of None is 0. `which` of the
    spec's tensors the grads are of: all, unless given."""
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
    """The derivative of M x, or M' x, by the angles in the direction g, which has the shape of the table."""
    sign = -1 if spec.inverse else 1
    if transposed:
        back = api.rotate(True, spec, side, _scale(api, spec, side, g, list(tensors)))
        return [quarter_turn(x, spec, i, spec.pairing, -sign) for i, x in enumerate(back)]
    turned = [quarter_turn(x, spec, i, spec.pairing, sign) for i, x in enumerate(tensors)]
    return _scale(api, spec, side, g, api.rotate(False, spec, side, turned))


def angle_gradient_along_freqs(api, spec, side, dys, xs, g):
    """The derivative of d_freqs(dy, x, freqs) by freqs in the direction g: an element depends on its own angle alone."""
    sign = -1 if spec.inverse else 1
    minus_turned = [quarter_turn(x, spec, i, spec.pairing, -1) for i, x in enumerate(xs)]
    return -g * sign * api.angle_gradient(spec, side, list(dys), minus_turned).to(g.dtype)


def angle_gradient_backward(api, spec, side, dys, xs, g):
    """Gradients of <g, d_freqs(dy, x, freqs)>: (d_freqs, [d_dy, ...], [d_x, ...])."""
    d_dys = along_freqs(api, False, spec, side, g, xs)
    d_xs = along_freqs(api, True, spec, side, g, dys)
    return angle_gradient_along_freqs(api, spec, side, dys, xs, g), d_dys, d_xs
