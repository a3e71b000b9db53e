"""What the model may do: functions, their JSON schemas, the registry, and the guards.

The model is not trusted: what it asks for may have been written by whoever wrote a file that it
read. Each call is checked, kept inside the workspace (the working directory), bounded in time and
size, and answered with a text. `dispatch` asks nobody: it is handed a function that says yes or no.
`python tools.py` prints the schemas as the model sees them.

    registry    @tool, the schemas, REGISTRY and TOOLS
    dispatch    the ladder of guards: known, valid, allowed, run, cut to size
    paths       what is inside the workspace, protected names, walking, opening
    reading     list_dir, list_files, read_file, search_text
    writing     edit_file, write_file
    commands    run_shell, allowed commands, the sandbox
"""

import contextlib
import difflib
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

# --- registry ------------------------------------------------------------------------------------
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class ToolError(Exception):
    """Why a call was not carried out, and what to do next: a sentence for the model."""


def require(condition: object, otherwise: str) -> None:
    """A guard: what the model is told where a condition does not hold."""
    if not condition:
        raise ToolError(otherwise)


class Tool(NamedTuple):
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
    `@tool`, or `@tool(asks=True)` where a person must agree; `asks` and `preview` as in Tool."""
    if function is None:
        return lambda decorated: tool(decorated, **options)
    hints, name = get_type_hints(function, include_extras=True), function.__name__
    signature = inspect.signature(function).parameters
    properties = {each: schema_of(hints.get(each, str)) for each in signature}
    required = [each for each in signature if signature[each].default is inspect.Parameter.empty]
    parameters = {"type": "object", "properties": properties, "required": required}
    description = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    about = {"name": name, "description": description, "parameters": parameters}
    REGISTRY[name] = Tool(name, function, {"type": "function", "function": about}, **options)
    TOOLS[:] = [each.schema for each in REGISTRY.values()]
    return function


def schema_of(hint: Any) -> dict:
    """The schema of one parameter, in plain keywords: some endpoints refuse the others."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return schema_of(inner[0]) | {"description": inner[1]}
    if type(None) in inner:  # `| None`: the default says what None means
        return schema_of(next(each for each in inner if each is not type(None)))
    if kind is Literal:
        return {"type": TYPES[type(inner[0])], "enum": list(inner)}
    if kind is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if hint not in TYPES:
        raise TypeError(f"a parameter is str, int, float, bool, list or Literal, not {hint}")
    return {"type": TYPES[hint]}


# --- dispatch ------------------------------------------------------------------------------------
DEFAULTS = {"AGENT_MAX_CHARS": 10_000, "AGENT_SHELL_TIMEOUT": 120}  # characters, seconds
FROM_NUMBER: dict = {"string": str, "number": float, "integer": lambda n: n if n % 1 else int(n)}
Approve = Callable[[Tool, dict], tuple[bool, str]]  # yes or no, and the reason of a no


def deny(tool: Tool, arguments: dict) -> tuple[bool, str]:
    """The approval where nobody can be asked."""
    return False, "nobody is there to approve it"


def dispatch(
    name: str, arguments: str | dict, approve: Approve = deny, registry: dict[str, Tool] = REGISTRY
) -> str:
    """Run one call and return its result, a text that is never empty. Never raises, Ctrl-C aside:
    what goes wrong is "error: " and what to do next, what was not allowed is "denied: " and why."""
    try:
        unknown = f"there is no tool {name!r}. The tools are: {', '.join(registry)}"
        require(name in registry, unknown)
        called = registry[name]
        values = checked_arguments(called, arguments)
        asks = called.asks(**values) if callable(called.asks) else called.asks
        yes, reason = approve(called, values) if asks else (True, "")
        if not yes:
            return f"denied: {reason or 'the user did not allow this call'}"
        text = str(called.function(**values)) or "(an empty result)"
    except ToolError as error:
        text = f"error: {error}"
    except OSError as error:
        text = f"error: {error.strerror or error}: {error.filename or name}"
    except (Exception, SystemExit) as error:  # a tool of the user's may raise anything
        text = f"error: {name} failed: {type(error).__name__}: {error}"
    left = len(text) - (most := number("AGENT_MAX_CHARS"))
    return text if left <= 500 else f"{text[:most]}\n[{left} more characters are left out]"


