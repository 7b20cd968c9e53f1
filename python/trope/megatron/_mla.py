"""Replacements for Megatron-Core's fused_mla_yarn_rope_apply, the RoPE of multi-latent attention."""

import functools
import sys

import torch
from torch.autograd import Function

from .. import transformer_engine as _te
from .._abi import COPY, MAX_ROTARY_DIM
from .._dropin import (
    arguments, check_tables, check_writable, flag, floats, gradients, indices, integer, optional, refuse_gradient,
)  # fmt: skip
from .._errors import Error
from ..torch import _count_write, _is_eager, _launch, _may_be_marked, _same_strides, rotate, rotate_
from ..torch._autograd import Eager, _spread
from ._move import _move, _resolve_eager, rotate_apart
from ._options import _CP, _T, _check_rows, _pairing, _sequences

# ---- Checks and options ----


def _emb_dim(value, name):
    """Checks the number of elements that rotate."""
    integer(2, MAX_ROTARY_DIM)(value, name)
    if value % 2:
        raise Error("%s must be even, not %d" % (name, value), name)


def _no_interleaving(value, name):
    """Checks rotary_interleaved."""
    flag(value, name)
    if value:
        raise Error("%s must be False: MLA's pairs are interleaved without it" % name, name)


_MLA = {"cos": floats, "sin": floats, "emb_dim": _emb_dim, "rotary_interleaved": _no_interleaving, **_CP}


def _mla_options(
    t, argument, head_dim, words, cos, sin, emb_dim, cu_seqlens, cp_rank, cp_size, inverse=False, remove_interleaving=False,
    position_ids=None,
):  # fmt: skip
    """Checks t [s, b, h, head_dim], or [t, h, head_dim] with cu_seqlens, and returns the options of rotate. Without
    cu_seqlens, cos and sin are already cut for the cp rank. `words` describes the sum that head_dim must equal."""
    _te._check_dims(t, "sbhd" if cu_seqlens is None else "thd", argument)
    if t.shape[-1] != head_dim:
        raise Error("%s has head_dim %d, but %s is %d" % (argument, t.shape[-1], words, head_dim), argument)
    if not cp_rank < cp_size:
        raise Error("cp_rank must be 0 to cp_size - 1 = %d, not %d" % (cp_size - 1, cp_rank), "cp_rank")
    for table, name in ((cos, "cos"), (sin, "sin")):
        if table.dim() != 4 or tuple(table.shape[1:]) != (1, 1, emb_dim):
            raise Error("%s has shape %s, which is not [positions, 1, 1, %d]" % (name, list(table.shape), emb_dim), name)
        if cu_seqlens is None:
            _check_rows(t, table.shape[0], name)
        refuse_gradient(table, name)
    check_tables(cos, sin, t, ("cos", "sin"), argument)
    if position_ids is not None:
        if cu_seqlens is None:
            raise Error("position_ids are only for thd, and cu_seqlens is missing", "position_ids")
        if position_ids.shape[0] != t.shape[0]:
            message = "position_ids has shape %s for %d tokens"
            raise Error(message % (list(position_ids.shape), t.shape[0]), "position_ids")
        options = dict(layout="thd", position_ids=position_ids)
    else:
        options = dict(layout="sbhd") if cu_seqlens is None else _sequences(cu_seqlens, cp_size, cp_rank)
    cos, sin = _same_strides(cos.flatten(1), sin.flatten(1))
    return dict(options, cos=cos, sin=sin, rounding="native", inverse=inverse, **_pairing(False, True, remove_interleaving))


def _check_like(x, name, first, name_of_first):
    """Refuses a tensor whose dtype or device differs from the first tensor of the call."""
    for word, given, wanted in (("dtype", x.dtype, first.dtype), ("device", x.device, first.device)):
        if given != wanted:
            raise Error("%s has %s %s, but %s has %s" % (name, word, given, name_of_first, wanted), name)


