"""The options of a call, each once: its type in Options, for type checkers, and everything else in TABLE.

From these come the defaults, Spec and Side (what a call consists of), the numbers in trope_args (_plan.py), the schema of the torch
operators (torch/_ops.py), and the signatures and docstrings of the functions. What the values mean is checked in _spec.py.
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
    """The keyword arguments of all functions, in the order in which help lists them."""

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
    norms: Any  # a trope.Norm or None for each tensor
    accumulate: bool
    status: Any
    threads: int


REQUIRED = inspect.Parameter.empty


class Option(NamedTuple):
    """
    type        in the schema of the torch operators; that of norms has NormSettings in its place
    default     REQUIRED if there is none
    help        what it means; further lines are indented by 12
    per_tensor  its name in Spec and in the schema, if it has one value for each tensor there
    """

    type: str
    default: Any
    help: str
    per_tensor: str | None = None


# In the order of the arguments of the torch operators, which exported programs keep.
TABLE = {
    "freqs": Option("Tensor?", None, """f32 radians, [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns]
            (batch may be 1); row p is of position p. Also f16 or bf16, and f64 with f64 tensors. Any strides that are not
            negative. A table has no dimension of heads: [heads, tokens, pairs] is read as [batch, rows, columns] where batch
            equals heads. For angles of each head, pass the heads as the batch (q.transpose(0, 1) with layout "bhsd")."""),
    "cos": Option("Tensor?", None, "a table of that shape, which goes with sin."),
    "sin": Option("Tensor?", None, "a table like cos."),
    "position_ids": Option("Tensor?", None, """int32 or int64 [tokens], [batch, tokens] or [axes, batch, tokens] (batch may
            be 1)."""),
    "start_positions": Option("Tensor?", None, "[batch], or [sequences] with cu_seqlens: added to the index."),
    "cu_seqlens": Option("Tensor?", None, """int32 or int64 [sequences + 1], with layout "thd" or "tghd": offsets in the
            stream of all context parallel ranks."""),
    "cu_seqlens_padded": Option("Tensor?", None, "where the sequences are stored, if not there; needs padding."),
    "status": Option("Tensor?", None, """one int32 on the device of the tensors, which bits of what was wrong with indices
            are ORed into."""),
    "layout": Option("str", REQUIRED, """what the dimensions of the tensors are: "sbhd", "bshd", "bhsd" or "thd". Any strides.
            With groups of heads as a dimension of their own, as in packed QKV: "sbghd", "bsghd", "bghsd", "tghd"."""),
    "pairing": Option("str", REQUIRED, """with "half", element i turns with i + rotary_dim/2 (GPT-NeoX, Llama); with
            "interleaved", 2i with 2i + 1 (GPT-J)."""),
    "pairing_out": Option("str", None, "how the result is paired, if not as the input (MLA: interleaved in, half out)."),
    "parts": Option("int", 1, "equal parts of rotary_dim that are paired within themselves (axial RoPE)."),
    "inverse": Option("bool", False, "turns the other way."),
    "mscale": Option("float", None, """cos and sin are multiplied by it. None: by the attention factor of inv_freq from
            trope.frequencies, else by 1."""),
    "rounding": Option("str", "once", """with "once", fp32 inside, rounded at the store; with "native", each operation rounded to
            the dtype of the tensors, as eager PyTorch does on bf16; with "native_f32", each operation in fp32, none fused."""),
    "angle_columns": Option("str", None, """of tables, which need it: "pair": a column a pair; "half", "interleaved": one an
            element, paired so."""),
    "out_of_range": Option("str", "poison", """positions that a table has no row for are NaN ("poison"; an error where the
            host can see it), or have the nearest row ("clamp")."""),
    "padding": Option("str", None, """what becomes of tokens of no sequence: "zero", "copy", "rotate". Without it there must
            be none."""),
    "stream_positions": Option("bool", False, "the index in the packed stream instead of that in the sequence."),
    "cp_size": Option("int", None, "context parallel: the number of ranks. It goes with cp_rank and cp_layout."),
    "cp_rank": Option("int", None, "context parallel: this rank, 0 to cp_size - 1."),
    "cp_layout": Option("str", None, """context parallel: how tokens are split over the ranks: "contiguous", "zigzag"
            (Megatron-Core), "striped", "flat"."""),
    "rotary_dim": Option("int[]", None, """elements of a head that turn, for all tensors or one each; -1: none, the tensor is
            copied (V). None: all, if the angles cover each head; else it must be given.""", "rotary_dims"),
    "rotary_offset": Option("int[]", 0, "the first of them, for all tensors or one each.", "rotary_offsets"),
    "shared_heads": Option("int[]", 0, """for all tensors or one each: a head of the input stands for so many of the result
            (MLA's k_pe, GQA), 0: none. Backward sums over them.""", "shared_heads"),
    "accumulate": Option("bool", False, "backward with `out`: adds to what is there."),
    "pair_axis": Option("int[]", None, """[rotary_dim/2] the axis of position_ids (or of a table with axes) of each pair:
            trope.pair_axis."""),
    "inv_freq": Option("float[]", None, """the angles: what trope.frequencies gives, or rotary_dim/2 radians a position. Exact
            at any position. Instead of it, give freqs, or cos and sin."""),
    "threads": Option("int", 0, "CPU threads at most, 0: OMP_NUM_THREADS or all."),
    "norms": Option("norms", None, """a trope.Norm, or None, for each tensor, or, for one tensor, a trope.Norm: its RMS norm, in
            the same pass. With torch, also the RMSNorm modules of PyTorch and transformers. Backward needs forward_src."""),
}  # fmt: skip
ARRAYS = tuple([name for name, option in TABLE.items() if option.type == "Tensor?"])
SETTINGS = {name: option for name, option in TABLE.items() if name not in ARRAYS and name != "norms"}


