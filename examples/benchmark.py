"""How many questions about this repository a model answers, with tools and without.

    python examples/benchmark.py run                  ask every question, or go on where it stopped
    python examples/benchmark.py run --no-tools       the baseline: the model alone
    python examples/benchmark.py run --shard 2/8      the second of eight parts, on any machine
    python examples/benchmark.py summary RUN          a table by category
    python examples/benchmark.py compare RUN RUN      two runs side by side
    python examples/benchmark.py grade RUN            by the patterns as they are now; or --by-hand

A RUN is a file, or a name: its lines, one a question, are in runs/NAME.jsonl (a shard: in
runs/NAME.2of8.jsonl) of the working directory, each written as soon as it is there.

It measures whether the answer of a whole run (prompt, tools, model) matches a pattern, and whether
a file is changed as asked; not the way there, nor style or cost. A pattern can be wrong about an
answer: that is what `grade --by-hand` is for.

Each question has a process of its own, and a copy of the repository without the files that hold the
answers. Only the copy is changed, so nobody is asked. A command would not be kept in it: run_shell
is offered with --shell only, and AGENT_SANDBOX=1 confines it. AGENT_MAX_CHARS=2500 helps a small
model. Parts: asking, records and labels, grading, tables, the command line.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from backend import BackendError, chat, connect, visible  # noqa: E402
from harness import SYSTEM, __version__, run  # noqa: E402
from tools import LEFT_OUT, REGISTRY, is_protected  # noqa: E402

QUESTIONS = Path(__file__).with_name("benchmark-questions.jsonl")
NOT_COPIED = [*LEFT_OUT, "runs", "benchmark-questions.jsonl", "test_examples.py"]
ALONE = "You answer questions about a small Python project, whose files you cannot see. Be short."


# --- asking --------------------------------------------------------------------------------------
def ask_here() -> None:
    """The child's part: ask the question of the job on standard input, in the working directory."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # run() ends what it has started
    job, calls = json.loads(os.fdopen(0, "rb", 0, closefd=False).readline()), list[dict]()
    # The parent holds the other end: once it is gone, however it went, nobody wants an answer.
    threading.Thread(target=lambda: os._exit(len(os.read(0, 1)) or 1), daemon=True).start()

    def watch(event: str, data: Any) -> None:
        if event == "call":
            called = {"name": data.function.name, "arguments": data.function.arguments}
            calls.append(called | {"result": "", "failed": True})  # until it comes to its end
        elif event == "result":
            calls[-1] |= {"result": data, "failed": data.startswith(("error: ", "denied: "))}

    registry = {name: REGISTRY[name] for name in job["tools"]}
    settings = {"system": job["system"], "max_steps": job["max_steps"], "watch": watch}
    settings |= {"model": partial(chat, backend=connect(*job["endpoint"]))}
    settings |= {"approve": lambda *_: (True, "")}
    result = run(job["question"], registry=registry, **settings)
    told = {"answer": result.answer, "finish_reason": result.finish_reason, "error": result.error}
    print(json.dumps(told | {"calls": calls}))


def not_copied(folder: str, names: list[str]) -> list[str]:
    """What of a folder is left out of the copies: what is hidden, built, secret, or an answer."""
    hidden = [n for n in names if n.startswith(".") and os.path.isdir(os.path.join(folder, n))]
    return hidden + [name for name in names if name in NOT_COPIED or is_protected(name)]


