"""The folder that hub/make.py makes: the package kernels loads it, for tiny models of transformers and for direct calls."""

import ast
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
huggingface_hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("tomllib", reason="hub/make.py needs Python 3.11")
kernels = pytest.importorskip("kernels")
hf = pytest.importorskip("transformers", minversion="5")
from transformers.integrations import hub_kernels  # noqa: E402
from transformers.utils import import_utils  # noqa: E402

if not import_utils.is_kernels_available():
    reason = "transformers %s does not accept kernels %s" % (hf.__version__, kernels.__version__)
    pytest.skip(reason, allow_module_level=True)

from test_transformers import (  # noqa: E402, F401 (seed is a fixture of all tests)
    BF16, F16, F32, casts_once, differing, family, modeling, run, seed, words,
)  # fmt: skip

import trope  # noqa: E402
import trope.torch  # noqa: E402
from checks import DEVICE, check, device, random  # noqa: E402, F401 (device is a fixture)
from kernels import _rust  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("default_device")]
ROOT = pathlib.Path(__file__).resolve().parents[2]
HUB, LIBRARY = ROOT / "hub", trope._abi.lib._name
TRAINING = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
VARIANT = ["--local"]  # the arguments of make.py for the variant that this PyTorch loads
if DEVICE == "cuda":
    VARIANT += ["--cuda", torch.version.cuda, "--archs", "%d.%d" % torch.cuda.get_device_capability()]


def make(*arguments):
    """Runs hub/make.py."""
    command = [sys.executable, HUB / "make.py", *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Counted:
    """Counts the calls of the C library that a package makes."""

    def __init__(self, lib):
        self.lib, self.calls = lib, []

    def __getattr__(self, name):
        return getattr(self.lib, name)

    def trope_forward(self, args):
        self.calls.append("forward")
        return self.lib.trope_forward(args)

    def trope_backward(self, args):
        self.calls.append("backward")
        return self.lib.trope_backward(args)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the variant for DEVICE, moved after it was made."""
    made, moved = tmp_path_factory.mktemp("made") / "hub", tmp_path_factory.mktemp("moved") / "hub"
    done = make(LIBRARY, made, *VARIANT)
    assert done.returncode == 0, done.stderr
    made.rename(moved)
    return moved


@pytest.fixture(scope="module")
def variant(folder):
    (found,) = folder.joinpath("build").iterdir()
    return found


@pytest.fixture(scope="module")
def kernel(folder):
    """The loaded kernel. Its library is the folder's, and kernel.counted counts the calls of it."""
    with pytest.MonkeyPatch.context() as context:
        context.delenv("TROPE_LIBRARY", raising=False)
        loaded = kernels.get_local_kernel(folder, backend=DEVICE)
    assert pathlib.Path(loaded._trope._abi.lib._name).is_relative_to(folder)
    lib = loaded._trope._abi.lib
    loaded.counted = Counted(lib)
    for name, module in list(sys.modules.items()):
        if name.startswith(loaded.__name__ + ".") and vars(module).get("lib") is lib:
            module.lib = loaded.counted
    return loaded


@pytest.fixture
def calls(kernel):
    """The calls of the kernel's library since the test began, including those that compare a layer with a function."""
    kernel.counted.calls.clear()
    return kernel.counted.calls


def mapping(variant, layer="RotaryPosEmb"):
    """Returns a mapping for kernels. It loads the folder of a variant, even if kernels would choose another variant."""
    repository = kernels.LocalLayerRepository(repo_path=variant, layer_name=layer)
    return {"rotary_pos_emb": {DEVICE: {TRAINING: repository}}}


def kernelize(model, mapping, mode=TRAINING):
    """Replaces the functions in the mapping, and restores all others. Fails if a layer does not support the mode."""
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(model, mode=mode, device=DEVICE, use_fallback=kernels.KernelizeFallback.NO_LAYER)


@contextlib.contextmanager
def kernelized(model, variant, mode=TRAINING):
    """A context in which RotaryPosEmb replaces the rotary function of a model. Other layers stay."""
    kernelize(model, mapping(variant), mode)
    try:
        yield
    finally:
        kernelize(model, {})


# ---- Models ----

MODELS = ["llama", "qwen3", "gemma3", "olmo2"]
ONCE = ["forward"] * 2 + ["backward"] * 2  # two layers


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_bits_of_eager(name, dtype, variant, calls, monkeypatch):
    """Logits and all gradients have eager's bits. For olmo2 in bf16 the expected gradients come from eager code that casts
    q to float32 only once: test_transformers.py explains why."""
    model, inputs, weights = family(name).to(dtype), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    if name == "olmo2" and dtype == BF16:
        with monkeypatch.context() as context:
            module = modeling(name)
            context.setattr(module, "apply_rotary_pos_emb", casts_once(module.apply_rotary_pos_emb))
            _, once = run(model, inputs, weights)
        assert differing(gradients, once)
        gradients = once
    assert not calls
    with kernelized(model, variant):
        run(model, inputs, weights)  # compares the layer with the function
        calls.clear()
        results, others = run(model, inputs, weights)
    assert calls == ONCE
    assert torch.equal(results, eager) and results.dtype == dtype
    assert not differing(gradients, others)
    again, _ = run(model, inputs, weights)
    assert torch.equal(again, eager) and calls == ONCE


@pytest.mark.parametrize("name", MODELS)
def test_compiled_models_have_no_graph_break_and_the_same_bits(name, variant, calls):
    torch._dynamo.reset()
    model, inputs, weights = family(name).to(BF16), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    with kernelized(model, variant):
        eager, gradients = run(model, inputs, weights)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        run(compiled, inputs, weights)
        calls.clear()
        results, others = run(compiled, inputs, weights)
    assert calls == ONCE
    assert torch.equal(results, eager)
    assert not differing(gradients, {each.removeprefix("_orig_mod."): g for each, g in others.items()})
    torch._dynamo.reset()


def test_the_first_call_may_be_compiled(kernel, variant, calls):
    """The layer compares itself with the function that it replaces while torch.compile traces it."""
    torch._dynamo.reset()
    kernel._rotation._compare.cache_clear()
    model, inputs = family("llama"), dict(words(), use_cache=False)
    eager = model(**inputs).logits
    with kernelized(model, variant):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(**inputs).logits, eager)
    assert calls.count("forward") > 2
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "mode", [kernels.Mode.INFERENCE, kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE, kernels.Mode.TRAINING]
)
def test_other_modes_take_the_layer_for_training(mode, variant, calls):
    model, inputs = family("qwen3"), words()
    eager = model(**inputs).logits
    with kernelized(model, variant, mode=mode):
        model(**inputs)
        calls.clear()
        assert torch.equal(model(**inputs).logits, eager)
    assert calls == ["forward"] * 2


