"""The options of the command: their names, their values, and how they are read."""

import argparse
import math
import re

from .._abi import AXIS_ORDERS, MAX_AXES, MAX_ROTARY_DIM, PAIRINGS, WORDS
from .refused import Refused, refuse

INT32, INT64 = 2**31 - 1, 2**63 - 1
LAYOUTS = ("sbhd", "bshd", "bhsd", "thd")
ISAS = {"auto": 0, "portable": 1, "avx2": 2, "avx512": 3, "neon": 4}  # TROPE_ISA_... of include/trope/trope.h

_DESCRIPTION = """\
Rotates the tensors q, k and x of a safetensors file and copies all others. Writes the results to OUT, or compares q, k, x
and v with FILE, or both. Exit status: 0; 1 if an element is more than --ulp apart; 2, without OUT, if anything is refused.
A call that options and data do not determine is refused. How the tensors were read goes to standard error. For all rules,
see docs/command-line.md.

  q, k, x, v          F64, F32, F16 or BF16, 4 dims in the order of --layout, 3 for thd. A name may have a prefix
                      (model.layers.3.q); each prefix is one call
  freqs               or cos and sin, freqs_cis (complex), cos_sin_cache: rows and columns, with batch or axes in front; see
                      --table-layout. inv_freq: [rotary_dim / 2]. Without any of them: --rope-theta and --scaling
  cu_seqlens          and cu_seqlens_padded: [sequences + 1]. start_positions: [sequences], or [batch]
  position_ids        [tokens], [batch, tokens] or [axes, batch, tokens]

--rotary-dim is inferred from inv_freq or the columns of a table. With --rope-theta, it is all from --rotary-offset on."""

# Names of the options in other programs and in config files.
_OTHER_NAMES = {
    "base": "--rope-theta", "theta": "--rope-theta", "rotary-base": "--rope-theta", "rope-base": "--rope-theta",
    "rotary-emb-base": "--rope-theta", "rope-scaling": "--scaling", "rope-type": "--scaling",
    "rope-parameters": "--scaling", "rope-factor": "--scaling RULE:factor=...", "factor": "--scaling RULE:factor=...",
    "rotary-percent": "--partial-rotary-factor", "rotary-pct": "--partial-rotary-factor",
    "qk-rope-head-dim": "--rotary-dim", "interleaved": "--pairing interleaved",
    "rotary-interleaved": "--pairing interleaved", "neox-style": "--pairing half", "is-neox": "--pairing half",
    "tensor-format": "--layout", "qkv-format": "--layout", "mrope-section": "--axis-sections",
    "mrope-interleaved": "--axis-map interleaved", "context-parallel-size": "--cp-size",
    "context-parallel-rank": "--cp-rank", "conjugate": "--inverse", "attention-scaling": "--mscale",
    "attention-factor": "--mscale", "rtol": "--ulp", "atol": "--ulp", "out": "--output", "reference": "--expect",
}  # fmt: skip


# ---- Strict conversion of text ----


def _whole(low, high):
    def read(text):
        if not re.fullmatch(r"[+-]?\d+", text, re.ASCII) or not -(2**63) <= int(text) <= INT64:
            raise argparse.ArgumentTypeError("'%.64s' is not a whole number of 64 bits" % text)
        if not low <= int(text) <= high:
            raise argparse.ArgumentTypeError("%s must be in [%d, %d]" % (text, low, high))
        return int(text)

    return read


def read_number(text):
    """Returns a finite number, or None if the text is not one."""
    is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII)
    return float(text) if is_number and math.isfinite(float(text)) else None


def _nonzero(text):
    value = read_number(text)
    if value is None:
        raise argparse.ArgumentTypeError("'%.64s' is not a finite number" % text)
    if value == 0:
        raise argparse.ArgumentTypeError("must not be 0")
    return value


def _choice(*words):
    def read(text):
        if text not in words:
            raise argparse.ArgumentTypeError("'%.64s' is not one of %s" % (text, ", ".join(words)))
        return text

    read.words = words
    return read


