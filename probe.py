"""One raw exchange, printed: what a tool call looks like before anything is done with it.

python probe.py ["question"]     send one request with the tools, run nothing
python probe.py --raw            print the request too
"""

import argparse
import json
import sys
from typing import Any

from backend import BackendError, chat, connect, visible
from tools import TOOLS


def show(title: str, value: Any) -> None:
    """A title, and a text or JSON with its control characters made visible."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    print(f"{title} {visible(text)}")


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="probe.py", description="Look at one raw exchange.")
    parser.add_argument("question", nargs="*", default=["List the files in this directory."])
    parser.add_argument("--raw", action="store_true", help="print the request too")
    for name in ("--backend", "--model", "--base-url"):
        parser.add_argument(name, help="as in harness.py")
    options = parser.parse_args(argv)
    raw: dict[str, list] = {"request": [], "chunk": []}
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        endpoint = connect(options.backend, options.model, options.base_url)
        question = [{"role": "user", "content": " ".join(options.question)}]
        note = lambda event, data: raw.get(event, []).append(data)  # noqa: E731
        reply = chat(question, TOOLS, backend=endpoint, watch=note)
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.kind == "settings" else 1
    except KeyboardInterrupt:
        return 130
    if options.raw:
        show("request:", raw["request"][-1])
    show("content:", reply.content or "(none)")
    calls = [f"{call.function.name} {call.function.arguments}" for call in reply.tool_calls]
    show("tool_calls:", "\n  ".join(["", *calls]) if calls else "(none)")
    show("reply:", raw["chunk"][-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
