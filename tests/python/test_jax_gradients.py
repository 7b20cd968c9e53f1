"""The derivatives of trope.jax.rotate, against finite differences in f64, and against MaxText's formulas in f32."""

import re

import jax_cases
from jax_cases import CASES, as_tuple, random, tensors_of

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trope
import trope.jax

# Without native rounding, which is not differentiable: a finite difference would see its steps.
DIFFERENTIABLE = [name for name in CASES if "native" not in name]


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def wide(x):
    return None if x is None else np.asarray(x, "float64")


def loss_of(name):
    """Returns a scalar function of (tensors, freqs, weights), and its arguments in f64."""
    options = dict(CASES[name][1])
    for table in ("cos", "sin"):
        if table in options:
            options[table] = wide(options[table])
    tensors = [wide(x) for x in tensors_of(name)]
    freqs, weights = wide(options.pop("freqs", None)), [wide(w) for w in jax_cases.weights_of(options)]

    def loss(tensors, freqs, weights):
        given = options if freqs is None else dict(options, freqs=freqs)
        results = as_tuple(trope.jax.rotate(*tensors, **jax_cases.with_weights(given, weights)))
        # The loss is not linear in the results, so that its second derivatives are not 0.
        return sum((jnp.sin(y) * random(50 + i, *y.shape).astype("float64")).sum() for i, y in enumerate(results))

    return loss, (tensors, freqs, weights)


def directional(function, arguments, direction, step):
    """Returns the derivative of the function along the direction, by finite differences of fourth order."""
    at = lambda h: function(*jax.tree.map(lambda x, d: x + h * d, arguments, direction))  # noqa: E731
    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def direction_of(arguments, seed):
    leaves, tree = jax.tree.flatten(arguments)
    return jax.tree.unflatten(tree, [random(seed + i, *x.shape).astype("float64") for i, x in enumerate(leaves)])


def dot(a, b):
    return sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_match_finite_differences(name, x64):
    loss, arguments = loss_of(name)
    function, gradient = jax.jit(loss), jax.jit(jax.grad(loss, (0, 1, 2)))
    direction = direction_of(arguments, 70)
    expected = directional(function, arguments, direction, 1e-3)
    found = dot(gradient(*arguments), direction)
    assert abs(expected) > 0.1
    # d_freqs and d_weights are sums in double. The differences have an error of fourth order.
    assert abs(found - expected) < 1e-8 * (1 + abs(expected))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_gradients_match_finite_differences(name, x64):
    loss, arguments = loss_of(name)
    along = direction_of(arguments, 90)
    slope = lambda *arguments: dot(jax.grad(loss, (0, 1, 2))(*arguments), along)  # noqa: E731
    function, gradient = jax.jit(slope), jax.jit(jax.grad(slope, (0, 1, 2)))
    direction = direction_of(arguments, 110)
    expected = directional(function, arguments, direction, 1e-3)
    found = dot(gradient(*arguments), direction)
    assert abs(expected) > 0.05
    assert abs(found - expected) < 1e-8 * (1 + abs(expected))


def test_a_third_derivative_matches_finite_differences(x64):
    loss, arguments = loss_of("freqs")
    along = direction_of(arguments, 130)
    slope = lambda *arguments: dot(jax.grad(loss, (0, 1))(*arguments), along[:2])  # noqa: E731
    curve = lambda *arguments: dot(jax.grad(slope, (0, 1))(*arguments), along[:2])  # noqa: E731
    direction = direction_of(arguments, 150)
    expected = directional(jax.jit(curve), arguments, direction, 1e-3)
    found = dot(jax.jit(jax.grad(curve, (0, 1, 2)))(*arguments), direction)
    assert abs(expected) > 0.05 and abs(found - expected) < 1e-7 * (1 + abs(expected))


def test_further_derivatives_of_norms_with_copied_padding_are_refused():
    options = dict(CASES["padded freqs"][1], norms=trope.Norm(random(1, 16), eps=1e-5))
    loss = lambda x: (trope.jax.rotate(x, **options) ** 3).sum()  # noqa: E731
    x = random(2, 9, 4, 16)
    for derivative in (jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum()), lambda x: jax.jvp(loss, (x,), (x,))):
        with pytest.raises(trope.Error, match="norms: with padding 'copy'"):
            derivative(x)


