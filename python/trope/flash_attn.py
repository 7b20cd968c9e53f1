"""The rotary functions of flash-attention (flash_attn.layers.rotary, flash_attn.ops.triton.rotary) and of quack, by their
names.

    from trope.flash_attn import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_qkv_

Shapes, arguments and numbers are theirs: tables of half width, fp32 inside, one rounding at the store (last bits may
differ: which product of a sum is fused). Strides may be any, tables float32, float16 or bfloat16 whatever the tensors are,
devices the CPU too, and head_dim over 256. What differs:

- A POSITION BEYOND THE TABLE. Theirs leaves such tokens as they are, unrotated. Here the call is an error where the host
  can see it (seqlen, integer offsets, anything on the CPU), else the token becomes NaN (seqlen_offsets and cu_seqlens on a
  GPU).
- A sequence of cu_seqlens that is longer than max_seqlen is rotated to its end; theirs stops at max_seqlen. Tokens after
  the last sequence stay, or are copied; theirs leaves those of a new result unset.
- Under autograd in place: what is returned is the tensor that was given, which autograd knows to be rotated, so that it may
  be used further by either name. Only of leaves, of their views, and of what unbind, split or chunk gave, use what is
  returned: autograd does not let these be changed, so that they are changed without it, as theirs are. A view of a larger
  tensor (a reshaped projection) costs autograd copies of the gradient; headdim= spares them, and so does inplace=False.
- Gradients are never written over. They can be differentiated again. None are for cos and sin: those that require one are
  refused.
"""

from typing import NamedTuple

import torch as _torch

from . import torch as _rotations
from ._abi import COPY, MAX_ROTARY_DIM
from ._dropin import (
    arguments, check_tables, check_writable, flag, floats, gradients, indices, integer, optional, positive,
    refuse_gradient, shown,
)  # fmt: skip
from ._errors import Error
from .torch import _compiles
from .torch._modules import keep_precision

__all__ = [
    "RotaryEmbedding", "apply_rotary", "apply_rotary_emb", "apply_rotary_emb_func", "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_", "apply_rotary_emb_torch",
]  # fmt: skip


# ---- What is given ----


def _check_rank(x, rank, name, shape):
    if x.dim() != rank:
        raise Error("%s must be %s, not %s" % (name, shape, list(x.shape)), name)


def _check_table(cos, sin, x, x_name, head_dim, suffix=""):
    """The table, with the same strides in both."""
    name, other = "cos" + suffix, "sin" + suffix
    if not 1 <= cos.shape[-1] <= head_dim // 2:
        words = name, cos.shape[-1], head_dim
        raise Error("%s has %d columns, one for each pair, and headdim is %d" % words, name)
    check_tables(cos, sin, x, (name, other), x_name)
    for table, word in ((cos, name), (sin, other)):
        refuse_gradient(table, word)
    return _rotations._same_strides(cos, sin)


_position = integer(0)


def _offsets(value, name):
    """The check of seqlen_offsets."""
    if isinstance(value, _torch.Tensor):
        indices(value, name)
    elif value is not None:
        _position(value, name)


def _check_offsets(offsets, sequences, device):
    """(offset, start_positions): an integer that is the same for all sequences, or a tensor."""
    if not isinstance(offsets, _torch.Tensor):
        return offsets or 0, None
    if offsets.shape[0] != sequences:
        raise Error("seqlen_offsets has shape %s for %d sequences" % (list(offsets.shape), sequences), "seqlen_offsets")
    if offsets.device != device:
        raise Error("seqlen_offsets is on %s, and what it shifts on %s" % (offsets.device, device), "seqlen_offsets")
    return 0, offsets.contiguous()


def _cut_table(cos, sin, offset, seqlen, cu_seqlens, suffix=""):
    """Rows from offset on, so that positions begin at 0: views, which cost no memory and no wait for the GPU."""
    rows, name = cos.shape[0], "cos" + suffix
    if offset + (seqlen or 0) > rows:
        word = "seqlen" if cu_seqlens is None else "max_seqlen"
        wanted = "%s %d" % (word, seqlen or 0) + (" with seqlen_offsets %d" % offset if offset else "")
        raise Error("%s has %d rows, too few for %s" % (name, rows, wanted), "seqlen_offsets" if offset else name)
    if not offset:
        return cos, sin
    stop = rows if cu_seqlens is not None else offset + seqlen
    return cos[offset:stop], sin[offset:stop]


