"""Drop-in rotary functions for flash-attention (flash_attn.layers.rotary, flash_attn.ops.triton.rotary) and quack, with the
same names.

    from trope.flash_attn import RotaryEmbedding, apply_rotary_emb, apply_rotary_emb_qkv_

Shapes, arguments and numbers are the same: tables of half width, fp32 arithmetic, one rounding at the store. Last bits may
differ, because trope and the originals may fuse different products of a sum. trope accepts any strides, tables of float32,
float16 or bfloat16 for tensors of any dtype, tensors on the CPU, and a head_dim over 256. Differences from the originals:

- A POSITION BEYOND THE TABLE. The originals leave such tokens unrotated. Here the call is an error if the host can see it
  (seqlen, integer offsets, everything on the CPU). Otherwise the token becomes NaN (seqlen_offsets and cu_seqlens on a
  GPU).
- A sequence of cu_seqlens that is longer than max_seqlen is rotated to its end. The originals stop at max_seqlen. Tokens
  after the last sequence stay in place or are copied. The originals leave these tokens of a new result uninitialised.
- In place under autograd: the function returns the given tensor, and autograd records that it is rotated. Both the argument
  and the result can be used afterwards. For leaves, their views, and results of unbind, split or chunk, use only the
  returned tensor. Autograd does not let these tensors change, so they are changed without autograd, as in the originals.
  For a view of a larger tensor (a reshaped projection), autograd copies the gradient. headdim= or inplace=False avoids
  these copies.
- In place under torch.compile: a leaf that requires a gradient is rotated in its own memory, and Inductor returns that
  memory, as with the originals. PyTorch's Inductor (2.11) may reuse this memory in the backward if the compiled region does
  not return the rotated tensor itself. In this case, read the values of a leaf before the backward. PyTorch refuses results
  of unbind, split or chunk from inside the compiled region: use inplace=False for them.
- Gradients are never overwritten, even in place, because autograd may have given the same gradient to other operations.
  (The originals rotate the upstream gradient in its own memory.) They can be differentiated again. cos and sin have no
  gradients: tables that require one are refused.
- headdim may be any number, and rotary_dim any even number. quack refuses numbers that are not multiples of 8.
"""

import torch as _torch

from .. import torch as _rotations
from .._dropin import arguments, flag, floats, indices, integer, optional
from .._errors import Error
from ._rotary import (
    KV, Parts, check_rank, check_seqlen_offsets, check_table, make_call, make_kv_call, rotate_in_place,
)  # fmt: skip

__all__ = [
    "ApplyRotaryEmb", "ApplyRotaryEmbKV_", "ApplyRotaryEmbQKV_", "RotaryEmbedding", "apply_rotary", "apply_rotary_emb",
    "apply_rotary_emb_func", "apply_rotary_emb_kv_", "apply_rotary_emb_qkv_", "apply_rotary_emb_torch", "rotate_half",
]  # fmt: skip


# ---- The functions ----


_TENSORS = {"x": floats, "cos": floats, "sin": floats}
_POSITIONS = {"seqlen_offsets": check_seqlen_offsets, "cu_seqlens": optional(indices), "max_seqlen": optional(integer(0))}
_NAMES = {"start_positions": "seqlen_offsets"}


def _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, conjugate=False):
    packed = cu_seqlens is not None
    if packed:
        check_rank(x, 3, "x", "(total_seqlen, nheads, headdim)")
    else:
        check_rank(x, 4, "x", "(batch, seqlen, nheads, headdim)")
    call = make_call(
        x, "x", x.shape, cos, sin, None, None, interleaved, conjugate, seqlen_offsets, cu_seqlens, max_seqlen
    )  # fmt: skip
    if inplace:
        return rotate_in_place("x", Parts(), call, x)
    return _rotations.rotate(
        x, cos=call.cos, sin=call.sin, rotary_dim=2 * call.cos.shape[1], start_positions=call.start_positions,
        cu_seqlens=cu_seqlens, **call.options
    )  # fmt: skip


