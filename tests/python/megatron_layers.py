"""Attention layers of Megatron-Core on the CPU, in one process or several, for tests of trope.megatron.patch."""

import contextlib
import types
from unittest import mock

import torch


@contextlib.contextmanager
def one_process(store):
    """A default process group that contains only this process."""
    torch.distributed.init_process_group("gloo", init_method="file://%s" % store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


_OF_CUDA = dict(current_device=torch.cuda.current_device, current_stream=torch.cuda.current_stream)


def real_cuda():
    """Within model_parallel, restores the real torch.cuda functions. Layers on a GPU need them, and so does torch.compile
    if there is a GPU."""
    return mock.patch.multiple(torch.cuda, **_OF_CUDA) if torch.cuda.is_available() else contextlib.nullcontext()


@contextlib.contextmanager
def model_parallel(**sizes):
    """Megatron's parallel groups of these sizes. torch.cuda names the CPU as the current device, so that Megatron's buffers
    are there."""
    from megatron.core import parallel_state as state

    state.initialize_model_parallel(**sizes)
    of_cpu = dict(current_device=lambda: torch.device("cpu"), current_stream=lambda: None)
    try:
        with mock.patch.multiple(torch.cuda, **of_cpu):
            yield
    finally:
        state.destroy_model_parallel()


class Attention(torch.nn.Module):
    """Softmax attention without a mask, for thd and sbhd. `seen` holds q and k of the last call."""

    def __init__(self, config, **options):
        super().__init__()

    def forward(self, q, k, v, *others, **options):
        self.seen = q.detach(), k.detach()
        k, v = (x.repeat_interleave(q.shape[-2] // x.shape[-2], -2) for x in (k, v))
        weights = torch.einsum("s...hd,t...hd->...hst", q, k).softmax(-1)
        return torch.einsum("...hst,t...hd->s...hd", weights, v).flatten(-2)


def make_layer(mla=False, norm=None, **options):
    """A self-attention layer. norm: the class of q_layernorm and k_layernorm. By default, Megatron chooses it."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    of_spec = {name: options[name] for name in ("qk_layernorm", "qk_l2_norm", "normalization") if name in options}
    options = dict(options, num_layers=1, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True)
    if mla:
        config = MLATransformerConfig(
            q_lora_rank=16, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=16, rope_type="yarn",
            rotary_scaling_factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5,
            add_bias_linear=False, **options,
        )  # fmt: skip
    else:
        config = TransformerConfig(kv_channels=16, **{"num_query_groups": 2, **options})
    spec = get_gpt_layer_local_spec(multi_latent_attention=mla, **of_spec).submodules.self_attention
    spec.submodules.core_attention = Attention
    if norm is not None and (options.get("qk_layernorm") or options.get("qk_l2_norm")):
        spec.submodules.q_layernorm = spec.submodules.k_layernorm = norm
    torch.manual_seed(1)
    return build_module(spec, config=config, layer_number=1)


def make_transformer_layer(**options):
    """A whole layer, with Megatron's MLP."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    spec = get_gpt_layer_local_spec(qk_layernorm=options["qk_layernorm"], normalization=options["normalization"])
    spec.submodules.self_attention.submodules.core_attention = Attention
    config = TransformerConfig(
        num_layers=1, hidden_size=64, num_attention_heads=4, num_query_groups=2, kv_channels=16,
        use_cpu_initialization=True, **options,
    )  # fmt: skip
    return build_module(spec, config=config, layer_number=1)


class Same(torch.autograd.Function):
    """Returns its input, as Megatron's copy to a tensor parallel region does."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Model(torch.nn.Module):
    """A model that has only the parts that Megatron needs: a config and named parameters."""

    def __init__(self, layer):
        super().__init__()
        self.self_attention, self.config, self.share_embeddings_and_output_weights = layer, layer.config, False


def pack(device="cpu"):
    """The parameters of a batch of two packed sequences with 24 tokens."""
    from megatron.core.packed_seq_params import PackedSeqParams

    cu = torch.tensor([0, 8, 24], dtype=torch.int32, device=device)
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=16, max_seqlen_kv=16)


def run_layer(layer, packed, x, emb, dy):
    """The output, and the gradients of x and of all parameters that require one."""
    words = dict(packed_seq_params=pack(x.device)) if packed else {}
    x = x.clone().requires_grad_()
    y, _ = layer(x, attention_mask=None, rotary_pos_emb=emb, **words)
    inputs = x, *[p for p in layer.parameters() if p.requires_grad]
    return y, *torch.autograd.grad(y, inputs, dy.view(y.shape), allow_unused=True, materialize_grads=True)


def randomize(layer):
    """Gives the norms of q and k random weights, and returns the layer."""
    generator = torch.Generator().manual_seed(5)
    for norm in (layer.q_layernorm, layer.k_layernorm):
        weight = getattr(norm, "weight", None)
        if weight is not None:
            weight.data.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return layer


class NormOfTE(torch.nn.Module):
    """An RMSNorm with the formula and the class name of TransformerEngine's."""

    def __init__(self, hidden_size, config, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(hidden_size)), eps
        self.weight.sequence_parallel = config.sequence_parallel
        self.zero_centered_gamma = config.layernorm_zero_centered_gamma

    def forward(self, x):
        real = torch.promote_types(x.dtype, torch.float32)
        weight, y = self.weight.to(real) + self.zero_centered_gamma, x.to(real)
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * weight).to(self.weight.dtype)


NormOfTE.__name__, NormOfTE.__module__ = "RMSNorm", "transformer_engine.pytorch.module.rmsnorm"
NormOfTE.forward = types.FunctionType(NormOfTE.forward.__code__, dict(globals(), __name__=NormOfTE.__module__))
