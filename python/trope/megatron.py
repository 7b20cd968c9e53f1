"""RoPE of Megatron-Core 0.19.2, and of its main branch by its signatures of August 2026, with nothing left unfused.

    import trope.megatron
    handle = trope.megatron.patch()  # handle.undo() takes it back; print(handle) says what is where, handle.calls how often

patch() puts the functions of this module in the place of Megatron's, in every module that has imported them, and counts
the calls that go through. If one of Megatron's has another signature than is known here, nothing is changed.

Results are those of Megatron's own unfused code: cos and sin times mscale are rounded to the dtype of the tensor, and so is
each operation after that. From cos and sin they have the same bits, from freqs too, but where torch.cos and trope's cosine
round differently. Fused is also what Megatron leaves unfused: M-RoPE with batch over 1, mscale, mla_rotary_interleaved,
inverse, positions in the stream, any dtype, the CPU. Gradients are the transpose, and can be differentiated again. The host
reads no cu_seqlens. config.apply_rope_fusion changes no result, but is worth having with MLA: key and value are one launch.

What differs from Megatron-Core:
- Its fused thd drops mscale and mla_rotary_interleaved in silence, and takes freqs with a row for each token of the stream
  for those of a sequence. Here all of it is as in its unfused thd.
- apply_rotary_pos_emb_with_cos_sin has flash-attention's formula also where that is not installed: there, Megatron takes
  the cosine of cos and of sin.
- Tokens behind the last of cu_seqlens become 0, and their gradients too. (0.19.2 raises if it is unfused and else leaves
  memory as it was, main gives them some position.)
- Positions that the table has no row for are an error on the CPU and NaN on CUDA; with max_seqlen, in main's thd, they have
  the last row, as there.
- fused_apply_mla_rope_for_q and fused_mla_rope_inplace write into t, as there, but not into the gradient. Who needs t as it
  was for backward is told by autograd; there, it gets wrong gradients.
- The gradient of k_pos_emb is summed over the heads in fp32, by a tree, and then rotated back.
- fused_single_qkv_rope needs no TransformerEngine. Megatron never tells it rotary_interleaved, nor can it be guessed here.

Not replaced: get_pos_emb_on_this_cp_rank, which cuts tables; mla_rope_apply_raw_ and mla_rope_unapply_raw; what classes,
closures and default arguments hold already when patch() is called.
"""

import functools
import importlib
import inspect
import logging
import sys
from types import FunctionType, ModuleType
from typing import NamedTuple

import torch
from torch.autograd import Function

from . import pair_axis
from . import transformer_engine as _te
from ._abi import COPY, MAX_ROTARY_DIM
from ._dropin import (
    arguments, check_table, check_tables, check_writable, flag, floats, gradients, indices, integer, integers, number,
    optional, refuse_gradient, shown,
)  # fmt: skip
from ._errors import Error
from ._spec import resolve
from .torch import _count_write, _is_eager, _launch, _may_be_marked, _same_strides, rotate, rotate_
from .torch._autograd import Eager, _present, _spread

__all__ = [
    "Patch", "apply_fused_qkv_rotary_pos_emb", "apply_rotary_pos_emb", "apply_rotary_pos_emb_with_cos_sin",
    "fused_apply_mla_rope_for_kv", "fused_apply_mla_rope_for_q", "fused_apply_mrope", "fused_apply_mrope_thd",
    "fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd", "fused_mla_rope_concat", "fused_mla_rope_inplace",
    "fused_mla_rope_kv_split", "fused_mla_rope_out_of_place", "patch",
]  # fmt: skip

_NOT_GIVEN = "not given"  # max_seqlen of 0.19.2, which has none

# ---- What is given ----


def _config(value, name):
    """The check of a config of Megatron-Core, of which two options are read."""
    if not hasattr(value, "rotary_interleaved"):
        message = "%s must be a TransformerConfig, or an object with rotary_interleaved, not %s"
        raise Error(message % (name, shown(value)), name)
    if not isinstance(value.rotary_interleaved, bool):
        given = name, shown(value.rotary_interleaved)
        raise Error("%s has rotary_interleaved %s, which must be True or False" % given, name)


def _group(value, name):
    """The check of a process group: what it says of its size and rank."""
    if not (callable(getattr(value, "size", None)) and callable(getattr(value, "rank", None))) or isinstance(value, type):
        raise Error("%s must be a process group, with size() and rank(), not %s" % (name, shown(value)), name)


def _size_and_rank(group):
    size, rank = group.size(), group.rank()
    for value in (size, rank):
        if type(value) is not int or not 0 <= rank < size:
            message = "cp_group has size %s and rank %s: this process must be one of the group"
            raise Error(message % (shown(size), shown(rank)), "cp_group")
    return size, rank


def _factor(value, name):
    """The check of mscale."""
    if not number(value, name):
        raise Error("%s must not be 0" % name, name)


def _most(value, name):
    """The check of max_seqlen."""
    if value is not _NOT_GIVEN and value is not None:
        _length(value, name)