class NormSettings(NamedTuple):
    """All of a norm but its arrays, and that of no norm has an empty scope: a word that is not given is "".

    ranks, rank, group: how many ranks have heads of a token, which of them this one is, and the name of their group.
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


NO_NORM = NormSettings("", "", "", 0.0, False, False, 1, 0, "")

# All settings of a call, complete. norms: () if there are none, else NormSettings for each tensor.
_SPEC = [option.per_tensor or name for name, option in SETTINGS.items()]
Spec: Any = namedtuple("Spec", [*_SPEC, "norms"], defaults=[()])  # type: ignore[misc]
_EMPTY = {"str": "", "int": 0, "float": 0.0, "int[]": (), "float[]": ()}


def _find_default(option):
    if option.default is REQUIRED:
        return None
    if option.default is None:
        return 0 if option.per_tensor else _EMPTY[option.type]
    return option.default


# What Spec has for a setting that is not given; None if it must be given.
DEFAULTS = {name: _find_default(option) for name, option in SETTINGS.items()}

# What a call reads and writes beside its tensors, each an array or None; d_freqs is like the table, d_inv_freq [rotary_dim / 2].
_SIDE = [*ARRAYS, "d_freqs", "d_inv_freq"]
Side: Any = namedtuple("Side", _SIDE, defaults=[None] * len(_SIDE))  # type: ignore[misc]
NO_ARRAYS = Side()


def with_gradients(side, d_freqs, d_inv_freq):
    """The Side with these gradients, in a quarter of the time that _replace takes."""
    if d_freqs is None and d_inv_freq is None:
        return side
    return Side._make((*side[: len(ARRAYS)], d_freqs, d_inv_freq))


# ---- The signature and the docstring of a function ----

_OTHER_PARAMETERS = {
    "tensors": """one array or several ([tokens, batch, heads, head_dim] and so on, as layout says), of one dtype (f32, f16,
            bf16 or f64) and on one device. They share batch, tokens and angles; heads and head_dim may differ.""",
    "out": """arrays to write instead of new ones: a list with one for each tensor, or, for one tensor, an array. They share no
            memory with the tensors, and autograd does not see that they are written. accumulate adds to them.""",
    "stream": "of arrays on CUDA that are not torch's: the address of a cudaStream_t; None: the legacy stream.",
    "forward_src": "x of the forward call, in the same form as out, for d_freqs and d_inv_freq.",
    "d_freqs": """an array like the table, f32 (f64 with f64 tensors), that the gradient of freqs (also of the angles of cos
            and sin) is written to: the sum over tensors, heads and all tokens at a row.""",
    "d_inv_freq": "the same for inv_freq, f64 [rotary_dim/2].",
    "d_weights": """arrays that the gradients of the weights of norms are written to, f32 (f64 with f64 tensors) and of the shapes
            of the weights: a list with an array or None for each tensor, or, for one tensor, an array.""",
    "max_position": """one more than the largest position. Needed if inv_freq is learned (a Parameter, also a frozen one, or a
            tensor that requires a gradient) and positions are read (position_ids, start_positions).""",
}
_RETURNS = """the result of one tensor, or a tuple of them: new arrays of the library that the tensors are of, unless `out` is
            given."""
_RAISES = "trope.Error: names the argument, its value and the rule. Nothing has been written.\n"


def document(function, summary, example=""):
    """Gives a function that takes **options the signature and the docstring that name them all."""
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
