"""What must hold for every input, not only for those that somebody thought of."""

import functools
import json

import pytest
from endpoint import Endpoint, Raw, call, deltas, history_faults, say, sse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backend
import harness
from tools import REGISTRY, dispatch

quickly = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
names = st.sampled_from(["list_dir", "read_file", "search_text"])
arguments = st.dictionaries(texts, texts | st.integers(), max_size=3).map(json.dumps)
calls = st.builds(call, names, arguments, st.sampled_from(["call_1", "a", "b", "", None]))
FIELDS = "id index name function arguments type custom input content text extra_content".split()


# Functions with names, as hypothesis parses the source of a lambda, in the middle of a draw: on
# Python 3.11 that fails now and then with a SystemError.
def lists_and_objects(inner):
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)


def a_reply(content, made, finish, more):
    message = {"role": "assistant", "content": content, "tool_calls": made}
    return {"choices": [{"message": message | more, "finish_reason": finish}]}


def as_bytes(value):
    return json.dumps(value).encode()


def as_stream(value):
    return sse({"choices": [{"delta": value}]}, value).encode()


def for_any_tool(text):
    return json.dumps({"path": text, "query": text, "glob_pattern": text})


simple = st.none() | st.booleans() | st.integers() | texts
odd = st.recursive(simple, lists_and_objects, max_leaves=8)
EXTRA = ["function_call", "reasoning_content", "refusal", "reasoning_details"]
NO_MESSAGE = {"choices": [{"message": None, "finish_reason": "stop"}]}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Retries come at once: how long they wait is tested elsewhere."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def scripted():
    """scripted(*replies): an endpoint with these replies, and how `chat` is to reach it. It is one
    endpoint and one client for all examples, as a client takes its time to make."""
    with Endpoint() as endpoint:
        at = backend.Endpoint(backend.BACKENDS["openai"], endpoint.url, model="m")

        def script(*replies):
            endpoint.replies = replies
            for learned in (endpoint.requests, endpoint.faults, at.refused):
                learned.clear()
            return endpoint, at

        yield script


def as_seen(reply):
    """What the loop gets to see of a reply; ids are fresh each time."""
    made = [(c.function.name, c.function.arguments, c.words_after) for c in reply.tool_calls]
    return reply.content, made, reply.finish_reason, reply.usage, reply.reasoning


@quickly
@given(
    text=texts
    | st.just('```json\n{"name": "list_dir", "arguments": {}}\n```\nSo it is.')
    | st.just("<think>Hm.</think>It is."),
    made=st.lists(calls, max_size=3),
    cuts=st.lists(st.integers(1, 60), max_size=6),
    finish=st.sampled_from(["stop", "tool_calls", "length"]),
)
def test_any_way_of_cutting_a_stream_gives_the_plain_reply(scripted, text, made, cuts, finish):
    for index, each in enumerate(made):  # whole calls with ids of their own: the plain mode's case
        each["id"] = f"call_{index}"
    completion = say(text, *made, finish=finish)
    tools = [tool.schema for tool in REGISTRY.values()]
    question = [{"role": "user", "content": "Hi."}]
    _, at = scripted(completion, Raw(sse(*deltas(completion, cuts))))
    plain = backend.chat(question, tools, backend=at)
    streamed = backend.chat(question, tools, backend=at, stream=True)
    assert as_seen(plain) == as_seen(streamed)


@quickly
@given(
    replies=st.lists(
        st.builds(
            a_reply,
            odd,
            odd | st.lists(calls | odd, max_size=3),
            odd | st.sampled_from(["stop", "tool_calls", "length", "content_filter"]),
            st.dictionaries(st.sampled_from(EXTRA), odd, max_size=2),
        )
        | st.just(NO_MESSAGE),
        min_size=1,
        max_size=4,
    ),
    stream=st.booleans(),
)
def test_whatever_comes_the_history_is_one_that_every_endpoint_takes(
    scripted, replies, stream, workspace
):
    endpoint, at = scripted(*map(Raw, replies), say("done"))
    messages: list = []
    model = functools.partial(backend.chat, backend=at, stream=stream)
    harness.run("Do.", model=model, messages=messages, max_steps=6)
    harness.run("And.", model=model, messages=messages, max_steps=6)
    assert endpoint.faults == []
    assert history_faults(messages) == []


@quickly
@given(
    name=names | st.sampled_from([*REGISTRY, "nothing", ""]),
    raw=st.text(max_size=60) | odd.map(json.dumps) | arguments | st.builds(for_any_tool, texts),
)
def test_no_argument_string_makes_dispatch_raise(name, raw, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    result = dispatch(name, raw)
    assert isinstance(result, str) and result


@quickly
@given(body=st.binary(max_size=200) | odd.map(as_bytes) | odd.map(as_stream), stream=st.booleans())
def test_whatever_the_body_it_is_a_reply_or_one_line(scripted, body, stream):
    endpoint, at = scripted(Raw(body, headers={"retry-after": "0"}))
    try:
        backend.chat([{"role": "user", "content": "Hi."}], backend=at, stream=stream)
    except backend.BackendError as error:
        assert "\n" not in str(error)
        assert endpoint.url in str(error)
