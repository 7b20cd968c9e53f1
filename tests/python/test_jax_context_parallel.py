"""trope.jax.rotate of tokens that are split over the devices of a shard_map: a traced cp_rank, and a warning without it."""

import re
import warnings

import jax_cases
from jax_cases import as_tuple, increasing, mesh_of, random, same_bits

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import trope
import trope.jax
from trope.jax import _context

SIZE, TOKENS = 2, 8
X, KEY, STREAM = random(1, 2, TOKENS, 4, 16), random(2, 2, TOKENS, 2, 16), random(3, TOKENS, 4, 16)
HALF = dict(layout="bshd", pairing="half", inv_freq=jax_cases.frequencies(16))
TABLE = dict(layout="bshd", pairing="half", freqs=jax_cases.freqs_table(SIZE * TOKENS, 8), angle_columns="pair")
PACKED = dict(HALF, layout="thd", cu_seqlens=increasing(0, 4, 4, 16))
PADDED = dict(HALF, layout="thd", cu_seqlens=increasing(0, 3, 5), cu_seqlens_padded=increasing(0, 4, 16))
IDS = np.random.default_rng(4).integers(0, 40, TOKENS).astype("int32")
LAYOUTS = "contiguous", "zigzag", "striped", "flat"

# The tensors, and the options without those of context parallel.
CASES = {
    "two tensors": ((X, KEY), HALF),
    "sbhd": ((X.transpose(1, 0, 2, 3),), dict(HALF, layout="sbhd", inverse=True)),
    "bhsd": ((X.transpose(0, 2, 1, 3),), dict(HALF, layout="bhsd")),
    "thd": ((STREAM,), dict(HALF, layout="thd")),
    "shared heads": ((X,), dict(HALF, shared_heads=3)),
    "bf16": ((X.astype(jax_cases.BF16),), HALF),
    "parts": ((X,), dict(HALF, parts=2)),
    "starts": ((X,), dict(HALF, start_positions=np.array([5, 2**31 - 1], "int32"))),
    "ids": ((X,), dict(HALF, position_ids=IDS)),
    "freqs": ((X, KEY), TABLE),
    "norms": ((X, KEY), dict(HALF, norms=[trope.Norm(random(5, 16), eps=1e-5), None])),
    "packed": ((STREAM,), PACKED),
    "stream": ((STREAM,), dict(PACKED, stream_positions=True)),
    "padded with zeros": ((STREAM,), dict(PADDED, padding="zero")),
    "padded and rotated": ((STREAM,), dict(PADDED, padding="rotate")),
    "ids of padded": ((STREAM,), dict(PADDED, padding="zero", position_ids=IDS)),
    "no tokens": ((X[:, :0],), HALF),
}


def rotate_by(tensors, options, cp_layout, size=SIZE):
    """Returns the functions of a rank: the rotation, and the gradients of its tensors."""

    def rotate(rank, *tensors):
        return as_tuple(trope.jax.rotate(*tensors, cp_size=size, cp_rank=rank, cp_layout=cp_layout, **options))

    def gradient(rank, *tensors):
        loss = lambda *tensors: sum((y.astype("float32") ** 3).sum() for y in rotate(rank, *tensors))  # noqa: E731
        return jax.grad(loss, tuple(range(len(tensors))))(*tensors)

    return rotate, gradient


def all_same(a, b):
    return len(a) == len(b) and all(map(same_bits, a, b))


