"""trope.torch.RotaryEmbedding: what it reads from a config, its precision, and how it is made on the meta device."""

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from checks import DEVICES  # noqa: E402
from reference import of_table, rotate  # noqa: E402
from refusals import refused  # noqa: E402
from trope._models import model_rotation  # noqa: E402
from trope.torch import RotaryEmbedding  # noqa: E402

LLAMA = dict(model_type="llama", rope_theta=10000.0, head_dim=8, max_position_embeddings=64)
DEEPSEEK = dict(model_type="deepseek_v3", rope_theta=10000.0, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16)
NEOX = dict(
    model_type="gpt_neox", rotary_emb_base=10000, rotary_pct=0.25, hidden_size=64, num_attention_heads=2,
    max_position_embeddings=64,
)  # fmt: skip
QWEN2_VL = dict(LLAMA, model_type="qwen2_vl", head_dim=16, rope_scaling=dict(type="mrope", mrope_section=[3, 3, 2]))
SCALED = dict(type="longrope", short_factor=[1.0, 1.0, 1.0, 1.0], long_factor=[1.0, 2.0, 4.0, 8.0])
LONGROPE = dict(LLAMA, model_type="phi3", original_max_position_embeddings=16, rope_scaling=SCALED)
DYNAMIC = dict(LLAMA, max_position_embeddings=16, rope_scaling=dict(rope_type="dynamic", factor=2.0))
PLAIN = dict(layout="bshd", pairing="half")


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


# ---- Settings that a config determines ----


def test_deepseek_rotates_the_end_of_a_head():
    q, k_pe = random(2, 5, 3, 24), random(2, 5, 1, 8)
    y, z = RotaryEmbedding(DEEPSEEK, layout="bshd")(q, k_pe)
    frequencies = trope.frequencies(DEEPSEEK)
    wanted = trope.torch.rotate(
        q, k_pe, layout="bshd", pairing="interleaved", pairing_out="half", inv_freq=frequencies, rotary_dim=8,
        rotary_offset=(16, 0),
    )  # fmt: skip
    assert torch.equal(y, wanted[0]) and torch.equal(z, wanted[1])
    assert torch.equal(y[..., :16], q[..., :16]) and not torch.equal(y[..., 16:], q[..., 16:])
    v = random(2, 5, 3, 16)
    y, same = RotaryEmbedding(DEEPSEEK, layout="bshd", rotary_dim=(8, trope.COPY))(q, v)
    assert torch.equal(y, wanted[0]) and torch.equal(same, v)
    refused("tensors[0]", lambda: RotaryEmbedding(DEEPSEEK, layout="bshd")(random(2, 5, 3, 6)))


def test_partial_rotation():
    q = random(2, 5, 3, 32)
    y = RotaryEmbedding(NEOX, layout="bshd")(q)
    wanted = trope.torch.rotate(q, inv_freq=trope.frequencies(NEOX), rotary_dim=8, **PLAIN)
    assert torch.equal(y, wanted) and torch.equal(y[..., 8:], q[..., 8:])


def test_every_reader_of_configs_refuses_a_factor_that_the_class_ignores():
    config = {**LLAMA, "partial_rotary_factor": 0.5}
    readers = (trope.frequencies, model_rotation, lambda config: RotaryEmbedding(config, layout="bshd"))
    texts = {str(refused("partial_rotary_factor", reader, config, words="class of a llama")) for reader in readers}
    texts.add(str(refused("partial_rotary_factor", trope.frequencies, LLAMA, partial_rotary_factor=0.5)))
    assert len(texts) == 1


def test_axes():
    q, ids = random(2, 5, 3, 16), torch.stack([torch.arange(5) * n for n in (1, 2, 3)])[:, None].expand(3, 2, 5)
    module, frequencies = RotaryEmbedding(QWEN2_VL, layout="bshd"), trope.frequencies(QWEN2_VL)
    axes = trope.pair_axis("sections", [3, 3, 2])
    wanted = trope.torch.rotate(q, inv_freq=frequencies, position_ids=ids, pair_axis=axes, **PLAIN)
    assert torch.equal(module(q, position_ids=ids), wanted)
    text = trope.torch.rotate(q, inv_freq=frequencies, position_ids=ids[0], **PLAIN)
    assert torch.equal(module(q, position_ids=ids[0]), text)
    assert torch.equal(module(q, position_ids=ids[:1].expand(3, 2, 5)), text)
    refused("position_ids", module, q, position_ids=torch.cat((ids[:1], ids)), words="first axis")


