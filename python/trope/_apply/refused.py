"""One line on standard error for everything that is refused."""

import re


class Refused(Exception):
    """What the command cannot do. str() is the line, without the name of the command."""


def refuse(text, *values):
    raise Refused(clean(text % values if values else text))


def refuse_file(path, text, *values):
    """A refusal because of a file."""
    raise Refused("%s: %s" % (clean(path, keep=True), clean(text % values if values else text)))


def refuse_tensor(path, name, text, *values):
    """A refusal because of a tensor in a file."""
    refuse_file(path, "tensor '%s': %s", shorten(name), text % values if values else text)


def shorten(name):
    """A name of 64 characters at most: a file may hold any name."""
    return name[:64]


def clean(text, keep=False):
    """The text without characters that end or disturb a line. `keep`: with those beyond ASCII, which a path may have."""
    return re.sub(r"[\x00-\x1f\x7f]" if keep else r"[^\x20-\x7e]", "?", text)


# ---- The words of the library ----

_OPTIONS = {
    "axis_sections": "--axis-sections", "cp_layout": "--cp-layout", "cp_rank": "--cp-rank", "cp_size": "--cp-size",
    "inverse": "--inverse", "isa": "--isa", "layer_type": "--layer-type", "layout": "--layout", "mscale": "--mscale",
    "out_of_range": "--out-of-range", "padding": "--padding", "pair_axis": "--axis-map", "pairing": "--pairing",
    "pairing_out": "--pairing-out", "parts": "--windows", "rotary_dim": "--rotary-dim", "rotary_offset": "--rotary-offset",
    "rounding": "--rounding", "sections": "--axis-sections", "seq_len": "--seq-len",
    "stream_positions": "--packed-positions", "threads": "--threads",
}  # fmt: skip


def option_words(text):
    """A message of the library with options for arguments: a word with a value behind it, or in the first place."""

    def option(match):
        word, behind = match.groups()
        is_argument = match.start() == 0 or "_" in word or behind
        return (_OPTIONS[word] if is_argument else word) + behind

    return re.sub(r"(?<![\w'-])(%s)\b( \(|)" % "|".join(sorted(_OPTIONS, key=len, reverse=True)), option, text)
