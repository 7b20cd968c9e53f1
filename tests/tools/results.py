"""docs/cuda-results.md has the tables that bench/tables.py makes of bench/results/h100.json, and the counts of its goals."""

import json
import pathlib
import subprocess
import sys

from harness import check, finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "h100.json"


def main():
    page = (ROOT / "docs" / "cuda-results.md").read_text()
    with open(RESULT) as file:
        result = json.load(file)
    for dtype in sorted({case["dtype"] for case in result["cases"]}):
        table = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", RESULT, dtype], capture_output=True, text=True)
        check(table.returncode == 0 and table.stdout.count("\n") > 2, dtype, "has a table:", table.stderr)
        check(table.stdout in page, "the page has the table of", dtype)
    reached = "%d of %d goals" % (result["goals"] - result["goals_missed"], result["goals"])
    check(reached in page, "the page says", reached)
    check(result["wrong"] == 0, "no element is wrong")


main()
finish()
