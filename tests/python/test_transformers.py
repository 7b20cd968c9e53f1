"""trope.transformers: tiny random models of each family, eager and patched, are compared bit for bit."""

import copy
import functools
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers", minversion="5")

import trope  # noqa: E402
from checks import DEVICE  # noqa: E402
from trope import torch as rotations  # noqa: E402
from trope import transformers as patches  # noqa: E402

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("default_device")]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)
    yield
    assert not patches._patched and not patches._fusions, "a test left something patched"


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

# The class, its config, and the number of calls of rotary functions in two layers.
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
    # Both layers rotate q, k and (inversely) the result of attention, and also compressed tokens. The indexer of one layer
    # rotates its q and compressed tokens.
    "deepseek_v4": ("DeepseekV4", DEEPSEEK_V4, 2 * 3 + 2 + 2),
    "ernie4_5": ("Ernie4_5", {}, 2),
    "gpt_oss": ("GptOss", dict(head_dim=16, num_local_experts=4, num_experts_per_tok=2, **SLIDING, **YARN), 2),
    "olmo2": ("Olmo2", {}, 2),
    "llama4": ("Llama4", LLAMA4, 2),
    # These rotate q and k by separate calls.
    "gptj": ("GPTJ", dict(n_embd=64, n_layer=2, n_head=4, rotary_dim=8, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0), 4),
    "gemma4": ("Gemma4", GEMMA4, 4),
    "nanochat": ("NanoChat", {}, 2),
}


def randomize(model):
    """Changes all weights at random, so that none is 0 or 1, and sets train mode."""
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
    """Returns the result, and the gradients of its dot product with random weights."""
    model.zero_grad()
    with torch.autocast(DEVICE, dtype=BF16, enabled=autocast):
        y = model(**inputs)
    y = y.logits if "logits" in y else y.last_hidden_state
    (y.float() * weights).sum().backward()
    return y.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def differing(gradients, others):
    """Returns the names of the gradients whose bits differ."""
    assert gradients.keys() == others.keys() and gradients
    return {name for name, g in gradients.items() if not torch.equal(g, others[name])}


COMPLEX = ("deepseek_v2", "llama4", "llama4_vision")  # models with complex tables
CLOSE = {F32: 2.0**-14, F16: 2.0**-6, BF16: 2.0**-6}


def is_same(y, eager, has_complex_tables=False, slack=1):
    """Whether y has eager's bits. On CUDA, PyTorch fuses a part of the product with a complex table. There, y must be close to
    eager's result."""
    if has_complex_tables and DEVICE == "cuda":
        return (y.double() - eager.double()).norm() <= slack * CLOSE[y.dtype] * eager.double().norm()
    return torch.equal(y, eager)


def agree(name, gradients, others):
    """Whether gradients have the same bits or, with complex tables (see is_same), for gemma4, and on CUDA for mistral3, are
    close. In gemma4, dq and dk have eager's values. But trope's have the memory layout of the upstream gradients, and eager's
    are contiguous. PyTorch therefore sums the gradients of weights, in norms and matrix products, in another order. A sum of
    up to 112 terms (tokens and heads) has as many roundings, and one more to bf16. CUDA's matrix products do the same for
    mistral3.
    """
    names = differing(gradients, others)
    if name != "gemma4" and (name != "mistral3" or DEVICE == "cpu"):
        return all(is_same(others[each], gradients[each], name in COMPLEX, slack=8) for each in names)
    bound = 112 * 2**-24 + (2**-8 if next(iter(gradients.values())).dtype == BF16 else 0)
    return all((gradients[each] - others[each]).norm() <= bound * gradients[each].norm() for each in names)


