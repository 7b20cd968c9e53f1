"""Tests that bench/interleave.py alternates between two builds, and lists the cases whose median ratio changed. A program
with known ratios replaces the bench."""

import pathlib
import subprocess
import sys
import tempfile

from harness import check, finish

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "interleave.py"

# In the n-th run of a build, each case gets its n-th ratio from the file `ratios` in the build's folder.
PROGRAM = """#!%s
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["LD_LIBRARY_PATH"].split(os.pathsep)[0])
with open(folder.parent / "order", "a") as order:
    order.write(folder.name + " ")
turn = (folder.parent / "order").read_text().split().count(folder.name) - 1
ratios = json.loads((folder / "ratios").read_text())
assert sys.argv[1] == "bench" and sys.argv[-2] == "--save", sys.argv
if "--fail" in sys.argv:
    sys.exit("the bench failed")
cases = [{"case": case, "dtype": "bf16", "ratio": values[turn]} for case, values in ratios.items()]
pathlib.Path(sys.argv[-1]).write_text(json.dumps({"cases": cases}))
"""


def run(folder, *arguments):
    (folder / "order").write_text("")
    return subprocess.run(
        [sys.executable, "-B", SCRIPT, folder / "program", folder / "old", folder / "new", *arguments],
        capture_output=True,
        text=True,
    )


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch).resolve()
        (folder / "program").write_text(PROGRAM % sys.executable)
        (folder / "program").chmod(0o755)
        ratios = {
            "old": '{"loses": [0.9, 0.8, 0.9], "same": [0.5, 0.9, 0.5], "wins": [0.3, 0.3, 0.3]}',
            "new": '{"loses": [0.8, 0.9, 0.8], "same": [0.5, 0.5, 0.1], "wins": [0.4, 0.1, 0.4]}',
        }
        for name, text in ratios.items():
            (folder / name).mkdir()
            (folder / name / "ratios").write_text(text)
        result = run(folder)
        check(result.returncode == 1, "a loss has status 1", result.stderr)
        check((folder / "order").read_text().split() == ["old", "new"] * 3, "the builds take turns")
        lines = result.stdout.splitlines()
        check(lines[0] == "-0.100  0.900 -> 0.800  loses/bf16", "the greatest loss comes first:", result.stdout)
        check(lines[1] == "+0.100  0.300 -> 0.400  wins/bf16", "then the others that changed:", result.stdout)
        check(lines[2:] == ["3 cases, median of 3: 1 lose more than 0.01, 1 win more"], "then the summary:", result.stdout)
        result = run(folder, "--lose", "0.2")
        check(result.returncode == 0 and "0 lose" in result.stdout, "--lose sets the limit", result.stdout)
        result = run(folder, "--rounds", "1", "--", "--fail")
        check(
            result.returncode == 1 and "the bench failed" in result.stderr,
            "the error of a failed bench is shown",
            result.stderr,
        )
        for wrong in (["--rounds", "0"], ["--lose", "-1"], ["--lose", "nan"], ["more"]):
            check(run(folder, *wrong).returncode == 2, wrong, "is refused")
        twice = subprocess.run([sys.executable, "-B", SCRIPT, folder / "program", folder / "old", folder / "old"])
        check(twice.returncode == 2, "the same folder twice is refused")


main()
finish()
