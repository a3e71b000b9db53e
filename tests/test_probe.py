"""probe.py: one raw exchange, and the check-up of an endpoint."""

import json
from types import SimpleNamespace

import pytest
from endpoint import Endpoint, Raw, call, deltas, say, sse

import probe

A, B = ({"path": name} for name in ("a.txt", "b.txt"))
STREAMED = {"content-type": "text/event-stream"}


def able(body, lacks=""):
    """A model and its endpoint that can do everything but one thing."""
    asked, stream = body["messages"][-1], body.get("stream")
    usage = {"usage": None} if lacks == "usage told" else {}
    reply = say("It is sunny." if asked["role"] == "tool" else "Hello.", **usage)
    if lacks == "plain answer" and not body.get("tools") and not stream:
        reply = Raw({"error": {"message": "only with tools"}}, 400)
    if lacks == "tool result accepted" and asked["role"] == "tool":
        reply = Raw({"error": {"message": "unknown role: tool"}}, 422)
    if asked["role"] == "user" and "read_file" in asked["content"]:
        made = [call("read_file", A, "a"), call("read_file", B, "b")]
        reply = say(
            *made[: 1 if "What" in asked["content"] or lacks == "two calls in one turn" else 2],
            **usage,
        )
        if lacks == "arguments are valid JSON" and not stream and "What" in asked["content"]:
            reply = say(call("read_file", '{"path": "a.t'))
        if lacks == "tool call" and not stream and "What" in asked["content"]:
            reply = say("I cannot know that.")
        if lacks == "streamed tool call" and stream:
            reply = say("I cannot know that.")
        if lacks == "native calls":
            reply = say(json.dumps({"name": "read_file", "arguments": A}))
    if not stream or isinstance(reply, Raw):
        return reply
    whole = lacks == "streaming" and not body.get("tools")
    return Raw(reply) if whole else Raw(sse(*deltas(reply)), headers=STREAMED)


def lines(done, mark):
    """The names of the checks that have this mark."""
    return [
        line[4:].partition(":")[0] for line in done.stdout.splitlines() if line.startswith(mark)
    ]


def test_an_endpoint_that_can_do_all(command):
    with Endpoint(able) as endpoint:  # as a process; the others run in this one, which is faster
        done = command("--check", endpoint=endpoint, script="probe.py")
    assert (done.returncode, done.stderr, lines(done, "no  ")) == (0, "", [])
    assert len(lines(done, "ok  ")) == 9
    assert endpoint.faults == []


NEEDED = ["plain answer", "tool call", "arguments are valid JSON", "tool result accepted"]
LACKING = {name: [name] for name in NEEDED}
LACKING["tool call"] = ["tool call", "arguments are valid JSON"]  # without a call, no arguments
LACKING |= {
    name: [name]
    for name in ["two calls in one turn", "streaming", "streamed tool call", "usage told"]
}


@pytest.fixture
def checked(monkeypatch, capsys):
    """checked(endpoint) runs the check-up: its exit code, and what it prints."""

    def run(endpoint):
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("AGENT_MODEL", "m")
        monkeypatch.setattr("sys.argv", ["probe.py", "--check"])
        code = probe.main()
        return SimpleNamespace(returncode=code, stdout=capsys.readouterr().out)

    return run


@pytest.mark.parametrize("lacks", LACKING)
def test_what_is_lacking_is_said_and_nothing_else(checked, lacks):
    with Endpoint(lambda body: able(body, lacks)) as endpoint:
        done = checked(endpoint)
    assert lines(done, "no  ") == LACKING[lacks]
    assert done.returncode == (1 if lacks in NEEDED else 0)


def test_calls_as_text_are_told_apart(checked):
    with Endpoint(lambda body: able(body, "native calls")) as endpoint:
        done = checked(endpoint)
    assert "ok  tool call: calls come as text: the harness reads them" in done.stdout
    assert done.stdout.count("calls come as text") == 2  # plain and streamed
    assert (done.returncode, lines(done, "no  ")) == (0, ["two calls in one turn"])


def test_a_refused_parameter_is_no_hindrance(checked):
    with Endpoint(able, refuses=["stream_options"], models=()) as endpoint:
        done = checked(endpoint)
    assert (done.returncode, lines(done, "no  ")) == (0, [])
