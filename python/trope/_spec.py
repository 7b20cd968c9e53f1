"""The meaning of the options of a call, for arrays of any library. _options.py lists the options."""

import functools
from typing import NamedTuple

from . import _abi
from ._errors import Error, refuse_unknown
from ._options import ARRAYS, DEFAULTS, NO_ARRAYS, NO_NORM, SETTINGS, TABLE, Side, Spec
from ._values import flag, integer, integers, listed, number, shown, word
from .frequencies import frequency_list


class Dims(NamedTuple):
    """The dimensions of a tensor's shape that have these sizes; None: the tensor has no such dimension."""

    batch: int | None
    tokens: int
    groups: int | None
    heads: int
    head_dim: int


DIMS = {
    "sbhd": Dims(1, 0, None, 2, 3),
    "bshd": Dims(0, 1, None, 2, 3),
    "bhsd": Dims(0, 2, None, 1, 3),
    "thd": Dims(None, 0, None, 1, 2),
    "sbghd": Dims(1, 0, 2, 3, 4),
    "bsghd": Dims(0, 1, 2, 3, 4),
    "bghsd": Dims(0, 3, 1, 2, 4),
    "tghd": Dims(None, 0, 1, 2, 3),
}
_RANKS = {layout: len(layout) for layout in DIMS}
_WORDS = {**_abi.WORDS, "layout": _RANKS}


# ---- The value of each setting ----


def _check_word(value, name):
    return word(value, _WORDS[name], name)


def _check_mscale(mscale, name):
    mscale = number(mscale, name)
    if mscale == 0:
        raise Error("mscale must not be 0", name)
    return mscale


def _check_pair_axis(pair_axis, name):
    """Returns pair_axis as a tuple of ints, 0 to 3."""
    if type(pair_axis) is tuple and set(map(type, pair_axis)) == {int} and 0 <= min(pair_axis) and max(pair_axis) < 4:
        return pair_axis
    given = listed(pair_axis)
    if given is None:
        raise Error("pair_axis must be a list of integers, not %s" % shown(pair_axis), name)
    return tuple([integer(axis, name, 0, _abi.MAX_AXES - 1) for axis in given])


def _check_inv_freq(inv_freq, name):
    """Returns Frequencies, which hash more quickly, or a tuple of floats."""
    return inv_freq if hasattr(inv_freq, "phase_steps") else frequency_list(inv_freq)


_CHECKS_OF_TYPES = {"str": _check_word, "bool": flag, "int": integer, "float": number, "int[]": integers}
_OWN_CHECKS = {
    "parts": functools.partial(integer, low=1, high=_abi.MAX_AXES),
    "mscale": _check_mscale,
    "rotary_dim": functools.partial(integers, low=_abi.COPY),
    "pair_axis": _check_pair_axis,
    "inv_freq": _check_inv_freq,
}
# check(value, name) returns the value for Spec.
_CHECKS = {name: _OWN_CHECKS.get(name) or _CHECKS_OF_TYPES[option.type] for name, option in SETTINGS.items()}
_LISTS = tuple(sorted(name for name, option in SETTINGS.items() if option.type.endswith("[]")))
_PER_TENSOR = tuple([name for name, option in SETTINGS.items() if option.per_tensor])


def _complete(name, value, is_given, count):
    """Returns a value for the Spec of `count` tensors. Defaults are not checked: torch.compile guards what checks read."""
    if value is None and TABLE[name].default is None:
        value = DEFAULTS[name]
    elif value is None or is_given:
        value = _CHECKS[name](value, name)
    return _per_tensor(value, count, name) if name in _PER_TENSOR else value


