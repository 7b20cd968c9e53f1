"""trope.transformers: recipes and results of all rotary functions of transformers 5.24; refusals; undo; the command."""

import functools
import importlib
import inspect
import logging
import pathlib
import re
import runpy
import sys
import types

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers", minversion="5")

from test_transformers import (  # noqa: E402, F401 (seed is a fixture of all tests)
    BF16, F16, F32, SIZES, casts_once, family, is_same, modeling, seed, words,
)  # fmt: skip

import trope  # noqa: E402
from checks import DEVICE  # noqa: E402
from refusals import refused  # noqa: E402
from trope import transformers as patches  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("default_device")]


# ---- All different rotary functions of transformers 5.24 ----

PAIRS = "interleaved, columns interleaved, whole heads"
LLAMA, MLA_WORDS = "half, columns half, whole heads", "interleaved to half, first half of the columns, whole heads"
NATIVE, WIDE, UPCAST = "native, float32", "native, native_f32", "native_f32, native_f32"
BODIES = {
    "llama.apply_rotary_pos_emb": (LLAMA, NATIVE),
    "clvp.apply_rotary_pos_emb": (LLAMA, NATIVE),
    "dinov3_vit.apply_rotary_pos_emb": (LLAMA, NATIVE),
    "edgetam_video.apply_rotary_pos_emb_2d_cross_attn": (PAIRS, UPCAST),
    "muse_glimmer_assistant.apply_rotary_pos_emb": (LLAMA, NATIVE),
    "sam3_tracker_video.apply_rotary_pos_emb_2d": (PAIRS, UPCAST),
    "blt.apply_rotary_pos_emb": ("interleaved, columns interleaved, whole heads", NATIVE),
    "cohere.apply_rotary_pos_emb": ("interleaved, columns interleaved, whole heads", UPCAST),
    "codegen.apply_rotary_pos_emb": ("interleaved, columns pair, whole heads", NATIVE),
    "deepseek_v2.apply_rotary_emb": ("interleaved, columns pair, whole heads", "native_f32"),
    "deepseek_v3.apply_rotary_pos_emb_interleave": (MLA_WORDS, NATIVE),
    "deepseek_v4.apply_rotary_pos_emb": ("interleaved, columns pair, trailing window", UPCAST),
    "ernie4_5.apply_rotary_pos_emb": ("interleaved, first half of the columns, whole heads", UPCAST),
    "gemma4.apply_rotary_pos_emb": (LLAMA, NATIVE),
    "glm4.apply_rotary_pos_emb": ("interleaved, first half of the columns, leading window", NATIVE),
    "glm4v.apply_rotary_pos_emb": ("interleaved, columns interleaved, leading window", NATIVE),
    "glm4v.apply_rotary_pos_emb_vision": (LLAMA, UPCAST),
    "glmasr.apply_rotary_pos_emb": ("half, columns half, leading window", NATIVE),
    "gpt_neox.apply_rotary_pos_emb": ("half, columns half, leading window", NATIVE),
    "gpt_oss.apply_rotary_pos_emb": ("half, columns pair, whole heads", NATIVE),
    "helium.apply_rotary_pos_emb": ("interleaved, first half of the columns, whole heads", NATIVE),
    "hunyuan_vl.apply_rotary_pos_emb": (LLAMA, UPCAST),
    "inkling2.apply_rotary_pos_emb_vision": ("interleaved, columns interleaved, whole heads", UPCAST),
    "llama4.apply_rotary_emb": ("interleaved, columns pair, whole heads", "native_f32"),
    "llama4.vision_apply_rotary_emb": ("interleaved, columns pair, whole heads", "native_f32"),
    "minimax_m3_vl.apply_rotary_pos_emb_vision": ("half, columns half, leading window", NATIVE),
    "mistral_large4.apply_rotary_pos_emb_interleave": (MLA_WORDS, NATIVE),
    "modernbert.apply_rotary_pos_emb": (LLAMA, UPCAST),
    "nanochat.apply_rotary_pos_emb": ("half, inverse, columns half, whole heads", NATIVE),
    "olmo2.apply_rotary_pos_emb": (LLAMA, WIDE),
    "openai_privacy_filter.apply_rotary_pos_emb": ("interleaved, columns pair, whole heads", NATIVE),
    "pe_audio.apply_rotary_pos_emb": ("interleaved, first half of the columns, whole heads", NATIVE),
    "phi3.apply_rotary_pos_emb": ("half, columns half, leading window", NATIVE),
    "qwen4_exp.apply_rotary_pos_emb": ("half, columns half, leading window", NATIVE),
    "sam3.apply_rotary_pos_emb_2d": ("interleaved, columns interleaved, whole heads", UPCAST),
}
REFUSED = {  # the function, and a part of the error message
    "gemma4.apply_multidimensional_rope": "no combination",  # its models are not refused: it calls gemma4.apply_rotary_pos_emb
    "musicflamingo.apply_rotary_time_emb": "its parameters are",  # it computes in float64
}
REFUSED_METHODS = {  # they rotate by themselves
    "roformer": "RoFormerSelfAttention.apply_rotary_position_embeddings",
    "seamless_m4t": "SeamlessM4TConformerSelfAttention._apply_rotary_embedding",
    "vjepa2": "VJEPA2RopeAttention.apply_rotary_embeddings",
    "wav2vec2_bert": "Wav2Vec2BertSelfAttention._apply_rotary_embedding",
    "wav2vec2_conformer": "Wav2Vec2ConformerSelfAttention._apply_rotary_embedding",
}