def _references(grad):
    """Returns the numbers of references to a gradient, to its memory, and to the tensor that it is a view of, and whether
    PyTorch has allocated the memory."""
    memory, base = grad.untyped_storage(), grad._base
    counts = [sys.getrefcount(grad), grad._use_count(), sys.getrefcount(memory), torch._C._storage_Use_Count(memory._cdata)]
    if base is not None:
        counts += sys.getrefcount(base), base._use_count()
    return [*counts, memory.resizable()]


class _Counted(Function):
    """Appends the _references of its gradient to a list: apply(found, x)."""

    @staticmethod
    def forward(ctx, found, x):
        ctx.found = found
        return x

    @staticmethod
    @gradients
    def backward(ctx, grad):
        ctx.found.append(_references(grad))
        return None, None


@functools.lru_cache(maxsize=None)
def _references_of_backward():
    """Returns the _references of a tensor and of a view that are gradients, and that only the running backward has. They
    differ between versions of Python and PyTorch, so they are counted here. Versions without the counters give []."""
    found = []
    with torch.enable_grad():
        x = torch.zeros(1, device="cpu", requires_grad=True)
        if hasattr(x, "_use_count") and hasattr(torch._C, "_storage_Use_Count"):
            (_Counted.apply(found, x * 1) * 2).backward()
            (_Counted.apply(found, x * 1).view(()) * 2).backward()
    return found


class _InPlace(Function):
    """Rotates t and returns it: apply(spec, names, t, *side arrays).

    As in Megatron-Core, autograd is not told of the write. It would refuse leaves. For a view, such as q in MLA, it would
    copy the whole gradient twice. The version of t is counted, so autograd still raises an error if it saved t.

    Backward writes into the gradient that it receives if nothing else can read it, as autograd does when it adds gradients.
    """

    @staticmethod
    def forward(ctx, spec, names, t, *arrays):
        ctx.words = spec, names, _references_of_backward()
        ctx.save_for_backward(*arrays)
        _launch.launch(False, spec, [t], [t], (None,), _spread(names, arrays))
        _count_write(t)
        return t

    @staticmethod
    @gradients
    def backward(ctx, grad):
        spec, names, unshared = ctx.words
        side = _spread(names, ctx.saved_tensors)
        if torch.is_grad_enabled():
            (d,) = Eager.rotate(True, spec, side, [grad])
        else:
            can_be_written = type(grad) is torch.Tensor and grad.is_contiguous() and not grad.is_neg()
            d = grad if can_be_written and _references(grad) in unshared else grad.new_empty(grad.shape)
            _launch.launch(True, spec, [grad], [d], (None,), side)
        return (None, None, d) + (None,) * len(names)


def _is_of_leaf(t):
    """Whether t, which requires a gradient, is a leaf or a view of one."""
    return t.is_leaf or (t._is_view() and t._base.is_leaf and t._base.requires_grad)


def _rotate_in_place(t, options):
    """Rotates t in place, even if t is a leaf, and returns it with autograd."""
    eager = _is_eager((t,))
    if eager:
        check_writable(t, "t")
    if not (t.requires_grad and torch.is_grad_enabled()):
        return rotate_(t, **options)
    if torch.compiler.is_compiling():
        if t.is_leaf:  # a graph cannot write to a leaf or ask whether a backward is running: break the graph here
            return torch.compiler.disable(_rotate_in_place)(t, options)
        return rotate_(t, **options)
    if not eager:
        if not _may_be_marked(t):
            message = (
                "t is a leaf that requires a gradient, or a view that autograd does not let change in place. A dispatch "
                "mode or a subclass of Tensor cannot write to it: clone it, or rotate out of place"
            )
            raise Error(message, "t")
        return rotate_(t, **options)
    # A reentrant checkpoint runs again during its backward. Its inputs are detached, and the first run has rotated them.
    if torch._C._current_graph_task_id() != -1 and _is_of_leaf(t):
        message = (
            "t is a leaf that requires a gradient, or a view of one, and autograd is running a backward: a checkpoint that runs"
            " again would rotate memory that is rotated already. Rotate out of place (fused_mla_rope_out_of_place), or let the"
            " checkpoint begin before the operation that computes t"
        )
        raise Error(message, "t")
    spec, names, arrays = _resolve_eager(1, options)
    return _InPlace.apply(spec, names, t, *arrays)


