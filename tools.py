"""What the model may do: functions, their JSON schemas, the registry, and the guards.
The model is not trusted: a file that it read may speak through it. Each call is checked, kept in
the workspace (the working directory), bounded in time and size, and answered with a text. `python
tools.py` prints the schemas. In order: registry, dispatch, paths, reading, writing, commands."""

import contextlib
import difflib
import inspect
import itertools
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

# --- registry ------------------------------------------------------------------------------------
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
REGISTRY: dict[str, "Tool"] = {}
TOOLS: list[dict] = []  # the schemas of REGISTRY, as sent to the model


class ToolError(Exception):
    """Why a call was not carried out, and what to do next: a sentence for the model."""

    kind = "settings"  # where a person gets it


def require(condition: object, otherwise: str) -> None:
    """A guard: what the model is told where a condition does not hold."""
    if not condition:
        raise ToolError(otherwise)


class Tool(NamedTuple):  # a function that the model may call
    name: str
    function: Callable[..., Any]  # takes the arguments by name; what it returns is made a text
    schema: dict  # as sent: {"type": "function", "function": {name, description, parameters}}
    asks: bool | Callable[..., bool] = False  # whether a person must agree to these arguments
    preview: Callable[..., str] | None = None  # the change that the person is shown
    aliases: dict[str, str] = {}  # what else models call a parameter, and its name


