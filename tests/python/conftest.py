"""For pytest by hand, `.venv/bin/pytest tests/python`: this checkout's package and the library in build/. What PYTHONPATH,
an installed trope and TROPE_LIBRARY say goes first; ctest says them (CMakeLists.txt)."""

import importlib.util
import os
import sys

import pytest

if importlib.util.find_spec("trope") is None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.join(root, "python"))
    # Some tests start an interpreter of their own.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("TROPE_LIBRARY", os.path.join(root, "build", "libtrope.so"))


@pytest.fixture
def launches(monkeypatch):
    """The numbers of operands of the calls of the library that trope.torch makes."""
    from trope.torch import _launch

    counts, launch = [], _launch.launch

    def count(backward, spec, srcs, *rest):
        counts.append(len(srcs))
        launch(backward, spec, srcs, *rest)

    monkeypatch.setattr(_launch, "launch", count)
    return counts