def checked_arguments(called: Tool, arguments: str | dict) -> dict:
    """The arguments as the function takes them, checked against the schema that the model got."""
    parameters = called.schema["function"]["parameters"]
    properties, required = parameters["properties"], parameters["required"]
    example = as_in(called.name, dict.fromkeys(required, "..."))
    takes = f"{called.name} takes: {', '.join(properties) or 'no arguments'}. {example}"
    try:
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        json.dumps(given, allow_nan=False)  # NaN is JSON to Python only
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not valid JSON ({str(error)[:80]}). {takes}") from None
    require(isinstance(given, dict), f"the arguments must be one JSON object. {takes}")
    for key in given:
        require(key in properties, f"there is no argument {key!r}. {takes}")
    for key in required:
        require(given.get(key) is not None, f"the argument {key!r} is missing. {takes}")
    return {k: checked_value(k, v, properties[k]) for k, v in given.items() if v is not None}


def checked_value(name: str, value: Any, schema: dict) -> Any:
    """One argument in the type of its schema. A number written as text is taken, and so on."""
    kind = schema["type"]
    if kind != "string" and isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value if kind == "array" else value.strip().lower())
    if kind == "array" and isinstance(value, list):
        return [checked_value(name, item, schema["items"]) for item in value]
    if kind in FROM_NUMBER and type(value) in (int, float):
        value = FROM_NUMBER[kind](value)
    require(TYPES.get(type(value)) == kind, f"the argument {name!r} must be of type {kind}")
    options = schema.get("enum", [value])
    require(value in options, f"the argument {name!r} must be one of {options}")
    whole = str(value).encode("utf-8", "ignore").decode() == str(value)
    require(whole, f"the argument {name!r} has a broken character (a lone surrogate)")
    return value


def as_in(name: str, arguments: dict) -> str:
    """An example call on a line of its own: small models follow that, not advice."""
    return "As in\n" + json.dumps({"name": name, "arguments": arguments})