class _Call(NamedTuple):
    """What tensors are rotated by. `cos_k`: k has tables of its own, or None."""

    options: dict
    cos: object
    sin: object
    cos_k: object
    sin_k: object
    start_positions: object
    cu_seqlens: object


def _make_call(x, name, shape, cos, sin, cos_k, sin_k, interleaved, conjugate, offsets, cu_seqlens, max_seqlen):
    """Of x, whose tensors have this shape: (batch, seqlen, heads, head_dim), or (total, heads, head_dim) with cu_seqlens."""
    packed = cu_seqlens is not None
    if packed and not cu_seqlens.shape[0]:
        raise Error("cu_seqlens is empty, and must be (sequences + 1,)", "cu_seqlens")
    sequences, seqlen = (cu_seqlens.shape[0] - 1, max_seqlen) if packed else (shape[0], shape[1])
    offset, start_positions = _check_offsets(offsets, sequences, x.device)
    tables = []
    for c, s, suffix in ((cos, sin, ""), (cos_k, sin_k, "_k")):
        if c is not None:
            _check_rank(c, 2, "cos" + suffix, "(seqlen_ro, pairs)")
            tables += _cut_table(*_check_table(c, s, x, name, shape[-1], suffix), offset, seqlen, cu_seqlens, suffix)
        else:
            tables += (None, None)
    options = {
        "layout": "thd" if packed else "bshd",
        "pairing": "interleaved" if interleaved else "half",
        "inverse": conjugate,
        "angle_columns": "pair",
        "padding": "copy" if packed else None,
    }
    return _Call(options, *tables, start_positions, cu_seqlens)


# ---- Several tensors in one ----


class _Parts(NamedTuple):
    """How tensors lie in one: `count` entries of a dimension, or `heads` of each, or (neither) it is one of them."""

    dim: int = None
    count: int = 0
    heads: tuple = ()
    rotated: int = 1  # the first so many are; others are only copied
    head_dim: int = 0  # if the last dimension is heads * head_dim
    merged: bool = False  # (batch, seqlen, ...), which is one stream of tokens

    def split(self, x, name=""):
        """Each of them: a view, unless x is merged and lies so that it has none (with a name: refused)."""
        if self.head_dim:
            x = x.unflatten(-1, (-1, self.head_dim))
        if self.merged:
            if name and x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
                raise Error("%s lies in memory so that batch and seqlen are no one dimension" % name, name)
            x = x.flatten(0, 1)
        if self.count:
            return [x.select(self.dim, i) for i in range(self.count)]
        starts = [sum(self.heads[:i]) for i in range(len(self.heads))]
        return [x.narrow(self.dim, start, n) for start, n in zip(starts, self.heads)] or [x]

    def new_like(self, x):
        """With the order of dimensions in memory that x has, if split() has views of that."""
        return _torch.empty_like(x, memory_format=_torch.contiguous_format if self.merged else _torch.preserve_format)


def _launches(parts, call, in_place):
    """(places of the tensors, cos, sin) of each launch: one, unless k has its own tables. The shorter table is first: if a
    position is beyond a table, nothing has been written yet."""
    rotated, copied = range(parts.rotated), () if in_place else range(parts.rotated, max(parts.count, len(parts.heads)))
    if call.cos_k is None:
        return [((*rotated, *copied), call.cos, call.sin)]
    launches = [((0, *copied), call.cos, call.sin), ((1,), call.cos_k, call.sin_k)]
    return launches[::-1] if call.cos_k.shape[0] < call.cos.shape[0] else launches


def _rotate_tensors(function, parts, call, source, out=None):
    """function (of rotate, rotate_ and rotate_backward) on what is in `source`, and into what is in `out`."""
    for places, cos, sin in _launches(parts, call, out is None):
        widths = tuple([2 * cos.shape[1] if i < parts.rotated else COPY for i in places])
        more = {} if out is None else {"out": [out[i] for i in places]}
        function(
            *[source[i] for i in places], cos=cos, sin=sin, rotary_dim=widths, start_positions=call.start_positions,
            cu_seqlens=call.cu_seqlens, **call.options, **more
        )  # fmt: skip


def _present(call):
    """(options and which tensors there are, those tensors): a Function's arguments cost, and mostly are two."""
    return (call.options, [t is not None for t in call[1:]]), [t for t in call[1:] if t is not None]


