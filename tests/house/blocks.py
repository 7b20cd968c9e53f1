"""Checks that a test runs every program and command in the documentation, or that this file lists the reason why not. The
documentation must show everything that is listed here.

    blocks.py ROOT [TOOL]    TOOL is the trope command line, if it was built
"""

import collections
import os
import re
import subprocess
import sys

from checks import check, read, wrong

# The fenced blocks of each page and language: their number, and the tests that run them.
PROGRAMS = {
    ("README.md", "c"): (1, "api_readme"),
    ("README.md", "text"): (1, "api_readme: the output of the program above"),
    ("README.md", "python"): (3, "python_readme, python_readme_ctypes"),
    ("docs/recipes.md", "c"): (14, "recipes_NAME; tests/recipes/CMakeLists.txt counts them"),
}

INSTALLS, LONG = "installs and builds", "takes minutes or hours"
GPU, CLUSTER, FILES = "needs a GPU", "needs MPI or several machines", "needs the reader's files"
HERE = "run here"
COMMANDS = {
    # README.md
    "tools/quickstart": INSTALLS,
    "tools/test": INSTALLS,
    "pip install .": INSTALLS + "; .ci/run makes and installs a wheel",
    "cmake -S . -B build && cmake --build build -j && cmake --install build --prefix PREFIX": INSTALLS + "; package",
    "python -m trope apply IN.safetensors -o OUT.safetensors": "python_apply_files",
    "trope bench": LONG + "; tools_commands runs cases of it",
    "trope check": HERE,
    "trope info": HERE,
    "trope_multigpu": GPU,
    "mpirun -n 16 ... trope_multigpu": CLUSTER,
    "trope_multigpu --device cpu": "multigpu_threads_4",
    # docs/command-line.md
    "python -m trope apply dump.safetensors -o rotated.safetensors --layout bshd --pairing half --rope-theta 500000":
        FILES + "; python_apply_reads",
    "python -m trope apply dump.safetensors --expect framework.safetensors --layout bshd --config Llama-3.1-8B/":
        FILES + "; python_apply_config",
    "python -m trope apply dump.safetensors -o out.safetensors --layout bshd --config Llama-3.1-8B/config.json":
        FILES + "; python_apply_config",
    "python -m trope apply dump.safetensors -o out.safetensors --layout bshd --config gemma-3-12b-it/ --layer-type "
    "sliding_attention":
        FILES + "; python_apply_config",
    "trope check --shape 1,256,32,128 --k-heads 8 --dtype bf16": HERE,
    "trope check --cu-seqlens 0,5,5,21 --cu-seqlens-padded 0,8,8,32 --padding zero --cp-size 2 --cp-rank 1 --cp-layout zigzag":
        HERE,
    # CONTRIBUTING.md
    "tools/test -L emulated": INSTALLS,
    "tools/test -L python": INSTALLS,
    ".ci/run": LONG,
    "tools/release": LONG,
    "cmake --preset asan": LONG + "; .ci/run does so",
    # docs
    "python3 tests/mutation/mutate.py --build build --work build/mutants --jobs 8 > before.txt": LONG,
    "trope bench --device cpu": LONG,
    "trope bench --device cuda": GPU,
    "trope bench --list --device cuda": HERE,
    "trope bench --call 'TEXT'": "tools_commands",
    "trope bench --only thd": LONG,
    "trope bench --only heads-8/ --repeat 51": LONG,
    "trope bench --json > result.json": LONG,
    "trope bench --save result.json": LONG,
    "python3 bench/tables.py bench/results/h100.json f32": "tools_results",
    "python3 bench/tables.py --summary bench/results/h100.json": "tools_results",
    "python3 bench/tables.py --summary bench/results/frameworks-h200.json": "tools_results",
    "python3 bench/plot.py result.json docs/cuda-ratio.svg": "needs matplotlib",
    "python3 bench/interleave.py build/tools/trope OLD NEW": LONG + "; tools_interleave runs it with known numbers",
    "tests/cuda/prove build out": GPU,
    "python3 bench/frameworks.py --json bench/results/frameworks-h200.json": GPU,
    "python3 bench/frameworks.py --only layers --device cpu": "python_frameworks",
    "python3 hub/make.py build/libtrope.so dist/hub --local": "python_hub",
    "python3 bench/compare.py --json bench/results/compare-h100.json": GPU + "; python_compare runs it on the CPU",
    "python3 bench/compare.py --from bench/results/compare-h100.json --markdown": "python_compare",
    "python3 bench/compare.py --device cuda --only norm-": GPU,
    "python3 bench/compare.py --device cuda --only jax": GPU,
    "mpirun -n 16 -H node1:8,node2:8 trope_multigpu": CLUSTER,
    "srun -N 2 --ntasks-per-node 8 trope_multigpu": CLUSTER,
    "torchrun --nnodes 2 --nproc-per-node 8 --no-python \\": CLUSTER,
    "trope_multigpu --device cpu --ranks 4": "multigpu_threads_4",
    "mpirun -n 4 trope_multigpu --device cpu": "multigpu_mpi",
    "ctest --test-dir build -L numerics": "runs tests",
    "cmake -DTROPE_LONG_TESTS=ON build && ctest --test-dir build -L long": LONG,
    "cmake --preset fuzz && cmake --build build-fuzz --target fuzz -j": LONG + "; .ci/run does so",
    "tests/fuzz/run": LONG,
    # examples/README.md
    "cmake -S . -B build && cmake --build build -j --target train_packed && build/examples/train_packed": "example_training",
    "build/examples/train_packed --text FILE": FILES,
    "python3 examples/torch_train_packed.py --plot loss.svg": "example_torch_train_packed, without a plot, which needs matplotlib",
    "python3 examples/jax_train_packed.py": "example_jax_train_packed",
    "python3 examples/megatron_style.py --tp 2 --cp 2": "example_megatron_style",
    "torchrun --nproc-per-node 8 examples/megatron_style.py --device cuda --tp 4 --cp 2": GPU,
    "python3 examples/transformers_patch.py": "example_transformers_patch",
    "python3 examples/transformers_patch.py --device cuda --dtype bfloat16 --size small [--compile]": GPU,
}

