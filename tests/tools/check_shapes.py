"""Tests of trope check: the calls that its options describe, its output, overflow, progress and refusals."""

import os
import pty
import select
import subprocess
import time

import harness
from harness import TOOL, check, run

LARGE = ["--shape", "1,4096,32,128"]  # takes most of a minute
SECONDS = ["--shape", "1,2048,8,128"]  # takes some seconds


def holds(*options):
    """Runs a check that must pass. Returns the lines that begin with #."""
    result = run("check", *options)
    rows = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    check(result.returncode == 0, "check", options, result.stdout, result.stderr)
    check(len(rows) == 6 and all(row.endswith("  ok") for row in rows), "six rows are ok", options, result.stdout)
    for row in rows:
        error, bound = (float(x) for x in row.split()[-3:-1])
        check(error <= bound, "error is in bounds", row)
    return [line for line in result.stdout.splitlines() if line.startswith("#")]


def refused(words, *options):
    result = run("check", *options)
    check(result.returncode == 2 and result.stderr.count("\n") == 1, options, "must be refused in one line:", result.stderr)
    check(result.stdout == "", options, "must print nothing else:", result.stdout)
    for word in words:
        check(word in result.stderr, options, "must print the word", word, "but prints", result.stderr)


def one_operand():
    for options in ([], ["--dtype", "bf16", "--layout", "bhsd", "--angles", "freqs", "--full", "--pairing", "interleaved"],
                    ["--dtype", "f16", "--layout", "bshd", "--angles", "table", "--full", "--pairing-out", "interleaved"],
                    ["--dtype", "f64", "--layout", "thd", "--heads", 3, "--windows", 2, "--inverse"],
                    ["--dtype", "f64", "--angles", "table", "--mscale", 1.5, "--seed", 7],
                    ["--shape", "1,1,1,2", "--isa", "portable", "--threads", 1],
                    ["--shape", "2,33,5,48", "--rotary-dim", 32, "--rotary-offset", 8, "--angles", "freqs"],
                    ["--dtype", "bf16", "--rounding", "native", "--scaling",
                     "llama3:factor=8,original_max_position_embeddings=64,low_freq_factor=1,high_freq_factor=4"]):
        lines = holds(*options)
        check("6 of 6 checks hold" in lines[-1], "the last line is the verdict", lines)
    here = run("check", "--device", "cpu").stdout
    check(here.startswith("# device cpu,"), "check prints the device of its calls", here)
    check(run("check", "--device", "auto").stdout == here, "auto is the CPU if there is no device")


def grouped_packed_and_split():
    """Combines Q and K, packed sequences with each padding policy, and every rank of every context parallel layout."""
    lines = holds("--heads", 6, "--k-heads", 2, "--layout", "bhsd", "--dtype", "bf16")
    check("bhsd" in lines[0] and "heads 6 (k 2)" in lines[0], "the heading", lines[0])
    lines = holds("--cu-seqlens", "0,7,7,30")
    check("thd, batch 1, tokens 30," in lines[0], "cu_seqlens set layout, batch and tokens", lines[0])
    check("3 sequences, 0 tokens of padding" in lines[1] and "positions up to 22" in lines[1], "sequences", lines[1])
    lines = holds("--cu-seqlens", "0,7,7,30", "--packed-positions", "--layout", "bshd", "--angles", "freqs")
    check("positions up to 29" in lines[1], "positions count through the stream", lines[1])
    for layout in ("contiguous", "zigzag", "striped", "flat"):
        for rank in range(2):
            cp = ["--cp-size", 2, "--cp-rank", rank, "--cp-layout", layout]
            lines = holds("--tokens", 12, *cp)
            # the highest position on this rank; both ranks together have 0 to 23
            last = {"contiguous": (11, 23), "zigzag": (23, 17), "striped": (22, 23), "flat": (11, 23)}[layout][rank]
            check("rank %d of 2, positions up to %d" % (rank, last) in lines[1], layout, lines[1])
            for padding in ("zero", "copy", "rotate"):
                packed = ["--heads", 3, "--k-heads", 1, "--head-dim", 32, "--padding", padding, *cp]
                for angles in ("inv_freq", "freqs"):
                    lines = holds("--cu-seqlens", "0,5,5,21", "--cu-seqlens-padded", "0,8,8,32", *packed, "--angles", angles)
                    check("tokens 16," in lines[0] and " 3 sequences," in lines[1], "ranks split padded sequences", lines)
                holds("--cu-seqlens", "0,8,8,24", "--tokens", 20, *packed, "--dtype", "f16", "--angles", "table", "--full",
                      "--packed-positions", "--pairing-out", "interleaved")


def heading_explains_columns():
    """The heading explains the columns."""
    lines = holds()
    text = " ".join(lines)
    for word in ("error: ", "bound: ", "dtype: "):
        check(word in text, "the heading explains", word, lines)
    check(lines[-2].split() == ["#", "check", "dtype", "error", "bound", "verdict"], "the columns have these names", lines)


