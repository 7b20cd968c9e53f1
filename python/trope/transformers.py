"""The rotary functions of Hugging Face transformers, through trope.torch.rotate: one call for q and k, with eager's bits.

    handle = trope.transformers.patch(model)       # until handle.undo(), or as a context manager
    python -m trope.transformers CONFIG            # what that does to the model of a config.json, or why it is refused

The methods of a model call a function of its module, mostly apply_rotary_pos_emb(q, k, cos, sin). Which of the many bodies
such a function has is asked of itself: patch calls it with small random tensors, on the CPU, and looks for the options of
rotate that give the same bits, shapes and dtypes, and in float32 the same gradient. There is no list of models. A function
for which there are none is refused by name before anything is changed, and so is a model that calls none.

Backward rounds as these options do. The gradient has eager's bits where q, k and tables have one dtype, and where q and k
are cast to float32 first. Where 16-bit q is multiplied by float32 tables as it is, or cast for each of the two products
(OLMo 2, Ernie 4.5, ModernBERT, DeepSeek V4), eager rounds both terms of a gradient to 16 bits and adds them in 16 bits;
here their sum is rounded, once. A gradient lies in memory as the upstream one, eager's mostly in the order of its shape:
what PyTorch sums up over it, such as the gradient of a norm's weight in Gemma 4, may come in another order.

Most functions give float32 for 16-bit q and float32 tables, which is what they get under torch.autocast. There the result
is rounded to the dtype of q at the store, in half of the memory. Matrix products and attention round what they read to the
same bits. What reads float32 under autocast sees the rounding: a norm behind the rotation (HunYuan, nanochat, TimesFM 2.5).

Products with complex tables (Llama 4, DeepSeek V2) have the bits of PyTorch's vectorized loops. On CUDA, and where a row
has few pairs, PyTorch fuses a product of each sum, which moves the last bit of float32.
"""

import argparse as _argparse
import dataclasses as _dataclasses
import functools as _functools
import inspect as _inspect
import itertools as _itertools
import logging as _logging
import os as _os
import re as _re
import sys as _sys
import threading as _threading
import types as _types

import torch as _torch

from . import torch as _rotations
from ._dropin import check_tables as _check_tables
from ._dropin import refuse_gradient as _refuse_gradient
from ._dropin import refuse_inference_tensor as _refuse_inference_tensor
from ._dropin import rename as _rename
from ._dropin import shown as _shown
from ._dropin import tensor as _check_tensor
from ._errors import Error
from .torch._launch import refuse_transforms as _refuse_transforms

__all__ = ["Patch", "patch"]

_logger = _logging.getLogger("trope.transformers")
_compiles = _torch.compiler.is_compiling
_NAME = _re.compile(r"apply_\w*(rotary|rope)")  # of functions and methods that rotate
_TENSORS = ("q", "k"), ("xq", "xk"), ("query", "key"), ("x",), ("tensor",)  # their parameters
_TABLES = ("cos", "sin"), ("freqs_cis",), ("freqs_ci",)  # the last two are complex
_OPTIONS = {"unsqueeze_dim", "position_ids"}  # parameters that have a default, where there are any
_TOKENS = {"bhsd": 2, "bshd": 1, "thd": 0}  # the dimension of a layout


# ---- What a function does, in options of rotate ----


