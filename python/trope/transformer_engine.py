"""What TransformerEngine 2.20 has for RoPE, by the same names: transformer_engine.pytorch.attention.rope, and the functions
of transformer_engine_torch that it calls.

    from trope.transformer_engine import apply_rotary_pos_emb

Results are those of TransformerEngine's fused kernels: computed in fp32, rounded once, contiguous in their format. Last
bits differ where CUDA's sincosf and trope's do. Tables are [positions, 1, 1, d2] radians with an angle of its own for each
element, d2 <= head_dim; the rest of a head is copied. Backward is the transpose, with start_positions and context parallel
as in forward, and can be differentiated again.

What is more than there: tensors on the CPU, f64, packed QKV of any strides, in thd, and with V heads of another width, and
gradients of freqs. What is less: freqs of several batch entries [positions, b, 1, d2], which its unfused code takes.
"""

import torch
from torch.autograd import Function

from ._abi import COPY
from ._errors import Error
from ._spec import resolve
from .torch import _is_eager, _launch, rotate, rotate_backward

__all__ = [
    "FusedQKVRoPEFunc", "FusedRoPEFunc", "RotaryPositionEmbedding", "apply_fused_qkv_rotary_pos_emb",
    "apply_rotary_pos_emb", "fused_qkv_rope_backward", "fused_qkv_rope_forward", "fused_rope_backward",
    "fused_rope_forward",
]  # fmt: skip

FORMATS = ("sbhd", "bshd", "thd")


def _check_format(value, argument):
    if value not in FORMATS:
        raise Error("%s must be one of %s, not %r" % (argument, ", ".join(map(repr, FORMATS)), value), argument)
    return value


def _format_of(value):
    """The word of qkv_format, which may be TransformerEngine's NVTE_QKV_Format: by name, as its numbers have changed."""
    return _check_format(getattr(value, "name", str(value)).removeprefix("NVTE_").lower(), "qkv_format")


def _table(freqs, head_dim, dtype, argument="freqs"):
    """[positions, d2] of [positions, 1, 1, d2]."""
    if freqs.dim() != 4 or freqs.shape[1] != 1 or freqs.shape[2] != 1:
        raise Error("%s has shape %s, which is not [positions, 1, 1, d2]" % (argument, list(freqs.shape)), argument)
    if freqs.shape[3] > head_dim or freqs.shape[3] % 2:
        words = argument, freqs.shape[3], head_dim
        raise Error("%s has %d columns, which must be even, and at most head_dim %d" % words, argument)
    if freqs.dtype == torch.float64 and dtype != torch.float64:
        freqs = freqs.float()
    return freqs[:, 0, 0]


def _check_rows(x, freqs, tensor_format, start_positions, cp_size, argument="freqs"):
    """What follows from the shapes. Positions that are read are the library's to check."""
    if tensor_format == "thd" or start_positions is not None:
        return
    positions = x.shape[tensor_format.index("s")] * cp_size
    if positions > freqs.shape[0]:
        raise Error("%s has %d rows for %d positions" % (argument, freqs.shape[0], positions), argument)


def _check_dims(x, tensor_format, argument):
    if x.dim() != len(tensor_format):
        raise Error("%s has shape %s, which is not %s" % (argument, list(x.shape), tensor_format), argument)


def _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank):
    """Those of trope.torch.rotate. Tokens behind the last sequence, which TransformerEngine does not write, become 0."""
    pairing = "interleaved" if interleaved else "half"
    options = dict(layout=tensor_format, pairing=pairing, angle_columns=pairing, start_positions=start_positions)
    options.update(cp_size=cp_size, cp_rank=cp_rank, cp_layout="zigzag")
    if tensor_format == "thd":
        if cu_seqlens is None:
            raise Error("cu_seqlens is missing, and thd has no sequences without", "cu_seqlens")
        options.update(cu_seqlens=cu_seqlens, padding="zero")
    return options


# ---- One tensor ----


def _prepare(x, argument, freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """The options of trope.torch.rotate, freqs among them."""
    _check_dims(x, tensor_format, argument)
    table = _table(freqs, x.shape[-1], x.dtype)
    _check_rows(x, freqs, tensor_format, start_positions, cp_size)
    return dict(_options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank), freqs=table)


