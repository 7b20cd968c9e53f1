"""Checks that are counted, and reported if they fail: the Python version of tests/support/check.h."""

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


def finish():
    print("%d checks passed, %d failed" % (passed, failed))
    sys.exit(1 if failed or not passed else 0)
