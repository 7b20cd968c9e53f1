"""Tests what trope_multigpu prints besides the table of cases, and which options and environments it refuses. All ways to
start it must agree, and docs/multigpu.md must list the names of all cases."""

import json
import os
import pathlib
import re
import tempfile

from program import DEVICE, LIKE_TORCHRUN, MPIRUN, PROGRAM, Result, check, check_streams, finish, launches, run


def check_refused(word, *options):
    result = Result([PROGRAM] + [str(o) for o in options], 60)
    check(result.status == 2 and result.err.count("\n") == 1, options, "is refused in one line:", result.err)
    check(result.out == "", options, "prints nothing else:", result.out)
    check(word in result.err, options, "has no", word, "in", result.err)


def check_refusals():
    check_refused("nothing-like-it", "--only", "nothing-like-it")
    check_refused("dp-x-tp", "--only", "nothing-like-it")
    check_refused("--list", "--only", "nothing-like-it")
    check_refused("nothing-like-it", "--only", "cp/", "--only", "nothing-like-it")
    check_refused("nothing-like-it", "--list", "--only", "nothing-like-it")
    check_refused("--only", "--only", "")
    check_refused("two factors", "--device", "cpu", "--ranks", 2, "--only", "tp-x-cp")
    check_refused("three, such as 8", "--device", "cpu", "--ranks", 4, "--only", "dp-x-tp-x-cp")
    check_refused("--threads: 65536", "--device", "cpu", "--threads", 65536)
    check_refused("--seed: is given twice", "--seed", 1, "--seed", 2)
    check_refused("--seed: has no effect with --list", "--list", "--seed", 1)
    check_refused("--only: has no effect with --speed", "--speed", "--only", "cp")
    check_refused("--only: has no effect with --simulate", "--simulate", "--only", "cp")
    check_refused("--repeat: has no effect with --bytes 0", "--bytes", 0, "--repeat", 3)
    check_refused("--bytes", "--bytes", -1)
    check_refused("--bytes", "--speed", "--bytes", 0)
    check_refused("--save", "--json", "--save", "result.json")
    check_refused("--save", "--save", "-")
    check_refused("regular file", "--simulate", "--save", "/dev/null")
    check_refused("--fail", "--fail", "sleep@1")
    check_refused("--fail", "--fail", "die")
    check_refused("--break", "--break", "everything")
    check_refused("takes no file", "result.json")
    check_refused("--ranks", "--ranks", "0")
    check_refused("RANK", "--launch", "torchrun")
    if DEVICE == "cpu":  # there is no GPU or no CUDA: all ranks together print one line
        check_refused("--device cuda: ", "--device", "cuda")
        check_refused("--device cuda: ", "--device", "cuda", "--ranks", 3)


ONE_CASE = ["--bytes", "0", "--only", "dp/dense/f32"]
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


def in_environment(variables, *options):
    """Runs the program with these variables and no other variables of a launcher."""
    of_launchers = re.compile("RANK$|^WORLD_SIZE$|^LOCAL_|^MASTER_|^OMPI_COMM_|^PMI|^MV2_|^SLURM_|^TROPE_MULTIGPU_PORT$")
    kept = {name: value for name, value in os.environ.items() if not of_launchers.search(name)}
    return Result([PROGRAM, "--device", "cpu", *ONE_CASE, *options], 60, {**kept, **variables})


