"""Drop-in RoPE functions for TransformerEngine 2.20, with the same names: transformer_engine.pytorch.attention.rope, and
the functions of transformer_engine_torch that it calls.

    from trope.transformer_engine import apply_rotary_pos_emb

Results are those of TransformerEngine's fused kernels: computed in fp32, rounded once, contiguous in their format. Last
bits differ where CUDA's sincosf and trope's differ. Tables are [positions, 1, 1, d2] radians with an angle for each
element. If d2 is below head_dim, the other elements of a head are copied. Backward is the transpose, with the
start_positions and the context parallelism of forward. It can be differentiated again.

These functions also accept f64 and tensors on the CPU, and they have gradients of freqs. Packed QKV may have any strides,
be thd, and have V heads of another width. Like TransformerEngine's unfused code, apply_rotary_pos_emb also takes freqs of
each batch entry, [positions, b, 1, d2], but not for packed QKV.
"""

import torch
from torch.autograd import Function

from ._abi import COPY, MAX_ROTARY_DIM
from ._dropin import (
    arguments, check_table, flag, floats, gradients, indices, integer, number, optional, positive, rename, shown,
)  # fmt: skip
from ._errors import Error
from ._spec import resolve
from .torch import _is_eager, _launch, rotate, rotate_backward
from .torch._launch import refuse_transforms
from .torch._modules import keep_precision

__all__ = [
    "FusedQKVRoPEFunc", "FusedRoPEFunc", "RotaryPositionEmbedding", "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb", "fused_qkv_rope_backward", "fused_qkv_rope_forward", "fused_rope_backward",
    "fused_rope_forward",
]  # fmt: skip

FORMATS = ("sbhd", "bshd", "thd")


def _check_format(value, argument):
    if not isinstance(value, str) or value not in FORMATS:
        raise Error("%s must be one of %s, not %s" % (argument, ", ".join(map(repr, FORMATS)), shown(value)), argument)


def _word_of(value):
    """Returns the word of qkv_format. NVTE_QKV_Format is read by name, because TransformerEngine changed its numbers."""
    word = value if isinstance(value, str) else getattr(value, "name", None)
    return word.removeprefix("NVTE_").lower() if isinstance(word, str) else value


def _check_qkv_format(value, argument):
    word = _word_of(value)
    if not isinstance(word, str) or word not in FORMATS:
        _check_format(value if isinstance(word, str) else word, argument)


def _table(freqs, x, argument="freqs", x_argument="t", head_dim=None, batch=1):
    """Returns [positions, d2] of [positions, 1, 1, d2], or [b, positions, d2] of [positions, b, 1, d2] if `batch` is b."""
    head_dim = x.shape[-1] if head_dim is None else head_dim
    if freqs.dim() != 4 or freqs.shape[1] not in (1, batch) or freqs.shape[2] != 1:
        shapes = "[positions, 1, 1, d2]" + (" or [positions, %d, 1, d2]" % batch if batch != 1 else "")
        raise Error("%s has shape %s, which is not %s" % (argument, list(freqs.shape), shapes), argument)
    if not 2 <= freqs.shape[3] <= head_dim or freqs.shape[3] % 2:
        words = argument, freqs.shape[3], head_dim
        raise Error("%s has %d columns, which must be even, and 2 to head_dim %d" % words, argument)
    if freqs.dtype == torch.float64 and x.dtype != torch.float64:
        freqs = freqs.float()
    check_table(freqs, x, argument, x_argument)
    return freqs[:, 0, 0] if freqs.shape[1] == 1 else freqs[:, :, 0].transpose(0, 1)


def _check_rows(x, freqs, tensor_format, start_positions, cp_size, argument="freqs"):
    """Refuses a table with too few rows for the shape of x. The library checks positions that are read."""
    if tensor_format == "thd" or start_positions is not None:
        return
    positions = x.shape[tensor_format.index("s")] * cp_size
    if positions > freqs.shape[0]:
        raise Error("%s has %d rows for %d positions" % (argument, freqs.shape[0], positions), argument)


