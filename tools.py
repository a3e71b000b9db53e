"""What the model may do: functions, their JSON schemas, the registry, and the guards.

    python tools.py        print the schemas as the model sees them

The model is not trusted: what it asks for may have been written by whoever wrote a file that it
read. Here each call is checked, kept inside the workspace (the working directory), bounded in time
and size, and answered with a text. Nothing is printed and nobody is asked here: `dispatch` is
handed a function that says yes or no.

    registry    @tool, the schemas, REGISTRY and TOOLS
    dispatch    the ladder of guards: known, valid, allowed, run, cut to size
    paths       what is inside the workspace, protected names, walking, opening
    reading     list_dir, list_files, read_file, search_text
    writing     edit_file, write_file
    commands    run_shell
"""

import contextlib
import difflib
import fnmatch
import functools
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import threading
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

# --- registry ------------------------------------------------------------------------------------

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(Exception):
    """Why a call was not carried out, and what to do next: a sentence for the model."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    function: Callable[..., Any]  # takes the arguments by name; what it returns is made a text
    schema: dict  # as sent: {"type": "function", "function": {name, description, parameters}}
    asks: bool | Callable[..., bool] = False  # whether a person must agree to these arguments
    preview: Callable[..., str] | None = None  # the change that the person is shown


REGISTRY: dict[str, Tool] = {}
TOOLS: list[dict] = []  # the schemas of REGISTRY, as sent to the model


def tool(function: Callable | None = None, **options: Any) -> Any:
    """Make a tool of a function: its name, the first paragraph of its docstring, its parameters.

    `@tool`, or `@tool(asks=True)` where a person must agree; `asks` and `preview` as in Tool.
    """
    if function is None:
        return lambda decorated: tool(decorated, **options)
    properties, required = {}, []
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        properties[name] = schema_of(hints.get(name, str))
        if parameter.default is parameter.empty:
            required.append(name)
    description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    parameters = {"type": "object", "properties": properties, "required": required}
    about = {"name": function.__name__, "description": description, "parameters": parameters}
    made = Tool(function.__name__, function, {"type": "function", "function": about}, **options)
    REGISTRY[made.name] = made
    TOOLS[:] = [each.schema for each in REGISTRY.values()]
    return function


def schema_of(hint: Any) -> dict:
    """The schema of one parameter, in plain keywords: some endpoints refuse the others."""
    kind, inner = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        return schema_of(inner[0]) | {"description": inner[1]}
    if kind in (typing.Union, types.UnionType):  # `| None`: the default says what None means
        return schema_of(next(each for each in inner if each is not type(None)))
    if kind is Literal:
        return {"type": TYPES[type(inner[0])], "enum": list(inner)}
    if kind is list:
        return {"type": "array", "items": schema_of(inner[0])}
    return {"type": TYPES[hint]}


# --- dispatch ------------------------------------------------------------------------------------

Approve = Callable[[Tool, dict], tuple[bool, str]]  # yes or no, and the reason of a no


def deny(tool: Tool, arguments: dict) -> tuple[bool, str]:
    """The approval where nobody can be asked."""
    return False, "nobody is there to approve it"


def dispatch(
    name: str, arguments: str | dict, approve: Approve = deny, registry: dict[str, Tool] = REGISTRY
) -> str:
    """Run one call and return its result, a text that is never empty.

    Never raises, Ctrl-C aside: what goes wrong begins with "error: " and says what to do next; what
    was not allowed begins with "denied: ".
    """
    try:
        if name not in registry:
            raise ToolError(f"there is no tool {name!r}. The tools are: {', '.join(registry)}")
        called = registry[name]
        values = checked_arguments(called, arguments)
        if called.asks(**values) if callable(called.asks) else called.asks:
            yes, reason = approve(called, values)
            if not yes:
                return f"denied: {reason or 'the user did not allow this call'}"
        text, most = (
            str(called.function(**values)) or "(an empty result)",
            number("AGENT_MAX_CHARS"),
        )
        left = len(text) - most
        return text if left <= 500 else f"{text[:most]}\n[{left} more characters are left out]"
    except ToolError as error:
        return f"error: {error}"
    except OSError as error:
        return f"error: {error.strerror or error}: {error.filename or name}"
    except Exception as error:  # a tool of the user's may raise anything
        return f"error: {name} failed: {type(error).__name__}: {error}"


def checked_arguments(called: Tool, arguments: str | dict) -> dict:
    """The arguments as the function takes them, checked against the schema that the model got."""
    parameters = called.schema["function"]["parameters"]
    properties, required = parameters["properties"], parameters["required"]
    takes = f"{called.name} takes: {', '.join(properties) or 'no arguments'}. As in"
    takes += as_next(called.name, **dict.fromkeys(required, "..."))
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not valid JSON ({str(error)[:80]}). {takes}") from None
    if not isinstance(given, dict):
        raise ToolError(f"the arguments must be one JSON object. {takes}")
    if unknown := [key for key in given if key not in properties]:
        raise ToolError(f"there is no argument {unknown[0]!r}. {takes}")
    if missing := [key for key in required if given.get(key) is None]:
        raise ToolError(f"the argument {missing[0]!r} is missing. {takes}")
    return {k: checked_value(k, v, properties[k]) for k, v in given.items() if v is not None}


def as_next(name: str, **arguments: str) -> str:
    """A call to go on with, on a line of its own: small models follow an example, not advice."""
    return "\n" + json.dumps({"name": name, "arguments": arguments})


def checked_value(name: str, value: Any, schema: dict) -> Any:
    """One argument in the type of its schema. A number written as text is taken, and so on."""
    kind = schema["type"]
    if kind == "array" and isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if kind == "array" and isinstance(value, list):
        return [checked_value(name, item, schema["items"]) for item in value]
    if kind == "string" and type(value) in (int, float):
        value = str(value)
    elif kind not in ("string", "array") and isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value.strip().lower())
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind == "number" and type(value) is int:
        value = float(value)
    if TYPES.get(type(value)) != kind:
        raise ToolError(f"the argument {name!r} must be of type {kind}")
    if value not in schema.get("enum", [value]):
        raise ToolError(f"the argument {name!r} must be one of {schema['enum']}")
    if isinstance(value, str) and value != value.encode("utf-8", "ignore").decode():
        raise ToolError(f"the argument {name!r} has a broken character (a lone surrogate)")
    return value


DEFAULTS = {"AGENT_MAX_CHARS": 10_000, "AGENT_SHELL_TIMEOUT": 120}  # characters, seconds


def number(name: str) -> int:
    """A setting: a whole number above 0 from the environment, or its default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else DEFAULTS[name]


