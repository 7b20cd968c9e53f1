"""--expect: the comparison of results with the results in another file."""

import math

import numpy as np

from .files import to_double
from .refused import DIFFERS, OK, refuse, refuse_tensor

_INFINITE = 2**64 - 1  # the distance in ulp between a NaN and a number
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_MANTISSA = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7}  # stored bits
_HEADER = "# %-5s %-5s %12s %13s %10s %12s %12s  %s"
_ROW = "%-7s %-5s %12d %13.6g %10s %12d %12d  %s"


class Comparison:
    """The comparison of one tensor. Two NaN are equal, and so are 0 and -0. A NaN is infinitely far from a number."""

    def __init__(self, tensor, ulp):
        self.tensor, self.ulp = tensor, ulp
        self.error, self.largest, self.differing, self.over, self.first = 0.0, 0, 0, 0, None
        self.both_nan, self.nan, self.infinite = 0, [0, 0], [0, 0]

    def add(self, result, expected, begin):
        """Compares elements, given as bytes, from index `begin` on."""
        dtype = self.tensor.dtype
        bits = [data.view(_BITS[8 if dtype == "F64" else 4 if dtype == "F32" else 2]) for data in (result, expected)]
        sign = bits[0].dtype.type(1 << bits[0].dtype.itemsize * 8 - 1)
        magnitudes = [each & ~sign for each in bits]
        infinity = ~sign >> _MANTISSA[dtype] << _MANTISSA[dtype]
        here, there = (each > infinity for each in magnitudes)
        self.both_nan += int((here & there).sum())
        differs = (bits[0] != bits[1]) & ~(here & there) & ((magnitudes[0] | magnitudes[1]) != 0)
        where = np.flatnonzero(differs)
        if not where.size:
            return
        self.first = begin + int(where[0]) if self.first is None else self.first
        self.differing += where.size
        self._add_differing(*(each[where] for each in bits), *(each[where] for each in magnitudes), infinity, sign)

    def _add_differing(self, a, b, a_magnitude, b_magnitude, infinity, sign):
        nan = a_magnitude > infinity, b_magnitude > infinity
        low, high = (each.astype(np.uint64) for each in (a_magnitude, b_magnitude))
        apart = np.where(low > high, low - high, high - low)
        distance = np.where((a ^ b) & sign, low + high, apart)
        distance[nan[0] | nan[1]] = _INFINITE
        self.over += int((distance > np.uint64(self.ulp)).sum())
        self.largest = max(self.largest, int(distance.max()))
        with np.errstate(all="ignore"):
            errors = np.abs(_to_double(a, self.tensor.dtype) - _to_double(b, self.tensor.dtype))
        self.error = max(self.error, float(np.where(np.isnan(errors), np.inf, errors).max()))
        infinite = a_magnitude == infinity, b_magnitude == infinity
        for side in (0, 1):
            self.nan[side] += int((nan[side] & ~nan[1 - side]).sum())
            self.infinite[side] += int((infinite[side] & ~infinite[1 - side] & ~nan[1 - side]).sum())

    def print(self):
        tensor, largest = self.tensor, "inf" if self.largest == _INFINITE else str(self.largest)
        first = "-" if self.first is None else str([int(i) for i in np.unravel_index(self.first, tensor.shape)])
        error, counts = self.error, (self.differing, self.over)
        print(_ROW % (tensor.name, tensor.dtype, tensor.elements, error, largest, *counts, first))
        beyond = "infinite in the %s only: beyond its dtype, or computed from infinity"
        for count, what in (
            (self.both_nan, "NaN in both"),
            (self.nan[0], "NaN in the result only"),
            (self.nan[1], "NaN in the expected file only"),
            (self.infinite[0], beyond % "result"),
            (self.infinite[1], beyond % "expected file"),
        ):
            if count:
                print("# %s: %d of %d elements are %s" % (tensor.name, count, tensor.elements, what))


def _to_double(bits, dtype):
    """Converts bits of a dtype to float64."""
    return to_double(bits if dtype == "BF16" else bits.view("<f%d" % bits.itemsize), dtype)


class Comparisons:
    """The comparison of a run with the operands of another file."""

    def __init__(self, expected, ulp):
        self.expected, self.ulp, self.tensors, self.over, self.all_nan = expected, ulp or 0, 0, 0, 0

    def begin(self, tensor):
        """Returns the Comparison of one tensor. The caller must call end() afterwards."""
        if not self.tensors:
            print(_HEADER % ("tensor", "dtype", "elements", "max error", "max ulp", "differing", "over", "first differing"))
        self.tensors += 1
        return Comparison(tensor, self.ulp)

    def end(self, comparison):
        comparison.print()
        self.over += comparison.over
        self.all_nan += 0 < comparison.tensor.elements == comparison.both_nan

    def verdict(self):
        """Prints the verdict, and returns the exit status."""
        if self.over:
            print("# DIFFERENT: %d elements are more than %d ulp apart" % (self.over, self.ulp))
            return DIFFERS
        if self.all_nan:
            text = "--expect: %d of %d tensors hold only NaN in both files, so that nothing is compared"
            refuse(text, self.all_nan, self.tensors)
        print("# equal within %d ulp" % self.ulp)
        return OK


def check_header(tensor, expected):
    """Refuses a tensor of the expected file that is missing or cannot be the result of this tensor."""
    other = expected.by_name.get(tensor.name)
    if other is None:
        refuse_tensor(expected.path, tensor.name, "is missing, but the result has it")
    if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
        refuse_tensor(expected.path, tensor.name, "%s must have the dtype and shape of the result, %s", other, tensor)
    return other
