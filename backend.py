"""One chat call to any OpenAI-compatible endpoint, and one clean reply back.

    python backend.py "Say hello."        try the set-up

What endpoints and models get wrong is put right here, so that the loop sees one shape of reply and
no provider's habit. What a call does is no matter of this file: it knows tools by their names.

    settings    BACKENDS, the table; connect(), which of them; Endpoint, the one in use
    chat        complete(), chat(): one request, tried again where that helps
    errors      BackendError: what went wrong, in one line
    assembly    the bytes of a response, streamed or not, put together into one Reply
    calls       names and arguments made clean; calls that were written as text
    text        reasoning, surrogates, control characters
"""

import contextlib
import email.utils
import functools
import itertools
import json
import os
import re
import secrets
import string
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

# --- settings ------------------------------------------------------------------------------------


class Backend(NamedTuple):
    """A row of the table; a dash there is None here."""

    name: str
    url: str
    key: str | None = None  # the environment variable of its key; None: a local server needs none
    model: str | None = None  # None: the first one that GET /v1/models names
    returns: str | None = None  # the reasoning field that it wants back in the history


TABLE = """
groq        https://api.groq.com/openai/v1     GROQ_API_KEY       openai/gpt-oss-120b
openai      https://api.openai.com/v1          OPENAI_API_KEY     gpt-5-mini
anthropic   https://api.anthropic.com/v1       ANTHROPIC_API_KEY  claude-sonnet-4-5
gemini      https://generativelanguage.googleapis.com/v1beta/openai GEMINI_API_KEY gemini-2.5-flash
openrouter  https://openrouter.ai/api/v1 OPENROUTER_API_KEY openai/gpt-oss-120b reasoning_details
together    https://api.together.xyz/v1        TOGETHER_API_KEY   openai/gpt-oss-120b
mistral     https://api.mistral.ai/v1          MISTRAL_API_KEY    mistral-large-latest
deepseek    https://api.deepseek.com/v1 DEEPSEEK_API_KEY deepseek-chat reasoning_content
xai         https://api.x.ai/v1                XAI_API_KEY        grok-4
cerebras    https://api.cerebras.ai/v1         CEREBRAS_API_KEY   gpt-oss-120b
huggingface https://router.huggingface.co/v1   HF_TOKEN           openai/gpt-oss-120b
ollama      http://127.0.0.1:11434/v1
llamacpp    http://127.0.0.1:8080/v1
lmstudio    http://127.0.0.1:1234/v1
vllm        http://127.0.0.1:8000/v1
"""
BACKENDS = {row.split()[0]: Backend(*row.split()) for row in TABLE.strip().splitlines()}
WAYS_TO_GO_ON = """no endpoint is set. Three ways to go on:
  a key       cp .env.example .env, and put one key into it (GROQ_API_KEY, OPENAI_API_KEY, ...)
  a server    start Ollama, llama.cpp, LM Studio or vLLM on its usual port, or give --base-url
  no account  python examples/local_model.py "task" runs a small model on this machine"""

LOOPBACK = re.compile(r"(?:https?://)?(?:localhost|127(?:\.\d+){3}|\[::1\])(?:[:/]|\Z)")


@dataclass
class Endpoint:
    """The endpoint of a run: where it is, and what was learned about it on the way."""

    backend: Backend
    url: str
    key: str = "no-key"
    model: str = ""
    temperature: float | None = None  # None: not sent
    refused: set[str] = field(default_factory=set)  # parameters that it does not take
    _client: Any = None

    @property
    def client(self) -> Any:
        """The SDK's client, one for the whole run. This machine is not asked through a proxy."""
        if self._client is None:
            import openai  # noqa: PLC0415  (takes most of a second)

            http = openai.DefaultHttpxClient(trust_env=not LOOPBACK.match(self.url))
            wait = openai.Timeout(600, connect=10)  # a local model may be silent for minutes
            client = openai.OpenAI(api_key=self.key, base_url=self.url, http_client=http)
            self._client = client.with_options(timeout=wait, max_retries=0)
        return self._client

    def models(self, timeout: float = 20) -> list[str]:
        """The ids that GET /v1/models names. Raises BackendError."""
        try:
            body = self.client.get("/models", cast_to=object, options={"timeout": timeout})
            return [str(item["id"]) for item in body["data"]]
        except Exception as error:  # anything may come back
            raise explain(error, self) from error

    def failure(self, text: str, kind: str = "fatal", wait: float | None = None) -> "BackendError":
        """A BackendError that names the URL, has one line, and does not hold the key."""
        line = " ".join(text.split()).replace(self.key, "[key]")
        return BackendError(f"{self.url}: {line[:500]}", kind, wait)


