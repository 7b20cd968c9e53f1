"""The rotary functions of Hugging Face transformers, through trope.torch.rotate: one call for q and k, with eager's bits.

    handle = trope.transformers.patch(model)       # and all models of its classes, until handle.undo(); a context manager
    python -m trope.transformers CONFIG            # what that does to the model of a config.json, or why it is refused

patch(model) replaces functions of modules, so it changes all models of the same classes in this process: handle.classes
names these classes. The methods of a model call a function of their module, mostly apply_rotary_pos_emb(q, k, cos, sin). There
is no list of models: patch asks each function which options of rotate give the same bits (_recipes.py says how). If there are
none, patch refuses the function by name before anything is changed, and it refuses a model that calls no such function.

A model keeps no trace of a patch. Its copies and pickles are those of an ordinary model, and a copy is patched as long as its
class is. To patch one model alone, its modules would need methods of their own, with copies of the module's globals. Methods of
transformers are wrapped by decorators, are called through super(), and are replaced in instances by accelerate and by kernels;
and such globals would miss what other libraries replace later.

Backward rounds as these options do. The gradient has eager's bits where q, k and tables have one dtype, and where q and k
are cast to float32 first. Where 16-bit q is multiplied by float32 tables as it is, or cast for each of the two products,
eager rounds both terms of a gradient to 16 bits and adds them in 16 bits; here their sum is rounded, once. docs/frameworks.md
lists these models. A gradient lies in memory as the upstream one, eager's mostly in the order of its shape: what PyTorch sums
up over it, such as the gradient of a norm's weight in Gemma 4, may come in another order.

Most functions give float32 for 16-bit q and float32 tables, which is what they get under torch.autocast. There the result
is rounded to the dtype of q at the store, in half of the memory. Matrix products and attention round what they read to the
same bits. What reads float32 under autocast sees the rounding: a norm behind the rotation (HunYuan, nanochat, TimesFM 2.5).

Products with complex tables (Llama 4, DeepSeek V2) have the bits of PyTorch's vectorized loops. On CUDA, and where a row
has few pairs, PyTorch fuses a product of each sum, which moves the last bit of float32.
"""

import argparse as _argparse
import inspect as _inspect
import logging as _logging
import os as _os
import re as _re
import sys as _sys
import threading as _threading
import types as _types
import warnings as _warnings

import torch as _torch

from ._dropin import shown as _shown
from ._errors import Error
from ._recipes import Rotary as _Rotary

__all__ = ["Patch", "patch"]

_logger = _logging.getLogger("trope.transformers")
_NAME = _re.compile(r"apply_\w*(rotary|rope)")  # of functions and methods that rotate


# ---- What a model calls ----


_HELD = "%s.%s is a rotary function: only those that modules of Python have are patched"


