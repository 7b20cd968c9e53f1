"""A deliberate mistake is detected and named in every case in which a rank can make it. All other cases still have the
right results.

    breaks.py PROGRAM MPIRUN

TROPE_MULTIGPU_BREAK names the mistake. Each word of TROPE_MULTIGPU_ONLY selects cases that are tested. Without this
variable, all cases in bf16 are tested.
"""

import os

from program import check, finish, run

MISTAKE = os.environ["TROPE_MULTIGPU_BREAK"]
ONLY = os.environ.get("TROPE_MULTIGPU_ONLY", "/bf16").split()
WAY = os.environ.get("TROPE_MULTIGPU_WAY", "threads")
# With some layouts, these two mistakes give the same bits. The program then names both.
TWINS = {"local": {"rank"}, "rank": {"local"}}


def named(case):
    if MISTAKE == "bit":  # not the mistake of a rank: the program names the place
        return not case["causes"] and "1 wrong, first in" in case["cause"] and "unknown: rank" in case["cause"]
    if MISTAKE == "reduce":  # the program names the kind of ranks over which the sum is missing
        kind = ("context" if case["cp"] > 1 else
                "tensor" if case["tp"] > 1 and not case["variant"].endswith("-token") else "data")
        return case["cause"] == "reduce: d_weight is not added over the %s parallel ranks" % kind
    others = set(case["causes"]) - {MISTAKE}
    return MISTAKE in case["causes"] and case["cause"].find(MISTAKE + ":") >= 0 and others <= TWINS.get(MISTAKE, set())


def main():
    only = [word for text in ONLY for word in ("--only", text)]
    result = run(WAY, "--break", MISTAKE, *only, "--bytes", 0, "--json")
    check(result.status == 1, "exit status", result.status, result.err)
    cases = result.json()["cases"]
    broken = [case for case in cases if case["is_broken"]]
    check(len(broken) >= (10 if ONLY == ["/bf16"] else 1), "cases with the mistake:", len(broken))
    for case in cases:
        name = "%s/%s: %s" % (case["split"], case["variant"], case["cause"])
        if case["is_broken"]:
            check(not case["ok"], "mistake not detected:", name)
            check(named(case), "mistake not named:", name)
        else:
            check(case["ok"], "wrong without a mistake:", name)
    print("%s: in %d of %d cases a rank can make this mistake" % (MISTAKE, len(broken), len(cases)))


main()
finish()