@arguments({"tensors[0]": "x", **_NAMES}, **_TENSORS, **_POSITIONS, interleaved=flag, inplace=flag, conjugate=flag)
def apply_rotary(
    x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False, conjugate=False
):  # fmt: skip
    """Rotates a tensor.

    Arguments:
        x: (batch, seqlen, nheads, headdim) if cu_seqlens is None
            else (total_seqlen, nheads, headdim).
        cos: (seqlen_ro, rotary_dim / 2)
        sin: (seqlen_ro, rotary_dim / 2)
        seqlen_offsets: integer, or integer tensor of size (batch,): the position of each sequence's first token. None: 0.
        cu_seqlens: (batch + 1,) or None
        max_seqlen: integer. If given, the table must have rows for as many positions. It has no other use.
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        inplace: write the result to x.
        conjugate: rotate by the negative angles.
    Return:
        y: like x; x itself if inplace (see the module for leaves). Unlike the original, y has autograd.
    A position beyond seqlen_ro is NaN or an error. The original does not rotate it.
    """
    return _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace, conjugate)


@arguments({"tensors[0]": "x", **_NAMES}, **_TENSORS, **_POSITIONS, interleaved=flag, inplace=flag)
def apply_rotary_emb(
    x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None
):  # fmt: skip
    """Rotates a tensor.

    Arguments:
        x: (batch_size, seqlen, nheads, headdim) if cu_seqlens is None
            else (total_seqlen, nheads, headdim)
        cos, sin: (seqlen_rotary, rotary_dim / 2)
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        inplace: write the result to x.
        seqlen_offsets: (batch_size,) or int. Each sequence in x is shifted by this amount. None: 0.
        cu_seqlens: (batch + 1,) or None
        max_seqlen: int. If given, the table must have rows for as many positions. It has no other use.
    Return:
        out: like x; x itself if inplace (see the module for leaves).
    rotary_dim must be <= headdim. The first rotary_dim elements of each head rotate.
    A position beyond seqlen_rotary is NaN or an error. The original does not rotate it.
    """
    return _apply_rotary(x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


class ApplyRotaryEmb:
    """ApplyRotaryEmb.apply is apply_rotary_emb. The class is no autograd.Function."""

    apply = staticmethod(apply_rotary_emb)


@arguments(x=floats, interleaved=flag)
def rotate_half(x, interleaved=False):
    """Returns the other element of each pair, with the sign of the second elements changed, in plain PyTorch.

    Arguments:
        x: (..., headdim) with an even headdim
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
    Return:
        (-x2, x1) of the pairs (x1, x2), like x. The rotation is x * cos + rotate_half(x) * sin.
    """
    if not x.dim() or x.shape[-1] % 2:
        raise Error("x has shape %s, whose last dimension must be even" % list(x.shape), "x")
    if interleaved:
        return _torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    x1, x2 = x.chunk(2, -1)
    return _torch.cat((-x2, x1), -1)


@arguments({"tensors[0]": "x"}, **_TENSORS, interleaved=flag)
def apply_rotary_emb_torch(x, cos, sin, interleaved=False):
    """Computes the same bits as the original in plain PyTorch: each product and each sum is rounded to the dtype of x.

    Arguments:
        x: (batch_size, seqlen, nheads, headdim)
        cos, sin: (seqlen, rotary_dim / 2) or (batch_size, seqlen, rotary_dim / 2), in the dtype of x
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
    Return:
        out: (batch_size, seqlen, nheads, headdim)
    """
    check_rank(x, 4, "x", "(batch, seqlen, nheads, headdim)")
    batch, seqlen = x.shape[:2]
    if cos.dim() not in (2, 3) or cos.shape[-2] != seqlen or (cos.dim() == 3 and cos.shape[0] not in (1, batch)):
        message = "cos has shape %s, and must be (%d, pairs), optionally with a batch dimension of 1 or %d before it"
        raise Error(message % (list(cos.shape), seqlen, batch), "cos")
    if cos.dtype != x.dtype:
        raise Error("cos has dtype %s, but x has %s: use apply_rotary_emb" % (cos.dtype, x.dtype), "cos")
    cos, sin = check_table(cos, sin, x, "x", x.shape[-1])
    pairing = "interleaved" if interleaved else "half"
    options = dict(layout="bshd", pairing=pairing, angle_columns="pair", rounding="native", rotary_dim=2 * cos.shape[-1])
    return _rotations.rotate(x, cos=cos, sin=sin, **options)


def _qkv_parts(qkv, num_heads_q, cu_seqlens, headdim):
    """Returns the Parts of q, k and v in qkv, and the shape that qkv would have if all heads were heads of one tensor."""
    shape, packed = list(qkv.shape), cu_seqlens is not None
    if headdim is not None:
        if not shape or shape[-1] % headdim or not shape[-1]:
            raise Error(
                "headdim is %d, but qkv has shape %s, whose last dimension must be a multiple of it" % (headdim, shape),
                "headdim",
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
            " num_heads_q; with cu_seqlens, total_seqlen instead of batch and seqlen"), "qkv")  # fmt: skip
    parts = Parts(dim, rotated=2, head_dim=headdim or 0, merged=merged)
    if not by_heads:
        if shape[dim] != 3:
            raise Error("qkv must have 3 in dimension %d, not %d" % (qkv.dim() - 3, shape[dim]), "qkv")
        return parts._replace(count=3), shape
    heads_of_kv = shape[dim] - num_heads_q
    num_heads_k = heads_of_kv // 2  # (torch.compile does not support divmod)
    if heads_of_kv % 2 or num_heads_k < 1 or num_heads_q < 1:
        raise Error("qkv has %d heads, not num_heads_q %d + 2 * num_heads_k" % (shape[dim], num_heads_q), "num_heads_q")
    return parts._replace(heads=(num_heads_q, num_heads_k, num_heads_k)), shape


