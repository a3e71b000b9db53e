"""What the model may do: functions, their JSON schemas, the registry, and the guards.

    python tools.py        print the schemas as the model sees them

The model is not trusted: what it asks for may have been written by whoever wrote a file that it
read. Here every call is checked, kept inside the workspace (the working directory), bounded in
time and size, and turned into a text. Nothing is printed and nobody is asked here: `dispatch` is
handed a function that says yes or no.

Parts, in the order in which they stand:
    registry    @tool, schemas, REGISTRY and TOOLS
    dispatch    the ladder of guards: known, valid, allowed, run, cut to size
    paths       what is inside the workspace, protected names, opening
    reading     read_file, list_dir, list_files, search_text
    writing     write_file, edit_file
    commands    run_shell
"""

import contextlib
import difflib
import fnmatch
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import types
import typing
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Union

# --- registry ------------------------------------------------------------------------------------

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(Exception):
    """Why a call was not carried out, and what to do next: a sentence for the model."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    function: Callable[..., Any]
    schema: dict  # as sent: {"type": "function", "function": {name, description, parameters}}
    asks: bool | Callable[..., bool]  # whether a person must agree; may look at the arguments
    preview: Callable[..., str] | None  # what to show the person, from the arguments

    @property
    def parameters(self) -> dict:
        return self.schema["function"]["parameters"]


REGISTRY: dict[str, Tool] = {}
TOOLS: list[dict] = []  # the schemas of REGISTRY, as sent to the model


def tool(
    function: Callable | None = None,
    *,
    asks: bool | Callable[..., bool] = False,
    preview: Callable[..., str] | None = None,
    registry: dict[str, Tool] = REGISTRY,
) -> Any:
    """Make a tool of a plain function, by its name, docstring and annotated parameters.

    `@tool`, or `@tool(asks=True)` where a person must agree, or `@tool(registry=MINE)`.
    """
    if function is None:
        return lambda f: tool(f, asks=asks, preview=preview, registry=registry)
    made = Tool(function.__name__, function, schema_of(function), asks, preview)
    registry[made.name] = made
    if registry is REGISTRY:
        TOOLS[:] = schemas(registry)
    return function


def schemas(registry: dict[str, Tool]) -> list[dict]:
    """What is sent to the model as `tools`."""
    return [each.schema for each in registry.values()]


def schema_of(function: Callable) -> dict:
    """The JSON schema of a function: plain keywords only, since some endpoints refuse the rest."""
    hints = typing.get_type_hints(function, include_extras=True)
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = schema_of_type(hints.get(name, str))
        if parameter.default is parameter.empty:
            required.append(name)
    description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    parameters = {"type": "object", "properties": properties, "required": required}
    about = {"name": function.__name__, "description": description, "parameters": parameters}
    return {"type": "function", "function": about}


def schema_of_type(hint: Any) -> dict:
    """The schema of one parameter: str, int, float, bool, lists of them, Literal, `| None`."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        return schema_of_type(inner[0]) | {"description": inner[1]}
    if kind in (Union, types.UnionType):  # the default says what None means
        return schema_of_type(next(t for t in inner if t is not type(None)))
    if kind is Literal:
        return {"type": TYPES[type(inner[0])], "enum": list(inner)}
    if kind is list or hint is list:
        return {"type": "array", "items": schema_of_type(inner[0] if inner else str)}
    if hint not in TYPES:
        raise TypeError(f"a tool's parameter cannot be {hint!r}: take str, int, float, bool, list")
    return {"type": TYPES[hint]}


# --- dispatch ------------------------------------------------------------------------------------

Approve = Callable[[Tool, dict], tuple[bool, str]]  # yes or no, and the reason of a no


def deny(tool: Tool, arguments: dict) -> tuple[bool, str]:
    """The approval where nobody can be asked."""
    return False, "nobody is there to approve it"


