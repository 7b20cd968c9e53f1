"""A call of the library: its arguments, and how it is made for one tensor at a time."""

import numpy as np

import trope

from .._abi import MAX_AXES
from .._errors import Error
from .angles import find_table, read_angles
from .files import library_array
from .layouts import read_operands, refuse_shaped, shape_in, sizes
from .positions import read_positions, refuse_error
from .refused import refuse, shorten

POISONED = 1  # TROPE_STATUS_POSITION of include/trope/trope.h


class Call:
    """The call of a group of tensors.

    layout, dtype, batch, tokens, heads   of the operands; heads: the head_dim of each operand that rotates
    given             the tensors of indices, in the form for trope.rotate
    sequences         the number of sequences of cu_seqlens, None without it
    position_axes     the number of axes of position_ids, 0 without them
    padded            bool [tokens]: whether a token is in no sequence; None if all are in one
    first_position, last_position, counts_tokens   range of rotated positions; whether each equals its token's index
    is_origin         bool [batch * tokens]: whether a token rotates by position 0 of all axes
    table             a Table, or None
    frequencies       Frequencies, or None with a table
    rotary_dim        the width of the operands that rotate; 0: none rotates
    columns           "pair", "half" or "interleaved", with a table
    """

    def __init__(self, file, group, options, config):
        self.file, self.group, self.options, self.config = file, group, options, config
        self.given, self.sequences, self.position_axes, self.padded = {}, None, 0, None
        self.rotary_dim, self.columns, self.frequencies, self.axes = 0, None, None, None
        self.table = find_table(self)
        read_operands(self)
        read_positions(self)
        if not self.batch or not self.tokens:
            return
        read_angles(self)
        if not self.rotary_dim:
            self._refuse_without_rotation()
            return
        if options.pairing is None:
            refuse("--pairing: is missing: half (Llama in Hugging Face, GPT-NeoX) or interleaved (GPT-J, RoFormer)")
        self._read_axes()
        self.arguments = self._arguments()

    # -- Properties --

    def shape_of(self, tensor):
        """Returns the shape of an operand with a dimension for heads."""
        return shape_in(self.options, tensor, self.layout)

    def head_of(self, tensor):
        return sizes(self.layout, self.shape_of(tensor))[3]

    def has_axis_map(self):
        return self.options.axis_map is not None or self.config is not None and self.config.has_axes()

    def has_axes(self):
        """Whether the axis of each pair is known."""
        return self.has_axis_map() or self.options.windows > 1

    def table_fits(self, batch, tokens):
        return self.table is None or self.table.fits(batch, tokens)

    def says_offset(self):
        """Whether --rotary-offset or --config determines which elements of a head rotate."""
        return self.options.rotary_offset is not None or self.config is not None and self.config.says_window()

    def offset_in(self, head):
        """Returns the first element that rotates in a head. It is below 0 if the head is too small."""
        offset = self.options.rotary_offset
        if offset is None:
            is_trailing = self.config is not None and self.config.family.is_trailing
            return head - self.rotary_dim if is_trailing else 0
        return head + offset if offset < 0 else offset

    # -- Reading the rest --

    def _refuse_without_rotation(self):
        """Refuses options about the rotation if nothing rotates."""
        options = self.options
        if self.config is not None:
            return
        names = ("pairing_out", "pairing", "inverse", "mscale", "rope_theta", "scaling", "rotary_offset")
        given = [name for name in names if getattr(options, name) is not None] + ["windows"] * (options.windows > 1)
        if given:
            refuse("--%s: has no effect, as nothing is rotated", given[0].replace("_", "-"))

    def _read_axes(self):
        """Finds the axis of each pair, if positions or a table have several axes."""
        options = self.options
        table_axes = self.table.reading.axes if self.table is not None else 1
        has_axes = max(self.position_axes, table_axes) > 1
        if options.axis_map is not None and options.axis_sections is None and self.config is None:
            refuse("--axis-map: needs --axis-sections, the pairs of each axis")
        if self.has_axis_map() and options.windows > 1:
            refuse("--axis-map: must be left out with --windows %d, which already assign the axes", options.windows)
        if options.axis_map is None and options.axis_sections is not None:
            refuse("--axis-sections: needs --axis-map, the order of the axes")
        if not has_axes:
            if options.axis_map is not None and self.config is None:
                self._pair_axis()
                refuse("--axis-map: has no effect without position_ids or a table of several axes")
            return
        if self.has_axis_map():
            self.axes, self.listed = self._pair_axis()
        else:
            self.listed = options.windows
        used = options.windows if self.axes is None else max(self.axes) + 1
        for tensor, axes in ((self.group.get("position_ids"), self.position_axes), (self._table_tensor(), table_axes)):
            if axes > 1:
                self._check_axes(tensor, axes, used)
        self._drop_axes(used, table_axes)

    def _table_tensor(self):
        return None if self.table is None else self.table.tensor

    def _pair_axis(self):
        """Returns the axis of each pair, and the number of axes in the options."""
        pairs = self.rotary_dim // 2
        if self.config is not None:
            return self.config.pair_axis(pairs), len(self.options.axis_sections or (0, 0, 0))
        sections = self.options.axis_sections
        try:
            axes = trope.pair_axis(self.options.axis_map, sections)
        except Error as error:
            refuse("--axis-sections: %s", error)
        if len(axes) != pairs:
            refuse("--axis-sections: sections %s add up to %d, but there are %d pairs", list(sections), len(axes), pairs)
        return axes, len(sections)

    def _check_axes(self, tensor, axes, used):
        """Checks that ids or a table have each axis that drives pairs, and no other axis unless its section is 0."""
        option = "--axis-sections has" if self.axes is not None else "--windows is"
        if axes > self.listed:
            more = ": give the section 0 to an axis that drives no pair" if self.axes is not None else ""
            if (axes, self.listed) == (MAX_AXES, 3):
                more = (
                    ": transformers puts text positions first: remove them (position_ids[1:]), or give the section 0 to "
                    "an axis that drives no pair"
                )
            refuse_shaped(self, tensor, "has %d axes, but %s %d%s", axes, option, self.listed, more)
        if axes < used:
            text = "has %d axes, but %s %d: pairs use %d axes"
            refuse_shaped(self, tensor, text, axes, option, self.listed, used)

    def _drop_axes(self, used, table_axes):
        """Drops the last axes if they drive no pair."""
        if self.position_axes > used:
            self.given["position_ids"] = self.given["position_ids"][:used]
        if table_axes > used:
            self.table.arrays = [part[:used] for part in self.table.arrays]

    def _arguments(self):
        """Returns the keyword arguments of trope.rotate, except for those that differ between operands."""
        options, table = self.options, self.table
        found = {
            "layout": self.layout, "pairing": options.pairing, "pairing_out": options.pairing_out,
            "inverse": bool(options.inverse), "rounding": (options.rounding or "once").replace("-", "_"),
            "parts": options.windows, "pair_axis": self.axes, "padding": options.padding, "cp_size": options.cp_size,
            "cp_rank": options.cp_rank, "cp_layout": options.cp_layout, "threads": options.threads or 0, **self.given,
        }  # fmt: skip
        found["stream_positions"] = bool(options.packed_positions)
        found["mscale"] = options.mscale
        if table is None:
            found["inv_freq"] = self.frequencies
            return found
        arrays = [library_array(_without_planes(part), table.dtype) for part in table.arrays]
        found.update(zip(("freqs",) if table.is_angle else ("cos", "sin"), arrays))
        found["angle_columns"], found["out_of_range"] = self.columns, options.out_of_range or "poison"
        if table.by_token:  # ids that are the index of each token replace the positions
            found["position_ids"] = np.arange(self.tokens)
            found["stream_positions"] = False
            found.pop("start_positions", None)
        return found

    # -- Making the call --

    def rotate(self, tensor, source, result, device):
        """Rotates an operand. source, result: its elements, which may be one array. Returns the TROPE_STATUS_ bits."""
        shape, head = self.shape_of(tensor), self.head_of(tensor)
        arguments = {**self.arguments, "rotary_dim": self.rotary_dim, "rotary_offset": self.offset_in(head)}
        if self.options.out_of_range == "poison":
            arguments["status"] = np.zeros(1, np.int32)
        x, out = (library_array(array.reshape(shape), self.dtype) for array in (source, result))
        try:
            device.rotate(bool(self.options.backward), x, out, arguments)
        except Error as error:
            refuse_error(self, error, tensor)
        return int(arguments["status"][0]) if "status" in arguments else 0

    def rotates(self, role):
        return role != "v" and self.rotary_dim > 0

    def token_bytes(self, tensor):
        """Returns the number of consecutive bytes of one token in an operand."""
        heads = sizes(self.layout, self.shape_of(tensor))[2] if self.layout == "bhsd" else 1
        size, rest = divmod(tensor.bytes, self.batch * self.tokens * heads)
        if rest:
            refuse_shaped(self, tensor, "has tokens that are not whole bytes, which --padding zero cannot write")
        return size

    def zero_padding(self, data, token_bytes, offset):
        """Zeros tokens of padding in an operand that is only copied, from byte `offset` of it on."""
        tokens = np.arange(offset // token_bytes, (offset + data.size) // token_bytes) % self.tokens
        data.reshape(-1, token_bytes)[self.padded[tokens]] = 0

    # -- Explanation --

    def explain(self, group):
        """Returns lines that explain how a group of this call was read."""
        for role, tensor in group.operands():
            yield self._explain_operand(role, tensor)
        if not self.rotary_dim:
            return
        if self.table is not None:
            yield self._explain_table()
        elif "inv_freq" in group:
            yield "%s: %d frequencies" % (shorten(group["inv_freq"].name), self.rotary_dim // 2)
        else:
            rule, theta = self.frequencies.rule, self.options.rope_theta
            theta = self.config.rotation.rope["rope_theta"] if theta is None else theta
            factor = self.options.mscale or self.frequencies.attention_factor
            text = "angles: --rope-theta %g, --scaling %s, %d frequencies, factor %g"
            yield text % (theta, self.options.scaling or rule, self.rotary_dim // 2, factor)
        if self.sequences is not None:
            yield "%s: %d sequences" % (shorten(group["cu_seqlens"].name), self.sequences)
        if "position_ids" in group:
            is_unused = self.table is not None and self.table.by_token
            axes = "an axis for each of several" if self.position_axes > 1 else "one axis"
            what = "not used, because the rows of the table belong to tokens" if is_unused else axes
            yield "%s: %s" % (shorten(group["position_ids"].name), what)

    def warn(self, group):
        """Returns a warning about inverse frequencies that no language model has, or "". Periods and degrees look so."""
        if self.config is None or "inv_freq" not in group or not self.rotary_dim:
            return ""
        values = self.frequencies.inv_freq
        if max(values) <= 1 and values[-1] <= values[0]:
            return ""
        text = "'%s' goes from %g to %g: in language models, inverse frequencies fall from at most 1 radian per position"
        return (text + " (periods and degrees do not)") % (shorten(group["inv_freq"].name), values[0], values[-1])

    def _explain_operand(self, role, tensor):
        batch, tokens, heads, head = sizes(self.layout, self.shape_of(tensor))
        text = "%s: %s, batch %d, %d tokens, %d heads of %d"
        text %= shorten(tensor.name), self.layout, batch, tokens, heads, head
        if self.padded is not None:
            text += "; %d tokens are padding" % self.padded.sum()
        if not self.rotates(role):
            return text + "; copied"
        offset, options = self.offset_in(head), self.options
        text += "; %s pairs of elements %d to %d, " % (options.pairing, offset, offset + self.rotary_dim - 1)
        if options.pairing_out not in (None, options.pairing):
            text += "written as %s, " % options.pairing_out
        if self.table is not None and self.table.by_token:
            return text + "each token by its own row"
        return text + "positions %d to %d" % (self.first_position, self.last_position)

    def _explain_table(self):
        table, reading = self.table, self.table.reading
        forms = {
            "pair": "one for each pair",
            "half": "one for each element, by halves",
            "interleaved": "one for each element, by neighbours",
        }
        axes = "%d axes, " % reading.axes if reading.axes > 1 else ""
        rows = "tokens" if table.by_token else "positions"
        text = "%s: %sbatch %d, a row for each of %d %s, %d columns, %s"
        name, form = shorten(table.tensor.name), forms[self.columns]
        return text % (name, axes, reading.batch, reading.rows, rows, table.columns, form)


def _without_planes(part):
    """Returns [axes, batch, rows, columns] without axes and batch if these have one entry for all."""
    if part.shape[0] > 1:
        return part
    return part[0] if part.shape[1] > 1 else part[0, 0]
