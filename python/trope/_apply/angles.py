"""The angles of a call (a table, inv_freq, or a rule), and the elements of a head that they rotate."""

import math

import numpy as np

from .._abi import MAX_ROTARY_DIM
from .._config_keys import ORIGINAL, RULE_KEYS
from .._errors import Error
from ..frequencies import Frequencies, evaluate, fields_of, read_rotation
from .layouts import refuse_shaped
from .options import read_number
from .refused import refuse, refuse_file, shorten
from .tables import Table

SOURCES = ("freqs", "cos", "freqs_cis", "cos_sin_cache", "inv_freq")
TABLES = SOURCES[:-1]


def find_table(call):
    """Returns the Table of a call, which has not been read yet, or None if the call has none."""
    found = [(role, call.group[role]) for role in SOURCES if role in call.group]
    for name, other in (("cos", "sin"), ("sin", "cos")):
        if name in call.group and other not in call.group:
            refuse_shaped(call, call.group[name], "needs '%s' too", other)
    if len(found) > 1:
        text = (
            "angles must come from one of freqs, cos with sin, freqs_cis, cos_sin_cache and inv_freq, but '%s' is there too"
        )
        refuse_shaped(call, found[0][1], text, shorten(found[1][1].name))
    options = call.options
    if found and (options.rope_theta is not None or options.scaling is not None):
        refuse_shaped(call, found[0][1], "gives the angles, so --rope-theta and --scaling must be left out")
    return Table(call, *found[0]) if found and found[0][0] in TABLES else None


def read_angles(call):
    """Sets rotary_dim of a call, and the arguments of trope.rotate for its angles."""
    if call.table is None:
        _refuse_without_table(call.options)
    if not call.heads:
        return
    if call.table is not None:
        call.table.read()
        _read_columns(call, call.table)
    elif "inv_freq" in call.group:
        _read_inv_freq(call, call.group["inv_freq"])
    else:
        call.rotary_dim = _width_by_rule(call)
    if not call.rotary_dim:
        return
    for tensor in call.group.rotated():
        _check_window(call, tensor)
    if call.table is None and "inv_freq" not in call.group:
        call.frequencies = _frequencies(call)


def _refuse_without_table(options):
    for name in ("columns", "table_layout", "table_rows", "out_of_range"):
        if getattr(options, name) is not None:
            refuse("--%s: has no effect without a table of angles", name.replace("_", "-"))


# ---- The width of the rotation ----


def _specified_width(call):
    """Returns the width by --rotary-dim, --partial-rotary-factor or --config, or None if none of them determines it."""
    options = call.options
    if options.partial_rotary_factor is not None:
        widths = {int(head * options.partial_rotary_factor) for head in call.heads}
        if len(widths) > 1:
            text = "--partial-rotary-factor: heads have different sizes, %d and %d elements: give --rotary-dim instead"
            refuse(text, min(call.heads), max(call.heads))
        specified = widths.pop()
    else:
        specified = options.rotary_dim
    return specified if call.config is None else call.config.check_width(call.heads, specified)


def _width_by_rule(call):
    """Returns the width without a table: by default the head from --rotary-offset on. Heads must then have one size."""
    offset, specified = call.options.rotary_offset, _specified_width(call)
    if specified is not None:
        return specified
    if offset is not None and offset < 0:
        return -offset
    if min(call.heads) != max(call.heads):
        refuse("--rotary-dim: is missing: heads have different sizes, %d and %d elements", min(call.heads), max(call.heads))
    return call.heads[0] - (offset or 0)


def _check_window(call, tensor):
    """Checks that the window lies inside each head, and that it is specified if it is not the whole head."""
    head, width, windows = call.head_of(tensor), call.rotary_dim, call.options.windows
    offset = call.offset_in(head)
    if not 0 <= offset <= head or width > head - offset:
        text = "must have heads with at least %d elements from --rotary-offset %d on"
        refuse_shaped(call, tensor, text, width, offset)
    if width > MAX_ROTARY_DIM or width % (2 * windows):
        text = "cannot rotate %d elements: --rotary-dim must be divisible by twice --windows (%d), at most %d"
        refuse_shaped(call, tensor, text, width, 2 * windows, MAX_ROTARY_DIM)
    if width < head and not call.says_offset():
        text = (
            "has heads of %d elements, of which %d rotate: give --rotary-offset 0 for the first ones, --rotary-offset -%d "
            "for the last"
        )
        refuse_shaped(call, tensor, text, head, width, width)


# ---- Columns of a table ----


