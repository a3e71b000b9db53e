"""What endpoints send, and the one clean reply that the loop sees: tables of odd inputs."""

import json
import time
from types import SimpleNamespace

import pytest
from endpoint import USAGE, Endpoint, Raw, call, deltas, say, sse

import backend

NAMES = ["read_file", "list_dir", "write_file"]
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {}}},
    }
    for name in NAMES
]
READ_A = '{"name": "read_file", "arguments": {"path": "a"}}'
READ_B = '{"name": "read_file", "arguments": {"path": "b"}}'

TEXT_CALLS = [  # the text, the calls in it by their paths, the words that are left
    (READ_A, ["a"], ""),
    (f"```json\n{READ_A}\n```", ["a"], ""),
    (f"```\n{READ_A}\n```", ["a"], ""),
    (f"<tool_call>\n{READ_A}\n</tool_call>", ["a"], ""),
    (f"<tool_call>{READ_A}", ["a"], ""),
    (f"<tools>\n{READ_A}\n</tools>", ["a"], ""),
    (f"<tool_call>{READ_A}</tool_call><tool_call>{READ_B}</tool_call>", ["a", "b"], ""),
    (f"<tool_call>{READ_A}</tool_call>\n<tool_call>{READ_B}</tool_call>", ["a", "b"], ""),
    (f"{READ_A}\n{READ_B}", ["a", "b"], ""),
    (f"[{READ_A}, {READ_B}]", ["a", "b"], ""),
    (f"[TOOL_CALLS][{READ_A}]", ["a"], ""),
    ("{" + READ_A + "}", ["a"], ""),
    ("{" + READ_A, ["a"], ""),
    (READ_A + "}", ["a"], ""),
    (READ_A[:-1], ["a"], ""),
    ('{{"name": "read_file", "arguments": {{"path": "a"}}}}', ["a"], ""),
    ('{"name": "read_file", "parameters": {"path": "a"}}', ["a"], ""),
    ('{"function": {"name": "read_file", "arguments": {"path": "a"}}}', ["a"], ""),
    ('{"name": "functions.read_file", "arguments": "{\\"path\\": \\"a\\"}"}', ["a"], ""),
    ("<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>", ["a"], ""),
    ('<function=read_file>{"path": "a"}</function>', ["a"], ""),
    (f"I will look.\n\n```json\n{READ_A}\n```", ["a"], "I will look."),
    (f"I will look.\n{READ_A}\nThis shows it.", ["a"], "I will look.\nThis shows it."),
    # none of these is a call
    (f"The model sends {READ_A} and waits.", [], None),
    (f"{READ_A} is what it sends.", [], None),
    (f"A call looks like <tool_call>{READ_A}</tool_call> in Hermes.", [], None),
    ('{"name": "rm", "arguments": {}}', [], None),
    ('{"name": "read_file"}', [], None),
    ('{"port": 80, "path": "a"}', [], None),
    ("[link](http://x) and {braces}", [], None),
    (f"```python\nimport json\n{READ_A}\n```", [], None),
    (f"```bash\n{READ_A}\n```\n", ["a"], ""),
    (f"```python\nread()\n```\n{READ_A}", ["a"], "```python\nread()\n```"),
    ("{{{{{{{{" * 50, [], None),
    ("[" * 100_000, [], None),
]


@pytest.mark.parametrize(("text", "paths", "words"), TEXT_CALLS)
def test_calls_written_as_text(text, paths, words):
    left, calls = backend.calls_in_text(text, NAMES)
    assert [json.loads(made.function.arguments)["path"] for made in calls] == paths
    assert all(made.function.name == "read_file" for made in calls)
    assert left.strip() == (text.strip() if words is None else words)


def test_words_after_a_call_are_marked():
    _, calls = backend.calls_in_text(f"First:\n{READ_A}\n{READ_B}", NAMES)
    assert [made.words_after for made in calls] == [False, False]
    _, calls = backend.calls_in_text(f"{READ_A}\nThen:\n{READ_B}\n", NAMES)
    assert [made.words_after for made in calls] == [True, False]


