"""The picture of a recorded run: what a person saw, as an SVG that any browser takes."""

import runpy
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT
from endpoint import call, say

SCRIPT = str(ROOT / "examples" / "picture.py")
SVG = "{http://www.w3.org/2000/svg}"


def command(path):
    """The script as a process of its own; what it prints is read as bytes."""
    return subprocess.run([sys.executable, SCRIPT, path], capture_output=True)


def picture(path):
    """The SVG of a record."""
    script = runpy.run_path(SCRIPT)
    return script["drawn"](script["wrapped"](script["played"](Path(path))))


def texts(svg):
    """The lines of text in the picture."""
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.fixture
def record(harness, workspace):
    """A trace whose texts hold all that a picture could stumble on."""
    (workspace / "a.txt").write_text("if a < b && c > d:\n\x1b[31mred\x07\n" + "x" * 200 + "\n")
    asked = call("read_file", {"path": "a.txt"})
    answer = "It holds <three> lines & 日本.\n" + "one two three " * 20 + "\uffff\x1b[2J"
    harness("--trace", "r.jsonl", "What", "is", "in a.txt?", replies=[say(asked), say(answer)])
    return "r.jsonl"


def test_it_shows_the_command_the_calls_and_the_answer(record):
    done = command(record)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = texts(done.stdout)
    assert lines[0] == '$ python harness.py "What is in a.txt?"'
    assert lines[1] == '[1] read_file {"path": "a.txt"}'
    assert lines[2] == "    if a < b && c > d:"
    assert "It holds <three> lines & 日本." in lines
    assert lines[-1].startswith("2 steps, 50 tokens, ")


def test_what_a_terminal_obeys_or_xml_refuses_is_made_visible(record):
    svg = picture(record)
    lines = texts(svg)
    assert "    \\x1b[31mred\\x07" in lines
    assert lines[-2].endswith("\ufffd\\x1b[2J")
    assert "if a &lt; b &amp;&amp; c &gt; d:" in svg and "\x1b" not in svg


def test_long_lines_are_wrapped_at_80_columns(record):
    lines = texts(picture(record))
    assert max(map(len, lines)) <= 80
    assert "one two three " * 20 in " ".join(lines)
    assert sum(line.count("x") for line in lines if line.startswith("    xx")) == 160


def test_it_is_the_same_each_time_small_and_complete_in_itself(record):
    svg = picture(record)
    assert svg == picture(record) and len(svg) < 20_000
    inside = {node.tag.removeprefix(SVG) for node in ElementTree.fromstring(svg).iter()}
    assert inside == {"svg", "title", "style", "rect", "path", "text", "tspan"}
    assert svg.count("http") == 1  # the namespace


def test_a_run_that_broke_off_is_shown_as_far_as_it_went(record, workspace):
    whole = (workspace / record).read_text().splitlines(keepends=True)
    (workspace / record).write_text("".join(whole[:3]) + whole[3][:-40])
    assert texts(picture(record))[1] == '[1] read_file {"path": "a.txt"}'


def test_a_later_run_in_the_same_record_resumes_it(record, harness):
    harness("--resume", record, 'What costs "$5"?', replies=[say("Nothing.")])
    lines = texts(picture(record))
    place = lines.index("$ python harness.py --resume 'What costs \"$5\"?'")
    assert lines[place + 1] == "Nothing."


@pytest.mark.parametrize("text", ["", "[1]\n", '{"run_type": "llm"}\n', None])
def test_what_is_no_record_is_said_in_a_line(workspace, text):
    if text is not None:
        (workspace / "r.jsonl").write_text(text)
    done = command("r.jsonl")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"no recorded run" in done.stderr and b"Traceback" not in done.stderr
