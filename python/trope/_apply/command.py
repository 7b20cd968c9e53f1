"""The command: reads the options and the file, then makes the calls, compares and writes, tensor by tensor."""

import contextlib
import sys

from .calls import POISONED, Call
from .compare import Comparisons, check_header
from .config import Config
from .device import find_device
from .files import CHUNK, REAL, TensorFile, allocate
from .names import find_groups
from .options import check_options, make_parser, read_options
from .output import Output, is_same
from .refused import OK, REFUSED, Refused, refuse, refuse_tensor, tell


class Run:
    """One run of the command.

    operands  {name: (group, role)} of each tensor that is rotated, or copied as v
    calls     the Call of each group; groups with tensors of the same kinds share one call
    """

    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.file = self._open(options.inputs[0])
        self.groups, self.operands = find_groups(self.file, options.name)
        self.config = Config(options, self.groups) if options.config is not None else None
        self.device = find_device(options)
        self.calls = self._find_calls()
        self.expected = None if options.expect is None else self._open(options.expect)
        self.comparisons = None if self.expected is None else Comparisons(self.expected, options.ulp)
        self.output, self.status = None, 0
        if self.expected is not None:
            self._check_expected()
        self._allocate()
        if options.output is not None:
            self.output = stack.enter_context(Output(options.output))

    def _open(self, path):
        file = TensorFile(path)
        self.stack.callback(file.close)
        return file

    def _find_calls(self):
        """Finds the calls of the groups, by their prefixes."""
        known, calls = {}, {}
        for group in self.groups:
            key = tuple(
                (role, tensor.dtype, tensor.shape, "" if role in ("q", "k", "x", "v") else tensor.name)
                for role, tensor in sorted(group.items())
            )
            if key not in known:
                known[key] = Call(self.file, group, self.options, self.config)
            calls[group.prefix] = known[key]
        return calls

    def _allocate(self):
        """Allocates memory for the largest tensor that rotates, for its result, and for copying a chunk."""
        rotated = [t.bytes for t in self.file.tensors if self._call_that_rotates(t) is not None]
        largest = max(rotated, default=0)
        self.source = allocate(largest)
        self.result = self.source if self.options.in_place else allocate(largest)
        self.chunk = allocate(CHUNK)

    def _call_that_rotates(self, tensor):
        """Returns the call that rotates a tensor, or None if the tensor is only copied."""
        group, role = self.operands.get(tensor.name, (None, None))
        call = None if group is None else self.calls[group.prefix]
        return call if call is not None and call.batch and call.tokens and call.rotates(role) else None

    # -- The expected file --

    def _is_compared(self, tensor):
        """Whether elements may differ by some ulp. Tensors that are not compared in this way must be equal."""
        return tensor.name in self.operands and tensor.dtype in REAL

    def _check_expected(self):
        """Refuses an expected file that does not belong to the same call."""
        for tensor in self.file.tensors:
            if self._is_compared(tensor):
                check_header(tensor, self.expected)
        for expected in self.expected.tensors:
            tensor = self.file.by_name.get(expected.name)
            if tensor is None:
                text = "is not in %s, so that there is nothing to compare it with"
                refuse_tensor(self.expected.path, expected.name, text, self.file.path)
            if not self._is_compared(tensor):
                self._check_same(tensor, check_header(tensor, self.expected))

    def _check_same(self, tensor, expected):
        for at in range(0, tensor.bytes, CHUNK):
            here, there = (allocate(min(CHUNK, tensor.bytes - at)) for _ in range(2))
            self.file.read(tensor, here, at)
            self.expected.read(expected, there, at)
            if here.tobytes() != there.tobytes():
                text = "differs from that of %s: the files are from different calls"
                refuse_tensor(self.expected.path, expected.name, text, self.file.path)

    # -- Tensors --

    def rotate(self, tensor, call):
        """Yields (offset, bytes) of the result, in the order of the tensor."""
        source, result = tensor.view(self.source), tensor.view(self.result)
        self.file.read(tensor, source)
        self.status |= call.rotate(tensor, source, source if self.options.in_place else result, self.device)
        data = self.result[: tensor.bytes]
        for at in range(0, tensor.bytes, CHUNK):
            yield at, data[at : at + CHUNK]

    def copy(self, tensor):
        """Yields (offset, bytes) of a tensor that is only copied. Padding may become zeros."""
        group, _ = self.operands.get(tensor.name, (None, None))
        call = None if group is None else self.calls[group.prefix]
        is_zeroed = call is not None and call.padded is not None and self.options.padding == "zero"
        token_bytes = call.token_bytes(tensor) if is_zeroed else 1
        step = max(1, CHUNK // token_bytes) * token_bytes
        buffer = self.chunk if step <= CHUNK else allocate(step)
        for at in range(0, tensor.bytes, step):
            data = buffer[: min(step, tensor.bytes - at)]
            self.file.read(tensor, data, at)
            if is_zeroed:
                call.zero_padding(data, token_bytes, at)
            yield at, data

    def do_tensor(self, tensor):
        call = self._call_that_rotates(tensor)
        parts = self.copy(tensor) if call is None else self.rotate(tensor, call)
        comparison = self.comparisons.begin(tensor) if self.comparisons and self._is_compared(tensor) else None
        for at, data in parts:
            if comparison is not None:
                other = allocate(data.size)
                self.expected.read(self.expected.by_name[tensor.name], other, at)
                comparison.add(data, other, at * tensor.elements // tensor.bytes)
            if self.output is not None:
                self.output.write(data)
        if comparison is not None:
            self.comparisons.end(comparison)

    def do_tensors(self):
        """Processes the file, and returns the exit status."""
        if self.output is not None:
            self.output.write(self.file.header())
        for i, tensor in enumerate(self.file.tensors):
            self._show_progress(i)
            self.do_tensor(tensor)
        self._show_progress(len(self.file.tensors))
        status = OK if self.comparisons is None else self.comparisons.verdict()
        sys.stdout.flush()  # a failure leaves no output file, so the comparison has to be printed before it
        if self.output is not None:
            self.output.commit()
        self._explain()
        return status

    # -- Messages to the user --

    def _show_progress(self, done):
        """Shows the progress on a terminal. The last tensor removes the line."""
        count = len(self.file.tensors)
        if not self.options.quiet and count >= 3 and sys.stderr.isatty():
            text = "\r%d of %d tensors" % (done, count) if done < count else "\r%32s\r" % ""
            tell(text, end="")

    def _explain(self):
        for group in () if self.options.quiet else self.groups:
            for line in self.calls[group.prefix].explain(group):
                tell(line)
        for warning in dict.fromkeys(self.calls[group.prefix].warn(group) for group in self.groups):
            if warning:
                tell("trope apply: %s: warning: %s" % (self.file.path, warning))
        if self.status & POISONED:
            tell("trope apply: %s: elements at positions outside the table were set to NaN" % self.file.path)


def _run(argv):
    options = read_options(argv)
    if options.help:
        print(make_parser().format_help(), end="")
        return OK
    check_options(options)
    if None not in (options.output, options.expect) and is_same(options.output, options.expect):
        refuse("-o and --expect are the same file, which would be compared and replaced")
    with contextlib.ExitStack() as stack:
        return Run(options, stack).do_tensors()


def main(argv):
    """Runs the command with these arguments, and returns its exit status. An OSError is of standard output."""
    try:
        return _run(argv)
    except Refused as refused:
        reason = str(refused)
    except MemoryError:
        reason = "out of memory"
    tell("trope apply: " + reason)
    return REFUSED
