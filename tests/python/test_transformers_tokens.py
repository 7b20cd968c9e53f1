"""trope.transformers: models whose function leaves tokens out, or rotates q and k by different rows, eager and patched."""

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers", minversion="5")

from test_transformers import (  # noqa: E402, F401 (seed is a fixture of all tests)
    BF16, F32, differing, make, modeling, randomize, seed, vision, words,
)  # fmt: skip
from test_transformers_functions import gradient_of, rotary  # noqa: E402

import trope  # noqa: E402
from checks import DEVICE  # noqa: E402
from reference import of_table, rotate  # noqa: E402
from trope import transformers as patches  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("default_device")]


# ---- Models ----


def make_dinov3():
    """Makes a model without the random scale that its tables have in training."""
    more = dict(num_register_tokens=3, query_bias=True, key_bias=True, pos_embed_rescale=None)
    config = hf.DINOv3ViTConfig(**vision(image_size=16, **more))
    return make(hf.DINOv3ViTModel, config), dict(pixel_values=torch.randn(2, 3, 16, 16))


def make_memory_attention(name, prefix, **sizes):
    """Makes a memory attention. Images of 3 x 4 tokens attend to themselves and to a memory, which ends with 3 object
    pointers."""
    sizes = dict(sizes, memory_attention_rope_feat_sizes=[3, 4])
    config = getattr(hf, prefix + "Config")(
        memory_attention_hidden_size=64, memory_attention_num_layers=2, memory_attention_feed_forward_hidden_size=32,
        memory_attention_rope_dropout=0.0, memory_attention_dropout=0.0,
    )  # fmt: skip
    for key, value in sizes.items():
        setattr(config, key, value)
    model = make(getattr(modeling(name), prefix + "MemoryAttention"), config)
    is_edgetam = name == "edgetam_video"  # two groups of one temporal and four spatial tokens
    memory = torch.randn(2, (2 * (1 + 4) if is_edgetam else 2 * 12) + 3, 2, 64)
    more = dict(num_spatial_memory_tokens=2) if is_edgetam else {}
    inputs = dict(
        current_vision_features=torch.randn(12, 2, 64), memory=memory[0], memory_posision_embeddings=memory[1],
        current_vision_position_embeddings=torch.randn(12, 2, 64), num_object_pointer_tokens=3, **more
    )  # fmt: skip
    return model, inputs


def make_edgetam():
    sizes = dict(memory_attention_rope_q_sizes=[3, 4], memory_attention_rope_k_sizes=[2, 2])
    return make_memory_attention("edgetam_video", "EdgeTamVideo", **sizes)


def make_clvp():
    sizes = dict(hidden_size=128, intermediate_size=64, projection_dim=128, num_hidden_layers=2, num_attention_heads=2)
    config = hf.ClvpEncoderConfig(vocab_size=64, attention_dropout=0.0, dropout=0.0, **sizes)
    return make(modeling("clvp").ClvpEncoder, config), dict(words(), position_ids=torch.randperm(11)[None])


def make_muse_glimmer_assistant():
    module, config = modeling("muse_glimmer_assistant"), hf.MuseGlimmerAssistantConfig()
    config.hidden_size, config.head_dim, config.num_attention_heads, config.num_key_value_heads = 64, 16, 4, 2
    attention = module.MuseGlimmerAssistantAttention(config, 0)
    attention.config._attn_implementation = "eager"
    hidden, tables = torch.randn(2, 9, 64), torch.randn(2, 2, 9, 16)
    inputs = dict(hidden_states=hidden[:, 6:], context_hidden_states=hidden[:, :6], position_embeddings=tuple(tables))
    return randomize(attention), inputs