def dispatch(
    name: str,
    arguments: str | dict,
    approve: Approve = deny,
    registry: dict[str, Tool] = REGISTRY,
) -> str:
    """Run one call and return its result, a text that is never empty.

    Never raises, Ctrl-C aside: what goes wrong is a result that begins with "error: " and says
    what to do next; what was not allowed begins with "denied: ".
    """
    try:
        called = find_tool(name, registry)
        values = checked_arguments(called, arguments)
        if called.asks(**values) if callable(called.asks) else called.asks:
            yes, reason = approve(called, values)
            if not yes:
                return f"denied: {reason or 'the user did not allow this call'}"
        return str(called.function(**values)) or "(empty result)"
    except ToolError as error:
        return f"error: {error}"
    except OSError as error:
        return f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    except Exception as error:  # a tool of the user's may raise anything
        return f"error: {name} failed: {type(error).__name__}: {error}"


def find_tool(name: str, registry: dict[str, Tool]) -> Tool:
    """The tool of that name, or an error that names those there are."""
    if name not in registry:
        raise ToolError(f"there is no tool {name!r}. The tools are: {', '.join(registry)}")
    return registry[name]


def checked_arguments(called: Tool, arguments: str | dict) -> dict:
    """The arguments as the function takes them, checked against the schema that the model got."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            problem = str(error)[:100]
            raise ToolError(
                f"the arguments are not valid JSON ({problem}). Send one JSON object."
            ) from None
    properties, required = called.parameters["properties"], called.parameters["required"]
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments must be one JSON object with {', '.join(properties)}")
    if unknown := [key for key in arguments if key not in properties]:
        takes = ", ".join(properties) or "no arguments"
        raise ToolError(f"{called.name} has no argument {unknown[0]!r}. It takes: {takes}")
    given = {k: v for k, v in arguments.items() if v is not None or k in required}
    if missing := [key for key in required if given.get(key) is None]:
        raise ToolError(f"{called.name} needs the argument {missing[0]!r}")
    return {key: checked_value(key, value, properties[key]) for key, value in given.items()}


def checked_value(name: str, value: Any, schema: dict) -> Any:
    """One argument in the type of its schema. A number written as text is taken."""
    kind = schema["type"]
    if kind == "array":
        if not isinstance(value, list):
            raise ToolError(f"argument {name!r} must be a list")
        return [checked_value(name, item, schema["items"]) for item in value]
    if kind == "string" and isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    elif kind != "string" and isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value.strip().lower())
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    wanted = {"string": str, "integer": int, "number": (int, float), "boolean": bool}[kind]
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "boolean"):
        raise ToolError(f"argument {name!r} must be of type {kind}, not {json.dumps(value)[:40]}")
    if "enum" in schema and value not in schema["enum"]:
        raise ToolError(f"argument {name!r} must be one of {', '.join(map(str, schema['enum']))}")
    if isinstance(value, str) and not is_text(value):
        raise ToolError(f"argument {name!r} holds a broken character (a lone surrogate)")
    return value


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def number_setting(name: str, default: int) -> int:
    """A whole number above 0 from the environment. harness.py says so where it is none."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else default


def max_chars() -> int:
    return number_setting("AGENT_MAX_CHARS", 10_000)


# --- paths ---------------------------------------------------------------------------------------

PROTECTED = """.git .env .env.* *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx id_rsa* id_dsa*
    id_ecdsa* id_ed25519* .netrc _netrc .npmrc .pypirc .git-credentials .htpasswd .pgpass .ssh
    .gnupg .aws .harness""".split()
NOT_PROTECTED = (".env.example",)
LEFT_OUT = """.git .hg .svn .venv venv node_modules __pycache__ .tox .nox .mypy_cache .pytest_cache
    .ruff_cache .harness .idea .cache""".split()
MOST_ENTRIES = 200_000  # of a walk: names looked at before it stops


def workspace() -> Path:
    """The folder that file tools stay in: the working directory, which nothing here changes."""
    return Path.cwd().resolve()


def is_protected(relative: Path) -> bool:
    """Whether a path, relative to the workspace, is or lies in something that no tool may touch.

    Names are compared as the laxest file system would: no case, no invisible characters, no
    trailing dots or blanks, no NTFS streams.
    """
    for part in relative.parts:
        name = unicodedata.normalize("NFKC", part).casefold()
        name = "".join(c for c in name if unicodedata.category(c) != "Cf")
        name = name.partition(":")[0].rstrip(". ")
        if name.startswith("git~") or (
            name not in NOT_PROTECTED and any(fnmatch.fnmatchcase(name, p) for p in PROTECTED)
        ):
            return True
    return False


