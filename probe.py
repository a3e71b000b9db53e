"""One raw exchange, printed: what a tool call looks like before anything is done with it.
python probe.py [--raw] ["question"]   send one request with the tools, run nothing (print it too)
python probe.py --check                try what the harness needs of the endpoint; 0: it will do"""

import argparse
import json

from backend import BackendError, Endpoint, Reply, as_process, chat, connect, visible
from tools import REGISTRY, TOOLS

TOOL = {"tools": [REGISTRY["read_file"].schema]}
READ = "What does the file a.txt say? Call read_file."
CALL = {"name": "read_file", "arguments": '{"path": "a.txt"}'}
CALLED = {"tool_calls": [{"id": "abcdefghi", "type": "function", "function": CALL}]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "It will be sunny."}
KNOWN = [{"role": "user", "content": READ}, {"role": "assistant", "content": ""} | CALLED, RESULT]
BOTH = "Call read_file twice in one turn: for a.txt and for b.txt."
CHECKS: list[tuple] = [  # name, needed, question, options of chat, what must be in reply and chunks
    ("plain answer", True, "Say hello.", {}, lambda r, raw: r.content),
    ("tool call", True, READ, TOOL, lambda r, raw: r.tool_calls),
    ("arguments are valid JSON", True, READ, TOOL, lambda r, raw: '{"' in str(r.message)),
    ("tool result accepted", True, KNOWN, TOOL, lambda r, raw: r.content or r.tool_calls),
    ("two calls in one turn", False, BOTH, TOOL, lambda r, raw: r.tool_calls[1:]),
    ("streaming", False, "Say hello.", {"stream": True}, lambda r, raw: r.content and raw[1:]),
    ("streamed tool call", False, READ, TOOL | {"stream": True}, lambda r, raw: r.tool_calls),
    ("usage told", False, READ, TOOL, lambda r, raw: r.usage["total_tokens"])]  # fmt: skip


def ask(endpoint: Endpoint, asked: str | list, options: dict) -> tuple[Reply, dict[str, list]]:
    """The reply to a question or a conversation, and what `chat` told on the way, by event."""
    told: dict[str, list] = {}
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    watch = {"watch": lambda event, data: told.setdefault(event, []).append(data)}
    return chat(messages, backend=endpoint, **options | watch), told


def check(endpoint: Endpoint) -> int:
    """Try the endpoint, a line a check; 0 where the harness can use tools on it."""
    code = 0
    try:
        show("ok  models list:", ", ".join(endpoint.models()[:4]) or "none")
    except BackendError as error:
        show("no  models list:", str(error))
    for name, needed, asked, options, judge in CHECKS:
        try:
            reply, events = ask(endpoint, asked, options)
            holds = judge(reply, raw := events["chunk"])
            text = "tool call" in name and holds and '"arguments":' not in json.dumps(raw)
            well = "calls come as text: the harness reads them" if text else ""
            told = well if holds else f"in {len(raw)} pieces came {json.dumps(reply.message)}"
        except BackendError as error:
            holds, told = False, str(error)
        show(f"{'ok' if holds else 'no'}  {name}{':' * bool(told)}", told[:300])
        code = code or int(needed and not holds)
    return code


def show(title: str, value: object) -> None:
    """Print a title, and a text or JSON with its control characters made visible."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    print(f"{title} {visible(text)}".rstrip(), flush=True)


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="probe.py", description="Look at one raw exchange.")
    parser.add_argument("question", nargs="*", default=["List the files in this directory."])
    parser.add_argument("--raw", action="store_true", help="print the request too")
    parser.add_argument("--check", action="store_true", help="try what the harness needs")
    for name in ("--backend", "--model", "--base-url"):
        parser.add_argument(name, help="as in harness.py")
    options = parser.parse_args()
    endpoint = connect(options.backend, options.model, options.base_url)
    if options.check:
        return check(endpoint)
    reply, events = ask(endpoint, " ".join(options.question), {"tools": TOOLS})
    calls = [f"\n  {call.function.name} {call.function.arguments}" for call in reply.tool_calls]
    if options.raw:
        show("request:", events["request"][-1])
    show("content:", reply.content or "(none)")
    show("tool_calls:", "".join(calls) or "(none)")
    show("reply:", events["chunk"][-1])
    return 0


if __name__ == "__main__":
    as_process(main)
