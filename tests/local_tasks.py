"""Tasks for the local model, and how many of them it solves.

    python tests/local_tasks.py [--only WORD] [--other] [--port 8080]

Start `python examples/local_model.py` first: the tasks run one after the other on the server of
--port. Not part of the test suite: it takes minutes, and a small model's score is a measurement, not
a condition. `--other` runs a second table of the same kinds, which nothing was tuned on.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Task(NamedTuple):
    """A task in a workspace: the answer must match `pattern`, and the files those of `after`."""

    name: str
    task: str
    workspace: dict[str, str]
    pattern: str
    calls: int = 1  # at least
    after: dict[str, str] = {}  # noqa: RUF012  (a pattern for the content of each file)


BACKEND = '''"""Talks to the model."""
import os

from openai import OpenAI

MODEL = "llama-3.3-70b-versatile"
BASE_URL = "https://api.groq.com/openai/v1"


def complete(prompt):
    client = OpenAI(api_key=os.environ["GROQ_API_KEY"], base_url=BASE_URL)
    reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": prompt}])
    return reply.choices[0].message.content
'''
LOOP = '''"""Runs the agent."""
from backend import complete

MAX_STEPS = 17


def main():
    print(complete("hello"))
'''
PROJECT = {
    "README.md": "# Parrot\n\nA command-line tool that repeats what a model says.\n",
    "backend.py": BACKEND,
    "loop.py": LOOP,
    "config/settings.ini": "[server]\nhost = example.org\nport = 8642\n",
}
CHANGES = """# Changes

## 2.4.1 - 2026-03-09
- Fixed the crash on empty input.

## 2.4.0 - 2026-01-20
- Added --json.

## 2.3.0 - 2025-11-02
- First public version.
"""
SHAPES = """import math


def area_of_circle(radius):
    return math.pi * radius**2


def area_of_square(side):
    return side * side


def perimeter_of_square(side):
    return 4 * side
