"""One chat call to any OpenAI-compatible endpoint, and one clean reply back.

    python backend.py "Say hello."        try the set-up

What endpoints and models get wrong is put right here, so that the loop sees one shape of reply and
never a provider's habit. What a call may do is no matter of this file: it knows tools by name only.

Parts, in the order in which they stand:
    settings    BACKENDS, the table; connect(), which of them; Endpoint, the one in use
    chat        complete(), chat(): one request, tried again where that helps
    errors      BackendError, and what went wrong in one line
    transport   the body of a response, plain or streamed, as JSON chunks
    assembly    chunks put together into one Reply
    calls       names and arguments made clean; calls that were written as text
    text        surrogates, reasoning, control characters
"""

import contextlib
import email.utils
import ipaddress
import json
import os
import re
import secrets
import string
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

# --- settings ------------------------------------------------------------------------------------


class Backend(NamedTuple):
    """One row of the table; a dash there is None here."""

    name: str
    url: str
    key: str | None  # the environment variable of its key; None: a local server, which needs none
    model: str | None = None  # None: the first one that GET /v1/models names
    returns: str | None = None  # the reasoning field that it wants back in the history


TABLE = """
groq         https://api.groq.com/openai/v1      GROQ_API_KEY        openai/gpt-oss-120b
openai       https://api.openai.com/v1           OPENAI_API_KEY      gpt-5-mini
anthropic    https://api.anthropic.com/v1        ANTHROPIC_API_KEY   claude-sonnet-4-5
gemini       https://generativelanguage.googleapis.com/v1beta/openai GEMINI_API_KEY gemini-2.5-flash
openrouter   https://openrouter.ai/api/v1        OPENROUTER_API_KEY  openai/gpt-oss-120b  reasoning_details
together     https://api.together.xyz/v1         TOGETHER_API_KEY    openai/gpt-oss-120b
mistral      https://api.mistral.ai/v1           MISTRAL_API_KEY     mistral-large-latest
deepseek     https://api.deepseek.com/v1         DEEPSEEK_API_KEY    deepseek-chat        reasoning_content
xai          https://api.x.ai/v1                 XAI_API_KEY         grok-4
cerebras     https://api.cerebras.ai/v1          CEREBRAS_API_KEY    gpt-oss-120b
huggingface  https://router.huggingface.co/v1    HF_TOKEN            openai/gpt-oss-120b
ollama       http://127.0.0.1:11434/v1           -
llamacpp     http://127.0.0.1:8080/v1            -
lmstudio     http://127.0.0.1:1234/v1            -
vllm         http://127.0.0.1:8000/v1            -
"""
BACKENDS = {
    row[0]: Backend(*(None if cell == "-" else cell for cell in row))
    for row in map(str.split, TABLE.strip().splitlines())
}
WAYS_TO_GO_ON = """no endpoint is set. Three ways to go on:
  a key       cp .env.example .env, and put one key into it (GROQ_API_KEY, OPENAI_API_KEY, ...)
  a server    start Ollama, llama.cpp, LM Studio or vLLM on its usual port, or name its URL: --base-url
  no account  python examples/local_model.py "task" runs a small model on this machine"""


@dataclass
class Endpoint:
    """The endpoint of a run: where it is, and what was learned about it on the way."""

    name: str
    url: str
    key: str
    model: str = ""
    returns: str | None = None
    temperature: float | None = None
    moved: bool = False  # the URL is not that of the table
    refused: set[str] = field(default_factory=set)  # parameters that it does not take
    _client: Any = None

    @property
    def client(self) -> Any:
        """The SDK's client, made once. Loopback addresses are not asked for through a proxy."""
        if self._client is None:
            import openai  # noqa: PLC0415  (takes most of a second)

            self._client = openai.OpenAI(
                api_key=self.key,
                base_url=self.url,
                max_retries=0,  # ours are announced, and Ctrl-C ends them
                timeout=openai.Timeout(600, connect=10),  # a slow local model is silent for minutes
                http_client=openai.DefaultHttpxClient(trust_env=not is_loopback(self.url)),
            )
        return self._client

    def models(self, timeout: float = 20) -> list[str]:
        """The ids that GET /v1/models names."""
        try:
            body = self.client.get("/models", cast_to=object, options={"timeout": timeout})
            return [str(item["id"]) for item in body["data"]]
        except Exception as error:
            raise explain(error, self) from error


def setting(name: str) -> str:
    """An environment variable without the white space and quotes that pasting leaves around it."""
    return os.environ.get(name, "").strip(" \t\r\n\"'\u201c\u201d\u2018\u2019\ufeff")


