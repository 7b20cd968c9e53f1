"""Replaces the rotary functions of Hugging Face transformers by trope.torch.rotate: one call for q and k, eager's bits.

    handle = trope.transformers.patch(model)       # all models of its classes, until handle.undo(); a context manager
    handle = trope.transformers.patch(model, fuse_norm=True)  # with the RMS norms of q and k
    handle = trope.transformers.patch(model, compiled=True)   # in compiled code, too
    python -m trope.transformers CONFIG            # what patch does to the model of a config.json, or why it is refused

patch(model) replaces functions of modules, so it changes all models of the same classes in this process: handle.classes
names these classes. The methods of a model call a function of their module, in most models
apply_rotary_pos_emb(q, k, cos, sin). There is no list of models. Instead, patch asks each function which options of rotate
give the same bits (_recipes.py explains how). If there are none, patch refuses the function by name before it changes
anything. It also refuses a model that calls no such function.

Compiled code (torch.compile, torch.export) keeps the model's own rotations, because Inductor fuses them with the operations
around them, which is faster. It calls trope for rotations that compute norms and, with patch(model, compiled=True), for
all. handle.left_to_compiler counts the others. The bits are eager's where it calls trope.

A patch leaves no trace in a model. Copies and pickles of the model are those of an ordinary model, and a copy is patched as
long as its class is. Patching a single model is not possible: its modules would need methods of their own, with copies of
the module's globals. But methods of transformers are wrapped by decorators, are called through super(), and are replaced in
instances by accelerate and by kernels. Copied globals would also miss later replacements by other libraries.

Backward rounds according to the options. The gradient has eager's bits if q, k and the tables have one dtype. It also has
them if q and k are cast to float32 first. Some models multiply 16-bit q by float32 tables without a cast, or cast it for
each of the two products. There, eager rounds both terms of a gradient to 16 bits and adds them in 16 bits. Here their sum
is rounded once. docs/python.md lists these models. The gradient has the memory layout of the upstream gradient (with a
norm: of q and k), while eager's gradient is mostly in the order of its shape. PyTorch may therefore sum over it in another
order, for example for the weight of a norm in Gemma 4.

patch(model, fuse_norm=True) also lets the rotation compute the RMS norms of q and k, in one pass (_fused_norms.py explains
how). Such a norm has eager's rounding, but trope adds the squares in another order than PyTorch, so its rstd may differ in
the last bits of float32. A rare element of q and k then differs by one rounding. docs/python.md has the bounds of logits
and gradients, and lists which models are fused.

Most functions return float32 for 16-bit q and float32 tables, which is what they receive under torch.autocast. There, the
replacement rounds the result to the dtype of q at the store, which takes half of the memory. Matrix products and attention
round their inputs to the same bits. Code that reads float32 under autocast sees the rounding: a norm after the rotation
(HunYuan, nanochat, TimesFM 2.5).

Products with complex tables (Llama 4, DeepSeek V2) have the bits of PyTorch's vectorized loops. On CUDA, and for rows with
few pairs, PyTorch fuses one product of each sum, which changes the last bit of float32.
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
from ._fused_norms import Fusion as _Fusion
from ._fused_norms import norms_of as _norms_of
from ._recipes import Rotary as _Rotary
from ._values import flag as _flag

__all__ = ["Patch", "patch"]

_logger = _logging.getLogger("trope.transformers")
_NAME = _re.compile(r"apply_\w*(rotary|rope)")  # matches the names of functions and methods that rotate


# ---- The functions that a model calls ----


_HELD = "%s.%s is a rotary function: only rotary functions in Python modules can be patched"


def _names_in(code):
    """Yields the global names that a function uses, including those in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, _types.CodeType):
            yield from _names_in(constant)