def number(name: str) -> int:
    """A setting: a whole number above 0 from the environment, or its default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else DEFAULTS[name]


# --- paths ---------------------------------------------------------------------------------------
LEFT_OUT = """.git .hg .svn .venv venv node_modules __pycache__ .tox .nox .mypy_cache .pytest_cache
    .ruff_cache .harness .idea .cache""".split()
PROTECTED = r"""(?xs) \.git | git~.* | \.env (?!\.example\Z).* | id_(rsa|dsa|ecdsa|ed25519).*
    | .*\.(pem|key|p12|pfx|jks|keystore|kdbx) | [._]netrc
    | \.(npmrc|pypirc|git-credentials|htpasswd|pgpass|ssh|gnupg|aws|harness)"""
DEVICE = r"(?i)\A[\\/]{2}|:|(\A|[\\/])(con|nul|aux|prn|com\d|lpt\d) *([.\\/]|\Z)"  # of Windows
GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
READING = sum(getattr(os, f"O_{flag}", 0) for flag in ("NOFOLLOW", "NONBLOCK", "BINARY"))
MOST_DEPTH = 60  # folders in one another: to follow thousands takes minutes
MOST_ENTRIES = 200_000  # names that one walk looks at, matches that one search finds


def is_protected(name: str) -> bool:
    """Whether no tool may touch a file or folder of this name. Compared as the laxest file system
    would: no case, no invisible characters, no trailing dots or blanks, no NTFS streams."""
    name = unicodedata.normalize("NFKC", name).casefold()
    name = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return bool(re.fullmatch(PROTECTED, name.partition(":")[0].rstrip(". ")))


def inside(path: str) -> Path:
    """The resolved path of something in the workspace (the working directory), there or not yet.
    Raises ToolError for what lies outside (through `..`, an absolute path or a link) and for
    protected names. What opens the path asks `is_unmoved` once more. What stays open: a hard link,
    and but on Linux a folder that is swapped for a link and back just then."""
    a_file = "\0" not in path and not (os.name == "nt" and re.search(DEVICE, path))
    require(a_file, f"{path!r} is no path of a file")
    root = Path().resolve()
    with contextlib.suppress(ValueError, OSError, RuntimeError):  # outside; a loop of links
        asked = root / os.path.expanduser(path)
        resolved = asked.resolve()
        names = resolved.relative_to(root).parts + Path(os.path.relpath(asked, root)).parts
        secret = any(map(is_protected, names))
        require(not secret, f"{path} is protected: no tool may read or write it")
        # After a loop of links nothing is resolved: `loop/../link/x` still goes through a link.
        if not any(map(os.path.islink, (resolved, *resolved.parents))):
            return resolved
    advice = "Use a path relative to the workspace, such as README.md or '.'."
    raise ToolError(f"{path[:200]} is outside the workspace. {advice}")


def existing(path: str) -> Path:
    """Like `inside`, for what must be there; else an error that names up to three that are near."""
    resolved = inside(path)
    if resolved.exists():
        return resolved
    names = {file: os.path.basename(file).casefold() for file in itertools.islice(walk(), 20_000)}
    name, known = os.path.basename(path).casefold(), set(names.values())
    close = [name] if name in known else difflib.get_close_matches(name, known, 3, 0.75)
    near = [file for each in close for file in names if names[file] == each][:3]
    listed = f"The files are: {', '.join([*names][:12])}"
    example = as_in("read_file", {"path": "".join(near[:1])})
    hint = f"Did you mean {' or '.join(near)}? {example}" if near else listed
    raise ToolError(f"there is no {path} in the workspace. {hint}")


def is_unmoved(path: Path, descriptor: int = -1) -> bool:
    """Whether a resolved path, or the file opened there, is not behind a link that came since."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:  # not on Linux, or not opened
        return os.path.realpath(path) == str(path)


def text_lines(path: Path, errors: str = "replace") -> Iterator[str]:
    """The lines of the text file at a resolved path; what is over 100,000 characters counts as more
    than one. Raises OSError for a link, a pipe, a device, a folder and a binary file."""
    descriptor = os.open(path, READING)
    if not (os.path.isfile(descriptor) and is_unmoved(path, descriptor)):
        os.close(descriptor)
        raise OSError(0, "not a regular file", path.name)
    with open(descriptor, encoding="utf-8", errors=errors, newline="\n") as file:
        if errors == "replace" and "\0" in file.read(4096):
            raise OSError(0, "a binary file, which cannot be shown", path.name)
        file.seek(0)
        while line := file.readline(100_000):
            yield line


def walk(secrets: bool = False) -> Iterator[str]:
    """The files of the workspace, folder by folder in order, as relative paths with `/`: none that
    is LEFT_OUT or protected, none behind a link or a junction, none beyond MOST_ENTRIES names.
    Instead of them the `secrets`, if these are asked for: protected files and folders, no links."""
    root, seen, folders = Path().resolve(), 0, [""]
    while folders:
        folder, below = folders.pop(), []
        with contextlib.suppress(OSError), os.scandir(root / folder) as entries:
            real = folder.count("/") < MOST_DEPTH and is_unmoved(root / folder)
            most = MOST_ENTRIES - seen if real else 0
            some = sorted(itertools.islice(entries, most), key=lambda e: e.name)
            seen += len(some)
            for entry in some:
                secret = is_protected(entry.name)
                if secret or entry.name in LEFT_OUT:
                    if secret and secrets and not entry.is_symlink():
                        yield folder + entry.name
                elif entry.is_dir(follow_symlinks=False):
                    below.append(f"{folder}{entry.name}/")
                elif not secrets:
                    yield folder + entry.name
        folders += reversed(below)


