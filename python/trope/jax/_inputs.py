"""Checks of what a caller passes: arrays whose values JAX would change, and traced values where a call needs Python's."""

import contextlib

import jax
import numpy

from .._errors import Error
from .._options import ARRAYS
from .._values import flag, shown


def as_array(x, name):
    """Returns a jax array. NumPy arrays become constants."""
    if isinstance(x, numpy.ndarray):
        return _constant(x, name)
    if not isinstance(x, jax.Array):
        raise Error("%s must be a jax array, not %s" % (name, type(x).__name__), name)
    if not all(isinstance(size, int) for size in x.shape):
        message = "%s has the symbolic shape %s, but a call has fixed sizes: export a program for each shape"
        raise Error(message % (name, list(x.shape)), name)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise Error("%s has dtype %s, and must have numbers" % (name, x.dtype), name)
    return jax.numpy.asarray(x)


def _constant(x, name):
    """Returns a NumPy array as a jax array with the same values. Without x64, JAX itself cuts 64-bit values to 32 bits."""
    if numpy.ma.isMaskedArray(x):
        raise Error("%s is a masked array, and its mask would be lost: pass its data" % name, name)
    try:
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        if dtype == x.dtype:
            return jax.numpy.asarray(x)
    except TypeError:
        raise Error("%s has dtype %s, which JAX does not have" % (name, x.dtype.str), name) from None
    enable = 'or call jax.config.update("jax_enable_x64", True)'
    if x.dtype != numpy.int64:
        raise Error("%s has dtype %s, which JAX cuts to %s: convert it, %s" % (name, x.dtype, dtype, enable), name)
    range32 = numpy.iinfo(dtype)
    for value in (x.min(), x.max()) if x.size else ():
        if not range32.min <= value <= range32.max:
            message = "%s has the value %d, which JAX cuts to 32 bits: pass smaller values, %s"
            raise Error(message % (name, value, enable), name)
    return jax.numpy.asarray(x.astype(dtype))


def refuse_traced(options):
    """Refuses settings that JAX traces. A call needs their values when it is traced."""
    for name, value in options.items():
        if name in ARRAYS or (name == "inv_freq" and isinstance(value, jax.Array)):
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, jax.core.Tracer):
                message = "%s is traced (%s), but a call needs its value: list it in static_argnames of jax.jit"
                raise Error(message % (name, jax.typeof(each)), name)


def refuse_options(options):
    """Refuses the options of trope.rotate that JAX has no use for."""
    if options.get("status") is not None:
        message = "status is an array that the call writes, and a jax array cannot be written: leave it out"
        raise Error(message, "status")
    if flag(options.get("accumulate", False), "accumulate"):
        raise Error("accumulate is for rotate_backward, which adds to out: in JAX, add the gradients", "accumulate")


# ---- What the drop-in modules share ----

_FLOATS = ("float32", "bfloat16", "float16", "float64")


def float_dtype(value, name):
    """Returns one of the four dtypes that rotate. JAX accepts a dtype, its type or its name."""
    try:
        dtype = jax.numpy.dtype(value)
    except TypeError:
        raise Error("%s must be a dtype, not %s" % (name, shown(value)), name) from None
    if value is None or dtype.name not in _FLOATS:
        raise Error("%s must be one of %s, not %s" % (name, ", ".join(_FLOATS), shown(value)), name)
    return dtype


def as_floats(x, name):
    """Returns a jax array of one of the four dtypes that rotate."""
    x = as_array(x, name)
    if x.dtype.name not in _FLOATS:
        raise Error("%s has dtype %s, and must have one of %s" % (name, x.dtype, ", ".join(_FLOATS)), name)
    return x


def as_indices(x, name):
    """Returns a jax array of integers."""
    x = as_array(x, name)
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.integer):
        raise Error("%s has dtype %s, and must have integers" % (name, x.dtype), name)
    return x


@contextlib.contextmanager
def caller_names(names):
    """Raises each Error with the caller's names. `names` maps the names of trope.jax.rotate to them."""
    try:
        yield
    except Error as error:
        raise error.renamed(names) from None
