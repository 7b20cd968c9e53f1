"""Runs programs that people train with, and lists the calls of trope that they make, as cases of `trope bench`.

    PYTHONPATH=python python3 bench/real_calls.py --write tools/trope/bench_cases_real.inc
    PYTHONPATH=python python3 bench/real_calls.py --only qwen3 --device cpu --tokens 64

Each program has the heads and the tokens of a real model, but narrow weights, so that it runs anywhere. A case is one kind of
call (trope.log_calls), with the name real-PROGRAM, and -bwd if it is a backward call. A number follows if a program makes
several kinds. A kind that an earlier program makes has no second case. Each case is written at once. Programs that cannot
run, for example because their package is missing, are named.

Use a GPU for the cases of the bench: the strides of gradients depend on the device's attention. On the CPU, tensors and
kernels are the CPU's.
"""

import argparse
import contextlib
import functools
import importlib
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import torch

import trope
import trope.torch
from frameworks import Group, radians

HUB = pathlib.Path(__file__).resolve().parents[1] / "hub"
PROGRAMS = {}
HANDLES = []  # of the patches of the program that runs


def program(name):
    """Registers a program: a function (device, tokens) that returns a function to call under the log."""

    def register(make):
        PROGRAMS[name] = make
        return make

    return register


# ---- transformers ----

ROPE = dict(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
MODELS = {  # name: (model_type, its sizes, whether it has norms of q and k)
    "llama3-8b": ("llama", dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128), False),
    "qwen3-4b": ("qwen3", dict(num_attention_heads=32, num_key_value_heads=8, head_dim=128), True),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        dict(num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32),
        True,
    ),
    "qwen3-vl-8b": ("qwen3_vl_text", dict(
        num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        rope_parameters={"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
    ), True),
    "gemma3-4b": ("gemma3_text", dict(num_attention_heads=8, num_key_value_heads=4, head_dim=256, num_hidden_layers=6), True),
    "olmo2-7b": ("olmo2", dict(num_attention_heads=32, num_key_value_heads=32, head_dim=128, hidden_size=4096), True),
    "glm4.5": ("glm4_moe", dict(
        num_attention_heads=96, num_key_value_heads=8, head_dim=128, use_qk_norm=True, n_routed_experts=4, n_group=1,
        topk_group=1, num_experts_per_tok=2, moe_intermediate_size=32, partial_rotary_factor=0.5,
    ), True),
    "deepseek-v3": ("deepseek_v3", dict(
        num_attention_heads=128, num_key_value_heads=128, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        moe_intermediate_size=32, q_lora_rank=32, kv_lora_rank=32,
    ), False),
    "gpt-oss-20b": ("gpt_oss", dict(
        num_attention_heads=64, num_key_value_heads=8, head_dim=64, num_local_experts=4, num_hidden_layers=2
    ), False),
}  # fmt: skip


def make_model(name, device):
    transformers = importlib.import_module("transformers")
    model_type, sizes, _ = MODELS[name]
    sizes = {
        **dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=64, max_position_embeddings=32768),
        **({} if name in ("gemma3-4b", "glm4.5", "gpt-oss-20b", "deepseek-v3") else ROPE),
        **sizes,
    }
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(1)
    with torch.device(device):
        return transformers.AutoModel.from_config(config, dtype=torch.bfloat16).train()


def make_run(model, device, tokens, compiles):
    """Returns a function that runs a model forward and backward."""
    ids = torch.arange(tokens, device=device)[None] % 64
    call = torch.compile(model) if compiles else model
    return lambda: call(input_ids=ids, use_cache=False).last_hidden_state.float().square().mean().backward()


def transformers_program(name, fuse_norm, compiles):
    def make(device, tokens):
        patch = importlib.import_module("trope.transformers").patch
        model = make_model(name, device)
        HANDLES.append(patch(model, fuse_norm=fuse_norm, compiled=True))
        return make_run(model, device, tokens, compiles)

    return make


for _name, (_, _, _has_norm) in MODELS.items():
    for _fuse in (False, True)[: 1 + _has_norm]:
        for _compiles in (False, True):
            _full = _name + "-norms" * _fuse + "-compiled" * _compiles
            PROGRAMS[_full] = transformers_program(_name, _fuse, _compiles)


