"""Tests that docs/performance.md has the summaries that bench/tables.py makes from the files in bench/results, and the
number of goals that they meet. bench/tables.py must also make a table for every dtype."""

import json
import pathlib
import subprocess
import sys

from harness import check, finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


def tables(*arguments):
    made = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", *arguments], capture_output=True, text=True)
    check(made.returncode == 0 and made.stdout.count("\n") > 2, *arguments, "gives a table:", made.stderr)
    return made.stdout


def main():
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in ("h100", "norms-h200", "compare-h100"):
        check(tables("--summary", RESULTS / (name + ".json")) in page, "the page has the summary of", name)
    for name in ("h100", "norms-h200"):
        path = RESULTS / (name + ".json")
        result = json.loads(path.read_text())
        for dtype in sorted({case["dtype"] for case in result["cases"]}):
            tables(path, dtype)
        counts = ["%d of %d goals" % (result["goals"] - result["goals_missed"], result["goals"])]
        counts += ["all %d results have the CPU's bits" % len(result["cases"])]
        for words in counts:
            check(words in page, "the page says", words)
        check(result["wrong"] == 0, "no element is wrong in", name)


main()
finish()