def glob_regex(pattern: str) -> re.Pattern:
    """A glob as a regular expression: `*`, `?`, `[...]`, `{a,b}`, and `**` for any folders. Without
    a slash it is looked for in every folder, as in .gitignore; a folder means all in it."""
    pattern = re.sub(r"\A(\.?/)+|\A\.\Z", "", pattern) or "*"
    if inside(pattern).is_dir():
        pattern = pattern.rstrip("/") + "/**"
    elif "/" not in pattern:
        pattern = "**/" + pattern
    known = GLOB if "{" in pattern else {**GLOB, ",": ","}
    tokens = re.findall(r"(?s)\*\*/|\*\*|\[\^?.[^\]]*\]|.", pattern.replace("[!", "[^"))
    parts = (known.get(each) or (each if len(each) > 1 else re.escape(each)) for each in tokens)
    try:
        return re.compile("".join(parts) + r"\Z")
    except re.error as error:
        raise ToolError(f"the glob pattern {pattern!r} is not valid: {error}") from None


# --- reading -------------------------------------------------------------------------------------
MOST_SECONDS = 60
File = Annotated[str, "File."]
Old = Annotated[str, "Text to replace, exactly as in the file."]
Line = Annotated[int, "Leave out for the whole file."]


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """End what runs inside after MOST_SECONDS: a pattern or a huge file can take for ever. There is
    no limit where the system has no alarm (Windows) and off the main thread."""
    with contextlib.ExitStack() as after:
        if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
            late = f"not done after {MOST_SECONDS} s, use a simpler query or fewer files"
            before = signal.signal(signal.SIGALRM, lambda *_: require(False, late))
            after.callback(signal.signal, signal.SIGALRM, before)
            after.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        yield


def fit_lines(lines: list[str], total: str) -> str:
    """The total, and as many lines as a result may hold."""
    sizes, room = itertools.accumulate(len(line) + 1 for line in lines), number("AGENT_MAX_CHARS")
    shown = sum(size < room for size in sizes)
    left = f", {len(lines) - shown} of them not shown: ask for less" if shown < len(lines) else ""
    return "\n".join([*lines[:shown], f"({total}{left})"])


@tool
def list_dir(path: Annotated[str, "Folder."] = ".") -> str:
    """List the files and folders in one folder."""
    folder = existing(path)
    require(folder.is_dir(), f"{path} is a file: use read_file")
    with os.scandir(folder) as entries:
        shown = (e for e in itertools.islice(entries, MOST_ENTRIES) if not is_protected(e.name))
        names = sorted(e.name + "/" * os.path.isdir(e.path) for e in shown)
    folders = sum(name.endswith("/") for name in names)
    return fit_lines(names, f"{len(names) - folders} files, {folders} folders")


@tool
@time_limit()
def list_files(glob_pattern: Annotated[str, "For example **/*.py or docs/*"] = "**/*") -> str:
    """Find files by name, in all folders."""
    wanted = glob_regex(glob_pattern)
    files = [path for path in walk() if wanted.match(path)]
    if not files:
        return f"no files match {glob_pattern}"
    overview = glob_pattern == "**/*"  # a small model takes the names for the contents
    advice = "\nNext, read the file you need with read_file." if overview else ""
    return fit_lines(files, f"{len(files)} files") + advice


@tool
@time_limit()
def read_file(path: File, start_line: Line = 1, end_line: Line | None = None) -> str:
    """Read a text file."""
    resolved, text, line, room = existing(path), "", 0, number("AGENT_MAX_CHARS")
    require(not resolved.is_dir(), f"{path} is a folder: use list_dir")
    for line, piece in enumerate(text_lines(resolved), 1):
        if line < start_line:
            continue
        if text and (len(text) + len(piece) > room or line > (end_line or line)):
            return f"{text}[this is not all: go on with start_line={line}]"
        if len(piece) > room:
            return f"{piece[:room]}\n[line {line} goes on, but is longer than a result may be]"
        text += piece
    if not text:
        return f"(no such lines: the file has {line})" if line else "(the file is empty)"
    return text.removeprefix("\ufeff")


