"""Norms of q and k that a rotation computes, for trope.transformers.patch(model, fuse_norm=True).

An attention of transformers calls self.q_norm(x), and passes the result to a rotary function. While it is fused, the code of
its forward calls a method instead of q_norm. This method normalises nothing. It returns a Deferred, which stands for the
norm of x. The replacement of the rotary function takes x and a trope.Norm from it. Views of a Deferred are Deferred. Any
other code that reads it gets the result of the module. An attention that does not rotate, or that changes q before the
rotation, therefore computes the same as without the fusion.

If the norm comes after the rotation (HunYuan, Llama 4), the rotary function returns a Turned, which stands for the
rotation. The method that replaces q_norm records the norm there. The first operation that reads q or k makes the call.

A Kind describes how a class of modules normalises. It is found like the recipe of a rotary function: the module gets small
random tensors, and its results must have the bits of a formula that trope.Norm has. patch tries every norm of the model in
this way, and notes the attributes that its forward reads. A rotation computes a norm only if the module has the same class
and the same values of these attributes as a module that was tried. Any other module computes its norm itself. So a call
notices models that were never given to patch, and attributes and methods that have been replaced since.
"""

import ast
import copy
import functools
import inspect
import itertools
import re
import textwrap
import threading
import types
from typing import NamedTuple

import torch

from ._errors import Error
from ._norms import Norm
from ._spec import DIMS
from .torch._norm_modules import refuse_added_code

_compiles = torch.compiler.is_compiling
_NAME = re.compile(r"(q|k|qk|query|key|q_b|kv)_?(layer_?)?norm")  # names of modules that normalise rotated tensors
_PREFIX = "_trope_fused_"


# ---- How a module normalises ----


class Kind(NamedTuple):
    """How a class of modules normalises.

    cls, has_weight: the class of the modules, and whether they have a weight
    rounding, plus_one: the arguments of trope.Norm
    eps: the name of the attribute with eps
    mixes: whether a module with a float32 weight gives 16-bit results for 16-bit x
    tried: the settings of the modules that normalise like this (see _read_settings)
    """

    cls: type
    has_weight: bool
    rounding: str
    plus_one: bool
    eps: str
    mixes: bool = False
    tried: tuple = ()

    def is_of(self, module):
        """Whether a module normalises like this, because it has the settings of a module that was tried."""
        return type(module) is self.cls and any([_has_settings(module, settings) for settings in self.tried])

    def fits(self, module, x):
        """Whether trope.Norm gives the module's result for x in the dtype of x. Modules normalise float64 in float32."""
        if not self.is_of(module) or x.dtype == torch.float64:
            return False
        return (
            not self.has_weight or module.weight.dtype == x.dtype or (self.mixes and module.weight.dtype == torch.float32)
        )

    def norm(self, module, scope, order):
        """Returns the trope.Norm of a module."""
        weight, rounding = (module.weight, self.rounding) if self.has_weight else (None, None)
        eps = getattr(module, self.eps)
        return Norm(weight, eps=eps, plus_one=self.plus_one, scope=scope, order=order, rounding=rounding)

    def formula(self, x, weight, eps, root):
        """Computes the result of trope.Norm, with eager's rstd."""
        normed = x.float() * root(x.float().pow(2).mean(-1, keepdim=True) + eps)
        if weight is None:
            return normed.to(x.dtype)
        if self.rounding == "twice":
            return normed.to(x.dtype) * weight
        return (normed * (1.0 + weight.float() if self.plus_one else weight.float())).to(x.dtype)

    def __str__(self):
        words = ["rounds " + self.rounding] if self.has_weight else ["without a weight"]
        return ", ".join(["%s %s" % (self.cls.__name__, words[0])] + ["1 + weight"] * self.plus_one)


_ROOTS = torch.rsqrt, lambda x: x.pow(-0.5), lambda x: 1 / x.sqrt()


def _has_weight(module):
    return module._parameters.get("weight") is not None


class _Missing:
    """The value of an attribute that a module does not have."""


def _read(module, name):
    """Returns the value of an attribute, or the function of a method."""
    value = getattr(module, name, _Missing)
    return value.__func__ if isinstance(value, types.MethodType) else value


def _weight_shape(module):
    weight = module._parameters.get("weight")
    return None if weight is None else tuple(weight.shape)


def _has_settings(module, settings):
    shape, attributes = settings
    if _weight_shape(module) != shape:
        return False
    found = [(_read(module, name), value) for name, value in attributes]
    return all([type(one) is type(value) and one == value for one, value in found])


