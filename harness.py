"""The loop: send the conversation, run the tools that the model asks for, until it answers.
`python harness.py [options] task words ...`; "-" as a word is standard input, no words are a chat.
`run()` knows no provider (backend.py) and no tool (tools.py); it tells one function, `watch`, all.
In order: the loop; the trace (--resume, --replay); the terminal and its question; the options."""

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import backend
from backend import BackendError, Message, Reply, Watch, chat, connect, env, need, report, visible
from tools import REGISTRY, Approve, Tool, dispatch, load_tools, run_shell, sandbox

__version__ = "0.1.0"
RUNS = Path(".harness", "runs")  # the traces of a workspace
# --- the loop ------------------------------------------------------------------------------------
SYSTEM = """\
You answer questions about the files in the current folder. You cannot see them, so call a tool:
search_text finds where something is defined or set, list_files finds a file, read_file shows it.
Reply with one tool call and nothing else, then wait for its result:
<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>
If the result does not show the answer, call the next tool. \
If it does, reply with the answer in plain words."""
ENDINGS = {  # finish_reason: the exit code, and why there is no better end
    "stop": (0, ""), "error": (1, ""), "content_filter": (1, "a content filter stopped the reply"),
    "max_steps": (3, "the step limit is reached"), "max_tokens": (3, "the token limit is reached"),
    "repeated_call": (3, "the same call came over and over"), "interrupted": (130, "interrupted"),
    "length": (3, "the answer was cut off at its length limit"),
    "empty": (3, "the model gave only empty replies, no answer")}  # fmt: skip
CLOSING = "({}. Answer now in plain text, with what you know.)"
REPEATED = "error: not run: you already made this same call. Use its result, or do another thing."
HELP = "/clear forgets the conversation, /tokens counts, /exit or Ctrl-D leaves, Ctrl-C ends a turn"


@dataclass
class Result:
    """What a run came to."""

    answer: str = ""  # the best text there is, also at a limit; none after an error
    finish_reason: str = "stop"  # a key of ENDINGS
    steps: int = 0  # model calls
    tool_calls: list[dict] = field(default_factory=list)  # name, arguments, result (a preview)
    usage: dict[str, int] = field(default_factory=dict)  # prompt_, completion_ and total_tokens
    seconds: float = 0.0
    error: str = ""  # why there is no better answer, in a line
    trace: str | None = None  # the file that records it

    def limit(self, max_steps: int, max_tokens: int) -> str:
        """The limit that makes the coming model call the last one, or nothing."""
        if [call["result"] for call in self.tool_calls[-3:]] == [REPEATED] * 3:
            return "repeated_call"
        spent = max_tokens and self.usage.get("total_tokens", 0) >= max_tokens
        return "max_tokens" if spent else "max_steps" if self.steps >= max_steps else ""


def run(
    task: str, *, model: Callable[..., Reply] | None = None, registry: dict[str, Tool] = REGISTRY,
    system: str = SYSTEM, messages: list[Message] | None = None, max_steps: int = 25,
    max_tokens: int = 0, approve: Approve = None, watch: Watch = lambda *_: None,
) -> Result:  # fmt: skip
    """Work on a task until the model answers, or a limit is reached; without one, go on. `model` is
    asked in place of `chat` and `connect()`, which may raise. `messages`, a conversation to go on
    with, is changed in place. Without `approve`, tools that ask are denied. `watch` is told what
    `chat` tells, and "task" (messages), "reply", "call", "result" (its text) and "end" (Result)."""
    model = model or functools.partial(chat, backend=connect())
    started, result, nudge = time.monotonic(), Result(), ""
    messages = [] if messages is None else messages
    messages[:] = messages or [{"role": "system", "content": system}]
    settle(messages)
    if task:
        tell(messages, task)
    watch("task", messages)
    try:
        while True:
            if limit := result.limit(max_steps, max_tokens):
                tell(messages, CLOSING.format(ENDINGS[limit][1]))
            reply = ask(model, messages, registry, watch, closing=bool(limit))
            result.steps += 1
            result.usage |= {k: n + result.usage.get(k, 0) for k, n in reply.usage.items()}
            result.answer = reply.content or result.answer  # the best there is
            watch("reply", reply)
            if limit or reply.finish_reason == "content_filter":
                result.finish_reason = limit or "content_filter"
                break
            nudge = "" if nudge or reply.tool_calls else nudge_for(reply, messages, registry)
            if nudge:  # never two in a row
                tell(messages, nudge)
                watch("notice", "no call and no answer: asked again")
                continue
            if reply.tool_calls or reply.content:
                messages.append(reply.message)
            if not reply.tool_calls:
                cut = "length" if reply.finish_reason == "length" else "stop"
                result.finish_reason = cut if reply.content else "empty"
                break
            for call in reply.tool_calls:
                watch("call", call)
                text = run_call(call, reply, result, registry, approve)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                watch("result", text)
    except (BackendError, KeyboardInterrupt) as error:
        result.finish_reason = "error" if isinstance(error, BackendError) else "interrupted"
        result.error, result.answer = str(error), ""  # words beside a call are no answer
    result.error = result.error or ENDINGS[result.finish_reason][1]
    settle(messages, result.answer or f"({result.finish_reason})")
    result.seconds = round(time.monotonic() - started, 2)
    watch("end", result)
    return result


