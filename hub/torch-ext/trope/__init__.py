"""trope: rotary position embedding (RoPE) with a backward, as a kernel for the Hugging Face Hub.

The module layers has the layers for kernelize. The functions come from trope.torch: docs/python.md of trope describes them.
"""

from . import layers
from ._trope import Error, Norm, frequencies
from ._trope.torch import RotaryEmbedding, rotate, rotate_, rotate_backward, rotate_backward_

__all__ = [
    "Error", "Norm", "RotaryEmbedding", "frequencies", "layers", "rotate", "rotate_", "rotate_backward", "rotate_backward_",
]  # fmt: skip
