#!/usr/bin/env python3
"""Compares two builds of the library with `trope bench`.

    interleave.py TROPE OLD_FOLDER NEW_FOLDER [--rounds 3] [--lose 0.01] [-- BENCH_OPTION ...]

TROPE is the program `trope`, which must find libtrope.so.0 by LD_LIBRARY_PATH. Each FOLDER contains a library. Each round
runs both builds. Prints every case whose median ratio to a copy differs by more than --lose, the greatest loss first, and ends with
status 1 if any case loses more than that.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile


def run(program, folder, options):
    """Runs the bench once and returns the ratio of each case."""
    path = f"{pathlib.Path(folder).resolve()}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}"
    with tempfile.TemporaryDirectory() as scratch:
        result = pathlib.Path(scratch, "result.json")
        done = subprocess.run(
            [program, "bench", *options, "--save", str(result)],
            env=dict(os.environ, LD_LIBRARY_PATH=path.rstrip(os.pathsep)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{folder}: status {done.returncode}\n{done.stdout[-2000:]}")
        rows = json.loads(result.read_text())["cases"]
    return {f"{row['case']}/{row['dtype']}": row["ratio"] for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lose", type=float, default=0.01)
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    if arguments.rounds < 1 or not arguments.lose >= 0:
        parser.error("--rounds must be at least 1, and --lose at least 0")
    runs = {arguments.old: [], arguments.new: []}
    if len(runs) < 2:
        parser.error("OLD_FOLDER and NEW_FOLDER must differ")
    for _ in range(arguments.rounds):
        for folder, ratios in runs.items():
            ratios.append(run(arguments.program, folder, options))
    rows = []
    for case in runs[arguments.old][0]:
        old, new = (statistics.median(ratios[case] for ratios in runs[folder]) for folder in (arguments.old, arguments.new))
        rows.append((new - old, case, old, new))
    rows.sort()
    for change, case, old, new in rows:
        if abs(change) > arguments.lose:
            print(f"{change:+.3f}  {old:.3f} -> {new:.3f}  {case}")
    lost = sum(row[0] < -arguments.lose for row in rows)
    won = sum(row[0] > arguments.lose for row in rows)
    print(f"{len(rows)} cases, median of {arguments.rounds}: {lost} lose more than {arguments.lose}, {won} win more")
    sys.exit(lost > 0)


main()