def _width_of_columns(call, table, signs):
    """Returns the width that the columns of a table imply, if nothing else determines it.

    It equals the number of columns if both columns of a pair are equal. Otherwise it is twice that number, as in ordinary
    RoPE.
    """
    columns, specified, (halves, neighbours, every) = table.columns, call.options.columns, signs
    if specified is not None:
        return 2 * columns if specified == "pair" else columns
    if every:
        text = "has columns that are all equal, which may be one for each pair or one for each element: give --rotary-dim"
        table.refuse(text)
    width = columns if halves or neighbours else 2 * columns
    if width > min(call.heads) >= columns:
        text = (
            "has too many columns for one for each pair in heads of %d, but no pair has two equal columns: give --columns "
            "half or interleaved if the angles of a pair differ"
        )
        table.refuse(text, min(call.heads))
    return width


def _form_of_elements(table, specified, signs):
    """Returns the form of the columns if there is one column for each element that rotates."""
    halves, neighbours, every = signs
    if specified == "half" and neighbours and not halves or specified == "interleaved" and halves and not neighbours:
        table.refuse("has equal %s, which contradicts --columns %s", "halves" if halves else "neighbours", specified)
    if specified is not None:
        return specified
    if halves != neighbours or every:
        return "half" if halves else "interleaved"
    what = "both halves and neighbours are equal" if halves else "no pair has two equal columns"
    text = "has a column for each of the %d elements that rotate, and %s: give --columns half or interleaved"
    return table.refuse(text, table.columns, what)


def _read_columns(call, table):
    columns, specified, signs = table.columns, call.options.columns, table.signs()
    width = _specified_width(call)
    width = _width_of_columns(call, table, signs) if width is None else width
    call.rotary_dim = width
    if not width:
        return
    if width not in (columns, 2 * columns):
        table.refuse("must have a column for each of the %d elements that rotate, or half as many", width)
    if specified is not None and (specified == "pair") != (columns != width):
        table.refuse("has %d columns for --rotary-dim %d, which contradicts --columns %s", columns, width, specified)
    halves, neighbours, every = signs
    if columns == width:
        call.columns = _form_of_elements(table, specified, signs)
        return
    if specified is None and not every and (halves or neighbours) and call.options.windows == 1:
        text = (
            "has equal %s, like a table with one column for each element, for --rotary-dim %d: give --columns pair if "
            "this is meant"
        )
        table.refuse(text, "halves" if halves else "neighbours", columns)
    call.columns = "pair"


# ---- Without a table ----