@pytest.mark.parametrize("table", ["cos", "sin"])
def test_derivatives_of_cos_and_sin_are_refused(table):
    options = dict(CASES["cos and sin"][1])
    given = options.pop(table)
    loss = lambda t: trope.jax.rotate(tensors_of("bshd")[0], **options, **{table: t}).sum()  # noqa: E731
    for derivative in (jax.grad(loss), lambda t: jax.jvp(loss, (t,), (t,))):
        with pytest.raises(trope.Error, match="^%s has a derivative.*give freqs" % table):
            derivative(given)


# ---- Forward mode ----


def along(function, arguments, direction):
    return jax.jvp(function, arguments, direction)[1]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_mode_matches_reverse_mode(name, x64):
    """First derivatives, and forward over reverse, reverse over forward and forward over forward for the second ones."""
    loss, arguments = loss_of(name)
    directions = [direction_of(arguments, seed) for seed in (70, 90)]
    gradient = jax.grad(loss, (0, 1, 2))

    def check(found, expected):
        assert abs(expected) > 0.05 and abs(found - expected) < 1e-10 * (1 + abs(expected))

    @jax.jit
    def slopes(arguments, u, v):
        return along(loss, arguments, u), dot(gradient(*arguments), u)

    @jax.jit
    def curvatures(arguments, u, v):
        slope = lambda *arguments: dot(gradient(*arguments), v)  # noqa: E731
        forward_slope = lambda *arguments: along(loss, arguments, v)  # noqa: E731
        return (
            along(forward_slope, arguments, u),
            along(slope, arguments, u),
            dot(jax.grad(forward_slope, (0, 1, 2))(*arguments), u),
            dot(jax.grad(slope, (0, 1, 2))(*arguments), u),
        )

    for function in (slopes, curvatures):
        *found, expected = function(arguments, *directions)
        for each in found:
            check(each, expected)


@pytest.mark.parametrize("name", ["freqs", "norm with freqs"])
def test_jacobians_of_both_modes_agree(name, x64):
    """jax.jacfwd maps tangents by jax.vmap, and the gradient is of the mapped tangents."""
    loss, (tensors, freqs, weights) = loss_of(name)
    by_freqs = lambda f: loss(tensors, f, weights)  # noqa: E731
    of_modes = [jax.jit(jax.grad(lambda f, d=d: (d(by_freqs)(f) ** 2).sum())) for d in (jax.jacfwd, jax.jacrev)]
    forward, reverse = [gradient(freqs) for gradient in of_modes]
    assert np.abs(reverse).max() > 1 and np.allclose(forward, reverse, rtol=1e-10, atol=1e-10)
    forward, reverse = [jax.jit(d(jax.grad(by_freqs)))(freqs) for d in (jax.jacfwd, jax.jacrev)]
    assert np.abs(reverse).max() > 1 and np.allclose(forward, reverse, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["bshd", "window", "shared", "converted", "packed", "cos and sin"])
def test_a_tangent_has_the_bits_of_the_call_and_a_transpose_those_of_the_gradient(name):
    tensors, options = tensors_of(name), CASES[name][1]
    rotate = lambda *xs: as_tuple(trope.jax.rotate(*xs, **options))  # noqa: E731
    ys, pull = jax.vjp(rotate, *tensors)
    moved = tensors_of(name, seed=60)
    _, push = jax.linearize(rotate, *tensors)
    for found in (along(rotate, tensors, moved), push(*moved)):
        assert all(map(jax_cases.same_bits, found, rotate(*moved)))
    transposed = jax.linear_transpose(rotate, *tensors)(ys)
    assert all(map(jax_cases.same_bits, transposed, pull(ys)))