def _restore(form, tensors):
    options, present = form
    tensors = iter(tensors)
    return _Call(options, *[next(tensors) if there else None for there in present])


class _Rotate(_torch.autograd.Function):
    """M x, or M' x, of tensors in one, as a new one: apply(transposed, parts, form, x, *tensors of the call)."""

    @staticmethod
    def forward(ctx, transposed, parts, form, x, *tensors):
        ctx.transposed, ctx.parts, ctx.form = transposed, parts, form
        ctx.save_for_backward(*tensors)
        result, function = parts.new_like(x), _rotations.rotate_backward if transposed else _rotations.rotate
        _rotate_tensors(function, parts, _restore(form, tensors), parts.split(x), parts.split(result))
        return result

    @staticmethod
    @gradients
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        d = _Rotate.apply(not ctx.transposed, ctx.parts, ctx.form, grad, *saved)
        return (None, None, None, d) + (None,) * len(saved)


class _Rotated(_torch.autograd.Function):
    """Tells autograd that tensors in one are rotated in place: apply(dirty, parts, form, x, *tensors of the call). It does
    not touch data. Not dirty: the result is another tensor of the same data, no view, and x has the history that it had.

    x is the first tensor, for if it is a view, autograd takes the first gradient as that of what it is a view of.
    """

    @staticmethod
    def forward(ctx, dirty, parts, form, x, *tensors):
        ctx.parts, ctx.form = parts, form
        ctx.save_for_backward(*tensors)
        if not dirty:
            return x.data
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @gradients
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        return (None, None, None, _Rotate.apply(True, ctx.parts, ctx.form, grad, *saved)) + (None,) * len(saved)


def _tell_autograd(parts, call, x):
    form, tensors = _present(call)
    if _rotations._may_be_marked(x):
        return _Rotated.apply(True, parts, form, x, *tensors)
    if not x._is_view():  # else the tensors that unbind gave beside it could not be used any more
        _rotations._count_write(x)
    return _Rotated.apply(False, parts, form, x, *tensors)


def _rotate_in_place(name, parts, call, x):
    """x, or of leaves and of what autograd does not let be changed, another tensor of the same data."""
    if not _rotations._is_eager((x,)):
        if x.requires_grad and _torch.is_grad_enabled() and not _compiles() and not _rotations._may_be_marked(x):
            raise Error("%s is a leaf that requires a gradient, or a view of one: clone it" % name, name)
        _rotate_tensors(_rotations.rotate_, parts, call, parts.split(x, name))
        return x
    check_writable(x, name)
    _rotate_tensors(_rotations.rotate_, parts, call, parts.split(x.data, name))
    if x.requires_grad and _torch.is_grad_enabled():  # of a call that has failed autograd must know nothing
        return _tell_autograd(parts, call, x)
    _rotations._count_write(x)
    return x


# ---- The functions ----


_TENSORS = {"x": floats, "cos": floats, "sin": floats}
_POSITIONS = {"seqlen_offsets": _offsets, "cu_seqlens": optional(indices), "max_seqlen": optional(integer(0))}
_NAMES = {"start_positions": "seqlen_offsets"}


def _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, conjugate=False):
    packed = cu_seqlens is not None
    if packed:
        _check_rank(x, 3, "x", "(total_seqlen, nheads, headdim)")
    else:
        _check_rank(x, 4, "x", "(batch, seqlen, nheads, headdim)")
    call = _make_call(
        x, "x", x.shape, cos, sin, None, None, interleaved, conjugate, seqlen_offsets, cu_seqlens, max_seqlen
    )  # fmt: skip
    if inplace:
        return _rotate_in_place("x", _Parts(), call, x)
    return _rotations.rotate(
        x, cos=call.cos, sin=call.sin, rotary_dim=2 * call.cos.shape[1], start_positions=call.start_positions,
        cu_seqlens=cu_seqlens, **call.options
    )  # fmt: skip


@arguments({"tensors[0]": "x", **_NAMES}, **_TENSORS, **_POSITIONS, interleaved=flag, inplace=flag, conjugate=flag)
def apply_rotary(
    x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False, conjugate=False
):  # fmt: skip
    """
    Arguments:
        x: (batch, seqlen, nheads, headdim) if cu_seqlens is None
            else (total_seqlen, nheads, headdim).
        cos: (seqlen_ro, rotary_dim / 2)
        sin: (seqlen_ro, rotary_dim / 2)
        seqlen_offsets: integer, or integer tensor of size (batch,): where each sequence begins in the table. None: 0.
        cu_seqlens: (batch + 1,) or None
        max_seqlen: integer: that the table has rows for as many is checked; needless otherwise.
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        inplace: write the result to x.
        conjugate: turn the other way.
    Return:
        y: like x; x itself if inplace (see the module for leaves). Unlike theirs it is known to autograd.
    A position beyond seqlen_ro is NaN or an error; theirs does not rotate it.
    """
    return _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, conjugate)


