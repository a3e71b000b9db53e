"""One raw exchange, printed: what a tool call looks like before anything is done with it.

python probe.py ["question"]     send one request with the tools, run nothing
python probe.py --raw            print the request too
python probe.py --check          try what the harness needs of the endpoint; exit code 0: it will do
"""

import argparse
import json
import sys
from typing import Any

from backend import BackendError, Endpoint, chat, connect, parsed, visible
from tools import TOOLS

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
CHECKS: dict[str, tuple] = {  # name: messages, options of chat, what must be there in the reply
    "plain answer": (HELLO, {}, lambda reply: reply.content),
    "tool call": (PARIS, TOOL, lambda reply: reply.tool_calls),
    "arguments are valid JSON": (
        PARIS, TOOL, lambda reply: any(parsed(c.function.arguments) for c in reply.tool_calls)),
    "tool result accepted": (ANSWERED, TOOL, lambda reply: reply.content or reply.tool_calls),
    "two calls in one turn": (BOTH, TOOL, lambda reply: reply.tool_calls[1:]),
    "streaming": (HELLO, {"stream": True}, lambda reply: reply.content),
    "streamed tool call": (PARIS, TOOL | {"stream": True}, lambda reply: reply.tool_calls),
    "usage told": (PARIS, TOOL, lambda reply: reply.usage["total_tokens"]),
}  # fmt: skip
NEEDED = list(CHECKS)[:4]


def check(endpoint: Endpoint) -> int:
    """Try the endpoint, a line a check; 0 where the harness can use tools on it."""
    failed = set()
    try:
        show("ok  models list:", ", ".join(endpoint.models()[:4]) or "none")
    except BackendError as error:
        show("no  models list:", str(error))
    for name, (messages, options, judge) in CHECKS.items():
        raw: list = []
        try:
            reply = chat(messages, backend=endpoint, watch=lambda *e, to=raw: to.append(e), **options)
            wrong = "" if judge(reply) else f"instead came {json.dumps(reply.message)}"
        except BackendError as error:
            wrong = str(error)