def casts_once(original):
    """Returns a function that computes in float32 and rounds once. For models like OLMo 2, trope has the gradients of this
    function: see test_family."""

    def rotary(*args, **kwargs):
        dtype = args[0].dtype
        args = [x.float() if isinstance(x, torch.Tensor) else x for x in args]
        results = original(*args, **{name: x.float() if isinstance(x, torch.Tensor) else x for name, x in kwargs.items()})
        return tuple(y.to(dtype) for y in results) if isinstance(results, tuple) else results.to(dtype)

    return rotary


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, dtype, monkeypatch):
    """Logits and gradients of parameters have eager's bits, with two exceptions for gradients:

    olmo2, ernie4_5, deepseek_v4 in bf16: these multiply 16-bit q by float32 tables without a cast, or cast q for each of
    the two products. Autograd then rounds both terms of dq to bf16 and adds them in bf16. trope rounds their sum once, as
    autograd does if q is cast once before the function. The gradients must have the bits of this variant, casts_once.

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
        assert torch.equal(logits, eager) and differing(gradients, once)  # eager does round twice
        gradients = once
    with patches.patch(model) as handle:
        patched, others = run(model, inputs, weights)
    assert is_same(patched, eager, name in COMPLEX) and patched.dtype == dtype
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
    """Returns two texts. Each has 4 image tokens, at different places."""
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


# The functions that make the model and its inputs, and the number of calls of each rotary function.
IMAGES = {
    "qwen2_vl": (make_qwen2_vl, qwen_inputs, [2, 2]),
    "qwen3_vl": (make_qwen3_vl, qwen_inputs, [2, 2]),
    "mistral3": (make_mistral3, mistral3_inputs, [2, 2]),
    # The tower calls the text's function four times in a layer: for height and width of q and of k.
    "gemma4": (make_gemma4, gemma4_inputs, [4 + 8]),
    "llama4_vision": (make_llama4_vision, lambda: dict(pixel_values=torch.randn(2, 3, 16, 16)), [2]),
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name, dtype):
    """Like test_family, for vision towers and for M-RoPE of text with images."""
    build, make_inputs, calls = IMAGES[name]
    model = build()
    complex_tables = {module: b for module in model.modules() for b in module.buffers(False) if b.is_complex()}
    model = model.to(dtype)
    for module, table in complex_tables.items():  # `to` keeps only their cosines
        with (
            patches.patch(model),
            pytest.raises(trope.Error, match="was not tried when the function was patched: .* tables torch.b?float"),
        ):
            model(**{name: x.to(dtype) for name, x in make_inputs().items()})
        module.freqs_ci = table
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in make_inputs().items()}
    weights = torch.randn((2, 14, 64) if "input_ids" in inputs else (64,))
    eager, gradients = run(model, inputs, weights)
    assert eager.isfinite().all() and any("vis" in name or "patch" in name for name in gradients)
    with patches.patch(model) as handle:
        patched, others = run(model, inputs, weights)
    assert is_same(patched, eager, name in COMPLEX)
    assert [count for count, *_ in handle._counts()] == calls
    assert agree(name, gradients, others)


# ---- Autocast, torch.compile, checkpointing ----


@pytest.mark.parametrize("name", ["llama", "phi3", "deepseek_v3", "glm4", "gpt_oss"])
def test_autocast(name):
    """Weights and tables are float32, q and k are bf16. trope rounds the result of the rotation when it stores it. In
    eager, the next product rounds it. In backward, eager rounds both terms of dq and their sum to bf16, and trope rounds
    only the sum. So each layer adds at most two roundings, of 2^-8 each, to the difference of gradients."""
    model, inputs, weights = family(name), words(), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights, autocast=True)
    assert eager.dtype == BF16
    seen = []
    with patches.patch(model) as handle:
        rotate = rotations.rotate
        spy = functools.wraps(rotate)(lambda *x, **o: seen.append((x[0].dtype, o["rounding"])) or rotate(*x, **o))
        rotations.rotate = spy
        try:
            patched, others = run(model, inputs, weights, autocast=True)
        finally:
            rotations.rotate = rotate
    assert torch.equal(patched, eager) and handle.calls == 2
    assert set(seen) == {(BF16, "native_f32")}
    for each, gradient in gradients.items():
        assert (others[each] - gradient).norm() <= 2 * 2 * 2**-8 * gradient.norm(), each


def test_dtypes_are_promoted_outside_autocast():
    """As in eager, 16-bit q and float32 tables give float32."""
    llama = modeling("llama")
    q, k = torch.randn(2, 4, 5, 16, dtype=BF16), torch.randn(2, 2, 5, 16, dtype=BF16)
    cos, sin = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    eager = llama.apply_rotary_pos_emb(q, k, cos, sin)
    with patches.patch(family("llama")):
        patched = llama.apply_rotary_pos_emb(q, k, cos, sin)
        with torch.autocast(DEVICE, dtype=F16):  # the dtype of q is not autocast's
            other = llama.apply_rotary_pos_emb(q, k, cos, sin)
    for results in (patched, other):
        assert all(x.dtype == F32 and torch.equal(x, y) for x, y in zip(results, eager))


def test_compile():
    """With compiled=True, compiled code has no graph break and eager's bits, and notices undo. Its calls are traced, but not
    counted."""
    torch._dynamo.reset()
    model, inputs, weights = family("llama").to(BF16), dict(words(), use_cache=False), torch.randn(2, 11, 64)
    eager, gradients = run(model, inputs, weights)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with patches.patch(model, compiled=True) as handle:
        assert handle.traced == handle.calls == 0
        for _ in range(3):
            patched, others = run(compiled, inputs, weights)
        assert torch.equal(patched, eager)
        assert not differing(gradients, {each.removeprefix("_orig_mod."): g for each, g in others.items()})
        assert handle.traced == 2 and handle.left_to_compiler == 0
        with pytest.warns(
            UserWarning, match="calls does not count the calls of compiled code, and torch.compile has traced 2 calls"
        ):
            assert handle.calls == 0
        assert repr(handle).endswith("0 calls, besides uncounted calls of compiled code (2 traced)")
        run(model, inputs, weights)
        with patches.patch(model) as later:  # code that was compiled before runs in this patch, too
            assert later.traced == 2
        with pytest.warns(UserWarning, match="traced 2 calls"):
            assert handle.calls == 2
    assert torch.equal(run(compiled, inputs, weights)[0], eager) and handle.traced == 2
    torch._dynamo.reset()


def test_compiled_code_of_a_patched_model_is_that_of_the_model():
    """It calls trope only while a Patch has compiled=True. Eager calls are trope's."""
    torch._dynamo.reset()
    model, inputs, graphs = family("llama").to(BF16), dict(words(), use_cache=False), []

    def backend(graph, examples):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    def count_calls(function):
        with trope.log_calls() as calls, torch.no_grad():
            function(**inputs)
        return sum(call.count for call in calls)

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert count_calls(compiled) == 0
    with patches.patch(model) as handle:
        assert (count_calls(compiled), count_calls(model)) == (0, 2) and graphs[1:] == graphs[:1]
        assert handle._counts() == [(2, 2, 2)] and handle.left_to_compiler == handle.traced == 2
        assert repr(handle).endswith("(2 traced, 2 of them left to the compiler)")
        with pytest.warns(UserWarning, match="torch.compile has traced 2 calls, 2 of them without trope"):
            assert handle.calls == 2
        with patches.patch(model, compiled=True), patches.patch(model):
            assert count_calls(compiled) == 2 and handle._counts() == [(2, 4, 2)]
        assert count_calls(compiled) == 0
    assert count_calls(compiled) == 0
    torch._dynamo.reset()


