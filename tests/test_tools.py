"""The tools and their guards: real files, a real shell, every call through dispatch()."""

import os
import re
import signal
import subprocess
import sys
import time
from typing import Annotated, Literal

import pytest

import tools
from tools import dispatch


def yes(tool, arguments):
    return True, ""


def run(name, approve=yes, **arguments):
    return dispatch(name, arguments, approve)


@pytest.fixture
def tree(workspace):
    """A workspace with a little of everything, and a secret beside it."""
    files = {
        "README.md": "# Parrot\n",
        "src/main.py": "MAX = 5\n\n\ndef main():\n    return MAX\n",
        "src/deep/er.txt": "alpha\nbravo\n",
        "config/settings.ini": "port = 80\n",
        "node_modules/junk.js": "alpha",
        ".git/config": "alpha",
        ".env": "PASSWORD=alpha\n",
        ".env.example": "PASSWORD=\n",
        "sub/.ENV.local": "alpha",
        "keys/server.pem": "alpha",
        "keys/id_rsa.pub": "alpha",
    }
    for name, text in files.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (workspace / "binary").write_bytes(b"alpha\0\xff")
    (workspace.parent / "outside.txt").write_text("hunter2\n")
    (workspace / "link").symlink_to("../outside.txt")
    (workspace / "folder_link").symlink_to("..")
    (workspace / "dangling").symlink_to("../new.txt")
    (workspace / "loop").symlink_to("loop")
    os.mkfifo(workspace / "pipe")
    return workspace


# --- the schema ---


def test_a_tool_is_made_of_a_plain_function(monkeypatch):
    monkeypatch.setattr(tools, "REGISTRY", registry := {})
    monkeypatch.setattr(tools, "TOOLS", [])

    @tools.tool
    def order(
        item: Annotated[str, "What to order."],
        count: int = 1,
        size: Literal["small", "large"] = "small",
        notes: list[str] | None = None,
        price: float | None = None,
        fast: bool = False,
    ) -> str:
        """Order something,
        for somebody.

        This is not for the model.
        """
        return f"{count} {size} {item} {notes} {price} {fast}"

    assert [registry["order"].schema] == tools.TOOLS
    assert registry["order"].schema["function"] == {
        "name": "order",
        "description": "Order something, for somebody.",
        "parameters": {
            "type": "object",
            "properties": {
                "item": {"type": "string", "description": "What to order."},
                "count": {"type": "integer"},
                "size": {"type": "string", "enum": ["small", "large"]},
                "notes": {"type": "array", "items": {"type": "string"}},
                "price": {"type": "number"},
                "fast": {"type": "boolean"},
            },
            "required": ["item"],
        },
    }
    calls = [
        ({"item": "tea"}, "1 small tea None None False"),
        ({"item": "tea", "count": "2", "price": "3", "fast": "True"}, "2 small tea None 3.0 True"),
        ({"item": 7, "count": 2.0, "notes": ["a", "b"]}, "2 small 7 ['a', 'b'] None False"),
        ({"item": "tea", "notes": None, "count": None}, "1 small tea None None False"),
        ({"item": "tea", "notes": '["a"]'}, "1 small tea ['a'] None False"),
        ({"item": "tea", "count": "two"}, "error: the argument 'count' must be of type integer"),
        ({"item": "tea", "count": True}, "error: the argument 'count' must be of type integer"),
        ({"item": "tea", "size": "huge"}, "error: the argument 'size' must be one of"),
        ({"item": ["tea"]}, "error: the argument 'item' must be of type string"),
        ({"item": "\ud800"}, "error: the arguments are not valid JSON"),
        (
            {"item": "tea", "colour": "red"},
            "error: there is no argument 'colour'. order takes: item, count",
        ),
        ({}, "error: the argument 'item' is missing"),
        ("[1]", "error: the arguments must be one JSON object"),
        ('{"item": "te', "error: the arguments are not valid JSON"),
        ("[" * 100_000, "error: the arguments are not valid JSON"),
    ]
    for arguments, told in calls:
        assert dispatch("order", arguments, yes, registry).startswith(told), arguments