def _check_dims(x, tensor_format, argument):
    if x.dim() != len(tensor_format):
        raise Error("%s has shape %s, which is not %s" % (argument, list(x.shape), tensor_format), argument)


def _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank):
    """Returns the options of trope.torch.rotate. Tokens after the last sequence (unwritten by the original) become 0."""
    pairing = "interleaved" if interleaved else "half"
    options = dict(layout=tensor_format, pairing=pairing, angle_columns=pairing, start_positions=start_positions)
    options.update(cp_size=cp_size, cp_rank=cp_rank, cp_layout="zigzag")
    if tensor_format == "thd":
        if cu_seqlens is None:
            raise Error("cu_seqlens is missing: layout thd requires it", "cu_seqlens")
        options.update(cu_seqlens=cu_seqlens, padding="zero")
    return options


# ---- One tensor ----


def _prepare(x, argument, freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """Returns the options of trope.torch.rotate, including freqs."""
    _check_dims(x, tensor_format, argument)
    has_batch = freqs.dim() == 4 and freqs.shape[1] != 1
    if has_batch and (tensor_format == "thd" or start_positions is not None):
        reason = "thd has no batch" if tensor_format == "thd" else "start_positions shift one table for the whole batch"
        message = "freqs has shape %s, and %s: pass [positions, 1, 1, d2]"
        raise Error(message % (list(freqs.shape), reason), "freqs")
    batch = x.shape[tensor_format.index("b")] if has_batch else 1
    table = _table(freqs, x, "freqs", argument, batch=batch)
    _check_rows(x, freqs, tensor_format, start_positions, cp_size)
    options = _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    return dict(options, freqs=table, rotary_dim=table.shape[-1])


def _rotate(transposed, x, argument, *words):
    """Returns M x or M' x, contiguous, without autograd. `words` are the arguments of _prepare from freqs on."""
    options = _prepare(x, argument, *words)
    if not _is_eager((x,)):
        y = (rotate_backward if transposed else rotate)(x.detach(), **options)
        return y if y.is_contiguous() else y.contiguous()  # (torch.compile loses gradients if an output is there twice)
    spec, side = resolve([x], options)
    result = x.new_empty(x.shape)
    _launch.launch(transposed, spec, [x], [result], [None], side)
    return result


_WORDS = {
    "start_positions": optional(indices), "interleaved": flag, "cu_seqlens": optional(indices), "cp_size": integer(1),
    "cp_rank": integer(0),
}  # fmt: skip


@arguments({"tensors[0]": "input"}, input=floats, freqs=floats, qkv_format=_check_qkv_format, **_WORDS)
def fused_rope_forward(input, freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """apply_rotary_pos_emb without autograd. qkv_format: "sbhd", ..., or a NVTE_QKV_Format."""
    words = _word_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate(False, input, "input", freqs, start_positions, *words)


@arguments({"tensors[0]": "output_grads"}, output_grads=floats, freqs=floats, qkv_format=_check_qkv_format, **_WORDS)
def fused_rope_backward(output_grads, freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """Returns dx of dy: the transpose of fused_rope_forward with the same arguments."""
    words = _word_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate(True, output_grads, "output_grads", freqs, start_positions, *words)


_apply = Function.apply.__func__  # torch.compile does not support super() here


class _Rope(Function):
    """apply(t, freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank), arguments checked."""

    @staticmethod
    def forward(ctx, t, freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank):
        ctx.save_for_backward(freqs, start_positions, cu_seqlens)
        ctx.words = tensor_format, interleaved, cp_size, cp_rank
        return _rotate(False, t, "t", freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank)

    @staticmethod
    @gradients
    def backward(ctx, grad_output):
        freqs, start_positions, cu_seqlens = ctx.saved_tensors
        tensor_format, interleaved, cp_size, cp_rank = ctx.words
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        options = _prepare(grad_output, "tensors[0]", freqs, start_positions, *words)
        return (rotate_backward(grad_output, **options),) + (None,) * 7


class FusedRoPEFunc(_Rope):
    """apply(t, freqs, start_positions=None, tensor_format="sbhd", interleaved=False, cu_seqlens=None, cp_size=1,
    cp_rank=0): apply_rotary_pos_emb with another order of arguments, and without a gradient of freqs."""

    @classmethod
    def apply(cls, *args):
        _refuse_transforms("t")
        return _apply(cls, *args)

    @staticmethod
    @arguments({"tensors[0]": "t"}, t=floats, freqs=floats, tensor_format=_check_format, **_WORDS)
    def forward(
        ctx, t, freqs, start_positions=None, tensor_format="sbhd", interleaved=False, cu_seqlens=None, cp_size=1, cp_rank=0
    ):
        _refuse_gradient(ctx.needs_input_grad[1], "freqs", "FusedRoPEFunc", "apply_rotary_pos_emb")
        return _Rope.forward(ctx, t, freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank)


def _refuse_transforms(x):
    """Refuses transforms before PyTorch refuses them with an error of its own."""
    try:
        refuse_transforms()
    except Error as error:
        raise rename(error, {"tensors[0]": x}) from None


def _refuse_gradient(needed, name, function, other):
    if needed:
        raise Error("%s requires a gradient, which %s does not compute: use %s" % (name, function, other), name)


@arguments({"tensors[0]": "t"}, t=floats, freqs=floats, tensor_format=_check_format, fused=flag, **_WORDS)
def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", start_positions=None, interleaved=False, fused=False, cu_seqlens=None, cp_size=1,
    cp_rank=0,
):  # fmt: skip
    """Rotates one tensor, with autograd for it and for freqs.

    Arguments:
        t: [s, b, h, d], [b, s, h, d] or [t, h, d], in the order of tensor_format. Any strides.
        freqs: [positions, 1, 1, d2] radians, d2 <= d, in f32. f16 and bf16 are converted exactly, and f64 is converted to
            f32 unless t is f64. For sbhd and bshd without start_positions also [positions, b, 1, d2], with an angle for
            each batch entry.
        tensor_format: "sbhd", "bshd" or "thd".
        start_positions: [b] int32 or int64, or [sequences] with thd: is added to the index in the sequence.
        interleaved: True pairs element 2i with 2i + 1. False pairs i with i + d2/2. The columns of freqs are paired
            in the same way.
        fused: is ignored: the call is always fused. (Unfused, TransformerEngine rounds cos and sin to the dtype of t, and
            each operation. trope.torch.rotate does this with rounding="native".)
        cu_seqlens: [sequences + 1] int32 or int64, for thd, otherwise ignored: offsets in the stream of all ranks. Tokens
            after the last sequence become 0, and so do their gradients.
        cp_size, cp_rank: context parallelism. The rank has two chunks of each sequence, cp_rank and 2 cp_size - 1 -
            cp_rank, and freqs has the rows of all ranks.
    Return:
        a contiguous tensor like t.
    Raises:
        trope.Error: names the argument. On CUDA, tokens whose start_positions leave the table become NaN instead, and so do
            sequences with wrong cu_seqlens and sequences that are longer than the table.
    """
    words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
    if freqs.requires_grad or not _is_eager((t,)):
        return rotate(t, **_prepare(t, "t", freqs, start_positions, *words)).contiguous()
    return _Rope.apply(t, freqs, start_positions, *words)


# ---- Packed QKV: [..., groups, q_per_group * d + d + v_dim] ----


def _check_split(value, name):
    """Checks qkv_split_arg_list."""
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise Error("%s must be a list of 3 integers, [n * d, d, v_dim], not %s" % (name, shown(value)), name)
    for each in value:
        _of_split(each, name)
    if value[0] % value[1]:
        message = "%s must be [n * d, d, v_dim], the numbers of elements of q, k and v in a group, not %s"
        raise Error(message % (name, list(value)), name)


_of_split = integer(1)


def _sizes_of(split):
    """Returns (q_per_group, d, v_dim) of qkv_split_arg_list."""
    return split[0] // split[1], split[1], split[2]


def _packed_parts(qkv, sizes):
    """Returns q, k and v of the packed tensor as views [..., groups, heads of a group, head_dim]."""
    per_group, d, v_dim = sizes
    q, k, v = qkv.split((per_group * d, d, v_dim), -1)
    return q.unflatten(-1, (per_group, d)), k.unsqueeze(-2), v.unsqueeze(-2)


def _apart_parts(q, k, v, sizes):
    """Returns q, k and v of separate tensors as views [..., groups, heads of a group, head_dim]."""
    return q.unflatten(-2, (k.shape[-2], sizes[0])), k.unsqueeze(-2), v.unsqueeze(-2)


def _same(a, b):
    """Whether two tables are the same table."""
    if a is b or torch.compiler.is_compiling() or a.requires_grad or b.requires_grad:
        return a is b  # an alias, such as the result of detach(), has another gradient
    return a.data_ptr() == b.data_ptr() and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def _calls(q_freqs, k_freqs, parts):
    """Returns (indices of q, k and v, the table, its name, rotary_dim of each) for each call. V is in the call of q."""
    q_table, k_table = (_table(f, parts[1], name) for f, name in ((q_freqs, "q_freqs"), (k_freqs, "k_freqs")))
    q_width, k_width = q_table.shape[-1], k_table.shape[-1]
    if _same(q_freqs, k_freqs):
        return [((0, 1, 2), q_table, "q_freqs", (q_width, k_width, COPY))]
    return [((0, 2), q_table, "q_freqs", (q_width, COPY)), ((1,), k_table, "k_freqs", (k_width,))]


def _names_of_call(which, table_name):
    """Maps the names of arguments in a call with some of q, k and v to their names in a call with all."""
    return {"freqs": table_name, **{"tensors[%d]" % i: "tensors[%d]" % part for i, part in enumerate(which)}}


def _rotate_parts(transposed, srcs, dsts, q_freqs, k_freqs, options):
    """Rotates q and k and copies v, from srcs to dsts, in one launch if q and k have one table."""
    for which, table, name, widths in _calls(q_freqs, k_freqs, srcs):
        from_parts, to_parts = [srcs[i] for i in which], [dsts[i] for i in which]
        try:
            spec, side = resolve(from_parts, {**_with_groups(options), "freqs": table, "rotary_dim": widths})
            _launch.launch(transposed, spec, from_parts, to_parts, (None,) * len(which), side)
        except Error as error:
            raise rename(error, _names_of_call(which, name)) from None


def _with_groups(options):
    return dict(options, layout={"sbhd": "sbghd", "bshd": "bsghd", "thd": "tghd"}[options["layout"]])


def _prepare_qkv(
    qkv, argument, q_freqs, k_freqs, split, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
):
    """Checks the arguments. Returns (q_per_group, d, v_dim), and the options without freqs."""
    _check_dims(qkv, tensor_format, argument)
    sizes = _sizes_of(split)
    if qkv.shape[-1] != sum(split):
        name, given = "qkv_split_arg_list", (sum(split), argument, qkv.shape[-1])
        raise Error("%s has %d elements in a group, but %s has %d" % (name, *given), name)
    for freqs, argument_of_freqs in ((q_freqs, "q_freqs"), (k_freqs, "k_freqs")):
        _table(freqs, qkv, argument_of_freqs, argument, sizes[1])
    _check_rows(qkv, q_freqs, tensor_format, start_positions, cp_size, "q_freqs")
    _check_rows(qkv, k_freqs, tensor_format, start_positions, cp_size, "k_freqs")
    return sizes, _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)


def _rotate_qkv(qkv, argument, q_freqs, k_freqs, *words):
    """Returns q, k and v of the packed tensor, without autograd. `words` are _prepare_qkv's arguments from split on."""
    sizes, options = _prepare_qkv(qkv, argument, q_freqs, k_freqs, *words)
    if not _is_eager((qkv,)):
        return _compose_qkv(qkv.detach(), q_freqs, k_freqs, sizes, options)
    per_group, d, v_dim = sizes
    before, groups = tuple(qkv.shape[:-2]), qkv.shape[-2]
    results = [qkv.new_empty(before + ends) for ends in ((groups * per_group, d), (groups, d), (groups, v_dim))]
    _rotate_parts(False, _packed_parts(qkv, sizes), _apart_parts(*results, sizes), q_freqs, k_freqs, options)
    return tuple(results)


def _compose_qkv(qkv, q_freqs, k_freqs, sizes, options):
    """Returns q, k and v by trope.torch.rotate with its autograd. PyTorch then joins the gradients of q, k and v."""
    parts, results = _packed_parts(qkv, sizes), [None] * 3
    for which, table, name, widths in _calls(q_freqs, k_freqs, parts):
        try:
            rotated = rotate(*(parts[i] for i in which), freqs=table, rotary_dim=widths, **_with_groups(options))
        except Error as error:
            raise rename(error, _names_of_call(which, name)) from None
        for i, x in zip(which, rotated if len(which) > 1 else (rotated,)):
            results[i] = x.flatten(-3, -2).contiguous()
    return tuple(results)


def _rotate_qkv_back(
    dq, dk, dv, q_freqs, k_freqs, split, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
):
    """Returns the packed gradient, without autograd."""
    sizes = per_group, d, v_dim = _sizes_of(split)
    _check_dims(dk, tensor_format, "k_grad_out")
    before, groups = tuple(dk.shape[:-2]), dk.shape[-2]
    expected = (groups * per_group, d), (groups, d), (groups, v_dim)
    for x, ends, name in zip((dq, dk, dv), expected, ("q_grad_out", "k_grad_out", "v_grad_out")):
        if tuple(x.shape) != before + ends:
            raise Error("%s has shape %s, and must have %s" % (name, list(x.shape), list(before + ends)), name)
        if x.dtype != dq.dtype:
            raise Error("%s has dtype %s, but q_grad_out has %s" % (name, x.dtype, dq.dtype), name)
        if x.device != dq.device:
            raise Error("%s is on %s, but q_grad_out is on %s" % (name, x.device, dq.device), name)
    for freqs, name in ((q_freqs, "q_freqs"), (k_freqs, "k_freqs")):
        _table(freqs, dk, name, "k_grad_out")
    _check_rows(dk, q_freqs, tensor_format, start_positions, cp_size, "q_freqs")
    _check_rows(dk, k_freqs, tensor_format, start_positions, cp_size, "k_freqs")
    options = _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    d_qkv = dk.new_empty(before + (groups, sum(split)))
    _rotate_parts(True, _apart_parts(dq, dk, dv, sizes), _packed_parts(d_qkv, sizes), q_freqs, k_freqs, options)
    return d_qkv


def _names(x):
    """Maps the names of q, k and v to the name of the tensor that they are parts of."""
    return {"tensors[%d]" % i: x for i in range(3)}


_QKV_WORDS = {"q_freqs": floats, "k_freqs": floats, "qkv_split_arg_list": _check_split, **_WORDS}


@arguments(_names("qkv_input"), qkv_input=floats, qkv_format=_check_qkv_format, **_QKV_WORDS)
def fused_qkv_rope_forward(
    qkv_input, q_freqs, k_freqs, start_positions, qkv_split_arg_list, qkv_format, interleaved, cp_size, cp_rank,
    cu_seqlens=None,
):  # fmt: skip
    """apply_fused_qkv_rotary_pos_emb without autograd. qkv_format: "sbhd", ..., or a NVTE_QKV_Format. cu_seqlens is for
    thd, and TransformerEngine's function does not have it."""
    words = _word_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate_qkv(qkv_input, "qkv_input", q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words)


@arguments(
    {"tensors[0]": "q_grad_out", "tensors[1]": "k_grad_out", "tensors[2]": "v_grad_out"}, q_grad_out=floats,
    k_grad_out=floats, v_grad_out=floats, qkv_format=_check_qkv_format, **_QKV_WORDS,
)  # fmt: skip
def fused_qkv_rope_backward(
    q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_split_arg_list, qkv_format, interleaved, cp_size, cp_rank,
    start_positions=None, cu_seqlens=None,
):  # fmt: skip
    """Returns the gradient of qkv_input: the transpose of fused_qkv_rope_forward. start_positions and cu_seqlens are those
    of forward, and TransformerEngine's function does not have them."""
    words = _word_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate_qkv_back(
        q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words
    )  # fmt: skip


class _PackedRope(Function):
    """apply(qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions, tensor_format, interleaved, cp_size, cp_rank,
    cu_seqlens), with checked arguments."""

    @staticmethod
    def forward(
        ctx, qkv, q_freqs, k_freqs, split, start_positions, tensor_format, interleaved, cp_size, cp_rank, cu_seqlens
    ):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions, cu_seqlens)
        ctx.words = split, tensor_format, interleaved, cp_size, cp_rank
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        return _rotate_qkv(qkv, "qkv", q_freqs, k_freqs, split, start_positions, *words)

    @staticmethod
    @gradients
    def backward(ctx, grad_output_q, grad_output_k, grad_output_v):
        grads = grad_output_q, grad_output_k, grad_output_v
        return (_PackedRopeTransposed.apply(*grads, *ctx.saved_tensors, *ctx.words),) + (None,) * 9


