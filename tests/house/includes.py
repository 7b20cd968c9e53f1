#!/usr/bin/env python3
"""Checks that includes point down only: api > bwd > fwd > jit > varlen > core > include/trope.

    includes.py SOURCE_DIRECTORY    the directory that contains src/

A file of src/ may include files of its own layer (see FLOORS) and of the layers below it. Only CUDA code (in a folder
cuda/, or a .cu file) may include files of a folder cuda/. CUDA code must not include files of a folder cpu/.
"""
import pathlib
import re
import sys

FLOORS = ["trope", "core", "varlen", "jit", "fwd", "bwd", "api"]  # from bottom to top


def faults(name, included):
    """Yields the errors of one include in the file src/`name`."""
    floor, of = name.parts[0], included.parts[0]
    if floor not in FLOORS or of not in FLOORS:
        yield f"{of if floor in FLOORS else floor}/ is not one of the FLOORS"
    elif FLOORS.index(of) > FLOORS.index(floor):
        yield f"{floor} is below {of}"
    is_cuda = "cuda" in name.parts or name.suffix == ".cu"
    if "cuda" in included.parts and not is_cuda:
        yield "only CUDA code may include files of cuda/"
    if "cpu" in included.parts and is_cuda:
        yield "CUDA code must not include files of cpu/"


def main():
    source = pathlib.Path(sys.argv[1]) / "src"
    files = sorted(f for f in source.rglob("*") if f.suffix in {".c", ".h", ".cu", ".cuh"})
    count = bad = 0
    for file in files:
        name = file.relative_to(source)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            count += 1
            for fault in faults(name, pathlib.PurePosixPath(match[1])):
                bad += 1
                print(f'src/{name}:{number}: includes "{match[1]}": {fault}')
    print(f"{len(files)} files, {count} includes, {bad} not allowed")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