def test_schemas_are_short_and_plain():
    allowed = {"type", "properties", "required", "description", "enum", "items"}
    for schema in tools.TOOLS:
        function = schema["function"]
        assert len(function["description"].split()) <= 14
        assert set(function["parameters"]) <= allowed
        for parameter in function["parameters"]["properties"].values():
            assert set(parameter) <= allowed and parameter["type"] in ("string", "integer")


def test_a_tool_of_the_users_may_fail_in_any_way():
    def boom():
        raise ZeroDivisionError("by zero")

    boom.__doc__ = "Fail."
    made = {
        "boom": tools.Tool(
            "boom", boom, {"function": {"parameters": {"properties": {}, "required": []}}}
        )
    }
    assert dispatch("boom", "{}", yes, made) == (
        "error: boom failed: ZeroDivisionError: by zero. Try other arguments."
    )


@pytest.mark.parametrize(
    "error", [SystemExit(3), RecursionError("deep"), ValueError("x" * 1_000_000), TimeoutError()]
)
def test_no_failure_of_a_tool_ends_the_run_or_fills_the_context(error):
    def boom():
        raise error

    made = {
        "boom": tools.Tool(
            "boom", boom, {"function": {"parameters": {"properties": {}, "required": []}}}
        )
    }
    told = dispatch("boom", "{}", yes, made)
    assert told.startswith(f"error: boom failed: {type(error).__name__}") and len(told) < 10_100


# --- reading ---

READS = [
    ("read_file", {"path": "README.md"}, "# Parrot\n"),
    ("read_file", {"path": "./src/../README.md"}, "# Parrot\n"),
    ("read_file", {"path": "src/main.py", "start_line": 4, "end_line": 4}, "def main():\n"),
    ("read_file", {"path": "src/main.py", "start_line": 0, "end_line": 0}, "MAX = 5\n"),
    ("read_file", {"path": "src/main.py", "start_line": 99}, "(no such lines: the file has 5)"),
    ("read_file", {"path": ".env.example"}, "PASSWORD=\n"),
    (
        "read_file",
        {"path": "settings.ini"},
        "error: there is no settings.ini in the workspace. Did you mean config/settings.ini?",
    ),
    (
        "read_file",
        {"path": "src/man.py"},
        "error: there is no src/man.py in the workspace. Did you mean src/main.py?",
    ),
    (
        "read_file",
        {"path": "NOTES.md"},
        "error: there is no NOTES.md in the workspace. The files are: ",
    ),
    ("read_file", {"path": "src"}, "error: src is a folder: use list_dir"),
    ("read_file", {"path": "binary"}, "error: binary is a binary file, which cannot be shown"),
    ("read_file", {"path": "pipe"}, "error: pipe is not a regular file"),
    ("list_dir", {}, ".env.example\nREADME.md\nbinary\nconfig/\n"),
    ("list_dir", {"path": "src"}, "deep/\nmain.py\n(1 files, 1 folders"),
    ("list_dir", {"path": "README.md"}, "error: README.md is a file: use read_file"),
    ("list_files", {"glob_pattern": "**/*.py"}, "src/main.py\n(1 files)"),
    ("list_files", {"glob_pattern": "*.py"}, "src/main.py\n(1 files)"),
    ("list_files", {"glob_pattern": "src/*.py"}, "src/main.py\n(1 files)"),
    ("list_files", {"glob_pattern": "src/*.txt"}, "(no files match src/*.txt)"),
    ("list_files", {"glob_pattern": "src/**/*.txt"}, "src/deep/er.txt\n"),
    ("list_files", {"glob_pattern": "."}, ".env.example\nREADME.md\nbinary\n"),
    ("list_files", {"glob_pattern": "./src/"}, "src/main.py\nsrc/deep/er.txt\n(2 files"),
    ("list_files", {"glob_pattern": "src"}, "src/main.py\nsrc/deep/er.txt\n(2 files"),
    ("list_files", {"glob_pattern": "*.{py,ini}"}, "config/settings.ini\nsrc/main.py\n(2 files"),
    ("list_files", {"glob_pattern": "src/[lm]*.py"}, "src/main.py\n"),
    ("list_files", {"glob_pattern": "src/[!m]*.py"}, "(no files match"),
    (
        "list_files",
        {"glob_pattern": "[z-a]"},
        f"error: list_files failed: {re.error.__name__}: bad character range z-a",
    ),
    ("search_text", {"query": "alpha"}, "src/deep/er.txt:1: alpha\n(1 matches in 1 files)"),
    ("search_text", {"query": "def \\w+\\("}, "src/main.py:4: def main():\n(1 matches in 1 files)"),
    ("search_text", {"query": "main("}, "src/main.py:4: def main():\n"),
    (
        "search_text",
        {"query": "MAX", "glob_pattern": "*.py"},
        "src/main.py:1: MAX = 5\nsrc/main.py:5: return MAX\n(2 matches in 1 files)",
    ),
    (
        "search_text",
        {"query": "MAX", "glob_pattern": "*.md"},
        "no matches for MAX in README.md, which holds:\n# Parrot\n",
    ),
    (
        "search_text",
        {"query": "MAX", "glob_pattern": "*.c"},
        "src/main.py:1: MAX = 5\nsrc/main.py:5: return MAX\n(no matches, as no file is *.c; in the others: 2",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "told"), READS)
