"""Tests bench/compare.py on the CPU. Each way (an implementation that is compared) is right on small shapes, and wrong ways
are caught. Nothing is timed here. A stand-in for the GPU makes all calls that would be timed."""

import importlib.util
import json
import os
import sys

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import compare  # noqa: E402
import peers  # noqa: E402

CASES = {case.name: case.tiny() for case in peers.CASES}


class Gpu:
    """Makes each call once and reports that it took 10 us, and that the copy took 5, 4, ... us."""

    def __init__(self):
        self.us, self.name, self.copy_us, self.calls = float("inf"), "some copy", 6.0, 0

    def count_sets(self, size):
        return 2

    def yardstick(self, size):
        return self

    def release(self):
        pass

    def see(self, us):
        self.us = min(self.us, us)

    def time(self, calls, size, beside):
        for call in calls:
            call()
        self.calls += len(calls)
        self.copy_us -= 1
        return 10.0, self.copy_us, True


def run(name, ways, gpu=None):
    with torch.no_grad():
        return compare.run_case(CASES[name], ways, gpu)


def ways_like(pattern):
    return [way for way in peers.find_ways()[0] if pattern in way.name and not way.cuda_only]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The JSON file that the command line writes for all ways of this library and of eager PyTorch."""
    path = tmp_path_factory.mktemp("compare") / "result.json"
    arguments = ["--device", "cpu", "--only", "/trope", "--only", "/torch eager", "--json", str(path)]
    assert compare.main(arguments) == 0
    return path


def test_all_cases_are_right_in_both_directions(result):
    rows = json.loads(result.read_text())["cases"]
    assert {(row["case"], row["direction"]) for row in rows} == {(name, d) for name in CASES for d in compare.DIRECTIONS}
    for row in rows:
        assert row["status"] == "ok" and row["time_us"] is None and 0 < row["error"] < compare.LIMIT, row


def test_this_library_rounds_once(result):
    """Without tables, its error is half an ulp: at most 2^-8 of the largest element."""
    rows = [row for row in json.loads(result.read_text())["cases"] if row["way"] in ("trope", "trope, in place")]
    assert rows and all(row["error"] <= 2.0**-8 for row in rows)


def test_host_time_is_measured_for_each_layer(result):
    rows = {row["way"]: row for row in json.loads(result.read_text())["host"]}
    assert {"trope, the C function alone", "trope, launch of trope.torch", "trope", "torch eager"} <= rows.keys()
    assert all(row["status"] == "ok" for row in rows.values()), rows
    assert all("both_us" in rows[way] for way in ("trope", "torch eager", compare.EMPTY))


def test_host_ratio_compares_forward_and_backward():
    rows = [{"both_us": 50.0}, {"both_us": None}, {}]
    for row in rows:
        compare.add_host_ratio(row, {"both_us": 40.0})
    assert rows == [{"both_us": 50.0, "both_ratio": 1.25}, {"both_us": None}, {}]
    compare.add_host_ratio(rows[1], {"both_us": None})
    assert "both_ratio" not in rows[1]


def test_json_has_one_line_for_each_case(result):
    lines = result.read_text().splitlines()
    rows = [line for line in lines if line.startswith('{"case"')]
    assert len(rows) == len(json.loads(result.read_text())["cases"])
    assert all(json.loads(row.rstrip(",")) for row in rows)


def test_markdown_has_a_row_for_each_case(result, capsys):
    assert compare.main(["--from", str(result), "--markdown"]) == 0
    text = capsys.readouterr().out
    for name in CASES:
        assert text.count("| %s |" % name) == 2
    for line in text.splitlines():
        assert not line.startswith("|") or line.endswith("|")


def test_list_prints_the_names_that_only_selects(capsys):
    assert compare.main(["--device", "cpu", "--list", "--only", "thd-pareto/backward/t"]) == 0
    names = capsys.readouterr().out.split("\n")[:-1]
    assert "thd-pareto/backward/trope" in names and all(name.startswith("thd-pareto/backward/t") for name in names)


def _turned_back(p, *tensors):
    return peers._trope_backward(p, *tensors)


def _one_position_later(p, q, k):
    return peers.trope.torch.rotate(q, k, **dict(p.options, start_positions=torch.ones(p.batch, dtype=torch.int32)))


def _without_the_last_token(p, q, k):
    q, k = peers._trope(p, q, k)
    q[:, -1] = 0
    return q, k


def _not_a_number(p, q, k):
    q, k = peers._trope(p, q, k)
    k[0, 0, 0, 0] = float("nan")
    return q, k


def _k_twice(p, q, k):
    q, k = peers._trope(p, q, k)
    return k, k


def _q_alone(p, q, k):
    return peers._trope(p, q, k)[:1]


@pytest.mark.parametrize(
    "broken", [_turned_back, _one_position_later, _without_the_last_token, _not_a_number, _k_twice, _q_alone]
)
def test_a_wrong_way_is_caught_and_not_timed(broken):
    gpu = Gpu()
    way = peers.Way("broken", "broken", ("rope",), broken, autograd=False, cuda_only=False, directions=("forward",))
    (row,) = run("llama-3-8b-tp8", [way], gpu)
    assert row["status"] == "WRONG" and row["time_us"] is None and gpu.calls == 0
    assert "WRONG" in compare.row_line(row)
    assert compare.cell(row) == "wrong" and compare.is_bad(row)


def test_a_wrong_gradient_is_caught():
    way = peers.Way("broken", "broken", ("rope",), peers._trope, peers._trope, cuda_only=False)
    forward, backward = run("qwen3-32b", [way], Gpu())
    assert forward["status"] == "ok" and backward["status"] == "WRONG"


NORMED = ["norm-qwen3-32b-tp8", "norm-gemma-3-4b", "norm-olmo-2-7b"]


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("which", range(4))
def test_a_wrong_gradient_of_a_norm_is_caught(which, name):
    """which: whether the gradient of q, k, q's weight or k's weight is made wrong."""

    def backward(p, *tensors):
        results = peers._trope_norm_backward(p, *tensors)
        results[which].mul_(1.05)
        return results

    way = peers.Way("broken", "broken", (CASES[name].kind,), peers._trope_norm, backward, cuda_only=False)
    forward, backward = run(name, [way], Gpu())
    assert forward["status"] == "ok" and backward["status"] == "WRONG"


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("norm-gemma-3-4b", {"plus_one": False}),
        ("norm-olmo-2-7b", {"scope": "head"}),
        ("norm-olmo-2-7b", {"plus_one": True}),
    ],
)
def test_a_norm_of_another_model_is_caught(name, wrong):
    def forward(p, q, k, *weights):
        return tuple(peers.norm_calls.forward((q, k), p.norms._replace(**wrong), p.host_inv_freq))

    def backward(p, d_q, d_k, q, k):
        return tuple(peers.norm_calls.backward((d_q, d_k), (q, k), p.norms._replace(**wrong), p.host_inv_freq))

    rows = run(name, [peers.Way("broken", "broken", (CASES[name].kind,), forward, backward, cuda_only=False)], Gpu())
    assert [row["status"] for row in rows] == ["WRONG", "WRONG"]


def test_norm_formulas_match_the_models():
    """The formulas that are timed in PyTorch give the same results as transformers' modules."""
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3").Gemma3RMSNorm
    olmo2 = pytest.importorskip("transformers.models.olmo2.modeling_olmo2").Olmo2RMSNorm
    qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3").Qwen3RMSNorm
    for name, module in zip(NORMED, (qwen3, gemma3, olmo2)):
        problem = peers.Problem(CASES[name], "cpu")
        q, weight = peers.make_flats(problem, "forward", 1)[0].view(problem.shapes_in[0]), problem.weights[0]
        norm = module(weight.numel(), eps=peers.EPS).to(q.dtype)
        norm.weight.data.copy_(weight.flatten())
        x = q.flatten(2) if weight.dim() == 2 else q
        assert torch.equal(peers._norm_of(problem)(q, weight), norm(x).view(q.shape))


