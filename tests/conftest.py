"""What the tests share: a workspace, a scripted endpoint, and the command run as a person would."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint import Endpoint

ROOT = Path(__file__).resolve().parent.parent
KEY = "test-key-93c1f0"  # must never be seen anywhere but in the request's header

# A job in the background of a script ignores Ctrl-C, and all that it starts would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
    left = {}
    for place in Path("/proc").glob("[0-9]*"):  # nothing where there is no /proc
        try:
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(os.getpid()) or str(folder) in os.readlink(place / "cwd"):
                left[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
        except OSError:  # it has ended meanwhile
            pass
    left.pop(os.getpid(), None)
    return left


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

    Returns code, out, err, and the endpoint (None where there are no replies).
    """
    import harness as module

    def run(*arguments, replies=(), env=None, **options):
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


@pytest.fixture
def command(workspace):
    """command(*arguments, endpoint=...) runs harness.py as a process of its own."""

    def run(*arguments, endpoint=None, env=None, stdin=None, script="harness.py", timeout=30):
        settings = {"PATH": os.environ["PATH"], "HOME": str(workspace.parent), "NO_COLOR": "1"} | (
            env or {}
        )
        if endpoint:
            settings |= {
                "OPENAI_BASE_URL": endpoint.url,
                "OPENAI_API_KEY": KEY,
                "AGENT_MODEL": "m",
            } | (env or {})
        return subprocess.run(
            [sys.executable, str(ROOT / script), *arguments],
            env=settings,
            cwd=workspace,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
