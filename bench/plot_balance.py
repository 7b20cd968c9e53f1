"""Causal work of the busiest rank against the number of ranks, from the JSON of `trope_multigpu --simulate`.

    python3 bench/plot_balance.py RESULT.json [docs/multigpu-balance.svg]

Needs matplotlib; without it the exit status is 77.
"""

import json
import sys

# Layout, its line in the left and in the right half. Flat is contiguous where there is one sequence.
CURVES = [("contiguous", "contiguous", "o"), ("flat", "flat", "s"), ("striped", "striped", "^"), ("zigzag", "zigzag", "v")]


def draw_half(axes, rows, prefix, title):
    ranks = [row["ranks"] for row in rows]
    for layout, name, marker in CURVES:
        axes.plot(ranks, [row[prefix + layout] for row in rows], marker=marker, markersize=4, label=name,
                  linestyle="dashed" if layout == "flat" else "solid")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: "%d" % value)
    axes.set_xlabel("ranks")
    axes.set_title(title, fontsize=10)
    axes.grid(True, linewidth=0.3)
    axes.legend(loc="center right")


def draw(result, path):
    import matplotlib
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "trope"
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    draw_half(left, result["balance"], "", "one sequence of %d tokens" % result["tokens"])
    draw_half(right, result["balance"], "stream_", "600 packed sequences of Pareto lengths")
    left.set_ylabel("causal work of the busiest rank / mean")
    left.set_ylim(0.95, 2.05)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    path = sys.argv[2] if len(sys.argv) == 3 else "docs/multigpu-balance.svg"
    with open(sys.argv[1]) as file:
        result = json.load(file)
    try:
        draw(result, path)
    except ImportError as error:
        print("skipped: %s" % error)
        sys.exit(77)
    print("%s: %d numbers of ranks" % (path, len(result["balance"])))


main()
