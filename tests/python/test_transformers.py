"""trope.transformers: tiny random models of each family, eager and patched, bit for bit; what is refused; undo."""

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

import trope  # noqa: E402
from trope import transformers as patches  # noqa: E402

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)
    yield
    assert not patches._patched, "a test left something patched"


def modeling(name):
    return importlib.import_module("transformers.models.%s.modeling_%s" % (name, name))


# ---- Models ----

SIZES = dict(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
MOE = dict(n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32)
MLA = dict(q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4)
SLIDING = dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])


def rope(**parameters):
    return dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4, **parameters})


YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, truncate=False)
LONG = rope(rope_type="longrope", short_factor=[1 + i / 8 for i in range(8)], long_factor=[2.0 + i for i in range(8)])
GEMMA4 = dict(head_dim=32, global_head_dim=32, hidden_size_per_layer_input=8, vocab_size_per_layer_input=64,
              num_kv_shared_layers=0, **SLIDING)  # fmt: skip
DEEPSEEK_V4 = dict(
    num_key_value_heads=1, head_dim=32, partial_rotary_factor=0.5, q_lora_rank=32, o_groups=2, o_lora_rank=32,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, index_n_heads=2, index_head_dim=32, index_topk=2,
    layer_types=["compressed_sparse_attention", "heavily_compressed_attention"],
    compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
)  # fmt: skip
LLAMA4 = dict(head_dim=32, intermediate_size_mlp=96, num_local_experts=2, num_experts_per_tok=1)

# The class, its config, and how often two layers call a rotary function.
FAMILIES = {
    "llama": ("Llama", {}, 2),
    "qwen2": ("Qwen2", {}, 2),
    "qwen3": ("Qwen3", dict(head_dim=16), 2),
    "gemma3": ("Gemma3", dict(head_dim=32, **SLIDING), 2),
    "phi3": ("Phi3", rope(partial_rotary_factor=0.5), 2),
    "phi3_longrope": ("Phi3", dict(LONG, original_max_position_embeddings=8), 2),
    "gpt_neox": ("GPTNeoX", rope(partial_rotary_factor=0.25), 2),
    "glm4": ("Glm4", dict(head_dim=16, **rope(partial_rotary_factor=0.5)), 2),
    "cohere": ("Cohere", {}, 2),
    "deepseek_v2": ("DeepseekV2", dict(qk_rope_head_dim=32, first_k_dense_replace=1, **MLA, **MOE), 2),
    "deepseek_v3": ("DeepseekV3", dict(qk_rope_head_dim=8, first_k_dense_replace=1, **MLA, **MOE), 2),
    # q, k and, inversely, the result of attention; compressed tokens, and those and q of the indexer.
    "deepseek_v4": ("DeepseekV4", DEEPSEEK_V4, 2 * 3 + 2 + 2),
    "ernie4_5": ("Ernie4_5", {}, 2),
    "gpt_oss": ("GptOss", dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, **SLIDING, **YARN), 2),
    "olmo2": ("Olmo2", {}, 2),
    "llama4": ("Llama4", LLAMA4, 2),
    # A call for q and one for k.
    "gptj": ("GPTJ", dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0), 4),
    "gemma4": ("Gemma4", GEMMA4, 4),
    "nanochat": ("NanoChat", {}, 2),
}


def randomize(model):
    """Weights that are neither 0 nor 1, in train mode."""
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.1) if p.dim() > 1 else p.add_(torch.randn_like(p) * 0.1)
    return model.train()


def make(cls, config):
    config._attn_implementation = "eager"
    return randomize(cls(config))


def family(name):
    cls, options, _ = FAMILIES[name]
    cls = getattr(hf, cls + "ForCausalLM")
    return make(cls, cls.config_class(**{**SIZES, **options}))


def words(tokens=11):
    return dict(input_ids=torch.randint(3, SIZES["vocab_size"], (2, tokens)))