# The function that makes a module and its inputs, and the number of calls of each rotary function.
PARTIAL = {
    "dinov3": (make_dinov3, [2]),
    "sam2": (lambda: make_memory_attention("sam2_video", "Sam2Video"), [4]),
    "sam3_tracker": (lambda: make_memory_attention("sam3_tracker_video", "Sam3TrackerVideo"), [4]),
    "edgetam": (make_edgetam, [2, 2]),
    "clvp": (make_clvp, [2]),
    "muse_glimmer_assistant": (make_muse_glimmer_assistant, [1]),
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", PARTIAL)
def test_tokens_that_do_not_rotate(name, dtype):
    """Like test_family, for models whose function leaves tokens out, or rotates q and k by different rows."""
    build, calls = PARTIAL[name]
    try:
        model, inputs = build()
    except AttributeError:
        pytest.skip("transformers %s has no %s" % (hf.__version__, name))
    model, weights = model.to(dtype), torch.randn(16)

    def cast(x):
        return (
            tuple(map(cast, x))
            if isinstance(x, tuple)
            else x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
        )

    def step():
        model.zero_grad()
        y = model(**{key: cast(value) for key, value in inputs.items()})
        y = y if torch.is_tensor(y) else y[0]
        (y.float().unflatten(-1, (-1, 16)) * weights).sum().backward()
        return y.detach(), {each: p.grad.clone() for each, p in model.named_parameters() if p.grad is not None}

    eager, gradients = step()
    assert eager.isfinite().all() and eager.std() > 0
    with patches.patch(model) as handle:
        patched, others = step()
        assert [count for count, *_ in handle._counts()] == calls
    assert torch.equal(patched, eager) and patched.dtype == dtype
    assert not differing(gradients, others)


@pytest.mark.parametrize("name", ["dinov3", "sam3_tracker", "edgetam", "clvp", "muse_glimmer_assistant"])
def test_models_with_tokens_that_do_not_rotate_compile(name):
    torch._dynamo.reset()
    model, inputs = PARTIAL[name][0]()
    eager = model(**inputs)
    with patches.patch(model, compiled=True) as handle:
        patched = torch.compile(model, backend="aot_eager")(**inputs)
        assert handle.traced >= sum(PARTIAL[name][1])
    for x, y in zip(*[(y,) if torch.is_tensor(y) else tuple(y.values()) if hasattr(y, "values") else y[:1]
                      for y in (eager, patched)]):  # fmt: skip
        assert torch.equal(x, y)
    torch._dynamo.reset()


# ---- Functions ----

# The cases of each function: the numbers of tokens in q and k, the numbers of rows in cos and cos_k, and other arguments.
# Then the row that rotates each token of q, and of k. Tokens with None are unchanged.
STAYS = [None]
TOKENS = {
    "dinov3_vit.apply_rotary_pos_emb": [
        (9, 9, 5, 0, {}, STAYS * 4 + [*range(5)], STAYS * 4 + [*range(5)]),
        (5, 5, 5, 0, {}, range(5), range(5)),
    ],
    "muse_glimmer_assistant.apply_rotary_pos_emb": [
        (3, 9, 9, 0, {}, range(6, 9), range(9)),
        (9, 9, 9, 0, {}, range(9), range(9)),
    ],
    "sam3_tracker_video.apply_rotary_pos_emb_2d": [
        (6, 6, 6, 0, {}, range(6), range(6)),
        (6, 22, 6, 0, dict(num_k_exclude_rope=4, repeat_freqs_k=True), range(6), [*range(6)] * 3 + STAYS * 4),
        (6, 4, 6, 0, dict(num_k_exclude_rope=4, repeat_freqs_k=True), range(6), STAYS * 4),
    ],
    "edgetam_video.apply_rotary_pos_emb_2d_cross_attn": [
        (6, 24, 6, 5, dict(num_k_exclude_rope=3, repeat_freqs_k=3), range(6), (STAYS * 2 + [*range(5)]) * 3 + STAYS * 3),
        (6, 5, 6, 5, {}, range(6), range(5)),
        (6, 3, 6, 5, dict(num_k_exclude_rope=3), range(6), STAYS * 3),
    ],
}


def turn_tokens(x, cos, sin, rows, interleaved):
    """Rotates each token of x [batch, heads, tokens, head_dim] by its row of cos and sin [1, rows, columns], in float64."""
    y, turning = x.double().transpose(1, 2).clone(), [token for token, row in enumerate(rows) if row is not None]
    tables = [table.double()[:, [rows[token] for token in turning]] for table in (cos, sin)]
    pairing = "interleaved" if interleaved else "half"
    y[:, turning] = rotate(y[:, turning], of_table(*tables, pairing), pairing)
    return y.transpose(1, 2)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name, case", [(name, i) for name in TOKENS for i in range(len(TOKENS[name]))])
def test_tokens_rotate_by_their_rows(name, case, dtype):
    """Results have eager's bits, strides and gradient, and agree with the formula. q and k have strides that patch has not
    tried."""
    it = rotary(name)
    n_q, n_k, rows, rows_k, more, rows_of_q, rows_of_k = TOKENS[name][case]
    interleaved = it.recipe.options["pairing"] == "interleaved"
    table_dtype = F32 if interleaved else dtype  # SAM's models cast q and k to it
    q, k = torch.randn(2, n_q, 3, 16, dtype=dtype).transpose(1, 2), torch.randn(2, n_k, 2, 16, dtype=dtype).transpose(1, 2)
    tables = torch.randn(4, 1, max(rows, rows_k), 16, dtype=table_dtype)
    call = dict(q=q, k=k, cos=tables[0, :, :rows], sin=tables[1, :, :rows], **more)
    if rows_k:
        call.update(cos_k=tables[2, :, :rows_k], sin_k=tables[3, :, :rows_k])
    eager, patched = it.original(**call), it.replacement(**call)
    tables_k = (call["cos_k"], call["sin_k"]) if rows_k else (call["cos"], call["sin"])
    for x, cos_and_sin, wanted, i in ((q, (call["cos"], call["sin"]), rows_of_q, 0), (k, tables_k, rows_of_k, 1)):
        assert torch.equal(patched[i], eager[i]) and patched[i].dtype == eager[i].dtype == dtype
        assert patched[i].stride() == eager[i].stride()
        formula = turn_tokens(x, *cos_and_sin, wanted, interleaved)
        assert (patched[i].double() - formula).abs().max() <= 2.0 ** (-20 if dtype == F32 else -5) and len(
            wanted
        ) == x.shape[2]
    gradients = [gradient_of(function, call, ("q", "k")) for function in (it.original, it.replacement)]
    assert all(torch.equal(x, y) for x, y in zip(*gradients))


def test_position_ids_choose_rows():
    """CLVP: position_ids choose rows of the tables for q, k and v. Negative ids count from the end, as in PyTorch."""
    it = rotary("clvp.apply_rotary_pos_emb")
    x, tables = torch.randn(3, 2, 3, 5, 16), torch.randn(2, 9, 16)
    for ids in (torch.randint(9, (2, 5)), torch.randint(9, (1, 5)), torch.tensor([[-1, 0, 8, -9, 3]])):
        call = dict(q=x[0], k=x[1], v=x[2], cos=tables[0], sin=tables[1], position_ids=ids)
        for each, eager, patched in zip(x, it.original(**call), it.replacement(**call)):
            assert torch.equal(eager, patched)
            wanted = turn_tokens(each, *tables[:, ids % 9], range(5), False)
            assert (patched - wanted).abs().max() < 2.0**-20
        assert all(torch.equal(x, y) for x, y in zip(*[gradient_of(function, call, ("q", "k", "v"))
                                                       for function in (it.original, it.replacement)]))  # fmt: skip
    with pytest.raises(trope.Error, match="position_ids must be a torch tensor"):
        it.replacement(**{**call, "position_ids": None})


BAD_TOKENS = {  # the function, changes to a call with 6 tokens in q and k, and the message
    "a keyword": ("dinov3_vit.apply_rotary_pos_emb", dict(other=1), "was not tried when the function was patched: keyword "
                                                                    "other"),
    "more rows": ("dinov3_vit.apply_rotary_pos_emb", dict(cos=torch.randn(9, 16), sin=torch.randn(9, 16)), "cos has 9 rows"),
    "a float": ("sam3_tracker_video.apply_rotary_pos_emb_2d", dict(num_k_exclude_rope=1.0), "num_k_exclude_rope must be"),
    "too many": ("sam3_tracker_video.apply_rotary_pos_emb_2d", dict(num_k_exclude_rope=7), "0 to 6"),
    "no repeat": ("sam3_tracker_video.apply_rotary_pos_emb_2d", dict(num_k_exclude_rope=1), "5 tokens of k rotate"),
    "several heads": (
        "sam3_tracker_video.apply_rotary_pos_emb_2d", dict(cos=torch.randn(2, 6, 16), sin=torch.randn(2, 6, 16)),
        r"cos has shape \[2, 6, 16\], and must have 1 in dimension 0",
    ),
    "no divisor": ("edgetam_video.apply_rotary_pos_emb_2d_cross_attn", dict(repeat_freqs_k=4), "repeat_freqs_k must be"),
    "zero": ("edgetam_video.apply_rotary_pos_emb_2d_cross_attn", dict(repeat_freqs_k=0), "repeat_freqs_k must be"),
    "rows of k": ("edgetam_video.apply_rotary_pos_emb_2d_cross_attn", dict(repeat_freqs_k=2), "cos_k has 6 rows for 3 tokens"),
    "no table": ("edgetam_video.apply_rotary_pos_emb_2d_cross_attn", dict(sin_k=None), "sin_k must be a torch tensor"),
    "another sin": (
        "edgetam_video.apply_rotary_pos_emb_2d_cross_attn", dict(sin_k=torch.randn(5, 16)), r"sin_k has shape \[5, 16\], but cos_k",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_TOKENS)
def test_calls_that_are_refused(what):
    """Eager would accept and broadcast tables [heads, tokens, columns]. They are refused, because they have no batch
    dimension."""
    name, changes, message = BAD_TOKENS[what]
    call = dict(q=torch.randn(2, 2, 6, 16), k=torch.randn(2, 2, 6, 16), cos=torch.randn(6, 16), sin=torch.randn(6, 16))
    if "edgetam" in name:
        call.update(cos_k=torch.randn(6, 16), sin_k=torch.randn(6, 16))
    it = rotary(name)
    it.replacement(**call)
    changes = {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in changes.items()}
    with pytest.raises(trope.Error, match=message):
        it.replacement(**{**call, **changes})
