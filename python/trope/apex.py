"""Drop-in functions for apex's RoPE: the eight functions of its module fused_rotary_positional_embedding, and the wrappers
with autograd that apex.transformer.functional had.

    from trope import apex as fused_rotary_positional_embedding
    from trope.apex import fused_apply_rotary_pos_emb

Results are those of apex's kernels. In half precision, cos and sin are rounded to the dtype of the tensor, and so are each
product and the sum (rounding="native" of trope.torch.rotate). If cos and sin are given, results have apex's bits. In f32
each sum is a fused multiply-add of a rounded product ("once"), which nvcc generates from apex's source. Sines and cosines
of freqs are trope's, which differ from CUDA's sincosf in the last bits.

Element i is paired with i + d2/2, and each column of a table belongs to one element. d2 may be less than d: the other
elements are copied. Tables have no gradient, and the wrappers refuse tables that require one. Tensors may also be f64, and
on the CPU.
"""

import functools

import torch
from torch.autograd import Function

from ._dropin import arguments, check_table, check_tables, flag, floats, gradients, indices, integer, refuse_gradient
from ._errors import Error
from ._spec import resolve
from .torch import _is_eager, _launch, _same_strides, rotate, rotate_backward

__all__ = [
    "backward", "backward_2d", "backward_cached", "backward_thd", "forward", "forward_2d", "forward_cached", "forward_thd",
    "fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_2d", "fused_apply_rotary_pos_emb_cached",
    "fused_apply_rotary_pos_emb_thd",
]  # fmt: skip


def _refuse(argument, message, *values):
    raise Error("%s %s" % (argument, message % values), argument)


def _check_dims(x, shape, argument):
    if x.dim() != len(shape):
        _refuse(argument, "has shape %s, which is not [%s]", list(x.shape), ", ".join(shape))


def _table(table, x, argument, x_argument, rows=None):
    """Returns [rows, d2] of a table [rows, 1, 1, d2]."""
    if table.dim() != 4 or table.shape[1] != 1 or table.shape[2] != 1:
        _refuse(argument, "has shape %s, which is not [positions, 1, 1, d2]", list(table.shape))
    if not 2 <= table.shape[3] <= x.shape[-1] or table.shape[3] % 2:
        _refuse(argument, "has %d columns, which must be even, and 2 to head_dim %d", table.shape[3], x.shape[-1])
    if rows is not None and table.shape[0] != rows:
        _refuse(argument, "has %d rows, but %s has %d positions", table.shape[0], x_argument, rows)
    check_table(table, x, argument, x_argument)
    return table[:, 0, 0]


def _run(transposed, x, result, **options):
    """Writes M x or M' x to `result`. Under torch.compile and dispatch modes, it uses operators and returns a new tensor,
    with autograd."""
    rounding = "native" if x.dtype in (torch.float16, torch.bfloat16) else "once"
    width = options["freqs" if "freqs" in options else "cos"].shape[-1]
    options.update(pairing="half", angle_columns="half", rounding=rounding, rotary_dim=width)
    if not _is_eager((x,)):
        return (rotate_backward if transposed else rotate)(x, **options)
    spec, side = resolve([x], options)
    _launch.launch(transposed, spec, [x], [result], [None], side)
    return result


def _run_sbhd(transposed, x, transpose_output, **table):
    """Returns a result [s, b, h, d]. With transpose_output, its memory is [b, s, h, d]."""
    s, b, h, d = x.shape
    result = x.new_empty((b, s, h, d)).transpose(0, 1) if transpose_output else x.new_empty((s, b, h, d))
    y = _run(transposed, x, result, layout="sbhd", **table)
    if y is result:
        return y
    return y.transpose(0, 1).contiguous().transpose(0, 1) if transpose_output else y.contiguous()


def _rotate(transposed, x, freqs, transpose_output, argument="t"):
    _check_dims(x, "sbhd", argument)
    return _run_sbhd(transposed, x, transpose_output, freqs=_table(freqs, x, "freqs", argument, x.shape[0]))


def _rotate_cached(transposed, x, cos, sin, transpose_output, argument="t", names=("cos_", "sin_")):
    _check_dims(x, "sbhd", argument)
    tables = [_table(table, x, name, argument, x.shape[0]) for table, name in zip((cos, sin), names)]
    check_tables(*tables, x, names, argument)
    cos, sin = _same_strides(*tables)
    return _run_sbhd(transposed, x, transpose_output, cos=cos, sin=sin)


def _rotate_thd(transposed, x, cu_seqlens, freqs, argument="t"):
    _check_dims(x, "thd", argument)
    table = _table(freqs, x, "freqs", argument)
    sequences = dict(layout="thd", cu_seqlens=cu_seqlens, padding="zero")
    return _run(transposed, x, x.new_empty(x.shape), freqs=table, **sequences).contiguous()