def _read_inv_freq(call, tensor):
    if tensor.dtype not in ("F32", "F64"):
        refuse_shaped(call, tensor, "must have dtype F32 or F64")
    if len(tensor.shape) != 1:
        refuse_shaped(call, tensor, "must be [rotary_dim / 2]")
    if not 1 <= tensor.elements <= MAX_ROTARY_DIM // 2:
        refuse_shaped(call, tensor, "must have from 1 to %d elements", MAX_ROTARY_DIM // 2)
    values = tensor.data.astype(np.float64).tolist()
    for i, value in enumerate(values):
        if not math.isfinite(value):
            refuse_shaped(call, tensor, "holds %s, in element %d", "NaN" if math.isnan(value) else "infinity", i)
    specified = _specified_width(call)
    call.rotary_dim = 2 * len(values) if specified is None else specified
    if call.rotary_dim and call.rotary_dim != 2 * len(values):
        refuse_shaped(call, tensor, "must have half of --rotary-dim (%d) elements", call.rotary_dim // 2)
    for i, value in enumerate(values):
        is_at_end = i > 0 and not any(values[i:])
        if value < 0 or value == 0 and not is_at_end:
            text = "must be positive, or 0 at the end after positive elements (the rule proportional): element %d is %g"
            refuse_shaped(call, tensor, text, i, value)
    try:
        call.frequencies = Frequencies(values)
    except Error as error:
        refuse_shaped(call, tensor, "%s", error)


def parse_scaling(text):
    """Returns the keywords of trope.frequencies for "RULE:key=value,...". 0 is refused, except in lists."""
    rule, _, rest = text.partition(":")
    keys = {"rope_type": rule}
    if rule not in RULE_KEYS or rule == "ntk_alpha":
        refuse("--scaling: '%.64s' is not one of %s", rule, ", ".join(name for name in RULE_KEYS if name != "ntk_alpha"))
    known = RULE_KEYS[rule] + {"dynamic": (ORIGINAL,), "proportional": ("partial_rotary_factor",)}.get(rule, ())
    for item in rest.split(",") if rest or text.endswith(":") else ():
        key, equals, value = item.partition("=")
        if not equals:
            refuse("--scaling: '%.64s' is not key=value", item)
        if key not in known:
            refuse("--scaling: rule %s has no key '%.64s'", rule, key)
        if key in keys:
            refuse("--scaling: %.64s is given twice", key)
        keys[key] = _scaling_value(key, value)
    if ORIGINAL in known and ORIGINAL not in keys and rule != "default":
        refuse("--scaling: rule %s needs %s=..., which is missing", rule, ORIGINAL)
    if rule == "longrope" and "factor" not in keys and "attention_factor" not in keys:
        refuse("--scaling: rule longrope needs factor=... or attention_factor=..., and both are missing")
    if ("mscale" in keys) != ("mscale_all_dim" in keys):
        refuse("--scaling: mscale and mscale_all_dim go together, and one of them is missing")
    if rule == "dynamic":  # in transformers, another key has the length at which this rule begins
        keys["max_position_embeddings"] = keys.pop(ORIGINAL)
    return keys


def _scaling_value(key, text):
    if key == "truncate":
        if text not in ("true", "false"):
            refuse("--scaling: truncate: '%.64s' is not one of true, false", text)
        return text == "true"
    values = [read_number(word) for word in (text.split(";") if key.endswith("_factor") and ";" in text else [text])]
    if None in values:
        refuse("--scaling: '%.64s' is not a finite number", text)
    if key in ("short_factor", "long_factor"):
        return values
    if len(values) > 1 or values[0] == 0:
        refuse("--scaling: %s must not be 0 or a list", key)
    return int(values[0]) if key == ORIGINAL and values[0].is_integer() else values[0]


def _rotation(call, dim):
    """Returns the rotation of `dim` elements that --config describes, or --rope-theta with --scaling."""
    options = call.options
    if call.config is not None:
        call.config.check_base()
        return call.config.rotation
    if options.rope_theta is None:
        text = "holds no angles (%s, inv_freq): give --rope-theta or --config"
        refuse_file(call.file.path, text, "freqs, freqs_cis, cos with sin, cos_sin_cache")
    if options.rope_theta <= 1:
        refuse("--rope-theta: %g must be over 1", options.rope_theta)
    keys = parse_scaling(options.scaling or "default")
    try:
        return read_rotation(None, None, {**keys, "rope_theta": options.rope_theta, "head_dim": dim})
    except Error as error:
        refuse("--scaling: %s", error)


def _frequencies(call):
    """Returns the Frequencies of a call whose file has no angles. Each window gets those for its own width."""
    options, windows = call.options, call.options.windows
    dim = call.rotary_dim // windows
    rotation = _rotation(call, dim)
    try:
        fields = fields_of(rotation, dim)
        fields["seq_len"] = _length(options, rotation.rule, call.last_position, fields)
        found = evaluate(rotation.rule, dim, fields)
        if call.config is not None and options.scaling is not None:
            _compare_scaling(call, found, dim)
    except Error as error:
        refuse("%s: %s", "--scaling" if call.config is None else call.config.path, error)
    return found if windows == 1 else Frequencies(found.inv_freq * windows, found.attention_factor, found.rule)


def _length(options, rule, last_position, fields):
    """Returns the current length, or 0 if it has no effect. Dynamic and LongRoPE change beyond the original length."""
    depends, length = rule in ("dynamic", "longrope"), options.seq_len
    if length is not None and not depends:
        refuse("--seq-len: has no effect; only the rules dynamic and longrope depend on the length")
    if depends and length is None and last_position >= fields["original_max_position"]:
        text = "--seq-len: is missing: the positions go up to %d, and the rule depends on the length beyond %d"
        refuse(text, last_position, fields["original_max_position"])
    if length is not None and last_position >= length:
        refuse("--seq-len: %d contradicts the positions, which go up to %d", length, last_position)
    return length or 0


def _compare_scaling(call, found, dim):
    """Refuses --scaling if its frequencies differ from those of --config."""
    theta = call.config.rotation.need("rope_theta")
    keys = {**parse_scaling(call.options.scaling), "rope_theta": theta, "head_dim": dim}
    rotation = read_rotation(None, None, keys)
    fields = {**fields_of(rotation, dim), "seq_len": call.options.seq_len or 0}
    if evaluate(rotation.rule, dim, fields) != found:
        text = "--scaling: contradicts %s: rope_scaling, which is %s"
        refuse(text, call.config.path, found.rule)