class Child:
    """A question on its way: a process, and its copy of the repository in a temporary folder."""

    def __init__(self, question: dict, job: dict, seconds: float) -> None:
        self.question, self.deadline = question, time.monotonic() + seconds
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.workspace = Path(self.folder.name, "project")
        self.output = Path(self.folder.name, "output")
        shutil.copytree(ROOT, self.workspace, ignore=not_copied)
        command = [sys.executable, os.path.abspath(__file__), "ask-here"]
        with self.output.open("wb") as out:
            streams: dict = {"stdin": subprocess.PIPE, "stdout": out, "stderr": out}
            self.process = subprocess.Popen(command, cwd=self.workspace, bufsize=0, **streams)
        line = json.dumps(job | {"question": question["question"]}) + "\n"
        self.process.stdin.write(line.encode())  # type: ignore[union-attr]

    def outcome(self) -> dict:
        """What the child told, and whether the file to check is as asked (`changed`)."""
        late = self.process.poll() is None
        self.end()
        *_, last = ["", *self.output.read_text("utf-8", "replace").splitlines()]
        told = {"answer": "", "calls": [], "finish_reason": "crash", "error": last}
        with contextlib.suppress(ValueError, TypeError):
            told |= json.loads(last)
        told |= {"finish_reason": "time limit"} if late else {}
        file = self.workspace / self.question.get("check_file", ".")
        text = file.read_text("utf-8", "replace") if file.is_file() else ""
        pattern = self.question.get("check_pattern", "")
        return told | {"changed": re.search(pattern, text) is not None}

    def end(self) -> None:
        """End the process: politely, so that it ends its commands, then for certain."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(5)
        self.process.kill()
        self.process.communicate()


def ask_all(
    questions: list[dict], job: dict, jobs: int, seconds: float
) -> Generator[tuple, None, None]:
    """Each question with what became of it, as they end; so many jobs at a time."""
    waiting, running = list(questions), list[Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Child(waiting.pop(0), job, seconds))
            for child in running[:]:
                if child.process.poll() is not None or time.monotonic() > child.deadline:
                    yield child.question, child.outcome()
                    running.remove(child)
                    child.folder.cleanup()
            time.sleep(0.05)
    finally:
        for child in running:
            child.end()
            child.folder.cleanup()


# --- records and labels --------------------------------------------------------------------------
FIELDS = """run_id question_id question category answer model provider evidence_files tools_called
    retrieval_method grade failure_label grading_notes repo_sha timestamp harness_version""".split()
RETRIEVAL = {"list_dir": "list", "list_files": "list", "search_text": "search", "read_file": "read"}
NO_TOOLS, LAST_ERROR, UNCHANGED = "no tools offered", "last result an error", "is not as asked"
AGAIN = ("endpoint", "crash")  # no answer of the model: asked again at the next start
RULES: list[tuple[str, Callable[[dict, dict], Any]]] = [
    # a failure_label, and when a question and its record get it. The first that fits
    ("endpoint", lambda q, r: re.search("finish_reason (error|content)", r["grading_notes"])),
    ("crash", lambda q, r: re.search("finish_reason (crash|interrupted)", r["grading_notes"])),
    ("step limit", lambda q, r: "finish_reason" in r["grading_notes"]),
    ("no tool call", lambda q, r: not r["tools_called"] and NO_TOOLS not in r["grading_notes"]),
    ("tool error", lambda q, r: LAST_ERROR in r["grading_notes"]),
    ("wrong file", lambda q, r: r["tools_called"] and q["evidence_files"]
     and set(q["evidence_files"]).isdisjoint(r["evidence_files"])),
    ("wrong answer", lambda q, r: True),
]  # fmt: skip


def record_of(question: dict, told: dict, common: dict) -> dict:
    """The line of a question. What labels and a later grading need to know is in its notes."""
    calls, ending = told["calls"], told["finish_reason"]
    names = [called["name"] for called in calls]
    ways = [RETRIEVAL[name] for name in names if name in RETRIEVAL]
    notes = [common["grading_notes"], LAST_ERROR * any(each["failed"] for each in calls[-1:])]
    notes += [f"finish_reason {ending} {told['error']}".strip()] * (ending != "stop")
    notes += [f"{question.get('check_file')} {UNCHANGED}"] * (not told["changed"])
    record = common | {"question_id": question["id"], "answer": told["answer"]}
    record |= {key: question[key] for key in ("question", "category")}
    record |= {"evidence_files": sorted({file for each in calls for file in opened(each)})}
    record |= {"tools_called": names, "retrieval_method": "+".join(dict.fromkeys(ways)) or "none"}
    record |= {"timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    record = graded(question, record | {"grading_notes": "; ".join(filter(None, notes))})
    return {field: record[field] for field in FIELDS}


def opened(called: dict) -> list[str]:
    """The files that a call opened, or found a match in."""
    if called["name"] == "search_text":
        return re.findall(r"(?m)^(\S.*?):\d+: ", called["result"])
    if not called["name"].endswith("_file") or called["failed"]:
        return []
    return [Path(json.loads(called["arguments"])["path"]).as_posix()]


def graded(question: dict, record: dict) -> dict:
    """The record with its grade by the pattern, and its label by the rules."""
    right = re.search(question["pattern"], record["answer"]) is not None
    right = right and UNCHANGED not in record["grading_notes"]
    label = "" if right else next(label for label, rule in RULES if rule(question, record))
    return record | {"grade": "pass" if right else "fail", "failure_label": label}


def read_lines(path: Path) -> list[dict]:
    """The JSON objects of a file, one a line; a line that a kill left torn is passed over."""
    lines = []
    for line in path.read_text("utf-8", "replace").split("\n"):
        with contextlib.suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def save(path: Path, records: list[dict]) -> None:
    """Replace a file of records in one step, where it changes."""
    text = "".join(json.dumps(record) + "\n" for record in records)
    if not path.exists() or path.read_text("utf-8", "replace") != text:
        new = path.with_suffix(".tmp")
        new.write_text(text, "utf-8")
        new.replace(path)


def files_of(run_id: str) -> list[Path]:
    """The files of a run: a file, or of a name the one, or that of each shard."""
    name = re.compile(rf"{re.escape(run_id)}(\.\d+of\d+)?\.jsonl")
    found = sorted(path for path in Path("runs").glob("*") if name.fullmatch(path.name))
    return [Path(run_id)] if os.path.isfile(run_id) else found


def records_of(run_id: str) -> list[dict]:
    """The records of a run, one for each question: an answer before none, the newest."""
    records = [record for file in files_of(run_id) for record in read_lines(file)]
    records.sort(key=lambda record: record["failure_label"] not in AGAIN)
    by_id = {record["question_id"]: record for record in records}
    return list(by_id.values()) or fail(f"there is no run {run_id} in the folder runs")


def run_command(options: argparse.Namespace) -> int:
    """Ask what has not been asked yet, and write each answer down at once."""
    endpoint = connect(options.backend, options.model, options.base_url)
    usual = re.sub(r"[^\w.-]+", "-", endpoint.model) + "-no-tools" * options.no_tools
    common = {"run_id": options.name or usual, "model": endpoint.model}
    common |= {"provider": endpoint.backend.name, "grading_notes": NO_TOOLS * options.no_tools}
    common |= {"repo_sha": repository_state(), "harness_version": __version__}
    tools = [name for name in REGISTRY if name != "run_shell" or options.shell]
    job: dict = {"endpoint": (endpoint.backend.name, endpoint.model, endpoint.url)}
    job |= {"tools": [] if options.no_tools else tools, "max_steps": options.max_steps}
    job |= {"system": ALONE if options.no_tools else SYSTEM}
    part, parts = options.shard
    path = Path("runs", f"{common['run_id']}{f'.{part}of{parts}' * (parts > 1)}.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.touch()
    save(path, [record for record in read_lines(path) if record["failure_label"] not in AGAIN])
    there = [r for file in files_of(common["run_id"]) for r in read_lines(file)]
    if other := {kind_of(record) for record in there} - {kind_of(common)}:
        fail(f"{path} holds answers of {other.pop()}: give this run another --name")
    done = {r["question_id"] for r in there if r["failure_label"] not in AGAIN}
    chosen = [q for q in read_lines(options.questions)[part - 1 :: parts] if q["id"] not in done]
    say(f"{path}: {len(chosen)} questions to ask, {len(done)} answers are there")
    answers = ask_all(chosen, job, options.jobs, options.seconds)
    code = write_down(path, answers, len(chosen), common)
    if chosen or there:  # there may be more shards than questions
        print(summary(records_of(common["run_id"])))
    return code


def write_down(path: Path, answers: Generator[tuple, None, None], total: int, common: dict) -> int:
    """Write answers down as they come; the exit code. Ends after three in a row without one."""
    started, failed = time.monotonic(), [False]
    with path.open("a", encoding="utf-8") as file, contextlib.closing(answers):
        for number, (question, told) in enumerate(answers, 1):
            record = record_of(question, told, common)
            print(json.dumps(record), file=file, flush=True)
            left = (time.monotonic() - started) / number * (total - number)
            clock = f"{left / 60:.0f} min" if left > 90 else f"{left:.0f} s"
            failed.append(record["failure_label"] in AGAIN)
            label = record["grading_notes" if failed[-1] else "failure_label"] or "pass"
            say(f"[{number}/{total}] {question['id']}: {label}; {clock} left")
            if failed[-3:] == [True] * 3:
                say("no answer three times in a row: the same command goes on later")
                break
    return int(any(failed))


def repository_state() -> str:
    """The commit, with -dirty where files are changed; nothing without git."""
    command = ["git", "-C", str(ROOT), *"describe --always --abbrev=40 --dirty --exclude=*".split()]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


# --- grading -------------------------------------------------------------------------------------
def grade_command(options: argparse.Namespace) -> int:
    """Grade what is there again: by the patterns as they are now, or by a person."""
    questions = {question["id"]: question for question in read_lines(options.questions)}
    if options.question not in (None, *(each["question_id"] for each in records_of(options.run))):
        fail(f"{options.run} has no answer to {options.question}")
    for file in files_of(options.run):
        records = read_lines(file)
        for place, record in enumerate(records):
            question = questions.get(record["question_id"])
            if options.question not in (None, record["question_id"]) or not question:
                continue
            if options.set:
                records[place] = by_person(record, options.set, options.label, options.notes)
            elif options.by_hand:
                records[place] = ask_person(record, question)
            elif "by hand" not in record["grading_notes"]:
                records[place] = graded(question, record)
            save(file, records)
    print(summary(records_of(options.run)))
    return 0


def by_person(record: dict, grade: str, label: str, notes: str) -> dict:
    """The record as a person grades it; the patterns leave it alone from then on."""
    before = re.sub("(; )?by hand.*", "", record["grading_notes"])
    told = "; ".join(filter(None, [before, f"by hand: {notes}" if notes else "by hand"]))
    label = "" if grade == "pass" else label or record["failure_label"] or "wrong answer"
    return record | {"grade": grade, "failure_label": label, "grading_notes": told}


def ask_person(record: dict, question: dict) -> dict:
    """Show a question, its answer and its grade, and ask for another."""
    print(f"\n{record['question_id']}: {visible(record['question'])}")
    print(textwrap.indent(visible(record["answer"]) or "(no answer)", "    "))
    print(f"{record['grade']} {record['failure_label']} by the pattern {question['pattern']}")
    word, _, label = input("[y] right, [n LABEL] wrong, Enter leaves it: ").strip().partition(" ")
    grade = {"y": "pass", "n": "fail"}.get(word)
    return by_person(record, grade, label, "") if grade else record


# --- tables --------------------------------------------------------------------------------------
def kind_of(record: dict) -> str:
    """What was measured: the model, and whether it had tools."""
    tools = "without tools" if NO_TOOLS in record["grading_notes"] else "with tools"
    return f"{record['model']} ({record['provider']}) {tools}"


def about(records: list[dict]) -> str:
    """What was measured, when, and on which state of the repository."""
    days = sorted({record["timestamp"][:10] for record in records})
    states = sorted({re.sub(r"\b(\w{7})\w*", r"\1", record["repo_sha"]) for record in records})
    return f"{kind_of(records[0])}, {' '.join(days)}, repository {' '.join(states)}"


def bar(part: float, width: int) -> str:
    """A part of 1 as a bar; in plain signs where the output has no blocks."""
    blocks = (sys.stdout.encoding or "").lower().startswith("utf")
    full, rest = "\u2588\u2591" if blocks else "#."
    return (full * round(part * width)).ljust(width, rest)


def by_category(records: list[dict]) -> dict[str, list[bool]]:
    """For each category, and for all: whether the answers pass. What got no answer is left out."""
    table: dict[str, list[bool]] = {}
    for record in sorted(records, key=lambda each: each["category"]):
        if record["failure_label"] not in AGAIN:
            table.setdefault(record["category"], []).append(record["grade"] == "pass")
    return table | {"all": [each for group in table.values() for each in group]}


def share(group: list[bool]) -> float:
    return sum(group) / max(1, len(group))


def listed(title: str, names: list[str]) -> str:
    """A title, how many names there are, and the names."""
    text, indent = f"{title:<17}{len(names):>4}  {', '.join(names)}", " " * 23
    return textwrap.fill(text, 79, subsequent_indent=indent, break_on_hyphens=False)


def summary(records: list[dict]) -> str:
    """A table by category, and the failures by label."""
    lines = [textwrap.fill(about(records), 79), "", f"{'category':<21}asked  passed"]
    for name, group in by_category(records).items():
        row = f"{name:<21}{len(group):>5}{sum(group):>8}{share(group):>7.0%}"
        lines.append(f"{row}  {bar(share(group), 30)}")
    labels = Counter(record["failure_label"] for record in records if record["failure_label"])
    lines += [""] if labels else []
    for label, _ in labels.most_common():
        lines.append(
            listed(label, [r["question_id"] for r in records if r["failure_label"] == label])
        )
    return "\n".join(lines)


def comparison(*runs: list[dict]) -> str:
    """Two runs side by side, on the questions that both have an answer to."""
    ids = [{r["question_id"] for r in run if r["failure_label"] not in AGAIN} for run in runs]
    both = set.intersection(*ids)
    a, b = ([record for record in run if record["question_id"] in both] for run in runs)
    lines = [
        textwrap.fill(f"{name}: {about(run)}", 79) for name, run in zip("AB", runs, strict=True)
    ]
    lines += ["", f"{'category':<18}asked  {'A':<22} {'B':<22} A - B"]
    for (name, ours), theirs in zip(by_category(a).items(), by_category(b).values(), strict=True):
        bars = [f"{bar(share(group), 16)} {share(group):>5.0%}" for group in (ours, theirs)]
        more = round(100 * (share(ours) - share(theirs)))
        lines.append(f"{name:<18}{len(ours):>5}  {bars[0]} {bars[1]} {more:>+5}")
    labels = [Counter(r["failure_label"] for r in run if r["failure_label"]) for run in (a, b)]
    lines += ["", f"{'failures':<18}{'A':>5}{'B':>5}"]
    lines += [
        f"{name:<18}{labels[0][name]:>5}{labels[1][name]:>5}" for name in labels[0] | labels[1]
    ]
    right = [{r["question_id"] for r in run if r["grade"] == "pass"} for run in (a, b)]
    lines += ["", listed("right in A only", sorted(right[0] - right[1]))]
    lines += [listed("right in B only", sorted(right[1] - right[0]))]
    lines += [listed("right in neither", sorted(both - right[0] - right[1]))]
    return "\n".join(lines)


# --- the command line ----------------------------------------------------------------------------
def say(text: str) -> None:
    """A line of progress."""
    print(visible(text), file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    """End with a line that says what is wrong with what was asked for."""
    say(f"error: {text}")
    sys.exit(2)


def positive(text: str) -> float:
    """A number above 0."""
    if not float(text) > 0:
        raise ValueError
    return float(text)


def shard(text: str) -> tuple[int, int]:
    """Of 2/8: 2 and 8."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError
    return part, parts