def _emb_dim(value, name):
    """The check of how many elements turn."""
    integer(2, MAX_ROTARY_DIM)(value, name)
    if value % 2:
        raise Error("%s must be even, not %d" % (name, value), name)


_length = integer(1)
_CP = {"cp_size": integer(1), "cp_rank": integer(0)}


def _sequences(cu_seqlens, cp_size, cp_rank):
    """The options of thd."""
    return dict(layout="thd", cu_seqlens=cu_seqlens, padding="zero", cp_size=cp_size, cp_rank=cp_rank, cp_layout="zigzag")


def _pairing(rotary_interleaved, mla_rotary_interleaved=False, mla_output_remove_interleaving=False):
    """The options. MLA's pairs are neighbours, and become halves, unless that is to be removed again."""
    if not mla_rotary_interleaved:
        pairing = "interleaved" if rotary_interleaved else "half"
        return dict(pairing=pairing, angle_columns=pairing)
    if rotary_interleaved:
        message = "mla_rotary_interleaved and rotary_interleaved are both True, which Megatron-Core's configs refuse"
        raise Error(message, "mla_rotary_interleaved")
    out = "interleaved" if mla_output_remove_interleaving else "half"
    return dict(pairing="interleaved", pairing_out=out, angle_columns="half")


def _check_columns(t, columns, argument):
    if not 2 <= columns <= t.shape[-1] or columns % 2:
        words = argument, columns, t.shape[-1]
        raise Error("%s is for %d elements of a head, which must be even, and 2 to %d" % words, argument)


def _check_rows(t, rows, argument):
    """Of sbhd, where row i is of token i. There may be more, as for Megatron's fused RoPE."""
    if rows < t.shape[0]:
        raise Error("%s has %d rows for %d tokens" % (argument, rows, t.shape[0]), argument)


def _table(t, freqs):
    """[1 or batch, rows, columns] of freqs [rows, 1 or batch, 1, columns]."""
    batch = t.shape[1] if t.dim() == 4 else 1
    if freqs.dim() != 4 or freqs.shape[1] not in (1, batch) or freqs.shape[2] != 1:
        words = list(freqs.shape), "" if batch == 1 else " or %d" % batch
        raise Error("freqs has shape %s, which is not [positions, 1%s, 1, columns]" % words, "freqs")
    _check_columns(t, freqs.shape[3], "freqs")
    if freqs.dtype == torch.float64 and t.dtype != torch.float64:
        freqs = freqs.float()
    check_table(freqs, t, "freqs", "t")
    return freqs[:, :, 0].transpose(0, 1)


# ---- rope_utils, and what it has of TransformerEngine ----


def _rotate(
    t, freqs, options, rotary_interleaved, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False,
):  # fmt: skip
    """By the options of a layout."""
    _te._check_dims(t, options["layout"], "t")
    options.update(_pairing(rotary_interleaved, mla_rotary_interleaved, mla_output_remove_interleaving))
    options.update(freqs=_table(t, freqs), rotary_dim=freqs.shape[3], mscale=mscale, inverse=inverse, rounding="native")
    return rotate(t, **options).contiguous()


_T = {"tensors[0]": "t"}
_ROTATION = {
    "rotary_interleaved": flag, "mla_rotary_interleaved": flag, "mscale": _factor, "inverse": flag,
    "mla_output_remove_interleaving": flag, "multi_latent_attention": optional(flag),
}  # fmt: skip


@arguments(_T, t=floats, freqs=floats, **_ROTATION)
def _apply_rotary_pos_emb_bshd(
    t, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False, multi_latent_attention=None,
):  # fmt: skip
    """apply_rotary_pos_emb without cu_seqlens. t may be [s, b, d] too, and freqs then [s, 1 or b, d]."""
    if multi_latent_attention is not None:  # the older name
        mla_rotary_interleaved = multi_latent_attention
    words = rotary_interleaved, mla_rotary_interleaved, mscale, inverse, mla_output_remove_interleaving
    return _rotate_sbhd(t, freqs, *words)


def _rotate_sbhd(t, freqs, *words):
    """The same of checked arguments. The words are _rotate's, from rotary_interleaved on."""
    x = t
    if t.dim() == 3:
        if freqs.dim() not in (3, 4):
            raise Error("freqs has shape %s, which is not [positions, 1 or batch, columns]" % list(freqs.shape), "freqs")
        x, freqs = t.unsqueeze(2), freqs if freqs.dim() == 4 else freqs.unsqueeze(2)
    elif t.dim() != 4:
        raise Error("t has shape %s, which is not [s, b, h, d] or [s, b, d]" % list(t.shape), "t")
    if not freqs.dim() or freqs.shape[0] < t.shape[0]:
        raise Error("freqs has shape %s, of too few rows for %d tokens" % (list(freqs.shape), t.shape[0]), "freqs")
    rotated = _rotate(x, freqs, dict(layout="sbhd"), *words)
    return rotated if x is t else rotated.squeeze(2)


