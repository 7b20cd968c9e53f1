"""Checks of arguments that the drop-in modules share.

    @arguments({"tensors[0]": "x", "start_positions": "seqlen_offsets"}, x=tensor, seqlen_offsets=optional(indices))
    def apply_rotary(x, seqlen_offsets=None): ...

Each public function checks all its arguments before it calls anything, and every Error that it raises uses the names of its
own parameters. A check is a function of a value and its name that raises an Error.
"""

import functools
import inspect
import sys

import torch

from ._errors import Error
from ._values import INT32_MAX, flag, number, shown
from ._values import integer as _integer
from .torch import _PLAIN
from .torch._launch import refuse_transforms

_STRIDED = torch.strided
_INDICES = (torch.int32, torch.int64)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


# ---- Checks ----


def tensor(value, name):
    """Checks a torch tensor with memory of its own. This is quick for ordinary tensors."""
    if torch.compiler.is_compiling():  # torch.compile does not let a backward read the other properties
        _check_class(value, name)
    elif type(value) not in _PLAIN or value.layout is not _STRIDED or value.is_nested or value.is_meta:
        _check_other_tensor(value, name)


def floats(value, name):
    """Checks a tensor of one of the four dtypes that rotate."""
    tensor(value, name)
    if value.dtype not in _FLOATS:
        raise Error("%s has dtype %s, and must be float32, float16, bfloat16 or float64" % (name, value.dtype), name)


def _check_class(value, name):
    if not isinstance(value, torch.Tensor):
        raise Error("%s must be a torch tensor, not %s" % (name, shown_type(value)), name)
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(value, distributed.DTensor):
        raise Error("%s is a DTensor: pass to_local(), with the angles of the tokens that it has" % name, name)


def _check_other_tensor(value, name):
    _check_class(value, name)
    if value.layout is torch.jagged or value.is_nested:
        message = "%s is a nested tensor: pass its values() where the function takes packed sequences, else pad it"
        raise Error(message % name, name)
    if value.layout is not _STRIDED:
        raise Error("%s has layout %s: pass to_dense()" % (name, value.layout), name)
    if torch.nn.parameter.is_lazy(value):
        raise Error("%s is a parameter that has no values yet: initialize its module first" % name, name)
    if value.is_meta:
        raise Error("%s is on the meta device, where tensors have no values: pass an ordinary tensor" % name, name)


def shown_type(value):
    """Returns "None", or the name of the value's type, for a message."""
    return "None" if value is None else "a " + type(value).__name__


def indices(value, name):
    """Checks a tensor with one dimension, int32 or int64."""
    tensor(value, name)
    if value.dtype not in _INDICES:
        raise Error("%s has dtype %s, and must be int32 or int64" % (name, value.dtype), name)
    if value.dim() != 1:
        raise Error("%s has shape %s, and must have one dimension" % (name, list(value.shape)), name)


def optional(check):
    """Returns a check that also accepts None."""

    def check_if_given(value, name):
        if value is not None:
            check(value, name)

    return check_if_given


def integer(low=0, high=INT32_MAX):
    """Returns the check of an integer from low to high."""

    def check(value, name):
        if type(value) is not int or not low <= value <= high:
            _refuse_array(value, name)
            _integer(value, name, low, high)

    return check


def _refuse_array(value, name):
    """Refuses an array of one element. Python would convert it to an integer, and wait for it if it is on a GPU."""
    if isinstance(value, torch.Tensor) or type(value).__name__ == "ndarray":
        raise Error("%s must be an integer, not %s" % (name, shown_type(value)), name)


def positive(value, name):
    """Checks a number over 0 that float32 can represent."""
    if not 2.0**-126 <= number(value, name) < 2.0**128:
        raise Error("%s must be over 0, and within the range of float32, not %s" % (name, shown(value)), name)


def integers(value, name):
    """Checks a list or tuple of integers that are not negative."""
    if not isinstance(value, (list, tuple)):
        raise Error("%s must be a list of integers, not %s" % (name, shown(value)), name)
    for each in value:
        if type(each) is not int or each < 0:
            _refuse_array(each, name)
            _integer(each, name)


def anything(value, name):
    """The check of an argument that the function checks itself."""


# ---- Errors ----


def rename(error, names):
    """Returns the Error with the caller's names. `names` maps the names of trope.torch.rotate to them."""
    argument = error.argument
    if argument == "tensors" and "tensors[0]" in names:
        first = names["tensors[0]"]
        return Error(str(error).replace("tensors: ", first + ": ", 1), first, error.status)
    array, bracket, index = argument.partition("[")
    if bracket and array in names and argument not in names:  # this is an element, such as start_positions[2]
        names = {**names, argument: names[array] + bracket + index}
    return error.renamed(names)