# ---- The meta device ----


def test_a_patched_model_on_the_meta_device():
    """Forward and backward have the shapes, dtypes and devices of eager, and read no values."""
    with torch.device("meta"):
        model = family("llama").to(BF16)
        mask, weights = torch.zeros(2, 1, 11, 11, dtype=BF16), torch.randn(2, 11, 64)
        inputs = dict(input_ids=torch.zeros(2, 11, dtype=torch.long), attention_mask=mask, use_cache=False)
        eager, gradients = run(model, inputs, weights)
        with patches.patch(model) as handle:
            patched, others = run(model, inputs, weights)
        assert handle.calls == 2
        assert patched.is_meta and (patched.shape, patched.dtype, patched.stride()) == (eager.shape, BF16, eager.stride())
        assert gradients.keys() == others.keys() and all(others[each].is_meta for each in others)
        assert all(others[each].shape == gradient.shape for each, gradient in gradients.items())


# ---- Other models of the same class; copies ----


def test_classes_has_all_classes_that_a_patch_changes():
    """The names include derived classes in other modules, unless they have a forward that does not rotate."""

    class Derived(modeling("llama").LlamaAttention):
        pass

    class Overridden(modeling("llama").LlamaAttention):
        def forward(self, *args, **kwargs):
            return None

    model, other, inputs = family("llama"), family("llama"), words()
    modeling("qwen2")
    handle = patches.patch(model)
    assert "transformers.models.llama.modeling_llama.LlamaAttention" in handle.classes
    assert [name.rpartition(".")[2] for name in handle.classes if "test_transformers" in name] == ["Derived"]
    assert not any("qwen2" in name or "LlamaMLP" in name for name in handle.classes)
    other(**inputs)
    assert handle.calls == 2
    with patches.patch(other) as second:
        handle.undo()
        assert "transformers.models.llama.modeling_llama.LlamaAttention" in second.classes
        assert handle.classes == second.classes
    assert handle.classes == second.classes == ()


def test_copies_and_pickles_of_a_patched_model():
    """A patch leaves no trace in a model: a copy is patched as long as its class is, and a pickle loads without trope."""
    model, inputs = family("llama").eval(), words()
    eager, before = model(**inputs).logits, pickle.dumps(model)
    with patches.patch(model) as handle:
        copied, pickled = copy.deepcopy(model), pickle.dumps(model)
        assert pickled == before
        for each in (copied, pickle.loads(pickled)):
            assert torch.equal(each(**inputs).logits, eager)
        assert handle.calls == 4
    for each in (copied, pickle.loads(pickled)):
        assert torch.equal(each(**inputs).logits, eager)
    assert handle.calls == 4


@pytest.mark.parametrize("name", ["llama", "gptj", "deepseek_v4", "llama4"])
def test_generate(name):
    """Generation with a key cache, one token at a time, gives the same tokens."""
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
        assert handle.calls == 4  # each layer runs again in backward
