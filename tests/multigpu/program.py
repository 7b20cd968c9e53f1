"""Starts trope_multigpu in all possible ways, and counts checks. The arguments of a script are the program and mpirun (or
"none"). A script ends with program.finish(). The program runs on GPUs if TROPE_MULTIGPU_DEVICE=cuda, otherwise on the CPU.
"""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from checks import check, check_streams, finish  # noqa: E402, F401

if len(sys.argv) != 3:
    sys.exit("usage: %s TROPE_MULTIGPU MPIRUN" % sys.argv[0])
PROGRAM = sys.argv[1]
MPIRUN = sys.argv[2] if sys.argv[2] != "none" else None
DEVICE = os.environ.get("TROPE_MULTIGPU_DEVICE", "cpu")
RANKS = int(os.environ.get("TROPE_MULTIGPU_RANKS", "4"))
LIKE_TORCHRUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "like_torchrun")
# Open MPI refuses to run as root without these variables, and to run more ranks than processors without --oversubscribe.
os.environ["OMPI_ALLOW_RUN_AS_ROOT"] = os.environ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"


def launches():
    """Returns {name: the command without options} for the ways to start the program that work here."""
    ways = {"threads": [PROGRAM, "--ranks", str(RANKS)], "torchrun": [LIKE_TORCHRUN, str(RANKS), PROGRAM]}
    if MPIRUN:
        ways["mpi"] = [MPIRUN, "--oversubscribe", "-n", str(RANKS), PROGRAM]
    return ways


class Result:
    def __init__(self, words, timeout, environment=None):
        begin = time.monotonic()
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                              timeout=timeout, env=environment)
        self.seconds = time.monotonic() - begin
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    def json(self):
        return json.loads(self.out)


def run(way, *options, timeout=600):
    return Result(launches()[way] + ["--device", DEVICE] + [str(o) for o in options], timeout)