@pytest.mark.parametrize("cp_layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_a_traced_rank_has_the_bits_of_a_known_one(name, cp_layout):
    tensors, options = CASES[name]
    rotate, gradient = rotate_by(tensors, options, cp_layout)
    for rank in range(SIZE):
        assert all_same(jax.jit(rotate)(rank, *tensors), rotate(rank, *tensors))
        static = jax.jit(lambda *tensors, rank=rank: gradient(rank, *tensors))
        assert all_same(jax.jit(gradient)(rank, *tensors), static(*tensors))
        assert all_same(rotate(jnp.int32(rank), *tensors), rotate(rank, *tensors))


def test_the_gradient_of_a_table_is_that_of_a_known_rank():
    def gradient(rank, freqs):
        cp = dict(cp_size=SIZE, cp_rank=rank, cp_layout="zigzag")
        return jax.grad(lambda freqs: (trope.jax.rotate(X, **{**TABLE, "freqs": freqs}, **cp) ** 3).sum())(freqs)

    assert same_bits(jax.jit(gradient)(1, TABLE["freqs"]), gradient(1, TABLE["freqs"]))


@pytest.mark.parametrize("name", ["two tensors", "packed"])
@pytest.mark.parametrize("size", [1, 3])
def test_other_numbers_of_ranks(name, size):
    tensors, options = CASES[name]
    if "cu_seqlens" in options:
        options = dict(options, cu_seqlens=increasing(0, 2 * size, TOKENS * size))
    rotate, _ = rotate_by(tensors, options, "zigzag" if size > 1 else None, size)
    for rank in range(size):
        assert all_same(jax.jit(rotate)(rank, *tensors), rotate(rank, *tensors))


@pytest.mark.parametrize("name", ["two tensors", "packed"])
def test_vmap_over_ranks(name):
    tensors, options = CASES[name]
    rotate, gradient = rotate_by(tensors, options, "zigzag")
    for function in rotate, gradient:
        mapped = jax.vmap(function, (0,) + (None,) * len(tensors))(jnp.arange(SIZE), *tensors)
        for rank in range(SIZE):
            assert all_same([y[rank] for y in mapped], function(rank, *tensors))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_the_devices_of_a_shard_map_continue_the_positions(packed, check_vma):
    options = dict(HALF, norms=trope.Norm(random(5, 16), eps=1e-5))
    x, at, spec = random(6, 2, 4 * TOKENS, 4, 16), 1, P("b", "cp", "tp")
    if packed:
        options.update(layout="thd", cu_seqlens=increasing(0, 12, 4 * TOKENS))
        x, at, spec = x[0], 0, P("cp", "tp")

    def rotate(x, weight, **cp):
        return trope.jax.rotate(x, **{**options, "norms": trope.Norm(weight, eps=1e-5)}, **cp)

    def local(x, weight):
        return rotate(x, weight, cp_size=4, cp_rank=jax.lax.axis_index("cp"), cp_layout="flat")

    weight = options["norms"].weight
    split = jax.shard_map(
        local, mesh=mesh_of(b=1, cp=4, tp=2), in_specs=(spec, P()), out_specs=spec, check_vma=check_vma
    )
    assert x.shape[at] == 4 * TOKENS
    assert same_bits(jax.jit(split)(x, weight), rotate(x, weight)) and same_bits(split(x, weight), rotate(x, weight))
    loss = lambda function: jax.jit(jax.grad(lambda *given: (function(*given) ** 3).sum(), (0, 1)))  # noqa: E731
    (dx, dw), (expected, summed) = loss(split)(x, weight), loss(rotate)(x, weight)
    assert same_bits(dx, expected) and np.allclose(dw, summed, rtol=1e-4, atol=1e-4 * np.abs(summed).max())


@pytest.mark.parametrize("name", ["thd", "packed", "ids of padded"])
def test_each_device_of_a_shard_map_may_have_the_same_tokens(name):
    (x,), options = CASES[name]
    call = lambda x, rank: trope.jax.rotate(x, cp_size=2, cp_rank=rank, cp_layout="zigzag", **options)  # noqa: E731
    local = lambda x: call(x, jax.lax.axis_index("cp"))[None]  # noqa: E731
    split = jax.shard_map(local, mesh=mesh_of(cp=2, tp=4), in_specs=P(), out_specs=P("cp"))
    loss = lambda x: (split(x) * np.array([1, 2], "float32").reshape(2, 1, 1, 1)).sum()  # noqa: E731
    assert all_same(jax.jit(split)(x), [call(x, rank) for rank in range(2)])
    expected = sum((rank + 1) * jax.grad(lambda x, rank=rank: call(x, rank).sum())(x) for rank in range(2))
    assert np.allclose(jax.jit(jax.grad(loss))(x), expected, rtol=1e-5, atol=1e-5)


def test_pmap_and_scan_with_checkpoint():
    x = random(7, 2, 2, TOKENS, 4, 16)  # [devices, batch, tokens, ...]
    call = lambda x, rank: trope.jax.rotate(x, **HALF, cp_size=2, cp_rank=rank, cp_layout="zigzag")  # noqa: E731
    split = jax.pmap(lambda x: call(x, jax.lax.axis_index("i")), axis_name="i", devices=jax.devices("cpu")[:2])
    assert all(same_bits(y, call(x[rank], rank)) for rank, y in enumerate(split(x)))

    def loss(x, rank):
        return (jax.lax.scan(jax.checkpoint(lambda y, _: (call(y, rank), None)), x, None, length=2)[0] ** 3).sum()

    assert same_bits(jax.jit(jax.grad(loss))(x[0], 1), jax.jit(jax.grad(loss), static_argnums=1)(x[0], 1))


def test_explicit_types_keep_their_split():
    with jax.set_mesh(mesh_of(AxisType.Explicit, b=2, h=2)):
        x = jax.device_put(X, jax.P("b", None, "h"))
        rotate, gradient = rotate_by((x,), HALF, "zigzag")
        (y,), (dx,) = jax.jit(rotate)(1, x), jax.jit(gradient)(1, x)
        assert jax.typeof(y).sharding.spec == jax.typeof(dx).sharding.spec == P("b", None, "h", None)
    assert all_same([y], rotate(1, X)) and all_same([dx], jax.jit(gradient, static_argnums=0)(1, X))


@pytest.mark.parametrize("rank", [-1, SIZE, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", ["two tensors", "bhsd", "starts", "freqs", "packed"])
def test_a_traced_rank_out_of_range_gives_nan(name, rank):
    tensors, options = CASES[name]
    rotate, gradient = rotate_by(tensors, options, "contiguous")
    for y in jax.jit(rotate)(rank, *tensors) + jax.jit(gradient)(rank, *tensors):  # the loss is not linear
        assert np.isnan(np.asarray(y)).all()
    with pytest.raises(trope.Error, match="^cp_rank must be 0 to"):
        rotate(jnp.int32(rank), *tensors)


def test_a_traced_rank_leaves_results_in_place():
    rotate, _ = rotate_by((X,), HALF, "zigzag")
    text = jax.jit(rotate, donate_argnums=1).lower(1, X).compile().as_text()
    assert "output_to_operand_aliasing" in text and not re.findall(r"= \S+ copy\(", text)


def test_the_index_of_mesh_axes_costs_no_pass_over_the_results():
    """A rank that varies over axes of cp_size devices is in its range. Any other rank is compared."""
    mesh = mesh_of(AxisType.Auto, cp=2)
    for size, is_compared in ((2, False), (4, True)):
        rotate, _ = rotate_by((X,), HALF, "contiguous", size)
        call = lambda x: rotate(jax.lax.axis_index("cp"), x)[0]  # noqa: B023, E731
        split = jax.shard_map(call, mesh=mesh, in_specs=P(None, "cp"), out_specs=P(None, "cp"))
        assert ("_mark" in str(jax.make_jaxpr(split)(X))) == is_compared


def test_a_rank_of_64_bits():
    rotate, _ = rotate_by((X,), HALF, "zigzag")
    with jax.enable_x64(True):
        for rank in range(SIZE):
            assert all_same(jax.jit(rotate)(jnp.int64(rank), X), rotate(rank, X))
        assert np.isnan(jax.jit(rotate)(jnp.int64(2**32), X)[0]).all()


REFUSED = {
    "a float": (dict(cp_rank=1.0), {}, "cp_rank", "not float32"),
    "a bool": (dict(cp_rank=True), {}, "cp_rank", "not bool"),
    "two ranks": (dict(cp_rank=np.arange(2, dtype="int32")), {}, "cp_rank", r"not int32\[2\]"),
    "no size": (dict(cp_rank=1, cp_size=None), {}, "cp_size", "is missing"),
    "no layout": (dict(cp_rank=1, cp_layout=None), {}, "cp_layout", "is missing"),
    "tokens that zigzag cannot split": (dict(cp_rank=1), {"x": X[:, :7]}, "tensors[0]", "must be divisible by 4"),
    "a table of one rank": (
        dict(cp_rank=0), {**TABLE, "inv_freq": None, "freqs": TABLE["freqs"][:15]}, "freqs", "freqs .15. must be more"),
    "a table of one rank, striped": (
        dict(cp_rank=0, cp_layout="striped"), {**TABLE, "inv_freq": None, "freqs": TABLE["freqs"][:15]}, "freqs", "rows"),
    "padding alone": (dict(cp_rank=1), dict(padding="zero"), "padding", "cu_seqlens is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls_with_a_traced_rank_are_refused_while_they_are_traced(name):
    cp, options, argument, text = REFUSED[name]
    options, rank = {**HALF, **options}, cp["cp_rank"]
    x = options.pop("x", X)
    given = {"cp_size": SIZE, "cp_layout": "zigzag", **cp, **options}
    with pytest.raises(trope.Error, match=text) as caught:
        jax.jit(lambda x, rank: trope.jax.rotate(x, **{**given, "cp_rank": rank})).lower(x, rank)
    assert caught.value.argument == argument


# ---- Without cp_rank ----


def warnings_of(function, *arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jax.jit(function).lower(*arguments)
    return [str(each.message) for each in caught if "counts positions" in str(each.message)]


def split_over(spec, check_vma=True, axes=(("cp", 4), ("tp", 2)), **options):
    call = lambda x: trope.jax.rotate(x, **HALF, **options)  # noqa: E731
    return jax.shard_map(call, mesh=mesh_of(**dict(axes)), in_specs=(spec,), out_specs=spec, check_vma=check_vma)


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch):
    monkeypatch.setattr(_context, "_warned", set())


def test_positions_that_restart_on_each_device_are_warned_about_once():
    (text,) = warnings_of(split_over(P(None, "cp")), X)
    assert "mesh axes 'cp'." in text and "cp_rank=jax.lax.axis_index" in text
    assert not warnings_of(split_over(P(None, "cp"), mscale=2.0), X)
    assert "'cp', 'tp'." in warnings_of(split_over(P(None, "cp", "tp")), X)[0]


def test_without_types_that_vary_all_manual_axes_are_named():
    assert "'cp', 'tp'." in warnings_of(split_over(P(None, "cp"), check_vma=False), X)[0]
    call = lambda x: trope.jax.rotate(x, **HALF)  # noqa: E731
    (text,) = warnings_of(jax.pmap(call, axis_name="i", devices=jax.devices("cpu")[:2]), random(1, 2, 1, TOKENS, 4, 16))
    assert "axes 'i'." in text


@pytest.mark.parametrize("name, function", {
    "the rank is given": split_over(P(None, "cp"), cp_size=1, cp_rank=0),
    "ids are given": split_over(P(None, "cp"), position_ids=np.arange(2)),
    "starts are given": split_over(P(None, "cp"), start_positions=np.arange(2)),
    "each device has the same tensors": split_over(P()),
    "one device": split_over(P(None, "cp"), axes=(("cp", 1), ("tp", 2))),
    "no shard_map": lambda x: trope.jax.rotate(x, **HALF),
    "vmap": lambda x: jax.vmap(lambda x: trope.jax.rotate(x[None], **HALF), axis_name="i")(x),
}.items())  # fmt: skip
def test_no_warning_if(name, function):
    assert not warnings_of(function, X)


def test_a_warning_that_is_an_error_stays_one():
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="counts positions from 0"):
                jax.jit(split_over(P(None, "cp"))).lower(X)