# --- paths ---------------------------------------------------------------------------------------

PROTECTED = """.git git~* .env .env.* *.pem *.key *.p12 *.pfx *.jks *.keystore *.kdbx id_rsa* id_dsa*
    id_ecdsa* id_ed25519* .netrc _netrc .npmrc .pypirc .git-credentials .htpasswd .pgpass .ssh .gnupg
    .aws .harness"""
LEFT_OUT = """.git .hg .svn .venv venv node_modules __pycache__ .tox .nox .mypy_cache .pytest_cache
    .ruff_cache .harness .idea .cache""".split()
PROTECTED_NAME = re.compile("|".join(map(fnmatch.translate, PROTECTED.split())))
MOST_ENTRIES = 200_000  # names that are looked at in one walk


def workspace() -> Path:
    """The folder that the file tools stay in: the working directory, which nothing here changes."""
    return Path.cwd().resolve()


@functools.lru_cache(10_000)
def is_protected(name: str) -> bool:
    """Whether no tool may touch a file or folder of this name. Compared as the laxest file system
    would: no case, no invisible characters, no trailing dots or blanks, no NTFS streams."""
    name = unicodedata.normalize("NFKC", name).casefold()
    name = "".join(char for char in name if unicodedata.category(char) != "Cf")
    name = name.partition(":")[0].rstrip(". ")
    return name != ".env.example" and bool(PROTECTED_NAME.match(name))