def inside(path: str) -> Path:
    """The resolved path of something in the workspace, there or not yet.

    Raises ToolError for what lies outside (through `..`, an absolute path or a link) and for
    protected names. What stays open: a parent folder swapped for a link between this check and the
    use of the path. Whoever can do that in the workspace already runs commands there.
    """
    if "\0" in path or (os.name == "nt" and re.match(r"(?i)\\\\|//|.*:|(con|nul|aux|prn)\b", path)):
        raise ToolError(f"{path!r} is no path of a file")
    root = workspace()
    try:
        resolved = (root / os.path.expanduser(path)).resolve()
        relative = resolved.relative_to(root)
    except ValueError:
        raise ToolError(
            f"{path} is outside the workspace. Use a path relative to it, such as '.'"
        ) from None
    except (OSError, RuntimeError) as error:  # a loop of links; a name that is too long
        raise ToolError(f"{path[:200]}: {error}") from None
    lexical = Path(os.path.normpath(path))
    if is_protected(relative) or (not lexical.is_absolute() and is_protected(lexical)):
        raise ToolError(f"{path} is protected: no tool may read or write it")
    return resolved


def existing(path: str) -> Path:
    """Like `inside`, for something that must be there; else an error that names what is near."""
    resolved = inside(path)
    if not resolved.exists():
        near = nearest(path)
        hint = f"Did you mean {' or '.join(near)}?" if near else "list_files shows what is there."
        raise ToolError(f"there is no {path} in the workspace. {hint}")
    return resolved


def nearest(path: str) -> list[str]:
    """Up to three paths of the workspace with the same name, or else a similar one."""
    files = [f for f, _ in zip(walk(workspace()), range(20_000), strict=False)]
    name = Path(path).name.casefold()
    same = [f for f in files if Path(f).name.casefold() == name]
    by_name = {Path(f).name.casefold(): f for f in reversed(files)}
    close = difflib.get_close_matches(name, by_name, 3, 0.75)
    return same[:3] or [by_name[c] for c in close]


