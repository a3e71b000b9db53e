"""The loop: send the conversation, run the tools that the model asks for, until it answers.

    python harness.py [options] task words ...      "-" as a word: standard input
    python harness.py                               a chat, on a terminal

`run()` below is the loop; it knows no provider (backend.py) and no tool (tools.py). Around it:

    the loop      run(), its Result, and what it says in a word each
    terminal      progress, the question before a tool changes something
    command line  options, settings, exit codes
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import backend
from backend import BackendError, Endpoint, Message, Reply, ToolCall, Watch, chat, connect, visible
from tools import REGISTRY, Approve, Tool, deny, dispatch

__version__ = "0.1.0"

# --- the loop ------------------------------------------------------------------------------------
SYSTEM = """\
You answer questions about the files in the current folder. You cannot see them, so call a tool:
search_text finds where something is defined or set, list_files finds a file, read_file shows it.
Reply with one tool call and nothing else, then wait for its result:
<tool_call>
{"name": "list_files", "arguments": {}}
</tool_call>
If the result does not show the answer, call the next tool. If it does, reply in plain words."""
ENDINGS = {  # finish_reason: the exit code, and why there is no better end
    "stop": (0, ""),
    "error": (1, ""),
    "content_filter": (1, "the content filter stopped the reply"),
    "max_steps": (3, "the step limit is reached"),
    "max_tokens": (3, "the token limit is reached"),
    "repeated_call": (3, "the same call came over and over"),
    "length": (3, "the answer was cut off at its length limit"),
    "empty": (3, "the model gave only empty replies, no answer"),
    "interrupted": (130, "interrupted"),
}
CLOSING = "({}. Answer now in plain text, with what you know.)"
MOST_REPEATS = 3  # the same call in a row: this one is not run, and two more of it are the end


@dataclass
class Result:
    """What a run came to."""

    answer: str = ""
    finish_reason: str = "stop"  # a key of ENDINGS
    steps: int = 0  # model calls
    tool_calls: list[dict] = field(default_factory=list)  # name, arguments, result (a preview)
    usage: dict[str, int] = field(default_factory=dict)  # prompt_, completion_, total_tokens
    seconds: float = 0.0
    error: str = ""
    repeats: int = 0  # how often in a row the last call came

    def limit(self, max_steps: int, max_tokens: int) -> str:
        """The limit that makes the coming model call the last one, or nothing."""
        if self.repeats >= MOST_REPEATS + 2:
            return "repeated_call"
        if max_tokens and self.usage.get("total_tokens", 0) >= max_tokens:
            return "max_tokens"
        return "max_steps" if self.steps >= max_steps else ""

    def count(self, reply: Reply) -> None:
        """Add a model call to the sums; the best answer is the last text."""
        self.steps += 1
        self.answer = reply.content or self.answer
        for key, number in reply.usage.items():
            self.usage[key] = self.usage.get(key, 0) + number

    def end(self, reason: str, error: str = "") -> None:
        self.finish_reason = reason if reason in ENDINGS else "stop"
        self.error = error or ENDINGS[self.finish_reason][1]
        if reason in ("error", "interrupted"):
            self.answer = ""  # words beside a call are no answer


def run(
    task: str,
    *,
    endpoint: Endpoint | None = None,
    registry: dict[str, Tool] = REGISTRY,
    system: str = SYSTEM,
    messages: list[Message] | None = None,
    max_steps: int = 25,
    max_tokens: int = 0,
    approve: Approve = deny,
    stream: bool = False,
    watch: Watch = lambda *_: None,
) -> Result:
    """Work on a task until the model answers, or a limit is reached. `messages` is a conversation
    to go on with, changed in place; `watch` is told the events of `chat`, and each "reply", "call"
    and "result". Raises only what `connect` raises."""
    endpoint, started, result = endpoint or connect(), time.monotonic(), Result()
    messages = [] if messages is None else messages
    if not messages:
        messages.append({"role": "system", "content": system})
    tell(messages, task)
    nudged = False
    try:
        while True:
            limit = result.limit(max_steps, max_tokens)
            if limit:
                tell(messages, CLOSING.format(ENDINGS[limit][1]))
            options = {"backend": endpoint, "stream": stream, "watch": watch}
            reply = ask(messages, registry, bool(limit), **options)
            result.count(reply)
            watch("reply", reply)
            if limit or reply.finish_reason == "content_filter":
                result.end(limit or "content_filter")
                break
            if reply.nudge and not nudged:
                tell(messages, reply.nudge)
                watch("notice", "no call and no answer: asked again")
                nudged = True
                continue
            if reply.tool_calls or reply.content:
                messages.append(reply.message)
            if not reply.tool_calls:
                cut = "length" if reply.finish_reason == "length" else "stop"
                result.end(cut if reply.content else "empty")
                break
            nudged = False
            for call in reply.tool_calls:
                watch("call", call)
                text = answer_call(call, reply, result, registry, approve)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                watch("result", text)
    except BackendError as error:
        result.end("error", str(error))
    except KeyboardInterrupt:
        result.end("interrupted")
    settle(messages, result.answer or f"({result.finish_reason})")
    result.seconds = round(time.monotonic() - started, 2)
    return result


def tell(messages: list[Message], text: str) -> None:
    """Say something to the model, in an order of roles that no provider refuses: added to a tool
    result or a user's message where one is the last, else as a user's message."""
    last = messages[-1]
    if last["role"] in ("user", "tool"):
        messages[-1] = last | {"content": f"{last['content']}\n\n{text}"}
    else:
        messages.append({"role": "user", "content": text})


def ask(messages: list[Message], registry: dict[str, Tool], closing: bool, **options: Any) -> Reply:
    """One model call. A conversation that is too long for the model is shortened first."""
    schemas, choice = [tool.schema for tool in registry.values()], "none" if closing else None
    while True:
        try:
            return chat(messages, schemas, tool_choice=choice, **options)
        except BackendError as error:
            if error.kind != "context":
                raise
            if not shorten(messages):
                raise BackendError(f"{error} (nothing is left to shorten: ask for less)") from error
            options["watch"]("notice", f"{error}; trying again without the oldest results")


def answer_call(
    call: ToolCall, reply: Reply, result: Result, registry: dict[str, Tool], approve: Approve
) -> str:
    """The result of a call: what the tool returned, or why it was not run."""
    name, arguments = call.function.name, call.function.arguments
    last = result.tool_calls[-1] if result.tool_calls else {}
    same = (name, arguments) == (last.get("name"), last.get("arguments"))
    result.repeats = result.repeats + 1 if same else 1
    if reply.finish_reason == "length":
        text = "error: not run: your reply was cut off at its length limit. Send a shorter one."
    elif result.repeats >= MOST_REPEATS:
        text = (
            "error: not run: you already made this same call. Use its result, or do another thing."
        )
    elif call.words_after and name in registry and registry[name].asks:
        text = (
            "error: not run: words stood after the call. Send the call alone, with no other text."
        )
    else:
        text = dispatch(name, arguments, approve, registry)
    result.tool_calls.append({"name": name, "arguments": arguments, "result": text[:200]})
    return text


def shorten(messages: list[Message]) -> bool:
    """Make the conversation shorter; whether there was something left to shorten. The oldest long
    results go first, as many as make up half of them; where all are new to the model, each is
    halved."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)
    long = [i for i, m in enumerate(messages) if m["role"] == "tool" and len(m["content"]) > 400]
    seen = [i for i in long if i < last]
    room = sum(len(messages[i]["content"]) for i in seen) / 2
    for i in seen or long:
        text = messages[i]["content"]
        quarter = len(text) // 4
        if not seen:
            text = f"{text[:quarter]}\n[... half of this is left out ...]\n{text[-quarter:]}"
        elif room > 0:
            room -= len(text)
            text = f"[left out to save room: a result of {len(text)} characters]"
        messages[i] = messages[i] | {"content": text}
    return bool(long)


