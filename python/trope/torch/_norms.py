"""Norms in the same call as the rotation: launches, derivatives, operators, and heads that are on several ranks.

A rotation with norms is one call of the library. If ranks share the heads of a token, it is two calls, with an all-gather
in between. Launched makes these calls directly, for eager autograd. Operators makes them through trope::rotate_normed and
the related operators, for torch.compile and dispatch modes. PyTorch derives the second derivative from the operations in
_formula.

Lists have an entry for each tensor, which is None where there is nothing.
"""

import functools
import typing

import torch
from torch.autograd import Function

from .._errors import Error
from .._norms import NormArrays, rstd_shape, sums_shape
from .._options import NormSettings, with_gradients
from .._spec import DIMS, intern
from . import _autograd, _formulas, _launch, _ops, _ranks, _transforms
from ._namespace import add_op_namespace_prefix, operators

# ---- Calls of the library ----


def _real(x):
    """Returns the dtype of the arithmetic, of rstd and of the gradients of weights."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _have_weights(spec):
    return [settings.has_weight for settings in spec.norms]


def _have_rstds(spec):
    return [settings.scope != "" for settings in spec.norms]


def _have_sums(spec):
    return [settings.group != "" for settings in spec.norms]


def _expand(present, arrays):
    """Returns a list with the elements of `arrays`, in order, where `present` is true, and None elsewhere."""
    rest = list(arrays)[::-1]
    expanded = [rest.pop() if is_there and rest else None for is_there in present]
    if rest:
        raise Error("norms: an operator received %d arrays more than the norms need" % len(rest), "norms")
    return expanded


def _new_rstds(spec, tensors):
    return [
        x.new_empty(rstd_shape(spec.layout, settings, x.shape), dtype=_real(x)) if settings.scope else None
        for settings, x in zip(spec.norms, tensors)
    ]


def _new_sums(spec, tensors):
    return [
        x.new_empty(sums_shape(spec.layout, settings, x.shape), dtype=_real(x)) if settings.group else None
        for settings, x in zip(spec.norms, tensors)
    ]


def _new_gradients(side, xs, weights, wants_freqs, wants_tensors, wants_weights):
    """Allocates [d_freqs], d_tensors and d_weights. An unwanted gradient is None. A d_tensor has the order of dimensions of
    its x: if x is a view of a projection's result, autograd then does not copy the gradient."""
    d_freqs = [torch.empty(side.freqs.shape, dtype=_real(xs[0]), device=side.freqs.device) if wants_freqs else None]
    d_tensors = [torch.empty_like(x) if wanted else None for x, wanted in zip(xs, wants_tensors)]
    d_weights = [
        torch.empty(weight.shape, dtype=_real(xs[0]), device=weight.device) if wanted else None
        for weight, wanted in zip(weights, wants_weights)
    ]
    return d_freqs, d_tensors, d_weights


def _launch_all(backward, spec, side, srcs, dsts, forward_srcs, **of_norms):
    """Makes one call. of_norms: lists for the fields of NormArrays that the call has."""
    none = [None] * len(srcs)
    norms = [NormArrays(*arrays) for arrays in zip(*[of_norms.get(name, none) for name in NormArrays._fields])]
    _launch.launch(backward, spec, srcs, dsts, forward_srcs, side, False, norms)


