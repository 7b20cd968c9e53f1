"""Checks that are counted, and reported if they fail: the Python version of tests/support/check.h. Also runs programs
whose standard streams are closed or full."""

import json
import os
import subprocess
import sys

passed = failed = 0


def check(holds, *message):
    global passed, failed
    if holds:
        passed += 1
    else:
        failed += 1
        if failed <= 20:
            print("FAILED:", *message)
    return holds


LOST = (">&-", ">/dev/full", ">&- <&-", ">&- 2>&-", ">&- 2>&- <&-", ">/dev/full 2>/dev/full")
KEPT = ("2>&-", "2>/dev/full", "<&-", "2>&- <&-")


def check_streams(command, saved=None):
    """Checks a command that prints and succeeds. If its standard output is lost, it must fail and print at most one line.
    The other streams do not affect its status. saved: the JSON file that the command writes if it succeeds."""
    for streams in (*LOST, *KEPT):
        result = subprocess.run(["sh", "-c", 'exec "$@" ' + streams, "sh", *map(str, command)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, universal_newlines=True, timeout=500)
        is_lost, lines = streams in LOST, result.stderr.count("\n")
        check(result.returncode == (2 if is_lost else 0), command, streams, "status", result.returncode, result.stderr)
        check(lines == (is_lost and "2>" not in streams), command, streams, "prints", result.stderr)
        check(is_lost or result.stdout, command, streams, "prints its results")
        if saved is not None:
            check(os.path.exists(saved) is not is_lost, command, streams, "changes the file only if it succeeds")
        if saved is not None and os.path.exists(saved):
            with open(saved) as file:
                check(json.load(file), command, streams, "saves only JSON")
            os.remove(saved)


def finish():
    print("%d checks passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)
