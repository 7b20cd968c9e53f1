"""Drop-in classes for MaxText 0.2.5 (maxtext.layers.embeddings), with the same names and the same calls.

    import maxtext.layers.attentions
    import trope.jax.maxtext

    maxtext.layers.attentions.RotaryEmbedding = trope.jax.maxtext.RotaryEmbedding
    maxtext.layers.attentions.LLaMARotaryEmbedding = trope.jax.maxtext.LLaMARotaryEmbedding

Angles, casts and rounding are MaxText's. RotaryEmbedding computes angles in float32, casts cos and sin to the dtype of the
inputs, rounds each product and each sum to this dtype, and casts the result to fprop_dtype. LLaMARotaryEmbedding keeps cos
and sin in float32, multiplies in float32, and casts the result. Angles in float32 lose digits at large positions:
trope.jax.rotate with inv_freq has exact angles.

Bits: results, and gradients of RotaryEmbedding, have the bits of MaxText on the CPU. Under jax.jit, XLA changes MaxText's
bits: it fuses products with sums in float32, and leaves out roundings of 16-bit inputs if fprop_dtype is float32. The
gradient of LLaMARotaryEmbedding with 16-bit inputs is rounded once, where MaxText's rounds two products and their sum.

The objects are immutable, and equal if their settings are. mesh, shard_mode and rngs have no effect: a call is split like
any call of trope.jax. Also refused, where MaxText does not: embedding_dims of 0, positions that are not integers, and
positions of another shape than [batch or 1, sequence].
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from .._errors import Error
from .._values import flag, integer, number, shown
from . import rotate
from ._inputs import as_floats, as_indices, caller_names, float_dtype

__all__ = ["LLaMARotaryEmbedding", "RotaryEmbedding"]

_NAMES = {"tensors[0]": "inputs", "cos": "position", "sin": "position"}


class _Embedding:
    """The settings that both classes check, and their calls."""

    def __post_init__(self, rngs):
        for name in ("min_timescale", "max_timescale"):
            if number(getattr(self, name), name) <= 0:
                raise Error("%s must be over 0, not %s" % (name, shown(getattr(self, name))), name)
        if integer(self.embedding_dims, "embedding_dims", 2) % 2:
            raise Error("embedding_dims must be even, not %d" % self.embedding_dims, "embedding_dims")
        flag(self.cast_as_fprop_dtype, "cast_as_fprop_dtype")
        float_dtype(self.fprop_dtype, "fprop_dtype")
        if self.mesh is not None and not isinstance(self.mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
            raise Error("mesh must be a jax mesh or None, not %s" % shown(self.mesh), "mesh")
        if getattr(self.shard_mode, "value", self.shard_mode) not in ("auto", "explicit"):
            raise Error("shard_mode must be MaxText's ShardMode, not %s" % shown(self.shard_mode), "shard_mode")

    def _timescales(self):
        """Returns the number of positions for each radian of each pair, in float32."""
        fractions = 2 * jnp.arange(0, self.embedding_dims // 2) / self.embedding_dims
        return self.min_timescale * (self.max_timescale / self.min_timescale) ** fractions

    def _tables(self, position, timescales):
        """Returns cos and sin of each token and pair. position: [batch or 1, sequence], or [sequence]."""
        angles = (position[0] if position.ndim == 2 and position.shape[0] == 1 else position)[..., None] / timescales
        return jnp.cos(angles), jnp.sin(angles)

    def _inputs(self, inputs):
        inputs = as_floats(inputs, "inputs")
        if inputs.ndim != 4 or inputs.shape[3] != self.embedding_dims:
            message = "inputs has shape %s, and must be [batch, sequence, heads, embedding_dims (%d)]"
            raise Error(message % (list(inputs.shape), self.embedding_dims), "inputs")
        return inputs

    def _position(self, position, inputs):
        position = as_indices(position, "position")
        batch, tokens = inputs.shape[:2]
        if position.shape not in ((batch, tokens), (1, tokens)):
            message = "position has shape %s, and must be [batch (%d) or 1, sequence (%d)]"
            raise Error(message % (list(position.shape), batch, tokens), "position")
        return position

    def _cast(self, x):
        return x.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else x


@dataclasses.dataclass(frozen=True)
class RotaryEmbedding(_Embedding):
    """Rotates inputs [batch, sequence, heads, embedding_dims] by position [batch or 1, sequence]. Pairing is by halves."""

    min_timescale: float
    max_timescale: float
    mesh: Any = None
    embedding_dims: int = 0
    cast_as_fprop_dtype: bool = True
    fprop_dtype: Any = jnp.bfloat16
    shard_mode: Any = "auto"
    rope_linear_scaling_factor: float = 1.0
    rngs: dataclasses.InitVar[Any] = None

    def __post_init__(self, rngs):
        super().__post_init__(rngs)
        if not number(self.rope_linear_scaling_factor, "rope_linear_scaling_factor"):
            raise Error("rope_linear_scaling_factor must not be 0", "rope_linear_scaling_factor")

    def __call__(self, inputs, position=None):
        if position is None:
            raise Error("position is missing: it is [batch or 1, sequence]", "position")
        inputs = self._inputs(inputs)
        timescales = self._timescales()
        if self.rope_linear_scaling_factor != 1:
            timescales = timescales * self.rope_linear_scaling_factor
        cos, sin = self._tables(self._position(position, inputs), timescales)
        tables = {"cos": cos.astype(inputs.dtype), "sin": sin.astype(inputs.dtype), "angle_columns": "pair"}
        with caller_names(_NAMES):
            return self._cast(rotate(inputs, layout="bshd", pairing="half", rounding="native", **tables))


@dataclasses.dataclass(frozen=True)
class LLaMARotaryEmbedding(_Embedding):
    """Rotates inputs [batch, sequence, heads, embedding_dims]. Pairs are interleaved. Without position, positions are
    counted. use_scale: the frequencies of Llama 3.1 (factor 8, low and high factors 1 and 4, 8192 positions)."""

    min_timescale: float
    max_timescale: float
    mesh: Any = None
    embedding_dims: int = 0
    cast_as_fprop_dtype: bool = True
    fprop_dtype: Any = jnp.bfloat16
    use_scale: bool = True
    shard_mode: Any = "auto"
    rngs: dataclasses.InitVar[Any] = None

    def __post_init__(self, rngs):
        super().__post_init__(rngs)
        flag(self.use_scale, "use_scale")

    def __call__(self, inputs, position=None):
        inputs = self._inputs(inputs)
        position = jnp.arange(inputs.shape[1]) if position is None else self._position(position, inputs)
        timescales = self._timescales()
        cos, sin = self._tables(position, _scale(timescales) if self.use_scale else timescales)
        is_cast_back = self.cast_as_fprop_dtype and inputs.dtype == jnp.dtype(self.fprop_dtype)
        if not (is_cast_back and cos.dtype == jnp.float32):  # otherwise, the call itself computes in float32
            inputs = inputs.astype(jnp.result_type(inputs, cos))
        tables = {"cos": cos, "sin": sin, "angle_columns": "pair"}
        with caller_names(_NAMES):
            return self._cast(rotate(inputs, layout="bshd", pairing="interleaved", rounding="native_f32", **tables))


def _scale(timescales):
    """Returns the timescales of Llama 3.1: as they are up to 2048 positions for a turn, 8 times as long from 8192 on."""
    frequencies = 1.0 / timescales
    lengths = 2 * jnp.pi / frequencies
    blend = (8192 / lengths - 1) / (4 - 1)
    blended = (1 - blend) * frequencies / 8 + blend * frequencies
    return 1.0 / jnp.where(lengths < 8192 / 4, frequencies, jnp.where(lengths > 8192, frequencies / 8, blended))