def _rotate(transposed, x, argument, *words):
    """M x or M' x, contiguous, without autograd. The words are _prepare's."""
    options = _prepare(x, argument, *words)
    if not _is_eager((x,)):
        return (rotate_backward if transposed else rotate)(x.detach(), **options).contiguous()
    spec, side = resolve(1, **options)
    result = x.new_empty(x.shape)
    _launch.launch(transposed, spec, [x], [result], [None], (*side, None, None))
    return result


def fused_rope_forward(input, freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """apply_rotary_pos_emb outside of autograd. qkv_format: "sbhd", ..., or a NVTE_QKV_Format."""
    words = _format_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate(False, input, "input", freqs, start_positions, *words)


def fused_rope_backward(output_grads, freqs, start_positions, qkv_format, interleaved, cu_seqlens, cp_size, cp_rank):
    """dx of dy: the transpose of fused_rope_forward with the same arguments."""
    words = _format_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate(True, output_grads, "output_grads", freqs, start_positions, *words)


class FusedRoPEFunc(Function):
    """apply(t, freqs, start_positions=None, tensor_format="sbhd", interleaved=False, cu_seqlens=None, cp_size=1,
    cp_rank=0): apply_rotary_pos_emb, whose arguments it has in another order. It gives freqs no gradient."""

    @staticmethod
    def forward(
        ctx, t, freqs, start_positions=None, tensor_format="sbhd", interleaved=False, cu_seqlens=None, cp_size=1, cp_rank=0
    ):
        _check_format(tensor_format, "tensor_format")
        if ctx.needs_input_grad[1]:
            raise Error("freqs requires a gradient, which FusedRoPEFunc lacks: use apply_rotary_pos_emb", "freqs")
        ctx.save_for_backward(freqs, start_positions, cu_seqlens)
        ctx.words = tensor_format, interleaved, cp_size, cp_rank
        return _rotate(False, t, "t", freqs, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank)

    @staticmethod
    def backward(ctx, grad_output):
        freqs, start_positions, cu_seqlens = ctx.saved_tensors
        tensor_format, interleaved, cp_size, cp_rank = ctx.words
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        options = _prepare(grad_output, "grad_output", freqs, start_positions, *words)
        return (rotate_backward(grad_output, **options),) + (None,) * 7


def apply_rotary_pos_emb(
    t, freqs, tensor_format="sbhd", start_positions=None, interleaved=False, fused=False, cu_seqlens=None, cp_size=1,
    cp_rank=0,
):  # fmt: skip
    """Rotates one tensor; with autograd for it, and for freqs.

    Arguments:
        t: [s, b, h, d], [b, s, h, d] or [t, h, d], as tensor_format says. Any strides.
        freqs: [positions, 1, 1, d2] radians, d2 <= d; f32 (f16, bf16: converted exactly; f64: f32 unless t is f64).
        tensor_format: "sbhd", "bshd" or "thd".
        start_positions: [b] int32 or int64, with thd [sequences]: added to the index in the sequence.
        interleaved: element 2i turns with 2i + 1, else i with i + d2/2. Columns of freqs are paired likewise.
        fused: not read: it is always fused. (Unfused, TransformerEngine rounds cos and sin to the dtype of t, and each
            operation: trope.torch.rotate does, with rounding="native".)
        cu_seqlens: [sequences + 1] int32 or int64, for thd, else not read: offsets in the stream of all ranks. Tokens
            behind the last sequence become 0, and their gradients too.
        cp_size, cp_rank: context parallel: the rank has two chunks of each sequence, cp_rank and 2 cp_size - 1 - cp_rank,
            and freqs has the rows of all.
    Return:
        like t, contiguous.
    Raises:
        trope.Error: names the argument. On CUDA, tokens whose start_positions leave the table become NaN instead, and so
            do sequences that cu_seqlens has wrong, or that are longer than the table.
    """
    words = _check_format(tensor_format, "tensor_format"), interleaved, cu_seqlens, cp_size, cp_rank
    if freqs.requires_grad or not _is_eager((t,)):
        return rotate(t, **_prepare(t, "t", freqs, start_positions, *words)).contiguous()
    return FusedRoPEFunc.apply(t, freqs, start_positions, *words)


# ---- Packed QKV: [..., groups, q_per_group * d + d + v_dim] ----


def _check_split(split):
    """(q_per_group, d, v_dim) of qkv_split_arg_list."""
    split = tuple(split)
    if len(split) != 3 or min(split) < 1 or split[0] % split[1]:
        name = "qkv_split_arg_list"
        raise Error("%s must be [n * d, d, v_dim], what a group has of q, k and v, not %s" % (name, list(split)), name)
    return split[0] // split[1], split[1], split[2]


def _packed_parts(qkv, sizes):
    """q, k and v in the packed tensor: [..., groups, heads of a group, head_dim], all views."""
    per_group, d, v_dim = sizes
    q, k, v = qkv.split((per_group * d, d, v_dim), -1)
    return q.unflatten(-1, (per_group, d)), k.unsqueeze(-2), v.unsqueeze(-2)


def _apart_parts(q, k, v, sizes):
    """The same of tensors of their own."""
    return q.unflatten(-2, (k.shape[-2], sizes[0])), k.unsqueeze(-2), v.unsqueeze(-2)


def _same(a, b):
    """Whether two tables are one."""
    if a is b or torch.compiler.is_compiling() or a.requires_grad or b.requires_grad:
        return a is b  # an alias, such as detach() gives, has another gradient
    return a.data_ptr() == b.data_ptr() and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def _tables(q_freqs, k_freqs, k):
    return tuple(_table(freqs, k.shape[-1], k.dtype, name) for freqs, name in ((q_freqs, "q_freqs"), (k_freqs, "k_freqs")))


def _calls(q_freqs, k_freqs, parts):
    """What goes into one call: (indices of q, k and v, the table, rotary_dim of each). V is with q."""
    q_table, k_table = _tables(q_freqs, k_freqs, parts[1])
    q_width, k_width = q_table.shape[-1], k_table.shape[-1]
    if _same(q_freqs, k_freqs):
        return [((0, 1, 2), q_table, (q_width, k_width, COPY))]
    return [((0, 2), q_table, (q_width, COPY)), ((1,), k_table, (k_width,))]


def _rotate_parts(transposed, srcs, dsts, q_freqs, k_freqs, options):
    """From parts to parts: q and k rotated, v copied, in one launch where q and k have one table."""
    for which, table, widths in _calls(q_freqs, k_freqs, srcs):
        spec, side = resolve(len(which), freqs=table, rotary_dim=widths, **_with_groups(options))
        _launch.launch(
            transposed, spec, [srcs[i] for i in which], [dsts[i] for i in which], (None,) * len(which), (*side, None, None)
        )


def _with_groups(options):
    return dict(options, layout={"sbhd": "sbghd", "bshd": "bsghd", "thd": "tghd"}[options["layout"]])


def _prepare_qkv(
    qkv, argument, q_freqs, k_freqs, split, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
):
    """(q_per_group, d, v_dim), and the options but freqs."""
    _check_dims(qkv, tensor_format, argument)
    sizes = _check_split(split)
    if qkv.shape[-1] != sum(split):
        name, given = "qkv_split_arg_list", (sum(split), argument, qkv.shape[-1])
        raise Error("%s is of %d elements a group, and %s has %d" % (name, *given), name)
    _check_rows(qkv, q_freqs, tensor_format, start_positions, cp_size, "q_freqs")
    _check_rows(qkv, k_freqs, tensor_format, start_positions, cp_size, "k_freqs")
    return sizes, _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)


