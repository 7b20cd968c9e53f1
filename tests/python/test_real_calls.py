"""bench/real_calls.py on the CPU: the programs make calls, and become cases of the bench with names of their own."""

import importlib.util
import io
import os
import re
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import real_calls  # noqa: E402

TOKENS = 64


def write(*names):
    """Returns {name of a case: text}."""
    file = io.StringIO()
    real_calls.write_cases(names, "cpu", TOKENS, file)
    lines = [re.fullmatch(r'\{"(.*)", "(.*)"\},', line).groups() for line in file.getvalue().splitlines()]
    assert len(dict(lines)) == len(lines)
    return dict(lines)


def test_each_kind_is_one_case(capsys):
    cases = write("flash-attention-llama3-8b", "flash-attention-llama3-8b", "te-llama3-8b-qkv")
    flash, qkv = "real-flash-attention-llama3-8b", "real-te-llama3-8b-qkv"
    assert list(cases) == [flash, flash + "-bwd", flash + "-2", flash + "-bwd-2", qkv, qkv + "-bwd"]
    for name, text in cases.items():
        assert text.split()[0] == ("backward" if "-bwd" in name else "forward") and " tokens=%d " % TOKENS in text
    assert "6 cases; 0 of 3 programs left out" in capsys.readouterr().err


def fail(device, tokens):
    raise ImportError("no such\npackage")


@pytest.mark.parametrize("make, reason", [(fail, "ImportError: no such\n"), (lambda *_: int, "RuntimeError: the program")])
def test_programs_that_make_no_calls_are_named(make, reason, monkeypatch, capsys):
    monkeypatch.setitem(real_calls.PROGRAMS, "bad", make)
    assert len(write("bad", "te-llama3-8b-qkv")) == 2
    assert "# left out: bad: " + reason in capsys.readouterr().err


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not there")
@pytest.mark.parametrize("name", ["qwen3-30b-a3b-norms", "gpt-oss-20b"])
def test_models_of_transformers(name):
    cases = write(name)
    assert list(cases) == ["real-" + name, "real-%s-bwd" % name]
    assert all(("norm" in text) == ("norms" in name) for text in cases.values())


@pytest.mark.skipif(not importlib.util.find_spec("megatron"), reason="Megatron-Core is not there")
def test_layers_of_megatron():
    """Tables of packed sequences have the rows of the longest sequence, and backward computes the gradient of the norms."""
    packed, backward = write("megatron-qwen3-4b-norms-thd-cp4"), "real-megatron-qwen3-4b-norms-thd-cp4-bwd"
    assert len(packed) == 4 and " d_weight" in packed[backward]
    for text in packed.values():
        assert " angle_rows=32 " in text and " sequences=8 " in text and " cp_size=4 cp_rank=1 " in text and " norm" in text
    assert len(write("megatron-deepseek-v3")) == 4