def run(model, inputs, weights, autocast=False):
    """The result, and the gradients of its product with random weights."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        y = model(**inputs)
    y = y.logits if "logits" in y else y.last_hidden_state
    (y.float() * weights).sum().backward()
    return y.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def differing(gradients, others):
    """The names of those that have other bits."""
    assert gradients.keys() == others.keys() and gradients
    return {name for name, g in gradients.items() if not torch.equal(g, others[name])}


def agree(name, gradients, others):
    """Whether the bits are the same. For gemma4, nearly: dq and dk have the values of eager's, but lie in memory as the
    upstream gradients do, and eager's are contiguous. That is the order in which PyTorch sums them up to gradients of
    weights, by norms and by matrix products: up to 112 terms (tokens and heads), so as many roundings; another one to bf16.
    """
    names = differing(gradients, others)
    if name != "gemma4":
        return not names
    bound = 112 * 2**-24 + (2**-8 if next(iter(gradients.values())).dtype == BF16 else 0)
    return all((gradients[each] - others[each]).norm() <= bound * gradients[each].norm() for each in names)


def casts_once(original):
    """The function on float32, rounded once: the gradient that OLMo 2 and its like have here. See the test."""

    def rotary(*args, **kwargs):
        dtype = args[0].dtype
        args = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
        results = original(*args, **{name: x.float() if isinstance(x, torch.Tensor) else x for name, x in kwargs.items()})
        return tuple(y.to(dtype) for y in results) if isinstance(results, tuple) else results.to(dtype)

    return rotary


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, dtype, monkeypatch):
    """Logits bit for bit, and all gradients of parameters but these:

    olmo2, ernie4_5, deepseek_v4 in bf16: 16-bit q is multiplied by float32 tables as it is, or is cast for each of the two
    products. Autograd then rounds both terms of dq to bf16 and adds them in bf16; here their sum is rounded once, which is
    what autograd does with the same function if q is cast once before it. To that, gradients are compared bit for bit.
    gemma4: see agree.
    """
    model, inputs = family(name).to(dtype), words()
    weights = torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    assert eager.isfinite().all() and eager.std() > 0
    if dtype == BF16 and name in ("olmo2", "ernie4_5", "deepseek_v4"):
        with monkeypatch.context() as context:
            module = modeling(name)
            context.setattr(module, "apply_rotary_pos_emb", casts_once(module.apply_rotary_pos_emb))
            logits, once = run(model, inputs, weights)
        assert torch.equal(logits, eager) and differing(gradients, once)  # eager's double rounding is there
        gradients = once
    with patches.patch(model) as handle:
        patched, others = run(model, inputs, weights)
    assert torch.equal(patched, eager) and patched.dtype == dtype
    assert handle.calls == FAMILIES[name][2]
    assert agree(name, gradients, others)
    assert torch.equal(run(model, inputs, weights)[0], eager) and handle.calls == FAMILIES[name][2]


MROPE = dict(SIZES, head_dim=16, max_position_embeddings=128, **rope(mrope_section=[2, 3, 3], mrope_interleaved=True))
QWEN_IDS = dict(image_token_id=5, video_token_id=6, vision_start_token_id=3, vision_end_token_id=4)
QWEN_VISION = dict(depth=2, num_heads=2, patch_size=4, in_channels=3, spatial_merge_size=2, temporal_patch_size=2)


def make_qwen2_vl():
    vision = dict(QWEN_VISION, embed_dim=32, hidden_size=64, mlp_ratio=2)
    return make(hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLConfig(text_config=MROPE, vision_config=vision, **QWEN_IDS))


def make_qwen3_vl():
    vision = dict(QWEN_VISION, hidden_size=32, intermediate_size=32, out_hidden_size=64, num_position_embeddings=16,
                  deepstack_visual_indexes=[0])  # fmt: skip
    return make(hf.Qwen3VLForConditionalGeneration, hf.Qwen3VLConfig(text_config=MROPE, vision_config=vision, **QWEN_IDS))


def vision(**more):
    return dict(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, patch_size=4, **more)


def make_mistral3():
    config = hf.Mistral3Config(
        text_config=dict(SIZES, model_type="mistral", head_dim=16), image_token_index=5, spatial_merge_size=2,
        vision_config=vision(model_type="pixtral", head_dim=32, image_size=16), vision_feature_layer=-1,
    )  # fmt: skip
    return make(hf.Mistral3ForConditionalGeneration, config)


def make_gemma4():
    tower = vision(head_dim=32, num_key_value_heads=2, pooling_kernel_size=2, position_embedding_size=64)
    config = hf.Gemma4Config(text_config=dict(SIZES, **GEMMA4), vision_config=tower, audio_config=None, image_token_id=5)
    return make(hf.Gemma4ForConditionalGeneration, config)


def make_llama4_vision():
    tower = vision(image_size=16, vision_output_dim=64, projector_input_dim=64, projector_output_dim=64)
    return make(hf.Llama4VisionModel, hf.Llama4VisionConfig(**{**tower, "intermediate_size": 256}))


def image_words(**more):
    """Text with 4 image tokens, that begin at different places."""
    ids = torch.randint(10, 64, (2, 14))
    ids[0, 2] = ids[1, 4] = 3
    ids[0, 3:7] = ids[1, 5:9] = 5
    return dict(input_ids=ids, **more)


def with_types(inputs):
    return dict(inputs, mm_token_type_ids=(inputs["input_ids"] == 5).long())


def qwen_inputs():
    grid = torch.tensor([[1, 4, 4], [1, 2, 8]])
    return with_types(image_words(pixel_values=torch.randn(32, 3 * 2 * 4 * 4), image_grid_thw=grid))


def gemma4_inputs():
    ids = torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, 16, 2)
    return with_types(image_words(pixel_values=torch.rand(2, 16, 3 * 4 * 4), image_position_ids=ids))


def mistral3_inputs():
    return image_words(pixel_values=torch.randn(2, 3, 16, 16), image_sizes=torch.tensor([[16, 16], [16, 16]]))


# What makes it, its inputs, and how often each function is called.
IMAGES = {
    "qwen2_vl": (make_qwen2_vl, qwen_inputs, [2, 2]),
    "qwen3_vl": (make_qwen3_vl, qwen_inputs, [2, 2]),
    "mistral3": (make_mistral3, mistral3_inputs, [2, 2]),
    # The tower's function turns height and width of q and of k by the same one as the text.
    "gemma4": (make_gemma4, gemma4_inputs, [4 + 8]),
    "llama4_vision": (make_llama4_vision, lambda: dict(pixel_values=torch.randn(2, 3, 16, 16)), [2]),
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, dtype):
    """Vision towers, and M-RoPE of text with images: as test_family."""
    build, make_inputs, calls = IMAGES[name]
    model = build()
    complex_tables = {module: b for module in model.modules() for b in module.buffers(False) if b.is_complex()}
    model = model.to(dtype)
    for module, table in complex_tables.items():  # of which `to` keeps the cosines alone
        with patches.patch(model), pytest.raises(trope.Error, match="not tried before patching: .* tables torch.b?float"):
            model(**{name: x.to(dtype) for name, x in make_inputs().items()})
        module.freqs_ci = table
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in make_inputs().items()}
    weights = torch.randn((2, 14, 64) if "input_ids" in inputs else (64,))
    eager, gradients = run(model, inputs, weights)
    assert eager.isfinite().all() and any("vis" in name or "patch" in name for name in gradients)
    with patches.patch(model) as handle:
        patched, others = run(model, inputs, weights)
    assert torch.equal(patched, eager)
    assert handle._counts() == calls
    assert agree(name, gradients, others)


# ---- Autocast, torch.compile, checkpointing ----


@pytest.mark.parametrize("name", ["llama", "phi3", "deepseek_v3", "glm4", "gpt_oss"])
def test_autocast(name):
    """float32 weights and tables, bf16 q and k: the result is rounded at the store here, and by the product behind it in
    eager. In its backward, eager rounds the two terms of dq to bf16 and their sum, here the sum is rounded: gradients are
    apart by two roundings a layer at most, 2^-8 each."""
    model, inputs, weights = family(name), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights, autocast=True)
    assert eager.dtype == BF16
    seen = []
    with patches.patch(model) as handle:
        rotate = patches._rotations.rotate
        spy = functools.wraps(rotate)(lambda *x, **o: seen.append((x[0].dtype, o["rounding"])) or rotate(*x, **o))
        patches._rotations.rotate = spy
        try:
            patched, others = run(model, inputs, weights, autocast=True)
        finally:
            patches._rotations.rotate = rotate
    assert torch.equal(patched, eager) and handle.calls == 2
    assert set(seen) == {(BF16, "native_f32")}
    for each, gradient in gradients.items():
        assert (others[each] - gradient).norm() <= 2 * 2 * 2**-8 * gradient.norm(), each


def test_promotes_outside_autocast():
    """As eager: 16-bit q and float32 tables give float32."""
    llama = modeling("llama")
    q, k = torch.randn(2, 4, 5, 16, dtype=BF16), torch.randn(2, 2, 5, 16, dtype=BF16)
    cos, sin = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    eager = llama.apply_rotary_pos_emb(q, k, cos, sin)
    with patches.patch(family("llama")):
        patched = llama.apply_rotary_pos_emb(q, k, cos, sin)
        with torch.autocast("cpu", dtype=F16):  # q is of another dtype than autocast makes
            other = llama.apply_rotary_pos_emb(q, k, cos, sin)
    for results in (patched, other):
        assert all(x.dtype == F32 and torch.equal(x, y) for x, y in zip(results, eager))


def test_compile():
    """No graph break, the bits of eager; what is compiled notices undo. Calls that are compiled are not counted."""
    torch._dynamo.reset()
    model, inputs, weights = family("llama").to(BF16), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with patches.patch(model) as handle:
        patched, others = run(compiled, inputs, weights)
        assert torch.equal(patched, eager) and handle.calls == 0
        assert not differing(gradients, {each.removeprefix("_orig_mod."): g for each, g in others.items()})
    assert torch.equal(run(compiled, inputs, weights)[0], eager)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["deepseek_v3.apply_rotary_pos_emb_interleave", "deepseek_v4.apply_rotary_pos_emb",
                                  "llama4.apply_rotary_emb", "gptj.apply_rotary_pos_emb"])  # fmt: skip
def test_functions_compile(name):
    """Also under autocast."""
    torch._dynamo.reset()
    it = rotary(name)
    tensors = [torch.randn(2, 5, 5, 32, dtype=BF16) for _ in it.tensors]
    columns = {"deepseek_v3": 32, "deepseek_v4": 8}.get(name.partition(".")[0], 16)
    tables = [torch.randn(2, 5, columns) for _ in range(2)]
    tables = [torch.complex(*tables)] if len(it.tables) == 1 else tables
    given = dict(zip(it.tensors + it.tables, (*tensors, *tables)))
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=BF16, enabled=autocast):
            compiled = torch.compile(it.replacement, fullgraph=True, backend="aot_eager")(**given)
            for y, wanted in zip(compiled, it.original(**given)):
                assert torch.equal(y, wanted.to(y.dtype)) and (autocast or y.dtype == wanted.dtype)


@pytest.mark.parametrize("name", ["llama", "gptj", "deepseek_v4", "llama4"])
def test_generate(name):
    """With a cache of keys, one token at a time: the same tokens."""
    model, ids = family(name).eval(), words(7)["input_ids"]
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, eos_token_id=None)
    eager = model.generate(ids, **options)
    with patches.patch(model) as handle:
        assert torch.equal(model.generate(ids, **options), eager)
    assert handle.calls >= 5 * FAMILIES[name][2] // 2 and eager.shape == (2, 12)


def test_checkpointing():
    model, inputs, weights = family("llama").to(BF16), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    for reentrant in (False, True):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=reentrant))
        with patches.patch(model) as handle:
            patched, others = run(model, inputs, weights)
        assert torch.equal(patched, eager) and not differing(gradients, others)
        assert handle.calls == 4  # a layer runs again in backward


# ---- Functions: all bodies that transformers 5.24 has ----

LLAMA, MLA_WORDS = "half, columns half, whole heads", "interleaved to half, first half of the columns, whole heads"
NATIVE, WIDE, UPCAST = "native, float32", "native, native_f32", "native_f32, native_f32"
BODIES = {
    "llama.apply_rotary_pos_emb": (LLAMA, NATIVE),
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
REFUSED = {  # by what in the message
    "clvp.apply_rotary_pos_emb": "its parameters are",
    "dinov3_vit.apply_rotary_pos_emb": "its parameters are",
    "edgetam_video.apply_rotary_pos_emb_2d_cross_attn": "its parameters are",
    "eomt_dinov3.apply_rotary_pos_emb": "its parameters are",
    "gemma4.apply_multidimensional_rope": "its parameters are",  # but it calls gemma4.apply_rotary_pos_emb
    "muse_glimmer_assistant.apply_rotary_pos_emb": "it takes tables of 5 rows for q of 4 tokens",
    "musicflamingo.apply_rotary_time_emb": "its parameters are",
    "sam2_video.apply_rotary_pos_emb_2d": "its parameters are",
    "sam3_tracker_video.apply_rotary_pos_emb_2d": "its parameters are",
    "sapiens2.apply_rotary_pos_emb": "its parameters are",
}


@functools.lru_cache(maxsize=None)
def rotary(name):
    """The _Rotary of "model.function", which patch would make."""
    model, _, function = name.partition(".")
    try:
        return patches._Rotary(getattr(modeling(model), function), name)
    except (ImportError, AttributeError):
        pytest.skip("transformers %s has no %s" % (hf.__version__, name))


@pytest.mark.parametrize("name", BODIES)
def test_words(name):
    """How each function turns, as a reader of its body says."""
    turns, rounds = BODIES[name]
    recipe = rotary(name).recipe
    assert str(recipe).startswith(turns + ", ")
    found = [("float32" if result != BF16 else rounding) for (q, table), (result, rounding) in recipe.roundings.items()
             if q == BF16 and table in (BF16, F32, torch.complex64)]  # fmt: skip
    assert ", ".join(found) == rounds
    assert all(word in str(recipe) for word in found)


def find_error(function):
    """Why it is refused, or ""."""
    try:
        patches._Rotary(function, function.__name__)
        return ""
    except trope.Error as error:
        return str(error)


def read_text(function):
    """Of a function and of all functions of its module that it names: equal texts do the same."""
    named = [function.__globals__.get(name) for name in patches._names_in(function.__code__)]
    return "".join(inspect.getsource(each) for each in (function, *named) if isinstance(each, types.FunctionType))


def test_all_functions():
    """Of 241 in transformers 5.24, those that are refused are known, by name. Each text is asked once."""
    if not hf.__version__.startswith("5.24."):
        pytest.skip("the list is of transformers 5.24, and this is %s" % hf.__version__)
    models, errors, names = pathlib.Path(hf.__file__).parent / "models", {}, {}
    for path in sorted(models.glob("*/modeling_*.py")):
        for name in re.findall(r"^def (\w+)", path.read_text(), re.M):
            if patches._NAME.search(name):
                module = importlib.import_module("transformers.models.%s.%s" % (path.parent.name, path.stem))
                function = getattr(module, name)
                text = names["%s.%s" % (path.stem.removeprefix("modeling_"), name)] = read_text(function)
                if text not in errors:
                    errors[text] = find_error(function)
    refused = {name: errors[text] for name, text in names.items() if errors[text]}
    assert len(names) == 241
    assert refused.keys() == REFUSED.keys()
    assert all(message in refused[name] for name, message in REFUSED.items())


TABLES = {"codegen": 2, "gpt_oss": 2, "openai_privacy_filter": 2, "deepseek_v4": 2}  # two elements a column


CAST_ONCE = {  # q and k, by the function, to float32
    "cohere.apply_rotary_pos_emb", "glm4v.apply_rotary_pos_emb_vision", "hunyuan_vl.apply_rotary_pos_emb",
    "inkling2.apply_rotary_pos_emb_vision", "sam3.apply_rotary_pos_emb_2d", "llama4.apply_rotary_emb",
    "llama4.vision_apply_rotary_emb", "deepseek_v2.apply_rotary_emb",
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_other_shapes(name):
    """What patch did not try: heads of 64, views of packed QKV as q and k, tables of batch 1 that are views, other windows.
    Results have eager's bits. So has dq in f32, where rounding is native, and where q is cast once. Else eager rounds the
    two terms of dq and their sum, and here the sum is rounded, each by a unit of what is rounded at most."""
    it = rotary(name)
    (_, dims, unsqueeze_dim), (layout, has_heads) = next(iter(it.recipe.forms.items()))
    width = 64 if it.recipe.whole else 32
    columns = width // 2 if len(it.tables) == 1 else width // TABLES.get(name.partition(".")[0], 1)
    tokens, combinations = 9, [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F32, BF16)]
    for dtype, table in combinations if len(it.tables) == 2 else [(F32, F32), (BF16, F32), (F16, F32)]:
        packed = torch.randn(2, tokens, 6 + 3, 64, dtype=dtype)
        packed = packed if layout == "bshd" else packed.transpose(1, 2) if layout == "bhsd" else packed[0]
        tensors = list(packed.split((6, 3), 1 if layout != "bshd" else 2))[: len(it.tensors)]
        rows = (1,) * (dims == 3 and not has_heads) + (tokens,) + (1,) * has_heads
        tables = [torch.randn(*rows, columns + 6, dtype=table)[..., 3:-3] for _ in range(2)]
        if len(it.tables) == 1:
            tables = [torch.complex(*tables)]
        call = dict(zip(it.tables, tables), **(dict(unsqueeze_dim=unsqueeze_dim) if unsqueeze_dim is not None else {}))
        results, gradients = [], []
        for function in (it.original, it.replacement):
            leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors]
            y = function(**dict(zip(it.tensors, leaves)), **call)
            y = y if isinstance(y, tuple) else (y,)
            torch.manual_seed(1)
            gradients.append(torch.autograd.grad(y, leaves, [torch.randn(each.shape).to(each.dtype) for each in y]))
            results.append(y)
        for eager, patched in zip(*results):
            assert torch.equal(eager, patched) and eager.dtype == patched.dtype
        for eager, patched in zip(*gradients):
            if dtype == F32 or name in CAST_ONCE or it.recipe.roundings[dtype, tables[0].dtype] == (dtype, "native"):
                assert torch.equal(eager, patched)
            else:
                unit = 2.0 ** (-8 if dtype == BF16 else -11)
                terms = 2 * 5 * max(float(t.abs().max()) for t in tables)  # |dy| < 5, two terms
                assert (eager.double() - patched.double()).abs().max() <= 3 * unit * terms


def test_tables_of_any_strides():
    """cos and sin that differ; complex ones that are conjugated lazily."""
    q, k = torch.randn(2, 5, 3, 32), torch.randn(2, 5, 1, 32)
    cos, sin = torch.randn(2, 5, 32), torch.randn(2, 32, 5).transpose(1, 2)
    table = torch.complex(torch.randn(1, 5, 16), torch.randn(1, 5, 16)).expand(2, 5, 16).conj()
    for name, tables in (("llama.apply_rotary_pos_emb", (cos, sin, 2)), ("llama4.apply_rotary_emb", (table,))):
        it = rotary(name)
        for x, y in zip(it.original(q, k, *tables), it.replacement(q, k, *tables)):
            assert torch.equal(x, y)


def test_position_ids_are_looked_at_by_nobody():
    """As in eager."""
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
    with pytest.raises(trope.Error, match="k is None"):
        rotary("llama.apply_rotary_pos_emb").replacement(q, None, cos, sin)


# ---- What is refused ----

CALLS = {  # on Llama's function, of q and k [2, heads, 5, 16] and tables [2, 5, 16]
    "q or k is .* 5 rows for 16 elements": dict(q=torch.randn(2, 3, 4, 16)),
    "3 rows for 16": dict(cos=torch.randn(2, 3, 16), sin=torch.randn(2, 3, 16)),
    "for 8 elements of a head": dict(cos=torch.randn(2, 5, 8), sin=torch.randn(2, 5, 8)),
    "for 32 elements of a head": dict(cos=torch.randn(2, 5, 32), sin=torch.randn(2, 5, 32)),
    "is of batch 3": dict(cos=torch.randn(3, 5, 16), sin=torch.randn(3, 5, 16)),
    "unsqueeze_dim 3": dict(unsqueeze_dim=3),
    "not tried before patching: q torch.complex64": dict(q=torch.randn(2, 3, 5, 16, dtype=torch.complex64)),
    r"with tables torch.float32 \[1, 2, 5, 16\]": dict(cos=torch.randn(1, 2, 5, 16), sin=torch.randn(1, 2, 5, 16)),
    "sin must have the shape": dict(sin=torch.randn(2, 5, 8)),
    "and dtype of cos": dict(sin=torch.randn(2, 5, 16, dtype=BF16)),
    "requires a gradient": dict(cos=torch.randn(2, 5, 16, requires_grad=True)),
    "k is None": dict(k=None),
}


@pytest.mark.parametrize("message", CALLS)
def test_calls_that_are_refused(message):
    tensors, tables = [torch.randn(2, heads, 5, 16) for heads in (3, 1)], torch.randn(2, 2, 5, 16)
    call = dict(q=tensors[0], k=tensors[1], cos=tables[0], sin=tables[1])
    it = rotary("llama.apply_rotary_pos_emb")
    it.replacement(**call)
    with pytest.raises(trope.Error, match=message):
        it.replacement(**{**call, **CALLS[message]})


def test_calls_that_lack_arguments():
    it = rotary("llama.apply_rotary_pos_emb")
    q = torch.randn(2, 3, 5, 16)
    for args, kwargs in (((q, q, q), {}), ((q,) * 4, dict(other=1)), ((q,) * 6, {})):
        with pytest.raises(TypeError):
            it.replacement(*args, **kwargs)


def load(source, name="modeling_made_up"):
    """A module of that source, which Python knows until the end of the test."""
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
BROKEN = {  # what becomes of Llama's function, and how it is refused
    "sign": ("(-x2, x1)", "(x2, x1)", "no pairing"),
    "halves": ("k * cos + rotate_half(k) * sin", "q * cos + rotate_half(q) * sin", "no pairing"),
    "k": ("k * cos + rotate_half(k) * sin", "k * cos - rotate_half(k) * sin", "no pairing"),
    "tables": ("cos, sin = cos", "sin = sin / 3\n    cos, sin = cos", "no pairing"),
    "product": ("q * cos +", "(q * cos).half().to(q.dtype) +", "no pairing"),
    "sum": ("return q * cos", "return q.bfloat16() * cos", "no pairing"),
    "bf16": ("return q * cos +", "return (q.double() * cos).to(q.dtype) +", "neither rounding"),
    "tables of 16 bits": ("cos, sin = cos", "cos = cos.bfloat16().to(cos.dtype)\n    cos, sin = cos", "no pairing"),
    "rows": ("cos, sin = cos", "cos, sin = cos[..., -q.shape[2]:, :], sin[..., -q.shape[2]:, :]\n    cos, sin = cos",
             "it takes tables of"),
    "detached": ("q * cos +", "q.detach() * cos +", "its gradient is not"),
    "no autograd": ("def apply", "@torch.no_grad()\ndef apply", "autograd does not"),
    "parameters": ("unsqueeze_dim=1)", "unsqueeze_dim)", "its parameters are"),
    "nothing": ("cos, sin = cos", "raise NotImplementedError\n    cos, sin = cos", "it takes no q and k"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_functions_that_are_refused(what, made_up):
    """Llama's function is known; with a change that a patch would get wrong, it is refused by name."""
    old, new, message = BROKEN[what]
    with patches.patch(made_up(FUNCTION + ATTENTION).Attention()):
        pass
    assert FUNCTION.count(old) >= 1
    module = made_up(FUNCTION.replace(old, new) + ATTENTION)
    before = dict(vars(module))
    with pytest.raises(trope.Error, match="modeling_made_up.apply_rotary_pos_emb: " + message):
        patches.patch(module.Attention())
    assert vars(module) == before