def _named_by(function):
    """Returns all (globals of a module, name) that a function may look up: in its own module, or in one that it names."""
    names, own = list(dict.fromkeys(_names_in(function.__code__))), function.__globals__
    modules = [vars(own[name]) for name in names if isinstance(own.get(name), _types.ModuleType)]
    return [(space, name) for space in (own, *modules) for name in names]


def _is_plain(value, function):
    """Whether a value is a function of the same module as `function`."""
    return isinstance(value, _types.FunctionType) and value.__module__ == function.__module__


def _methods_of(members):
    """Returns (name, member without decorators) of the members of a class."""
    return [(name, _inspect.unwrap(getattr(member, "__func__", member))) for name, member in members.items()]


def _name_of(thing):
    return "%s.%s" % (thing.__module__, thing.__qualname__)


class _Search:
    """found: {function: _Rotary} of the functions that a model's methods name, directly or through other functions."""

    def __init__(self, model):
        self.found, self._refused, self._reaches = {}, {}, {}
        for cls in dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__):
            if not cls.__module__.startswith(("torch.", "builtins")):
                self._visit_class(cls)
        for module in model.modules():
            for name, value in (*vars(module).items(), *module._modules.items()):
                if self._is_rotary(value):
                    raise Error(_HELD % (_name_of(type(module)), name), "model")
        if self._refused:
            hint = "" if not self.found else " (a part of the model that does not use it can be patched: patch(model.part))"
            raise Error("; ".join("%s%s" % each for each in self._refused.items()) + hint, "model")
        if not self.found:
            raise Error("%s calls no rotary function: there is nothing to patch" % _name_of(type(model)), "model")

    def _is_rotary(self, value):
        """Whether a value is a rotary function: one that is no method of a class, or one of the package kernels."""
        if isinstance(value, _types.FunctionType):
            return "." not in value.__qualname__ and _NAME.search(value.__qualname__)
        return getattr(value, "kernel_layer_name", "") == "rotary_pos_emb"

    def _visit_class(self, cls):
        for name, member in vars(cls).items():
            if self._is_rotary(getattr(member, "__func__", member)):
                raise Error(_HELD % (_name_of(cls), name), "model")
        for name, method in _methods_of(vars(cls)):
            if isinstance(method, _types.FunctionType) and not self.visit(method) and _NAME.search(name):
                self._refused["%s.%s" % (_name_of(cls), name)] = " is a method that rotates by itself"

    def visit(self, function):
        """Whether a function calls a rotary function, directly or through others."""
        if function not in self._reaches:
            self._reaches[function] = False
            looked_up = [self._look_up(function, space, name) for space, name in _named_by(function)]
            self._reaches[function] = any(looked_up)
        return self._reaches[function]

    def _look_up(self, function, space, name):
        """Whether `name` in `space`, the globals of a module, is a rotary function or calls one."""
        value = space.get(name)
        is_plain = isinstance(value, _types.FunctionType)
        if callable(value) and (_NAME.search(name) or _NAME.search(getattr(value, "__name__", ""))):
            where = _name_of(value) if is_plain else "%s.%s" % (space["__name__"], name)
            if space is not getattr(_sys.modules.get(space["__name__"]), "__dict__", None):
                message = "%s is called by a module that sys.modules does not have (%s): it cannot be replaced there"
                raise Error(message % (where, space["__name__"]), "model")
            return self._ask(value, where)
        return _is_plain(value, function) and self.visit(value)

    def _ask(self, function, where):
        """Looks for a recipe of a rotary function, and refuses it if it has none. A function that calls others that have
        one is accepted too (Gemma 4's for images, which rotates a head part by part)."""
        if function in _patched:
            rotary = _patched[function]
            self.found[rotary.original] = rotary
        elif function not in self.found and where not in self._refused:
            try:
                self.found[function] = _Rotary(function, where)
            except Error as error:
                if not (isinstance(function, _types.FunctionType) and self.visit(function)):
                    self._refused[where] = ": %s" % error
        return True


# ---- Norms that rotations compute ----


