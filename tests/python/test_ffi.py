"""python/trope/_abi.py declares structs and functions as any language without a C compiler must. The declarations match the
header and the library. The README's ctypes program, which declares nothing, has its own test (CMakeLists.txt)."""

import ctypes
import os
import re

import pytest
from trope import _abi

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "include", "trope", "trope.h")
with open(HEADER, encoding="utf-8") as file:
    TEXT = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_fields_match_the_header(name):
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), TEXT, re.S).group(1)
    declared = [part for line in body.split(";") for part in line.split(",") if part.strip()]
    fields = [re.search(r"(\w+)\s*(\[\w+\])?$", part.strip()).group(1) for part in declared]
    assert fields == [field[0] for field in _abi.STRUCTS[name]._fields_]


@pytest.mark.parametrize("change", ["size", "offset of reserved_too"])
def test_structs_that_differ_from_the_library_are_refused(monkeypatch, change):
    fields = list(_abi.Args._fields_)
    if change == "size":
        fields.append(("another", ctypes.c_int64))
    else:
        at = [name for name, _ in fields].index("d_freqs_layout")
        fields[at : at + 2] = fields[at + 1], fields[at]
    other = type("Other", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setitem(_abi.STRUCTS, "trope_args", other)
    with pytest.raises(ImportError, match="not have the same %s in trope_args" % change):
        _abi._compare_structs(_abi.lib, "this")


def test_names_that_the_library_lacks():
    assert _abi.lib.trope_sizeof(b"trope_nothing") == 0
    assert _abi.lib.trope_offsetof(b"trope_args", b"nothing") == -1


def test_declared_functions_match_the_header():
    declared = {}
    _abi._declare(type("Library", (), {"__getattr__": lambda self, name: declared.setdefault(name, type("F", (), {})())})())
    for name, function in declared.items():
        result, parameters = re.search(r"TROPE_API ([^;]*?)\b%s\(([^;]*)\);" % name, TEXT, re.S).groups()
        count = 0 if parameters.strip() == "void" else parameters.count(",") + 1
        assert len(function.argtypes) == count, name
        is_text = "char *" in result
        assert (function.restype is ctypes.c_char_p) == is_text, name
    assert len(declared) > 10