def test_one_known_and_one_unknown(made_up):
    """Nothing is patched."""
    module = made_up(FUNCTION + "def apply_rotary_2d(q, k, grid):\n    return q, k\n" + ATTENTION + """
class Vision(torch.nn.Module):
    def forward(self, q, grid):
        return [apply_rotary_2d(q, q, g) for g in grid]
""")  # fmt: skip
    original = module.apply_rotary_pos_emb
    both = torch.nn.ModuleList([module.Attention(), module.Vision()])
    with pytest.raises(trope.Error, match=r"modeling_made_up.apply_rotary_2d: its parameters are \(q, k, grid\)"):
        patches.patch(both)
    assert module.apply_rotary_pos_emb is original
    with patches.patch(both[0]):  # whose methods do not call the other
        assert module.apply_rotary_pos_emb is not original


def test_functions_that_are_held_elsewhere(made_up):
    """By an instance or a class, where replacing the module's does nothing."""
    module = made_up(FUNCTION + """
class Instance(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary = apply_rotary_pos_emb

class Class(torch.nn.Module):
    rotary = staticmethod(apply_rotary_pos_emb)
""")  # fmt: skip
    with pytest.raises(trope.Error, match=r"modeling_made_up.Instance.rotary is a rotary function"):
        patches.patch(torch.nn.Sequential(module.Instance()))
    with pytest.raises(trope.Error, match=r"modeling_made_up.Class.rotary is a rotary function"):
        patches.patch(module.Class())


