"""trope.log_calls records the kinds of calls of a program."""

import os
import subprocess
import sys
import threading

import numpy
import pytest

import trope

INV_FREQ = [1.0, 0.1, 0.01, 0.001]


def rotate(tokens, **options):
    x = numpy.ones((2, tokens, 3, 8), "float32")
    return trope.rotate(x, layout="bshd", pairing="half", inv_freq=INV_FREQ, **options)


def test_counts_the_calls_of_each_kind():
    rotate(5)
    with trope.log_calls() as calls:
        for tokens in (2, 7, 4):
            rotate(tokens)
        rotate(5, inverse=True)
    rotate(5)
    assert [call.count for call in calls] == [3, 1] and len(calls) == 2
    first, second = calls.calls
    assert " tokens=7 " in first.text and "inverse=1" in second.text and first.text.startswith("forward dtype=f32 ")
    assert first.kernel == trope.kernel_name(
        numpy.ones((2, 7, 3, 8), "float32"), layout="bshd", pairing="half", inv_freq=INV_FREQ
    )
    assert str(calls).splitlines()[0] == "3 %s %s" % (first.kernel, first.text)


def test_logs_can_be_nested_and_used_again():
    outer = trope.log_calls()
    with outer:
        rotate(3)
        with trope.log_calls() as inner:
            rotate(3)
        rotate(3)
    rotate(3)
    assert [call.count for call in outer] == [3] and [call.count for call in inner] == [1]
    with outer:
        rotate(3)
        assert [call.count for call in outer] == [1]
    assert [call.count for call in outer] == [1]


def test_an_error_in_the_block_ends_the_log():
    with pytest.raises(trope.Error):
        with trope.log_calls() as calls:
            rotate(3)
            rotate(3, parts=3)
    rotate(3)
    assert [call.count for call in calls] == [1]


def test_other_threads_are_recorded():
    with trope.log_calls() as calls:
        threads = [threading.Thread(target=rotate, args=(tokens,)) for tokens in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(call.count for call in calls) == 3


@pytest.mark.parametrize("value, count", [("calls", 2), ("", 0)])
def test_the_environment_prints_the_calls_at_exit(value, count):
    program = "import test_log, trope\nfor _ in 1, 2:\n    test_log.rotate(4)\nwith trope.log_calls():\n    pass\n"
    program += "test_log.rotate(4, inverse=True)"
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ, TROPE_LOG=value, PYTHONPATH=path)
    )
    assert found.returncode == 0 and found.stdout == ""
    lines = found.stderr.splitlines()[1:]
    assert len(lines) == count and (not count or lines[0].startswith("2 cpu-") and "inverse=1" in lines[1])