@_dataclasses.dataclass(eq=False)
class _Recipe:
    """
    options: pairing, pairing_out, inverse and angle_columns of rotate
    first_half: whether only the first half of a table's columns is read
    trailing: whether the last elements of a head turn, else the first
    whole: whether all must turn
    forms: (dimensions of q, of the tables, unsqueeze_dim): (layout, whether tables are [rows, 1, columns])
    roundings: (dtype of q, of the tables): (dtype of the result, which q and k are cast to first, rounding)
    """

    options: dict
    first_half: bool
    trailing: bool
    whole: bool
    forms: dict
    roundings: dict

    def rotate(self, tensors, tables, unsqueeze_dim, names=("q", "k"), table_names=("cos", "sin")):
        """A list or tuple of new tensors. The names are those of the tensors and tables."""
        q, table = tensors[0], tables[0]
        form, dtypes = (q.dim(), table.dim(), unsqueeze_dim), (q.dtype, table.dtype)
        if form not in self.forms or dtypes not in self.roundings:
            message = "not tried before patching: %s %s %s with tables %s %s and unsqueeze_dim %s"
            raise Error(
                message % (names[0], q.dtype, list(q.shape), table.dtype, list(table.shape), unsqueeze_dim), names[0]
            )
        layout, has_heads = self.forms[form]
        dtype, rounding = self.roundings[dtypes]
        cos, sin = self._columns(tables, has_heads, q, names[0], table_names)
        rows, width = cos.shape[-2], self.width(table.shape[-1])
        if width < 2 or width % 2:
            message = "%s has %d columns, for %d elements of a head, which must be even, and 2 or more"
            raise Error(message % (table_names[0], table.shape[-1], width), table_names[0])
        for x, name in zip(tensors, names):
            if x.dtype != q.dtype or x.device != q.device or x.dim() != q.dim():
                given = name, x.dtype, list(x.shape), x.device, names[0], q.dtype, list(q.shape), q.device
                raise Error("%s is %s %s on %s, and %s %s %s on %s" % given, name)
            shape = x.shape
            if shape[_TOKENS[layout]] != rows or shape[-1] < width or (self.whole and shape[-1] != width):
                message = "%s is of %d rows for %d elements of a head, and %s is %s (%s)"
                to_blame = table_names[0] if x is q else name
                raise Error(message % (table_names[0], rows, width, name, list(shape), layout), to_blame)
        if dtype != q.dtype:
            if _torch.is_autocast_enabled(q.device.type) and _torch.get_autocast_dtype(q.device.type) == q.dtype:
                rounding = "native_f32"
            else:
                tensors = [x.to(dtype) for x in tensors]
        offset = tuple([x.shape[-1] - width for x in tensors]) if self.trailing else 0
        rotated = _rotations.rotate(
            *tensors, layout=layout, cos=cos, sin=sin, rounding=rounding, rotary_dim=width, rotary_offset=offset,
            **self.options
        )  # fmt: skip
        return rotated if len(tensors) > 1 else (rotated,)

    def width(self, columns):
        """How many elements of a head turn by tables of so many columns."""
        return columns * (2 if self.options["angle_columns"] == "pair" and not self.first_half else 1)

    def _columns(self, tables, has_heads, q, q_name, names):
        """The columns of cos and sin that are read, with the same strides."""
        for table, name in zip(tables, names):
            _refuse_gradient(table, name)
        if len(tables) == 1:
            if tables[0].device != q.device:
                raise Error("%s is on %s, and %s on %s" % (names[0], tables[0].device, q_name, q.device), names[0])
            tables = _torch.view_as_real(tables[0].resolve_conj()).unbind(-1)
        else:
            _check_tables(*tables, q, names, q_name)
        cos, sin = tables
        if has_heads:
            if cos.shape[1] != 1:
                raise Error("%s has shape %s, and must have 1 in dimension 1" % (names[0], list(cos.shape)), names[0])
            cos, sin = cos.squeeze(1), sin.squeeze(1)
        if self.first_half:
            pairs = cos.shape[-1] // 2
            cos, sin = cos[..., :pairs], sin[..., :pairs]
        return _rotations._same_strides(cos, sin)

    def __str__(self):
        options = self.options
        words = [
            " to ".join(dict.fromkeys((options["pairing"], options["pairing_out"]))) + ", inverse" * options["inverse"],
            "first half of the columns" if self.first_half else "columns %s" % options["angle_columns"],
            "whole heads" if self.whole else "trailing window" if self.trailing else "leading window",
            " ".join(dict.fromkeys(layout for layout, _ in self.forms.values())),
        ]
        for (q, table), (dtype, rounding) in self.roundings.items():
            if q == _torch.bfloat16 and (table == q or table.itemsize > 2):
                words.append("%s by %s tables" % (rounding if dtype == q else "float32", str(table).replace("torch.", "")))
        return "; ".join((", ".join(words[:4]), "bfloat16 " + ", ".join(words[4:])))


def _same(results, wanted):
    return len(results) == len(wanted) and all(
        isinstance(x, _torch.Tensor) and isinstance(y, _torch.Tensor) and x.dtype == y.dtype and _torch.equal(x, y)
        for x, y in zip(results, wanted)
    )


def _gives(recipe, call, wanted):
    try:
        return _same(recipe.rotate(*call), wanted)
    except Error:
        return False


