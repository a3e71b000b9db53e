"""The README says what is so: its code runs, its tables are the program's, its links lead there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import KEY, ROOT, settings_for
from endpoint import Endpoint, call, say

import backend
import harness as module
from tools import REGISTRY

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)


def run(code, workspace, endpoint, *arguments):
    """A piece of the README's code as a script beside the four files."""
    script = workspace / "script.py"
    script.write_text(code)
    env = {"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": KEY}
    env |= {"AGENT_MODEL": "m"}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(
        command, env=env, cwd=workspace, capture_output=True, text=True, timeout=30
    )


def test_the_loop_in_twenty_lines_runs(workspace):
    (loop,) = (code for code in PYTHON if "while True" in code)
    assert len(loop.splitlines()) <= 20
    with Endpoint(say(call("list_dir")), say("One script.")) as endpoint:
        done = run(loop, workspace, endpoint, "What is here?")
    assert (done.stdout, done.returncode) == ("One script.\n", 0), done.stderr
    assert endpoint.faults == [] and "script.py" in endpoint.results[0]


def test_the_tool_of_your_own_is_called(workspace, command):
    (code,) = (code for code in PYTHON if "@tool" in code)
    (workspace / "my_tools.py").write_text(code)
    (workspace / "README.md").write_text("three little words\n")
    asked = call("count_words", {"path": "README.md"})
    with Endpoint(say(asked), say("Three.")) as endpoint:
        done = command("--tools", "my_tools.py", "How many words?", endpoint=endpoint)
    assert done.stdout == "Three.\n", done.stderr
    assert endpoint.results == ["3 words"]


def commands():
    """Each command of the README, once: the lines of its shell blocks, and those within its text."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", README, re.S)).splitlines()
    inline = re.findall(r"`((?:python|git diff)[ |][^`]+)`", README)
    found = [
        re.sub(r"\s+#.*| && \.venv/bin/python examples.*", "", line) for line in blocks + inline
    ]
    return list(dict.fromkeys(filter(None, found)))


LIST, HELLO = say(call("list_dir")), say("Hello.")
RUN = {  # what runs here, word for word: the replies, and what stands on stdout
    '.venv/bin/python harness.py "Which functions does tools.py define?"': (
        [LIST, HELLO],
        "Hello.",
    ),
    '.venv/bin/python harness.py --backend ollama --model qwen3:8b "What is in this folder?"': (
        [LIST, HELLO],
        "Hello.",
    ),
    'cd ~/some/project && agent "Where is the port set?"': ([LIST, HELLO], "Hello."),
    "git diff | agent review this - > review.md": ([HELLO], ""),
    'python probe.py --raw "List the files in this directory."': ([LIST], "\n  list_dir {}\n"),
    'python backend.py "Say hello."': ([HELLO], "Hello."),
    "python tools.py": ([], '"name": "read_file"'),
    "python harness.py --replay examples/tour.jsonl": ([], "workers"),
}
ELSEWHERE = {  # the beginning of a command, and where it runs
    "python3 -m venv": "../.ci/run",
    "cp .env.example": "test_command_line.py",
    "ollama pull": "nowhere: it fetches a model for another program",
    "alias agent=": "here, before each command",
    "jq ": "test_trace.py",
    "python examples/benchmark.py": "test_examples.py",
    "python probe.py --check": "test_probe.py",
    "python harness.py --tools": "above",
}


def test_every_command_is_run():
    left = [each for each in commands() if each not in RUN]
    assert [each for each in left if not each.startswith(tuple(ELSEWHERE))] == []
    assert set(RUN) <= set(commands()) and len(left) >= len(ELSEWHERE)


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="they are written for a Unix shell")
@pytest.mark.parametrize("command", RUN)
def test_a_command_does_what_it_says(command, workspace):
    replies, told = RUN[command]
    for name in [*ROOT.glob("*.py"), ROOT / "examples", ROOT / "README.md"]:
        (workspace / name.name).symlink_to(name)
    (workspace / ".venv/bin").mkdir(parents=True)
    python = workspace / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # a link would leave its venv
    python.chmod(0o755)
    (workspace / "some/project").mkdir(parents=True)
    script = f'agent() {{ "{sys.executable}" "{ROOT}/harness.py" "$@"; }}\n{command}'
    path = f"{workspace}/.venv/bin:{os.environ['PATH']}"
    with Endpoint(*replies) as endpoint:
        env = settings_for(endpoint if replies else None, PATH=path, HOME=str(workspace))
        done = subprocess.run(
            ["/bin/bash", "-c", script], env=env, cwd=workspace, capture_output=True, text=True
        )
    assert done.returncode == 0 and told in done.stdout, done.stderr
    assert len(endpoint.requests) == len(replies) and endpoint.faults == []
    if ">" in command:
        assert (workspace / "review.md").read_text() == "Hello.\n"


LINKS = re.findall(r"\[`(\w+)(?:\(\))?`\]\((\w+\.py)#L(\d+)\)", README)


@pytest.mark.parametrize(("name", "file", "line"), LINKS)
def test_a_link_to_a_line_leads_there(name, file, line):
    text = (ROOT / file).read_text().splitlines()[int(line) - 1]
    assert re.match(rf"(def {name}\(|class {name}\b|{name} = )", text)


def test_there_are_links_to_lines():
    assert len(LINKS) >= 10


def test_every_backend_has_its_line():
    for name, each in backend.BACKENDS.items():
        (line,) = (
            line for line in README.splitlines() if line.startswith("|") and f"`{name}`" in line
        )
        assert (each.key or "none") in line and (each.model or "") in line


def test_every_option_has_its_line(harness, capsys):
    with pytest.raises(SystemExit):
        module.main(["--help"])
    options = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))
    table = README[README.index("## Options") : README.index("## When something")]
    missing = {
        option for option in options if f"`{option}" not in table and f"{option}`" not in table
    }
    assert missing <= {"-h", "--help", "--quiet", "--verbose"}


def test_every_setting_has_its_line_in_the_example():
    code = "".join((ROOT / name).read_text() for name in ("backend.py", "tools.py", "harness.py"))
    settings = set(re.findall(r"AGENT_[A-Z_]+|OPENAI_BASE_URL|NO_COLOR", code))
    settings |= {each.key for each in backend.BACKENDS.values() if each.key}
    example = set(re.findall(r"^#? ?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    assert example == settings


def test_every_tool_and_exit_code_is_told():
    own = {name: tool for name, tool in REGISTRY.items() if tool.function.__module__ == "tools"}
    for name, tool in own.items():  # other tests add tools of theirs
        (line,) = (line for line in README.splitlines() if line.startswith(f"| `{name}` |"))
        assert line.endswith("| yes |") == bool(tool.asks)
    for code in {code for code, _ in module.ENDINGS.values()}:
        assert re.search(rf"^\|.*\| {code}\b", README, re.M)