ARGUMENTS = [  # as they came, as they are understood; None: not at all
    ("", {}),
    (None, {}),
    (" \n", {}),
    ("null", {}),
    ("{}", {}),
    ({"a": 1}, {"a": 1}),
    ('{"a": 1}', {"a": 1}),
    (json.dumps('{"a": 1}'), {"a": 1}),
    (json.dumps(json.dumps('{"a": 1}')), {"a": 1}),
    ('```json\n{"a": 1}\n```', {"a": 1}),
    ('{"a": 1}<|call|>', {"a": 1}),
    ('{"a": 1}}', {"a": 1}),
    ('{"a": "\\u00e9"}', {"a": "\u00e9"}),
    ('{"a": 1', None),
    ('{"a": 1}{"b": 2}', None),
    ('{"a": 1} and then', None),
    ("[1]", None),
    ("7", None),
    ("true", None),
    ('{"a": NaN}', None),
    ('{"a": 1e999}', None),
    ('{"a": ' + "1" * 5000 + "}", None),
    ('{"a": "\\ud800"}', None),
    ("[" * 100_000, None),
    ('{"a":' * 100_000, None),
]


@pytest.mark.parametrize(("came", "meant"), ARGUMENTS)
def test_arguments_are_made_an_object_or_left_as_they_came(came, meant):
    assert backend.parsed(came) == meant
    made = backend.clean_call({"function": {"name": "t", "arguments": came}})
    sent = backend.as_sent(made)["function"]["arguments"]
    assert json.loads(sent) == (meant or {})
    if meant is None:
        assert made.function.arguments == came


@pytest.mark.parametrize(
    "name",
    [
        "read_file",
        " read_file\n",
        "functions.read_file",
        "read_file<|channel|>commentary",
        "function.read_file",
    ],
)
def test_names_lose_what_is_no_name(name):
    assert backend.clean_call({"function": {"name": name}}).function.name == "read_file"


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "x",
        [],
        {},
        {"function": None},
        {"function": "f"},
        {"name": 1},
        {"custom": {"name": "c", "input": "text"}},
    ],
)
def test_a_call_of_any_shape_can_be_sent_back(odd):
    sent = backend.as_sent(backend.clean_call(odd))
    assert sent["function"]["name"] and len(sent["id"]) == 9
    assert json.loads(sent["function"]["arguments"]) == {}


def fetch(*replies, stream=False, tools=TOOLS, name="openai", watch=lambda *_: None, **options):
    """One chat() against a scripted endpoint; returns the reply and the endpoint."""
    with Endpoint(*replies, strict=False, **options) as endpoint:
        at = backend.Endpoint(backend.BACKENDS[name], endpoint.url, "test-key", "m")
        return backend.chat(
            [{"role": "user", "content": "Hi."}], tools, backend=at, stream=stream, watch=watch
        ), endpoint


@pytest.fixture
def waits(monkeypatch):
    """The waits between tries, none of which takes its time. (The endpoint sleeps too: for 0 s.)"""
    seconds = []
    monkeypatch.setattr("time.sleep", seconds.append)
    return lambda: [each for each in seconds if each]


def chunk(index=0, finish=None, **delta):
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def piece(arguments=None, name=None, **fields):
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    return chunk(tool_calls=[fields | {"function": function}])