def test_a_norm_refuses_tensors_that_it_cannot_read():
    problem = peers.Problem(CASES["norm-qwen3-32b-tp8"], "cpu")
    q, k = (torch.rand(shape).to(problem.dtype) for shape in problem.shapes_in)
    for wrong in (q.transpose(1, 2), q.float(), q[:, 1:]):
        with pytest.raises(ValueError, match="contiguous"):
            peers._trope_norm(problem, k, wrong, *problem.weights)
        with pytest.raises(ValueError, match="contiguous"):
            peers._trope_norm_backward(problem, wrong, k, q, k)
    problem.norms.weights[0] = problem.norms.weights[0][:-1]
    with pytest.raises(ValueError, match="head_dim"):
        peers._trope_norm_backward(problem, q, k, q, k)


def test_the_row_of_a_way_that_raises_holds_its_error():
    def refuse(p, *tensors):
        raise NotImplementedError("not on\nthis machine")

    ways = [peers.Way("other", "other", ("rope",), refuse, cuda_only=False), *ways_like("torch eager")]
    rows = run("llama-3-8b-tp8", ways)
    failed = [row for row in rows if row["way"] == "other"]
    assert len(failed) == 2 and all(row["note"] == "NotImplementedError: not on" for row in failed)
    assert [row["status"] for row in rows if row["way"] == "torch eager"] == ["ok", "ok"]
    assert not any(compare.is_bad(row) for row in failed)