def _image_tables(cos, sin, x, size, names, argument):
    """Returns [rows, d/2] of cos and sin [1, rows, 1, d/2], which must have rows for all of `size` positions."""
    half = x.shape[-1] // 2
    for table, name in zip((cos, sin), names):
        if table.dim() != 4 or table.shape[0] != 1 or table.shape[2] != 1 or table.shape[3] != half:
            _refuse(name, "has shape %s, which is not [1, positions, 1, %d]", list(table.shape), half)
        if table.shape[1] < size:
            _refuse(name, "has %d rows for %d positions", table.shape[1], size)
    check_tables(cos, sin, x, names, argument)
    cos, sin = _same_strides(cos[0, :, 0], sin[0, :, 0])
    return dict(cos=cos, sin=sin)


def _rotate_2d(transposed, x, cos_h, sin_h, cos_w, sin_w, argument="t"):
    """Returns [b, rows * columns, h, d], with a launch for each half of the heads. The tables may have different sizes."""
    _check_dims(x, ("b", "img_h", "img_w", "h", "d"), argument)
    b, rows, columns, h, d = x.shape
    if d % 4:
        _refuse(argument, "has head_dim %d, and its halves must be even", d)
    half, device = d // 2, x.device
    by_row = _image_tables(cos_h, sin_h, x, rows, ("cos_h", "sin_h"), argument)
    by_column = _image_tables(cos_w, sin_w, x, columns, ("cos_w", "sin_w"), argument)
    row = torch.arange(rows, dtype=torch.int32, device=device)[:, None].expand(rows, columns).flatten()
    column = torch.arange(columns, dtype=torch.int32, device=device).expand(rows, columns).flatten()
    x, result = x.flatten(1, 2), x.new_empty((b, rows * columns, h, d))
    windows = slice(half), slice(half, d)
    halves = [
        _run(transposed, x[..., window], result[..., window], layout="bshd", position_ids=ids, **tables)
        for window, ids, tables in zip(windows, (row, column), (by_row, by_column))
    ]
    return result if _is_eager((x,)) else torch.cat(halves, -1)


@arguments({"tensors[0]": "input"}, input=floats, freqs=floats, transpose_output=flag)
def forward(input, freqs, transpose_output):
    """Rotates, without autograd.

    Arguments:
        input: [s, b, h, d], f32, f16, bf16 or f64. Any strides.
        freqs: [s, 1, 1, d2] f32 radians.
        transpose_output: True makes the memory of the result [b, s, h, d].
    Return:
        [s, b, h, d].
    """
    return _rotate(False, input, freqs, transpose_output, "input")


@arguments({"tensors[0]": "output_grads"}, output_grads=floats, freqs=floats, transpose_output=flag)
def backward(output_grads, freqs, transpose_output):
    """Returns dx of dy [s, b, h, d]: the transpose of forward with the same arguments."""
    return _rotate(True, output_grads, freqs, transpose_output, "output_grads")


@arguments({"tensors[0]": "input"}, input=floats, cos=floats, sin=floats, transpose_output=flag)
def forward_cached(input, cos, sin, transpose_output):
    """forward with cos and sin [s, 1, 1, d2] instead of freqs, in f32 or in the dtype of input."""
    return _rotate_cached(False, input, cos, sin, transpose_output, "input", ("cos", "sin"))


@arguments({"tensors[0]": "output_grads"}, output_grads=floats, cos=floats, sin=floats, transpose_output=flag)
def backward_cached(output_grads, cos, sin, transpose_output):
    """The transpose of forward_cached with the same arguments."""
    return _rotate_cached(True, output_grads, cos, sin, transpose_output, "output_grads", ("cos", "sin"))


@arguments({"tensors[0]": "input"}, input=floats, cu_seqlens=indices, freqs=floats)
def forward_thd(input, cu_seqlens, freqs):
    """Rotates packed sequences, without autograd.

    Arguments:
        input: [t, h, d].
        cu_seqlens: [sequences + 1] int32 or int64: the boundaries of the sequences. Tokens after the last sequence become 0
            (apex does not write them).
        freqs: [positions, 1, 1, d2] f32 radians, for the longest sequence.
    Return:
        [t, h, d].
    """
    return _rotate_thd(False, input, cu_seqlens, freqs, "input")


@arguments({"tensors[0]": "output_grads"}, output_grads=floats, cu_seqlens=indices, freqs=floats)
def backward_thd(output_grads, cu_seqlens, freqs):
    """The transpose of forward_thd with the same arguments."""
    return _rotate_thd(True, output_grads, cu_seqlens, freqs, "output_grads")


