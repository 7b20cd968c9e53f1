"""trope.jax.rotate under a mesh: each way in which an array comes, in which a mesh is set, and each transformation. The
results have the bits of one device, and the types and shardings that jnp.sin gives them."""

import contextlib
import functools

import jax_cases
from jax_cases import random, same_bits

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import trope
import trope.jax

X = random(1, 4, 8, 4, 16)
IDS = np.random.default_rng(2).integers(0, 40, (4, 8)).astype("int32")
HALF = dict(pairing="half", inv_freq=jax_cases.frequencies(16))
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit

MESHES = {
    "explicit": dict(c=(4, EXPLICIT)),
    "two explicit axes": dict(c=(2, EXPLICIT), d=(2, EXPLICIT)),
    "auto": dict(c=(4, AUTO)),
    "both types": dict(c=(2, EXPLICIT), a=(2, AUTO)),
    "one device": dict(c=(1, EXPLICIT)),
}
SPLIT = {"two explicit axes": P("c", None, "d")}


def mesh_of(name):
    axes = MESHES[name]
    sizes = tuple(size for size, _ in axes.values())
    devices = jax.devices("cpu")[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, tuple(axes), axis_types=tuple(kind for _, kind in axes.values()), devices=devices)


def whole(rotate):
    return rotate


def doubled(rotate):
    return lambda x: rotate(x * 2)


def constrained(rotate):
    return lambda x: rotate(jax.lax.with_sharding_constraint(x, P()))


# How the array comes: its place, and what happens to it before the call.
ARRIVALS = {
    "NumPy": (lambda x, split: x, whole),
    "made before": (lambda x, split: jnp.asarray(x), whole),
    "multiplied": (lambda x, split: x, doubled),
    "constraint": (lambda x, split: x, constrained),
    "split": (lambda x, split: jax.device_put(x, split), whole),
    "split, then multiplied": (lambda x, split: jax.device_put(x, split), doubled),
}


def loss_of(f):
    return lambda x: (f(x) ** 3).sum()


TRANSFORMS = {
    "the call": lambda f: f,
    "grad": lambda f: jax.grad(loss_of(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x * 3,))[1],
    "vmap": jax.vmap,
    "grad of vmap": lambda f: jax.grad(loss_of(jax.vmap(f))),
    "vmap of grad": lambda f: jax.vmap(jax.grad(loss_of(f))),
    "a Hessian times a vector": lambda f: lambda x: jax.jvp(jax.grad(loss_of(f)), (x,), (x,))[1],
    "scan of checkpoint": lambda f: jax.grad(
        lambda x: (jax.lax.scan(jax.checkpoint(lambda x, _: (f(x), None)), x, None, length=2)[0] ** 3).sum()
    ),
}


def rotate(x):
    return trope.jax.rotate(x, layout={3: "thd", 4: "bshd"}[x.ndim], **HALF)


@functools.cache
def expected_of(of_transform, is_doubled):
    return TRANSFORMS[of_transform](doubled(rotate) if is_doubled else rotate)(X)


def are_alike(ours, theirs):
    return jax.typeof(ours) == jax.typeof(theirs) and ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("is_set", [True, False], ids=["set_mesh", "alone"])
@pytest.mark.parametrize("name", MESHES)
def test_all_pairs(name, is_set, compiles):
    """All pairs of mesh, arrival, transformation, set_mesh and jit occur. Of the other combinations, a quarter does."""
    mesh, mesh_index = mesh_of(name), list(MESHES).index(name)
    split = NamedSharding(mesh, SPLIT.get(name, P("c")))
    for i, (of_array, (place, before)) in enumerate(ARRIVALS.items()):
        if before is constrained and not is_set:
            continue
        for j, (of_transform, transform) in enumerate(TRANSFORMS.items()):
            if (i + j + 2 * is_set + compiles + mesh_index) % 4 or (before is constrained and "vmap" in of_transform):
                continue
            expected = expected_of(of_transform, before is doubled)
            x = place(X, split)
            functions = [transform(before(f)) for f in (jnp.sin, rotate)]
            with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
                sin, ours = [jax.jit(f) if compiles else f for f in functions]
                try:
                    theirs = sin(x)
                except ValueError:  # JAX cannot do all of it outside set_mesh
                    assert not is_set
                    continue
                ours = ours(x)
            where = of_array, of_transform
            assert are_alike(ours, theirs), where
            if of_transform == "a Hessian times a vector":  # XLA may fuse the multiplications and additions of the sum
                assert np.allclose(ours, expected, rtol=1e-5, atol=1e-4), where
            else:
                assert same_bits(ours, expected), where


# ---- vmap over a dimension that explicit types split ----


