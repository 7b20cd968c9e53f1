"""The options of a call: what its keyword arguments mean, whatever library the arrays are of."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Sequence, Tuple, TypedDict

from . import _abi
from ._errors import Error, refuse_unknown
from ._values import flag, integer, integers, listed, number, shown, word
from .frequencies import frequency_list

if TYPE_CHECKING:
    from typing_extensions import Required

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
    """The keyword arguments of all functions, for type checkers. OPTIONS says what they mean, and resolve has the defaults."""

    layout: Required[Layout]
    pairing: Required[Pairing]
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


def _per_tensor(value, count, argument):
    """An integer for all tensors, or one for each of them, as a tuple."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise Error("%s has %d values for %d tensors" % (argument, len(value), count), argument)
    return value


def _cp(size, rank, layout):
    """Context parallel options: all of them or none. One rank is the same as none."""
    if layout is not None:
        word(layout, _abi.CP_LAYOUTS, "cp_layout")
    if size is None and rank is None and layout is None:
        return 1, 0, ""
    if size is None:
        given = "cp_rank" if rank is not None else "cp_layout"
        raise Error("cp_size is missing: %s is given" % given, "cp_size")
    integer(size, "cp_size", 1)
    if rank is None:
        raise Error("cp_rank is missing: cp_size is given", "cp_rank")
    if not 0 <= integer(rank, "cp_rank", -(2**31)) < size:
        raise Error("cp_rank must be 0 to cp_size - 1 = %d, not %d" % (size - 1, rank), "cp_rank")
    if size == 1:
        return 1, 0, ""
    return size, rank, word(layout, _abi.CP_LAYOUTS, "cp_layout")


def _mscale(mscale, inv_freq):
    """The one given, or the attention factor of Frequencies."""
    if mscale is None:
        return float(getattr(inv_freq, "attention_factor", 1.0))
    if number(mscale, "mscale") == 0:
        raise Error("mscale must not be 0", "mscale")
    return float(mscale)


def _whole_heads(head_dims, width, angles):
    """rotary_dim where it is not given: the angles must cover each head. Which part of a head rotates is not guessed."""
    for i, head_dim in enumerate(head_dims):
        if width > head_dim:
            message = "%s covers %d elements of a head, and a head of tensors[%d] has %d"
            raise Error(message % (angles, width, i, head_dim), angles)
        if width < head_dim:
            message = (
                "rotary_dim is missing: %s covers %d of the %d elements of a head of tensors[%d]; rotary_dim says how many"
                " of them rotate, and rotary_offset from which on"
            )
            raise Error(message % (angles, width, head_dim, i), "rotary_dim")
    return (width,) * len(head_dims)