def open_regular(path: Path) -> IO[bytes]:
    """Open a resolved path for reading: no link at its end, no pipe, no device, no folder."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError(f"{path.name} is not a regular file")
    return os.fdopen(descriptor, "rb")


def walk(folder: Path) -> Iterator[str]:
    """The files below a folder, sorted, as paths relative to the workspace with `/`.

    Leaves out LEFT_OUT and protected names, does not go through linked folders, and stops after
    MOST_ENTRIES names.
    """
    root, seen, stack = workspace(), 0, [folder]
    while stack:
        with contextlib.suppress(OSError), os.scandir(stack.pop()) as entries:
            folders = []
            for entry in sorted(entries, key=lambda e: e.name):
                seen += 1
                relative = Path(entry.path).relative_to(root)
                if seen > MOST_ENTRIES:
                    return
                if entry.name in LEFT_OUT or is_protected(relative):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield relative.as_posix()
            stack += reversed(folders)


def glob_regex(pattern: str) -> re.Pattern:
    """A glob as a regular expression: `*`, `?`, `[...]`, `{a,b}`, and `**` for any folders.

    A pattern without a slash is looked for in every folder, as in .gitignore.
    """
    pattern = pattern.removeprefix("./").removeprefix("/")
    if pattern and inside(pattern).is_dir():
        pattern = pattern.rstrip("/") + "/**"
    pattern = pattern if "/" in pattern else "**/" + pattern
    table = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    tokens = re.findall(r"\*\*/|\*\*|\[!?\]?[^\]]*\]|.", pattern, re.S)
    regex, depth = "", 0
    for token in tokens:
        depth += (token == "{") - (token == "}")
        if len(token) > 1 and token[0] == "[":
            regex += "[" + token[1:].replace("\\", r"\\").replace("!", "^", token[1] == "!")
        elif token in table and (token != "," or depth):
            regex += table[token]
        else:
            regex += re.escape(token)
    try:
        return re.compile(regex + r"\Z", re.S)
    except re.error as error:
        raise ToolError(f"the glob pattern {pattern!r} is not valid: {error}") from None


# --- reading -------------------------------------------------------------------------------------


@tool
def list_dir(path: Annotated[str, "Folder."] = ".") -> str:
    """List the files and folders in one folder."""
    folder = existing(path)
    if not folder.is_dir():
        raise ToolError(f"{path} is a file: use read_file")
    root, names = workspace(), []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_protected(Path(entry.path).relative_to(root)):
                names.append(entry.name + ("/" if entry.is_dir() else ""))
            if len(names) >= MOST_ENTRIES:
                break
    folders = sum(name.endswith("/") for name in names)
    total = f"({len(names) - folders} files, {folders} folders)"
    return fit_lines([*sorted(names)], total, "list_files with a glob_pattern shows fewer")


@tool
def list_files(glob_pattern: Annotated[str, "For example **/*.py or docs/*"] = "**/*") -> str:
    """Find files by name, in all folders."""
    wanted = glob_regex(glob_pattern)
    files = [path for path in walk(workspace()) if wanted.match(path)]
    if not files:
        return f"no files match {glob_pattern}"
    return fit_lines(files, f"({len(files)} files)", "a narrower glob_pattern shows fewer")


def fit_lines(lines: list[str], total: str, advice: str) -> str:
    """As many lines as a result may hold, with their total and what is left out."""
    room, kept = max_chars() - 200, 0
    for kept, line in enumerate(lines, 1):
        room -= len(line) + 1
        if room < 0:
            kept -= 1
            break
    left = f"\n[{len(lines) - kept} more are not shown: {advice}]" if kept < len(lines) else ""
    return "\n".join([*lines[:kept], total]) + left


@tool
def read_file(
    path: Annotated[str, "File."],
    start_line: Annotated[int, "First line."] = 1,
    end_line: Annotated[int | None, "Last line."] = None,
) -> str:
    """Read a text file."""
    resolved = existing(path)
    if resolved.is_dir():
        raise ToolError(f"{path} is a folder: use list_dir")
    start, room = max(1, start_line), max_chars()
    if end_line is not None and end_line < start:
        raise ToolError(f"end_line {end_line} is before start_line {start}")
    with open_regular(resolved) as file:
        if b"\0" in file.read(4096):
            raise ToolError(f"{path} is a binary file of {resolved.stat().st_size} bytes")
        file.seek(0)
        skipped = skip_lines(file, start - 1)
        data = file.read(4 * room + 4)  # a character has at most 4 bytes
        more = bool(file.read(1))
    if not data:
        return "(the file is empty)" if start == 1 else f"(the file ends at line {skipped})"
    text = data.decode("utf-8-sig" if start == 1 else "utf-8", "replace")
    lines = text.splitlines(keepends=True) if False else re.findall(r"[^\n]*\n|[^\n]+", text)
    wanted = lines if end_line is None else lines[: end_line - start + 1]
    kept = "".join(wanted)
    if len(kept) <= room and (len(wanted) < len(lines) or not more):
        return kept
    kept = kept[:room]
    whole = kept.rpartition("\n")[0]
    if not whole:
        return f"{kept}\n[line {start} goes on: it is longer than a result may be]"
    next_line = start + whole.count("\n") + 1
    return f"{whole}\n[not the whole file: go on with start_line={next_line}]"


def skip_lines(file: IO[bytes], count: int) -> int:
    """Move to the line after `count` lines; returns how many lines there were, at most `count`."""
    skipped, last = 0, b"\n"
    while skipped < count and (block := file.read(1 << 20)):
        breaks = block.count(b"\n")
        if skipped + breaks < count:
            skipped, last = skipped + breaks, block[-1:]
            continue
        position = -1
        for _ in range(count - skipped):
            position = block.index(b"\n", position + 1)
        file.seek(position + 1 - len(block), os.SEEK_CUR)
        return count
    return skipped + (last != b"\n")


@tool
def search_text(
    query: Annotated[str, "Text or regular expression."],
    glob_pattern: Annotated[str | None, "Only in these files, for example *.py"] = None,
) -> str:
    """Search the contents of all files. Gives file:line: text."""
    if not query:
        raise ToolError("query is empty: give a text to look for")
    try:
        pattern = re.compile(query)
    except re.error:
        pattern = re.compile(re.escape(query))
    wanted = glob_regex(glob_pattern) if glob_pattern else None
    matches, files, root = [], 0, workspace()
    with time_limit(60):
        for path in walk(root):
            if wanted and not wanted.match(path):
                continue
            with contextlib.suppress(OSError, ToolError):
                found = list(matching_lines(root / path, pattern))
                files += bool(found)
                matches += [f"{path}:{number}: {line}" for number, line in found]
    if not matches:
        return f"no matches for {query}" + (f" in {glob_pattern}" if glob_pattern else "")
    total = f"({len(matches)} matches in {files} files)"
    return fit_lines(matches, total, "a narrower query or glob_pattern shows fewer")


def matching_lines(path: Path, pattern: re.Pattern) -> Iterator[tuple[int, str]]:
    """The matching lines of a text file, by number; long lines shortened, binary files passed over."""
    with open_regular(path) as file:
        if b"\0" in file.read(4096):
            return
        file.seek(0)
        number = 0
        while raw := file.readline(100_000):
            number += 1
            line = raw.decode("utf-8", "replace").rstrip("\r\n")
            if match := pattern.search(line):
                start = max(0, match.start() - 100) if len(line) > 300 else 0
                yield number, line[start : start + 300].strip()


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End what runs inside with a ToolError: a regular expression can take for ever.

    Where the system has no alarm (Windows), or off the main thread, there is no limit.
    """
    main = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not main:
        yield
        return

    def stop(*_: Any) -> None:
        raise ToolError(f"not done after {seconds} s: use a simpler query, or fewer files")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- writing -------------------------------------------------------------------------------------