@functools.lru_cache(maxsize=None)
def rotary(name):
    """Returns the _Rotary that patch would make for "model.function"."""
    model, _, function = name.partition(".")
    try:
        return patches._Rotary(getattr(modeling(model), function), name)
    except (ImportError, AttributeError):
        pytest.skip("transformers %s has no %s" % (hf.__version__, name))


@pytest.mark.parametrize("name", BODIES)
def test_recipes(name):
    """The recipe of each function is what a reader of its code would write."""
    turns, rounds = BODIES[name]
    recipe = rotary(name).recipe
    assert str(recipe).startswith(turns + ", ")
    found = [("float32" if result != BF16 else rounding) for (q, table), (result, rounding) in recipe.roundings.items()
             if q == BF16 and table in (BF16, F32, torch.complex64)]  # fmt: skip
    assert ", ".join(found) == rounds
    assert all(word in str(recipe) for word in found)


def find_error(function):
    """Returns why a function is refused, or ""."""
    try:
        patches._Rotary(function, function.__name__)
        return ""
    except trope.Error as error:
        return str(error)


def read_text(function):
    """Returns the source of a function and of all functions of its module that it names. Functions with equal sources do
    the same."""
    named = [function.__globals__.get(name) for name in patches._names_in(function.__code__)]
    return "".join(inspect.getsource(each) for each in (function, *named) if isinstance(each, types.FunctionType))


def modules_with(definition):
    """Yields (model, module, names) of transformers 5.24. definition: a regular expression whose group is a name."""
    if not hf.__version__.startswith("5.24."):
        pytest.skip("the list is for transformers 5.24, not %s" % hf.__version__)
    for path in sorted((pathlib.Path(hf.__file__).parent / "models").glob("*/modeling_*.py")):
        names = [name for name in re.findall(definition, path.read_text(), re.M) if patches._NAME.search(name)]
        if names:
            module = importlib.import_module("transformers.models.%s.%s" % (path.parent.name, path.stem))
            yield path.stem.removeprefix("modeling_"), module, names


def test_all_functions():
    """Of the 241 functions in transformers 5.24, exactly those in REFUSED are refused. Each source is tried once."""
    errors, names = {}, {}
    for model, module, functions in modules_with(r"^def (\w+)"):
        for name in functions:
            text = names["%s.%s" % (model, name)] = read_text(getattr(module, name))
            if text not in errors:
                errors[text] = find_error(getattr(module, name))
    unknown = {name: errors[text] for name, text in names.items() if errors[text]}
    assert len(names) == 241
    assert unknown.keys() == REFUSED.keys()
    assert all(message in unknown[name] for name, message in REFUSED.items())