def test_kernelize_of_transformers(variant, calls):
    """transformers reads mode and device from the model."""
    model, inputs = family("gemma3"), words()
    eager = model(**inputs).logits
    try:
        with kernels.use_kernel_mapping(mapping(variant), inherit_mapping=False):
            hub_kernels.kernelize(model)
        model(**inputs)
        calls.clear()
        assert torch.equal(model(**inputs).logits, eager) and calls == ["forward"] * 2 and model.use_kernels
    finally:
        kernelize(model, {})


def test_a_derived_class_is_not_compared_with_itself(kernel, calls):
    class Derived(kernel.layers.RotaryPosEmb):
        pass

    call = [random(2, 4, 5, 16), random(2, 2, 5, 16), random(2, 5, 16), random(2, 5, 16)]
    assert all(map(torch.equal, Derived()(*call), kernel.layers.RotaryPosEmb()(*call))) and calls == ["forward"] * 2


def test_autocast(variant):
    """q is bf16, and the tables are float32. The next product rounds eager's result to bf16, which the layer returns."""
    model, inputs, weights = family("llama"), words(), torch.randn(2, 11, 64)
    eager, _ = run(model, inputs, weights, autocast=True)
    with kernelized(model, variant):
        results, _ = run(model, inputs, weights, autocast=True)
    assert torch.equal(results, eager)


def test_checkpointing_repeats_the_call(variant, calls):
    model, inputs, weights = family("llama").to(BF16), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    with kernelized(model, variant):
        run(model, inputs, weights)
        calls.clear()
        results, others = run(model, inputs, weights)
    assert torch.equal(results, eager) and not differing(gradients, others)
    assert calls.count("forward") == 4 and calls.count("backward") == 2


