"""trope for PyTorch: autograd (twice), torch.compile without graph breaks, CUDA graphs; on the CPU and on CUDA.

    q, k = trope.torch.rotate(q, k, layout="bshd", pairing="half", inv_freq=trope.frequencies("config.json"))

A call is queued on the current stream of the tensors' device. Tensors may have any strides: views of packed QKV, transposed
tensors and expanded tensors (such as upstream gradients) are read without a copy. Results have the order of dimensions in
memory that eager PyTorch would give them. The bits depend neither on strides, nor on whether activation checkpointing runs
a call again. They do not depend on torch.compile either, except with learned frequencies.

`norms` takes a trope.Norm or an RMSNorm module for each tensor. The weights of the norms have gradients too.

`rotate`, `rotate_` and `rotate_backward` also work on meta tensors. Without norms they also work under torch.func (grad,
vjp, jvp, vmap), in forward mode, and with batched gradients (is_grads_batched, vectorize=True). Transforms inside
torch.compile are refused. So are gradients of cos and sin: pass freqs instead.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Sequence, Tuple, overload

import torch
from torch import Tensor

from .. import _spec
from .._errors import Error
from .._norms import resolve_norms
from .._options import ARRAYS, DEFAULTS, NO_ARRAYS, Options, document, with_gradients
from .._spec import resolve, result_shape
from .._values import integer, one_each
from ..frequencies import frequency_list

if not hasattr(torch.library, "register_autograd"):
    raise ImportError("trope.torch needs PyTorch 2.4 or later, and this is %s" % torch.__version__)

from . import _autograd, _formulas, _launch, _norm_modules, _norms, _ops, _ranks, _transforms  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["RotaryEmbedding", "rotate", "rotate_", "rotate_backward", "rotate_backward_"]

_MAX_POSITION_ALONE = "max_position is for an inv_freq that is learned: a Parameter, or a tensor that requires a gradient"
_compiles = torch.compiler.is_compiling
_count_modes = torch._C._len_torch_dispatch_stack
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_eager(tensors):
    """Whether PyTorch runs the call directly: without tracing, dispatch modes or subclasses of Tensor."""
    if _compiles() or _count_modes():
        return False
    for t in tensors:
        if type(t) not in _PLAIN:
            return False
    return True


def _requires_grad(tensors):
    for t in tensors:
        if t.requires_grad:
            return True
    return False


def _is_distributed(t):
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(t, distributed.DTensor)


def _is_ordinary(t):
    """Whether t can skip _check_tensor, which is slower. (A backward under torch.compile cannot read the layout of t.)"""
    return type(t) in _PLAIN and t.layout is torch.strided and not t.is_nested


def _check_tensor(t, name):
    """Refuses everything except ordinary tensors with memory of their own. The error says what to pass instead."""
    if not isinstance(t, torch.Tensor):
        raise Error("%s must be a torch tensor, as the tensors of the call are, not %s" % (name, type(t).__name__), name)
    layout = torch.strided if _compiles() else t.layout  # torch.compile does not let a backward read t.layout
    if layout is torch.jagged or t.is_nested:
        message = "%s is a nested tensor: pass its values(), with layout 'thd' and its offsets() as cu_seqlens"
        raise Error(message % name, name)
    if layout is not torch.strided:
        raise Error("%s has layout %s: pass to_dense()" % (name, layout), name)
    if _is_distributed(t):
        message = "%s is a DTensor, and the tensors are not: pass to_local(), and cp_size and cp_rank if its tokens are split over ranks"
        raise Error(message % name, name)


def _resolve(tensors, options, max_position=None, accumulates=False):
    """Returns the Spec, the Side, and the norms' weights (or None) of each tensor: () if there are no norms.

    A learned inv_freq is replaced by a table, through which autograd computes its gradient.

    accumulates: whether the call may add to its destination. (Refusals are here, because torch.compile cannot return a Spec
        from a function and refuse afterwards.)
    """
    if not tensors:
        raise Error("tensors: none is given", "tensors")
    compiles = _compiles()
    for i, t in enumerate(tensors):
        if compiles or not _is_ordinary(t):
            _check_tensor(t, "tensors[%d]" % i)
    if compiles or _count_modes():
        _launch.refuse_transforms()
    if max_position is not None:
        integer(max_position, "max_position", 1)
        if not isinstance(options.get("inv_freq"), Tensor):
            raise Error(_MAX_POSITION_ALONE, "max_position")
    if isinstance(options.get("inv_freq"), Tensor):
        options = _without_inv_freq_as_tensor(options, tensors[0], max_position)
    norms = options.get("norms")
    if norms is not None:
        options = dict(options, norms=None)
    for name in ("freqs", "cos", "sin"):  # resolve reads their shapes
        t = options.get(name)
        if t is not None and (compiles or not _is_ordinary(t)):
            _check_tensor(t, name)
    spec, side = resolve(tensors, options, _spec.make_spec if compiles else _spec.cached_spec)
    if compiles or side is not NO_ARRAYS:
        for name, t in zip(ARRAYS, side):
            if t is not None and (compiles or not _is_ordinary(t)):
                _check_tensor(t, name)
    if side.cos is not None and torch.is_grad_enabled():
        _formulas.refuse_gradients_of_tables(side)
    if spec.accumulate and not accumulates:
        raise Error("accumulate is only for rotate_backward with out, because it adds to out", "accumulate")
    if side.status is not None and (not _is_eager(tensors) or _transforms.are_active()):
        raise Error("status is only for eager calls, not for torch.compile, dispatch modes or transforms", "status")
    if norms is None:
        return spec, side, ()
    spec, weights = resolve_norms(spec, tensors, norms, _norm_modules.find_norm)
    for i, weight in enumerate(weights):
        if weight is not None:
            _check_tensor(weight, "norms[%d].weight" % i)
    return _formulas.interned(spec), side, weights


def _without_inv_freq_as_tensor(options, x, max_position):
    inv_freq = options["inv_freq"]
    _check_tensor(inv_freq, "inv_freq")
    if isinstance(inv_freq, torch.nn.Parameter) or inv_freq.requires_grad or _transforms.is_followed(inv_freq):
        table = _table_of(inv_freq, x, max_position, options)
        return dict(options, inv_freq=None, freqs=table, angle_columns="pair")
    if max_position is not None:
        raise Error(_MAX_POSITION_ALONE, "max_position")
    if inv_freq.is_meta and x.is_meta:  # it has no values, and a meta result needs none
        return dict(options, inv_freq=[1.0] * inv_freq.numel())
    return dict(options, inv_freq=frequency_list(inv_freq))


def _table_of(inv_freq, x, max_position, options):
    """Returns freqs [positions, pairs] with autograd. Products are computed in double and rounded once."""
    for name in ("freqs", "cos", "sin", "angle_columns"):
        if options.get(name) is not None:
            raise Error("inv_freq is given beside %s: give one of them" % name, "inv_freq")
    if options.get("out_of_range", DEFAULTS["out_of_range"]) != DEFAULTS["out_of_range"]:
        message = "out_of_range is %r, but it is only for tables: with inv_freq, no position is out of range"
        raise Error(message % (options["out_of_range"],), "out_of_range")
    if inv_freq.dtype not in (torch.float32, torch.float64):
        message = (
            "inv_freq has dtype %s, with which positions in the thousands are rotated by wrong angles: keep it in float32"
            " (with FSDP: leave it out of mixed precision)"
        )
        raise Error(message % inv_freq.dtype, "inv_freq")
    if inv_freq.dim() != 1:
        raise Error("inv_freq has shape %s, and must be [rotary_dim / 2]" % list(inv_freq.shape), "inv_freq")
    if inv_freq.device != x.device:
        raise Error("inv_freq is on %s, but tensors[0] is on %s" % (inv_freq.device, x.device), "inv_freq")
    if max_position is None:
        for name in ("position_ids", "start_positions"):
            if options.get(name) is not None:
                message = (
                    "max_position is missing: with a learned inv_freq and %s, it is the number of rows of the table of "
                    "angles, one more than the largest position"
                )
                raise Error(message % name, "max_position")
        layout, cp_size = options.get("layout"), options.get("cp_size")
        known = layout in _spec.DIMS and x.dim() == len(layout) if isinstance(layout, str) else False
        tokens = x.shape[_spec.DIMS[layout].tokens] if known else 1
        max_position = tokens * (1 if cp_size is None else integer(cp_size, "cp_size", 1))
    positions = torch.arange(max_position, device=inv_freq.device, dtype=torch.float64)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (positions[:, None] * inv_freq.double()).to(dtype)


def _same_strides(cos, sin):
    """Returns both tables with the same strides, as rotate requires."""
    return (cos, sin) if sin.stride() == cos.stride() else (cos.contiguous(), sin.contiguous())


def _call_locally(function, tensors, options):
    from . import _distributed  # imported here because it imports torch.distributed

    name = function.__name__
    return _distributed.call(function, name.startswith("rotate_backward"), name.endswith("_"), tensors, options)


def _tell_ranks(tensors, norms, refusal):
    """Tells the ranks of the norms that this rank refuses a call, if it would have run directly."""
    given = [t for t in tensors if isinstance(t, Tensor)]
    if _is_eager(given) and not _launch.are_transforms_active() and not any([t.is_meta for t in given]):
        _ranks.refuse(norms, any([t.is_cuda for t in given]), refusal)


def _in_the_callers_words(function):
    """Wraps a function so that errors name inv_freq, not the table made from it, so that DTensors run on each rank, and so
    that ranks that share the heads of a token hear of a refusal."""
    has_ranks = not function.__name__.startswith("rotate_backward")

    @functools.wraps(function)
    def call(*tensors, **options):
        for t in tensors:
            if type(t) not in _PLAIN and _is_distributed(t):
                return _call_locally(call, tensors, options)
        is_learned = isinstance(options.get("inv_freq"), Tensor) and options.get("freqs") is None
        norms = options.get("norms")
        if not (is_learned or norms is not None) or _compiles():
            return function(*tensors, **options)
        agreements = _ranks.count()
        try:
            return function(*tensors, **options)
        except Exception as error:
            refusal = error
            if is_learned and isinstance(error, Error):
                text = str(error).replace("the last row of freqs", "max_position - 1")
                refusal = Error(text, error.argument, error.status).renamed({"freqs": "inv_freq"})
            if has_ranks and norms is not None and _ranks.count() == agreements:
                _tell_ranks(tensors, norms, refusal)
            if refusal is error:
                raise
            raise refusal from None

    return call


def _present(arrays):
    return [t for t in arrays if t is not None]


def _refuse_inference(tensors, side, weights=()):
    """Refuses inference tensors, because autograd cannot save them for backward."""
    named = [("tensors[%d]" % i, t) for i, t in enumerate(tensors)] + list(zip(ARRAYS, side))
    named += [("norms[%d].weight" % i, t) for i, t in enumerate(weights)]
    for name, t in named:
        if t is not None and t.is_inference():
            raise Error("%s is an inference tensor, which cannot be saved for backward: clone it" % name, name)


@overload
def rotate(
    x: Tensor,
    /,
    *,
    out: Tensor | Sequence[Tensor] | None = None,
    max_position: int | None = None,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def rotate(
    x: Tensor,
    y: Tensor,
    /,
    *more: Tensor,
    out: Sequence[Tensor] | None = None,
    max_position: int | None = None,
    **options: Unpack[Options],
) -> Tuple[Tensor, ...]: ...
@_in_the_callers_words
def rotate(*tensors, out=None, max_position=None, **options):
    if out is not None:
        return _rotate_out(False, tensors, out, max_position, options)
    spec, side, weights = _resolve(tensors, options, max_position)
    if weights:
        is_eager = _is_eager([*tensors, *_present(weights)])
        if is_eager and _norms.needs_gradient(side, tensors, weights):
            _refuse_inference(tensors, side, weights)
        results = _norms.rotate(spec, side, tensors, weights, is_eager)
    elif not _is_eager(tensors):
        results = _ops.Operators.rotate(False, spec, side, list(tensors))
    elif _transforms.are_active(tensors):
        results = _transforms.Transformed.rotate(False, spec, side, list(tensors))
    elif _requires_grad(tensors) or (side.freqs is not None and side.freqs.requires_grad):
        if torch.is_grad_enabled():
            _refuse_inference(tensors if side.freqs is not None and side.freqs.requires_grad else (), side)
        results = _autograd.Eager.rotate(False, spec, side, tensors)
    else:
        results = _launch.rotate(False, spec, side, tensors)
    return results[0] if len(tensors) == 1 else tuple(results)


@overload
def rotate_(x: Tensor, /, *, max_position: int | None = None, **options: Unpack[Options]) -> Tensor: ...
@overload
def rotate_(
    x: Tensor, y: Tensor, /, *more: Tensor, max_position: int | None = None, **options: Unpack[Options]
) -> Tuple[Tensor, ...]: ...
@_in_the_callers_words
def rotate_(*tensors, max_position=None, **options):
    spec, side, weights = _resolve(tensors, options, max_position)
    if weights and _norms.needs_gradient(side, tensors, weights):
        raise Error("norms: their gradients need the original tensors: use rotate, not rotate_", "norms")
    if side.freqs is not None and side.freqs.requires_grad and torch.is_grad_enabled():
        raise Error("the gradient of freqs needs the original tensors: use rotate, not rotate_", "freqs")
    _check_in_place(spec, tensors, "rotate")
    if not _is_eager([*tensors, *_present(weights)]) or _transforms.are_active(tensors):
        rotated = rotate(*tensors, max_position=max_position, **options)
        for x, y in zip(tensors, (rotated,) if len(tensors) == 1 else rotated):
            x.copy_(y)
        return tensors[0] if len(tensors) == 1 else tensors
    needed = torch.is_grad_enabled() and [i for i, t in enumerate(tensors) if t.requires_grad]
    for i in needed or ():
        if tensors[i].is_leaf:
            raise Error(
                "tensors[%d] is a leaf that requires a gradient: autograd needs its original values" % i, "tensors[%d]" % i
            )
    _write_in_place(False, spec, side, tensors, needed or (), weights)
    return tensors[0] if len(tensors) == 1 else tensors


def _check_in_place(spec, tensors, otherwise):
    if any(spec.shared_heads):
        raise Error("shared_heads changes the shape of the result: use %s" % otherwise, "shared_heads")
    for i, x in enumerate(tensors):
        for j in range(i):
            if x is tensors[j]:
                raise Error(
                    "tensors[%d] is the same as tensors[%d], and would be rotated twice" % (i, j), "tensors[%d]" % i
                )


def _count_write(t):
    """Counts a write to t, so that autograd raises an error if it saved t. (Inference mode counts no writes.)"""
    if not t.is_inference():
        torch.autograd.graph.increment_version(t)


def _write_in_place(transposed, spec, side, tensors, needed, weights=()):
    """Runs the call in place. It first refuses tensors that autograd does not let change. Autograd is told of the write
    after the call, so a failed call leaves no trace."""
    for i in needed:
        if not _may_be_marked(tensors[i]):
            message = (
                "tensors[%d] is a view that autograd does not let change in place, because it is a view of a leaf or one "
                "of multiple views (split, unbind): use rotate"
            )
            raise Error(message % i, "tensors[%d]" % i)
    if needed:
        _refuse_inference((), side)
    data = [t.detach() for t in tensors]
    if weights:
        _norms.launch(spec, side, data, data, weights)
    else:
        _launch.launch(transposed, spec, data, data, (None,) * len(data), side)
    for i, t in enumerate(tensors):
        if i in needed:
            _autograd.Eager.mark_rotated(spec, i, side, t)
        else:
            _count_write(t)


def _may_be_marked(x):
    """Whether autograd lets x change: x is no leaf, no view of one, and not from unbind, split, chunk or a Function."""
    metas = torch._C._autograd
    if x.is_leaf or not x._is_view():
        return not x.is_leaf
    of_leaf = x._base.is_leaf and x._base.requires_grad
    return not of_leaf and metas._get_creation_meta(x) == metas.CreationMeta.DEFAULT


def _rotate_out(
    backward,
    tensors,
    out,
    max_position,
    options,
    forward_src=None,
    d_freqs=None,
    d_inv_freq=None,
    d_weights=None,
    blamed="out",
):
    """Writes the result to `out`, without autograd."""
    if not _compiles() and _transforms.are_active(tensors):
        message = "%s is written, which torch.func transforms, forward mode and batched gradients do not see: leave it out"
        raise Error(message % blamed, blamed)
    spec, side, weights = _resolve(tensors, options, max_position, accumulates=backward)
    out = one_each(out, "out", len(tensors))
    forward_src = one_each(forward_src, "forward_src", len(tensors))
    d_weights = one_each(d_weights, "d_weights", len(tensors))
    if _present(d_weights) and not weights:
        raise Error("d_weights is given, and norms is not", "d_weights")
    for name, given in (("out", out), ("forward_src", forward_src), ("d_weights", d_weights)):
        for i, t in enumerate(given):
            if t is not None:
                _check_tensor(t, "%s[%d]" % (name, i))
    for name, t in (("d_freqs", d_freqs), ("d_inv_freq", d_inv_freq)):
        if t is not None:
            _check_tensor(t, name)
    if d_inv_freq is not None and isinstance(options.get("inv_freq"), Tensor) and options["inv_freq"].requires_grad:
        message = "d_inv_freq is given, but inv_freq requires a gradient: use autograd's gradient, or detach inv_freq"
        raise Error(message, "d_inv_freq")
    named = [("tensors[%d]" % i, t) for i, t in enumerate(tensors)] + [("out[%d]" % i, t) for i, t in enumerate(out)]
    named += [("norms[%d].weight" % i, t) for i, t in enumerate(() if backward else weights)]
    for name, t in named if torch.is_grad_enabled() else ():
        if t is not None and t.requires_grad:
            message = "%s is outside of autograd, but %s requires a gradient: use torch.no_grad(), or leave out %s"
            raise Error(message % (blamed, name, blamed), blamed)
    if torch.is_grad_enabled() and not backward and side.freqs is not None and side.freqs.requires_grad:
        raise Error("out is outside of autograd, but the frequencies require a gradient: leave out `out`", "out")
    if not _is_eager(_present((*tensors, *out, d_freqs, d_inv_freq, *weights, *d_weights))):
        if weights and backward:
            raise Error("norms: their backward is only for eager calls, not for torch.compile or dispatch modes", "norms")
        for name, t in (("d_freqs", d_freqs), ("d_inv_freq", d_inv_freq), ("accumulate", spec.accumulate or None)):
            if t is not None:
                raise Error("%s is only for eager calls, not for torch.compile or dispatch modes" % name, name)
        return _copy_out(backward, spec, side, tensors, out, weights)
    side = with_gradients(side, d_freqs, d_inv_freq)
    if not weights:
        _launch.launch(backward, spec, tensors, out, forward_src, side)
    elif not backward:
        _norms.launch(spec, side, tensors, out, weights)
    else:
        _norms.launch_backward(spec, side, tensors, out, forward_src, weights, d_weights)
    for t in (*out, d_freqs, d_inv_freq, *d_weights, side.status):
        if t is not None:
            _count_write(t)
    return out[0] if len(tensors) == 1 else tuple(out)


def _copy_out(backward, spec, side, tensors, out, weights=()):
    """Computes new results and copies them to `out`. torch.compile and dispatch modes do not see the writes of a launch."""
    for i, x in enumerate(out):
        shape = tuple(result_shape(backward, spec, i, tensors[i].shape))
        for what, given, needed in (
            ("is on", x.device, tensors[0].device),
            ("has dtype", x.dtype, tensors[i].dtype),
            ("has shape", tuple(x.shape), shape),
        ):
            if given != needed:
                raise Error("out[%d] %s %s, and must have %s" % (i, what, given, needed), "out[%d]" % i)
    if weights:
        results = _norms.rotate(spec, side, tensors, weights, False)
    else:
        results = _ops.Operators.rotate(backward, spec, side, list(tensors))
    for x, y in zip(out, results):
        x.copy_(y)
    return out[0] if len(tensors) == 1 else tuple(out)


@overload
def rotate_backward(
    x: Tensor,
    /,
    *,
    out: Tensor | Sequence[Tensor] | None = None,
    forward_src: Tensor | Sequence[Tensor] | None = None,
    d_freqs: Tensor | None = None,
    d_inv_freq: Tensor | None = None,
    d_weights: Tensor | Sequence[Tensor | None] | None = None,
    max_position: int | None = None,
    **options: Unpack[Options],
) -> Tensor: ...
@overload
def rotate_backward(
    x: Tensor,
    y: Tensor,
    /,
    *more: Tensor,
    out: Sequence[Tensor] | None = None,
    forward_src: Sequence[Tensor | None] | None = None,
    d_freqs: Tensor | None = None,
    d_inv_freq: Tensor | None = None,
    d_weights: Tensor | Sequence[Tensor | None] | None = None,
    max_position: int | None = None,
    **options: Unpack[Options],
) -> Tuple[Tensor, ...]: ...
@_in_the_callers_words
def rotate_backward(
    *tensors, out=None, forward_src=None, d_freqs=None, d_inv_freq=None, d_weights=None, max_position=None, **options
):
    written = dict(d_freqs=d_freqs, d_inv_freq=d_inv_freq, d_weights=d_weights)
    if out is None and forward_src is None and all([t is None for t in written.values()]):
        spec, side, weights = _resolve(tensors, options, max_position)
        _refuse_without_forward_src(weights)
        apply = _ops.Operators if not _is_eager(tensors) else _autograd.Eager
        results = apply.rotate(True, spec, side, list(tensors))
        return results[0] if len(tensors) == 1 else tuple(results)
    blamed = "out"
    if out is None:
        blamed = next((name for name, t in written.items() if t is not None), "forward_src")
        spec, _, _ = _resolve(tensors, options, max_position)
        out = [_launch.new_result(True, spec, i, x.detach()) for i, x in enumerate(tensors)]
    return _rotate_out(True, tensors, out, max_position, options, forward_src, **written, blamed=blamed)


def _refuse_without_forward_src(weights):
    if weights:
        message = "forward_src is missing: the backward of norms reads x of the forward call (rotate_backward takes it)"
        raise Error(message, "forward_src")


@overload
def rotate_backward_(x: Tensor, /, *, max_position: int | None = None, **options: Unpack[Options]) -> Tensor: ...
@overload
def rotate_backward_(
    x: Tensor, y: Tensor, /, *more: Tensor, max_position: int | None = None, **options: Unpack[Options]
) -> Tuple[Tensor, ...]: ...
@_in_the_callers_words
def rotate_backward_(*tensors, max_position=None, **options):
    spec, side, weights = _resolve(tensors, options, max_position)
    _refuse_without_forward_src(weights)
    _check_in_place(spec, tensors, "rotate_backward")
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise Error("rotate_backward_ is outside of autograd, but a tensor requires a gradient", "tensors")
    if not _is_eager(tensors):
        _copy_out(True, spec, side, tensors, tensors)
    elif _transforms.are_active(tensors):
        for x, y in zip(tensors, _transforms.Transformed.rotate(True, spec, side, list(tensors))):
            x.copy_(y)
    else:
        _write_in_place(True, spec, side, tensors, ())
    return tensors[0] if len(tensors) == 1 else tensors


document(
    rotate,
    "Rotates all tensors in one call: y = M x for each pair. Autograd covers the tensors, freqs and inv_freq.",
)
document(
    rotate_,
    "Rotates in place, with autograd: x = M x. Leaves that require a gradient, and freqs that require one, are refused.",
)
document(
    rotate_backward,
    "Applies the transpose, dx = M' dy, with the arguments of the forward call. Also computes the gradient of the angles.",
)
document(
    rotate_backward_,
    "Applies the transpose in place, without autograd: x = M' x. With mscale 1, this undoes rotate_.",
)

from ._modules import RotaryEmbedding  # noqa: E402 (it calls rotate)
