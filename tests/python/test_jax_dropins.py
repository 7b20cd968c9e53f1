"""trope.jax.maxtext and trope.jax.easydel have the results of the code that they replace: of formulas written here, and of
MaxText and EasyDeL themselves, if these are installed."""

import pathlib
import pickle
import re
import sys
import types

from jax_cases import mesh_of, same_bits

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trope
import trope.jax.easydel
import trope.jax.maxtext
from trope.jax.easydel import apply_basic_rope
from trope.jax.maxtext import LLaMARotaryEmbedding, RotaryEmbedding

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "python.md"
B, S, H, D = 2, 9, 3, 16
POSITION = jnp.array(np.random.default_rng(1).integers(0, 9000, (B, S)), jnp.int32)
DTYPES = ["bfloat16", "float16", "float32"]
BASE = dict(min_timescale=1, max_timescale=500000, embedding_dims=D)


def random(seed, dtype, heads=H):
    return jnp.array(np.random.default_rng(seed).standard_normal((B, S, heads, D)), dtype)


def turn(x, cos, sin, interleaved=False):
    """Rotates x [b, s, h, d] by tables [b or 1, s, pairs]. Eager JAX rounds each operation to the dtype of its operands."""
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    turned = first * cos - second * sin, second * cos + first * sin
    return jnp.stack(turned, -1).reshape(x.shape) if interleaved else jnp.concatenate(turned, -1)


def check(mine, theirs, tensors, is_exact=True):
    """Compares the bits of results and gradients. If not is_exact, gradients may differ by a few roundings."""
    (ys, pull), (zs, pull_theirs) = (jax.vjp(function, *tensors) for function in (mine, theirs))
    assert jax.tree.all(jax.tree.map(same_bits, ys, zs))
    rng = np.random.default_rng(7)
    upstream = jax.tree.map(lambda z: jnp.array(rng.standard_normal(z.shape), z.dtype), zs)
    for d, e in zip(pull(upstream), pull_theirs(upstream)):
        if is_exact:
            assert same_bits(d, e)
        else:
            assert d.dtype == e.dtype and abs(d.astype("float32") - e.astype("float32")).max() < 24 * jnp.finfo(d.dtype).eps


# ---- MaxText ----