class Launched:
    """The calls of the library, made directly."""

    @staticmethod
    def sums(backward, spec, side, srcs, xs, weights, rstds, wanted):
        """Returns the sums of this rank's heads, for each tensor that has ranks. Other tensors get a result that nobody
        uses, because the library requires one. All ranks return, or all of them raise an error (see _ranks.agree)."""
        sums, refusal = None, None
        try:
            sums = _new_sums(spec, srcs)
            dsts = [None if one is not None else torch.empty_like(x) for one, x in zip(sums, srcs)]
            xs = _read_xs(spec, xs, False) if backward else [None] * len(srcs)
            _launch_all(backward, spec, side, srcs, dsts, xs, weight=weights, rstd=rstds, new_sums=sums)
        except Error as error:  # it names the tensors of this call, which are some of the user's
            renamed = {
                "%s[%d]%s" % (name, i, end): "%s[%d]%s" % (name, settings.index, end)
                for i, settings in enumerate(spec.norms) if settings.group
                for name, end in (("tensors", ""), ("norms", ""), ("norms", ".weight"))
            }  # fmt: skip
            refusal = error.renamed(renamed)
        except Exception as error:
            refusal = error
        if not srcs[0].is_meta:
            _ranks.agree(backward, spec, srcs, weights, wanted, refusal)
        elif refusal is not None:
            raise refusal
        return sums

    @staticmethod
    def rotate(spec, side, tensors, weights, sums, writes_rstd, out=None):
        """Makes the forward call. Returns (results, rstds)."""
        none = [None] * len(tensors)
        results = [torch.empty_like(x) for x in tensors] if out is None else out
        rstds = _new_rstds(spec, tensors) if writes_rstd else none
        _launch_all(False, spec, side, tensors, results, none, weight=weights, rstd=rstds, token_sums=sums)
        return results, rstds

    @staticmethod
    def gradients(spec, side, dys, xs, weights, rstds, sums, wants_freqs, *wants):
        """Makes the backward call. Returns (d_freqs, d_tensors, d_weights)."""
        (d_freqs,), d_tensors, d_weights = _new_gradients(side, xs, weights, wants_freqs, *wants)
        side, xs = with_gradients(side, d_freqs, None), _read_xs(spec, xs, wants_freqs)
        _launch_all(True, spec, side, dys, d_tensors, xs, weight=weights, rstd=rstds, d_weight=d_weights, token_sums=sums)
        return d_freqs, d_tensors, d_weights


def _read_xs(spec, xs, wants_freqs):
    """Returns the xs that a backward call reads. The library refuses any others."""
    reads = [settings.scope != "" or (wants_freqs and width > 0) for settings, width in zip(spec.norms, spec.rotary_dims)]
    return [x if is_read else None for x, is_read in zip(xs, reads)]


# ---- The steps of a call ----


def _widened(spec, of, lists, fill):
    """Returns the Spec for the tensors `of`, and their part of each list. If the Spec needs one more tensor (see as_wide),
    it is appended to the first lists, which are lists of tensors. The other lists get the entries of `fill`."""
    some, widened = _formulas.as_wide(_formulas.subset(spec, of), spec, [lists[0][i] for i in of])
    more = list(widened[len(of) :])
    tensors = len(lists) - len(fill)
    fills = [more] * tensors + [[each] * len(more) for each in fill]
    return some, [[given[i] for i in of] + added for given, added in zip(lists, fills)]


def _gather(api, spec, side, srcs, xs, weights, rstds, has_backward):
    """Returns token_sums of all ranks for each tensor that has ranks. In a backward call, srcs are the dys. In a forward
    call, xs and rstds are None, and has_backward tells whether autograd may run its backward."""
    sums = [None] * len(srcs)
    of = [i for i, has in enumerate(_have_sums(spec)) if has]
    if not of:
        return sums
    backward = xs is not None
    detached = [[None if t is None else t.detach() for t in given or sums] for given in (weights, rstds)]
    wants_freqs = side.freqs is not None and side.freqs.requires_grad
    wanted = [
        has_backward and (backward or (wants_freqs and width > 0) or x.requires_grad or (w is not None and w.requires_grad))
        for width, x, w in zip(spec.rotary_dims, srcs, weights)
    ]
    lists = [srcs, xs if backward else srcs, *detached, wanted]
    some, (srcs, xs, weights, rstds, wanted) = _widened(spec, of, lists, [None, None, False])
    own = api.sums(backward, some, side, [t.detach() for t in srcs], [t.detach() for t in xs], weights, rstds, wanted)
    for i, of_rank in zip(of, own):
        settings = spec.norms[i]
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(of_rank, settings.ranks, settings.group)
        sums[i] = torch.ops._c10d_functional.wait_tensor(gathered)
    return sums