@tool
@time_limit()
def search_text(
    query: Annotated[str, "Text or regular expression."],
    glob_pattern: Annotated[str | None, "Only in these files, for example *.py"] = None,
) -> str:
    """Search the contents of all files. Gives file:line: text."""
    wanted, paths = glob_regex(glob_pattern or "*"), list(walk())
    searched = [path for path in paths if wanted.match(path)]
    note = "" if searched else f"no matches, as no file is {glob_pattern}; in the others: "
    matches = list(itertools.islice(matches_in(searched or paths, query), MOST_ENTRIES))
    if matches:
        total = f"{note}{len(matches)} matches in {len(dict(matches))} files"
        return fit_lines([line for _, line in matches], total)
    if len(searched) == 1:  # small models search for words of the question: show what there is
        begins = read_file(searched[0], 1, 40)
        return f"no matches for {query} in {searched[0]}, which holds:\n{begins}"
    return f"{note}no matches for {query}. Use fewer words."


def matches_in(paths: list[str], query: str) -> Iterator[tuple[str, str]]:
    """The path of each line that matches, and what is shown of it."""
    root, pattern = Path().resolve(), re.compile(re.escape(query))
    with contextlib.suppress(re.error, RecursionError, OverflowError):  # else it is plain text
        pattern = re.compile(query, 0 if query != query.lower() else re.IGNORECASE)
    for path in paths:
        with contextlib.suppress(OSError):  # no text
            for line, text in enumerate(text_lines(root / path), 1):
                if match := pattern.search(text.rstrip("\r\n")):
                    start = max(0, match.start() - 100) if len(text) > 300 else 0
                    yield path, f"{path}:{line}: {text[start : start + 300].strip()}"


# --- writing -------------------------------------------------------------------------------------
LARGEST_EDIT = 10_000_000  # bytes


def old_text(path: Path) -> str:
    """What a file holds, to the letter; nothing where there is none."""
    if not path.exists():
        return ""
    require(path.stat().st_size <= LARGEST_EDIT, f"{path.name} is too large to edit")
    with contextlib.suppress(UnicodeDecodeError):
        return "".join(text_lines(path, errors="strict"))
    raise ToolError(f"{path.name} is no UTF-8 text")


def replace_file(path: Path, text: str) -> None:
    """Write a whole file in one step: after a crash or on a full disk the old one is there."""
    there = path.exists()
    require(not there or path.is_file(), f"not a regular file: {path.name}")
    require(not there or os.access(path, os.W_OK), f"{path.name} is read-only")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with open(new, "xb") as file:  # not where something is, a link neither
            require(is_unmoved(new, file.fileno()), f"{path.name} was moved meanwhile")
            file.write(text.encode())
        if there:
            shutil.copymode(path, new)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


@time_limit()
def difference(path: str, before: str, after: str) -> str:
    """What changes, as a unified diff."""
    path, old, new = repr(path)[1:-1], before.split("\n"), after.split("\n")
    for end in ("head", "tail"):  # long files of like lines take difflib minutes: make them unique
        same = len(os.path.commonprefix([old, new])[:-2])
        old[:same] = new[:same] = [f"{end} {line}" for line in range(same)]
        old, new = old[::-1], new[::-1]
    lines = difflib.unified_diff(old, new, path, path, lineterm="", n=2)
    return "\n".join(lines) or f"(no change in {path})"


@time_limit()
def edited(path: str, old: str, new: str) -> tuple[Path, str, str]:
    """A file, and its text before and after an edit. Its line endings are kept."""
    resolved = existing(path)
    text = old_text(resolved)
    if "\r\n" in text and old not in text:
        old, new = (re.sub(r"\r?\n", "\r\n", each) for each in (old, new))
    require(old not in ("", new), "`old` is empty or the same as `new`: nothing to change")
    count = text.count(old)
    require(count < 2, f"`old` occurs {count} times in {path}. Add more of the lines around it.")
    if not count:
        near = difflib.get_close_matches(old.split("\n")[0], text.split("\n")[:5000], 1, 0.6)
        hint = f"The nearest line is {near[0]!r}" if near else "read_file shows what it holds"
        raise ToolError(f"`old` was not found in {path}. Copy it exactly. {hint}.")
    return resolved, text, text.replace(old, new)