def _per_tensor(value, count, argument):
    """Returns a tuple with an integer for each tensor. The value may be one integer for all tensors."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise Error("%s has %d values for %d tensors" % (argument, len(value), count), argument)
    return value


def _cp(size, rank, layout):
    """Returns the three values for Spec. Either all are given, or none is. One rank counts as none."""
    if layout is not None:
        _check_word(layout, "cp_layout")
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
    return size, rank, _check_word(layout, "cp_layout")


# ---- All settings ----


def _whole_heads(head_dims, width, angles):
    """Returns the default of rotary_dim: the angles must cover each head. The rotating part of a head is never guessed."""
    for i, head_dim in enumerate(head_dims):
        if width > head_dim:
            message = "%s covers %d elements of a head, but a head of tensors[%d] has %d"
            raise Error(message % (angles, width, i, head_dim), angles)
        if width < head_dim:
            message = (
                "rotary_dim is missing: %s covers %d of the %d elements of a head of tensors[%d]; give rotary_dim, the "
                "number of elements that rotate, and rotary_offset, the first of them"
            )
            raise Error(message % (angles, width, head_dim, i), "rotary_dim")
    return (width,) * len(head_dims)


def make_spec(head_dims, table, columns, **settings):
    """Makes the Spec of tensors whose heads have these sizes.

    table, columns: "freqs" or "cos", and its number of columns; None if the angles are inv_freq.
    settings: the settings that the caller gives.
    """
    inv_freq, angle_columns, pair_axis = settings.get("inv_freq"), settings.get("angle_columns"), settings.get("pair_axis")
    if (table is None) == (inv_freq is None):
        message = "the angles are missing" if table is None else "inv_freq is given beside a table"
        raise Error(message + ": give exactly one of inv_freq, freqs, or cos with sin", "inv_freq")
    if table is None:
        if angle_columns is not None:
            raise Error(
                "angle_columns describes a table (freqs, or cos and sin), and inv_freq is not a table", "angle_columns"
            )
        width = 2 * len(inv_freq)
    else:
        _check_word(angle_columns, "angle_columns")
        width = 2 * columns if angle_columns == "pair" else columns
    if pair_axis is not None and not pair_axis:
        raise Error("pair_axis is empty: it needs one entry for each pair", "pair_axis")
    cp = _cp(settings.get("cp_size"), settings.get("cp_rank"), settings.get("cp_layout"))
    given = {**DEFAULTS, **settings}
    complete = {name: _complete(name, value, name in settings, len(head_dims)) for name, value in given.items()}
    complete["cp_size"], complete["cp_rank"], complete["cp_layout"] = cp
    if settings.get("mscale") is None:
        complete["mscale"] = getattr(inv_freq, "attention_factor", 1.0)
    if settings.get("rotary_dim") is None:
        complete["rotary_dim"] = _whole_heads(head_dims, width, table or "inv_freq")
    spec = Spec(*complete.values())
    check_spec(spec, table, columns)
    return spec


def check_spec(spec, table, columns):
    """Refuses a Spec whose lists, or whose table, have another length than the call would read.

    table, columns: see make_spec.
    """
    for i, width in enumerate(spec.rotary_dims):
        if width != _abi.COPY and (width < 2 or width % 2 or width > _abi.MAX_ROTARY_DIM):
            message = "rotary_dim (%d) of tensors[%d] must be even, 2 to %d, or trope.COPY (-1)"
            raise Error(message % (width, i, _abi.MAX_ROTARY_DIM), "rotary_dim")
    widest = _abi.COPY
    for width in spec.rotary_dims:  # (torch.compile does not support max with its keyword)
        widest = width if width > widest else widest
    if widest == _abi.COPY:
        raise Error("rotary_dim: no tensor of the call rotates", "rotary_dim")
    if spec.inv_freq and len(spec.inv_freq) != widest // 2:
        message = "inv_freq has %d frequencies, but rotary_dim %d needs %d, one for each pair"
        raise Error(message % (len(spec.inv_freq), widest, widest // 2), "inv_freq")
    needed = widest // 2 if spec.angle_columns == "pair" else widest
    if table is not None and columns != needed:
        message = "%s has %d columns, but rotary_dim %d needs %d with angle_columns %r"
        raise Error(message % (table, columns, widest, needed, spec.angle_columns), table)
    if spec.pair_axis and len(spec.pair_axis) != widest // 2:
        message = "pair_axis has %d entries, but rotary_dim %d needs %d, one for each pair"
        raise Error(message % (len(spec.pair_axis), widest, widest // 2), "pair_axis")
    if any(spec.shared_heads) and DIMS[spec.layout].groups is not None:
        message = "shared_heads is only for layouts without a dimension of groups, and layout is %r"
        raise Error(message % spec.layout, "shared_heads")


cached_spec = functools.lru_cache(maxsize=1024, typed=True)(make_spec)  # typed: 1 is not True


def _refuse_shape(layout, tensors):
    word(layout, DIMS, "layout")
    for i, x in enumerate(tensors):
        if len(x.shape) != len(layout):
            message = "tensors[%d] has shape %s, which is not %s (layout %r)"
            raise Error(message % (i, list(x.shape), list(layout), layout), "tensors[%d]" % i)


def find_columns(array, name):
    """Returns the size of the last dimension of a table."""
    if not 2 <= len(array.shape) <= 4:
        message = "%s has shape %s, and must be [rows, columns], [batch, rows, columns] or [axes, batch, rows, columns]"
        raise Error(message % (name, list(array.shape)), name)
    return array.shape[-1]


def _find_table(side):
    """Returns ("freqs" or "cos", its number of columns), or (None, None) if there is no table."""
    if side.freqs is not None:
        if side.cos is not None or side.sin is not None:
            raise Error("freqs is given beside cos or sin: give one of the two", "freqs")
        return "freqs", find_columns(side.freqs, "freqs")
    if side.cos is None and side.sin is None:
        return None, None
    if side.cos is None or side.sin is None:
        missing = "cos" if side.cos is None else "sin"
        raise Error("%s is missing: cos and sin go together" % missing, missing)
    return "cos", find_columns(side.cos, "cos")


def resolve(tensors, options, make=cached_spec):
    """Returns the Spec and the Side of keyword arguments as users pass them.

    Only the shapes of tensors and arrays are used. The caller checks which library they come from.
    """
    settings, arrays = {}, {}
    for name, value in options.items():
        if name in DEFAULTS:
            settings[name] = value
        elif name in ARRAYS:
            arrays[name] = value
        elif name == "norms":  # resolve_norms handles it, for calls that can have norms
            if value is not None:
                raise Error("norms are only for the rotate functions, and for calls of a RotaryEmbedding", name)
        else:
            refuse_unknown(options, TABLE, "trope.rotate")
    layout = settings.get("layout")
    rank, head_dims = _RANKS.get(layout) if isinstance(layout, str) else None, []
    for x in tensors:
        shape = x.shape
        if len(shape) != rank:
            _refuse_shape(layout, tensors)
        head_dims.append(shape[-1])
    side, table, columns = NO_ARRAYS, None, None
    if arrays:
        side = Side(**arrays)
        table, columns = _find_table(side)
    for name in _LISTS:  # tuples can be hashed, lists cannot
        if settings.get(name) is not None:
            settings[name] = _CHECKS[name](settings[name], name)
    try:
        return make(tuple(head_dims), table, columns, **settings), side
    except TypeError:  # a value cannot be hashed: make_spec raises an error that names it
        return make_spec(tuple(head_dims), table, columns, **settings), side


def result_shape(backward, spec, i, shape):
    """Returns the shape of the result of tensors[i]. It differs from the input's only if heads are shared."""
    per_group = spec.shared_heads[i]
    if not per_group:
        return shape
    if len(shape) != len(spec.layout):
        raise Error("tensors[%d] has shape %s, which is not %s" % (i, list(shape), spec.layout), "tensors[%d]" % i)
    shape, heads = list(shape), DIMS[spec.layout].heads
    if backward and shape[heads] % per_group:
        raise Error(
            "tensors[%d] has %d heads, which is not a multiple of shared_heads %d" % (i, shape[heads], per_group),
            "shared_heads",
        )
    shape[heads] = shape[heads] // per_group if backward else shape[heads] * per_group
    return shape