def _table_of_k(value, name):
    """Checks cos_k."""
    if isinstance(value, bool):
        raise Error(
            "%s is %r: quack has interleaved in this place: pass it and all later arguments by keyword" % (name, value),
            name,
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
    """Rotates q and k in place, in one launch (two if cos_k and sin_k are other tables). The order of the arguments is
    flash-attention's. For quack's order, (qkv, cos, sin, interleaved, ...), pass interleaved and later ones as keywords.

    Arguments:
        qkv: (batch_size, seqlen, 3, nheads, headdim), or (batch_size, seqlen, num_heads_q + 2 * num_heads_k, headdim)
            with num_heads_q (MQA, GQA). With headdim the last two dimensions may be one: (..., heads * headdim). With
            cu_seqlens: (total_seqlen, ...), or (batch_size, seqlen, ...), which is read as one stream.
        cos, sin: (seqlen_ro, rotary_dim / 2)
        cos_k, sin_k: (seqlen_ro, rotary_dim / 2), tables for k if they differ
        interleaved: pairs of even and odd elements (GPT-J), instead of 1st and 2nd half (GPT-NeoX).
        seqlen_offsets: (batch_size,) or int. Each sequence in q and k is shifted by this amount. None: 0.
        num_heads_q: int, if qkv has one dimension for all heads
        cu_seqlens: (batch + 1,) or None
        max_seqlen: int. If given, the table must have rows for as many positions. It has no other use.
        headdim: int, if qkv is (..., heads * headdim)
    Return:
        qkv (see the module for leaves)
    rotary_dim must be <= headdim. The first rotary_dim elements of each head rotate.
    A position beyond seqlen_ro is NaN or an error. The original does not rotate it.
    """
    if (cos_k is None) != (sin_k is None):  # the original would take the missing one from cos or sin
        cos_k, sin_k = cos if cos_k is None else cos_k, sin if sin_k is None else sin_k
    if cos_k is cos and sin_k is sin:
        cos_k = sin_k = None
    parts, shape = _qkv_parts(qkv, num_heads_q, cu_seqlens, headdim)
    call = make_call(
        qkv, "qkv", shape, cos, sin, cos_k, sin_k, interleaved, False, seqlen_offsets, cu_seqlens, max_seqlen
    )  # fmt: skip
    return rotate_in_place("qkv", parts, call, qkv)


class ApplyRotaryEmbQKV_:
    """ApplyRotaryEmbQKV_.apply is apply_rotary_emb_qkv_. The class is no autograd.Function."""

    apply = staticmethod(apply_rotary_emb_qkv_)


@arguments(
    {"tensors[0]": "kv", **_NAMES}, kv=floats, cos=floats, sin=floats, interleaved=flag, seqlen_offsets=check_seqlen_offsets,
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
    rotary_dim must be <= headdim. The first rotary_dim elements of each head rotate.
    A position beyond seqlen_ro is NaN or an error. The original does not rotate it.
    """
    return rotate_in_place("kv", KV, make_kv_call(kv, cos, sin, interleaved, seqlen_offsets), kv)


class ApplyRotaryEmbKV_:
    """ApplyRotaryEmbKV_.apply is apply_rotary_emb_kv_. The class is no autograd.Function."""

    apply = staticmethod(apply_rotary_emb_kv_)


from ._module import RotaryEmbedding  # noqa: E402 (it calls apply_rotary_emb_qkv_)
