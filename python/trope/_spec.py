"""The options of a call: what its keyword arguments mean, whatever library the arrays are of."""

from __future__ import annotations

import functools
import operator
from typing import Any, Literal, NamedTuple, Sequence, Tuple, TypedDict

from . import _abi
from ._abi import Error

# Where batch, tokens, groups, heads and head_dim are in the shape of a tensor of each layout.
DIMS = {
    "sbhd": (1, 0, None, 2, 3),
    "bshd": (0, 1, None, 2, 3),
    "bhsd": (0, 2, None, 1, 3),
    "thd": (None, 0, None, 1, 2),
    "sbghd": (1, 0, 2, 3, 4),
    "bsghd": (0, 1, 2, 3, 4),
    "bghsd": (0, 3, 1, 2, 4),
    "tghd": (None, 0, 1, 2, 3),
}


Layout = Literal["sbhd", "bshd", "bhsd", "thd", "sbghd", "bsghd", "bghsd", "tghd"]
Pairing = Literal["half", "interleaved"]


class Options(TypedDict, total=False):
    """The keyword arguments of all functions, for type checkers. OPTIONS says what they mean, resolve what is left out."""

    layout: Layout
    pairing: Pairing
    pairing_out: Pairing | None
    inv_freq: Any  # Frequencies, or a sequence of float
    freqs: Any  # an array, like cos, sin and all indices
    cos: Any
    sin: Any
    angle_columns: Literal["pair", "half", "interleaved"] | None
    mscale: float | None
    inverse: bool
    rounding: Literal["once", "native", "native_f32"]
    rotary_dim: int | Sequence[int] | None
    rotary_offset: int | Sequence[int]
    parts: int
    pair_axis: Sequence[int] | None
    position_ids: Any
    start_positions: Any
    stream_positions: bool
    out_of_range: Literal["poison", "clamp"]
    cu_seqlens: Any
    cu_seqlens_padded: Any
    padding: Literal["zero", "copy", "rotate"] | None
    cp_size: int | None
    cp_rank: int | None
    cp_layout: Literal["contiguous", "zigzag", "striped", "flat"] | None
    shared_heads: int | Sequence[int]
    accumulate: bool
    status: Any
    threads: int


class Spec(NamedTuple):
    """All options but the arrays, complete: "" and () stand for what is not given, tuples have an entry a tensor.

    The order is that of the arguments of the torch operators.
    """

    layout: str
    pairing: str
    pairing_out: str
    parts: int
    inverse: bool
    mscale: float
    rounding: str
    angle_columns: str
    out_of_range: str
    padding: str
    stream_positions: bool
    cp_size: int
    cp_rank: int
    cp_layout: str
    rotary_dims: Tuple[int, ...]
    rotary_offsets: Tuple[int, ...]
    shared_heads: Tuple[int, ...]
    accumulate: bool
    pair_axis: Tuple[int, ...]
    inv_freq: Tuple[float, ...]  # or Frequencies, which hash quicker
    threads: int


def _word(value, choices, argument):
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        if value is None:
            raise Error("%s is missing: one of %s" % (argument, known), argument)
        raise Error("%s must be one of %s, not %r" % (argument, known, value), argument)
    return value


