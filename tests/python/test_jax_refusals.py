"""trope.jax.rotate refuses wrong calls when it is called or traced, before anything runs, and names the argument."""

import os
import pickle
import re
import subprocess
import sys

import jax_cases
from jax_cases import CASES, increasing, random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trope
import trope.jax

X, KEY = random(1, 2, 7, 4, 16), random(2, 2, 7, 2, 16)
HALF = CASES["bshd"][1]
TABLE = dict(layout="bshd", pairing="half", freqs=jax_cases.freqs_table(11, 8), angle_columns="pair")
PACKED = CASES["packed"][1]
INV_FREQ = jnp.array(jax_cases.frequencies(16).inv_freq, jnp.float32)

# The tensors, the options, the argument that the error names, and a part of its text.
REFUSED = {
    "no tensor": ((), HALF, "tensors", "none is given"),
    "a list": (([1.0, 2.0],), HALF, "tensors[0]", "must be a jax array, not list"),
    "a list of ids": ((X,), dict(HALF, position_ids=[0, 1]), "position_ids", "must be a jax array, not list"),
    "a shape": ((X[0],), HALF, "tensors[0]", "which is not ['b', 's', 'h', 'd']"),
    "another batch": ((X, KEY[:1]), HALF, "tensors[1]", "with batch 1 where 2 is needed"),
    "another dtype": ((X, KEY.astype("float16")), HALF, "tensors[1]", "must have one dtype"),
    "integers": ((X.astype("int32"),), HALF, "tensors[0]", "has dtype int32"),
    "no layout": ((X,), dict(HALF, layout=None), "layout", "is missing"),
    "no pairing": ((X,), {n: v for n, v in HALF.items() if n != "pairing"}, "pairing", "is missing"),
    "an unknown option": ((X,), dict(HALF, interleave=True), "interleave", "has no argument interleave"),
    "no angles": ((X,), dict(HALF, inv_freq=None), "inv_freq", "the angles are missing"),
    "two sources of angles": ((X,), dict(TABLE, inv_freq=HALF["inv_freq"]), "inv_freq", "beside a table"),
    "cos alone": ((X,), dict(HALF, inv_freq=None, cos=TABLE["freqs"], angle_columns="pair"), "sin", "is missing"),
    "columns": ((X,), dict(TABLE, angle_columns="half"), "rotary_dim", "covers 8 of the 16 elements"),
    "a narrow table": ((X,), dict(TABLE, rotary_dim=8), "freqs", "has 8 columns"),
    "rows": ((X,), dict(TABLE, freqs=TABLE["freqs"][:6]), "freqs", "the number of rows of freqs (6) must be more than"),
    "an odd window": ((X,), dict(HALF, rotary_dim=15), "rotary_dim", "must be even"),
    "a window outside": ((X,), dict(HALF, rotary_offset=1), "rotary_offset", "is too large"),
    "ids of other tokens": ((X,), dict(HALF, position_ids=np.zeros(6, "int32")), "position_ids", "7 tokens"),
    "ids of floats": ((X,), dict(HALF, position_ids=np.zeros(7, "float32")), "position_ids", "must be int32 or int64"),
    "ids and starts": (
        (X,), dict(HALF, position_ids=np.zeros(7, "int32"), start_positions=increasing(0, 1)), "start_positions", "one of"),
    "cu_seqlens of a batch": ((X,), dict(HALF, cu_seqlens=increasing(0, 7)), "cu_seqlens", "batch 2"),
    "padding alone": ((X[0],), dict(HALF, layout="thd", padding="zero"), "padding", "cu_seqlens is missing"),
    "a padded array without policy": (
        (random(1, 9, 4, 16),), dict(PACKED, cu_seqlens_padded=increasing(0, 4, 4, 9)), "padding", "is missing"),
    "cp without layout": ((X,), dict(HALF, cp_size=2, cp_rank=0), "cp_layout", "is missing"),
    "status": ((X,), dict(HALF, status=np.zeros(1, "int32")), "status", "a jax array cannot be written"),
    "accumulate": ((X,), dict(HALF, accumulate=True), "accumulate", "add the gradients"),
    "another number of norms": ((X, KEY), dict(HALF, norms=[trope.Norm(eps=1e-5)]), "norms", "1 entries for 2"),
    "a norm of another type": ((X,), dict(HALF, norms=[1.0]), "norms[0]", "must be a trope.Norm or None"),
    "a weight of another size": (
        (X,), dict(HALF, norms=trope.Norm(random(1, 15), eps=1e-5)), "norms[0].weight", "must be [head_dim]"),
    "a weight that is a list": ((X,), dict(HALF, norms=trope.Norm([1.0] * 16, eps=1e-5)), "norms[0].weight", "jax array"),
    "a rounding of a norm": (
        (X,), dict(HALF, norms=trope.Norm(random(1, 16), eps=1e-5, rounding="twice")), "norms[0].rounding", "'once'"),
    "shared heads with a norm": ((X,), dict(HALF, shared_heads=2, norms=trope.Norm(eps=1e-5)), "norms[0]", "cannot have a norm"),
    "a learned inv_freq of bf16": ((X,), dict(HALF, inv_freq=INV_FREQ.astype("bfloat16")), "inv_freq", "float32"),
    "a learned inv_freq of two dimensions": ((X,), dict(HALF, inv_freq=INV_FREQ[None]), "inv_freq", "[rotary_dim / 2]"),
    "a learned inv_freq that is narrow": ((X,), dict(HALF, inv_freq=INV_FREQ[:7]), "rotary_dim", "inv_freq covers 14"),
    "a learned inv_freq with ids": (
        (X,), dict(HALF, inv_freq=INV_FREQ, position_ids=np.zeros(7, "int32")), "max_position", "is missing"),
    "a learned inv_freq beside a table": ((X,), dict(TABLE, inv_freq=INV_FREQ), "inv_freq", "beside freqs"),
    "a learned inv_freq with few positions": (
        (X,), dict(HALF, inv_freq=INV_FREQ, max_position=6), "inv_freq", "max_position (6) must be more than"),
    "a learned inv_freq with a range": (
        (X,), dict(HALF, inv_freq=INV_FREQ, out_of_range="clamp"), "inv_freq", "it is only for tables"),
    "max_position alone": ((X,), dict(HALF, max_position=7), "max_position", "that is a jax array"),
}  # fmt: skip
ARGUMENT = {"a learned inv_freq with a range": "out_of_range"}