@arguments({"tensors[0]": "input"}, input=floats, cos_h=floats, sin_h=floats, cos_w=floats, sin_w=floats)
def forward_2d(input, cos_h, sin_h, cos_w, sin_w):
    """Rotates images, without autograd: the first half of a head by the token's row, the second half by its column.

    Arguments:
        input: [b, img_h, img_w, h, d]. Any strides. If rows and columns are not one dimension in memory, it is copied.
        cos_h, sin_h: [1, H, 1, d/2], H >= img_h, in f32 or in the dtype of input.
        cos_w, sin_w: [1, W, 1, d/2], W >= img_w.
    Return:
        [b, img_h * img_w, h, d].
    """
    return _rotate_2d(False, input, cos_h, sin_h, cos_w, sin_w, "input")


@arguments({"tensors[0]": "output_grads"}, output_grads=floats, cos_h=floats, sin_h=floats, cos_w=floats, sin_w=floats)
def backward_2d(output_grads, cos_h, sin_h, cos_w, sin_w):
    """The transpose of forward_2d, for dy [b, img_h, img_w, h, d]. dx is [b, img_h * img_w, h, d]."""
    return _rotate_2d(True, output_grads, cos_h, sin_h, cos_w, sin_w, "output_grads")


class _Rotation(Function):
    """Autograd for a linear run(transposed, x, *tables): apply(transposed, run, x, *tables). The gradient has autograd."""

    @staticmethod
    def forward(ctx, transposed, run, x, *tables):
        ctx.transposed, ctx.run = transposed, run
        ctx.save_for_backward(*tables)
        return run(transposed, x, *tables)

    @staticmethod
    @gradients
    def backward(ctx, grad):
        dx = _Rotation.apply(not ctx.transposed, ctx.run, grad, *ctx.saved_tensors)
        return (None, None, dx) + (None,) * len(ctx.saved_tensors)


def _apply(run, x, **tables):
    """Returns run(False, x, *tables) with autograd for x."""
    for name, table in tables.items():
        refuse_gradient(table, name)
    return _Rotation.apply(False, run, x, *tables.values()) if _is_eager((x,)) else run(False, x, *tables.values())


@arguments({"tensors[0]": "t"}, t=floats, freqs=floats, transpose_output_memory=flag)
def fused_apply_rotary_pos_emb(t, freqs, transpose_output_memory=False):
    """forward with autograd for t [s, b, h, d]; freqs is [s, 1, 1, d2]."""
    return _apply(functools.partial(_rotate, transpose_output=transpose_output_memory), t, freqs=freqs)


@arguments({"tensors[0]": "t"}, t=floats, cos_=floats, sin_=floats, transpose_output_memory=flag)
def fused_apply_rotary_pos_emb_cached(t, cos_, sin_, transpose_output_memory=False):
    """forward_cached with autograd for t [s, b, h, d]; cos_ and sin_ are [s, 1, 1, d2]."""
    return _apply(functools.partial(_rotate_cached, transpose_output=transpose_output_memory), t, cos_=cos_, sin_=sin_)


@arguments({"tensors[0]": "t"}, t=floats, cu_seqlens=indices, freqs=floats)
def fused_apply_rotary_pos_emb_thd(t, cu_seqlens, freqs):
    """forward_thd with autograd for t [t, h, d]."""
    return _apply(_rotate_thd, t, cu_seqlens=cu_seqlens, freqs=freqs)


def _rotate_tokens(transposed, x, *tables, img_h, img_w):
    return _rotate_2d(transposed, x.unflatten(1, (img_h, img_w)), *tables)


@arguments(
    {"tensors[0]": "t"}, t=floats, img_h=integer(1), img_w=integer(1), cos_h=floats, sin_h=floats, cos_w=floats, sin_w=floats,
)  # fmt: skip
def fused_apply_rotary_pos_emb_2d(t, img_h, img_w, cos_h, sin_h, cos_w, sin_w):
    """forward_2d with autograd for t [b, img_h * img_w, h, d].

    Arguments:
        cos_h, sin_h: [1, H, 1, d/2], H >= img_h.
        cos_w, sin_w: [1, W, 1, d/2], W >= img_w.
    Return:
        a contiguous tensor like t.
    """
    _check_dims(t, "bshd", "t")
    if t.shape[1] != img_h * img_w:
        _refuse("t", "has %d tokens, but the image has %d x %d", t.shape[1], img_h, img_w)
    run = functools.partial(_rotate_tokens, img_h=img_h, img_w=img_w)
    return _apply(run, t, cos_h=cos_h, sin_h=sin_h, cos_w=cos_w, sin_w=sin_w)
