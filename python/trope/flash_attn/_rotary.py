"""Rotates tensors that lie in one tensor, to a new tensor or in place, with autograd, dispatch modes and torch.compile. The
functions and the module of trope.flash_attn use this file."""

from typing import NamedTuple

import torch

from .. import torch as _rotations
from .._abi import COPY
from .._dropin import check_tables, check_writable, gradients, indices, integer, refuse_gradient
from .._errors import Error
from ..torch import _compiles

# ---- Checks of arguments ----


def check_rank(x, rank, name, shape):
    if x.dim() != rank:
        raise Error("%s must be %s, not %s" % (name, shape, list(x.shape)), name)


def check_table(cos, sin, x, x_name, head_dim, suffix=""):
    """Checks a table, and returns cos and sin with the same strides."""
    name, other = "cos" + suffix, "sin" + suffix
    if not 1 <= cos.shape[-1] <= head_dim // 2:
        words = name, cos.shape[-1], head_dim
        raise Error("%s has %d columns, one for each pair, but headdim is %d" % words, name)
    check_tables(cos, sin, x, (name, other), x_name)
    for table, word in ((cos, name), (sin, other)):
        refuse_gradient(table, word)
    return _rotations._same_strides(cos, sin)


_position = integer(0)


def check_seqlen_offsets(value, name):
    """Checks seqlen_offsets."""
    if isinstance(value, torch.Tensor):
        indices(value, name)
    elif value is not None:
        _position(value, name)


def _check_offsets(offsets, sequences, device):
    """Returns (offset, start_positions): an integer that is the same for all sequences, or a tensor."""
    if not isinstance(offsets, torch.Tensor):
        return offsets or 0, None
    if offsets.shape[0] != sequences:
        raise Error("seqlen_offsets has shape %s for %d sequences" % (list(offsets.shape), sequences), "seqlen_offsets")
    if offsets.device != device:
        raise Error(
            "seqlen_offsets is on %s, but the tensors that it shifts are on %s" % (offsets.device, device), "seqlen_offsets"
        )
    return 0, offsets.contiguous()


def _cut_table(cos, sin, offset, seqlen, cu_seqlens, suffix=""):
    """Returns the rows from offset on, so that positions begin at 0. They are views: no copy, and no wait for the GPU."""
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
    """The angles and options of a call. `cos_k` is None unless k has tables of its own."""

    options: dict
    cos: object
    sin: object
    cos_k: object
    sin_k: object
    start_positions: object
    cu_seqlens: object


def make_call(x, name, shape, cos, sin, cos_k, sin_k, interleaved, conjugate, offsets, cu_seqlens, max_seqlen):
    """Makes the _Call of x. `shape` is (batch, seqlen, heads, head_dim), or (total, heads, head_dim) with cu_seqlens."""
    packed = cu_seqlens is not None
    if packed and not cu_seqlens.shape[0]:
        raise Error("cu_seqlens is empty, and must be (sequences + 1,)", "cu_seqlens")
    sequences, seqlen = (cu_seqlens.shape[0] - 1, max_seqlen) if packed else (shape[0], shape[1])
    offset, start_positions = _check_offsets(offsets, sequences, x.device)
    tables = []
    for c, s, suffix in ((cos, sin, ""), (cos_k, sin_k, "_k")):
        if c is not None:
            check_rank(c, 2, "cos" + suffix, "(seqlen_ro, pairs)")
            tables += _cut_table(*check_table(c, s, x, name, shape[-1], suffix), offset, seqlen, cu_seqlens, suffix)
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