def test_reading(tree, name, arguments, told):
    assert run(name, **arguments).startswith(told)


def test_an_empty_file_is_no_empty_result(workspace):
    (workspace / "empty").touch()
    assert run("read_file", path="empty") == "(the file is empty)"


def test_a_long_file_says_where_to_go_on(workspace, monkeypatch):
    monkeypatch.setenv("AGENT_MAX_CHARS", "300")
    (workspace / "long").write_text("".join(f"line {n}\n" for n in range(1, 101)))
    text, start = "", 1
    for _ in range(20):
        part = run("read_file", path="long", start_line=start)
        body, cut, rest = part.partition("[cut here: start_line=")
        text += body
        if not cut:
            break
        start = int(rest.split()[0])
    assert text == (workspace / "long").read_text()


def test_a_line_without_end_is_cut(workspace):
    (workspace / "long").write_text("x" * 1_000_000)
    assert 10_000 < len(run("read_file", path="long")) < 10_200
    assert len(run("search_text", query="x")) < 10_500


def test_one_range_of_a_huge_file_is_read_and_no_more(workspace):
    with open(workspace / "huge", "wb") as file:
        file.write(b"first\nsecond\n")
        file.truncate(2_000_000_000)
    started = time.monotonic()
    assert run("read_file", path="huge", start_line=2, end_line=2).startswith(
        ("second\n", "error: huge is a binary file")
    )
    assert time.monotonic() - started < 2


def test_of_a_large_file_no_more_is_read_than_asked_for(workspace):
    with open(workspace / "large", "w") as file:
        file.writelines(f"line {number}\n" for number in range(1, 3000))
        file.truncate(8_000_000_000)  # a hole, which takes minutes to read
    assert run("read_file", path="large", start_line=2000, end_line=2001).startswith(
        "line 2000\nline 2001\n[this is not all: go on with start_line=2002]"
    )


def test_what_is_too_large_is_not_edited(workspace, monkeypatch):
    monkeypatch.setattr(tools, "LARGEST", 8)
    (workspace / "large").write_text("one\ntwo\nthree\n")
    assert run("edit_file", path="large", old="one", new="1") == "error: large is too large to edit"
    assert run("write_file", path="large", content="1") == "error: large is too large to edit"


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write everything")
def test_what_is_read_only_is_not_changed(workspace):
    (workspace / "f").write_text("one")
    (workspace / "f").chmod(0o444)
    assert run("edit_file", path="f", old="one", new="1") == "error: f is read-only"


def test_a_regular_expression_without_end_is_ended(workspace, monkeypatch):
    monkeypatch.setattr(tools, "MOST_SECONDS", 1)
    (workspace / "a").write_text("a" * 40 + "!\n")
    assert run("search_text", query="(a+)+$").startswith("error: not done after 1 s")


def test_a_glob_without_end_is_ended(workspace, monkeypatch):
    monkeypatch.setattr(tools, "MOST_SECONDS", 1)
    (workspace / ("a" * 200)).touch()
    assert run("list_files", glob_pattern="*a" * 20 + "b").startswith("error: not done after 1 s")


