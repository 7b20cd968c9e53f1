#!/usr/bin/env python3
"""Checks the machine code of the kernels for compute capability 9.0, without a GPU.

    machine_code.py LIBRARY [budget]    budget: also compares registers and instructions with BUDGET, which holds for nvcc
                                        13.0, and finds waits that make a kernel slow

Requires cuobjdump and nvdisasm, from NVIDIA's toolkit or from nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm on PyPI. Exits
with status 77 (skipped) without them, and for a library without such code.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

ARCHITECTURE = "sm_90"

# (a pattern of kernel names, the most registers, the most instructions) for all dtypes. The first matching pattern applies.
# Raise a number only after a measurement on a GPU: calls with few heads first wait for instructions.
BUDGET = [
    (r"rotate_kernel<\d,vectors,from-tokens", 40, 1950),
    (r"rotate_kernel<\d,vectors,read", 40, 1400),
    (r"rotate_kernel<\d,vectors,searched-generic", 40, 1900),
    (r"rotate_kernel<\d,vectors,searched", 40, 1280),
    (r"rotate_kernel<\d,vectors,any", 48, 3500),
    (r"rotate_kernel<\d,elements", 64, 4300),
    (r"rotate_alone_kernel", 48, 1180),
    (r"norm_kernel<\d,vectors,from-tokens,phase,after", 96, 2550),
    (r"norm_kernel<\d,vectors,any,any,after", 96, 6100),
    (r"norm_kernel<\d,vectors,searched-generic", 64, 3300),
    (r"norm_kernel<\d,vectors,(from-tokens|read,table|.*,tokens)", 64, 3300),
    (r"norm_kernel<\d,vectors,(read|searched)", 64, 2700),
    (r"norm_kernel<3,vectors,any", 64, 7500),
    (r"norm_kernel<\d,vectors,any", 96, 13000),
    (r"norm_gradient_kernel<\d,vectors,any", 128, 11600),
    (r"norm_gradient_kernel<\d,vectors,from-tokens,phase,after", 128, 2800),
    (r"norm_gradient_kernel<\d,vectors,(from-tokens|read)", 96, 2800),
    (r"norm_gradient_kernel<\d,vectors,searched,", 128, 3100),
    (r"norm_gradient_kernel<\d,vectors,searched-generic", 128, 3600),
    (r"norm_gradient_walk_kernel", 128, 11600),
    (r"token_gradient_kernel", 64, 3600),
    (r"norm_gradient_generic_kernel", 64, 12300),
    (r"norm_generic_kernel", 64, 7600),
    (r"sum_heads_kernel<\d,vectors", 64, 4600),
    (r"sum_heads_kernel<\d,elements", 88, 5100),
    (r"angle_gradient_kernel<\d,vectors", 80, 4600),
    (r"angle_gradient_kernel<\d,elements", 128, 9300),
    (r"", 64, 1500),
]

POSITIONS = ["from-tokens", "read", "searched", "searched-generic", "any"]


def find_tools():
    """Returns the folder that has both tools, or None."""
    folders = os.environ.get("PATH", "").split(os.pathsep) + ["/usr/local/cuda/bin"]
    folders.append(str(pathlib.Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"))
    for folder in folders:
        if all(shutil.which(tool, path=folder) for tool in ("cuobjdump", "nvdisasm")):
            return folder
    return None


def run(folder, *arguments):
    environment = dict(os.environ, PATH=folder + os.pathsep + os.environ.get("PATH", ""))
    return subprocess.run(
        [os.path.join(folder, "cuobjdump"), "-arch", ARCHITECTURE, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    ).stdout


def readable(symbol):
    """Returns the name of a kernel as KERNEL<DTYPE,...>. The template arguments are named as in BUDGET."""
    name = re.match(r"_Z[L]?(\d+)", symbol)
    if not name:
        return symbol
    start = name.end()
    kernel = symbol[start : start + int(name[1])]
    arguments = [int(value) for value in re.findall(r"L[ib](\d+)E", symbol)]
    if len(arguments) < 2:
        return f"{kernel}<{arguments[0]}>" if arguments else kernel
    if kernel == "norm_gradient_walk_kernel":
        return f"{kernel}<{arguments[0]}>"
    if kernel in ("norm_kernel", "norm_gradient_kernel"):
        dtype, positions, angles = arguments[:3]
        order = ",after" if arguments[3:] == [2] else ",tokens" if "token_norm" in symbol else ""
        return f"{kernel}<{dtype},vectors,{POSITIONS[positions]},{['phase', 'table', 'any'][angles]}{order}>"
    dtype, flag = arguments[:2]
    kind = ["elements", "vectors"][flag]
    if len(arguments) > 2:
        kind += f",{POSITIONS[arguments[2]]},{['phase', 'table', 'any'][arguments[3]]}"
    return f"{kernel}<{dtype},{kind}>"


class Instruction:
    """One line of cuobjdump -sass. The control bits of its encoding give the scoreboard that its result sets, if any, and
    the scoreboards that it waits for."""

    def __init__(self, text, upper_half):
        self.text = text.strip()
        control = int(upper_half, 16) >> 41
        self.sets = control >> 5 & 7
        self.waits = {scoreboard for scoreboard in range(6) if control >> 11 >> scoreboard & 1}


def read_kernels(folder, library):
    """Returns the instructions of each kernel and its number of registers."""
    kernels, current, text = {}, None, None
    for line in run(folder, "-sass", library).splitlines():
        function = re.search(r"Function : (\S+)", line)
        first_half = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/", line)
        second_half = re.match(r"\s+/\* (0x[0-9a-f]{16}) \*/", line)
        if function:
            current = kernels.setdefault(function[1], {"code": [], "registers": 0})
        elif current is not None and first_half:
            text = first_half[1]
        elif current is not None and second_half and text is not None:
            current["code"].append(Instruction(text, second_half[1]))
            text = None
    for symbol, registers in re.findall(r"Function (\S+):\s*\n?\s*REG:(\d+)", run(folder, "-res-usage", library)):
        if symbol in kernels:
            kernels[symbol]["registers"] = int(registers)
    for kernel in kernels.values():
        kernel["instructions"] = sum(instruction.text != "NOP" for instruction in kernel["code"])
    return kernels


def waits_for_data(code):
    """Returns the first instruction that waits for the data (the streaming vectors) before coefficients are stored in
    shared memory. CALL instructions do not count: they are rare and wait for all loads."""
    scoreboards = set()
    for instruction in code:
        if instruction.text.startswith("STS"):
            return None
        if "LDG.E.EF.128" in instruction.text:
            scoreboards.add(instruction.sets)
        elif instruction.waits & scoreboards and "CALL" not in instruction.text:
            return instruction.text
    return None


def waits_before_barrier(code):
    """Returns the first instruction before the first barrier that waits for a parameter that an LD instruction loads from
    memory. The warp that searches for positions would wait there too, and the other warps would wait for this warp."""
    scoreboards = set()
    for instruction in code:
        if instruction.text.startswith("BAR"):
            return None
        if instruction.waits & scoreboards:
            return instruction.text
        if instruction.text.startswith("LD.E"):
            scoreboards.add(instruction.sets)
    return None


def faults(name, kernel, has_budget):
    if any(re.search(r"\bYIELD\b", instruction.text) for instruction in kernel["code"]):
        yield "has YIELD: after a loop with an atomic operation or a volatile load, threads of a warp may diverge"
    if not kernel["registers"]:
        yield "has no line in cuobjdump -res-usage"
    if not has_budget:
        return
    registers, instructions = next((r, i) for pattern, r, i in BUDGET if re.match(pattern, name))
    for what, limit in (("registers", registers), ("instructions", instructions)):
        if kernel[what] > limit:
            yield f"has {kernel[what]} {what}, more than {limit}"
    if re.match(r"(rotate|angle_gradient)_kernel<\d,vectors", name) and waits_for_data(kernel["code"]):
        yield f"waits for the data before the coefficients: {waits_for_data(kernel['code'])}"
    if re.match(r"rotate_kernel<\d,vectors,searched", name) and waits_before_barrier(kernel["code"]):
        yield f"waits for a parameter before the barrier of positions: {waits_before_barrier(kernel['code'])}"


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["budget"]):
        sys.exit("usage: machine_code.py LIBRARY [budget]")
    folder = find_tools()
    if folder is None:
        print("cuobjdump and nvdisasm were not found")
        sys.exit(77)
    kernels = read_kernels(folder, sys.argv[1])
    if not kernels:
        print(f"{sys.argv[1]} has no machine code for {ARCHITECTURE}")
        sys.exit(77)
    failed = 0
    for symbol, kernel in sorted(kernels.items(), key=lambda item: readable(item[0])):
        name = readable(symbol)
        print(f"{name:60} {kernel['registers']:4} registers {kernel['instructions']:6} instructions")
        for fault in faults(name, kernel, len(sys.argv) == 3):
            print(f"FAILED: {name} {fault}")
            failed += 1
    print(f"{len(kernels)} kernels, {failed} faults")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