_OF_Q = {
    **_MLA, "t": floats, "nope_dim": integer(0, MAX_ROTARY_DIM), "cu_seqlens_q": optional(indices), "inverse": flag,
    "remove_interleaving": flag, "position_ids": optional(indices),
}  # fmt: skip
_OF_Q_NAMES = {**_T, "cu_seqlens": "cu_seqlens_q"}


@arguments(_OF_Q_NAMES, **_OF_Q)
def fused_mla_rope_out_of_place(
    t, cos, sin, nope_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1, rotary_interleaved=False, inverse=False,
    remove_interleaving=False, position_ids=None,
):  # fmt: skip
    """Rotates the last emb_dim elements of each head of t, [s, b, h, nope_dim + emb_dim] or [t, h, nope_dim + emb_dim].

    Arguments:
        cos, sin: [positions, 1, 1, emb_dim], with a column for each element of the result in half pairing.
        cu_seqlens_q: [sequences + 1]; t is then thd. cp_rank and cp_size are used only with it.
        remove_interleaving: True keeps the pairs 2i and 2i + 1. False makes them i and i + emb_dim/2.
        position_ids: [t] int32 or int64, for thd. They replace the positions in the sequences.
    """
    words = cos, sin, emb_dim, cu_seqlens_q, cp_rank, cp_size, inverse, remove_interleaving, position_ids
    options = _mla_options(t, "t", nope_dim + emb_dim, "nope_dim + emb_dim", *words)
    return rotate_apart(t, rotary_dim=emb_dim, rotary_offset=nope_dim, **options)


@arguments(_OF_Q_NAMES, **_OF_Q, rope_first=flag)
def fused_mla_rope_inplace(
    t, cos, sin, nope_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1, rotary_interleaved=False, inverse=False,
    remove_interleaving=False, position_ids=None, rope_first=False,
):  # fmt: skip
    """fused_mla_rope_out_of_place in place. Continue with the returned tensor, which has the gradient.

    t may be a leaf that requires a gradient, or a view of one. Its data is rotated, and its gradient is with respect to t
    before the call. If another operation saved t for its backward, autograd raises an error.

    Arguments:
        rope_first: True rotates the first emb_dim elements of each head instead of the last.
    Raises:
        trope.Error: names the argument. A leaf, or a view of one, is refused while autograd runs a backward: a reentrant
            activation checkpoint would rotate it a second time.
    """
    words = cos, sin, emb_dim, cu_seqlens_q, cp_rank, cp_size, inverse, remove_interleaving, position_ids
    options = _mla_options(t, "t", nope_dim + emb_dim, "nope_dim + emb_dim", *words)
    return _rotate_in_place(t, dict(options, rotary_dim=emb_dim, rotary_offset=0 if rope_first else nope_dim))


@arguments(
    _OF_Q_NAMES, **_MLA, t=floats, qk_head_dim=integer(0, MAX_ROTARY_DIM), cu_seqlens_q=optional(indices)
)  # fmt: skip
def fused_apply_mla_rope_for_q(
    t, cos, sin, qk_head_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1, rotary_interleaved=False
):
    """The older name of fused_mla_rope_inplace. It also accepts leaves."""
    words = cos, sin, emb_dim, cu_seqlens_q, cp_rank, cp_size
    options = _mla_options(t, "t", qk_head_dim + emb_dim, "qk_head_dim + emb_dim", *words)
    return _rotate_in_place(t, dict(options, rotary_dim=emb_dim, rotary_offset=qk_head_dim))


_OF_KV = {
    **_MLA, "kv": floats, "k_pos_emb": floats, "k_dim": integer(1), "v_dim": integer(1), "cu_seqlens_kv": optional(indices)
}  # fmt: skip
_OF_KV_NAMES = {"tensors[0]": "kv", "tensors[1]": "k_pos_emb", "tensors[2]": "kv", "cu_seqlens": "cu_seqlens_kv"}