@arguments({"tensors[0]": "x", **_NAMES}, **_TENSORS, **_POSITIONS, interleaved=flag, inplace=flag)
def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None
):  # fmt: skip
    """
    Arguments:
        x: (batch_size, seqlen, nheads, headdim) if cu_seqlens is None
            else (total_seqlen, nheads, headdim)
        cos, sin: (seqlen_rotary, rotary_dim / 2)
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        inplace: write the result to x.
        seqlen_offsets: (batch_size,) or int. Each sequence in x is shifted by this amount. None: 0.
        cu_seqlens: (batch + 1,) or None
        max_seqlen: int: that the table has rows for as many is checked; needless otherwise.
    Return:
        out: like x; x itself if inplace (see the module for leaves).
    rotary_dim must be <= headdim; the first rotary_dim elements of each head turn.
    A position beyond seqlen_rotary is NaN or an error; theirs does not rotate it.
    """
    return _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


@arguments({"tensors[0]": "x"}, **_TENSORS, interleaved=flag)
def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """What theirs computes in plain PyTorch, to the bit: each product and each sum is rounded to the dtype of x.

    Arguments:
        x: (batch_size, seqlen, nheads, headdim)
        cos, sin: (seqlen, rotary_dim / 2) or (batch_size, seqlen, rotary_dim / 2), of the dtype of x
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
    Return:
        out: (batch_size, seqlen, nheads, headdim)
    """
    _check_rank(x, 4, "x", "(batch, seqlen, nheads, headdim)")
    batch, seqlen = x.shape[:2]
    if cos.dim() not in (2, 3) or cos.shape[-2] != seqlen or (cos.dim() == 3 and cos.shape[0] not in (1, batch)):
        message = "cos has shape %s, and must be (%d, pairs), with a batch of 1 or %d before it or not"
        raise Error(message % (list(cos.shape), seqlen, batch), "cos")
    if cos.dtype != x.dtype:
        raise Error("cos has dtype %s, and x %s: use apply_rotary_emb" % (cos.dtype, x.dtype), "cos")
    cos, sin = _check_table(cos, sin, x, "x", x.shape[-1])
    pairing = "interleaved" if interleaved else "half"
    options = dict(layout="bshd", pairing=pairing, angle_columns="pair", rounding="native", rotary_dim=2 * cos.shape[-1])
    return _rotations.rotate(x, cos=cos, sin=sin, **options)


