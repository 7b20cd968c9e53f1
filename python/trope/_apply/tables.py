"""Tables of angles, or of cosines and sines: the meaning of their dims and columns, and the checks that they are tables.

A table has rows and columns. The data decides which dims are rows, batch or axes, and which element of a head a column
belongs to. If two readings fit, the call is refused, and the error names the option that chooses.
"""

import itertools
from typing import NamedTuple

import numpy as np

from .._abi import MAX_AXES, MAX_ROTARY_DIM
from .files import CHUNK, REAL, to_double
from .layouts import refuse_shaped
from .refused import refuse, shorten

LAYOUTS = {"sd": "s", "bsd": "bs", "sbd": "sb", "asd": "as", "absd": "abs"}  # the dims before the columns
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Reading(NamedTuple):
    """One way to read the dims of a table. dims: the dims of axes, batch and rows, None where there is one for all."""

    axes: int
    batch: int
    rows: int
    dims: tuple


class Table:
    """The table of a call.

    tensor   the tensor that messages name; `sine` is a second one, or None
    parts    the angles, or the cosines and the sines: arrays [leading dims, columns]
    arrays   the parts as [axes, batch, rows, columns], after the dims have been identified
    """

    def __init__(self, call, role, tensor):
        self.call, self.role, self.tensor = call, role, tensor
        self.sine = call.group["sin"] if role == "cos" else None
        self.is_angle = role == "freqs"
        self.dtype = "F32" if tensor.dtype == "C64" else tensor.dtype
        self.has_parts_last = role == "freqs_cis" and tensor.dtype != "C64"
        self.leading = tensor.shape[: -2 if self.has_parts_last else -1]
        self.by_token = False

    def refuse(self, text, *values):
        refuse_shaped(self.call, self.tensor, text, *values)

    # -- Dims --

    def _readings(self, batch, rows, has_axes):
        """Returns the readings of the dims that fit: {Reading: name of the layout}."""
        found = {}
        for name, letters in LAYOUTS.items():
            if self.call.options.table_layout not in (None, name):
                continue
            for dims in itertools.combinations(range(len(self.leading)), len(letters)):
                if any(size != 1 for dim, size in enumerate(self.leading) if dim not in dims):
                    continue
                size = {letter: self.leading[dim] for letter, dim in zip(letters, dims)}
                place = {letter: dim for letter, dim in zip(letters, dims) if self.leading[dim] > 1}
                reading = Reading(*(size.get(letter, 1) for letter in "abs"), tuple(place.get(letter) for letter in "abs"))
                axes_fit = reading.axes <= 1 or has_axes and reading.axes <= MAX_AXES
                if axes_fit and reading.rows >= rows and reading.batch in (1, batch):
                    found.setdefault(reading, name)
        return found

    def fits(self, batch, tokens):
        """Whether the table can have this batch and number of tokens, as far as is known before positions are read."""
        group = self.call.group
        is_by_index = not any(role in group for role in ("position_ids", "start_positions", "cu_seqlens"))
        rows = tokens if is_by_index and self.call.options.out_of_range is None else 1
        if not 1 <= len(self.leading) <= 4:
            return True
        return bool(self._readings(batch, rows, self.call.has_axes()))

    def _read_dims(self):
        call, options = self.call, self.call.options
        if not 1 <= len(self.leading) <= 4:
            self.refuse("must be [rows, cols], with batch, axes or dims of 1 before or behind the rows")
        has_axes, needed = call.has_axes(), 1
        # Try readings with enough rows for the positions first, to distinguish a short table from one that does not fit.
        if options.out_of_range is None and call.position_axes <= 1:
            needed = min(call.last_position + 1, call.tokens)
        found = self._readings(call.batch, needed, has_axes) or self._readings(call.batch, 1, has_axes)
        if not found:
            by_axis = self._readings(call.batch, 1, True)
            if by_axis:
                text = "may be %s, with a table for each axis: give --axis-map, the axis of each pair"
                self.refuse(text, " or ".join(by_axis.values()))
            specified = ", with --table-layout " + options.table_layout if options.table_layout else ""
            text = (
                "must have rows and columns, for the whole batch or for each of its %d entries, and otherwise dims of 1%s"
            )
            self.refuse(text, call.batch, specified)
        if len(found) > 1:
            text = "may be %s (s rows, b batch, a axes, d columns): give --table-layout"
            self.refuse(text, " or ".join(found.values()))
        self.reading = next(iter(found))

    def _choose_rows(self):
        """Decides if a token has the row of its position or of its index, as in tables that a model made for its tokens."""
        call, specified, rows = self.call, self.call.options.table_rows, self.reading.rows
        if specified == "tokens" and rows != call.tokens:
            self.refuse("must have as many rows as there are tokens (%d), with --table-rows tokens", call.tokens)
        if not specified and rows == call.tokens and not call.counts_tokens:
            text = (
                "has a row for each token, but the positions (%d to %d) are not 0, 1, 2, ...: give --table-rows positions "
                "or tokens, which tells the row of a token"
            )
            self.refuse(text, call.first_position, call.last_position)
        self.by_token = specified == "tokens"
        is_outside = call.first_position < 0 or call.last_position >= rows
        if self.by_token and call.options.out_of_range is not None:
            refuse("--out-of-range: has no effect with --table-rows tokens")
        if not self.by_token and call.options.out_of_range is None and is_outside:
            blamed = call.group.get("position_ids") or call.group.get("start_positions") or self.tensor
            text = "positions %d to %d are not in the rows of '%s', 0 to %d; --out-of-range allows them"
            name = shorten(self.tensor.name)
            refuse_shaped(call, blamed, text, call.first_position, call.last_position, name, rows - 1)

    def _arrange(self, part):
        """Returns [leading dims, columns] as [axes, batch, rows, columns], a view."""
        dims = [dim for dim in self.reading.dims if dim is not None]
        index = tuple(slice(None) if dim in dims else 0 for dim in range(len(self.leading)))
        part = part[index].transpose(*(sorted(dims).index(dim) for dim in dims), -1)
        missing = tuple(i for i, dim in enumerate(self.reading.dims) if dim is None)
        return np.expand_dims(part, missing)

    # -- Reading --

    def _check_type(self):
        call, tensor = self.call, self.tensor
        is_right = tensor.dtype in REAL and (tensor.dtype != "F64" or call.dtype == "F64")
        if not is_right and (tensor.dtype, self.role) != ("C64", "freqs_cis"):
            more = ", or C64" if self.role == "freqs_cis" else ""
            self.refuse("must have dtype F32, F16 or BF16, or F64 with F64 operands%s", more)
        if self.sine is not None and (self.sine.dtype, self.sine.shape) != (tensor.dtype, tensor.shape):
            refuse_shaped(call, self.sine, "must have the dtype and shape of '%s'", shorten(tensor.name))
        if self.has_parts_last and (len(tensor.shape) < 2 or tensor.shape[-1] != 2):
            self.refuse("must be complex, or end with a dim of 2, the real and the imaginary parts")
        if self.role == "cos_sin_cache" and (not tensor.shape or tensor.shape[-1] % 2):
            self.refuse("must have the cosines and then as many sines in its last dim")

    def _split(self):
        data = self.tensor.data
        if self.role == "freqs_cis":
            return [data[..., 0], data[..., 1]]
        if self.role == "cos_sin_cache":
            columns = data.shape[-1] // 2
            return [data[..., :columns], data[..., columns:]]
        return [data] if self.sine is None else [data, self.sine.data]

    def read(self):
        """Identifies the dims, and refuses tensors that are no tables."""
        self._check_type()
        self._read_dims()
        self._choose_rows()
        columns = self.tensor.shape[len(self.leading)] // (2 if self.role == "cos_sin_cache" else 1)
        if not 1 <= columns <= MAX_ROTARY_DIM:
            self.refuse("must have from 1 to %d columns", MAX_ROTARY_DIM)
        if not self.tensor.elements:
            self.refuse("is empty, but the other tensors are not")
        self.columns = columns
        for tensor in (self.tensor,) if self.sine is None else (self.tensor, self.sine):
            self._check_finite(tensor)
        self.parts = self._split()
        self.arrays = [self._arrange(part) for part in self.parts]
        if not self.is_angle:
            self._check_factor()
        self._check_origins()

    def _blocks(self):
        """Yields the parts, a number of rows at a time, as arrays [rows, columns]."""
        flat = [part.reshape(-1, self.columns) if part.flags.c_contiguous else self._flatten(part) for part in self.parts]
        step = max(1, CHUNK // 4 // self.columns)
        for at in range(0, len(flat[0]), step):
            yield [part[at : at + step] for part in flat]

    def _flatten(self, part):
        """Returns [rows, columns] of half of a tensor, without a copy: the rows have a constant distance."""
        row = self.columns * (2 if self.role in ("freqs_cis", "cos_sin_cache") else 1) * part.itemsize
        shape = (part.size // self.columns, self.columns)
        return np.lib.stride_tricks.as_strided(part, shape, (row, part.strides[-1]), writeable=False)

    # -- Checks of tables --

    def _check_finite(self, tensor):
        flat = tensor.data.reshape(-1)
        for at in range(0, flat.size, CHUNK // 4):
            values = to_double(flat[at : at + CHUNK // 4], self.dtype)
            wrong = ~np.isfinite(values)
            if wrong.any():
                i = int(wrong.argmax())
                kind = "NaN" if np.isnan(values[i]) else "infinity"
                refuse_shaped(self.call, tensor, "holds %s, in element %d", kind, at + i)

    def _check_factor(self):
        """Checks that cos^2 + sin^2 is 1, or the square of an attention factor, in every entry.

        The bits of the entries, not the dtype, show how they were rounded, because a file may hold bf16 numbers as F32.
        """
        least, most, digits = np.inf, 0.0, 0
        for block in self._blocks():
            cos, sin = (to_double(part, self.dtype) for part in block)
            squares = cos * cos + sin * sin
            least, most = min(least, float(squares.min())), max(most, float(squares.max()))
            for values in (cos, sin):
                digits |= int(np.bitwise_or.reduce(values.view(np.uint64), axis=None)) & (2**52 - 1)
        bits = 53 - ((digits & -digits).bit_length() - 1) if digits else 1
        # Two roundings of cos and of sin spread the sums by up to 8 units of 2^-bits. In F32, a GPU's sine and cosine add a
        # few more.
        rounding = 12 * 2.0 ** -min(max(bits, 8), 24) + 2.0**-18
        if not (least > 0 and np.isfinite(most) and most - least <= rounding * most):
            text = (
                "is not a table of cosines and sines: cos^2 + sin^2 is %g in one place and %g in another, but it must be "
                "1 everywhere, or the square of an attention factor"
            )
            self.refuse(text, least, most)

    def _turns(self, rows):
        """Whether each of these rows [.., columns] of the parts rotates anything."""
        values = [to_double(part, self.dtype) for part in rows]
        wrong = values[0] != 0 if self.is_angle else (values[1] != 0) | (values[0] <= 0)
        return wrong.any(axis=-1)

    def _check_origins(self):
        """Checks that position 0 rotates nothing.

        If the rows belong to tokens, tensors of indices and ranks determine which tokens are at position 0.
        """
        call, reading = self.call, self.reading
        is_known = call.given or (call.options.cp_size or 1) > 1
        for axis in range(reading.axes):
            for b in range(reading.batch):
                rows = [part[axis, b] for part in self.arrays]
                if not self.by_token:
                    if self._turns([part[0] for part in rows]):
                        self._refuse_origin(0)
                elif is_known:
                    origins = call.is_origin.reshape(call.batch, call.tokens)
                    tokens = np.flatnonzero(origins[b] if reading.batch > 1 else origins.any(axis=0))
                    wrong = tokens[self._turns([part[tokens] for part in rows])]
                    if wrong.size:
                        self._refuse_origin(int(wrong[0]))

    def _refuse_origin(self, row):
        needed = "angles of 0" if self.is_angle else "sin 0 and a positive cos"
        why = (
            "the rows may begin at another position"
            if self.is_angle
            else "cos and sin may be exchanged, or the rows may begin at another position"
        )
        is_of_tokens = not self.by_token and self.reading.rows == self.call.tokens
        more = ", or belong to tokens (--table-rows tokens)" if is_of_tokens else ""
        self.refuse("must have %s in row %d, which belongs to position 0: %s%s", needed, row, why, more)

    # -- Columns --

    def signs(self):
        """Returns (halves, neighbours, all): whether these columns are equal in every row, within each window."""
        windows = self.call.options.windows
        if self.columns % (2 * windows):
            return False, False, False
        width = self.columns // windows
        halves = neighbours = every = True
        for block in self._blocks():
            for part in block:
                part = np.ascontiguousarray(part)
                bits = part.view(BITS[part.itemsize]).reshape(-1, windows, width)
                halves = halves and np.array_equal(bits[..., : width // 2], bits[..., width // 2 :])
                neighbours = neighbours and np.array_equal(bits[..., ::2], bits[..., 1::2])
                every = every and np.array_equal(bits[..., 1:], bits[..., :-1])
        return halves, neighbours, every