@arguments(_OF_KV_NAMES, **_OF_KV, remove_interleaving=flag)
def fused_mla_rope_kv_split(
    kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv=None, cp_rank=0, cp_size=1, rotary_interleaved=False,
    remove_interleaving=False,
):  # fmt: skip
    """Makes key and value in one launch from kv [s, b, h, k_dim + v_dim] and k_pos_emb [s, b, 1, emb_dim] (or [t, ...]
    each). All heads share k_pos_emb.

    Return:
        key [..., h, k_dim + emb_dim], with the rotated k_pos_emb at the end of each head, and value [..., h, v_dim]. Both
        are contiguous.
    The other arguments are those of fused_mla_rope_out_of_place.
    """
    words = cos, sin, emb_dim, cu_seqlens_kv, cp_rank, cp_size, False, remove_interleaving
    return _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, words)


def _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, words):
    """fused_mla_rope_kv_split of checked arguments. `words` is passed to _mla_options."""
    options = _mla_options(kv, "kv", k_dim + v_dim, "k_dim + v_dim", *words)
    *before, heads, _ = kv.shape
    if list(k_pos_emb.shape) != [*before, 1, emb_dim]:
        given = list(k_pos_emb.shape), [*before, 1, emb_dim]
        raise Error("k_pos_emb has shape %s, and must have %s" % given, "k_pos_emb")
    _check_like(k_pos_emb, "k_pos_emb", kv, "kv")
    options.update(rotary_dim=(COPY, emb_dim, COPY), shared_heads=(0, heads, 0))
    if not _is_eager((kv, k_pos_emb)):
        k, k_pos_emb, v = rotate(kv[..., :k_dim], k_pos_emb, kv[..., k_dim:], **options)
        return torch.cat((k, k_pos_emb), -1), v.contiguous()

    def parts(kv, k_pos_emb, key, value):
        k, v = kv.split_with_sizes((k_dim, v_dim), -1)
        key, rotated = key.split_with_sizes((k_dim, emb_dim), -1)
        return (k, key), (k_pos_emb, rotated), (v, value)

    return _move(parts, [(*before, heads, k_dim + emb_dim), (*before, heads, v_dim)], (kv, k_pos_emb), options)


@arguments(_OF_KV_NAMES, **_OF_KV)
def fused_apply_mla_rope_for_kv(
    kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv=None, cp_rank=0, cp_size=1, rotary_interleaved=False
):
    """The older name of fused_mla_rope_kv_split."""
    return _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, (cos, sin, emb_dim, cu_seqlens_kv, cp_rank, cp_size))


@arguments(
    {"tensors[0]": "nope", "tensors[1]": "rope"}, nope=floats, rope=floats, cos=floats, sin=floats,
    cu_seqlens=optional(indices), **_CP,
)  # fmt: skip
def fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens=None, cp_rank=0, cp_size=1):
    """Makes [..., h, nope_dim + emb_dim] in one launch from nope [..., h, nope_dim] and rotated rope [..., h, emb_dim]."""
    _te._check_dims(rope, "sbhd" if cu_seqlens is None else "thd", "rope")
    nope_dim, emb_dim = nope.shape[-1] if nope.dim() else 0, rope.shape[-1]
    if nope.shape[:-1] != rope.shape[:-1] or nope.dim() != rope.dim() or nope_dim < 1:
        raise Error("nope has shape %s, but rope has %s" % (list(nope.shape), list(rope.shape)), "nope")
    _check_like(nope, "nope", rope, "rope")
    if emb_dim < 2 or emb_dim % 2:
        raise Error("rope has %d elements, which must be even, and 2 or more" % emb_dim, "rope")
    options = _mla_options(rope, "rope", emb_dim, "emb_dim", cos, sin, emb_dim, cu_seqlens, cp_rank, cp_size)
    options["rotary_dim"] = COPY, emb_dim
    if not _is_eager((nope, rope)):
        return torch.cat(rotate(nope, rope, **options), -1)

    def parts(nope, rope, out):
        return (nope, out[..., :nope_dim]), (rope, out[..., nope_dim:])

    return _move(parts, [(*nope.shape[:-1], nope_dim + emb_dim)], (nope, rope), options)[0]
