"""trope.torch with torch.func transforms, forward mode, batched gradients and meta tensors."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import trope  # noqa: E402
import trope.torch  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from checks import DEVICES  # noqa: E402
import reference as formulas  # noqa: E402
from refusals import refused  # noqa: E402

INV_FREQ = [1.0, 0.3, 0.1, 0.03]
TABLE = dict(angle_columns="pair")

pytestmark = pytest.mark.parametrize("device", DEVICES)


def random(*shape, device, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


class Case:
    """A call: the shapes of its tensors, its options, and the functions that make the arrays among the options."""

    def __init__(self, *shapes, **options):
        self.shapes, self.options = shapes, dict(dict(layout="sbhd", pairing="half"), **options)
        self.arrays = {name: option for name, option in options.items() if callable(option)}

    def make(self, device):
        tensors = [random(*shape, device=device, seed=i) for i, shape in enumerate(self.shapes)]
        arrays = {name: make(device) for name, make in self.arrays.items()}
        return tensors, {**self.options, **arrays}


def freqs(*shape):
    return lambda device: random(*shape, device=device, seed=9)


def integers(*values):
    return lambda device: torch.tensor(values, dtype=torch.int32, device=device)


def ids(*values):
    return lambda device: torch.tensor(values, device=device)


def of_freqs(*shapes, columns="pair", rows=3, pairs=4, **options):
    """Returns a Case with a table of freqs, whose gradient is checked, too."""
    width = pairs if columns == "pair" else 2 * pairs
    return Case(*shapes, freqs=freqs(rows, width), angle_columns=columns, **options)


def packed(**options):
    """Returns a Case with packed sequences of 2, 0 and 2 tokens. A part of each head rotates."""
    ends = dict(cu_seqlens=integers(0, 2, 2, 4))
    return of_freqs((6, 2, 8), layout="thd", rows=8, pairs=2, rotary_dim=4, **{**ends, **options})


ONE, TWO = (3, 2, 2, 8), ((3, 2, 2, 10), (3, 2, 1, 8))
PADDED = dict(cu_seqlens_padded=integers(0, 3, 3, 6))
TWO_AXES = dict(rows=5, pairs=2, rotary_dim=4, position_ids=ids([[3, 0, 1]] * 2, [[1, 2, 2]] * 2))
CASES = {
    "sbhd": Case(ONE, inv_freq=INV_FREQ),
    "bshd, interleaved": Case((2, 3, 2, 8), (2, 3, 1, 8), layout="bshd", pairing="interleaved", inv_freq=INV_FREQ),
    "bghsd": Case((2, 2, 2, 3, 8), layout="bghsd", inv_freq=INV_FREQ),
    "thd": Case((5, 2, 8), layout="thd", inv_freq=INV_FREQ, cu_seqlens=integers(0, 2, 5)),
    "freqs": of_freqs(ONE),
    "freqs for each element": of_freqs(ONE, columns="half"),
    "freqs for each element, interleaved": of_freqs(ONE, columns="interleaved", pairing="interleaved"),
    "freqs, inverse, mscale": of_freqs(ONE, inverse=True, mscale=1.5),
    "freqs, interleaved to half": of_freqs(ONE, pairing="interleaved", pairing_out="half"),
    "freqs for each element, interleaved to half": of_freqs(ONE, columns="half", pairing="interleaved", pairing_out="half"),
    "freqs, position_ids": of_freqs(ONE, rows=5, position_ids=ids([0, 4, 2], [1, 1, 3])),
    "freqs, start_positions": of_freqs((2, 3, 2, 8), layout="bshd", rows=5, columns="half", start_positions=integers(1, 2)),
    "freqs, context parallel": of_freqs(ONE, rows=6, cp_size=2, cp_rank=1, cp_layout="striped"),
    "freqs, windows of two widths": of_freqs(*TWO, rotary_dim=[8, 4], rotary_offset=[1, 0]),
    "freqs, a copied tensor": of_freqs(*TWO, pairs=2, columns="half", rotary_dim=[4, trope.COPY]),
    "freqs, parts": of_freqs(ONE, parts=2, **TWO_AXES),
    "freqs, pair_axis": of_freqs(ONE, columns="half", pair_axis=[1, 0], **TWO_AXES),
    "freqs, shared heads": of_freqs((3, 2, 1, 8), shared_heads=3),
    "cos and sin": Case(ONE, cos=freqs(3, 4), sin=freqs(3, 4), angle_columns="pair"),
    "packed": packed(columns="half", padding="zero"),
    "packed, stream_positions": packed(padding="rotate", stream_positions=True),
    "packed, context parallel": packed(cu_seqlens=ids(0, 4, 4, 12), cp_size=2, cp_rank=1, cp_layout="zigzag"),
    "zeroed padding": packed(padding="zero", **PADDED),
    "copied padding": packed(padding="copy", **PADDED),
    "rotated padding": packed(columns="interleaved", padding="rotate", **PADDED),
}  # fmt: skip
each_case = pytest.mark.parametrize("name", CASES)
each_function = pytest.mark.parametrize("function", ["rotate", "rotate_backward"])


def as_function(name, device, function="rotate"):
    """Returns (function, arguments). The arguments are the tensors, and freqs if the case has freqs."""
    tensors, options = CASES[name].make(device)
    if function == "rotate_backward" and options.get("shared_heads"):
        tensors = [x.expand(*x.shape[:2], options["shared_heads"], x.shape[3]).clone() for x in tensors]
    learned = [options.pop("freqs")] if "freqs" in options else []

    def call(*arguments):
        arguments = list(arguments)
        angles = {"freqs": arguments.pop()} if learned else {}
        return getattr(trope.torch, function)(*arguments, **options, **angles)

    return call, tensors + learned


@each_case
@each_function
def test_finite_differences_in_all_modes(device, name, function):
    """gradcheck compares backward and forward mode, and batches of both, with finite differences."""
    call, arguments = as_function(name, device, function)
    arguments = [t.requires_grad_() for t in arguments]
    assert torch.autograd.gradcheck(
        call, arguments, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )


@each_case
def test_finite_differences_of_second_derivatives(device, name):
    call, arguments = as_function(name, device)
    arguments = [t.requires_grad_() for t in arguments]
    assert torch.autograd.gradgradcheck(call, arguments, check_fwd_over_rev=True, check_batched_grad=True, fast_mode=True)


def one(results):
    return results if isinstance(results, tuple) else (results,)


@each_case
@each_function
@pytest.mark.parametrize("batched", ["tensors", "all", "first"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_vmap_has_the_bits_of_a_loop(device, name, function, batched, dtype):
    call, arguments = as_function(name, device, function)
    count = len(CASES[name].shapes)
    arguments = [t.to(dtype) if i < count else t.float() if dtype != torch.float64 else t for i, t in enumerate(arguments)]
    if dtype != torch.float64 and "cos" in CASES[name].arrays:
        pytest.skip("float64 tables require float64 tensors")
    is_batched = [batched == "all" or (i < count if batched == "tensors" else i == 0) for i in range(len(arguments))]
    batches = [torch.stack([t, t * 0.5, t - 1]) if b else t for t, b in zip(arguments, is_batched)]
    in_dims = tuple(0 if b else None for b in is_batched)
    results = one(torch.vmap(call, in_dims)(*batches))
    for b in range(3):
        alone = one(call(*[t[b] if i else t for t, i in zip(batches, is_batched)]))
        for y, wanted in zip(results, alone):
            assert torch.equal(y[b], wanted)


def test_vmap_over_any_dimension(device):
    x = random(3, 4, 2, 2, 8, device=device)

    def call(x):
        return trope.torch.rotate(x, layout="sbhd", pairing="half", inv_freq=INV_FREQ)

    wanted = torch.stack([call(x[:, b]) for b in range(4)], 2)
    assert torch.equal(torch.vmap(call, 1, 2)(x), wanted)
    assert torch.equal(torch.vmap(torch.vmap(call, 1), 0)(random(2, 3, 4, 2, 2, 8, device=device))[1, 2],
                       call(random(2, 3, 4, 2, 2, 8, device=device)[1, :, 2]))  # fmt: skip
    assert torch.vmap(call, 1)(x[:, :0]).shape == (0, 3, 2, 2, 8)


@each_case
def test_torch_func_agrees_with_autograd(device, name):
    call, arguments = as_function(name, device)
    upstream = [random(*y.shape, device=device, seed=20 + i) for i, y in enumerate(one(call(*arguments)))]
    tangents = [random(*t.shape, device=device, seed=30 + i) for i, t in enumerate(arguments)]

    def loss(*arguments):
        return sum((y.sin() * g).sum() for y, g in zip(one(call(*arguments)), upstream))

    leaves = [t.clone().requires_grad_() for t in arguments]
    wanted = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    which = tuple(range(len(arguments)))
    for ours, theirs in zip(torch.func.grad(loss, which)(*arguments), wanted):
        torch.testing.assert_close(ours, theirs)
    _, pull = torch.func.vjp(loss, *arguments)
    for ours, theirs in zip(pull(torch.tensor(2.0, dtype=torch.float64, device=device)), wanted):
        torch.testing.assert_close(ours, 2 * theirs)
    along = sum((g * t).sum() for g, t in zip(wanted, tangents))
    value, tangent = torch.func.jvp(loss, tuple(arguments), tuple(tangents))
    torch.testing.assert_close(value, loss(*arguments))
    torch.testing.assert_close(tangent, along)
    seconds = torch.autograd.grad(along, leaves)
    _, of_gradients = torch.func.jvp(torch.func.grad(loss, which), tuple(arguments), tuple(tangents))
    for ours, theirs in zip(of_gradients, seconds):
        torch.testing.assert_close(ours, theirs)


def reference(x, freqs):
    """Rotates x in sbhd with half pairing. freqs: [tokens, pairs]."""
    coefficients = formulas.of_table(*(t.unsqueeze(-2) for t in (freqs.cos(), freqs.sin())), "pair")
    return formulas.rotate(x, coefficients, "half")


def test_third_derivatives_by_freqs(device):
    x, angles, g = (random(*shape, device=device, seed=i) for i, shape in enumerate([(2, 1, 1, 4), (2, 2), (2, 1, 1, 4)]))

    def ours(angles):
        y = trope.torch.rotate(x, layout="sbhd", pairing="half", freqs=angles, angle_columns="pair")
        return (y * y * y * g).sum()

    def theirs(angles):
        return (reference(x, angles) ** 3 * g).sum()

    for transforms in itertools.product((torch.func.jacfwd, torch.func.jacrev), repeat=3):
        result, wanted = ours, theirs
        for transform in transforms:
            result, wanted = transform(result), transform(wanted)
        torch.testing.assert_close(result(angles), wanted(angles))


def test_directional_derivatives_by_freqs(device):
    """A directional derivative by freqs is linear in the direction. Its derivative with respect to the direction is right,
    too."""
    x, angles, g = (random(*shape, device=device, seed=i) for i, shape in enumerate([(3, 2, 1, 8), (3, 4), (3, 2, 1, 8)]))

    def ours(angles):
        return trope.torch.rotate(x, layout="sbhd", pairing="half", freqs=angles, angle_columns="pair")

    def theirs(angles):
        return reference(x, angles)

    def along(rotate):
        return lambda u: (torch.func.jvp(rotate, (angles,), (u * u,))[1].sin() * g).sum()

    def of_gradient(rotate):
        def loss(a):
            return (rotate(a).sum(0, keepdim=True).sin() * rotate(a) * g).sum()

        return lambda u: torch.func.jvp(torch.func.grad(loss), (u,), (u.cos(),))[1].sin().sum()

    def third(rotate):
        def loss(a):
            return (rotate(a).sum(0, keepdim=True) ** 3 * g).sum()

        first = torch.func.grad(loss)
        second = torch.func.grad(lambda a: (first(a).sin() * a).sum())
        return lambda a: (second(a).sin() * a).sum()

    for make in (along, of_gradient, third):
        for transform in (torch.func.grad, torch.func.jacfwd):
            torch.testing.assert_close(transform(make(ours))(angles), transform(make(theirs))(angles))
    found = []
    for rotate in (ours, theirs):
        u = random(3, 4, device=device, seed=7).requires_grad_()
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(rotate(forward_ad.make_dual(angles, u))).tangent
            found.append(torch.autograd.grad((tangent * g).sum(), u)[0])
    torch.testing.assert_close(*found)


def test_learned_frequencies(device):
    """The tangent of inv_freq is not lost, and each batch entry of vmap has its own frequencies."""
    x, tangent = random(3, 2, 2, 8, device=device), random(4, device=device)
    inv_freq = torch.tensor(INV_FREQ, dtype=torch.float64, device=device)
    positions = torch.arange(3, device=device)[:, None]

    def ours(inv_freq):
        return trope.torch.rotate(x, layout="sbhd", pairing="half", inv_freq=inv_freq)

    def theirs(inv_freq):
        return reference(x, positions * inv_freq)

    for result, wanted in zip(*(torch.func.jvp(f, (inv_freq,), (tangent,)) for f in (ours, theirs))):
        torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(torch.func.jacrev(ours)(inv_freq), torch.func.jacrev(theirs)(inv_freq))
    batch = torch.stack([inv_freq, 2 * inv_freq])
    torch.testing.assert_close(torch.vmap(ours)(batch), torch.stack([theirs(one) for one in batch]))
    wanted = torch.func.jvp(theirs, (inv_freq,), (tangent,))[1]
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(ours(forward_ad.make_dual(inv_freq, tangent)))
        torch.testing.assert_close(dual.tangent, wanted)


def test_module_by_functional_call(device):
    module = trope.torch.RotaryEmbedding(trope.Frequencies(INV_FREQ), layout="sbhd", pairing="half", learned=True).to(
        device
    )
    x, g = random(3, 2, 2, 8, device=device, dtype=torch.float32), random(3, 2, 2, 8, device=device, dtype=torch.float32)

    def loss(parameters):
        return (torch.func.functional_call(module, parameters, (x,)) * g).sum()

    parameters = dict(module.named_parameters())
    (ours,) = torch.func.grad(loss)({name: p.detach() for name, p in parameters.items()}).values()
    (wanted,) = torch.autograd.grad(loss(parameters), tuple(parameters.values()))
    assert torch.equal(ours, wanted)


def test_in_place_calls(device):
    options = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
    x, t = random(2, 3, 2, 2, 8, device=device), random(3, 2, 2, 8, device=device, seed=2)

    def call(x):
        return trope.torch.rotate_(x * 2, **options)

    def wanted(x):
        return trope.torch.rotate(x * 2, **options)

    assert torch.equal(torch.vmap(call)(x), torch.vmap(wanted)(x))
    for ours, theirs in zip(torch.func.jvp(call, (x[0],), (t,)), torch.func.jvp(wanted, (x[0],), (t,))):
        assert torch.equal(ours, theirs)
    assert torch.equal(
        torch.func.grad(lambda x: (call(x) * t).sum())(x[0]), torch.func.grad(lambda x: (wanted(x) * t).sum())(x[0])
    )
    back = torch.vmap(lambda y: trope.torch.rotate_backward_(y.clone(), **options))(torch.vmap(wanted)(x))
    torch.testing.assert_close(back, 2 * x)
    leaf = x[0].clone().requires_grad_()
    z = call(leaf)
    gradients = torch.autograd.grad(z, leaf, x, is_grads_batched=True)[0]
    for g, upstream in zip(gradients, x):
        assert torch.equal(g, torch.autograd.grad(wanted(leaf), leaf, upstream)[0])


def test_transforms_that_are_refused(device):
    options = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
    x = random(2, 3, 2, 2, 8, device=device)
    cos, sin = random(3, 4, device=device).cos(), random(3, 4, device=device).sin()
    table = dict(layout="sbhd", pairing="half", angle_columns="pair")
    status = torch.zeros(1, dtype=torch.int32, device=device)
    gradient = dict(d_inv_freq=torch.zeros(4).double(), **options)
    for argument, call in {
        "out": lambda x: trope.torch.rotate(x, out=torch.empty_like(x), **options),
        "d_inv_freq": lambda x: trope.torch.rotate_backward(x, forward_src=x, **gradient),
        "status": lambda x: trope.torch.rotate(x, status=status, **options),
    }.items():
        for transform in (torch.vmap(call), torch.func.grad(lambda x: call(x[0]).sum())):
            refused(argument, transform, x)
    for transform in (lambda call: torch.func.jvp(call, (cos,), (cos,)), lambda call: torch.func.vjp(call, cos)):
        refused("cos", transform, lambda cos: trope.torch.rotate(x[0], cos=cos, sin=sin, **table), words="pass freqs")
    batch = torch.stack([cos, cos])
    for call in (
        lambda cos: torch.vmap(lambda cos: trope.torch.rotate(x[0], cos=cos, sin=sin, **table))(cos).sum(),
        lambda cos: torch.vmap(
            torch.vmap(lambda x, cos: trope.torch.rotate(x, cos=cos, sin=sin, **table), (0, None)), (None, 0)
        )(x, cos).sum(),
    ):
        refused("cos", torch.func.grad(call), batch, words="pass freqs")
        refused("cos", call, batch.clone().requires_grad_(), words="pass freqs")
    refused("tensors[1]", torch.vmap(lambda x: trope.torch.rotate_(x, x, **options)), x, words="tensors.1. is the same as tensors.0.")
    for call, words, t in (
        (lambda x: trope.torch.rotate_backward_(x, shared_heads=2, **options), "shared_heads", x),
        (lambda x: trope.torch.rotate(x[:, :, :1], shared_heads=2, **options), "empty dimension", x[:0]),
    ):
        with pytest.raises(trope.Error, match=words):
            torch.vmap(call)(t)
    for transform in (torch.vmap, lambda call: torch.func.grad(lambda x: call(x[0]).sum())):
        with pytest.raises(Exception, match="outside of torch.compile"):
            torch.compile(transform(lambda x: trope.torch.rotate(x, **options)), backend="eager", fullgraph=True)(x)


@each_case
@each_function
def test_meta_results_have_the_shapes_of_results_on_a_device(device, name, function):
    call, arguments = as_function(name, device, function)
    tensors, options = CASES[name].make("meta")
    if function == "rotate_backward" and options.get("shared_heads"):
        tensors = [x.expand(*x.shape[:2], options["shared_heads"], x.shape[3]) for x in tensors]
    tensors = [x.requires_grad_() for x in tensors]
    results = one(getattr(trope.torch, function)(*tensors, **options))
    for y, wanted in zip(results, one(call(*arguments))):
        assert y.is_meta and y.shape == wanted.shape and y.dtype == wanted.dtype and y.stride() == wanted.stride()
    gradients = torch.autograd.grad([y.sum() for y in results], tensors)
    assert [g.shape for g in gradients] == [x.shape for x in tensors]


def test_meta_calls_are_refused_like_calls_on_a_device(device):
    def zeros(*shape, dtype=torch.float32):
        return lambda place: torch.zeros(shape, dtype=dtype, device=place)

    def integers_of(*shape):
        return zeros(*shape, dtype=torch.int64)

    for change, others in (
        (dict(freqs=zeros(3, 3, 4), **TABLE), ()),
        (dict(freqs=zeros(3, 4, dtype=torch.int32), **TABLE), ()),
        (dict(inv_freq=INV_FREQ, position_ids=integers_of(2, 4)), ()),
        (dict(inv_freq=INV_FREQ, position_ids=integers_of(2, 2, 3)), ()),
        (dict(inv_freq=INV_FREQ, start_positions=integers_of(3)), ()),
        (dict(inv_freq=INV_FREQ, rotary_offset=1), ()),
        (dict(inv_freq=INV_FREQ), [zeros(3, 5, 1, 8)]),
    ):
        found = []
        for place in (device, "meta"):
            options = {name: value(place) if callable(value) else value for name, value in change.items()}
            with pytest.raises(trope.Error) as caught:
                trope.torch.rotate(
                    *(make(place) for make in (zeros(3, 2, 2, 8), *others)), layout="sbhd", pairing="half", **options
                )
            found.append(caught.value.argument)
        assert found[0] == found[1], change


def test_meta_tensors_in_place_and_with_tensors_on_a_device(device):
    options = dict(layout="sbhd", pairing="half", inv_freq=INV_FREQ)
    x, real = torch.empty(3, 2, 2, 8, device="meta"), random(3, 2, 2, 8, device=device, dtype=torch.float32)
    assert trope.torch.rotate_(x, **options) is x
    assert trope.torch.rotate(x, out=x, **options) is x
    assert trope.torch.rotate(x, **dict(options, inv_freq=torch.empty(4, device="meta"))).is_meta
    rotate, ids = trope.torch.rotate, torch.zeros(2, 3, dtype=torch.long, device=device)
    refused("tensors[1]", rotate, x, real, **options)
    refused("tensors[1]", rotate, real, x, **options)
    refused("position_ids", rotate, x, position_ids=ids, **options)
    refused("out[0]", rotate, x, out=real, **options)
    refused("inv_freq", rotate, x, **dict(options, inv_freq=torch.empty(5, device="meta")))