def test_a_tangent_of_one_tensor_rotates_one_tensor():
    q, k = tensors_of("bshd")
    tangent = jax.jit(lambda q, k: along(lambda q: trope.jax.rotate(q, k, **CASES["bshd"][1]), (q,), (q,)))
    text = tangent.lower(q, k).as_text()
    assert len(re.findall(r"custom_call @trope_rotate\(%\w+\)", text)) == 1


# ---- A learned inv_freq ----


@pytest.mark.parametrize("ids", [None, np.array([5, 0, 3, 1, 2, 6, 4], "int32")], ids=["tokens", "ids"])
def test_a_learned_inv_freq_has_a_gradient(ids, x64):
    x = wide(random(1, 2, 7, 4, 16))
    given = {} if ids is None else dict(position_ids=ids, max_position=7)

    def loss(inv_freq):
        y = trope.jax.rotate(x, layout="bshd", pairing="half", inv_freq=inv_freq, **given)
        return (jnp.sin(y) * random(2, *x.shape)).sum()

    inv_freq = np.array(jax_cases.frequencies(16).inv_freq)
    direction = random(3, 8).astype("float64")
    expected = directional(jax.jit(loss), (jnp.array(inv_freq),), (direction,), 1e-4)
    found = dot(jax.jit(jax.grad(loss))(jnp.array(inv_freq)), direction)
    assert abs(expected) > 0.1 and abs(found - expected) < 1e-8 * (1 + abs(expected))


def test_angles_from_a_learned_inv_freq_are_rounded_once():
    x = random(1, 1, 300, 1, 16)
    inv_freq = np.array(jax_cases.frequencies(16).inv_freq, "float32")
    table = (np.arange(300.0)[:, None] * inv_freq.astype("float64")).astype("float32")
    options = dict(layout="bshd", pairing="half")
    expected = trope.rotate(x, freqs=table, angle_columns="pair", **options)
    found = jax.jit(lambda f: trope.jax.rotate(x, inv_freq=f, **options))(jnp.array(inv_freq))
    assert jax_cases.same_bits(found, expected)


# ---- MaxText ----


def maxtext_rotary(x, positions, min_timescale=1, max_timescale=10000.0):
    """MaxText's RotaryEmbedding, from its documentation: [batch, tokens, heads, dim], with half pairing.
    timescale = min * (max / min)^(2 i / dim), angle = position / timescale, all in f32."""
    half = x.shape[-1] // 2
    fraction = 2.0 * jnp.arange(half, dtype=jnp.float32) / x.shape[-1]
    timescale = min_timescale * (max_timescale / min_timescale) ** fraction
    angle = positions[:, :, None, None].astype(jnp.float32) / timescale
    first, second = x[..., :half], x[..., half:]
    turned = first * jnp.cos(angle) - second * jnp.sin(angle), second * jnp.cos(angle) + first * jnp.sin(angle)
    return jnp.concatenate(turned, -1)


def test_results_and_gradients_match_maxtext():
    """MaxText rounds the timescale and the angle, which is a quotient, to f32. Each of the two roundings changes the angle
    by up to 2^-24 of itself. The errors of cos, sin and the products are some units in the last place. With positions below
    512, and elements below 5, the sum is at most 5 * (512 * 2^-22 + 2^-20)."""
    x, dy = random(1, 2, 512, 3, 64), random(2, 2, 512, 3, 64)
    ids = np.random.default_rng(3).integers(0, 512, (2, 512)).astype("int32")
    options = dict(layout="bshd", pairing="half", inv_freq=jax_cases.frequencies(64), position_ids=ids)
    ours, pull = jax.vjp(lambda x: trope.jax.rotate(x, **options), x)
    theirs, their_pull = jax.vjp(lambda x: maxtext_rotary(x, ids), x)
    bound = 5 * (512 * 2.0**-22 + 2.0**-20)
    assert np.abs(x).max() < 5 and np.abs(dy).max() < 5
    for a, b in ((ours, theirs), (pull(dy)[0], their_pull(dy)[0])):
        assert np.abs(np.asarray(a) - np.asarray(b)).max() < bound
        assert np.abs(np.asarray(a) - x).max() > 1
