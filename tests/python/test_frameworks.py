"""bench/frameworks.py on the CPU: it runs small decoder layers with and without a patch, and detects a wrong patch."""

import contextlib
import functools
import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import frameworks  # noqa: E402
import trope.torch  # noqa: E402
from torch._dynamo import lookup_backend  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

ORIGINAL = modeling_qwen3.apply_rotary_pos_emb


def plain(model):
    return contextlib.nullcontext()


@contextlib.contextmanager
def replaced(function):
    """Replaces apply_rotary_pos_emb with another function."""
    modeling_qwen3.apply_rotary_pos_emb = function
    try:
        yield
    finally:
        modeling_qwen3.apply_rotary_pos_emb = ORIGINAL


def measure(ways, is_compiled=False):
    layer = frameworks.make_layer("Qwen3-4B", 8, "cpu")
    return frameworks.measure_layer(layer, ways, is_compiled, "cpu", frameworks.Limits(2, 1, 1))


def test_layers_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "result.json"
    options = ["--only", "layers", "--device", "cpu", "--tokens", "8", "--code", "eager", "--rounds", "2", "--count", "6"]
    assert not frameworks.main([*options, "--json", str(path)])
    rows = json.loads(path.read_text())["rows"]
    assert [row["case"] for row in rows] == ["Llama-3-8B, eager", "Qwen3-4B, eager", "Qwen3-30B-A3B, eager"]
    for row in rows:
        patched = ["trope", "fused"][: 1 + ("Qwen" in row["case"])]
        assert row["failed"] == {} and row["tokens"] == 8
        assert row["difference"]["trope"] == 0 and row["equal"]["trope"] == 1
        if "fused" in patched:
            assert 0 < row["difference"]["fused"] < 2.0**-5 and row["equal"]["fused"] > 0.9
        for direction in ("forward", "forward and backward"):
            assert list(row[direction]) == ["plain", *patched, "without"]
            assert all(us > 0 for times in row[direction].values() for us in times)
        assert list(row["calls"]) == patched
    shown = capsys.readouterr().out
    for row in rows:
        assert shown.count("| %s | 8 |" % row["case"]) == 2
    assert modeling_qwen3.apply_rotary_pos_emb is ORIGINAL


