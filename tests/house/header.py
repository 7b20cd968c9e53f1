#!/usr/bin/env python3
"""Checks that the public header is short enough to read at once: at most 600 lines of at most 100 columns.

    header.py HEADER
"""
import sys

LINES, COLUMNS = 600, 100


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    wide = [(number, len(line)) for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
    for number, columns in wide:
        print(f"{path}:{number}: {columns} columns, but at most {COLUMNS} are allowed")
    if len(lines) > LINES:
        print(f"{path}: {len(lines)} lines, but at most {LINES} are allowed")
    print(f"{len(lines)} lines, the widest has {max(map(len, lines))} columns")
    return 1 if wide or len(lines) > LINES else 0


if __name__ == "__main__":
    sys.exit(main())
