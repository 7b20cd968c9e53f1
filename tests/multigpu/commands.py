"""What trope_multigpu prints besides the table of cases, what it refuses, and that all ways to start it agree."""

from program import MPIRUN, PROGRAM, Result, check, finish, launches, run


def refused(word, *options):
    result = Result([PROGRAM] + list(options), 60)
    check(result.status == 2 and result.err.count("\n") == 1, options, "is refused in one line:", result.err)
    check(word in result.err, options, "has no", word, "in", result.err)


def refusals():
    refused("nothing-like-it", "--only", "nothing-like-it")
    refused("--fail", "--fail", "sleep@1")
    refused("--fail", "--fail", "die")
    refused("--break", "--break", "everything")
    refused("takes no file", "result.json")
    refused("--ranks", "--ranks", "0")
    refused("RANK", "--launch", "torchrun")


def listing():
    result = Result([PROGRAM, "--list"], 60)
    names = result.out.split()
    check(result.status == 0 and len(names) == len(set(names)) > 150, "--list", len(names))
    for split in ("dp", "tp", "cp", "dp-x-tp", "dp-x-cp", "tp-x-cp"):
        check(any(name.startswith(split + "/") for name in names), "--list has", split)
    for layout in ("zigzag", "contiguous", "striped", "flat"):
        check(sum("/" + layout in name for name in names) >= 30, "--list has", layout)


def without_time(case):
    return {name: value for name, value in case.items() if name not in ("time_us", "bytes", "angle_error_of_bound")}


def launches_agree():
    results = {way: run(way, "--only", "zigzag-padded/f32", "--json", "--bytes", 100000) for way in launches()}
    for way, result in results.items():
        check(result.status == 0, way, result.status, result.err)
        cases = result.json()["cases"]
        check(len(cases) == 3 and all(case["ok"] and case["time_us"] > 0 for case in cases), way, cases)
        check([without_time(c) for c in cases] == [without_time(c) for c in results["threads"].json()["cases"]], way)
    check(len(results) == 2 + bool(MPIRUN), "ways to start it")


def speed():
    result = run("threads", "--speed", "--bytes", 100000, "--json")
    rows = result.json()["speed"]
    check(result.status == 0 and [row["rank"] for row in rows] == list(range(len(rows))) and len(rows) >= 2, result.out)
    check(all(row["alone_us"] > 0 and row["together_us"] > 0 for row in rows), result.out)


refusals()
listing()
launches_agree()
speed()
finish()
