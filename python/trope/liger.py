"""Drop-in functions for Liger Kernel 0.8 (liger_kernel.transformers, .functional and .ops), with the same names.

    modeling_llama.apply_rotary_pos_emb = trope.liger.liger_rotary_pos_emb

Results are new tensors with q's and k's order of dimensions in memory. q, k and upstream gradients are not changed, while
Liger overwrites them if they are contiguous. Any strides are accepted. Nothing is copied first, except cos and sin if their
strides differ. Gradients are the exact transpose and can be differentiated again. Tables have no gradients, and tables that
require one are refused.

Rounding: the arithmetic is fp32, rounded once at the store. Liger's Triton kernels do the same if the tables are float32,
and its CuTe kernel always does. Liger may fuse the other product of a sum, which changes the last bit of fp32. With tables
of 16 bits, the Triton kernels cast q and k to the dtype of the tables and compute in it. On an H100, one product of each
sum is rounded to that dtype and the other is fused, so their results differ from trope's by that rounding. trope never
casts float32 tensors to the dtype of such tables.

Liger ignores some wrong arguments that are refused here: position_ids, an unsqueeze_dim that means another layout, and
tables that are wider than the heads or of another length. Also refused are q and k of different dtypes, and Llama 4
frequencies that are no longer complex. Liger reads the first half of the columns of full-width tables, which has each angle
once. trope reads both halves, each for its elements, as in the formula q * cos + rotate_half(q) * sin.
"""

import torch as _torch

from . import torch as _rotations
from ._abi import MAX_AXES
from ._dropin import anything, arguments, check_tables, floats, integer, integers, optional, refuse_gradient, tensor
from ._errors import Error

__all__ = [
    "LigerLlama4RopeFunction", "LigerQwen2VLMRopeFunction", "LigerRopeFunction", "liger_llama4_text_rotary_pos_emb", "liger_llama4_vision_rotary_pos_emb",
    "liger_multimodal_rotary_pos_emb", "liger_qwen2vl_mrope", "liger_rope", "liger_rotary_pos_emb",
    "liger_rotary_pos_emb_gpt_oss", "liger_rotary_pos_emb_vision", "rope_backward", "rope_forward",
]  # fmt: skip


# ---- Checks of arguments ----


def _check_pair(q, k, names, shape):
    """Checks q and k, whose dimensions are described by `shape`. They may have different numbers of heads."""
    words = shape.strip("()").split(", ")
    for x, name in ((q, names[0]), (k, names[1])):
        if x.dim() != len(words):
            raise Error("%s must be %s, not %s" % (name, shape, list(x.shape)), name)
    for word, n, other in zip(words, q.shape, k.shape):
        if n != other and word != "heads":
            raise Error("%s has %s %d, but %s has %d" % (names[1], word, other, names[0], n), names[1])
    if k.device != q.device:
        raise Error("%s is on %s, but %s is on %s" % (names[1], k.device, names[0], q.device), names[1])
    if k.dtype != q.dtype:
        raise Error("%s has dtype %s, but %s has %s: cast one of them" % (names[1], k.dtype, names[0], q.dtype), names[1])


def _check_tables(cos, sin, q, q_name, shapes):
    """Returns both tables with the same strides. shapes: {number of dimensions: the shape that cos may have}."""
    if cos.dim() not in shapes:
        raise Error("cos has shape %s, and must be %s" % (list(cos.shape), " or ".join(shapes.values())), "cos")
    check_tables(cos, sin, q, ("cos", "sin"), q_name)
    for table, name in ((cos, "cos"), (sin, "sin")):
        refuse_gradient(table, name)
    return _rotations._same_strides(cos, sin)


def _check_size(table, batch, tokens, name="cos", q_name="q"):
    """Checks the size of a table (..., batch or 1, tokens, columns)."""
    if table.shape[-2] != tokens:
        raise Error("%s has %d rows (shape %s) for %d tokens" % (name, table.shape[-2], list(table.shape), tokens), name)
    if table.dim() > 2 and table.shape[-3] not in (1, batch):
        words = name, table.shape[-3], list(table.shape), q_name, batch
        raise Error("%s has batch %d (shape %s), but %s has %d" % words, name)