def _are_stream_positions(rows, tokens, cp_size, max_seqlen, cu_seqlens):
    """Whether freqs has a row for each token of the stream, not of a sequence. (0.19.2 compares with cu_seqlens[-1], which
    is tokens * cp_size: else its split of t fails.)"""
    if max_seqlen is _NOT_GIVEN:
        return rows == tokens * cp_size
    if max_seqlen is not None:
        return rows > max_seqlen
    if rows > tokens * cp_size:  # more than cu_seqlens[-1] can be
        return False
    if cu_seqlens.dim() != 1 or not len(cu_seqlens):  # (the call is refused)
        return False
    return rows == int(cu_seqlens[-1])


_OF_GROUP = {**_T, "cp_size": "the size of cp_group", "cp_rank": "the rank of cp_group"}
_OF_GROUP["tokens * cp_size"] = "the tokens of all ranks of cp_group"


@arguments(
    _OF_GROUP, t=floats, cu_seqlens=indices, freqs=floats, cp_group=optional(_group), max_seqlen=_most, **_ROTATION
)  # fmt: skip
def _apply_rotary_pos_emb_thd(
    t, cu_seqlens, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False, cp_group=None, multi_latent_attention=None, max_seqlen=_NOT_GIVEN,
):  # fmt: skip
    """apply_rotary_pos_emb with cu_seqlens."""
    if multi_latent_attention is not None:
        mla_rotary_interleaved = multi_latent_attention
    if cp_group is None:
        raise Error("cp_group is missing: thd needs its size and rank", "cp_group")
    words = rotary_interleaved, mla_rotary_interleaved, mscale, inverse, mla_output_remove_interleaving
    return _rotate_thd(t, cu_seqlens, freqs, cp_group, max_seqlen, *words)


def _rotate_thd(t, cu_seqlens, freqs, cp_group, max_seqlen, *words):
    """The same of checked arguments. The words are _rotate's, from rotary_interleaved on."""
    _te._check_dims(t, "thd", "t")
    cp_size, cp_rank = _size_and_rank(cp_group)
    options = _sequences(cu_seqlens, cp_size, cp_rank)
    if not freqs.dim():
        raise Error("freqs has shape [], which is not [positions, 1, 1, columns]", "freqs")
    options["stream_positions"] = _are_stream_positions(freqs.shape[0], t.shape[0], cp_size, max_seqlen, cu_seqlens)
    options["out_of_range"] = "poison" if max_seqlen is _NOT_GIVEN else "clamp"
    return _rotate(t, freqs, options, *words)


def _default_group():
    """Megatron-Core's context parallel group."""
    try:
        group = importlib.import_module("megatron.core.parallel_state").get_context_parallel_group()
    except (ImportError, AssertionError) as error:
        raise Error("cp_group is missing, and Megatron-Core has none: %s" % error, "cp_group") from None
    _group(group, "cp_group")
    return group


@arguments(
    _OF_GROUP, t=floats, freqs=floats, config=_config, cu_seqlens=optional(indices), mscale=_factor,
    cp_group=optional(_group), mla_rotary_interleaved=optional(flag), inverse=flag, mla_output_remove_interleaving=flag,
    max_seqlen=_most,
)  # fmt: skip
def apply_rotary_pos_emb(
    t, freqs, config, cu_seqlens=None, mscale=1.0, cp_group=None, mla_rotary_interleaved=False, inverse=False,
    mla_output_remove_interleaving=False, max_seqlen=_NOT_GIVEN,
):  # fmt: skip
    """Rotates q or k, with autograd for it and for freqs.

    Arguments:
        t: [s, b, h, d], or with cu_seqlens [t, h, d]. Any strides.
        freqs: [positions, 1 or b, 1, d2] radians, one for each element; d2 <= d, the rest of a head is copied. Without
            cu_seqlens row i is of token i (cut for the cp rank), else the rows are those of all ranks.
        config: rotary_interleaved is read; and multi_latent_attention, where mla_rotary_interleaved is None.
        cu_seqlens: [sequences + 1] int32 or int64 where t is: offsets in the stream of all cp ranks.
        mscale: cos and sin are multiplied by it.
        cp_group: of thd, in zigzag; its size and rank are asked in each call. Default: Megatron's.
        mla_rotary_interleaved: elements 2i and 2i + 1 turn, by columns i and i + d2/2, and become i and i + d2/2.
        inverse: turns the other way.
        mla_output_remove_interleaving: with mla_rotary_interleaved, the result stays in 2i and 2i + 1.
        max_seqlen: of thd. freqs with more rows have one for each token of the stream, not of a sequence. None: those with
            cu_seqlens[-1] rows, for which the call may wait for the GPU, as main does. Left out, as in 0.19.2: those with as
            many rows as the stream.
    Return:
        like t, contiguous.
    Raises:
        trope.Error: names the argument.
    """
    if mla_rotary_interleaved is None:
        mla_rotary_interleaved = getattr(config, "multi_latent_attention", None)
        if not isinstance(mla_rotary_interleaved, bool):
            message = "mla_rotary_interleaved is None, and config has no multi_latent_attention of True or False"
            raise Error(message, "mla_rotary_interleaved")
    words = config.rotary_interleaved, mla_rotary_interleaved, mscale, inverse, mla_output_remove_interleaving
    if cu_seqlens is None:
        return _rotate_sbhd(t, freqs, *words)
    if cp_group is None:
        cp_group = _default_group()
    return _rotate_thd(t, cu_seqlens, freqs, cp_group, max_seqlen, *words)


