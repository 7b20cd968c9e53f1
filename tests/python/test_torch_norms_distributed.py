"""Norms on two processes that share the heads of a token, compared with one process that has all heads. Also tests weights
that FSDP2 shards.

python test_torch_norms_distributed.py RANK STORE DEVICE      the command of each process
"""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import trope  # noqa: E402
import trope.torch  # noqa: E402
from processes import DEVICES, WORLD, process_group, run_all  # noqa: E402
from refusals import refused  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor, init_device_mesh  # noqa: E402

INV_FREQ = [1.0, 0.3, 0.1, 0.03]
PLAIN = dict(layout="bshd", pairing="half")
HEADS = (2, 2, 2, 0, 0)  # the dimension that is split over the ranks, for each input of `call`


def random(*shape, device, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def call(q, k, v, weight, own, freqs, group=None):
    """q has a norm over all heads of a token before the rotation, and k after it. v has no norm, but a wider window."""
    norms = (
        trope.Norm(weight, eps=1e-3, scope="token", process_group=group),
        trope.Norm(own, eps=1e-3, scope="token", order="after", plus_one=True, process_group=group),
        None,
    )
    return trope.torch.rotate(q, k, v, norms=norms, rotary_dim=(8, 8, 10), freqs=freqs, angle_columns="pair", **PLAIN)


def differentiated(function, inputs, upstream):
    """Returns the results of a function and the gradients of its inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    results = function(*leaves)
    return [*results, *torch.autograd.grad(results, leaves, upstream)]


def check_tokens(device, rank):
    """Each rank has the bits of one process, except in the gradient of the angles, which is a sum over its own heads."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        shapes = (2, 3, 8, 8), (2, 3, 4, 8), (2, 3, 4, 10), (8, 8), (32,)
        whole = [random(*shape, device=device, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
        freqs = random(3, 5, device=device, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        upstream = [random(*x.shape, device=device, dtype=dtype, seed=9) for x in whole[:3]]
        own = [x.chunk(WORLD, dim)[rank].contiguous() for x, dim in zip(whole, HEADS)]
        wanted = differentiated(call, [*whole, freqs], upstream)
        group = torch.distributed.group.WORLD

        def on_ranks(*inputs):
            return call(*inputs, group=group)

        for function in (on_ranks, torch.compile(on_ranks, fullgraph=True, backend="aot_eager")):
            found = differentiated(function, [*own, freqs], [dy.chunk(WORLD, 2)[rank] for dy in upstream])
            for y, right, dim in zip(found, wanted, (2, 2, 2, *HEADS)):
                assert torch.equal(y, right.chunk(WORLD, dim)[rank]), (dtype, dim)
            torch.distributed.all_reduce(found[-1])
            torch.testing.assert_close(found[-1], wanted[-1], rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            assert all(map(torch.equal, on_ranks(*own, freqs), found))
            trope.torch.rotate_(
                changed := own[0].clone(), norms=trope.Norm(own[3], eps=1e-3, scope="token", process_group=group),
                freqs=freqs[:, :4].contiguous(), angle_columns="pair", **PLAIN,
            )  # fmt: skip
            one = trope.Norm(whole[3], eps=1e-3, scope="token")
            right = trope.torch.rotate(whole[0], norms=one, freqs=freqs[:, :4].contiguous(), angle_columns="pair", **PLAIN)
            assert torch.equal(changed, right.chunk(WORLD, 2)[rank])


def check_gradients_of_one_tensor(device, rank):
    """Both ranks leave the same tensor out of backward."""
    x, weight = random(2, 3, 4, 8, device=device), random(4, 8, device=device)
    group = torch.distributed.group.WORLD
    own, weights = x.chunk(WORLD, 2)[rank].contiguous(), weight.chunk(WORLD)[rank].contiguous()

    def run(x, weight, **options):
        given = trope.Norm(weight.detach().requires_grad_(), eps=1e-3, scope="token", **options)
        y, _ = trope.torch.rotate(x, x.clone(), norms=(given, given), inv_freq=INV_FREQ, **PLAIN)
        return torch.autograd.grad(y.square().sum(), given.weight)[0]

    assert torch.equal(run(own, weights, process_group=group), run(x, weight).chunk(WORLD)[rank])


def check_a_group_of_one(device, rank):
    """A group of one rank acts like no group: nothing is gathered, and a gradient can be differentiated again."""
    groups = [torch.distributed.new_group([i]) for i in range(WORLD)]
    x = random(2, 3, 2, 8, device=device, dtype=torch.float64).requires_grad_()

    def run(x):
        given = trope.Norm(eps=1e-3, scope="token", process_group=groups[rank])
        return trope.torch.rotate(x, norms=given, inv_freq=INV_FREQ, **PLAIN)

    assert torch.autograd.gradgradcheck(run, (x,))
    given = trope.Norm(eps=1e-3, scope="token", process_group=groups[1 - rank])
    refused("norms[0].process_group", trope.torch.rotate, x, norms=given, inv_freq=INV_FREQ, **PLAIN)


def check_refusals(device, rank):
    x = random(2, 3, 2, 8, device=device).requires_grad_()
    given = trope.Norm(eps=1e-3, scope="token", process_group=torch.distributed.group.WORLD)
    options = dict(norms=given, inv_freq=INV_FREQ, **PLAIN)
    (dx,) = torch.autograd.grad(trope.torch.rotate(x, **options).square().sum(), x, create_graph=True)
    refused("norms", torch.autograd.grad, dx.sum(), x, words="several ranks")
    name = "norms[0].process_group"
    refused(name, trope.torch.rotate_backward, x.detach(), forward_src=x.detach().clone(), words="all-gather", **options)
    mesh = init_device_mesh(device, (WORLD,))
    placed = distribute_tensor(x.detach(), mesh, [Replicate()])
    refused("norms", trope.torch.rotate, placed, words="DTensor", **options)
    weight = distribute_tensor(torch.ones(8, device=device), mesh, [Replicate()])
    refused("norms[0].weight", trope.torch.rotate, x, words="DTensor", **dict(options, norms=trope.Norm(weight, eps=1e-3)))


class Block(torch.nn.Module):
    """A part of an attention layer. The rotation reads the weights of its norms, and never calls the modules."""

    def __init__(self, device):
        super().__init__()
        self.project = torch.nn.Linear(32, 48, bias=False, device=device)
        self.q_norm, self.k_norm = torch.nn.RMSNorm(8, device=device), torch.nn.RMSNorm(8, device=device)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(random(*parameter.shape, device=device, seed=i))

    def forward(self, x):
        q, k = self.project(x).unflatten(-1, (6, 8)).split((4, 2), 2)
        q, k = trope.torch.rotate(q, k, norms=(self.q_norm, self.k_norm), inv_freq=INV_FREQ, **PLAIN)
        return q.square().sum() + (k * k.detach().roll(1, -1)).sum()


def check_fsdp(device, rank):
    """Gradients equal the gradients without FSDP2, averaged over the ranks. With mixed precision, they are f32."""
    mesh, inputs = init_device_mesh(device, (WORLD,)), [random(2, 3, 32, device=device, seed=20 + i) for i in range(WORLD)]
    plain, sharded = Block(device), fully_shard(Block(device), mesh=mesh)
    sum(plain(x) / WORLD for x in inputs).backward()
    sharded(inputs[rank]).backward()
    for parameter, right in zip(sharded.parameters(), plain.parameters()):
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), right.grad, rtol=1e-5, atol=1e-5)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mixed = fully_shard(Block(device), mesh=mesh, mp_policy=policy)
    mixed(inputs[rank]).backward()
    for parameter, right in zip(mixed.parameters(), plain.parameters()):
        assert parameter.grad.dtype == torch.float32
        torch.testing.assert_close(parameter.grad.full_tensor(), right.grad, rtol=0.1, atol=0.1 * right.grad.abs().max())


PARTS = check_tokens, check_gradients_of_one_tensor, check_a_group_of_one, check_refusals, check_fsdp


@pytest.mark.parametrize("device", DEVICES)
def test_norms_on_two_processes(device, tmp_path):
    run_all(__file__, tmp_path, device, len(PARTS))


if __name__ == "__main__":
    with process_group() as (rank, device):
        for part in PARTS:
            part(device, rank)
            print(part.__name__, "ok", flush=True)