def inside(path: str) -> Path:
    """The resolved path of something in the workspace, there or not yet.

    Raises ToolError for what lies outside (through `..`, an absolute path or a link) and for
    protected names. What stays open: a parent folder that is swapped for a link between this check
    and the use of the path. Whoever can do that runs commands in the workspace already.
    """
    if "\0" in path or (
        os.name == "nt" and re.match(r"(?i)[\\/]{2}|.*:|(con|nul|aux|prn)\b", path)
    ):
        raise ToolError(f"{path!r} is no path of a file")
    root = workspace()
    try:
        resolved = (root / os.path.expanduser(path)).resolve()
        relative = resolved.relative_to(root)
    except (ValueError, OSError, RuntimeError):  # outside; a name too long; a loop of links
        advice = "Use a path relative to the workspace, such as README.md or '.'."
        raise ToolError(f"{path[:200]} is outside the workspace. {advice}") from None
    asked = Path(os.path.normpath(path)).parts if not os.path.isabs(path) else ()
    if any(is_protected(part) for part in (*relative.parts, *asked)):
        raise ToolError(f"{path} is protected: no tool may read or write it")
    return resolved


def existing(path: str) -> Path:
    """Like `inside`, for what must be there; else an error that names up to three that are near."""
    resolved = inside(path)
    if resolved.exists():
        return resolved
    files, by_name = list(itertools.islice(walk(), 20_000)), dict[str, list[str]]()
    for file in reversed(files):
        by_name.setdefault(file.rpartition("/")[2].casefold(), []).insert(0, file)
    name = os.path.basename(path).casefold()
    close = [name] if name in by_name else difflib.get_close_matches(name, by_name, 3, 0.75)
    near = [file for each in close for file in by_name[each]][:3]
    hint = (
        f"Did you mean {' or '.join(near)}?" if near else f"The files are: {', '.join(files[:12])}"
    )
    raise ToolError(f"there is no {path} in the workspace. {hint}")


def open_regular(path: Path) -> IO[bytes]:
    """Open a resolved path for reading: no link at its end, no pipe, no device, no folder."""
    flags = ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    descriptor = os.open(path, sum(getattr(os, flag, 0) for flag in flags))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file", path.name)
    return os.fdopen(descriptor, "rb")