def test_a_search_keeps_no_more_matches_than_it_can_count(workspace, monkeypatch):
    (workspace / "a").write_text("x\n" * 1000)
    monkeypatch.setattr(tools, "MOST_ENTRIES", 50)
    assert run("search_text", query="x").endswith("(50 matches in 1 files)")


# --- the boundary ---

OUTSIDE = [
    "../outside.txt",
    "/etc/passwd",
    "link",
    "folder_link/outside.txt",
    "~/x",
    "src/../../outside.txt",
    "loop",
    "dangling",
    "loop/../folder_link/outside.txt",
    "loop/../link",
    "loop/../loop/../folder_link",
]
PROTECTED = [
    ".env",
    ".ENV",
    "sub/.ENV.local",
    ".git/config",
    ".GIT/hooks/x",
    "keys/server.pem",
    "keys/id_rsa.pub",
    ".env.",
    ".git /x",
    "a/.e\u200bnv",
    ".env:stream",
    ".ssh/config",
    "new/.env",
    ".envrc",
    ".env~",
    "GIT~1/config",
    "src/../.env/.",
]


def assert_refused_everywhere(path, text, why):
    """Every tool that takes a path says no, and why; `text` is what an edit would find there."""
    for name, more in (
        ("read_file", {}),
        ("list_dir", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": text, "new": "x"}),
    ):
        told = run(name, path=path, **more)
        assert told.startswith("error: ") and why in told


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_is_touched(tree, path):
    assert_refused_everywhere(path, "hunter2", "outside")
    assert (tree.parent / "outside.txt").read_text() == "hunter2\n"
    assert not (tree.parent / "new.txt").exists()


@pytest.mark.parametrize("path", PROTECTED)
def test_secrets_are_protected_there_or_not(tree, path):
    assert_refused_everywhere(path, "alpha", "protected")


def test_a_protected_name_is_protected_also_where_it_is_a_link(tree):
    (tree / ".env").unlink()
    (tree / ".env").symlink_to("README.md")
    for path in (".env", str(tree / ".env"), "src/../.env"):
        assert "protected" in run("read_file", path=path)


@pytest.mark.parametrize(
    "path", ["nul", "a/CON", "a\\aux.txt", "com1", "lpt1 .x", "//server/share", "C:x", "a:stream"]
)
def test_windows_has_names_that_are_no_files(path):
    assert re.search(tools.DEVICE, path)
    assert not re.search(tools.DEVICE, "contents/con-fig/null.txt")


def test_lists_and_searches_do_not_show_secrets(tree):
    seen = (
        run("list_files")
        + run("list_dir")
        + run("list_dir", path="keys")
        + run("search_text", query="alpha|PASSWORD")
    )
    assert ".env.example" in seen
    assert not any(
        word in seen for word in (".pem", "id_rsa", ".git/", "ENV.local", "PASSWORD=alpha", "junk")
    )


@pytest.mark.parametrize(
    "pattern",
    ["*env*", "{.env,x}", "[.]env", "?env", "**/*.pem", "keys/*", ".e*", "*NV.local", "**"],
)
def test_no_pattern_finds_a_secret(tree, pattern):
    told = run("list_files", glob_pattern=pattern)
    assert not re.search(r"(?m)^(.*/)?(\.env|.*\.pem|id_rsa.*|\.ENV.*)$", told)
    assert "PASSWORD=alpha" not in run("search_text", query="alpha", glob_pattern=pattern)


@pytest.mark.parametrize("swapped", ["sub", "sub/file.txt"])
def test_what_is_swapped_for_a_link_after_the_check_is_not_read_or_written(
    workspace, monkeypatch, swapped
):
    (workspace / "sub").mkdir()
    (workspace / "sub/file.txt").write_text("mine")
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "file.txt").write_text("hunter2")
    real, checked = tools.inside, workspace / swapped

    def swap(path, there=False):
        resolved = real(path, there)
        if not checked.is_symlink():
            checked.rename(workspace / "was")
            checked.symlink_to(outside if checked.name == "sub" else outside / "file.txt")
        return resolved

    for name, more in (
        ("read_file", {}),
        ("edit_file", {"old": "hunter2", "new": "x"}),
        ("write_file", {"content": "x"}),
    ):
        monkeypatch.setattr(tools, "inside", swap)
        told = run(name, path="sub/file.txt", **more)
        monkeypatch.undo()
        monkeypatch.chdir(workspace)
        assert "hunter2" not in told
        assert (outside / "file.txt").read_text() == "hunter2"
        assert os.listdir(outside) == ["file.txt"]
        if checked.is_symlink():
            checked.unlink()
            (workspace / "was").rename(checked)