def test_all_methods():
    """Exactly the methods in REFUSED_METHODS rotate by themselves in transformers 5.24. They are refused by name."""
    found = {}
    for model, module, _ in modules_with(r"^    def (\w+)"):
        for cls in [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]:
            search = object.__new__(patches._Search)
            search.found, search._refused, search._reaches = {}, {}, {}
            search._visit_class(cls)
            found.update({model: name for name in search._refused if cls.__qualname__ in name})
    assert {model: name.partition("modeling_%s." % model)[2] for model, name in found.items()} == REFUSED_METHODS


# All models that round the gradient of 16-bit q and k twice. docs/python.md lists them. For the models up to olmo_hybrid,
# the reason is float32 tables.
ROUNDED_TWICE = (
    "beam flex_olmo lfm3 olmo olmo2 olmo3 olmo_hybrid deepseek_v4 ernie4_5 ernie4_5_moe ernie4_5_vl_moe esm evolla hy_v4_vl"
    " modernbert modernbert_decoder"
).split()


def gradient_of(function, call, names):
    """Returns the gradients of q and k (or x) for random upstream gradients."""
    leaves = {name: call[name].clone().requires_grad_() for name in names}
    results = function(**{**call, **leaves})
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(3)
    upstream = [torch.randn(y.shape, device=y.device).to(y.dtype) for y in results]
    return torch.autograd.grad(results, list(leaves.values()), upstream)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", ROUNDED_TWICE)
def test_gradients_that_eager_rounds_twice(name, dtype):
    """The gradients equal the gradients of the same function in float32, rounded once."""
    it = rotary(name + ".apply_rotary_pos_emb")
    tensors, tables, unsqueeze_dim, _ = it._make(it.columns, it.form, dtype)
    call = dict(zip(it.tensors + it.tables, (*tensors, *tables)), unsqueeze_dim=unsqueeze_dim)

    def casts(**given):
        return casts_once(it.original)(*[given.pop(each) for each in it.tensors], **given)

    eager, patched, once = [gradient_of(function, call, it.tensors) for function in (it.original, it.replacement, casts)]
    assert all(torch.equal(x, y) for x, y in zip(patched, once))
    assert not any(torch.equal(x, y) for x, y in zip(patched, eager))


def test_all_gradients_that_eager_rounds_twice():
    """ROUNDED_TWICE has all models of transformers 5.24 that round gradients twice. Models whose results are float32 for
    16-bit q and k and float32 tables do not count."""
    found, known = set(), {}
    for model, module, _ in modules_with(r"^def (apply_rotary_pos_emb)\b"):
        text = read_text(module.apply_rotary_pos_emb)
        if text not in known:
            known[text] = is_rounded_twice(module.apply_rotary_pos_emb)
        found.update([model] if known[text] else [])
    assert found == set(ROUNDED_TWICE)


def is_rounded_twice(function):
    it = patches._Rotary(function, function.__name__)
    if it.recipe.roundings.get((BF16, F32), (F32,))[0] == F32:
        return False
    tensors, tables, unsqueeze_dim, more = it._make(it.columns, it.form, BF16)
    options = {} if unsqueeze_dim is None else dict(unsqueeze_dim=unsqueeze_dim)
    call = dict(zip(it.tensors + it.tables, (*tensors, *tables)), **options, **more)
    return not torch.equal(*[gradient_of(each, call, it.tensors)[0] for each in (function, it.replacement)])


TABLES = {"codegen": 2, "gpt_oss": 2, "openai_privacy_filter": 2, "deepseek_v4": 2}  # elements per column, 1 for others


