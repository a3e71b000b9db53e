"""What the tests share: a workspace, a scripted endpoint, and the command run as a person would."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint import Endpoint
from forked import Forked, start_server
from pexpect.fdpexpect import fdspawn

ROOT = Path(__file__).resolve().parent.parent
KEY = "test-key-93c1f0"  # must never be seen anywhere but in the request's header
STAYING = {os.getpid()}  # the processes that live as long as the tests

# A job in the background of a script ignores Ctrl-C, one of nohup SIGHUP, and all that they start too.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """No setting or key of the machine reaches a test, and no proxy."""
    for name in list(os.environ):
        if (
            name.startswith(("AGENT_", "OPENAI_"))
            or name.endswith(("_API_KEY", "_TOKEN"))
            or "proxy" in name.lower()
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")


MADE_BY_TOOLS = {"__pycache__", ".pytest_cache", ".hypothesis", ".ruff_cache", ".mypy_cache"}


def left_running(folder):
    """The processes that are children of this one or work below a folder: pid, and what they are."""
    left, this = {}, str(os.getpid())  # nothing where there is no /proc
    for pid in filter(str.isdecimal, os.listdir("/proc") if os.path.isdir("/proc") else []):
        try:
            with open(f"/proc/{pid}/stat", "rb", 0) as file:
                parent = file.read().decode("latin-1").rpartition(")")[2].split()[1]
            if parent == this or str(folder) in os.readlink(f"/proc/{pid}/cwd"):
                left[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended meanwhile
            pass
    return {pid: told for pid, told in left.items() if pid not in STAYING}


@pytest.fixture(scope="session")
def server():
    """The socket of the process that forks scripts."""
    process, requests = start_server()
    STAYING.add(process.pid)
    with requests, process:
        yield requests
        requests.close()


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """A home folder, a folder for temporary files, and the repository: no test writes there."""
    return [tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("temporary"), ROOT]


@pytest.fixture(autouse=True)
def nothing_is_left(request, places, monkeypatch):
    """After each test no process of it is there any more, and nothing was written outside."""
    for name, place in zip(("HOME", "TMPDIR"), places, strict=False):
        monkeypatch.setenv(name, str(place))
    before, running = [set(os.listdir(place)) for place in places], left_running(ROOT / "none")
    yield
    tmp_path = request.node.funcargs.get("tmp_path", ROOT / "none")
    for _ in range(20):  # one that was killed may take a moment
        if not (left := left_running(tmp_path).keys() - running.keys()):
            break
        time.sleep(0.05)
    assert not left, left_running(tmp_path)
    for place, names in zip(places, before, strict=True):
        assert set(os.listdir(place)) - MADE_BY_TOOLS == names - MADE_BY_TOOLS


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty folder, and the working directory of the test."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def harness(workspace, monkeypatch, capsys):
    """harness(*arguments, replies=[...]) runs main() in this process against a scripted endpoint.

    Returns code, out, err, and the endpoint (None where there are no replies). `stdin` is a text
    that comes from a file, and not from a terminal.
    """
    import harness as module

    def run(*arguments, replies=(), env=None, stdin=None, **options):
        if stdin is not None:
            (workspace.parent / "stdin").write_text(stdin)
            monkeypatch.setattr(sys, "stdin", open(workspace.parent / "stdin"))
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        endpoint = Endpoint(*replies, **options) if replies else None
        if endpoint:
            monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            if "AGENT_MODEL" not in (env or {}):
                monkeypatch.setenv("AGENT_MODEL", "m")
        try:
            if endpoint:
                endpoint.__enter__()
            code = module.main(list(arguments))
        except SystemExit as exit_:
            code = exit_.code
        finally:
            if endpoint:
                endpoint.__exit__()
        said = capsys.readouterr()
        assert KEY not in said.out + said.err
        if endpoint:
            assert endpoint.faults == []
            assert KEY not in json.dumps(endpoint.requests)
        return SimpleNamespace(code=code, out=said.out, err=said.err, endpoint=endpoint)

    return run


def settings_for(endpoint, **more):
    """The environment of a process: no more than it needs, and how it reaches an endpoint."""
    settings = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "NO_COLOR": "1"}
    if endpoint:
        settings |= {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": KEY, "AGENT_MODEL": "m"}
    return settings | more


@pytest.fixture
def start(server, workspace):
    """start(*arguments, endpoint=...) starts harness.py as a process of its own."""

    def run(*arguments, endpoint=None, env=None, script="harness.py", **more):
        env = settings_for(endpoint, **(env or {}))
        return Forked(server, ROOT / script, *arguments, env=env, cwd=workspace, **more)

    return run


@pytest.fixture
def command(start):
    """command(*arguments, endpoint=...) runs harness.py as a process of its own, to its end."""

    def run(*arguments, **options):
        process = start(*arguments, **options)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


class Terminal(fdspawn):
    """A process in a pseudo-terminal, and what pexpect can do with it."""

    def __init__(self, start, *arguments, columns=80, **options):
        import fcntl
        import termios

        end, its = os.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        with open(its, "r+b", 0) as stream:
            self.process = start(*arguments, streams=[stream] * 3, **options)
        super().__init__(end, timeout=20, encoding="utf-8")

    def sendintr(self):
        self.send("\x03")

    def sendeof(self):
        self.send("\x04")

    def close(self):
        """Take the terminal away, which ends what still runs in it."""
        super().close()
        self.exitstatus = self.process.wait()


@pytest.fixture
def terminal(start):
    """terminal(*arguments, endpoint=...) starts harness.py in a pseudo-terminal."""
    opened = []

    def run(*arguments, **options):
        opened.append(Terminal(start, *arguments, **options))
        return opened[-1]

    yield run
    for each in opened:
        each.close()