def test_functions_by_other_names(made_up):
    """Imported as something else, or called as an attribute of a module."""
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


def test_what_cannot_be_replaced(made_up):
    """A function that no module of sys.modules has, and one that is no function of Python, are refused by name."""
    space = dict(torch=torch, __name__="modeling_made_up_nowhere")
    exec(FUNCTION + ATTENTION, space)
    with pytest.raises(
        trope.Error, match="nowhere.apply_rotary_pos_emb is called by a module that sys.modules does not have"
    ):
        patches.patch(space["Attention"]())
    module = made_up("import operator\napply_rotary_pos_emb = operator.itemgetter(0)\n" + ATTENTION)
    with pytest.raises(trope.Error, match="modeling_made_up.apply_rotary_pos_emb: its parameters "):
        patches.patch(module.Attention())


KERNEL = FUNCTION.replace("def apply_rotary_pos_emb", "def plain") + """
class Func(torch.nn.Module):
    kernel_layer_name = "rotary_pos_emb"
    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        return plain(q, k, cos, sin, unsqueeze_dim)

apply_rotary_pos_emb = Func()
"""


def test_functions_of_kernels(made_up):
    """The package kernels makes such a module of a decorated function. As a global it is replaced; with another forward, as
    kernelize gives it, it is asked again; as a submodule it is refused."""
    module = made_up(KERNEL + ATTENTION)
    model, q, cos = module.Attention(), torch.randn(2, 3, 5, 32), torch.randn(2, 5, 32)
    eager, original = model(q, q, cos, cos.flip(-1)), module.apply_rotary_pos_emb
    with patches.patch(model) as handle:
        patched = model(q, q, cos, cos.flip(-1))
    assert torch.equal(eager[0], patched[0]) and handle.calls == 1
    assert "modeling_made_up.apply_rotary_pos_emb: half" in repr(handle)
    assert module.apply_rotary_pos_emb is original
    original.forward = lambda q, k, cos, sin, unsqueeze_dim=1: (q.clone(), k.clone())
    with pytest.raises(trope.Error, match="modeling_made_up.apply_rotary_pos_emb: no pairing"):
        patches.patch(model)
    del original.forward
    model.rotary = original
    with pytest.raises(trope.Error, match="modeling_made_up.Attention.rotary is a rotary function"):
        patches.patch(model)


