"""Runs an example for ctest:

    run_example.py NAME MODULE[,MODULE ...] FILE [ARGUMENT ...]

If modules are missing, it names them as run_pytest.py does and exits with status 77.
"""

import os
import sys

from run_pytest import SKIPPED, lacks


def run(name, modules, *command):
    modules = modules.split(",")
    if lacks(name, modules, "jax" if "jax" in modules else "torch"):
        return SKIPPED
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