def _rotate_qkv(qkv, argument, q_freqs, k_freqs, *words):
    """q, k, v of the packed tensor, without autograd. The words are _prepare_qkv's."""
    sizes, options = _prepare_qkv(qkv, argument, q_freqs, k_freqs, *words)
    if not _is_eager((qkv,)):
        return _compose_qkv(qkv.detach(), q_freqs, k_freqs, sizes, options)
    per_group, d, v_dim = sizes
    before, groups = tuple(qkv.shape[:-2]), qkv.shape[-2]
    results = [qkv.new_empty(before + ends) for ends in ((groups * per_group, d), (groups, d), (groups, v_dim))]
    _rotate_parts(False, _packed_parts(qkv, sizes), _apart_parts(*results, sizes), q_freqs, k_freqs, options)
    return tuple(results)


def _compose_qkv(qkv, q_freqs, k_freqs, sizes, options):
    """The same by trope.torch.rotate, with its autograd, whose gradients of q, k and v are put together by PyTorch."""
    parts, results = _packed_parts(qkv, sizes), [None] * 3
    for which, table, widths in _calls(q_freqs, k_freqs, parts):
        rotated = rotate(*(parts[i] for i in which), freqs=table, rotary_dim=widths, **_with_groups(options))
        for i, x in zip(which, rotated if len(which) > 1 else (rotated,)):
            results[i] = x.flatten(-3, -2).contiguous()
    return tuple(results)


