"""Replacements for Megatron-Core's rope_utils, for the functions that it takes from TransformerEngine, and for packed QKV."""

import importlib

import torch

from .. import transformer_engine as _te
from .._abi import COPY
from .._dropin import (
    arguments, check_table, check_tables, flag, floats, indices, integer, number, optional, refuse_gradient, shown,
)  # fmt: skip
from .._errors import Error
from ..torch import _is_eager, _same_strides
from ._move import _move, rotate_apart
from ._norms import rotate_normed
from ._options import _CP, _T, _check_columns, _check_rows, _pairing, _sequences

_NOT_GIVEN = "not given"  # stands for max_seqlen in 0.19.2, which does not have this argument

# ---- Checks ----


def _config(value, name):
    """Checks a config of Megatron-Core. Two of its options are used."""
    if not hasattr(value, "rotary_interleaved"):
        message = "%s must be a TransformerConfig, or an object with rotary_interleaved, not %s"
        raise Error(message % (name, shown(value)), name)
    if not isinstance(value.rotary_interleaved, bool):
        given = name, shown(value.rotary_interleaved)
        raise Error("%s has rotary_interleaved %s, which must be True or False" % given, name)


def _group(value, name):
    """Checks a process group, its size and its rank."""
    if not (callable(getattr(value, "size", None)) and callable(getattr(value, "rank", None))) or isinstance(value, type):
        raise Error("%s must be a process group, with size() and rank(), not %s" % (name, shown(value)), name)


def _size_and_rank(group):
    size, rank = group.size(), group.rank()
    for value in (size, rank):
        if type(value) is not int or not 0 <= rank < size:
            message = "cp_group has size %s and rank %s: this process must be a member of the group"
            raise Error(message % (shown(size), shown(rank)), "cp_group")
    return size, rank


def _factor(value, name):
    """Checks mscale."""
    if not number(value, name):
        raise Error("%s must not be 0" % name, name)


def _most(value, name):
    """Checks max_seqlen."""
    if value is not _NOT_GIVEN and value is not None:
        _length(value, name)


_length = integer(1)


def _table(t, freqs):
    """Returns [1 or batch, rows, columns] of freqs [rows, 1 or batch, 1, columns]."""
    batch = t.shape[1] if t.dim() == 4 else 1
    if freqs.dim() != 4 or freqs.shape[1] not in (1, batch) or freqs.shape[2] != 1:
        words = list(freqs.shape), "" if batch == 1 else " or %d" % batch
        raise Error("freqs has shape %s, which is not [positions, 1%s, 1, columns]" % words, "freqs")
    _check_columns(t, freqs.shape[3], "freqs")
    if freqs.dtype == torch.float64 and t.dtype != torch.float64:
        freqs = freqs.float()
    check_table(freqs, t, "freqs", "t")
    return freqs[:, :, 0].transpose(0, 1)


# ---- rope_utils, and its functions from TransformerEngine ----


def _rotate(
    t, freqs, options, rotary_interleaved, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False,
):  # fmt: skip
    """Rotates t with the options of a layout."""
    _te._check_dims(t, options["layout"], "t")
    options.update(_pairing(rotary_interleaved, mla_rotary_interleaved, mla_output_remove_interleaving))
    options.update(freqs=_table(t, freqs), rotary_dim=freqs.shape[3], mscale=mscale, inverse=inverse, rounding="native")
    return rotate_normed(t, **options)


_ROTATION = {
    "rotary_interleaved": flag, "mla_rotary_interleaved": flag, "mscale": _factor, "inverse": flag,
    "mla_output_remove_interleaving": flag, "multi_latent_attention": optional(flag),
}  # fmt: skip


@arguments(_T, t=floats, freqs=floats, **_ROTATION)
def _apply_rotary_pos_emb_bshd(
    t, freqs, rotary_interleaved=False, mla_rotary_interleaved=False, mscale=1.0, inverse=False,
    mla_output_remove_interleaving=False, multi_latent_attention=None,
):  # fmt: skip
    """apply_rotary_pos_emb without cu_seqlens. t may also be [s, b, d], with freqs [s, 1 or b, d]."""
    if multi_latent_attention is not None:  # the older name of mla_rotary_interleaved
        mla_rotary_interleaved = multi_latent_attention
    words = rotary_interleaved, mla_rotary_interleaved, mscale, inverse, mla_output_remove_interleaving
    return _rotate_sbhd(t, freqs, *words)


def _rotate_sbhd(t, freqs, *words):
    """_apply_rotary_pos_emb_bshd of checked arguments. `words` are the arguments of _rotate from rotary_interleaved on."""
    x = t
    if t.dim() == 3:
        if freqs.dim() not in (3, 4):
            raise Error("freqs has shape %s, which is not [positions, 1 or batch, columns]" % list(freqs.shape), "freqs")
        x, freqs = t.unsqueeze(2), freqs if freqs.dim() == 4 else freqs.unsqueeze(2)
    elif t.dim() != 4:
        raise Error("t has shape %s, which is not [s, b, h, d] or [s, b, d]" % list(t.shape), "t")
    if not freqs.dim() or freqs.shape[0] < t.shape[0]:
        raise Error("freqs has shape %s, with too few rows for %d tokens" % (list(freqs.shape), t.shape[0]), "freqs")
    rotated = _rotate(x, freqs, dict(layout="sbhd"), *words)
    return rotated if x is t else rotated.squeeze(2)


