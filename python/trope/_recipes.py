"""Finds options of trope.torch.rotate that compute the same as a rotary function of Hugging Face transformers, and replaces
it.

A Rotary calls a function with small random tensors on the CPU, and looks for the Recipe that gives the same bits, shapes
and dtypes. In float32 it must also give the same gradient. A Recipe rotates all tokens of its tensors. Some functions leave
tokens out, or rotate q and k by other rows. For these, an arrangement passes views of the rotated tokens to the Recipe, and
joins the results. trope.transformers finds the functions of a model, and installs the replacements.
"""

import dataclasses
import functools
import inspect
import itertools

import torch

from . import torch as _rotations
from ._dropin import check_tables, refuse_gradient, refuse_inference_tensor, rename, shown
from ._dropin import tensor as check_tensor
from ._errors import Error
from ._fused_norms import Deferred, Lazy, postpone, postpones_rotations, settle, take_norms
from .torch._launch import refuse_transforms

_compiles = torch.compiler.is_compiling
_TENSORS = ("q", "k"), ("xq", "xk"), ("query", "key"), ("x",), ("tensor",)  # the names of parameters
_TABLES = ("cos", "sin"), ("freqs_cis",), ("freqs_ci",)  # the last two are complex
_OPTIONS = {"unsqueeze_dim", "position_ids"}  # optional parameters, which have a default
_TOKENS = {"bhsd": 2, "bshd": 1, "thd": 0, "bghsd": 3}  # the dimension of tokens in each layout
_NOT_TRIED = "this form was not tried when the function was patched: %s"


# ---- Rotating all tokens ----


