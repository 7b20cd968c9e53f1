"""Checks of single values of options. Each check returns the value, or raises an Error that names the argument."""

import numbers
import sys

from ._errors import Error

INT32_MAX = 2**31 - 1
_LARGEST = sys.float_info.max


def shown(value):
    """Returns the repr of a value for a message, cut to 60 characters."""
    try:
        text = repr(value)
    except Exception:  # the value's class may have a broken repr
        text = "a %s" % type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def word(value, choices, argument):
    """Checks a word in `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    known = ", ".join(map(repr, choices))
    if value is None:
        raise Error("%s is missing: it must be one of %s" % (argument, known), argument)
    raise Error("%s must be one of %s, not %s" % (argument, known, shown(value)), argument)


def flag(value, argument):
    """Checks True or False. Numbers and texts that Python treats as either are refused."""
    if value is True or value is False:
        return value
    raise Error("%s must be True or False, not %s" % (argument, shown(value)), argument)


def integer(value, argument, low=0, high=INT32_MAX):
    """Checks an int from low to high. NumPy's integers are accepted. Bools, tensors and floats are not."""
    if isinstance(value, bool) or not isinstance(value, (int, numbers.Integral)):
        raise Error("%s must be an integer, not %s" % (argument, shown(value)), argument)
    if not low <= value <= high:
        raise Error("%s must be %d to %d, not %d" % (argument, low, high, value), argument)
    return int(value)


def number(value, argument):
    """Checks a finite number, and returns it as a float. Bools, texts and arrays are refused."""
    if isinstance(value, (float, numbers.Real)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:
            result = _LARGEST * 2
        if -_LARGEST <= result <= _LARGEST:
            return result
    raise Error("%s must be a finite number, not %s" % (argument, shown(value)), argument)


def listed(value):
    """Returns the elements of a list, a tuple, or an array of NumPy or PyTorch, or None if the value is none of these."""
    if not isinstance(value, (list, tuple)) and hasattr(value, "tolist"):
        try:
            value = value.tolist()
        except Exception:  # tensors on the meta device, sparse tensors, ...
            return None
    return value if isinstance(value, (list, tuple)) else None


def integers(value, argument, low=0, high=INT32_MAX):
    """Checks an integer, or a list or tuple of integers. Returns an integer or a tuple."""
    if type(value) is int and low <= value <= high:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([integer(each, argument, low, high) for each in value])
    try:
        return integer(value, argument, low, high)
    except Error as error:
        if "integer, not" in str(error):
            message = "%s must be an integer, or a list of one integer for each tensor, not %s"
            raise Error(message % (argument, shown(value)), argument) from None
        raise


def one_each(value, argument, count):
    """Returns a list of `count` arrays, one for each tensor. The value is a list or tuple, one array alone, or None."""
    if value is None:
        return [None] * count
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(given) != count:
        raise Error("%s has %d arrays for %d tensors: it needs one for each" % (argument, len(given), count), argument)
    return given
