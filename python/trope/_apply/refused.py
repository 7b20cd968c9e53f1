"""Refusals: the command prints one line on standard error for each."""

import contextlib
import re
import sys

OK, DIFFERS, REFUSED = 0, 1, 2  # exit statuses


class Refused(Exception):
    """An input that the command refuses. str() is the line, without the name of the command."""


def tell(text, end="\n"):
    """Prints on standard error. Text that cannot be written is lost, and does not affect files and the exit status."""
    with contextlib.suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def refuse(text, *values):
    raise Refused(clean(text % values if values else text))


def refuse_file(path, text, *values):
    """Raises a refusal because of a file."""
    raise Refused("%s: %s" % (clean(path, keep=True), clean(text % values if values else text)))


def refuse_tensor(path, name, text, *values):
    """Raises a refusal because of a tensor in a file."""
    refuse_file(path, "tensor '%s': %s", shorten(name), text % values if values else text)


def shorten(name):
    """Shortens a name to 64 characters, because a file may hold any name."""
    return name[:64]


def clean(text, keep=False):
    """Removes characters that would end or disturb a line. With keep, characters beyond ASCII stay, for paths."""
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
    """Replaces arguments in a message of the library by options: a word at the start, or a word with a value after it."""

    def option(match):
        word, behind = match.groups()
        is_argument = match.start() == 0 or "_" in word or behind
        return (_OPTIONS[word] if is_argument else word) + behind

    return re.sub(r"(?<![\w'-])(%s)\b( \(|)" % "|".join(sorted(_OPTIONS, key=len, reverse=True)), option, text)