A, B = '{"path": "a"}', '{"path": "b"}'
STREAMS = {
    "one call in pieces": [piece("", "f", index=0, id="1"), piece(A[:5], index=0), piece(A[5:], index=0)],
    "name in pieces": [piece("", "re", index=0, id="1"), piece(A, "ad", index=0)],
    "id and name on each piece": [piece(A[:5], "f", index=0, id="1"), piece(A[5:], "f", index=0, id="1")],
    "two calls, all at index 0": [piece(A, "f", index=0, id="1"), piece(B, "f", index=0, id="2")],
    "two calls, all at index 0, no ids": [piece(A, "f", index=0), piece(B, "f", index=0)],
    "two calls without an index": [piece(A, "f", id="1"), piece(B, "f", id="2")],
    "pieces without an index": [piece("", "f", id="1"), piece(A[:4]), piece(A[4:])],
    "two, with indexes from 1 and a gap": [piece(A, "f", index=1, id="1"), piece(B, "f", index=5, id="2")],
    "interleaved": [
        piece("", "f", index=0, id="1"), piece("", "f", index=1, id="2"), piece(A[:4], index=0),
        piece(B[:6], index=1), piece(A[4:], index=0), piece(B[6:], index=1),
    ],
    "pieces at a shared index go on with the latest": [
        piece("", "f", index=0, id="1"), piece(A, index=0), piece("", "f", index=0, id="2"), piece(B, index=0),
    ],
    "an object as arguments": [piece(json.loads(A), "f", index=0, id="1")],
    "both in one chunk": [chunk(tool_calls=[{"function": {"name": "f", "arguments": A}}, {"function": {"name": "f", "arguments": B}}])],
    "legacy": [chunk(function_call={"name": "f", "arguments": A[:4]}), chunk(function_call={"arguments": A[4:]})],
    "in the second choice": [chunk(content="Hm."), {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": A}}]}}]}],
    "choices without an index": [{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": A[:4]}}]}}]}, {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": A[4:]}}]}}]}],
    "between empty things": [{"choices": []}, {"choices": [{"index": 0, "delta": None}]}, piece(A, "f", index=0, id="1"), {"choices": None}, {}],
}  # fmt: skip


@pytest.mark.parametrize("kind", STREAMS)
def test_streamed_fragments_are_put_together(kind):
    body = sse(*STREAMS[kind], {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    reply, _ = fetch(Raw(body), stream=True)
    expected = (
        [A, B]
        if "two" in kind
        or "both" in kind
        or kind in ("interleaved", "pieces at a shared index go on with the latest")
        else [A]
    )
    assert [made.function.arguments for made in reply.tool_calls] == expected
    assert {made.function.name for made in reply.tool_calls} <= {"f", "read"}
    assert len({made.id for made in reply.tool_calls}) == len(expected)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("completion", "content", "reasoning"),
    [
        (say("<think>Hm.</think>It is."), "It is.", "Hm."),
        (say("Hm.</think>\nIt is."), "It is.", "Hm."),
        (say("<think>Hm."), None, "Hm."),
        (say("The `<think>` tag."), "The `<think>` tag.", ""),
        (say("It is.", reasoning_content="Hm."), "It is.", "Hm."),
        (say("It is.", reasoning="Hm."), "It is.", "Hm."),
        (say("<think>" + READ_A + "</think>No call."), "No call.", READ_A),
        (say("\ud83c\udf89 \ud800"), "\U0001f389 \ufffd", ""),
        (say("<|channel|>analysis<|message|>So:\n" + READ_A), None, "So:\n" + READ_A),
        (say("<|channel|>analysis<|message|>Hm.<|end|>It is."), "It is.", "Hm."),
        (say("<tools></tools>"), None, ""),
        (say("<tool_response>\n17\n</tool_response>"), "17", ""),
    ],
)
def test_the_answer_is_free_of_reasoning(completion, content, reasoning, stream):
    reply, _ = fetch(completion, stream=stream)
    assert (reply.content, reply.reasoning, reply.tool_calls) == (content, reasoning, [])


def test_content_may_be_a_list_of_parts():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": "It is."},
    ]
    completion = say("x")
    completion["choices"][0]["message"]["content"] = parts
    reply, _ = fetch(completion)
    assert (reply.content, reply.reasoning) == ("It is.", "Hm.")


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"total_tokens": "many"}, {"total_tokens": 10**400}, {"total_tokens": -1}, [], 7],
)
def test_usage_may_be_missing_or_odd(usage):
    reply, _ = fetch(say("x", usage=usage))
    assert reply.usage == dict.fromkeys(USAGE, 0)


def test_what_goes_back_is_built_field_by_field():
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    completion = say(
        call("read_file", "{broken", **extra), audio=None, annotations=[], reasoning_content="Hm."
    )
    reply, _ = fetch(completion)
    (sent,) = reply.message["tool_calls"]
    assert set(reply.message) == {"role", "content", "tool_calls"}
    assert reply.message["content"] == ""
    assert (
        sent
        == {
            "id": sent["id"],
            "type": "function",
            "function": {"name": "read_file", "arguments": "{}"},
        }
        | extra
    )
    assert reply.tool_calls[0].function.arguments == "{broken"


