"""Tests of all commands except check: the hint to `python -m trope apply`, the output and files of info and bench, and
exit statuses."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time

import harness
from harness import TOOL, check, run


def refused(words, *arguments):
    result = run(*arguments)
    check(result.returncode == 2 and result.stderr.count("\n") == 1, arguments, "must be refused in one line:",
          result.stderr)
    check(result.stdout == "", arguments, "must print nothing else:", result.stdout)
    for word in words:
        check(word in result.stderr, arguments, "must print the word", word, "but prints", result.stderr)


def page_agrees_with_help():
    """docs/command-line.md has every command. Each option that it shows for check exists. (test_apply_files.py tests the
    options of apply.)"""
    root = pathlib.Path(__file__).resolve().parents[2]
    text = (root / "docs" / "command-line.md").read_text()
    listed = run("check", "--help").stdout
    for option in sorted(set(re.findall(r"--[a-z][a-z-]*[a-z]", text.partition("## check")[2]))):
        check(option + " " in listed or option + "\n" in listed, "check has the option that the page shows:", option)
    for command in ("trope check", "trope bench", "trope info", "python -m trope apply"):
        check("`" + command in text, "the page shows", command)


def help_and_usage():
    result = run("--help")
    check(result.returncode == 0, "--help")
    for command in ("apply", "bench", "check", "info"):
        check(command in result.stdout, "--help lists", command)
    for command in ("bench", "check", "info"):
        result = run(command, "--help")
        check(result.returncode == 0, command, "--help", result.stderr)
        check(result.stdout.startswith("usage: trope " + command), command, "--help", result.stdout)
        asked = run("help", command)
        check((asked.returncode, asked.stdout) == (0, result.stdout), "help", command, asked.stdout, asked.stderr)
    check(run("help").stdout == run("--help").stdout, "help without a command lists the commands")
    for words in (["apply"], ["help", "apply"], ["apply", "--help"], ["apply", "in.safetensors", "-o", "out.safetensors"]):
        refused(["trope apply: ", "python -m trope apply"], *words)
    refused(["'nonsense'", "not a command", "--help"], "help", "nonsense")
    refused(["one command", "'bench'"], "help", "check", "bench")
    refused(["no arguments", "'bench'"], "--version", "bench")
    check(run("--version").stdout.startswith("trope "), "--version")
    refused(["command"])
    refused(["turn"], "turn")
    refused(["takes no arguments"], "info", "all")
    refused(["--shape"], "check", "--shape", "2,3,4")
    refused(["--dtype", "f32"], "check", "--dtype", "int8")
    refused(["--rotary-dim"], "check", "--head-dim", 8, "--rotary-dim", 16)
    refused(["--rotary-dim"], "check", "--head-dim", 7)
    refused(["batch"], "check", "--layout", "thd", "--batch", 2)
    refused(["elements"], "check", "--shape", "10000,10000,100,128")
    refused(["--device cuda", "no CUDA"], "check", "--device", "cuda")
    refused(["file"], "check", "x.safetensors")
    refused(["--device cuda", "no CUDA"], "bench", "--device", "cuda")
    refused(["--bytes"], "bench", "--bytes", 0)
    refused(["--repeat"], "bench", "--repeat", 0)
    refused(["--cases"], "bench", "--cases", "some")
    refused(["--at-most"], "bench", "--at-most", -1)
    refused(["nothing-like-it"], "bench", "--only", "nothing-like-it")
    refused(["nothing-like-it"], "bench", "--list", "--only", "nothing-like-it")
    refused(["--list", "--json"], "bench", "--list", "--json")
    refused(["--list", "--save"], "bench", "--list", "--save", "result.json")
    refused(["--save", "--json"], "bench", "--json", "--save", "result.json")
    refused(["not an option"], "bench", "--fast")
    refused(["--only", "twice"], "bench", "--only", "heads-8/", "--only", "qkv")
    refused(["--threads", "65536"], "bench", "--threads", 65536)
    refused(["--repeat", "--list"], "bench", "--list", "--repeat", 3)
    refused(["--device", "--cases"], "bench", "--list", "--cases", "cuda", "--device", "cpu")
    refused(["--at-most"], "bench", "--at-most", 0)
    refused(["--at-most", "--bytes"], "bench", "--at-most", 1000, "--bytes", 2000)
    refused(["--bytes", "size of its own"], "bench", "--cases", "cuda", "--only", "qk-8-1-in-s8192", "--bytes", 1000)


def info():
    result = run("info")
    lines = dict(line.split(": ", 1) for line in result.stdout.strip().splitlines())
    check(result.returncode == 0 and result.stderr == "", "info", result.stderr)
    for name in ("version", "backends", "instruction sets", "threads", "devices"):
        check(lines.get(name), "info has a line for", name, result.stdout)
    check(lines["version"] == run("--version").stdout.split()[1], "info and --version agree")


QUICK = ["--bytes", 20000, "--repeat", 2, "--threads", 2]


def bench():
    names = run("bench", "--list").stdout.split()
    check(len(names) >= 40 and len(set(names)) == len(names), "cases have unique names", len(names))
    result = run("bench", *QUICK)
    check(result.returncode == 0, "bench", result.stdout, result.stderr)
    lines = result.stdout.splitlines()
    header = [line for line in lines if line.startswith("#")]
    rows = [line.split() for line in lines if not line.startswith("#")]
    for words in ("# trope ", "# machine: ", "# isa: ", "# command: trope bench --bytes 20000", "# case "):
        check(any(line.startswith(words) for line in header), "the header has the line", words)
    check("threads: 2" in result.stdout or "threads: 1" in result.stdout, "the header has the number of threads")
    check(["%s/%s" % (row[0], row[1]) for row in rows] == names, "each case has a row")
    for row in rows:
        check(len(row) == 13, "a row has 13 columns", row)
        megabytes, time, rate, copy, ratio = (float(x) for x in row[7:12])
        check(megabytes > 0 and time > 0 and rate > 0 and copy >= 0 and ratio >= 0, "the numbers are in range", row)
        check(row[6] in ("fwd", "bwd") and row[12] == "0", "no element is wrong", row)
    check(lines[-1].startswith("# ok"), "the last line is a verdict", lines[-1])
    columns = {line.index("ratio") for line in header if "ratio" in line and "#wrong" in line}
    check(len(columns) == 1, "one header line has the names of the columns")


def bench_options():
    names = run("bench", "--list", "--only", "heads-8/").stdout.split()
    check(names == ["heads-8/f32", "heads-8/f16", "heads-8/bf16"], "--only", names)
    for isa in ("portable", "auto"):
        result = run("bench", *QUICK, "--only", "qkv", "--isa", isa, "--json")
        check(result.returncode == 0, "bench --json", result.stderr)
        found = json.loads(result.stdout)
        check(found["isa"] == isa and found["rounds"] == 2 and found["device"] == "cpu", "the header in JSON", found)
        check(found["command"][:2] == ["trope", "bench"], "the command in JSON", found["command"])
        names = run("bench", "--list", "--only", "qkv").stdout.split()
        check([c["case"] + "/" + c["dtype"] for c in found["cases"]] == names, "the cases in JSON", names)
        for case in found["cases"]:
            check(case["wrong"] == 0 and case["bytes"] >= 20000 and case["kernel"].startswith("cpu-"), "case in JSON", case)
        check(found["wrong"] == 0, "no element is wrong in JSON")
    # The bytes count each element of an operand once for reading and once for writing, and each used row of angles once.
    result = run("bench", "--json", "--repeat", 1, "--bytes", 3 * 10 ** 6)
    cases = {c["case"] + "/" + c["dtype"]: c for c in json.loads(result.stdout)["cases"]}

    def moved(name, per_token, per_row=0):
        check(cases[name]["bytes"] == cases[name]["tokens"] * (per_token + per_row), name, "bytes", cases[name])
        check(cases[name]["bytes"] >= 3 * 10 ** 6, name, "moves at least --bytes")

    moved("heads-8/bf16", 2 * 8 * 128 * 2)
    moved("in-place/f32", 2 * 32 * 128 * 4)
    moved("mla/bf16", 2 * 32 * 192 * 2)
    moved("mla-in-place/bf16", 2 * 32 * 64 * 2)
    moved("qkv-split/bf16", 2 * (32 + 16) * 128 * 2)
    moved("qkv-inside/bf16", 2 * (32 + 8) * 128 * 2)
    moved("freqs/bf16", 2 * 32 * 128 * 2, 64 * 4)
    moved("freqs-full/bf16", 2 * 32 * 128 * 2, 128 * 4)
    moved("table/bf16", 2 * 32 * 128 * 2, 2 * 64 * 4)
    moved("table-own-dtype/bf16", 2 * 32 * 128 * 2, 2 * 128 * 2)
    moved("d-freqs/bf16", 3 * 32 * 128 * 2, 64 * 4)
    moved("d-inv-freq/bf16", 3 * 32 * 128 * 2)


def bench_cuda_cases():
    """The CUDA cases have unique names, can be listed without a device, and give the right bits."""
    names = run("bench", "--list", "--device", "cuda").stdout.split()
    check(len(names) >= 400 and len(set(names)) == len(names), "cases have unique names", len(names))
    check(run("bench", "--list", "--cases", "cuda").stdout.split() == names, "--cases lists the same")
    small = ["--at-most", 10 ** 6, "--repeat", 1, "--threads", 2]
    result = run("bench", "--cases", "cuda", "--device", "cpu", "--json", *small)
    check(result.returncode == 0, "the CUDA cases run on the CPU", result.stderr)
    cases = json.loads(result.stdout)["cases"]
    check([c["case"] + "/" + c["dtype"] for c in cases] == names, "each case has a result")
    by_name = {c["case"] + "/" + c["dtype"]: c for c in cases}
    for name, case in by_name.items():
        check(case["wrong"] == 0, "no element is wrong", case)
        check(case["tokens"] % 64 == 0, "tokens are a multiple of 64", case)

    def moved(name, per_token):
        check(by_name[name]["bytes"] == by_name[name]["tokens"] * per_token, name, "bytes", by_name[name])

    moved("qk-8-1-in-s8192-tokens/bf16", 2 * 9 * 128 * 2)
    moved("qkv-32-8-split-s8192-ids/bf16", 2 * 48 * 128 * 2)
    moved("mla-q-128-s4096-tokens/bf16", 2 * 128 * 64 * 2)
    moved("mla-kv-128-s4096-tokens/bf16", (128 * 256 + 64 + 128 * 320) * 2)
    moved("mla-kv-128-bwd-s4096-tokens/bf16", (128 * 256 + 64 + 128 * 320) * 2)
    moved("h-32-add-s8192-tokens/bf16", 3 * 32 * 128 * 2)
    moved("h-32-out-s8192-thd-zigzag/bf16", 2 * 32 * 128 * 2)
    moved("norm-32-8-s8192-tokens/bf16", 2 * 40 * 128 * 2)
    moved("norm-16-2-dim-256-quarter-s8192-tokens/bf16", 2 * 18 * 256 * 2)
    moved("norm-32-8-bwd-s8192-tokens/bf16", 3 * 40 * 128 * 2)
    moved("norm-qkv-32-8-split-bwd-s8192-tokens/bf16", (2 * 48 + 40) * 128 * 2)


def bench_saves_whole_results():
    """--save makes a temporary file before the work, and keeps the old file until the result is complete. After a signal,
    no temporary file is left."""
    only = ["--only", "heads-8/", *QUICK]
    with harness.folder() as directory:
        real, link = os.path.join(directory, "real"), os.path.join(directory, "link")
        pathlib.Path(real).write_text("before")
        os.chmod(real, 0o604)
        os.symlink("real", link)
        for path in ("-", "/dev/null", "/dev/stdout", directory, os.path.join(directory, "no", "folder")):
            refused(["regular file" if path.startswith("/dev") or path == directory else path if path != "-" else "--json"],
                    "bench", "--save", path, *only)
        refused([], "bench", "--save", link, "--only", "nothing-like-it")
        check(pathlib.Path(real).read_text() == "before", "a refused command leaves the old file unchanged")
        result = run("bench", "--save", link, *only)
        saved = json.loads(pathlib.Path(real).read_text())
        check(result.returncode == 0 and len(saved["cases"]) == 3 and "# ok" in result.stdout, "the result is saved",
              result.stderr)
        check(os.path.islink(link) and os.stat(real).st_mode & 0o777 == 0o604, "link and mode are kept")
        check(harness.files(directory) == ["link", "real"], "there is no other file", harness.files(directory))
        before = pathlib.Path(real).read_bytes()
        full = run("bench", "--save", real, *only,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)))
        check(full.returncode in (2, -signal.SIGXFSZ), "a full disk is an error", full.returncode, full.stderr)
        process = subprocess.Popen([TOOL, "bench", "--save", real], stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while len(harness.files(directory)) < 3 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        check(len(harness.files(directory)) == 3, "a temporary file exists from the beginning")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        check(process.returncode == -signal.SIGINT, "a signal ends the bench", process.returncode)
        check(harness.files(directory) == ["link", "real"], "a signal leaves no other file", harness.files(directory))
        check(pathlib.Path(real).read_bytes() == before, "a signal leaves the old file unchanged")


def standard_streams():
    """No file receives the text of a stream that is closed, and no result is lost with status 0."""
    quick = [TOOL, "bench", "--only", "heads-8/f32", *QUICK]
    for words in (["--help"], ["--version"], ["info"], ["check", "--tokens", 4], ["check", "--help"], ["bench", "--list"]):
        harness.check_streams([TOOL, *words])
    with harness.folder() as directory:
        path = os.path.join(directory, "result.json")
        harness.check_streams([*quick, "--save", path], path)
        check(harness.files(directory) == [], "there is no other file", harness.files(directory))
        reading, writing = os.pipe()
        os.close(reading)
        status = subprocess.run([*map(str, quick), "--save", path], stdout=writing).returncode
        check(status == -signal.SIGPIPE and harness.files(directory) == [], "a closed pipe ends the bench", status)
        os.close(writing)


def logged(result):
    """Returns [(count, kernel, text)] of the calls that a process with TROPE_LOG=calls printed."""
    lines = result.stderr.splitlines()
    check(lines and lines[0].startswith("trope: the calls"), "TROPE_LOG prints the calls", result.stderr)
    return [tuple(line.split(" ", 2)) for line in lines[1:]]


def bench_call():
    """--call makes the calls that TROPE_LOG=calls prints: with the right bits, and so that the log prints the same text."""
    log = dict(os.environ, TROPE_LOG="calls")
    small = ["--device", "cpu", "--threads", 1, "--repeat", 1]
    found = run("bench", "--cases", "cuda", "--at-most", 10 ** 5, *small, env=log)
    texts = sorted({text for _, _, text in logged(found)})
    check(len(texts) >= 300, "the CUDA cases are many kinds of calls", len(texts))
    for text in texts[::25]:
        result = run("bench", "--call", text, "--json", *small, env=log)
        check(result.returncode == 0, "--call takes", text, result.stderr)
        case, = json.loads(result.stdout)["cases"]
        check(case["wrong"] == 0 and case["bytes"] > 0, "the call of the text is right", text, case)
        check({same for _, _, same in logged(result)} == {text}, "the log prints the same text as", text, result.stderr)
    unknown = run("info", env=dict(os.environ, TROPE_LOG="all"))
    check(unknown.returncode == 0 and not unknown.stderr, "TROPE_LOG is read at the first call", unknown.stderr)
    unknown = run("bench", "--call", texts[0], *small, env=dict(os.environ, TROPE_LOG="all"))
    check("TROPE_LOG (all)" in unknown.stderr, "an unknown value of TROPE_LOG is named", unknown.stderr)
    good = "forward dtype=f32 batch=1 tokens=4 pairing=half inv_freq operand src=a dst=a src_layout=bshd dst_layout=bshd "
    good += "heads_per_group=2 head_dim=8 rotary_dim=8"
    check(run("bench", "--call", good, *small).returncode == 0, "a short text is enough")
    table = "freqs angle_dtype=f32 angle_columns=half angle_layout=strided angle_rows=10 angle_stride=0,0,8,1 "
    table += "cu_seqlens sequences=4 cu_seqlens_dtype=i32 padding=zero"
    packed = good.replace("inv_freq", table).replace("tokens=4", "tokens=40")
    check(run("bench", "--call", packed, *small).returncode == 0, "no sequence is longer than the table")
    for old, new, word in (
        ("forward", "sideways", "sideways"), ("dtype=f32", "dtype=f31", "dtype=f31"), ("dtype=f32", "", "dtype"),
        ("tokens=4", "tokens=-4", "tokens=-4"), ("tokens=4", "tokens=4x", "tokens=4x"), ("inv_freq", "inv_freq=1", "inv_freq=1"),
        ("pairing=half", "pairing", "'pairing'"), ("src=a", "src=A", "src=A"), ("src=a", "src=a+", "src=a+"),
        ("operand", "norm weight operand", "norm"), ("head_dim", "dim", "'dim'"), ("batch=1", "device=cpu batch=1", "device"),
    ):  # fmt: skip
        refused([word], "bench", "--call", good.replace(old, new, 1), *small)
    for field in ("pairing=half", "rotary_dim=8"):
        result = run("bench", "--call", good.replace(field, ""), *small)
        check(result.returncode == 2 and field.split("=")[0] in result.stderr, "the library refuses without", field, result.stderr)
    refused(["--only", "--call"], "bench", "--call", good, "--only", "qk")


help_and_usage()
page_agrees_with_help()
info()
bench()
bench_options()
bench_cuda_cases()
bench_saves_whole_results()
standard_streams()
bench_call()
harness.finish()
