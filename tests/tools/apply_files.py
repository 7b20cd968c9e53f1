"""trope apply writes a file as a whole or not at all: what was there is untouched until then, links are followed, mode and
owner are kept, memory is bounded, and nothing is left behind."""

import json
import os
import random
import resource
import signal
import struct
import subprocess
import tempfile
import time

import harness
import safetensors
from harness import TOOL, check, run
from safetensors import Tensor

SAID = ["--layout", "sbhd", "--pairing", "half", "--rope-theta", 10000]


def tensor(*shape):
    count = 1
    for n in shape:
        count *= n
    return Tensor("F32", list(shape), [random.uniform(-2, 2) for _ in range(count)])


def large_file(path, layers, tokens):
    """A file of `layers` tensors of zeros, each of tokens * 4096 bytes."""
    header, end = {}, 0
    for layer in range(layers):
        begin, end = end, end + tokens * 4096
        header["layers.%d.q" % layer] = {"dtype": "F32", "shape": [tokens, 1, 8, 128], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return end


def read(path):
    with open(path, "rb") as file:
        return file.read()


def kinds_of_output():
    with harness.folder() as directory:
        source, out = os.path.join(directory, "in"), os.path.join(directory, "out")
        safetensors.write(source, {"q": tensor(4, 1, 2, 8)})
        check(run("apply", source, "-o", out, *SAID).returncode == 0, "a new file")
        want = read(out)
        piped = subprocess.run([TOOL, "apply", source, "-o", "-", "--quiet"] + [str(a) for a in SAID],
                               stdout=subprocess.PIPE)
        check(piped.returncode == 0 and piped.stdout == want, "standard output has the same bytes")
        # A link stays one, and the file that it leads to keeps its mode.
        folder = os.path.join(directory, "there")
        os.mkdir(folder)
        with open(os.path.join(folder, "real"), "w") as file:
            file.write("before")
        os.chmod(file.name, 0o604)
        link, dangling = os.path.join(directory, "link"), os.path.join(directory, "dangling")
        os.symlink("there/real", link)
        os.symlink("there/new", dangling)
        for path, real in ((link, file.name), (dangling, os.path.join(folder, "new"))):
            result = run("apply", source, "-o", path, *SAID)
            check(result.returncode == 0 and os.path.islink(path) and read(real) == want, "a link is followed",
                  result.stderr)
        check(os.stat(file.name).st_mode & 0o777 == 0o604, "the mode is kept", oct(os.stat(file.name).st_mode))
        check(harness.files(folder) == ["new", "real"], "nothing else is there", harness.files(folder))
        if os.geteuid() == 0:
            os.chown(file.name, 12, 34)
            check(run("apply", source, "-o", link, *SAID).returncode == 0, "a file of another owner")
            check((os.stat(file.name).st_uid, os.stat(file.name).st_gid) == (12, 34), "the owner is kept")
        mask = os.umask(0o027)
        check(run("apply", source, "-o", out + "2", *SAID).returncode == 0, "another new file")
        os.umask(mask)
        check(os.stat(out + "2").st_mode & 0o777 == 0o640, "permissions of a new file follow the umask")


def refused_outputs():
    with harness.folder() as directory:
        source = os.path.join(directory, "in")
        safetensors.write(source, {"q": tensor(4, 1, 2, 8)})
        os.mkfifo(os.path.join(directory, "pipe"))
        os.symlink("loop", os.path.join(directory, "loop"))
        os.symlink("/dev/null", os.path.join(directory, "null"))
        os.symlink("/dev/stdout", os.path.join(directory, "stdout"))
        before = harness.files(directory)
        for path in ("pipe", "loop", "null", "/dev/null", "/dev/stdout", "/proc/self/fd/1", ".", "/dev/stdou",
                     "no/such/folder"):
            result = run("apply", source, "-o", os.path.join(directory, path), *SAID)
            check(result.returncode == 2 and result.stderr.count("\n") == 1, path, "is refused", result.stderr)
            check(result.stdout == "", path, "gets nothing")
            check(harness.files(directory) == before, path, "leaves", harness.files(directory))
        check(os.path.islink("/dev/stdout") or not os.path.exists("/dev/stdout"), "/dev/stdout is what it was")
        for path in ("/dev/stdout", os.path.join(directory, "stdout"), "/dev/fd/1"):
            with open(os.path.join(directory, "out"), "w") as file:
                result = subprocess.run([TOOL, "apply", source, "-o", path] + [str(a) for a in SAID], stdout=file,
                                        stderr=subprocess.PIPE)
            check(result.returncode == 2 and read(file.name) == b"", path, "that is a file")
        if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
                result = run("apply", source, "-o", os.path.join(shared, "out"), *SAID)
                check(result.returncode == 0, "a file in /dev/shm", result.stderr)
        result = run("apply", source, "-o", "-", "--expect", source, *SAID)
        check(result.returncode == 2 and "-o -" in result.stderr, "both on standard output", result.stderr)
        others = [("x.pt", b"PK\3\4" + bytes(60), "zip"), ("x.npy", b"\x93NUMPY\1\0" + bytes(60), ".npy"),
                  ("old.pt", b"\x80\2\x8a\nl\xfc\x9c\x46" + bytes(60), "pickle")]
        for name, content, words in others:
            path = os.path.join(directory, name)
            with open(path, "wb") as file:
                file.write(content)
            result = run("apply", path, "-o", path + ".out", *SAID)
            check(result.returncode == 2 and words in result.stderr and "safetensors" in result.stderr, name, result.stderr)


def hard_links():
    """A file with several names is not replaced: the other names would keep the old contents."""
    with harness.folder() as directory:
        source, out, other, link = (os.path.join(directory, name) for name in ("in", "out", "other", "link"))
        safetensors.write(source, {"q": tensor(4, 1, 2, 8)})
        before = read(source)
        os.link(source, out)
        os.symlink("out", link)
        for path in (out, link, source):  # another name of the input, a link to it, and the input itself
            result = run("apply", source, "-o", path, *SAID)
            check(result.returncode == 2 and result.stderr.count("\n") == 1, path, "is refused", result.stderr)
            check(os.path.basename(path) + ": has 2 names (hard links)" in result.stderr, "the reason", result.stderr)
            check(read(source) == read(out) == before, path, "is as it was")
        with open(other, "w") as file:
            file.write("before")
        os.link(other, other + "2")
        check(run("apply", source, "-o", other, *SAID).returncode == 2, "a file with two names that is not the input")
        check(read(other) == read(other + "2") == b"before", "both names have what they had")
        check(harness.files(directory) == ["in", "link", "other", "other2", "out"], "nothing else is there")
        os.remove(other + "2")
        os.remove(out)
        check(run("apply", source, "-o", other, *SAID).returncode == 0, "with one name left")
        check(run("apply", source, "-o", source, *SAID).returncode == 0, "the input with one name left")


# Signals that leave a process running, or that nothing can handle.
HARMLESS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD,
            signal.SIGURG, signal.SIGWINCH}


