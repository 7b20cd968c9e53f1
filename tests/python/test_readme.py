"""Runs the Python programs of the README, on each device, and of docs/."""

import os
import re

import pytest

torch = pytest.importorskip("torch")

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
with open(README, encoding="utf-8") as file:
    BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", file.read(), re.S) if "ctypes" not in block]


DOCS = os.path.join(os.path.dirname(README), "docs")
PAGES = {}
for name in sorted(os.listdir(DOCS)):
    if name.endswith(".md"):
        with open(os.path.join(DOCS, name), encoding="utf-8") as file:
            for number, block in enumerate(re.findall(r"```python\n(.*?)```", file.read(), re.S)):
                PAGES["%s-%d" % (name, number)] = block


def test_readme_has_two_programs():
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
def test_program_of_readme(block, device):
    names = {}
    exec(block.replace('device="cpu"', 'device="%s"' % device), names)
    if "y" in names:
        assert names["q"].grad.device.type == device and names["k"].grad.abs().sum() > 0
    else:
        assert callable(names["apply_rotary_emb"])


@pytest.mark.parametrize("block", PAGES.values(), ids=PAGES.keys())
def test_program_of_docs(block):
    names = {}
    try:
        exec(block, names)
    except ImportError as error:
        if str(error.name).startswith("trope"):
            raise
        pytest.skip(str(error))
    if "handle" in names:
        names["handle"].undo()
