"""trope.jax.rotate of arrays that are split over eight devices has the bits of one device, and gathers no tensor."""

import re

import jax_cases
from jax_cases import mesh_of, random, same_bits

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import trope
import trope.jax

B, S, H, K, D = 2, 16, 8, 4, 32
IDS = np.random.default_rng(1).integers(0, 40, (B, S)).astype("int32")
HALF = dict(layout="bshd", pairing="half", inv_freq=jax_cases.frequencies(D))
Q, KEY = random(1, B, S, H, D), random(2, B, S, K, D)
TABLE = jax_cases.freqs_table(40, D // 2)
WEIGHTS = random(3, D), random(4, K, D)


def place(mesh, x, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def norms(weights):
    return [trope.Norm(weights[0], eps=1e-5), trope.Norm(weights[1], eps=1e-6, order="after", plus_one=True)]


# How the tensors are split (batch, tokens, heads), and the options of the call. The position ids are split like the tokens.
SPLITS = {
    "batch": (("x", None, None), dict(HALF)),
    "heads": ((None, None, "y"), dict(HALF)),
    "batch and heads": (("x", None, "y"), dict(HALF, position_ids=IDS)),
    "tokens by ids": ((None, "y", None), dict(HALF, position_ids=IDS)),
    "all by ids": (("x", "y", "z"), dict(HALF, position_ids=IDS)),
    "tokens over two axes": ((None, ("y", "x"), None), dict(HALF, position_ids=IDS)),
    "counted tokens": (("x", "y", None), dict(HALF)),
    "counted tokens over two axes": ((None, ("y", "x"), None), dict(HALF)),
    "tokens from starts": (("x", "y", None), dict(HALF, start_positions=np.array([5, 3], "int32"))),
    "freqs": (("x", None, "y"), dict(layout="bshd", pairing="half", freqs=TABLE, angle_columns="pair", position_ids=IDS)),
    "freqs, tokens": (
        (None, "y", "x"), dict(layout="bshd", pairing="half", freqs=TABLE, angle_columns="pair", position_ids=IDS)),
    "freqs of batch": (
        ("x", None, "y"),
        dict(layout="bshd", pairing="half", freqs=jax_cases.freqs_table(16, D // 2, B), angle_columns="pair")),
    "norms": (("x", "y", "z"), dict(HALF, position_ids=IDS, norms=norms(WEIGHTS))),
    "norms and freqs": (
        ("x", None, "y"),
        dict(layout="bshd", pairing="half", freqs=TABLE, angle_columns="pair", position_ids=IDS, norms=norms(WEIGHTS))),
}  # fmt: skip
LAYOUTS = {"bshd": (0, 1, 2, 3), "sbhd": (1, 0, 2, 3), "bhsd": (0, 2, 1, 3)}


def arguments_of(mesh, name, layout="bshd"):
    """Returns the function of (q, k, ids, freqs, weights), and its arguments, split over the mesh."""
    (batch, tokens, heads), options = SPLITS[name]
    options, order = dict(options, layout=layout), LAYOUTS[layout]
    spec = [(batch, tokens, heads, None)[dim] for dim in order]
    q, k = (place(mesh, x.transpose(order), *spec) for x in (Q, KEY))
    ids, freqs = options.pop("position_ids", None), options.pop("freqs", None)
    if ids is not None:
        ids = place(mesh, ids, batch, tokens)
    if freqs is not None:
        freqs = place(mesh, freqs, *((batch,) if freqs.ndim == 3 else ()))
    weights = None
    if "norms" in options:
        weights = [place(mesh, WEIGHTS[0]), place(mesh, WEIGHTS[1], heads)]

    def rotate(q, k, ids, freqs, weights):
        given = dict(options)
        given.update({n: x for n, x in (("position_ids", ids), ("freqs", freqs)) if x is not None})
        if weights is not None:
            given["norms"] = norms(weights)
        return trope.jax.rotate(q, k, **given)

    return rotate, (q, k, ids, freqs, weights)


def on_one_device(tree):
    return jax.tree.map(np.asarray, tree)


def gathers(compiled):
    return re.findall(r"(all-gather|all-to-all|collective-permute)[\w.-]*\(", compiled.as_text())


def gradient_of(rotate):
    def loss(*arguments):
        y, z = rotate(*arguments)
        return (y**3).sum() + (z**2).sum()

    return jax.grad(loss, (0, 1, 3, 4))


def compare_gradients(found, expected):
    """Gradients of tensors have the same bits. Gradients of tables and weights are summed in another order."""
    assert all(map(same_bits, on_one_device(found[:2]), expected[:2]))
    for a, b in zip(jax.tree.leaves(on_one_device(found[2:])), jax.tree.leaves(expected[2:])):
        assert np.abs(b).max() > 1 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def check(mesh, name, layout="bshd"):
    rotate, arguments = arguments_of(mesh, name, layout)
    plain = on_one_device(arguments)
    compiled = jax.jit(rotate).lower(*arguments).compile()
    results = compiled(*arguments)
    assert all(map(same_bits, on_one_device(results), jax.jit(rotate)(*plain)))
    assert all(y.sharding.is_equivalent_to(x.sharding, 4) for y, x in zip(results, arguments))
    assert not gathers(compiled)
    gradient = jax.jit(gradient_of(rotate))
    compare_gradients(gradient(*arguments), jax.jit(gradient_of(rotate))(*plain))
    assert not gathers(gradient.lower(*arguments).compile())


@pytest.mark.parametrize("name", SPLITS)
def test_automatic_sharding(name):
    check(mesh_of(AxisType.Auto, x=2, y=2, z=2), name)


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
def test_automatic_sharding_of_other_layouts(layout):
    check(mesh_of(AxisType.Auto, x=2, y=2, z=2), "all by ids", layout)


@pytest.mark.parametrize("name", SPLITS)
def test_explicit_sharding(name):
    mesh = mesh_of(AxisType.Explicit, x=2, y=2, z=2)
    with jax.set_mesh(mesh):
        rotate, arguments = arguments_of(mesh, name)
        compiled = jax.jit(rotate).lower(*arguments).compile()
        results = compiled(*arguments)
        assert [jax.typeof(y).sharding.spec for y in results] == [jax.typeof(x).sharding.spec for x in arguments[:2]]
        assert not gathers(compiled)
        eager = rotate(*arguments)
        gradient = jax.jit(gradient_of(rotate))
        found = gradient(*arguments)
        assert not gathers(gradient.lower(*arguments).compile())
    plain = on_one_device(arguments)
    expected = jax.jit(rotate)(*plain)
    assert all(map(same_bits, on_one_device(results), expected)) and all(map(same_bits, on_one_device(eager), expected))
    compare_gradients(found, jax.jit(gradient_of(rotate))(*plain))


@pytest.mark.parametrize("name", ["heads", "all by ids", "freqs", "norms", "norms and freqs"])
def test_inside_shard_map(name):
    mesh = mesh_of(AxisType.Auto, x=2, y=2, z=2)
    rotate, arguments = arguments_of(mesh, name)
    specs = jax.tree.map(lambda x: x.sharding.spec, arguments)
    local = jax.jit(jax.shard_map(rotate, mesh=mesh, in_specs=specs, out_specs=specs[:2]))
    plain = on_one_device(arguments)
    assert all(map(same_bits, on_one_device(local(*arguments)), jax.jit(rotate)(*plain)))
    assert not gathers(local.lower(*arguments).compile())
    compare_gradients(jax.jit(gradient_of(local))(*arguments), jax.jit(gradient_of(rotate))(*plain))


def tangents_of(rotate, arguments):
    """The tangents of the results, and of the gradients."""
    q, k, ids, *rest = arguments
    moved = jax.tree.map(lambda x: x * 0.5 + 1, (q, k, *rest))
    call = lambda q, k, *rest: rotate(q, k, ids, *rest)  # noqa: E731
    gradient = lambda q, k, *rest: gradient_of(rotate)(q, k, ids, *rest)  # noqa: E731
    return [jax.jvp(f, (q, k, *rest), moved)[1] for f in (call, gradient)]


@pytest.mark.parametrize("way", ["explicit", "automatic", "shard_map"])
@pytest.mark.parametrize("name", ["all by ids", "freqs", "norms and freqs"])
def test_forward_mode(name, way):
    mesh = mesh_of(AxisType.Explicit if way == "explicit" else AxisType.Auto, x=2, y=2, z=2)
    with jax.set_mesh(mesh):
        rotate, arguments = arguments_of(mesh, name)
        local = rotate
        if way == "shard_map":
            specs = jax.tree.map(lambda x: x.sharding.spec, arguments)
            local = jax.shard_map(rotate, mesh=mesh, in_specs=specs, out_specs=specs[:2])
        found = jax.jit(lambda *given: tangents_of(local, given))(*arguments)
        if way == "explicit":
            assert [jax.typeof(t) for t in found[0]] == [jax.typeof(x) for x in arguments[:2]]
    expected = jax.jit(lambda *given: tangents_of(rotate, given))(*on_one_device(arguments))
    for a, b in zip(jax.tree.leaves(on_one_device(found)), jax.tree.leaves(on_one_device(expected))):
        assert np.abs(b).max() > 1 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_inside_shard_map_over_a_part_of_the_mesh(kind):
    """The other axes split heads, by automatic sharding or by explicit types. (JAX 0.11 cannot lower the transpose of a
    shard_map over explicit axes inside another shard_map.)"""
    mesh = mesh_of(kind, x=2, y=4)
    with jax.set_mesh(mesh):
        rotate, arguments = arguments_of(mesh, "batch and heads")
        q, k, ids = arguments[:3]
        local = jax.shard_map(
            lambda q, k, ids: rotate(q, k, ids, None, None), in_specs=(P("x"),) * 3, out_specs=P("x"), axis_names={"x"}
        )
        results = jax.jit(local)(q, k, ids)
        if kind == AxisType.Auto:
            loss = lambda q, k: sum((y**3).sum() for y in local(q, k, ids))  # noqa: E731
            found = jax.jit(jax.grad(loss, (0, 1)))(q, k)
    plain = on_one_device(arguments)
    assert all(map(same_bits, on_one_device(results), jax.jit(rotate)(*plain)))
    if kind == AxisType.Explicit:
        return
    expected = jax.jit(jax.grad(lambda q, k: sum((y**3).sum() for y in rotate(q, k, *plain[2:])), (0, 1)))(*plain[:2])
    assert all(map(same_bits, on_one_device(found), expected))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_keys_with_fewer_heads_than_devices_are_whole_on_each_device(kind):
    """Gradients of a table add the heads of k once, although each device has all of them."""
    mesh = mesh_of(kind, y=8)
    options = dict(layout="bshd", pairing="half", angle_columns="pair", position_ids=IDS)
    with jax.set_mesh(mesh):
        arguments = place(mesh, Q, None, None, "y"), place(mesh, KEY), None, place(mesh, TABLE), None
        rotate = lambda q, k, ids, freqs, weights: trope.jax.rotate(q, k, freqs=freqs, **options)  # noqa: E731
        results = jax.jit(rotate)(*arguments)
        found = jax.jit(gradient_of(rotate))(*arguments)
    plain = on_one_device(arguments)
    assert all(map(same_bits, on_one_device(results), jax.jit(rotate)(*plain)))
    compare_gradients(found, jax.jit(gradient_of(rotate))(*plain))


def test_tokens_of_packed_sequences_are_gathered():
    mesh = mesh_of(AxisType.Auto, x=8)
    options = dict(HALF, layout="thd", cu_seqlens=jax_cases.increasing(0, 5, 16))
    x = Q[0]
    function = jax.jit(lambda x: trope.jax.rotate(x, **options))
    assert same_bits(on_one_device(function(place(mesh, x, "x"))), trope.rotate(x, **options))


def test_heads_of_a_norm_over_tokens_are_gathered():
    mesh = mesh_of(AxisType.Auto, x=8)
    function = jax.jit(lambda x: trope.jax.rotate(x, norms=trope.Norm(eps=1e-5, scope="token"), **HALF))
    expected = function(Q)
    assert same_bits(on_one_device(function(place(mesh, Q, None, None, "x"))), on_one_device(expected))


@pytest.mark.parametrize("options, spec, text", [
    (dict(HALF, norms=trope.Norm(eps=1e-5, scope="token")), (None, None, "x"), "in heads"),
    (HALF, (None, None, None, "x"), "in dimension 3"),
    (dict(HALF, cp_size=2, cp_rank=0, cp_layout="zigzag"), (None, "x"), "in tokens"),
])  # fmt: skip
def test_explicit_splits_that_a_call_cannot_make_are_refused(options, spec, text):
    mesh = mesh_of(AxisType.Explicit, x=8)
    with jax.set_mesh(mesh):
        with pytest.raises(trope.Error, match=r"^tensors\[0\] is split over mesh axis 'x' %s.*reshard" % text):
            trope.jax.rotate(place(mesh, Q, *spec), **options)


def test_a_grouped_layout_is_split_by_groups():
    mesh = mesh_of(AxisType.Auto, x=2, y=4)
    x = random(9, B, S, K, 3, D)
    options = dict(HALF, layout="bsghd", position_ids=IDS, norms=trope.Norm(random(3, K * 3, D), eps=1e-5))
    loss = lambda x: (trope.jax.rotate(x, **options) ** 3).sum()  # noqa: E731
    given = place(mesh, x, "x", None, "y")
    for function in (lambda x: trope.jax.rotate(x, **options), jax.grad(loss)):
        compiled = jax.jit(function).lower(given).compile()
        assert same_bits(on_one_device(compiled(given)), jax.jit(function)(x)) and not gathers(compiled)


def test_split_tensors_are_donated_in_place():
    mesh = mesh_of(AxisType.Auto, x=2, y=4)
    q = place(mesh, Q, "x", None, "y")
    function = jax.jit(lambda q: trope.jax.rotate(q, **HALF), donate_argnums=0)
    text = function.lower(q).compile().as_text()
    assert "output_to_operand_aliasing" in text and not re.findall(r"= \S+ copy\(", text)