def _rotate_qkv_back(
    dq, dk, dv, q_freqs, k_freqs, split, start_positions, tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
):
    """The packed gradient, without autograd."""
    sizes = per_group, d, v_dim = _check_split(split)
    _check_dims(dk, tensor_format, "k_grad_out")
    before, groups = tuple(dk.shape[:-2]), dk.shape[-2]
    expected = (groups * per_group, d), (groups, d), (groups, v_dim)
    for x, ends, name in zip((dq, dk, dv), expected, ("q_grad_out", "k_grad_out", "v_grad_out")):
        if tuple(x.shape) != before + ends:
            raise Error("%s has shape %s, where %s is wanted" % (name, list(x.shape), list(before + ends)), name)
    _check_rows(dk, q_freqs, tensor_format, start_positions, cp_size, "q_freqs")
    _check_rows(dk, k_freqs, tensor_format, start_positions, cp_size, "k_freqs")
    options = _options(tensor_format, interleaved, start_positions, cu_seqlens, cp_size, cp_rank)
    d_qkv = dk.new_empty(before + (groups, sum(split)))
    _rotate_parts(True, _apart_parts(dq, dk, dv, sizes), _packed_parts(d_qkv, sizes), q_freqs, k_freqs, options)
    return d_qkv


def fused_qkv_rope_forward(
    qkv_input, q_freqs, k_freqs, start_positions, qkv_split_arg_list, qkv_format, interleaved, cp_size, cp_rank,
    cu_seqlens=None,
):  # fmt: skip
    """apply_fused_qkv_rotary_pos_emb outside of autograd. qkv_format: "sbhd", ..., or a NVTE_QKV_Format. cu_seqlens, which
    TransformerEngine's has not: for thd."""
    words = _format_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate_qkv(qkv_input, "qkv_input", q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words)


def fused_qkv_rope_backward(
    q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_split_arg_list, qkv_format, interleaved, cp_size, cp_rank,
    start_positions=None, cu_seqlens=None,
):  # fmt: skip
    """The gradient of qkv_input: the transpose of fused_qkv_rope_forward. start_positions and cu_seqlens, which
    TransformerEngine's has not, are those of forward."""
    words = _format_of(qkv_format), interleaved, cu_seqlens, cp_size, cp_rank
    return _rotate_qkv_back(
        q_grad_out, k_grad_out, v_grad_out, q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words
    )  # fmt: skip


class FusedQKVRoPEFunc(Function):
    """apply(qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions=None, tensor_format="sbhd", interleaved=False,
    cp_size=1, cp_rank=0, cu_seqlens=None): apply_fused_qkv_rotary_pos_emb, with cu_seqlens at the end."""

    @staticmethod
    def forward(
        ctx, qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions=None, tensor_format="sbhd", interleaved=False,
        cp_size=1, cp_rank=0, cu_seqlens=None,
    ):  # fmt: skip
        for needed, name in zip(ctx.needs_input_grad[1:3], ("q_freqs", "k_freqs")):
            if needed:
                message = "%s requires a gradient, which FusedQKVRoPEFunc lacks: use apply_fused_qkv_rotary_pos_emb"
                raise Error(message % name, name)
        _check_format(tensor_format, "tensor_format")
        ctx.save_for_backward(q_freqs, k_freqs, start_positions, cu_seqlens)
        ctx.words = tuple(qkv_split_arg_list), tensor_format, interleaved, cp_size, cp_rank
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        return _rotate_qkv(qkv, "qkv", q_freqs, k_freqs, ctx.words[0], start_positions, *words)

    @staticmethod
    def backward(ctx, grad_output_q, grad_output_k, grad_output_v):
        grads = grad_output_q, grad_output_k, grad_output_v
        return (_FusedQKVTransposed.apply(*grads, *ctx.saved_tensors, *ctx.words),) + (None,) * 9


