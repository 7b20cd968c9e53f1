"""Tests bench/jax_calls.py, which measures JAX for bench/compare.py, on small shapes."""

import io
import json
import os
import sys

import pytest

pytest.importorskip("jax")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import jax_calls  # noqa: E402

INV_FREQ = [10000.0 ** (-i / 8) for i in range(8)]
COUNTED = list(range(12))
PROBLEMS = {  # the shape before heads, the positions, and options besides inv_freq
    "bshd": ([2, 12], [COUNTED, COUNTED], {}),
    "thd": ([12], [*range(5), *range(7)], {"cu_seqlens": [0, 5, 12]}),
    "mrope": (
        [2, 12],
        [[COUNTED, COUNTED], [COUNTED[::-1], COUNTED], [COUNTED, COUNTED[::-1]]],
        {"pair_axis": [0, 0, 0, 1, 1, 1, 2, 2]},
    ),
}


def fill_in(monkeypatch, capsys, kind, direction="forward", rounds=1, moved=0):
    """Returns the rows of both ways. moved: added to each position that the formula reads, but trope does not."""
    shape, positions, more = PROBLEMS[kind]
    more = dict(more, position_ids=positions) if kind == "mrope" else more
    options = {"layout": "thd" if kind == "thd" else "bshd", "pairing": "half", "inv_freq": INV_FREQ, **more}
    problem = {
        "direction": direction, "shapes": [[*shape, heads, 16] for heads in (8, 1)], "options": options,
        "positions": (jax_calls.numpy.array(positions) + moved).tolist(),
        "rows": [{"case": kind, "way": way, "status": "ok", "time_us": None} for way in jax_calls.WAYS],
    }  # fmt: skip
    given = {"problems": [problem], "rounds": rounds, "limit": 2.0**-6}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(given)))
    jax_calls.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_results_are_right(monkeypatch, capsys, kind, direction):
    rows = fill_in(monkeypatch, capsys, kind, direction, rounds=0)
    assert [row["way"] for row in rows] == list(jax_calls.WAYS)
    for row in rows:
        assert row["status"] == "ok" and 0 < row["error"] < 2.0**-6 and row["time_us"] is None, row


def test_the_times_of_two_programs_give_those_of_a_call_and_of_an_execution(monkeypatch, capsys):
    """Each program runs. The times are of trope's programs, of the copy's, and of the formula's."""
    times = iter([25.0, 40.0, 13.0, 25.0, 30.0, 60.0])
    monkeypatch.setattr(jax_calls, "CHAINED", 4)
    real = jax_calls.time_program
    monkeypatch.setattr(jax_calls, "time_program", lambda *given: (real(*given), next(times))[1])
    mine, formula = fill_in(monkeypatch, capsys, "thd")
    assert (mine["time_us"], mine["fixed_us"], mine["copy_us"], mine["ratio"]) == (5.0, 20.0, 4.0, 0.8)
    assert (formula["time_us"], formula["fixed_us"], formula["copy_us"], formula["ratio"]) == (10.0, 20.0, 4.0, 0.4)
    assert mine["note"] == "4 chained; 20.0 us an execution"


def test_a_wrong_result_is_caught_and_not_timed(monkeypatch, capsys):
    wrong, _ = fill_in(monkeypatch, capsys, "thd", moved=1)
    assert wrong["status"] == "WRONG" and wrong["time_us"] is None


def test_nothing_fuses_two_calls_or_copies_between_them():
    """A program of chained calls of trope has nothing but these calls."""
    options = {"layout": "thd", "pairing": "half", "inv_freq": INV_FREQ, "cu_seqlens": [0, 5, 12]}
    problem = {"direction": "backward", "shapes": [[12, heads, 16] for heads in (8, 1)], "options": options}
    arrays = jax_calls.arrays_of(problem, "trope", "bfloat16")
    program = jax_calls.chain(jax_calls.make_call(problem, "trope"), 8)
    text = program.lower(arrays, tuple(jax_calls.make_tensors(problem))).compile().as_text()
    assert text.count('custom_call_target="trope_rotate"') == 8
    assert not [word for word in ("copy(", "fusion(", "convert(") if word in text]
