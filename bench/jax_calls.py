"""Measures JAX for bench/compare.py, in a process of its own: on a GPU, JAX beside PyTorch in one process aborts. Nothing
here imports torch. Reads problems as JSON from standard input, and prints their rows of compare.py, filled in, a line each.

A program makes 64 calls, each on the results of the one before, in memory that the caller donates. A barrier of XLA stands
between two calls, because in a model other code uses the results: nothing may fuse two rotations. The time of an execution
is the host's clock for many executions in a row, and a program of one call is timed in the same way. Both times give the
time of a call and the fixed cost of an execution: time(n) = fixed + n * call.

The yardstick is a third program of this form, in which XLA negates the tensors: it reads and writes the same bytes. Tensors
that fit in the L2 stay there for all three, so these times are shorter than those of other libraries' rows.
"""

import functools
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy

import trope.jax

CHAINED = 64  # calls of a program
EXECUTIONS = 20  # of a program that the host times
WAYS = {"jax, trope.jax": "trope", "jax, XLA's code": "formula"}
ARRAYS = ("position_ids", "cu_seqlens")


# ---- Calls ----


def by_formula(x, cos, sin):
    """MaxText's formula."""
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate((-second, first), -1) * sin


def angles_of(problem):
    """Returns the angle of each element in float64: [..., tokens, 1, head_dim]."""
    positions = numpy.asarray(problem["positions"], numpy.float64)
    inv_freq = numpy.asarray(problem["options"]["inv_freq"], numpy.float64)
    axes = problem["options"].get("pair_axis")
    positions = positions[..., None] if axes is None else numpy.moveaxis(positions[axes], 0, -1)
    return numpy.tile(positions * inv_freq, 2)[..., None, :]


def make_forward(problem, way):
    """Returns forward(arrays, *tensors). arrays: {name: array}, the tables or the indices that this way reads."""
    settings = {name: value for name, value in problem["options"].items() if name not in ARRAYS}

    def forward(arrays, *tensors):
        if way == "trope":
            return trope.jax.rotate(*tensors, **arrays, **settings)
        if way == "copy":
            return tuple(-x for x in tensors)
        return tuple(by_formula(x, arrays["cos"], arrays["sin"]) for x in tensors)

    return forward


def make_call(problem, way):
    """Returns call(arrays, *tensors): forward, or its transpose. The gradients have the shapes of q and k."""
    forward = make_forward(problem, way)
    if problem["direction"] == "forward":
        return forward

    def backward(arrays, *gradients):
        return jax.vjp(functools.partial(forward, arrays), *map(jnp.zeros_like, gradients))[1](gradients)

    return backward


def arrays_of(problem, way, dtype):
    if way == "trope":
        given = {name: problem["options"][name] for name in ARRAYS if name in problem["options"]}
        return {name: jnp.asarray(value, jnp.int32) for name, value in given.items()}
    angles = angles_of(problem) if way == "formula" else numpy.zeros(0)
    return {"cos": jnp.asarray(numpy.cos(angles), dtype), "sin": jnp.asarray(numpy.sin(angles), dtype)}


def make_tensors(problem):
    """Returns tensors with values between 1/8 and 2 of both signs."""
    keys = jax.random.split(jax.random.key(1), len(problem["shapes"]))
    values = [jax.random.uniform(key, shape, minval=-1.875, maxval=1.875) for key, shape in zip(keys, problem["shapes"])]
    return [(x + jnp.sign(x) / 8).astype(jnp.bfloat16) for x in values]


# ---- Results ----


def find_error(problem, call, arrays):
    """Returns the largest error of a result, relative to its largest element. Expects the formula in float64."""
    tensors = make_tensors(problem)
    results = jax.jit(call)(arrays, *tensors)
    with jax.enable_x64(True):
        exact = make_call(problem, "formula")
        tables = arrays_of(problem, "formula", jnp.float64)
        expected = jax.jit(exact)(tables, *(x.astype(jnp.float64) for x in tensors))
        errors = [abs(y.astype(jnp.float64) - z).max() / abs(z).max() for y, z in zip(results, expected)]
        return jnp.stack(errors).max().item()  # NaN if one is


def chain(call, count):
    """Returns a program of `count` chained calls."""

    @functools.partial(jax.jit, donate_argnums=1)
    def program(arrays, tensors):
        for _ in range(count):
            tensors = jax.lax.optimization_barrier(call(arrays, *tensors))
        return tensors

    return program


def time_program(program, arrays, tensors, rounds):
    """Returns the median time of an execution in us."""
    seconds = []
    for _ in range(1 + rounds):  # the first round compiles
        begin = time.perf_counter()
        for _ in range(EXECUTIONS):
            tensors = program(arrays, tensors)
        jax.block_until_ready(tensors)
        seconds.append((time.perf_counter() - begin) / EXECUTIONS)
    return 1e6 * statistics.median(seconds[1:])


def time_call(problem, way, rounds):
    """Returns the time of a call, and the fixed cost of an execution, in us."""
    call, arrays = make_call(problem, way), arrays_of(problem, way, jnp.bfloat16)
    programs = [chain(call, count) for count in (1, CHAINED)]
    one, many = (time_program(program, arrays, tuple(make_tensors(problem)), rounds) for program in programs)
    each = (many - one) / (CHAINED - 1)
    return each, one - each


def first_line(error):
    lines = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "")


def fill_in(row, problem, given, time_copy):
    way = WAYS[row["way"]]
    try:
        row["error"] = find_error(problem, make_call(problem, way), arrays_of(problem, way, jnp.bfloat16))
        if not row["error"] <= given["limit"]:
            row["status"] = "WRONG"
        elif given["rounds"]:
            us, fixed_us = time_call(problem, way, given["rounds"])
            copy_us = time_copy()
            row.update(time_us=us, fixed_us=fixed_us, copy_us=copy_us, copy="XLA's negation", ratio=copy_us / us)
            row["note"] = "%d chained; %.1f us an execution" % (CHAINED, fixed_us)
    except Exception as error:
        row["status"], row["note"] = "failed", first_line(error)
    return row


def main():
    given = json.load(sys.stdin)
    for problem in given["problems"]:
        time_copy = functools.cache(lambda: time_call(problem, "copy", given["rounds"])[0])
        for row in problem["rows"]:
            print(json.dumps(fill_in(row, problem, given, time_copy)), flush=True)
        jax.clear_caches()


if __name__ == "__main__":
    main()