def test_a_search_does_not_follow_a_folder_that_became_a_link(workspace, monkeypatch):
    (workspace / "sub").mkdir()
    (workspace / "sub/file.txt").write_text("mine")
    (workspace.parent / "outside").mkdir()
    (workspace.parent / "outside/file.txt").write_text("hunter2")

    def swap(pattern):
        walked = list(tools.walk())
        (workspace / "sub").rename(workspace / "was")
        (workspace / "sub").symlink_to("../outside")
        return walked

    monkeypatch.setattr(tools, "files_like", swap)
    assert "file.txt:1" not in run("search_text", query="hunter2")
    assert list(tools.walk()) == ["was/file.txt"]


def test_a_hard_link_is_replaced_and_not_written_through(workspace):
    (workspace.parent / "outside.txt").write_text("as it was")
    os.link(workspace.parent / "outside.txt", workspace / "hard")
    assert run("write_file", path="hard", content="new") == "replaced hard"
    assert (workspace.parent / "outside.txt").read_text() == "as it was"


def test_an_entry_that_cannot_be_followed_does_not_hide_the_others(workspace):
    (workspace / "a.txt").touch()
    (workspace / "long").symlink_to("x" * 300)
    assert run("list_dir") == "a.txt\nlong\n(2 files, 0 folders)"


def test_an_empty_folder_has_nothing_to_read(workspace):
    assert run("list_files") == "(no files match **/*)"
    assert run("list_dir") == "(0 files, 0 folders)"


def test_a_tree_of_very_deep_folders_takes_no_time(workspace):
    deep = os.open(".", os.O_RDONLY)
    for _ in range(900):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    (workspace / "d/seen").touch()
    started = time.monotonic()
    assert run("list_files").startswith("d/seen\n(1 files)")
    assert time.monotonic() - started < 2
    subprocess.run(["rm", "-rf", "d"], check=True)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_names_that_no_file_has(workspace, path):
    assert run("read_file", path=path).startswith("error: ")
    assert run("write_file", path=path, content="x").startswith("error: ")


def test_a_sibling_with_the_same_beginning_is_outside(workspace):
    evil = workspace.parent / "workspace-evil"
    evil.mkdir()
    (evil / "x").write_text("hunter2")
    assert "outside" in run("read_file", path=str(evil / "x"))
    assert "outside" in run("read_file", path="../workspace-evil/x")


# --- writing ---


def test_a_write_makes_its_folders_and_replaces_whole_files(workspace):
    assert run("write_file", path="deep/er/c.txt", content="one\r\n") == "created deep/er/c.txt"
    assert (workspace / "deep/er/c.txt").read_bytes() == b"one\r\n"
    (workspace / "deep/er/c.txt").chmod(0o640)
    assert run("write_file", path="deep/er/c.txt", content="two").startswith("replaced")
    assert (workspace / "deep/er/c.txt").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in (workspace / "deep/er").iterdir()) == ["c.txt"]


