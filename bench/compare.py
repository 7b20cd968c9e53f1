"""Compares this library with eager PyTorch, torch.compile and other installed libraries in one run.

    python3 bench/compare.py                              all cases, on the GPU
    python3 bench/compare.py --only llama-3-8b/ --json result.json --plot result.svg
    python3 bench/compare.py --only host                  the time of the host alone
    python3 bench/compare.py --from result.json --plot docs/compare.svg
    python3 bench/compare.py --from result.json --markdown
    python3 bench/compare.py --device cpu                 small shapes, checked and not timed

A case is the shape of a model, forward or backward. A way is a library and one of its methods to rotate. bench/peers.py
lists both. Each result is compared with float64 before it is timed. A wrong result is marked WRONG and not timed. If a
library raises an exception, its row has the error.

JAX is measured by bench/jax_calls.py, which says how, after all others. The rest is for the other libraries.

The time of a call is the replay time of a CUDA graph, divided by its number of calls: the median of the rounds. A way that
cannot be captured is called in a loop and marked "no graph": its time may be that of the host. Successive calls use
different sets of memory, of over four times the L2 in all, and each result is kept until its set is used again. The
yardstick is the best of several copies of the same number of bytes; its rounds alternate with those of each way. All ways
count bytes in the same way: each whole input tensor is read once and each output is written once. Tables do not count. So
a way that works in place on a part of a tensor, or keeps lines in the cache, can be faster than the copy.

Exit status: 1 if a result is wrong, or if this library raises.
"""

import argparse
import functools
import gc
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
if importlib.util.find_spec("trope") is None:  # falls back to this checkout; PYTHONPATH and installed packages come first
    sys.path.insert(1, os.path.join(HERE, "..", "python"))
    os.environ.setdefault("TROPE_LIBRARY", os.path.join(HERE, "..", "build", "libtrope.so"))

import peers  # noqa: E402

import trope  # noqa: E402

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

LIMIT = 2.0**-6  # bound on error / largest element; rounding of bf16 tables, products and sums stays below 2^-7
MB = 10**6
BYTES_OF_A_REPLAY = 4 * 10**9
MOST_CALLS = 512
HOST_CALLS, HOST_TOKENS = 200, 16
DIRECTIONS = ("forward", "backward")
JAX = [sys.executable, os.path.join(HERE, "jax_calls.py")]  # its process

# ---- Copies ----

if triton:

    @triton.jit
    def _copy_kernel(source, target, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
        if EARLY:
            tl.extra.cuda.gdc_wait()
        i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(source + i, mask=i < size, eviction_policy="evict_first")
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        tl.store(target + i, x, mask=i < size, eviction_policy="evict_first")


def _triton_copy(block, warps, early):
    more = {"launch_pdl": True} if early else {}

    def copy(source, target):
        grid = (triton.cdiv(source.numel(), block),)
        _copy_kernel[grid](source, target, source.numel(), BLOCK=block, EARLY=early, num_warps=warps, **more)

    return copy


def copies():
    """Returns {name: copy(source, target)} for int32 tensors. The result of a copy is kept like the results of ways."""
    found = {
        "copy_": lambda source, target: target.copy_(source),
        "clone": lambda source, target: source.clone(),
        "elementwise": lambda source, target: torch.bitwise_not(source, out=target),
    }
    if triton:
        for early in (False, True):
            for block, warps in ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8)):
                name = "triton %dx%d%s" % (block, 32 * warps, ", early" if early else "")
                found[name] = _triton_copy(block, warps, early)
    return found


# ---- Time on the GPU ----


class Loop:
    """Makes the calls one after the other if they cannot be captured in a graph."""

    def __init__(self, calls, count):
        self.calls, self.count = calls, count

    def replay(self):
        kept = [None] * len(self.calls)
        for i in range(self.count):
            kept[i % len(kept)] = self.calls[i % len(kept)]()


def capture(calls, count):
    """Captures a graph that cycles through `calls` until it has `count` calls. Run this on a side stream on which each
    call has run before."""
    kept = [None] * len(calls)  # keeps the last result of each call, so that there are as many outputs as sources
    gc.disable()  # it might free CUDA objects, which is not allowed during a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin()
        try:
            for i in range(count):
                kept[i % len(kept)] = calls[i % len(kept)]()
        except BaseException:
            _end_quietly(graph)
            raise
        graph.capture_end()
    finally:
        gc.enable()
    return graph


