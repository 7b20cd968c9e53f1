"""Compares the Python programs of docs/recipes.md with transformers: results, and gradients of q, k and weights."""

import os
import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.gemma3 import modeling_gemma3  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "recipes.md")
BATCH, TOKENS, HEADS = 2, 33, (4, 2)
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


@pytest.fixture(scope="module")
def names():
    """Returns the names that the programs of the page define."""
    with open(PAGE, encoding="utf-8") as file:
        blocks = re.findall(r"```python\n(.*?)```", file.read(), re.S)
    found = {}
    for block in blocks:
        exec(block, found)
    return found


class Layer:
    """q, k, upstream gradients, and the modules of transformers that normalise and rotate q and k."""

    def __init__(self, modeling, norm, table, dim, dtype, device):
        generator = torch.Generator().manual_seed(1)
        self.apply_rotary_pos_emb = modeling.apply_rotary_pos_emb
        self.norms = [norm(dim, eps=1e-6).to(device, dtype) for _ in HEADS]
        for module in self.norms:
            module.weight.data.copy_(torch.rand(dim, generator=generator) + 0.5)

        def draw(scale):
            x = [torch.randn(BATCH, TOKENS, heads, dim, generator=generator) for heads in HEADS]
            return [(scale * t).to(device, dtype) for t in x]

        self.tensors = [t.requires_grad_() for t in draw(2e-3)]  # small, so that eps matters
        self.gradients = draw(1.0)
        self.cos, self.sin = table(self.tensors[0], torch.arange(TOKENS, device=device)[None])

    def leaves(self):
        return self.tensors + [module.weight for module in self.norms]

    def theirs(self):
        q, k = (module(t).transpose(1, 2) for module, t in zip(self.norms, self.tensors))
        return [t.transpose(1, 2) for t in self.apply_rotary_pos_emb(q, k, self.cos, self.sin)]

    def check(self, ours):
        """bf16 results have the bits of transformers, except where the last bit of rstd, cos or sin differs. fp32 results
        and all gradients are close."""
        both = [ours(*self.leaves()), self.theirs()]
        is_f32 = self.gradients[0].dtype == torch.float32
        for y, right in zip(*both, strict=True):
            assert y.dtype == right.dtype and y.shape == right.shape
            difference = (y - right).abs().max() / right.abs().max()
            assert difference < (2e-6 if is_f32 else 2.0**-7)
            assert is_f32 or (y == right).float().mean() > 0.99
        found, expected = (torch.autograd.grad(results, self.leaves(), self.gradients) for results in both)
        for gradient, right in zip(found, expected, strict=True):
            assert gradient.dtype == right.dtype and gradient.shape == right.shape
            assert (gradient - right).abs().max() / right.abs().max() < (1e-5 if is_f32 else 2.0**-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_qwen3(names, dtype, device):
    config = transformers.Qwen3Config()
    assert (config.head_dim, config.rms_norm_eps) == (128, 1e-6)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1000000.0}
    table = modeling_qwen3.Qwen3RotaryEmbedding(config).to(device)
    layer = Layer(modeling_qwen3, modeling_qwen3.Qwen3RMSNorm, table, 128, dtype, device)
    layer.check(names["rotate_qwen3"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["sliding", "full"])
def test_gemma3(names, kind, dtype, device):
    config = transformers.Gemma3TextConfig(
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        }
    )
    assert (config.head_dim, config.rms_norm_eps) == (256, 1e-6)
    rotary = modeling_gemma3.Gemma3RotaryEmbedding(config).to(device)

    def table(x, ids):
        return rotary(x, ids, kind + "_attention")

    layer = Layer(modeling_gemma3, modeling_gemma3.Gemma3RMSNorm, table, 256, dtype, device)
    layer.check(lambda *leaves: names["rotate_gemma3"](*leaves, names["gemma3_" + kind]))