"""
NOTES = {
    f"notes/{month}.txt": f"Notes of {month}.\n" for month in ("jan", "feb", "mar", "apr", "may")
}

TASKS = [
    Task("list, then read", "List the files here, then read backend.py and tell me which model it calls.", PROJECT, r"llama-3\.3-70b", 2),
    Task("missing file", "Read NOTES.md and tell me what it says.", PROJECT, r"(?i)(no |not |doesn't|does not|cannot|isn't|missing)", 1),
    Task("what is this", "List the files in this directory and tell me what this project does.", PROJECT, r"(?i)repeat", 1),
    Task("a value", "What is the value of MAX_STEPS?", PROJECT, r"\b17\b"),
    Task("subfolder", "Which port does settings.ini set?", PROJECT, r"\b8642\b"),
    Task("search", "In which file is the function complete defined?", PROJECT, r"backend\.py"),
    Task("count", "How many .txt files are in the folder notes?", NOTES | {"a.md": "x"}, r"(?i)\b(5|five)\b"),
    Task("functions", "Which functions does shapes.py define?", {"shapes.py": SHAPES}, r"(?s)(?=.*area_of_circle)(?=.*area_of_square)(?=.*perimeter_of_square)"),
    Task("newest version", "What is the newest version in CHANGES.md, and what did it fix?", {"CHANGES.md": CHANGES, "main.py": "print(1)\n"}, r"(?is)2\.4\.1.*(crash|empty)"),
    Task("edit one line", "In config.py, change the value of DEBUG from True to False. Change nothing else.", {"config.py": 'NAME = "parrot"\nDEBUG = True\nLEVEL = 3\n'}, r".", 1, {"config.py": r'\ANAME = "parrot"\nDEBUG = False\nLEVEL = 3\n?\Z'}),
    Task("create and run", "Create hello.py that prints the sum of 19 and 23, run it, and tell me what it printed.", {"README.md": "empty\n"}, r"\b42\b", 2, {"hello.py": r"print"}),
    Task("count lines that match", "How many TODO comments are in the Python files here?", {"a.py": "# TODO: one\nx = 1\n# TODO: two\n", "b.py": "y = 2  # TODO: three\n", "c.md": "nothing\n"}, r"(?i)\b(3|three)\b"),
]  # fmt: skip

OTHER = [
    Task("list, then read", "List the files, read the one about prices and tell me what an apple costs.", {"prices.txt": "pear 1.10\napple 2.35\nplum 0.40\n", "hours.txt": "9 to 5\n"}, r"2\.35", 2),
    Task("missing file", "Summarize report.txt.", {"data.csv": "a,b\n1,2\n"}, r"(?i)(no |not |doesn't|does not|cannot|isn't|missing)"),
    Task("what is this", "What does this project do?", {"README.md": "# Tide\n\nTide prints the times of high water for a harbour.\n", "tide.py": "HARBOURS = 12\n"}, r"(?i)(high water|times)"),
    Task("a value", "What timeout does the client use?", {"client.py": "import http\n\nTIMEOUT = 45\nRETRIES = 3\n", "server.py": "PORT = 80\n"}, r"\b45\b"),
    Task("subfolder", "What is the database password length limit in limits.toml?", {"etc/app/limits.toml": "[database]\npassword_length = 96\n", "x.py": "1\n"}, r"\b96\b"),
    Task("search", "Where is the class Turtle defined?", {"src/animals.py": "class Hare:\n    pass\n\n\nclass Turtle:\n    pass\n", "src/plants.py": "class Fern:\n    pass\n"}, r"animals\.py"),
    Task("count", "How many Python files are there in this project?", {f"pkg/m{n}.py": "x = 1\n" for n in range(7)} | {"doc.md": "d\n"}, r"(?i)\b(7|seven)\b"),
    Task("functions", "What classes are in zoo.py?", {"zoo.py": "class Lion:\n    legs = 4\n\n\nclass Snake:\n    legs = 0\n"}, r"(?s)(?=.*Lion)(?=.*Snake)"),
    Task("newest version", "Which Python versions does setup.cfg support?", {"setup.cfg": "[metadata]\nname = kite\n[options]\npython_requires = >=3.9, <3.14\n"}, r"3\.9"),
    Task("edit one line", "Rename the function old_name in util.py to new_name.", {"util.py": "LIMIT = 9\n\n\ndef old_name(x):\n    return x + LIMIT\n"}, r".", 1, {"util.py": r"\ALIMIT = 9\n\n\ndef new_name\(x\):\n    return x \+ LIMIT\n?\Z"}),
    Task("run", "Run count.py and tell me what it prints.", {"count.py": "print(sum(range(101)))\n"}, r"\b5050\b"),
    Task("create", "Write a file called greeting.txt that contains the word hello.", {"a.txt": "a\n"}, r".", 1, {"greeting.txt": r"(?i)hello"}),
]  # fmt: skip


def fill(folder: str, files: dict[str, str]) -> None:
    """Write the files of a workspace."""
    for name, content in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def run(folder: str, *arguments: str) -> tuple[int, dict]:
    """Run the command in a folder; its exit code and the result of `--json`."""
    command = [sys.executable, str(ROOT / "harness.py"), "--json", "-y", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {"finish_reason": done.stderr[-200:], "tool_calls": []}


def attempt(task: Task, port: int) -> tuple[bool, str, dict]:
    """Run a task; whether it holds, what is wrong, and the result. Its record is played again."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as again:
        trace = f"{again}.jsonl"
        where = ("--backend", "llamacpp", "--base-url", f"http://127.0.0.1:{port}/v1")
        fill(folder, task.workspace)
        code, result = run(folder, "--max-steps", "12", "--trace", trace, *where, task.task)
        fill(again, task.workspace)
        _, played = run(again, "--max-steps", "12", "--replay", trace)
        Path(trace).unlink(missing_ok=True)
        if any(played.get(key) != result.get(key) for key in ("answer", "tool_calls")):
            return False, f"the replay is another: {played}", result
        if code:
            return False, f"exit {code}, {result['finish_reason']}", result
        if len(result["tool_calls"]) < task.calls:
            return False, f"{len(result['tool_calls'])} calls", result
        for name, pattern in task.after.items():
            path = Path(folder, name)
            if not path.is_file() or not re.search(pattern, path.read_text()):
                return False, f"{name} is not as it should be", result
        if not re.search(task.pattern, result["answer"]):
            return False, "wrong answer", result
    return True, "", result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--other", action="store_true")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    tasks = [t for t in (OTHER if options.other else TASKS) if options.only in t.name]
    held = 0
    for task in tasks:
        started = time.time()
        holds, problem, result = attempt(task, options.port)
        held += holds
        print(
            f"{'ok  ' if holds else 'FAIL'} {task.name} ({time.time() - started:.0f} s) {problem}"
        )
        for call in result.get("tool_calls", []):
            print(f"       {call['name']} {call['arguments']} -> {call['result'][:90]!r}")
        print(f"       answer: {result.get('answer', '')[:300]!r}", flush=True)
    print(f"{held} of {len(tasks)}")


if __name__ == "__main__":
    main()