def walk() -> Iterator[str]:
    """The files of the workspace, folder by folder in order, as relative paths with `/`.

    Leaves out LEFT_OUT and protected names, does not go through linked folders, and ends after
    MOST_ENTRIES names.
    """
    root, seen, folders = workspace(), 0, [""]
    while folders:
        folder, below = folders.pop(), []
        with contextlib.suppress(OSError), os.scandir(root / folder) as entries:
            some = itertools.islice(entries, MOST_ENTRIES - seen)
            for entry in sorted(some, key=lambda entry: entry.name):
                seen += 1
                if entry.name in LEFT_OUT or is_protected(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(f"{folder}{entry.name}/")
                else:
                    yield folder + entry.name
        folders += reversed(below)


GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def glob_regex(pattern: str) -> re.Pattern:
    """A glob as a regular expression: `*`, `?`, `[...]`, `{a,b}`, and `**` for any folders.

    Without a slash it is looked for in every folder, as in .gitignore; a folder means all in it.
    """
    pattern = pattern.removeprefix("./").removeprefix("/") or "*"
    if pattern and inside(pattern).is_dir():
        pattern = pattern.rstrip("/") + "/**"
    pattern = pattern if "/" in pattern else "**/" + pattern

    def as_regex(match: re.Match) -> str:
        token = match[0]
        if token[0] == "[" and len(token) > 1:
            return re.sub(r"\A\[!", "[^", token.replace("\\", r"\\"))
        known = token in GLOB and (token not in "{,}" or "{" in pattern)
        return GLOB[token] if known else re.escape(token)

    try:
        return re.compile(re.sub(r"(?s)\*\*/|\*\*|\[!?.[^\]]*\]|.", as_regex, pattern) + r"\Z")
    except re.error as error:
        raise ToolError(f"the glob pattern {pattern!r} is not valid: {error}") from None


# --- reading -------------------------------------------------------------------------------------


def fit_lines(lines: list[str], total: str) -> str:
    """The total, and as many lines as a result may hold."""
    sizes = itertools.accumulate(len(line) + 1 for line in lines)
    shown = sum(
        1 for _ in itertools.takewhile(lambda size: size < number("AGENT_MAX_CHARS"), sizes)
    )
    left = f", {len(lines) - shown} of them not shown: ask for less" if shown < len(lines) else ""
    return "\n".join([*lines[:shown], f"({total}{left})"])


@tool
def list_dir(path: Annotated[str, "Folder."] = ".") -> str:
    """List the files and folders in one folder."""
    folder = existing(path)
    if not folder.is_dir():
        raise ToolError(f"{path} is a file: use read_file")
    with os.scandir(folder) as entries:
        shown = (e for e in itertools.islice(entries, MOST_ENTRIES) if not is_protected(e.name))
        names = sorted(e.name + "/" * os.path.isdir(e.path) for e in shown)
    folders = sum(name.endswith("/") for name in names)
    return fit_lines(names, f"{len(names) - folders} files, {folders} folders")


@tool
def list_files(glob_pattern: Annotated[str, "For example **/*.py or docs/*"] = "**/*") -> str:
    """Find files by name, in all folders."""
    wanted = glob_regex(glob_pattern)
    files = [path for path in walk() if wanted.match(path)]
    if not files:
        return f"no files match {glob_pattern}"
    return fit_lines(files, f"{len(files)} files; to see what one holds:") + as_next(
        "read_file", path=files[0]
    )


def numbered_lines(path: Path, first: int = 1) -> Iterator[tuple[int, str]]:
    """The lines of a text file from `first` on, each with its number; a line of more than 100,000
    bytes comes in pieces. Raises OSError where the file is not text."""
    with open_regular(path) as file:
        if b"\0" in file.read(4096):
            raise OSError(0, "a binary file, which cannot be shown", path.name)
        file.seek(0)
        line = 1
        while raw := file.readline(100_000):
            if line >= first:
                yield line, raw.decode("utf-8", "replace")
            line += raw.endswith(b"\n")


@tool
def read_file(
    path: Annotated[str, "File."],
    start_line: Annotated[int, "Leave out for the whole file."] = 1,
    end_line: Annotated[int | None, "Leave out for the whole file."] = None,
) -> str:
    """Read a text file."""
    resolved, first, text = existing(path), max(1, start_line), ""
    if resolved.is_dir():
        raise ToolError(f"{path} is a folder: use list_dir")
    room = number("AGENT_MAX_CHARS")
    for line, piece in numbered_lines(resolved, first):
        if end_line and line > end_line:
            break
        if len(text) + len(piece) > room and text:
            return f"{text}[this is not all: go on with start_line={line}]"
        if len(piece) > room:
            return f"{piece[:room]}\n[line {line} goes on, but is longer than a result may be]"
        text += piece
    if not text:
        lines = sum(1 for _ in numbered_lines(resolved))
        return f"(no such lines: the file has {lines})" if lines else "(the file is empty)"
    return text.removeprefix("\ufeff")


@tool
def search_text(
    query: Annotated[str, "Text or regular expression."],
    glob_pattern: Annotated[str | None, "Only in these files, for example *.py"] = None,
) -> str:
    """Search the contents of all files. Gives file:line: text."""
    try:
        pattern = re.compile(query)
    except (re.error, RecursionError, OverflowError):
        pattern = re.compile(re.escape(query))
    wanted, root = glob_regex(glob_pattern or "*"), workspace()
    matches: list[str] = []
    files, paths = 0, list(walk())
    searched = [path for path in paths if wanted.match(path)]
    note = "" if searched else f"no files match {glob_pattern}; in all the others: "
    with time_limit(60):
        for path in searched or paths:
            before = len(matches)
            with contextlib.suppress(OSError):
                for line, text in numbered_lines(root / path):
                    if match := pattern.search(text.rstrip("\r\n")):
                        start = max(0, match.start() - 100) if len(text) > 300 else 0
                        matches.append(f"{path}:{line}: {text[start : start + 300].strip()}")
            files += len(matches) > before
    if matches:
        return fit_lines(matches, f"{note}{len(matches)} matches in {files} files")
    if len(searched) == 1:  # small models search for words of the question: show what there is
        return (
            f"no matches for {query} in {searched[0]}. It begins:\n{read_file(searched[0], 1, 40)}"
        )
    return f"{note}no matches for {query}. Use fewer words."


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """End what runs inside: a regular expression can take for ever. There is no limit where the
    system has no alarm (Windows) and off the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() != threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise ToolError(f"not done after {seconds} s, use a simpler query or fewer files")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- writing -------------------------------------------------------------------------------------

LARGEST_EDIT = 10_000_000  # bytes


def old_text(path: Path) -> str:
    """What a file holds, to the letter; nothing where there is none."""
    if not path.exists():
        return ""
    with open_regular(path) as file:
        data = file.read(LARGEST_EDIT + 1)
    if len(data) > LARGEST_EDIT:
        raise ToolError(f"{path.name} is too large to edit")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path.name} is no UTF-8 text") from None


def replace_file(path: Path, text: str) -> None:
    """Write a whole file in one step: after a crash or on a full disk the old one is there."""
    if path.exists() and not path.is_file():
        raise OSError(0, "not a regular file", path.name)
    if path.exists() and not os.access(path, os.W_OK):
        raise ToolError(f"{path.name} is read-only")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name[:200]}.{os.getpid()}.tmp")
    try:
        with open(new, "xb") as file:  # not where something is, a link neither
            file.write(text.encode())
        if path.exists():
            shutil.copymode(path, new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def difference(path: str, before: str, after: str) -> str:
    """What changes, as a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), path, path, lineterm="", n=2
    )
    return "\n".join(lines) or "(no change in the lines)"


