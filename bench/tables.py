"""A table of the ratios to a copy, as Markdown, from the JSON of `trope bench --device cuda`.

    python3 bench/tables.py RESULT.json [DTYPE]

A row is a shape of the tensors in one size, a column a kind of rows: the parts of the cases' names SHAPE-sTOKENS-ROWS. What
misses its goal is bold, with the goal in brackets.
"""

import json
import re
import sys

MB = 10 ** 6
COLUMNS = ["tokens", "freqs", "freqs-full", "ids", "mrope", "thd", "thd-freqs", "padded"]


def cell(case):
    ratio, goal = "%.3f" % case["ratio"], case.get("at_least")
    return "**%s** (%.2f)" % (ratio, goal) if goal and case["ratio"] < goal else ratio


def rows_of(result, dtype):
    """{(shape, tokens): {rows: case}} in the order of the cases."""
    table = {}
    for case in result["cases"]:
        name = re.fullmatch(r"(.*)-s(\d+)-(.*)", case["case"])
        if name and case["dtype"] == dtype:
            table.setdefault((name[1], int(name[2])), {})[name[3]] = case
    return table


def write(table):
    print("| shape | tokens | MB | " + " | ".join(COLUMNS) + " | others |")
    print("|---|---|---|" + "---|" * (len(COLUMNS) + 1))
    for (shape, tokens), cases in table.items():
        size = next(iter(cases.values()))["bytes"] / MB
        others = ["%s %s" % (rows, cell(case)) for rows, case in cases.items() if rows not in COLUMNS]
        cells = [cell(cases[rows]) if rows in cases else "" for rows in COLUMNS]
        print("| %s | %d | %.0f | %s | %s |" % (shape, tokens, size, " | ".join(cells), "; ".join(others)))


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        result = json.load(file)
    table = rows_of(result, sys.argv[2] if len(sys.argv) == 3 else "bf16")
    if not table:
        sys.exit("%s has no such case" % sys.argv[1])
    write(table)


main()