@arguments(_T, t=floats, cos=floats, sin=floats, rotary_interleaved=flag)
def apply_rotary_pos_emb_with_cos_sin(t, cos, sin, rotary_interleaved=False):
    """Rotates t [s, b, h, d] by cos and sin [s, d2 / 2], one for each pair."""
    _te._check_dims(t, "sbhd", "t")
    for table, name in ((cos, "cos"), (sin, "sin")):
        if table.dim() != 2:
            raise Error("%s has shape %s, which is not [s, pairs]" % (name, list(table.shape)), name)
        _check_rows(t, table.shape[0], name)
        _check_columns(t, 2 * table.shape[1], name)
        refuse_gradient(table, name)
    check_tables(cos, sin, t, ("cos", "sin"), "t")
    cos, sin = _same_strides(cos, sin)
    options = dict(_pairing(rotary_interleaved), angle_columns="pair", rounding="native", rotary_dim=2 * cos.shape[1])
    return rotate(t, layout="sbhd", cos=cos, sin=sin, **options).contiguous()


def _no_transposing(value, name):
    flag(value, name)
    if value:
        raise Error("%s is of apex: TransformerEngine has it no longer" % name, name)


@arguments(_T, t=floats, freqs=floats, transpose_output_memory=_no_transposing, interleaved=flag)
def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False, interleaved=False):
    """apply_rotary_pos_emb of sbhd without a config."""
    return _rotate_sbhd(t, freqs, interleaved)


@arguments(_T, t=floats, cu_seqlens=indices, freqs=floats, **_CP, interleaved=flag)
def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, cp_size=1, cp_rank=0, interleaved=False):
    """apply_rotary_pos_emb of thd without a config. Positions are those in the sequence, however many rows freqs has."""
    return _rotate(t, freqs, _sequences(cu_seqlens, cp_size, cp_rank), interleaved)


# ---- Parts of tensors to parts of others ----


class _Operand(NamedTuple):
    """What resolve needs to know of a part of a tensor. As rotary_dim is always given, it reads how many dimensions."""

    shape: tuple


def _resolve_eager(count, options):
    """The Spec of `count` operands, and what is beside them, as _present has it, for a Function of our own."""
    spec, side = resolve([_Operand((1,) * len(options["layout"]))] * count, **options)
    return (spec, *_present(side))


class _Move(Function):
    """Rotates and copies parts of tensors to parts of new ones, in one launch; backward the other way.

    apply(transposed, spec, slots, parts, shapes, *arrays beside, *tensors): parts(*tensors, *results) are the operands, as
    views (from, to). Transposed, they go from `to` to `from`, and the tensors are those of `to`.
    """

    @staticmethod
    def forward(ctx, transposed, spec, slots, parts, shapes, *arrays):
        beside, tensors = arrays[: len(slots)], arrays[len(slots) :]
        results = tuple([tensors[0].new_empty(shape) for shape in shapes])
        operands = parts(*results, *tensors) if transposed else parts(*tensors, *results)
        srcs, dsts = zip(*[(b, a) if transposed else (a, b) for a, b in operands])
        _launch.launch(transposed, spec, srcs, dsts, (None,) * len(srcs), (*_spread(slots, beside), None, None))
        ctx.save_for_backward(*beside)
        ctx.words = not transposed, spec, slots, parts, [t.shape for t in tensors]
        return results

    @staticmethod
    @gradients
    def backward(ctx, *grads):
        return (None,) * (5 + len(ctx.saved_tensors)) + _Move.apply(*ctx.words, *ctx.saved_tensors, *grads)


def _move(parts, shapes, tensors, options):
    """_Move by options of rotate."""
    spec, slots, arrays = _resolve_eager(len(options["rotary_dim"]), options)
    return _Move.apply(False, spec, slots, parts, shapes, *arrays, *tensors)


@arguments(_te._names("qkv"), qkv=floats, tensor_format=_te._check_format, **_te._QKV_WORDS)
def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None, interleaved=False,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """trope.transformer_engine's, with Megatron's unfused rounding: q, k, v of packed groups, in one launch where q_freqs
    and k_freqs are one tensor."""
    words = start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
    sizes, options = _te._prepare_qkv(qkv, "qkv", q_freqs, k_freqs, qkv_split_arg_list, *words)
    options["rounding"] = "native"
    if not _is_eager((qkv,)) or q_freqs.requires_grad or k_freqs.requires_grad or not _te._same(q_freqs, k_freqs):
        return _te._compose_qkv(qkv, q_freqs, k_freqs, sizes, options)
    (per_group, d, v_dim), groups = sizes, qkv.shape[-2]
    shapes = [tuple(qkv.shape[:-2]) + ends for ends in ((groups * per_group, d), (groups, d), (groups, v_dim))]
    table = _te._table(q_freqs, qkv, "q_freqs", "qkv", d)
    width = table.shape[-1]
    options = dict(_te._with_groups(options), freqs=table, rotary_dim=(width, width, COPY))

    def parts(qkv, q, k, v):
        return zip(_te._packed_parts(qkv, sizes), _te._apart_parts(q, k, v, sizes))

    return _move(parts, shapes, (qkv,), options)