MAPPED = {
    "mapped": P("c"),
    "mapped and heads": P("c", None, None, "d"),
    "mapped and batch": P("c", "d"),
    "batch and heads": P(None, "c", None, "d"),
    "all by one axis": P(("c", "d")),
}


@pytest.mark.parametrize("options", ["ids", "mapped ids", "freqs", "mapped freqs", "norms"])
@pytest.mark.parametrize("name", MAPPED)
def test_mapped_dimensions_that_are_split(name, options):
    mesh = mesh_of("two explicit axes")
    xs, weight = random(3, 4, 2, 8, 4, 16), random(4, 16)
    ids = np.stack([IDS[:, ::-1][:2], IDS[:2], IDS[2:], IDS[1:3]]) if options == "mapped ids" else IDS[:2]
    table = jax_cases.freqs_table(40, 8, 4) if options == "mapped freqs" else jax_cases.freqs_table(40, 8)
    axes = 0, 0 if "mapped ids" == options else None, 0 if options == "mapped freqs" else None, None

    def rotate(x, ids, table, weight):
        given = dict(freqs=table, angle_columns="pair") if "freqs" in options else dict(inv_freq=HALF["inv_freq"])
        norms = trope.Norm(weight, eps=1e-5) if options == "norms" else None
        return trope.jax.rotate(x, layout="bshd", pairing="half", position_ids=ids, norms=norms, **given)

    every = jax.vmap(rotate, axes)
    gradient = jax.grad(lambda *arrays: (every(*arrays) ** 3).sum(), (0, 2, 3))
    of_each = jax.vmap(jax.grad(lambda *arrays: (rotate(*arrays) ** 3).sum(), (0, 2, 3)), axes)
    expected = [f(xs, ids, table, weight) for f in (every, gradient, of_each)]
    with jax.set_mesh(mesh):
        x = jax.device_put(xs, NamedSharding(mesh, MAPPED[name]))
        # jax.vmap demands that all arrays are split alike in the mapped dimension.
        of_mapped = NamedSharding(mesh, P(MAPPED[name][0]))
        ids, table = [a if axis is None else jax.device_put(a, of_mapped) for a, axis in zip((ids, table), axes[1:])]
        for f, right in zip((every, gradient, of_each), expected):
            found = jax.tree.leaves(jax.jit(f)(x, ids, table, weight))
            assert are_alike(found[0], x)
            assert same_bits(found[0], jax.tree.leaves(right)[0])
            for d, right_d in zip(found[1:], jax.tree.leaves(right)[1:]):  # sums, in another order
                assert np.allclose(d, right_d, rtol=1e-5, atol=1e-5 * np.abs(right_d).max())


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "jit"])
def test_arrays_that_are_whole_beside_tensors_that_are_split(compiles):
    """Outside set_mesh, the devices are those of the tensors."""
    mesh = mesh_of("two explicit axes")
    table, weight = jax_cases.freqs_table(40, 8), random(4, 4, 16)

    def rotate(x):
        norms = trope.Norm(weight, eps=1e-5)
        return trope.jax.rotate(
            x, layout="bshd", pairing="half", freqs=table, angle_columns="pair", position_ids=IDS, norms=norms
        )

    functions = rotate, lambda x: jax.vjp(rotate, x)[1](x)[0], lambda x: jax.jvp(rotate, (x,), (x,))[1]
    x = jax.device_put(X, NamedSharding(mesh, P("c", None, "d")))
    for function in functions:
        y = (jax.jit(function) if compiles else function)(x)
        assert are_alike(y, x) and np.allclose(y, function(X), rtol=1e-5, atol=1e-5)


def test_one_program_under_several_meshes_in_turn():
    function = jax.jit(jax.grad(loss_of(rotate)))
    expected = jax.grad(loss_of(rotate))(X)
    for name in [*MESHES, *MESHES]:
        mesh = mesh_of(name)
        split = NamedSharding(mesh, P("c"))
        y = function(jax.device_put(X, split))
        assert same_bits(y, expected) and y.sharding.is_equivalent_to(split, 4)
        with jax.set_mesh(mesh):
            y = function(jax.device_put(X, split))
        assert same_bits(y, expected) and y.sharding.is_equivalent_to(split, 4)


def test_a_compiled_call_runs_without_python():
    """JAX then keeps the call in C++. Otherwise each execution takes about 100 us more."""
    function = jax.jit(jax.grad(loss_of(rotate)))
    for _ in range(2):
        expected = function(X)
    jax.config.update("jax_no_tracing", True)  # an error if JAX's Python code looks at the call
    try:
        assert same_bits(function(X), expected)
    finally:
        jax.config.update("jax_no_tracing", False)
