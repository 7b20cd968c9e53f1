"""trope.rotate and its kin on arrays of NumPy, JAX and plain DLPack, against the rotation written from its definition."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
import trope

DTYPES = {"float32": 2e-6, "float16": 2e-3, "float64": 1e-12}
LAYOUTS = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}


def pairs_of(width, pairing):
    first = np.arange(0, width, 2) if pairing == "interleaved" else np.arange(width // 2)
    return first, first + (1 if pairing == "interleaved" else width // 2)


def rotated(x, angles, pairing, offset=0, pairing_out=None, mscale=1.0, transpose=False):
    """x [batch, tokens, heads, dim] by angles [batch, tokens, width] of each element, in float64."""
    x, y = x.astype(np.float64), x.astype(np.float64).copy()
    width = angles.shape[-1]
    source, target = pairing, pairing_out or pairing
    if transpose:
        source, target = target, source
    i, j = pairs_of(width, source)
    k, l = pairs_of(width, target)
    a1, a2 = angles[:, :, None, k if not transpose else i], angles[:, :, None, l if not transpose else j]
    x1, x2 = x[..., offset + i], x[..., offset + j]
    if transpose:
        y1, y2 = x1 * np.cos(a1) + x2 * np.sin(a2), -x1 * np.sin(a1) + x2 * np.cos(a2)
    else:
        y1, y2 = x1 * np.cos(a1) - x2 * np.sin(a1), x1 * np.sin(a2) + x2 * np.cos(a2)
    y[..., offset + k], y[..., offset + l] = mscale * y1, mscale * y2
    return y


def random(rng, layout, batch=2, tokens=5, heads=3, dim=12, dtype="float32"):
    """An array in this layout, and the same as [batch, tokens, heads, dim]."""
    sizes = np.array([batch, tokens, heads, dim])
    order = LAYOUTS[layout]
    shape = [0] * 4
    for size, at in zip(sizes, order):
        shape[at] = size
    x = rng.standard_normal(shape).astype(dtype)
    return x, x.transpose(order)


def as_bshd(x, layout):
    return x.transpose(LAYOUTS[layout])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("columns", ["half", "interleaved"])
def test_forward_and_backward(dtype, layout, pairing, columns):
    rng = np.random.default_rng(1)
    q, q_seen = random(rng, layout, dtype=dtype)
    k, k_seen = random(rng, layout, heads=1, dim=9, dtype=dtype)
    table = rng.uniform(-8, 8, (5, 8)).astype("float64" if dtype == "float64" else "float32")
    i, j = pairs_of(8, columns)
    m, n = pairs_of(8, pairing)
    angles = np.empty((1, 5, 8))
    angles[0][:, m], angles[0][:, n] = table[:, i], table[:, j]
    options = dict(layout=layout, pairing=pairing, freqs=table, angle_columns=columns, rotary_dim=8, mscale=0.5)
    options["rotary_offset"] = (3, 1)
    before = q.copy()
    y, z = trope.rotate(q, k, **options)
    assert y.dtype == q.dtype and y.shape == q.shape and np.array_equal(q, before)
    np.testing.assert_allclose(
        as_bshd(y, layout), rotated(q_seen, angles, pairing, 3, mscale=0.5), atol=4 * DTYPES[dtype], rtol=DTYPES[dtype]
    )
    np.testing.assert_allclose(
        as_bshd(z, layout), rotated(k_seen, angles, pairing, 1, mscale=0.5), atol=4 * DTYPES[dtype], rtol=DTYPES[dtype]
    )
    dx, dz = trope.rotate_backward(q, k, **options)
    expected = rotated(q_seen, angles, pairing, 3, mscale=0.5, transpose=True)
    np.testing.assert_allclose(as_bshd(dx, layout), expected, atol=4 * DTYPES[dtype], rtol=DTYPES[dtype])
    out = np.full_like(q, np.nan)
    assert trope.rotate(q, out=[out], **dict(options, rotary_offset=3)) is out and np.array_equal(out, y)
    assert trope.rotate_(q, **dict(options, rotary_offset=3)) is q and np.array_equal(q, y)
    trope.rotate_backward_(k, **dict(options, rotary_offset=1))
    assert np.array_equal(k, dz)


def test_views_are_read_and_written_as_they_lie():
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


def test_packed_sequences_ranks_and_ids():
    rng = np.random.default_rng(4)
    lengths = [8, 0, 4, 16]
    cu_seqlens = np.cumsum([0] + lengths).astype(np.int32)
    x = rng.standard_normal((28, 2, 8)).astype(np.float32)
    options = dict(layout="thd", pairing="half", inv_freq=[1.0, 0.3, 0.1, 0.03])
    whole = trope.rotate(x, cu_seqlens=cu_seqlens, **options)
    positions = np.concatenate([np.arange(n) for n in lengths])
    assert np.array_equal(whole, trope.rotate(x, position_ids=positions, **options))
    assert np.array_equal(whole, trope.rotate(x, cu_seqlens=cu_seqlens.astype(np.int64), **options))
    for rank in range(2):
        of_rank = np.concatenate(
            [np.arange(a, b).reshape(4, -1)[[rank, 3 - rank]].ravel() for a, b in zip(cu_seqlens, cu_seqlens[1:]) if a < b]
        )
        part = trope.rotate(x[of_rank], cu_seqlens=cu_seqlens, cp_size=2, cp_rank=rank, cp_layout="zigzag", **options)
        assert np.array_equal(part, whole[of_rank])
    padded = trope.rotate(
        x[:20], cu_seqlens=np.int32([0, 3, 5]), cu_seqlens_padded=np.int32([0, 8, 20]), padding="zero", **options
    )
    assert not padded[3:8].any() and not padded[10:].any() and padded[:3].all() and padded[8:10].all()
    starts = trope.rotate(x[None, :4], start_positions=np.int64([7]), **dict(options, layout="bshd"))
    assert np.array_equal(starts, trope.rotate(x[None, :4], position_ids=np.arange(7, 11), **dict(options, layout="bshd")))


def test_angles_of_each_head_have_the_heads_as_the_batch():
    """As the docs say. Without the transposition, the same table is of the batch entries, if there are as many."""
    rng = np.random.default_rng(4)
    freqs = rng.uniform(-8, 8, (3, 5, 6)).astype("float32")
    options = dict(layout="bhsd", pairing="half", freqs=freqs, angle_columns="pair")
    for batch in (2, 3):
        q = rng.standard_normal((batch, 3, 5, 12)).astype("float32")
        y = trope.rotate(q.transpose(1, 0, 2, 3), **options).transpose(1, 0, 2, 3)
        for head in range(3):
            angles = np.concatenate([freqs[head, None]] * 2, -1)
            wanted = rotated(q[:, head, :, None], angles, "half")[:, :, 0]
            np.testing.assert_allclose(y[:, head], wanted, atol=1e-5)
        if batch == 2:
            with pytest.raises(trope.Error, match="freqs has shape .*, with batch 3 where the tensors have 2"):
                trope.rotate(q, **options)
        else:
            angles = np.concatenate([freqs] * 2, -1)
            wanted = rotated(q.transpose(0, 2, 1, 3), angles, "half").transpose(0, 2, 1, 3)
            np.testing.assert_allclose(trope.rotate(q, **options), wanted, atol=1e-5)


def test_axes_of_pairs():
    assert trope.pair_axis("sections", [2, 1, 1]) == (0, 0, 1, 2)
    assert trope.pair_axis("interleaved", [2, 1, 1]) == (0, 1, 2, 0)
    rng = np.random.default_rng(5)
    x, ids = rng.standard_normal((2, 5, 1, 8)).astype(np.float32), rng.integers(0, 9, (3, 2, 5))
    inv_freq = np.array([1.0, 0.3, 0.1, 0.03])
    y = trope.rotate(x, layout="bshd", pairing="half", inv_freq=inv_freq, position_ids=ids, pair_axis=(0, 0, 1, 2))
    angles = np.stack([ids[axis] * f for axis, f in zip((0, 0, 1, 2), inv_freq)], -1)
    np.testing.assert_allclose(y, rotated(x, np.concatenate((angles, angles), -1), "half"), atol=1e-6)


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


def test_attention_factor_is_not_forgotten():
    x = np.ones((1, 1, 1, 4), np.float32)
    given = trope.Frequencies([1.0, 0.5], attention_factor=2.0)
    assert trope.rotate(x, layout="sbhd", pairing="half", inv_freq=given)[0, 0, 0, 0] == 2
    assert trope.rotate(x, layout="sbhd", pairing="half", inv_freq=given, mscale=1)[0, 0, 0, 0] == 1


X = np.zeros((4, 2, 3, 8), np.float32)
FREQS = np.zeros((4, 8), np.float32)
GOOD = dict(layout="sbhd", pairing="half", freqs=FREQS, angle_columns="half")


@pytest.mark.parametrize(
    "change, argument",
    [
        (dict(layout=None), "layout"),
        (dict(layout="shbd"), "layout"),
        (dict(layout="thd"), "tensors[0]"),
        (dict(pairing=None), "pairing"),
        (dict(pairing_out="full"), "pairing_out"),
        (dict(angle_columns=None), "angle_columns"),
        (dict(freqs=None), "inv_freq"),
        (dict(freqs=None, angle_columns=None), "inv_freq"),
        (dict(inv_freq=[1.0] * 4), "inv_freq"),
        (dict(cos=FREQS, sin=FREQS), "freqs"),
        (dict(freqs=None, cos=FREQS), "sin"),
        (dict(freqs=None, cos=FREQS, sin=FREQS[:, :6]), "sin"),
        (dict(freqs=np.zeros((4, 10), np.float32)), "freqs"),
        (dict(freqs=FREQS.astype(np.int32)), "freqs"),
        (dict(freqs=np.zeros((5, 4, 1, 8), np.float32)), "freqs"),
        (dict(freqs=np.zeros((3, 4, 8), np.float32)), "freqs"),
        (dict(rounding="twice"), "rounding"),
        (dict(mscale=0), "mscale"),
        (dict(rotary_dim=(8, 8)), "rotary_dim"),
        (dict(cp_size=2), "cp_rank"),
        (dict(cp_rank=0), "cp_size"),
        (dict(cp_size=2, cp_rank=2, cp_layout="zigzag"), "cp_rank"),
        (dict(cp_size=2, cp_rank=0), "cp_layout"),
        (dict(position_ids=np.zeros(3, np.int32)), "position_ids"),
        (dict(position_ids=np.zeros(4, np.float32)), "position_ids"),
        (dict(start_positions=np.zeros(3, np.int32)), "start_positions"),
        (dict(cu_seqlens=np.zeros((2, 2), np.int32)), "cu_seqlens"),
        (dict(cu_seqlens_padded=np.int32([0, 4])), "cu_seqlens"),
        (dict(padding="none"), "padding"),
        (dict(accumulate=True), "accumulate"),
        (dict(stream=1), "stream"),
    ],
)
def test_refusals_name_the_argument(change, argument):
    trope.rotate(X, **GOOD)
    with pytest.raises(trope.Error) as caught:
        trope.rotate(X, **{**GOOD, **change})
    assert caught.value.argument == argument
    assert argument.split(".")[-1].split("[")[0] in str(caught.value)


def test_refusals_of_arrays():
    with pytest.raises(trope.Error, match="tensors"):
        trope.rotate(**GOOD)
    with pytest.raises(trope.Error, match="array"):
        trope.rotate([1.0], **GOOD)
    with pytest.raises(trope.Error, match="ropes"):
        trope.rotate(X, ropes=1, **GOOD)
    with pytest.raises(trope.Error, match="float64"):
        trope.rotate(X, X.astype(np.float64), **GOOD)
    read_only = X.copy()
    read_only.flags.writeable = False
    trope.rotate(read_only, **GOOD)
    with pytest.raises(trope.Error, match="written"):
        trope.rotate_(read_only, **GOOD)
    memory = np.zeros((5, 2, 3, 8), np.float32)
    with pytest.raises(trope.Error) as caught:
        trope.rotate(memory[:4], out=[memory[1:]], **GOOD)
    assert caught.value.status == "TROPE_ERROR_OVERLAP"
    with pytest.raises(trope.Error, match="byte order"):
        trope.rotate(X.astype(">f4"), **GOOD)


class OnCuda:
    """An array that says that it is on CUDA, for calls that are not made."""

    def __init__(self, array):
        self.array, self.dtype, self.shape = array, array.dtype, array.shape
        self.__cuda_array_interface__ = dict(array.__array_interface__, version=3)


def test_stream_of_each_call(monkeypatch):
    used, x = [], OnCuda(X.copy())
    monkeypatch.setattr(trope._plan.lib, "trope_forward", lambda args: used.append(args._obj.stream) or 0)
    for stream in (None, 4660, None, 7):
        trope.rotate(x, out=[x], stream=stream, **dict(GOOD, freqs=OnCuda(FREQS)))
    assert used == [None, 4660, None, 7]


def test_what_is_written_has_the_right_size():
    inv_freq, table = dict(layout="sbhd", pairing="half", inv_freq=[1.0] * 4), GOOD
    good = dict(forward_src=[X], d_freqs=np.zeros((4, 8), np.float32))
    trope.rotate_backward(X, **good, **table)
    for change, options, argument in [
        (dict(d_freqs=np.zeros((3, 8), np.float32)), table, "d_freqs"),
        (dict(d_freqs=np.zeros((4, 4), np.float32)), table, "d_freqs"),
        (dict(d_freqs=np.zeros((4, 8), np.float16)), table, "d_freqs"),
        (dict(d_freqs=np.zeros((4, 8), np.float32)), inv_freq, "d_freqs"),
        (dict(d_freqs=None, d_inv_freq=np.zeros(4, np.float32)), inv_freq, "d_inv_freq"),
        (dict(d_freqs=None, d_inv_freq=np.zeros(3)), inv_freq, "d_inv_freq"),
    ]:
        with pytest.raises(trope.Error) as caught:
            trope.rotate_backward(X, **{**good, **change}, **options)
        assert caught.value.argument == argument
    read_only = np.zeros(1, np.int32)
    read_only.flags.writeable = False
    for status in (np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(2, np.int32), read_only):
        with pytest.raises(trope.Error) as caught:
            trope.rotate(X, status=status, **GOOD)
        assert caught.value.argument == "status"


def test_integers_of_numpy_and_floats_that_equal_integers():
    wanted = trope.rotate(X + 1, rotary_dim=8, threads=1, **GOOD)
    for name, value in (
        ("threads", 1.0),
        ("rotary_dim", 8.0),
        ("rotary_dim", [8.0]),
        ("parts", 1.0),
        ("pair_axis", [0.0] * 4),
    ):
        with pytest.raises(trope.Error) as caught:
            trope.rotate(X + 1, **dict(GOOD, **{name: value}))
        assert caught.value.argument == name
    assert np.array_equal(trope.rotate(X + 1, rotary_dim=np.int64(8), threads=np.int32(1), **GOOD), wanted)


def test_positions_without_a_row():
    with pytest.raises(trope.Error) as caught:
        trope.rotate(X, position_ids=np.int32([0, 1, 2, 9]), **GOOD)
    assert caught.value.status == "TROPE_ERROR_DATA"
    status = np.zeros(1, np.int32)
    y = trope.rotate(X, position_ids=np.int32([0, 1, 2, 9]), status=status, **GOOD)
    assert status[0] == 1 and np.isnan(y[3]).all() and not np.isnan(y[:3]).any()


class OnlyDlpack:
    """An array that has DLPack, as NumPy gives it, and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack():
    rng = np.random.default_rng(7)
    x = rng.standard_normal((4, 2, 3, 8)).astype(np.float32)
    freqs = rng.standard_normal((4, 8)).astype(np.float32)
    expected = trope.rotate(x, **dict(GOOD, freqs=freqs))
    out = np.empty_like(x)
    trope.rotate(OnlyDlpack(x), out=[OnlyDlpack(out)], **dict(GOOD, freqs=OnlyDlpack(freqs)) | dict(freqs=freqs))
    assert np.array_equal(out, expected)
    view = x[:, :, ::2]
    out = np.empty_like(view)
    trope.rotate(OnlyDlpack(view), out=[out], **dict(GOOD, freqs=freqs))
    assert np.array_equal(out, expected[:, :, ::2])


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
    with pytest.raises(trope.Error, match="written"):
        trope.rotate_(jax.numpy.asarray(x), **options)


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


