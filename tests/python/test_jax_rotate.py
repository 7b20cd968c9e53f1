"""trope.jax.rotate has the bits of trope.rotate of NumPy arrays, forward and backward, in eager and in compiled code."""

import functools
import re

import numpy as np
import pytest

import jax_cases
from jax_cases import BF16, CASES, as_tuple, increasing, random, same_bits, tensors_of

import jax
import jax.numpy as jnp

import trope
import trope.jax

ARRAYS = ("freqs", "cos", "sin", "position_ids", "start_positions", "cu_seqlens", "cu_seqlens_padded")


def split(options):
    """Returns the options that are arrays, which jit traces, and the other options."""
    return {n: x for n, x in options.items() if n in ARRAYS}, {n: x for n, x in options.items() if n not in ARRAYS}


def same_sums(d, right):
    """Whether sums over tokens and heads have the same bits on the CPU. Other devices add in another order, which changes a
    sum by at most 2^-20 of the magnitudes (docs/numerics.md)."""
    if jax.default_backend() == "cpu":
        return same_bits(d, right)
    d = np.asarray(d)
    return (d.dtype, d.shape) == (right.dtype, right.shape) and np.abs(d - right).max() <= 1e-5 * np.abs(right).max()


def check_forward(name, dtype, rotate):
    tensors = tensors_of(name, dtype)
    expected = as_tuple(trope.rotate(*tensors, **CASES[name][1]))
    results = as_tuple(rotate(*tensors))
    assert len(results) == len(expected)
    for y, right in zip(results, expected):
        assert same_bits(y, right)
        assert np.abs(np.asarray(y, "float32")).max() > 0