def _end_quietly(graph):
    try:
        graph.capture_end()
    except RuntimeError:
        pass


class Gpu:
    """Measures on a separate stream. Keeps a Yardstick for each number of bytes."""

    def __init__(self, rounds):
        self.rounds, self.device = rounds, "cuda"
        self.stream = torch.cuda.Stream()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.l2 = getattr(properties, "L2_cache_size", 0) or 64 * MB
        self.machine = "%s, L2 %d MB, %d multiprocessors" % (
            properties.name, self.l2 // MB, properties.multi_processor_count)  # fmt: skip
        self.yardsticks = {}

    def count_sets(self, size):
        """Returns the number of sources of `size` bytes that together fill four times the L2, and at least 2."""
        return max(2, -(-4 * self.l2 // size))

    def count_calls(self, size, sets):
        calls = max(sets, min(MOST_CALLS, BYTES_OF_A_REPLAY // size))
        return -(-calls // sets) * sets

    def prepare(self, calls, count):
        """Returns an object that replays the calls, and whether it is a graph."""
        for _ in range(2):
            for call in calls:
                call()
        try:
            return capture(calls, count), True
        except RuntimeError:
            torch.cuda.synchronize()
            return Loop(calls, count), False

    def time(self, calls, size, beside=None):
        """Returns the median time of a call in us, the median time of the copy that alternates with it, and whether the
        calls were captured in a graph."""
        count = self.count_calls(size, len(calls))
        replayed, is_graph = self.prepare(calls, count)
        others = [] if beside is None else [beside.graph]
        for each in (replayed, *others):
            each.replay()
        torch.cuda.synchronize()
        marks = []
        for _ in range(self.rounds):  # queue all rounds before the first one ends, so that the GPU never waits
            marks.append([self._mark()])
            for each in (replayed, *others):
                each.replay()
                marks[-1].append(self._mark())
        torch.cuda.synchronize()
        medians = [
            1000 * statistics.median(mark[i].elapsed_time(mark[i + 1]) for mark in marks) for i in range(1 + len(others))
        ]
        return medians[0] / count, medians[1] / beside.count if others else None, is_graph

    def release(self):
        """Frees unused memory."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def yardstick(self, size):
        if size not in self.yardsticks:
            self.yardsticks[size] = Yardstick(self, size)
        return self.yardsticks[size]


class Yardstick:
    """The best copy that reads and writes `size` bytes in total."""

    def __init__(self, gpu, size):
        elements, sets = size // 8, gpu.count_sets(size // 2)
        sources = [torch.randint(1 << 30, (elements,), dtype=torch.int32, device=gpu.device) for _ in range(sets)]
        targets = [torch.empty_like(source) for source in sources]
        self.count, self.us, self.name, self.errors = gpu.count_calls(size, sets), float("inf"), None, {}
        best = None
        for name, copy in copies().items():
            calls = [lambda copy=copy, pair=pair: copy(*pair) for pair in zip(sources, targets)]
            try:
                us, _, is_graph = gpu.time(calls, size)
            except Exception as error:
                self.errors[name] = peers.first_line(error)
                continue
            if us < self.us and is_graph:
                self.us, self.name, best = us, name, calls
        self.calls = best  # keeps the tensors alive, because a graph does not keep what it reads and writes
        self.graph = capture(best, self.count)

    def see(self, us):
        """Records a later median of the copy. The smallest one counts."""
        self.us = min(self.us, us)


# ---- A case ----


def make_call(way, problem, direction, tensors):
    """Returns a function without arguments that makes the call on these tensors and returns its results. Autograd's
    graph is made once here, so that backward is timed alone."""
    if direction == "forward" and not way.traced:
        return lambda: way.apply(problem, *tensors, *problem.weights)
    if direction == "backward" and way.backward:
        return lambda: way.backward(problem, *tensors)
    with torch.enable_grad():
        if direction == "forward":
            leaves = [t.detach().requires_grad_() for t in (*tensors, *problem.weights)]
            return lambda: _with_grad(way.apply, problem, *leaves)
        gradients, inputs = tensors[: len(problem.shapes_out)], tensors[len(problem.shapes_out) :]
        if not inputs:  # their contents do not matter
            inputs = [torch.zeros(shape, dtype=problem.dtype, device=problem.device) for shape in problem.shapes_in]
        leaves = [t.detach().requires_grad_() for t in (*inputs, *problem.weights)]
        results = way.apply(problem, *leaves)
    return lambda: torch.autograd.grad(results, leaves, gradients, retain_graph=True)


def _with_grad(function, *arguments):
    with torch.enable_grad():
        return function(*arguments)


def find_error(results, expected):
    """Returns the largest error of all results, relative to the largest element of its tensor."""
    if len(results) != len(expected):
        return float("inf")
    errors = []
    for y, right in zip(results, expected):
        if y.shape != right.shape:
            return float("inf")
        errors.append(((y.detach().double() - right).abs().max() / right.abs().max()).item())
    return float("nan") if any(e != e for e in errors) else max(errors)


def make_row(problem, direction, way):
    """Returns a line of the result that is not measured yet."""
    case = problem.case
    return {
        "case": case.name, "direction": direction, "way": way.name, "library": way.library, "tokens": case.tokens,
        "heads": list(case.heads), "bytes": problem.bytes(direction), "status": "ok", "error": None, "time_us": None,
        "graph": None, "note": "",
    }  # fmt: skip


class Trial:
    """A case in one direction: the data that all of its ways share."""

    def __init__(self, problem, direction, gpu):
        self.problem, self.direction, self.gpu = problem, direction, gpu
        shapes = problem.shapes(direction)
        self.first = peers.views_of(peers.make_flats(problem, direction, 1), shapes, "bshd")
        self.expected = peers.reference(problem, direction, self.first)
        sets = gpu.count_sets(sum(t.numel() * t.element_size() for t in self.first)) if gpu else 0
        self.sets = [peers.make_flats(problem, direction, 2 + i) for i in range(sets)]

    def check(self, way):
        """Returns the error of a call on copies."""
        tensors = [t.clone() for t in self.first]
        if way.memory == "bhsd" and self.direction == "backward":
            for i in range(len(self.problem.shapes_out)):
                tensors[i] = tensors[i].transpose(1, 2).contiguous().transpose(1, 2)
        return find_error(make_call(way, self.problem, self.direction, tensors)(), self.expected)

    def time(self, way):
        memory = way.memory if self.direction == "backward" else "bshd"
        shapes, results = self.problem.shapes(self.direction), len(self.problem.shapes_out)
        sets = [
            peers.views_of(flats[:results], shapes[:results], memory)
            + peers.views_of(flats[results:], shapes[results:], "bshd")
            for flats in self.sets
        ]
        calls = [make_call(way, self.problem, self.direction, tensors) for tensors in sets]
        size = self.problem.bytes(self.direction)
        yardstick = self.gpu.yardstick(size)
        us, copy_us, is_graph = self.gpu.time(calls, size, yardstick)
        yardstick.see(copy_us)
        return us, is_graph

    def run(self, way):
        """Returns a line of the result."""
        row = make_row(self.problem, self.direction, way)
        try:
            row["error"] = self.check(way)
            if not row["error"] <= LIMIT:
                row["status"] = "WRONG"
            elif self.gpu:
                row["time_us"], row["graph"] = self.time(way)
                row["note"] = "" if row["graph"] else "no graph"
        except Exception as error:
            row["status"], row["note"] = "failed", peers.first_line(error)
        return row


def run_case(case, ways, gpu=None, device="cpu", tell=lambda rows: None, only=None):
    """Returns the lines of a case in both directions. Calls tell(rows) with the lines of each direction."""
    rows, problem = [], peers.Problem(case, device)
    for direction in DIRECTIONS:
        chosen = choose(case, direction, ways, device, only)
        if not chosen:
            continue
        gc.collect()
        trial = Trial(problem, direction, gpu)
        some = [trial.run(way) for way in chosen]
        if gpu:
            add_copies(some, gpu)
        tell(some)
        rows += some
        del trial
        if gpu:
            gpu.release()
    return rows


def add_copies(rows, gpu):
    """Adds the time and the name of the copy, and the ratio to it, to each row with a time."""
    for row in rows:
        if row["time_us"] is not None:
            yardstick = gpu.yardstick(row["bytes"])
            row.update(copy_us=yardstick.us, copy=yardstick.name, ratio=yardstick.us / row["time_us"])


def ways_of(case, direction, ways, device):
    on_cuda = torch.device(device).type == "cuda"
    return [
        way for way in ways if case.kind in way.kinds and direction in way.directions and (on_cuda or not way.cuda_only)
    ]


def name_of(case, direction, way):
    return "%s/%s/%s" % (case.name, direction, way.name)


def choose(case, direction, ways, device, only):
    return [way for way in ways_of(case, direction, ways, device) if is_wanted(name_of(case, direction, way), only)]


def is_wanted(name, only):
    return not only or any(text in name for text in only)


# ---- JAX ----


def run_apart(ways, options, tell):
    """Returns the lines of the ways that are measured in a process of their own. Calls tell(rows) with those of each case
    and direction."""
    problems = []
    for case in peers.CASES:
        problem = peers.Problem(case.tiny() if options.device == "cpu" else case, "cpu")
        for direction in DIRECTIONS:
            chosen = choose(case, direction, ways, options.device, options.only)
            rows = [make_row(problem, direction, way) for way in chosen]
            if rows:
                problems.append(dict(peers.describe(problem, direction), rows=rows))
    if not problems:
        return []
    given = {"problems": problems, "rounds": 0 if options.device == "cpu" else options.rounds, "limit": LIMIT}
    rows = _run_jax(given, options.device)
    for _, some in itertools.groupby(rows, lambda row: (row["case"], row["direction"])):
        tell(list(some))
    return rows


def _run_jax(given, device):
    """Returns the rows of all problems. Rows that the process did not fill in, because it ended early, have failed."""
    path = [os.path.dirname(os.path.dirname(os.path.abspath(trope.__file__))), os.environ.get("PYTHONPATH")]
    settings = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if device == "cpu":
        settings["JAX_PLATFORMS"] = "cpu"
    environment = {**os.environ, **settings}
    done = subprocess.run(JAX, input=json.dumps(given), stdout=subprocess.PIPE, text=True, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    note = "jax_calls.py ended with status %d" % done.returncode
    expected = [row for problem in given["problems"] for row in problem["rows"]]
    return rows + [dict(row, status="failed", note=note) for row in expected[len(rows) :]]


# ---- Time of the host ----


def time_host(function, device, rounds):
    """Returns the median time in us that a call takes the host. Returns None on the CPU, where the call is made once."""
    if torch.device(device).type != "cuda":
        function()
        return None
    for _ in range(20):
        function()
    times = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(HOST_CALLS):
                function()
            times.append((time.perf_counter() - start) / HOST_CALLS)
    finally:
        gc.enable()
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


class Empty(torch.autograd.Function):
    """Allocates q, k and their gradients, and launches no kernel: the least that a library with autograd must do."""

    @staticmethod
    def forward(ctx, q, k):
        return torch.empty_like(q), torch.empty_like(k)

    @staticmethod
    def backward(ctx, d_q, d_k):
        return torch.empty_like(d_q), torch.empty_like(d_k)


EMPTY = "torch, autograd Function without kernels"


class Host:
    """q and k with few tokens, so that the GPU has almost no work."""

    COLUMNS = ("no_grad", "autograd", "both")

    def __init__(self, device, rounds):
        self.device, self.rounds = device, rounds
        self.problem = peers.Problem(peers.CASES[0].tiny(HOST_TOKENS), device)
        shapes = self.problem.shapes_in
        self.tensors = peers.views_of(peers.make_flats(self.problem, "forward", 1), shapes, "bshd")
        self.gradients = peers.views_of(peers.make_flats(self.problem, "backward", 2), shapes, "bshd")
        self.leaves = [t.detach().requires_grad_() for t in self.tensors]

    def _forward(self, apply):
        with torch.no_grad():
            return time_host(lambda: apply(*self.tensors), self.device, self.rounds)

    def _autograd(self, apply):
        with torch.enable_grad():
            return time_host(lambda: apply(*self.leaves), self.device, self.rounds)

    def _both(self, apply):
        def call():
            return torch.autograd.grad(apply(*self.leaves), self.leaves, self.gradients)

        with torch.enable_grad():
            return time_host(call, self.device, self.rounds)

    def _row(self, name, library, functions):
        row = {"way": name, "library": library, "status": "ok", "note": ""}
        try:
            for column, function in functions.items():
                row[column + "_us"] = function()
        except Exception as error:
            row["status"], row["note"] = "failed", peers.first_line(error)
        return row

    def _run(self, name, library, apply, has_autograd):
        functions = {"no_grad": lambda: self._forward(apply)}
        if has_autograd:
            functions.update(autograd=lambda: self._autograd(apply), both=lambda: self._both(apply))
        return self._row(name, library, functions)

    def run_way(self, way):
        return self._run(way.name, way.library, functools.partial(way.apply, self.problem), way.autograd)

    def run_empty(self):
        return self._run(EMPTY, "torch eager", Empty.apply, True)

    # This library, without the upper layers of the Python package

    def _without_autograd(self):
        """Returns (launch, its arguments): the part of the package below the handling of keyword arguments and autograd."""
        from trope._spec import resolve
        from trope.torch import _launch

        spec, side = resolve(self.tensors, self.problem.options)
        into = [torch.empty_like(t) for t in self.tensors]
        return _launch, (False, spec, self.tensors, into, (None,) * len(into), side, True)

    def _launch(self):
        module, arguments = self._without_autograd()
        return time_host(lambda: module.launch(*arguments), self.device, self.rounds)

    def _call(self):
        """Times the C function with the struct of the prepared call that ran last."""
        from trope import _prepared

        module, arguments = self._without_autograd()
        module.launch(*arguments)
        prepared = list(_prepared._prepared_calls.values())[-1]
        return time_host(lambda: prepared.call(prepared.reference), self.device, self.rounds)

    def run_layers(self):
        with torch.no_grad():
            one = self.tensors[0]
            return [
                self._row("torch, one addition in place", "torch eager", {
                    "no_grad": lambda: time_host(lambda: one.add_(0), self.device, self.rounds)}),
                self._row("trope, the C function alone", "trope", {"no_grad": self._call}),
                self._row("trope, launch of trope.torch", "trope", {"no_grad": self._launch}),
            ]  # fmt: skip


def run_host(ways, device, rounds, only=None):
    host = Host(device, rounds)
    rows = [row for row in host.run_layers() if is_wanted("host/" + row["way"], only)]
    empty = host.run_empty()
    rows.append(empty)
    for way in ways_of(peers.CASES[0], "forward", ways, device):
        if way.memory == "bshd" and is_wanted("host/" + way.name, only):
            rows.append(host.run_way(way))
    for row in rows:
        add_host_ratio(row, empty)
    return rows


def add_host_ratio(row, empty):
    """Adds the ratio of the times of forward and backward to those of Empty. The goal for this library is 1.25."""
    if row.get("both_us") and empty.get("both_us"):
        row["both_ratio"] = row["both_us"] / empty["both_us"]


# ---- Output ----

HEAD = "%-17s %-8s %-34s %6s %9s %9s %6s %7s %s"
HOST_HEAD = "%-40s %9s %9s %12s %9s %s"


def number(value, form):
    return "-" if value is None else form % value


def row_line(row):
    tb = row["bytes"] / row["time_us"] / MB if row["time_us"] else None
    return HEAD % (
        row["case"], row["direction"], row["way"], "%d" % (row["bytes"] / MB), number(row["time_us"], "%.2f"),
        number(tb, "%.3f"), number(row.get("ratio"), "%.3f"), number(row["error"], "%.4f"),
        " ".join(filter(None, (row["status"] if row["status"] != "ok" else "", row["note"]))),
    )  # fmt: skip


def print_rows(rows):
    for row in rows:
        print(row_line(row).rstrip())
    if any(row.get("copy") for row in rows):
        row = next(row for row in rows if row.get("copy"))
        print("# copy of %d MB: %.2f us, %s" % (row["bytes"] / MB, row["copy_us"], row["copy"]))
    sys.stdout.flush()


def print_host(rows):
    print(HOST_HEAD % ("# us of the host for a call", "no grad", "autograd", "and backward", "to empty", ""))
    for row in rows:
        times = [number(row.get(column + "_us"), "%.2f") for column in Host.COLUMNS]
        times.append(number(row.get("both_ratio"), "%.2f"))
        note = "" if row["status"] == "ok" else "failed " + row["note"]
        print((HOST_HEAD % (row["way"], *times, note)).rstrip())
    sys.stdout.flush()


def dump(result):
    """Formats JSON with one case per line."""
    head = {key: value for key, value in result.items() if key not in ("cases", "host")}
    lines = ["%s: %s," % (json.dumps(key), json.dumps(value)) for key, value in head.items()]
    lists = []
    for key in ("cases", "host"):
        rows = ",\n".join(json.dumps({k: _short(v) for k, v in row.items()}) for row in result[key])
        lists.append('"%s": [\n%s\n]' % (key, rows))
    return "{\n%s\n%s\n}\n" % ("\n".join(lines), ",\n".join(lists))


def _short(value):
    """Rounds to six digits. Values that JSON cannot represent become null."""
    if not isinstance(value, float):
        return value
    return float("%.6g" % value) if abs(value) < float("inf") else None


def best_of_libraries(result, direction):
    """Returns {case: {library: row}} with the fastest way of each library, or the reason why it has no time."""
    table = {}
    for row in result["cases"]:
        if row["direction"] == direction:
            best = table.setdefault(row["case"], {})
            other = best.get(row["library"])
            if other is None or _order(row) < _order(other):
                best[row["library"]] = row
    return table


def _order(row):
    return float("inf") if row["time_us"] is None else row["time_us"]


def libraries_of(table):
    return list(dict.fromkeys(library for rows in table.values() for library in rows))


def cell(row):
    if row is None:
        return ""
    if row["status"] != "ok":
        return "wrong" if row["status"] == "WRONG" else "failed"
    if row.get("ratio") is None:
        return "right"
    way = row["way"][len(row["library"]) :].lstrip(", ")
    return "%.2f%s%s" % (row["ratio"], " (no graph)" if row["graph"] is False else "", " " + way if way else "")


def markdown(result):
    """Formats tables of ratios, for forward, backward and the host."""
    lines = ["%s; torch %s; trope %s" % (result["machine"], result["found"]["torch"], result["trope"]), ""]
    for direction in DIRECTIONS:
        table = best_of_libraries(result, direction)
        if not table:
            continue
        libraries = libraries_of(table)
        lines.append("| %s | MB | copy us | %s |" % (direction, " | ".join(libraries)))
        lines.append("|---|---|---|" + "---|" * len(libraries))
        for case, rows in table.items():
            some = list(rows.values())
            copy_us = next((row["copy_us"] for row in some if row.get("copy_us")), None)
            cells = [cell(rows.get(library)) for library in libraries]
            first = (case, some[0]["bytes"] / MB, number(copy_us, "%.1f"))
            lines.append("| %s | %d | %s | " % first + " | ".join(cells) + " |")
        lines.append("")
    if result["host"]:
        lines += ["| host, us | no grad | autograd | and backward |", "|---|---|---|---|"]
        for row in result["host"]:
            times = [number(row.get(column + "_us"), "%.1f") for column in Host.COLUMNS]
            lines.append("| %s | %s |" % (row["way"], " | ".join(times if row["status"] == "ok" else ["failed"] * 3)))
    return "\n".join(lines).rstrip() + "\n"


def draw(result, path):
    """Draws the ratio to a copy: a group of bars per case, and a bar for the fastest way of each library."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "trope"
    import matplotlib.pyplot as plt

    tables = {direction: best_of_libraries(result, direction) for direction in DIRECTIONS}
    tables = {direction: table for direction, table in tables.items() if table}
    libraries = list(dict.fromkeys(library for table in tables.values() for library in libraries_of(table)))
    figure, panels = plt.subplots(len(tables), 1, figsize=(10, 3.6 * len(tables)), squeeze=False)
    for panel, (direction, table) in zip(panels[:, 0], tables.items()):
        width = 0.8 / len(libraries)
        for i, library in enumerate(libraries):
            ratios = [(rows.get(library) or {}).get("ratio") or 0 for rows in table.values()]
            left = [x - 0.4 + (i + 0.5) * width for x in range(len(table))]
            panel.bar(left, ratios, width, label=library, color="C%d" % i)
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_xticks(range(len(table)), list(table), rotation=20, ha="right", fontsize=8)
        panel.set_ylabel("%s: time of the copy / of the call" % direction, fontsize=8)
        panel.grid(True, axis="y", linewidth=0.3)
    panels[0, 0].legend(ncols=8, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.suptitle("trope %s, %s" % (result["trope"], result["machine"].split(",")[0]))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


# ---- Main ----


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default cuda if there is a GPU, else cpu")
    parser.add_argument(
        "--only",
        action="append",
        help="run only names (case/direction/way or host/way) that contain this text; may be repeated",
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    parser.add_argument("--flash-rotary", metavar="FILE", help="path of flash-attention's flash_attn/ops/triton/rotary.py")
    parser.add_argument("--json", metavar="FILE", help="write the result to this file, one case per line")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw bars; needs matplotlib")
    parser.add_argument(
        "--markdown", action="store_true", help="print Markdown tables for the documentation instead of rows"
    )
    parser.add_argument("--from", dest="source", metavar="FILE", help="read a result of --json, run nothing")
    options = parser.parse_args(arguments)
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return options


def list_names(ways, options):
    for case in peers.CASES:
        for direction in DIRECTIONS:
            names = [name_of(case, direction, way) for way in ways_of(case, direction, ways, options.device)]
            print("".join(name + "\n" for name in names if is_wanted(name, options.only)), end="")


def print_header(result):
    for key in ("trope", "machine", "command"):
        value = result[key]
        print("# %s: %s" % (key, " ".join(value) if isinstance(value, list) else value))
    print("# %s" % "; ".join("%s %s" % item for item in result["found"].items()))
    print((HEAD % ("# case", "dir", "way", "MB", "time us", "TB/s", "ratio", "error", "")).rstrip())


def run(options, arguments):
    """Returns the result of all selected cases."""
    ways, found = peers.find_ways(options.flash_rotary)
    if options.list:
        list_names(ways, options)
        return None
    gpu = Gpu(options.rounds) if options.device == "cuda" else None
    result = {
        "trope": trope.__version__, "machine": gpu.machine if gpu else "cpu", "device": options.device,
        "rounds": options.rounds, "command": ["bench/compare.py", *arguments], "found": found, "cases": [], "host": [],
    }  # fmt: skip
    start = time.perf_counter()
    quiet = options.markdown
    if not quiet:
        print_header(result)
    together, apart = ([way for way in ways if way.apart is is_apart] for is_apart in (False, True))
    result["host"] = run_host(together, options.device, options.rounds, options.only)
    tell = (lambda rows: None) if quiet else print_rows
    for case in peers.CASES:
        result["cases"] += _run_case(case, together, gpu, options, tell)
    if gpu:
        add_copies(result["cases"], gpu)
        result["copies_failed"] = {name: e for y in gpu.yardsticks.values() for name, e in y.errors.items()}
    result["cases"] += run_apart(apart, options, tell)
    result["took_s"] = round(time.perf_counter() - start, 1)
    if not quiet:
        print_host(result["host"])
        for name, error in result.get("copies_failed", {}).items():
            print("# copy %s: failed %s" % (name, error))
        print("# took %.0f s" % result["took_s"])
    return result


def _run_case(case, ways, gpu, options, tell):
    case = case if gpu else case.tiny()
    try:
        with torch.no_grad():
            if gpu is None:
                return run_case(case, ways, None, options.device, tell, options.only)
            torch.cuda.synchronize()
            with torch.cuda.stream(gpu.stream):
                return run_case(case, ways, gpu, options.device, tell, options.only)
    except Exception as error:  # such as a lack of memory for the data that the ways share
        row = {
            "case": case.name, "direction": "forward", "way": "all", "library": "trope", "tokens": case.tokens,
            "heads": list(case.heads), "bytes": 0, "status": "failed", "error": None, "time_us": None, "graph": None,
            "note": peers.first_line(error),
        }  # fmt: skip
        tell([row])
        return [row]


def is_bad(row):
    return row["status"] == "WRONG" or (row["status"] == "failed" and row["library"] == "trope")


def main(arguments):
    options = parse(arguments)
    if options.source:
        with open(options.source) as file:
            result = json.load(file)
    else:
        result = run(options, arguments)
        if result is None:
            return 0
    if options.markdown:
        print(markdown(result), end="")
    if options.json:
        with open(options.json, "w") as file:
            file.write(dump(result))
    if options.plot:
        draw(result, options.plot)
    bad = [row for row in result["cases"] + result["host"] if is_bad(row)]
    for row in bad:
        print("%s %s: %s %s" % (row.get("case", "host"), row["way"], row["status"], row["note"]), file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