CAST_ONCE = {  # these functions cast q and k to float32 once
    "edgetam_video.apply_rotary_pos_emb_2d_cross_attn", "sam3_tracker_video.apply_rotary_pos_emb_2d",
    "cohere.apply_rotary_pos_emb", "glm4v.apply_rotary_pos_emb_vision", "hunyuan_vl.apply_rotary_pos_emb",
    "inkling2.apply_rotary_pos_emb_vision", "sam3.apply_rotary_pos_emb_2d", "llama4.apply_rotary_emb",
    "llama4.vision_apply_rotary_emb", "deepseek_v2.apply_rotary_emb",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_other_shapes(name):
    """Tests shapes that patch did not try: heads of 64, q and k that are views of packed QKV, tables of batch 1 that are
    views, other windows. Results have eager's bits. dq has them in f32, with native rounding, or if q is cast once.
    Otherwise eager rounds both terms of dq and their sum, and trope rounds only the sum. Each rounding has an error of at
    most `unit` times `terms`."""
    it = rotary(name)
    is_complex = len(it.tables) == 1
    (_, dims, unsqueeze_dim), ((layout, one), *_) = next(iter(it.recipe.forms.items()))
    width = 64 if it.recipe.whole else 32
    columns = width // 2 if len(it.tables) == 1 else width // TABLES.get(name.partition(".")[0], 1)
    tokens, combinations = 9, [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F32, BF16)]
    for dtype, table in combinations if not is_complex else [(F32, F32), (BF16, F32), (F16, F32)]:
        packed = torch.randn(2, tokens, 6 + 3 + 2, 64, dtype=dtype)
        packed = packed if layout == "bshd" else packed.transpose(1, 2) if layout == "bhsd" else packed[0]
        tensors = list(packed.split((6, 3, 2), 1 if layout != "bshd" else 2))[: len(it.tensors)]
        rows = (1,) * (dims == 3 and one != 1) + (tokens,) + (1,) * (one == 1)
        tables = [torch.randn(*rows, columns + 6, dtype=table)[..., 3:-3] for _ in range(2)]
        if is_complex:
            tables = [torch.complex(*tables)]
        call = dict(zip(it.tables, tables), **(dict(unsqueeze_dim=unsqueeze_dim) if unsqueeze_dim is not None else {}))
        if "position_ids" in it.more:
            call.update(cos=tables[0][0], sin=tables[1][0], position_ids=torch.randperm(tokens)[None])
        call.update(dict(zip(("cos_k", "sin_k"), tables)) if "cos_k" in it.more else {})
        results, gradients = [], []
        for function in (it.original, it.replacement):
            leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
            y = function(**dict(zip(it.tensors, leaves)), **call)
            y = y if isinstance(y, tuple) else (y,)
            torch.manual_seed(1)
            gradients.append(torch.autograd.grad(y, leaves, [torch.randn(each.shape).to(each.dtype) for each in y]))
            results.append(y)
        for eager, patched in zip(*results):
            assert is_same(patched, eager, is_complex) and eager.dtype == patched.dtype
        for eager, patched in zip(*gradients):
            if dtype == F32 or name in CAST_ONCE or it.recipe.roundings[dtype, tables[0].dtype] == (dtype, "native"):
                assert is_same(patched, eager, is_complex)
            else:
                unit = 2.0 ** (-8 if dtype == BF16 else -11)
                terms = 2 * 5 * max(float(t.abs().max()) for t in tables)  # |dy| < 5, two terms
                assert (eager.double() - patched.double()).abs().max() <= 3 * unit * terms


@pytest.mark.parametrize("name", ["deepseek_v3.apply_rotary_pos_emb_interleave", "deepseek_v4.apply_rotary_pos_emb",
                                  "llama4.apply_rotary_emb", "gptj.apply_rotary_pos_emb"])  # fmt: skip
def test_functions_compile(name, monkeypatch):
    """Replacements compile without a graph break, also under autocast."""
    torch._dynamo.reset()
    it = rotary(name)
    monkeypatch.setattr(it, "is_compiled", True)
    tensors = [torch.randn(2, 5, 5, 32, dtype=BF16) for _ in it.tensors]
    columns = {"deepseek_v3": 32, "deepseek_v4": 8}.get(name.partition(".")[0], 16)
    tables = [torch.randn(2, 5, columns) for _ in range(2)]
    tables = [torch.complex(*tables)] if len(it.tables) == 1 else tables
    given = dict(zip(it.tensors + it.tables, (*tensors, *tables)))
    for autocast in (False, True):
        with torch.autocast(DEVICE, dtype=BF16, enabled=autocast):
            compiled = torch.compile(it.replacement, fullgraph=True, backend="aot_eager")(**given)
            for y, wanted in zip(compiled, it.original(**given)):
                assert is_same(y, wanted.to(y.dtype), len(it.tables) == 1) and (autocast or y.dtype == wanted.dtype)