def settle(messages: list[Message], last_words: str) -> None:
    """Leave a history that every endpoint takes: each call answered, the model's word last."""
    answered = {message.get("tool_call_id") for message in messages}
    for call in [call for message in messages for call in message.get("tool_calls", [])]:
        if call["id"] not in answered:
            text = "error: interrupted before it was done"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    if messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": last_words})


# --- terminal ------------------------------------------------------------------------------------
class Terminal:
    """The person's side of a run: progress on stderr, the answer on stdout, the question."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lively = sys.stderr.isatty() and not options.quiet
        self.dim, self.plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        self.key = "no-key"  # is never shown
        self.always: set[str] = set()  # calls that need no further question
        self.shown, self.waiting, self.step = "", False, 0  # shown: of the answer, on stdout

    def line(self, text: str, dim: bool = True) -> None:
        """A line of progress; what it holds may come from anywhere."""
        self.clear()
        if not self.options.quiet:
            dim = dim and self.lively
            with contextlib.suppress(OSError):  # nobody reads it: the answer still counts
                print(f"{self.dim * dim}{visible(text)}{self.plain * dim}", file=sys.stderr)

    def clear(self) -> None:
        """Take the waiting sign away, and end a line of streamed text."""
        if self.waiting:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if self.shown and not self.shown.endswith("\n"):
            print(flush=True)
        self.shown, self.waiting = "", False

    def watch(self, event: str, data: Any) -> None:
        """Show an event of the run."""
        if event in ("request", "chunk") and self.options.inspect:
            text = json.dumps(data, ensure_ascii=False).replace(self.key, "[key]")
            middle = len(text) if self.options.verbose or len(text) < 2000 else 1000
            more = f" ... {text[-1000:]}" if middle < len(text) else ""
            self.line(f"{event}: {text[:middle]}{more}")
        if event == "request" and self.lively:
            self.waiting = True
            print(f"{self.dim}...{self.plain}", end="", file=sys.stderr, flush=True)
        elif event == "text" and sys.stdout.isatty() and not self.options.json:
            if not self.shown:
                self.clear()
            print(visible(data), end="", flush=True)
            self.shown += data
        elif event == "reply":
            self.step += 1
        elif event == "notice":
            self.line(data)
        elif event == "call":
            self.line(f"[{self.step}] {data.function.name} {data.function.arguments}", dim=False)
        elif event == "result":
            lines = visible(data).splitlines()
            shown = lines if self.options.verbose else [line[:160] for line in lines[:3]]
            more = f" (+{len(lines) - len(shown)} lines)" if len(lines) > len(shown) else ""
            self.line("\n".join(f"    {line}" for line in shown) + more)

    def end(self, result: Result) -> None:
        """The answer on stdout, unless it stands there already; sums and errors on stderr."""
        there = self.shown == result.answer
        self.clear()
        if self.options.json:
            print(as_json(result), flush=True)
            return
        if result.answer and not there:
            print(visible(result.answer), flush=True)
        tokens = result.usage.get("total_tokens", 0)
        self.line(f"{result.steps} steps, {tokens} tokens, {result.seconds} s")
        if result.error:
            print(f"error: {visible(result.error)}", file=sys.stderr)

    def approve(self, tool: Tool, arguments: dict) -> tuple[bool, str]:
        """Ask the person: the whole of what would be done, default no."""
        if self.options.approve != "ask":
            return self.options.approve == "all", "tools that change things are switched off"
        key = json.dumps([tool.name, arguments], sort_keys=True)
        if key in self.always:
            return True, ""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.line("nobody is at a terminal to ask: -y allows all, --allow an exact command")
            return deny(tool, arguments)
        what = json.dumps(arguments, ensure_ascii=False)
        what = arguments["command"] if set(arguments) == {"command"} else what
        what = tool.preview(**arguments) if tool.preview else what
        self.clear()
        lines = visible(what, strict=True).replace("\n", "\n  | ")
        print(f"{tool.name} ({len(what)} characters):\n  | {lines}", file=sys.stderr)
        drop_typed_ahead()
        print("[y]es / [n]o / [a]lways this exact call: ", end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline().strip()
        if said.lower() in ("a", "always"):
            self.always.add(key)
        if said.lower() in ("y", "yes", "a", "always"):
            return True, ""
        word, _, rest = said.partition(" ")
        reason = rest.strip() if word.lower().rstrip(":,") in ("n", "no") else said
        return False, f"the user said no. {reason}".strip()


def drop_typed_ahead() -> None:
    """Forget keys that were pressed before the question was there to be read."""
    try:
        import termios  # noqa: PLC0415  (POSIX)

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    except ImportError:
        import msvcrt  # noqa: PLC0415  (Windows)

        while msvcrt.kbhit():  # type: ignore[attr-defined]
            msvcrt.getch()  # type: ignore[attr-defined]


# --- command line --------------------------------------------------------------------------------
def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options; what is not given comes from the environment, or the `.env` beside this file."""
    parser = argparse.ArgumentParser(
        prog="harness.py",
        description="Work on a task with tools, until there is an answer.",
        epilog="Exit codes: 0 answered, 1 endpoint failed, 2 usage, 3 at a limit, 130 Ctrl-C.",
    )
    add = parser.add_argument
    add("task", nargs="*", help='the task; a word "-" stands for standard input; none: a chat')
    add("--backend", metavar="NAME", help="groq, openai, ollama, ... (AGENT_BACKEND)")
    add("--model", metavar="NAME", help="one of its models (AGENT_MODEL)")
    add("--base-url", metavar="URL", help="another address of the endpoint (OPENAI_BASE_URL)")
    add("--max-steps", metavar="N", type=int, help="model calls at most (25; AGENT_MAX_STEPS)")
    add("--max-tokens", metavar="N", type=int, default=0, help="stop after N tokens (0: off)")
    add("--approve", choices=("ask", "all", "none"), default="ask", help="tools that change things")
    add("-y", dest="approve", action="store_const", const="all", help="the same as --approve all")
    add(
        "--allow",
        metavar="COMMAND",
        action="append",
        help="run this exact command unasked (also AGENT_ALLOW)",
    )
    add("--tools", metavar="FILE.py", action="append", default=[], help="add the tools of a file")
    add("--no-tools", action="store_true", help="send no tools")
    add("--system", metavar="TEXT", default=SYSTEM, help="another system prompt")
    add("--json", action="store_true", help="print one JSON object")
    add("--stream", action=argparse.BooleanOptionalAction, help="on where stderr is a terminal")
    add("--inspect", action="store_true", help="the raw request and reply of every call, on stderr")
    add("-q", "--quiet", action="store_true", help="no progress")
    add("-v", "--verbose", action="store_true", help="whole results")
    add("--version", action="version", version=f"%(prog)s {__version__}")
    options = parser.parse_intermixed_args(argv)
    for name in ("AGENT_MAX_STEPS", "AGENT_MAX_CHARS", "AGENT_SHELL_TIMEOUT"):
        if not re.fullmatch("0*[1-9][0-9]{0,8}|", backend.setting(name)):
            parser.error(f"{name} is no whole number above 0")
    if options.max_steps is None:
        options.max_steps = int(backend.setting("AGENT_MAX_STEPS") or 25)
    if options.max_steps < 1 or options.max_tokens < 0:
        parser.error("--max-steps takes a number above 0, --max-tokens 0 (off) or more")
    if options.allow:
        os.environ["AGENT_ALLOW"] = "\n".join([os.environ.get("AGENT_ALLOW", ""), *options.allow])
    options.chat = not options.task and sys.stdin.isatty()
    piped = sys.stdin.read() if "-" in options.task else ""
    words = " ".join(word for word in options.task if word != "-")
    options.task = f"{words.strip()}\n\n{piped.strip()}".strip()
    if not options.task and not options.chat:
        parser.error("no task: give it as words, or - to read it from standard input")
    options.stream = sys.stderr.isatty() if options.stream is None else options.stream
    return options