YARN = dict(LLAMA, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))
UNKNOWN = {key: value for key, value in LLAMA.items() if key != "model_type"}
CONTRADICTIONS = [
    *((DEEPSEEK, "rotary_offset", value) for value in (0, 16)), (DEEPSEEK, "pairing", "half"),
    (DEEPSEEK, "pairing_out", "interleaved"), (DEEPSEEK, "rotary_dim", 24), (LLAMA, "pairing", "interleaved"),
    (LLAMA, "pairing_out", "interleaved"), (LLAMA, "inverse", True), (LLAMA, "rotary_dim", 4), (NEOX, "rotary_dim", 32),
    (NEOX, "rotary_offset", 8), (QWEN2_VL, "pair_axis", trope.pair_axis("interleaved", [3, 3, 2])), (LLAMA, "parts", 2),
    (YARN, "mscale", 1.0),
]  # fmt: skip
BAD_OPTIONS = [
    (LLAMA, "layout", "hsbd"), (LLAMA, "layout", ["bshd"]), (LLAMA, "layout", None), (UNKNOWN, "pairing", None),
    (LLAMA, "rotary_dims", 8), (LLAMA, "inv_freq", [1.0] * 4), (LLAMA, "freqs", random(5, 8)), (LLAMA, "learned", "yes"),
    (LLAMA, "mscale", "1"), (LLAMA, "rounding", "twice"), (LLAMA, "padding", "none"), (LLAMA, "parts", 0),
    (QWEN2_VL, "pair_axis", 5), (LLAMA, "rotary_dim", "8"), (5, "config", None),
]  # fmt: skip


@pytest.mark.parametrize("config, option, value", CONTRADICTIONS + BAD_OPTIONS)
def test_contradictions_and_bad_options_are_refused(config, option, value):
    options = dict(layout="bshd")
    options.update({} if option == "config" else {option: value})
    if value is None:
        options.pop(option, None)
    refused(option, RotaryEmbedding, config, **options)


def test_options_may_repeat_the_config():
    for config, options in (
        (LLAMA, dict(pairing="half", pairing_out="half", inverse=False, rotary_dim=8, rotary_offset=0)),
        (DEEPSEEK, dict(pairing="interleaved", pairing_out="half", rotary_dim=8)),
        (QWEN2_VL, dict(pair_axis=list(trope.pair_axis("sections", [3, 3, 2])))),
    ):
        RotaryEmbedding(config, layout="bshd", **options)
    frequencies = trope.frequencies(DEEPSEEK)  # to rotate another window than the config's
    RotaryEmbedding(frequencies, layout="bshd", pairing="half", rotary_dim=8, rotary_offset=0)(random(2, 5, 3, 24))


def test_options_that_depend_on_others_are_refused():
    frequencies = trope.frequencies(LLAMA)
    refused("layer_type", RotaryEmbedding, frequencies, layer_type="full_attention", **PLAIN)
    refused("seq_len", RotaryEmbedding, frequencies, seq_len=5, **PLAIN)
    refused("pairing", RotaryEmbedding, frequencies, layout="bshd")
    refused("cp_rank", RotaryEmbedding, LLAMA, layout="bshd", cp_size=2)
    for argument in ("positon_ids", "inv_freq", "freqs"):
        refused(argument, RotaryEmbedding(LLAMA, layout="bshd"), random(1, 5, 3, 8), **{argument: None})


def test_calls_that_are_refused():
    module = RotaryEmbedding(LLAMA, layout="bshd", rounding="native")
    x = random(2, 5, 3, 8)
    refused("rounding", lambda: module(x, rounding="native"))
    refused("rotary_dim", lambda: module(x, rotary_dim=8))
    refused("seq_len", lambda: module(x, seq_len=5))
    refused("tensors", lambda: module())
    refused("tensors[0]", lambda: module(None))
    refused("tensors[0]", lambda: module(x.numpy()))
    refused("position_ids", lambda: module(x, position_ids=[0, 1, 2, 3, 4]))


# ---- Frequencies that depend on the length ----


