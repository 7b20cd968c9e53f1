"""Prints tables of ratios to a copy, as Markdown.

    python3 bench/tables.py RESULT.json [DTYPE]
    python3 bench/tables.py --summary RESULT.json

The first command prints every case of `trope bench --device cuda`, by default for bf16. Cases are named SHAPE-sTOKENS-SOURCE:
each line is a shape in one size, each column a source of positions and angles. A ratio that misses its goal is bold, with the
goal in brackets.

The second command prints the lowest ratio and the median: of forward calls for each size, shape and source, of backward
calls for each shape. For a result of bench/compare.py, it prints the ratios of trope and of the fastest other library in each
case.
"""

import json
import re
import statistics
import sys

MB = 10**6
NAME = r"(.*)-s(\d+)-(.*)"
COLUMNS = ["tokens", "freqs", "freqs-full", "ids", "mrope", "thd", "thd-freqs", "padded"]
SIZES = [(128, "from 128 MB"), (16.5, "16.5 to 128 MB"), (0, "below 16.5 MB")]
SUMMARIZED_AS = {"steps": "tokens", "rank": "tokens", "starts": "thd", "k-pe-in": "h", "norm-qkv": "norm"}  # have few cases


def is_missed(case):
    return case["ratio"] < case.get("at_least", 0)


def cell(case):
    return "**%.3f** (%.2f)" % (case["ratio"], case["at_least"]) if is_missed(case) else "%.3f" % case["ratio"]


def parts_of(case):
    """Returns (shape, tokens, source) of a case's name."""
    return re.fullmatch(NAME, case["case"]).groups()


def print_cases(cases):
    table = {}
    for case in cases:
        shape, tokens, source = parts_of(case)
        table.setdefault((shape, tokens), {})[source] = case
    print("| shape | tokens | MB | " + " | ".join(COLUMNS) + " | others |")
    print("|---|---|---|" + "---|" * (len(COLUMNS) + 1))
    for (shape, tokens), found in table.items():
        size = next(iter(found.values()))["bytes"] / MB
        others = ["%s %s" % (source, cell(case)) for source, case in found.items() if source not in COLUMNS]
        cells = [cell(found[source]) if source in found else "" for source in COLUMNS]
        print("| %s | %s | %.0f | %s | %s |" % (shape, tokens, size, " | ".join(cells), "; ".join(others)))


def groups_of(case):
    """Returns the lines of the summary that count this case: (order, name) of each. Backward calls have one line per
    shape."""
    shape, _, source = parts_of(case)
    shape, source = re.match(r"[a-z-]+?(?=-\d|$)", shape)[0], source.split("-")[0]
    shape, source = SUMMARIZED_AS.get(shape, shape), SUMMARIZED_AS.get(source, source)
    if case["direction"] == "bwd":
        yield len(SIZES) + 1, shape + ", backward"
        return
    size = next(i for i, (least, _) in enumerate(SIZES) if case["bytes"] >= least * MB)
    yield size, SIZES[size][1]
    yield len(SIZES), shape
    yield len(SIZES) + 2, source


def print_summary(cases):
    groups = {}
    for case in cases:
        for group in groups_of(case):
            groups.setdefault(group, []).append(case["ratio"])
    print("| | lowest | median |\n|---|---|---|")
    for (_, name), ratios in sorted(groups.items(), key=lambda item: item[0][0]):
        print("| %s | %.2f | %.2f |" % (name, min(ratios), statistics.median(ratios)))


def print_comparison(cases):
    best = {}  # [case][direction, whether it is trope]: (ratio, library)
    for case in cases:
        if case.get("ratio"):
            fastest, key = best.setdefault(case["case"], {}), (case["direction"], case["library"] == "trope")
            fastest[key] = max(fastest.get(key, (0, "")), (case["ratio"], case["library"]))
    print("| | trope | other | trope, backward | other |\n|---|---|---|---|---|")
    for name, fastest in best.items():
        cells = [
            "%.2f" % fastest[direction, True][0] + " | %.2f %s" % fastest[direction, False]
            for direction in ("forward", "backward")
        ]
        print("| %s | %s |" % (name, " | ".join(cells)))


def main():
    summary = sys.argv[1:2] == ["--summary"]
    arguments = sys.argv[1 + summary :]
    if not 1 <= len(arguments) <= 2 - summary:
        sys.exit(__doc__)
    with open(arguments[0]) as file:
        cases = json.load(file)["cases"]
    if summary and any("way" in case for case in cases):
        print_comparison(cases)
        return
    dtype = None if summary else (arguments + ["bf16"])[1]
    cases = [case for case in cases if re.fullmatch(NAME, case["case"]) and dtype in (None, case["dtype"])]
    if not cases:
        sys.exit("%s has no such case" % arguments[0])
    (print_summary if summary else print_cases)(cases)


main()