def load_tools(path: str) -> None:
    """Run a file of tools: its @tool functions join the registry."""
    try:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except (Exception, SystemExit) as error:  # the file may do anything
        told = f"--tools {path}: {type(error).__name__}: {error}"
        raise BackendError(told, "settings") from error


def system_prompt(options: argparse.Namespace, terminal: Terminal) -> str:
    """The system prompt, with the workspace's AGENTS.md: read as the model would read it."""
    if Path("AGENTS.md").is_file():
        text = dispatch("read_file", {"path": "AGENTS.md"})
        if not text.startswith("error: "):
            return f"{options.system}\n\nAGENTS.md of this folder says:\n{text}"
        terminal.line(f"AGENTS.md is not used: {text}")
    return options.system


def as_json(result: Result) -> str:
    fields = {name: value for name, value in asdict(result).items() if name != "repeats"}
    return json.dumps(fields | {"trace": None})


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
        with contextlib.suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="backslashreplace")
    options = argparse.Namespace(json="--json" in (sys.argv if argv is None else argv))
    try:
        options = parse(argv)
        terminal = Terminal(options)
        for path in options.tools:
            load_tools(path)
        endpoint = connect(options.backend, options.model, options.base_url)
        terminal.key = endpoint.key
        if endpoint.url != endpoint.backend.url or not options.backend:
            terminal.line(f"{endpoint.model} at {endpoint.url}")
        settings: dict = {"max_steps": options.max_steps, "max_tokens": options.max_tokens}
        settings |= {"approve": terminal.approve, "watch": terminal.watch, "stream": options.stream}
        settings |= {"endpoint": endpoint, "system": system_prompt(options, terminal)}
        settings |= {"registry": {}} if options.no_tools else {}
        if options.chat:
            return talk(settings, terminal)
        result = run(options.task, **settings)
        terminal.end(result)
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        if options.json:
            print(as_json(Result(finish_reason="error", error=str(error))))
        return 2 if error.kind == "settings" else 1
    except KeyboardInterrupt:
        if options.json:
            print(as_json(Result(finish_reason="interrupted", error="interrupted")))
        return 130
    return ENDINGS[result.finish_reason][0]


def talk(settings: dict, terminal: Terminal) -> int:
    """A chat: one conversation, until /exit or Ctrl-D."""
    messages: list[Message] = []
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (line editing, where there is one)
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line == "/exit":
            return 0
        if line == "/clear":
            messages.clear()
        elif line.startswith("/"):
            print("/clear forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends a turn")
        elif line:
            terminal.step = 0
            terminal.end(run(line, messages=messages, **settings))


if __name__ == "__main__":
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):  # end what was started, as Ctrl-C does
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        code = main()
    except OSError as error:  # who reads the output has gone, or the disk under it is full
        code = 0 if isinstance(error, BrokenPipeError) else 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            code = code if isinstance(error, BrokenPipeError) else code or 1
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