def test_other_functions_of_the_same_name_are_refused(kernel, variant):
    """transformers gives this name to functions that do something else. A layer that does not fit raises an error."""
    for name, options in (("nanochat", {}), ("gpt_oss", {})):
        model = family(name)
        eager = model(**words(5)).logits
        assert eager.isfinite().all()
        with (
            kernelized(model, variant),
            pytest.raises(kernel.Error, match="RotaryPosEmb has other results than the rotary"),
        ):
            model(**words(5))
    function = modeling("modernbert").apply_rotary_pos_emb
    call = [random(2, 4, 5, 16), random(2, 2, 5, 16), random(2, 5, 16), random(2, 5, 16)]
    eager = function(*call)
    for layer, fits in ((kernel.layers.RotaryPosEmb, False), (kernel.layers.RotaryPosEmbUpcast, True)):
        with pytest.MonkeyPatch.context() as context:
            context.setattr(function, "forward", layer.forward.__get__(function), raising=False)
            if fits:
                assert all(map(torch.equal, function(*call), eager))
            else:
                with pytest.raises(kernel.Error, match="another layer"):
                    function(*call)


def test_the_program_of_the_documentation(variant, calls, tmp_path, monkeypatch):
    """docs/python.md registers the layer for all models."""
    text = ROOT.joinpath("docs", "python.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "import kernels" in block]
    tmp_path.joinpath("dist").mkdir()
    tmp_path.joinpath("dist", "hub").symlink_to(variant)
    monkeypatch.chdir(tmp_path)
    model, inputs, names = family("qwen3"), words(), {}
    eager = model(**inputs).logits
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        exec(block, names)
        kernels.kernelize(model, mode=names["mode"])
        model(**inputs)
        calls.clear()
        assert torch.equal(model(**inputs).logits, eager) and calls == ["forward"] * 2
    kernelize(model, {})
    assert torch.equal(model(**inputs).logits, eager) and calls == ["forward"] * 2


# ---- Layers that are called directly ----

# The layer, the module of transformers, and the part of a head that rotates.
FORMS = [
    ("RotaryPosEmb", "llama", 1),
    ("RotaryPosEmb", "olmo2", 1),
    ("RotaryPosEmbUpcast", "modernbert", 1),
    ("RotaryPosEmbUpcast", "hunyuan_vl", 1),
    ("RotaryPosEmbPartial", "gpt_neox", 0.25),
    ("RotaryPosEmbPartial", "phi3", 0.5),
    ("RotaryPosEmbPartial", "glm4_moe", 1),
    ("RotaryPosEmbInterleaved", "glm", 0.5),
    ("RotaryPosEmbInterleaved", "glm4", 0.5),
    ("RotaryPosEmbInterleaved", "helium", 1),
    ("RotaryPosEmbInterleavedUpcast", "cohere", 1),
    ("RotaryPosEmbInterleavedUpcast", "cohere2", 1),
    ("RotaryPosEmbSingle", "gemma3n", 1),
    ("RotaryPosEmbSingle", "gemma4", 1),
]


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("layer, name, part", FORMS, ids=[name for _, name, _ in FORMS])
def test_layers_have_the_bits_of_eager(layer, name, part, dtype, device, kernel, calls):
    """Compares results and gradients, for both values of unsqueeze_dim. One call of the library rotates all tensors."""
    function, instance = modeling(name).apply_rotary_pos_emb, getattr(kernel.layers, layer)()
    formula = casts_once(function) if name == "modernbert" else function
    cos, sin = (random(2, 5, int(32 * part), device=device, dtype=dtype) for _ in range(2))
    for unsqueeze_dim in (1, 2):
        shapes = [(2, 4, 5, 32), (2, 3, 5, 32)] if unsqueeze_dim == 1 else [(2, 5, 4, 32), (2, 5, 3, 32)]
        shapes = shapes[:1] if layer == "RotaryPosEmbSingle" else shapes
        tensors = [random(*shape, device=device, dtype=dtype) for shape in shapes]
        calls.clear()
        check(
            lambda *x: instance(*x, cos, sin, unsqueeze_dim),
            tensors,
            lambda *x: formula(*x, cos, sin, unsqueeze_dim=unsqueeze_dim),
            bits=True,
        )
        assert calls.count("forward") == 1 and calls.count("backward") > 0
        tables = cos[:1], sin.transpose(0, 1).contiguous().transpose(0, 1)[:1]  # for all batch entries; other strides
        results = instance(*tensors, *tables, unsqueeze_dim - 4)  # counted from the end
        wanted = formula(*tensors, *tables, unsqueeze_dim=unsqueeze_dim)
        results, wanted = ([x] if isinstance(x, torch.Tensor) else x for x in (results, wanted))
        assert all(map(torch.equal, results, wanted))


@pytest.mark.parametrize("layer, name, part", FORMS, ids=[name for _, name, _ in FORMS])
def test_compiled_layers_have_no_graph_break_and_take_any_length(layer, name, part, kernel, calls):
    torch._dynamo.reset()
    instance, count = getattr(kernel.layers, layer)(), 1 if layer == "RotaryPosEmbSingle" else 2
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(instance, fullgraph=True, dynamic=True, backend=backend)
    frames = []
    for tokens in (5, 7):
        cos, sin = (random(2, tokens, int(32 * part)) for _ in range(2))
        tensors = [random(2, 4, tokens, 32, grad=True) for _ in range(count)]

        def run(layer):
            results = layer(*tensors, cos, sin)
            results = [results] if count == 1 else results
            return [*results, *torch.autograd.grad([(y * y).sum() for y in results], tensors)]

        eager = run(instance)
        run(compiled)
        calls.clear()
        assert all(map(torch.equal, run(compiled), eager)) and calls == ["forward", "backward"]
        frames.append(backend.frame_count)
    assert 0 < frames[0] == frames[1]  # the second length compiled nothing more
    torch._dynamo.reset()


@pytest.mark.parametrize("q_dtype, table_dtype", [(BF16, F32), (F16, F32), (F32, BF16)])
@pytest.mark.parametrize("name", ["olmo2", "cohere", "modernbert"])
def test_tables_of_another_dtype(name, q_dtype, table_dtype, kernel):
    """The results have the dtype of q, as in the functions that cast their results."""
    layer = {"olmo2": "RotaryPosEmb", "cohere": "RotaryPosEmbInterleavedUpcast", "modernbert": "RotaryPosEmbUpcast"}[name]
    cos, sin = (random(2, 5, 32, dtype=table_dtype) for _ in range(2))
    function = casts_once(modeling(name).apply_rotary_pos_emb)
    tensors = [random(2, 4, 5, 32, dtype=q_dtype), random(2, 3, 5, 32, dtype=q_dtype)]
    check(
        lambda q, k: getattr(kernel.layers, layer)()(q, k, cos, sin),
        tensors,
        lambda q, k: function(q, k, cos, sin),
        bits=True,
    )


@pytest.mark.parametrize("table_dtype", [F32, torch.float64])
def test_float64(table_dtype, kernel):
    """Finite differences need float64. The layers that cast to float32 refuse it."""
    cos, sin = (random(2, 5, 32, dtype=table_dtype) for _ in range(2))
    tensors = [random(2, 4, 5, 32, dtype=torch.float64), random(2, 3, 5, 32, dtype=torch.float64)]
    function = modeling("llama").apply_rotary_pos_emb
    check(
        lambda q, k: kernel.layers.RotaryPosEmb()(q, k, cos, sin), tensors, lambda q, k: function(q, k, cos, sin), bits=True
    )
    for layer in (kernel.layers.RotaryPosEmbUpcast(), kernel.layers.RotaryPosEmbInterleavedUpcast()):
        with pytest.raises(kernel.Error, match="q is torch.float64") as caught:
            layer(*tensors, cos, sin)
        assert caught.value.argument == "q"


def make_norms(name):
    """Returns the norms of q and k of a model, and a function that applies a norm to [batch, heads, tokens, head_dim]."""
    cls = {"qwen3": "Qwen3RMSNorm", "gemma3": "Gemma3RMSNorm", "olmo2": "Olmo2RMSNorm"}[name]
    of_token = name == "olmo2"
    norms = [getattr(modeling(name), cls)(32 * heads if of_token else 32, eps=1e-6) for heads in (4, 2)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight, 0.0 if name == "gemma3" else 1.0, 0.2)

    def apply(norm, x):
        if not of_token:
            return norm(x)
        return norm(x.transpose(1, 2).flatten(2)).unflatten(2, (-1, 32)).transpose(1, 2)

    return norms, apply


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "olmo2"])
def test_norm_and_rotation(name, dtype, is_compiled, kernel, calls):
    """One call computes norms and rotation. Results and gradients differ from eager's by some roundings."""
    torch._dynamo.reset()
    norms, apply = make_norms(name)
    norms = [norm.to(dtype) for norm in norms]
    q, k = random(2, 4, 5, 32, dtype=dtype, grad=True), random(2, 2, 5, 32, dtype=dtype, grad=True)
    cos, sin = (random(2, 5, 32, dtype=dtype) for _ in range(2))
    upstream = [torch.randn(x.shape).to(dtype) for x in (q, k)]
    leaves = [q, k, *[norm.weight for norm in norms]]
    wanted = modeling("llama").apply_rotary_pos_emb(apply(norms[0], q), apply(norms[1], k), cos, sin)
    layer = kernel.layers.RotaryPosEmbNormed()
    layer = torch.compile(layer, fullgraph=True, backend="aot_eager") if is_compiled else layer
    calls.clear()
    results = layer(q, k, *norms, cos, sin)
    assert calls == ["forward"]
    gradients = torch.autograd.grad(results, leaves, upstream)
    assert calls == ["forward", "backward"]
    slack = 2.0**-20 if dtype == F32 else 2.0**-7
    for x, y in zip((*results, *gradients), (*wanted, *torch.autograd.grad(wanted, leaves, upstream))):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert (x.double() - y.double()).norm() <= slack * y.double().norm()
    torch._dynamo.reset()


