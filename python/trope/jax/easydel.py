"""A drop-in function for EasyDeL 0.3.0 (easydel.layers.rotary), with the same name and the same call.

    import easydel.layers.rotary._modules
    import trope.jax.easydel

    easydel.layers.rotary._modules.apply_basic_rope = trope.jax.easydel.apply_basic_rope

EasyDeL's RotaryEmbedding and its linear, dynamic, Llama 3 and YaRN variants then rotate query and key in one call.

cos and sin are rounded to the dtype of query and key, and so is each product and each sum, as in EasyDeL. Results and
gradients have its bits on the CPU. Under jax.jit, XLA fuses products with sums in float32, which changes last bits.

As in EasyDeL, results have the dtype of query and key, whatever `dtype` is. A position without a row in frequencies gives
NaN, where EasyDeL reads another row. Refused: query and key of different dtypes, and derivatives by frequencies.
"""

import jax
import jax.numpy as jnp

from .._errors import Error
from .._values import flag, integer
from . import rotate
from ._inputs import as_floats, as_indices, caller_names, float_dtype

__all__ = ["apply_basic_rope"]

_NAMES = {"tensors[0]": "query", "tensors[1]": "key", "cos": "frequencies", "sin": "frequencies"}


def apply_basic_rope(query, key, positions, frequencies, rotary_dim, is_neox_style, offsets=None, dtype=jnp.float32):
    """Rotates query and key [batch, sequence, heads, head_dim], and returns both.

    positions      integers [batch or 1, sequence] or [sequence]
    frequencies    [rows, rotary_dim]: for each position, the cosines of all pairs and then their sines
    rotary_dim     the number of elements of a head that rotate, from the first on
    is_neox_style  whether element i is paired with i + rotary_dim / 2; otherwise 2i is paired with 2i + 1
    offsets        integers that are added to positions
    dtype          has no effect
    """
    query, key = as_floats(query, "query"), as_floats(key, "key")
    float_dtype(dtype, "dtype")
    frequencies = _check_frequencies(frequencies, integer(rotary_dim, "rotary_dim", 2))
    positions = _add(as_indices(positions, "positions"), offsets)
    if query.ndim != 4:
        raise Error("query has shape %s, and must be [batch, sequence, heads, head_dim]" % list(query.shape), "query")
    batch, tokens = query.shape[:2]
    if positions.shape not in ((batch, tokens), (1, tokens), (tokens,)):
        message = "positions has shape %s%s, and must be [batch (%d) or 1, sequence (%d)]"
        added = "" if offsets is None else " with offsets"
        raise Error(message % (list(positions.shape), added, batch, tokens), "positions")
    rows = positions[0] if positions.shape == (1, tokens) else positions
    table = frequencies.at[rows].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
    cos, sin = jnp.split(table.astype(query.dtype), 2, -1)
    pairing = "half" if flag(is_neox_style, "is_neox_style") else "interleaved"
    with caller_names(_NAMES):
        return rotate(
            query, key, layout="bshd", pairing=pairing, cos=cos, sin=sin, angle_columns="pair", rotary_dim=rotary_dim,
            rounding="native",
        )  # fmt: skip


def _check_frequencies(frequencies, rotary_dim):
    frequencies = as_floats(frequencies, "frequencies")
    if rotary_dim % 2:
        raise Error("rotary_dim must be even, not %d" % rotary_dim, "rotary_dim")
    if frequencies.ndim != 2 or frequencies.shape[1] != rotary_dim or not frequencies.shape[0]:
        message = "frequencies has shape %s, and must be [rows, rotary_dim (%d)]"
        raise Error(message % (list(frequencies.shape), rotary_dim), "frequencies")
    return _without_derivative(frequencies)


def _add(positions, offsets):
    if offsets is None:
        return positions
    offsets = as_indices(offsets, "offsets")
    try:
        return positions + offsets
    except (TypeError, ValueError):
        message = "offsets has shape %s, which cannot be added to positions, of shape %s"
        raise Error(message % (list(offsets.shape), list(positions.shape)), "offsets") from None


@jax.custom_jvp
def _without_derivative(frequencies):
    return frequencies


@_without_derivative.defjvp
def _refuse_derivative(primals, tangents):
    raise Error("frequencies has a derivative to compute, which is not possible here: use stop_gradient", "frequencies")
