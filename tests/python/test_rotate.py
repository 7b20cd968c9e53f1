"""Compares trope.rotate and related functions on NumPy and JAX arrays with a rotation written from its definition."""

import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
import trope
from reference import angles_of, from_layout, of_angles, of_table, packed_positions, rotate, to_layout
from refusals import refused

DTYPES = {"float32": 2e-6, "float16": 2e-3, "float64": 1e-12}


def assert_close(y, layout, x, coefficients, pairing, dtype, **options):
    """Checks that y is the rotation of x, which is [batch, tokens, heads, dim]."""
    expected = rotate(x, coefficients, pairing, **options)
    np.testing.assert_allclose(from_layout(y, layout), expected, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["sbhd", "bshd", "bhsd"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("columns", ["half", "interleaved"])
def test_forward_and_backward(dtype, layout, pairing, columns):
    rng = np.random.default_rng(1)
    q_seen, k_seen = rng.standard_normal((2, 5, 3, 12)).astype(dtype), rng.standard_normal((2, 5, 1, 9)).astype(dtype)
    q, k = np.ascontiguousarray(to_layout(q_seen, layout)), np.ascontiguousarray(to_layout(k_seen, layout))
    table = rng.uniform(-8, 8, (5, 8)).astype("float64" if dtype == "float64" else "float32")
    coefficients = of_table(np.cos(table.astype(float)), np.sin(table.astype(float)), columns)
    options = dict(layout=layout, pairing=pairing, freqs=table, angle_columns=columns, rotary_dim=8, mscale=0.5)
    before = q.copy()
    y, z = trope.rotate(q, k, rotary_offset=(3, 1), **options)
    assert y.dtype == q.dtype and y.shape == q.shape and np.array_equal(q, before)
    assert_close(y, layout, q_seen, coefficients, pairing, dtype, offset=3, mscale=0.5)
    assert_close(z, layout, k_seen, coefficients, pairing, dtype, offset=1, mscale=0.5)
    dx, dz = trope.rotate_backward(q, k, rotary_offset=(3, 1), **options)
    assert_close(dx, layout, q_seen, coefficients, pairing, dtype, offset=3, mscale=0.5, backward=True)
    out = np.full_like(q, np.nan)
    assert trope.rotate(q, out=[out], rotary_offset=3, **options) is out and np.array_equal(out, y)
    assert trope.rotate_(q, rotary_offset=3, **options) is q and np.array_equal(q, y)
    trope.rotate_backward_(k, rotary_offset=1, **options)
    assert np.array_equal(k, dz)


def test_strided_views_are_read_and_written():
    rng = np.random.default_rng(2)
    qkv = rng.standard_normal((4, 2, 3, 7, 8)).astype(np.float32)  # [s, b, (q k v), heads, dim]
    q, k, v = qkv[:, :, 0], qkv[:, :, 1, :, ::-1], qkv[:, :, 2]
    inv_freq = [1.0, 0.5, 0.25, 0.125]
    options = dict(layout="sbhd", pairing="half", inv_freq=inv_freq)
    y, z = trope.rotate(q, k, **options)
    assert np.array_equal(y, trope.rotate(q.copy(), **options)) and np.array_equal(z, trope.rotate(k.copy(), **options))
    kept = v.copy()
    trope.rotate_(q, k, **options)
    assert np.array_equal(q, y) and np.array_equal(k, z) and np.array_equal(v, kept)
    expanded = np.broadcast_to(np.float32(2), (4, 2, 7, 8))
    assert np.array_equal(trope.rotate_backward(expanded, **options), trope.rotate_backward(expanded.copy(), **options))


def test_gradient_of_the_angles():
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 6, 1, 4, 8))
    inv_freq = rng.uniform(0.1, 2, 4)
    options = dict(layout="sbhd", pairing="interleaved")
    table = np.arange(6)[:, None] * inv_freq
    d_freqs, d_inv_freq = np.full((6, 4), np.nan), np.full(4, np.nan)
    trope.rotate_backward(dy, forward_src=[x], d_freqs=d_freqs, freqs=table, angle_columns="pair", **options)
    trope.rotate_backward(dy, forward_src=[x], d_inv_freq=d_inv_freq, inv_freq=inv_freq, **options)

    def loss(table):
        return np.sum(dy * trope.rotate(x, freqs=table, angle_columns="pair", **options))

    step, expected = 1e-6, np.empty((6, 4))
    for at in np.ndindex(6, 4):
        up, down = table.copy(), table.copy()
        up[at] += step
        down[at] -= step
        expected[at] = (loss(up) - loss(down)) / (2 * step)
    np.testing.assert_allclose(d_freqs, expected, atol=1e-8)
    np.testing.assert_allclose(d_inv_freq, np.sum(d_freqs * np.arange(6)[:, None], 0), rtol=1e-12)