REFUSED_MODELS = {
    "RoFormer": (dict(embedding_size=64), r"SelfAttention\.apply_rotary_position_embeddings is a method that rotates"),
    "GPT2": (dict(n_embd=64, n_layer=1, n_head=2), "GPT2Model calls no rotary function"),
    "DINOv3ViT": (dict(image_size=16, patch_size=4), "modeling_dinov3_vit.apply_rotary_pos_emb: its parameters are"),
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models_that_are_refused(name):
    options, message = REFUSED_MODELS[name]
    cls = getattr(hf, name + "Model")
    with torch.device("meta"):
        model = cls(cls.config_class(**{**SIZES, **options}))
    with pytest.raises(trope.Error, match=message):
        patches.patch(model)


# ---- Undo ----


def test_undo_gives_back_the_objects(made_up, caplog):
    """Also to modules that took the function by value, before and after."""
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
def test_patches_of_the_same_function(first):
    """It stays patched until both are undone, in either order, and each has its count."""
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


def test_undo_leaves_what_others_have_put_there():
    llama, model = modeling("llama"), family("llama")
    original = llama.apply_rotary_pos_emb
    try:
        with patches.patch(model):
            llama.apply_rotary_pos_emb = other = lambda *args: None
        assert llama.apply_rotary_pos_emb is other
    finally:
        llama.apply_rotary_pos_emb = original


def test_patching_in_odd_places():
    """In inference mode, under autocast and with another default device and dtype, and the random state stays."""
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
    """As python -m trope.transformers, without the seconds of a new process."""
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
