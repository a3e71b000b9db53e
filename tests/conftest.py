"""What the tests share: a workspace, a scripted endpoint, and the command run as a person would."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from endpoint import Endpoint

ROOT = Path(__file__).resolve().parent.parent
KEY = "test-key-93c1f0"  # must never be seen anywhere but in the request's header


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