class Parts(NamedTuple):
    """How a tensor holds several: as `count` entries of dimension `dim`, or as ranges of `heads`. By default, it is one."""

    dim: int = None
    count: int = 0
    heads: tuple = ()
    rotated: int = 1  # the number of tensors, from the first on, that are rotated; the others are copied
    head_dim: int = 0  # not 0 if the last dimension is heads * head_dim
    merged: bool = False  # True if x is (batch, seqlen, ...) and is read as one stream of tokens

    def split(self, x, name=""):
        """Returns the tensors as views. A merged x whose strides allow no view is copied, or refused if a name is given."""
        if self.head_dim:
            x = x.unflatten(-1, (-1, self.head_dim))
        if self.merged:
            if name and x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1):
                raise Error("%s has strides that do not allow batch and seqlen to be one dimension" % name, name)
            x = x.flatten(0, 1)
        if self.count:
            return [x.select(self.dim, i) for i in range(self.count)]
        starts = [sum(self.heads[:i]) for i in range(len(self.heads))]
        return [x.narrow(self.dim, start, n) for start, n in zip(starts, self.heads)] or [x]

    def new_like(self, x):
        """Returns a new tensor with x's order of dimensions in memory. If merged, it is contiguous, as split() requires."""
        return torch.empty_like(x, memory_format=torch.contiguous_format if self.merged else torch.preserve_format)


def _launches(parts, call, in_place):
    """Returns (indices of the tensors, cos, sin) of each launch. There is one launch unless k has its own tables. The
    shorter table is first: if a position is beyond a table, nothing has been written yet."""
    rotated, copied = range(parts.rotated), () if in_place else range(parts.rotated, max(parts.count, len(parts.heads)))
    if call.cos_k is None:
        return [((*rotated, *copied), call.cos, call.sin)]
    launches = [((0, *copied), call.cos, call.sin), ((1,), call.cos_k, call.sin_k)]
    return launches[::-1] if call.cos_k.shape[0] < call.cos.shape[0] else launches


def _rotate_tensors(function, parts, call, source, out=None):
    """Calls function (rotate, rotate_ or rotate_backward) for the tensors in `source`, and writes to those in `out`."""
    for places, cos, sin in _launches(parts, call, out is None):
        widths = tuple([2 * cos.shape[1] if i < parts.rotated else COPY for i in places])
        more = {} if out is None else {"out": [out[i] for i in places]}
        function(
            *[source[i] for i in places], cos=cos, sin=sin, rotary_dim=widths, start_positions=call.start_positions,
            cu_seqlens=call.cu_seqlens, **call.options, **more
        )  # fmt: skip


def _present(call):
    """Returns (the options and which tensors are present, those tensors). Each argument of a Function costs time, and
    most calls have two tensors."""
    return (call.options, [t is not None for t in call[1:]]), [t for t in call[1:] if t is not None]


def _restore(form, tensors):
    options, present = form
    tensors = iter(tensors)
    return _Call(options, *[next(tensors) if there else None for there in present])


class _Rotate(torch.autograd.Function):
    """M x, or M' x, of the tensors in x, as a new tensor: apply(transposed, parts, form, x, *tensors of the call)."""

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


class _Rotated(torch.autograd.Function):
    """Tells autograd that tensors in one tensor are rotated in place: apply(dirty, parts, form, x, *tensors of the call).
    It does not touch data. dirty: the result is x itself. Otherwise the result is a new tensor of the same data and no view
    of x, and x keeps its history.

    x is the first tensor, because if x is a view, autograd takes the first gradient as the gradient of its base.
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


# ---- Leaves under torch.compile ----


_library = torch.library.Library("trope", "FRAGMENT")
_library.define(
    "rotate_parts_(bool transposed, Tensor(a!) x, int? dim, int count, int[] heads, int rotated, int head_dim, bool merged,"
    " str layout, str pairing, bool inverse, str angle_columns, str? padding, Tensor cos, Tensor sin, Tensor? cos_k,"
    " Tensor? sin_k, Tensor? start_positions, Tensor? cu_seqlens) -> ()"
)
_OPTIONS = ("layout", "pairing", "inverse", "angle_columns", "padding")


def _rotate_parts_(transposed, x, *rest):
    """Rotates tensors in one tensor by M or M' in place. rest: Parts, the options and the tensors of _Call."""
    fields, first_tensor = len(Parts._fields), len(Parts._fields) + len(_OPTIONS)
    parts = Parts(*rest[:fields])
    call = _Call(dict(zip(_OPTIONS, rest[fields:first_tensor])), *rest[first_tensor:])
    if x.requires_grad and torch.is_grad_enabled():
        raise Error("x requires a gradient, but trope::rotate_parts_ is outside of autograd: use trope.flash_attn", "x")
    with torch.no_grad():
        function = _rotations.rotate_backward_ if transposed else _rotations.rotate_
        _rotate_tensors(function, parts, call, parts.split(x))