def tell(messages: list[Message], text: str) -> None:
    """Add to the last message if it is a tool's or a user's: no provider refuses that order."""
    if (last := messages[-1])["role"] not in ("user", "tool"):
        return messages.append({"role": "user", "content": text})
    messages[-1] = last | {"content": f"{last['content']}\n\n{text}"}


def nudge_for(reply: Reply, messages: list[Message], registry: dict[str, Tool]) -> str:
    """What a small model needs to hear after a reply that is neither a call nor an answer."""
    text, tools, last = reply.content or "", "|".join(registry) or "(?!)", messages[-1]
    text = "" if text.startswith("error: ") else text  # a small model repeats a result
    call = rf"({tools})\W*{{|(?:json\W+)?name[\"']\W+\w+\W+(?:arguments|parameters)[\"']"
    told = re.search(rf"(?i)\b(?:use|call|try|run) (?:the )?`?({tools})\b|\A\W*(?:{call})", text)
    if text and not (registry and (told or reply.finish_reason == "tool_calls")):
        return ""
    again = told and f"'{told[1] or told[2]}'" in str(messages[-2:-1])  # tells of its last call
    will_do = not re.search(r"(?m)\Aerror: (?!not run)|^Next, ", last["content"])  # of list_files
    if (again or not text) and (not registry or last["role"] == "tool" and will_do):
        return "(Your reply was no answer. Now answer the question in plain words.)"
    return f"(That is no answer yet. Make the next call: its JSON, nothing else. Tools: {tools}.)"


def ask(model: Callable, messages: list, registry: dict, watch: Watch, closing: bool) -> Reply:
    """One model call. A conversation that is too long for the model is shortened first."""
    schemas, choice = [tool.schema for tool in registry.values()], "none" if closing else None
    while True:
        try:
            return model(messages, schemas, tool_choice=choice, watch=watch)
        except BackendError as error:
            if error.kind != "context" or not shorten(messages):
                raise
            watch("notice", "too long for the model: trying again without the oldest results")


def run_call(call: Any, reply: Reply, result: Result, registry: dict, approve: Approve) -> str:
    """The result of a call: what the tool returned, or why it was not run."""
    name, arguments = call.function.name, call.function.arguments
    result.tool_calls.append({"name": name, "arguments": arguments, "result": "interrupted"})
    same = [(made["name"], made["arguments"]) for made in result.tool_calls[-3:]]
    if reply.finish_reason == "length":
        text = "error: not run: your reply was cut off at its length limit. Send a shorter one."
    elif same == [(name, arguments)] * 3:
        text = REPEATED
    elif getattr(call, "words_after", False) and name in registry and registry[name].asks:
        text = "error: not run: words stood after the call. Send it alone, with no other text."
    else:
        text = dispatch(name, arguments, approve, registry)
    result.tool_calls[-1]["result"] = text[:200]
    return text


def shorten(messages: list[Message]) -> bool:
    """Leave out the older half of the long results; where all are new to the model, halve them."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=0)
    long = [i for i, m in enumerate(messages) if m["role"] == "tool" and len(m["content"]) > 400]
    seen = [i for i in long if i < last]
    for i in seen[: (len(seen) + 1) // 2] or long:
        text, quarter = messages[i]["content"], len(messages[i]["content"]) // 4
        note = f"{text[:quarter]}\n[... half of this is left out ...]\n{text[-quarter:]}"
        note = f"[left out to save room: a result of {len(text)} characters]" if seen else note
        messages[i] = messages[i] | {"content": note}
    return bool(long)


def settle(messages: list[Message], last_words: str = "") -> None:
    """Leave a history that every endpoint takes: each call answered, the model's word last."""
    answered = {message.get("tool_call_id") for message in messages}
    calls = [call["id"] for message in messages for call in message.get("tool_calls", [])]
    lost = {"role": "tool", "content": "error: interrupted before it was done"}
    messages += [lost | {"tool_call_id": call} for call in calls if call not in answered]
    if last_words and messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": last_words})