def _names_in(code):
    """Global names that a function uses, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, _types.CodeType):
            yield from _names_in(constant)


def _named_by(function):
    """(globals of a module, name) of what a function may look up there, also by an attribute of a module."""
    names, own = list(dict.fromkeys(_names_in(function.__code__))), function.__globals__
    modules = [vars(own[name]) for name in names if isinstance(own.get(name), _types.ModuleType)]
    return [(space, name) for space in (own, *modules) for name in names]


def _is_plain(value, function):
    """Whether a value is a function of the module that `function` is of."""
    return isinstance(value, _types.FunctionType) and value.__module__ == function.__module__


def _methods_of(members):
    """(name, member without decorators) of what a class has."""
    return [(name, _inspect.unwrap(getattr(member, "__func__", member))) for name, member in members.items()]


def _name_of(thing):
    return "%s.%s" % (thing.__module__, thing.__qualname__)


class _Search:
    """found: {function: _Rotary} of those that a model's methods name, and those that functions of their modules name."""

    def __init__(self, model):
        self.found, self._refused, self._reaches = {}, {}, {}
        for cls in dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__):
            if not cls.__module__.startswith(("torch.", "builtins")):
                self._visit_class(cls)
        for module in model.modules():
            for name, value in (*vars(module).items(), *module._modules.items()):
                if self._is_held(value):
                    raise Error(_HELD % (_name_of(type(module)), name), "model")
        if self._refused:
            hint = "" if not self.found else " (a part of the model that does not use it can be patched: patch(model.part))"
            raise Error("; ".join("%s%s" % each for each in self._refused.items()) + hint, "model")
        if not self.found:
            raise Error("%s calls no rotary function: there is nothing to patch" % _name_of(type(model)), "model")

    def _is_held(self, value):
        """A function that is no method of a class, or one of the package kernels."""
        if isinstance(value, _types.FunctionType):
            return "." not in value.__qualname__ and _NAME.search(value.__qualname__)
        return getattr(value, "kernel_layer_name", "") == "rotary_pos_emb"

    def _visit_class(self, cls):
        for name, member in vars(cls).items():
            if self._is_held(getattr(member, "__func__", member)):
                raise Error(_HELD % (_name_of(cls), name), "model")
        for name, method in _methods_of(vars(cls)):
            if isinstance(method, _types.FunctionType) and not self._visit(method) and _NAME.search(name):
                self._refused["%s.%s" % (_name_of(cls), name)] = " is a method that rotates by itself"

    def _visit(self, function):
        """Whether a function reaches one that is known."""
        if function not in self._reaches:
            self._reaches[function] = False
            looked_up = [self._look_up(function, space, name) for space, name in _named_by(function)]
            self._reaches[function] = any(looked_up)
        return self._reaches[function]

    def _look_up(self, function, space, name):
        """The same of what a module, of which `space` are the globals, has by that name."""
        value = space.get(name)
        is_plain = isinstance(value, _types.FunctionType)
        if callable(value) and (_NAME.search(name) or _NAME.search(getattr(value, "__name__", ""))):
            where = _name_of(value) if is_plain else "%s.%s" % (space["__name__"], name)
            if space is not getattr(_sys.modules.get(space["__name__"]), "__dict__", None):
                message = "%s is called by a module that sys.modules does not have (%s): it cannot be replaced there"
                raise Error(message % (where, space["__name__"]), "model")
            return self._ask(value, where)
        return _is_plain(value, function) and self._visit(value)

    def _ask(self, function, where):
        """Whether it is known, or does its work by one that is (Gemma 4's for images, part by part of a head)."""
        if function in _patched:
            rotary = _patched[function]
            self.found[rotary.original] = rotary
        elif function not in self.found and where not in self._refused:
            try:
                self.found[function] = _Rotary(function, where)
            except Error as error:
                if not (isinstance(function, _types.FunctionType) and self._visit(function)):
                    self._refused[where] = ": %s" % error
        return True


# ---- Patching ----

_patched = {}  # _Rotary by original and by replacement
_lock = _threading.Lock()


def _rebind(replacements):
    """{what a module has: what it gets}, in all modules of Python: models take each other's functions by value."""
    by_id = {id(old): new for old, new in replacements.items()}
    for module in list(_sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])


def _classes_of(functions):
    """The classes of torch.nn.Module, of all that exist, with a method that reaches one of the functions."""
    ids, reaches = {id(function) for function in functions}, {}

    def visit(function):
        if function not in reaches:
            reaches[function] = False
            values = [space.get(name) for space, name in _named_by(function)]
            is_named = any(id(value) in ids for value in values)
            reaches[function] = is_named or any([visit(value) for value in values if _is_plain(value, function)])
        return reaches[function]

    def calls_one(cls):
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        return any(isinstance(method, _types.FunctionType) and visit(method) for _, method in _methods_of(members))

    found, left = {}, [_torch.nn.Module]
    while left:
        cls = left.pop()
        if cls not in found:
            left.extend(cls.__subclasses__())
            found[cls] = not cls.__module__.startswith("torch.") and calls_one(cls)
    return [cls for cls in found if found[cls]]


