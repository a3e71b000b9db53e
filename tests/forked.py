"""A script as a process of its own, forked from one that has loaded the SDK: that takes most of a second.

The server, this file as a script, knows nothing of ours. What it forks becomes the `__main__` that
`python SCRIPT` would be: its own arguments, environment, folder, session and streams, and all our
modules loaded anew. It lacks the start of Python, so what is about that (closed streams, encodings)
starts Python, and so do a plain run, a question and an interruption.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile


def start_server():
    """Returns the process, which ends with this one, and the socket that it listens to."""
    ours, its = socket.socketpair()
    with its:
        return subprocess.Popen([sys.executable, __file__], stdin=its), ours


class Forked:
    """A script that runs, its output in files; to be used like a `Popen`."""

    def __init__(self, server, *words, env, cwd, stdin="", streams=None):
        self.streams = streams or [tempfile.TemporaryFile() for _ in range(3)]
        if stdin:
            os.pwrite(self.streams[0].fileno(), stdin.encode(), 0)
        self.pid = self.returncode = None
        self.told, tell = os.pipe()
        request = json.dumps([list(map(str, words)), dict(env), str(cwd)]) + "\n"
        passed = [*(stream.fileno() for stream in self.streams), tell]
        socket.send_fds(server, [request.encode()], passed)
        os.close(tell)
        self.pid = self.number_told(30)

    def number_told(self, timeout):
        if not select.select([self.told], [], [], timeout)[0]:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"it takes more than {timeout} s")
        return int(os.read(self.told, 10))

    def wait(self, timeout=30):
        if self.returncode is None:
            self.returncode = self.number_told(timeout)
            os.close(self.told)
        return self.returncode

    def output(self, number):
        """What it has written so far, on stdout (1) or stderr (2)."""
        return os.pread(self.streams[number].fileno(), 10**6, 0).decode(errors="replace")

    def communicate(self, timeout=30):
        self.wait(timeout)
        return self.output(1), self.output(2)

    def send_signal(self, number):
        if self.pid and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(self.pid, number)


def serve():
    """Fork for each request: what waits for the script and tells of it, and the script."""
    __import__("openai")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for those that wait
    server = socket.socket(fileno=0)
    while True:
        text, passed, *_ = socket.recv_fds(server, 1_000_000, 4)
        if not text:
            return
        while not text.endswith(b"\n"):
            text += server.recv(1_000_000)
        if os.fork() == 0:
            break
        for descriptor in passed:
            os.close(descriptor)
    server.detach()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, tell = passed
    if child := os.fork():
        for descriptor in streams:
            os.close(descriptor)
        os.write(tell, b"%10d" % child)
        os.write(tell, b"%10d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    sys.argv, env, folder = json.loads(text)
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in passed:
        os.close(descriptor)
    if os.isatty(0):
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = os.path.dirname(sys.argv[0])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve()