def setting(name: str) -> str:
    """An environment variable, without what pasting leaves around it."""
    return os.environ.get(name, "").strip(" \t\r\n\"'\u201c\u201d\u2018\u2019\ufeff")


def load_settings() -> None:
    """Read the `.env` beside this file; what is set already stays. Never one of the working
    directory: a cloned project could have the key sent elsewhere with it."""
    from dotenv import load_dotenv  # noqa: PLC0415

    try:
        load_dotenv(Path(__file__).with_name(".env"), encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read .env beside backend.py: {error}") from error


def connect(name: str | None = None, model: str | None = None, url: str | None = None) -> Endpoint:
    """The endpoint: from the arguments, else the environment, else a server on this machine.

    Raises BackendError, of kind "settings" where something has to be set first.
    """
    load_settings()
    url = clean_url(url or setting("OPENAI_BASE_URL"))
    keyed = (b.name for b in BACKENDS.values() if b.key and setting(b.key))
    name = (
        name
        or setting("AGENT_BACKEND")
        or ("openai" if url else next(keyed, None) or local_server())
    )
    if name not in BACKENDS:
        known = f"unknown backend {name!r}: it can be {', '.join(BACKENDS)}"
        raise SettingsError(known if name else WAYS_TO_GO_ON)
    backend, temperature = BACKENDS[name], setting("AGENT_TEMPERATURE")
    key = setting(backend.key) if backend.key else ""
    if backend.key and not key and not LOOPBACK.match(url):
        raise SettingsError(f"{name} needs a key: set {backend.key}, best in .env")
    if re.search(r"[^!-~]", key):
        raise SettingsError(f"{backend.key} has a character that no key has: copy it again")
    endpoint = Endpoint(backend, url or backend.url, key or "no-key")
    try:  # small models wander, so the local servers get 0
        endpoint.temperature = float(temperature) if temperature else None if backend.key else 0.0
    except ValueError:
        raise SettingsError(f"AGENT_TEMPERATURE={temperature} is no number") from None
    endpoint.model = model or setting("AGENT_MODEL")
    if not endpoint.model and endpoint.url == backend.url:
        endpoint.model = backend.model or ""
    endpoint.model = endpoint.model or next(iter(endpoint.models()), "")
    if not endpoint.model:
        raise SettingsError(
            f"no model is named (--model, AGENT_MODEL), and {endpoint.url} has none"
        )
    return endpoint


def local_server() -> str | None:
    """The first local server of the table that answers on its usual port and has a model."""
    for backend in BACKENDS.values():
        with contextlib.suppress(BackendError):
            if not backend.key and Endpoint(backend, backend.url).models(timeout=1):
                return backend.name
    return None


def clean_url(url: str) -> str:
    """A base URL as the SDK wants it, of what people paste."""
    url = url.strip().rstrip("/").removesuffix("/chat/completions")
    if url and "://" not in url:
        url = ("http://" if LOOPBACK.match(url) else "https://") + url
    if url and not re.fullmatch(r"https?://[^/\s]\S*", url):
        raise SettingsError(f"the base URL {url!r} is no http(s) address")
    return url


# --- chat ----------------------------------------------------------------------------------------

Message = dict[str, Any]  # role, content, and the fields of the role, as in the API
Watch = Callable[[str, Any], None]  # is told of an event: its name, and what belongs to it
TRIES = {"transient": 4, "bad_call": 3, "parameter": 9}  # in all, by kind of failure


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
    finish_reason: str  # as it came; "content_filter" for a refusal too
    usage: dict[str, int]  # prompt_tokens, completion_tokens, total_tokens; 0 where not told
    message: Message
    reasoning: str
    refusal: str
    nudge: str  # what to tell the model, once, where this looks like no answer; mostly nothing


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
    watch: Watch = lambda *_: None,
) -> Reply:
    """Send the conversation, return the reply: the same one, streamed or not.

    `watch` is told "request" and "chunk" (both raw), "text" (of the answer, as it streams) and
    "notice" (a line before each wait). Raises BackendError; its kind is "context" where the
    conversation is too long for the model.
    """
    endpoint, failures = backend or connect(), Counter[str]()
    request = {
        "model": endpoint.model,
        "messages": [m | {"content": whole_characters(m["content"])} for m in messages],
        "tools": tools or None,
        "tool_choice": tool_choice if tools else None,
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
        "temperature": endpoint.temperature,
    }
    while True:
        refused = endpoint.refused
        sent = {k: v for k, v in request.items() if v is not None and k not in refused}
        watch("request", sent)
        try:
            return exchange(endpoint, sent, watch)
        except BackendError as error:
            failures[error.kind] += 1
            if failures[error.kind] >= TRIES.get(error.kind, 1):
                raise
            wait = 0.5 * 2 ** (failures[error.kind] - 1) if error.wait is None else error.wait
            watch("notice", f"{error}; trying again in {wait:g} s")
            time.sleep(wait)


