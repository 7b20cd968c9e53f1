"""Calls that the tests of trope.jax make, with random arrays. Import this before jax: it makes eight devices of the CPU."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest

jax = pytest.importorskip("jax", reason="trope.jax needs jax: tools/install_python jax")

import ml_dtypes
import numpy as np
from jax.sharding import AxisType

import trope

BF16 = np.dtype(ml_dtypes.bfloat16)


def random(seed, *shape, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def frequencies(width):
    return trope.frequencies(rope_type="default", rope_theta=10000.0, head_dim=width)


def freqs_table(rows, pairs, *before, seed=5):
    """A table of angles that has no structure, so that a wrong row or column shows."""
    return np.random.default_rng(seed).uniform(-3, 3, (*before, rows, pairs)).astype("float32")


def mesh_of(kind=AxisType.Auto, **axes):
    devices = jax.devices("cpu") if jax.device_count() < 8 else None  # a machine with fewer GPUs has eight CPU devices
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes), devices=devices)


def increasing(*values):
    return np.array(values, "int32")


_AXES = trope.pair_axis("sections", [2, 3, 3])
_IDS = np.random.default_rng(8).integers(0, 11, (2, 7)).astype("int32")
_HALF = dict(pairing="half", inv_freq=frequencies(16))
_WEIGHTS = random(21, 16), random(22, 2, 16), random(23, 32)
_TABLE = freqs_table(11, 8)


def _norms(order, scope, rounding=None):
    return [
        trope.Norm(
            _WEIGHTS[0] if scope == "head" else random(20, 64), eps=1e-5, order=order, scope=scope, rounding=rounding
        ),
        trope.Norm(_WEIGHTS[1], eps=1e-6, plus_one=True, order=order, scope=scope, rounding=rounding),
    ]


# The shapes of the tensors, and the options of the call.
CASES = {
    "bshd": ([(2, 7, 4, 16), (2, 7, 2, 16)], dict(_HALF, layout="bshd")),
    "sbhd": ([(7, 2, 4, 16), (7, 2, 2, 16)], dict(_HALF, layout="sbhd", inverse=True)),
    "bhsd": ([(2, 4, 7, 16), (2, 2, 7, 16)], dict(_HALF, layout="bhsd", mscale=1.25)),
    "thd": ([(7, 4, 16)], dict(_HALF, layout="thd")),
    "bsghd": ([(2, 7, 2, 4, 16)], dict(_HALF, layout="bsghd")),
    "interleaved": ([(2, 7, 4, 16)], dict(layout="bshd", pairing="interleaved", inv_freq=frequencies(16))),
    "converted": ([(2, 7, 4, 16)], dict(_HALF, layout="bshd", pairing="interleaved", pairing_out="half")),
    "window": (
        [(2, 7, 4, 24), (2, 7, 2, 20)],
        dict(_HALF, layout="bshd", rotary_dim=[16, 8], rotary_offset=[4, 12]),
    ),
    "copied": ([(2, 7, 4, 16), (2, 7, 3, 9)], dict(_HALF, layout="bshd", rotary_dim=[16, trope.COPY])),
    "shared": ([(2, 7, 1, 16), (2, 7, 2, 16)], dict(_HALF, layout="bshd", shared_heads=[4, 3])),
    "native": ([(2, 7, 4, 16)], dict(_HALF, layout="bshd", rounding="native")),
    "ids": ([(2, 7, 4, 16)], dict(_HALF, layout="bshd", position_ids=_IDS)),
    "starts": ([(2, 7, 4, 16)], dict(_HALF, layout="bshd", start_positions=increasing(3, 1))),
    "freqs": (
        [(2, 7, 4, 16), (2, 7, 2, 16)],
        dict(layout="bshd", pairing="half", freqs=_TABLE, angle_columns="pair", position_ids=_IDS),
    ),
    "freqs of batch": (
        [(2, 7, 4, 16)],
        dict(layout="bshd", pairing="half", freqs=freqs_table(9, 16, 2), angle_columns="interleaved"),
    ),
    "cos and sin": (
        [(2, 7, 4, 16)],
        dict(layout="bshd", pairing="half", cos=np.cos(_TABLE), sin=np.sin(_TABLE), angle_columns="pair"),
    ),
    "clamp": (
        [(2, 7, 4, 16)],
        dict(layout="bshd", pairing="half", freqs=_TABLE[:5], angle_columns="pair", out_of_range="clamp", position_ids=_IDS),
    ),
    "parts": (
        [(2, 7, 4, 16)],
        dict(layout="bshd", pairing="half", parts=2, inv_freq=frequencies(16), position_ids=np.stack((_IDS, _IDS[::-1]))),
    ),
    "M-RoPE": (
        [(2, 7, 4, 16), (2, 7, 2, 16)],
        dict(_HALF, layout="bshd", pair_axis=_AXES, position_ids=np.stack((_IDS, _IDS[::-1], 10 - _IDS))),
    ),
    "M-RoPE table": (
        [(2, 7, 4, 16)],
        dict(
            layout="bshd", pairing="half", pair_axis=_AXES, freqs=freqs_table(11, 8, 3, 1), angle_columns="pair",
            position_ids=np.stack((_IDS, _IDS[::-1], 10 - _IDS)),
        ),
    ),
    "packed": ([(9, 4, 16), (9, 2, 16)], dict(_HALF, layout="thd", cu_seqlens=increasing(0, 4, 4, 9))),
    "padded": (
        [(9, 4, 16)],
        dict(
            _HALF, layout="thd", cu_seqlens=increasing(0, 3, 5), cu_seqlens_padded=increasing(0, 4, 9), padding="zero",
        ),
    ),
    "padded freqs": (
        [(9, 4, 16)],
        dict(
            layout="thd", pairing="half", freqs=_TABLE, angle_columns="pair", cu_seqlens=increasing(0, 3, 5),
            cu_seqlens_padded=increasing(0, 4, 9), padding="copy",
        ),
    ),
    "stream": (
        [(9, 4, 16)],
        dict(_HALF, layout="thd", cu_seqlens=increasing(0, 4, 9), stream_positions=True),
    ),
    "zigzag": (
        [(8, 4, 16)],
        dict(_HALF, layout="thd", cu_seqlens=increasing(0, 8, 16), cp_size=2, cp_rank=1, cp_layout="zigzag"),
    ),
    "norm": ([(2, 7, 4, 16), (2, 7, 2, 16)], dict(_HALF, layout="bshd", norms=_norms("before", "head"))),
    "norm after": ([(2, 7, 4, 16), (2, 7, 2, 16)], dict(_HALF, layout="sbhd", norms=_norms("after", "head"))),
    "norm of a token": (
        [(2, 7, 4, 16), (2, 7, 2, 16)],
        dict(_HALF, layout="bshd", norms=[trope.Norm(random(20, 64), eps=1e-5, scope="token"), None]),
    ),
    "norms, packed": (
        [(9, 4, 16), (9, 2, 16)],
        dict(_HALF, layout="thd", cu_seqlens=increasing(0, 4, 9), norms=_norms("after", "token")),
    ),
    "norm with freqs": (
        [(2, 7, 4, 16), (2, 7, 2, 16)],
        dict(
            layout="bshd", pairing="half", freqs=_TABLE, angle_columns="pair", position_ids=_IDS,
            norms=[None, trope.Norm(_WEIGHTS[2], eps=1e-6)],
        ),
    ),
    "norm without weight": ([(2, 7, 4, 16)], dict(_HALF, layout="bshd", norms=trope.Norm(eps=1e-6))),
    "norm, native": (
        [(2, 7, 4, 16), (2, 7, 2, 16)],
        dict(_HALF, layout="bshd", rounding="native", norms=_norms("before", "head", "twice")),
    ),
}  # fmt: skip


def tensors_of(name, dtype="float32", seed=0):
    return [random(seed + i, *shape, dtype=dtype) for i, shape in enumerate(CASES[name][0])]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def norms_of(options):
    norms = options.get("norms")
    return [] if norms is None else norms if isinstance(norms, list) else [norms]


def weights_of(options):
    return [None if norm is None else norm.weight for norm in norms_of(options)]


def with_weights(options, weights):
    """The options with other weights: those that a derivative is taken by."""
    if not norms_of(options):
        return options
    norms = []
    for norm, weight in zip(norms_of(options), weights):
        if norm is not None:
            settings = {name: getattr(norm, name) for name in ("eps", "plus_one", "scope", "order", "rounding")}
            norm = trope.Norm(weight, **settings)
        norms.append(norm)
    return dict(options, norms=norms)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
    return a.tobytes() == b.tobytes()


def numpy_gradients(name, tensors, dys):
    """The gradients that trope.rotate_backward computes of NumPy arrays: (dxs, d_freqs or None, d_weights)."""
    options = CASES[name][1]
    real = "float32"
    d_freqs = None if options.get("freqs") is None else np.zeros(options["freqs"].shape, real)
    weights = weights_of(options)
    d_weights = [None if weight is None else np.zeros(weight.shape, real) for weight in weights]
    given: dict = {}
    if d_freqs is not None:
        widths = options.get("rotary_dim", [16] * len(tensors))
        given = dict(d_freqs=d_freqs, forward_src=[x if width > 0 else None for x, width in zip(tensors, widths)])
    if weights:
        given["d_weights"] = d_weights
        given["forward_src"] = [
            x if norm is not None or d_freqs is not None else None for x, norm in zip(tensors, norms_of(options))
        ]
    return as_tuple(trope.rotate_backward(*dys, **given, **options)), d_freqs, d_weights
