"""The namespace of this package's operators in torch.ops.

It is the name of the outermost package: "trope", or the name under which a copy of this package was loaded. A process may
load several copies, for example from the Hugging Face Hub (hub/), and PyTorch accepts a namespace only once.
"""

import torch

NAMESPACE = __name__.partition(".")[0]
operators = getattr(torch.ops, NAMESPACE)


def add_op_namespace_prefix(name):  # kernel-builder looks for calls of a function of this name
    return "%s::%s" % (NAMESPACE, name)