class _PackedRopeTransposed(Function):
    """The backward of _PackedRope, which can be differentiated too: apply(dq, dk, dv, q_freqs, k_freqs, start_positions,
    cu_seqlens, qkv_split_arg_list, tensor_format, interleaved, cp_size, cp_rank)."""

    @staticmethod
    def forward(
        ctx, dq, dk, dv, q_freqs, k_freqs, start_positions, cu_seqlens, split, tensor_format, interleaved, cp_size, cp_rank
    ):
        ctx.save_for_backward(q_freqs, k_freqs, start_positions, cu_seqlens)
        ctx.words = split, tensor_format, interleaved, cp_size, cp_rank
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        return _rotate_qkv_back(dq, dk, dv, q_freqs, k_freqs, split, start_positions, *words)

    @staticmethod
    @gradients
    def backward(ctx, grad):
        q_freqs, k_freqs, start_positions, cu_seqlens = ctx.saved_tensors
        split, *words = ctx.words
        return _PackedRope.apply(grad, q_freqs, k_freqs, split, start_positions, *words, cu_seqlens) + (None,) * 9


class FusedQKVRoPEFunc(_PackedRope):
    """apply(qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions=None, tensor_format="sbhd", interleaved=False,
    cp_size=1, cp_rank=0, cu_seqlens=None): apply_fused_qkv_rotary_pos_emb, with cu_seqlens at the end."""

    @classmethod
    def apply(cls, *args):
        _refuse_transforms("qkv")
        return _apply(cls, *args)

    @staticmethod
    @arguments(_names("qkv"), qkv=floats, tensor_format=_check_format, **_QKV_WORDS)
    def forward(
        ctx, qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions=None, tensor_format="sbhd", interleaved=False,
        cp_size=1, cp_rank=0, cu_seqlens=None,
    ):  # fmt: skip
        for needed, name in zip(ctx.needs_input_grad[1:3], ("q_freqs", "k_freqs")):
            _refuse_gradient(needed, name, "FusedQKVRoPEFunc", "apply_fused_qkv_rotary_pos_emb")
        words = tensor_format, interleaved, cp_size, cp_rank, cu_seqlens
        return _PackedRope.forward(ctx, qkv, q_freqs, k_freqs, tuple(qkv_split_arg_list), start_positions, *words)


