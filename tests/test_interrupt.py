"""Ctrl-C, at each moment of a run: it ends with 130, soon, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time

import pexpect
import pytest
from conftest import ROOT, settings_for
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_is_interrupted(start, moment, number):
    replies, sign = MOMENTS[moment]
    sleep = f"sleep 4322.{number:02d}{os.getpid()}"  # the tests run side by side
    if moment == "in a command":
        replies = [say(call("run_shell", {"command": f"{sleep} & {sleep}"}))]
    with Endpoint(*replies) as endpoint:
        process = start("-y", "--stream", "Go.", endpoint=endpoint)
        while not endpoint.requests or (sign and sign not in process.output(2)):
            time.sleep(0.02)
        time.sleep(0.2)
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
        program, env = [str(ROOT / "harness.py"), "Go."], settings_for(endpoint, TERM="dumb")
        terminal = pexpect.spawn(sys.executable, program, env=env, timeout=10)
        terminal.expect_exact("exact call: ")
        started = time.monotonic()
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
    assert terminal.exitstatus == 130
    assert time.monotonic() - started < 2
    assert b"Traceback" not in terminal.before
    assert not (workspace / "c").exists()