# ---- The kernel for the Hugging Face Hub ----


def hub_program(compiles):
    def make(device, tokens):
        kernels = importlib.import_module("kernels")
        os.environ["TROPE_LIBRARY"] = trope._abi.lib._name  # the kernel's calls are in the log of this library alone
        folder = tempfile.TemporaryDirectory()
        HANDLES.append(SimpleNamespace(undo=folder.cleanup))
        command = [sys.executable, HUB / "make.py", trope._abi.lib._name, folder.name, "--local"]
        if device == "cuda":
            command += ["--cuda", torch.version.cuda, "--archs", "%d.%d" % torch.cuda.get_device_capability()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
        (variant,) = pathlib.Path(
            folder.name, "build"
        ).iterdir()  # kernels would choose by PyTorch's build, not by the device
        layer = kernels.LocalLayerRepository(repo_path=variant, layer_name="RotaryPosEmb")
        model = make_model("llama3-8b", device)

        def kernelize(mapping):
            with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
                kernels.kernelize(model, mode=mode, device=device)

        kernelize({"rotary_pos_emb": {device: {mode: layer}}})
        HANDLES.append(SimpleNamespace(undo=lambda: kernelize({})))
        run = make_run(model, device, tokens, compiles)
        run()  # the layer compares itself with the replaced function, by small calls on the CPU
        return run

    return make


PROGRAMS["hub-llama3-8b"], PROGRAMS["hub-llama3-8b-compiled"] = hub_program(False), hub_program(True)


# ---- Functions of libraries, as their users call them ----


def draw(device, *shape):
    return torch.randn(*shape, device=device, dtype=torch.bfloat16).requires_grad_()


def both(function, *tensors):
    """Calls a function and its backward, with gradients like those of an attention: dense, in the layout of the results."""
    results = function(*tensors)
    results = results if isinstance(results, (tuple, list)) else [results]
    torch.autograd.grad(results, tensors, [torch.randn_like(y) for y in results])


def ends(tokens, device):
    return torch.arange(0, tokens + 1, max(tokens // 8, 1), device=device, dtype=torch.int32)


# ---- Attention layers of Megatron-Core ----


class Attention(torch.nn.Module):
    """PyTorch's attention in the place of TransformerEngine's, for sbhd and thd. It does not separate packed sequences,
    which changes no call of trope."""

    def __init__(self, config, **options):
        super().__init__()

    def forward(self, q, k, v, *others, **options):
        packed = q.dim() == 3
        q, k, v = ((x[:, None] if packed else x).permute(1, 2, 0, 3) for x in (q, k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        y = y.permute(2, 0, 1, 3).flatten(2)
        return y[:, 0] if packed else y


def megatron_groups(cp):
    """Returns the process groups of a layer. Only this process exists. A context parallel group of another size is not
    real: only its size and rank are read."""
    state = importlib.import_module("megatron.core.parallel_state")
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        state.initialize_model_parallel()
    collection = importlib.import_module("megatron.core.process_groups_config").ProcessGroupCollection
    groups = collection.use_mpu_process_groups()
    if cp > 1:
        groups.cp = Group(cp, 1)
    return groups


def megatron_layer(cp, sizes):
    """An attention layer with narrow weights. MLA if the sizes have a kv_lora_rank."""
    configs = importlib.import_module("megatron.core.transformer.transformer_config")
    specs = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    build = importlib.import_module("megatron.core.transformer.spec_utils").build_module
    mla = "kv_lora_rank" in sizes
    config = (configs.MLATransformerConfig if mla else configs.TransformerConfig)(
        num_layers=1, hidden_size=64, use_cpu_initialization=True, add_bias_linear=False, normalization="RMSNorm",
        params_dtype=torch.bfloat16, context_parallel_size=cp, **sizes,
    )  # fmt: skip
    spec = specs.get_gpt_layer_local_spec(
        multi_latent_attention=mla, qk_layernorm=config.qk_layernorm, normalization="RMSNorm"
    ).submodules.self_attention
    spec.submodules.core_attention = Attention
    torch.manual_seed(1)
    return build(spec, config=config, layer_number=1, pg_collection=megatron_groups(cp))


def pack(tokens, device):
    cu = ends(tokens, device)
    params = importlib.import_module("megatron.core.packed_seq_params").PackedSeqParams
    longest = int(cu[1])
    return params(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=longest, max_seqlen_kv=longest)


def megatron_program(sizes, packed=False, cp=1, **options):
    def make(device, tokens):
        importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
        HANDLES.append(importlib.import_module("trope.megatron").patch(**options))
        if device == "cpu":  # Megatron asks torch.cuda for the current device
            of_cpu = mock.patch.object(torch.cuda, "current_device", lambda: torch.device("cpu"))
            of_cpu.start()
            HANDLES.append(SimpleNamespace(undo=of_cpu.stop))
        layer = megatron_layer(cp, sizes).to(device=device, dtype=torch.bfloat16)
        packing = dict(packed_seq_params=pack(tokens * cp, device)) if packed else {}
        rows = packing["packed_seq_params"].max_seqlen_q if packed else tokens
        angles = {} if "kv_lora_rank" in sizes else {"rotary_pos_emb": radians(rows, 128, device)[:, None, None]}

        def run():
            y, _ = layer(draw(device, tokens, 1, 64), None, **angles, **packing)
            y.backward(torch.randn_like(y))

        return run

    return make


LLAMA3 = dict(num_attention_heads=32, num_query_groups=8, kv_channels=128, apply_rope_fusion=False)
QWEN3 = dict(LLAMA3, qk_layernorm=True)
DEEPSEEK = dict(
    num_attention_heads=128, q_lora_rank=32, kv_lora_rank=32, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128,
    qk_layernorm=True, rope_type="yarn", rotary_scaling_factor=40, original_max_position_embeddings=4096, mscale=1.0,
    mscale_all_dim=1.0,
)  # fmt: skip
for _name, _sizes, _options in (
    ("llama3-8b", LLAMA3, {}),
    ("qwen3-4b", QWEN3, {}),
    ("qwen3-4b-norms", QWEN3, dict(fuse_norm=True)),
    ("deepseek-v3", dict(DEEPSEEK, apply_rope_fusion=True), {}),
    ("deepseek-v3-unfused", dict(DEEPSEEK, apply_rope_fusion=False), {}),
):
    PROGRAMS["megatron-" + _name] = megatron_program(_sizes, **_options)
    PROGRAMS["megatron-%s-thd" % _name] = megatron_program(_sizes, packed=True, **_options)
    PROGRAMS["megatron-%s-thd-cp4" % _name] = megatron_program(_sizes, packed=True, cp=4, **_options)


# ---- Drop-in modules ----


@program("te-llama3-8b")
def transformer_engine(device, tokens):
    te = importlib.import_module("trope.transformer_engine")
    freqs = radians(tokens, 128, device)[:, None, None]
    one = functools.partial(te.apply_rotary_pos_emb, freqs=freqs, tensor_format="sbhd", fused=True)
    q, k = draw(device, tokens, 1, 32, 128), draw(device, tokens, 1, 8, 128)
    return lambda: (both(one, q), both(one, k))


@program("te-llama3-8b-qkv")
def transformer_engine_qkv(device, tokens):
    te = importlib.import_module("trope.transformer_engine")
    freqs = radians(tokens, 128, device)[:, None, None]
    qkv = draw(device, tokens, 1, 8, 768)
    return lambda: both(lambda x: te.apply_fused_qkv_rotary_pos_emb(x, freqs, freqs, [512, 128, 128]), qkv)


@program("te-llama3-8b-thd")
def transformer_engine_thd(device, tokens):
    te = importlib.import_module("trope.transformer_engine")
    freqs, cu = radians(tokens, 128, device)[:, None, None], ends(tokens, device)
    one = functools.partial(te.apply_rotary_pos_emb, freqs=freqs, tensor_format="thd", fused=True, cu_seqlens=cu)
    q, k = draw(device, tokens, 32, 128), draw(device, tokens, 8, 128)
    return lambda: (both(one, q), both(one, k))


@program("liger-llama3-8b")
def liger(device, tokens):
    function = importlib.import_module("trope.liger").liger_rotary_pos_emb
    angles = radians(tokens, 128, device)[None]
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
    q, k = draw(device, 1, tokens, 32, 128), draw(device, 1, tokens, 8, 128)
    return lambda: both(lambda q, k: function(q.transpose(1, 2), k.transpose(1, 2), cos, sin), q, k)


@program("flash-attention-llama3-8b")
def flash_attention(device, tokens):
    function = importlib.import_module("trope.flash_attn").apply_rotary_emb
    angles = radians(tokens, 128, device)[:, :64]
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
    q, k = draw(device, 1, tokens, 32, 128), draw(device, 1, tokens, 8, 128)
    return lambda: (both(lambda q: function(q, cos, sin), q), both(lambda k: function(k, cos, sin), k))


@program("flash-attention-llama3-8b-thd")
def flash_attention_thd(device, tokens):
    function = importlib.import_module("trope.flash_attn").apply_rotary_emb
    angles, cu = radians(tokens, 128, device)[:, :64], ends(tokens, device)
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
    q, k = draw(device, tokens, 32, 128), draw(device, tokens, 8, 128)
    one = functools.partial(function, cos=cos, sin=sin, cu_seqlens=cu, max_seqlen=int(cu[1]))
    return lambda: (both(one, q), both(one, k))


@program("jax-maxtext-llama3-8b")
def maxtext(device, tokens):
    """MaxText rotates q and k [batch, tokens, heads, head_dim] by position ids, with half pairing."""
    jax = importlib.import_module("jax")
    rotate = importlib.import_module("trope.jax").rotate
    frequencies = trope.frequencies(rope_type="default", rope_theta=500000.0, head_dim=128)
    ids = jax.numpy.arange(tokens)[None]
    q, k = (jax.numpy.ones((1, tokens, heads, 128), "bfloat16") for heads in (32, 8))

    def loss(x):
        y = rotate(x, layout="bshd", pairing="half", inv_freq=frequencies, position_ids=ids)
        return (y.astype("float32") ** 2).sum()

    return lambda: [jax.block_until_ready(jax.jit(jax.grad(loss))(x)) for x in (q, k)]


# ---- The list ----


def run_under_log(name, device, tokens):
    """Returns the calls of a program."""
    torch.compiler.reset()
    try:
        run = PROGRAMS[name](device, tokens)
        with trope.log_calls() as log:
            run()
    finally:
        while HANDLES:
            HANDLES.pop().undo()
    if not log:
        raise RuntimeError("the program makes no call of trope")
    return log.calls


def name_case(program, text, cases):
    """Returns a name that no case has."""
    base = "real-%s%s" % (program, "-bwd" * text.startswith("backward"))
    others = ("%s-%d" % (base, number) for number in itertools.count(2))
    return next(name for name in itertools.chain([base], others) if name not in cases)


def write_cases(names, device, tokens, file):
    """Writes each case to the file at once, and names the programs that cannot run."""
    cases, failed = {}, 0
    for name in names:
        try:
            calls = run_under_log(name, device, tokens)
        except Exception as error:
            failed += 1
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            print("# left out: %s: %s: %s" % (name, type(error).__name__, reason), file=sys.stderr)
            continue
        print("%-36s %d kinds of calls" % (name, len(calls)), file=sys.stderr)
        for call in calls:
            if call.text not in cases.values():
                case = name_case(name, call.text, cases)
                cases[case] = call.text
                print('{"%s", "%s"},' % (case, call.text), file=file, flush=True)
    print("%d cases; %d of %d programs left out" % (len(cases), failed, len(names)), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run only programs with this text in their names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--write", help="write the cases to this file, as lines of C")
    given = parser.parse_args()
    names = [name for name in PROGRAMS if given.only in name]
    if not names:
        parser.error("--only: no program has %r in its name" % given.only)
    with open(given.write, "w") if given.write else contextlib.nullcontext(sys.stdout) as file:
        write_cases(names, given.device, given.tokens, file)


if __name__ == "__main__":
    main()