def test_on_a_full_disk_the_old_file_stays_and_nothing_beside_it(workspace):
    resource = pytest.importorskip("resource")
    (workspace / "f").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        told = run("write_file", path="f", content="x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told.startswith("error: [Errno 27] File too large")
    assert os.listdir() == ["f"] and (workspace / "f").read_text() == "old"


def test_a_change_that_takes_too_long_to_show_is_not_made(workspace, monkeypatch):
    monkeypatch.setattr(tools, "MOST_SECONDS", 1)
    old = "\n".join(str(n * n % 301) for n in range(60_000))
    new = "\n".join(str(n * n * n % 307) for n in range(60_000))
    (workspace / "f").write_text(old)
    with pytest.raises(tools.ToolError, match="not done after 1 s"):
        tools.REGISTRY["write_file"].preview(path="f", content=new)
    assert run("edit_file", path="f", old=old, new=new).startswith("error: not done after 1 s")
    assert (workspace / "f").read_text() == old


def test_a_name_may_be_as_long_as_the_file_system_takes(workspace):
    assert run("write_file", path="文" * 84, content="x").startswith("created")


EDITS = [  # the file, old, new, the file afterwards or the error
    ("a\nb\nc\n", "b", "B", "a\nB\nc\n"),
    ("a\r\nb\r\nc\r\n", "a\nb", "A\nB", "A\r\nB\r\nc\r\n"),
    ("a\r\nb\r\n", "b", "B", "a\r\nB\r\n"),
    ("\ufeffa\n", "a", "A", "\ufeffA\n"),
    ("x x", "x", "y", "error: `old` occurs 2 times"),
    (
        "DEBUG = True\n",
        "DEBUG=True",
        "DEBUG=False",
        "error: `old` was not found in f. Copy it exactly. The nearest line is 'DEBUG = True'",
    ),
    ("x", "", "y", "error: `old` is empty"),
    ("x", "x", "x", "error: `old` is empty or the same"),
]


@pytest.mark.parametrize(("before", "old", "new", "after"), EDITS)
def test_an_edit_changes_one_place(workspace, before, old, new, after):
    (workspace / "f").write_bytes(before.encode())
    told = run("edit_file", path="f", old=old, new=new)
    left = (workspace / "f").read_bytes().decode()
    if after.startswith("error"):
        assert told.startswith(after) and left == before
    else:
        assert told.startswith("done") and left == after


def test_what_is_no_text_is_not_edited(tree):
    assert run("edit_file", path="binary", old="alpha", new="x").startswith(
        "error: binary is no UTF-8 text"
    )
    (tree / "latin").write_bytes(b"caf\xe9")
    assert run("edit_file", path="latin", old="caf", new="x").startswith(
        "error: latin is no UTF-8 text"
    )
    assert (tree / "latin").read_bytes() == b"caf\xe9"
    assert run("edit_file", path="pipe", old="a", new="b").startswith(
        "error: pipe is not a regular file"
    )
    assert run("write_file", path="pipe", content="b").startswith(
        "error: pipe is not a regular file"
    )
    assert run("write_file", path="src", content="b").startswith("error: ")


def test_the_diff_shows_every_character_of_the_change(workspace):
    preview = tools.REGISTRY["write_file"].preview
    assert "+# check\x0bif not ok: stop()" in preview(
        path="f", content="# check\x0bif not ok: stop()\n"
    )
    assert "+a\r" in preview(path="f", content="a\r\n")
    assert "\n-x" not in preview(path="a\n-x", content="y")


def test_a_change_is_shown_before_it_is_made(workspace):
    (workspace / "f").write_text("a\nb\n")
    preview = tools.REGISTRY["edit_file"].preview(path="f", old="b", new="c")
    assert "-b\n+c" in preview
    assert "+new" in tools.REGISTRY["write_file"].preview(path="g", content="new\n")


# --- who decides ---


def test_tools_that_change_things_ask_and_the_others_do_not(tree):
    asked = []

    def no(tool, arguments):
        asked.append(tool.name)
        return False, "not today"

    for name, arguments in (
        ("write_file", {"path": "n", "content": ""}),
        ("edit_file", {"path": "README.md", "old": "P", "new": "C"}),
        ("run_shell", {"command": "true"}),
    ):
        assert run(name, no, **arguments) == "denied: not today"
    for name, arguments in (
        ("list_dir", {}),
        ("list_files", {}),
        ("read_file", {"path": "README.md"}),
        ("search_text", {"query": "x"}),
    ):
        run(name, no, **arguments)
    assert asked == ["write_file", "edit_file", "run_shell"]


def test_a_call_that_cannot_be_made_is_not_asked_about(workspace):
    def approve(tool, arguments):
        raise AssertionError

    assert run("run_shell", approve, comand="ls").startswith("error: ")
    assert run("nothing", approve).startswith("error: there is no tool 'nothing'. The tools are: ")


ALLOWED = ["echo hello", "echo 'a b'", "echo a=b"]
NOT_ALLOWED = [
    "echo hello;", "echo hello; touch c", "echo hello && touch c", "echo hello\ntouch c", "echo $(touch c)", "echo `touch c`",
    "echo hello > c", "echo hello | tee c", "ECHO hello", "echo  hello", "echo hello # x", " echo hello", "X=1 echo hello",
    "./echo hello", "echo hell?", "echo \\hello", "echo hello &",
]  # fmt: skip


def no(tool, arguments):
    return False, "asked"


@pytest.mark.parametrize("command", ALLOWED)
def test_an_allowed_command_runs_unasked(workspace, monkeypatch, command):
    monkeypatch.setenv("AGENT_ALLOW", "\n".join(ALLOWED))
    assert run("run_shell", no, command=command).endswith("[exit code 0]")


NEARLY = [
    "'' echo hello",
    "env echo hello",
    "echo hello\r",
    "echo hello\0",
    "\uff45cho hello",
    "echo\thello",
    "echo hello\n",
    "",
]


@pytest.mark.parametrize("command", NOT_ALLOWED + NEARLY)
def test_only_the_exact_command_is_allowed(workspace, monkeypatch, command):
    monkeypatch.setenv("AGENT_ALLOW", "\n".join(ALLOWED))
    assert run("run_shell", no, command=command) == "denied: asked"


@pytest.mark.parametrize(
    "command",
    [each for each in NOT_ALLOWED if "\n" not in each and each[0] not in " E" and "  " not in each],
)
def test_what_needs_a_shell_cannot_be_allowed(workspace, monkeypatch, command):
    monkeypatch.setenv("AGENT_ALLOW", command)
    assert run("run_shell", no, command=command) == "denied: asked"


def test_an_allowed_program_is_none_of_the_workspace(workspace, monkeypatch):
    (workspace / "mine").write_text("#!/bin/sh\necho pwned\n")
    (workspace / "mine").chmod(0o755)
    monkeypatch.setenv("PATH", f":{workspace}:{os.environ['PATH']}")
    monkeypatch.setenv("AGENT_ALLOW", "mine\n./mine")
    assert (
        run("run_shell", no, command="mine")
        == run("run_shell", no, command="./mine")
        == "denied: asked"
    )


def test_an_allowed_program_is_no_link_in_the_workspace(workspace, monkeypatch):
    (workspace / "echo").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{workspace}:{os.environ['PATH']}")
    monkeypatch.setenv("AGENT_ALLOW", "echo hello")
    assert run("run_shell", no, command="echo hello") == "denied: asked"


# --- commands ---

COMMANDS = [
    ("true", "(no output)\n[exit code 0]"),
    ("echo out; echo err >&2; exit 3", "out\nerr\n[exit code 3]"),
    ("cat; echo end", "end\n[exit code 0]"),
    ("kill -9 $$", "(no output)\n[exit code -9]"),
    ("printf 'a\\377b'", "a\ufffdb\n[exit code 0]"),
    ("nosuchcommand 2>/dev/null", "(no output)\n[exit code 127]"),
]


@pytest.mark.parametrize(("command", "told"), COMMANDS)
def test_commands(workspace, command, told):
    assert run("run_shell", command=command) == told


def test_a_command_gets_no_keys(workspace, monkeypatch):
    for name in ("OPENAI_API_KEY", "SECRET", "AWS_SECRET_ACCESS_KEY", "AGENT_ALLOW"):
        monkeypatch.setenv(name, "hunter2")
    told = run("run_shell", command="env")
    assert "hunter2" not in told
    assert "PATH=" in told and "PAGER=cat" in told


def test_long_output_keeps_its_head_and_its_tail(workspace):
    told = run("run_shell", command="seq 1 100000")
    assert told.startswith("1\n2\n")
    assert told.endswith("99999\n100000\n[exit code 0]")
    assert "left out" in told and len(told) < 10_300


def test_long_output_is_cut_by_bytes_and_told_once(workspace, monkeypatch):
    monkeypatch.setenv("AGENT_MAX_CHARS", "400")
    told = run("run_shell", command="printf '😀%.0s' $(seq 300); echo end")
    assert told.count("😀") == 99 and told.endswith("😀end\n[exit code 0]")
    assert "[... 804 bytes left out" in told


def test_endless_output_is_capped_and_ended(workspace):
    started = time.monotonic()
    told = run("run_shell", command="yes", timeout=1)
    assert "left out" in told and "timed out after 1 s" in told and len(told) < 10_300
    assert time.monotonic() - started < 5


def test_a_command_that_closes_its_output_is_waited_for(workspace):
    assert run("run_shell", command="exec >&- 2>&-; sleep 0.3; touch done") == (
        "(no output)\n[exit code 0]"
    )
    assert (workspace / "done").exists()


def test_a_fork_storm_ends_with_the_command(workspace):
    started = time.monotonic()
    told = run("run_shell", command="for i in $(seq 200); do sleep 4321.5 & done; wait", timeout=1)
    assert "timed out after 1 s" in told and time.monotonic() - started < 5


def test_on_windows_taskkill_is_called_by_its_full_name(workspace, monkeypatch):
    process, called = subprocess.Popen(["true"]), []
    monkeypatch.setattr(tools.os, "name", "nt")
    monkeypatch.setenv("SYSTEMROOT", r"C:\Windows")
    monkeypatch.setattr(tools.subprocess, "run", lambda words, **options: called.append(words))
    monkeypatch.delattr(tools.os, "killpg")
    tools.end_group(process)
    monkeypatch.undo()
    assert called == [[r"C:\Windows\System32\taskkill.exe", "/F", "/T", "/PID", str(process.pid)]]


@pytest.mark.parametrize("missing", ["SIGALRM", "killpg", "O_NOFOLLOW", "O_NONBLOCK"])
def test_nothing_is_called_at_import_that_windows_has_not(missing):
    lacks = f"import os, signal; [delattr(m, {missing!r}) for m in (os, signal) if hasattr(m, {missing!r})]"
    code = f"{lacks}; import tools; print(tools.dispatch('list_files', {{}}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tools.__file__.rpartition("/")[0],
        capture_output=True,
        text=True,
    )
    assert done.stderr == "" and "tools.py" in done.stdout