def exchange(endpoint: Endpoint, request: dict, watch: Watch) -> Reply:
    """One request and its reply. Whatever the SDK raises leaves here as a BackendError."""
    names = [tool["function"]["name"] for tool in request.get("tools", [])]

    def chunks(body: Iterable[bytes]) -> Iterator[dict]:
        """An error may come with status 200, or in the middle of a stream."""
        for chunk in read_chunks(body):
            watch("chunk", chunk)
            inner = chunk[0] if isinstance(chunk, list) and len(chunk) == 1 else chunk
            if not isinstance(inner, dict):
                raise endpoint.failure(f"this is no chat completion: {json.dumps(chunk)[:80]}")
            if inner.get("error") or (not inner.get("choices") and error_fields(inner)[0]):
                raise explain(inner, endpoint, request)
            yield inner

    try:
        create = endpoint.client.chat.completions.with_streaming_response.create
        with create(**request) as response:
            whole = assemble(chunks(response.iter_bytes()), bool(names), watch)
        return clean_reply(whole, names, endpoint.backend.returns)
    except Exception as error:  # the SDK lets httpx, JSON, URL and encoding errors through
        raise explain(error, endpoint, request) from error


# --- errors --------------------------------------------------------------------------------------

OPTIONAL = ("stream_options", "temperature", "tool_choice")  # what a request can do without
NEVER = r"(?!)"  # a pattern that nothing matches
RULES = [  # statuses, what is said, the kind of failure, what to do; the first that fits
    ((402,), r"insufficient[_ ](quota|balance|credit|fund)|credit balance is", "fatal",
     "quota: the account has nothing left"),
    ((413,), r"context[_ ]?(length|size|window)|maximum context|(prompt|input|request) (is )?too "
     r"(long|large)|too many (\w+ )?tokens|reduce (the length|your message)|exceed\w* .{0,40}context"
     r"|(input|prompt) .{0,40}exceeds?|maximum (input|prompt|sequence) length", "context", ""),
    ((), r"tool_use_failed|pars\w+ tool[ _]?call|failed to call a function|malformed_function_call",
     "bad_call", "the model kept producing bad tool calls"),
    ((), r"tools?\b.{0,60}not (support|enabl)|not support.{0,40}\btools?\b", "fatal",
     "model {model} cannot call tools: take another, or --no-tools"),
    ((401, 403), NEVER, "fatal", "check {key}, the key of {name}"),
    ((404, 405), NEVER, "fatal", "is there a model {model}? does the base URL lack its /v1?"),
    ((408, 409, 429, *range(500, 600)), NEVER, "transient", ""),
    ((), "ConnectionRefusedError", "fatal", "nothing listens there: is the server running?"),
    ((), "gaierror", "fatal", "the host is unknown: check the base URL and the network"),
    ((), "SSLError", "fatal", "no trusted TLS connection"),
    ((), "Timeout|ConnectionError|TransportError|error object", "transient", ""),
    ((), "proxy|socks", "fatal", "look at the variables HTTP_PROXY and ALL_PROXY"),
]  # fmt: skip


class BackendError(Exception):
    """Why there is no reply: one line with the URL, and what to do.

    kind: "settings" (nothing was sent), "transient", "bad_call", "parameter" (one was refused),
    "context" (too long for the model) or "fatal". wait: seconds that the endpoint asked for.
    """

    def __init__(self, message: str, kind: str = "fatal", wait: float | None = None) -> None:
        super().__init__(visible(message))
        self.kind, self.wait = kind, wait