def test_norms_that_the_kernel_defines(kernel):
    """Norm of the kernel does the same as the module."""
    norms, _ = make_norms("gemma3")
    q, k, cos, sin = random(2, 4, 5, 32), random(2, 2, 5, 32), random(2, 5, 32), random(2, 5, 32)
    given = [kernel.Norm(norm.weight, eps=1e-6, plus_one=True, rounding="product") for norm in norms]
    layer = kernel.layers.RotaryPosEmbNormed()
    assert all(map(torch.equal, layer(q, k, *given, cos, sin), layer(q, k, *norms, cos, sin)))


# ---- Refusals ----

Q, K, TABLE = (torch.randn(*shape, device=DEVICE) for shape in ((2, 4, 5, 16), (2, 2, 5, 16), (2, 5, 16)))
GOOD = dict(q=Q, k=K, cos=TABLE, sin=TABLE)
REFUSED = [
    ("q", dict(q=Q[0]), "q has shape .* 4 dimensions"),
    ("q", dict(q=None), "q must be a torch tensor, not NoneType"),
    ("k", dict(k=K.cpu().numpy()), "k must be a torch tensor, not ndarray"),
    ("k", dict(k=K[:, :, :4]), "k has 4 tokens .* cos has 5 rows"),
    ("k", dict(k=K.to(BF16)), "k has dtype bfloat16"),
    ("cos", dict(cos=TABLE.double(), sin=TABLE.double()), "cos"),
    ("k", dict(k=K[..., :8]), "for k with 8 elements in a head"),
    ("k", dict(k=K[:1]), "k has shape .* with batch 1"),
    ("q", dict(unsqueeze_dim=2), "q has 4 tokens .unsqueeze_dim is 2., and cos has 5 rows"),
    ("q", dict(cos=TABLE.new_ones(2, 9, 16), sin=TABLE.new_ones(2, 9, 16)), "q has 5 tokens .* cos has 9 rows"),
    ("cos", dict(cos=TABLE[0], sin=TABLE[0]), "cos has shape .* 3 dimensions"),
    ("cos", dict(cos=TABLE[..., :8], sin=TABLE[..., :8]), "cos has 8 columns, and must have 16"),
    ("cos", dict(cos=TABLE.repeat(1, 1, 2), sin=TABLE.repeat(1, 1, 2)), "cos has 32 columns"),
    ("cos", dict(cos=TABLE.repeat(2, 1, 1), sin=TABLE.repeat(2, 1, 1)), "cos"),
    ("cos", dict(cos=TABLE.clone().requires_grad_()), "cos requires a gradient"),
    (
        "cos",
        dict(q=Q.to(F16), k=K.to(F16), cos=TABLE.to(BF16), sin=TABLE.to(BF16)),
        "cos is torch.bfloat16, and q is torch.float16",
    ),
    ("sin", dict(sin=TABLE[:, :, :8]), "sin is .*, and cos is"),
    ("sin", dict(sin=TABLE.to(BF16)), "sin is .*, and cos is"),
    ("unsqueeze_dim", dict(unsqueeze_dim=0), "unsqueeze_dim must be 1 or -3"),
    ("unsqueeze_dim", dict(unsqueeze_dim=True), "unsqueeze_dim must be 1 or -3"),
    ("unsqueeze_dim", dict(unsqueeze_dim="1"), "unsqueeze_dim must be 1 or -3"),
]


