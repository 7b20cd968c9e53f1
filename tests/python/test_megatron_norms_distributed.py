"""Tests trope.megatron.patch(fuse_norm=True) on two processes, with tensor, sequence and context parallelism. The tests use
Megatron-Core's DistributedDataParallel and finalize_model_grads, which reduces the gradients of replicated weights.

python test_megatron_norms_distributed.py RANK STORE DEVICE      the command of each process
"""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
pytest.importorskip("megatron.core.transformer.attention", reason="Megatron-Core cannot be imported")

import trope.megatron as tm  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.distributed.finalize_model_grads import finalize_model_grads  # noqa: E402
from megatron_layers import Model, NormOfTE, make_layer, model_parallel, pack, randomize  # noqa: E402
from processes import WORLD, process_group, run_all  # noqa: E402

RMS = dict(qk_layernorm=True, normalization="RMSNorm", apply_rope_fusion=False)
NAMES = ["q_layernorm", "k_layernorm"]


def train(options, x, emb, dy, packed):
    """Returns the output of a layer, {name: main_grad} after finalize_model_grads, and {name: main_grad} before it."""
    layer = randomize(make_layer(**options))
    model = DistributedDataParallel(layer.config, DistributedDataParallelConfig(), Model(layer))
    model.zero_grad_buffer()
    parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    assert all(getattr(layer, name).weight is parameters["self_attention.%s.weight" % name] for name in NAMES)
    y, _ = layer(x, None, rotary_pos_emb=emb, **(dict(packed_seq_params=pack()) if packed else {}))
    y.backward(dy)
    own = {name: p.main_grad.clone() for name, p in parameters.items()}
    finalize_model_grads([model])
    return y.detach(), {name: p.main_grad for name, p in parameters.items()}, own


def check(rank, sizes, options, packed=False):
    """Compares results and main_grads with the layer without the patch. finalize_model_grads must replace the main_grad of
    a norm by its sum over the tensor parallel ranks, or by its mean over the context parallel ranks."""
    torch.manual_seed(3)
    tokens_of = 12 if options.get("sequence_parallel") or "context_parallel_size" in sizes else 24
    x, dy = torch.randn(2, 24, 1 if packed else 2, 64).unflatten(1, (-1, tokens_of))[:, rank * (tokens_of == 12)]
    emb = torch.randn(16 if packed else 24, 1, 1, 16)
    if "context_parallel_size" in sizes and not packed:
        emb = emb.chunk(WORLD)[rank]
    with model_parallel(**sizes):
        expected, wanted, _ = train(dict(options, **sizes), x, emb, dy, packed)
        with tm.patch(fuse_norm=True) as handle:
            found, grads, own = train(dict(options, **sizes), x, emb, dy, packed)
        assert handle.norms == dict.fromkeys(NAMES, 1)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    assert grads.keys() == wanted.keys()
    for name in grads:
        torch.testing.assert_close(grads[name], wanted[name], rtol=2e-5, atol=2e-5)
    for name in NAMES:
        name = "self_attention.%s.weight" % name
        total = own[name].clone()
        torch.distributed.all_reduce(total)
        if "context_parallel_size" in sizes:
            total /= WORLD
        torch.testing.assert_close(grads[name], total, rtol=2e-5, atol=2e-5)
        assert (own[name] - grads[name]).abs().max() > 1e-3
    print(" ok", flush=True)


CASES = [
    (dict(tensor_model_parallel_size=2), RMS, False),
    (dict(tensor_model_parallel_size=2), RMS, True),
    (dict(tensor_model_parallel_size=2), dict(RMS, num_query_groups=1), False),
    (dict(tensor_model_parallel_size=2), dict(RMS, norm=NormOfTE, sequence_parallel=True), False),
    (dict(context_parallel_size=2), RMS, False),
    (dict(context_parallel_size=2), RMS, True),
]


def test_parallel(tmp_path):
    run_all(__file__, tmp_path, "cpu", len(CASES))


if __name__ == "__main__":
    with process_group() as (own_rank, _):
        for case_sizes, case_options, is_packed in CASES:
            check(own_rank, case_sizes, case_options, is_packed)