def alive(command):
    return (
        subprocess.run(["pgrep", "-f", command], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sleep 4321.1 & echo hi", "hi\n[exit code 0]"),
        ("echo begun; sleep 4321.2 & sleep 4321.2", "begun\n[timed out after 1 s"),
        ("trap '' TERM INT HUP; echo begun; sleep 4321.3", "begun\n[timed out after 1 s"),
    ],
)
def test_what_a_command_starts_ends_with_it(workspace, command, told):
    started = time.monotonic()
    assert run("run_shell", command=command, timeout=1).startswith(told)
    assert time.monotonic() - started < 6
    assert not alive("sleep " + command.split("sleep ")[1].split()[0])


def test_a_grandchild_in_its_own_session_is_not_waited_for(workspace):
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)"
    started = time.monotonic()
    told = run("run_shell", command=f'{sys.executable} -c "{code}"')
    assert told.endswith("\n[exit code 0]")
    assert time.monotonic() - started < 5
    os.kill(int(told.split()[0]), signal.SIGKILL)


def test_nobody_reads_on_what_a_grandchild_in_its_own_session_writes(workspace):
    code = "import subprocess; subprocess.Popen(['yes', '4321.4'], start_new_session=True)"
    told = run("run_shell", command=f'{sys.executable} -c "{code}"')
    assert told.endswith("[exit code 0]")
    deadline = time.monotonic() + 0.5
    while alive("yes 4321.4") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive("yes 4321.4")


def test_a_change_in_a_long_file_of_like_lines_is_shown_at_once():
    before = [f"kind {n % 500}" for n in range(60_000)]
    after = [*before[:30_000], "changed", *before[30_001:]]
    started = time.monotonic()
    shown = tools.difference("f", "\n".join(before), "\n".join(after))
    assert (
        "@@ -29999,5 +29999,5 @@\n kind 498\n kind 499\n-kind 0\n+changed\n kind 1\n kind 2"
        in shown
    )
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "raw", ['{"path": "n", "content": NaN}', '{"path": "n", "content": 1e999}']
)
def test_a_number_that_no_json_has_is_not_written(workspace, raw):
    assert dispatch("write_file", raw, yes).startswith("error: the arguments are not valid JSON")
    assert not (workspace / "n").exists()
