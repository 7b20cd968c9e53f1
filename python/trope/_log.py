"""trope.log_calls: the kinds of calls that a program makes."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Iterator, NamedTuple

from . import _abi


class LoggedCall(NamedTuple):
    """A kind of call: how often it was made, the kernel that it took, and the text that `trope bench --call` takes."""

    count: int
    kernel: str
    text: str


def _read():
    """Returns the library's record, in the order of first calls."""
    size = _abi.lib.trope_logged_calls(None, 0)
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = _abi.lib.trope_logged_calls(buffer, size)
        if needed <= size:
            break
        size = needed
    calls = [line.split(" ", 2) for line in buffer.value.decode().splitlines()]
    return [LoggedCall(int(count), kernel, text) for count, kernel, text in calls]


class log_calls:
    """Records the kinds of calls that this process makes, also in C and in compiled programs.

        with trope.log_calls() as calls:
            loss = model(**batch).loss
            loss.backward()
        print(calls)

    It prints a line for each kind: count, kernel, and the text that `trope bench --call 'TEXT'` times. Calls of one kind
    differ only in addresses, batch, tokens, and numbers such as eps; the text is that of the call with the most tokens.
    Calls that a CUDA graph replays are not counted. All threads are recorded.
    """

    __module__ = __package__
    _lock = threading.Lock()
    _active = 0

    def __init__(self) -> None:
        self._before: list[LoggedCall] = []
        self._after: list[LoggedCall] | None = None

    def __enter__(self) -> log_calls:
        with self._lock:
            log_calls._active += 1
            _abi.check(_abi.lib.trope_log_calls(1))
        self._before, self._after = _read(), None
        return self

    def __exit__(self, *exception) -> None:
        self._after = _read()
        with self._lock:
            log_calls._active -= 1
            if not log_calls._active and os.environ.get("TROPE_LOG") != "calls":
                _abi.check(_abi.lib.trope_log_calls(0))

    @property
    def calls(self) -> list[LoggedCall]:
        """The kinds of calls since the beginning of the `with` block, until its end."""
        now = _read() if self._after is None else self._after
        before = [call.count for call in self._before] + [0] * len(now)  # the record only grows, at its end
        changed = [call._replace(count=call.count - earlier) for call, earlier in zip(now, before)]
        return [call for call in changed if call.count > 0]

    def __iter__(self) -> Iterator[LoggedCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __str__(self) -> str:
        return "".join("%d %s %s\n" % call for call in self.calls)