SettingsError = functools.partial(BackendError, kind="settings")


def explain(error: Any, endpoint: Endpoint, request: Iterable[str] = ()) -> BackendError:
    """Whatever was raised, or an error object that came as a reply, as a BackendError."""
    if isinstance(error, BackendError):
        return error
    status, headers, title = getattr(error, "status_code", None), {}, type(error).__name__
    if isinstance(error, dict):
        message, codes = error_fields(error)
        status = int((re.findall(r"\b[45]\d\d\b", codes) or "0")[0]) or None
        codes, title = f"{codes} error object", "error"
    elif status:
        (message, codes), headers = error_fields(error.response.text), error.response.headers
    else:
        chain = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) and cause not in chain:
            chain.append(cause)
        codes = " ".join(cls.__name__ for link in chain for cls in type(link).__mro__)
        message = str(chain[-1])
    said, text = f"{codes} {message}", f"{status or title}: {message or codes or 'no reason given'}"
    for name in OPTIONAL:
        if status in (400, 404, 422) and name in request and re.search(rf"\b{name}\b", said):
            endpoint.refused.add(name)
            return endpoint.failure(f"{text} (left out from now on)", "parameter", 0)
    rules = (r for r in RULES if status in r[0] or re.search(r[1], said, re.I))
    _, _, kind, hint = next(rules, ((), "", "fatal", ""))
    wait = retry_after(headers) if kind == "transient" else None
    if wait is not None and wait > 60:
        kind, hint = "fatal", f"it asks to wait {wait:.0f} s: try again later"
    hint = hint.format(**endpoint.backend._asdict() | {"model": endpoint.model})
    return endpoint.failure(f"{text} ({hint})" if hint else text, kind, wait)


def error_fields(body: Any) -> tuple[str, str]:
    """The message and the codes of an error body, in any of the shapes that are about."""
    if isinstance(body, str):
        if re.match(r"\s*<(html|!doctype|head|body)", body, re.I):
            title = re.search(r"<title>(.*?)</title>", body, re.I | re.S)
            return f"a page of HTML{f' ({title[1]})' if title else ''}", ""
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return body, ""
    while isinstance(body, list) and body:  # Gemini
        body = body[0]
    if not isinstance(body, dict):
        return str(body or ""), ""
    codes = " ".join(str(body[key]) for key in ("code", "type", "status") if body.get(key))
    raw = body["metadata"].get("raw") if isinstance(body.get("metadata"), dict) else None
    for key in ("error", "message", "detail", "errors", "msg"):
        if body.get(key):
            message, more = error_fields(body[key])
            return f"{message} ({raw})" if raw else message, f"{codes} {more}".strip()
    return str(raw or ""), codes


def retry_after(headers: Any) -> float | None:
    """Seconds to wait, of `retry-after-ms` or `retry-after` (a number, with a unit, or a date)."""
    text = str(headers.get("retry-after") or "").strip()
    if headers.get("retry-after-ms"):
        text = f"{headers['retry-after-ms']}ms"
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text):
        return float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


# --- assembly ------------------------------------------------------------------------------------

GROWING = "content reasoning_content reasoning refusal text summary data arguments".split()


def read_chunks(blocks: Iterable[bytes]) -> Iterator[Any]:
    """The JSON values of a body: the data of server-sent events, or one document.

    Each line tells which, not the content type: a request to stream may be answered with plain
    JSON, and the other way round. Raises ConnectionError where the body ends in the middle.
    """
    pending = rest = b""
    for block in itertools.chain(blocks, [b"\n"]):
        *lines, rest = re.split(rb"\r\n|\n|\r", rest + block)  # httpx would split at U+2028 too
        for line in lines:
            event = line.startswith(b"data:")
            if not event and re.match(rb"(event|id|retry)?:", line):
                continue
            pending = (pending + (line[5:] if event else line + b"\n")).lstrip()
            if pending.strip() == b"[DONE]":
                return
            if event:
                with contextlib.suppress(ValueError):  # else it goes on in the next data line
                    value, pending = json.loads(pending.decode("utf-8", "replace")), b""
                    yield value
    if pending.startswith(b"<"):
        raise ValueError("a page of HTML came back: the base URL is not that of a chat API")
    if pending:
        try:
            yield json.loads(pending.decode("utf-8", "replace"))
        except ValueError:
            raise ConnectionError("the reply was cut off, or is no JSON") from None