def _per_tensor(value, count, argument):
    """An int for all tensors, or one for each of them."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise Error("%s has %d values for %d tensors" % (argument, len(value), count), argument)
    return value


def _integer(value, argument):
    """value as an int: of NumPy, too; a float is none, though it is equal to one."""
    if type(value) is int or value is None:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise Error("%s must be an integer, not %r" % (argument, value), argument) from None


def _integers(value, argument):
    """An int, or a tuple of them."""
    if isinstance(value, (list, tuple)):
        return tuple([_integer(each, argument) for each in value])
    return _integer(value, argument)


def _cp(size, rank, layout):
    """Context parallel options: all of them or none. One rank is none."""
    if size is None and rank is None and layout is None:
        return 1, 0, ""
    if size is None:
        given = "cp_rank" if rank is not None else "cp_layout"
        raise Error("%s is given without cp_size" % given, "cp_size")
    if rank is None:
        raise Error("cp_size is given without cp_rank", "cp_rank")
    if not 0 <= rank < size:
        raise Error("cp_rank must be 0 to cp_size - 1 = %d, not %d" % (size - 1, rank), "cp_rank")
    if size == 1:
        return 1, 0, ""
    return size, rank, _word(layout, _abi.CP_LAYOUTS, "cp_layout")


def _mscale(mscale, inv_freq):
    """The one given, or the attention factor of Frequencies."""
    if mscale is not None:
        if mscale == 0 or mscale != mscale:
            raise Error("mscale must be finite and not 0, not %r" % mscale, "mscale")
        return float(mscale)
    return float(getattr(inv_freq, "attention_factor", 1.0))


def make_spec(
    count,
    columns,
    layout,
    pairing,
    pairing_out,
    parts,
    inverse,
    mscale,
    rounding,
    angle_columns,
    out_of_range,
    padding,
    stream_positions,
    cp_size,
    cp_rank,
    cp_layout,
    rotary_dim,
    rotary_offset,
    shared_heads,
    accumulate,
    pair_axis,
    inv_freq,
    threads,
):
    """The Spec of `count` tensors and a table of so many columns (None: inv_freq)."""
    _word(layout, DIMS, "layout")
    _word(pairing, _abi.PAIRINGS, "pairing")
    if pairing_out is not None:
        _word(pairing_out, _abi.PAIRINGS, "pairing_out")
    if padding is not None:
        _word(padding, _abi.PADDINGS, "padding")
    if (columns is None) == (inv_freq is None):
        raise Error("the angles are missing, or given twice: one of inv_freq, freqs, or cos with sin", "inv_freq")
    if columns is None:
        if angle_columns is not None:
            raise Error("angle_columns is of tables, and inv_freq is none", "angle_columns")
        width = 2 * len(inv_freq)
    else:
        _word(angle_columns, _abi.COLUMNS, "angle_columns")
        width = 2 * columns if angle_columns == "pair" else columns
    shared_heads = _per_tensor(shared_heads, count, "shared_heads")
    if any(shared_heads) and DIMS[layout][2] is not None:
        raise Error("shared_heads is for layouts without groups, not %s" % layout, "shared_heads")
    cp_size, cp_rank, cp_layout = _cp(cp_size, cp_rank, cp_layout)
    return Spec(
        layout,
        pairing,
        pairing_out or "",
        parts,
        bool(inverse),
        _mscale(mscale, inv_freq),
        _word(rounding, _abi.ROUNDINGS, "rounding"),
        angle_columns or "",
        _word(out_of_range, _abi.RANGES, "out_of_range"),
        padding or "",
        bool(stream_positions),
        cp_size,
        cp_rank,
        cp_layout,
        _per_tensor(width if rotary_dim is None else rotary_dim, count, "rotary_dim"),
        _per_tensor(rotary_offset, count, "rotary_offset"),
        shared_heads,
        bool(accumulate),
        () if pair_axis is None else tuple(pair_axis),
        () if inv_freq is None else inv_freq,
        threads,
    )


cached_spec = functools.lru_cache(maxsize=1024)(make_spec)


def result_shape(backward, spec, i, shape):
    """The shape of the result of tensors[i]: another one only if heads are shared."""
    per_group = spec.shared_heads[i]
    if not per_group:
        return shape
    if len(shape) != len(spec.layout):
        raise Error("tensors[%d] has shape %s, which is not %s" % (i, list(shape), spec.layout), "tensors[%d]" % i)
    shape, heads = list(shape), DIMS[spec.layout][3]
    if backward and shape[heads] % per_group:
        raise Error(
            "tensors[%d] has %d heads, no multiple of shared_heads %d" % (i, shape[heads], per_group), "shared_heads"
        )
    shape[heads] = shape[heads] // per_group if backward else shape[heads] * per_group
    return shape


_specs = {}


def intern(spec):
    """The one Spec that is equal to this one, so that keys of plans can have its id."""
    if len(_specs) > 1024:
        _specs.clear()
    return _specs.setdefault(spec, spec)


def resolve(
    count,
    make=cached_spec,
    *,
    layout=None,
    pairing=None,
    pairing_out=None,
    inv_freq=None,
    freqs=None,
    cos=None,
    sin=None,
    angle_columns=None,
    mscale=None,
    inverse=False,
    rounding="once",
    rotary_dim=None,
    rotary_offset=0,
    parts=1,
    pair_axis=None,
    position_ids=None,
    start_positions=None,
    stream_positions=False,
    out_of_range="poison",
    cu_seqlens=None,
    cu_seqlens_padded=None,
    padding=None,
    cp_size=None,
    cp_rank=None,
    cp_layout=None,
    shared_heads=0,
    accumulate=False,
    status=None,
    threads=0,
):
    """The Spec of keyword arguments as users give them, and the arrays among them, in the order of plan.Side."""
    table = freqs
    if cos is not None or sin is not None:
        if freqs is not None:
            raise Error("freqs and cos are given: one of them", "freqs")
        if cos is None or sin is None:
            raise Error("cos and sin go together", "cos" if cos is None else "sin")
        table = cos
    if inv_freq is not None and not hasattr(inv_freq, "phase_steps"):
        inv_freq = tuple(float(f) for f in inv_freq)
    if pair_axis is not None:
        pair_axis = tuple([_integer(axis, "pair_axis") for axis in pair_axis])
    if cp_size is not None or cp_rank is not None:
        cp_size, cp_rank = _integer(cp_size, "cp_size"), _integer(cp_rank, "cp_rank")
    if not type(rotary_offset) is type(shared_heads) is type(parts) is type(threads) is int:
        rotary_offset, shared_heads = _integers(rotary_offset, "rotary_offset"), _integers(shared_heads, "shared_heads")
        parts, threads = _integer(parts, "parts"), _integer(threads, "threads")
    spec = make(
        count,
        None if table is None else table.shape[-1],
        layout,
        pairing,
        pairing_out,
        parts,
        inverse,
        mscale,
        rounding,
        angle_columns,
        out_of_range,
        padding,
        stream_positions,
        cp_size,
        cp_rank,
        cp_layout,
        None if rotary_dim is None else _integers(rotary_dim, "rotary_dim"),
        rotary_offset,
        shared_heads,
        accumulate,
        pair_axis,
        inv_freq,
        threads,
    )
    return spec, (freqs, cos, sin, position_ids, start_positions, cu_seqlens, cu_seqlens_padded, status)


OPTIONS = """
    The angles, exactly one of:
        inv_freq: what trope.frequencies gives, or rotary_dim/2 radians a position. Exact at any position.
        freqs: f32 radians, [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns] (batch may be 1);
            row p is of position p. Also f16 or bf16, and f64 with f64 tensors. Any strides.
        cos, sin: tables of that shape.
    Keyword arguments:
        layout: "sbhd", "bshd", "bhsd" or "thd": what the dimensions of the tensors are. Any strides. With groups of heads
            as a dimension of their own, as in packed QKV: "sbghd", "bsghd", "bghsd", "tghd".
        pairing: "half": element i turns with i + rotary_dim/2 (GPT-NeoX, Llama); "interleaved": 2i with 2i + 1 (GPT-J).
        pairing_out: how the result is paired, if not as the input (MLA: interleaved in, half out).
        angle_columns: of tables: "pair": a column a pair; "half", "interleaved": one an element, paired so.
        mscale: cos and sin are multiplied by it. Default: the attention factor of inv_freq from trope.frequencies, else 1.
        inverse: turns the other way.
        rounding: "once" (fp32 inside, rounded at the store), "native" (each operation rounded to the dtype of the tensors,
            as eager PyTorch does on bf16), "native_f32" (each operation in fp32, none fused).
        rotary_dim: elements of a head that turn, for all tensors or one each; -1: none, the tensor is copied (V).
            Default: as many as there are angles for.
        rotary_offset: the first of them, for all tensors or one each.
        parts: equal parts of rotary_dim that are paired within themselves (axial RoPE).
        pair_axis: [rotary_dim/2] the axis of position_ids (or of a table with axes) of each pair: trope.pair_axis.
        position_ids: int32 or int64 [tokens], [batch, tokens] or [axes, batch, tokens] (batch may be 1).
        start_positions: [batch], or [sequences] with cu_seqlens: added to the index.
        stream_positions: the index in the packed stream instead of that in the sequence.
        out_of_range: positions that a table has no row for are NaN ("poison"; an error where the host can see it), or have
            the nearest row ("clamp").
        cu_seqlens: int32 or int64 [sequences + 1], with layout "thd" or "tghd": offsets in the stream of all context
            parallel ranks.
        cu_seqlens_padded: where the sequences are stored, if not there; needs padding.
        padding: what becomes of tokens of no sequence: "zero", "copy", "rotate". Without it there must be none.
        cp_size, cp_rank, cp_layout: context parallel; "contiguous", "zigzag" (Megatron-Core), "striped", "flat".
        shared_heads: for all tensors or one each: a head of the input stands for so many of the result (MLA's k_pe, GQA),
            0: none. Backward sums over them.
        accumulate: backward with `out`: adds to what is there.
        status: one int32 on the device of the tensors, which bits of what was wrong with indices are ORed into.
        threads: CPU threads at most, 0: OMP_NUM_THREADS or all.
    Raises:
        trope.Error: names the argument, its value and the rule. Nothing has been written.
"""