def _rotate(api, spec, side, tensors, weights, writes_rstd, **out):
    """Makes a forward call. Returns (results, rstds)."""
    sums = _gather(api, spec, side, tensors, None, weights, None, writes_rstd)
    return api.rotate(spec, side, tensors, weights, sums, writes_rstd, **out)


def _find_gradients(api, spec, side, dys, xs, weights, rstds, *wants):
    """Makes a backward call of tensors that all have a dy. Returns (d_freqs, d_tensors, d_weights)."""
    sums = _gather(api, spec, side, dys, xs, weights, rstds, True)
    return api.gradients(spec, side, dys, xs, weights, rstds, sums, *wants)


def _backward(find, spec, side, grads, tensors, weights, rstds, wants_freqs, wants_tensors, wants_weights):
    """Returns (d_freqs, d_tensors, d_weights), None where a gradient is not wanted or 0. A grad of None is 0. `find` makes
    the call.

    A tensor may be None if no gradient reads it. Its dy then takes its place.
    """
    count = len(tensors)
    turns = [wants_freqs and width > 0 for width in spec.rotary_dims]
    wanted = [turns[i] or wants_tensors[i] or wants_weights[i] for i in range(count)]
    of = [i for i in range(count) if wanted[i] and grads[i] is not None]
    d_tensors, d_weights = [None] * count, [None] * count
    if not of:
        return None, d_tensors, d_weights
    tensors = [grad if x is None else x for grad, x in zip(grads, tensors)]
    lists = [grads, tensors, weights, rstds, wants_tensors, wants_weights]
    # An added tensor gets a result that nobody reads, because the library refuses a tensor without one.
    some, (dys, xs, of_norms, rstds, *wants) = _widened(spec, of, lists, [None, None, True, False])
    d_freqs, dxs, dws = find(some, side, dys, xs, of_norms, rstds, any([turns[i] for i in of]), *wants)
    for at, i in enumerate(of):
        d_tensors[i] = dxs[at]
        d_weights[i] = None if dws[at] is None else dws[at].to(weights[i].dtype)
    return None if d_freqs is None else d_freqs.to(side.freqs.dtype), d_tensors, d_weights


# ---- The second derivative ----


def _normalise(x, layout, settings, weight):
    """Returns n(x) in the dtype of x, computed by PyTorch operations."""
    dims = DIMS[layout]
    inner = [dim for dim in dims[2:] if dim is not None]
    rstd = (x.square().mean(inner if settings.scope == "token" else -1, keepdim=True) + settings.eps).rsqrt()
    if weight is None:
        return x * rstd
    if weight.numel() == x.shape[dims.head_dim]:
        sizes = [1] * (x.dim() - 1) + [x.shape[dims.head_dim]]
    else:
        sizes = [x.shape[dim] if dim in inner else 1 for dim in range(x.dim())]
    weight = weight.to(x.dtype).reshape(sizes)
    return x * rstd * (1 + weight if settings.plus_one else weight)


def _formula(api, spec, side, tensors, weights):
    """Returns the results of a call without rounding, in its arithmetic. api: _autograd.Eager or _ops.Operators."""
    alone = _formulas.interned(spec._replace(norms=(), rounding="once"))

    def normalise(xs, order):
        return [
            _normalise(x, spec.layout, settings, weight) if settings.order == order else x
            for x, settings, weight in zip(xs, spec.norms, weights)
        ]

    xs = [x.to(_real(x)) for x in tensors]
    return normalise(api.rotate(False, alone, side, normalise(xs, "before")), "after")