@pytest.mark.parametrize("argument, change, words", REFUSED, ids=["%d-%s" % (i, row[0]) for i, row in enumerate(REFUSED)])
def test_refused_arguments(argument, change, words, kernel, calls):
    """The error names the argument of the layer, and nothing was computed."""
    with pytest.raises(kernel.Error, match=words) as caught:
        kernel.layers.RotaryPosEmb()(**{**GOOD, **change})
    assert caught.value.argument == argument and not calls


def test_refused_parts_and_norms(kernel, calls):
    def refused(argument, words, layer, *call):
        with pytest.raises(kernel.Error, match=words) as caught:
            getattr(kernel.layers, layer)()(*call)
        assert caught.value.argument == argument

    refused(
        "cos",
        "cos has 7 columns, and must have an even number up to 16",
        "RotaryPosEmbPartial",
        Q,
        K,
        *[TABLE[..., :7]] * 2,
    )
    refused("cos", "cos has 32 columns", "RotaryPosEmbInterleaved", Q, K, *[TABLE.repeat(1, 1, 2)] * 2)
    refused("x", "x has 4 tokens", "RotaryPosEmbSingle", Q[:, :, :4], TABLE, TABLE)
    norm = torch.nn.RMSNorm(16, eps=1e-6)
    refused("q_norm", "q_norm is a LayerNorm", "RotaryPosEmbNormed", Q, K, torch.nn.LayerNorm(16), norm, TABLE, TABLE)
    refused("k_norm", "k_norm normalises 8 elements", "RotaryPosEmbNormed", Q, K, norm, torch.nn.RMSNorm(8), TABLE, TABLE)
    hooked = torch.nn.RMSNorm(16, eps=1e-6)
    hooked.register_forward_hook(lambda *_: None)
    refused("k_norm", "k_norm has forward hooks", "RotaryPosEmbNormed", Q, K, norm, hooked, TABLE, TABLE)
    assert not calls