@pytest.mark.parametrize("config", [LONGROPE, DYNAMIC])
def test_frequencies_depend_on_the_length(config):
    module = RotaryEmbedding(config, layout="bshd")
    for tokens in (5, 16, 17, 40, 12):
        x = random(1, tokens, 2, 8)
        wanted = trope.torch.rotate(x, inv_freq=trope.frequencies(config, seq_len=tokens), **PLAIN)
        assert torch.equal(module(x), wanted)
        assert torch.equal(module(x, position_ids=torch.arange(tokens), seq_len=tokens), wanted)
        assert torch.equal(RotaryEmbedding(config, layout="bshd", seq_len=tokens)(x), wanted)
    short, long = (
        trope.torch.rotate(random(1, 5, 2, 8), inv_freq=trope.frequencies(config, seq_len=n), **PLAIN) for n in (16, 40)
    )
    assert not torch.equal(short, long) and torch.equal(module(random(1, 5, 2, 8), seq_len=40), long)
    half = RotaryEmbedding(config, layout="bshd", cp_size=2, cp_rank=0, cp_layout="contiguous")  # 24 tokens on two ranks
    x = random(1, 12, 2, 8)
    assert torch.equal(half(x), trope.torch.rotate(x, inv_freq=trope.frequencies(config, seq_len=24), **PLAIN))


@pytest.mark.parametrize("config", [LONGROPE, DYNAMIC])
def test_seq_len_is_required_if_the_host_cannot_see_the_length(config):
    module, x = RotaryEmbedding(config, layout="bshd"), random(1, 5, 2, 8)
    refused("seq_len", lambda: module(x, position_ids=torch.arange(5)))
    refused("seq_len", lambda: module(x, start_positions=torch.tensor([100])))
    packed = RotaryEmbedding(config, layout="thd")
    refused("seq_len", lambda: packed(x[0], cu_seqlens=torch.tensor([0, 2, 5])))
    assert packed(x[0], cu_seqlens=torch.tensor([0, 2, 5]), seq_len=3).shape == x[0].shape
    for bad in (0, -1, 1.5, "5", True):
        refused("seq_len", lambda: module(x, seq_len=bad))
        refused("seq_len", lambda: RotaryEmbedding(config, layout="bshd", seq_len=bad))
    refused("seq_len", lambda: RotaryEmbedding(config, layout="bshd", learned=True))
    RotaryEmbedding(config, layout="bshd", learned=True, seq_len=40)(x)


def test_transformers_chooses_the_same_frequencies():
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    sizes = dict(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=8, pad_token_id=0
    )
    scaled = {name: value for name, value in LONGROPE["rope_scaling"].items()}
    for cls, config in (
        (Phi3RotaryEmbedding, transformers.Phi3Config(
            **sizes, max_position_embeddings=64, original_max_position_embeddings=16, rope_scaling=scaled)),
        (LlamaRotaryEmbedding, transformers.LlamaConfig(
            **sizes, max_position_embeddings=16, rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    ):  # fmt: skip
        for tokens in (5, 40):
            x = random(1, tokens, 2, 8)
            cos, sin = cls(config)(x, torch.arange(tokens)[None])
            wanted = rotate(x, of_table(cos, sin, "half"), "half")
            torch.testing.assert_close(RotaryEmbedding(config, layout="bshd")(x), wanted, atol=1e-5, rtol=1e-5)


def test_lengths_under_compile():
    module = RotaryEmbedding(DYNAMIC, layout="bshd", seq_len=40)
    x = random(1, 5, 2, 8)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), module(x))


# ---- Precision ----


def learned(**options):
    return RotaryEmbedding(dict(LLAMA, head_dim=128), layout="bshd", learned=True, **options)


def test_a_learned_inv_freq_stays_float32():
    x = random(1, 2, 1, 128)
    far = dict(position_ids=torch.tensor([8000, 8191]), max_position=8192)
    wanted = trope.torch.rotate(
        x, inv_freq=trope.frequencies(dict(LLAMA, head_dim=128)), position_ids=far["position_ids"], **PLAIN
    )
    modules = [learned(), learned().to(torch.bfloat16), learned().half(), torch.nn.Sequential(learned()).bfloat16()[0]]
    torch.set_default_dtype(torch.bfloat16)
    try:
        modules.append(learned())
    finally:
        torch.set_default_dtype(torch.float32)
    for module in modules:
        assert module.inv_freq.dtype == torch.float32
        torch.testing.assert_close(module(x, **far), wanted, atol=4e-3, rtol=0)
        assert module(x.bfloat16(), **far).dtype == torch.bfloat16
    assert learned().double().inv_freq.dtype == torch.float64
    module = learned()
    module.inv_freq.data = module.inv_freq.data.bfloat16()  # as FSDP2's mixed precision does
    refused("inv_freq", module, x, words="bfloat16")
    with pytest.raises(RuntimeError, match="inv_freq has dtype torch.bfloat16"):
        learned().load_state_dict({"inv_freq": torch.ones(64, dtype=torch.bfloat16)})


