"""Ctrl-C, at each moment of a run: it ends with 130, soon, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time

import pexpect
import pytest
from conftest import ROOT
from endpoint import Endpoint, Raw, call, deltas, say, sse

MOMENTS = {  # the replies, and what stderr says when the moment has come
    "waiting for the reply": ([Raw("{}", sleep=8)], None),
    "in mid-stream": ([Raw(sse(*deltas(say("It is " * 50))), pause=8)], None),
    "in a retry's wait": (
        [Raw({"error": {"message": "busy"}}, 503, {"retry-after": "30"})],
        "trying again",
    ),
    "in a command": ([], "run_shell"),
}


def settings(endpoint):
    return {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": endpoint.url,
        "AGENT_MODEL": "m",
        "TERM": "dumb",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_is_interrupted(workspace, moment, number):
    replies, sign = MOMENTS[moment]
    sleep = f"sleep 4322.{number:d}"  # the tests run side by side
    if moment == "in a command":
        replies = [say(call("run_shell", {"command": f"{sleep} & {sleep}"}))]
    with Endpoint(*replies) as endpoint:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "harness.py"), "-y", "--stream", "Go."],
            env=settings(endpoint), cwd=workspace, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
        while not endpoint.requests:
            time.sleep(0.05)
        while sign and sign not in process.stderr.readline():
            pass
        time.sleep(0.5)
        process.send_signal(number)
        started = time.monotonic()
        out, err = process.communicate(timeout=10)
        seconds = time.monotonic() - started
    assert process.returncode == 130
    assert seconds < 2
    assert "Traceback" not in err
    assert subprocess.run(["pgrep", "-f", sleep], capture_output=True).returncode == 1


def test_ctrl_c_at_the_question(workspace):
    with Endpoint(say(call("run_shell", {"command": "touch c"}))) as endpoint:
        program = [str(ROOT / "harness.py"), "Go."]
        terminal = pexpect.spawn(
            sys.executable, program, env=settings(endpoint), cwd=workspace, timeout=10
        )
        terminal.expect_exact("exact call: ")
        started = time.monotonic()
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
    assert terminal.exitstatus == 130
    assert time.monotonic() - started < 2
    assert b"Traceback" not in terminal.before
    assert not (workspace / "c").exists()