@dataclasses.dataclass(eq=False)
class Recipe:
    """How a rotary function rotates.

    options: pairing, pairing_out, inverse and angle_columns of rotate
    first_half: whether only the first half of a table's columns is read
    trailing: True: the last elements of a head rotate, False: the first ones
    whole: whether all elements of a head must rotate
    forms: {(dimensions of q, of the tables, unsqueeze_dim): [(layout, the dimension of the tables that must be 1, or None),
        ...]}; the shapes choose among them
    roundings: {(dtype of q, of the tables): (dtype of the result, which q and k are cast to first, rounding)}
    """

    options: dict
    first_half: bool
    trailing: bool
    whole: bool
    forms: dict
    roundings: dict

    def rotate(self, tensors, tables, unsqueeze_dim, names=("q", "k"), table_names=("cos", "sin"), norms=None):
        """Returns a list or tuple of new tensors. The names are those of the tensors and tables. norms: see take_norms."""
        q, table = tensors[0], tables[0]
        form, dtypes = (q.dim(), table.dim(), unsqueeze_dim), (q.dtype, table.dtype)
        if form not in self.forms or dtypes not in self.roundings:
            given = names[0], q.dtype, list(q.shape), table.dtype, list(table.shape), unsqueeze_dim
            raise Error(_NOT_TRIED % "%s %s %s with tables %s %s and unsqueeze_dim %s" % given, names[0])
        layout, one = self._find_layout(self.forms[form], q, table)
        dtype, rounding = self.find_dtype(q, table)
        cos, sin = self._columns(tables, one, q, names[0], table_names)
        rows, width = cos.shape[-2], self.width(table.shape[-1])
        if width < 2 or width % 2:
            message = "%s has %d columns, for %d elements of a head: this number must be even, and at least 2"
            raise Error(message % (table_names[0], table.shape[-1], width), table_names[0])
        for x, name in zip(tensors, names):
            if x.dtype != q.dtype or x.device != q.device or x.dim() != q.dim():
                given = name, x.dtype, list(x.shape), x.device, names[0], q.dtype, list(q.shape), q.device
                raise Error("%s is %s %s on %s, but %s is %s %s on %s" % given, name)
            shape = x.shape
            if shape[_TOKENS[layout]] != rows or shape[-1] < width or (self.whole and shape[-1] != width):
                message = "%s has %d rows for %d elements of a head, but %s is %s (%s)"
                to_blame = table_names[0] if x is q else name
                raise Error(message % (table_names[0], rows, width, name, list(shape), layout), to_blame)
        if norms:
            tensors, norms = take_norms(tensors, norms, layout, dtype == q.dtype)
        if dtype != q.dtype:
            tensors = [x.to(dtype) for x in tensors]
        offset = tuple([x.shape[-1] - width for x in tensors]) if self.trailing else 0
        rotated = _rotations.rotate(
            *tensors, layout=layout, cos=cos, sin=sin, rounding=rounding, rotary_dim=width, rotary_offset=offset,
            norms=norms, **self.options
        )  # fmt: skip
        return rotated if len(tensors) > 1 else (rotated,)

    def find_dtype(self, q, table):
        """Returns (dtype of the result, rounding) for known dtypes. Under autocast the dtype is that of q."""
        dtype, rounding = self.roundings.get((q.dtype, table.dtype), (None, None))
        if dtype not in (None, q.dtype) and torch.is_autocast_enabled(q.device.type):
            if torch.get_autocast_dtype(q.device.type) == q.dtype:
                return q.dtype, "native_f32"
        return dtype, rounding

    def _find_layout(self, choices, q, table):
        """Returns the first (layout, dimension of the tables that must be 1) that fits the shapes. Without one, it returns
        the first, which is then refused."""
        for layout, one in choices:
            rows = table.shape[-3 if one == 1 else -2]
            if q.shape[_TOKENS[layout]] == rows and (one is None or table.shape[one] == 1):
                return layout, one
        return choices[0]

    def width(self, columns):
        """Returns the number of elements of a head that rotate with tables of this many columns."""
        return columns * (2 if self.options["angle_columns"] == "pair" and not self.first_half else 1)

    def _columns(self, tables, one, q, q_name, names):
        """Returns the columns of cos and sin that are read, with the same strides."""
        for table, name in zip(tables, names):
            refuse_gradient(table, name)
        if len(tables) == 1:
            if tables[0].device != q.device:
                raise Error("%s is on %s, but %s is on %s" % (names[0], tables[0].device, q_name, q.device), names[0])
            tables = torch.view_as_real(tables[0].resolve_conj()).unbind(-1)
        else:
            check_tables(*tables, q, names, q_name)
        cos, sin = tables
        if one is not None:
            if cos.shape[one] != 1:
                message = "%s has shape %s, and must have 1 in dimension %d"
                raise Error(message % (names[0], list(cos.shape), one), names[0])
            cos, sin = cos.squeeze(one), sin.squeeze(one)
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
            " ".join(dict.fromkeys(layout for choices in self.forms.values() for layout, _ in choices)),
        ]
        for (q, table), (dtype, rounding) in self.roundings.items():
            if q == torch.bfloat16 and (table == q or table.itemsize > 2):
                words.append("%s by %s tables" % (rounding if dtype == q else "float32", str(table).replace("torch.", "")))
        return "; ".join((", ".join(words[:4]), "bfloat16 " + ", ".join(words[4:])))


def _same(results, wanted):
    return len(results) == len(wanted) and all(
        isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype == y.dtype and torch.equal(x, y)
        for x, y in zip(results, wanted)
    )


def _gives(function, call, wanted):
    """Whether a function returns the wanted results. If there are none, it must refuse the call."""
    try:
        return _same(function(*call), wanted)
    except Error:
        return not wanted


# ---- Rotating some tokens, or q and k by other rows. Tokens are in dimension -2 ----

# An arrangement is a function (turn, tensors, tables, more) that returns the results. `more` has the other arguments, by
# name. turn(tensors, tables, first=0, table_names=None) is Recipe.rotate: `first` is the index of the first of these
# tensors among all.


def _check_argument(value, name, dims=2):
    """Refuses a value that is not a tensor with at least `dims` dimensions. rotate itself handles the meta device."""
    if not (isinstance(value, torch.Tensor) and value.is_meta):
        check_tensor(value, name)
    if value.dim() < dims:
        raise Error("%s has shape %s, and must have %d dimensions or more" % (name, list(value.shape), dims), name)


def _all_tokens(turn, tensors, tables, more):
    return turn(tensors, tables)