def _are_stream_positions(rows, tokens, cp_size, max_seqlen, cu_seqlens):
    """Whether freqs has a row for each token of the stream, not of a sequence. (0.19.2 compares the number of rows with
    cu_seqlens[-1], which is tokens * cp_size, because otherwise its split of t fails.)"""
    if max_seqlen is _NOT_GIVEN:
        return rows == tokens * cp_size
    if max_seqlen is not None:
        return rows > max_seqlen
    if rows > tokens * cp_size:  # cu_seqlens[-1] cannot be larger than this
        return False
    if cu_seqlens.dim() != 1 or not len(cu_seqlens):  # (the call is refused later)
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
    """_apply_rotary_pos_emb_thd of checked arguments. `words` are the arguments of _rotate from rotary_interleaved on."""
    _te._check_dims(t, "thd", "t")
    cp_size, cp_rank = _size_and_rank(cp_group)
    options = _sequences(cu_seqlens, cp_size, cp_rank)
    if not freqs.dim():
        raise Error("freqs has shape [], which is not [positions, 1, 1, columns]", "freqs")
    options["stream_positions"] = _are_stream_positions(freqs.shape[0], t.shape[0], cp_size, max_seqlen, cu_seqlens)
    options["out_of_range"] = "poison" if max_seqlen is _NOT_GIVEN else "clamp"
    return _rotate(t, freqs, options, *words)


def _default_group():
    """Returns Megatron-Core's context parallel group."""
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
        t: [s, b, h, d], or [t, h, d] with cu_seqlens. Any strides.
        freqs: [positions, 1 or b, 1, d2] radians, one for each element. d2 may be below d: the other elements of a head are
            copied. Without cu_seqlens, row i belongs to token i, and freqs is cut for the cp rank. With cu_seqlens, it has
            the rows of all ranks.
        config: a config of Megatron-Core. rotary_interleaved is used, and multi_latent_attention if mla_rotary_interleaved
            is None.
        cu_seqlens: [sequences + 1] int32 or int64 on the device of t: offsets in the stream of all cp ranks.
        mscale: multiplies cos and sin.
        cp_group: the context parallel group, for thd in the zigzag layout. Each call reads its size and rank. Default:
            Megatron's group.
        mla_rotary_interleaved: True pairs elements 2i and 2i + 1, uses columns i and i + d2/2, and writes the pair to i and
            i + d2/2.
        inverse: True rotates by the negative angles.
        mla_output_remove_interleaving: True, with mla_rotary_interleaved, writes the pair to 2i and 2i + 1.
        max_seqlen: for thd. If freqs has more rows than max_seqlen, it has a row for each token of the stream, not of a
            sequence. None: this is so if freqs has cu_seqlens[-1] rows. The call may then wait for the GPU, as in main.
            Left out, as in 0.19.2: this is so if freqs has as many rows as the stream has tokens.
    Return:
        a contiguous tensor like t.
    Raises:
        trope.Error: names the argument.
    """
    if mla_rotary_interleaved is None:
        mla_rotary_interleaved = getattr(config, "multi_latent_attention", None)
        if not isinstance(mla_rotary_interleaved, bool):
            message = "mla_rotary_interleaved is None, and multi_latent_attention of config is not True or False"
            raise Error(message, "mla_rotary_interleaved")
    words = config.rotary_interleaved, mla_rotary_interleaved, mscale, inverse, mla_output_remove_interleaving
    if cu_seqlens is None:
        return _rotate_sbhd(t, freqs, *words)
    if cp_group is None:
        cp_group = _default_group()
    return _rotate_thd(t, cu_seqlens, freqs, cp_group, max_seqlen, *words)


@arguments(_T, t=floats, cos=floats, sin=floats, rotary_interleaved=flag)
def apply_rotary_pos_emb_with_cos_sin(t, cos, sin, rotary_interleaved=False):
    """Rotates t [s, b, h, d] by cos and sin [s, d2 / 2], which have a column for each pair."""
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
    return rotate_apart(t, layout="sbhd", cos=cos, sin=sin, **options)


def _no_transposing(value, name):
    flag(value, name)
    if value:
        raise Error("%s is a function of apex: TransformerEngine no longer has it" % name, name)


@arguments(_T, t=floats, freqs=floats, transpose_output_memory=_no_transposing, interleaved=flag)
def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False, interleaved=False):
    """apply_rotary_pos_emb for sbhd without a config."""
    return _rotate_sbhd(t, freqs, interleaved)


@arguments(_T, t=floats, cu_seqlens=indices, freqs=floats, **_CP, interleaved=flag)
def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs, cp_size=1, cp_rank=0, interleaved=False):
    """apply_rotary_pos_emb for thd without a config. Positions are counted in each sequence, for any number of rows."""
    return _rotate(t, freqs, _sequences(cu_seqlens, cp_size, cp_rank), interleaved)


# ---- Packed QKV ----


@arguments(_te._names("qkv"), qkv=floats, tensor_format=_te._check_format, **_te._QKV_WORDS)
def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None, interleaved=False,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """apply_fused_qkv_rotary_pos_emb of trope.transformer_engine, with the rounding of Megatron's unfused code. It returns
    q, k and v of packed groups, in one launch if q_freqs and k_freqs are one tensor."""
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
