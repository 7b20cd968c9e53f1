"""A type checker (mypy, which CI has) knows what rotate returns and which arguments it requires."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
pytest.importorskip("torch")

HEAD = """\
import numpy as np
import torch
import trope
import trope.torch

x = np.zeros((4, 2, 3, 8), np.float32)
t = torch.zeros(4, 2, 3, 8)
f = trope.Frequencies([1.0])
"""
# Each line, and a part of its revealed type. mypy must refuse lines that begin with "trope".
LINES = {
    'reveal_type(trope.rotate(x, layout="sbhd", pairing="half", inv_freq=f))': "numpy.ndarray[",
    'reveal_type(trope.rotate(x, x, layout="sbhd", pairing="half", inv_freq=f))': "tuple[numpy.ndarray[",
    'reveal_type(trope.rotate(t, layout="sbhd", pairing="half", inv_freq=f))': "torch._tensor.Tensor",
    'reveal_type(trope.rotate_backward_(x, layout="sbhd", pairing="half", inv_freq=f))': "numpy.ndarray[",
    'reveal_type(trope.torch.rotate(t, layout="sbhd", pairing="half", inv_freq=f))': "torch._tensor.Tensor",
    'reveal_type(trope.torch.rotate_(t, t, layout="sbhd", pairing="half", inv_freq=f))': "tuple[torch._tensor.Tensor, ...]",
    'reveal_type(trope.torch.rotate_backward(t, layout="sbhd", pairing="half", inv_freq=f))': "torch._tensor.Tensor",
    'reveal_type(trope.torch.RotaryEmbedding(f, layout="sbhd")(t))': "torch._tensor.Tensor",
    'reveal_type(trope.torch.RotaryEmbedding(f, layout="sbhd")(t, t))': "tuple[torch._tensor.Tensor, ...]",
    'reveal_type(trope.rotate(x, layout="sbhd", pairing="half", inv_freq=f, norms=trope.Norm(x, eps=1)))': "numpy.ndarray[",
    'reveal_type(trope.torch.rotate(t, layout="sbhd", pairing="half", inv_freq=f, norms=torch.nn.RMSNorm(8)))': "Tensor",
    'trope.Norm(x)': "",
    'trope.Norm(x, eps=1e-6, scope="heads")': "",
    'trope.Norm(x, eps=1e-6, order="first")': "",
    'trope.rotate(x, pairing="half", inv_freq=f)': "",
    'trope.rotate(x, layout="sbhd", inv_freq=f)': "",
    'trope.rotate(x, x, layout="sbhd", inv_freq=f)': "",
    'trope.rotate_(x, layout="sbhd", inv_freq=f)': "",
    'trope.rotate_backward(x, pairing="half", inv_freq=f)': "",
    'trope.kernel_name(x, pairing="half", inv_freq=f)': "",
    'trope.rotate(x, layout="shbd", pairing="half", inv_freq=f)': "",
    'trope.rotate(x, layout="sbhd", pairing="neox", inv_freq=f)': "",
    'trope.rotate(x, layout="sbhd", pairing="half", inv_freq=f, positon_ids=x)': "",
    'trope.rotate(x, layout="sbhd", pairing="half", inv_freq=f, inverse="no")': "",
    'trope.torch.rotate(t, pairing="half", inv_freq=f)': "",
    'trope.torch.rotate(t, t, layout="sbhd", inv_freq=f)': "",
    'trope.torch.rotate_(t, layout="sbhd", inv_freq=f)': "",
    'trope.torch.rotate_backward_(t, layout="sbhd", inv_freq=f)': "",
    "trope.torch.RotaryEmbedding(f)": "",
}


def test_mypy(tmp_path):
    (tmp_path / "user.py").write_text(HEAD + "\n".join(LINES) + "\n")
    import trope

    folder = os.path.dirname(os.path.dirname(os.path.abspath(trope.__file__)))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        env={**os.environ, "MYPYPATH": folder}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert "[syntax]" not in done.stdout and not done.stderr, done.stdout + done.stderr
    of_package = [line for line in done.stdout.splitlines() if not line.startswith(("user.py", "Found"))]
    assert not of_package, "\n".join(of_package)
    told = {}
    for number, kind, text in re.findall(r"^user\.py:(\d+): (error|note): (.*)$", done.stdout, re.M):
        told.setdefault(int(number) - HEAD.count("\n") - 1, []).append((kind, text))
    for i, (line, wanted) in enumerate(LINES.items()):
        if wanted:
            ((kind, text),) = told[i]
            assert kind == "note" and wanted in text and "Any" not in text, (line, text)
        else:
            assert any(kind == "error" for kind, _ in told.get(i, [])), line