def _text(text):
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def _sections(text):
    """Returns the number of pairs of each axis."""
    words = text.split(",")
    if not 3 <= len(words) <= MAX_AXES or not all(re.fullmatch(r"\d{1,18}", word, re.ASCII) for word in words):
        raise argparse.ArgumentTypeError("'%.64s' is not a list of 3 or 4 whole numbers, such as 16,24,24" % text)
    if max(map(int, words)) > MAX_ROTARY_DIM:
        raise argparse.ArgumentTypeError("a section must be at most %d" % MAX_ROTARY_DIM)
    return tuple(map(int, words))


def _name(text):
    """Returns (role, name) for "q=layer.0.query"."""
    role, equals, name = text.partition("=")
    if not role or not name:
        raise argparse.ArgumentTypeError("'%.64s' is not ROLE=NAME, such as q=layer.0.query" % text)
    return role, name


# ---- The options ----

FLAG = None
OPTIONS = [
    ("output", _text, "the file to write, or - for standard output"),
    ("expect", _text, "a file with results to compare with"),
    ("ulp", _whole(0, INT64), "largest distance of equal elements in ulp, default 0"),
    ("config", _text, "a Hugging Face config.json, whose keys set options"),
    ("layer-type", _text, "type of the layers in the file, if --config has several"),
    ("quiet", FLAG, "do not print how the tensors were read"),
    ("backward", FLAG, "q, k, x and v are gradients of the outputs"),
    ("in-place", FLAG, "let the call overwrite its input"),
    ("name", _name, "ROLE=NAME: the role of a tensor; copy=NAME only copies it. May be given several times"),
    ("head-dim", _whole(1, INT32), "elements of a head, if the last dim holds all heads"),
    (
        "columns",
        _choice("pair", "half", "interleaved"),
        "columns of a table: one for each pair, or one for each element in the order of a pairing",
    ),
    ("table-layout", _choice("sd", "bsd", "sbd", "asd", "absd"), "dims of a table: a axes, b batch, s rows, d columns"),
    ("table-rows", _choice("positions", "tokens"), "what the rows of a table belong to"),
    ("layout", _choice(*LAYOUTS), "order of the dimensions, outermost first"),
    ("pairing", _choice(*PAIRINGS), "pairing of the forward call's input"),
    ("pairing-out", _choice(*PAIRINGS), "pairing of its output, default that of the input"),
    ("rotary-dim", _whole(0, INT32), "number of elements of a head that rotate"),
    ("partial-rotary-factor", _nonzero, "the same, as a fraction of head_dim"),
    ("rotary-offset", _whole(-INT32, INT32), "first element that rotates; negative values count from the end of the head"),
    ("windows", _whole(1, MAX_AXES), "number of equal parts of the rotated elements; each pair lies in one part"),
    ("inverse", FLAG, "rotate by the negative angles"),
    ("rounding", _choice("once", "native", "native-f32"), "default once"),
    ("mscale", _nonzero, "factor of cos and sin, default: that of the --scaling rule, or 1"),
    ("rope-theta", _nonzero, "base of the frequencies"),
    ("seq-len", _whole(1, INT64), "current sequence length, for --scaling dynamic and longrope"),
    ("scaling", _text, "RULE:key=value,... with the keys of a config.json: llama3:factor=8,..."),
    ("axis-map", _choice(*AXIS_ORDERS), "which position axis drives each pair"),
    ("axis-sections", _sections, "pairs of each axis, A,B,C or A,B,C,D"),
    ("out-of-range", _choice(*WORDS["out_of_range"]), "what to do with positions outside the table (default: refuse)"),
    ("padding", _choice(*WORDS["padding"]), "what is written for tokens that are in no sequence"),
    ("packed-positions", FLAG, "positions count through the whole packed stream"),
    ("cp-size", _whole(1, INT32), "number of context parallel ranks"),
    ("cp-rank", _whole(0, INT32), "context parallel rank that has these tensors"),
    ("cp-layout", _choice(*WORDS["cp_layout"]), "how the tokens of a sequence are split over ranks"),
    ("device", _choice("auto", "cpu", "cuda"), "device of the calls, default cpu; auto: cuda if PyTorch has a device"),
    ("threads", _whole(0, 4096), "CPU threads, 0 = all"),
    ("isa", _choice(*ISAS), "CPU instruction set"),
]
_KINDS = {name: kind for name, kind, _ in OPTIONS}


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        refuse("%s", message.removeprefix("argument ").replace("-o/--output", "--output"))