def _second_derivative(api, spec, side, dys, xs, weights, grads):
    """Returns gradients by [freqs], dys, xs and weights of <grads, the backward call's results>. None: 0 or not needed."""
    if any(_have_sums(spec)):
        raise Error("norms: a gradient of a norm over several ranks cannot be differentiated again", "norms")
    if spec.padding == "copy":
        raise Error("norms: with padding 'copy' a gradient of a norm cannot be differentiated again", "norms")
    if all([grad is None for grad in grads]):
        return [None] * (1 + 2 * len(dys) + len(weights))
    creates_graph = torch.is_grad_enabled()
    needs_freqs = side.freqs is not None and (side.freqs.requires_grad or grads[0] is not None)
    with torch.enable_grad():
        (freqs,), dys, xs, weights = [
            [_as_input(t) for t in given] for given in ([side.freqs if needs_freqs else None], dys, xs, weights)
        ]
        results = _formula(api, spec, side._replace(freqs=freqs) if needs_freqs else side, xs, weights)
        of_first = [(t, grad) for t, grad in zip((freqs, *xs, *weights), grads) if grad is not None]
        first = torch.autograd.grad(
            results, [t for t, _ in of_first], [dy.to(y.dtype) for dy, y in zip(dys, results)], create_graph=True,
            allow_unused=True,
        )  # fmt: skip
        pairs = [(d, grad.to(d.dtype)) for d, (_, grad) in zip(first, of_first) if d is not None and d.requires_grad]
        inputs = [freqs, *dys, *xs, *weights]
        present = [t is not None for t in inputs]
        if not pairs:
            return [None] * len(inputs)
        second = torch.autograd.grad(
            [d for d, _ in pairs], [t for t in inputs if t is not None], [grad for _, grad in pairs],
            create_graph=creates_graph, allow_unused=True,
        )  # fmt: skip
    return _expand(present, second)


def _as_input(t):
    """Returns an alias of t, to differentiate results by. Differentiation can go on to the inputs of t."""
    return None if t is None else t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


# ---- Eager autograd ----


class Normed(Function):
    """The results of a call: apply(spec, names, count, *side arrays, *tensors, *weights) returns a tuple. `names` are the
    names of the side arrays."""

    @staticmethod
    def forward(ctx, spec, names, count, *arrays):
        beside, tensors, weights = _cut(len(names), count, arrays)
        results, rstds = _rotate(Launched, spec, _autograd._spread(names, beside), tensors, weights, True)
        ctx.names, saved = _autograd._without_status(names, beside)
        ctx.spec, ctx.count, ctx.beside = spec, count, len(names)
        ctx.wants_freqs = "freqs" in names and ctx.needs_input_grad[3]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved, *_read_xs(spec, tensors, ctx.wants_freqs), *weights, *rstds)
        return tuple(results)

    @staticmethod
    def backward(ctx, *grads):
        _refuse_transforms(grads)
        beside, tensors, weights, rstds = _cut(len(ctx.names), ctx.count, ctx.saved_tensors)
        _, *wants = _cut(3 + ctx.beside, ctx.count, ctx.needs_input_grad)
        side = _autograd._spread(ctx.names, beside)
        d_freqs, d_tensors, d_weights = _backward(
            _find_eager, ctx.spec, side, grads, tensors, weights, rstds, ctx.wants_freqs, *wants
        )
        of_beside = [d_freqs if i == 0 else None for i in range(ctx.beside)]
        return (None, None, None, *of_beside, *d_tensors, *d_weights)


class Gradients(Function):
    """The gradients of a call: apply(spec, names, count, wants, *side arrays, *dys, *xs, *weights, *rstds) returns
    (d_freqs, *d_tensors, *d_weights). An unwanted gradient is None."""

    @staticmethod
    def forward(ctx, spec, names, count, wants, *arrays):
        beside, dys, xs, weights, rstds = _cut(len(names), count, arrays)
        ctx.spec, ctx.names, ctx.count = spec, names, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arrays[: len(names) + 3 * count])
        side = _autograd._spread(names, beside)
        d_freqs, d_tensors, d_weights = _find_gradients(Launched, spec, side, dys, xs, weights, rstds, *wants)
        return (d_freqs, *d_tensors, *d_weights)

    @staticmethod
    def backward(ctx, *grads):
        _refuse_transforms(grads)
        names, count = ctx.names, ctx.count
        beside, dys, xs, weights = _cut(len(names), count, ctx.saved_tensors)
        side = _autograd._spread(names, beside)
        d_freqs, *rest = _second_derivative(_autograd.Eager, ctx.spec, side, dys, xs, weights, grads)
        of_beside = [d_freqs if i == 0 else None for i in range(len(names))]
        return (None, None, None, None, *of_beside, *rest, *[None] * count)


