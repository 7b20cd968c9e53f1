"""jax.vmap of trope.jax.rotate and of its gradients gives the bits of separate calls."""

import jax_cases
from jax_cases import CASES, as_tuple, increasing, random, same_bits, tensors_of

import jax
import numpy as np
import pytest

import trope
import trope.jax

SIZE = 3
ARRAYS = ("position_ids", "start_positions", "freqs", "cos", "sin")


def mapped_tensors(name, dim):
    return [np.stack([tensors_of(name, seed=10 * i)[at] for i in range(SIZE)], dim) for at in range(len(CASES[name][0]))]


def mapped(x, dim, seed):
    """Returns SIZE arrays with the elements of x in other orders, stacked along `dim`."""
    return np.stack([np.random.default_rng(seed + i).permuted(x, axis=-1 if x.ndim < 3 else -2) for i in range(SIZE)], dim)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_mapped_tensors(name, dim):
    options, tensors = CASES[name][1], mapped_tensors(name, dim)
    results = as_tuple(jax.jit(jax.vmap(lambda *xs: trope.jax.rotate(*xs, **options), dim, 1))(*tensors))
    for i in range(SIZE):
        expected = as_tuple(trope.rotate(*(np.take(x, i, dim) for x in tensors), **options))
        assert all(same_bits(np.take(np.asarray(y), i, 1), right) for y, right in zip(results, expected))


@pytest.mark.parametrize("tensors_too", [False, True], ids=["alone", "with tensors"])
@pytest.mark.parametrize(
    "name", ["ids", "starts", "freqs", "freqs of batch", "cos and sin", "M-RoPE", "M-RoPE table", "parts"]
)
def test_mapped_arrays(name, tensors_too):
    options = dict(CASES[name][1])
    xs = mapped_tensors(name, 1) if tensors_too else tensors_of(name)
    arrays = {n: mapped(options.pop(n), 0, 40) for n in ARRAYS if n in options}
    function = jax.vmap(lambda xs, arrays: trope.jax.rotate(*xs, **arrays, **options), (1 if tensors_too else None, 0))
    results = as_tuple(function(xs, arrays))
    for i in range(SIZE):
        one = [np.take(x, i, 1) if tensors_too else x for x in xs]
        expected = as_tuple(trope.rotate(*one, **{n: a[i] for n, a in arrays.items()}, **options))
        assert all(same_bits(y[i], right) for y, right in zip(results, expected))


@pytest.mark.parametrize("ids", [np.arange(7)[::-1], np.arange(14).reshape(2, 7), np.arange(7)[None] + 3])
def test_mapped_ids_of_each_rank(ids):
    x, options = random(1, 2, 7, 4, 16), CASES["bshd"][1]
    all_ids = np.stack([ids, ids + 5, ids * 2]).astype("int32")
    results = jax.vmap(lambda ids: trope.jax.rotate(x, position_ids=ids, **options))(all_ids)
    for i in range(SIZE):
        assert same_bits(results[i], trope.rotate(x, position_ids=all_ids[i], **options))


def test_sequences_are_mapped():
    options = {n: v for n, v in CASES["packed"][1].items() if n != "cu_seqlens"}
    (q, k), cu = mapped_tensors("packed", 0), np.stack([increasing(0, 4, 9), increasing(0, 0, 9), increasing(0, 8, 9)])
    results = jax.vmap(lambda q, k, cu: trope.jax.rotate(q, k, cu_seqlens=cu, **options))(q, k, cu)
    for i in range(SIZE):
        assert all(same_bits(y[i], e) for y, e in zip(results, trope.rotate(q[i], k[i], cu_seqlens=cu[i], **options)))


# ---- Gradients ----


def split(name):
    options = dict(CASES[name][1])
    return options, options.pop("freqs", None), jax_cases.weights_of(options)


