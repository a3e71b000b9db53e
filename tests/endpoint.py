"""A scripted OpenAI-compatible endpoint on a loopback port, as strict as the strictest provider.

    with Endpoint(say(call("list_dir")), say("Two files.")) as endpoint:
        ...                       # endpoint.url is the base URL
    endpoint.requests             # the bodies that came, in order
    endpoint.faults               # what a strict provider would have said against them

Each reply is one of: a dict (a chat completion, sent whole or in chunks, as was asked for); Raw,
which is sent as it is; a function of the request's body that gives one of these. The last reply is
repeated for ever.
"""

import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


@dataclass
class Raw:
    """A response given byte for byte. sleep: seconds before it; pause: after half of it. cut: the
    connection breaks before the end. endless: the body comes over and over."""

    body: bytes | str | dict | list = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    sleep: float = 0.0
    pause: float = 0.0
    cut: bool = False
    endless: bool = False


def call(name, arguments=None, call_id="call_1", **extra):
    """A tool call as it stands in a reply."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": text},
    } | extra


def say(*parts, finish=None, usage=USAGE, **extra):
    """A chat completion of a text and calls."""
    calls = [part for part in parts if isinstance(part, dict)]
    texts = [part for part in parts if isinstance(part, str)]
    message = {"role": "assistant", "content": texts[0] if texts else None} | extra
    if calls:
        message["tool_calls"] = calls
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish or ("tool_calls" if calls else "stop"),
    }
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def sse(*chunks, done=True):
    """Server-sent events of some chunks."""
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join(lines) + ("data: [DONE]\n\n" if done else "")


def deltas(completion, cuts=()):
    """A completion as chunks: its texts cut at some places, each call's arguments too."""
    choice = completion["choices"][0]
    message = choice["message"]

    def pieces(text):
        places = (
            [0, *sorted({c % (len(text) + 1) for c in cuts}), len(text)]
            if cuts
            else [0, len(text) // 2, len(text)]
        )
        return [text[a:b] for a, b in zip(places, places[1:], strict=False)]

    rest = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}
    steps = [rest | {"content": ""}]
    steps += [{"content": piece} for piece in pieces(message.get("content") or "")]
    for index, whole in enumerate(message.get("tool_calls") or []):
        function = whole["function"]
        first, *more = pieces(function["arguments"])
        steps.append(
            {"tool_calls": [whole | {"index": index, "function": function | {"arguments": first}}]}
        )
        steps += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in more
        ]
    chunks = [{"choices": [{"index": 0, "delta": step, "finish_reason": None}]} for step in steps]
    chunks.append(
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    )
    return [*chunks, {"choices": [], "usage": completion.get("usage")}]


def history_faults(messages):
    """What strict providers say against a list of messages; nothing where all would take it."""
    faults, open_calls, seen_ids = [], [], set()
    fields = {
        "system": {"role", "content"},
        "user": {"role", "content"},
        "tool": {"role", "content", "tool_call_id"},
        "assistant": {"role", "content", "tool_calls"},
    }
    before = None
    for place, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if extra := set(message) - fields[role]:
            faults.append(f"{place}: unknown fields {extra}")
        if not isinstance(content, str) or (not content and not message.get("tool_calls")):
            faults.append(f"{place}: empty or no text: {content!r}")
        if role == "system" and place:
            faults.append(f"{place}: one system message, first")
        if role == "tool":
            if not open_calls or message["tool_call_id"] != open_calls.pop(0):
                faults.append(f"{place}: a result without its call, or out of order")
        elif open_calls:
            faults.append(f"{place}: calls without a result: {open_calls}")
        if role == "user" and before == "tool":
            faults.append(f"{place}: user after tool")
        if role == before and role != "tool":
            faults.append(f"{place}: two {role} messages in a row")
        for made in message.get("tool_calls", []):
            if not re.fullmatch("[A-Za-z0-9]{9}", made["id"]) or made["id"] in seen_ids:
                faults.append(f"{place}: bad or repeated id {made['id']!r}")
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", made["function"]["name"]):
                faults.append(f"{place}: bad name {made['function']['name']!r}")
            if made["type"] != "function" or not isinstance(
                json.loads(made["function"]["arguments"]), dict
            ):
                faults.append(f"{place}: arguments are no object")
            seen_ids.add(made["id"])
            open_calls.append(made["id"])
        if message.get("tool_calls") == []:
            faults.append(f"{place}: an empty list of calls")
        before = role
    return faults + [f"calls without a result: {open_calls}"] * bool(open_calls)


class Endpoint(ThreadingHTTPServer):
    """The server; as a context manager it runs in a thread."""

    daemon_threads = True

    def __init__(self, *replies, models=("m",), refuses=(), strict=True):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.models, self.refuses, self.strict = (
            list(replies),
            models,
            refuses,
            strict,
        )
        self.requests, self.headers, self.paths, self.faults, self.times = [], [], [], [], []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client may hang up."""

    @property
    def results(self):
        """The tool results of the last request."""
        return [m["content"] for m in self.requests[-1]["messages"] if m["role"] == "tool"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the second piece of a reply may wait 40 ms
    server: Endpoint

    def log_message(self, *_):
        """Quiet."""

    def respond(self, raw):
        body = raw.body if isinstance(raw.body, (bytes, str)) else json.dumps(raw.body)
        body = body.encode() if isinstance(body, str) else body
        time.sleep(raw.sleep)
        self.send_response(raw.status)
        for name, value in ({"content-type": "application/json"} | raw.headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(10**12 if raw.endless else len(body) + 50 * raw.cut))
        self.end_headers()
        while raw.endless:  # until the client hangs up
            self.wfile.write(body)
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        time.sleep(raw.pause)
        self.wfile.write(body[half:])
        self.close_connection = raw.cut

    def do_GET(self):
        self.server.paths.append(self.path)
        self.respond(Raw({"object": "list", "data": [{"id": name} for name in self.server.models]}))

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.paths.append(self.path)
        if self.path != "/v1/chat/completions":
            return self.respond(Raw({"error": {"message": f"no route {self.path}"}}, 404))
        for name in server.refuses:
            if name in body:
                error = {
                    "message": f"Unsupported parameter: '{name}'",
                    "type": "invalid_request_error",
                }
                return self.respond(Raw({"error": error}, 400))
        server.requests.append(body)
        server.headers.append({name.lower(): value for name, value in self.headers.items()})
        server.times.append(time.monotonic())
        if server.strict and (faults := history_faults(body["messages"])):
            server.faults += faults
            return self.respond(Raw({"error": {"message": faults[0]}}, 400))
        reply = server.replies[min(len(server.requests), len(server.replies)) - 1]
        reply = reply(body) if callable(reply) else reply
        if isinstance(reply, Raw):
            return self.respond(reply)
        if not body.get("stream"):
            return self.respond(Raw(reply))
        return self.respond(Raw(sse(*deltas(reply)), headers={"content-type": "text/event-stream"}))