# ---- MLA: fused_mla_yarn_rope_apply ----


def _no_interleaving(value, name):
    """The check of rotary_interleaved."""
    flag(value, name)
    if value:
        raise Error("%s must be False: MLA's pairs are interleaved without it" % name, name)


_MLA = {"cos": floats, "sin": floats, "emb_dim": _emb_dim, "rotary_interleaved": _no_interleaving, **_CP}


def _mla_options(
    t, argument, head_dim, words, cos, sin, emb_dim, cu_seqlens, cp_rank, cp_size, inverse=False, remove_interleaving=False,
    position_ids=None,
):  # fmt: skip
    """Those of rotate, after looking at t [s, b, h, head_dim] or, with cu_seqlens, [t, h, head_dim]. Without cu_seqlens,
    cos and sin are already cut for the cp rank. `words` is what head_dim is the sum of."""
    _te._check_dims(t, "sbhd" if cu_seqlens is None else "thd", argument)
    if t.shape[-1] != head_dim:
        raise Error("%s has head_dim %d, and %s is %d" % (argument, t.shape[-1], words, head_dim), argument)
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
            raise Error("position_ids are for thd: cu_seqlens is missing", "position_ids")
        if position_ids.shape[0] != t.shape[0]:
            message = "position_ids has shape %s for %d tokens"
            raise Error(message % (list(position_ids.shape), t.shape[0]), "position_ids")
        options = dict(layout="thd", position_ids=position_ids)
    else:
        options = dict(layout="sbhd") if cu_seqlens is None else _sequences(cu_seqlens, cp_size, cp_rank)
    cos, sin = _same_strides(cos[:, 0, 0], sin[:, 0, 0])
    return dict(options, cos=cos, sin=sin, rounding="native", inverse=inverse, **_pairing(False, True, remove_interleaving))


def _check_like(x, name, first, name_of_first):
    """Refuses a tensor of another dtype or device than the first of the call."""
    for word, given, wanted in (("dtype", x.dtype, first.dtype), ("device", x.device, first.device)):
        if given != wanted:
            raise Error("%s has %s %s, and %s %s" % (name, word, given, name_of_first, wanted), name)


class _InPlace(Function):
    """Rotates t and gives it: apply(spec, slots, t, *arrays beside).

    As in Megatron-Core, autograd is not told of the write: of a view, which q is in MLA, it would copy the whole gradient
    twice. By the version of t it notices still if it needs t as it was.
    """

    @staticmethod
    def forward(ctx, spec, slots, t, *arrays):
        ctx.words = spec, slots
        ctx.save_for_backward(*arrays)
        _launch.launch(False, spec, [t], [t], (None,), (*_spread(slots, arrays), None, None))
        _count_write(t)
        return t

    @staticmethod
    @gradients
    def backward(ctx, grad):
        spec, slots = ctx.words
        (d,) = Eager.rotate(True, spec, _spread(slots, ctx.saved_tensors), [grad])
        return (None, None, d) + (None,) * len(slots)