def make_spec(
    head_dims,
    table,
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
    """The Spec of tensors with these sizes of a head.

    table, columns: "freqs" or "cos", and how many columns it has; None if the angles are inv_freq.
    """
    count = len(head_dims)
    if (table is None) == (inv_freq is None):
        message = "the angles are missing" if table is None else "inv_freq is given beside a table"
        raise Error(message + ": give exactly one of inv_freq, freqs, or cos with sin", "inv_freq")
    if table is None:
        if angle_columns is not None:
            raise Error("angle_columns describes a table (freqs, or cos and sin), and inv_freq is none", "angle_columns")
        width = 2 * len(inv_freq)
    else:
        word(angle_columns, _abi.COLUMNS, "angle_columns")
        width = 2 * columns if angle_columns == "pair" else columns
    if pair_axis is not None and not pair_axis:
        raise Error("pair_axis is empty: it needs one entry for each pair", "pair_axis")
    cp_size, cp_rank, cp_layout = _cp(cp_size, cp_rank, cp_layout)
    spec = Spec(
        word(layout, DIMS, "layout"),
        word(pairing, _abi.PAIRINGS, "pairing"),
        "" if pairing_out is None else word(pairing_out, _abi.PAIRINGS, "pairing_out"),
        integer(parts, "parts", 1, _abi.MAX_AXES),
        flag(inverse, "inverse"),
        _mscale(mscale, inv_freq),
        word(rounding, _abi.ROUNDINGS, "rounding"),
        angle_columns or "",
        word(out_of_range, _abi.RANGES, "out_of_range"),
        "" if padding is None else word(padding, _abi.PADDINGS, "padding"),
        flag(stream_positions, "stream_positions"),
        cp_size,
        cp_rank,
        cp_layout,
        () if rotary_dim is None else _per_tensor(rotary_dim, count, "rotary_dim"),
        _per_tensor(integers(rotary_offset, "rotary_offset"), count, "rotary_offset"),
        _per_tensor(integers(shared_heads, "shared_heads"), count, "shared_heads"),
        flag(accumulate, "accumulate"),
        () if pair_axis is None else pair_axis,
        () if inv_freq is None else inv_freq,
        integer(threads, "threads"),
    )
    if rotary_dim is None:
        spec = spec._replace(rotary_dims=_whole_heads(head_dims, width, table or "inv_freq"))
    check_spec(spec, table, columns)
    return spec


def check_spec(spec, table, columns):
    """Refuses a Spec whose lists, or whose table, have another length than the call would read.

    table, columns: as of make_spec.
    """
    for i, width in enumerate(spec.rotary_dims):
        if width != _abi.COPY and (width < 2 or width % 2 or width > _abi.MAX_ROTARY_DIM):
            message = "rotary_dim (%d) of tensors[%d] must be even, 2 to %d, or trope.COPY (-1)"
            raise Error(message % (width, i, _abi.MAX_ROTARY_DIM), "rotary_dim")
    widest = _abi.COPY
    for width in spec.rotary_dims:  # (max has a keyword that torch.compile does not take)
        widest = width if width > widest else widest
    if widest == _abi.COPY:
        raise Error("rotary_dim: no tensor of the call rotates", "rotary_dim")
    if spec.inv_freq and len(spec.inv_freq) != widest // 2:
        message = "inv_freq has %d frequencies, and rotary_dim %d needs %d, one for each pair"
        raise Error(message % (len(spec.inv_freq), widest, widest // 2), "inv_freq")
    needed = widest // 2 if spec.angle_columns == "pair" else widest
    if table is not None and columns != needed:
        message = "%s has %d columns, and rotary_dim %d needs %d with angle_columns %r"
        raise Error(message % (table, columns, widest, needed, spec.angle_columns), table)
    if spec.pair_axis and len(spec.pair_axis) != widest // 2:
        message = "pair_axis has %d entries, and rotary_dim %d needs %d, one for each pair"
        raise Error(message % (len(spec.pair_axis), widest, widest // 2), "pair_axis")
    if any(spec.shared_heads) and DIMS[spec.layout][2] is not None:
        message = "shared_heads is for layouts without a dimension of groups, and layout is %r"
        raise Error(message % spec.layout, "shared_heads")


cached_spec = functools.lru_cache(maxsize=1024, typed=True)(make_spec)  # typed: 1 is not True


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


_specs: dict = {}


def intern(spec):
    """The one Spec that is equal to this one, so that keys of plans can have its id."""
    if len(_specs) > 1024:
        _specs.clear()
    return _specs.setdefault(spec, spec)


# Options that are arrays, in the order of plan.Side.
ARRAYS = ("freqs", "cos", "sin", "position_ids", "start_positions", "cu_seqlens", "cu_seqlens_padded", "status")
_RANKS = {layout: len(layout) for layout in DIMS}


def _refuse_shape(layout, tensors):
    word(layout, DIMS, "layout")
    for i, x in enumerate(tensors):
        if len(x.shape) != len(layout):
            message = "tensors[%d] has shape %s, which is not %s (layout %r)"
            raise Error(message % (i, list(x.shape), list(layout), layout), "tensors[%d]" % i)


def find_columns(array, name):
    """The size of the last dimension of a table."""
    if not 2 <= len(array.shape) <= 4:
        message = "%s has shape %s, and must be [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns]"
        raise Error(message % (name, list(array.shape)), name)
    return array.shape[-1]


def _axes_of_pairs(pair_axis):
    """pair_axis as a tuple of ints, 0 to 3."""
    if type(pair_axis) is tuple and set(map(type, pair_axis)) == {int} and 0 <= min(pair_axis) and max(pair_axis) < 4:
        return pair_axis
    given = listed(pair_axis)
    if given is None:
        raise Error("pair_axis must be a list of integers, not %s" % shown(pair_axis), "pair_axis")
    return tuple([integer(axis, "pair_axis", 0, _abi.MAX_AXES - 1) for axis in given])


def resolve(
    tensors,
    make=cached_spec,
    /,
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
    **unknown,
):
    """The Spec of keyword arguments as users give them, and the arrays among them, in the order of ARRAYS.

    Tensors and arrays need no more than a shape here; of what library they are, the caller checks.
    """
    if unknown:
        refuse_unknown(unknown, Options.__annotations__, "trope.rotate")
    rank, head_dims = _RANKS.get(layout) if isinstance(layout, str) else None, []
    for x in tensors:
        shape = x.shape
        if len(shape) != rank:
            _refuse_shape(layout, tensors)
        head_dims.append(shape[-1])
    table = columns = None
    if freqs is not None:
        if cos is not None or sin is not None:
            raise Error("freqs is given beside cos or sin: give one of the two", "freqs")
        table, columns = "freqs", find_columns(freqs, "freqs")
    elif cos is not None or sin is not None:
        if cos is None or sin is None:
            missing = "cos" if cos is None else "sin"
            raise Error("%s is missing: cos and sin go together" % missing, missing)
        table, columns = "cos", find_columns(cos, "cos")
    if inv_freq is not None and not hasattr(inv_freq, "phase_steps"):
        inv_freq = frequency_list(inv_freq)
    if pair_axis is not None:
        pair_axis = _axes_of_pairs(pair_axis)
    if rotary_dim is not None:
        rotary_dim = integers(rotary_dim, "rotary_dim", _abi.COPY)
    if type(rotary_offset) is not int or type(shared_heads) is not int:
        rotary_offset, shared_heads = integers(rotary_offset, "rotary_offset"), integers(shared_heads, "shared_heads")
    options = (
        tuple(head_dims), table, columns, layout, pairing, pairing_out, parts, inverse, mscale, rounding, angle_columns,
        out_of_range, padding, stream_positions, cp_size, cp_rank, cp_layout, rotary_dim, rotary_offset, shared_heads,
        accumulate, pair_axis, inv_freq, threads,
    )  # fmt: skip
    try:
        spec = make(*options)
    except TypeError:  # a value that has no hash: make_spec says which
        spec = make_spec(*options)
    return spec, (freqs, cos, sin, position_ids, start_positions, cu_seqlens, cu_seqlens_padded, status)


OPTIONS = """
    The angles, exactly one of:
        inv_freq: what trope.frequencies gives, or rotary_dim/2 radians a position. Exact at any position.
        freqs: f32 radians, [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns] (batch may be 1);
            row p is of position p. Also f16 or bf16, and f64 with f64 tensors. Any strides that are not negative. A table has no
            dimension of heads: [heads, tokens, pairs] is read as [batch, rows, columns] where batch equals heads. For angles
            of each head, pass the heads as the batch (q.transpose(0, 1) with layout "bhsd").
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
            Default: all, if the angles cover each head; else it must be given.
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