def test_packed_sequences_ranks_and_position_ids():
    rng, frequencies = np.random.default_rng(4), [1.0, 0.3, 0.1, 0.03]
    cu_seqlens, x = [0, 8, 8, 12, 28], rng.standard_normal((28, 2, 8)).astype(np.float32)
    options = dict(layout="thd", pairing="half", inv_freq=frequencies)
    for rank in (None, 0, 1):
        cp = ("none", 1, 0) if rank is None else ("zigzag", 2, rank)
        tokens = x[: 28 // cp[1]]
        positions, _ = packed_positions(len(tokens), cu_seqlens, cp=cp)
        words = {} if rank is None else dict(zip(("cp_layout", "cp_size", "cp_rank"), cp))
        y = trope.rotate(tokens, cu_seqlens=np.int32(cu_seqlens), **words, **options)
        expected = rotate(tokens, of_angles(angles_of(positions, frequencies)), "half")
        np.testing.assert_allclose(y, expected, atol=2e-6)
        assert np.array_equal(y, trope.rotate(tokens, position_ids=positions, **options))
        assert np.array_equal(y, trope.rotate(tokens, cu_seqlens=np.int64(cu_seqlens), **words, **options))
    padded = trope.rotate(
        x[:20], cu_seqlens=np.int32([0, 3, 5]), cu_seqlens_padded=np.int32([0, 8, 20]), padding="zero", **options
    )
    assert not padded[3:8].any() and not padded[10:].any() and padded[:3].all() and padded[8:10].all()
    options["layout"] = "bshd"
    starts = trope.rotate(x[None, :4], start_positions=np.int64([7]), **options)
    assert np.array_equal(starts, trope.rotate(x[None, :4], position_ids=np.arange(7, 11), **options))


def test_angles_of_each_head_by_a_swap_of_heads_and_batch():
    """To give each head its own angles, the docs swap heads and batch. Without the swap, each batch entry gets its own
    angles, and other batch sizes are refused."""
    rng = np.random.default_rng(4)
    freqs = rng.uniform(-8, 8, (3, 5, 6)).astype("float32")
    options = dict(layout="bhsd", pairing="half", freqs=freqs, angle_columns="pair")
    for batch in (2, 3):
        q = rng.standard_normal((batch, 3, 5, 12)).astype("float32")
        y = trope.rotate(q.transpose(1, 0, 2, 3), **options).transpose(1, 0, 2, 3)
        for head in range(3):
            wanted = rotate(q[:, head, :, None], of_angles(freqs[head].astype(float)), "half")[:, :, 0]
            np.testing.assert_allclose(y[:, head], wanted, atol=1e-5)
        if batch == 2:
            refused("freqs", trope.rotate, q, words="has shape .*, with batch 3 where the tensors have 2", **options)
        else:
            wanted = rotate(from_layout(q, "bhsd"), of_angles(freqs.astype(float)), "half")
            np.testing.assert_allclose(from_layout(trope.rotate(q, **options), "bhsd"), wanted, atol=1e-5)


def test_axes_of_pairs():
    assert trope.pair_axis("sections", [2, 1, 1]) == (0, 0, 1, 2)
    assert trope.pair_axis("interleaved", [2, 1, 1]) == (0, 1, 2, 0)
    rng = np.random.default_rng(5)
    x, ids = rng.standard_normal((2, 5, 1, 8)).astype(np.float32), rng.integers(0, 9, (3, 2, 5))
    inv_freq = np.array([1.0, 0.3, 0.1, 0.03])
    y = trope.rotate(x, layout="bshd", pairing="half", inv_freq=inv_freq, position_ids=ids, pair_axis=(0, 0, 1, 2))
    expected = rotate(x, of_angles(angles_of(ids, inv_freq, (0, 0, 1, 2))), "half")
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_shared_heads_and_accumulate():
    rng = np.random.default_rng(6)
    k_pe = rng.standard_normal((5, 2, 1, 8)).astype(np.float32)
    options = dict(layout="sbhd", pairing="half", inv_freq=[1.0, 0.3, 0.1, 0.03], shared_heads=3)
    y = trope.rotate(k_pe, **options)
    assert y.shape == (5, 2, 3, 8)
    plain = dict(options, shared_heads=0)
    assert all(np.array_equal(y[:, :, h : h + 1], trope.rotate(k_pe, **plain)) for h in range(3))
    dy = rng.standard_normal((5, 2, 3, 8)).astype(np.float32)
    dx = trope.rotate_backward(dy, **options)
    np.testing.assert_allclose(dx, trope.rotate_backward(dy, **plain).sum(2, keepdims=True), atol=1e-6)
    out = np.ones_like(k_pe)
    trope.rotate_backward(dy, out=[out], accumulate=True, **options)
    np.testing.assert_allclose(out, 1 + dx, atol=1e-6)


def test_attention_factor_is_the_default_mscale():
    x = np.ones((1, 1, 1, 4), np.float32)
    given = trope.Frequencies([1.0, 0.5], attention_factor=2.0)
    assert trope.rotate(x, layout="sbhd", pairing="half", inv_freq=given)[0, 0, 0, 0] == 2
    assert trope.rotate(x, layout="sbhd", pairing="half", inv_freq=given, mscale=1)[0, 0, 0, 0] == 1


X = np.zeros((4, 2, 3, 8), np.float32)
FREQS = np.zeros((4, 8), np.float32)
GOOD = dict(layout="sbhd", pairing="half", freqs=FREQS, angle_columns="half")


@pytest.mark.parametrize(
    "change, argument",
    [  # options that contradict or lack another option; test_arguments.py tests the values of each option
        (dict(layout="thd"), "tensors[0]"),
        (dict(freqs=None), "inv_freq"),
        (dict(cos=FREQS, sin=FREQS), "freqs"),
        (dict(cp_size=2), "cp_rank"),
        (dict(cp_rank=0), "cp_size"),
        (dict(cu_seqlens_padded=np.int32([0, 4])), "cu_seqlens"),
    ],
)
def test_options_that_contradict_or_lack_others_are_refused(change, argument):
    refused(argument, trope.rotate, X, **{**GOOD, **change})


def read_only(array):
    array.flags.writeable = False
    return array


def test_arrays_that_cannot_be_written_are_refused():
    x = read_only(X.copy())
    trope.rotate(x, **GOOD)
    refused("tensors[0]", trope.rotate_, x, words="written", **GOOD)
    refused("status", trope.rotate, X, status=read_only(np.zeros(1, np.int32)), **GOOD)


IN_PLACE = "input and result must have the same address and strides (in place), or not overlap"
WRITTEN = "memory that the call writes must not overlap its other memory"


def overlaps():
    """Calls in which an array overlaps another: (function, tensors, options, message, which begins with the name of
    the argument)."""
    memory = np.zeros(4096, np.float32)

    def at(start, *shape, dtype=np.float32):
        return memory[start : start + np.prod(shape)].view(dtype).reshape(shape)

    one, two = (1, 4, 1, 8), (1, 4, 2, 8)
    x, y, out, table, weight = at(0, *two), at(100, *two), at(200, *two), at(400, 4, 4), at(500, 8)
    options = dict(layout="bshd", pairing="half", freqs=table, angle_columns="pair")
    backward = dict(options, out=out, forward_src=at(600, *two))
    normed = dict(backward, norms=trope.Norm(weight, eps=1e-6))
    shared, status, ids = dict(options, shared_heads=2), at(204, 1, dtype=np.int32), at(204, 4, dtype=np.int32)
    return [
        (trope.rotate, [x], dict(options, out=at(8, *two)), "out[0] overlaps tensors[0]: " + IN_PLACE),
        (trope.rotate, [x], dict(options, out=x[:, ::-1]), "out[0] overlaps tensors[0]: " + IN_PLACE),
        (trope.rotate, [at(0, *one)], dict(shared, out=at(8, *two)), "out[0] overlaps tensors[0]: " + WRITTEN),
        (trope.rotate_backward, [x], dict(options, out=at(8, *two), accumulate=True),
         "out[0] overlaps tensors[0]: " + WRITTEN),
        (trope.rotate, [x, y], dict(options, out=[out, x]), "out[1] overlaps tensors[0]: " + WRITTEN),
        (trope.rotate, [x, y], dict(options, out=[out, out]), "out[0] overlaps out[1]: " + WRITTEN),
        (trope.rotate_, [x, x], options, "tensors[0] overlaps tensors[1]: " + WRITTEN),
        (trope.rotate, [x], dict(options, out=at(400, *two)), "out[0] overlaps freqs: " + WRITTEN),
        (trope.rotate, [x], dict(options, out=out, status=status), "out[0] overlaps status: " + WRITTEN),
        (trope.rotate, [x], dict(options, out=out, position_ids=ids), "out[0] overlaps position_ids: " + WRITTEN),
        (trope.rotate_backward, [x], dict(backward, d_freqs=table), "d_freqs overlaps freqs: " + WRITTEN),
        (trope.rotate_backward, [x], dict(normed, forward_src=out), "out[0] overlaps forward_src[0]: " + WRITTEN),
        (trope.rotate_backward, [x], dict(normed, d_weights=[weight]),
         "d_weights[0] overlaps norms[0].weight: " + WRITTEN),
        (trope.rotate_backward, [x], dict(normed, d_weights=[at(8, 8)]),
         "d_weights[0] overlaps tensors[0]: " + WRITTEN),
    ]  # fmt: skip


@pytest.mark.parametrize("function, tensors, options, text", overlaps())
def test_the_text_about_an_overlap_is_true_for_its_arrays(function, tensors, options, text):
    error = refused(text.partition(" ")[0], function, *tensors, words="^%s$" % re.escape(text), **options)
    assert error.status == "TROPE_ERROR_OVERLAP"


def test_messages_about_heads_in_place_have_no_numbers_of_c():
    memory = np.zeros(64, np.float32)
    options = dict(GOOD, layout="bshd", out=memory.reshape(1, 4, 2, 8))
    refused("shared_heads", trope.rotate, memory[:32].reshape(1, 4, 1, 8), shared_heads=2,
            words=r"^shared_heads of tensors\[0\] must not be given in place", **options)  # fmt: skip


class OnCuda:
    """An array that claims to be on CUDA, for calls that never reach the library."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape
        self.__cuda_array_interface__ = dict(array.__array_interface__, version=3)


def test_stream_of_each_call(monkeypatch):
    used, x = [], OnCuda(X.copy())
    monkeypatch.setattr(trope._prepared.lib, "trope_forward", lambda args: used.append(args._obj.stream) or 0)
    for stream in (None, 4660, None, 7):
        trope.rotate(x, out=[x], stream=stream, **dict(GOOD, freqs=OnCuda(FREQS)))
    assert used == [None, 4660, None, 7]


def test_numpy_integers_as_options():
    wanted = trope.rotate(X + 1, rotary_dim=8, threads=1, **GOOD)
    assert np.array_equal(trope.rotate(X + 1, rotary_dim=np.int64(8), threads=np.int32(1), **GOOD), wanted)


def test_positions_beyond_the_table():
    with pytest.raises(trope.Error) as caught:
        trope.rotate(X, position_ids=np.int32([0, 1, 2, 9]), **GOOD)
    assert caught.value.status == "TROPE_ERROR_DATA"
    status = np.zeros(1, np.int32)
    y = trope.rotate(X, position_ids=np.int32([0, 1, 2, 9]), status=status, **GOOD)
    assert status[0] == 1 and np.isnan(y[3]).all() and not np.isnan(y[:3]).any()


def test_jax():
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        check_jax(jax)


def check_jax(jax):
    rng = np.random.default_rng(8)
    x, freqs = rng.standard_normal((4, 2, 3, 8)).astype(np.float32), rng.standard_normal((4, 8)).astype(np.float32)
    options = dict(GOOD, freqs=jax.numpy.asarray(freqs))
    y = trope.rotate(jax.numpy.asarray(x), **options)
    assert isinstance(y, jax.Array) and np.array_equal(y, trope.rotate(x, **dict(GOOD, freqs=freqs)))
    y = trope.rotate(jax.numpy.asarray(x, jax.numpy.bfloat16), **options)
    assert (
        y.dtype == jax.numpy.bfloat16
        and np.abs(np.asarray(y, np.float32) - trope.rotate(x, **dict(GOOD, freqs=freqs))).max() < 0.05
    )
    refused("tensors[0]", trope.rotate_, jax.numpy.asarray(x), words="written", **options)


def run(seed):
    x = np.random.default_rng(seed).standard_normal((64, 2, 8, 64)).astype(np.float32)
    return trope.rotate(x, layout="sbhd", pairing="half", inv_freq=trope.frequencies(rope_theta=10000.0, head_dim=64))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes(method):
    expected = run(9)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for result in pool.map(run, [9, 9]):
            assert np.array_equal(result, expected)


def test_calls_in_several_threads():
    expected = [run(seed) for seed in range(4)]
    with futures.ThreadPoolExecutor(4) as pool:
        for seed, result in enumerate(pool.map(run, [0, 1, 2, 3] * 8)):
            assert np.array_equal(result, expected[seed % 4])


def import_in_a_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )  # fmt: skip


def test_import_loads_no_heavy_package():
    heavy = "[m for m in ('numpy', 'torch', 'jax', 'transformers') if m in sys.modules]"
    code = "import sys, trope, trope._models; print(%s, trope.info() != '')" % heavy
    assert import_in_a_process(code).stdout == "[] True\n"


def test_import_refuses_another_library(tmp_path):
    missing = import_in_a_process("import trope", TROPE_LIBRARY=str(tmp_path / "libtrope.so"))
    assert "ImportError: trope: the library cannot be loaded" in missing.stderr and "TROPE_LIBRARY" in missing.stderr
    other = import_in_a_process("import trope", TROPE_LIBRARY="libc.so.6")
    assert "ImportError" in other.stderr and "libc.so.6" in other.stderr


def test_errors_pickle():
    error = refused("pairing", trope.rotate, X, **dict(GOOD, pairing=None))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.argument == "pairing" and copy.status == "TROPE_ERROR_ARGUMENT"


def test_kernel_name():
    assert trope.kernel_name(X, **GOOD).startswith("cpu-")