def check_environments():
    """A process that a launcher started with other processes must not run alone, as the only rank."""
    def without(*names):
        return {name: value for name, value in TORCHRUN.items() if name not in names}

    incomplete = [
        ("RANK", without("RANK")), ("WORLD_SIZE", without("WORLD_SIZE")), ("MASTER_ADDR", without("MASTER_ADDR")),
        ("MASTER_PORT", without("MASTER_PORT")), ("WORLD_SIZE", {"RANK": "0"}), ("RANK", {"WORLD_SIZE": "2"}),
        ("MASTER_ADDR", {"RANK": "0", "WORLD_SIZE": "2"}), ("MASTER_ADDR", {**TORCHRUN, "MASTER_ADDR": ""}),
    ]
    for missing, variables in incomplete:
        result = in_environment(variables)
        check((result.status, result.out) == (2, ""), variables, "is refused", result.out, result.err)
        check(result.err.startswith("trope_multigpu: %s: is missing" % missing) and result.err.count("\n") == 1, variables,
              "names", missing, "in", result.err)
        result = in_environment(variables, "--launch", "process")
        check(result.status == 0 and "in one process" in result.out, variables, "with --launch process", result.err)
    values = [("RANK", "x"), ("RANK", "-1"), ("RANK", "1"), ("RANK", "1.5"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "two"),
              ("WORLD_SIZE", "99999999999"), ("LOCAL_RANK", "1"), ("LOCAL_RANK", "gpu0"), ("MASTER_PORT", "0"),
              ("MASTER_PORT", "65535"), ("MASTER_PORT", "tcp"), ("TROPE_MULTIGPU_PORT", "70000")]
    for name, value in values:
        result = in_environment({**TORCHRUN, name: value})
        check(result.status == 2 and result.err.count("\n") == 1, name, value, "is refused in one line:", result.err)
        check(result.err.startswith("trope_multigpu: %s: " % name), name, value, "is named in", result.err)
    result = in_environment(TORCHRUN)
    check(result.status == 0 and "by torchrun" in result.out, "a complete environment", result.err)
    result = in_environment(TORCHRUN, "--ranks", "2")
    check(result.status == 2 and "--ranks: has no effect" in result.err, "--ranks under a launcher", result.err)
    # A shell may keep some of these variables, and a single Slurm task has no other processes.
    for variables in (without("RANK", "WORLD_SIZE"), without("RANK", "WORLD_SIZE", "MASTER_PORT"), {"LOCAL_RANK": "3"},
                      {"SLURM_NTASKS": "4"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}):
        result = in_environment(variables)
        check(result.status == 0 and "in one process" in result.out, variables, "starts threads", result.out, result.err)
    result = in_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "x"})
    check(result.status == 2 and "SLURM_NTASKS: 'x'" in result.err, "SLURM_NTASKS is not a number", result.err)
    # An MPI that does not know the launcher's variables would make each process a separate run of one rank.
    for variables in ({"OMPI_COMM_WORLD_SIZE": "4"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):
        result = in_environment(variables)
        check(result.status == 2 and ("has only one rank" if MPIRUN else "no MPI") in result.err, variables, result.err)
    if MPIRUN:
        words = [MPIRUN, "--oversubscribe", "-n", "2", PROGRAM, "--device", "cpu", *ONE_CASE]
        result = Result(words, 60, {**os.environ, "RANK": "0", "WORLD_SIZE": "3"})
        check(result.status != 0 and "WORLD_SIZE: 3 contradicts MPI, which has 2 ranks" in result.err, "two launchers",
              result.err)
        result = Result([*words, "--launch", "mpi"], 60, {**os.environ, "RANK": "0", "WORLD_SIZE": "3"})
        check(result.status == 0 and "by MPI" in result.out, "--launch mpi", result.err)


def check_listing():
    result = Result([PROGRAM, "--list"], 60)
    names = result.out.split()
    check(result.status == 0 and len(names) == len(set(names)) > 150, "--list", len(names))
    for split in ("dp", "tp", "cp", "dp-x-tp", "dp-x-cp", "tp-x-cp", "dp-x-tp-x-cp"):
        check(any(name.startswith(split + "/") for name in names), "--list has", split)
    for layout in ("zigzag", "contiguous", "striped", "flat"):
        check(sum("/" + layout in name for name in names) >= 30, "--list has", layout)
    some = [name for name in names if "cp/flat-ids/" in name or "/bf16" in name]
    check(Result([PROGRAM, "--list", "--only", "cp/flat-ids/", "--only", "/bf16"], 60).out.split() == some,
          "several --only options add up")
    return names


def expand(text):
    """Expands a pattern as a shell does: a{b,c}d becomes abd and acd."""
    found = re.search(r"{([^{}]*)}", text)
    if not found:
        return [text]
    return [name for word in found.group(1).split(",") for name in expand(text[:found.start()] + word + text[found.end():])]


def check_page(names):
    """docs/multigpu.md lists the names of all cases and no others."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "multigpu.md").read_text()
    shown = [name for pattern in re.findall(r"^\| `([^`]*/[^`]*)` \|", text, re.MULTILINE) for name in expand(pattern)]
    check(len(shown) == len(set(shown)), "each case is on the page once", shown)
    listed = {name.rsplit("/", 1)[0] for name in names}
    check(set(shown) == listed, "cases missing on the page, and unknown names on it:", listed - set(shown),
          set(shown) - listed)
    check("all %d cases" % len(names) in text, "the page has the number of cases:", len(names))
    options = set(re.findall(r"--[a-z]+", Result([PROGRAM, "--help"], 60).out))
    for option in re.findall(r"^\| (`--[^|]*)\|", text, re.MULTILINE):
        check(set(re.findall(r"--[a-z]+", option)) <= options, "the program has the options of the page:", option)


def check_error_texts(way="threads"):
    """The table shows an error as a percentage of the rounding bound or as WRONG, never as a meaningless huge number."""
    only = ["--only", "cp/zigzag-dense/f32", "--only", "tp/dense-mla/f32"]
    for options, shown in ([], r"\d+%"), (["--break", "rank"], "WRONG"):
        result = run(way, "--bytes", 0, *only, *options)
        rows = [line.split() for line in result.out.splitlines() if not line.startswith("#")]
        cells = [row[-3] for row in rows if row[:2] == ["cp", "zigzag-dense"]]
        check(result.status == (1 if options else 0), options, result.status, result.err)
        check(len(cells) == 1 and re.fullmatch(shown, cells[0]), "the error of a gradient:", cells, result.out)
        check(not re.search(r"\de\+\d", result.out), "no huge number:", result.out)
        words = "beyond the rounding bound" if options else "of the largest possible rounding error"
        check("gradient of the angles: " in result.out and words in result.out, "the summary", result.out)


def check_save():
    """--save tests the path before the work starts, and writes a complete file. If it cannot write, no file changes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        result = run("threads", "--bytes", 0, "--only", "dp/dense/f32", "--save", path)
        with open(path) as file:
            check(result.status == 0 and json.load(file)["run"] == 1, "--save", result.err)
        check(os.listdir(folder) == ["result.json"], "--save leaves no other files", os.listdir(folder))
        result = run("threads", "--bytes", 0, "--only", "dp/dense/f32", "--save", folder)
        check(result.status == 2 and "regular file" in result.err and "cases hold" not in result.out, result.err)


def check_standard_streams():
    """No file and no socket receives the text of a stream that is closed, and no result is lost with status 0."""
    for options in (["--list"], ["--help"]):
        check_streams([PROGRAM, *options])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        check_streams([PROGRAM, "--device", "cpu", "--ranks", 2, *ONE_CASE, "--save", path], path)
        result = Result(["sh", "-c", 'exec "$@" >/dev/full', "sh", PROGRAM, "--simulate", "--save", path], 60)
        check(result.status == 2 and result.err.count("\n") == 1, "--simulate cannot print:", result.err)
        check(os.listdir(folder) == [], "there are no other files", os.listdir(folder))
        # The ranks are connected by sockets.
        closed = ["sh", "-c", 'exec "$@" >&- <&-', "sh", LIKE_TORCHRUN, "2"]
        result = Result([*closed, PROGRAM, "--device", "cpu", *ONE_CASE], 60)
        check(result.status == 2 and result.err == "trope_multigpu: cannot write to standard output\n", result.err)


def without_time(case):
    differs = ("time_us", "bytes", "angle_error_of_bound", "sum_error_of_bound")
    return {name: value for name, value in case.items() if name not in differs}


def check_launches_agree():
    only = ["--only", "zigzag-padded/f32", "--only", "tp/padded-norm-token/f32"]
    results = {way: run(way, *only, "--json", "--bytes", 100000) for way in launches()}
    for way, result in results.items():
        check(result.status == 0, way, result.status, result.err)
        cases = result.json()["cases"]
        check(len(cases) == 5 and all(case["ok"] and case["time_us"] > 0 for case in cases), way, cases)
        check([without_time(c) for c in cases] == [without_time(c) for c in results["threads"].json()["cases"]], way)
    check(len(results) == 2 + bool(MPIRUN), "ways to start the program")


def check_speed():
    result = run("threads", "--speed", "--bytes", 100000, "--json")
    rows = result.json()["speed"]
    check(result.status == 0 and [row["rank"] for row in rows] == list(range(len(rows))) and len(rows) >= 2, result.out)
    check(all(row["alone_us"] > 0 and row["together_us"] > 0 for row in rows), result.out)


check_refusals()
if DEVICE == "cpu":
    check_environments()
check_page(check_listing())
check_error_texts()
if DEVICE == "cpu":
    check_save()
    check_standard_streams()
check_launches_agree()
check_speed()
finish()