def edited(path: str, old: str, new: str) -> tuple[str, str]:
    """The text of a file before and after an edit. Its line endings are kept."""
    text = old_text(existing(path))
    if "\r\n" in text and old not in text:
        old, new = (re.sub(r"\r?\n", "\r\n", each) for each in (old, new))
    if not old or old == new:
        raise ToolError("`old` is empty or the same as `new`: nothing to change")
    count = text.count(old)
    if count > 1:
        raise ToolError(f"`old` occurs {count} times in {path}. Add more of the lines around it.")
    if not count:
        near = difflib.get_close_matches(old.split("\n")[0], text.splitlines(), 1, 0.6)
        hint = f"The nearest line is {near[0]!r}" if near else "read_file shows what it holds"
        raise ToolError(f"`old` was not found in {path}. Copy it exactly. {hint}.")
    return text, text.replace(old, new)


@tool(asks=True, preview=lambda path, old, new: difference(path, *edited(path, old, new)))
def edit_file(
    path: Annotated[str, "File."],
    old: Annotated[str, "Text to replace, exactly as in the file."],
    new: Annotated[str, "New text."],
) -> str:
    """Change one piece of text in a file."""
    before, after = edited(path, old, new)
    replace_file(existing(path), after)
    return f"done, {path} is changed:\n{difference(path, before, after)}"