_OF_ALL_MODULES = set(dir(torch.nn.Module())) - {"forward", "training"}
_FIXED = (type(None), bool, int, float, str, torch.dtype, torch.device, types.FunctionType, types.BuiltinFunctionType, type)


def _is_fixed(value):
    """Whether a value cannot change while it is the same object."""
    return isinstance(value, _FIXED) or (isinstance(value, tuple) and all(map(_is_fixed, value)))


def _read_settings(module, place):
    """Returns what the results of a module depend on besides x and the values of the weight: (the shape of the weight,
    ((name, value) of each attribute that its forward reads)). Methods are among the attributes."""
    has_weight, names = _has_weight(module), {}

    class Reader(type(module)):
        def __getattribute__(self, name):
            names[name] = True
            return super().__getattribute__(name)

    for dtypes in (*_DTYPES, _MIXED):
        x, _, weight = _inputs(module, _sizes(module)[0], None, *dtypes)
        own = _copy(module, weight)
        own.__class__ = Reader
        try:
            own(x)
        except Exception:
            pass  # a dtype that the module does not take
    read = [name for name in names if name not in _OF_ALL_MODULES and not (name == "weight" and has_weight)]
    attributes = tuple([(name, _read(module, name)) for name in read])
    for name, value in attributes:
        if not _is_fixed(value):
            given = place, name, type(value).__name__
            raise Error("%s reads its attribute %s, a %s, whose changes fuse_norm would not notice" % given, "fuse_norm")
    return _weight_shape(module), attributes


def ask(module, where, place, known=None):
    """Finds the Kind of a module, on any device.

    where: the name of the norm in the class of the attention; place: its name in the model
    known: the Kind of the modules that have had this name so far. The result is this Kind with the module's settings, or
        the module is refused.
    """
    has_weight = _has_weight(module)
    others = [name for name, _ in (*module.named_parameters(), *module.named_buffers()) if name != "weight"]
    kind = None
    if has_weight and module.weight.numel() == 0:
        message = "%s has an empty weight, as a shard of FSDP1 may be: call patch before FSDP wraps the model"
        raise Error(message % place, "fuse_norm")
    if not others and len(list(module.children())) == 0 and (not has_weight or module.weight.dim() == 1):
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            if known is not None and known.is_of(module) and _reproduces(known, module):
                return known
            kind = _find_kind(module, _read_settings(module, place))
    if kind is None:
        message = "%s is a %s, which is not an RMS norm that trope.Norm reproduces bit for bit (%s)"
        raise Error(message % (where, type(module).__name__, place), "fuse_norm")
    if known is None:
        return kind
    if known._replace(tried=()) != kind._replace(tried=()):
        message = "modules %s normalise in different ways: %s; %s (%s)"
        raise Error(message % (where, known, kind, place), "fuse_norm")
    return known._replace(tried=known.tried + kind.tried)


def _find_kind(module, settings):
    """Returns the Kind of a module with these settings, or None."""
    has_weight = _has_weight(module)
    choices = [("twice", False), ("product", False), ("product", True)] if has_weight else [("product", False)]
    names = [name for name, value in settings[1] if type(value) is float and value > 0]
    for (rounding, plus_one), eps in itertools.product(choices, names):
        kind = Kind(type(module), has_weight, rounding, plus_one, eps, tried=(settings,))
        if _reproduces(kind, module):
            return kind._replace(mixes=_reproduces(kind, module, [_MIXED]))
    return None


