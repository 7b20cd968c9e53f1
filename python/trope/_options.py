"""The options of a call. Options has the type of each, for type checkers. TABLE has everything else.

Other code is made from these two: the defaults, Spec and Side (the settings and the arrays of a call), the numbers in
trope_args (_prepared.py), the schema of the torch operators (torch/_ops.py), and the signatures and docstrings of the
functions. _spec.py checks the meaning of the values.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Sequence, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Required

Layout = Literal["sbhd", "bshd", "bhsd", "thd", "sbghd", "bsghd", "bghsd", "tghd"]
Pairing = Literal["half", "interleaved"]


class Options(TypedDict, total=False):
    """The keyword arguments of all functions, in the order of the help."""

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
    cp_rank: Any  # an int, or in trope.jax also a jax array
    cp_layout: Literal["contiguous", "zigzag", "striped", "flat"] | None
    shared_heads: int | Sequence[int]
    norms: Any  # a trope.Norm or None for each tensor
    accumulate: bool
    status: Any
    threads: int


REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """One option of a call.

    type        the type in the schema of the torch operators; for norms, the schema has NormSettings instead
    default     the default value, or REQUIRED
    help        the text of the docstrings; its second and further lines are indented by 12
    per_tensor  the name in Spec and in the schema, if they have one value for each tensor; otherwise None
    """

    type: str
    default: Any
    help: str
    per_tensor: str | None = None


# The order is that of the arguments of the torch operators. Exported programs depend on it.
TABLE = {
    "freqs": Option("Tensor?", None, """a table of angles in f32 radians, [rows, columns], [batch, rows, columns] or
            [axes, batch, rows, columns] (batch may be 1). Row p belongs to position p. The table may also be f16 or bf16, or
            f64 with f64 tensors. It may have any strides that are not negative. A table has no dimension of heads:
            [heads, tokens, pairs] is read as [batch, rows, columns] where batch equals heads. For angles of each head, pass
            the heads as the batch (q.transpose(0, 1) with layout "bhsd")."""),
    "cos": Option("Tensor?", None, "a table of cosines, with the shape of freqs. Requires sin."),
    "sin": Option("Tensor?", None, "a table of sines, like cos."),
    "position_ids": Option("Tensor?", None, """int32 or int64 [tokens], [batch, tokens] or [axes, batch, tokens] (batch may
            be 1): the position of each token."""),
    "start_positions": Option("Tensor?", None, """[batch], or [sequences] with cu_seqlens: is added to the index of each
            token."""),
    "cu_seqlens": Option("Tensor?", None, """int32 or int64 [sequences + 1], with layout "thd" or "tghd": offsets of the packed
            sequences in the stream of all context parallel ranks."""),
    "cu_seqlens_padded": Option("Tensor?", None, """offsets of the padded sequences in memory, if they differ from cu_seqlens.
            Requires padding."""),
    "status": Option("Tensor?", None, """one int32 on the device of the tensors. The call ORs bits into it that tell what was
            wrong with indices."""),
    "layout": Option("str", REQUIRED, """the dimensions of the tensors: "sbhd", "bshd", "bhsd" or "thd". Tensors may have any
            strides. If groups of heads are a dimension of their own, as in packed QKV: "sbghd", "bsghd", "bghsd", "tghd"."""),
    "pairing": Option("str", REQUIRED, """"half" pairs element i with i + rotary_dim/2 (GPT-NeoX, Llama). "interleaved" pairs
            2i with 2i + 1 (GPT-J)."""),
    "pairing_out": Option("str", None, """the pairing of the result, if it differs from the input's (MLA: interleaved in, half
            out)."""),
    "parts": Option("int", 1, "the number of equal parts of rotary_dim. Each pair lies in one part (axial RoPE)."),
    "inverse": Option("bool", False, "True rotates by the negative angles."),
    "mscale": Option("float", None, """multiplies cos and sin. None: the attention factor if inv_freq comes from
            trope.frequencies, otherwise 1."""),
    "rounding": Option("str", "once", """"once" computes in fp32 and rounds at the store. "native" rounds each operation to the
            dtype of the tensors, as eager PyTorch does on bf16. "native_f32" performs each operation in fp32 and fuses none."""),
    "angle_columns": Option("str", None, """the columns of tables, which require it. "pair": one column for each pair. "half"
            or "interleaved": one column for each element, in the order of that pairing."""),
    "out_of_range": Option("str", "poison", """what happens at positions that a table has no row for. "poison" writes NaN, or
            raises an error where the host can see them. "clamp" uses the nearest row."""),
    "padding": Option("str", None, """what happens to tokens that are in no sequence: "zero", "copy" or "rotate". Without it,
            every token must be in a sequence."""),
    "stream_positions": Option("bool", False, """True counts positions through the whole packed stream. False counts them in
            each sequence."""),
    "cp_size": Option("int", None, "context parallel: the number of ranks. Requires cp_rank, and over 1 also cp_layout."),
    "cp_rank": Option("int", None, """context parallel: this rank, 0 to cp_size - 1. In trope.jax, it may be traced
            (jax.lax.axis_index)."""),
    "cp_layout": Option("str", None, """context parallel: how tokens are split over the ranks: "contiguous", "zigzag"
            (Megatron-Core), "striped", "flat"."""),
    "rotary_dim": Option("int[]", None, """the number of elements of a head that rotate, for all tensors or one for each. -1
            copies the tensor without a rotation (V). None: all elements, if the angles cover each head; otherwise rotary_dim
            is required.""", "rotary_dims"),
    "rotary_offset": Option("int[]", 0, "the first element that rotates, for all tensors or one for each.", "rotary_offsets"),
    "shared_heads": Option("int[]", 0, """the number of heads of the result that share one head of the input (MLA's k_pe, GQA),
            for all tensors or one for each. 0: none are shared. Backward sums over them.""", "shared_heads"),
    "accumulate": Option("bool", False, "True adds the gradients to the content of `out`. Only for backward with `out`."),
    "pair_axis": Option("int[]", None, """[rotary_dim/2] the axis of each pair in position_ids, or in a table with axes. See
            trope.pair_axis."""),
    "inv_freq": Option("float[]", None, """the angles, as the result of trope.frequencies or as rotary_dim/2 numbers in radians
            per position. They are exact at any position. The alternatives are freqs, or cos and sin."""),
    "threads": Option("int", 0, "the largest number of CPU threads. 0: OMP_NUM_THREADS, or all processors."),
    "norms": Option("norms", None, """RMS norms in the same pass: a trope.Norm or None for each tensor. For one tensor, it may
            also be the trope.Norm itself. With torch, RMSNorm modules of PyTorch and transformers are accepted too. Backward
            requires forward_src."""),
}  # fmt: skip
ARRAYS = tuple([name for name, option in TABLE.items() if option.type == "Tensor?"])
SETTINGS = {name: option for name, option in TABLE.items() if name not in ARRAYS and name != "norms"}


class NormSettings(NamedTuple):
    """The settings of a norm, without its arrays. A missing word is "". Without a norm, scope is "".

    ranks, rank, group: the number of ranks that share the heads of a token, the index of this rank, and their group's name.
    index: the index of the tensor in the call that the user made. A backward may be a call of some of its tensors.
    """

    scope: str
    order: str
    rounding: str
    eps: float
    plus_one: bool
    has_weight: bool
    ranks: int
    rank: int
    group: str
    index: int


NO_NORM = NormSettings("", "", "", 0.0, False, False, 1, 0, "", 0)

# All settings of a call, with the defaults filled in. norms is () without norms, otherwise NormSettings for each tensor.
_SPEC = [option.per_tensor or name for name, option in SETTINGS.items()]
Spec: Any = namedtuple("Spec", [*_SPEC, "norms"], defaults=[()])  # type: ignore[misc]
_EMPTY = {"str": "", "int": 0, "float": 0.0, "int[]": (), "float[]": ()}


def _find_default(option):
    if option.default is REQUIRED:
        return None
    if option.default is None:
        return 0 if option.per_tensor else _EMPTY[option.type]
    return option.default


# The value in Spec of a setting that is left out. None: the setting is required.
DEFAULTS = {name: _find_default(option) for name, option in SETTINGS.items()}

# The arrays, or None, that a call reads and writes besides its tensors. d_freqs is like the table, d_inv_freq is
# [rotary_dim / 2].
_SIDE = [*ARRAYS, "d_freqs", "d_inv_freq"]
Side: Any = namedtuple("Side", _SIDE, defaults=[None] * len(_SIDE))  # type: ignore[misc]
NO_ARRAYS = Side()


def with_gradients(side, d_freqs, d_inv_freq):
    """Returns the Side with these gradients. This takes a quarter of the time of _replace."""
    if d_freqs is None and d_inv_freq is None:
        return side
    return Side._make((*side[: len(ARRAYS)], d_freqs, d_inv_freq))


# ---- The signature and the docstring of a function ----

_OTHER_PARAMETERS = {
    "tensors": """one array or several ([tokens, batch, heads, head_dim] and so on, as layout says), of one dtype (f32, f16,
            bf16 or f64) and on one device. They share batch, tokens and angles; heads and head_dim may differ.""",
    "out": """arrays that receive the results, instead of new ones: a list with one for each tensor. For one tensor, it may also
            be an array. They must not share memory with the tensors. Autograd does not see the write. With accumulate, the
            results are added to them.""",
    "stream": """the address of a cudaStream_t, for arrays on CUDA that are not torch tensors. None: the legacy stream.""",
    "forward_src": "x of the forward call, in the same form as out. Required for d_freqs, d_inv_freq and norms.",
    "d_freqs": """an array like the table, in f32 (f64 with f64 tensors). It receives the gradient of freqs, or of the angles of
            cos and sin: the sum over tensors, heads and all tokens that use a row.""",
    "d_inv_freq": "an f64 array [rotary_dim/2]. It receives the gradient of inv_freq.",
    "d_weights": """arrays that receive the gradients of the weights of norms, in f32 (f64 with f64 tensors) and with the shapes
            of the weights: a list with an array or None for each tensor. For one tensor, it may also be an array.""",
    "max_position": """one more than the largest position. Required if inv_freq is learned (a Parameter, even if frozen, or a
            tensor that requires a gradient) and positions are read (position_ids, start_positions).""",
}
_RETURNS = """the result of one tensor, or a tuple of results. They are new arrays of the library that the tensors come from,
            unless `out` is given."""
_RAISES = "trope.Error: names the argument, its value and the rule. Nothing has been written.\n"


def document(function, summary, example=""):
    """Gives a function that takes **options a signature and a docstring that list all options."""
    *own, _ = inspect.signature(function).parameters.values()
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=TABLE[name].default)
        for name in Options.__annotations__
    ]
    function.__signature__ = inspect.Signature(own + options)
    lines = [summary, "", "    Arguments:"]
    for parameter in (*own, *options):
        name, default = parameter.name, parameter.default
        text = _OTHER_PARAMETERS[name] if parameter in own else TABLE[name].help
        lines.append("        %s%s: %s" % (name, "" if default is REQUIRED else " = %r" % (default,), text))
    is_in_place = function.__name__.endswith("_")
    lines.append("    Return:\n        " + ("the tensors themselves." if is_in_place else _RETURNS))
    lines.append("    Raises:\n        " + _RAISES)
    function.__doc__ = "\n".join(lines) + example
