"""Runs programs that people train with, and lists the calls of trope that they make, as cases of `trope bench`.

    PYTHONPATH=python python3 bench/real_calls.py --write tools/trope/bench_cases_real.inc
    PYTHONPATH=python python3 bench/real_calls.py --only qwen3 --tokens 64

Each program has the heads and the tokens of a real model, but narrow weights, so that it runs anywhere. A case is one kind of
call (trope.log_calls), with the name real-PROGRAM, and -bwd if it is a backward call. A number follows if a program makes
several kinds. A kind that an earlier program makes has no second case. Programs whose package is missing are named.

Use a GPU for the cases of the bench: the strides of gradients depend on the device's attention. On the CPU, tensors and
kernels are the CPU's.
"""

import argparse
import functools
import importlib
import sys
from types import SimpleNamespace

import torch

import trope
import trope.torch

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


def transformers_program(name, fuse_norm, compiles):
    def make(device, tokens):
        patch = importlib.import_module("trope.transformers").patch
        model = make_model(name, device)
        HANDLES.append(patch(model, fuse_norm=fuse_norm))
        ids = torch.arange(tokens, device=device)[None] % 64
        call = torch.compile(model) if compiles else model

        def run():
            call(input_ids=ids, use_cache=False).last_hidden_state.float().square().mean().backward()

        return run

    return make


for _name, (_, _, _has_norm) in MODELS.items():
    for _fuse in (False, True)[: 1 + _has_norm]:
        for _compiles in (False, True):
            _full = _name + "-norms" * _fuse + "-compiled" * _compiles
            PROGRAMS[_full] = transformers_program(_name, _fuse, _compiles)


# ---- Functions of libraries, as their users call them ----


def radians(rows, dim, device):
    inv_freq = 10000.0 ** -(torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)
    angles = (torch.arange(rows, device=device, dtype=torch.float64)[:, None] * inv_freq).float()
    return torch.cat((angles, angles), -1)


def draw(device, *shape):
    return torch.randn(*shape, device=device, dtype=torch.bfloat16).requires_grad_()


def both(function, *tensors):
    """Calls a function and its backward, with gradients like those of an attention: dense, in the layout of the results."""
    results = function(*tensors)
    results = results if isinstance(results, (tuple, list)) else [results]
    torch.autograd.grad(results, tensors, [torch.randn_like(y) for y in results])


def ends(tokens, device):
    return torch.arange(0, tokens + 1, max(tokens // 8, 1), device=device, dtype=torch.int32)


@program("megatron-llama3-8b")
def megatron_gqa(device, tokens):
    rope, config = megatron()
    freqs = radians(tokens, 128, device)[:, None, None]
    one = functools.partial(rope.apply_rotary_pos_emb, freqs=freqs, config=config, cp_group=Group())
    q, k = draw(device, tokens, 1, 32, 128), draw(device, tokens, 1, 8, 128)
    return lambda: (both(one, q), both(one, k))


@program("megatron-llama3-8b-thd")
def megatron_thd(device, tokens):
    return megatron_packed(device, tokens, Group())


@program("megatron-llama3-8b-thd-cp4")
def megatron_thd_cp(device, tokens):
    return megatron_packed(device, tokens, Group(4, 1))


def megatron_packed(device, tokens, group):
    rope, config = megatron()
    freqs, cu = radians(tokens * group.size(), 128, device)[:, None, None], ends(tokens * group.size(), device)
    one = functools.partial(rope.apply_rotary_pos_emb, freqs=freqs, config=config, cu_seqlens=cu, cp_group=group)
    q, k = draw(device, tokens, 32, 128), draw(device, tokens, 8, 128)
    return lambda: (both(one, q), both(one, k))


@program("megatron-deepseek-v3")
def megatron_mla(device, tokens):
    megatron()
    mla = importlib.import_module("megatron.core.fusions.fused_mla_yarn_rope_apply")
    angles = radians(tokens, 64, device)[:, None, None]
    cos, sin = (f(angles).to(torch.bfloat16) for f in (torch.cos, torch.sin))
    q, kv, k_pe = (draw(device, tokens, 1, heads, dim) for heads, dim in ((128, 192), (128, 256), (1, 64)))

    def run():
        both(lambda q: mla.fused_apply_mla_rope_for_q(q.view_as(q), cos, sin, 128, 64), q)
        both(lambda kv, k_pe: mla.fused_apply_mla_rope_for_kv(kv, k_pe, cos, sin, 64, 128, 128), kv, k_pe)

    return run


class Group:
    def __init__(self, size=1, rank=0):
        self.size, self.rank = lambda: size, lambda: rank


def megatron():
    rope = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    HANDLES.append(importlib.import_module("trope.megatron").patch())
    config = SimpleNamespace(
        apply_rope_fusion=False, rotary_interleaved=False, multi_latent_attention=False, mrope_section=None
    )
    return rope, config


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


def collect(names, device, tokens):
    """Returns {name of a case: text}, and the programs that could not run, with the reason."""
    cases, texts, failed = {}, set(), {}
    for name in names:
        torch.compiler.reset()
        try:
            run = PROGRAMS[name](device, tokens)
            with trope.log_calls() as calls:
                run()
        except Exception as error:
            failed[name] = "%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0][:200])
            continue
        finally:
            while HANDLES:
                HANDLES.pop().undo()
        print("%-36s %d kinds of calls" % (name, len(calls)), file=sys.stderr)
        for call in calls:
            if call.text not in texts:
                texts.add(call.text)
                base = "real-%s%s" % (name, "-bwd" * call.text.startswith("backward"))
                number = 1
                while "%s-%d" % (base, number) in cases or (number == 1 and base in cases):
                    number += 1
                cases[base if number == 1 else "%s-%d" % (base, number)] = call.text
    return cases, failed


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
    cases, failed = collect(names, given.device, given.tokens)
    lines = ['{"%s", "%s"},\n' % each for each in cases.items()]
    if given.write:
        with open(given.write, "w") as file:
            file.writelines(lines)
    else:
        sys.stdout.writelines(lines)
    for name, reason in failed.items():
        print("# left out: %s: %s" % (name, reason), file=sys.stderr)


if __name__ == "__main__":
    main()
