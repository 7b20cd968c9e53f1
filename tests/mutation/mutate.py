"""Changes one line of the library at a time and runs tests until one fails, to find mistakes that no test detects.

    mutate.py --build BUILD --work DIR [--count 150] [--seed 1] [--jobs 1] [--list FILE] > RESULTS

BUILD is a build with the shared library and the tests. The tests run with each mutated library. DIR keeps these libraries.
Each line of RESULTS has "file:line", the old line, the new line and the outcome, separated by tabs. A change that does not
compile, or that produces the same library, is replaced by another change. --list repeats the changes of earlier RESULTS.
TROPE_TEST_SHARE=8 in the environment runs an eighth of the random calls (tests/support/seeds.h).
"""

import argparse
import concurrent.futures
import hashlib
import itertools
import os
import queue
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The files to change: validation, positions, offsets and the rotation.
FILES = """api/validate.c api/validate_memory.c api/layout.c api/positions.c core/overlap.c core/pairs.h core/rotate.h
    varlen/check.c varlen/context_parallel.h varlen/position.h varlen/token.h varlen/sequence_template.h
    varlen/position_source.h fwd/cpu/tokens_template.h fwd/cpu/pairs_template.h fwd/cpu/vector_rotate.h""".split()
# Pairs of a pattern and a replacement: comparisons, arithmetic, logic, conditions, constants, names, statements.
SWAPS = [
    (" < ", " <= "),
    (" < ", " > "),
    (" > ", " >= "),
    (" > ", " < "),
    (" <= ", " < "),
    (" >= ", " > "),
    (" == ", " != "),
]
SWAPS += [(" != ", " == "), (r" \+ ", " - "), (" - ", " + "), (r" \* ", " + "), (" / ", " * "), (" % ", " / ")]
SWAPS += [(" && ", " || "), (r" \|\| ", " && "), (r" \? ", " == 0 ? "), (r"(?<!\w)!(?=[\w(])", "")]
SWAPS += [(r"\bif \((.*)\)( {)?$", r"if (!(\1))\2")]
SWAPS += [(r"\b0\b", "1"), (r"\b1\b", "0"), (r"\b1\b", "2"), (r"\b2\b", "1"), (r"\b2\b", "3")]
for names in "batch tokens,DIM_GROUP DIM_HEAD,DIM_TOKEN DIM_BATCH,c1 c2,s1 s2,first last,begin end,src dst".split(","):
    one, other = names.split()
    SWAPS += [(r"(?<![a-z])%s\b" % one, other), (r"(?<![a-z])%s\b" % other, one)]
SWAPS += [(r"^(\s+)(?!\s|(?:return|const|static|typedef)\b|(?:u?int\w*|trope_\w+) \*?[a-z])[^;{}]*;$", r"\1;")]
# The tests that run with each mutated library. Quick tests that find many mistakes come first.
TESTS = ["^(api|recipes|frameworks|varlen)_", "^parity_", "^(gradcheck_|threads_first_bad|numerics_call|numerics_rules)"]
NO_TESTS = "^api_(abi|hardened|header|symbols)"
SECONDS = "240"  # the time limit of a test, because a mutant may loop forever


def changes_of(name):
    """For each line of a file that can be changed, yields a list of changes: [(path, line number, old line, new line)]."""
    text = (ROOT / "src" / name).read_text()
    # Comments and strings become spaces, so that no pattern is found in them.
    code = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    for number, (line, bare) in enumerate(zip(text.split("\n"), code.split("\n")), 1):
        matches = [(match, new) for pattern, new in SWAPS for match in re.finditer(pattern, bare) if bare[:1] != "#"]
        made = [line[: m.start()] + re.sub(m.re, new, line[m.start() :], count=1) for m, new in matches]
        if made:
            yield [("src/" + name, number, line, new) for new in made if new != line]


def choose(seed):
    """One random change for each line, in random order. A line with many possible changes is as likely as any other."""
    chooser = random.Random(seed)
    order = [chooser.choice(changes) for name in FILES for changes in changes_of(name) if changes]
    chooser.shuffle(order)
    return order


def read_list(results):
    """The changes of earlier results. If a line has moved, the nearest line with the same text is used."""
    for line in Path(results).read_text().splitlines():
        place, old, new, _ = line.split("\t")
        path, number = place.split(":")
        found = [n for n, text in enumerate((ROOT / path).read_text().split("\n"), 1) if text == old]
        if found:
            yield path, min(found, key=lambda n: abs(n - int(number))), old, new
        else:
            print("%s is gone: %s" % (place, old), file=sys.stderr)


def make_library(work, folder, change):
    """The path of the library with a change (None: no change), or None if the change does not compile. The library is built
    in work/folder, and kept under a hash of its sources."""
    sources = {
        p: p.read_text() for part in ["cmake", "include", "src"] for p in sorted((ROOT / part).rglob("*")) if p.is_file()
    }
    sources[ROOT / "CMakeLists.txt"] = (ROOT / "CMakeLists.txt").read_text()
    if change:
        lines = sources[ROOT / change[0]].split("\n")
        lines[change[1] - 1] = change[3]
        sources[ROOT / change[0]] = "\n".join(lines)
    kept = work / hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:16]
    if kept.exists():
        return next(kept.iterdir())
    for path, text in sources.items():
        copy = work / folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_text() != text:
            copy.write_text(text)
    options = ["-DTROPE_%s=OFF" % part for part in ["CUDA", "TESTS", "TOOLS", "EXAMPLES", "INSTALL"]]
    options.append("-DCMAKE_C_FLAGS_RELEASE=-O1")
    build = work / folder / "build"
    for command in [["-S", work / folder, "-B", build, *options], ["--build", build]]:
        if subprocess.run(["cmake", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return None
    kept.mkdir()
    return shutil.copy(build / "libtrope.so", kept / os.readlink(build / "libtrope.so"))


def run_tests(build, library):
    """The first test that fails with this library, or None."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(library.parent))
    for names in TESTS:
        command = ["ctest", "--stop-on-failure", "--timeout", SECONDS, "-R", names, "-E", NO_TESTS, "-LE", "long"]
        run = subprocess.run(command, cwd=build, env=environment, capture_output=True, text=True, errors="replace")
        if run.returncode:
            return re.search(r"FAILED:\n\s*\d+ - (\S+)", run.stdout)[1]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--work", type=lambda path: Path(path).resolve(), required=True)
    for name, default in [("count", 150), ("seed", 1), ("jobs", 1)]:
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--list", type=Path)
    arguments = parser.parse_args()
    os.nice(10)
    original = make_library(arguments.work, "build0", None)
    failed = run_tests(arguments.build, original)
    if failed:
        sys.exit("%s fails without a change" % failed)
    folders = queue.Queue()
    for job in range(arguments.jobs):
        folders.put("build%d" % job)

    def find_outcome(change):
        folder = folders.get()
        library = make_library(arguments.work, folder, change)
        outcome = None
        if library and library.read_bytes() != original.read_bytes():
            failed = run_tests(arguments.build, library)
            outcome = "caught by " + failed if failed else "survived"
        folders.put(folder)
        return outcome

    changes, left = iter(read_list(arguments.list) if arguments.list else choose(arguments.seed)), arguments.count
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        while left and (batch := list(itertools.islice(changes, left))):
            for (path, number, old, new), outcome in zip(batch, pool.map(find_outcome, batch)):
                if outcome:
                    left -= 1
                    print("%s:%d\t%s\t%s\t%s" % (path, number, old, new, outcome), flush=True)


main()
