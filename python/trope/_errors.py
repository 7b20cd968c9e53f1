"""The exception of this package, and the translation of the C library's messages into the words of a Python caller."""

import re


class Error(ValueError):
    """A call that trope refuses. Nothing has been written.

    str() names the argument, its value and the rule. `argument` is the name of the argument as the caller wrote it
    ("freqs", "tensors[1]", or "" if no argument is wrong). `status` is the status of the C library ("TROPE_ERROR_ARGUMENT",
    "TROPE_ERROR_DATA", ...).
    """

    __module__ = __package__

    @property
    def argument(self):
        return self.args[1] if len(self.args) > 1 else ""

    @property
    def status(self):
        return self.args[2] if len(self.args) > 2 else "TROPE_ERROR_ARGUMENT"

    def __str__(self):
        return str(self.args[0]) if self.args else ""

    def renamed(self, names):
        """Returns the same error with other names of arguments. `names` maps our names to others: {"tensors[0]": "q"}."""
        pattern = "|".join(r"(?<![\w.])%s(?![\w])" % re.escape(name) for name in sorted(names, key=len, reverse=True))
        message = re.sub(pattern, lambda match: names[match.group()], str(self))
        return Error(message, names.get(self.argument, self.argument), self.status)


def closest(name, known):
    """Returns the known name that is closest to `name`, or None if none is close."""
    import difflib  # here, because it is rarely needed

    return next(iter(difflib.get_close_matches(name, known, 1)), None)


def refuse_unknown(given, known, function):
    """Raises an Error about the first keyword in `given` that is not in `known`, with the closest known name."""
    name = next(name for name in given if name not in known)
    close = closest(name, known)
    hint = "did you mean %s?" % close if close else "help(%s) lists them" % function
    raise Error("%s has no argument %s: %s" % (function, name, hint), name)


# ---- The words of the C library ----

# Fields of trope_args that describe an array or a property of it, by the arrays that they describe.
_FIELDS = {
    "batch": "tensors[0]",
    "tokens": "tensors[0]",
    "operand_count": "tensors",
    "operands": "tensors",
    "ids_stride": "position_ids",
    "ids_layout": "position_ids",
    "position_axes": "position_ids",
    "sequences": "cu_seqlens",
    "d_freqs_stride": "d_freqs",
    "d_freqs_layout": "d_freqs",
    "phase_step": "inv_freq",
    "angle_rows": "{table}",
    "angle_stride": "{table}",
    "angle_layout": "{table}",
    "angle_dtype": "{table}",
}
# The names of the tensors of operands[i] in Python. In place, all of them are tensors[i].
NAMES = {"src": "tensors[%d]", "dst": "out[%d]", "forward_src": "forward_src[%d]"}
_OPERAND = re.compile(r"operands\[(\d+)\](?:\.(\w+))?(?:\[\d+\])?")


def _name_operand(match, in_place):
    """Translates operands[i].field to Python: (the argument, its name in a text)."""
    i, field = int(match[1]), match[2] or "src"
    tensor, _, property_name = field.rpartition("_")
    if property_name not in ("stride", "layout"):
        tensor = field
    if tensor not in NAMES:
        return field, "%s of tensors[%d]" % (field, i)
    name = "tensors[%d]" % i if in_place(i) else NAMES[tensor] % i
    return name, "the strides of " + name if property_name == "stride" else name


def from_library(message, argument, status, words, table, in_place):
    """Returns the Error for a message of the C library.

    Arguments:
        message: the text of trope_last_error, "function: argument (value) must ...".
        argument: the text of trope_last_error_argument.
        words: {name: value} for each field whose values have names.
        table: the name of the call's table, "freqs" or "cos".
        in_place: in_place(i) tells whether tensors[i] is rotated in place.
    """
    text = message.partition(": ")[2] or message
    text, argument = (re.sub(r"\bnorms\[(\d+)\]\.d_weight\b", r"d_weights[\1]", each) for each in (text, argument))
    named = _OPERAND.match(argument)
    field = argument.partition("[")[0]
    if named:
        argument = _name_operand(named, in_place)[0]
    elif not argument.startswith(("norms[", "d_weights[")):  # these are Python's words already
        argument = _FIELDS.get(field, field).format(table=table)

    def value(match):
        word = next((word for word, number in words[match[1]].items() if number == int(match[2])), None)
        return "%s (%s)" % (match[1], "not given" if word is None else repr(word))

    text = re.sub(r"\b(%s) \((\d+)\)" % "|".join(words), value, text)
    text = _OPERAND.sub(lambda match: _name_operand(match, in_place)[1], text)
    # The library's numbers for these fields are not the caller's values.
    text = re.sub(r"\b((?:shared_heads|accumulate) of tensors\[\d+\]) \(\d\) must be 0", r"\1 must not be given", text)
    text = re.sub(r"\bangle_rows - 1 \((-?\d+)\)", r"\1, the last row of %s" % table, text)
    text = re.sub(r"\bangle_rows\b", "the number of rows of %s" % table, text)
    text = re.sub(r"\b(?:angle|d_freqs|ids)_stride\[\d\] \((-?\d+)\)", r"a stride of %s (\1)" % argument, text)
    text = re.sub(r"\b(?:angle|d_freqs|ids)_stride\b", "the strides of %s" % argument, text)
    text = re.sub(r"\bposition_axes\b", "the number of axes of position_ids", text)
    text = re.sub(r"\bsequences \(", "the number of sequences in cu_seqlens (", text)
    text = re.sub(r"\bangle_dtype\b", "the dtype of %s" % table, text)
    text = re.sub(r"\boperand_count\b", "the number of tensors", text)
    text = re.sub(r"\boperands?\b", "tensors", text)
    text = re.sub(r"\bTROPE_COPY(?: \(-1\))?", "trope.COPY (-1)", text)
    text = text.replace("NULL", "None").replace("src and dst", "input and result").replace("dst", "the result")
    return Error(text, argument, status)