def refuse_inference_tensor(error, given):
    """Raises autograd's refusal to save a table as an Error that names the parameter."""
    if "Inference tensors cannot be saved" in str(error):
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and value.is_inference():
                message = (
                    "%s is an inference tensor, which cannot be saved for backward: clone it outside of inference_mode"
                )
                raise Error(message % name, name) from None


def arguments(names=None, /, **checks):
    """Decorates a function of tensors, or a method, with a check for each parameter except self, cls and ctx.

    names: {name of trope.torch.rotate: name of the parameter}. If it has "tensors[0]", the function also refuses torch.func
        transforms, forward-mode derivatives and torch.jit.trace.
    """
    names = dict(names or {})
    of_tensors = "tensors[0]" in names
    names.setdefault("cp_layout and cp_size", names.get("cp_size", "cp_size"))
    if "cp_size" not in checks:
        names.setdefault("tokens * cp_size", "the number of tokens")

    def decorate(function):
        signature = inspect.signature(function).parameters
        parameters = list(signature)
        if [p for p in parameters if p not in checks] not in ([], ["self"], ["cls"], ["ctx"]):
            raise TypeError("%s has parameters without a check: %s, of %s" % (function, parameters, list(checks)))
        # A default needs no check, and comparing an argument with it is quicker. (Without a default, it is `empty`.)
        ordered = tuple([(checks.get(name, anything), name, signature[name].default) for name in parameters])
        by_name = {name: (check, default) for check, name, default in ordered}

        @functools.wraps(function)
        def call(*args, **kwargs):
            try:
                if of_tensors:
                    refuse_transforms()
                for (check, name, default), value in zip(ordered, args):
                    if value is not default:
                        check(value, name)
                for name, value in kwargs.items():
                    if name in by_name:
                        check, default = by_name[name]
                        if value is not default:
                            check(value, name)
                return function(*args, **kwargs)
            except Error as error:
                raise rename(error, names) from None
            except RuntimeError as error:
                refuse_inference_tensor(error, {**dict(zip(parameters, args)), **kwargs})
                raise

        return call

    return decorate


def gradients(function):
    """Decorates backward(ctx, *grads) of an autograd.Function, as `arguments` decorates other functions."""

    @functools.wraps(function)
    def backward(ctx, *grads):
        try:
            refuse_transforms([] if torch.compiler.is_compiling() else [grad for grad in grads if grad is not None])
            for i, grad in enumerate(grads):
                if grad is not None:
                    tensor(grad, "grad_outputs[%d]" % i)
            return function(ctx, *grads)
        except Error as error:
            raise rename(error, {"tensors[%d]" % i: "grad_outputs[%d]" % i for i in range(len(grads))}) from None

    return backward


# ---- Tables ----


def check_table(table, x, name, x_name):
    """Refuses a table on another device than x, or of a dtype that tables of x cannot have."""
    if table.device != x.device:
        raise Error("%s is on %s, but %s is on %s" % (name, table.device, x_name, x.device), name)
    if table.dtype == torch.float64 and x.dtype != torch.float64:
        raise Error("%s has dtype float64, which is only for float64 tensors: use float32" % name, name)


def check_tables(cos, sin, x, names, x_name):
    """Refuses tables that x cannot have, and sin that differs from cos. names: the names of cos and sin."""
    name, other = names
    check_table(cos, x, name, x_name)
    if sin.shape != cos.shape:
        raise Error("%s has shape %s, but %s has %s" % (other, list(sin.shape), name, list(cos.shape)), other)
    if sin.dtype != cos.dtype:
        raise Error("%s has dtype %s, but %s has %s" % (other, sin.dtype, name, cos.dtype), other)
    check_table(sin, x, other, x_name)


def check_writable(x, name):
    """Refuses a tensor that cannot be rotated in place."""
    if torch._debug_has_internal_overlap(x) == 1:
        raise Error("%s has elements that share memory (an expanded tensor): clone it" % name, name)
    if x.is_neg():
        raise Error("%s is negated lazily (imag of a conjugate): pass its resolve_neg()" % name, name)


def refuse_gradient(table, name):
    """Refuses a table that requires a gradient, because no gradient is computed for it."""
    if table.requires_grad and torch.is_grad_enabled():
        raise Error("%s requires a gradient, but no gradient is computed for tables here: detach it" % name, name)