LARGEST_EDIT = 10_000_000  # bytes of a file that edit_file and the previews take in


def old_text(path: Path) -> str:
    """What a file holds, to the letter; nothing where there is none."""
    if not path.exists():
        return ""
    with open_regular(path) as file:
        data = file.read(LARGEST_EDIT + 1)
    if len(data) > LARGEST_EDIT:
        raise ToolError(f"{path.name} is larger than {LARGEST_EDIT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path.name} is no UTF-8 text") from None


def replace_file(path: Path, text: str) -> None:
    """Write a whole file in one step: a crash or a full disk leaves the old one."""
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise ToolError(f"{path.name} is not a regular file")
    if path.exists() and not os.access(path, os.W_OK):
        raise ToolError(f"{path.name} is read-only")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
        if path.exists():
            shutil.copymode(path, name)
        else:
            os.chmod(name, 0o666 & ~current_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def edited(path: str, old: str, new: str) -> tuple[Path, str, str]:
    """The file of an edit, its text, and the text after the edit. Line endings are kept."""
    resolved = existing(path)
    text = old_text(resolved)
    if "\r\n" in text and old not in text:
        old, new = (re.sub(r"\r?\n", "\r\n", part) for part in (old, new))
    count = text.count(old) if old else 0
    if not old or old == new:
        raise ToolError("`old` is empty or equal to `new`: nothing to change")
    if count == 0:
        raise ToolError(f"`old` was not found in {path}. Read the file and copy the text exactly.")
    if count > 1:
        raise ToolError(f"`old` occurs {count} times in {path}. Add more of the lines around it.")
    return resolved, text, text.replace(old, new)


def difference(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, "", "", 2, "")
    return "\n".join(lines) or "(no change)"


def preview_write(path: str, content: str) -> str:
    return difference(path, old_text(inside(path)), content)


def preview_edit(path: str, old: str, new: str) -> str:
    return difference(path, *edited(path, old, new)[1:])


@tool(asks=True, preview=preview_edit)
def edit_file(
    path: Annotated[str, "File."],
    old: Annotated[str, "Text to replace, exactly as in the file."],
    new: Annotated[str, "New text."],
) -> str:
    """Change one piece of text in a file."""
    resolved, _, text = edited(path, old, new)
    replace_file(resolved, text)
    return f"edited {path}"


@tool(asks=True, preview=preview_write)
def write_file(
    path: Annotated[str, "File."],
    content: Annotated[str, "The whole text."],
) -> str:
    """Create a file, or replace all of it."""
    resolved = inside(path)
    if resolved.is_dir():
        raise ToolError(f"{path} is a folder")
    was_there = resolved.exists()
    replace_file(resolved, content)
    return f"{'replaced' if was_there else 'created'} {path} ({len(content)} characters)"


# --- commands ------------------------------------------------------------------------------------

PASSED_ON = """PATH HOME LANG LANGUAGE TERM TMPDIR TZ USER LOGNAME SHELL VIRTUAL_ENV SYSTEMROOT
    COMSPEC PATHEXT TEMP TMP USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES WINDIR""".split()


def child_environment() -> dict[str, str]:
    """What a command gets to know: a short list, since the rest may be keys. No pagers."""
    passed = {k: v for k, v in os.environ.items() if k in PASSED_ON or k.startswith("LC_")}
    return passed | {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def allowed_argv(command: str) -> list[str] | None:
    """The words of a command that AGENT_ALLOW names to the letter; None where it does not.

    It runs without a shell, so it must have no shell features in it, and its program must be found
    once, at an absolute path outside the workspace.
    """
    allowed = os.environ.get("AGENT_ALLOW", "").split("\n")
    if command not in [line.strip() for line in allowed] or re.search(r"[^\w@%+=:,./ '\"-]", command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    program = shutil.which(words[0]) if words and "=" not in words[0] else None
    if not program or not os.path.isabs(program):
        return None
    found = Path(program).resolve()
    return None if workspace() in found.parents else [program, *words[1:]]


@tool(asks=lambda command, timeout=None: allowed_argv(command) is None)
def run_shell(
    command: Annotated[str, "Command line."],
    timeout: Annotated[int | None, "Seconds."] = None,
) -> str:
    """Run a shell command. It gets no input; what it starts ends with it."""
    limit = min(timeout or 10**6, max(600, shell_timeout())) if timeout else shell_timeout()
    process = start(command)
    output = Output(max_chars())
    reader = threading.Thread(target=output.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        process.wait(limit)
        ended = f"[exit code {process.returncode}]"
    except subprocess.TimeoutExpired:
        ended = f"[timed out after {limit} s and was ended: give it a longer timeout, or less to do]"
    finally:
        end_group(process)
    reader.join(2)  # a grandchild in a session of its own may keep the pipe: do not wait for it
    text = output.text()
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{ended}"


def shell_timeout() -> int:
    return number_setting("AGENT_SHELL_TIMEOUT", 120)


def start(command: str) -> subprocess.Popen:
    """Start a command in a session of its own, with no input and no keys in its environment."""
    argv = allowed_argv(command)
    group: dict = {"start_new_session": True}
    if os.name == "nt":
        group = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return subprocess.Popen(
        argv or command,
        shell=argv is None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environment(),
        **group,
    )


def end_group(process: subprocess.Popen) -> None:
    """End a command and what it started: also when it ended by itself, and on Ctrl-C."""
    if os.name == "nt":
        kill = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(kill, capture_output=True, timeout=10, check=False)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


class Output:
    """What a command writes, capped while it is read: its head and its tail."""

    def __init__(self, room: int) -> None:
        self.room, self.total = room, 0
        self.head, self.tail = bytearray(), deque[bytes]()

    def read(self, pipe: IO[bytes]) -> None:
        """Read to the end of the pipe, in a thread of its own."""
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(pipe.fileno(), 65_536):
                self.total += len(block)
                take = max(0, self.room * 2 - len(self.head))
                self.head += block[:take]
                self.tail.append(block[take:])
                while sum(map(len, self.tail)) - len(self.tail[0]) > self.room * 2:
                    self.tail.popleft()

    def text(self) -> str:
        """At most `room` characters, with a count of what is left out in the middle."""
        tail = b"".join(self.tail)
        dropped = self.total - len(self.head) - len(tail)
        head, end = (part.decode("utf-8", "replace") for part in (bytes(self.head), tail))
        text = head + end
        if not text:
            return "(no output)\n"
        if not dropped and len(text) <= self.room:
            return text
        half = self.room // 2
        left = self.total - 2 * half
        return f"{text[:half]}\n[... {left} characters left out ...]\n{text[-half:]}"


if __name__ == "__main__":
    print(json.dumps(TOOLS, indent=2))