def parse(argv: list[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("run", help="ask the questions").add_argument
    add("--name", help="of the run (the model's, with -no-tools)")
    add("--no-tools", action="store_true", help="the baseline: the model alone")
    add("--shell", action="store_true", help="offer run_shell too: its commands run unasked")
    add("--jobs", type=positive, default=1, metavar="N", help="questions at a time (1)")
    add("--shard", type=shard, default=(1, 1), metavar="I/N", help="only the I-th of N parts")
    add("--max-steps", type=positive, default=12, metavar="N", help="model calls a question (12)")
    add("--seconds", type=positive, default=900, metavar="N", help="time a question (900)")
    for name in ("--backend", "--model", "--base-url"):
        add(name, help="as in harness.py")
    add("--questions", type=Path, default=QUESTIONS, metavar="FILE", help="other questions")
    add = commands.add_parser("grade", help="grade the answers again").add_argument
    add("run", metavar="RUN")
    add("--by-hand", action="store_true", help="show each answer, and ask")
    add("--question", metavar="ID", help="only this one")
    add("--set", choices=("pass", "fail"), help="the grade of --question, unasked")
    add("--label", default="", help="why it fails: " + ", ".join(label for label, _ in RULES))
    add("--notes", default="", help="what a reader should know")
    add("--questions", type=Path, default=QUESTIONS, metavar="FILE", help="other questions")
    commands.add_parser("summary", help="a table by category").add_argument("run", metavar="RUN")
    compare = commands.add_parser("compare", help="two runs side by side")
    compare.add_argument("runs", nargs=2, metavar="RUN")
    options = parser.parse_args(argv)
    if options.command == "grade" and options.set and not options.question:
        parser.error("--set needs --question")
    return options


COMMANDS: dict[str, Callable[[Any], Any]] = {
    "run": run_command,
    "grade": grade_command,
    "summary": lambda options: print(summary(records_of(options.run))),
    "compare": lambda options: print(comparison(*map(records_of, options.runs))),
}


def main() -> int:
    """The command line; returns the exit code."""
    if sys.argv[1:] == ["ask-here"]:
        ask_here()
        return 0
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the children, as on Ctrl-C
    options = parse(sys.argv[1:])
    try:
        return COMMANDS[options.command](options) or 0
    except (BackendError, OSError) as error:
        say(f"error: {error}")
        return 1 if getattr(error, "kind", "settings") != "settings" else 2
    except (KeyboardInterrupt, EOFError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