# --- trace ---------------------------------------------------------------------------------------
class Trace:
    """The record of a conversation: JSON lines in LangSmith's run fields, written as things happen.
    A "chain" line opens a run, and again closes it; "llm" is a reply, "tool" a result. `inputs` has
    the messages after the first `from`, which stand in earlier lines: so a trace stays small."""

    def __init__(self, path: Path, terminal: "Terminal") -> None:
        self.path, self.terminal, self.session = path, terminal, str(uuid.uuid4())
        self.messages: list[Message] = []  # the history, as the lines so far tell it
        self.turns: list[list] = []  # of each run: its first messages, and then its replies
        self.results: dict[str, str] = {}  # by call id
        try:
            lines = path.read_text("utf-8").split("\n") if os.path.isfile(path) else [""]
            self.torn = bool(lines[-1])
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # torn by a crash
                    self.learn(**json.loads(line))
            "".join(m["role"] + m["content"] for m in self.messages)  # fails where one is none
        except Exception as error:  # noqa: BLE001  (the file may hold anything)
            need(False, f"{path} is no recorded run ({type(error).__name__})")

    def learn(self, run_type: str, inputs: dict, outputs: Any, **_: Any) -> None:
        """Take in what a line tells, a new one or one that was read."""
        self.end = Result(**outputs) if run_type == "chain" and outputs else None  # of the last run
        if run_type == "tool":
            self.results[inputs["id"]] = text = outputs["output"]
            self.messages.append({"role": "tool", "tool_call_id": inputs["id"], "content": text})
        elif run_type == "llm":
            self.messages[inputs["from"] :] = inputs["messages"]
            self.turns[-1].append(outputs)
            if outputs["tool_calls"] or outputs["content"]:
                self.messages.append(outputs["message"])
        elif not outputs:  # a run begins
            self.messages[inputs["from"] :] = inputs["messages"]
            self.turns.append([list(self.messages)])

    def watch(self, event: str, data: Any) -> None:
        """Write the line that belongs to an event of `run`, and pass the event on."""
        if event == "task":
            self.history, self.start = data, datetime.now(timezone.utc)
            self.root = (self.start, str(uuid.uuid4()))
            self.begin = self.write("chain", "run", None, None)
        elif event == "reply":
            self.write("llm", "chat", None, vars(data))
        elif event == "call":
            self.call = data
        elif event == "result":
            if data != self.results.get(self.call.id, data):  # in a replay
                self.terminal.watch("notice", "this result is not the recorded one")
            call = {"id": self.call.id, "arguments": self.call.function.arguments}
            failed = data if data.startswith(("error: ", "denied: ")) else None
            self.write("tool", self.call.function.name, call, {"output": data}, failed)
        elif event == "end":
            data.trace = str(self.path) if os.path.isfile(self.path) else None
            self.write("chain", "run", self.begin, vars(data), data.error or None)
        self.terminal.watch(event, data)

    def write(self, kind: str, name: str, inputs: Any, outputs: Any, error: Any = None) -> dict:
        """Add a line. That it cannot be written is said once, and the run goes on."""
        if inputs is None:  # the messages of the history that no line tells yet
            same = sum(itertools.takewhile(bool, map(dict.__eq__, self.messages, self.history)))
            inputs = {"from": same, "messages": self.history[same:]}
        order = [self.root] if kind == "chain" else [self.root, (self.start, str(uuid.uuid4()))]
        (start, run_id), end = order[-1], datetime.now(timezone.utc)
        line = {
            "id": run_id, "trace_id": self.root[1], "session_id": self.session,
            "parent_run_id": None if kind == "chain" else self.root[1],
            "dotted_order": ".".join(f"{time:%Y%m%dT%H%M%S%fZ}{each}" for time, each in order),
            "name": name, "run_type": kind, "inputs": inputs, "outputs": outputs, "error": error,
            "start_time": start.isoformat(), "end_time": outputs and end.isoformat(),
            "latency_ms": outputs and round((end - start).total_seconds() * 1000)}  # fmt: skip
        text = "\n" * self.torn + json.dumps(line, default=vars, ensure_ascii=False) + "\n"
        self.learn(kind, inputs, outputs)
        self.start, self.torn = end, False
        try:
            if self.path.parent == RUNS and RUNS.resolve() != Path().resolve() / RUNS:
                raise OSError(f"{RUNS} is behind a link")  # a project's, to who knows where
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.parent == RUNS and not os.path.lexists(RUNS / ".gitignore"):
                (RUNS / ".gitignore").write_text("*\n")
            with open(self.path, "ab", opener=lambda p, f: os.open(p, f, 0o600)) as file:
                file.write(self.terminal.hide(text).encode("utf-8", "backslashreplace"))
        except OSError as failure:
            self.terminal.watch("notice", f"the run is not recorded any more: {failure}")
            self.path = Path(os.devnull)
        return inputs

    def reply(self, rest: list[dict], *_: Any, **__: Any) -> Reply:
        """The next of the recorded replies, in the place of `chat`."""
        need(rest, "the recorded run ends here")
        outputs = rest.pop(0)
        calls = [c | {"function": SimpleNamespace(**c["function"])} for c in outputs["tool_calls"]]
        return Reply(**outputs | {"tool_calls": [SimpleNamespace(**call) for call in calls]})


