"""Plots the ratio to a copy against the bytes moved, from the JSON of `trope bench --device cuda`.

    python3 bench/plot.py RESULT.json [docs/cuda-ratio.svg]

Draws the cases SHAPE-sTOKENS-SOURCE that exist in six sizes or more. Needs matplotlib; without it the exit status is 77.
"""

import json
import re
import sys

MB = 10 ** 6
FEWEST = 6  # smallest number of sizes in a curve


def families(result):
    """Returns {(family, dtype): [(bytes, ratio), ...]} in ascending order of bytes."""
    curves = {}
    for case in result["cases"]:
        family = re.sub(r"-s\d+-", " ", case["case"])
        curves.setdefault((family, case["dtype"]), []).append((case["bytes"], case["ratio"]))
    return {name: sorted(points) for name, points in curves.items() if len(points) >= FEWEST}


def draw(result, path):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "trope"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for (family, dtype), points in sorted(families(result).items()):
        axes.plot([size / MB for size, _ in points], [ratio for _, ratio in points], marker="o", markersize=3,
                  label="%s, %s" % (family, dtype))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.plot([17, 64], [0.94, 0.94], [128, 1200], [0.98, 0.98], color="gray", linestyle="dashed", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda mb, _: "%g" % mb)
    axes.set_xlabel("MB moved")
    axes.set_ylabel("time of the copy / time of the call")
    axes.set_ylim(bottom=0)
    axes.set_title("trope %s, %s" % (result["trope"], result["machine"].split(",")[0]))
    axes.grid(True, linewidth=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    path = sys.argv[2] if len(sys.argv) == 3 else "docs/cuda-ratio.svg"
    with open(sys.argv[1]) as file:
        result = json.load(file)
    if not families(result):
        sys.exit("%s has no case in %d sizes" % (sys.argv[1], FEWEST))
    try:
        draw(result, path)
    except ImportError as error:
        print("skipped: %s" % error)
        sys.exit(77)
    print("%s: %d curves" % (path, len(families(result))))


main()