class _Once(argparse.Action):
    def __call__(self, parser, options, value, option_string=None):
        if getattr(options, self.dest) is not None:
            refuse("%s: is given twice", self.option_strings[-1])
        setattr(options, self.dest, True if self.nargs == 0 else value)


def make_parser():
    parser = _Parser(
        prog="python -m trope apply", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s IN.safetensors [-o OUT.safetensors] [--expect FILE.safetensors] [OPTION...]", allow_abbrev=False,
        add_help=False,
    )  # fmt: skip
    parser.add_argument("inputs", nargs="*", metavar="IN.safetensors", help="the file to read")
    parser.add_argument("-h", "--help", action="store_true", help="print this help")
    for name, kind, text in OPTIONS:
        names = ["-o", "--output"] if name == "output" else ["--" + name]
        if kind is FLAG:
            parser.add_argument(*names, action=_Once, nargs=0, help=text)
        elif name == "name":
            parser.add_argument(*names, action="append", default=[], type=kind, metavar="ROLE=NAME", help=text)
        else:
            words = ": " + ", ".join(kind.words) if hasattr(kind, "words") else ""
            parser.add_argument(*names, action=_Once, type=kind, metavar="X", help=text + words)
    return parser


def _check_word(word):
    """Refuses a word of the command line that looks like an option but is none. Returns the option's name."""
    name = word.partition("=")[0].removeprefix("--")
    if word in ("-h", "--help") or word.startswith("-o") and not word.startswith("--"):
        return "output" if word == "-o" else ""
    if word.startswith("--") and name in _KINDS:
        return name
    ours = name.replace("_", "-")
    if ours in _KINDS:
        refuse("'%.64s' is spelled --%s", word, ours)
    if word.startswith("--") and ours in _OTHER_NAMES:
        refuse("'%.64s' is not an option; its name in trope is %s; --help lists the options", word, _OTHER_NAMES[ours])
    longer = [option for option in _KINDS if word.startswith("--") and name and option.startswith(name)]
    if len(longer) == 1:
        refuse("'%.64s' must be written out: --%s", word, longer[0])
    refuse("'%.64s' is not an option; --help lists them", word)


def _join(argv):
    """Joins each option and its value into one word, so that a value may begin with a dash."""
    words, rest = [], list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return words + [word] + rest
        name = _check_word(word) if word.startswith("-") and word != "-" else ""
        if name and "=" not in word and _KINDS[name] is not FLAG:
            if not rest:
                refuse("'%.64s' needs a value", word)
            word = "--%s=%s" % (name, rest.pop(0))
        words.append(word)
    return words


def read_options(argv):
    """Returns the options as a namespace. Options that are not given are None."""
    try:
        options = make_parser().parse_intermixed_args(_join(map(str, argv)))
    except argparse.ArgumentError as error:
        raise Refused(str(error)) from None
    options.windows = options.windows or 1
    if options.help:
        return options
    if len(options.inputs) != 1:
        refuse("needs one input file, got %d; --help lists the options", len(options.inputs))
    return options


def check_options(options):
    """Refuses options that contradict each other or have no effect, before any file is read."""
    if options.output is None and options.expect is None:
        refuse("needs -o OUT or --expect FILE")
    if options.ulp is not None and options.expect is None:
        refuse("--ulp: has no effect without --expect")
    if options.output == "-" and options.expect is not None:
        refuse("-o -: standard output already receives the comparison of --expect")
    if options.layer_type is not None and options.config is None:
        refuse("--layer-type: has no effect without --config")
    partial = options.partial_rotary_factor
    if partial is not None and options.rotary_dim is not None:
        refuse("--partial-rotary-factor: contradicts --rotary-dim; give one of the two")
    if partial is not None and not 0 < partial <= 1:
        refuse("--partial-rotary-factor: %g must be over 0 and at most 1", partial)
    ranks = [name for name in ("cp_size", "cp_rank", "cp_layout") if getattr(options, name) is None]
    if 0 < len(ranks) < 3:
        missing = "--" + ranks[0].replace("_", "-")
        refuse("%s: is missing: --cp-size, --cp-rank and --cp-layout go together", missing)