def assemble(chunks: Iterable[dict], offered: bool, watch: Watch) -> dict:
    """Add the chunks up; tell the text as soon as it can be no call. A plain reply is one chunk.

    Raises ConnectionError where the end is missing.
    """
    whole: dict = {}
    shown = 0
    for chunk in chunks:
        whole = merged(whole, chunk)
        for message in messages_of(whole)[:1]:
            text = certain_text(text_of(message.get("content"))[0], offered)
            if len(text) > shown:
                watch("text", text[shown:])
                shown = len(text)
    if not messages_of(whole):
        raise ConnectionError("the reply is empty: no choices")
    if not any("delta" not in c or c.get("finish_reason") for c in whole["choices"]):
        raise ConnectionError("the reply was cut off before its end")
    return whole


def messages_of(whole: dict) -> list[dict]:
    """The messages of a reply's choices, each with its finish reason."""
    choices = whole.get("choices")
    choices = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    parts = [(c.get("delta") or c.get("message"), c.get("finish_reason")) for c in choices]
    return [(p if isinstance(p, dict) else {}) | {"finish": str(f or "stop")} for p, f in parts]


def merged(old: Any, new: Any, key: str = "") -> Any:
    """A chunk added to what came before it: texts grow, lists are matched, the rest is newer."""
    if not old or new is None:
        return old if new is None else new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {k: merged(old.get(k), v, k) for k, v in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        old = list(old)
        for item in new:
            place = place_of(item, old, key)
            old[place : place + 1] = [merged(old[place] if place < len(old) else None, item)]
        return old
    if not isinstance(old, str) or not isinstance(new, str):
        return new or old
    if key == "name":  # repeated on each fragment, or in pieces
        return old if old.endswith(new) else new if new.startswith(old) else old + new
    return old + new if key in GROWING else new or old


def place_of(item: Any, old: list, key: str) -> int:
    """Where in the list that came so far an item goes on; its length for a new one.

    By index; but a call with a new id is a new call also where the index is taken (Ollama), and so
    is one with a name after complete arguments; without an index the last call goes on (Gemini).
    """
    if not isinstance(item, dict) or (key != "tool_calls" and "index" not in item):
        return len(old)
    index, call_id, function = (item.get(k) for k in ("index", "id", "function"))
    for place in reversed(range(len(old))):
        before = old[place] if isinstance(old[place], dict) else {}
        if index not in (None, before.get("index")):
            continue
        if key != "tool_calls" or (call_id and call_id == before.get("id")):
            return place
        if call_id and before.get("id"):
            continue
        named = isinstance(function, dict) and function.get("name") and function.get("arguments")
        done = (before.get("function") or {}).get("arguments")
        return len(old) if named and done and parsed(done) is not None else place
    return len(old)


def clean_reply(whole: dict, names: list[str], returns: str | None) -> Reply:
    """The clean reply, and the message that goes back, of all that came."""
    messages = messages_of(whole)
    best = next((m for m in messages if m.get("tool_calls") or m.get("function_call")), messages[0])
    texts = [text_of(m.get("content")) for m in (best, *messages)]
    text = whole_characters(next((t for t, _ in texts if t), ""))
    reasoning = text_of(best.get("reasoning_content") or best.get("reasoning"))[0] or texts[0][1]
    reasoning = whole_characters(reasoning) + "".join(map("".join, THOUGHT.findall(text)))
    text = THOUGHT.sub("", text)
    raw = best.get("tool_calls") or best.get("function_call") or []
    calls = [clean_call(call) for call in (raw if isinstance(raw, list) else [raw])]
    if names and not calls:
        text, calls = calls_in_text(text, names)
        text = re.sub(r"</?tool_response>|<(\w+)>\s*</\1>", "", text)
    text, refusal = text.strip(), whole_characters(text_of(best.get("refusal"))[0])
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [as_sent(call) for call in calls]
    back = {"reasoning_content": reasoning, "reasoning_details": best.get("reasoning_details")}
    if returns and back[returns]:
        message[returns] = back[returns]
    usage = whole["usage"] if isinstance(whole.get("usage"), dict) else {}
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = {k: int(usage[k]) if isinstance(usage.get(k), (int, float)) else 0 for k in keys}
    counts["total_tokens"] = counts["total_tokens"] or sum(counts.values())
    finish = best["finish"] if text or not refusal else "content_filter"
    nudge = "" if calls else nudge_for(text, finish, names)
    return Reply(text or None, calls, finish, counts, message, reasoning, refusal, nudge)


def nudge_for(text: str, finish: str, names: list[str]) -> str:
    """What a small model needs to hear after a reply that is neither a call nor an answer."""
    named = re.search(f"`({'|'.join(names)})`", text) if names else None
    call = json.dumps({"name": named[1] if named else (names or [""])[0], "arguments": {}})
    if not text:
        return f"(Your reply was empty. Answer in plain words, or call a tool, as in\n{call}\n)"
    if names and re.match(r"\W*(json\W+)?name\W+\w+\W+(arguments|parameters)\b", text):
        return f"(There is no such tool. The tools are: {', '.join(names)}.)"
    if named or finish == "tool_calls" or text.startswith("error: "):
        return f"(That is no answer yet. Make the call, do not describe it: write\n{call}\n)"
    return ""


# --- calls ---------------------------------------------------------------------------------------

TAG = r"(?:tool_calls?|tools?|function_calls?|tool_code)"
OPENING = rf"(?:(?:```\w*|<{TAG}>|\[TOOL_CALLS\])\s*)*(?=[{{\[<])"
CALL_START = re.compile(rf"^[ \t]*{OPENING}", re.M)
CALL_NEXT = re.compile(rf"[\s,;]*{OPENING}")  # right after another one
CALL_END = re.compile(rf"[}}\]]*\s*(?:```(?!\w)|</{TAG}>|\Z|(?<=\n))\s*(?:```(?!\w)|</{TAG}>)?")
FUNCTION_TAG = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.S)
PARAMETER_TAG = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.S)
MAY_BE_CALL = re.compile(r"^[ \t]*(?:`{1,2}\Z|(?:```\w*\s*)?(?:[{<]|\[[{T]|\[?\Z))", re.M)