def load_settings() -> None:
    """Read the `.env` beside this file: never one of the working directory, which may be a
    cloned project that wants the key sent elsewhere. What is set already stays."""
    from dotenv import load_dotenv  # noqa: PLC0415

    try:
        load_dotenv(Path(__file__).with_name(".env"), encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot read .env beside backend.py: {error}", "settings") from error


def connect(name: str | None = None, model: str | None = None, url: str | None = None) -> Endpoint:
    """Choose the endpoint: from the arguments, else the environment, else a server on this machine.

    Raises BackendError of kind "settings" where something has to be set first.
    """
    load_settings()
    moved = clean_url(url or setting("OPENAI_BASE_URL"))
    name = name or setting("AGENT_BACKEND") or ("openai" if moved else None)
    name = name or next((n for n, row in BACKENDS.items() if row.key and setting(row.key)), None)
    name = name or local_server()
    if name is None:
        raise BackendError(WAYS_TO_GO_ON, "settings")
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}: one of {', '.join(BACKENDS)}", "settings")
    row = BACKENDS[name]
    endpoint = Endpoint(name, moved or row.url, checked_key(name, moved), returns=row.returns)
    endpoint.moved = endpoint.url != row.url
    if given := setting("AGENT_TEMPERATURE"):
        try:
            endpoint.temperature = float(given)
        except ValueError:
            raise BackendError(f"AGENT_TEMPERATURE={given!r} is no number", "settings") from None
    elif row.key is None:
        endpoint.temperature = 0.0  # small models wander
    endpoint.model = model or setting("AGENT_MODEL") or default_model(endpoint, row)
    return endpoint


