"""python -m trope COMMAND. The program `trope` of an installed package does the same."""

import os
import signal
import sys
import traceback

from . import __version__, info
from ._apply.refused import REFUSED, clean, tell

_USAGE = """\
usage: python -m trope COMMAND [OPTION...]

  apply   rotate the tensors of a safetensors file, or compare the results with another file
  bench   in the C program trope only: time each case and a copy of the same bytes
  check   in the C program trope only: check values and gradients for a shape
  info    print version, backends, instruction sets, threads and devices

'python -m trope COMMAND --help' or 'python -m trope help COMMAND' lists the options of a command; --version prints the
version. Exit status: 0 success, 1 a comparison found a difference, 2 refused or failed, with one line on standard error.
"""
_IN_C = """\
trope %s: is in the C program trope, which the Python package does not contain: build/tools/trope in a clone, or \
PREFIX/bin/trope after 'cmake --install build --prefix PREFIX'"""


def _refuse(text):
    tell(clean(text))
    return REFUSED


def _apply(argv):
    try:
        from ._apply.command import main
    except ImportError as error:
        return _refuse("trope apply: needs NumPy: pip install numpy (%s)" % error)
    sys.stdout.reconfigure(errors="backslashreplace")  # a tensor's name may have characters that the encoding lacks
    return main(argv)


def _info(argv):
    is_help = argv in (["--help"], ["-h"])
    if argv and not is_help:
        return _refuse("trope info: takes no arguments, got '%.64s'" % argv[0])
    print("usage: python -m trope info" if is_help else info().rstrip("\n"))
    return 0


_COMMANDS = {"apply": _apply, "info": _info}


def _run(argv):
    if not argv:
        return _refuse("trope: a command is missing; 'python -m trope --help' lists them")
    word, *rest = argv
    is_help, is_version = word in ("--help", "-h", "help"), word == "--version"
    if len(rest) > 1 and is_help or rest and is_version:
        takes = "one command" if is_help else "no arguments"
        return _refuse("trope: %s: takes %s, got '%.64s'" % (word, takes, rest[-1]))
    if is_version or is_help and not rest:
        print("trope %s\n" % __version__ if is_version else _USAGE, end="")
        return 0
    if is_help:
        word, rest = rest[0], ["--help"]
    if word in ("bench", "check"):
        return _refuse(_IN_C % word)
    if word not in _COMMANDS:
        return _refuse("trope: '%.64s' is not a command; 'python -m trope --help' lists them" % word)
    return _COMMANDS[word](rest)


def _open_closed_streams():
    """Opens each closed standard stream in the mode in which it cannot be used. Python has None instead of it. A file that
    is opened later would get its number, and receive text that the C library prints."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)
            setattr(sys, name, open(descriptor, "w" if number else "r"))


def run_program(run):
    """Runs a program, and returns its exit status: that of run(), or 2 if it raises or its standard output is lost."""
    _open_closed_streams()
    try:
        try:
            status = run()
        except SystemExit as end:  # of argparse
            status = end.code
        if status != REFUSED:
            sys.stdout.flush()
    except OSError as error:  # of standard output: a file that cannot be used is refused by its name
        status = _refuse("trope: cannot write to standard output: %s" % error.strerror)
    except Exception:
        tell(traceback.format_exc(), end="")
        status = REFUSED
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # Python would flush the stream again when it ends, and change the status
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def main():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the signal then ends the program, as other signals do
    return run_program(lambda: _run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