def overflow_is_reported():
    """A result that overflows its dtype is not an error of the library. It is reported and not compared."""
    result = run("check", "--dtype", "f16", "--mscale", 1e6)
    check(result.returncode == 2, "overflow has status 2, not 1", result.returncode)
    check(result.stdout.count("OVERFLOW") == 4 and "FAILED" not in result.stdout, "four rows report it", result.stdout)
    check("beyond what f16 holds" in result.stdout, "a sentence explains it", result.stdout)
    check("do not compare all" in result.stderr and "1e+06" in result.stderr and "f16" in result.stderr, result.stderr)
    result = run("check", "--dtype", "f16", "--mscale", 300)  # the check of the inverse multiplies by mscale twice
    check(result.returncode == 2 and result.stdout.count("OVERFLOW") == 1, "one row reports it", result.stdout)
    holds("--dtype", "bf16", "--mscale", 1e6)
    for options in (["f32", "--mscale", 3e38], ["f16", "--mscale", 65504, "--rounding", "native"], ["bf16", "--mscale", -1e38]):
        result = run("check", "--dtype", *options)
        check(result.returncode == 2 and "OVERFLOW" in result.stdout, options, result.stdout)
        check("FAILED" not in result.stdout and "NAN" not in result.stdout, options, result.stdout)


def read_terminal(options, until, seconds=60):
    """Runs the command with a terminal as standard error, and stops it when `until` appears. Returns the text."""
    primary, secondary = pty.openpty()
    process = subprocess.Popen([TOOL, "check"] + options, stdout=subprocess.DEVNULL, stderr=secondary)
    os.close(secondary)
    text, end = "", time.monotonic() + seconds
    while until not in text and time.monotonic() < end:
        if not select.select([primary], [], [], 0.2)[0]:
            continue
        try:
            read = os.read(primary, 4096)
        except OSError:  # the command has ended
            break
        text += read.decode()
    process.kill()
    process.wait()
    os.close(primary)
    return text


def progress():
    text = read_terminal(LARGE, " of 168, ")
    check("\rcall " in text and "\n" not in text, "on a terminal, progress rewrites one line", repr(text))
    process = subprocess.Popen([TOOL, "check"] + LARGE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    process.kill()
    process.communicate()
    check(line.startswith("trope check: call ") and " of 168, " in line and "\r" not in line,
          "without a terminal, each progress report is a line", repr(line))
    check(read_terminal(SECONDS + ["--quiet"], "call", 120) == "", "--quiet prints no progress")
    check(run("check").stderr == "", "a short check prints no progress")


def refusals():
    refused(["--shape", "--heads"], "--shape", "1,2,3,4", "--heads", 3)
    refused(["--shape"], "--shape", "2,3,4")
    refused(["--full"], "--full")
    refused(["--mscale"], "--mscale", 1e300)
    refused(["--mscale"], "--mscale", 0)
    refused(["--seed", "twice"], "--seed", 1, "--seed", 1)
    refused(["--quiet", "twice"], "--quiet", "--quiet")
    refused(["--threads", "65536"], "--threads", 65536)
    refused(["--cp-rank", "missing"], "--cp-size", 2)
    refused(["--cp-size", "missing"], "--cp-layout", "zigzag", "--cp-rank", 0)
    refused(["--cp-rank"], "--cp-size", 2, "--cp-rank", 2, "--cp-layout", "zigzag")
    refused(["--padding", "--cu-seqlens"], "--padding", "zero")
    refused(["--packed-positions", "--cu-seqlens"], "--packed-positions")
    refused(["--cu-seqlens-padded", "--cu-seqlens"], "--cu-seqlens-padded", "0,4")
    refused(["--cu-seqlens", "boundaries"], "--cu-seqlens", "7,23")
    refused(["--cu-seqlens", "boundaries"], "--cu-seqlens", "0,7,5")
    refused(["--cu-seqlens"], "--cu-seqlens", "0")
    refused(["--cu-seqlens"], "--cu-seqlens", "0,a")
    refused(["--cu-seqlens-padded"], "--cu-seqlens", "0,4", "--cu-seqlens-padded", "0,4,8", "--padding", "zero")
    refused(["padding"], "--cu-seqlens", "0,4", "--tokens", 6)
    refused(["padding"], "--cu-seqlens", "0,4", "--cu-seqlens-padded", "0,6")
    refused(["--cu-seqlens", "--cp-size"], "--cu-seqlens", "0,5", "--cp-size", 2, "--cp-rank", 0, "--cp-layout", "striped")
    refused(["--cp-layout", "4"], "--cu-seqlens", "0,6", "--cp-size", 2, "--cp-rank", 0, "--cp-layout", "zigzag")
    refused(["batch"], "--cu-seqlens", "0,6", "--batch", 2)
    refused(["--axis-map"], "--axis-map", "sections")
    refused(["--seq-len"], "--seq-len", 4096)
    refused(["ranks"], "--cp-size", 2000000000, "--cp-rank", 5, "--cp-layout", "flat")


one_operand()
grouped_packed_and_split()
heading_explains_columns()
overflow_is_reported()
progress()
refusals()
harness.finish()