def _cut(first, count, arrays):
    """Returns the first `first` arrays, and then lists of `count` arrays."""
    return [arrays[:first], *[list(arrays[at : at + count]) for at in range(first, len(arrays), count)]]


def _find_eager(spec, side, dys, xs, weights, rstds, *wants):
    """Does the work of _find_gradients, with autograd if the gradients are differentiated further."""
    if not torch.is_grad_enabled():
        return _find_gradients(Launched, spec, side, dys, xs, weights, rstds, *wants)
    names, arrays = _autograd._present(side)
    count = len(dys)
    d_freqs, *rest = Gradients.apply(spec, names, count, wants, *arrays, *dys, *xs, *weights, *rstds)
    return d_freqs, rest[:count], rest[count:]


# ---- The operators of torch.library ----

_TYPES = typing.get_type_hints(NormSettings)
_SCHEMA = ", ".join("%s[] norm_%s" % (_TYPES[name].__name__, name) for name in NormSettings._fields) + ", " + _ops._SCHEMA
_COUNT = len(NormSettings._fields)
_ops._library.define("norm_sums(bool backward, Tensor[] srcs, Tensor[] xs, Tensor[] weights, Tensor[] rstds,"
                     " bool[] wanted, %s) -> Tensor[]" % _SCHEMA)  # fmt: skip
_ops._library.define("rotate_normed(Tensor[] tensors, Tensor[] weights, Tensor[] token_sums, bool writes_rstd, %s) -> Tensor[]"
                     % _SCHEMA)  # fmt: skip
_ops._library.define("rotate_normed_backward(Tensor[] dys, Tensor[] xs, Tensor[] weights, Tensor[] rstds, Tensor[] token_sums,"
                     " bool wants_freqs, bool[] wants_tensors, bool[] wants_weights, %s) -> Tensor[]" % _SCHEMA)  # fmt: skip


def _arguments(side, spec):
    """Returns the last arguments of an operator."""
    return [*[list(values) for values in zip(*spec.norms)], *_ops._arguments(side, spec)]


def _read(rest):
    """Returns (Spec, Side) of the last arguments of an operator, without checks."""
    norms = tuple([NormSettings(*settings) for settings in zip(*rest[:_COUNT])])
    return _ops._spec_of(rest[_COUNT + _ops.SIDE :])._replace(norms=norms), _ops._side_of(rest[_COUNT:])


def _ready(rest, count):
    """Returns (Spec, Side) of the last arguments of an operator, checked for a call of `count` tensors."""
    if any([len(values) != count for values in rest[:_COUNT]]):
        raise Error("norms: the lists of an operator's norms need one entry for each of %d tensors" % count, "norms")
    spec, side = _read(rest)
    ready = _ops._ready_spec(rest[_COUNT + _ops.SIDE :], count, side)
    return intern(ready._replace(norms=spec.norms)), side


def _present(*lists):
    """Returns the tensors that are not None, for operators: torch.library cannot differentiate by lists with None."""
    return [t for given in lists for t in given if t is not None]


def _expand_all(spec, weights, rstds, sums):
    return _expand(_have_weights(spec), weights), _expand(_have_rstds(spec), rstds), _expand(_have_sums(spec), sums)


def _norm_sums(backward, srcs, xs, weights, rstds, wanted, *rest):
    spec, side = _ready(rest, len(srcs))
    weights, rstds, _ = _expand_all(spec, weights, rstds, [])
    return _present(Launched.sums(backward, spec, side, srcs, xs, weights, rstds, wanted))