def test_tables_of_any_strides():
    """cos and sin have different strides. Complex tables are conjugated lazily."""
    q, k = torch.randn(2, 5, 3, 32), torch.randn(2, 5, 1, 32)
    cos, sin = torch.randn(2, 5, 32), torch.randn(2, 32, 5).transpose(1, 2)
    table = torch.complex(torch.randn(1, 5, 16), torch.randn(1, 5, 16)).expand(2, 5, 16).conj()
    for name, tables in (("llama.apply_rotary_pos_emb", (cos, sin, 2)), ("llama4.apply_rotary_emb", (table,))):
        it = rotary(name)
        for x, y in zip(it.original(q, k, *tables), it.replacement(q, k, *tables)):
            assert is_same(y, x, len(it.tables) == 1)


def test_position_ids_are_ignored():
    """Eager ignores them, too."""
    it = rotary("glmasr.apply_rotary_pos_emb")
    q, cos = torch.randn(2, 3, 5, 32), torch.randn(2, 5, 32)
    ids = torch.randperm(5)[None]
    for function in (it.original, it.replacement):
        with_ids, without = function(q, q, cos, cos.flip(-1), ids), function(q, q, cos, cos.flip(-1))
        assert torch.equal(with_ids[0], without[0])


@pytest.mark.parametrize("name", ["mistral_large4.apply_rotary_pos_emb_interleave", "qwen4_exp.apply_rotary_pos_emb"])
def test_without_k(name):
    it = rotary(name)
    q, cos, sin = torch.randn(2, 3, 5, 32), torch.randn(2, 5, 32), torch.randn(2, 5, 32)
    eager, patched = it.original(q, None, cos, sin), it.replacement(q, k=None, cos=cos, sin=sin)
    assert type(eager) is type(patched)
    assert torch.equal(*[y[0] if isinstance(y, tuple) else y for y in (eager, patched)])
    assert not isinstance(eager, tuple) or patched[1] is None
    with pytest.raises(trope.Error, match="k must be a torch tensor, not None"):
        rotary("llama.apply_rotary_pos_emb").replacement(q, None, cos, sin)


# ---- Refusals ----

CALLS = {  # the message, and changes to a call of Llama's function with q and k [2, heads, 5, 16] and tables [2, 5, 16]
    "cos has 5 rows for 16 elements .* q is": dict(q=torch.randn(2, 3, 4, 16)),
    "3 rows for 16": dict(cos=torch.randn(2, 3, 16), sin=torch.randn(2, 3, 16)),
    "for 8 elements of a head": dict(cos=torch.randn(2, 5, 8), sin=torch.randn(2, 5, 8)),
    "for 32 elements of a head": dict(cos=torch.randn(2, 5, 32), sin=torch.randn(2, 5, 32)),
    "with batch 3 where": dict(cos=torch.randn(3, 5, 16), sin=torch.randn(3, 5, 16)),
    "unsqueeze_dim 3": dict(unsqueeze_dim=3),
    "was not tried when the function was patched: q torch.complex64": dict(
        q=torch.randn(2, 3, 5, 16, dtype=torch.complex64)
    ),
    r"with tables torch.float32 \[1, 2, 5, 16\]": dict(cos=torch.randn(1, 2, 5, 16), sin=torch.randn(1, 2, 5, 16)),
    r"sin has shape \[2, 5, 8\], but cos": dict(sin=torch.randn(2, 5, 8)),
    "sin has dtype torch.bfloat16, but cos": dict(sin=torch.randn(2, 5, 16, dtype=BF16)),
    "requires a gradient": dict(cos=torch.randn(2, 5, 16, requires_grad=True)),
    "k must be a torch tensor, not None": dict(k=None),
    r"q has shape \[16\], and must have 2 dimensions": dict(q=torch.randn(16)),
}


@pytest.mark.parametrize("message", CALLS)
def test_calls_that_are_refused(message):
    tensors, tables = [torch.randn(2, heads, 5, 16) for heads in (3, 1)], torch.randn(2, 2, 5, 16)
    call = dict(q=tensors[0], k=tensors[1], cos=tables[0], sin=tables[1])
    it = rotary("llama.apply_rotary_pos_emb")
    it.replacement(**call)
    changes = {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in CALLS[message].items()}
    with pytest.raises(trope.Error, match=message):
        it.replacement(**{**call, **changes})