class _FusedQKVTransposed(Function):
    """The backward of FusedQKVRoPEFunc, which has one itself: apply(dq, dk, dv, q_freqs, k_freqs, start_positions,
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
    def backward(ctx, grad):
        q_freqs, k_freqs, start_positions, cu_seqlens = ctx.saved_tensors
        split, *words = ctx.words
        return FusedQKVRoPEFunc.apply(grad, q_freqs, k_freqs, split, start_positions, *words, cu_seqlens) + (None,) * 9


def apply_fused_qkv_rotary_pos_emb(
    qkv, q_freqs, k_freqs, qkv_split_arg_list, tensor_format="sbhd", start_positions=None, interleaved=False,
    cu_seqlens=None, cp_size=1, cp_rank=0,
):  # fmt: skip
    """Rotates Q and K of a packed tensor and copies V, each into a tensor of its own, in one launch where q_freqs and
    k_freqs are one tensor, else in two. Backward writes the packed gradient likewise. (Under torch.compile, and where
    q_freqs or k_freqs require a gradient, PyTorch puts it together, which is a copy more.)

    Arguments:
        qkv: [s, b, groups, n * d + d + v_dim], or [b, s, ...], [t, ...], as tensor_format says: in each group n query
            heads, a key head and a value head. Any strides.
        q_freqs, k_freqs: [positions, 1, 1, d2] radians, d2 <= d, as of apply_rotary_pos_emb.
        qkv_split_arg_list: [n * d, d, v_dim].
        tensor_format: "sbhd", "bshd" or "thd" (which TransformerEngine does not take).
        start_positions, interleaved, cu_seqlens, cp_size, cp_rank: as of apply_rotary_pos_emb.
    Return:
        q [..., groups * n, d], k [..., groups, d], v [..., groups, v_dim], contiguous.
    Raises:
        trope.Error: names the argument.
    """
    _check_format(tensor_format, "tensor_format")
    if q_freqs.requires_grad or k_freqs.requires_grad or not _is_eager((qkv,)):
        words = tensor_format, interleaved, cu_seqlens, cp_size, cp_rank
        prepared = _prepare_qkv(qkv, "qkv", q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words)
        return _compose_qkv(qkv, q_freqs, k_freqs, *prepared)
    words = tensor_format, interleaved, cp_size, cp_rank
    return FusedQKVRoPEFunc.apply(qkv, q_freqs, k_freqs, qkv_split_arg_list, start_positions, *words, cu_seqlens)


# ---- The table ----


class RotaryPositionEmbedding(torch.nn.Module):
    """The table of radians that apply_rotary_pos_emb takes.

    Arguments:
        dim: elements of a head.
        rotary_percent: the part of them that turns.
        seq_len_interpolation_factor: positions are divided by it, if pretrained_max_position_embeddings is given.
        pretrained_max_position_embeddings: more positions than this times the factor are squeezed into so many instead.
        rotary_base: pair i turns by rotary_base ** (-2i / dim) a position.
        interleaved: columns are a0 a0 a1 a1 ..., else a0 a1 ... a0 a1 ...

    It is computed in fp32, as there: far positions have the rounding of an fp32 product, which trope.frequencies has not.
    Its buffer inv_freq is on the current CUDA device, if there is one.
    """

    def __init__(
        self, dim, rotary_percent=1.0, seq_len_interpolation_factor=None, pretrained_max_position_embeddings=None,
        rotary_base=10000.0, interleaved=False,
    ):  # fmt: skip
        super().__init__()
        if rotary_percent < 1.0:
            dim = int(dim * rotary_percent)
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        self.pretrained_max_position_embeddings = pretrained_max_position_embeddings
        self.rotary_base = rotary_base
        self.interleaved = interleaved
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        self.register_buffer("inv_freq", 1.0 / rotary_base**exponents)

    def _find_scale(self, max_seq_len):
        """What positions are multiplied by, or None."""
        factor, trained = self.seq_len_interpolation_factor, self.pretrained_max_position_embeddings
        if factor is None or trained is None:
            return None
        return 1 / (max_seq_len / trained) if max_seq_len > trained * factor else 1 / factor

    def forward(self, max_seq_len, offset=0):
        """[max_seq_len, 1, 1, dim] f32: the angles of positions from offset on."""
        positions = torch.arange(max_seq_len, device=self.inv_freq.device, dtype=self.inv_freq.dtype) + offset
        scale = self._find_scale(max_seq_len)
        if scale is not None:
            positions = positions * scale
        angles = positions[:, None] * self.inv_freq  # by no matmul, which autocast and TF32 would round
        table = angles.repeat_interleave(2, -1) if self.interleaved else torch.cat((angles, angles), -1)
        return table[:, None, None]