def _last_tokens(turn, tensors, tables, more):
    """Leaves tokens before the last rows of the tables unchanged (DINOv3: class and register tokens)."""
    before = tensors[0].shape[-2] - tables[0].shape[-2]
    if before < 0:
        return turn(tensors, tables)
    rotated = turn([x[..., before:, :] for x in tensors], tables)
    return [torch.cat((x[..., :before, :], y), -2) for x, y in zip(tensors, rotated)]


def _last_rows(turn, tensors, tables, more):
    """q has the last tokens of k (Muse Glimmer's assistant)."""
    q, *others = tensors
    first = tables[0].shape[-2] - q.shape[-2]
    if first <= 0:
        return turn(tensors, tables)
    return [*turn([q], [table[..., first:, :] for table in tables]), *turn(others, tables, 1)]


def _split_keys(k, more):
    """Returns the tokens of k that rotate, and the num_k_exclude_rope tokens after them."""
    name = "num_k_exclude_rope"
    excluded, tokens = more[name], k.shape[-2]
    if type(excluded) is not int or not 0 <= excluded <= tokens:
        raise Error("%s must be an integer, 0 to %d (the tokens of k), not %s" % (name, tokens, shown(excluded)), name)
    return k[..., : tokens - excluded, :], k[..., tokens - excluded :, :]


def _memory_tokens(turn, tensors, tables, more):
    """k has the tokens of q or, with repeat_freqs_k, several times as many, and then other tokens (SAM 2 and SAM 3)."""
    (q, k), tokens = tensors, tensors[0].shape[-2]
    turning, kept = _split_keys(k, more)
    if not turning.shape[-2]:
        return *turn([q], tables), torch.cat((turning, kept), -2)
    times = turning.shape[-2] // max(tokens, 1) if more["repeat_freqs_k"] else 1
    if turning.shape[-2] != times * tokens:
        given = tokens, turning.shape[-2], more["repeat_freqs_k"]
        raise Error("k: q has %d tokens and %d tokens of k rotate, but repeat_freqs_k is %s" % given, "k")
    rotated = turn([q.unsqueeze(-3), turning.unflatten(-2, (times, tokens))], tables)
    q, turning = [x.flatten(-3, -2) for x in rotated]
    return q, torch.cat((turning, kept), -2)


def _spatial_tokens(turn, tensors, tables, more):
    """k has repeat_freqs_k groups of tokens, whose last ones rotate by cos_k and sin_k, and then other tokens (EdgeTAM)."""
    (q, k), tables_k, times = tensors, [more["cos_k"], more["sin_k"]], more["repeat_freqs_k"]
    (q,) = turn([q], tables)
    turning, kept = _split_keys(k, more)
    if not turning.shape[-2]:
        return q, kept
    if type(times) is not int or times < 1 or turning.shape[-2] % times:
        message = "repeat_freqs_k must be an integer that divides the %d tokens of k that may rotate, not %s"
        raise Error(message % (turning.shape[-2], shown(times)), "repeat_freqs_k")
    for name, table in zip(("cos_k", "sin_k"), tables_k):
        _check_argument(table, name)
    groups = turning.unflatten(-2, (times, -1))
    before = groups.shape[-2] - tables_k[0].shape[-2]
    if before < 0:
        message = "cos_k has %d rows for %d tokens of k in a group"
        raise Error(message % (tables_k[0].shape[-2], groups.shape[-2]), "cos_k")
    (rotated,) = turn([groups[..., before:, :]], tables_k, 1, ("cos_k", "sin_k"))
    turning = torch.cat((groups[..., :before, :], rotated), -2).flatten(-3, -2)
    return q, torch.cat((turning, kept), -2)


def _taken_rows(turn, tensors, tables, more):
    """The tables have a row for each position, and position_ids chooses the rows (CLVP)."""
    _check_argument(more["position_ids"], "position_ids", 0)
    return turn(tensors, [table[more["position_ids"]] for table in tables])