@pytest.fixture
def is_traced_alone(monkeypatch):
    """Code is traced and differentiated as for Inductor, but runs without code generation. This is fast, and gives the bits
    of eager code."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lookup_backend("aot_eager"))


def test_compiled_layers(is_traced_alone):
    row = measure(frameworks.find_layer_ways(), is_compiled=True)
    assert row["failed"] == {} and row["case"] == "Qwen3-4B, torch.compile"
    assert row["difference"]["trope"] == 0 < row["difference"]["fused"] < 2.0**-5
    assert modeling_qwen3.apply_rotary_pos_emb is ORIGINAL


def test_compiled_code_keeps_the_function_that_it_was_compiled_with():
    x = torch.rand(3, 4)
    with replaced(lambda q, k, cos, sin: (q + 1, k)):
        compiled = frameworks.Compiled(lambda: modeling_qwen3.apply_rotary_pos_emb(x, x, None, None)[0] * 2)
    assert torch.equal(compiled(), (x + 1) * 2)


def test_without_norm_and_rotation():
    layer = frameworks.make_layer("Qwen3-4B", 8, "cpu")
    before, attention = layer.call(), layer.model.layers[0].self_attn
    norms = attention.q_norm, attention.k_norm
    with frameworks.without_norm_and_rotation(layer.model):
        result = layer.call()
        gradients = torch.autograd.grad(result.sum(), layer.inputs, allow_unused=True)
    assert gradients[0] is not None and gradients[1] is None and gradients[2] is None
    hidden = layer.model.layers[0].input_layernorm(layer.inputs[0])
    q, k, v = (
        projection(hidden).unflatten(-1, (-1, 32)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    middle = layer.inputs[0] + attention.o_proj(attended.transpose(1, 2).flatten(2))
    expected = middle + layer.model.layers[0].mlp(layer.model.layers[0].post_attention_layernorm(middle))
    assert torch.equal(result, expected) and not torch.equal(result, before)
    assert (attention.q_norm, attention.k_norm) == norms and torch.equal(layer.call(), before)


@pytest.mark.parametrize("bench", [None, {"bytes": 7e6, "time_us": 9.0, "copy_us": 4.0}])
def test_calls_inside_a_layer(bench, monkeypatch):
    """find_calls separates forward from backward, in the log and in the profile."""
    monkeypatch.setattr(frameworks, "time_call", lambda text, device: bench)
    profiles = [["a", 1.0]], [["a", 2.0], ["b", 3.0], ["c", 4.0]]
    monkeypatch.setattr(frameworks, "find_kernels", lambda function, device: profiles[function is both])
    x = torch.ones(1, 4, 2, 8, requires_grad=True)

    def forward():
        return trope.torch.rotate(x, layout="bshd", pairing="half", inv_freq=[1.0, 0.5, 0.2, 0.1])

    def both():
        forward().sum().backward()

    found = frameworks.find_calls({"forward": forward, "forward and backward": both}, "cpu")
    times = bench or dict.fromkeys(["bytes", "time_us", "copy_us"])
    assert found == {"forward": dict(times, kernels=profiles[0]), "backward": dict(times, kernels=profiles[1][1:])}
    lines = list(frameworks.call_lines({"calls": {"trope": found}}))
    alone = "; alone 9.0 us, copy of 7.0 MB 4.0 us" if bench else ""
    assert lines[1] == "    trope, backward: b 3.0 us; c 4.0 us" + alone


def test_kernels_of_a_profile(monkeypatch):
    """Only trope's kernels count. Each time is the median over the calls."""

    def profile(activities):
        events = [
            SimpleNamespace(
                name=name, device_type=torch.autograd.DeviceType.CUDA,
                time_range=SimpleNamespace(start=10 * call + start, elapsed_us=lambda us=call**2 + start: us),
            )
            for call in range(frameworks.PROFILED)
            for start, name in enumerate([
                "void norm_kernel<norm_pass<3> >(norm_call, steps)", "void splitKreduce_kernel<32, 16>(int)",
                "void at::native::rotate_kernel<4>(int)", "add_weights_kernel(weight_sums)", "triton_norm_kernel",
            ])
        ]  # fmt: skip
        return contextlib.nullcontext(SimpleNamespace(events=lambda: events[::-1]))

    monkeypatch.setattr(torch.profiler, "profile", profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert frameworks.find_kernels(lambda: None, "cuda") == [["norm_kernel", 4], ["add_weights_kernel", 7]]


def test_time_of_a_call_alone():
    text = "forward dtype=bf16 batch=1 tokens=8 pairing=half phase_step cp_size=1 operand src=a dst=b src_layout=bshd "
    text += "dst_layout=bshd heads_per_group=4 head_dim=32 rotary_dim=32"
    found = frameworks.time_call(text, "cpu")
    if found is None:
        pytest.skip("the program trope is not there")
    assert found["bytes"] == 2 * 8 * 4 * 32 * 2 and found["time_us"] > 0 and found["copy_us"] > 0


def test_slow_calls_end_after_the_seconds():
    calls = {"slow": 0, "fast": 0}

    def call(name, seconds):
        calls[name] += 1
        time.sleep(seconds)

    ways = {("forward", name): (contextlib.nullcontext, functools.partial(call, name, us)) for name, us in
            (("slow", 0.1), ("fast", 0.0001))}  # fmt: skip
    times = frameworks.take_turns(ways, "cpu", frameworks.Limits(12, 30, 0.1))
    assert calls["slow"] == 4 and 2 + 2 < calls["fast"] <= 2 + 31
    assert times["forward"]["slow"][0] >= 1e5 > times["forward"]["fast"][0]


def test_each_row_is_written_at_once(tmp_path, capsys):
    path = tmp_path / "result.json"
    record = frameworks.Record("machine", str(path))
    for count in (1, 2):
        record.add({"case": count}, ["line %d" % count])
        assert json.loads(path.read_text())["rows"] == [{"case": case} for case in range(1, count + 1)]
        assert capsys.readouterr().out == "line %d\n" % count


def turn_back(q, k, cos, sin):
    return ORIGINAL(q, k, cos, -sin)


def double_the_gradient(q, k, cos, sin):
    return ORIGINAL(q, 2 * k - k.detach(), cos, sin)


@pytest.mark.parametrize("wrong", [turn_back, double_the_gradient])
def test_a_wrong_patch_is_detected(wrong):
    row = measure({"plain": plain, "trope": lambda model: replaced(wrong)})
    assert row["difference"]["trope"] > 2.0**-5
    assert (row["equal"]["trope"] == 1) == (wrong is double_the_gradient)


def refuse(q, k, cos, sin):
    raise NotImplementedError("not on\nthis machine")


def forget_the_gradient(q, k, cos, sin):
    return ORIGINAL(q, k.detach(), cos, sin)


@pytest.mark.parametrize(
    "wrong, error", [(refuse, "NotImplementedError: not on"), (forget_the_gradient, "RuntimeError: One of")]
)
def test_a_way_that_raises_is_left_out_and_named(wrong, error):
    row = measure({"plain": plain, "trope": lambda model: replaced(wrong)})
    assert row["failed"].keys() == {"trope"} and row["failed"]["trope"].startswith(error)
    assert list(row["forward"]) == ["plain"]
    assert [line.split(" | ")[3:8] for line in frameworks.layer_lines(row)][0][1:] == ["-"] * 4


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_patch_that_is_not_called_is_left_out(is_traced_alone, is_compiled):
    def patch(model):
        return contextlib.nullcontext(SimpleNamespace(calls=0, traced=0))

    row = measure({"plain": plain, "trope": patch}, is_compiled)
    assert row["failed"] == {"trope": "RuntimeError: the layer does not call what was patched"}


def test_an_unpatched_layer_that_raises_is_an_error():
    with pytest.raises(NotImplementedError):
        measure({"plain": lambda model: replaced(refuse)})


def test_columns_of_a_line():
    times = {"plain": [2000.0, 1.0], "trope": [1600.0, 1.0], "without": [1000.0, 1.0], "fused": [1250.0, 1.0]}
    row = {"case": "a", "tokens": 4096, "forward": times, "forward and backward": times, "equal": {"trope": 1.0}}
    expected = "| a | 4096 | forward | 2048000 | 50.0 | 2560000 | +25.0 | 37.5 | 3276800 | +60.0 | 20.0 | 1.0000 | - |"
    lines = list(frameworks.layer_lines(row))
    assert lines[0] == expected and len(lines) == 2
    assert all(head.count("|") == expected.count("|") for head in frameworks.LAYER_HEAD.split("\n"))


@pytest.mark.parametrize(
    "options", [["--device", "cpu"], ["--device", "cpu", "--only", "torchtitan"], ["--only", "layers", "--rounds", "1"]]
)
def test_options_that_are_refused(options):
    with pytest.raises(SystemExit):
        frameworks.parse(options)