def test_rows_of_a_process_that_ends_early_have_failed(monkeypatch):
    """JAX is measured by a process of its own. Here, it prints one row and ends."""
    problem = peers.Problem(CASES["thd-70b-tp8"], "cpu")
    rows = [compare.make_row(problem, "backward", way) for way in peers._jax_ways()]
    given = {"problems": [dict(peers.describe(problem, "backward"), rows=rows)], "rounds": 0, "limit": compare.LIMIT}
    script = "import json, sys; print(json.dumps(json.load(sys.stdin)['problems'][0]['rows'][0])); sys.exit(3)"
    monkeypatch.setattr(compare, "JAX", [sys.executable, "-c", script])
    first, second = compare._run_jax(given, "cpu")
    assert first == rows[0] and second["way"] == rows[1]["way"]
    assert second["status"] == "failed" and second["note"].endswith("ended with status 3")


@pytest.mark.parametrize("name", CASES)
def test_the_ratio_uses_the_fastest_copy_so_far(name):
    gpu = Gpu()
    rows = run(name, ways_like("trope") + ways_like("torch eager"), gpu)
    assert gpu.calls == 2 * len(rows)
    compare.add_copies(rows, gpu)
    for row in rows:
        assert row["time_us"] == 10 and row["ratio"] == gpu.us / 10 and row["copy"] == "some copy", row


def test_bytes_count_what_is_read_and_written():
    problem = peers.Problem(CASES["llama-3-70b"], "cpu")
    assert problem.bytes() == 2 * 2 * 32 * (64 + 8) * 128
    problem = peers.Problem(CASES["deepseek-v3-kv"], "cpu")
    assert problem.bytes() == 2 * 32 * (128 * 256 + 64 + 128 * 192 + 128 * 128)
    problem = peers.Problem(CASES["norm-qwen3-8b"], "cpu")
    assert problem.bytes() == 2 * 2 * 32 * (32 + 8) * 128
    assert problem.bytes("backward") == 3 * 2 * 32 * (32 + 8) * 128
    problem = peers.Problem(CASES["norm-gemma-3-4b"], "cpu")
    assert problem.bytes() == 2 * 2 * 32 * (8 + 4) * 256


def test_lengths_of_packed_sequences():
    pareto = peers.lengths_of("pareto", 65536)
    assert sum(pareto) == 65536 and max(pareto) > 20 * 64 and min(pareto[:-1]) >= 64
    assert peers.lengths_of("64", 65536) == [1024] * 64 and peers.lengths_of("4", 16) == [4] * 4


def test_plot(result, tmp_path):
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is missing")
    path = tmp_path / "compare.svg"
    assert compare.main(["--from", str(result), "--plot", str(path)]) == 0
    assert path.read_text().count("<svg") == 1
