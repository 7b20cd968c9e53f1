"""Lets `.venv/bin/pytest tests/python` find this checkout's package and the library in build/. PYTHONPATH, an installed
trope and TROPE_LIBRARY take precedence. ctest sets PYTHONPATH and TROPE_LIBRARY (tests/support/python.cmake)."""

import importlib.util
import os
import sys

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products with the same bits each time, for default_device

if importlib.util.find_spec("trope") is None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.join(root, "python"))
    # For tests that start a Python interpreter.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("TROPE_LIBRARY", os.path.join(root, "build", "libtrope.so"))


@pytest.fixture
def default_device():
    """In a test with this fixture, PyTorch makes tensors on the GPU, if there is one, and adds in a fixed order there."""
    import torch
    from checks import DEVICE

    if DEVICE == "cpu":
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_default_device(DEVICE)
    yield
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def launches(monkeypatch):
    """A list that receives the number of operands of each library call that trope.torch makes."""
    from trope.torch import _launch

    counts, launch = [], _launch.launch

    def count(backward, spec, srcs, *rest):
        counts.append(len(srcs))
        launch(backward, spec, srcs, *rest)

    monkeypatch.setattr(_launch, "launch", count)
    return counts