# ---- The folder ----


def test_the_folder_needs_nothing_else(folder, tmp_path):
    """It works in an interpreter without this package, and with another kernel of the same name beside it."""
    other = tmp_path / "hub"
    shutil.copytree(folder, other)
    (changed,) = other.joinpath("build").iterdir()
    with changed.joinpath("layers.py").open("a") as file:
        file.write("\n# another version\n")
    done = make(LIBRARY, tmp_path / "again", *VARIANT)  # the same files get the same id
    assert done.returncode == 0, done.stderr
    again = json.loads(next(tmp_path.joinpath("again", "build").iterdir()).joinpath("metadata.json").read_text())
    metadata = json.loads(changed.joinpath("metadata.json").read_text())
    assert again == metadata
    metadata["id"] = "_trope_%s_other" % DEVICE
    changed.joinpath("metadata.json").write_text(json.dumps(metadata))
    program = """
import pathlib, sys
import kernels, torch
device, *paths = sys.argv[1:]
one, two = [kernels.get_local_kernel(pathlib.Path(path), backend=device) for path in paths]
assert one.__name__ != two.__name__ and "trope" not in sys.modules
q, k, table = [torch.randn(*shape, device=device) for shape in ((2, 4, 5, 16), (2, 2, 5, 16), (2, 5, 16))]
results = [kernel.layers.RotaryPosEmb()(q, k, table, table) for kernel in (one, two)]
assert all(map(torch.equal, *results)) and not torch.equal(results[0][0], q)
for kernel in (one, two):
    operator = getattr(torch.ops, kernel.__name__).rotate
    assert "%s::rotate" % kernel.__name__ in str(operator.default._schema)
    compiled = torch.compile(kernel.layers.RotaryPosEmb(), fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(q, k, table, table), results[0]))
"""
    paths = {os.path.dirname(os.path.dirname(module.__file__)) for module in (kernels, hf)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop("TROPE_LIBRARY", None)
    command = [sys.executable, "-c", program, DEVICE, str(folder), str(other)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout


def test_operators_of_the_kernel_and_of_the_package_are_separate(kernel):
    x, table = random(2, 5, 3, 16), random(5, 16)
    options = dict(layout="bshd", pairing="half", cos=table, sin=table, angle_columns="half")
    assert kernel.rotate is not trope.torch.rotate
    assert torch.equal(kernel.rotate(x, **options), trope.torch.rotate(x, **options))
    assert getattr(torch.ops, kernel.__name__).rotate is not torch.ops.trope.rotate


def test_the_metadata_is_right(variant, kernel):
    """kernels reads the metadata, the digest fits the files, and build.toml is valid."""
    metadata = _rust.Metadata.read_from_file(variant / "metadata.json")
    assert (metadata.id, metadata.version, metadata.license) == (kernel.__name__, 0, "mit")
    metadata.digest.validate(_rust.Digest.hash_variant(_rust.DigestAlgorithm.SHA256, variant))
    _rust.Build.open(HUB)
    assert set(kernel.__all__) <= set(vars(kernel))


def test_the_page_on_the_hub(folder, variant, kernel, monkeypatch):
    """Its metadata is valid, it names the version and all layers, it has no link to a file, and its programs run."""
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    metadata = _rust.Metadata.read_from_file(variant / "metadata.json")
    assert (card.data.library_name, card.data.license) == ("kernels", metadata.license)
    assert set(re.findall(r"version=(\w+)", card.text)) == {str(metadata.version)}
    layers = {name for name, value in vars(kernel.layers).items() if isinstance(value, type)}
    assert layers == set(re.findall(r"^\| `(\w+)`", card.text, re.M))
    assert not re.findall(r"\]\((?!https:).*", card.text)
    monkeypatch.setattr(kernels, "get_kernel", lambda *_, **__: kernel)
    programs = re.findall(r"^```python\n(.*?)^```", card.text, re.M | re.S)
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        exec("".join(programs), {})


def test_python_follows_the_rules_of_the_hub(variant):
    """Python 3.9 can parse each file. Absolute imports are of the standard library, torch, NumPy and typing_extensions."""
    allowed = {"torch", "numpy", "typing_extensions", *sys.stdlib_module_names}
    for path in variant.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 9))):
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            assert {name.partition(".")[0] for name in names} <= allowed, (path, names)


