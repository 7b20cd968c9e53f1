"""Writes a whole file or none.

If the file system supports it, the file has no name until it is complete. Then nothing remains, however the program ends.
Otherwise it has a temporary name, and signals remove it.
"""

import contextlib
import errno
import os
import secrets
import signal
import stat
import sys
import threading

from .refused import refuse, refuse_file

MOST_LINKS = 40
# Signals that cannot be handled, and signals of a faulting instruction. The processor repeats that instruction before
# Python could run a handler.
_UNHANDLED = {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP"}
_HARMLESS = {"SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"}


class Output:
    """A file to write; "-" is standard output. The end of a `with` block removes a file that has not been committed."""

    def __init__(self, path):
        self.path, self.temporary, self.descriptor, self.handled = path, None, -1, {}
        if path == "-":
            self.descriptor = sys.stdout.fileno()
            if os.isatty(self.descriptor):
                refuse("-o -: standard output is a terminal")
            return
        self.target, there = self._find_target()
        try:
            with self._refusing("cannot create a temporary file beside it"):
                self._open()
            with self._refusing("its mode and owner cannot be kept"):
                self._take_attributes(there)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Removes a file that has not been committed."""
        if self.path != "-" and self.descriptor >= 0:
            os.close(self.descriptor)
        if self.temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)
        for number, handler in self.handled.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def _refusing(self, text):
        """Turns an error of the system into a refusal with the system's reason."""
        try:
            yield
        except OSError as error:
            refuse_file(self.path, "%s: %s", text, error.strerror)

    # -- The place of the file --

    def _find_target(self):
        """Returns the path after all links, and the status of the existing file, or None if the file is new."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            there = None
        except (OSError, ValueError) as error:
            refuse_file(self.path, "%s", getattr(error, "strerror", None) or error)
        target = follow_links(self.path)
        is_regular = there is None or stat.S_ISREG(there.st_mode)
        if target is None or not is_regular or os.path.dirname(os.path.abspath(target)) == "/dev":
            refuse_file(self.path, "must be a regular file, or a new one")
        if there is not None and not os.access(self.path, os.W_OK):
            refuse_file(self.path, "cannot be written: %s", os.strerror(errno.EACCES))
        if there is not None and there.st_nlink > 1:
            text = (
                "has %d names (hard links), and the others would keep the old contents: write to another name, or remove "
                "this one first"
            )
            refuse_file(self.path, text, there.st_nlink)
        return target, there

    def _open(self):
        try:
            folder = os.path.dirname(self.target) or "."
            self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):  # the file system lacks unnamed files
                raise
            self._open_named()

    def _open_named(self):
        with self._new_name() as name:
            self.descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def _new_name(self):
        """Yields a new name next to the target, for a file that the caller makes. Signals already remove that file."""
        self.temporary = "%s.%s" % (self.target, secrets.token_hex(4))
        self._handle_signals()
        try:
            yield self.temporary
        except OSError:
            self.temporary = None  # a file with this name belongs to another program
            raise

    def _take_attributes(self, there):
        """Sets the mode and the owner of the existing file, or those of a new file."""
        if there is None:
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(self.descriptor, 0o666 & ~mask)
            return
        if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(self.descriptor, there.st_uid, there.st_gid)
        os.fchmod(self.descriptor, stat.S_IMODE(there.st_mode))

    # -- Writing --

    def write(self, data):
        view = memoryview(data).cast("B")
        with self._refusing("cannot write"):
            while len(view):
                view = view[os.write(self.descriptor, view[: 1 << 30]) :]

    def commit(self):
        """Moves the file to its place."""
        if self.path == "-":
            return
        with self._refusing("cannot write"):
            os.fsync(self.descriptor)
            if self.temporary is None:
                with self._new_name() as name:
                    self._link(name)
            os.rename(self.temporary, self.target)
            self.temporary = None

    def _link(self, name):
        """Gives this name to the file without a name."""
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # with a folder, os.link follows the link in /proc
        try:
            os.link("/proc/self/fd/%d" % self.descriptor, name, dst_dir_fd=folder)
        finally:
            os.close(folder)

    # -- Signals --

    def _handle_signals(self):
        """Removes the named file on every signal that would end the process. Leaves ignored and handled signals alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in signal.valid_signals():
            name = getattr(number, "name", "")
            if name not in _UNHANDLED | _HARMLESS and signal.getsignal(number) == signal.SIG_DFL:
                self.handled[number] = signal.signal(number, self._remove_and_end)

    def _remove_and_end(self, number, frame):
        if self.temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def follow_links(path):
    """Returns the path after links. None for loops, and for links in /proc, which lead to open files (like /dev/stdout)."""
    proc = os.stat("/proc/self").st_dev
    for _ in range(MOST_LINKS):
        try:
            text = os.readlink(path)
        except (OSError, ValueError):  # no link, or the path does not exist
            return path
        if os.lstat(path).st_dev == proc:
            return None
        path = os.path.join(os.path.dirname(path), text)
    return None


def is_same(a, b):
    """Whether two paths lead to one file, which may be new."""
    with contextlib.suppress(OSError, ValueError):
        return os.path.samefile(a, b)
    return os.path.realpath(a) == os.path.realpath(b)