_DTYPES = [(dtype, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
_MIXED = torch.bfloat16, torch.float32


def _sizes(module):
    """Returns the sizes of x to try. A norm without a weight must fit several."""
    return [module.weight.numel()] if _has_weight(module) else [64, 96]


def _reproduces(kind, module, dtypes=_DTYPES):
    """Whether trope.Norm reproduces a module, if it computes 1 / sqrt in the same way."""
    cases = list(itertools.product(_sizes(module), dtypes))
    return any(all(_agrees(kind, module, root, size, *of) for size, of in cases) for root in _ROOTS)


def _inputs(module, size, eps, dtype, weight_dtype):
    """Returns x, dy and the weight of a call, on the CPU. The rows of x have a mean(x^2) that is much larger than eps (1e-6
    if it is not known), close to eps, or much smaller than eps."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape):
        return torch.randn(*shape, generator=generator, device="cpu")

    root = (eps or 1e-6) ** 0.5
    scales = torch.tensor([[1, 8], [64, root], [2 * root, root / 8]], device="cpu")
    x = (random(2, 3, 2, size) * scales[:, :, None]).to(dtype).requires_grad_()
    weight = torch.nn.Parameter((1 + random(size) / 4).to(weight_dtype)) if _has_weight(module) else None
    return x, random(2, 3, 2, size).to(dtype), weight


def _copy(module, weight):
    """Returns a module with the same class and settings, and this weight."""
    own = copy.copy(module)
    own._parameters = dict(module._parameters) if weight is None else {"weight": weight}
    return own


def _agrees(kind, module, root, size, *dtypes):
    """Whether a formula has the bits of a module with the same class and settings, and nearly the same gradients."""
    eps = getattr(module, kind.eps)
    x, dy, weight = _inputs(module, size, eps, *dtypes)
    inputs = [x] + [weight] * kind.has_weight
    try:
        with torch.enable_grad():
            y, wanted = _copy(module, weight)(x), kind.formula(x, weight, eps, root)
        if y.dtype != x.dtype or not torch.equal(y, wanted):
            return False
        gradients = [torch.autograd.grad(each, inputs, dy) for each in (y, wanted)]
    except Exception:
        return False
    return all([(d - right).norm() <= 0.02 * right.norm() for d, right in zip(*gradients)])


# ---- Objects that stand for results ----


class _Calls(threading.local):
    """attention: the _Call of the fused attention that runs in this thread, or None."""

    attention = None


_calls = _Calls()


class _Call:
    """A call of a fused attention. pending: the norms and rotations that it has postponed."""

    def __init__(self, fusion):
        self.fusion, self.pending = fusion, []


def postpones_rotations():
    """Whether rotations are postponed until the norm after them is known."""
    return _calls.attention is not None and _calls.attention.fusion.is_after


class Lazy:
    """Stands for a tensor, which `own` computes. x: a tensor with its shape, dtype and device."""

    shape = property(lambda self: self.x.shape)
    dtype = property(lambda self: self.x.dtype)
    device = property(lambda self: self.x.device)

    def size(self, *dim):
        return self.x.size(*dim)

    def dim(self):
        return self.x.dim()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.own(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args, kwargs = torch.utils._pytree.tree_map(settle, (args, kwargs or {}))
        return function(*args, **kwargs)


def settle(value):
    """Returns the tensor that a value stands for, or the value itself."""
    return value.own() if isinstance(value, Lazy) else value


_OPERATORS = """
    abs add and bool contains div eq float floordiv ge getitem gt iadd iand idiv ifloordiv ilshift imod imul index int invert ior
    ipow irshift isub iter itruediv ixor le len lshift lt matmul mod mul ne neg or pos pow radd rand rdiv rfloordiv rlshift
    rmatmul rmod rmul ror rpow rrshift rshift rsub rtruediv rxor setitem sub truediv xor
"""


def _operator(name):
    return lambda self, *others: getattr(self.own(), name)(*map(settle, others))


for _name in _OPERATORS.split():
    setattr(Lazy, "__%s__" % _name, _operator("__%s__" % _name))
Lazy.__hash__ = object.__hash__


class _Versions:
    """Detects writes to tensors between its creation and check(), in eager calls."""

    def __init__(self, tensors, fusion):
        self.fusion = fusion
        self.tensors = [] if _compiles() else [(x, x._version) for x in tensors if not x.is_inference()]

    def check(self):
        if any([x._version != version for x, version in self.tensors]):
            message = "fuse_norm: %s: a tensor was written to before it was normalised and rotated"
            raise Error(message % self.fusion.where, "fuse_norm")


class _Norm:
    """A norm of x before the rotation. is_read: whether a rotation or the module (result) has computed it."""

    def __init__(self, fusion, name, module, x):
        self.fusion, self.name, self.module, self.x = fusion, name, module, x
        self.is_read, self.result, self.versions = False, None, _Versions([x], fusion)

    def run(self):
        """Returns the result of the module."""
        if self.result is None:
            self.versions.check()
            self.fusion.count(own=1)
            self.is_read, self.result = True, self.module(self.x)
        return self.result


class Deferred(Lazy):
    """A view of the result of a _Norm.

    x: the same view of the norm's input
    steps: the (method, arguments) that made the view
    heads: the dimension of the heads, if the norm is over all heads of a token and a view has split them; otherwise None
    """

    def __init__(self, pending, x, steps=(), heads=None):
        self.pending, self.x, self.steps, self.heads = pending, x, steps, heads

    def own(self):
        """Returns the tensor, normalised by the module."""
        y = self.pending.run()
        for name, arguments in self.steps:
            y = getattr(y, name)(*arguments)
        return y

    def take(self, layout):
        """Returns (x, its trope.Norm) for a rotation, or (the tensor, None) if the rotation cannot compute the norm."""
        pending = self.pending
        if pending.result is not None or self.heads not in (None, DIMS[layout].heads):
            return self.own(), None
        pending.versions.check()
        pending.is_read = True
        pending.fusion.count(fused=1)
        scope = "head" if self.heads is None else "token"
        return self.x, pending.fusion.kinds[pending.name].norm(pending.module, scope, "before")

    def view(self, *shape):
        try:
            x = self.x.view(*shape)
        except RuntimeError:  # the norm's result has other strides, and may have this view
            return self.own().view(*shape)
        if x.shape == self.x.shape and x.dtype == self.x.dtype:
            heads = self.heads
        elif self.heads is None and x.dim() > 1 and x.shape[:-2] == self.x.shape[:-1]:
            heads = x.dim() - 2
        else:
            return self.own().view(*shape)
        return Deferred(self.pending, x, self.steps + (("view", shape),), heads)

    def transpose(self, first, second):
        dims = self.x.dim()
        swapped = {first % dims: second % dims, second % dims: first % dims}
        if dims - 1 in swapped:
            return self.own().transpose(first, second)
        heads = None if self.heads is None else swapped.get(self.heads, self.heads)
        return Deferred(
            self.pending, self.x.transpose(first, second), self.steps + (("transpose", (first, second)),), heads
        )


class _Rotation:
    """A rotation whose results may be normalised: rotate(the _After or None of each tensor) returns them.

    norms: the _After of each tensor that has been normalised
    results: the results with these norms, after something has read one
    """

    def __init__(self, rotate, tensors, tables):
        self.fusion, self.rotate, self.tensors = _calls.attention.fusion, rotate, tensors
        self.norms, self.results, self.name = [None] * len(tensors), None, "the rotation"
        self.versions = _Versions([*tensors, *tables], self.fusion)
        _calls.attention.pending.append(self)

    is_read = property(lambda self: self.results is not None)

    def run(self, i, normed):
        """Returns result i, normalised or not."""
        self.versions.check()
        if self.results is None:
            self.fusion.count(fused=sum([norm is not None for norm in self.norms]))
            self.results = self.rotate(self.norms)
        if normed == (self.norms[i] is not None):
            return self.results[i]
        return self.rotate([None] * len(self.tensors))[i]


class Turned(Lazy):
    """Result i of a _Rotation, normalised or not. x: the tensor that is rotated."""

    def __init__(self, rotation, i, normed=False):
        self.rotation, self.i, self.normed, self.x = rotation, i, normed, rotation.tensors[i]

    def own(self):
        return self.rotation.run(self.i, self.normed)

    def normalise(self, kind, module):
        """Returns its norm, computed by the rotation or, if that has run already, by the module."""
        rotation, i = self.rotation, self.i
        if rotation.is_read or self.normed or rotation.norms[i] is not None:
            rotation.fusion.count(own=1)
            return module(self.own())
        rotation.norms[i] = _After(self.x, kind.norm(module, "head", "after"))
        return Turned(rotation, i, True)


class _After:
    """A norm after the rotation of x, for take_norms."""

    def __init__(self, x, norm):
        self.x, self.norm = x, norm

    def take(self, layout):
        return self.x, self.norm


def postpone(rotate, tensors, tables):
    """Returns objects that stand for the results of a rotation. rotate: see _Rotation."""
    rotation = _Rotation(rotate, tensors, tables)
    return [Turned(rotation, i) for i in range(len(tensors))]


def take_norms(tensors, norms, layout, is_exact):
    """Returns (tensors, the trope.Norm or None of each) for a rotation. norms: the Deferred or _After of each tensor, or
    None.
    is_exact: whether the rotation reads the tensors in their own dtype."""
    taken = [
        (x, None) if norm is None else norm.take(layout) if is_exact else (norm.own(), None)
        for x, norm in zip(tensors, norms)
    ]
    return [x for x, _ in taken], [norm for _, norm in taken]


# ---- Attentions ----


def _refuse_hooks(module, where):
    refuse_added_code(module, where, "fuse_norm", "leave out fuse_norm")


class Fusion:
    """Makes the rotations of a class of attentions compute its norms.

    cls, where: the class that defines the forward, and its name
    function: that forward, without decorators
    rotaries: {name: Rotary} of the rotary functions that it calls
    kinds: the Kind of each norm, by its name in the attention
    is_after: whether the norms come after the rotation
    fused, own: the numbers of norms that rotations and the modules themselves have computed, without compiled code
    handles: the number of Patch objects that use it
    """

    def __init__(self, cls, where, function, rotaries, kinds):
        self.cls, self.where, self.function, self.rotaries, self.kinds = cls, where, function, rotaries, kinds
        self.is_after, self.fused, self.own, self.handles = False, 0, 0, 0

    def add(self, attention, names, place):
        """Tries the norms of an attention of the class. place: its name in the model."""
        for name in names:
            module, at = getattr(attention, name), ("%s.%s" % (place, name)).lstrip(".")
            _refuse_hooks(module, at)
            self.kinds[name] = ask(module, "%s.%s" % (self.where, name), at, self.kinds.get(name))

    def read_forward(self):
        """Finds is_after, and refuses a forward that does something between a norm and the rotation."""
        tree, parents = self._parse()
        rotations, calls = [], []
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in self.rotaries:
                rotations.append(node.lineno)
            elif isinstance(node, ast.Attribute) and node.attr in self.kinds:
                call = parents[node]
                is_call = ast.unparse(node.value) == "self" and isinstance(call, ast.Call) and call.func is node
                if not is_call or len(call.args) != 1 or call.keywords:
                    message = "%s: %s is not only called with one argument"
                    raise Error(message % (self.where, ast.unparse(node)), "fuse_norm")
                calls.append(call)
        if not rotations or not calls:
            raise Error("%s: its source does not call both a rotary function and a norm" % self.where, "fuse_norm")
        self.is_after = min(rotations) < min([call.lineno for call in calls])
        for call in calls:
            if self.is_after:
                between, expected = call.args[0], ast.Name
            else:
                between, expected = parents[call], ast.Assign
                while isinstance(between, ast.Attribute) and between.attr in ("view", "transpose"):
                    between = parents[parents[between]]
            if not isinstance(between, expected):
                given = self.where, ast.unparse(between), ast.unparse(call.func)
                raise Error("%s: %s is between %s and the rotation" % given, "fuse_norm")

    def _parse(self):
        """Returns the syntax tree of the forward, and the parent of each node."""
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        except (OSError, SyntaxError):
            raise Error("%s: the source of its forward cannot be read" % self.where, "fuse_norm") from None
        return tree, {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def count(self, fused=0, own=0):
        if not _compiles():
            self.fused += fused
            self.own += own

    def install(self):
        """Makes the forward call methods of other names instead of the norms."""
        code = self.function.__code__
        for name in self.kinds:
            setattr(self.cls, _PREFIX + name, self._method(name))
        self._saved = code, vars(self.cls)["forward"]
        names = tuple([_PREFIX + name if name in self.kinds else name for name in code.co_names])
        self.function.__code__ = code.replace(co_names=names)
        self.cls.forward = self._checked = self._check_exit(self.cls.forward)

    def remove(self):
        self.function.__code__, forward = self._saved
        if vars(self.cls).get("forward") is self._checked:  # otherwise a wrapper still calls it, without an effect
            self.cls.forward = forward
        for name in self.kinds:
            delattr(self.cls, _PREFIX + name)

    def _method(self, name):
        kind, place = self.kinds[name], "%s.%s" % (self.where, name)

        def norm(attention, x):
            module, call = getattr(attention, name), _calls.attention
            _refuse_hooks(module, place)
            if call is None or not kind.fits(module, x):
                self.count(own=1)
                return module(settle(x))
            if self.is_after and isinstance(x, Turned):
                return x.normalise(kind, module)
            if self.is_after:
                self.count(own=1)
                return module(x)
            pending = _Norm(self, name, module, settle(x))
            call.pending.append(pending)
            return Deferred(pending, pending.x)

        return norm

    def _check_exit(self, forward):
        """Refuses an attention that postponed a norm or a rotation and did not read its result."""

        @functools.wraps(forward)
        def attention(*args, **kwargs):
            outer = _calls.attention
            _calls.attention = call = _Call(self)
            try:
                results = forward(*args, **kwargs)
            finally:
                _calls.attention = outer
            for pending in call.pending:
                if not pending.is_read:
                    message = "fuse_norm: %s has postponed %s, but nothing has read the result"
                    raise Error(message % (self.where, pending.name), "fuse_norm")
            return results

        return attention

    def __str__(self):
        where = self.where + ", after the rotation" * self.is_after
        return "%s: %s" % (where, "; ".join("%s: %s" % each for each in self.kinds.items()))


def norms_of(function):
    """Returns the names of norms of q and k that a function may use."""
    names = [name.removeprefix(_PREFIX) for name in function.__code__.co_names]
    return [name for name in names if _NAME.fullmatch(name)]