def _forward_of(cls):
    """Returns the forward that a class itself defines, without decorators, or None."""
    return _inspect.unwrap(vars(cls)["forward"]) if "forward" in vars(cls) else None


def _find_fusions(model, search):
    """Returns the _Fusion of each class of attentions in the model that normalises q or k."""
    found, refused = {}, {}
    for place, module in model.named_modules():
        cls = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
        function = _forward_of(cls)
        if not isinstance(function, _types.FunctionType) or function in refused:
            continue
        norms = [name for name in _norms_of(function) if isinstance(getattr(module, name, None), _torch.nn.Module)]
        if not norms or not search.visit(function):
            continue
        try:
            if function not in found:
                found[function] = _start_fusion(cls, function, search)
            found[function].add(module, norms, place)
        except Error as error:
            refused[function] = error
    for function, fusion in found.items():
        try:
            fusion.read_forward()
        except Error as error:
            refused.setdefault(function, error)
    if refused:
        raise Error("fuse_norm: %s" % "; ".join(map(str, refused.values())), "fuse_norm")
    if not found:
        message = "fuse_norm: no attention of %s normalises q and k before it rotates them"
        raise Error(message % _name_of(type(model)), "fuse_norm")
    return found


def _start_fusion(cls, function, search):
    """Returns a _Fusion without norms, which are added later."""
    where = _name_of(cls)
    named = {name: space.get(name) for space, name in _named_by(function) if callable(space.get(name))}
    rotaries = {name: _patched.get(value) or search.found.get(value) for name, value in named.items()}
    rotaries = {name: rotary for name, rotary in rotaries.items() if rotary is not None}
    if not rotaries:
        raise Error("%s does not rotate in its forward, but in another function" % where, "fuse_norm")
    for rotary in rotaries.values():
        if not rotary.takes_norms:
            raise Error("%s: %s does not rotate all tokens, or uses other rows for k" % (where, rotary.where), "fuse_norm")
    if [each for each in _all_classes() if _forward_of(each) is function] != [cls]:
        raise Error("%s.forward is also a method of other classes" % where, "fuse_norm")
    known = _fusions[function].kinds if function in _fusions else {}
    return _Fusion(cls, where, function, rotaries, dict(known))


# ---- Patching ----

_patched = {}  # the _Rotary of each original and of each replacement
_fusions = {}  # the _Fusion of each function of a forward
_lock = _threading.Lock()


