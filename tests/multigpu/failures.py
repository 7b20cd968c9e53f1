"""A rank that dies, hangs or has no device ends the whole run soon, with a message that names the rank. This holds for each
rank that FAILING lists, and for all ways to start the ranks."""

import concurrent.futures
import itertools
import os

from program import DEVICE, RANKS, check, finish, launches, run

LIMIT = 60  # seconds in which a run must end after any failure
TIMEOUT = int(os.environ.get("TROPE_MULTIGPU_TIMEOUT", "3"))  # seconds without progress that count as a hang
# The ranks that fail, one in each run.
FAILING = sorted({int(rank) for rank in os.environ.get("TROPE_MULTIGPU_FAILING", "0 %d" % (RANKS - 1)).split()})
WORDS = {"die": "died", "hang": "hangs", "no-device": "has no device"}


def run_failure(kind, rank, way):
    return run(way, "--only", "cp/zigzag-dense/bf16", "--bytes", 0, "--timeout", TIMEOUT, "--fail",
               "%s@%d" % (kind, rank), timeout=2 * LIMIT)


def check_failure(result, kind, rank, way):
    what = (way, kind, rank, result.status, result.err[-1000:])
    lines = [line for line in result.err.splitlines() if line.startswith("trope_multigpu: ")]
    check(result.status != 0, "the exit status is not 0", *what)
    check(result.seconds < LIMIT, "the run ends within a minute, not %.0f s" % result.seconds, *what)
    check(lines and all("rank %d" % rank in line and WORDS[kind] in line for line in lines), "the message names the rank",
          *what)
    check("cases hold" not in result.out, "no verdict is printed", *what)


def main():
    failures = list(itertools.product(WORDS, FAILING, launches()))
    # Ranks mostly wait here, so on the CPU three runs can share the time.
    with concurrent.futures.ThreadPoolExecutor(3 if DEVICE == "cpu" else 1) as pool:
        for result, failure in zip(pool.map(run_failure, *zip(*failures)), failures):
            check_failure(result, *failure)


main()
finish()
