"""python -m trope COMMAND. The only command is apply."""

import os
import signal
import sys

_USAGE = """\
usage: python -m trope apply IN.safetensors [-o OUT.safetensors] [--expect FILE.safetensors] [OPTION...]

  apply   rotate the tensors of a safetensors file, or compare the results with another file

'python -m trope apply --help' lists the options. The program trope, which is built with the library, has the other commands.
"""


def _run(argv):
    if argv in (["--help"], ["-h"], ["help"]):
        print(_USAGE, end="")
        return 0
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv[:1] != ["apply"]:
        what = "'%.64s' is not a command" % argv[0] if argv else "a command is missing"
        print("trope: %s; 'python -m trope --help' lists them" % what, file=sys.stderr)
        return 2
    try:
        from ._apply.command import main
    except ImportError as error:
        print("trope apply: needs NumPy: pip install numpy (%s)" % error, file=sys.stderr)
        return 2
    return main(argv[1:])


def _main():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the signal then ends the program, as other signals do
    status = _run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        if status != 2:
            print("trope: cannot write to standard output", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 2
    return status


if __name__ == "__main__":
    sys.exit(_main())