class _Rotary:
    """A rotary function, the recipe for it, and what replaces it.

    original, where: the function and its name
    without_k: what it gives if k is None: "q", "q, None", or "" if it raises
    calls, handles: how often what replaces it was called, and how many of Patch want it to be
    """

    head_dim = 32  # of random tensors: PyTorch's loops are vectorized for all of a row, also of 16 complex numbers

    def __init__(self, function, where):
        self.original, self.where, self.calls, self.handles = function, where, 0, 0
        self._read_signature()
        with _torch.inference_mode(False), _torch.no_grad(), _torch.autocast("cpu", enabled=False):
            self.recipe = self.form = None
            self._find_recipe()
            self._find_roundings()
            self._check_gradient()
            self._check_shapes()
            self.without_k = self._ask_without_k()
        self.replacement = self._replace()

    def _read_signature(self):
        function = self.original
        try:
            self.signature = _inspect.signature(function.forward if isinstance(function, _torch.nn.Module) else function)
        except (TypeError, ValueError):
            raise Error("its parameters cannot be read: it is a %s" % type(function).__name__) from None
        parameters = self.signature.parameters
        self.names = tuple(parameters)
        self.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self.optional = _OPTIONS.intersection(self.defaults)
        for self.tensors, self.tables in _itertools.product(_TENSORS, _TABLES):
            if {*self.tensors, *self.tables} == set(self.names) - self.optional:
                self.renamed = {"tensors[%d]" % i: name for i, name in enumerate(self.tensors)}
                if len(self.tables) == 1:
                    self.renamed["cos"] = self.tables[0]
                return
        raise Error("its parameters are %s" % self.signature)

    # How it is called: with tables of so many columns, in a form (layout, tables, unsqueeze_dim).

    def _forms(self):
        unsqueeze_dims = (1, 2, -2, 0) if "unsqueeze_dim" in self.optional else (None,)
        return _itertools.product(_TOKENS, ("batch", "rows", "heads"), unsqueeze_dims)

    def _make(self, columns, form, dtype=_torch.float32, table_dtype=_torch.float32, tokens=(5, 5), rows=5):
        """Random q and k (or x), tables, and unsqueeze_dim."""
        layout, kind, unsqueeze_dim = form
        generator = _torch.Generator().manual_seed(7)

        def random(shape, last, dtype):
            return _torch.randn(*shape, last, generator=generator, dtype=_torch.float64, device="cpu").to(dtype)

        tensors = []
        for heads, n in zip((3, 2), tokens):
            shape = {"bhsd": (2, heads, n), "bshd": (2, n, heads), "thd": (n, heads)}[layout]
            tensors.append(random(shape, self.head_dim, dtype))
        shape = {"batch": (2, rows), "rows": (rows,), "heads": (rows, 1)}[kind]
        tables = [random(shape, columns, table_dtype) for _ in range(2)]
        if len(self.tables) == 1:
            tables = [_torch.complex(*tables)]
        return tensors[: len(self.tensors)], tables, unsqueeze_dim

    def _call(self, tensors, tables, unsqueeze_dim):
        """Its results, a tuple."""
        given = dict(zip(self.tensors + self.tables, (*tensors, *tables)))
        # A function with position_ids must not look at them.
        more = dict(unsqueeze_dim=unsqueeze_dim, position_ids=_torch.tensor([[3, 1, 4, 0, 2]], device="cpu"))
        results = self.original(**given, **{name: more[name] for name in self.optional})
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def _try(self, *call):
        """The same, () where it raises."""
        try:
            return self._call(*call)
        except Exception:
            return ()

    # What it gives.

    def _find_recipe(self):
        """All but the roundings of other dtypes. The first columns that are taken show whether heads may turn in part."""
        taken = False
        for self.columns in (self.head_dim // 4, self.head_dim // 2, self.head_dim):
            for form in self._forms():
                call = self._make(self.columns, form)
                wanted = self._try(*call)
                taken = taken or bool(wanted)
                key, value = (call[0][0].dim(), call[1][0].dim(), form[2]), (form[0], form[1] == "heads")
                for recipe in ([self.recipe] if self.recipe else self._candidates(call)) if wanted else ():
                    if _gives(_dataclasses.replace(recipe, forms={key: value}), call, wanted):
                        self.recipe, self.form = recipe, self.form or form
                        recipe.forms.setdefault(key, value)
                        break
            if self.recipe:
                return
        if not taken:
            raise Error("it takes no q and k of 3 or 4 dimensions with tables of 2 or 3")
        raise Error("no pairing, columns, direction and window of trope.torch.rotate have its bits in float32")

    def _candidates(self, call):
        pairings = ("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half"), ("half", "interleaved")
        columns = ("half", False), ("interleaved", False), ("pair", False), ("pair", True)
        roundings = {(_torch.float32, call[1][0].dtype): (_torch.float32, "native")}
        either = False, True
        for (pairing, out), (kind, first_half), inverse, trailing in _itertools.product(pairings, columns, either, either):
            options = dict(pairing=pairing, pairing_out=out, inverse=inverse, angle_columns=kind)
            recipe = _Recipe(options, first_half, trailing, False, {}, dict(roundings))
            recipe.whole = recipe.width(self.columns) == self.head_dim
            yield recipe

    def _find_roundings(self):
        """float64 may be missing, which some functions compute in float32."""
        narrow = _torch.bfloat16, _torch.float16, _torch.float32
        for dtype, table in (*_itertools.product(narrow, narrow), (_torch.float64, _torch.float64)):
            if table.itemsize == 2 and len(self.tables) == 1:
                continue
            call = self._make(self.columns, self.form, dtype, table)
            wanted, key = self._try(*call), (dtype, call[1][0].dtype)
            for rounding in ("native", "native_f32") if wanted else ():
                self.recipe.roundings[key] = wanted[0].dtype, rounding
                if _gives(self.recipe, call, wanted):
                    break
            else:
                self.recipe.roundings.pop(key, None)
                if wanted and dtype != _torch.float64:
                    raise Error("neither rounding native nor native_f32 has its bits for %s with tables of %s" % key)

    def _check_gradient(self):
        """Refuses what detaches, or has a backward of its own."""
        tensors, *rest = self._make(self.columns, self.form)
        gradients = []
        for function in (self._call, self.recipe.rotate):
            leaves = [x.clone().requires_grad_() for x in tensors]
            with _torch.enable_grad():
                results = function(leaves, *rest)
            if not all(y.requires_grad for y in results):
                raise Error("autograd does not go through it")
            gradients.append(_torch.autograd.grad(results, leaves, [y.detach().flip(0, -1) for y in results]))
        if not _same(*gradients):
            raise Error("its gradient is not the transpose of what it does")

    def _check_shapes(self):
        """Refuses what takes tables of other rows than tokens (first tokens that do not turn; q that is the last of k), and
        what does another thing if heads turn as a whole."""
        for q, k, rows in ((5, 5, 4), (4, 5, 5), (4, 4, 5)):
            if self._try(*self._make(self.columns, self.form, tokens=(q, k), rows=rows)):
                raise Error("it takes tables of %d rows for q of %d tokens" % (rows, q))
        if not self.recipe.whole:
            call = self._make(self.head_dim // self.recipe.width(1), self.form)
            if not _gives(self.recipe, call, self._try(*call)):
                raise Error("whole heads do not turn as a window does")

    def _ask_without_k(self):
        if len(self.tensors) == 1:
            return ""
        (q, _), *rest = self._make(self.columns, self.form)
        results = self._try([q, None], *rest)
        return ("q" if len(results) == 1 else "q, None") if _gives(self.recipe, ([q], *rest), results[:1]) else ""

    # What replaces it.

    def _replace(self):
        names, defaults = self.names, self.defaults

        @_functools.wraps(getattr(self.original, "forward", self.original))
        def rotary(*args, **kwargs):
            given = {**defaults, **dict(zip(names, args)), **kwargs}
            if len(given) != len(names) or len(args) > len(names):
                self.signature.bind(*args, **kwargs)  # raises what the original would
            if not _compiles():
                self.calls += 1
            return self._rotate(given)

        return rotary

    def _rotate(self, given):
        """The results of the replacement for {parameter: argument}."""
        try:
            _refuse_transforms()
            tensors, no_k = list(self.tensors), given[self.tensors[-1]] is None
            if no_k:
                if not self.without_k:
                    raise Error("%s must be a torch tensor, not None" % tensors[-1], tensors[-1])
                tensors.pop()
            for name in (*tensors, *self.tables):
                _check_tensor(given[name], name)
            unsqueeze_dim = given.get("unsqueeze_dim")
            if "unsqueeze_dim" in given and type(unsqueeze_dim) is not int:
                raise Error("unsqueeze_dim must be an integer, not %s" % _shown(unsqueeze_dim), "unsqueeze_dim")
            arrays, tables = [given[name] for name in tensors], [given[name] for name in self.tables]
            rotated = self.recipe.rotate(arrays, tables, unsqueeze_dim, tensors, self.tables)
        except Error as error:
            raise _rename(error, self.renamed) from None
        except RuntimeError as error:
            _refuse_inference_tensor(error, given)
            raise
        if no_k and self.without_k == "q, None":
            return rotated[0], None
        return rotated if len(rotated) > 1 else rotated[0]


# ---- What a model calls ----


_HELD = "%s.%s is a rotary function: only those that modules of Python have are patched"


def _names_in(code):
    """Global names that a function uses, also in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, _types.CodeType):
            yield from _names_in(constant)


def _name_of(thing):
    return "%s.%s" % (thing.__module__, thing.__qualname__)


class _Search:
    """found: {function: _Rotary} of those that a model's methods name, and those that functions of their modules name."""

    def __init__(self, model):
        self.found, self._reaches = {}, {}
        for cls in dict.fromkeys(cls for module in model.modules() for cls in type(module).__mro__):
            if not cls.__module__.startswith(("torch.", "builtins")):
                self._visit_class(cls)
        for module in model.modules():
            for name, value in (*vars(module).items(), *module._modules.items()):
                if self._is_held(value):
                    raise Error(_HELD % (_name_of(type(module)), name), "model")
        if not self.found:
            raise Error("%s calls no rotary function: there is nothing to patch" % _name_of(type(model)), "model")

    def _is_held(self, value):
        """A function that is no method of a class, or one of the package kernels."""
        if isinstance(value, _types.FunctionType):
            return "." not in value.__qualname__ and _NAME.search(value.__qualname__)
        return getattr(value, "kernel_layer_name", "") == "rotary_pos_emb"

    def _visit_class(self, cls):
        for name, member in vars(cls).items():
            function = getattr(member, "__func__", member)
            if self._is_held(function):
                raise Error(_HELD % (_name_of(cls), name), "model")
            method = _inspect.unwrap(function)
            if isinstance(method, _types.FunctionType) and not self._visit(method) and _NAME.search(name):
                raise Error("%s.%s is a method that rotates by itself" % (_name_of(cls), name), "model")

    def _visit(self, function):
        """Whether a function reaches one that is known."""
        if function not in self._reaches:
            self._reaches[function] = False
            names, own = list(dict.fromkeys(_names_in(function.__code__))), function.__globals__
            modules = [vars(own[name]) for name in names if isinstance(own.get(name), _types.ModuleType)]
            looked_up = [self._look_up(function, space, name) for space in (own, *modules) for name in names]
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
        return is_plain and value.__module__ == function.__module__ and self._visit(value)

    def _ask(self, function, where):
        """Whether it is known, or does its work by one that is (Gemma 4's for images, part by part of a head)."""
        if function in _patched:
            rotary = _patched[function]
            self.found[rotary.original] = rotary
        elif function not in self.found:
            try:
                self.found[function] = _Rotary(function, where)
            except Error as error:
                if not (isinstance(function, _types.FunctionType) and self._visit(function)):
                    raise Error("%s: %s" % (where, error), "model") from None
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


class Patch:
    """What patch returns; a context manager. Its repr has a line for each function, with options and calls.

    calls: how many went through all its functions, whatever model they were of. Compiled ones are not counted; those that
        activation checkpointing repeats are.
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
        return self._ended or [rotary.calls - before for rotary, before in self._rotaries]

    @property
    def calls(self):
        return sum(self._counts())

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
        counts = zip(self._rotaries, self._counts())
        return "\n".join("%s: %s: %d calls" % (rotary.where, rotary.recipe, calls) for (rotary, _), calls in counts)


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
    """Replaces the rotary functions that a model calls, in all modules of Python that have them, so for other models too.

    What methods take from elsewhere than a module (default arguments, closures, dicts) stays eager: count the calls.

    What is patched already stays so until the last Patch of it is undone, in whatever order. A module that is imported
    later and takes a replacement by value gets the original with the others.

    Arguments:
        model: a torch.nn.Module of transformers, on any device (meta, too). It is not changed.
    Return:
        a Patch
    Raises:
        trope.Error: names the function that no options of rotate have the bits of, or says that there is none; then nothing
            has been patched. In a call: dtypes, layouts or shapes that the function was not tried with.
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