@tool(asks=True, preview=lambda path, old, new: difference(path, *edited(path, old, new)[1:]))
def edit_file(path: File, old: Old, new: Annotated[str, "New text."]) -> str:
    """Change one piece of text in a file."""
    resolved, before, after = edited(path, old, new)
    shown = difference(path, before, after)
    replace_file(resolved, after)
    return f"done, {path} is changed:\n{shown}"


@tool(asks=True, preview=lambda path, content: difference(path, old_text(inside(path)), content))
def write_file(path: File, content: Annotated[str, "The whole text."]) -> str:
    """Create a file, or replace all of it."""
    resolved = inside(path)
    done = "replaced" if resolved.exists() else "created"
    replace_file(resolved, content)
    return f"{done} {path}"


# --- commands ------------------------------------------------------------------------------------
PASSED_ON = """PATH HOME LANG LANGUAGE TERM TMPDIR TZ USER LOGNAME SHELL VIRTUAL_ENV TEMP TMP
    PATHEXT SYSTEMROOT WINDIR COMSPEC USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA
    PROGRAMFILES""".split()
NO_PAGER = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
SYSTEM = "/usr /bin /sbin /lib /lib32 /lib64 /etc /opt /nix /gnu /snap /home/linuxbrew".split()
TOOLCHAINS = (
    ".pyenv .nvm .asdf .rustup .local/bin .local/lib .local/share/uv".split()
)  # in the home
BWRAP = """--die-with-parent --new-session --unshare-all --cap-drop ALL --dev /dev --proc /proc
    --ro-bind /proc/sys /proc/sys --tmpfs /tmp --setenv TMPDIR /tmp""".split()
PIPES: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def program(name: str) -> str | None:
    """The absolute path of a program, if it lies outside the workspace, a link to it too."""
    root, found = Path().resolve(), Path(shutil.which(name) or "")
    places = (found.resolve(), found.parent.resolve())
    mine = any(place.is_relative_to(root) for place in places)
    return str(found) if found.is_absolute() and not mine else None


def allowed_argv(command: str) -> list[str] | None:
    """The words of a command that AGENT_ALLOW names to the letter; None where it does not. It runs
    without a shell, so has no shell features in it; its program is found outside the workspace."""
    allowed = [line.strip() for line in os.environ.get("AGENT_ALLOW", "").split("\n")]
    if command in allowed and re.fullmatch(r"[\w@%+=:,./'\" -]+", command):
        with contextlib.suppress(ValueError):  # quotes that do not match
            name, *words = shlex.split(command)
            found = program(name)
            return [found, *words] if found else None
    return None


def sandbox() -> list[str]:
    """The beginning of a command line that runs the rest in bubblewrap; [] without AGENT_SANDBOX.
    There is no network, no process of the outside, and of the files only these: the workspace,
    writable but for `.git` and without its secrets; read-only, the system and what programs need
    in PATH, TOOLCHAINS and Python's environments. The home folder and /tmp are empty."""
    if os.environ.get("AGENT_SANDBOX", "") in ("", "0"):
        return []
    bwrap, root, home = program("bwrap"), Path().resolve(), Path.home().resolve()
    needs = "not run: the sandbox needs Linux and bubblewrap (apt install bubblewrap)"
    require(bwrap and sys.platform == "linux", needs)
    require(not home.is_relative_to(root), "not run: no sandbox can be around the home folder")
    require(not os.path.islink(".git"), "not run: the sandbox cannot keep a `.git` that is a link")
    argv = [str(bwrap), *BWRAP, "--tmpfs", str(home)]
    shown = [*SYSTEM, *os.get_exec_path(), os.environ.get("VIRTUAL_ENV", "")]
    for each in [*shown, sys.prefix, sys.base_prefix, *(f"{home}/{name}" for name in TOOLCHAINS)]:
        if os.path.isabs(each) and not home.is_relative_to(os.path.realpath(each)):
            argv += ["--ro-bind-try", each, each]
    argv += ["--bind", str(root), str(root), "--chdir", str(root)]
    secrets = {root / ".git", Path(__file__).resolve().with_name(".env")}
    for secret in sorted(secrets.union(root / name for name in walk(secrets=True))):
        if secret.name == ".git" and secret.exists():
            argv += ["--ro-bind", str(secret), str(secret)]
        elif secret.name == ".git" or secret.is_dir():
            argv += ["--tmpfs", str(secret), "--remount-ro", str(secret)]
        elif secret.exists():
            argv += ["--ro-bind", "/dev/null", str(secret)]
    return [*argv, "--remount-ro", "/"]


