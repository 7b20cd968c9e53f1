"""Tests that docs/performance.md has the summaries that bench/tables.py makes from the files in bench/results, and the
number of goals that they meet. bench/tables.py must also make a table for every dtype, and a list of slow calls."""

import json
import pathlib
import subprocess
import sys
import tempfile

from harness import check, finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"


def tables(*arguments):
    made = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", *arguments], capture_output=True, text=True)
    check(made.returncode == 0 and made.stdout.count("\n") > 2, *arguments, "gives a table:", made.stderr)
    return made.stdout


def order_of_work():
    """--order has the calls of programs below 0.9 of their goal, the worst first."""
    ratios = {"real-a": (0.71, 0.8), "real-b": (0.5, 0.96), "real-c": (0.73, 0.8), "real-d": (0.1, None), "qk": (0.1, 0.9)}
    cases = [
        dict(case=name, ratio=ratio, time_us=2, copy_us=1, bytes=3e6, kernel="k", **({"at_least": goal} if goal else {}))
        for name, (ratio, goal) in ratios.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "result.json")
        path.write_text(json.dumps({"cases": cases}))
        lines = tables("--order", path).splitlines()[2:]
    check([line.split()[1] for line in lines[:-2]] == ["real-b", "real-a"], "the worst call is first", lines)
    check(lines[-1] == "2 of 4 calls are below 0.9 of their goal; 1 have none", "the last line counts", lines)


def main():
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in ("h100", "norms-h200", "compare-h100", "frameworks-h200"):
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
    order_of_work()


main()
finish()