def test_made_on_the_meta_device():
    x = random(1, 5, 2, 128)
    for is_learned in (False, True):
        wanted = RotaryEmbedding(dict(LLAMA, head_dim=128), layout="bshd", learned=is_learned)(x)
        with torch.device("meta"):
            model = torch.nn.Sequential(RotaryEmbedding(dict(LLAMA, head_dim=128), layout="bshd", learned=is_learned))
        model.to_empty(device="cpu")
        assert torch.equal(model[0](x), wanted)
        if is_learned:
            with torch.no_grad():
                model[0].inv_freq.fill_(7)
        model[0].reset_parameters()
        assert torch.equal(model[0](x), wanted)


def test_learned_frequencies_with_fsdp2(tmp_path):
    """FSDP2 shards inv_freq on the meta device, and to_empty gives every shard its values."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo", init_method="file://%s/store" % tmp_path, rank=0, world_size=1)
    try:
        x, wanted = random(1, 5, 2, 128), learned()(random(1, 5, 2, 128))
        mesh = init_device_mesh("cpu", (1,))
        for dtype in (None, torch.bfloat16):
            with torch.device("meta"):
                module = learned()
            fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, cast_forward_inputs=False))
            module.to_empty(device="cpu")
            if dtype is None:
                assert torch.equal(module(x), wanted)
            else:
                refused("inv_freq", module, x, words="FSDP")
    finally:
        torch.distributed.destroy_process_group()


# ---- Contradictions with the config or the call ----


@pytest.mark.parametrize("config", [LONGROPE, DYNAMIC])
def test_a_seq_len_below_the_tokens_of_the_call_is_refused(config):
    module, x = RotaryEmbedding(config, layout="bshd"), random(1, 40, 2, 8)
    refused("seq_len", lambda: module(x, seq_len=39))
    refused("seq_len", lambda: RotaryEmbedding(config, layout="bshd", seq_len=39)(x))
    assert torch.equal(module(x, seq_len=40), module(x))
    assert module(x[:, :0]).shape == (1, 0, 2, 8)
    refused("cp_size", lambda: module(x, cp_size="2", cp_rank=0))


def test_calls_that_contradict_the_config_are_refused():
    module, x = RotaryEmbedding(LLAMA, layout="bshd"), random(1, 4, 1, 8)
    for name, value in (("parts", 2), ("mscale", 2.0), ("pair_axis", "garbage"), ("pair_axis", [0, 1, 2, 0])):
        refused(name, module, x, **{name: value})
    for bad in (torch.tensor(1.0), random(4, 8), random(1, 4, 1, 8).expand(2, 1, 4, 1, 8)):
        refused("tensors[0]", module, bad)
    assert RotaryEmbedding(YARN, layout="bshd")(x).shape == x.shape


def test_the_config_is_read_once(tmp_path):
    import json

    config = json.loads(json.dumps(DYNAMIC))
    (tmp_path / "config.json").write_text(json.dumps(config))
    x = random(1, 40, 2, 8)
    modules = [RotaryEmbedding(config, layout="bshd"), RotaryEmbedding(tmp_path, layout="bshd")]
    wanted = trope.torch.rotate(x, inv_freq=trope.frequencies(DYNAMIC, seq_len=40), **PLAIN)
    config["rope_scaling"]["factor"] = 64.0
    (tmp_path / "config.json").unlink()
    assert all(torch.equal(module(x), wanted) for module in modules)


@pytest.mark.parametrize("device", DEVICES)
def test_freezing_a_learned_module_keeps_its_bits(device):
    """A frozen reference model keeps its table, on the same device, and its inv_freq has no gradient."""
    options = dict(layout="sbhd", pairing="half", learned=True)
    module = trope.torch.RotaryEmbedding(trope.Frequencies([1.0, 0.3, 0.1, 0.03]), **options).to(device)
    x = torch.randn(50, 2, 3, 8, generator=torch.Generator().manual_seed(1)).to(device)
    ids = torch.randint(90, (2, 50), generator=torch.Generator().manual_seed(2)).to(device)
    learns, reads = module(x), module(x, position_ids=ids, max_position=90)
    detached = {name: p.detach() for name, p in module.named_parameters()}
    module.requires_grad_(False)
    frozen = module(x.clone().requires_grad_())
    assert torch.equal(frozen, learns) and torch.equal(module(x, position_ids=ids, max_position=90), reads)
    assert torch.equal(torch.func.functional_call(module, detached, (x,)), learns)
    frozen.sum().backward()
    assert module.inv_freq.grad is None and not module(x).requires_grad
    with pytest.raises(trope.Error, match="max_position is missing"):
        module(x, position_ids=ids)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), learns)