# The keys are the parameters of a function besides tensors, tables and parameters without an effect. The values are the
# arrangements that it may have, and calls that distinguish them: (tokens of q, of k, rows, more). `more` may have the
# number of rows of cos_k. A function must have the results of its arrangement, and must refuse the same calls.
_EXCLUDED = "num_k_exclude_rope"
_ARRANGEMENTS = {
    (): (
        (_all_tokens, _last_tokens, _last_rows),
        [(5, 5, 4, {}), (5, 5, 2, {}), (4, 5, 5, {}), (2, 5, 5, {}), (4, 4, 5, {}), (5, 4, 4, {})],
    ),
    (_EXCLUDED, "repeat_freqs_k"): (
        (_memory_tokens,),
        [(5, k, rows, {_EXCLUDED: excluded, "repeat_freqs_k": repeat})
         for k, rows, excluded, repeat in ((7, 5, 2, False), (10, 5, 0, True), (17, 5, 2, True), (5, 5, 0, True), (5, 5, 5, False),
                                           (10, 5, 0, False), (9, 5, 0, True), (5, 4, 0, False), (17, 5, 1, True))],
    ),
    ("cos_k", "sin_k", _EXCLUDED, "repeat_freqs_k"): (
        (_spatial_tokens,),
        [(5, k, rows, {"cos_k": rows_k, _EXCLUDED: excluded, "repeat_freqs_k": times})
         for k, rows, rows_k, excluded, times in ((4, 5, 4, 0, 1), (8, 5, 4, 0, 2), (12, 5, 4, 2, 2), (7, 5, 4, 0, 1),
                                                  (3, 5, 4, 3, 1), (6, 4, 3, 0, 2), (7, 5, 3, 0, 2))],
    ),
    ("position_ids",): ((_taken_rows,), []),
}  # fmt: skip


# ---- Finding the recipe of a function ----

# Shapes of tables: the number of dimensions, and the dimension that must be 1.
_KINDS = {"batch": (3, None), "rows": (2, None), "heads": (3, 1), "one": (3, 0)}
# The other arguments of a call in which all tokens rotate. _make replaces 0 and None by tensors.
_PLAIN = {_EXCLUDED: 0, "repeat_freqs_k": 1, "cos_k": 0, "sin_k": 0, "position_ids": None}