def test_variants_for_cuda(tmp_path):
    """A library with CUDA gets a variant for its major version. make.py refuses a library without CUDA."""
    done = make(LIBRARY, tmp_path, "--local", "--cuda", "13.0", "--archs", "9.0,10.0+PTX")
    if "cuda" not in trope.info().splitlines()[1]:
        assert done.returncode and "has no backend cuda" in done.stderr and not any(tmp_path.iterdir())
        return
    assert done.returncode == 0, done.stderr
    (variant,) = tmp_path.joinpath("build").iterdir()
    assert "-cu130-" in variant.name
    backend = _rust.Metadata.read_from_file(variant / "metadata.json").backend
    assert backend.archs == ["9.0", "10.0+PTX"]
    decision = kernels.variants._resolve_variant_for_system(
        kernels.variants.get_variants_local(variant.parent), kernels.backends.CUDA(kernels.backends.Version("13.2")),
        os.uname().machine, "linux", kernels.backends.Version("2.11"), True, None,
    )  # fmt: skip
    assert [each.variant_str for each in decision[0]] == [variant.name]


def test_only_local_folders_get_a_library_that_needs_a_new_glibc(tmp_path):
    library, folder = tmp_path / "libtrope.so", tmp_path / "hub"
    library.write_bytes(pathlib.Path(LIBRARY).read_bytes() + b"GLIBC_2.29")
    done = make(library, folder)
    assert done.returncode and "needs glibc 2." in done.stderr and "--local" in done.stderr and not folder.exists()
    assert make(library, folder, "--local").returncode == 0 and folder.joinpath("README.md").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([__file__], "is no library of trope"),
        ([LIBRARY, "--cuda", "13.0"], "--archs is missing"),
        ([LIBRARY, "--archs", "9.0"], "--cuda is missing"),
        ([LIBRARY, "--cuda", "13", "--archs", "9.0"], "--cuda must be a version"),
        ([LIBRARY, "--cuda", "13.0", "--archs", "sm_90"], "--archs must be capabilities"),
    ],
)
def test_make_refuses(arguments, words, tmp_path):
    done = make(arguments[0], tmp_path / "hub", *arguments[1:])
    assert done.returncode and words in done.stderr and not any(tmp_path.iterdir())