_specs: dict = {}


def intern(spec):
    """Returns the one Spec object that equals this one, so that the keys of prepared calls can have its id."""
    if len(_specs) > 1024:
        _specs.clear()
    return _specs.setdefault(spec, spec)


def subset(spec, keep):
    """Returns the Spec of some of the tensors."""
    if len(keep) == len(spec.rotary_dims):
        return spec
    names = ("rotary_dims", "rotary_offsets", "shared_heads") + (("norms",) if spec.norms else ())
    return spec._replace(**{name: tuple(getattr(spec, name)[i] for i in keep) for name in names})


def widen(spec, whole, shape):
    """Makes a call of some tensors of `whole` read the same columns of the table, frequencies and axes of pairs as `whole`.

    The widest rotary_dim decides how many are read. If all tensors are narrower, or only copied, the call needs one more
    tensor: one head of zeros with that width. Returns the Spec, and the shape of this tensor or None. `shape` is that of
    another tensor of the call.
    """
    widest = max(whole.rotary_dims)
    if max(spec.rotary_dims) == widest:
        return spec, None
    dims, shape = DIMS[spec.layout], list(shape)
    shape[dims.heads], shape[dims.head_dim] = 1, widest
    spec = spec._replace(
        rotary_dims=(*spec.rotary_dims, widest),
        rotary_offsets=(*spec.rotary_offsets, 0),
        shared_heads=(*spec.shared_heads, 0),
        norms=(*spec.norms, NO_NORM) if spec.norms else (),
    )
    return spec, shape