def _squeeze(cos, sin, unsqueeze_dim):
    """Returns tables (seq, columns) or (batch or 1, seq, columns). The given ones may also have a dimension for heads."""
    if cos.dim() != 4:
        return cos, sin
    for dim in (unsqueeze_dim, 1):
        if dim in (1, 2, -3, -2) and cos.shape[dim] == 1:
            return cos.squeeze(dim), sin.squeeze(dim)
    raise Error("cos has shape %s, with no dimension of 1 for heads" % list(cos.shape), "cos")


def _refuse_ids(position_ids):
    if position_ids is not None:
        raise Error(
            "position_ids must be None, because Liger ignores them: cos and sin already belong to the tokens",
            "position_ids",
        )


def _refuse_layout(unsqueeze_dim):
    if unsqueeze_dim != 1:
        raise Error(
            "unsqueeze_dim is %d: q and k are always (batch, heads, seq, head_dim) here; for another layout, use "
            "trope.torch.rotate" % unsqueeze_dim,
            "unsqueeze_dim",
        )


def _columns(cos, sin, head_dim, rotary_dim):
    """Returns options of rotate: the columns that are read, angle_columns and rotary_dim."""
    width = cos.shape[-1]
    if rotary_dim is None:
        rotary_dim = width
        if not 2 <= width <= head_dim or width % 2:
            message = "cos has %d columns, one for each element that rotates: the number must be even, and 2 to head_dim %d"
            raise Error(message % (width, head_dim), "cos")
    elif not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise Error("rotary_dim must be even, and 2 to head_dim %d, not %d" % (head_dim, rotary_dim), "rotary_dim")
    if width == rotary_dim:
        return dict(cos=cos, sin=sin, angle_columns="half", rotary_dim=rotary_dim)
    pairs = rotary_dim // 2
    if width < pairs:
        raise Error("cos has %d columns, but rotary_dim / 2 is %d" % (width, pairs), "cos")
    return dict(cos=cos[..., :pairs], sin=sin[..., :pairs], angle_columns="pair", rotary_dim=rotary_dim)


def _rotate_rope(rotate, names, q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim):
    _refuse_ids(position_ids)
    if cos.dim() != 4:
        _refuse_layout(unsqueeze_dim)
    _check_pair(q, k, names, "(batch, heads, seq, head_dim)")
    cos, sin = _squeeze(*_check_tables(cos, sin, q, names[0], _ROPE_SHAPES), unsqueeze_dim)
    _check_size(cos, q.shape[0], q.shape[2], q_name=names[0])
    return rotate(q, k, layout="bhsd", pairing="half", **_columns(cos, sin, q.shape[3], rotary_dim))


_ROPE_SHAPES = {
    2: "(seq, columns)",
    3: "(1 or batch, seq, columns)",
    4: "(1 or batch, 1, seq, columns)",
}
_TABLES = {"cos": floats, "sin": floats}
_OPTIONS = {"position_ids": anything, "unsqueeze_dim": integer(-4, 3), "rotary_dim": optional(integer(2))}
_QK = {"tensors[0]": "q", "tensors[1]": "k"}


# ---- liger_kernel.transformers.rope ----


