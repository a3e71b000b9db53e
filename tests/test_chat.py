"""The chat, driven in a pseudo-terminal as a person would; and what a terminal shows of a run."""

import os
import re
import signal

import pexpect
import pytest
from endpoint import Endpoint, Raw, call, say

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
COLOURFUL = {"TERM": "xterm", "NO_COLOR": ""}


def roles(request):
    return [message["role"] for message in request["messages"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["at the prompt", "in a turn"])
def test_a_chat_that_is_asked_to_end_ends(terminal, moment, number):
    with Endpoint(Raw(say("never"), sleep=15)) as endpoint:
        chat = terminal(endpoint=endpoint)
        chat.expect("> ")
        if moment == "in a turn":
            chat.sendline("Take your time.")
            chat.expect(r"\.\.\. 0 s")
        chat.process.send_signal(number)
        chat.expect(pexpect.EOF)
        assert chat.process.wait(5) in (0, 130)


def test_a_conversation_of_several_turns(terminal, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    replies = [say("Hello, you."), say(call("read_file", {"path": "a.txt"})), say("It says alpha.")]
    slow = Raw(say("never"), sleep=15)
    with Endpoint(*replies, slow, say("Here again."), say("A new start.")) as endpoint:
        chat = terminal(endpoint=endpoint, env=COLOURFUL)
        chat.expect("> ")
        chat.sendline("/help")
        chat.expect("/clear.*/tokens.*/exit.*\n> ")
        chat.sendline("Good morning.")
        chat.expect("Hello, you.\r\n.*1 steps, 25 tokens.*> ")
        chat.sendline("What is in a.txt?")
        chat.expect(r'\[1\] read_file \{"path": "a.txt"\}.*alpha.*It says alpha.\r\n.*2 steps.*> ')
        assert roles(endpoint.requests[1]) == ["system", "user", "assistant", "user"]
        chat.sendline("Take your time.")
        chat.expect(r"\.\.\. 1 s")
        chat.sendintr()
        chat.expect("interrupted.*> ")
        chat.sendline("Still there?")
        chat.expect("Here again.*> ")
        chat.sendline("/tokens")
        chat.expect("100 tokens.*> ")
        chat.sendline("/clear")
        chat.sendline("Who am I?")
        chat.expect("A new start.*> ")
        assert roles(endpoint.requests[-1]) == ["system", "user"]
        chat.sendeof()
        chat.expect(pexpect.EOF)
        chat.close()
    assert (chat.exitstatus, endpoint.faults) == (0, [])


def test_ctrl_c_at_the_prompt_does_not_leave(terminal):
    with Endpoint(say("Hello.")) as endpoint:
        chat = terminal(endpoint=endpoint, env=COLOURFUL)
        chat.expect("> ")
        chat.send("half a line")
        chat.expect("half a line")
        chat.sendintr()
        chat.expect("> ")
        chat.sendline("Hi.")
        chat.expect("Hello.*> ")
        chat.sendline("/exit")
        chat.expect(pexpect.EOF)
        chat.close()
    assert chat.exitstatus == 0
    assert endpoint.requests[0]["messages"][1]["content"] == "Hi."


def screen(text):
    """What stands on a terminal after all this was written to it, line by line."""
    lines = [re.sub(r"^.*\x1b\[K", "", line) for line in text.replace("\r\n", "\n").split("\n")]
    return [re.sub(r"\x1b\[\d*m", "", line) for line in lines]


@pytest.mark.parametrize("columns", [80, 40])
def test_the_screen_of_a_run(terminal, workspace, columns):
    (workspace / "a.txt").write_text("alpha\n" * 9)
    with Endpoint(say(call("read_file", {"path": "a.txt"})), say("It is **alpha**.")) as endpoint:
        run = terminal("Read it.", endpoint=endpoint, env=COLOURFUL, columns=columns)
        run.expect(pexpect.EOF)
    shown = screen(run.before)
    assert shown[1] == '[1] read_file {"path": "a.txt"}'
    assert shown[2:5] == ["    alpha", "    alpha", "    alpha (+6 lines)"]
    assert shown.count("It is **alpha**.") == 1
    assert re.fullmatch(r"2 steps, 50 tokens, [\d.]+ s", shown[-2])
    assert "\x1b[2m" in run.before


def test_no_color(terminal):
    with Endpoint(say("Hello.")) as endpoint:
        run = terminal("Hi.", endpoint=endpoint, env=COLOURFUL | {"NO_COLOR": "1"})
        run.expect(pexpect.EOF)
    assert not re.search(r"\x1b\[\d*m", run.before)