@pytest.mark.parametrize("way", ["eager", "jit", "grad"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, way):
    tensors, options, argument, text = REFUSED[name]
    if not all(isinstance(x, np.ndarray) for x in tensors):
        way = "eager"  # jit takes only arrays
    rotate = lambda *tensors: trope.jax.rotate(*tensors, **options)  # noqa: E731
    if way == "jit":
        rotate = jax.jit(rotate)
    if way == "grad" and tensors and tensors[0].dtype == "float32":
        rotate = jax.grad(lambda *tensors: jax.tree.leaves(trope.jax.rotate(*tensors, **options))[0].sum())
    with pytest.raises(trope.Error) as caught:
        rotate(*tensors)
    assert caught.value.argument == ARGUMENT.get(name, argument)
    assert text in str(caught.value)


# A value that is traced, where a call needs Python's, and the options beside it.
TRACED = {
    "mscale": (1.5, {}), "inverse": (True, {}), "parts": (1, {}), "rotary_dim": (16, {}), "rotary_offset": (0, {}),
    "shared_heads": (2, {}), "pair_axis": (np.zeros(8, "int32"), {}), "stream_positions": (True, {}), "threads": (1, {}),
    "accumulate": (True, {}), "layout": (1, {}), "pairing": (1, {}), "rounding": (1, {}), "padding": (1, {}),
    "out_of_range": (1, dict(inv_freq=INV_FREQ)), "cp_size": (2, dict(cp_rank=0, cp_layout="flat")),
    "max_position": (7, dict(inv_freq=INV_FREQ)),
}  # fmt: skip


@pytest.mark.parametrize("in_a_list", [False, True])
@pytest.mark.parametrize("name", TRACED)
def test_a_traced_value_of_a_setting_is_refused(name, in_a_list):
    value, options = TRACED[name]

    def rotate(x, value):
        return trope.jax.rotate(x, **{**HALF, **options, name: [value] if in_a_list else value})

    with pytest.raises(trope.Error, match="^%s is traced .*static_argnames" % name) as caught:
        jax.jit(rotate)(X, value)
    assert caught.value.argument == name
    with pytest.raises(trope.Error, match="^%s is traced" % name):
        jax.vmap(rotate, (None, 0))(X, jnp.stack([value] * 2))


def test_traced_numbers_of_inv_freq_and_of_norms_are_refused():
    with pytest.raises(trope.Error, match=r"^inv_freq is traced \(~float32\[\]\)"):
        jax.jit(lambda f: trope.jax.rotate(X, **dict(HALF, inv_freq=[f] * 8)))(1.0)
    with pytest.raises(trope.Error, match="^eps must be a finite number, not .*Tracer"):
        jax.jit(lambda eps: trope.jax.rotate(X, **HALF, norms=trope.Norm(eps=eps)))(1e-5)


INDICES = {
    "position_ids": dict(HALF),
    "start_positions": dict(HALF),
    "cu_seqlens": dict(HALF, layout="thd", padding="zero"),
    "cu_seqlens_padded": dict(HALF, layout="thd", padding="zero", cu_seqlens=np.array([0, 3])),
}
SMALL = {"position_ids": np.arange(7) - 3, "start_positions": np.array([-5, 2**31 - 1])}


@pytest.mark.parametrize("name", INDICES)
def test_int64_indices_keep_their_values_or_are_refused(name):
    options, x = INDICES[name], X[0] if "cu" in name else X
    small = SMALL.get(name, np.array([0, 4]))
    for rotate in trope.jax.rotate, jax.jit(lambda x, **given: trope.jax.rotate(x, **options, **given)):
        given = options if rotate is trope.jax.rotate else {}
        assert jax_cases.same_bits(rotate(x, **{name: small}, **given), trope.rotate(x, **{name: small}, **options))
    for outside in (2**31, 2**32, -(2**31) - 1, 2**63 - 1):
        large = np.where(np.arange(small.size) == small.size - 1, outside, small.ravel()).reshape(small.shape)
        with pytest.raises(trope.Error, match="^%s has the value %d, .*jax_enable_x64" % (name, outside)) as caught:
            jax.jit(lambda x: trope.jax.rotate(x, **{name: large}, **options))(x)  # noqa: B023
        assert caught.value.argument == name
    if "cu" not in name:
        options = dict(options, **{name: large})
        with jax.enable_x64(True):
            assert jax_cases.same_bits(trope.jax.rotate(x, **options), trope.rotate(x, **options))


WEIGHT = random(3, 16, dtype="float64")
# Arrays of NumPy that JAX would change, and a part of the error.
CHANGED = {
    "tensors[0]": ("float64", X.astype("float64"), {}),
    "freqs": ("float64", X, dict(TABLE, freqs=TABLE["freqs"].astype("float64"))),
    "cos": ("float64", X, dict(TABLE, freqs=None, cos=np.ones((11, 8)), sin=np.ones((11, 8), "float32"))),
    "norms[0].weight": ("float64", X, dict(HALF, norms=trope.Norm(WEIGHT, eps=1e-5))),
    "position_ids": ("uint64", X, dict(HALF, position_ids=np.arange(7, dtype="uint64"))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_numpy_arrays_that_jax_would_cut_to_32_bits_are_refused(name):
    dtype, x, options = CHANGED[name]
    with pytest.raises(trope.Error, match="has dtype %s, which JAX cuts to .*32" % dtype) as caught:
        trope.jax.rotate(x, **(options or HALF))
    assert caught.value.argument == name
    if name == "tensors[0]":
        with jax.enable_x64(True):
            y = trope.jax.rotate(x, **HALF)  # on a GPU, the last bits of f64 may differ
            assert y.dtype == "float64" and np.allclose(y, trope.rotate(x, **HALF), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("x, text", [
    (X.astype(object), "has dtype .O, which JAX does not have"),
    (X.astype(">f4"), "has dtype >f4"),
    (X.astype("U3"), "has dtype <U3"),
    (np.ma.masked_array(X, X > 0), "is a masked array"),
    (jax.random.split(jax.random.key(0), X.shape), "has dtype key<fry>"),
])  # fmt: skip
def test_arrays_without_numbers_that_jax_has_are_refused(x, text):
    for given, options in (([x], {}), ([X], {"position_ids": x[0, :, 0, 0]})):
        for rotate in (trope.jax.rotate, lambda *x, **options: jax.jit(lambda y: trope.jax.rotate(*x, **options))(0)):
            with pytest.raises(trope.Error, match=text) as caught:
                rotate(*given, **HALF, **options)
            assert caught.value.argument == ("position_ids" if options else "tensors[0]")


def test_f64_tables_are_for_f64_tensors():
    with jax.enable_x64(True):
        with pytest.raises(trope.Error, match="^freqs has dtype float64"):
            trope.jax.rotate(X, **dict(TABLE, freqs=TABLE["freqs"].astype("float64")))


# ---- Programs for other platforms and processes ----


def rotate_half(x):
    return trope.jax.rotate(x, **HALF)


def export(x, **options):
    checks = [jax.export.DisabledSafetyCheck.custom_call("trope_rotate")]
    return jax.export.export(jax.jit(rotate_half), disabled_checks=checks, **options)(x)


@pytest.mark.parametrize("platform", ["tpu", "rocm", "cuda"])
def test_programs_for_platforms_without_a_backend_are_refused(platform):
    if platform in trope.jax._call.PLATFORMS:
        export(X, platforms=["cpu", platform])
        return
    text = "was built without CUDA" if platform == "cuda" else "cannot run on %s" % platform
    for function in (rotate_half, jax.grad(lambda x: rotate_half(x).sum())):
        with pytest.raises(trope.Error, match=text):
            jax.jit(function).trace(X).lower(lowering_platforms=(platform,))
    with pytest.raises(trope.Error, match=text):
        export(X, platforms=["cpu", platform])


def test_symbolic_shapes_are_refused():
    shape = jax.export.symbolic_shape("b, 7, 4, 16")
    with pytest.raises(trope.Error, match=r"^tensors\[0\] has the symbolic shape") as caught:
        export(jax.ShapeDtypeStruct(shape, "float32"))
    assert caught.value.argument == "tensors[0]"


def test_an_exported_program_runs_after_the_import_alone(tmp_path):
    pytest.importorskip("flatbuffers", reason="jax.export.serialize needs flatbuffers")
    file = tmp_path / "program"
    file.write_bytes(export(X).serialize(vjp_order=1))
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, jax, numpy, trope.jax; program = jax.export.deserialize(bytearray(open(sys.argv[1], 'rb').read()));"
        " x = numpy.load(sys.argv[2]); numpy.save(sys.argv[2], [program.call(x), program.vjp().call(x, x)[0]])"
    )
    subprocess.run([sys.executable, "-c", code, str(file), str(tmp_path / "x.npy")], check=True)
    y, dx = np.load(tmp_path / "x.npy")
    assert jax_cases.same_bits(y, trope.rotate(X, **HALF))
    assert jax_cases.same_bits(dx, trope.rotate_backward(X, **HALF))


def test_the_import_registers_the_call():
    """Programs that another process exported need nothing else. The handler misses the attribute of the call."""
    code = (
        "import jax, trope.jax; call = jax.ffi.ffi_call('trope_rotate', jax.ShapeDtypeStruct((1,), 'float32'));"
        " call(jax.numpy.ones(1)).block_until_ready()"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "call is missing" in failed.stderr


def test_the_signature_and_the_help_list_the_options():
    assert "position_ids" in trope.jax.rotate.__doc__ and "max_position" in trope.jax.rotate.__doc__
    assert pickle.loads(pickle.dumps(trope.jax.rotate)) is trope.jax.rotate


def test_the_programs_of_the_documentation_run():
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "python.md")
    with open(page, encoding="utf-8") as file:
        blocks = [block for block in re.findall(r"```python\n(.*?)```", file.read(), re.S) if "jax.jit" in block]
    assert len(blocks) == 1
    names: dict = {}
    exec(blocks[0], names)
    assert names["q"].shape == (2, 16, 8, 64) and names["q"].dtype == "bfloat16"


def test_importing_trope_does_not_import_jax():
    code = "import trope, sys; assert 'jax' not in sys.modules; import trope.jax; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