@arguments(_QK, q=floats, k=floats, **_TABLES, **_OPTIONS)
def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Rotates q and k, in Liger's replacement of apply_rotary_pos_emb.

    Arguments:
        q: (batch, n_q_head, seq_len, head_dim)
        k: (batch, n_kv_head, seq_len, head_dim)
        cos, sin: (seq_len, rotary_dim), (1, seq_len, rotary_dim) or (batch, seq_len, rotary_dim). They may also have a
            dimension of 1 for heads. (If rotary_dim is given, they may have rotary_dim / 2 columns or more. The first ones
            are then used, one for each pair.)
        position_ids: None. (Liger ignores it. Here it is refused, because cos and sin already belong to the tokens.)
        unsqueeze_dim: the dimension of heads in cos and sin with 4 dimensions; otherwise 1.
        rotary_dim: the number of leading elements of each head that rotate. Default: the number of columns of cos.
    Return:
        q, k: new tensors, with the order of dimensions in memory of the old ones
    """
    return _rotate_rope(_rotations.rotate, ("q", "k"), q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim)


@arguments(_QK, q=floats, k=floats, **_TABLES)
def liger_rotary_pos_emb_gpt_oss(q, k, cos, sin):
    """liger_rotary_pos_emb for the tables of gpt-oss. It rotates whole heads.

    Arguments:
        q: (batch, n_q_head, seq_len, head_dim)
        k: (batch, n_kv_head, seq_len, head_dim)
        cos, sin: (1 or batch, seq_len, head_dim / 2)
    Return:
        q, k: new tensors
    """
    rotary_dim = q.shape[-1] if q.dim() == 4 else None
    if rotary_dim is not None and rotary_dim % 2:
        raise Error("q has head_dim %d, which must be even" % rotary_dim, "q")
    return _rotate_rope(_rotations.rotate, ("q", "k"), q, k, cos, sin, None, 1, rotary_dim)


@arguments(_QK, q=floats, k=floats, **_TABLES)
def liger_rotary_pos_emb_vision(q, k, cos, sin):
    """Rotates q and k of Qwen's vision towers.

    Arguments:
        q, k: (seq_len, num_heads, head_dim)
        cos, sin: (seq_len, head_dim)
    Return:
        q, k: new tensors, with the order of dimensions in memory of the old ones
    """
    _check_pair(q, k, ("q", "k"), "(seq, heads, head_dim)")
    cos, sin = _check_tables(cos, sin, q, "q", {2: "(seq, head_dim)"})
    _check_size(cos, 1, q.shape[0])
    return _rotations.rotate(q, k, layout="thd", pairing="half", **_columns(cos, sin, q.shape[2], None))


# ---- liger_kernel.transformers.qwen2vl_mrope ----


@arguments(_QK, q=floats, k=floats, **_TABLES, mrope_section=integers, unsqueeze_dim=integer(-4, 3))
def liger_multimodal_rotary_pos_emb(q, k, cos, sin, mrope_section, unsqueeze_dim=1):
    """Rotates q and k with multimodal positions (M-RoPE of Qwen2-VL).

    Arguments:
        q: (batch, n_q_head, seq_len, head_dim)
        k: (batch, n_kv_head, seq_len, head_dim)
        cos, sin: (3, batch or 1, seq_len, head_dim): for time, height and width
        mrope_section: the number of pairs of time, height and width. They add up to head_dim / 2.
        unsqueeze_dim: must be 1
    Return:
        q, k: new tensors, with the order of dimensions in memory of the old ones
    """
    _refuse_layout(unsqueeze_dim)
    _check_pair(q, k, ("q", "k"), "(batch, heads, seq, head_dim)")
    cos, sin = _check_tables(cos, sin, q, "q", {4: "(axes, 1 or batch, seq, head_dim)"})
    _check_size(cos, q.shape[0], q.shape[2])
    head_dim, pairs = q.shape[3], q.shape[3] // 2
    if head_dim < 2 or head_dim % 2:
        raise Error("q has head_dim %d, which must be even, and 2 or more" % head_dim, "q")
    if cos.shape[-1] != head_dim:
        raise Error("cos has %d columns, but head_dim is %d" % (cos.shape[-1], head_dim), "cos")
    if len(mrope_section) != cos.shape[0] or sum(mrope_section) != pairs:
        words = list(mrope_section), cos.shape[0], pairs
        raise Error(
            "mrope_section is %s, and must have one number for each of %d tables, with the sum %d" % words, "mrope_section"
        )
    if cos.shape[0] > MAX_AXES:
        raise Error(
            "cos has %d axes (shape %s), and may have at most %d" % (cos.shape[0], list(cos.shape), MAX_AXES), "cos"
        )
    axes = tuple([axis for axis, n in enumerate(mrope_section) for _ in range(n)])  # trope.pair_axis("sections", ...)
    used = max(axes) + 1
    return _rotations.rotate(
        q, k, layout="bhsd", pairing="half", cos=cos[:used], sin=sin[:used], angle_columns="half", rotary_dim=head_dim,
        pair_axis=axes,
    )  # fmt: skip


# ---- liger_kernel.transformers.llama4_rope ----


def _rotate_llama4(q, k, table):
    """Rotates by complex numbers (rows, head_dim / 2) or (batch or 1, rows, head_dim / 2), which are not copied."""
    table = _torch.view_as_real(table.resolve_conj())
    return _rotations.rotate(
        q, k, layout="bshd", pairing="interleaved", cos=table[..., 0], sin=table[..., 1], angle_columns="pair",
        rotary_dim=q.shape[3],
    )  # fmt: skip


def _check_complex(table, q, name, q_name):
    if not table.is_complex():
        raise Error(
            "%s is %s, and must be complex: a cast of the model to a real dtype has lost the sines" % (name, table.dtype),
            name,
        )
    head_dim = q.shape[3]
    if head_dim < 2 or head_dim % 2:
        raise Error("%s has head_dim %d, which must be even, and 2 or more" % (q_name, head_dim), q_name)
    if not table.dim() or table.shape[-1] != head_dim // 2:
        message = "%s has shape %s, and must have head_dim / 2 = %d columns"
        raise Error(message % (name, list(table.shape), head_dim // 2), name)
    if table.device != q.device:
        raise Error("%s is on %s, but %s is on %s" % (name, table.device, q_name, q.device), name)
    if table.dtype == _torch.complex128 and q.dtype != _torch.float64:
        raise Error("%s has dtype complex128, which is only for float64 tensors: use complex64" % name, name)
    refuse_gradient(table, name)


@arguments({"tensors[0]": "xq", "tensors[1]": "xk", "cos": "freqs_cis"}, xq=floats, xk=floats, freqs_cis=tensor)
def liger_llama4_text_rotary_pos_emb(xq, xk, freqs_cis):
    """Rotates q and k of Llama 4's text model.

    Arguments:
        xq, xk: (batch, seq_len, num_heads, head_dim)
        freqs_cis: complex, (rows, head_dim / 2) or (batch or 1, rows, head_dim / 2). The first seq_len rows are used.
            (Liger uses the rows of the first batch entry for all entries.)
    Return:
        xq, xk: new tensors, with the order of dimensions in memory of the old ones
    """
    return _rotate_llama4_text(("xq", "xk"), xq, xk, freqs_cis)


def _rotate_llama4_text(names, q, k, freqs_cis):
    _check_pair(q, k, names, "(batch, seq, heads, head_dim)")
    _check_complex(freqs_cis, q, "freqs_cis", names[0])
    if freqs_cis.dim() not in (2, 3) or freqs_cis.shape[-2] < q.shape[1]:
        message = "freqs_cis has shape %s, and must be (rows, %d) or (1 or batch, rows, %d), with at least %d rows"
        raise Error(message % (list(freqs_cis.shape), *[q.shape[3] // 2] * 2, q.shape[1]), "freqs_cis")
    _check_size(freqs_cis[..., : q.shape[1], :], q.shape[0], q.shape[1], "freqs_cis", names[0])
    return _rotate_llama4(q, k, freqs_cis)


@arguments({"tensors[0]": "query", "tensors[1]": "key", "cos": "freqs_ci"}, query=floats, key=floats, freqs_ci=tensor)
def liger_llama4_vision_rotary_pos_emb(query, key, freqs_ci):
    """Rotates q and k of Llama 4's vision model.

    Arguments:
        query, key: (batch, seq_len, num_heads, head_dim)
        freqs_ci: complex, (seq_len, head_dim / 2). It may also have a dimension of 1 for heads before the last dimension, a
            dimension of 1 or batch in front, or both.
    Return:
        query, key: new tensors, with the order of dimensions in memory of the old ones
    """
    _check_pair(query, key, ("query", "key"), "(batch, seq, heads, head_dim)")
    _check_complex(freqs_ci, query, "freqs_ci", "query")
    tokens, table = query.shape[1], freqs_ci
    if table.dim() == 4 and table.shape[2] == 1:
        table = table.squeeze(2)
    elif table.dim() == 3 and table.shape[:2] == (tokens, 1):
        table = table.squeeze(1)
    if table.dim() not in (2, 3):
        message = (
            "freqs_ci has shape %s, and must be (%d, %d), optionally with a dimension of 1 for heads and one for the batch"
        )
        raise Error(message % (list(freqs_ci.shape), tokens, query.shape[3] // 2), "freqs_ci")
    _check_size(table, query.shape[0], tokens, "freqs_ci", "query")
    return _rotate_llama4(query, key, table)


# ---- liger_kernel.transformers.functional, liger_kernel.ops ----


liger_rope = liger_rotary_pos_emb
liger_qwen2vl_mrope = liger_multimodal_rotary_pos_emb


class LigerRopeFunction:
    """LigerRopeFunction.apply is liger_rotary_pos_emb. The class is no autograd.Function."""

    apply = staticmethod(liger_rotary_pos_emb)


class LigerQwen2VLMRopeFunction:
    """LigerQwen2VLMRopeFunction.apply is liger_multimodal_rotary_pos_emb. The class is no autograd.Function."""

    apply = staticmethod(liger_multimodal_rotary_pos_emb)


class LigerLlama4RopeFunction:
    """apply(q, k, freqs_cis, BLOCK_SIZE=None) is liger_llama4_text_rotary_pos_emb. The class is no autograd.Function."""

    @staticmethod
    @arguments({**_QK, "cos": "freqs_cis"}, q=floats, k=floats, freqs_cis=tensor, BLOCK_SIZE=optional(integer(1)))
    def apply(q, k, freqs_cis, BLOCK_SIZE=None):
        """Calls liger_llama4_text_rotary_pos_emb.

        Arguments:
            q, k: (batch, seq_len, num_heads, head_dim)
            freqs_cis: complex, the freqs_cis of liger_llama4_text_rotary_pos_emb
            BLOCK_SIZE: is ignored: it is for Liger's kernel.
        Return:
            q, k: new tensors, with the order of dimensions in memory of the old ones
        """
        return _rotate_llama4_text(("q", "k"), q, k, freqs_cis)


@arguments(_QK, q=floats, k=floats, **_TABLES, **_OPTIONS)
def rope_forward(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Rotates q and k, like liger_rotary_pos_emb, and returns the tables too.

    Arguments:
        q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim: the arguments of liger_rotary_pos_emb
    Return:
        q, k: new tensors (Liger overwrites contiguous ones)
        cos, sin: (1 or batch, seq_len, columns), for rope_backward
    """
    rotated = _rotate_rope(_rotations.rotate, ("q", "k"), q, k, cos, sin, position_ids, unsqueeze_dim, rotary_dim)
    cos, sin = _squeeze(cos, sin, unsqueeze_dim)
    return (*rotated, *((cos, sin) if cos.dim() == 3 else (cos[None], sin[None])))


@arguments({"tensors[0]": "dq", "tensors[1]": "dk"}, dq=floats, dk=floats, **_TABLES, **_OPTIONS)
def rope_backward(dq, dk, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None):
    """Applies the transpose of rope_forward to upstream gradients.

    Arguments:
        dq: (batch, n_q_head, seq_len, head_dim). It may be expanded.
        dk: (batch, n_kv_head, seq_len, head_dim). It may be expanded.
        cos, sin, position_ids, unsqueeze_dim, rotary_dim: the arguments of the forward call
    Return:
        dq, dk: new tensors, the gradients of the forward call's q and k (Liger overwrites contiguous ones)
    """
    return _rotate_rope(_rotations.rotate_backward, ("dq", "dk"), dq, dk, cos, sin, position_ids, unsqueeze_dim, rotary_dim)