PAGES = ["README.md", "CONTRIBUTING.md", "examples/README.md"]
COMMAND = r"(trope|trope_multigpu|mpirun|srun|torchrun|cmake|ctest|pip|python3?|(\.ci|tools|tests|build)/\w\S*)( [-a-z.]|$)"


def commands_of(text):
    """Yields the commands in indented blocks. Two spaces or a # end a command and begin its explanation."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for block in re.findall(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n)+", text):
        for line in block.splitlines():
            command = re.split(r"  +| # ", line.strip())[0]
            if re.match(COMMAND, command):
                yield command


def check_pages(root):
    blocks, shown = collections.Counter(), set()
    docs = ["docs/" + name for name in sorted(os.listdir(os.path.join(root, "docs"))) if name.endswith(".md")]
    for page in PAGES + docs:
        text = read(root, page)
        blocks.update((page, language) for language in re.findall(r"^```(\w+)$", text, flags=re.M))
        for command in commands_of(text):
            shown.add(command)
            check(command in COMMANDS, page, "shows a command that is not listed here:", command)
    for key in set(blocks) | set(PROGRAMS):
        if key[1] == "python" and key[0] != "README.md":
            continue  # python_readme runs the Python blocks of all pages
        known = PROGRAMS.get(key, (0, ""))[0]
        check(blocks[key] == known, *key, "blocks:", blocks[key], "are on the page, and", known, "are listed here")
    for command in set(COMMANDS) - shown:
        check(False, "no page shows this command, which is listed here:", command)
    return len(shown), sum(blocks.values())


def run_here(tool):
    for command in (command for command, how in COMMANDS.items() if how == HERE):
        result = subprocess.run([tool, *command.split()[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(result.returncode == 0, command, "exits with status", result.returncode, result.stdout.decode()[-300:])


def main(root, tool=None):
    commands, blocks = check_pages(root)
    if tool:
        run_here(tool)
    for line in wrong:
        print(line)
    print("%d commands, %d programs, %d wrong" % (commands, blocks, len(wrong)))
    return bool(wrong)


sys.exit(main(*sys.argv[1:]))