def test_calls_that_lack_arguments():
    it = rotary("llama.apply_rotary_pos_emb")
    q = torch.randn(2, 3, 5, 16)
    for args, kwargs in (((q, q, q), {}), ((q,) * 4, dict(other=1)), ((q, q, q), dict(other=1)), ((q,) * 6, {})):
        with pytest.raises(TypeError):
            it.replacement(*args, **kwargs)


def load(source, name="modeling_made_up"):
    """Makes a module from source, which stays in sys.modules until the end of the test."""
    module = types.ModuleType(name)
    module.__dict__["torch"] = torch
    sys.modules[name] = module
    exec(source, module.__dict__)
    return module


@pytest.fixture
def made_up():
    yield load
    for name in [name for name in sys.modules if name.startswith("modeling_made_up")]:
        del sys.modules[name]


FUNCTION = """
def rotate_half(x):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)

def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
"""
ATTENTION = """
class Attention(torch.nn.Module):
    def forward(self, q, k, cos, sin):
        return apply_rotary_pos_emb(q, k, cos, sin)
"""
BROKEN = {  # a part of Llama's function, what replaces it, and the message
    "sign": ("(-x2, x1)", "(x2, x1)", "no combination"),
    "k is q": ("k * cos + rotate_half(k) * sin", "q * cos + rotate_half(q) * sin", "no combination"),
    "inverse k": ("k * cos + rotate_half(k) * sin", "k * cos - rotate_half(k) * sin", "no combination"),
    "scaled sin": ("cos, sin = cos", "sin = sin / 3\n    cos, sin = cos", "no combination"),
    "rounded product": ("q * cos +", "(q * cos).half().to(q.dtype) +", "no combination"),
    "16-bit q": ("return q * cos", "return q.bfloat16() * cos", "no combination"),
    "float64 product": ("return q * cos +", "return (q.double() * cos).to(q.dtype) +", "neither rounding"),
    "tables of 16 bits": ("cos, sin = cos", "cos = cos.bfloat16().to(cos.dtype)\n    cos, sin = cos", "no combination"),
    "last rows": ("cos, sin = cos", "cos, sin = cos[..., -q.shape[2]:, :], sin[..., -q.shape[2]:, :]\n    cos, sin = cos",
             "it accepts tables of"),
    "detached": ("q * cos +", "q.detach() * cos +", "its gradient is not"),
    "no autograd": ("def apply", "@torch.no_grad()\ndef apply", "autograd cannot"),
    "parameters": ("unsqueeze_dim=1)", "unsqueeze_dim)", "its parameters are"),
    "always raises": ("cos, sin = cos", "raise NotImplementedError\n    cos, sin = cos", "it does not accept q and k"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_functions_that_are_refused(what, made_up):
    """Llama's function is accepted. After a change that a patch would get wrong, it is refused by name."""
    old, new, message = BROKEN[what]
    with patches.patch(made_up(FUNCTION + ATTENTION).Attention()):
        pass
    assert FUNCTION.count(old) >= 1
    module = made_up(FUNCTION.replace(old, new) + ATTENTION)
    before = dict(vars(module))
    refused("model", patches.patch, module.Attention(), words="modeling_made_up.apply_rotary_pos_emb: " + message)
    assert vars(module) == before


def test_one_accepted_and_one_refused_function(made_up):
    """If one of two functions is refused, nothing is patched."""
    module = made_up(FUNCTION + "def apply_rotary_2d(q, k, grid):\n    return q, k\n" + ATTENTION + """
class Vision(torch.nn.Module):
    def forward(self, q, grid):
        return [apply_rotary_2d(q, q, g) for g in grid]
""")  # fmt: skip
    original = module.apply_rotary_pos_emb
    both = torch.nn.ModuleList([module.Attention(), module.Vision()])
    refused("model", patches.patch, both, words=r"modeling_made_up.apply_rotary_2d: its parameters are \(q, k, grid\)")
    assert module.apply_rotary_pos_emb is original
    with patches.patch(both[0]):  # its methods do not call the refused function
        assert module.apply_rotary_pos_emb is not original


def test_functions_in_attributes_are_refused(made_up):
    """The function is an attribute of an instance or a class. Replacing it in the module would not replace the
    attribute."""
    module = made_up(FUNCTION + """
class Instance(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = apply_rotary_pos_emb

class Class(torch.nn.Module):
    rotary = staticmethod(apply_rotary_pos_emb)
""")  # fmt: skip
    refused(
        "model",
        patches.patch,
        torch.nn.Sequential(module.Instance()),
        words=r"modeling_made_up.Instance.rotary is a rotary function",
    )
    refused("model", patches.patch, module.Class(), words=r"modeling_made_up.Class.rotary is a rotary function")


def test_functions_by_other_names(made_up):
    """The function is imported under another name, or called as an attribute of a module."""
    made_up(FUNCTION, "modeling_made_up_1")
    by_alias = ATTENTION.replace("apply_rotary_pos_emb", "turn")
    alias = made_up("from modeling_made_up_1 import apply_rotary_pos_emb as turn\n" + by_alias, "modeling_made_up_2")
    attribute = made_up(
        "import modeling_made_up_1 as rope\n" + ATTENTION.replace("apply", "rope.apply"), "modeling_made_up_3"
    )
    q, k, cos, sin = torch.randn(2, 3, 5, 32), torch.randn(2, 1, 5, 32), torch.randn(2, 5, 32), torch.randn(2, 5, 32)
    for module in (alias, attribute):
        model = module.Attention()
        eager = model(q, k, cos, sin)
        with patches.patch(model) as handle:
            patched = model(q, k, cos, sin)
        assert handle.calls == 1 and all(torch.equal(x, y) for x, y in zip(eager, patched))


def test_functions_that_cannot_be_replaced(made_up):
    """A function that is in no module of sys.modules, and a callable that is no Python function, are refused by name."""
    space = dict(torch=torch, __name__="modeling_made_up_nowhere")
    exec(FUNCTION + ATTENTION, space)
    refused(
        "model",
        patches.patch,
        space["Attention"](),
        words="nowhere.apply_rotary_pos_emb is called by a module that sys.modules does not have",
    )
    module = made_up("import operator\napply_rotary_pos_emb = operator.itemgetter(0)\n" + ATTENTION)
    refused("model", patches.patch, module.Attention(), words="modeling_made_up.apply_rotary_pos_emb: its parameters ")


KERNEL = FUNCTION.replace("def apply_rotary_pos_emb", "def plain") + """
class Func(torch.nn.Module):
    kernel_layer_name = "rotary_pos_emb"
    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        return plain(q, k, cos, sin, unsqueeze_dim)

apply_rotary_pos_emb = Func()
"""


def test_functions_of_kernels(made_up):
    """The package kernels turns a decorated function into a module like Func. If the module is a global, patch replaces it.
    If kernelize has set another forward, patch tries it again. If it is a submodule, patch refuses it."""
    module = made_up(KERNEL + ATTENTION)
    model, q, cos = module.Attention(), torch.randn(2, 3, 5, 32), torch.randn(2, 5, 32)
    eager, original = model(q, q, cos, cos.flip(-1)), module.apply_rotary_pos_emb
    with patches.patch(model) as handle:
        patched = model(q, q, cos, cos.flip(-1))
    assert torch.equal(eager[0], patched[0]) and handle.calls == 1
    assert "modeling_made_up.apply_rotary_pos_emb: half" in repr(handle)
    assert module.apply_rotary_pos_emb is original
    original.forward = lambda q, k, cos, sin, unsqueeze_dim=1: (q.clone(), k.clone())
    refused("model", patches.patch, model, words="modeling_made_up.apply_rotary_pos_emb: no combination")
    del original.forward
    model.rotary = original
    refused("model", patches.patch, model, words="modeling_made_up.Attention.rotary is a rotary function")


REFUSED_MODELS = {
    "RoFormer": (dict(embedding_size=64), r"SelfAttention\.apply_rotary_position_embeddings is a method that rotates"),
    "GPT2": (dict(n_embd=64, n_layer=1, n_head=2), "GPT2Model calls no rotary function"),
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models_that_are_refused(name):
    options, message = REFUSED_MODELS[name]
    cls = getattr(hf, name + "Model")
    with torch.device("meta"):
        model = cls(cls.config_class(**{**SIZES, **options}))
    refused("model", patches.patch, model, words=message)


# ---- Undo ----


def test_undo_restores_the_original_objects(made_up, caplog):
    """Undo also restores modules that imported the function by value, before or after the patch."""
    llama = modeling("llama")
    before = dict(vars(llama))
    importer = "from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as mine"
    early = made_up(importer, "modeling_made_up_1")
    original = early.mine
    with caplog.at_level(logging.INFO, logger="trope.transformers"):
        handle = patches.patch(family("llama"))
    assert [record.message.count("modeling_llama.apply_rotary_pos_emb") for record in caplog.records] == [1]
    assert [name for name in before if vars(llama)[name] is not before[name]] == ["apply_rotary_pos_emb"]
    late = made_up(importer, "modeling_made_up_2")
    assert early.mine is late.mine is llama.apply_rotary_pos_emb and early.mine is not original
    assert early.mine.__name__ == original.__name__ and early.mine.__doc__ == original.__doc__
    handle.undo()
    assert vars(llama) == before and early.mine is late.mine is original
    handle.undo()
    assert vars(llama) == before


@pytest.mark.parametrize("first", [0, 1])
def test_two_patches_of_the_same_function(first):
    """The function stays patched until both patches are undone, in either order. Each patch has its own count."""
    llama, model, inputs = modeling("llama"), family("llama"), words()
    original = llama.apply_rotary_pos_emb
    handles = [patches.patch(model)]
    replacement = llama.apply_rotary_pos_emb
    model(**inputs)
    handles.append(patches.patch(model))
    assert llama.apply_rotary_pos_emb is replacement is not original
    model(**inputs)
    assert [handle.calls for handle in handles] == [4, 2]
    handles[first].undo()
    assert llama.apply_rotary_pos_emb is replacement
    model(**inputs)
    assert handles[first].calls == [4, 2][first] and handles[1 - first].calls == [4, 6][first]
    handles[1 - first].undo()
    assert llama.apply_rotary_pos_emb is original
    model(**inputs)
    assert [handle.calls for handle in handles] == ([4, 4] if first == 0 else [6, 2])
    assert repr(handles[0]).endswith(": %d calls" % handles[0].calls)


def test_undo_keeps_replacements_by_others():
    llama, model = modeling("llama"), family("llama")
    original = llama.apply_rotary_pos_emb
    try:
        with patches.patch(model):
            llama.apply_rotary_pos_emb = other = lambda *args: None
        assert llama.apply_rotary_pos_emb is other
    finally:
        llama.apply_rotary_pos_emb = original


def test_patching_in_unusual_contexts():
    """patch works in inference mode, with autocast and with other default devices and dtypes. It keeps the random state."""
    model, state = family("llama"), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode(), torch.autocast("cpu", dtype=BF16), torch.device("meta"):
            with patches.patch(model) as handle:
                assert "bfloat16 native by bfloat16 tables, float32 by float32 tables" in repr(handle)
    finally:
        torch.set_default_dtype(F32)
    assert torch.equal(torch.get_rng_state(), state)


# ---- The command line ----


def test_command(tmp_path, capsys, monkeypatch):
    """Runs python -m trope.transformers in this process, because a new process would take seconds."""
    hf.LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trope.transformers", str(tmp_path / "config.json")])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("trope.transformers", run_name="__main__")
    assert not end.value.code
    line = "transformers.models.llama.modeling_llama.apply_rotary_pos_emb: half, columns half, whole heads, bhsd bshd thd;"
    assert capsys.readouterr().out == line + " bfloat16 native by bfloat16 tables, float32 by float32 tables\n"


@pytest.mark.parametrize("config, message", [
    ('{"model_type": "llama", "architectures": ["LlamaForNobody"]}', "has no LlamaForNobody"),
    ('{"model_type": "nobody"}', "nobody"),
    ('{"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2}', "GPT2Model calls no rotary function"),
])  # fmt: skip
def test_command_that_fails(config, message, tmp_path, capsys):
    (tmp_path / "config.json").write_text(config)
    assert patches.main([str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out


def test_command_without_a_config(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        patches.main([str(tmp_path / "absent")])
    assert "there is no" in capsys.readouterr().err