def _rotate_in_place(t, options):
    """t, rotated, which autograd of Megatron-Core's MLA goes on with."""
    if _is_eager((t,)):
        check_writable(t, "t")
    if not (t.requires_grad and torch.is_grad_enabled() and _is_eager((t,))):
        if t.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling() and not _may_be_marked(t):
            raise Error("t is a leaf that requires a gradient, or a view of one: clone it", "t")
        return rotate_(t, **options)
    if t.is_leaf:
        raise Error("t is a leaf that requires a gradient: autograd needs it as it is", "t")
    spec, slots, arrays = _resolve_eager(1, options)
    return _InPlace.apply(spec, slots, t, *arrays)


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
        cos, sin: [positions, 1, 1, emb_dim], one for each element of the result in halves.
        cu_seqlens_q: [sequences + 1]: t is thd. cp_rank and cp_size are read with it alone.
        remove_interleaving: pairs stay 2i and 2i + 1, else become i and i + emb_dim/2.
        position_ids: [t] int32 or int64, of thd: instead of the positions in the sequences.
    """
    words = cos, sin, emb_dim, cu_seqlens_q, cp_rank, cp_size, inverse, remove_interleaving, position_ids
    options = _mla_options(t, "t", nope_dim + emb_dim, "nope_dim + emb_dim", *words)
    return rotate(t, rotary_dim=emb_dim, rotary_offset=nope_dim, **options).contiguous()


@arguments(_OF_Q_NAMES, **_OF_Q, rope_first=flag)
def fused_mla_rope_inplace(
    t, cos, sin, nope_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1, rotary_interleaved=False, inverse=False,
    remove_interleaving=False, position_ids=None, rope_first=False,
):  # fmt: skip
    """fused_mla_rope_out_of_place in place: go on with what it returns. rope_first: the first emb_dim elements turn."""
    words = cos, sin, emb_dim, cu_seqlens_q, cp_rank, cp_size, inverse, remove_interleaving, position_ids
    options = _mla_options(t, "t", nope_dim + emb_dim, "nope_dim + emb_dim", *words)
    return _rotate_in_place(t, dict(options, rotary_dim=emb_dim, rotary_offset=0 if rope_first else nope_dim))


@arguments(
    _OF_Q_NAMES, **_MLA, t=floats, qk_head_dim=integer(0, MAX_ROTARY_DIM), cu_seqlens_q=optional(indices)
)  # fmt: skip
def fused_apply_mla_rope_for_q(
    t, cos, sin, qk_head_dim, emb_dim, cu_seqlens_q=None, cp_rank=0, cp_size=1, rotary_interleaved=False
):
    """fused_mla_rope_inplace by its older name."""
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
    """key and value, in one launch, of kv [s, b, h, k_dim + v_dim] and k_pos_emb [s, b, 1, emb_dim] (or [t, ...] each),
    which all heads share.

    Return:
        key [..., h, k_dim + emb_dim], with the rotated k_pos_emb behind each head, and value [..., h, v_dim], contiguous.
    The other arguments are fused_mla_rope_out_of_place's.
    """
    words = cos, sin, emb_dim, cu_seqlens_kv, cp_rank, cp_size, False, remove_interleaving
    return _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, words)


def _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, words):
    """The same of checked arguments. The words are _mla_options'."""
    options = _mla_options(kv, "kv", k_dim + v_dim, "k_dim + v_dim", *words)
    *before, heads, _ = kv.shape
    if list(k_pos_emb.shape) != [*before, 1, emb_dim]:
        given = list(k_pos_emb.shape), [*before, 1, emb_dim]
        raise Error("k_pos_emb has shape %s, where %s is wanted" % given, "k_pos_emb")
    _check_like(k_pos_emb, "k_pos_emb", kv, "kv")
    options.update(rotary_dim=(COPY, emb_dim, COPY), shared_heads=(0, heads, 0))
    if not _is_eager((kv, k_pos_emb)):
        k, k_pos_emb, v = rotate(kv[..., :k_dim], k_pos_emb, kv[..., k_dim:], **options)
        return torch.cat((k, k_pos_emb), -1), v.contiguous()

    def parts(kv, k_pos_emb, key, value):
        return (kv[..., :k_dim], key[..., :k_dim]), (k_pos_emb, key[..., k_dim:]), (kv[..., k_dim:], value)

    return _move(parts, [(*before, heads, k_dim + emb_dim), (*before, heads, v_dim)], (kv, k_pos_emb), options)


@arguments(_OF_KV_NAMES, **_OF_KV)
def fused_apply_mla_rope_for_kv(
    kv, k_pos_emb, cos, sin, emb_dim, k_dim, v_dim, cu_seqlens_kv=None, cp_rank=0, cp_size=1, rotary_interleaved=False
):
    """fused_mla_rope_kv_split by its older name."""
    return _split_kv(kv, k_pos_emb, k_dim, v_dim, emb_dim, (cos, sin, emb_dim, cu_seqlens_kv, cp_rank, cp_size))


@arguments(
    {"tensors[0]": "nope", "tensors[1]": "rope"}, nope=floats, rope=floats, cos=floats, sin=floats,
    cu_seqlens=optional(indices), **_CP,
)  # fmt: skip
def fused_mla_rope_concat(nope, rope, cos, sin, cu_seqlens=None, cp_rank=0, cp_size=1):
    """[..., h, nope_dim + emb_dim], in one launch, of nope [..., h, nope_dim] and the rotated rope [..., h, emb_dim]."""
    _te._check_dims(rope, "sbhd" if cu_seqlens is None else "thd", "rope")
    nope_dim, emb_dim = nope.shape[-1] if nope.dim() else 0, rope.shape[-1]
    if nope.shape[:-1] != rope.shape[:-1] or nope.dim() != rope.dim() or nope_dim < 1:
        raise Error("nope has shape %s, and rope %s" % (list(nope.shape), list(rope.shape)), "nope")
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


# ---- fused_mrope ----


def _not_in_mrope(value, name):
    """The check of rotary_interleaved."""
    flag(value, name)
    if value:
        raise Error("%s must be False for M-RoPE, as in Megatron-Core" % name, name)


def _sections(value, name):
    """The check of mrope_section."""
    integers(value, name)
    if len(value) != 3:
        raise Error("%s must be 3 integers, of time, height and width, not %s" % (name, shown(value)), name)


_MROPE = {
    "t": floats, "freqs": floats, "mrope_section": _sections, "interleaved_mrope": flag, "rotary_interleaved": _not_in_mrope,
    "fp32_compute": flag,
}  # fmt: skip


