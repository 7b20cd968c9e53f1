"""Prints tables of ratios to a copy, as Markdown.

    python3 bench/tables.py RESULT.json [DTYPE]
    python3 bench/tables.py --summary RESULT.json
    python3 bench/tables.py --order RESULT.json

The first command prints every case of `trope bench --device cuda`, by default for bf16. Cases are named SHAPE-sTOKENS-SOURCE:
each line is a shape in one size, each column a source of positions and angles. A ratio that misses its goal is bold, with the
goal in brackets.

The second command prints the lowest ratio and the median: of forward calls for each size, shape and source, of backward
calls for each shape. For a result of bench/compare.py, it prints the ratios of trope and of the fastest other library in each
case. For a result of bench/frameworks.py, it prints the time or speed of each program as it comes, and the gain with trope.

The third command prints the calls of programs (real-...) that are below 0.9 of their goal, the worst first.
"""

import json
import re
import statistics
import sys

MB = 10**6
NAME = r"(.*)-s(\d+)-(.*)"
COLUMNS = ["tokens", "freqs", "freqs-full", "ids", "mrope", "thd", "thd-freqs", "padded"]
SIZES = [(128, "from 128 MB"), (16.5, "16.5 to 128 MB"), (0, "below 16.5 MB")]
ENOUGH = 0.9  # of the goal: calls that reach less are in the order
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


def gains(times):
    """Returns the gains in % of trope and of fused norms. The gain is that of the speed."""
    us = {way: of_device for way, (of_device, _) in times.items()}
    percent = {way: 100 * (us["plain"] / us[way] - 1) for way in ("trope", "fused") if way in us}
    return ["%+.*f" % (abs(percent[way]) < 100, percent[way]) if way in percent else "-" for way in ("trope", "fused")]


def print_programs(rows):
    programs = {}  # [name]: the cells of eager code and of compiled code
    sizes = {row["tokens"] for row in rows if row["framework"] == "layers"}
    for row in rows:
        if row["framework"] == "layers":
            name, code = row["case"].split(", ")
            name += " layer" + ", %d tokens" % row["tokens"] * (len(sizes) > 1)
            for direction, words in (("forward", "forward"), ("forward and backward", "with backward")):
                speed = "%.2f M/s" % (row["tokens"] / row[direction]["plain"][0])
                program = "%s, %s" % (name, words)
                programs.setdefault(program, {})[code] = [speed, *gains(row[direction])]
        else:
            times = row["forward and backward"]
            program = "%s: %s" % (row["framework"], row["case"])
            programs[program] = {"eager": ["%.0f us" % times["plain"][0], *gains(times)]}
    print("| program | eager | trope, % | fused norms, % | compiled | trope, % | fused norms, % |")
    print("|---|---|---|---|---|---|---|")
    for program, found in programs.items():
        cells = [cell for code in ("eager", "torch.compile") for cell in found.get(code, ["-"] * 3)]
        while cells[-1] == "-":  # Markdown adds empty cells
            cells.pop()
        print("| %s | %s |" % (program, " | ".join(cells)))


def print_order(cases):
    real = [case for case in cases if case["case"].startswith("real-")]
    order = sorted(real, key=lambda case: case["ratio"] / case.get("at_least", 1))
    order = [case for case in order if case["ratio"] < ENOUGH * case.get("at_least", 0)]
    print("| call | ratio | goal | of the goal | us | copy, us | MB | kernel |\n|---|---|---|---|---|---|---|---|")
    for case in order:
        cells = [case["ratio"], case["at_least"], case["ratio"] / case["at_least"], case["time_us"], case["copy_us"]]
        cells = (case["case"], *cells, case["bytes"] / MB, case["kernel"])
        print("| %s | %.3f | %.2f | %.2f | %.1f | %.1f | %.0f | %s |" % cells)
    goals = sum("at_least" in case for case in real)
    print(
        "\n%d of %d calls are below %.1f of their goal; %d have none" % (len(order), len(real), ENOUGH, len(real) - goals)
    )


def main():
    option = sys.argv[1] if sys.argv[1:2] in (["--summary"], ["--order"]) else None
    arguments = sys.argv[1 + bool(option) :]
    if not 1 <= len(arguments) <= 2 - bool(option):
        sys.exit(__doc__)
    with open(arguments[0]) as file:
        result = json.load(file)
    if option == "--summary" and "rows" in result:
        print_programs(result["rows"])
        return
    cases = result["cases"]
    if option == "--order":
        print_order(cases)
        return
    if option and any("way" in case for case in cases):
        print_comparison(cases)
        return
    dtype = None if option else (arguments + ["bf16"])[1]
    cases = [case for case in cases if re.fullmatch(NAME, case["case"]) and dtype in (None, case["dtype"])]
    if not cases:
        sys.exit("%s has no such case" % arguments[0])
    (print_summary if option else print_cases)(cases)


main()
