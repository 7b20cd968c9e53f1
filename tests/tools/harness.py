"""Runs the tool and counts checks. A script ends with harness.finish()."""

import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from checks import check, check_streams, finish  # noqa: E402, F401

if len(sys.argv) != 2:
    sys.exit("usage: %s TROPE" % sys.argv[0])
TOOL = sys.argv[1]
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these tests use the CPU; tests/cuda/commands.c uses the GPU


def run(*arguments, **options):
    """Runs the tool. Returns the finished process, with text in stdout and stderr."""
    return subprocess.run([TOOL] + [str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, timeout=500, **options)


def folder():
    """Returns a new folder that is removed at the end of a with statement."""
    return tempfile.TemporaryDirectory(prefix="trope-tools-")


def files(path):
    return sorted(os.listdir(path))