def loss_of(options):
    def loss(tensors, freqs, weights):
        given = options if freqs is None else dict(options, freqs=freqs)
        results = as_tuple(trope.jax.rotate(*tensors, **jax_cases.with_weights(given, weights)))
        return sum((y**3).sum() for y in results)

    return loss


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_each_example(name):
    """Each example has its own gradients of tensors, tables and weights."""
    options, freqs, weights = split(name)
    gradient = jax.grad(loss_of(options), (0, 1, 2))
    tensors = mapped_tensors(name, 0)
    found = jax.jit(jax.vmap(gradient, (0, None, None)))(tensors, freqs, weights)
    for i in range(SIZE):
        expected = jax.jit(gradient)([x[i] for x in tensors], freqs, weights)
        leaves = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected)))
        assert leaves and all(same_bits(a[i], b) for a, b in leaves)


@pytest.mark.parametrize("name", ["bshd", "freqs", "norm", "norm of a token", "packed", "padded freqs", "norm with freqs"])
def test_the_gradient_of_a_mapped_function(name):
    """Gradients of arrays that are not mapped are sums over the examples."""
    options, freqs, weights = split(name)
    tensors, loss = mapped_tensors(name, 0), loss_of(options)
    whole = jax.grad(lambda *given: jax.vmap(loss, (0, None, None))(*given).sum(), (0, 1, 2))
    found = jax.jit(whole)(tensors, freqs, weights)
    each = [jax.jit(jax.grad(loss, (0, 1, 2)))([x[i] for x in tensors], freqs, weights) for i in range(SIZE)]
    for at, d in enumerate(found[0]):
        assert all(same_bits(d[i], each[i][0][at]) for i in range(SIZE))
    for a, *summands in zip(jax.tree.leaves(found[1:]), *[jax.tree.leaves(one[1:]) for one in each]):
        exact = sum(np.asarray(one, "float64") for one in summands)
        bound = 2.0**-22 * sum(np.abs(np.asarray(one, "float64")) for one in summands)
        assert (np.abs(np.asarray(a) - exact) <= bound).all() and np.abs(exact).max() > 1


def test_mapped_weights():
    x, weights = random(1, 2, 7, 4, 16), random(2, SIZE, 16)

    def loss(weight):
        y = trope.jax.rotate(x, norms=trope.Norm(weight, eps=1e-5), **CASES["thd"][1] | {"layout": "bshd"})
        return (y**3).sum(), y

    grads, results = jax.vmap(jax.grad(loss, has_aux=True))(weights)
    for i in range(SIZE):
        grad, y = jax.grad(loss, has_aux=True)(weights[i])
        assert same_bits(results[i], y) and same_bits(grads[i], grad)


def test_gradients_of_gradients_are_mapped():
    options, freqs, _ = split("freqs")
    loss = loss_of(options)
    second = jax.grad(lambda xs, f: (jax.grad(loss, 1)(xs, f, [])[0:3] ** 2).sum(), (0, 1))
    tensors = mapped_tensors("freqs", 0)
    found = jax.jit(jax.vmap(second, (0, None)))(tensors, freqs)
    for i in range(SIZE):
        expected = jax.jit(second)([x[i] for x in tensors], freqs)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
            assert np.allclose(a[i], b, rtol=1e-5, atol=1e-4 * np.abs(b).max())


def test_two_mapped_dimensions():
    options = CASES["sbhd"][1]
    x = random(1, SIZE, 7, 2, 2, 4, 16)
    twice = jax.vmap(jax.vmap(lambda x: trope.jax.rotate(x, **options), 1), 0)
    results = twice(x)
    for i in range(SIZE):
        for j in range(2):
            assert same_bits(results[i, j], trope.rotate(np.ascontiguousarray(x[i, :, j]), **options))


def calls_in(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    return text.count("@trope_rotate"), "while" in text


@pytest.mark.parametrize("name", ["bshd", "sbhd", "thd", "ids", "freqs", "M-RoPE", "norm", "norm of a token"])
def test_mapped_tensors_take_one_call(name):
    options, tensors = CASES[name][1], mapped_tensors(name, 0)
    function = jax.vmap(lambda *xs: trope.jax.rotate(*xs, **options))
    assert calls_in(function, *tensors) == (1, False)

    def gradient(*xs):
        return jax.grad(lambda *xs: sum((y**2).sum() for y in as_tuple(function(*xs))), tuple(range(len(xs))))(*xs)

    assert calls_in(gradient, *tensors) == (2, False)
