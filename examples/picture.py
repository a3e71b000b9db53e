"""A picture of a recorded run, as a person saw it in the terminal.

    python examples/picture.py FILE.jsonl > examples/run.svg

FILE is a trace, as in `.harness/runs/`. harness.py's own terminal is told its events, with the
recorded results and times: so nothing is run, and the picture is the same each time. Not in it, as
no trace holds them: notices, questions, options. A later run in FILE is shown as a --resume.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import re
import shlex
import sys
import unicodedata
from html import escape
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import harness
from backend import visible

COLUMNS, CELL, LINE = 80, 8.4, 20  # the last two in pixels
STYLES = {"1": "bold", "2": "dim", "32": "green"}
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="704" height="{high}"
 viewBox="0 0 704 {high}" xml:space="preserve"><title>A run in a terminal</title><style>
text {{ font: 14px Menlo, Consolas, DejaVu Sans Mono, monospace; fill: #e6edf3; white-space: pre }}
.bold {{ font-weight: bold }} .dim {{ fill: #9198a1 }} .green {{ fill: #7ee787 }}</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117" stroke="#57606a"/>
<path d="M22 18h0M42 18h0M62 18h0" stroke="#57606a" stroke-width="12" stroke-linecap="round"/>
{lines}</svg>
"""
Cell = tuple[str, str]  # a character (none in the second cell of a wide one), and its style


def played(path: Path) -> str:
    """What the terminal shows of a record, with the commands that started it."""
    os.environ.pop("NO_COLOR", None)
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        terminal = harness.Terminal(harness.parse(["task"]))
        for text in path.read_text("utf-8").split("\n"):
            with contextlib.suppress(json.JSONDecodeError):  # torn by a crash
                show(terminal, json.loads(text), "--resume " * bool(screen.tell()))
    if not screen.tell():
        raise ValueError("it is empty")
    return re.sub("[\ufffe\uffff]", "\ufffd", screen.getvalue())  # no XML takes these


def show(terminal: harness.Terminal, line: dict, resume: str) -> None:
    """Tell the terminal what a line of the record stands for."""
    kind, inputs, outputs = line["run_type"], line["inputs"], line["outputs"]
    if kind == "tool":
        function = SimpleNamespace(name=line["name"], arguments=inputs["arguments"])
        terminal.watch("call", SimpleNamespace(id=inputs["id"], function=function))
        terminal.watch("result", outputs["output"])
    elif kind == "llm":
        terminal.watch("text", outputs["content"] or "")
        terminal.watch("reply", SimpleNamespace(**outputs))
    elif outputs:
        terminal.watch("end", harness.Result(**outputs))
    else:
        said = [each["content"] for each in inputs["messages"] if each["role"] == "user"]
        task = said[-1] if said else "(Go on.)"  # after a crash it stands with the last result
        words = shlex.quote(task) if set(task) & set('"$`\\!') else f'"{task}"'
        print(f"\x1b[32m$\x1b[0m \x1b[1mpython harness.py {resume}{visible(words)}\x1b[0m")
        terminal.watch("task", inputs["messages"])


def wrapped(text: str) -> list[list[Cell]]:
    """The lines of a terminal's text as cells, cut at COLUMNS, between words if one ends near."""
    lines, style = [], ""
    for line in text.expandtabs(4).rstrip("\n").split("\n"):
        cells: list[Cell] = []
        for code, char in re.findall(r"\x1b\[([\d;]*)[A-Za-z]|(.)", line):
            style = style if char else STYLES.get(code, "")
            wide = unicodedata.east_asian_width(char or " ") in "WF"
            cells += [(char, style), ("", style)][: len(char) + wide]
        indent = list(itertools.takewhile(lambda cell: cell[0] == " ", cells))[: COLUMNS // 2]
        while len(cells) > COLUMNS:
            ends = [n for n in range(COLUMNS * 2 // 3, COLUMNS + 1) if cells[n][0] == " "]
            cut = max(ends, default=COLUMNS - (not cells[COLUMNS][0]))
            lines.append(cells[:cut])
            cells = indent + cells[cut + bool(ends) :]
        lines.append(cells)
    return lines


def drawn(lines: list[list[Cell]]) -> str:
    """The SVG. A line is stretched to its cells, so that any monospace font will do."""
    texts = ""
    for number, cells in enumerate(lines):
        spans = ""
        for style, group in itertools.groupby(cells, key=lambda cell: cell[1]):
            text = escape("".join(char for char, _ in group), quote=False)
            spans += f'<tspan class="{style}">{text}</tspan>' if style else text
        place = f'x="16" y="{50 + LINE * number}" textLength="{len(cells) * CELL:.1f}"'
        texts += f"<text {place}>{spans}</text>\n" if cells else ""
    return SVG.format(high=52 + LINE * len(lines), lines=texts)


def main() -> None:
    parser = argparse.ArgumentParser(description="A picture of a recorded run, as SVG on stdout.")
    parser.add_argument("file", type=Path, help="a trace: .harness/runs/*.jsonl")
    try:
        svg = drawn(wrapped(played(parser.parse_args().file)))
    except (OSError, ValueError, TypeError, LookupError) as error:
        parser.error(f"this is no recorded run: {type(error).__name__}: {error}")
    sys.stdout.buffer.write(svg.encode())


if __name__ == "__main__":
    main()
