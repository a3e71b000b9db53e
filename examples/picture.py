"""A picture of a recorded run, as a person saw it in the terminal.

    python examples/picture.py FILE.jsonl > examples/run.svg

FILE is a trace, as harness.py writes one for each run (`.harness/runs/`). What is drawn is what
harness.py itself prints: its terminal is told the events of the record, with the recorded results
and times. So nothing is run, nobody is asked, and the same record gives the same picture. Not in
it, as no trace holds them: notices, questions, the options that were given. The command is made
from the task; a later run in the same record is drawn as one that resumes it.
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
from backend import ToolCall, visible

COLUMNS, CELL, LINE = 80, 8.4, 20  # the last two in pixels
STYLES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="704" height="{high}" viewBox="0 0 704 {high}"
 xml:space="preserve"><title>A run of harness.py in a terminal</title><style>
text {{ font: 14px SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #e6edf3;
  white-space: pre }} .bold {{ font-weight: bold }} .dim {{ fill: #9198a1 }}
.red {{ fill: #ff7b72 }} .green {{ fill: #7ee787 }} .yellow {{ fill: #d29922 }}
.cyan {{ fill: #76e3ea }}</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117" stroke="#57606a"/>
<circle cx="22" cy="18" r="6" fill="#ff5f57"/><circle cx="42" cy="18" r="6" fill="#febc2e"/>
<circle cx="62" cy="18" r="6" fill="#28c840"/>
{lines}
</svg>
"""
Cell = tuple[str, str]  # a character (nothing in the second cell of a wide one), and its style


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
        raise ValueError("nothing is in it")
    return screen.getvalue()


def show(terminal: harness.Terminal, line: dict, resume: str) -> None:
    """Tell the terminal what a line of the record stands for."""
    kind, inputs, outputs = line["run_type"], line["inputs"], line["outputs"]
    if kind == "tool":
        function = SimpleNamespace(name=line["name"], arguments=inputs["arguments"])
        terminal.watch("call", ToolCall(inputs["id"], function))
        terminal.watch("result", outputs["output"])
    elif kind == "llm":
        terminal.watch("text", outputs["content"] or "")
        terminal.watch("reply", SimpleNamespace(**outputs))
    elif outputs:
        terminal.watch("end", harness.Result(**outputs))
    else:
        task = inputs["messages"][-1]["content"]
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
            if unicodedata.category(char or " ") in ("Mn", "Me", "Cf") and cells:
                cells[-1] = (cells[-1][0] + char, style)  # it joins the one before it
            elif char:
                wide = unicodedata.east_asian_width(char) in "WF"
                cells += [(char, style), ("", style)][: 1 + wide]
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
    texts = []
    for number, cells in enumerate(lines):
        spans = ""
        for style, group in itertools.groupby(cells, key=lambda cell: cell[1]):
            text = escape("".join(char for char, _ in group), quote=False)
            text = re.sub("[\ufffe\uffff]", "\ufffd", text)  # no XML takes these
            spans += f'<tspan class="{style}">{text}</tspan>' if style else text
        place = f'x="16" y="{50 + LINE * number}" textLength="{len(cells) * CELL:.1f}"'
        texts += [f"<text {place}>{spans}</text>"] if cells else []
    return SVG.format(high=52 + LINE * len(lines), lines="\n".join(texts))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A picture of a recorded run, as SVG on stdout.")
    parser.add_argument("file", type=Path, help="a trace: .harness/runs/*.jsonl")
    path = parser.parse_args().file
    try:
        shown = played(path)
    except (OSError, ValueError, TypeError, LookupError) as error:
        parser.error(f"{path} is no recorded run: {type(error).__name__}: {error}")
    sys.stdout.buffer.write(drawn(wrapped(shown)).encode())


if __name__ == "__main__":
    main()
