"""Runs one test file with pytest, for ctest. Names each skipped test with its reason. Exits with status 77 if no test ran,
because pytest, NumPy or the tested framework is missing.

    run_pytest.py FILE [ARGUMENT OF PYTEST ...]

ctest hides the output of a test that passes. So each test function with skipped cases also gets a line in the file that
TROPE_SKIPPED_TESTS names, which .ci/run prints.
"""

import collections
import importlib.util
import os
import sys

SKIPPED = 77


class Outcomes:
    """A pytest plugin that counts the tests that ran, and the skipped tests by function and reason."""

    def __init__(self):
        self.ran = 0
        self.skipped = collections.Counter()

    def skip(self, report):
        function = report.nodeid.partition("::")[2].partition("[")[0]
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self.skipped[function, reason.removeprefix("Skipped: ")] += 1

    def pytest_collectreport(self, report):
        if report.skipped:  # the whole file
            self.skip(report)

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skip(report)
        elif report.when == "call" or report.failed:
            self.ran += 1


def tell(name, skipped):
    path = os.environ.get("TROPE_SKIPPED_TESTS")
    lines = ["%s: %s\n" % (": ".join(filter(None, (name, function))), reason if count == 1 else "%s (%d)" % (reason, count))
             for (function, reason), count in skipped.items()]
    if path and lines:
        with open(path, "a") as file:  # other test files append at the same time, so write at once
            file.write("".join(lines))


def lacks(name, modules, way):
    """Returns whether modules are missing, and prints their names. `way`: the argument of tools/install_python that
    installs them."""
    lacking = [module for module in modules if importlib.util.find_spec(module) is None]
    if lacking:
        reason = "%s lacks %s: tools/install_python %s" % (sys.executable, " and ".join(lacking), way)
        print("skipped: " + reason)
        tell(name, {("", reason): 1})
    return bool(lacking)


def run(arguments):
    name = "python_" + os.path.basename(arguments[0]).removeprefix("test_").removesuffix(".py")
    if lacks(name, ("pytest", "numpy"), "test"):
        return SKIPPED
    import pytest

    outcomes = Outcomes()
    status = pytest.main(["-q", "-rs", "-p", "no:cacheprovider", *arguments], plugins=[outcomes])
    tell(name, outcomes.skipped)
    nothing_ran = status == pytest.ExitCode.NO_TESTS_COLLECTED or (status == pytest.ExitCode.OK and not outcomes.ran)
    return SKIPPED if nothing_ran else int(status)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