# --- terminal ------------------------------------------------------------------------------------
class Terminal:
    """The person's side of a run: progress on stderr, the answer on stdout, the question."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.lively = options, sys.stderr.isatty() and not options.quiet
        self.dim = "\x1b[2m{}\x1b[0m" if self.lively and not os.environ.get("NO_COLOR") else "{}"
        self.hide: Callable[[str], str] = str  # leaves out the key
        self.always: set[str] = set()  # calls that need no further question
        self.shown, self.step, self.tokens = "", 0, 0  # shown: of the answer, on stdout
        self.answered, self.waiter = threading.Event(), threading.Thread()

    def line(self, text: str = "", dim: bool = True) -> None:
        """End the waiting sign, and a line of streamed text; then print a line of progress."""
        self.answered.set()
        if self.waiter.is_alive():
            self.waiter.join()
        if self.shown and not self.shown.endswith("\n"):
            print(flush=True)
        self.shown = ""
        if text and not self.options.quiet:  # what it holds may come from anywhere
            with contextlib.suppress(OSError):  # where nobody can read it, the answer still counts
                print((self.dim if dim else "{}").format(visible(text)), file=sys.stderr)

    def wait(self) -> None:
        """A waiting sign with the seconds, until `line`; runs in a thread."""
        for seconds in itertools.count():
            print("\r" + self.dim.format(f"... {seconds} s"), end="", file=sys.stderr, flush=True)
            if self.answered.wait(1):
                return print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def watch(self, event: str, data: Any) -> None:
        """Show an event of the run."""
        if event in ("request", "chunk") and self.options.inspect:
            text = self.hide(json.dumps(data, ensure_ascii=False))
            whole = self.options.verbose or len(text) < 2000
            self.line(f"{event}: {text if whole else f'{text[:1000]} ... {text[-1000:]}'}")
        self.step = 0 if event == "task" else self.step + (event == "reply")
        most = None if self.options.verbose else 160  # characters of a line
        if event == "request" and self.lively:
            self.answered.clear()
            self.waiter = threading.Thread(target=self.wait, daemon=True)
            self.waiter.start()
        elif event == "text" and sys.stdout.isatty() and not self.options.json:
            if not self.shown:
                self.line()
            print(visible(data), end="", flush=True)
            self.shown += data
        elif event == "notice":
            self.line(data)
        elif event == "call":
            self.line(f"[{self.step}] {data.function.name} {data.function.arguments[:most]}", False)
        elif event == "result":
            lines = visible(data).splitlines()
            shown = [line[:most] for line in lines[: most and 3]]
            more = f" (+{len(lines) - len(shown)} lines)" if len(lines) > len(shown) else ""
            self.line("\n".join(f"    {line}" for line in shown) + more)
        elif event == "end":
            if data.answer and self.shown != data.answer and not self.options.json:
                self.line()
                print(visible(data.answer), flush=True)
            self.tokens += (tokens := data.usage.get("total_tokens", 0))
            self.line(f"{data.steps} steps, {tokens} tokens, {data.seconds} s")
            if data.error:
                report(data.error)

    def approve(self, tool: Tool, arguments: dict) -> tuple[bool, str]:
        """Ask the person: the whole of what would be done, default no."""
        key = json.dumps([tool.name, arguments], sort_keys=True)
        if self.options.approve != "ask" or key in self.always:
            return self.options.approve != "none", "tools that change things are switched off"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.line("nobody is at a terminal to ask: -y allows all, --allow an exact command")
            return False, "nobody is there to approve it"
        parts = [str(v) if k == "command" else f"({k}: {v!r})" for k, v in arguments.items()]
        what = tool.preview(**arguments) if tool.preview else "\n".join(parts)
        lines = visible(what, strict=True).replace("\n", "\n  | ")
        print(f"{tool.name}, {len(what)} characters in all:\n  | {lines}", file=sys.stderr)
        try:  # to forget keys that were pressed before the question was there to be read
            import termios  # noqa: PLC0415  (POSIX)

            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        except ImportError:
            import msvcrt  # noqa: PLC0415  (Windows)

            while msvcrt.kbhit():  # type: ignore[attr-defined]
                msvcrt.getch()  # type: ignore[attr-defined]
        print("[y]es / [n]o / [a]lways this exact call: ", end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline().strip()
        self.always |= {key} if said.lower() in ("a", "always") else set()
        reason = re.sub(r"(?i)\Ano?[:,]*(\s+|\Z)", "", said)
        return said.lower() in ("y", "yes", "a", "always"), f"the user said no. {reason}".strip()


# --- command line --------------------------------------------------------------------------------
def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options; what is not given comes from the environment, or the `.env` beside this file."""
    codes = "exit codes: 0 answered, 1 endpoint failed, 2 wrong usage, 3 limit reached, 130 Ctrl-C"
    parser = argparse.ArgumentParser(prog="harness.py", epilog=codes)
    add, switch = parser.add_argument, functools.partial(parser.add_argument, action="store_true")
    add("task", nargs="*", help='the task; a word "-" stands for standard input; none: a chat')
    add("--backend", metavar="NAME", help="groq, openai, ollama, ... (AGENT_BACKEND)")
    add("--model", metavar="NAME", help="one of its models (AGENT_MODEL)")
    add("--base-url", metavar="URL", help="another address of the endpoint (OPENAI_BASE_URL)")
    add("--max-steps", metavar="N", help="model calls at most (25; AGENT_MAX_STEPS)")
    add("--max-tokens", metavar="N", default="0", help="stop after N tokens (0: off)")
    add("--approve", choices=("ask", "all", "none"), default="ask", help="for what changes things")
    add("-y", dest="approve", action="store_const", const="all", help="the same as --approve all")
    add("--allow", metavar="COMMAND", action="append", default=[], help="runs unasked (repeatable)")
    switch("--sandbox", help="run commands in bubblewrap: no network, only this folder writable")
    add("--tools", metavar="FILE.py", action="append", default=[], help="more tools (repeatable)")
    switch("--no-tools", help="send no tools")
    add("--system", metavar="TEXT", help="another system prompt")
    one = parser.add_mutually_exclusive_group().add_argument
    one("--trace", metavar="FILE", help=f"where the run is recorded ({RUNS}/...)")
    switch("--no-trace", help="do not record the run")
    one("--resume", metavar="FILE.jsonl", nargs="?", const="", help="go on with a run (the last)")
    one("--replay", metavar="FILE.jsonl", help="play a run again: recorded model, real tools")
    switch("--json", help="print one JSON object")
    add("--stream", action=argparse.BooleanOptionalAction, help="stream the answer (at a terminal)")
    switch("--inspect", help="the raw request and reply of every call, on stderr")
    switch("-q", "--quiet", help="no progress")
    switch("-v", "--verbose", help="whole results")
    add("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(max_steps=env("AGENT_MAX_STEPS") or "25", stream=sys.stderr.isatty())
    parser.error = lambda told: need(False, f"{told} (usage: harness.py --help)")  # type: ignore
    options = parser.parse_intermixed_args(argv)
    given = {name: env(name) or "1" for name in ("AGENT_MAX_CHARS", "AGENT_SHELL_TIMEOUT")}
    given |= {"AGENT_MAX_STEPS, --max-steps": options.max_steps, "--max-tokens": options.max_tokens}
    for name, value in given.items():
        if not re.fullmatch("[0-9]{1,9}", value) or not (int(value) or name == "--max-tokens"):
            parser.error(f"{name} takes a whole number above 0, not {value}")
    if options.resume and not options.resume.endswith(".jsonl"):  # it is the first word of the task
        options.task, options.resume = [options.resume, *options.task], ""
    piped = sys.stdin.read() if "-" in options.task else ""
    words = " ".join(word for word in options.task if word != "-")
    options.task = f"{words.strip()}\n\n{piped.strip()}".strip()
    options.recorded = options.replay or options.resume is not None
    options.chat = not options.task and not options.recorded
    need(not (options.replay and options.task), "--replay takes no task: it plays a record")
    need(sys.stdin.isatty() or not options.chat, "no task: give it as words, or - for stdin")
    return options


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options, code = argparse.Namespace(json="--json" in (sys.argv if argv is None else argv)), 0
    try:
        options = parse(argv)
        result = start(options, Terminal(options))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  (wrong settings, a hostile record, a fault of ours)
        result = Result(finish_reason="error", error=report(error))
        code = 2 if getattr(error, "kind", "") == "settings" else 0
    except KeyboardInterrupt:
        result = Result(finish_reason="interrupted", error="interrupted")
    if options.json:
        print(json.dumps(vars(result)), flush=True)
    return code or ENDINGS[result.finish_reason][0]


def start(options: argparse.Namespace, terminal: Terminal) -> Result:
    """Do what the options ask for: a task, a chat, or a recorded run; returns the last result."""
    for path in options.tools:
        load_tools(path)
    os.environ["AGENT_ALLOW"] = "\n".join([os.environ.get("AGENT_ALLOW", ""), *options.allow])
    os.environ["AGENT_SANDBOX"] = "1" if options.sandbox else env("AGENT_SANDBOX")
    told = run_shell("true") if sandbox() else "[exit code 0]"  # rather not run than run without
    need(told.endswith("[exit code 0]"), f"the sandbox does not start: {told}")
    system = options.system or ("Answer in plain words." if options.no_tools else SYSTEM)
    if Path("AGENTS.md").is_file():  # it is read as the model would read it
        used = not (told := dispatch("read_file", {"path": "AGENTS.md"})).startswith("error: ")
        system += f"\n\nAGENTS.md of this folder says:\n{told}" * used
        terminal.line(f"AGENTS.md is not used: {told}" * (not used))
    files = filter(Path.is_file, RUNS.glob("*.jsonl"))
    new = RUNS / f"{datetime.now():%Y%m%dT%H%M%S}-{os.urandom(3).hex()}.jsonl"
    usual = new if options.resume is None else max(files, key=os.path.getmtime, default=RUNS)
    trace = Trace(Path(options.replay or options.resume or options.trace or usual), terminal)
    need(trace.turns or not options.recorded, f"there is no recorded run in {trace.path}")
    trace.path = Path(os.devnull) if options.replay or options.no_trace else trace.path
    how: dict[str, Any] = {"system": system, "max_steps": int(options.max_steps)}
    how |= {"max_tokens": int(options.max_tokens), "registry": {} if options.no_tools else REGISTRY}
    how |= {"approve": terminal.approve, "watch": trace.watch}
    result, messages = Result(), list(trace.messages) if options.recorded else []
    if options.replay:
        for history, *replies in [*trace.turns]:
            result = run("", model=functools.partial(trace.reply, replies), messages=history, **how)
        return result
    if not options.task and options.recorded and trace.end and trace.end.finish_reason == "stop":
        terminal.watch("end", trace.end)
        return trace.end
    endpoint = connect(options.backend, options.model, options.base_url)
    terminal.hide = endpoint.hide
    terminal.line(f"{endpoint.model} at {endpoint.url}")
    model = functools.partial(chat, backend=endpoint, stream=options.stream)
    for task in typed(messages, terminal) if options.chat else [options.task or "(Go on.)"]:
        result = run(task, model=model, messages=messages, **how)
    return Result() if options.chat else result


def typed(messages: list[Message], terminal: Terminal) -> Iterator[str]:
    """The tasks of a chat, which is one conversation, until /exit or Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (line editing, where there is one)
    line = ""
    while line != "/exit":
        if line == "/clear":
            messages.clear()
        elif line.startswith("/"):
            print(f"{terminal.tokens} tokens so far" if line == "/tokens" else HELP)
        elif line:
            yield line
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt) as error:
            line = print() or ("/exit" if isinstance(error, EOFError) else "")


if __name__ == "__main__":
    backend.as_process(main)