def clean_call(call: Any, words_after: bool = False) -> ToolCall:
    """A call of any shape, with a fresh id, a clean name, and arguments that are JSON if they can.

    The id has 9 letters and digits, whatever the endpoint said: Mistral takes no other.
    """
    call = call if isinstance(call, dict) else {"arguments": call}
    nested = (call[k] for k in ("function", "custom") if isinstance(call.get(k), dict))
    function = next(nested, call)
    name = re.sub(r"<\|.*", "", whole_characters(text_of(function.get("name"))[0]), flags=re.S)
    name = re.sub(r"\A\s*functions?\.", "", name).strip()
    given = next((function[k] for k in ("arguments", "parameters", "input") if k in function), None)
    value = parsed(given)
    arguments = str(given) if value is None else json.dumps(value, ensure_ascii=False)
    call_id = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    made = SimpleNamespace(name=name, arguments=arguments)
    return ToolCall(call_id, made, call.get("extra_content"), words_after)


def as_sent(call: ToolCall) -> dict:
    """A call as it goes back: a name that every endpoint takes, arguments that are an object."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.function.name)[:64] or "unknown"
    arguments = "{}" if parsed(call.function.arguments) is None else call.function.arguments
    sent = {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return sent | ({"extra_content": call.extra_content} if call.extra_content else {})


def parsed(arguments: Any) -> dict | None:
    """The arguments as an object; None where they are none.

    Blank and null stand for no arguments. They are taken out of a code fence, decoded twice, freed
    from one stray token at the end. Never taken: NaN, nesting and numbers beyond bounds, and lone
    surrogates, which some servers answer with an error in every later turn.
    """
    for _ in range(3):
        if isinstance(arguments, str):
            text = re.sub(r"\A\s*```\w*\s*|\s*```\s*\Z", "", arguments).strip()
            try:
                arguments, end = json.JSONDecoder(parse_constant=no_constant).raw_decode(text)
            except (ValueError, RecursionError):
                return None if text else {}
            if not re.fullmatch(r"\s*[^\s{\[\"]{0,40}", text[end:]):
                return None
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return {} if arguments is None else arguments if isinstance(arguments, dict) else None


def no_constant(name: str) -> NoReturn:
    """NaN and Infinity are JSON to Python, and to nobody else."""
    raise ValueError(name)


def calls_in_text(text: str, names: list[str]) -> tuple[str, list[ToolCall]]:
    """The words of a text, and the calls that a small model wrote into it.

    A call stands on its own lines, bare, fenced or in tags, and its name is one of `names`.
    """
    parts: list[Any] = []  # words and calls, as they stand
    position, after_call = 0, -1
    while start := (position == after_call and CALL_NEXT.match(text, position)) or (
        CALL_START.search(text, position)
    ):
        calls, end = decode_calls(text, start.end(), names)
        if calls:
            parts += [text[position : start.start()], *calls]
            position = after_call = end
        else:
            parts.append(text[position : start.end() + 1])
            position = start.end() + 1
    parts.append(text[position:])
    words = ["" if isinstance(part, dict) else part for part in parts]
    called = [i for i, part in enumerate(parts) if isinstance(part, dict)]
    return "".join(words), [clean_call(parts[i], bool("".join(words[i:]).strip())) for i in called]


def decode_calls(text: str, start: int, names: list[str]) -> tuple[list[dict], int]:
    """The calls that begin at `start` and end with their line, and where they end."""
    if match := FUNCTION_TAG.match(text, start):
        parameters = dict(PARAMETER_TAG.findall(match[2]))
        value: Any = {"name": match[1], "arguments": parameters or match[2]}
        end = match.end()
    else:
        value, end = decode_json(text, start)
    calls = value if isinstance(value, list) else [value]
    closed = CALL_END.match(text, end)
    good = all(isinstance(c, dict) and re.search("arguments|parameters", str(c)) for c in calls)
    good = good and all(clean_call(call).function.name in names for call in calls)
    return (calls, closed.end()) if good and closed else ([], start)


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start`, and its end; its braces may be doubled, and one may be missing."""
    decoder = json.JSONDecoder(strict=False)
    for skip in (0, 1):
        with contextlib.suppress(ValueError, RecursionError):
            return decoder.raw_decode(text, start + skip * text.startswith("{{", start))
    block = re.split(r"\s*(?:```|</|\n\s*\n|\Z)", text[start:], maxsplit=1)[0]
    for attempt in (block.replace("{{", "{").replace("}}", "}"), block + "}", block[1:] + "}"):
        with contextlib.suppress(ValueError, RecursionError):
            return decoder.raw_decode(attempt)[0], start + len(block)
    return None, start