for _backend in ("CPU", "CUDA"):
    _library.impl("rotate_parts_", _rotate_parts_, _backend)


@torch.library.register_fake("trope::rotate_parts_")
def _(transposed, x, *rest):
    """The operator for fake tensors: it returns nothing."""


def _write_parts(transposed, parts, call, x):
    """Calls the operator. It takes the whole of x, because Inductor copies views before an operator writes to them, and
    PyTorch 2.11 then has wrong results."""
    options = [call.options[name] for name in _OPTIONS]
    torch.ops.trope.rotate_parts_(transposed, x, *parts, *options, *call[1:])


class _RotatedLeaf(torch.autograd.Function):
    """Gives x, whose data has been rotated, the history of a rotation: apply(parts, form, x, *tensors of the call)."""

    @staticmethod
    def forward(ctx, parts, form, x, *tensors):
        ctx.parts, ctx.form = parts, form
        ctx.save_for_backward(*tensors)
        return x

    @staticmethod
    @gradients
    def backward(ctx, grad):
        saved = ctx.saved_tensors  # (_Rotate is not used: here, torch.compile drops the ctx of a forward with *tensors)
        d = ctx.parts.new_like(grad).copy_(grad)
        _write_parts(True, ctx.parts, _restore(ctx.form, saved), d)
        return (None, None, d) + (None,) * len(saved)


def _rotate_compiled_leaf(parts, call, x):
    """Rotates a leaf, or a view of one. AOTAutograd refuses to change either, except under no_grad."""
    with torch.no_grad():
        if x.is_leaf:
            _write_parts(False, parts, call, x.data)
        else:
            _rotate_tensors(_rotations.rotate_, parts, call, parts.split(x.data))
    form, tensors = _present(call)
    return _RotatedLeaf.apply(parts, form, x, *tensors)


# ---- In place ----


def _tell_autograd(parts, call, x):
    form, tensors = _present(call)
    if _rotations._may_be_marked(x):
        return _Rotated.apply(True, parts, form, x, *tensors)
    if not x._is_view():  # a counted write to a result of unbind would make the others unusable
        _rotations._count_write(x)
    return _Rotated.apply(False, parts, form, x, *tensors)


def rotate_in_place(name, parts, call, x):
    """Rotates x and returns it. If autograd does not let x change, it returns another tensor of the same data."""
    if not _rotations._is_eager((x,)):
        parts.split(x, name)
        if x.requires_grad and torch.is_grad_enabled():
            if _compiles() and (x.is_leaf or (x._base is not None and x._base.is_leaf)):
                return _rotate_compiled_leaf(parts, call, x)
            if not _compiles() and not _rotations._may_be_marked(x):
                raise Error("%s is a leaf that requires a gradient, or a view of one: clone it" % name, name)
        _rotate_tensors(_rotations.rotate_, parts, call, parts.split(x))
        return x
    check_writable(x, name)
    _rotate_tensors(_rotations.rotate_, parts, call, parts.split(x.data, name))
    if x.requires_grad and torch.is_grad_enabled():  # after the launch: a failed call must leave no trace in autograd
        return _tell_autograd(parts, call, x)
    _rotations._count_write(x)
    return x


# ---- kv ----


KV = Parts(2, count=2)


def make_kv_call(kv, cos, sin, interleaved, seqlen_offsets):
    check_rank(kv, 5, "kv", "(batch, seqlen, 2, nheads, headdim)")
    if kv.shape[2] != 2:
        raise Error("kv must have 2 in dimension 2, not %d" % kv.shape[2], "kv")
    shape = (*kv.shape[:2], *kv.shape[3:])
    return make_call(kv, "kv", shape, cos, sin, None, None, interleaved, False, seqlen_offsets, None, None)
