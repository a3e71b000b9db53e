"""The README says what is so: its code runs, its tables are the program's, its links lead there."""

import re
import subprocess
import sys

import pytest
from conftest import KEY, ROOT
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