def _qkv_parts(qkv, num_heads_q, cu_seqlens, headdim):
    """How q, k and v lie in qkv, and the shape of what it would be if its heads were one tensor's."""
    shape, packed = list(qkv.shape), cu_seqlens is not None
    if headdim is not None:
        if not shape or shape[-1] % headdim or not shape[-1]:
            raise Error(
                "headdim is %d, and qkv has shape %s, whose last must be a multiple of it" % (headdim, shape), "headdim"
            )
        shape[-1:] = [shape[-1] // headdim, headdim]
    by_heads = num_heads_q is not None and len(shape) != 5
    merged = packed and len(shape) == (4 if by_heads else 5)
    if merged:
        shape[:2] = [shape[0] * shape[1]]
    dim = 1 if packed else 2
    if len(shape) != (3 if by_heads else 4) + (not packed):
        raise Error("qkv has shape %s%s%s: %s" % (
            list(qkv.shape), ", with cu_seqlens" if packed else "", "" if by_heads else ", without num_heads_q",
            "(batch, seqlen, 3, nheads, headdim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, headdim) with"
            " num_heads_q; with cu_seqlens one total_seqlen for batch and seqlen"), "qkv")  # fmt: skip
    parts = _Parts(dim, rotated=2, head_dim=headdim or 0, merged=merged)
    if not by_heads:
        if shape[dim] != 3:
            raise Error("qkv must have 3 in dimension %d, not %d" % (qkv.dim() - 3, shape[dim]), "qkv")
        return parts._replace(count=3), shape
    heads_of_kv = shape[dim] - num_heads_q
    num_heads_k = heads_of_kv // 2  # (torch.compile does not know divmod)
    if heads_of_kv % 2 or num_heads_k < 1 or num_heads_q < 1:
        raise Error("qkv has %d heads, not num_heads_q %d + 2 * num_heads_k" % (shape[dim], num_heads_q), "num_heads_q")
    return parts._replace(heads=(num_heads_q, num_heads_k, num_heads_k)), shape


def _table_of_k(value, name):
    """The check of cos_k."""
    if isinstance(value, bool):
        raise Error(
            "%s is %r: in quack interleaved has its place: pass it and what follows by keyword" % (name, value), name
        )
    if value is not None:
        floats(value, name)


_QKV = {"tensors[%d]" % i: "qkv" for i in range(3)}


@arguments(
    {**_QKV, **_NAMES}, qkv=floats, cos=floats, sin=floats, cos_k=_table_of_k, sin_k=optional(floats), interleaved=flag,
    num_heads_q=optional(integer(1)), headdim=optional(integer(1)), **_POSITIONS,
)  # fmt: skip
def apply_rotary_emb_qkv_(
    qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None, cu_seqlens=None,
    max_seqlen=None, headdim=None,
):  # fmt: skip
    """Rotates q and k in place, in one launch (two if cos_k and sin_k are other tables). The order is flash-attention's;
    of quack's, (qkv, cos, sin, interleaved, ...), give interleaved and what follows as keywords.

    Arguments:
        qkv: (batch_size, seqlen, 3, nheads, headdim), or (batch_size, seqlen, num_heads_q + 2 * num_heads_k, headdim)
            with num_heads_q (MQA, GQA). With headdim the last two may be one: (..., heads * headdim). With cu_seqlens:
            (total_seqlen, ...), or (batch_size, seqlen, ...), which is read as one stream.
        cos, sin: (seqlen_ro, rotary_dim / 2)
        cos_k, sin_k: (seqlen_ro, rotary_dim / 2), for k if given
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        seqlen_offsets: (batch_size,) or int. Each sequence in q and k is shifted by this amount. None: 0.
        num_heads_q: int, if qkv has a dimension of all heads
        cu_seqlens: (batch + 1,) or None
        max_seqlen: int: that the table has rows for as many is checked; needless otherwise.
        headdim: int, if qkv is (..., heads * headdim)
    Return:
        qkv (see the module for leaves)
    rotary_dim must be <= headdim; the first rotary_dim elements of each head turn.
    A position beyond seqlen_ro is NaN or an error; theirs does not rotate it.
    """
    if (cos_k is None) != (sin_k is None):  # theirs takes the other one from cos or sin
        cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    if cos_k is cos and sin_k is sin:
        cos_k = sin_k = None
    parts, shape = _qkv_parts(qkv, num_heads_q, cu_seqlens, headdim)
    call = _make_call(
        qkv, "qkv", shape, cos, sin, cos_k, sin_k, interleaved, False, seqlen_offsets, cu_seqlens, max_seqlen
    )  # fmt: skip
    return _rotate_in_place("qkv", parts, call, qkv)


@arguments(
    {"tensors[0]": "kv", **_NAMES}, kv=floats, cos=floats, sin=floats, interleaved=flag, seqlen_offsets=_offsets
)  # fmt: skip
def apply_rotary_emb_kv_(kv, cos, sin, interleaved=False, seqlen_offsets=0):
    """Rotates k in place.

    Arguments:
        kv: (batch_size, seqlen, 2, nheads, headdim)
        cos, sin: (seqlen_ro, rotary_dim / 2)
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        seqlen_offsets: (batch_size,) or int. Each sequence in k is shifted by this amount. None: 0.
    Return:
        kv (see the module for leaves)
    rotary_dim must be <= headdim; the first rotary_dim elements of each head turn.
    A position beyond seqlen_ro is NaN or an error; theirs does not rotate it.
    """
    return _rotate_in_place("kv", _KV, _make_kv_call(kv, cos, sin, interleaved, seqlen_offsets), kv)


_KV = _Parts(2, count=2)


def _make_kv_call(kv, cos, sin, interleaved, seqlen_offsets):
    _check_rank(kv, 5, "kv", "(batch, seqlen, 2, nheads, headdim)")
    if kv.shape[2] != 2:
        raise Error("kv must have 2 in dimension 2, not %d" % kv.shape[2], "kv")
    shape = (*kv.shape[:2], *kv.shape[3:])
    return _make_call(kv, "kv", shape, cos, sin, None, None, interleaved, False, seqlen_offsets, None, None)


def _even(value, name):
    """The check of dim."""
    integer(2, MAX_ROTARY_DIM)(value, name)
    if value % 2:
        raise Error("%s must be even, not %d" % (name, value), name)


def _no_scale(value, name):
    if value is not None:
        raise Error("%s %s is XPos, which is not here: None is plain RoPE" % (name, shown(value)), name)


def _device(value, name):
    if isinstance(value, bool):
        message = "%s is %r: pass pos_idx_in_fp32, which older versions have here, by keyword"
        raise Error(message % (name, value), name)
    try:
        _torch.empty(0, device=value)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise Error("%s %s is none that PyTorch has here: %s" % (name, shown(value), reason), name) from None


_POSITIONS_MOST = 2**24  # those that float32 has exactly


class RotaryEmbedding(_torch.nn.Module):
    """Frequencies base ** (-2 i / dim), and tables of them in the dtype of what is rotated, as flash-attention's.

    Arguments:
        dim: elements of a head that turn
        base: float
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        scale_base: None. Others would be XPos, which is refused.
        device: where the frequencies are
        pos_idx_in_fp32: True: tables are computed in fp32, whatever the module is cast to. False: positions and frequencies
            are multiplied in the dtype of the frequencies, which the model may have been cast to (older versions of
            flash-attention).
    """

    @arguments(
        dim=_even, base=positive, interleaved=flag, scale_base=_no_scale, device=_device, pos_idx_in_fp32=flag
    )  # fmt: skip
    def __init__(self, dim, base=10000.0, interleaved=False, scale_base=None, device=None, pos_idx_in_fp32=True):
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.scale_base, self.pos_idx_in_fp32 = None, pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self._forget_tables()

    def _compute_inv_freq(self, device=None):
        exponents = _torch.arange(0, self.dim, 2, device=device, dtype=_torch.float32) / self.dim
        return 1.0 / self.base**exponents

    def _forget_tables(self):
        self._seq_len_cached = 0
        self._cos_cached = self._sin_cached = self._cos_k_cached = self._sin_k_cached = None

    def reset_parameters(self):
        """Computes inv_freq from dim and base, and forgets the tables."""
        with _torch.no_grad():
            self.inv_freq.copy_(self._compute_inv_freq(self.inv_freq.device))
        self._forget_tables()

    def _apply(self, fn, recurse=True):
        """With pos_idx_in_fp32, casts leave inv_freq in float32. It gets its values when it leaves the meta device."""
        was_meta = self.inv_freq.is_meta
        super()._apply(keep_precision(fn) if self.pos_idx_in_fp32 else fn, recurse)
        self._forget_tables()
        if was_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        return self

    def _is_cached(self, seqlen, device, dtype):
        cos = self._cos_cached
        if cos is None or seqlen > self._seq_len_cached or cos.device != device or cos.dtype != dtype:
            return False
        return not self.training or _torch.compiler.is_compiling() or not cos.is_inference()

    def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
        """Makes new tables if seqlen exceeds those, or if they are of another device or dtype."""
        if self._is_cached(seqlen, device, dtype):
            return
        inv_freq = self.inv_freq
        if self.pos_idx_in_fp32 and inv_freq.dtype != _torch.float32:  # a cast model's
            inv_freq = self._compute_inv_freq(device)
        positions = _torch.arange(seqlen, device=device, dtype=inv_freq.dtype)
        angles = positions[:, None] * inv_freq.to(device)
        self._seq_len_cached = seqlen
        self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    @arguments(
        {**_QKV, "seqlen_offsets": "seqlen_offset", "start_positions": "seqlen_offset", "cos": "the table"}, qkv=floats,
        kv=optional(floats), seqlen_offset=_offsets, max_seqlen=optional(integer(0, _POSITIONS_MOST)),
        num_heads_q=optional(integer(1)),
    )  # fmt: skip
    def forward(self, qkv, kv=None, seqlen_offset=0, max_seqlen=None, num_heads_q=None):
        """
        Arguments:
            qkv: (batch, seqlen, 3, nheads, headdim), or (batch, seqlen, num_heads_q + 2 * num_heads_k, headdim) with
                num_heads_q, if kv is None; else it is q: (batch, seqlen, nheads, headdim).
            kv: (batch, seqlen, 2, nheads, headdim)
            seqlen_offset: (batch,) or int. Each sequence is shifted by this amount.
            max_seqlen: int, one more than the largest position, which the tables are made for. With a seqlen_offset that
                is a tensor it must be given, here or in an earlier call.
            num_heads_q: int, if qkv has a dimension of all heads
        Return:
            qkv, or (q, kv), rotated in place (see the module for leaves)
        """
        self._make_tables(qkv, self._count_tokens(qkv, kv, num_heads_q), seqlen_offset, max_seqlen)
        cos, sin = self._cos_cached, self._sin_cached
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset, num_heads_q=num_heads_q
            )
        return self._rotate_q_and_kv(qkv, kv, cos, sin, seqlen_offset)

    def _rotate_q_and_kv(self, q, kv, cos, sin, offset):
        """Both in place, after all checks. The longer one is first: if it has a position beyond the tables, nothing has been
        written yet."""
        calls = [
            (
                "qkv",
                _Parts(),
                _make_call(q, "qkv", q.shape, cos, sin, None, None, self.interleaved, False, offset, None, None),
                q,
            ),
            ("kv", _KV, _make_kv_call(kv, cos, sin, self.interleaved, offset), kv),
        ]
        if _compiles():
            return tuple([_rotate_in_place(*call) for call in calls])
        for name, _, _, x in calls:
            check_writable(x, name)
        order = (1, 0) if kv.shape[1] > q.shape[1] else (0, 1)
        rotated = {i: _rotate_in_place(*calls[i]) for i in order}
        return rotated[0], rotated[1]

    def _count_tokens(self, qkv, kv, num_heads_q):
        """The longer seqlen of qkv and kv."""
        shapes = {4: "(batch, seqlen, nheads, headdim)"}
        if kv is None:
            shapes = {4: "(batch, seqlen, heads, headdim) with num_heads_q", 5: "(batch, seqlen, 3, nheads, headdim)"}
        if qkv.dim() not in shapes or (kv is None and num_heads_q is None and qkv.dim() == 4):
            raise Error("qkv must be %s, not %s" % (" or ".join(shapes.values()), list(qkv.shape)), "qkv")
        if kv is not None:
            _check_rank(kv, 5, "kv", "(batch, seqlen, 2, nheads, headdim)")
            if kv.device != qkv.device:
                raise Error("kv is on %s, and qkv on %s" % (kv.device, qkv.device), "kv")
            if (kv.dtype == _torch.float64) != (qkv.dtype == _torch.float64):
                raise Error("kv has dtype %s, and qkv %s: cast one of them" % (kv.dtype, qkv.dtype), "kv")
            if num_heads_q is not None and qkv.shape[2] != num_heads_q:
                raise Error("num_heads_q is %d, and qkv has %d heads" % (num_heads_q, qkv.shape[2]), "num_heads_q")
        for x, name in ((qkv, "qkv"), (kv, "kv")):
            if x is not None and x.shape[-1] < self.dim:
                raise Error("%s has headdim %d, and the module turns %d elements" % (name, x.shape[-1], self.dim), name)
        return qkv.shape[1] if kv is None else max(qkv.shape[1], kv.shape[1])

    def _make_tables(self, qkv, seqlen, seqlen_offset, max_seqlen):
        """Tables for positions below max_seqlen, or as many as the call needs."""
        if isinstance(seqlen_offset, _torch.Tensor):
            end, rows = seqlen, self._seq_len_cached if max_seqlen is None else max_seqlen
            if max_seqlen is None and rows < max(end, 1):
                message = "max_seqlen is missing: seqlen_offset is a tensor, and there are tables of %d positions yet"
                raise Error(message % rows, "max_seqlen")
        else:
            end = seqlen + (seqlen_offset or 0)
            rows = end if max_seqlen is None else max_seqlen
            if end > _POSITIONS_MOST:
                message = "seqlen_offset is %d, and with %d tokens positions exceed %d, which float32 has not exactly"
                raise Error(message % (seqlen_offset or 0, seqlen, _POSITIONS_MOST), "seqlen_offset")
        if rows < end:
            message = "max_seqlen is %d, and the tokens of the call have positions up to %d"
            raise Error(message % (rows, end - 1), "max_seqlen")
        self._update_cos_sin_cache(rows, device=qkv.device, dtype=qkv.dtype)
