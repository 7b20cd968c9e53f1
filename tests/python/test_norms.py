"""Norms in calls that rotate NumPy arrays: values, gradients and refused calls. PyTorch: test_torch_norms.py."""

import copy
import pickle

import numpy as np
import pytest
import trope
from reference import angles_of, from_layout, norm, of_angles, rotate, to_layout
from refusals import refused

INV_FREQ = [1.0, 0.3, 0.1, 0.03]
EPS = 1e-3  # large enough to change results
PLAIN = dict(layout="bshd", pairing="half", inv_freq=INV_FREQ)


def random(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


def formula(x, layout, weight, plus_one=False, scope="head", order="before", rotates=True):
    """Computes the result in double precision. The position of a token is its index."""
    x = from_layout(x.astype(np.float64), layout)
    weight = None if weight is None else weight.astype(np.float64)
    coefficients = of_angles(angles_of(np.arange(x.shape[-3]), INV_FREQ))

    def turn(x):
        return rotate(x, coefficients, "half") if rotates else x

    result = norm(x, weight, EPS, plus_one, scope) if order == "before" else turn(x)
    result = turn(result) if order == "before" else norm(result, weight, EPS, plus_one, scope)
    return to_layout(result, layout)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("scope", ["head", "token"])
@pytest.mark.parametrize("layout", ["sbhd", "bshd", "bhsd", "thd"])
@pytest.mark.parametrize("shape", ["none", "dim", "heads", "flat"])
def test_values(layout, scope, order, shape):
    sizes = dict(s=5, b=2, t=6, h=3, d=8)
    x = random(*[sizes[dim] for dim in layout])
    weight = {"none": None, "dim": random(8), "heads": random(3, 8), "flat": random(24)}[shape]
    for plus_one in (False, True) if shape != "none" else (False,):
        given = trope.Norm(weight, eps=EPS, plus_one=plus_one, scope=scope, order=order)
        y = trope.rotate(x, norms=given, **dict(PLAIN, layout=layout))
        np.testing.assert_allclose(y, formula(x, layout, weight, plus_one, scope, order), rtol=1e-13, atol=1e-13)
        strided = np.stack((x, x), -1)[..., 0]
        assert np.array_equal(trope.rotate(strided, norms=(given,), **dict(PLAIN, layout=layout)), y)
        trope.rotate_(x_ := x.copy(), norms=[given], **dict(PLAIN, layout=layout))
        assert np.array_equal(x_, y)


@pytest.mark.parametrize("dtype, slack", [(np.float32, 3e-7), (np.float16, 1e-3)])
def test_several_tensors_and_dtypes(dtype, slack):
    """Tensors have different norms or none, and weights have several dtypes. V is normalised but not rotated."""
    q, k, v, w = (
        random(2, 3, 4, 8, dtype=dtype),
        random(2, 3, 2, 8, dtype=dtype),
        random(2, 3, 1, 8, dtype=dtype),
        random(8),
    )
    for weight in (w.astype(np.float32), w.astype(np.float16)):
        norms = trope.Norm(weight, eps=EPS), None, trope.Norm(eps=EPS)
        out = trope.rotate(q, k, v, norms=norms, rotary_dim=(8, 8, trope.COPY), **PLAIN)
        assert [y.dtype for y in out] == [dtype] * 3
        wanted = formula(q, "bshd", weight), trope.rotate(k, **PLAIN), formula(v, "bshd", None, rotates=False)
        for y, right in zip(out, wanted):
            np.testing.assert_allclose(y, right, rtol=slack, atol=slack)
        assert np.array_equal(out[1], wanted[1])


def test_groups():
    """In layouts with groups, weights have all heads, group by group."""
    x, weight = random(4, 2, 3, 8), random(6, 8)
    for given in (weight, weight.reshape(2, 3, 8), weight.ravel()):
        for scope in ("head", "token"):
            y = trope.rotate(x, norms=trope.Norm(given, eps=EPS, scope=scope), **dict(PLAIN, layout="tghd"))
            wanted = formula(x.reshape(4, 6, 8), "thd", weight, scope=scope)
            np.testing.assert_allclose(y, wanted.reshape(x.shape), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("scope", ["head", "token"])
def test_gradients(scope, order):
    """<dy, derivative of y along a direction> equals <gradient, direction>, for x, weights and frequencies."""
    x, y, weight, own = random(2, 3, 4, 8), random(2, 3, 2, 8), random(8), random(2, 8)
    dx, dy = random(2, 3, 4, 8, seed=3), random(2, 3, 2, 8, seed=3)
    inv_freq = np.array(INV_FREQ)
    given = [x, y, weight, own, inv_freq]

    def norms_of(weight, own):
        first = trope.Norm(weight, eps=EPS, plus_one=True, scope=scope, order=order)
        return first, trope.Norm(own, eps=EPS, order=order)

    def call(x, y, weight, own, inv_freq):
        return trope.rotate(x, y, norms=norms_of(weight, own), **dict(PLAIN, inv_freq=inv_freq))

    d_weights, d_inv_freq = [np.full(8, np.nan), np.full((2, 8), np.nan)], np.full(4, np.nan)
    gradients = trope.rotate_backward(
        dx, dy, forward_src=(x, y), norms=norms_of(weight, own), d_weights=d_weights, d_inv_freq=d_inv_freq, **PLAIN
    )
    for i, gradient in enumerate((*gradients, *d_weights, d_inv_freq)):
        direction = random(*gradient.shape, seed=9)
        near = [call(*given[:i], given[i] + h * direction, *given[i + 1 :]) for h in (1e-5, -1e-5)]
        slope = sum((up * (a - b)).sum() / 2e-5 for up, a, b in zip((dx, dy), *near))
        np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-7, atol=1e-7)
    alone = np.empty((2, 8))
    again = trope.rotate_backward(dx, dy, forward_src=(x, y), norms=norms_of(weight, own), d_weights=[None, alone], **PLAIN)
    assert np.array_equal(again[0], gradients[0]) and np.array_equal(alone, d_weights[1])


def test_empty_tensors():
    """Without tokens, the gradient of a weight is 0. A table may then have no rows."""
    for shape in ((0, 3, 2, 8), (2, 0, 2, 8)):
        x, d_weight = np.zeros(shape), np.full(8, np.nan)
        given = trope.Norm(np.ones(8), eps=EPS)
        assert trope.rotate(x, norms=given, **PLAIN).shape == shape
        trope.rotate_backward(x, forward_src=x, norms=given, d_weights=d_weight, **PLAIN)
        assert np.array_equal(d_weight, np.zeros(8))
        table, d_freqs = np.zeros((0, 4)), np.zeros((0, 4))
        options = dict(layout="bshd", pairing="half", freqs=table, angle_columns="pair")
        d_weights = [np.full(8, np.nan), None]
        arrays = dict(forward_src=(x, x.copy()), norms=(given, None), d_freqs=d_freqs, d_weights=d_weights)
        if shape[1] == 0:
            trope.rotate_backward(x.copy(), x.copy(), **arrays, **options)
            assert np.array_equal(d_weights[0], np.zeros(8))


def test_native_rounding_twice_and_product():
    x, weight = random(2, 50, 4, 8, dtype=np.float16), random(8, dtype=np.float16)
    twice, product = (
        trope.rotate(x, norms=trope.Norm(weight, eps=EPS, rounding=word), rounding="native", **PLAIN)
        for word in ("twice", "product")
    )
    rotated = dict(PLAIN, rounding="native")
    mean = (x.astype(np.float32) ** 2).mean(-1, keepdims=True)
    normed = x / np.sqrt(mean + np.float32(EPS))
    for result, by_hand in (
        (twice, normed.astype(np.float16) * weight),
        (product, (normed * weight.astype(np.float32)).astype(np.float16)),
    ):
        wanted = trope.rotate(by_hand, **rotated)
        assert (result == wanted).mean() > 0.98
    assert (twice == product).mean() < 0.98


def test_norms_of_none_change_nothing():
    x = random(2, 3, 4, 8)
    for norms in (None, (None,), [None]):
        assert np.array_equal(trope.rotate(x, norms=norms, **PLAIN), trope.rotate(x, **PLAIN))


def test_kernel_names():
    x, given = random(2, 3, 4, 8, dtype=np.float32), trope.Norm(random(8, dtype=np.float32), eps=EPS)
    for backward in (False, True):
        assert trope.kernel_name(x, norms=given, backward=backward, **PLAIN).startswith("cpu-")


def test_a_norm_cannot_be_changed():
    given = trope.Norm(np.ones(8), eps=1e-6, plus_one=True, scope="token", order="after", rounding="product")
    for name in ("eps", "weight", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(given, name, 1)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del given.eps
    for same in (copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert repr(same) == repr(given) and np.array_equal(same.weight, given.weight)
    assert "shape [8]" in repr(given) and "eps=1e-06" in repr(given)


def test_norms_that_are_refused():
    weight = np.ones(8)
    for argument, options in (
        ("eps", dict(eps=0)),
        ("eps", dict(eps=-1e-6)),
        ("eps", dict(eps=float("nan"))),
        ("eps", dict(eps="1e-6")),
        ("plus_one", dict(eps=1e-6, plus_one=1)),
        ("scope", dict(eps=1e-6, scope="heads")),
        ("scope", dict(eps=1e-6, scope=None)),
        ("order", dict(eps=1e-6, order="first")),
        ("rounding", dict(eps=1e-6, rounding="once")),
        ("process_group", dict(eps=1e-6, process_group=object())),
    ):
        refused(argument, trope.Norm, weight, **options)
    refused("plus_one", trope.Norm, eps=1e-6, plus_one=True, words="weight")
    refused("rounding", trope.Norm, eps=1e-6, rounding="twice", words="weight")
    with pytest.raises(TypeError, match="eps"):
        trope.Norm(weight)


def test_calls_that_are_refused():
    """Refusals that need no norm are tested in test_arguments.py."""
    x, w = random(2, 3, 4, 8, dtype=np.float32), np.ones(8, np.float32)

    def of(weight, **options):
        return dict(norms=trope.Norm(weight, eps=1e-6, **options))

    name = "norms[0].weight"
    for weight, words in (
        (np.ones(4, np.float32), r"\[4\].*\[8\], \[4, 8\], \[32\]"),
        (np.ones((8, 4), np.float32), r"\[8, 4\]"),
        (np.ones((1, 8), np.float32), r"\[1, 8\]"),
        (np.ones(16, np.float32)[::2], "contiguous"),
        (np.ones(8), "float64"),
        (np.ones(8, np.int32), "int32"),
        ([1.0] * 8, "array"),
    ):
        refused(name, trope.rotate, x, words=words, **of(weight), **PLAIN)
    for eps in (1e-60, 1e39):  # in double, they are valid
        refused("norms[0].eps", trope.rotate, x, words="fp32.* dtype f32", norms=trope.Norm(eps=eps), **PLAIN)
        trope.rotate(x.astype(np.float64), norms=trope.Norm(eps=eps), **PLAIN)
    group = type("Group", (), dict(size=lambda self: 2, rank=lambda self: 0, group_name="0"))()
    refused(
        "norms[0].process_group", trope.rotate, x, words="trope.torch", **of(w, scope="token", process_group=group), **PLAIN
    )
    refused(
        "norms[0].process_group", trope.rotate, x, words="process group", **of(w, scope="token", process_group=5), **PLAIN
    )
    refused("forward_src[0]", trope.rotate_backward, x, words="forward", **of(w), **PLAIN)
    refused("forward_src[0]", trope.rotate_backward_, x.copy(), **of(w), **PLAIN)
    arrays = dict(forward_src=x.copy())
    refused("d_weights", trope.rotate_backward, x, d_weights=w.copy(), **arrays, **PLAIN)
    for d_weight, words in (
        (np.ones(8), "float64"),
        (np.ones(9, np.float32), "shape"),
        (np.ones(16, np.float32)[::2], "contig"),
    ):
        refused("d_weights[0]", trope.rotate_backward, x, d_weights=d_weight, words=words, **arrays, **of(w), **PLAIN)
    refused("d_weights[0]", trope.rotate_backward, x, d_weights=w.copy(), words="no weight", **arrays, **of(None), **PLAIN)
    refused("d_weights[0]", trope.rotate_backward, x, d_weights=w, words="overlap", **arrays, **of(w), **PLAIN)
    norms = (trope.Norm(w, eps=1e-6), None)
    both = dict(forward_src=[x.copy(), None], norms=norms)
    refused(
        "d_weights[1]", trope.rotate_backward, x, x.copy(), d_weights=[w.copy(), w.copy()], words="None", **both, **PLAIN
    )
    with pytest.raises(trope.Error, match="RotaryEmbedding"):
        from trope._spec import resolve

        resolve([x], dict(PLAIN, **of(w)))