@tool(asks=True, preview=lambda path, content: difference(path, old_text(inside(path)), content))
def write_file(path: Annotated[str, "File."], content: Annotated[str, "The whole text."]) -> str:
    """Create a file, or replace all of it."""
    resolved = inside(path)
    done = "replaced" if resolved.exists() else "created"
    replace_file(resolved, content)
    return f"{done} {path} ({len(content)} characters)"


# --- commands ------------------------------------------------------------------------------------

PASSED_ON = """PATH HOME LANG LANGUAGE TERM TMPDIR TZ USER LOGNAME SHELL VIRTUAL_ENV SYSTEMROOT WINDIR
    COMSPEC PATHEXT TEMP TMP USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES""".split()
NO_PAGER = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def allowed_argv(command: str) -> list[str] | None:
    """The words of a command that AGENT_ALLOW names to the letter; None where it does not.

    It runs without a shell, so it must have no shell features in it, and its program must be found
    at an absolute path outside the workspace.
    """
    allowed = [line.strip() for line in os.environ.get("AGENT_ALLOW", "").split("\n")]
    if command not in allowed or not re.fullmatch(r"[\w@%+:,./'\" -][\w@%+=:,./'\" -]*", command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    program = shutil.which(words[0]) if words and "=" not in words[0] else None
    if not program or not os.path.isabs(program) or workspace() in Path(program).resolve().parents:
        return None
    return [program, *words[1:]]


@tool(asks=lambda command, timeout=None: allowed_argv(command) is None)
def run_shell(
    command: Annotated[str, "Command line."], timeout: Annotated[int | None, "Seconds."] = None
) -> str:
    """Run a shell command. It gets no input; what it starts ends with it."""
    usual = number("AGENT_SHELL_TIMEOUT")
    seconds = max(1, min(timeout or usual, max(600, usual)))
    argv = allowed_argv(command)
    passed = {k: v for k, v in os.environ.items() if k.upper() in PASSED_ON or k.startswith("LC_")}
    process = subprocess.Popen(
        argv or command,
        shell=argv is None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=passed | NO_PAGER,  # the rest may be keys
        start_new_session=True,  # where there are sessions: the group is ended as one
    )
    output = Output(number("AGENT_MAX_CHARS"))
    reader = threading.Thread(target=output.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        end = f"exit code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        end = f"timed out after {seconds} s and was ended: give it more time, or less to do"
    finally:  # also on Ctrl-C
        end_group(process)
    reader.join(2)  # a grandchild in a session of its own may keep the pipe: that is not waited for
    return f"{output.text()}\n[{end}]"


def end_group(process: subprocess.Popen) -> None:
    """End a command and all that it started."""
    if os.name == "nt":
        kill = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(kill, capture_output=True, timeout=10, check=False)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


class Output:
    """What a command writes, capped while it is read: its head and its tail."""

    def __init__(self, room: int) -> None:
        self.room, self.total, self.head, self.tail = room, 0, b"", b""

    def read(self, pipe: IO[bytes]) -> None:
        """Read to the end of the pipe, in a thread of its own."""
        while block := os.read(pipe.fileno(), 65_536):
            take = max(0, self.room - len(self.head))
            self.head += block[:take]
            self.tail = (self.tail + block[take:])[-self.room :]
            self.total += len(block)

    def text(self) -> str:
        """At most `room` characters of it, with a count of what is left out in the middle."""
        text = (self.head + self.tail).decode("utf-8", "replace").rstrip()
        left, half = self.total - self.room, self.room // 2
        if left <= 0:
            return text or "(no output)"
        return (
            f"{text[:half]}\n[... {left} bytes left out: send them to a file ...]\n{text[-half:]}"
        )


if __name__ == "__main__":
    print(json.dumps(TOOLS, indent=2))