def _rotate_normed(tensors, weights, token_sums, writes_rstd, *rest):
    spec, side = _ready(rest, len(tensors))
    weights, _, sums = _expand_all(spec, weights, [], token_sums)
    return _present(*Launched.rotate(spec, side, tensors, weights, sums, writes_rstd))


def _rotate_normed_backward(dys, xs, weights, rstds, token_sums, *rest):
    spec, side = _ready(rest[3:], len(dys))
    arrays = _expand_all(spec, weights, rstds, token_sums)
    d_freqs, *gradients = Launched.gradients(spec, side, dys, xs, *arrays, *rest[:3])
    return _present([d_freqs], *gradients)


for _device in ("CPU", "CUDA"):
    _ops._library.impl("norm_sums", _norm_sums, _device)
    _ops._library.impl("rotate_normed", _rotate_normed, _device)
    _ops._library.impl("rotate_normed_backward", _rotate_normed_backward, _device)


@torch.library.register_fake(add_op_namespace_prefix("norm_sums"))
def _(backward, srcs, xs, weights, rstds, wanted, *rest):
    return _present(_new_sums(_read(rest)[0], srcs))


@torch.library.register_fake(add_op_namespace_prefix("rotate_normed"))
def _(tensors, weights, token_sums, writes_rstd, *rest):
    rstds = _new_rstds(_read(rest)[0], tensors) if writes_rstd else []
    return _present([torch.empty_like(x) for x in tensors], rstds)


@torch.library.register_fake(add_op_namespace_prefix("rotate_normed_backward"))
def _(dys, xs, weights, rstds, token_sums, *rest):
    spec, side = _read(rest[3:])
    return _present(*_new_gradients(side, xs, _expand(_have_weights(spec), weights), *rest[:3]))


class Operators:
    """The calls of the library, made through operators."""

    @staticmethod
    def sums(backward, spec, side, srcs, xs, weights, rstds, wanted):
        sums = operators.norm_sums(
            backward, srcs, xs, _present(weights), _present(rstds), wanted, *_arguments(side, spec)
        )  # fmt: skip
        return _expand(_have_sums(spec), sums)

    @staticmethod
    def rotate(spec, side, tensors, weights, sums, writes_rstd):
        arrays = operators.rotate_normed(
            tensors, _present(weights), _present(sums), writes_rstd, *_arguments(side, spec)
        )  # fmt: skip
        return arrays[: len(tensors)], _expand(_have_rstds(spec), arrays[len(tensors) :])

    @staticmethod
    def gradients(spec, side, dys, xs, weights, rstds, sums, *wants):
        arrays = operators.rotate_normed_backward(
            dys, xs, _present(weights), _present(rstds), _present(sums), *wants, *_arguments(side, spec)
        )  # fmt: skip
        wants_freqs, wants_tensors, wants_weights = wants
        d_freqs, *rest = _expand([wants_freqs, *wants_tensors, *wants_weights], arrays)
        return d_freqs, rest[: len(dys)], rest[len(dys) :]


def _save_rotate_normed(ctx, inputs, output):
    tensors, weights, sums, writes_rstd, *rest = inputs
    if not writes_rstd:
        raise Error("writes_rstd is False, but a gradient is needed, which reads rstd", "writes_rstd")
    ctx.spec, side = _read(rest)
    _formulas.refuse_gradients_of_tables(side)
    ctx.counts = len(tensors), len(sums)
    weights, rstds, _ = _expand_all(ctx.spec, weights, output[len(tensors) :], [])
    wants_weights = [weight is not None and weight.requires_grad for weight in weights]
    wants_freqs = side.freqs is not None and side.freqs.requires_grad
    ctx.wants = wants_freqs, [x.requires_grad for x in tensors], wants_weights
    ctx.save_for_backward(*side[: _ops.SIDE], *_read_xs(ctx.spec, tensors, wants_freqs), *weights, *rstds)