def tool(function: Callable | None = None, **options: Any) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(asks=True)`; the options are fields of Tool."""
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
    if kind is Annotated or type(None) in inner:  # `| None`: the default says what None means
        return schema_of(inner[0]) | ({"description": inner[1]} if kind is Annotated else {})
    if kind is Literal:
        return schema_of(type(inner[0])) | {"enum": list(inner)}
    if kind is list:
        return {"type": "array", "items": schema_of(inner[0])}
    require(hint in TYPES, f"a parameter is str, int, float, bool, list or Literal, not {hint}")
    return {"type": TYPES[hint]}


def load_tools(path: str) -> None:
    """Run a Python file, whose @tool functions join the registry. Raises ToolError."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer
            runpy.run_path(path)
    except (Exception, SystemExit) as error:  # the file may do anything
        raise ToolError(f"--tools {path}: {type(error).__name__}: {error}") from error


# --- dispatch ------------------------------------------------------------------------------------
DEFAULTS = {"AGENT_MAX_CHARS": 10_000, "AGENT_SHELL_TIMEOUT": 120}  # characters, seconds
NUMBER_AS: dict = {"string": str, "number": float, "integer": lambda n: n if n % 1 else int(n)}
Approve = Callable[[Tool, dict], tuple[bool, str]] | None  # yes or no, and the reason of a no


def dispatch(name: str, arguments: Any, approve: Approve = None, registry: dict = REGISTRY) -> str:
    """Run a call, its arguments JSON or a dict; return its result, a text, never empty. A tool that
    asks is "denied: " without `approve`. Never raises but Ctrl-C: "error: " tells what to do."""
    try:
        called: Any = registry.get(name)
        require(called, f"there is no tool {name!r}. The tools are: {', '.join(registry)}")
        parameters = called.schema["function"]["parameters"]
        properties, required = parameters["properties"], parameters["required"]
        example = json.dumps({"name": called.name, "arguments": dict.fromkeys(required, "...")})
        takes = f"{called.name} takes: {', '.join(properties) or 'no arguments'}. As in\n{example}"
        try:
            given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
            json.dumps(given, allow_nan=False, ensure_ascii=False).encode()  # stricter than Python
        except (ValueError, RecursionError) as error:
            require(False, f"the arguments are not valid JSON ({str(error)[:80]}). {takes}")
        require(isinstance(given, dict), f"the arguments must be one JSON object. {takes}")
        given = {called.aliases.get(key, key): value for key, value in given.items()}
        for key in given:
            require(key in properties, f"there is no argument {key!r}. {takes}")
        for key in required:
            require(given.get(key) is not None, f"the argument {key!r} is missing. {takes}")
        values = {k: checked_value(k, v, properties[k]) for k, v in given.items() if v is not None}
        asks = called.asks(**values) if callable(called.asks) else called.asks
        yes, reason = approve(called, values) if asks and approve else (not asks, "")
        if not yes:
            return f"denied: {reason or 'it was not allowed'}"
        with contextlib.redirect_stdout(sys.stderr):  # what a tool prints is no answer
            text = str(called.function(**values)) or "(an empty result)"
    except (Exception, SystemExit) as error:  # a tool of the user's may raise anything
        other = f"{name} failed: {type(error).__name__}: {error}. Try other arguments."
        text = f"error: {(isinstance(error, (ToolError, OSError)) and str(error)) or other}"
    left = len(text) - (most := number("AGENT_MAX_CHARS"))
    return text if left <= 500 else f"{text[:most]}\n[{left} more characters are left out]"


def checked_value(name: str, value: Any, schema: dict) -> Any:
    """One argument in the type of its schema. A number written as text is taken, and so on."""
    kind, options = schema["type"], schema.get("enum")
    if kind != "string" and isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value if kind == "array" else value.strip().lower())
    if kind == "array" and isinstance(value, list):
        return [checked_value(name, item, schema["items"]) for item in value]
    value = NUMBER_AS[kind](value) if kind in NUMBER_AS and type(value) in (int, float) else value
    require(TYPES.get(type(value)) == kind, f"the argument {name!r} must be of type {kind}")
    require(not options or value in options, f"the argument {name!r} must be one of {options}")
    return value


def number(name: str) -> int:
    """A setting: a whole number above 0 from the environment, or its default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) else DEFAULTS[name]


# --- paths ---------------------------------------------------------------------------------------
LEFT_OUT = """.git .hg .svn .venv venv node_modules __pycache__ .tox .nox .mypy_cache .pytest_cache
    .ruff_cache .harness .idea .cache""".split()
PROTECTED = r"""(?x) \.git | git~.* | \.env (?!\.example\Z).* | id_(rsa|dsa|ecdsa|ed25519).*
    | .*\.(pem|key|p12|pfx|jks|keystore|kdbx) | [._]netrc
    | \.(npmrc|pypirc|git-credentials|htpasswd|pgpass|ssh|gnupg|aws|harness)"""
DEVICE = r"(?i)\0|\A[\\/]{2}|:|(\A|[\\/])(con|nul|aux|prn|com\d|lpt\d) *([.\\/]|\Z)"  # of Windows
GLOB = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
OPEN_FLAGS = sum(getattr(os, f"O_{flag}", 0) for flag in ("NOFOLLOW", "NONBLOCK", "BINARY"))
PROC = os.path.isdir("/proc/self/fd")  # Linux tells what is open
MOST_ENTRIES, LARGEST, MOST_SECONDS = 200_000, 10_000_000, 60  # names, characters to edit, seconds


def is_protected(name: str) -> bool:
    """Whether no tool may touch what is named so, compared as the laxest file system would."""
    plain = re.sub(r"[^!-~]", "", name.casefold().partition(":")[0])  # `:` begins an NTFS stream
    return bool(re.fullmatch(PROTECTED, plain.rstrip(".")))


def inside(path: str, there: bool = False) -> Path:
    """The resolved path of something in the workspace, `there` or not; else a ToolError. Left open:
    hard links, the names in a folder swapped for a link; off Linux, one that is swapped back."""
    require(not re.search(DEVICE if os.name == "nt" else "\0", path), f"{path!r} is no file's path")
    root, asked = Path().resolve(), os.path.expanduser(path) or "."
    resolved = Path(os.path.realpath(asked))  # not after a loop of links, as in `loop/../link/x`
    linked = resolved.is_symlink() or os.path.realpath(resolved) != str(resolved)
    outside = f"{path[:200]} is outside the workspace. Use a path relative to the workspace"
    require(resolved.is_relative_to(root) and not linked, f"{outside}, such as README.md or '.'.")
    names = resolved.relative_to(root).parts + Path(os.path.relpath(asked)).parts
    require(not any(map(is_protected, names)), f"{path} is protected: no tool may read or write it")
    if resolved.exists() or not there:
        return resolved
    files = {os.path.basename(file).casefold(): file for file in itertools.islice(walk(), 20_000)}
    near = difflib.get_close_matches(os.path.basename(path).casefold(), files, 3, 0.75)
    hint = f"The files are: {', '.join([*files.values()][:12])}"
    if near:
        example = json.dumps({"name": "read_file", "arguments": {"path": files[near[0]]}})
        hint = f"Did you mean {' or '.join(files[name] for name in near)}? As in\n{example}"
    raise ToolError(f"there is no {path} in the workspace. {hint}")


def safely(path: str, flags: int) -> int:
    """The opener of every file, to read and to write: no link, pipe, device or folder is opened."""
    descriptor = os.open(path, flags | OPEN_FLAGS, 0o666)
    place = os.readlink(f"/proc/self/fd/{descriptor}") if PROC else os.path.realpath(path)
    if os.path.isfile(descriptor) and place == path:  # not behind a link that came meanwhile
        return descriptor
    os.close(descriptor)
    raise OSError(f"{os.path.basename(path)} is not a regular file")


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, read as they are asked for; a very long one comes in pieces."""
    with open(path, encoding="utf-8", errors="replace", newline="\n", opener=safely) as file:
        if "\0" in file.read(4096):
            raise OSError(f"{path.name} is a binary file, which cannot be shown")
        file.seek(0)
        yield from iter(lambda: file.readline(100_000), "")


def walk() -> Iterator[str]:
    """The files of the workspace; no link is entered, and no folder that is LEFT_OUT."""
    for folder, folders, files in os.walk("."):
        names = [name for name in sorted(folders) if not (name in LEFT_OUT or is_protected(name))]
        folders[:] = names if folder.count(os.sep) < 60 else []  # deeper takes minutes
        for name in sorted(itertools.filterfalse(is_protected, files)):
            yield os.path.join(folder, name)[2:].replace(os.sep, "/")


def files_like(pattern: str) -> list[str]:
    """The files that a glob matches, as in .gitignore: in every folder, if it has no slash."""
    pattern = re.sub(r"\A(\.?/)+|\A\.\Z", "", pattern) or "*"
    anywhere = "" if "/" in pattern else "**/"
    pattern = pattern.rstrip("/") + "/**" if inside(pattern).is_dir() else anywhere + pattern
    tokens = re.findall(r"(?s)\*\*/|\*\*|\[\^?.[^\]]*\]|.", pattern.replace("[!", "[^"))
    wanted = re.compile("".join(GLOB.get(t) or (t if len(t) > 1 else re.escape(t)) for t in tokens))
    return [path for path in itertools.islice(walk(), MOST_ENTRIES) if wanted.fullmatch(path)]


# --- reading -------------------------------------------------------------------------------------
File = Annotated[str, "File."]
Old = Annotated[str, "Text to replace, exactly as in the file."]
Line = Annotated[int, "Leave out for the whole file."]
Query = Annotated[str, "Text or regular expression."]
Glob = Annotated[str, "Only in these files, for example *.py"]


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """End what runs inside after MOST_SECONDS; not on Windows, and not off the main thread."""
    late = f"not done after {MOST_SECONDS} s, use a simpler query or fewer files"
    with contextlib.ExitStack() as after:
        if hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread():
            after.callback(signal.alarm, 0)
            signal.signal(signal.SIGALRM, lambda *_: require(False, late))
            signal.alarm(MOST_SECONDS)
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
    folder = inside(path, there=True)
    require(folder.is_dir(), f"{path} is a file: use read_file")
    seen = itertools.islice(os.scandir(folder), MOST_ENTRIES)
    names = sorted(e.name + "/" * os.path.isdir(e) for e in seen if not is_protected(e.name))
    folders = sum(name.endswith("/") for name in names)
    return fit_lines(names, f"{len(names) - folders} files, {folders} folders")


@tool(aliases={"path": "glob_pattern"})
@time_limit()
def list_files(glob_pattern: Annotated[str, "For example **/*.py or docs/*"] = "**/*") -> str:
    """Find files by name, in all folders."""
    files = files_like(glob_pattern)
    such = ", such as README.md" if "README.md" in files and len(files) > 20 else ""
    advice = f"\nNext, read the file you need with read_file{such}."  # names are no contents yet
    told = fit_lines(files, f"{len(files)} files" if files else f"no files match {glob_pattern}")
    return told + advice * bool(files and not glob_pattern.strip("./*"))


@tool
@time_limit()
def read_file(path: File, start_line: Line = 1, end_line: Line | None = None) -> str:
    """Read a text file."""
    resolved, text, line, room = inside(path, there=True), "", 0, number("AGENT_MAX_CHARS")
    require(not resolved.is_dir(), f"{path} is a folder: use list_dir")
    for line, piece in enumerate(text_lines(resolved), 1):
        if text and line > (end_line or line):
            return f"{text}[this is not all: go on with start_line={line}]"
        if text and len(text) + len(piece) > room:  # worded otherwise: "go on" is obeyed for ever
            return f"{text}[cut here: start_line={line} shows more]"
        if line >= start_line and len(piece) > room:
            return f"{piece[:room]}\n[line {line} goes on, but is longer than a result may be]"
        text += piece if line >= start_line else ""
    none = f"(no such lines: the file has {line})" if line else "(the file is empty)"
    return (text or none).removeprefix("\ufeff")


@tool
@time_limit()
def search_text(query: Query, glob_pattern: Glob | None = None) -> str:
    """Search the contents of all files. Gives file:line: text."""
    files = files_like(glob_pattern or "*")
    note = "" if files else f"no matches, as no file is {glob_pattern}; in the others: "
    root, pattern, found = Path().resolve(), re.compile(re.escape(query)), dict[str, str]()
    with contextlib.suppress(re.error, RecursionError, OverflowError):  # else it is plain text
        pattern = re.compile(query, 0 if query != query.lower() else re.IGNORECASE)
    for path in files or files_like("*"):
        with contextlib.suppress(OSError):  # no text
            for line, text in enumerate(text_lines(root / path), 1):
                if (match := pattern.search(text.rstrip("\r\n"))) and len(found) < MOST_ENTRIES:
                    start = max(0, match.start() - 100) if len(text) > 300 else 0
                    found[f"{path}:{line}: {text[start : start + 300].strip()}"] = path
    if found:
        return fit_lines([*found], f"{note}{len(found)} matches in {len({*found.values()})} files")
    if len(files) == 1:  # small models search for words of the question: show what there is
        return f"no matches for {query} in {files[0]}, which holds:\n{read_file(files[0], 1, 40)}"
    return f"{note}no matches for {query}. Use fewer words."


# --- writing -------------------------------------------------------------------------------------
@time_limit()
def difference(path: Path, before: str, after: str) -> str:
    """What changes, as a unified diff."""
    name, old, new = repr(os.path.relpath(path))[1:-1], before.split("\n"), after.split("\n")
    for end in ("head", "tail"):  # long files of like lines take difflib minutes: make them unique
        same = len(os.path.commonprefix([old, new])[:-2])
        old[:same] = new[:same] = [f"{end} {line}" for line in range(same)]
        old, new = old[::-1], new[::-1]
    lines = difflib.unified_diff(old, new, name, name, lineterm="", n=2)
    return "\n".join(lines) or f"(no change in {name})"


def changed(path: str, new: str, old: str | None = None) -> tuple[Path, str, str]:
    """A file, and its text before and after `new` takes the place of `old`, or else of all."""
    file, text = inside(path, there=old is not None), ""
    if file.exists():
        require(os.access(file, os.W_OK), f"{path} is read-only")
        with open(file, encoding="utf-8", errors="surrogateescape", newline="", opener=safely) as f:
            text = f.read(LARGEST + 1)
    require(not re.search("[\udc80-\udcff]", text), f"{path} is no UTF-8 text")
    require(len(text) <= LARGEST, f"{path} is too large to edit")
    if old is None:
        return file, text, new
    if "\r\n" in text:  # the file's line endings are kept
        new, old = re.sub(r"\r?\n", "\r\n", new), re.sub(r"\r?\n", "\r\n", old)
    require(old not in ("", new), "`old` is empty or the same as `new`: nothing to change")
    count = text.count(old)
    require(count < 2, f"`old` occurs {count} times in {path}. Add more of the lines around it.")
    if not count:
        near = difflib.get_close_matches(old.split("\n")[0], text.split("\n")[:5000], 1, 0.6)
        hint = f"The nearest line is {near[0]!r}" if near else "read_file shows what it holds"
        raise ToolError(f"`old` was not found in {path}. Copy it exactly. {hint}.")
    return file, text, text.replace(old, new)


@tool(asks=True, preview=lambda path, old, new: difference(*changed(path, new, old)))
def edit_file(path: File, old: Old, new: Annotated[str, "New text."]) -> str:
    """Change one piece of text in a file."""
    where, before, after = changed(path, new, old)
    shown = difference(where, before, after)  # first: it may run out of time
    write_file(path, after)
    return f"done, {path} is changed:\n{shown}"


@tool(asks=True, preview=lambda path, content: difference(*changed(path, content)))
def write_file(path: File, content: Annotated[str, "The whole text."]) -> str:
    """Create a file, or replace all of it."""
    where = changed(path, content)[0]
    new, there = where.with_name(f".{os.urandom(8).hex()}.tmp"), where.exists()
    where.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as after:
        after.callback(new.unlink, missing_ok=True)
        with open(new, "xb", opener=safely) as file:  # not where something is, a link neither
            file.write(content.encode())
        if there:
            shutil.copymode(where, new)
        os.replace(new, where)  # in one step: after a crash or on a full disk the old one is there
    return f"{'replaced' if there else 'created'} {path}"


# --- commands ------------------------------------------------------------------------------------
PASSED_ON = """PATH HOME LANG TERM TMPDIR TZ USER SHELL VIRTUAL_ENV TEMP TMP PATHEXT SYSTEMROOT
    WINDIR COMSPEC USERPROFILE APPDATA LOCALAPPDATA PROGRAMDATA PROGRAMFILES""".split()  # no keys
NO_PAGER = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
READABLE = """/usr /bin /sbin /lib /lib32 /lib64 /etc /opt /nix /gnu /snap /home/linuxbrew ~/.pyenv
    ~/.nvm ~/.asdf ~/.rustup ~/.local/bin ~/.local/lib ~/.local/share/uv""".split()
BWRAP = """--die-with-parent --new-session --unshare-all --cap-drop ALL --dev /dev --proc /proc
    --ro-bind /proc/sys /proc/sys --tmpfs /tmp --setenv TMPDIR /tmp""".split()
Seconds = Annotated[int, "Seconds."]
PIPES: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


def allowed_argv(command: str, allow: str = "") -> list[str]:
    """The words of a command that AGENT_ALLOW names to the letter; none of the workspace's own."""
    allowed = [line.strip() for line in (allow or os.environ.get("AGENT_ALLOW", "")).split("\n")]
    plain = command in allowed and re.fullmatch(r"[\w@%+=:,./'\" -]+", command)
    name, *words = shlex.split(command) if plain else [""]
    root, found = Path().resolve(), Path(shutil.which(name) or "")
    mine = any(each.resolve().is_relative_to(root) for each in (found, found.parent))
    return [str(found), *words] if found.is_absolute() and not mine else []


def sandbox() -> list[str]:
    """The start of a bubblewrap command, or []: no secret at the top, .git and system read-only."""
    if os.environ.get("AGENT_SANDBOX", "") in ("", "0"):
        return []
    bwrap = allowed_argv("bwrap", allow="bwrap") if sys.platform == "linux" else []
    root, home, git = Path().resolve(), Path.home().resolve(), Path(".git").resolve()
    require(bwrap, "not run: the sandbox needs Linux and bubblewrap (apt install bubblewrap)")
    require(not home.is_relative_to(root), "not run: no sandbox can be around the home folder")
    require(not os.path.islink(".git"), "not run: the sandbox cannot keep a `.git` that is a link")
    argv: list = [*bwrap, *BWRAP, "--tmpfs", home]
    shown = [*READABLE, *os.get_exec_path(), os.environ.get("VIRTUAL_ENV", "")]
    for each in map(os.path.expanduser, [*shown, sys.prefix, sys.base_prefix]):
        if os.path.isabs(each) and not home.is_relative_to(os.path.realpath(each)):
            argv += ["--ro-bind-try", each, each]
    argv += ["--bind", root, root, "--chdir", root]
    secrets = [each for each in root.iterdir() if is_protected(each.name) and not each.is_symlink()]
    for secret in filter(Path.exists, [Path(__file__).resolve().with_name(".env"), *secrets]):
        empty = ["--tmpfs", secret, "--remount-ro", secret]
        argv += empty if secret.is_dir() else ["--ro-bind", "/dev/null", secret]
    argv += ["--ro-bind", git, git] if git.exists() else ["--tmpfs", git, "--remount-ro", git]
    return [*map(str, argv), "--remount-ro", "/"]


@tool(asks=lambda command, timeout=None: not allowed_argv(command))
def run_shell(command: Annotated[str, "Command line."], timeout: Seconds | None = None) -> str:
    """Run a shell command. It gets no input; what it starts ends with it."""
    usual, half, box = number("AGENT_SHELL_TIMEOUT"), number("AGENT_MAX_CHARS") // 2, sandbox()
    seconds = max(1, min(timeout or usual, max(600, usual)))
    words = allowed_argv(command) or (["/bin/sh", "-c", command] if box else [])
    passed = {k: v for k, v in os.environ.items() if k.upper() in PASSED_ON or k[:3] == "LC_"}
    options = PIPES | {"env": passed | NO_PAGER, "start_new_session": True}  # to be ended as one
    process = subprocess.Popen(box + words or command, shell=not words, **options)
    output: dict[str, Any] = {"kept": bytearray(), "left": 0, "wanted": True}
    reader = threading.Thread(target=read_on, args=(process.stdout, output, half), daemon=True)
    try:
        reader.start()
        end = f"exit code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        end = f"timed out after {seconds} s and was ended: give it more time, or less to do"
    finally:  # also on Ctrl-C
        end_group(process)
        if box:  # bubblewrap makes an empty `.git`, so that the command cannot make one
            with contextlib.suppress(OSError):
                os.rmdir(".git")
    reader.join(2)  # a grandchild in its own session may keep the pipe: that is not waited for
    output["wanted"], kept, left = False, output["kept"], output["left"]
    note = f"\n[... {left} bytes left out: send them to a file ...]\n" * bool(left)
    text = (kept[:half] + note.encode() + kept[half:]).decode("utf-8", "replace")
    return f"{text.rstrip() or '(no output)'}\n[{end}]"


def end_group(process: subprocess.Popen) -> None:
    """End a command and what it started; what has moved to a session of its own lives on."""
    if os.name == "nt":  # by its full name: Windows looks for programs in the workspace first
        kill = rf"{os.environ['SYSTEMROOT']}\System32\taskkill.exe"
        subprocess.run([kill, "/F", "/T", "/PID", str(process.pid)], timeout=10, check=False)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)


def read_on(pipe: Any, output: dict[str, Any], half: int) -> None:
    """Keep the first and last `half` bytes of what a command writes, while these are wanted."""
    with pipe:
        while output["wanted"] and (block := os.read(pipe.fileno(), 65_536)):
            output["kept"] += block
            output["left"] += max(0, len(output["kept"]) - 2 * half)
            del output["kept"][half:-half]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # of `| head`
        os.write(1, json.dumps(TOOLS, indent=2).encode() + b"\n")