def killed(directory, number, **options):
    """The exit status of a run that gets the signal while its output is unfinished."""
    sanitizers = {name: os.environ.get(name, "") + ":handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0"
                  for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")}
    words = [TOOL, "apply", os.path.join(directory, "in"), "-o", os.path.join(directory, "out")] + [str(a) for a in SAID]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, **sanitizers}, **options)
    end = time.monotonic() + 60
    while len(harness.files(directory)) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


def without_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def interrupted():
    """A signal that ends the program leaves what was there and nothing else, and the program dies by it."""
    fatal = sorted(signal.valid_signals() - HARMLESS)
    for name in ("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
                 "XCPU", "XFSZ", "VTALRM", "PROF", "IO", "PWR", "SYS", "RTMIN", "RTMAX"):
        check(getattr(signal, "SIG" + name) in fatal, "SIG" + name, "is tried")
    with harness.folder() as directory:
        source, out = os.path.join(directory, "in"), os.path.join(directory, "out")
        large_file(source, 64, 2048)
        with open(out, "w") as file:
            file.write("before")
        for number in fatal:
            status = killed(directory, number, preexec_fn=without_core)
            check(status == -number, "signal", number, "ends it", status)
            check(read(out) == b"before", "signal", number, "leaves the file as it was")
            check(harness.files(directory) == ["in", "out"], "signal", number, "leaves", harness.files(directory))
    with harness.folder() as directory:  # nohup's way: a signal that is ignored stays ignored
        source, out = os.path.join(directory, "in"), os.path.join(directory, "out")
        large_file(source, 8, 2048)
        with open(out, "w") as file:
            file.write("before")
        status = killed(directory, signal.SIGHUP, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        check(status == 0 and os.path.getsize(out) > 8 * 2048 * 4096, "an ignored signal ends nothing", status)
    with harness.folder() as directory:
        source, out = os.path.join(directory, "in"), os.path.join(directory, "out")
        large_file(source, 4, 64)
        with open(out, "w") as file:
            file.write("before")
        for restore in (False, True):  # with the limit's signal ignored, and not
            full = run("apply", source, "-o", out, *SAID, restore_signals=restore,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
            check(full.returncode in (2, -signal.SIGXFSZ), "a full disk", full.returncode, full.stderr)
            check(read(out) == b"before" and harness.files(directory) == ["in", "out"], "a full disk leaves",
                  harness.files(directory))


def bounded_memory():
    """A file is worked through tensor by tensor: what is held does not grow with it."""
    with harness.folder() as directory:
        source, out = os.path.join(directory, "in"), os.path.join(directory, "out")
        size = large_file(source, 64, 1024)
        check(size == 2**28, "a file of 256 MB")
        process = subprocess.Popen([TOOL, "apply", source, "-o", out, "--quiet", "--threads", "1"] + [str(a) for a in SAID],
                                   stderr=subprocess.PIPE)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.WEXITSTATUS(status)
        process.stderr.close()
        check(status == 0, "exit status", status)
        check(usage.ru_maxrss < 64 * 1024, "holds at most 64 MB, not", usage.ru_maxrss, "KB")
        check(os.path.getsize(out) >= size, "all of it is written")


harness.require_apply()
random.seed(20261128)
kinds_of_output()
refused_outputs()
hard_links()
interrupted()
bounded_memory()
harness.finish()