def check_sandbox() -> None:
    """A probe: raise ToolError where AGENT_SANDBOX is set and nothing can be run in a sandbox."""
    if sandbox():
        told = run_shell("true")
        advice = "The system must let users make namespaces (user.max_user_namespaces, AppArmor)."
        require(told.endswith("[exit code 0]"), f"the sandbox does not start: {told}\n{advice}")


@tool(asks=lambda command, timeout=None: allowed_argv(command) is None)
def run_shell(
    command: Annotated[str, "Command line."], timeout: Annotated[int | None, "Seconds."] = None
) -> str:
    """Run a shell command. It gets no input; what it starts ends with it."""
    usual = number("AGENT_SHELL_TIMEOUT")
    seconds = max(1, min(timeout or usual, max(600, usual)))
    box, argv = sandbox(), allowed_argv(command)
    if box:
        argv = [*box, *(argv or ["/bin/sh", "-c", command])]
    # The rest of the environment may be keys; in a session of its own, a group is ended as one.
    passed = {k: v for k, v in os.environ.items() if k.upper() in PASSED_ON or k[:3] == "LC_"}
    options = PIPES | {"env": passed | NO_PAGER, "start_new_session": True}
    process = subprocess.Popen(argv or command, shell=argv is None, **options)
    try:
        output = Output(process.stdout, number("AGENT_MAX_CHARS") // 2)
        end = f"exit code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        end = f"timed out after {seconds} s and was ended: give it more time, or less to do"
    finally:  # also on Ctrl-C
        end_group(process)
        if box:  # bubblewrap makes an empty `.git`, so that the command cannot make one
            with contextlib.suppress(OSError):
                os.rmdir(".git")
    return f"{output.text()}\n[{end}]"


def end_group(process: subprocess.Popen) -> None:
    """End a command and what it started; what has moved to a session of its own lives on."""
    if os.name == "nt":  # by its full name: Windows looks for programs in the workspace first
        system = os.environ.get("SYSTEMROOT", r"C:\Windows")
        kill = [rf"{system}\System32\taskkill.exe", "/F", "/T", "/PID", str(process.pid)]
        subprocess.run(kill, capture_output=True, timeout=10, check=False)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


class Output(threading.Thread):
    """What a command writes, capped while it is read: its head and its tail, `half` bytes each."""

    def __init__(self, pipe: Any, half: int) -> None:
        super().__init__(daemon=True)
        self.pipe, self.half, self.kept, self.left, self.wanted = pipe, half, bytearray(), 0, True
        self.start()

    def run(self) -> None:
        with self.pipe:
            while self.wanted and (block := os.read(self.pipe.fileno(), 65_536)):
                self.kept += block
                self.left += max(0, len(self.kept) - 2 * self.half)
                del self.kept[self.half : -self.half]

    def text(self) -> str:
        """What is kept, with a count of what is left out in the middle."""
        self.join(2)  # a grandchild in its own session may keep the pipe: that is not waited for
        self.wanted = False
        note = f"\n[... {self.left} bytes left out: send them to a file ...]\n" * bool(self.left)
        text = self.kept[: self.half] + note.encode() + self.kept[self.half :]
        return text.decode("utf-8", "replace").rstrip() or "(no output)"


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # as in `python tools.py | head`
        os.write(1, json.dumps(TOOLS, indent=2).encode() + b"\n")