def timescales(base=500000):
    return 1 * (base / 1) ** (2 * jnp.arange(D // 2) / D)


def tables(position, scales, dtype):
    angles = position[..., None] / scales
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fprop_dtype, cast", [("bfloat16", True), ("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize("position", [POSITION, POSITION[:1]])
def test_maxtext_casts_tables_to_the_dtype_of_the_inputs_and_results_to_fprop_dtype(dtype, fprop_dtype, cast, position):
    rope = RotaryEmbedding(**BASE, fprop_dtype=fprop_dtype, cast_as_fprop_dtype=cast)

    def expected(x):
        y = turn(x, *tables(position, timescales(), dtype))
        return y.astype(fprop_dtype) if cast else y

    check(lambda x: rope(x, position), expected, [random(2, dtype)])


def test_maxtext_scales_positions():
    rope = RotaryEmbedding(**BASE, rope_linear_scaling_factor=8.0)
    expected = tables(POSITION, timescales() * 8.0, "bfloat16")
    check(lambda x: rope(x, POSITION), lambda x: turn(x, *expected), [random(2, "bfloat16")])


def llama_timescales():
    """Llama 3.1's rule: frequencies of long turns are divided by 8, and those between are interpolated."""
    frequencies = []
    for frequency in 1.0 / timescales():
        turns = 8192 / (2 * jnp.pi / frequency)
        smooth = jnp.clip((turns - 1) / 3, 0, 1)
        frequencies.append((1 - smooth) * frequency / 8 + smooth * frequency)
    return 1.0 / jnp.stack(frequencies)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cast", [True, False])
@pytest.mark.parametrize("use_scale", [True, False])
@pytest.mark.parametrize("position", [POSITION, POSITION[:1], None])
def test_maxtext_llama_computes_in_float32(dtype, cast, use_scale, position):
    rope = LLaMARotaryEmbedding(**BASE, cast_as_fprop_dtype=cast, fprop_dtype=dtype, use_scale=use_scale)
    ids = jnp.arange(S)[None] if position is None else position
    cos, sin = tables(ids, llama_timescales() if use_scale else timescales(), "float32")

    def expected(x):
        y = turn(x.astype("float32"), cos, sin, interleaved=True)
        return y.astype(dtype) if cast else y

    y, z = rope(random(2, dtype), position), expected(random(2, dtype))
    assert y.dtype == z.dtype and abs(y.astype("float32") - z.astype("float32")).max() < 2e-3 + 8 * jnp.finfo(y.dtype).eps
    if not use_scale:  # otherwise, the last bits of the frequencies may differ from those here
        check(lambda x: rope(x, position), expected, [random(2, dtype)], is_exact=dtype == "float32")


def test_maxtext_llama_reads_16_bit_inputs_without_a_cast():
    rope = LLaMARotaryEmbedding(**BASE)
    assert "f32[%d,%d,%d,%d]" % X.shape not in jax.jit(rope).lower(X, POSITION).compile().as_text()


def test_maxtext_embeddings_are_settings():
    one, same, other = (RotaryEmbedding(**dict(BASE, max_timescale=base)) for base in (500000, 500000, 10000))
    assert one == same and hash(one) == hash(same) and one != other and pickle.loads(pickle.dumps(one)) == one
    traced = jax.jit(lambda rope, x: rope(x, POSITION), static_argnums=0)
    assert same_bits(traced(one, X), traced(same, X)) and traced._cache_size() == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["RotaryEmbedding", "LLaMARotaryEmbedding"])
@pytest.mark.parametrize("cast", [True, False])
def test_maxtext_itself(dtype, name, cast):
    theirs = pytest.importorskip("maxtext.layers.embeddings", reason="MaxText is not installed", exc_type=ImportError)
    mine, other = (
        getattr(module, name)(1, 500000, None, embedding_dims=D, cast_as_fprop_dtype=cast)
        for module in (trope.jax.maxtext, theirs)
    )
    is_exact = name == "RotaryEmbedding" or dtype == "float32"
    check(lambda x: mine(x, POSITION), lambda x: other(x, POSITION), [random(2, dtype)], is_exact)


# ---- EasyDeL ----


def cache(width, rows=9000):
    angles = jnp.arange(rows)[:, None] / 10000.0 ** (jnp.arange(0, width, 2) / width)
    return jnp.concatenate((jnp.cos(angles), jnp.sin(angles)), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [D, 6])
@pytest.mark.parametrize("is_neox_style", [True, False])
@pytest.mark.parametrize("offsets", [None, jnp.array([[-7], [5]])])
def test_easydel_rounds_tables_and_operations_to_the_dtype(dtype, width, is_neox_style, offsets):
    positions = POSITION % 8000 + 7
    rows = cache(width)[positions + (0 if offsets is None else offsets)].astype(dtype)
    cos, sin = rows[..., : width // 2], rows[..., width // 2 :]

    def expected(*tensors):
        turned = [turn(x[..., :width], cos, sin, not is_neox_style) for x in tensors]
        return tuple(jnp.concatenate((y, x[..., width:]), -1) for x, y in zip(tensors, turned))

    def mine(query, key):
        return apply_basic_rope(query, key, positions, cache(width), width, is_neox_style, offsets)

    check(mine, expected, [random(2, dtype), random(3, dtype, 1)])


@pytest.mark.parametrize("shape", [(1, S), (S,)])
def test_easydel_positions_of_all_batch_entries(shape):
    query, key, table = random(2, "bfloat16"), random(3, "bfloat16", 1), cache(D)
    ids = POSITION[:1]
    results = apply_basic_rope(query, key, ids.reshape(shape), table, D, True)
    expected = apply_basic_rope(query, key, jnp.broadcast_to(ids, (B, S)), table, D, True)
    assert all(map(same_bits, results, expected))


@pytest.mark.parametrize("wrong", [-1, 9000])
def test_easydel_positions_without_a_row_give_nan(wrong):
    positions = POSITION.at[1, 4].set(wrong)
    y, _ = apply_basic_rope(random(2, "float32"), random(3, "float32"), positions, cache(6), 6, True)
    expected = np.zeros((B, S, H, D), bool)
    expected[1, 4, :, :6] = True
    assert (jnp.isnan(y) == expected).all()


def test_easydel_inside_compile_time_evaluation():
    """EasyDeL's modules call the function like this."""
    query, key = random(2, "bfloat16"), random(3, "bfloat16", 1)

    @jax.jit
    def call(query, key):
        with jax.ensure_compile_time_eval():
            return apply_basic_rope(query, key, POSITION, cache(D), D, True)

    assert all(map(same_bits, call(query, key), apply_basic_rope(query, key, POSITION, cache(D), D, True)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width, is_neox_style", [(D, True), (D, False), (6, True)])
def test_easydel_itself(dtype, width, is_neox_style):
    theirs = pytest.importorskip("easydel.layers.rotary", reason="EasyDeL is not installed", exc_type=ImportError)
    table = theirs.compute_basic_frequencies(10000, width, 9000)
    functions = [
        lambda query, key, call=call: call(query, key, POSITION, table, width, is_neox_style)
        for call in (apply_basic_rope, theirs.apply_basic_rope)
    ]
    check(*functions, [random(2, dtype), random(3, dtype, 1)])


# ---- Levanter ----


@pytest.mark.parametrize("heads", [(H,), (H, 2)])
@pytest.mark.parametrize("ids", [POSITION, POSITION[0]])
def test_the_call_for_levanter_in_the_documentation(monkeypatch, heads, ids):
    """A stand-in for haliax returns the array and its axes."""
    monkeypatch.setitem(sys.modules, "haliax", types.SimpleNamespace(named=lambda array, axes: (array, axes)))
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "haliax" in each]
    names: dict = {}
    exec(block, names)
    frequencies = trope.frequencies(rope_type="default", rope_theta=10000.0, head_dim=D)
    x = jnp.array(np.random.default_rng(2).standard_normal((B, S, *heads, D)), "float32")
    module, q = types.SimpleNamespace(frequencies=frequencies), types.SimpleNamespace(array=x, axes="axes")
    y, axes = names["__call__"](module, q, types.SimpleNamespace(array=ids))
    layout = "bshd" if len(heads) == 1 else "bsghd"
    expected = trope.jax.rotate(x, layout=layout, pairing="half", inv_freq=frequencies, position_ids=ids)
    assert same_bits(y, expected) and axes == "axes"


# ---- All ----


@pytest.mark.parametrize("name", ["maxtext", "easydel"])
def test_split_arrays(name):
    """Batch and heads are split over devices, and nothing is gathered."""
    mesh = mesh_of(b=2, h=4)
    place = lambda x, *spec: jax.device_put(x, jax.NamedSharding(mesh, jax.P(*spec)))  # noqa: E731
    x, position, table = jax.device_put((random(2, "bfloat16", 4), POSITION, cache(D)), mesh.devices.flat[0])
    rope = RotaryEmbedding(**BASE)
    call = {
        "maxtext": lambda x, position, table: rope(x, position),
        "easydel": lambda x, position, table: apply_basic_rope(x, x, position, table, D, True)[0],
    }[name]
    function, given = jax.jit(call), (place(x, "b", None, "h"), place(position, "b"), place(table))
    assert same_bits(function(*given), call(x, position, table))
    assert "all-gather" not in function.lower(*given).compile().as_text()


X, IDS, TABLE = random(2, "bfloat16"), POSITION, cache(D)


def maxtext(*call, **settings):
    return lambda: RotaryEmbedding(**dict(BASE, **settings))(*(call or (X, IDS)))


def llama(*call, **settings):
    return lambda: LLaMARotaryEmbedding(**dict(BASE, **settings))(*(call or (X, IDS)))


def easydel(**given):
    arguments = dict(query=X, key=X, positions=IDS, frequencies=TABLE, rotary_dim=D, is_neox_style=True)
    return lambda: apply_basic_rope(**dict(arguments, **given))


# The call, the argument that the error names, and a part of its text.
REFUSED = [
    (maxtext(min_timescale=0), "min_timescale", "must be over 0"),
    (maxtext(min_timescale="1"), "min_timescale", "must be a finite number"),
    (maxtext(max_timescale=-5.0), "max_timescale", "must be over 0"),
    (maxtext(mesh="mesh"), "mesh", "must be a jax mesh or None"),
    (maxtext(embedding_dims=0), "embedding_dims", "must be 2 to"),
    (maxtext(embedding_dims=15), "embedding_dims", "must be even"),
    (maxtext(embedding_dims=32), "inputs", "embedding_dims (32)"),
    (maxtext(cast_as_fprop_dtype=1), "cast_as_fprop_dtype", "must be True or False"),
    (maxtext(fprop_dtype="int32"), "fprop_dtype", "must be one of float32"),
    (maxtext(fprop_dtype=None), "fprop_dtype", "not None"),
    (maxtext(fprop_dtype="half a float"), "fprop_dtype", "must be a dtype"),
    (maxtext(shard_mode="manual"), "shard_mode", "ShardMode"),
    (maxtext(rope_linear_scaling_factor=0), "rope_linear_scaling_factor", "must not be 0"),
    (maxtext([1.0], IDS), "inputs", "must be a jax array"),
    (maxtext(X[0], IDS), "inputs", "must be [batch, sequence, heads"),
    (maxtext(X.astype("int32"), IDS), "inputs", "has dtype int32"),
    (maxtext(X), "position", "is missing"),
    (maxtext(X, [0, 1]), "position", "must be a jax array"),
    (maxtext(X, IDS.astype("float32")), "position", "must have integers"),
    (maxtext(X, IDS[0]), "position", "must be [batch (2) or 1, sequence (9)]"),
    (maxtext(X, IDS[:, 1:]), "position", "sequence (9)"),
    (llama(use_scale=None), "use_scale", "must be True or False"),
    (llama(X, IDS[:, 1:]), "position", "sequence (9)"),
    (easydel(query=X[0]), "query", "must be [batch, sequence, heads, head_dim]"),
    (easydel(query=[1.0]), "query", "must be a jax array"),
    (easydel(key=X.astype("float32")), "key", "one dtype"),
    (easydel(key=X[:, 1:]), "key", "8"),
    (easydel(key=X[..., :8]), "rotary_dim", "8"),
    (easydel(positions=IDS[:, 1:]), "positions", "sequence (9)"),
    (easydel(positions=IDS.astype("float32")), "positions", "must have integers"),
    (easydel(frequencies=TABLE[0]), "frequencies", "must be [rows, rotary_dim (16)]"),
    (easydel(frequencies=TABLE[:, :8]), "frequencies", "must be [rows, rotary_dim (16)]"),
    (easydel(frequencies=TABLE[:0]), "frequencies", "must be [rows"),
    (easydel(frequencies=TABLE.astype("int32")), "frequencies", "has dtype int32"),
    (easydel(rotary_dim=15), "rotary_dim", "must be even"),
    (easydel(rotary_dim=18, frequencies=cache(18)), "rotary_dim", "18"),
    (easydel(rotary_dim=None), "rotary_dim", "must be an integer"),
    (easydel(is_neox_style=1), "is_neox_style", "must be True or False"),
    (easydel(offsets=1.5), "offsets", "must be a jax array"),
    (easydel(offsets=IDS[:, 1:]), "offsets", "cannot be added to positions"),
    (easydel(offsets=IDS[:, None]), "positions", "with offsets"),
    (easydel(dtype="text"), "dtype", "must be a dtype"),
    (lambda: jax.jvp(lambda t: easydel(frequencies=t)(), (TABLE,), (TABLE,)), "frequencies", "stop_gradient"),
]


@pytest.mark.parametrize("call, argument, text", REFUSED)
def test_refused(call, argument, text):
    with pytest.raises(trope.Error) as raised:
        call()
    message = str(raised.value)
    assert raised.value.argument == argument and text in message and argument in message
    assert "tensors[" not in message and "cos" not in message.split()