def _rebind(replacements):
    """Replaces values in all modules of Python, {old: new}: models import each other's functions by value."""
    by_id = {id(old): new for old, new in replacements.items()}
    for module in list(_sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in by_id:
                setattr(module, name, by_id[id(value)])


def _all_classes():
    """Returns the subclasses of torch.nn.Module that exist, and torch.nn.Module."""
    found, left = {}, [_torch.nn.Module]
    while left:
        cls = left.pop()
        if cls not in found:
            found[cls] = True
            left.extend(cls.__subclasses__())
    return list(found)


def _classes_of(functions):
    """Returns the existing classes of torch.nn.Module with a method that reaches one of the functions."""
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

    return [cls for cls in _all_classes() if not cls.__module__.startswith("torch.") and calls_one(cls)]


def _install(fusions):
    """Installs the fusions that are not installed yet. Returns the installed _Fusion of each."""
    installed_fusions = []
    for fusion in fusions:
        installed = _fusions.setdefault(fusion.function, fusion)
        if installed.handles and installed.kinds != fusion.kinds:
            installed.remove()
            installed.kinds = fusion.kinds
            installed.install()
        elif not installed.handles:
            installed.install()
        installed.handles += 1
        installed_fusions.append(installed)
    return installed_fusions


def _release(fusions):
    for fusion in fusions:
        fusion.handles -= 1
        if not fusion.handles:
            _fusions.pop(fusion.function).remove()


class Patch:
    """The result of patch, which is also a context manager. Its repr has a line for each function, with options and calls.

    Attributes:
        calls: the number of calls of all its functions, by any model. Repetitions by activation checkpointing count.
            Compiled code does not count its calls: if there is any, reading this gives a UserWarning.
        traced: the number of calls that torch.compile (or torch.export) has traced.
        left_to_compiler: how many of them it has compiled as they come, without trope (see the argument compiled of patch).
        classes: the names of all existing classes whose models are patched, because they have a method that calls one of
            its functions. () after undo, except for functions that another Patch has replaced too.
        fused: with fuse_norm, the number of norms of q and k that rotations have computed. It counts like calls. The repr
            also has the number of norms that the modules have computed themselves, for example in layers that do not
            rotate.
    """

    def __init__(self, rotaries, fusions=(), compiled=False):
        for name, given, kind in (("rotaries", rotaries, _Rotary), ("fusions", fusions, _Fusion)):
            if not isinstance(given, (list, tuple)) or not all(isinstance(each, kind) for each in given):
                message = "%s must be found by patch(), not %s: call trope.transformers.patch(model), which makes a Patch"
                raise Error(message % (name, _shown(given)), name)
        _flag(compiled, "compiled")
        self._rotaries = [(rotary, rotary.calls) for rotary in rotaries]
        self._fusions = [(fusion, fusion.fused, fusion.own) for fusion in fusions]
        self._ended, self._norms_ended, self._compiled = None, None, compiled

    def _counts(self):
        """Returns (calls, traced calls, those left to the compiler) of each function. Code compiled for an earlier Patch
        also runs in this one."""
        return self._ended or [(rotary.calls - before, rotary.traced, rotary.left) for rotary, before in self._rotaries]

    def _norms(self):
        """Returns (norms computed by rotations, norms computed by modules) of each class of attentions."""
        return self._norms_ended or [(each.fused - fused, each.own - own) for each, fused, own in self._fusions]

    def _warn(self, name):
        if self.traced:
            message = (
                "%s does not count the calls of compiled code, and torch.compile has traced %d calls, %d of them without"
                " trope (see traced and left_to_compiler)"
            )
            _warnings.warn(message % (name, self.traced, self.left_to_compiler), stacklevel=3)

    @property
    def fused(self):
        self._warn("fused")
        return sum(fused for fused, _ in self._norms())

    @property
    def calls(self):
        self._warn("calls")
        return sum(calls for calls, _, _ in self._counts())

    @property
    def traced(self):
        return sum(traced for _, traced, _ in self._counts())

    @property
    def left_to_compiler(self):
        return sum(left for _, _, left in self._counts())

    @property
    def classes(self):
        replacements = {rotary.replacement for rotary, _ in self._rotaries if rotary.replacement in _patched}
        return tuple(sorted(_name_of(cls) for cls in _classes_of(replacements)))

    def undo(self):
        """Restores the functions that no other Patch has replaced. A second call does nothing."""
        with _lock:
            if self._ended:
                return
            self._ended, self._norms_ended, free = self._counts(), self._norms(), {}
            _release([fusion for fusion, _, _ in self._fusions])
            for rotary, _ in self._rotaries:
                rotary.add_handle(-1, self._compiled)
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
        for (rotary, _), (calls, traced, left) in zip(self._rotaries, self._counts()):
            without = ", %d of them left to the compiler" % left if left else ""
            compiled = ", besides uncounted calls of compiled code (%d traced%s)" % (traced, without) if traced else ""
            lines.append("%s: %s: %d calls%s" % (rotary.where, rotary.recipe, calls, compiled))
        for (fusion, _, _), (fused, own) in zip(self._fusions, self._norms()):
            lines.append("%s: %d norms fused, %d computed by their modules" % (fusion, fused, own))
        return "\n".join(lines)


def _refuse_model(model):
    """Raises an error that says what to pass instead of an object that is no model."""
    what = "a torch.nn.Module of transformers"
    if isinstance(model, type):
        hint = "not the class %s: pass an instance" % model.__name__
    elif hasattr(model, "model_type"):
        hint = "not a config: pass the model that transformers.AutoModel.from_config(config) makes"
    elif isinstance(model, str):
        hint = "not the text %s: pass the model that AutoModel.from_pretrained loads" % _shown(model)
    else:
        hint = "not %s" % _shown(model)
    raise Error("model must be %s, %s" % (what, hint), "model")


def patch(model, fuse_norm=False, compiled=False):
    """Replaces the rotary functions of a model, and thereby of all models in this process whose classes call them.

    The functions are replaced in all modules of Python that have them. The attribute classes of the result names the
    affected classes. The model itself is not changed, so it can be copied and pickled. Functions that methods do not look
    up in a module (default arguments, closures, dicts) stay eager: compare the number of calls.

    A function stays patched until the last Patch of it is undone, in any order. If a module that is imported later takes a
    replacement by value, undo gives it the original like the others.

    Arguments:
        model: a torch.nn.Module of transformers, on any device, including meta. It is not changed.
        fuse_norm: True: the rotation also computes the RMS norms of q and k that come before or after it, in all attentions
            of the model. A module computes its norm itself if it has other settings than all norms that patch was given.
            False: norms are not touched.
        compiled: True: code of torch.compile and torch.export calls trope too, with the bits of eager calls. False: such
            code keeps the model's own rotations, which Inductor fuses with the operations around them. That is faster.
            Rotations that compute norms (fuse_norm) call trope either way. While any Patch of a function has True, it
            counts for all models.
    Return:
        a Patch
    Raises:
        trope.Error: names all functions whose bits no options of rotate give, or says that the model calls none. Nothing
            has been patched then. With fuse_norm, it names all attentions whose norms cannot be fused. A call raises it for
            dtypes, layouts or shapes that the function was not tried with, and for hooks or an own forward of a fused norm.
    """
    if not isinstance(model, _torch.nn.Module):
        _refuse_model(model)
    _flag(fuse_norm, "fuse_norm")
    _flag(compiled, "compiled")
    with _lock:
        search = _Search(model)
        rotaries = list(search.found.values())
        fusions = _find_fusions(model, search) if fuse_norm else {}
        _rebind({rotary.original: rotary.replacement for rotary in rotaries})
        for rotary in rotaries:
            _patched[rotary.original] = _patched[rotary.replacement] = rotary
            rotary.add_handle(1, compiled)
        installed_fusions = _install(fusions.values())
    what = ["%s (%s)" % (rotary.where, rotary.recipe) for rotary in rotaries] + [str(fusion) for fusion in installed_fusions]
    _logger.info("patched %s", "; ".join(what))
    return Patch(rotaries, installed_fusions, compiled)


# ---- The command line ----


def _make_model(path):
    """Builds the model of a config, without memory for its weights and without downloads."""
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
    """Prints what trope.transformers.patch does to the model of a config, one line for each function. If patch refuses the
    model, it prints why, and the exit status is 1."""
    parser = _argparse.ArgumentParser(prog="python -m trope.transformers", description=main.__doc__)
    parser.add_argument("config", help="a config.json, or its folder")
    parser.add_argument("--fuse-norm", action="store_true", help="also fuse the norms of q and k into the rotations")
    given = parser.parse_args(arguments)
    path = given.config
    if not _os.path.exists(path):
        parser.error("there is no %s" % path)
    try:
        model = _make_model(path)
        search = _Search(model)
        fusions = _find_fusions(model, search) if given.fuse_norm else {}
    except Exception as error:
        print("%s: %s" % (path, error), file=_sys.stderr)
        return 1
    for rotary in search.found.values():
        print("%s: %s" % (rotary.where, rotary.recipe))
    for fusion in fusions.values():
        print(fusion)
    return 0


if __name__ == "__main__":
    from .__main__ import run_program

    _sys.exit(run_program(main))