@arguments(_names("qkv"), qkv=floats, tensor_format=_check_format, **_QKV_WORDS)
def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None, interleaved=False,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """Rotates Q and K of a packed tensor and copies V, each to a tensor of its own. This is one launch if q_freqs and
    k_freqs are one tensor, and two launches otherwise. Backward writes the packed gradient in the same number of launches.
    (Under torch.compile, or if q_freqs or k_freqs require a gradient, PyTorch joins the gradients, which is one more copy.)

    Arguments:
        qkv: [s, b, groups, n * d + d + v_dim], or [b, s, ...], [t, ...], in the order of tensor_format. Each group has n
            query heads, a key head and a value head. Any strides.
        q_freqs, k_freqs: [positions, 1, 1, d2] radians, d2 <= d, like freqs of apply_rotary_pos_emb.
        qkv_split_arg_list: [n * d, d, v_dim].
        tensor_format: "sbhd", "bshd" or "thd" (which TransformerEngine does not accept).
        start_positions, interleaved, cu_seqlens, cp_size, cp_rank: as in apply_rotary_pos_emb.
    Return:
        q [..., groups * n, d], k [..., groups, d], v [..., groups, v_dim], contiguous.
    Raises:
        trope.Error: names the argument.
    """
    if q_freqs.requires_grad or k_freqs.requires_grad or not _is_eager((qkv,)):
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        prepared = _prepare_qkv(qkv, "qkv", q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words)
        return _compose_qkv(qkv, q_freqs, k_freqs, *prepared)
    words = tensor_format, interleaved, cp_size, cp_rank
    return _PackedRope.apply(qkv, q_freqs, k_freqs, tuple(qkv_split_arg_list), start_positions, *words, cu_seqlens)


