#!/usr/bin/env python3
"""The programs of rotations compile, and their machine code is small. Needs no GPU.

    programs.py FOLDER JIT_PROGRAMS

The test emulated_parity has drawn calls by a seed and written the program of each kind of calls to FOLDER. JIT_PROGRAMS
compiles them with NVRTC for compute capability 9.0. Then they are removed. Exits with status 77 (skipped) without NVRTC;
without NVIDIA's cuobjdump, only compilation is tested.
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cuda"))
import machine_code

LEAST_PROGRAMS = 25
MOST_REGISTERS = 64  # 48 in blocks of 64 threads and more
MOST_INSTRUCTIONS = 1500
MOST_STACK = 64  # bytes of a thread that do not fit into registers


def find_faults(tools, cubin):
    """Yields what is too large in the machine code of a program."""
    usage = machine_code.run(tools, "-res-usage", str(cubin))
    registers, stack = (int(re.search(name + r":(\d+)", usage).group(1)) for name in ("REG", "STACK"))
    code = machine_code.run(tools, "-sass", str(cubin))
    instructions = len(re.findall(r"^\s+/\*[0-9a-f]{4}\*/", code, re.M))
    threads = int(re.search(r"__launch_bounds__\((\d+)", cubin.with_suffix(".cu").read_text()).group(1))
    for name, value, most in (
        ("registers", registers, MOST_REGISTERS if threads < 64 else 48),
        ("bytes of stack", stack, MOST_STACK),
        ("instructions", instructions, MOST_INSTRUCTIONS),
    ):
        if value > most:
            yield f"{value} {name}, more than {most}"


def main():
    folder, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    try:
        return check_programs(folder, compiler)
    finally:
        for path in [*folder.glob("*.cu"), *folder.glob("*.cubin")]:
            path.unlink()


def check_programs(folder, compiler):
    count = len(list(folder.glob("*.cu")))
    if count < LEAST_PROGRAMS:
        print(f"FAILED: only {count} programs were drawn")
        return 1
    done = subprocess.run([compiler, str(folder)], text=True, stdout=subprocess.PIPE)
    print(done.stdout, end="")
    if done.returncode:
        return done.returncode
    tools, failed = machine_code.find_tools(), 0
    for cubin in sorted(folder.glob("*.cubin")) if tools else ():
        for fault in find_faults(tools, cubin):
            print(f"FAILED: {cubin.name} has {fault}:\n{cubin.with_suffix('.cu').read_text()}")
            failed += 1
    print(f"{count} cubins, {failed} faults" + ("" if tools else "; no cuobjdump"))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
