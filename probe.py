"""One raw exchange, printed: what a tool call looks like before anything is done with it.

python probe.py ["question"]     send one request with the tools, run nothing
python probe.py --raw            print the request too
python probe.py --check          try what the harness needs of the endpoint; exit code 0: it will do
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from backend import BackendError, Endpoint, Reply, chat, connect, parsed, visible
from tools import TOOLS


def good_arguments(reply: Reply) -> bool:
    """Whether the arguments of a call are JSON, and not empty."""
    return any(parsed(call.function.arguments) for call in reply.tool_calls)


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABOUT = {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY}
TOOL: dict = {"tools": [{"type": "function", "function": ABOUT}]}
HELLO = [{"role": "user", "content": "Say hello."}]
PARIS = [{"role": "user", "content": "What is the weather in Paris? Call get_weather."}]
BOTH = [{"role": "user", "content": "Call get_weather twice in one turn: for Paris and for Rome."}]
MADE: dict = {"id": "abcdefghi", "type": "function"}
MADE["function"] = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
SUNNY = {"role": "tool", "tool_call_id": "abcdefghi", "content": "Sunny, 21 degrees."}
ANSWERED = [*PARIS, {"role": "assistant", "content": "", "tool_calls": [MADE]}, SUNNY]
CHECKS: list[tuple] = [  # name, needed, messages, options of chat, what must be there in the reply
    ("plain answer", True, HELLO, {}, lambda reply: reply.content),
    ("tool call", True, PARIS, TOOL, lambda reply: reply.tool_calls),
    ("arguments are valid JSON", True, PARIS, TOOL, good_arguments),
    ("tool result accepted", True, ANSWERED, TOOL, lambda reply: reply.content or reply.tool_calls),
    ("two calls in one turn", False, BOTH, TOOL, lambda reply: reply.tool_calls[1:]),
    ("streaming", False, HELLO, {"stream": True}, lambda reply: reply.content),
    ("streamed tool call", False, PARIS, TOOL | {"stream": True}, lambda reply: reply.tool_calls),
    ("usage told", False, PARIS, TOOL, lambda reply: reply.usage["total_tokens"]),
]


def tried(endpoint: Endpoint, messages: list, options: dict, judge: Callable) -> tuple[bool, str]:
    """Whether a check holds, and what there is to say of it."""
    raw: list = []
    try:
        reply = chat(messages, backend=endpoint, watch=noting(chunk=raw), **options)
    except BackendError as error:
        return False, str(error)
    if not judge(reply):
        return False, f"instead came {json.dumps(reply.message, ensure_ascii=False)}"
    if "stream" in options and len(raw) == 1:
        return False, "it came whole, not in pieces"
    text = reply.tool_calls and '"arguments":' not in json.dumps(raw)
    return True, "calls come as text: the harness reads them" if text else ""


def check(endpoint: Endpoint) -> int:
    """Try the endpoint, a line a check; 0 where the harness can use tools on it."""
    usable = True
    try:
        show("ok  models list:", ", ".join(endpoint.models()[:4]) or "none")
    except BackendError as error:
        show("no  models list:", str(error))
    for name, needed, *how in CHECKS:
        holds, told = tried(endpoint, *how)
        show(f"{'ok' if holds else 'no'}  {name}{':' * bool(told)}", told[:300])
        usable = usable and (holds or not needed)
    if endpoint.refused:
        show("no  all parameters:", f"left out: {', '.join(endpoint.refused)}")
    print("the harness can use tools here" if usable else "the harness cannot use tools here")
    return 0 if usable else 1


def noting(**lists: list) -> Callable[[str, Any], None]:
    """A watch function that collects the events which it has a list for."""
    return lambda event, data: lists.get(event, []).append(data)


def show(title: str, value: Any) -> None:
    """A title, and a text or JSON with its control characters made visible."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    print(f"{title} {visible(text)}".rstrip(), flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="probe.py", description="Look at one raw exchange.")
    parser.add_argument("question", nargs="*", default=["List the files in this directory."])
    parser.add_argument("--raw", action="store_true", help="print the request too")
    parser.add_argument("--check", action="store_true", help="try what the harness needs")
    for name in ("--backend", "--model", "--base-url"):
        parser.add_argument(name, help="as in harness.py")
    options = parser.parse_args(argv)
    requests: list = []
    chunks: list = []
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        endpoint = connect(options.backend, options.model, options.base_url)
        if options.check:
            return check(endpoint)
        question = [{"role": "user", "content": " ".join(options.question)}]
        watch = noting(request=requests, chunk=chunks)
        reply = chat(question, TOOLS, backend=endpoint, watch=watch)
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.kind == "settings" else 1
    except KeyboardInterrupt:
        return 130
    if options.raw:
        show("request:", requests[-1])
    show("content:", reply.content or "(none)")
    calls = [f"{call.function.name} {call.function.arguments}" for call in reply.tool_calls]
    show("tool_calls:", "\n  ".join(["", *calls]) if calls else "(none)")
    show("reply:", chunks[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