@pytest.mark.parametrize(
    ("name", "field"), [("deepseek", "reasoning_content"), ("openrouter", "reasoning_details")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_goes_back_where_it_is_wanted(name, field, stream):
    value = (
        "Hm."
        if field == "reasoning_content"
        else [{"type": "reasoning.text", "text": "Hm.", "index": 0}]
    )
    reply, _ = fetch(say(call("list_dir"), **{field: value}), name=name, stream=stream)
    assert reply.message[field] == value


def test_a_plain_reply_to_a_streaming_request_and_the_other_way_round():
    assert fetch(Raw(say("It is.")), stream=True)[0].content == "It is."
    assert fetch(Raw(sse(*deltas(say("It is.")))))[0].content == "It is."


def test_lone_surrogates_and_nan_are_never_sent():
    with Endpoint(say("x"), strict=False) as endpoint:
        at = backend.Endpoint(backend.BACKENDS["openai"], endpoint.url, model="m")
        odd = {"number": float("nan"), "caf\udce9": "\ud83c\udf89"}
        backend.chat([{"role": "user", "content": "a\ud800b", "extra_content": odd}], backend=at)
    (sent,) = endpoint.requests[0]["messages"]
    assert sent["content"] == "a\ufffdb"
    assert sent["extra_content"] == {"number": None, "caf\ufffd": "\U0001f389"}


def test_server_sent_events_in_odd_dress():
    lines = [
        ": ping",
        "event: message",
        'data: {"choices": [{"index": 0,',
        'data: "delta": {"content": "It\u2028is."}}]}',
    ]
    end = 'data:{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'
    for line_end in ("\n", "\r\n", "\r"):
        body = line_end.join([*lines, "", end, "", ""])
        assert fetch(Raw(body.encode()), stream=True)[0].content == "It\u2028is."


def test_text_is_told_as_it_streams_but_no_call_and_no_reasoning():
    def told(text):
        parts = []
        chunks = deltas(say(text), range(1, 200))
        fetch(
            Raw(sse(*chunks)),
            stream=True,
            watch=lambda event, data: parts.append(data) if event == "text" else None,
        )
        return "".join(parts)

    assert told("It is so.") == "It is so."
    assert told("<think>Hm.</think>It is so.") == "It is so."
    assert told("<|channel|>analysis<|message|>Hm.<|end|>It is so.") == "It is so."
    assert told(f"I will look.\n{READ_A}") == "I will look."
    assert told('It is:\n{"a": 1}') == 'It is:\n{"a": 1}'
    assert told("word " * 20_000) == ("word " * 20_000).strip()
    assert told(f"```json\n{READ_A}\n```") == ""
    assert (
        told("Run this:\n```python\nprint(1)\n```\nand so on.")
        == "Run this:\n```python\nprint(1)\n```\nand so on."
    )


BODIES = [  # an error body, and what has to stand in the line
    (401, {"error": {"message": "Incorrect API key"}}, "OPENAI_API_KEY"),
    (404, {"error": {"message": "no model m"}}, "is there a model m"),
    (404, "<html><title>Not here</title></html>", "Not here"),
    (402, {"error": {"message": "Insufficient Balance"}}, "quota"),
    (429, {"error": {"message": "x", "code": "insufficient_quota"}}, "quota"),
    (400, {"error": {"message": "model m does not support tools"}}, "--no-tools"),
    (400, [{"error": {"message": "bad thing"}}], "bad thing"),
    (400, {"detail": [{"msg": "field required"}]}, "field required"),
    (400, {"error": "plain text"}, "plain text"),
    (418, "\xff\x00", "418"),
    (400, '{"message":' + "[" * 970 + "]" * 970 + "}", "400"),
    (400, {"error": {"message": "pars" * 60_000}}, "400"),
    (307, "", "has moved"),
    (200, {"error": {"message": "refused", "code": 403}}, "OPENAI_API_KEY"),
    (200, "<html></html>", "base URL"),
    (200, "null", "no chat completion"),
    (200, {"object": "error", "message": "no route", "code": 404}, "no route"),
]


@pytest.mark.parametrize(("status", "body", "told"), BODIES)
def test_an_error_is_one_line_with_the_way_out(status, body, told, waits):
    with pytest.raises(backend.BackendError) as caught:
        fetch(Raw(body, status))
    line = str(caught.value)
    assert told in line
    assert line.startswith("http://127.0.0.1:")
    assert "\n" not in line and "<html" not in line and "test-key" not in line


FALSE_CHARSETS = ["application/json; charset=klingon", "text/plain; charset=utf-16"]


@pytest.mark.parametrize("content_type", FALSE_CHARSETS)
def test_an_error_in_a_false_charset_keeps_its_status(content_type):
    body, headers = b'{"error": {"message": "caf\xe9"}}', {"content-type": content_type}
    reply, endpoint = fetch(Raw(body, 503, headers | {"retry-after": "0"}), say("It is."))
    assert (reply.content, len(endpoint.requests)) == ("It is.", 2)
    with pytest.raises(backend.BackendError, match="OPENAI_API_KEY"):
        fetch(Raw(body, 401, headers))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (Raw("no " * 20_000, 401, endless=True), "no no"),
        (Raw("no such key", 401, cut=True), "no su"),
        (Raw("no such key", 401, {"content-encoding": "gzip"}), ""),
    ],
)
def test_an_error_whose_body_does_not_end_well_keeps_its_status_and_what_came(raw, said):
    started = time.monotonic()
    with pytest.raises(backend.BackendError, match=f"401: {said}.*OPENAI_API_KEY"):
        fetch(raw)
    assert time.monotonic() - started < 5