@pytest.mark.parametrize("dtype", ["float32", BF16, "float16"], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_eager_calls_have_the_bits_of_numpy_calls(name, dtype):
    check_forward(name, dtype, lambda *tensors: trope.jax.rotate(*tensors, **CASES[name][1]))


@pytest.mark.parametrize("name", CASES)
def test_compiled_calls_have_the_bits_of_numpy_calls(name):
    arrays, others = split(CASES[name][1])

    @jax.jit
    def rotate(tensors, arrays):
        return trope.jax.rotate(*tensors, **arrays, **others)

    check_forward(name, "float32", lambda *tensors: rotate(tensors, arrays))
    check_forward(name, BF16, lambda *tensors: rotate(tensors, arrays))


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_have_the_bits_of_numpy_calls(name, compiles):
    options, tensors = CASES[name][1], tensors_of(name)
    dys = [random(100 + i, *y.shape) for i, y in enumerate(as_tuple(trope.rotate(*tensors, **options)))]
    expected, expected_freqs, expected_weights = jax_cases.numpy_gradients(name, tensors, dys)
    arrays, others = split(options)

    def gradients(tensors, freqs, weights, dys):
        def f(tensors, freqs, weights):
            given = dict(arrays, **others) if freqs is None else dict(arrays, **others, freqs=freqs)
            return as_tuple(trope.jax.rotate(*tensors, **jax_cases.with_weights(given, weights)))

        return jax.vjp(f, tensors, freqs, weights)[1](tuple(dys))

    gradients = jax.jit(gradients) if compiles else gradients
    dxs, d_freqs, d_weights = gradients(tensors, arrays.pop("freqs", None), jax_cases.weights_of(options), dys)
    for dx, right in zip(dxs, expected):
        assert same_bits(dx, right)
    assert (d_freqs is None) == (expected_freqs is None)
    assert d_freqs is None or same_sums(d_freqs, expected_freqs)
    for d, right in zip(d_weights, expected_weights):
        assert (d is None) == (right is None)
        assert d is None or same_sums(d, right)


def test_a_gradient_of_one_tensor_leaves_out_the_other():
    q, k = tensors_of("window")
    options, dq = CASES["window"][1], random(3, 2, 7, 4, 24)
    only_q = jax.grad(lambda q, k: (trope.jax.rotate(q, k, **options)[0] * dq).sum())(q, k)
    assert same_bits(only_q, trope.rotate_backward(dq, **dict(options, rotary_dim=16, rotary_offset=4)))
    dk = random(4, 2, 7, 2, 20)
    only_k = jax.grad(lambda q, k: (trope.jax.rotate(q, k, **options)[1] * dk).sum(), 1)(q, k)
    expected = trope.rotate_backward(np.zeros_like(dq), dk, **options)[1]
    assert same_bits(only_k, expected)


def test_calls_without_elements():
    options = dict(layout="bshd", pairing="half", freqs=jax_cases.freqs_table(5, 8), angle_columns="pair")
    for shape in ((2, 0, 4, 16), (0, 7, 4, 16)):
        x = np.zeros(shape, "float32")
        y, pull = jax.vjp(lambda x, freqs: trope.jax.rotate(x, **dict(options, freqs=freqs)), x, options["freqs"][:7])
        dx, d_freqs = pull(y)
        assert y.shape == dx.shape == shape
        assert d_freqs.shape == (5, 8) and not np.asarray(d_freqs).any()


def test_scan_rotates_in_each_step():
    x, options = tensors_of("bshd")[0], CASES["bshd"][1]

    @jax.jit
    def gradient(x):
        def f(x):
            step = lambda x, _: (trope.jax.rotate(x, **options) * 1.5, None)  # noqa: E731
            return (jax.lax.scan(step, x, None, length=3)[0] ** 2).sum()

        return jax.grad(f)(x)

    y = x
    for _ in range(3):
        y = trope.rotate(y, **options) * np.float32(1.5)
    y = 2 * y
    for _ in range(3):
        y = trope.rotate_backward(y * np.float32(1.5), **options)
    assert same_bits(gradient(x), y)


@pytest.mark.parametrize("name", ["bshd", "freqs", "norm"])
def test_checkpointing_has_the_same_bits(name):
    tensors, (arrays, others) = tensors_of(name), split(CASES[name][1])

    def loss(tensors):
        return sum((y**3).sum() for y in as_tuple(trope.jax.rotate(*tensors, **arrays, **others)))

    plain, again = jax.jit(jax.grad(loss))(tensors), jax.jit(jax.grad(jax.checkpoint(loss)))(tensors)
    assert all(map(same_bits, plain, again))


# ---- Donation ----


def custom_calls(compiled):
    return [line for line in compiled.as_text().splitlines() if 'custom_call_target="trope_rotate"' in line]


def copies(compiled):
    return re.findall(r"= \S+ copy\(", compiled.as_text())


@pytest.mark.parametrize("name", ["bshd", "window", "M-RoPE", "packed"])
def test_donated_tensors_are_rotated_in_place(name):
    tensors, options = tensors_of(name), CASES[name][1]
    function = jax.jit(lambda *tensors: trope.jax.rotate(*tensors, **options), donate_argnums=range(len(tensors)))
    compiled = function.lower(*tensors).compile()
    (call,) = custom_calls(compiled)
    assert "output_to_operand_aliasing" in call
    assert not copies(compiled)
    given = [jnp.array(x) for x in tensors]
    places = [x.unsafe_buffer_pointer() for x in given]
    results = as_tuple(function(*given))
    assert [y.unsafe_buffer_pointer() for y in results] == places
    assert all(x.is_deleted() for x in given)
    assert all(map(same_bits, results, as_tuple(trope.rotate(*tensors, **options))))


def test_tensors_that_are_not_donated_keep_their_values():
    (x, _), options = tensors_of("bshd"), CASES["bshd"][1]
    given = jnp.array(x)
    y = jax.jit(lambda x: trope.jax.rotate(x, **options))(given)
    assert same_bits(given, x) and same_bits(y, trope.rotate(x, **options))


def test_a_gradient_is_computed_in_the_memory_of_the_upstream_gradient():
    (x, _), options = tensors_of("bshd"), CASES["bshd"][1]
    function = jax.jit(lambda x: jax.grad(lambda x: (trope.jax.rotate(x * 2, **options) ** 2).sum())(x))
    calls = custom_calls(function.lower(x).compile())
    assert len(calls) == 2 and all("output_to_operand_aliasing" in call for call in calls)


def test_a_gradient_of_freqs_copies_no_tensor():
    (x, _), options = tensors_of("freqs"), dict(CASES["freqs"][1])
    freqs = options.pop("freqs")

    @jax.jit
    def gradient(x, freqs):
        return jax.grad(lambda x, freqs: (trope.jax.rotate(x * 2, freqs=freqs, **options) ** 2).sum(), 1)(x, freqs)

    assert not copies(gradient.lower(x, freqs).compile())


# ---- Positions and sequences that are traced ----


def test_one_compiled_function_serves_all_packings():
    options = {n: v for n, v in CASES["packed"][1].items() if n != "cu_seqlens"}
    q, k = tensors_of("packed")
    function = jax.jit(lambda q, k, cu: trope.jax.rotate(q, k, cu_seqlens=cu, **options))
    for cu in (increasing(0, 4, 4, 9), increasing(0, 1, 8, 9), increasing(0, 0, 0, 9)):
        assert all(map(same_bits, function(q, k, cu), trope.rotate(q, k, cu_seqlens=cu, **options)))
    assert function._cache_size() == 1


@pytest.mark.parametrize(
    "cu, text, lost", [((0, 5, 3, 9), "cu_seqlens", []), ((0, 4, 8, 8), "cu_seqlens", [8]), ((0, 4, 9, 10), "cu_seq", [])]
)
def test_wrong_sequences_are_an_error_when_the_call_runs(cu, text, lost):
    """On CUDA they are no error. There, tokens of a wrong sequence and tokens without a sequence become NaN: `lost`."""
    options = {n: v for n, v in CASES["packed"][1].items() if n != "cu_seqlens"}
    function = jax.jit(lambda q, cu: trope.jax.rotate(q, cu_seqlens=cu, **options))
    call = functools.partial(function, tensors_of("packed")[0], increasing(*cu))
    if jax.default_backend() != "cpu":
        assert np.isnan(np.asarray(call())[lost]).all()
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        call().block_until_ready()


def test_a_position_outside_a_table_is_an_error_when_the_call_runs():
    """On CUDA it is no error, and its token becomes NaN."""
    options = dict(layout="bshd", pairing="half", freqs=jax_cases.freqs_table(5, 8), angle_columns="pair")
    function = jax.jit(functools.partial(trope.jax.rotate, **options))
    ids = np.array([0, 4, 2, 5, 1, 0, 3], "int32")
    call = functools.partial(function, random(0, 2, 7, 4, 16), position_ids=ids)
    if jax.default_backend() != "cpu":
        missing = np.isnan(np.asarray(call()))
        assert missing[:, ids > 4].all() and not missing[:, ids <= 4].any()
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="position_ids"):
        call().block_until_ready()


def test_int64_indices():
    with jax.enable_x64(True):
        ids = np.array([[2**33, 1, 2, 3, 4, 5, 6]] * 2, "int64")
        options = dict(CASES["ids"][1], position_ids=ids)
        (x,) = tensors_of("ids")
        assert same_bits(trope.jax.rotate(x, **options), trope.rotate(x, **options))


def test_trope_rotate_takes_jax_arrays_and_names_trope_jax_for_traced_arrays():
    (x, _), options = tensors_of("bshd"), CASES["bshd"][1]
    y = trope.rotate(jax.device_put(x, jax.devices("cpu")[0]), **options)
    assert isinstance(y, jax.Array) and same_bits(y, trope.rotate(x, **options))
    with pytest.raises(trope.Error, match=r"tensors\[0\].*trope\.jax"):
        jax.jit(lambda x: trope.rotate(x, **options))(x)
    with pytest.raises(trope.Error, match=r"tensors\[0\].*trope\.jax"):
        jax.grad(lambda x: trope.rotate(x, **options).sum())(x)
    with pytest.raises(trope.Error, match=r"position_ids.*trope\.jax"):
        jax.jit(lambda ids: trope.rotate(x, position_ids=ids, **options))(np.zeros(7, "int32"))
