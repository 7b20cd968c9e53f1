"""trope for JAX, on the CPU and on CUDA: jax.jit, jax.grad and jax.jvp (of any order), jax.vmap, split arrays.

    q, k = trope.jax.rotate(q, k, layout="bshd", pairing="half", inv_freq=trope.frequencies("config.json"))

It needs jax 0.11 or later. The arrays among the options may be traced. Wrong shapes, dtypes and options raise an error when
a call is traced. Values of indices can only be checked when the call runs: wrong values raise an error of JAX's runtime on
the CPU. On CUDA, the results of their tokens are NaN.

Inside jax.shard_map, pass cp_rank=jax.lax.axis_index(axis) with cp_size and cp_layout, or position_ids, if the tokens are
split over an axis. Without them, positions start at 0 on each device, and a warning says so once.

In jitted code a call writes its results to the memory of its tensors, if nothing else reads the tensors. Otherwise, XLA
first copies them, for example if the caller of a jitted function does not donate them.

`norms` takes a trope.Norm for each tensor. The weights of the norms have gradients too. An `inv_freq` that is a jax array
has a gradient: the call then reads a table that is made from it. cos and sin have no derivative: pass freqs instead.

jax.export needs disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("trope_rotate")], because JAX does not know the
call. A process that loads the program must import trope.jax before it calls it. Symbolic shapes are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple, overload

import jax

if jax.__version_info__ < (0, 11):
    raise ImportError("trope.jax needs jax 0.11 or later, and this is %s" % jax.__version__)

from .._errors import Error  # noqa: E402
from .._norms import count_heads, refuse_norm, resolve_norms  # noqa: E402
from .._options import ARRAYS, DEFAULTS, Options, document  # noqa: E402
from .._spec import DIMS, resolve  # noqa: E402
from .._values import integer, shown  # noqa: E402
from . import _context, _sharding  # noqa: E402
from ._inputs import as_array, refuse_options, refuse_traced  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["rotate"]


def _resolve(tensors, options, max_position):
    """Returns the tensors, the Spec, the Side, and the norms' weights (or None) of each tensor."""
    if not tensors:
        raise Error("tensors: none is given", "tensors")
    tensors = [as_array(x, "tensors[%d]" % i) for i, x in enumerate(tensors)]
    refuse_traced(dict(options, max_position=max_position))
    refuse_options(options)
    norms = options.pop("norms", None)
    for name in ARRAYS:
        if options.get(name) is not None:
            options[name] = as_array(options[name], name)
    if max_position is not None:
        integer(max_position, "max_position", 1)
        if not isinstance(options.get("inv_freq"), jax.Array):
            raise Error("max_position is only for an inv_freq that is a jax array", "max_position")
    if isinstance(options.get("inv_freq"), jax.Array):
        table = _table_of(options["inv_freq"], tensors[0], max_position, options)
        options = dict(options, inv_freq=None, freqs=table, angle_columns="pair")
    spec, side = resolve(tensors, options)
    if norms is None:
        return tensors, spec, side, ()
    spec, weights = resolve_norms(spec, tensors, norms, refuse_norm)
    weights = [_weight(spec, i, tensors[i], weight) for i, weight in enumerate(weights)]
    return tensors, spec, side, weights


def _weight(spec, i, x, weight):
    """Returns the weight of a norm, with dimensions for groups (if any) and heads if each head has its own weights."""
    name = "norms[%d].weight" % i
    settings = spec.norms[i]
    if settings.group:
        raise Error("norms[%d].process_group is for trope.torch: jax arrays are split by their sharding" % i, name)
    if weight is None:
        return None
    weight = as_array(weight, name)
    dims, heads, head_dim = DIMS[spec.layout], count_heads(spec.layout, x.shape), x.shape[-1]
    sizes = (heads,) if dims.groups is None else (x.shape[dims.groups], x.shape[dims.heads])
    if weight.shape in ((heads, head_dim), (heads * head_dim,)) and weight.shape != (head_dim,):
        return weight.reshape(*sizes, head_dim)
    return weight


def _table_of(inv_freq, x, max_position, options):
    """Returns freqs [positions, pairs], through which inv_freq gets its gradient."""
    for name in ("freqs", "cos", "sin", "angle_columns"):
        if options.get(name) is not None:
            raise Error("inv_freq is given beside %s: give one of them" % name, "inv_freq")
    out_of_range = options.get("out_of_range", DEFAULTS["out_of_range"])
    if not isinstance(out_of_range, str) or out_of_range != DEFAULTS["out_of_range"]:
        message = "out_of_range is %s, but it is only for tables: with inv_freq, no position is out of range"
        raise Error(message % shown(out_of_range), "out_of_range")
    if inv_freq.dtype not in (jax.numpy.float32, jax.numpy.float64):
        message = (
            "inv_freq has dtype %s, with which positions in the thousands are rotated by wrong angles: keep it in float32"
        )
        raise Error(message % inv_freq.dtype, "inv_freq")
    if inv_freq.ndim != 1:
        raise Error("inv_freq has shape %s, and must be [rotary_dim / 2]" % list(inv_freq.shape), "inv_freq")
    if max_position is None:
        for name in ("position_ids", "start_positions"):
            if options.get(name) is not None:
                message = (
                    "max_position is missing: with an inv_freq that is a jax array and %s, it is the number of rows of"
                    " the table of angles, one more than the largest position"
                )
                raise Error(message % name, "max_position")
        layout, cp_size = options.get("layout"), options.get("cp_size")
        known = isinstance(layout, str) and layout in DIMS and x.ndim == len(layout)
        tokens = x.shape[DIMS[layout].tokens] if known else 1
        max_position = tokens * (1 if cp_size is None else integer(cp_size, "cp_size", 1))
    positions = jax.numpy.arange(max_position, dtype=inv_freq.dtype)
    table = positions[:, None] * inv_freq
    return table if x.dtype == jax.numpy.float64 else table.astype(jax.numpy.float32)


def _rotate(tensors, options, max_position):
    rank = options.get("cp_rank")
    if isinstance(rank, jax.Array):
        rank = _context.check_rank(rank)
        options["cp_rank"] = 0 if isinstance(rank, jax.Array) else rank
    tensors, spec, side, weights = _resolve(tensors, options, max_position)
    if rank is None:
        _context.warn_of_counting(tensors, side)
    if isinstance(rank, jax.Array):
        return _context.rotate(rank, tensors, spec, side, weights)
    return _sharding.rotate(tensors, spec, side, weights)


@overload
def rotate(x: Any, /, *, max_position: int | None = None, **options: Unpack[Options]) -> jax.Array: ...
@overload
def rotate(
    x: Any, y: Any, /, *more: Any, max_position: int | None = None, **options: Unpack[Options]
) -> Tuple[jax.Array, ...]: ...
def rotate(*tensors, max_position=None, **options):
    is_learned = isinstance(options.get("inv_freq"), jax.Array) and options.get("freqs") is None
    try:
        results = _rotate(tensors, options, max_position)
    except Error as error:
        if not is_learned:
            raise
        text = str(error).replace("the number of rows of freqs", "max_position")
        raise Error(text, error.argument, error.status).renamed({"freqs": "inv_freq"}) from None
    return results[0] if len(tensors) == 1 else tuple(results)


document(rotate, "Rotates all tensors in one call: y = M x for each pair.")