# --- text ----------------------------------------------------------------------------------------

THOUGHT = re.compile(r"(?<![`\"'])<think>(.*?)(?:</think>|\Z)|\A(.*)(?<![`\"'])</think>", re.S)
HIDING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories that a terminal obeys or hides
BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # letters that look like nothing
BLANK += "".join(map(chr, range(0xE0100, 0xE01F0)))  # variation selectors that no script needs
JOINING = "\u200c\u200d" + "".join(map(chr, range(0xFE00, 0xFE10)))  # in scripts and emoji


def text_of(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a `content`, which may be a list of parts."""
    text = thought = ""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict):
            text += text_of(part.get("text"))[0]
            thought += text_of(part.get("thinking"))[0]  # Mistral
        elif isinstance(part, str):
            text += part
    return text, thought


def certain_text(text: str, offered: bool) -> str:
    """The beginning of a growing text that can be no call and no reasoning any more."""
    text = text.lstrip()
    if "<think>".startswith(text[:7]):
        text = text.partition("</think>")[2].lstrip()
    if offered and (hold := MAY_BE_CALL.search(text)):
        text = text[: hold.start()]
    return re.sub(r"[\s\ud800-\udbff]+\Z", "", text)


def whole_characters(text: Any) -> Any:
    """A text with surrogate pairs joined (streams cut them) and lone ones replaced."""
    if not isinstance(text, str) or text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def visible(text: str, strict: bool = False) -> str:
    """The text with what a terminal would obey or hide written out, as in \\x1b.

    Lines and tabs stay; so do the joiners of emoji and scripts, unless `strict`.
    """

    def written_out(match: re.Match) -> str:
        char = match[0]
        hidden = char in BLANK or unicodedata.category(char) in HIDING and char not in JOINING
        hidden = hidden or strict and (char in JOINING or char.isspace())
        return char.encode("unicode_escape").decode() if hidden else char

    return re.sub(r"[^\x20-\x7e\n\t]", written_out, text if strict else text.replace("\r\n", "\n"))


def main() -> int:
    """`python backend.py "Say hello."`"""
    try:
        print(visible(complete(" ".join(sys.argv[1:]) or "Say hello.")))
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if error.kind == "settings" else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