def _rotate_mrope(t, freqs, shape, mrope_section, interleaved_mrope, fp32_compute, options):
    if freqs.dim() != 4 or tuple(freqs.shape[:3]) != shape:
        raise Error("freqs has shape %s, which is not %s and pairs" % (list(freqs.shape), list(shape)), "freqs")
    _check_columns(t, 2 * freqs.shape[3], "freqs")
    check_table(freqs, t, "freqs", "t")
    if sum(mrope_section) != freqs.shape[3]:
        given = list(mrope_section), freqs.shape[3]
        raise Error("mrope_section is %s, and freqs has %d pairs" % given, "mrope_section")
    axes = pair_axis("interleaved" if interleaved_mrope else "sections", mrope_section)
    options.update(pairing="half", angle_columns="pair", rounding="native_f32" if fp32_compute else "native")
    options.update(freqs=freqs[: max(axes) + 1], pair_axis=axes, rotary_dim=2 * freqs.shape[3])
    return rotate(t, **options).contiguous()


@arguments({**_T, "sections": "mrope_section"}, **_MROPE)
def fused_apply_mrope(t, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False, fp32_compute=False):
    """Rotates t [s, b, h, d] by freqs [3, b, s, pairs], of time, height and width.

    Arguments:
        mrope_section: pairs that turn by each of them, all pairs together.
        interleaved_mrope: they take turns (Qwen3-VL), else are one after another (Qwen2-VL).
        rotary_interleaved: False.
        fp32_compute: operations are in fp32, and the result rounded; else each is rounded to the dtype of t.
    """
    _te._check_dims(t, "sbhd", "t")
    words = mrope_section, interleaved_mrope, fp32_compute
    return _rotate_mrope(t, freqs, (3, t.shape[1], t.shape[0]), *words, dict(layout="sbhd"))


@arguments({**_T, "sections": "mrope_section"}, **_MROPE, cu_seqlens=indices, **_CP)
def fused_apply_mrope_thd(
    t, cu_seqlens, freqs, mrope_section, interleaved_mrope=False, rotary_interleaved=False, cp_size=1, cp_rank=0,
    fp32_compute=False,
):  # fmt: skip
    """The same of t [t, h, d], with freqs [3, 1, tokens of all cp ranks, pairs]."""
    _te._check_dims(t, "thd", "t")
    words = mrope_section, interleaved_mrope, fp32_compute
    options = dict(_sequences(cu_seqlens, cp_size, cp_rank), stream_positions=True)
    return _rotate_mrope(t, freqs, (3, 1, t.shape[0] * cp_size), *words, options)


# ---- patch ----

_logger = logging.getLogger("trope.megatron")
_ABSENT = object()  # the value of a global that is not there

_ROPE_UTILS = "megatron.core.models.common.embeddings.rope_utils"
_SHIMS = "megatron.core.extensions.transformer_engine"
_ATTENTION, _HAVE_QKV = "megatron.core.transformer.attention", "HAVE_FUSED_QKV_ROPE"
_FUNCTIONS = {
    _ROPE_UTILS: (
        apply_rotary_pos_emb, apply_rotary_pos_emb_with_cos_sin, _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd,
    ),
    _SHIMS: (fused_apply_rotary_pos_emb, fused_apply_rotary_pos_emb_thd),
    _ATTENTION: (apply_fused_qkv_rotary_pos_emb,),
    "megatron.core.fusions.fused_mla_yarn_rope_apply": (
        fused_apply_mla_rope_for_q, fused_apply_mla_rope_for_kv, fused_mla_rope_inplace, fused_mla_rope_out_of_place,
        fused_mla_rope_kv_split, fused_mla_rope_concat,
    ),
    "megatron.core.fusions.fused_mrope": (fused_apply_mrope, fused_apply_mrope_thd),
}  # fmt: skip

# The signatures that are known beside those above, which are main's: of 0.19.2, or without an option that came later.
_OTHER_SIGNATURES = {
    "apply_rotary_pos_emb": "t freqs config cu_seqlens mscale cp_group mla_rotary_interleaved",
    "_apply_rotary_pos_emb_bshd": "t freqs rotary_interleaved mla_rotary_interleaved mscale multi_latent_attention",
    "_apply_rotary_pos_emb_thd": "t cu_seqlens freqs rotary_interleaved mla_rotary_interleaved mscale cp_group"
    " multi_latent_attention",
    "fused_mla_rope_inplace": "t cos sin nope_dim emb_dim cu_seqlens_q cp_rank cp_size rotary_interleaved inverse"
    " remove_interleaving position_ids",
    "fused_apply_mrope": "t freqs mrope_section interleaved_mrope rotary_interleaved",
    "fused_apply_mrope_thd": "t cu_seqlens freqs mrope_section interleaved_mrope rotary_interleaved cp_size cp_rank",
}