def checked_key(name: str, moved: str) -> str:
    """The backend's key; a word in its place where none is needed."""
    variable = BACKENDS[name].key
    key = setting(variable) if variable else ""
    if not key and (variable is None or is_loopback(moved)):
        return "no-key"
    if not key:
        raise BackendError(
            f"{name} needs a key: set {variable}, in .env or in the environment", "settings"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BackendError(
            f"{variable} holds a character that no key has: copy the key again", "settings"
        )
    return key


def default_model(endpoint: Endpoint, row: Backend) -> str:
    """The model where none is named. A moved URL is another server: it is asked what it has."""
    if row.model and endpoint.url == row.url:
        return row.model
    try:
        if found := endpoint.models():
            return found[0]
        reason = f"{endpoint.url} offers no model"
    except BackendError as error:
        reason = str(error)
    if row.model:
        return row.model
    raise BackendError(f"no model is named (--model or AGENT_MODEL), and {reason}")


def local_server() -> str | None:
    """The first local server of the table that answers on its usual port."""
    for name, row in BACKENDS.items():
        if row.key is None:
            with contextlib.suppress(BackendError):
                if Endpoint(name, row.url, "no-key").models(timeout=1):
                    return name
    return None


def clean_url(url: str) -> str:
    """A base URL as the SDK wants it, from what people paste."""
    url = url.strip().rstrip("/").removesuffix("/chat/completions")
    if url and "://" not in url:
        url = ("http://" if is_loopback("http://" + url) else "https://") + url
    if url and (re.search(r"\s", url) or not re.match(r"https?://[^/]", url)):
        raise BackendError(f"the base URL {url!r} is no http(s) address", "settings")
    return url


def is_loopback(url: str) -> bool:
    """Whether a URL points at this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- chat ----------------------------------------------------------------------------------------

Message = dict[str, Any]  # role, content, and the fields of the role, as in the API
TRIES = {"transient": 4, "bad_call": 3}  # in all, by kind of failure


@dataclass
class ToolCall:
    """A call as in the SDK: `.id`, `.function.name`, `.function.arguments` (text)."""

    id: str
    function: SimpleNamespace
    extra_content: Any = None  # Gemini's thought signature
    words_after: bool = False  # it was written as text, and the text went on


@dataclass
class Reply:
    """What came back, made clean. `message` is what to append to the history."""

    content: str | None
    tool_calls: list[ToolCall]
    finish_reason: str
    usage: dict[str, int]  # prompt_tokens, completion_tokens, total_tokens; 0 where not told
    message: Message
    reasoning: str = ""
    refusal: str = ""

    @property
    def filtered(self) -> bool:
        """Whether the provider or the model refused."""
        return self.finish_reason == "content_filter" or bool(self.refusal and not self.content)

    @property
    def cut_off(self) -> bool:
        """Whether the reply is not whole, so that none of its calls may run."""
        return self.finish_reason in ("length", "content_filter")


def complete(prompt: str, backend: Endpoint | None = None) -> str:
    """One question, one answer. Raises BackendError."""
    return chat([{"role": "user", "content": prompt}], backend=backend).content or ""


def chat(
    messages: list[Message],
    tools: list[dict] | None = None,
    *,
    backend: Endpoint | None = None,
    stream: bool = False,
    tool_choice: str | None = None,
    on_text: Callable[[str], None] = lambda text: None,
    on_notice: Callable[[str], None] = lambda text: None,
    on_wire: Callable[[str, Any], None] = lambda what, body: None,
) -> Reply:
    """Send the conversation, return the reply; the same one, streamed or not.

    `on_text` gets the answer's text as it streams, `on_notice` a line before each wait, `on_wire`
    every raw "request" and "reply". Raises BackendError; its kind is "context" where the
    conversation is too long for the model.
    """
    endpoint = backend or connect()
    optional = {
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
        "temperature": endpoint.temperature,
        "tools": tools or None,
        "tool_choice": tool_choice if tools else None,
    }
    failures = dict.fromkeys(TRIES, 0)
    while True:
        request = {"model": endpoint.model, "messages": [mended(m) for m in messages]}
        request |= {k: v for k, v in optional.items() if v is not None and k not in endpoint.refused}
        on_wire("request", request)
        try:
            return exchange(endpoint, request, on_text, on_wire)
        except BackendError as error:
            if error.kind == "parameter" and error.parameter not in endpoint.refused:
                endpoint.refused.add(error.parameter)
                on_notice(f"{endpoint.name} does not take {error.parameter}: left out from now on")
                continue
            pause = pause_before_retry(error, failures)
            on_notice(f"{error}; trying again in {pause:g} s")
            time.sleep(pause)


def pause_before_retry(error: "BackendError", failures: dict[str, int]) -> float:
    """Seconds to wait before the next try; raises the error where another try is of no use."""
    if error.kind not in TRIES:
        raise error
    failures[error.kind] += 1
    if failures[error.kind] >= TRIES[error.kind]:
        if error.kind == "bad_call":
            raise BackendError(f"the model kept producing bad tool calls: {error}") from error
        raise BackendError(f"{error} (tried {TRIES[error.kind]} times)") from error
    return 0.5 * 2 ** (failures[error.kind] - 1) if error.wait is None else error.wait


def exchange(endpoint: Endpoint, request: dict, on_text: Callable, on_wire: Callable) -> Reply:
    """One request and its reply. Whatever the SDK raises leaves here as a BackendError."""
    names = [tool["function"]["name"] for tool in request.get("tools", [])]

    def chunks(response: Any) -> Iterator[dict]:
        for chunk in read_chunks(response.iter_bytes()):
            on_wire("reply", chunk)
            yield checked_chunk(chunk, endpoint, request)

    try:
        create = endpoint.client.chat.completions.with_streaming_response.create
        with create(**request) as response:
            draft, usage = assemble(chunks(response), bool(names), on_text)
        return finished_reply(draft, usage, names, endpoint.returns)
    except Exception as error:  # the SDK lets httpx, JSON, URL and encoding errors through
        raise explain(error, endpoint, request) from error


# --- errors --------------------------------------------------------------------------------------

OPTIONAL = ("stream_options", "temperature", "tool_choice")  # what a request can do without
SAYS_QUOTA = re.compile(r"insufficient[_ ](quota|balance|credit|funds)|credit balance is", re.I)
SAYS_TOO_LONG = re.compile(
    r"context[_ ]?(length|size|window)|maximum context|(prompt|input|request) (is )?too (long|large)"
    r"|too many (input |prompt )?tokens|reduce (the length|your message)|exceed\w* .{0,40}context"
    r"|(input|prompt) .{0,40}exceeds?|maximum (input|prompt|sequence) length|token limit",
    re.I,
)
SAYS_BAD_CALL = re.compile(
    r"tool_use_failed|pars\w+ tool[ _]?call|failed to call a function|malformed_function_call", re.I
)
SAYS_NO_TOOLS = re.compile(r"tools?\b.{0,60}not (support|enabl|availab)|not support.{0,40}tool", re.I)
CONNECTION = {  # what is found in the chain of causes, and what to say; True: another try may help
    "ConnectionRefusedError": ("nothing listens there: is the server running?", False),
    "gaierror": ("the host is unknown: check the base URL and the network", False),
    "SSLError": ("no trusted TLS connection", False),
    "SSLCertVerificationError": ("its TLS certificate is not trusted", False),
    "ConnectTimeout": ("no connection in time", True),
    "ReadTimeout": ("no reply in time", True),
    "APITimeoutError": ("no reply in time", True),
    "APIConnectionError": ("the connection broke", True),
    "RemoteProtocolError": ("the connection broke before the reply was whole", True),
    "ReadError": ("the connection broke before the reply was whole", True),
    "TransportError": ("the connection broke", True),
}


class BackendError(Exception):
    """Why there is no reply, in one line, with the URL and what to do.

    kind: "settings" (nothing was sent), "transient", "bad_call", "parameter" (the endpoint does not
    take `parameter`), "context" (too long for the model), or "fatal". wait: seconds that the
    endpoint asked for.
    """

    def __init__(
        self, message: str, kind: str = "fatal", wait: float | None = None, parameter: str = ""
    ) -> None:
        super().__init__(visible(message))
        self.kind, self.wait, self.parameter = kind, wait, parameter


def explain(error: Exception, endpoint: Endpoint, request: dict | None = None) -> BackendError:
    """Turn whatever was raised into a BackendError."""
    if isinstance(error, BackendError):
        return error
    if hasattr(error, "status_code"):
        response = error.response  # type: ignore[attr-defined]
        return explain_status(
            error.status_code, response.text, endpoint, request or {}, response.headers
        )
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
        chain.append(cause)
    names = {cls.__name__ for link in chain for cls in type(link).__mro__}
    for name, (text, again) in CONNECTION.items():
        if name in names:
            reason = f" ({chain[-1]})" if str(chain[-1]) and name.endswith(("Error", "error")) else ""
            kind = "transient" if again else "fatal"
            return failure(f"{text}{reason}", endpoint, kind)
    hint = "; look at the proxy variables (HTTP_PROXY, ALL_PROXY)" if "proxy" in str(error) else ""
    return failure(f"{type(error).__name__}: {error}{hint}", endpoint)


def failure(
    text: str, endpoint: Endpoint, kind: str = "fatal", wait: float | None = None, parameter: str = ""
) -> BackendError:
    """A BackendError that names the URL, has one line, and does not hold the key."""
    line = " ".join(text.split())
    line = line if len(line) <= 600 else line[:600] + " ..."
    if endpoint.key and endpoint.key != "no-key":
        line = line.replace(endpoint.key, "[key]")
    return BackendError(f"{endpoint.url}: {line}", kind, wait, parameter)


def explain_status(
    status: int | None, body: Any, endpoint: Endpoint, request: dict, headers: Any = None
) -> BackendError:
    """What an HTTP status, or an error object inside a reply, means and what to do."""
    message, code = error_fields(body)
    said, headers = f"{code} {message}", headers or {}
    text = f"{status or 'error'}: {message or code or 'no reason given'}"
    if status == 402 or SAYS_QUOTA.search(said):
        return failure(f"{text} (quota: the account has nothing left)", endpoint)
    if status == 413 or SAYS_TOO_LONG.search(said):
        return failure(text, endpoint, "context")
    if SAYS_BAD_CALL.search(said):
        return failure(text, endpoint, "bad_call", 0.2)
    for name in OPTIONAL:
        if status in (400, 404, 422) and name in request and re.search(rf"\b{name}\b", said):
            return failure(text, endpoint, "parameter", parameter=name)
    if status in (408, 409, 429) or (status or 500) >= 500:
        wait = retry_after(headers)
        if wait is not None and wait > 60:
            return failure(f"{text} (it asks to wait {wait:.0f} s: try again later)", endpoint)
        return failure(text, endpoint, "transient", wait)
    return failure(text + hint_for(status, said, endpoint), endpoint)


def hint_for(status: int | None, said: str, endpoint: Endpoint) -> str:
    """The way out of the common mistakes."""
    if status in (401, 403):
        variable = BACKENDS[endpoint.name].key
        return f" (check {variable}, the key of {endpoint.name})" if variable else ""
    if SAYS_NO_TOOLS.search(said):
        return f" (model {endpoint.model} cannot call tools: take another, or --no-tools)"
    if status in (404, 405):
        if not re.search(r"/v\d|/openai|/api", urlsplit(endpoint.url).path):
            return " (does the base URL lack its /v1?)"
        return f" (is there a model {endpoint.model!r}? --model and AGENT_MODEL name it)"
    return ""


def error_fields(body: Any) -> tuple[str, str]:
    """The message and the codes of an error body, in any of the shapes that are about."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            page = re.search(r"<title>(.*?)</title>|<(?:html|!doctype)", body, re.I | re.S)
            return (f"a page of HTML ({page[1] or 'no title'})" if page else body), ""
    while isinstance(body, list) and body:  # Gemini
        body = body[0]
    if not isinstance(body, dict):
        return ("" if body is None else str(body)), ""
    codes = " ".join(str(body[key]) for key in ("code", "type", "status") if body.get(key))
    for key in ("error", "message", "detail", "errors", "msg"):
        if body.get(key):
            inner, inner_codes = error_fields(body[key])
            raw = (body.get("metadata") or {}).get("raw") if key == "message" else None
            return (f"{inner} ({raw})" if raw else inner), f"{codes} {inner_codes}".strip()
    return "", codes


def retry_after(headers: Any) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after` (seconds, milliseconds, a date)."""
    text = str(headers.get("retry-after") or "").strip()
    if headers.get("retry-after-ms"):
        text = f"{headers['retry-after-ms']}ms"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text):
        return float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


# --- transport -----------------------------------------------------------------------------------


def read_chunks(blocks: Iterable[bytes]) -> Iterator[Any]:
    """The JSON values of a body: the data of its server-sent events, or its one document.

    The first line tells which, not the content type: a request to stream may be answered with plain
    JSON, and the other way round. Raises BackendError where the body ends in the middle.
    """
    pending, events = b"", None
    for line in lines_of(blocks):
        if events is None and line.strip():
            events = bool(re.match(rb"(data|event|id|retry)?:", line))
        if not events:
            pending += line + b"\n"
        elif line.startswith(b"data:"):
            pending += line[5:].strip()
            if pending == b"[DONE]":
                return
            with contextlib.suppress(ValueError):  # else the event goes on in the next data line
                value, pending = json.loads(pending.decode("utf-8", "replace")), b""
                yield value
    if not pending.strip():
        return
    try:
        value = json.loads(pending.decode("utf-8", "replace"))
    except ValueError:
        if pending.lstrip().startswith(b"<"):
            page = "a page of HTML came back: the base URL is not that of a chat API"
            raise BackendError(page) from None
        raise BackendError("the reply was cut off or is no JSON", "transient") from None
    yield value


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Split at the line ends of JSON and server-sent events only: httpx would split at U+2028."""
    rest = b""
    for block in blocks:
        *lines, rest = re.split(rb"\r\n|\n|\r", rest + block)
        yield from lines
    yield rest


def checked_chunk(chunk: Any, endpoint: Endpoint, request: dict) -> dict:
    """The chunk, if it is one: an error may come with status 200, or in the middle of a stream."""
    inner = chunk[0] if isinstance(chunk, list) and len(chunk) == 1 else chunk
    if not isinstance(inner, dict):
        raise failure(f"this is no chat completion: {json.dumps(chunk)[:80]}", endpoint)
    if inner.get("error") or (not inner.get("choices") and error_fields(inner)[0]):
        error = inner["error"] if isinstance(inner.get("error"), dict) else inner
        code = error.get("code") or error.get("status")
        raise explain_status(code if isinstance(code, int) else None, inner, endpoint, request)
    return inner


# --- assembly ------------------------------------------------------------------------------------


class Draft:
    """One choice of a reply, while it is put together."""

    def __init__(self) -> None:
        self.text = self.reasoning = self.refusal = self.finish = ""
        self.details: list[dict] = []  # OpenRouter's reasoning_details
        self.calls: list[dict] = []  # index, id, name, arguments (text), extra_content
        self.legacy: list[dict] = []  # the same, of a `function_call`

    def add(self, choice: dict) -> None:
        """Take in a chunk's choice: a delta, or a whole message."""
        part = choice.get("delta")
        whole = not isinstance(part, dict)
        if whole:
            part = choice.get("message") if isinstance(choice.get("message"), dict) else {}
        text, thought = text_of(part.get("content"))
        self.text += text
        field_thought = part.get("reasoning_content") or part.get("reasoning")
        self.reasoning += thought + (field_thought if isinstance(field_thought, str) else "")
        self.refusal += part["refusal"] if isinstance(part.get("refusal"), str) else ""
        self.details = join_details(self.details, part.get("reasoning_details"))
        calls = part.get("tool_calls") or []
        for position, call in enumerate(calls if isinstance(calls, list) else [calls]):
            add_fragment(self.calls, call, position if whole else None)
        if part.get("function_call"):
            add_fragment(self.legacy, part["function_call"], 0)
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"] or self.finish
        elif choice.get("message") is not None or "delta" not in choice:
            self.finish = self.finish or "stop"  # a whole message needs no word that it is whole


def assemble(
    chunks: Iterable[dict], offered: bool, on_text: Callable[[str], None]
) -> tuple[Draft, Any]:
    """Put the chunks together; tell the text as soon as it is certain to be no call.

    Returns the draft and the usage as it came. Raises BackendError where the end is missing.
    """
    drafts: dict[int, Draft] = {}
    usage, shown = None, 0
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        choices = chunk.get("choices")
        for position, choice in enumerate(choices if isinstance(choices, list) else []):
            if isinstance(choice, dict):
                index = choice.get("index") if "delta" in choice else position
                drafts.setdefault(index if isinstance(index, int) else 0, Draft()).add(choice)
        if drafts and len(text := certain_text(next(iter(drafts.values())).text, offered)) > shown:
            on_text(text[shown:])
            shown = len(text)
    if not drafts:
        raise BackendError("the reply is empty: no choices", "transient")
    if not any(draft.finish for draft in drafts.values()):
        raise BackendError("the reply was cut off before its end", "transient")
    draft = next((d for d in drafts.values() if d.calls or d.legacy), next(iter(drafts.values())))
    draft.text = draft.text or next((d.text for d in drafts.values() if d.text), "")
    return draft, usage


def add_fragment(calls: list[dict], fragment: Any, position: int | None) -> None:
    """Put a fragment of a call to the call that it goes on with, or open a new one.

    By index; but a new id opens a call also at an index that is taken (Ollama), and so does a name
    after complete arguments; without an index the last call goes on (Gemini).
    """
    fragment = fragment if isinstance(fragment, dict) else {"name": "", "arguments": fragment}
    function = next(
        (fragment[k] for k in ("function", "custom") if isinstance(fragment.get(k), dict)), fragment
    )
    index = fragment.get("index") if position is None else position
    call_id, name = fragment.get("id"), function.get("name")
    name = name if isinstance(name, str) else ""
    arguments = function.get("arguments", function.get("parameters", function.get("input")))
    same = [c for c in calls if index is None or c["index"] == index]
    call = same[-1] if same else None
    if call and call_id and call["id"]:
        call = next((c for c in reversed(same) if c["id"] == call_id), None)
    elif call and name and arguments and parsed(call["arguments"]) is not None:
        call = None
    if call is None:
        call = {"index": index, "id": call_id, "name": "", "arguments": "", "extra_content": None}
        calls.append(call)
    call["id"] = call["id"] or call_id
    call["extra_content"] = fragment.get("extra_content") or call["extra_content"]
    if not call["name"].endswith(name):  # a name may be repeated on each fragment
        call["name"] = name if name.startswith(call["name"]) else call["name"] + name
    if arguments is not None:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call["arguments"] += text


def join_details(details: list[dict], more: Any) -> list[dict]:
    """OpenRouter's reasoning details: pieces of one detail have its type and index."""
    for piece in more if isinstance(more, list) else []:
        last = details[-1] if details else {}
        if isinstance(piece, dict) and "index" in piece and piece["index"] == last.get("index"):
            for key in ("text", "summary", "data"):
                if isinstance(piece.get(key), str):
                    last[key] = (last.get(key) or "") + piece[key]
            last.update({k: v for k, v in piece.items() if v and k not in ("text", "summary", "data")})
        elif isinstance(piece, dict):
            details.append(dict(piece))
    return details


def finished_reply(draft: Draft, usage: Any, names: list[str], returns: str | None) -> Reply:
    """Make the clean reply, and the message that goes back, of a whole draft."""
    text, thought = split_reasoning(whole_characters(draft.text))
    calls = [clean_call(call) for call in draft.calls or draft.legacy]
    if names and not calls:
        text, calls = calls_in_text(text, names)
    text = re.sub(r"<(\w+)>\s*</\1>", "", text).strip() if names else text.strip()
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [as_sent(call) for call in calls]
    if returns == "reasoning_content" and draft.reasoning:
        message[returns] = whole_characters(draft.reasoning)
    if returns == "reasoning_details" and draft.details:
        message[returns] = draft.details
    return Reply(
        text or None,
        calls,
        draft.finish,
        clean_usage(usage),
        message,
        whole_characters(draft.reasoning) + thought,
        whole_characters(draft.refusal),
    )


def clean_usage(usage: Any) -> dict[str, int]:
    """Token counts, 0 where they are not told."""
    usage = usage if isinstance(usage, dict) else {}
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = {k: int(usage[k]) if isinstance(usage.get(k), (int, float)) else 0 for k in keys}
    counts["total_tokens"] = counts["total_tokens"] or sum(counts.values())
    return counts


# --- calls ---------------------------------------------------------------------------------------

ALPHABET = string.ascii_letters + string.digits
TAG = r"(?:tool_calls?|tools?|function_calls?|tool_code)"
CALL_START = re.compile(rf"^[ \t]*(?:(?:```\w*|<{TAG}>|\[TOOL_CALLS\])\s*)*(?=[{{\[<])", re.M)
CALL_NEXT = re.compile(rf"\s*(?:(?:```\w*|<{TAG}>|\[TOOL_CALLS\])\s*)*(?=[{{\[<])")
CALL_END = re.compile(rf"[}}\]]*\s*(?:```(?!\w)|</{TAG}>|\Z|(?<=\n))\s*(?:```(?!\w)|</{TAG}>)?[,;]?")
FUNCTION_TAG = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.S)
PARAMETER_TAG = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.S)
MAY_BE_CALL = re.compile(
    rf"^[ \t]*(?:\{{|\[(?=[{{\[T]|\Z)|<(?=/?\w*\Z|{TAG}|function)|``?\Z|```\w*\Z"
    rf"|```\w*\s*(?=[{{\[<]|\Z))",
    re.M,
)


def new_id() -> str:
    """A fresh id of 9 letters and digits (Mistral takes no other), whatever the endpoint said."""
    return "".join(secrets.choice(ALPHABET) for _ in range(9))


def clean_call(call: dict, words_after: bool = False) -> ToolCall:
    """A call with a fresh id, a clean name, and arguments that are a JSON object if they can be."""
    name = re.sub(r"<\|.*", "", whole_characters(call["name"]), flags=re.S).strip()
    name = name.removeprefix("functions.").removeprefix("function.").strip()
    value = parsed(call["arguments"])
    arguments = json.dumps(value, ensure_ascii=False) if value is not None else call["arguments"]
    function = SimpleNamespace(name=name, arguments=arguments)
    return ToolCall(new_id(), function, call.get("extra_content"), words_after)


def as_sent(call: ToolCall) -> dict:
    """A call as it goes back: every endpoint takes this name, and arguments that are an object."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.function.name)[:64] or "unknown"
    arguments = call.function.arguments if parsed(call.function.arguments) is not None else "{}"
    function = {"name": name, "arguments": arguments}
    sent = {"id": call.id, "type": "function", "function": function}
    return sent | ({"extra_content": call.extra_content} if call.extra_content else {})


def parsed(arguments: Any) -> dict | None:
    """The arguments as an object; None where they are none.

    Blank and null stand for no arguments. Taken out of a code fence, decoded twice, freed from one
    stray token after the object. Never taken: NaN, numbers and nesting beyond bounds, and lone
    surrogates, which some servers answer with an error in every later turn.
    """
    for _ in range(3):
        if isinstance(arguments, str):
            text = re.sub(r"\A\s*```\w*\s*|\s*```\s*\Z", "", arguments).strip()
            try:
                arguments, end = json.JSONDecoder(parse_constant=no_constant).raw_decode(text)
            except (ValueError, RecursionError):
                return {} if not text else None
            if not re.fullmatch(r"\s*[^\s{\[\"]{0,40}", text[end:]):
                return None
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return {} if arguments is None else arguments if isinstance(arguments, dict) else None


def no_constant(name: str) -> NoReturn:
    """NaN and Infinity are Python's JSON, and nobody else's."""
    raise ValueError(name)


def calls_in_text(text: str, names: list[str]) -> tuple[str, list[ToolCall]]:
    """Calls that a small model wrote as text, and the words that are left.

    A call stands on its own lines, bare, fenced or in tags, and its name is one of `names`.
    """
    found: list[tuple[dict, int]] = []
    words, position = "", 0
    while start := CALL_START.search(text, position):
        calls, end = decode_calls(text, start.end(), names)
        if not calls:
            words += text[position : start.end() + 1]
            position = start.end() + 1
            continue
        words += text[position : start.start()]
        position = end
        while (start := CALL_NEXT.match(text, position)) and (
            more := decode_calls(text, start.end(), names)
        )[0]:
            calls, position = calls + more[0], more[1]
        found += [(call, position) for call in calls]
    words += text[position:]
    if not found:
        return text, []
    return words, [clean_call(call, bool(text[end:].strip())) for call, end in found]


def decode_calls(text: str, start: int, names: list[str]) -> tuple[list[dict], int]:
    """The calls that begin at `start` and end with their line, and where they end."""
    if match := FUNCTION_TAG.match(text, start):
        parameters = dict(PARAMETER_TAG.findall(match[2]))
        calls = [{"name": match[1], "arguments": json.dumps(parameters) if parameters else match[2]}]
        end = match.end()
    else:
        value, end = decode_json(text, start)
        calls = [as_call(item) for item in (value if isinstance(value, list) else [value])]
    closed = CALL_END.match(text, end)
    if not closed or not all(call and clean_call(call).function.name in names for call in calls):
        return [], start
    return calls, closed.end()


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start` and its end; also where its braces are doubled or one is missing."""
    decoder = json.JSONDecoder(strict=False)
    for skip in (0, 1) if text.startswith("{{", start) else (0,):
        with contextlib.suppress(ValueError, RecursionError):
            return decoder.raw_decode(text, start + skip)
    block = re.match(r".*?(?=\s*(?:```|</|\n\s*\n|\Z))", text[start:], re.S)[0]  # type: ignore[index]
    for attempt in (block.replace("{{", "{").replace("}}", "}"), block + "}", block[1:] + "}"):
        with contextlib.suppress(ValueError, RecursionError):
            return decoder.raw_decode(attempt)[0], start + len(block)
    return None, start


def as_call(item: Any) -> dict | None:
    """A decoded JSON value as a call, where it has the shape of one."""
    item = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return None
    for key in ("arguments", "parameters"):
        if key in item:
            return {"name": item["name"], "arguments": item[key]}
    return None


# --- text ----------------------------------------------------------------------------------------

THOUGHT = re.compile(r"(?<![`\"'])<think>(.*?)(?:</think>|\Z)|\A(.*)(?<![`\"'])</think>", re.S)
HIDING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories that a terminal obeys or hides
BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # letters that look like nothing
JOINING = "\u200c\u200d" + "".join(map(chr, range(0xFE00, 0xFE10)))  # in scripts and emoji


def text_of(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a `content`, which may be a list of parts."""
    if isinstance(content, str):
        return content, ""
    text = thought = ""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            text += part["text"] if isinstance(part.get("text"), str) else ""
            thought += text_of(part.get("thinking"))[0]
    return text, thought


def split_reasoning(text: str) -> tuple[str, str]:
    """The answer, and what stands in <think> or before a lone </think>."""
    thoughts = [m[1] or m[2] or "" for m in THOUGHT.finditer(text)]
    return THOUGHT.sub("", text), "\n".join(t.strip() for t in thoughts)


def certain_text(text: str, offered: bool) -> str:
    """The beginning of a growing text that can be no call and no reasoning any more."""
    start = text.lstrip()
    if start.startswith("<think>"):
        start = start.partition("</think>")[2].lstrip()
    elif "<think>".startswith(start):
        return ""
    if offered and (hold := MAY_BE_CALL.search(start)):
        start = start[: hold.start()]
    return start.rstrip().rstrip("".join(map(chr, range(0xD800, 0xDC00))))


def whole_characters(text: str) -> str:
    """The text with surrogate pairs joined (streams cut them) and lone ones replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def mended(message: Message) -> Message:
    """A message that can be sent as UTF-8."""
    content = message.get("content")
    if not isinstance(content, str) or content.isascii():
        return message
    return {**message, "content": whole_characters(content)}


def visible(text: str, strict: bool = False) -> str:
    """The text with what a terminal would obey or hide written out, as in \\x1b.

    Lines and tabs stay; so do the joiners of emoji and scripts, unless `strict`.
    """

    def written_out(match: re.Match) -> str:
        char = match[0]
        if char in JOINING and not strict:
            return char
        hidden = unicodedata.category(char) in HIDING or char in BLANK + JOINING
        hidden = hidden or 0xE0100 <= ord(char) <= 0xE01EF or (strict and char.isspace())
        return char.encode("unicode_escape").decode() if hidden else char

    text = text if strict else text.replace("\r\n", "\n")
    return re.sub(r"[^\x20-\x7e\n\t]", written_out, text)


def main() -> int:
    """`python backend.py "Say hello."`"""
    try:
        endpoint = connect()
        print(f"{endpoint.name} {endpoint.url} {endpoint.model}", file=sys.stderr)
        print(visible(complete(" ".join(sys.argv[1:]) or "Say hello.", endpoint)))
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.kind == "settings" else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