# ---- The table ----


_POSITIONS_MOST = 2**24  # float32 represents all integers up to this one


def _percent(value, name):
    """Checks rotary_percent."""
    if not 0 < number(value, name) <= 1:
        raise Error("%s must be over 0, and at most 1, not %s" % (name, shown(value)), name)


class RotaryPositionEmbedding(torch.nn.Module):
    """The table of radians that apply_rotary_pos_emb takes.

    Arguments:
        dim: the number of elements of a head.
        rotary_percent: the fraction of them that rotates.
        seq_len_interpolation_factor: divides positions, if pretrained_max_position_embeddings is given.
        pretrained_max_position_embeddings: if there are more positions than this times the factor, they are scaled to this
            number of positions instead.
        rotary_base: pair i rotates by rotary_base ** (-2i / dim) per position.
        interleaved: True: the columns are a0 a0 a1 a1 .... False: they are a0 a1 ... a0 a1 ...

    The table is computed in fp32, as in TransformerEngine: far positions have the rounding of an fp32 product, which
    trope.frequencies does not have. The buffer inv_freq is on the current CUDA device, if there is one. Casts of the module
    leave it in float32. Checkpoints that have rounded it to 16 bits do not change it. It is computed again when it leaves
    the meta device.
    """

    @arguments(
        dim=integer(2, MAX_ROTARY_DIM), rotary_percent=_percent, seq_len_interpolation_factor=optional(positive),
        pretrained_max_position_embeddings=optional(integer(1, _POSITIONS_MOST)), rotary_base=positive, interleaved=flag,
    )  # fmt: skip
    def __init__(
        self, dim, rotary_percent=1.0, seq_len_interpolation_factor=None, pretrained_max_position_embeddings=None,
        rotary_base=10000.0, interleaved=False,
    ):  # fmt: skip
        super().__init__()
        if dim % 2:
            raise Error("dim must be even, not %d" % dim, "dim")
        self._dim = int(dim * rotary_percent)
        if self._dim < 2 or self._dim % 2:
            message = "rotary_percent %s of dim %d is %d elements: this number must be even, and at least 2"
            raise Error(message % (rotary_percent, dim, self._dim), "rotary_percent")
        if seq_len_interpolation_factor is not None and pretrained_max_position_embeddings is None:
            message = (
                "pretrained_max_position_embeddings is missing: TransformerEngine does not read"
                " seq_len_interpolation_factor without it"
            )
            raise Error(message, "pretrained_max_position_embeddings")
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        if torch.get_default_device().type == "meta":  # otherwise to_empty would discard the frequencies
            device = "meta"
        self.register_buffer("inv_freq", self._compute_inv_freq(device))

    def _compute_inv_freq(self, device):
        exponents = torch.arange(0, self._dim, 2, dtype=torch.float32, device=device) / self._dim
        return 1.0 / float(self.rotary_base) ** exponents

    def reset_parameters(self):
        """Computes inv_freq from the arguments of the module."""
        with torch.no_grad():
            self.inv_freq.copy_(self._compute_inv_freq(self.inv_freq.device))

    def _apply(self, fn, recurse=True):
        """Keeps inv_freq in float32 in casts. Its values are set when it leaves the meta device."""
        was_meta = self.inv_freq.is_meta
        super()._apply(keep_precision(fn), recurse)
        if self.inv_freq.dtype != torch.float32:  # it was cast to float64, with the same values
            self.inv_freq = self.inv_freq.float()
        if was_meta and not self.inv_freq.is_meta:
            self.reset_parameters()
        return self

    def _load_from_state_dict(self, state_dict, prefix, *others):
        """Replaces saved frequencies that a cast of the model has rounded to 16 bits by float32 ones, computed again."""
        saved = state_dict.get(prefix + "inv_freq")
        if isinstance(saved, torch.Tensor) and saved.is_floating_point() and saved.element_size() < 4:
            own = self._compute_inv_freq(saved.device)
            if saved.is_meta or saved.shape != own.shape or not torch.equal(saved, own.to(saved.dtype)):
                message = "%sinv_freq has dtype %s, in which frequencies are rounded: save it in float32"
                others[-1].append(message % (prefix, saved.dtype))
                return
            state_dict = {**state_dict, prefix + "inv_freq": own}
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _find_scale(self, max_seq_len):
        """Returns the factor of the positions, or None."""
        factor, trained = self.seq_len_interpolation_factor, self.pretrained_max_position_embeddings
        if factor is None or trained is None:
            return None
        return 1 / (max_seq_len / trained) if max_seq_len > trained * factor else 1 / factor

    @arguments(max_seq_len=integer(0, _POSITIONS_MOST), offset=integer(-_POSITIONS_MOST, _POSITIONS_MOST))
    def forward(self, max_seq_len, offset=0):
        """Returns [max_seq_len, 1, 1, dim] f32: the angles of positions from offset on."""
        if max_seq_len + offset > _POSITIONS_MOST:
            message = "offset %d and max_seq_len %d exceed position %d, beyond which float32 is not exact"
            raise Error(message % (offset, max_seq_len, _POSITIONS_MOST), "offset")
        if self.inv_freq.dtype != torch.float32:
            message = (
                "inv_freq has dtype %s, in which frequencies are rounded: keep it in float32, and call reset_parameters()"
            )
            raise Error(message % self.inv_freq.dtype, "inv_freq")
        positions = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=self.inv_freq.dtype) + offset
        scale = self._find_scale(max_seq_len)
        if scale is not None:
            positions = positions * scale
        angles = positions[:, None] * self.inv_freq  # not a matmul, which autocast and TF32 would round
        table = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), -1)
        return table[:, None, None]