def test_a_redirect_is_not_followed():
    with Endpoint(say("It is.")) as other, pytest.raises(backend.BackendError, match="has moved"):
        fetch(Raw("", 307, {"location": f"{other.url}/chat/completions"}))
    assert other.paths == []


TOO_LONG = [
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.", "code": "context_length_exceeded"}}),
    (400, {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error"}}),
    (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}),
    (413, {"error": {"message": "Request too large for model `x` on tokens per minute (TPM)", "code": "rate_limit_exceeded"}}),
    (400, {"error": {"message": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576)."}}),
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    (422, {"error": {"message": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: prompt is too long"}}),
    (500, {"error": {"message": "input length exceeds the context length"}}),
    (200, {"error": {"message": "Too many tokens in the prompt", "code": 400}}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_an_overlong_context_is_known_in_its_many_wordings(status, body):
    with pytest.raises(backend.BackendError) as caught:
        fetch(Raw(body, status))
    assert caught.value.kind == "context"


RETRY_AFTER = [
    ({"retry-after": "2"}, 2),
    ({"retry-after": "0.5"}, 0.5),
    ({"retry-after": "1500ms"}, 1.5),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after": "1h"}, 3600),
    ({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}, 0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-5"}, None),
    ({"retry-after": "nan"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), RETRY_AFTER)
def test_retry_after_in_its_forms(headers, seconds):
    assert backend.retry_after(headers) == seconds


def test_a_passing_failure_is_tried_again_and_announced():
    notices = []
    busy = Raw({"error": {"message": "slow down"}}, 429, {"retry-after": "0.01"})
    reply, endpoint = fetch(
        busy,
        busy,
        say("It is."),
        watch=lambda event, data: notices.append(data) if event == "notice" else None,
    )
    assert reply.content == "It is."
    assert len(notices) == 2 and "trying again in 0.01 s" in notices[0]


@pytest.mark.parametrize(
    ("reply", "requests", "between"),
    [
        (Raw({"error": {"message": "x"}}, 503, {"retry-after": "0.01"}), 4, [0.01, 0.01, 0.01]),
        (Raw({"error": {"message": "x"}}, 503), 4, [0.5, 1, 2]),
        (Raw({"error": {"message": "x"}}, 429, {"retry-after": "7200"}), 1, []),
        (Raw({"error": {"message": "x"}}, 400), 1, []),
        (Raw({"error": {"code": "tool_use_failed"}}, 400), 3, [0.5, 1]),
        (Raw({"error": {"message": "error parsing tool call: raw='{'"}}, 500), 3, [0.5, 1]),
    ],
)
def test_tries_are_bounded_by_kind(reply, requests, between, waits):
    with Endpoint(reply) as endpoint, pytest.raises(backend.BackendError):
        at = backend.Endpoint(backend.BACKENDS["openai"], endpoint.url, model="m")
        backend.chat([{"role": "user", "content": "Hi."}], backend=at)
    assert len(endpoint.requests) == requests
    assert waits() == between


@pytest.mark.parametrize(
    "body",
    [sse(chunk(content="It ")), sse(chunk(content="It "), done=False), b'{"choices": [{"mess', b""],
)
def test_a_reply_without_its_end_is_tried_again(body, waits):
    reply, endpoint = fetch(Raw(body), say("It is."), stream=True)
    assert (reply.content, len(endpoint.requests)) == ("It is.", 2)
    assert waits() == [0.5]


def test_a_connection_that_breaks_in_the_middle_is_tried_again(waits):
    reply, _ = fetch(Raw(sse(chunk(content="It ")), cut=True), say("It is."), stream=True)
    assert reply.content == "It is."
    assert waits() == [0.5]


def test_a_refused_parameter_is_left_out_from_then_on():
    with Endpoint(say("x"), refuses=["stream_options"]) as endpoint:
        at = backend.Endpoint(backend.BACKENDS["openai"], endpoint.url, model="m")
        for _ in range(2):
            backend.chat([{"role": "user", "content": "Hi."}], backend=at, stream=True)
    assert len(endpoint.paths) == 3
    assert at.refused == {"stream_options"}


def test_a_parameter_that_is_named_by_its_place_only_is_left_out():
    """As FastAPI does."""
    detail = [{"loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]
    with Endpoint(Raw({"detail": detail}, 422), say("x")) as endpoint:
        at = backend.Endpoint(backend.BACKENDS["vllm"], endpoint.url, model="m", temperature=0.5)
        assert backend.complete("Hi.", at) == "x"
    assert ["temperature" in request for request in endpoint.requests] == [True, False]


def test_a_parameter_that_is_refused_though_it_is_not_sent_ends_the_tries():
    with Endpoint(Raw({"error": {"message": "no temperature"}}, 400)) as endpoint:
        at = backend.Endpoint(backend.BACKENDS["vllm"], endpoint.url, model="m")
        with pytest.raises(backend.BackendError, match="no temperature"):
            backend.complete("Hi.", at)
    assert len(endpoint.requests) == 4


def test_what_the_caller_is_dealing_with_is_not_blamed_on_the_next_endpoint():
    row = backend.BACKENDS["vllm"]
    with Endpoint(Raw({"error": {"message": "bad key"}}, 401)) as endpoint:
        try:
            backend.complete("Hi.", backend.Endpoint(row, endpoint.url, model="m"))
        except backend.BackendError:
            with pytest.raises(backend.BackendError, match=r"127\.0\.0\.1:9/.*nothing listens"):
                backend.complete("Hi.", backend.Endpoint(row, "http://127.0.0.1:9/v1", model="m"))


def test_a_long_body_of_many_lines_is_read_at_once():
    """Trying to read it at each of its lines would take minutes."""
    reply = say("It is.")
    reply["choices"][0]["logprobs"] = {"content": [{"token": "a", "bytes": [1, 2]}] * 6000}
    assert fetch(Raw(json.dumps(reply, indent=2)))[0].content == "It is."


URLS = [
    ("http://127.0.0.1:1/v1/", "http://127.0.0.1:1/v1"),
    (" https://x.example/v1\n", "https://x.example/v1"),
    ("https://x.example/v1/chat/completions", "https://x.example/v1"),
    ("localhost:8080/v1", "http://localhost:8080/v1"),
    ("x.example/v1", "https://x.example/v1"),
    ("", "https://api.openai.com/v1"),
]


@pytest.mark.parametrize(("pasted", "clean"), URLS)
def test_base_urls_as_people_paste_them(pasted, clean, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert backend.connect("openai", "m", pasted).url == clean


@pytest.mark.parametrize("url", ["ftp://x.example", "https://x example/v1"])
def test_what_is_no_base_url_is_told(url):
    with pytest.raises(backend.BackendError, match="is no http"):
        backend.connect("openai", "m", url)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1.example/v1", "http://127.0.0.1@example/v1", "http://localhost.example/"],
)
def test_what_only_looks_like_this_machine_needs_a_key(monkeypatch, url):
    with pytest.raises(backend.BackendError, match="OPENAI_API_KEY"):
        backend.connect(url=url)


def test_which_backend(monkeypatch):
    monkeypatch.setenv("AGENT_MODEL", "m")
    monkeypatch.setenv("MISTRAL_API_KEY", " \u201cmk-1\u201d\n")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "dk-1")
    assert (backend.connect().backend.name, backend.connect().key) == ("mistral", "mk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert (backend.connect().backend.name, backend.connect().key) == ("openai", "no-key")
    monkeypatch.setenv("AGENT_BACKEND", "deepseek")
    assert (backend.connect().backend.name, backend.connect().url) == (
        "deepseek",
        "http://127.0.0.1:9/v1",
    )
    assert backend.connect("ollama").temperature == 0


@pytest.mark.parametrize("key", ["sk-\u201cx", "sk x", "sk\nx", "s\u00e9"])
def test_a_key_that_can_be_none_is_told(monkeypatch, key):
    monkeypatch.setenv("GROQ_API_KEY", key)
    with pytest.raises(backend.BackendError, match="GROQ_API_KEY has a character"):
        backend.connect("groq")


def test_a_moved_endpoint_is_asked_for_its_models(monkeypatch):
    with Endpoint(say("x"), models=("first", "second")) as endpoint:
        assert backend.connect(url=endpoint.url).model == "first"
        assert backend.connect("llamacpp", url=endpoint.url).model == "first"
    assert endpoint.paths == ["/v1/models"] * 2


def test_nobody_listens():
    at = backend.Endpoint(backend.BACKENDS["openai"], "http://127.0.0.1:9/v1", model="m")
    with pytest.raises(backend.BackendError, match="is the server running"):
        backend.complete("Hi.", at)


def test_a_proxy_is_not_asked_about_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert fetch(say("It is."))[0].content == "It is."


def test_complete_is_one_question_and_one_answer(command):
    with Endpoint(say("Hello.")) as endpoint:
        done = command("Say hello.", endpoint=endpoint, script="backend.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello.\n", "")
    assert "tools" not in endpoint.requests[0]


VISIBLE = [
    ("plain \u00e9 \u4e2d\n\ttext", "plain \u00e9 \u4e2d\n\ttext"),
    ("\x1b[2J\x07\x00", r"\x1b[2J\x07\x00"),
    ("one\r\ntwo\rthree", "one\ntwo\\rthree"),
    ("a\u202eb\u200bc\u2028d\ufeff", r"a\u202eb\u200bc\u2028d\ufeff"),
    ("\u3164\u115f\u2800", r"\u3164\u115f\u2800"),
    ("\U000e0041\U000e0101", r"\U000e0041\U000e0101"),
    ("\ud800", r"\ud800"),
    ("\u2764\ufe0f \U0001f468\u200d\U0001f469", "\u2764\ufe0f \U0001f468\u200d\U0001f469"),
]


@pytest.mark.parametrize(("text", "shown"), VISIBLE)
def test_what_a_terminal_would_obey_or_hide_is_written_out(text, shown):
    assert backend.visible(text) == shown


def test_strictly_joiners_and_odd_blanks_are_shown_too():
    assert (
        backend.visible("a\u200db\ufe0fc\u00a0d\r\n", strict=True) == "a\\u200db\\ufe0fc\\xa0d\\r\n"
    )


def test_the_shape_of_a_call_is_that_of_the_sdk():
    made = fetch(say(call("read_file", {"path": "a"})))[0].tool_calls[0]
    assert isinstance(made.function, SimpleNamespace)
    assert (made.function.name, made.function.arguments) == ("read_file", '{"path": "a"}')