def _import(name):
    """The module, or None if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name == error.name or name.startswith("%s." % error.name):
            return None
        raise


def _check_signature(function, original):
    name, given = function.__name__, list(inspect.signature(original).parameters)
    if given not in (list(inspect.signature(function).parameters), _OTHER_SIGNATURES.get(name, "").split()):
        message = "%s of Megatron-Core has the signature (%s), which is not known here: nothing has been patched"
        raise Error(message % (name, ", ".join(given)), name)


def _find_originals():
    """{function: Megatron's} of what the installed Megatron-Core has. None: it would have it of TransformerEngine."""
    originals = {}
    for module_name, functions in _FUNCTIONS.items():
        module = _import(module_name)
        if module is None and module_name == _ROPE_UTILS:
            raise ImportError("%s cannot be imported: is Megatron-Core installed?" % _ROPE_UTILS)
        for function in functions:
            original = getattr(module, function.__name__, None)
            if original is not None:
                _check_signature(function, original)
            if original is not None or module_name == _SHIMS or hasattr(module, _HAVE_QKV):
                originals[function] = original
    return originals


def _count_calls(function, original, calls):
    """`function` by the signature of the original, counted in calls[its name]."""
    name, names = function.__name__, tuple(inspect.signature(original or function).parameters)
    rotated = functools.partial(function, max_seqlen=None) if "max_seqlen" in names else function
    calls[name] = 0

    @functools.wraps(original or function)
    def call(*args, **kwargs):
        if not torch.compiler.is_compiling():
            calls[name] += 1
        if len(args) > len(names):
            raise TypeError("%s takes %d arguments, and %d are given" % (name, len(names), len(args)))
        return rotated(**dict(zip(names, args)), **kwargs)

    return call


def _loaded_globals():
    """(name of the module, name of the global, value) of all modules but TransformerEngine's."""
    for module_name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and module_name.partition(".")[0] != "transformer_engine":
            for name, value in list(vars(module).items()):
                yield module_name, name, value


_active = None


class Patch:
    """What patch() has done. A context manager, whose end is undo().

    Attributes:
        calls: {name of a function: how often it has been called}. What torch.compile traces is not counted.
        bindings: {(name of a module, name of a global): what it was}.
    """

    def __init__(self, originals):
        if not isinstance(originals, dict) or not set(originals) <= {f for known in _FUNCTIONS.values() for f in known}:
            message = "originals must be what patch() finds, not %s: call trope.megatron.patch(), which makes a Patch"
            raise Error(message % shown(originals), "originals")
        self.calls, self.bindings = {}, {}
        self._ours = {_count_calls(function, original, self.calls): original for function, original in originals.items()}
        by_name = {call.__name__: call for call in self._ours}
        by_original = {id(original): call for call, original in self._ours.items() if original is not None}
        for module_name, name, value in _loaded_globals():
            is_lacking = value is None and module_name.startswith("megatron.")
            call = by_name.get(name) if is_lacking else by_original.get(id(value))
            if call is not None:
                self._bind(module_name, name, call)
        for module_name in (_SHIMS, _ATTENTION):  # which lack the names
            for function in _FUNCTIONS[module_name]:
                if function in originals:
                    self._bind(module_name, function.__name__, by_name[function.__name__])
        if apply_fused_qkv_rotary_pos_emb in originals:
            self._bind(_ATTENTION, _HAVE_QKV, True)
        _logger.info("%s", self)

    def _bind(self, module_name, name, value):
        module = sys.modules.get(module_name)
        if module is not None:
            self.bindings.setdefault((module_name, name), getattr(module, name, _ABSENT))
            setattr(module, name, value)

    def undo(self):
        """Megatron's own functions again, also in modules that were imported meanwhile. A second time: nothing."""
        global _active
        if _active is not self:
            return
        for module_name, name, value in _loaded_globals():
            if type(value) is FunctionType and value in self._ours:
                self._restore(module_name, name, self._ours[value])
        if (_ATTENTION, _HAVE_QKV) in self.bindings:
            self._restore(_ATTENTION, _HAVE_QKV, _ABSENT)
        _active = None
        counts = ", ".join("%s %d" % item for item in self.calls.items() if item[1])
        _logger.info("undone, after %d calls: %s", sum(self.calls.values()), counts or "none")

    def _restore(self, module_name, name, otherwise):
        before = self.bindings.get((module_name, name), otherwise)
        if before is _ABSENT:
            delattr(sys.modules[module_name], name)
        else:
            setattr(sys.modules[module_name], name, before)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.undo()

    def __repr__(self):
        state = "active" if _active is self else "undone"
        return "<trope.megatron.Patch: %s, %d names, %d calls>" % (state, len(self.bindings), sum(self.calls.values()))

    def __str__(self):
        places = {}
        for module_name, name in self.bindings:
            places.setdefault(name, []).append(module_name.removeprefix("megatron.core."))
        return "; ".join("%s in %s" % (name, ", ".join(modules)) for name, modules in places.items())


def patch(*others, **named):
    """Replaces Megatron-Core's RoPE, wherever it has been imported, by the functions of this module.

    Modules that are imported later get them from those that are patched. Without TransformerEngine the two functions that
    Megatron has of it, and fused_single_qkv_rope, are there afterwards, so that such configs are valid.

    Return:
        a Patch.
    Raises:
        ImportError: there is no Megatron-Core.
        trope.Error: one of its functions has a signature that is not known here, which is named; or it is patched already.
    """
    global _active
    if others or named:
        given = shown(others[0]) if others else next(iter(named))
        message = "patch takes no argument, and got %s: it replaces functions in all modules, of any model and config"
        raise Error(message % given, "patch")
    if _active is not None:
        raise Error("patch: Megatron-Core is patched already: undo() that first", "patch")
    _active = Patch(_find_originals())
    return _active