def test_threads_share_nothing():
    import concurrent.futures

    expected = [run(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for seed, result in enumerate(pool.map(run, [0, 1, 2, 3] * 8)):
            assert np.array_equal(result, expected[seed % 4])


def import_in_a_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )  # fmt: skip


def test_import_needs_nothing():
    code = "import sys, trope; print([m for m in ('numpy', 'torch', 'jax') if m in sys.modules], trope.info() != '')"
    assert import_in_a_process(code).stdout == "[] True\n"


def test_import_refuses_another_library(tmp_path):
    missing = import_in_a_process("import trope", TROPE_LIBRARY=str(tmp_path / "libtrope.so"))
    assert "ImportError: trope: no library" in missing.stderr and "TROPE_LIBRARY" in missing.stderr
    other = import_in_a_process("import trope", TROPE_LIBRARY="libc.so.6")
    assert "ImportError" in other.stderr and "libc.so.6" in other.stderr
    changed = "import trope._abi as a; a.STRUCTS['trope_args'] = a.Operand; a._compare_structs(a.lib, 'this')"
    assert "another size in trope_args" in import_in_a_process(changed).stderr


def test_errors_pickle():
    import pickle

    with pytest.raises(trope.Error) as caught:
        trope.rotate(X, **dict(GOOD, pairing=None))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.argument == "pairing" and copy.status == "TROPE_ERROR_ARGUMENT"


def test_kernel_name():
    assert trope.kernel_name(X, **GOOD).startswith("cpu-")