def _backward_rotate_normed(ctx, grads):
    spec, (count, sums) = ctx.spec, ctx.counts
    beside, tensors, weights, rstds = _cut(_ops.SIDE, count, ctx.saved_tensors)
    find, side = functools.partial(_find_gradients, Operators), _ops._side_of(beside)
    d_freqs, *gradients = _backward(find, spec, side, grads[:count], tensors, weights, rstds, *ctx.wants)
    return (*_of_operator(spec, gradients), [None] * sums, None, *_after_norms(spec, d_freqs))


def _save_rotate_normed_backward(ctx, inputs, output):
    dys, xs, weights, rstds, sums, *wants = inputs[:8]
    ctx.spec, side = _read(inputs[8:])
    ctx.counts, ctx.wants = (len(dys), len(rstds), len(sums)), wants
    ctx.save_for_backward(*side[: _ops.SIDE], *dys, *xs, *_expand(_have_weights(ctx.spec), weights))


def _backward_rotate_normed_backward(ctx, grads):
    spec, (count, rstds, sums) = ctx.spec, ctx.counts
    beside, dys, xs, weights = _cut(_ops.SIDE, count, ctx.saved_tensors)
    wants_freqs, wants_tensors, wants_weights = ctx.wants
    grads = _expand([wants_freqs, *wants_tensors, *wants_weights], grads)
    d_freqs, *rest = _second_derivative(_ops.Operators, spec, _ops._side_of(beside), dys, xs, weights, grads)
    gradients = _of_operator(spec, _cut(0, count, rest)[1:])
    return (*gradients, [None] * rstds, [None] * sums, None, None, None, *_after_norms(spec, d_freqs))


def _of_operator(spec, gradients):
    """Returns the gradients by tensors and then weights. The operator returns only those that are present."""
    *of_tensors, of_weights = gradients
    return *of_tensors, [d for d, has_weight in zip(of_weights, _have_weights(spec)) if has_weight]


def _after_norms(spec, d_freqs):
    """Returns the gradients by the last arguments of an operator."""
    return (None,) * _COUNT + (d_freqs, *_ops.no_gradients_beside(spec))


torch.library.register_autograd(
    add_op_namespace_prefix("rotate_normed"), _backward_rotate_normed, setup_context=_save_rotate_normed
)
torch.library.register_autograd(
    add_op_namespace_prefix("rotate_normed_backward"),
    _backward_rotate_normed_backward,
    setup_context=_save_rotate_normed_backward,
)

# ---- The functions that trope.torch.rotate calls ----


def _refuse_transforms(tensors):
    if _transforms.are_active(tensors):
        message = (
            "norms: torch.func transforms, forward mode and batched gradients are not for calls with norms: call"
            " torch.autograd.grad once for each gradient, and make the dimension of a vmap one of batch"
        )
        raise Error(message, "norms")


def needs_gradient(side, tensors, weights):
    """Whether autograd needs the gradient of a call."""
    return torch.is_grad_enabled() and any([t.requires_grad for t in (*tensors, *weights, side.freqs) if t is not None])


def rotate(spec, side, tensors, weights, is_eager):
    """Returns the results of a call, with autograd."""
    needed = needs_gradient(side, tensors, weights)
    if not is_eager:
        return _rotate(Operators, spec, side, list(tensors), weights, needed)[0]
    _refuse_transforms((*tensors, *weights))
    if not needed:
        return _rotate(Launched, spec, side, tensors, weights, False)[0]
    names, arrays = _autograd._present(side)
    return Normed.apply(spec, names, len(tensors), *arrays, *tensors, *weights)


def launch(spec, side, tensors, out, weights):
    """Makes the forward call without autograd. It writes its results to `out`."""
    _rotate(Launched, spec, side, tensors, weights, False, out=out)


def launch_backward(spec, side, dys, out, xs, weights, d_weights):
    """Makes the backward call without autograd. It computes rstd again. Writes to `out`, d_weights and side's gradients."""
    for i, settings in enumerate(spec.norms):
        if settings.group:
            name = "norms[%d].process_group" % i
            raise Error("%s: rotate_backward makes one call, and no all-gather: use autograd" % name, name)
    _launch_all(True, spec, side, dys, out, xs, weight=weights, d_weight=d_weights)