class Patch:
    """What patch returns; a context manager. Its repr has a line for each function, with options and calls.

    Attributes:
        calls: how many calls went through all its functions, whatever model they were of. Those that activation checkpointing
            repeats count. Compiled code does not count its calls: if there is any, reading this gives a UserWarning.
        traced: how many calls torch.compile (or torch.export) has traced. Above 0, what is patched is in compiled code.
        classes: the names of the classes whose models are patched: all that exist, and have a method that calls one of its
            functions. () after undo, but for functions that another Patch has as well.
    """

    def __init__(self, rotaries):
        if not isinstance(rotaries, list) or not all(isinstance(rotary, _Rotary) for rotary in rotaries):
            message = (
                "rotaries must be what patch() finds, not %s: call trope.transformers.patch(model), which makes a Patch"
            )
            raise Error(message % _shown(rotaries), "rotaries")
        self._rotaries = [(rotary, rotary.calls) for rotary in rotaries]
        self._ended = None

    def _counts(self):
        """(calls, traced calls) of each function. Code that was compiled for an earlier Patch of it runs in this one, too."""
        return self._ended or [(rotary.calls - before, rotary.traced) for rotary, before in self._rotaries]

    @property
    def calls(self):
        if self.traced:
            message = "calls counts no calls of compiled code, and torch.compile has traced %d calls (traced)"
            _warnings.warn(message % self.traced, stacklevel=2)
        return sum(calls for calls, _ in self._counts())

    @property
    def traced(self):
        return sum(traced for _, traced in self._counts())

    @property
    def classes(self):
        replacements = {rotary.replacement for rotary, _ in self._rotaries if rotary.replacement in _patched}
        return tuple(sorted(_name_of(cls) for cls in _classes_of(replacements)))

    def undo(self):
        """Gives modules back what they had, as soon as no other Patch has it. A second time it does nothing."""
        with _lock:
            if self._ended:
                return
            self._ended, free = self._counts(), {}
            for rotary, _ in self._rotaries:
                rotary.handles -= 1
                if not rotary.handles:
                    del _patched[rotary.original], _patched[rotary.replacement]
                    free[rotary.replacement] = rotary.original
            _rebind(free)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.undo()

    def __repr__(self):
        lines = []
        for (rotary, _), (calls, traced) in zip(self._rotaries, self._counts()):
            compiled = ", and those of compiled code, which are not counted (%d traced)" % traced if traced else ""
            lines.append("%s: %s: %d calls%s" % (rotary.where, rotary.recipe, calls, compiled))
        return "\n".join(lines)


def _refuse_model(model):
    """Says what to pass instead of something that is no model."""
    what = "a torch.nn.Module of transformers"
    if isinstance(model, type):
        hint = "and not the class %s: make one of it" % model.__name__
    elif hasattr(model, "model_type"):
        hint = "and not a config: pass the model, which transformers.AutoModel.from_config(config) makes of it"
    elif isinstance(model, str):
        hint = "and not the text %s: pass the model that it names, as AutoModel.from_pretrained loads it" % _shown(model)
    else:
        hint = "not %s" % _shown(model)
    raise Error("model must be %s, %s" % (what, hint), "model")


def patch(model):
    """Replaces the rotary functions of a model, and with it of all models in this process whose classes call them.

    The functions are replaced in all modules of Python that have them; classes of the result names these classes. The model
    itself is not changed, so it can be copied and pickled. What methods take from elsewhere than a module (default arguments, closures, dicts) stays eager: count the calls.

    What is patched already stays so until the last Patch of it is undone, in whatever order. A module that is imported
    later and takes a replacement by value gets the original with the others.

    Arguments:
        model: a torch.nn.Module of transformers, on any device (meta, too). It is not changed.
    Return:
        a Patch
    Raises:
        trope.Error: names all functions that no options of rotate have the bits of, or says that the model calls none; then
            nothing has been patched. In a call: dtypes, layouts or shapes that the function was not tried with.
    """
    if not isinstance(model, _torch.nn.Module):
        _refuse_model(model)
    with _lock:
        rotaries = list(_Search(model).found.values())
        _rebind({rotary.original: rotary.replacement for rotary in rotaries})
        for rotary in rotaries:
            _patched[rotary.original] = _patched[rotary.replacement] = rotary
            rotary.handles += 1
    _logger.info("patched %s", "; ".join("%s (%s)" % (rotary.where, rotary.recipe) for rotary in rotaries))
    return Patch(rotaries)


# ---- The command line ----


def _make_model(path):
    """The model of a config, without memory for its weights, and nothing downloaded."""
    _os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    with _torch.device("meta"):
        if not config.architectures:
            return transformers.AutoModel.from_config(config)
        cls = getattr(transformers, config.architectures[0], None)
        if cls is None:
            raise Error("transformers %s has no %s" % (transformers.__version__, config.architectures[0]), "architectures")
        return cls(config)


def main(arguments=None):
    """What trope.transformers.patch does to the model of a config, a line a function; or why nothing, and exit status 1."""
    parser = _argparse.ArgumentParser(prog="python -m trope.transformers", description=main.__doc__)
    parser.add_argument("config", help="a config.json, or its folder")
    path = parser.parse_args(arguments).config
    if not _os.path.exists(path):
        parser.error("there is no %s" % path)
    try:
        rotaries = _Search(_make_model(path)).found.values()
    except Exception as error:
        print("%s: %s" % (path, error), file=_sys.stderr)
        return 1
    for rotary in rotaries:
        print("%s: %s" % (rotary.where, rotary.recipe))
    return 0


if __name__ == "__main__":
    _sys.exit(main())
