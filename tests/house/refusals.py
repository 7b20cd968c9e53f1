#!/usr/bin/env python3
"""Checks that docs/semantics.md agrees with the header and the tests about wrong and forgotten fields.

    refusals.py ROOT

Under "What is refused":
- each argument of the table is a field of its struct in trope.h, and each status in parentheses is a status of trope.h;
- for each argument and each status of a row, a test expects such a refusal;
- each argument that a test expects to be refused with DATA or UNSUPPORTED is in the table with that status;
- each status of trope.h is in the section, except the status of the CUDA runtime.

Under "What cannot be caught": each field that tests/api/forgotten.c may forget is listed, and trope.h has all listed names.
"""

import glob
import os
import re
import sys

from checks import check, read, wrong

TESTS = ["tests/api/refused*.c", "tests/varlen/bad_data.c"]
STATUSES_OF_TESTS = {"IS_NULL": "NULL", "TOO_LARGE": "OVERFLOW"}  # tests/api/refused.h has its own names for these
STRUCTS = {"": "trope_args", "operands[i].": "trope_operand", "norms[i].": "trope_norm"}
VARIABLES = {"a": "", "q": "operands[i].", "k": "operands[i]."}  # in VALUES(valid(), a->field, ...)


def fields_of(header, struct):
    """Returns the members of a struct."""
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (struct, struct), header, flags=re.S)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    return set(re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body))


def general(argument):
    """Returns the argument as in the table: operands[i].src_stride for operands[0].src_stride[3]."""
    return re.sub(r"\[\d\]$", "", re.sub(r"^(operands|norms)\[\d\]", r"\1[i]", argument))


def refusals_of_tests(root):
    """Returns the pairs of argument and status that rows of the tests expect."""
    pairs = set()
    for path in sum((glob.glob(os.path.join(root, pattern)) for pattern in TESTS), []):
        text = read(root, path)
        for status, argument in re.findall(r'\b([A-Z_]+),\s*(?:at\()?"([^"]+)"', text):
            pairs.add((general(argument), STATUSES_OF_TESTS.get(status, status)))
        for argument in re.findall(r'\b(?:DATA|BOUNDARIES)_ROW\([^"]*"([^"]+)"', text):
            pairs.add((general(argument), "DATA"))
        for variable, field in re.findall(r"\bVALUES\(\w+\(\), ([aqk])->(\w+)", text):
            pairs.add((VARIABLES[variable] + field, "ARGUMENT"))
        for field in re.findall(r"\bNORM_VALUES\(\w+\(\), (\w+)", text):
            pairs.add(("norms[i]." + field, "ARGUMENT"))
    return pairs


def rows_of(text):
    """Yields the arguments and statuses of each row of the table."""
    for arguments, rules in re.findall(r"^\| (`.*?) \| (.*) \|$", text, flags=re.M):
        statuses = {(re.findall(r"\(([A-Z]+)\)$", rule) or ["ARGUMENT"])[0] for rule in rules.split("; ")}
        yield re.findall(r"`([^`]+)`", arguments), statuses


def check_refused(text, header, fields, tested):
    known, rows = set(re.findall(r"\bTROPE_ERROR_(\w+) = ", header)), list(rows_of(text))
    for arguments, statuses in rows:
        for argument in arguments:
            check(argument in fields, argument, "is not a field in trope.h")
            check(
                any((argument, status) in tested for status in statuses),
                argument,
                "is refused in no test with status:",
                *statuses,
            )
        for status in statuses:
            check(
                any((argument, status) in tested for argument in arguments),
                *arguments,
                "are refused in no test with status:",
                status,
            )
    for argument, status in sorted(tested):
        if argument in fields and status in ("DATA", "UNSUPPORTED"):
            check(any(argument in row[0] and status in row[1] for row in rows), argument, "has no row with status", status)
    named = set(re.findall(r"\(([A-Z]+)\)", text)) | {"ARGUMENT"}
    check(
        named == known - {"DEVICE"}, "statuses that are only in trope.h or only on the page:", named ^ (known - {"DEVICE"})
    )
    return len(rows)


def check_forgotten(text, root, names):
    entries = re.findall(r"^- .*?(?=^- |^\n)", text, flags=re.S | re.M)
    listed = set(re.findall(r"`(\w+)`", "".join(entries)))
    test = read(root, "tests/api/forgotten.c")
    forgettable = set(re.findall(r'"(\w+)"', re.search(r"forgettable\[\] = \{(.*?)\};", test, flags=re.S)[1]))
    check(forgettable <= listed, "What cannot be caught does not list:", forgettable - listed)
    check(listed <= names, "What cannot be caught lists names that are not in trope.h:", listed - names)
    return len(listed)


def main(root):
    header, page = read(root, "include/trope/trope.h"), read(root, "docs/semantics.md")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, flags=re.S | re.M))
    fields = {before + field for before, struct in STRUCTS.items() for field in fields_of(header, struct)}
    rows = check_refused(sections["What is refused"], header, fields, refusals_of_tests(root))
    listed = check_forgotten(sections["What cannot be caught"], root, set(re.findall(r"\w+", header)))
    for line in wrong:
        print(line)
    print("%d rows of refusals, %d fields that may be forgotten, %d wrong" % (rows, listed, len(wrong)))
    return bool(wrong) or rows < 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