class Rotary:
    """A rotary function, its recipe and its replacement.

    original, where: the function and its name
    without_k: its result if k is None: "q", "q, None", or "" if it raises an error
    calls: the number of calls of the replacement, without compiled code, which runs no Python that could count
    traced, left: the number of calls that torch.compile has traced, and how many of them it has compiled as they come
    handles: the number of Patch objects that want it to be replaced
    is_compiled: whether one of them wants compiled code to call the replacement too
    """

    head_dim = 32  # so that PyTorch's vectorized loops compute whole rows, even rows of 16 complex numbers

    def __init__(self, function, where):
        self.original, self.where, self.calls, self.traced, self.left = function, where, 0, 0, 0
        self.handles, self._compiled_handles, self.is_compiled = 0, 0, False
        self._read_signature()
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            self.recipe = self.form = None
            (self.arrange, *_), _ = _ARRANGEMENTS[self.more]
            self._find_recipe()
            self._find_roundings()
            calls = [self._make(self.columns, self.form)] + self._find_arrangement()
            for call in calls:
                self._check_gradient(call)
            self._check_whole_heads()
            self.without_k = self._ask_without_k()
        self.replacement = self._replace()

    def _read_signature(self):
        function = self.original
        try:
            self.signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
        except (TypeError, ValueError):
            raise Error("its parameters cannot be read: it is a %s" % type(function).__name__) from None
        parameters = {name: p for name, p in self.signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        self.names = tuple(parameters)
        self.defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self.optional = _OPTIONS.intersection(self.defaults)
        for tensors, self.tables, self.more in itertools.product(_TENSORS, _TABLES, _ARRANGEMENTS):
            self.tensors = tensors + ("v",) * ("v" in parameters)
            if {*self.tensors, *self.tables, *self.more} == set(self.names) - self.optional:
                return
        raise Error("its parameters are %s" % self.signature)

    # -- Calling the function, with tables of `columns` columns in a form (layout, tables, unsqueeze_dim) --

    def _forms(self):
        unsqueeze_dims = (1, 2, -2, 0) if "unsqueeze_dim" in self.names else (None,)
        return itertools.product(("bhsd", "bshd", "thd"), _KINDS, unsqueeze_dims)

    def _make(self, columns, form, dtype=torch.float32, table_dtype=torch.float32, tokens=(5, 5), rows=5, more=None):
        """Makes random q and k (or x), tables, unsqueeze_dim and the other arguments. `more` may have cos_k's rows."""
        layout, kind, unsqueeze_dim = form
        generator = torch.Generator().manual_seed(7)

        def random(shape, last, dtype):
            return torch.randn(*shape, last, generator=generator, dtype=torch.float64, device="cpu").to(dtype)

        def random_tables(rows):
            shape = {"batch": (2, rows), "rows": (rows,), "heads": (rows, 1), "one": (1, rows)}[kind]
            return [random(shape, columns, table_dtype) for _ in range(2)]

        tensors = []
        for heads, n in zip((3, 2, 1), (*tokens, tokens[1])):
            shape = {"bhsd": (2, heads, n), "bshd": (2, n, heads), "thd": (n, heads)}[layout]
            tensors.append(random(shape, self.head_dim, dtype))
        tables = random_tables(rows)
        if len(self.tables) == 1:
            tables = [torch.complex(*tables)]
        more = dict(more or {name: _PLAIN[name] for name in self.more})
        if "cos_k" in more:
            more["cos_k"], more["sin_k"] = random_tables(more["cos_k"] or rows)
        if "position_ids" in more:  # shuffle the rows
            shape, count = tables[0].shape[:-1], tables[0].shape[:-1].numel()
            more["position_ids"] = torch.randperm(count, generator=generator, device="cpu").view(shape)
            tables = [table.reshape(count, -1)[more["position_ids"].flatten().argsort()] for table in tables]
        return tensors[: len(self.tensors)], tables, unsqueeze_dim, more

    def _call(self, tensors, tables, unsqueeze_dim, more):
        """Calls the original, and returns a tuple of its results."""
        given = dict(zip(self.tensors + self.tables, (*tensors, *tables)), **more)
        # A function with optional position_ids must ignore them.
        options = dict(unsqueeze_dim=unsqueeze_dim, position_ids=torch.tensor([[3, 1, 4, 0, 2]], device="cpu"))
        results = self.original(**given, **{name: options[name] for name in self.optional})
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def _try(self, *call):
        """Does the same as _call, but returns () if it raises an error."""
        try:
            return self._call(*call)
        except Exception:
            return ()

    # -- Finding what it computes --

    def _find_recipe(self):
        """Finds the recipe without roundings of other dtypes. It tries few columns first: if the function accepts them,
        heads may rotate in part."""
        taken = False
        for self.columns in (self.head_dim // 4, self.head_dim // 2, self.head_dim):
            for form in self._forms():
                call = self._make(self.columns, form)
                wanted = self._try(*call)
                taken = taken or bool(wanted)
                dims, one = _KINDS[form[1]]
                key, value = (call[0][0].dim(), dims, form[2]), (form[0], one)
                for recipe in ([self.recipe] if self.recipe else self._candidates(call)) if wanted else ():
                    forms = {key: [value], (5, *key[1:]): [("bghsd", one)]}
                    if _gives(self._rotate_by(dataclasses.replace(recipe, forms=forms)), call, wanted):
                        self.recipe, self.form = recipe, self.form or form
                        recipe.forms.setdefault(key, []).append(value)
                        break
            if self.recipe:
                if self.arrange in (_memory_tokens, _spatial_tokens):
                    self._keep_bhsd(True)
                return
        if not taken:
            raise Error("it does not accept q and k of 3 or 4 dimensions with tables of 2 or 3 dimensions")
        raise Error(
            "no combination of pairing, columns, direction and window of trope.torch.rotate gives its bits in float32"
        )

    def _keep_bhsd(self, has_groups=False):
        """Keeps only forms with tokens in dimension -2, as arrangements need. has_groups: whether tensors may be bghsd."""
        forms = {key: [form for form in forms if form[0] == "bhsd"] for key, forms in self.recipe.forms.items()}
        groups = {(5, *key[1:]): [("bghsd", one) for _, one in forms[key]] for key in forms if has_groups}
        self.recipe.forms = {key: choices for key, choices in {**forms, **groups}.items() if choices}

    def _candidates(self, call):
        pairings = ("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half"), ("half", "interleaved")
        columns = ("half", False), ("interleaved", False), ("pair", False), ("pair", True)
        roundings = {(torch.float32, call[1][0].dtype): (torch.float32, "native")}
        either = False, True
        for (pairing, out), (kind, first_half), inverse, trailing in itertools.product(pairings, columns, either, either):
            options = dict(pairing=pairing, pairing_out=out, inverse=inverse, angle_columns=kind)
            recipe = Recipe(options, first_half, trailing, False, {}, dict(roundings))
            recipe.whole = recipe.width(self.columns) == self.head_dim
            yield recipe

    def _find_roundings(self):
        """Finds the roundings of other dtypes. float64 may be missing, because some functions compute it in float32."""
        narrow = torch.bfloat16, torch.float16, torch.float32
        for dtype, table in (*itertools.product(narrow, narrow), (torch.float64, torch.float64)):
            if table.itemsize == 2 and len(self.tables) == 1:
                continue
            call = self._make(self.columns, self.form, dtype, table)
            wanted, key = self._try(*call), (dtype, call[1][0].dtype)
            for rounding in ("native", "native_f32") if wanted else ():
                self.recipe.roundings[key] = wanted[0].dtype, rounding
                if _gives(self._rotate_by(self.recipe), call, wanted):
                    break
            else:
                self.recipe.roundings.pop(key, None)
                if wanted and dtype != torch.float64:
                    raise Error("neither rounding native nor native_f32 gives its bits for %s with tables of %s" % key)

    def _find_arrangement(self):
        """Finds which tokens rotate by which rows. Returns the calls that show it and are not refused."""
        arrangements, calls = _ARRANGEMENTS[self.more]
        made = [self._make(self.columns, self.form, tokens=(q, k), rows=rows, more=more) for q, k, rows, more in calls]
        wanted = [self._try(*call) for call in made]
        for self.arrange in arrangements:
            differing = [not _gives(self._rotate_by(self.recipe), *each) for each in zip(made, wanted)]
            if not any(differing):
                break
        else:
            q, k, rows, _ = calls[differing.index(True)]
            raise Error(
                "it accepts tables of %d rows for q of %d tokens and k of %d, but rotates in an unknown way" % (rows, q, k)
            )
        if self.arrange in (_last_tokens, _last_rows):
            self._keep_bhsd()
        return [call for call, results in zip(made, wanted) if results]

    def _check_gradient(self, call):
        """Refuses a function that detaches its tensors, or has a backward of its own."""
        tensors, *rest = call
        gradients = []
        for function in (self._call, self._rotate_by(self.recipe)):
            leaves = [x.clone().requires_grad_() for x in tensors]
            with torch.enable_grad():
                results = function(leaves, *rest)
            if not all(y.requires_grad for y in results):
                raise Error("autograd cannot differentiate it")
            gradients.append(torch.autograd.grad(results, leaves, [y.detach().flip(0, -1) for y in results]))
        if not _same(*gradients):
            raise Error("its gradient is not the transpose of its forward")

    def _check_whole_heads(self):
        """Refuses a function that behaves differently if whole heads rotate."""
        if not self.recipe.whole:
            call = self._make(self.head_dim // self.recipe.width(1), self.form)
            if not _gives(self._rotate_by(self.recipe), call, self._try(*call)):
                raise Error("it rotates whole heads in another way than windows")

    def _ask_without_k(self):
        if len(self.tensors) != 2 or self.arrange is not _all_tokens:
            return ""
        (q, _), *rest = self._make(self.columns, self.form)
        results = self._try([q, None], *rest)
        gives = results and _gives(self._rotate_by(self.recipe), ([q], *rest), results[:1])
        return ("q" if len(results) == 1 else "q, None") if gives else ""

    # -- The replacement --

    def _rotate_by(self, recipe):
        """Returns a function like _call that applies the recipe in the arrangement."""

        def rotate(tensors, tables, unsqueeze_dim, more, norms=None):
            def turn(tensors, tables, first=0, table_names=None):
                names, table_names = self.tensors[first:], table_names or self.tables
                try:
                    return recipe.rotate(tensors, tables, unsqueeze_dim, names, table_names, norms)
                except Error as error:
                    renamed = {"tensors[%d]" % i: name for i, name in enumerate(names)}
                    raise rename(error, {**renamed, **dict(zip(("cos", "sin"), table_names))}) from None

            return self.arrange(turn, tensors, tables, more)

        return rotate

    def _replace(self):
        names, defaults, rotate = self.names, self.defaults, self._rotate_by(self.recipe)
        known = frozenset(names)

        @torch.compiler.assume_constant_result  # runs while torch.compile traces, and is not part of the compiled code
        def count_traced():
            self.traced += 1

        @torch.compiler.assume_constant_result
        def count_left():
            self.left += 1

        @functools.wraps(getattr(self.original, "forward", self.original))
        def rotary(*args, **kwargs):
            if _compiles():
                count_traced()
                if self._is_left(args, kwargs):
                    count_left()
                    return self.original(*args, **kwargs)
            given = {**defaults, **dict(zip(names, args)), **kwargs}
            if given.keys() != known or len(args) > len(names):
                self.signature.bind(*args, **kwargs)  # raises the error of the original
                name = next(name for name in kwargs if name not in known)
                raise Error(_NOT_TRIED % "keyword %s" % name, name)
            if not _compiles():
                self.calls += 1
            return self._rotate(rotate, given)

        return rotary

    def add_handle(self, count, is_compiled):
        """Counts a Patch that begins (count 1) or ends (-1)."""
        self.handles += count
        self._compiled_handles += count * is_compiled
        self.is_compiled = self._compiled_handles > 0

    def _is_left(self, args, kwargs):
        """Whether compiled code keeps the original, because Inductor fuses it with other operations, and no norm needs the
        replacement."""
        is_normed = postpones_rotations() or any([isinstance(value, Lazy) for value in (*args, *kwargs.values())])
        return not self.is_compiled and not is_normed

    def _rotate(self, rotate, given):
        """Returns the results of the replacement for {parameter: argument}."""
        try:
            refuse_transforms()
            tensors, no_k = list(self.tensors), given[self.tensors[-1]] is None
            if no_k:
                if not self.without_k:
                    raise Error("%s must be a torch tensor, not None" % tensors[-1], tensors[-1])
                tensors.pop()
            given, norms = self._take_deferred(given, tensors)
            for name in (*tensors, *self.tables):
                _check_argument(given[name], name)
            unsqueeze_dim = given.get("unsqueeze_dim")
            if "unsqueeze_dim" in given and type(unsqueeze_dim) is not int:
                raise Error("unsqueeze_dim must be an integer, not %s" % shown(unsqueeze_dim), "unsqueeze_dim")
            arrays, tables = [given[name] for name in tensors], [given[name] for name in self.tables]
            more = {name: given[name] for name in self.more}
            if self._is_postponed(arrays[0], tables[0]):
                rotated = postpone(lambda norms: rotate(arrays, tables, unsqueeze_dim, more, norms), arrays, tables)
            else:
                rotated = rotate(arrays, tables, unsqueeze_dim, more, norms)
        except RuntimeError as error:
            refuse_inference_tensor(error, given)
            raise
        if no_k and self.without_k == "q, None":
            return rotated[0], None
        return tuple(rotated) if len(rotated) > 1 else rotated[0]

    def _is_postponed(self, q, table):
        """Whether the call waits for the norm after it, which is in the dtype of q."""
        return postpones_rotations() and self.takes_norms and self.recipe.find_dtype(q, table)[0] == q.dtype

    def _take_deferred(self, given, names):
        """Returns ({parameter: argument} with tensors, and the Deferred or None of each tensor, or None)."""
        if not any([isinstance(value, Lazy) for value in given.values()]):
            return given, None
        if not self.takes_norms:
            return {name: settle(value) for name, value in given.items()}, None
        norms = [given[name] if isinstance(given[name], Deferred) else None for name in names]
        return {name: value.x if isinstance(value, Deferred) else settle(value) for name, value in given.items()}, norms

    @property
    def takes_norms(self):
        """Whether all tokens of its tensors rotate, which norms require."""
        return self.arrange is _all_tokens
