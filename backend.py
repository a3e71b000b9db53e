"""One chat call to any OpenAI-compatible endpoint, and one clean reply back.
`python backend.py "Say hello."` tries the set-up. What endpoints and models get wrong is put right
here: the loop sees one shape of reply. In order: settings, chat, errors, replies, process."""

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import sys
import time
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NoReturn

Message = dict[str, Any]  # role, content, and the fields of the role, as in the API
Watch = Callable[[str, Any], None]  # "request", "chunk" (raw), "text" (as it streams), "notice"

# --- settings ------------------------------------------------------------------------------------
# A row: name, base URL, environment variable of the key (local servers need none), model (or the
# first that GET /v1/models names), and the reasoning field that it wants back in the history.
Backend = namedtuple("Backend", "name url key model returns", defaults=(None, None, None))
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
vllm        http://127.0.0.1:8000/v1"""
BACKENDS = {row.split()[0]: Backend(*row.split()) for row in TABLE.strip().splitlines()}
WAYS_TO_GO_ON = """no endpoint is set. Three ways to go on:
  a key       cp .env.example .env, and put one key into it (GROQ_API_KEY, OPENAI_API_KEY, ...)
  a server    start Ollama, llama.cpp, LM Studio or vLLM on its usual port, or give --base-url
  no account  python examples/local_model.py "task" runs a small model on this machine"""
LOOPBACK = re.compile(r"(?:https?://)?(?:localhost|127(?:\.\d+){3}|\[::1\])(?:[:/]|\Z)")


@dataclass
class Endpoint:  # of a run: where it is, and what was learned about it on the way
    backend: Backend
    url: str
    key: str = field(default="no-key", repr=False)
    model: str = ""
    temperature: float | None = None  # None: not sent
    refused: set[str] = field(default_factory=set)  # parameters that it does not take

    @functools.cached_property
    def client(self) -> Any:
        """The SDK's client, one for the whole run. This machine is not asked through a proxy."""
        import openai  # noqa: PLC0415  (takes most of a second)

        away, hooks = not LOOPBACK.match(self.url), {"response": [self.check]}
        wait = openai.Timeout(600, connect=10)  # a local model may be silent for minutes
        http = openai.DefaultHttpxClient(trust_env=away, timeout=wait, event_hooks=hooks)
        return openai.OpenAI(api_key=self.key, base_url=self.url, http_client=http, max_retries=0)

    def check(self, response: Any) -> None:
        """Stop at an error, before the SDK reads its body to the end, and before a redirect."""
        if not response.is_success:
            body: list[bytes] = []
            with contextlib.suppress(Exception):  # however the body breaks, the status counts
                body.extend(itertools.islice(response.iter_bytes(), 20))
            raise explain(b"".join(body).decode("utf-8", "replace"), self, response)

    def hide(self, text: str) -> str:
        """The text without the key. What is shorter is none, and would garble it."""
        return text.replace(self.key, "[key]") if len(self.key) > 7 else text

    def models(self, timeout: float = 20) -> list[str]:
        """The ids that GET /v1/models names. Raises BackendError."""
        try:
            return [str(model.id) for model in self.client.models.list(timeout=timeout)]
        except Exception as error:  # anything may come back
            raise explain(error, self) from error


def need(condition: Any, told: str) -> None:
    """Raise what a person has to set right, unless the condition holds."""
    if not condition:
        raise BackendError(told, "settings")


@functools.cache
def load_env(path: str) -> None:
    """Read a `.env`, once; what is set already stays."""
    if os.path.exists(path):
        try:
            import dotenv  # noqa: PLC0415

            dotenv.load_dotenv(path, encoding="utf-8-sig")
        except (ImportError, OSError, ValueError) as error:
            need(False, f"cannot read .env ({error}); without dotenv: is this .venv/bin/python?")


def env(name: str) -> str:
    """An environment variable, or its line in `.env`, without what pasting leaves around it."""
    load_env(os.path.join(os.path.dirname(__file__), ".env"))  # a project's could move the key
    return os.environ.get(name, "").strip(" \t\r\n\"'\u201c\u201d\u2018\u2019\ufeff")


def connect(name: str | None = None, model: str | None = None, url: str | None = None) -> Endpoint:
    """The endpoint: from the arguments, the environment, or a server here. Raises BackendError."""
    need(find_spec("openai"), "openai is not installed here: is this .venv/bin/python?")
    url = (url or env("OPENAI_BASE_URL")).strip().rstrip("/").removesuffix("/chat/completions")
    if url and "://" not in url:
        url = ("http://" if LOOPBACK.match(url) else "https://") + url
    need(re.fullmatch(r"(https?://[^/\s]\S*)?", url), f"the base URL {url!r} is no http(s) address")
    name = name or env("AGENT_BACKEND") or (url and "openai")
    for usual, row in BACKENDS.items():  # the first whose key is set, or that answers here
        with contextlib.suppress(BackendError):
            if not name and (env(row.key) if row.key else Endpoint(row, row.url).models(1)):
                name = usual
    need(name, WAYS_TO_GO_ON)
    need(name in BACKENDS, f"unknown backend {name!r}: take {', '.join(BACKENDS)}")
    backend = BACKENDS[name]
    key = env(backend.key or "")
    told = f"{name} needs a key: set {backend.key} in .env (for a server without: --backend vllm)"
    need(key or not backend.key or LOOPBACK.match(url), told)
    need(not re.search(r"[^!-~]", key), f"{backend.key} has a character that no key has")
    heat = env("AGENT_TEMPERATURE") or ("" if backend.key else "0")  # small models wander
    need(re.fullmatch(r"(\d+(\.\d+)?)?", heat), f"AGENT_TEMPERATURE={heat} is no number")
    at = Endpoint(backend, url or backend.url, key or "no-key", "", float(heat) if heat else None)
    own = backend.model if at.url == backend.url else None
    at.model = model or env("AGENT_MODEL") or own or next(iter(at.models()), "")
    need(at.model, f"{at.url} has no model: name one (--model)")
    return at


# --- chat ----------------------------------------------------------------------------------------
@dataclass
class Reply:
    """What came back, made clean."""

    content: str | None
    tool_calls: list[Any]  # .id, .function.name, .function.arguments (text), as in the SDK
    finish_reason: str  # as it came; "content_filter" for a refusal too
    usage: dict[str, int]  # prompt_tokens, completion_tokens, total_tokens; 0 where not told
    message: Message  # what to append to the history
    reasoning: str


def complete(prompt: str, backend: Endpoint | None = None) -> str:
    """One question, one answer. Raises BackendError."""
    return chat([{"role": "user", "content": prompt}], backend=backend).content or ""


def chat(
    messages: list[Message], tools: list[dict] | None = None, *, backend: Endpoint | None = None,
    stream: bool = False, tool_choice: str | None = None, watch: Watch = lambda *_: None,
) -> Reply:  # fmt: skip
    """Send the messages and the tools' schemas; try again as TRIES has it. Raises BackendError."""
    at, failures, handled = backend or connect(), [], sys.exc_info()[1]
    request: Message = {"model": at.model, "messages": messages, "temperature": at.temperature}
    request |= {"tools": tools, "tool_choice": tool_choice} if tools else {}
    request |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    while True:
        try:
            return exchange(at, request, watch)
        except Exception as raised:  # the SDK lets httpx, JSON, URL and encoding errors through
            error = explain(raised, at, handled=handled)
            failures.append(error.kind)
            if (tries := failures.count(error.kind)) >= TRIES.get(error.kind, 1):
                raise error from raised
            wait = 2 ** (tries - 2) if error.wait is None else error.wait
            watch("notice", f"{error}; trying again in {wait:g} s")
            time.sleep(wait)


def exchange(at: Endpoint, request: dict, watch: Watch) -> Reply:
    """One request and its reply, told as it grows: by no half of a tag or of a surrogate pair."""
    names = [tool["function"]["name"] for tool in request.get("tools", [])]
    sent = {k: v for k, v in request.items() if v is not None and k not in at.refused}
    body = text_of(json.dumps(sent, ensure_ascii=False))  # lone surrogates and NaN are refused
    watch("request", sent := json.loads(body, parse_constant=lambda _: None))
    whole, shown = dict[str, Any](), ""
    create = at.client.chat.completions.with_streaming_response.create
    # As extra_body: else the SDK looks up the types of all messages, 0.2 s for 1,000 of them.
    with create(model=at.model, messages=[], extra_body=sent) as response:
        for count, chunk in enumerate(read_chunks(response.iter_bytes())):  # a plain body: just one
            watch("chunk", chunk)
            if any(map(chunk.get, ["error"] if chunk.get("choices") else REASONS)):
                raise explain(json.dumps(chunk), at)  # status 200, or in mid-stream
            whole = merged(whole, chunk)
            if count % (1 + len(shown) // 1000) == 0:  # a long text is looked at less often
                text = text_of([message.get("content") for message in messages_of(whole)[:1]])
                text = THOUGHT.sub("", re.sub(r"<[\w|/>]*\Z", "", text)).lstrip()
                text = (MAY_BE_CALL.split(text, 1)[0] if names else text).rstrip().rstrip("\ufffd")
                if text != shown and text.startswith(shown):
                    watch("text", text[len(shown) :])
                    shown = text
    reply = clean_reply(whole, names, at.backend.returns)
    if reply.content and reply.content != shown and reply.content.startswith(shown):
        watch("text", reply.content[len(shown) :])
    return reply


# --- errors --------------------------------------------------------------------------------------
TRIES = {"transient": 4, "bad_call": 3, "parameter": 4}  # in all, by kind of failure
REASONS = "error message detail msg errors raw".split()  # fields of an error that say why
CODES = "code type status param loc".split()  # fields that say what kind of error it is
RULES = [  # a pattern of status, codes and message; the kind; what to do. The first that fits
    (r"\A4(?:00|04|22).*\b(stream_options|temperature|tool_choice)\b", "parameter", "left out now"),
    (r"\A402|insufficient.(quota|balance|credit|fund)|credit balance", "fatal", "no quota is left"),
    (r"\A413|\A(400|422|5\d\d|error)\b.*context.?(length|size|window|limit)|\A(400|422|error)\b.*"
     r"(maximum (context|input|prompt|sequence)|reduce (the length|your)|too many (\w+ )?tokens|"
     r"exceed\w*.{0,40} context|token limit.{0,20}exceed|longer than the maximum|"
     r"(prompt|input|request|messages?|content)\b.{0,40} (exceeds?|too (long|large)))",
     "context", "nothing is left to shorten: ask for less"),
    (r"tool_use_failed|pars\w+ tool[ _]?call|failed to call a function|malformed_function_call",
     "bad_call", "the model kept producing bad tool calls"),
    (r"(tools?|function calling)\b.{0,60}(not (support|enabl)|requires)|support.{0,40}\b(tool use|"
     r"function call)|not support.{0,40}\btools?\b", "fatal",
     "model {at.model} cannot call tools: take another, or --no-tools"),
    (r"\A3\d\d", "fatal", "the base URL has moved: the endpoint sends elsewhere"),
    (r"\A40[13]", "fatal", "check the key: {at.backend.name} takes {at.backend.key}"),
    (r"\A40[45]", "fatal", "is there a model {at.model}? does the base URL lack its /v1?"),
    ("ConnectionRefusedError", "fatal", "nothing listens there: is the server running?"),
    ("gaierror", "fatal", "the host is unknown: check the base URL and the network"),
    ("SSLError", "fatal", "no trusted TLS connection"),
    (r"\A(408|409|429|5\d\d)|Timeout|ConnectionError|TransportError", "transient", ""),
    ("page of HTML", "fatal", "the base URL is not that of a chat API"),
    (r"\Aerror ", "transient", "that is no chat completion"),
    ("proxy|socks", "fatal", "look at the variables HTTP_PROXY and ALL_PROXY")]  # fmt: skip


class BackendError(Exception):
    """Why there is no reply, in one line; and the seconds to wait that the endpoint asked for."""

    def __init__(self, message: str, kind: str = "fatal", wait: float | None = None) -> None:
        super().__init__(visible(message))
        self.kind, self.wait = kind, wait  # "settings", "context" (too long), "fatal", or of TRIES


def explain(error: Any, at: Endpoint, response: Any = None, handled: Any = None) -> BackendError:
    """What was raised (not what its caller `handled` then), or the body of an error, as a line."""
    if isinstance(error, str):
        fields: list[tuple[str, Any]] = []
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(error, object_pairs_hook=fields.extend)  # all fields of all objects in it
        codes = " ".join(str(value) for key, value in fields if key in CODES)
        told = [text for key, text in fields if key in REASONS and isinstance(text, str) and text]
        message = ": ".join(dict.fromkeys(told)) or error
        if html := re.match(r"(?is)\s*<(?:html|!doctype|head|body)(.*<title>(.*?)<)?", message):
            message = f"a page of HTML: {html[2] or ''}"
        stated = [response.status_code] if response else re.findall(r"\b[45]\d\d\b", codes)
        status = str([*stated, "error"][0])
    else:
        chain = [error]
        while (why := chain[-1].__cause__ or chain[-1].__context__) not in (None, handled, *chain):
            chain.append(why)
        if known := next((link for link in chain if isinstance(link, BackendError)), None):
            return known  # of `check`, wrapped by the SDK
        codes = " ".join(cls.__name__ for link in chain for cls in type(link).__mro__)
        status, message = type(error).__name__, str(chain[-1])
    said = f"{status} {codes[:1000]} {message[:2000]}"
    fits = ((re.search(f"(?is){rule}", said), kind, way.format(at=at)) for rule, kind, way in RULES)
    match, kind, hint = next((fit for fit in fits if fit[0]), (None, "fatal", ""))
    wait = {"transient": retry_after(getattr(response, "headers", {})), "parameter": 0}.get(kind)
    if wait and wait > 60:
        kind, hint = "fatal", f"it asks to wait {wait:.0f} s: try again later"
    at.refused |= {match[1].lower()} if match and kind == "parameter" else set()
    line = at.hide(" ".join((message or codes or "no reason given").split()))[:400]
    return BackendError(f"{at.url}: {status}: {line} ({hint})".removesuffix(" ()"), kind, wait)


def retry_after(headers: Any) -> float | None:
    """Seconds to wait, of `retry-after-ms` or `retry-after` (a number, with a unit, or a date)."""
    import email.utils  # noqa: PLC0415  (rare, and slow to load)

    ms, text = headers.get("retry-after-ms"), headers.get("retry-after", "").strip()
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", f"{ms}ms" if ms else text):
        return float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


# --- replies -------------------------------------------------------------------------------------
GROWING = "name content reasoning_content reasoning refusal text summary data arguments".split()
TOKENS = "prompt_tokens completion_tokens total_tokens".split()
TAG = r"(?:tool_calls?|tools?|function_calls?|tool_code)"
OPENING, CLOSING = rf"(?:```\w*|<{TAG}>|\[TOOL_CALLS\])\s*", rf"(?:```(?!\w)|</{TAG}>)"
CODE = r"^[ \t]*(?!```(?!\w)|```\w*\s*[{\[<])```.*?(?:^[ \t]*```|\Z)"  # is passed over
CALL_START = re.compile(rf"(?ms){CODE}|^[ \t,;]*(?:{OPENING}){{0,3}}(?=[{{\[<])")
CALL_END = re.compile(rf"[}}\]]*\s*(?:{CLOSING}|\Z|(?<=\n))\s*{CLOSING}?\s*")
PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.S)
MAY_BE_CALL = re.compile(r"^[ \t]*(?:`{1,2}\Z|(?:```\w*\s*)?(?:[{<]|\[[{T]|\[?\Z))", re.M)
THINK, END = r"(?<![`\"'])<think(?:ing)?>(.*?)", r"</think(?:ing)?>"
HARMONY = r"<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|\Z)"  # left whole by a server
THOUGHT = re.compile(rf"(?s){THINK}(?:{END}|\Z)|\A((?:(?!<think).)*)(?<![`\"']){END}|{HARMONY}")
JOINING = "\u200c\u200d\ufe00-\ufe0f"  # in scripts and emoji
BLANKS = f"{JOINING}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U000e0100-\U000e01ef"  # unseen


def read_chunks(blocks: Iterable[bytes]) -> Iterator[dict]:
    """The objects in server-sent events, or the one that a body is; what is none, as an error."""
    pending, rest, size = "", b"", 0
    for block in itertools.chain(blocks, [b"\n\n"]):
        if (size := size + len(block)) > 50_000_000:
            raise ValueError("the reply does not end")
        *lines, rest = re.split(rb"\r\n|\n|\r", rest + block)  # no U+2028: JSON may hold it
        for text in (line.decode("utf-8", "replace") for line in lines):
            pending += "\n" + re.sub(r"\A((event|id|retry)?:.*|\ufeff*(data:)?)", "", text)
            if pending.strip() == "[DONE]":
                return
            if text[:1].isspace():
                continue  # inside of a JSON body; to try each line of a long one takes minutes
            with contextlib.suppress(ValueError):  # else it goes on in the next line
                value, pending = json.loads(pending, strict=False), ""
                yield value if isinstance(value, dict) else {"error": [value]}
    if pending.strip():
        yield {"error": pending}


def merged(old: Any, new: Any, key: str = "") -> Any:
    """A chunk added to what came before it: texts grow, lists are matched, the rest is newer."""
    if not old or not new:
        return old or new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {k: merged(old.get(k), v, k) for k, v in new.items()}
    if isinstance(old, list) or isinstance(new, list):  # Mistral sends parts, then plain text
        old = list(as_list(old))
        for item in as_list(new):
            place = next((i for i in range(len(old))[::-1] if goes_on(old[i], item, key)), len(old))
            old[place : place + 1] = [merged(old[place] if old[place:] else None, item)]
        return old
    if isinstance(old, str) and isinstance(new, str) and key in GROWING:
        again = key == "name" and (old.endswith(new) or new.startswith(old))  # on each fragment
        return max(old, new, key=len) if again else old + new
    return new


def goes_on(old: Any, new: Any, key: str) -> bool:
    """Whether an item of a list goes on with this earlier one. Ollama: not with another id."""
    old, new = as_dict(old), as_dict(new)
    last = key in ("tool_calls", "choices")  # Gemini: without an index the last one goes on
    same = last if new.get("index") is None else new["index"] == old.get("index")
    before, function = as_dict(old.get("function")), as_dict(new.get("function"))
    again = before.get("arguments") and function.get("name") and function.get("arguments")
    again = again and parsed(before["arguments"]) is not None  # a whole call, and a new one
    return same and (old["id"] == new["id"] if old.get("id") and new.get("id") else not again)


def messages_of(whole: dict) -> list[dict]:
    """The messages of a reply, one a choice, with the choice's other fields."""
    choices = filter(as_dict, as_list(whole.get("choices")))
    return [choice | as_dict(choice.get("delta") or choice.get("message")) for choice in choices]


def clean_reply(whole: dict, names: list[str], returns: str | None) -> Reply:
    """The clean reply, and the message that goes back, of all that came."""
    messages = messages_of(whole)
    if not any("delta" not in m or m.get("finish_reason") for m in messages):
        raise ConnectionError("the reply was cut off before its end, or is empty")
    top = next((m for m in messages if m.get("tool_calls") or m.get("function_call")), messages[0])
    text = next(filter(None, (text_of(m.get("content")) for m in (top, *messages))), "")
    thought = [top.get("reasoning_content") or top.get("reasoning"), *THOUGHT.findall(text)]
    text = THOUGHT.sub("", text)
    calls = [*map(clean_call, as_list(top.get("tool_calls") or top.get("function_call") or []))]
    if names and not calls:
        text, calls = calls_in_text(text, names)
        text = re.sub(r"</?tool_response>|<(\w+)>\s*</\1>", "", text)
    refused = not text.strip() and text_of(top.get("refusal"))
    text = (refused or text).strip()
    finish = "content_filter" if refused else str(top.get("finish_reason") or "stop")
    extra = {"tool_calls": [as_sent(call) for call in calls], returns: top.get(returns)}
    message = {"role": "assistant", "content": text} | {k: v for k, v in extra.items() if k and v}
    told = as_dict(whole.get("usage"))
    usage = {k: n if isinstance(n := told.get(k), int) and 0 <= n < 10**12 else 0 for k in TOKENS}
    usage["total_tokens"] = usage["total_tokens"] or sum(usage.values())
    return Reply(text or None, calls, finish, usage, message, text_of(thought))


def clean_call(call: Any) -> SimpleNamespace:
    """A call of any shape, with a fresh id, a clean name, and JSON as arguments if it can be."""
    call = as_dict(call) or {"arguments": call}
    function = as_dict(call.get("function")) or as_dict(call.get("custom")) or call
    name = re.sub(r"\A\s*functions?\.|<\|.*", "", text_of(function.get("name")), flags=re.S).strip()
    given = function.get("arguments", function.get("parameters", function.get("input")))
    text = str(given) if (value := parsed(given)) is None else json.dumps(value, ensure_ascii=False)
    fresh, extra = os.urandom(5).hex()[:9], call.get("extra_content")  # Mistral takes no other id
    function = SimpleNamespace(name=name, arguments=text)
    return SimpleNamespace(id=fresh, function=function, extra_content=extra, words_after=False)


def as_sent(call: SimpleNamespace) -> dict:
    """A call as it goes back: a name that every endpoint takes, arguments that are an object."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", call.function.name)[:64] or "unknown"
    arguments = "{}" if parsed(call.function.arguments) is None else call.function.arguments
    sent = {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return sent | ({"extra_content": call.extra_content} if call.extra_content else {})  # Gemini's


def parsed(arguments: Any) -> dict | None:
    """The arguments as an object, also out of a fence, encoded twice, or before a stray token."""
    with contextlib.suppress(ValueError, RecursionError):
        while isinstance(arguments, str):
            text = re.sub(r"\A```\w*|```\Z", "", arguments.strip()).strip()
            value, end = json.JSONDecoder().raw_decode(text or "{}")
            arguments = value if re.fullmatch(r"\s*[^\s{\[\"]{0,40}", text[end:]) else False
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()  # servers are strict
        return {} if arguments is None else arguments if isinstance(arguments, dict) else None
    return None


def calls_in_text(text: str, names: list[str]) -> tuple[str, list[SimpleNamespace]]:
    """The words of a text, and the calls in it: on lines of their own, bare, fenced or in tags."""
    words, calls = "", []
    for _ in range(500):  # a wild text has thousands of openings
        if not (start := CALL_START.search(text)) or not any(name in text for name in names):
            break
        value, rest = decoded(text[start.end() :])
        made, closed = [clean_call(item) for item in as_list(value)], CALL_END.match(rest)
        ours = made and all(call.function.name in names for call in made)
        if ours and closed and re.search('"(arguments|parameters)"', json.dumps(value)):
            words += text[: start.start()]
            calls += [(call, len(words)) for call in made]
            text = rest[closed.end() :]
        else:
            end = text.find("\n", start.end()) + 1 or len(text)
            words, text = words + text[:end], text[end:]
    for call, place in calls:  # whether the text went on after it
        call.words_after = bool(words[place:].strip() or text.strip())
    return words + text, [call for call, _ in calls]


def decoded(text: str) -> tuple[Any, str]:
    """The JSON value or function tag that a text begins with, its braces mended, and the rest."""
    if tag := re.match(r"(?s)<function=([^>\s]+)>(.*?)(?:</function>|\Z)(.*)", text):
        return {"name": tag[1], "arguments": dict(PARAMETER.findall(tag[2])) or tag[2]}, tag[3]
    text = text[text.startswith("{{") :]  # {{...}, and below {{... {{...}} }} and {...
    closed = re.sub(r"(?=\s*(```|</|\n\s*\n|\Z))", "}", text, count=1)
    for source in (text, text.replace("{{", "{").replace("}}", "}"), closed):
        with contextlib.suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder(strict=False).raw_decode(source)
            return value, source[end:]
    return None, text


def as_dict(value: Any) -> dict:
    """What should be an object, as one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list:
    """What may be one or many, as many."""
    return value if isinstance(value, list) else [value]


def text_of(content: Any) -> str:
    """The text of a `content`, which may be a list of parts; with no lone half of a character."""
    if isinstance(content, (list, tuple)):
        return "".join(map(text_of, content))
    if isinstance(content, dict):
        thought = text_of(content.get("thinking"))  # Mistral
        return f"<think>{thought}</think>" if thought else text_of(content.get("text"))
    text = content if isinstance(content, str) else ""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def visible(text: str, strict: bool = False) -> str:
    """The text with what a terminal obeys or hides written out. `strict`: joiners, blanks too."""
    text = text if strict else text.replace("\r\n", "\n")
    odd = set(re.sub(f"[ -~\n\t{'' if strict else JOINING}]", "", text))
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs" if strict else ""}  # Unicode categories
    hiding = [c for c in odd if unicodedata.category(c) in kinds or re.match(f"[{BLANKS}]", c)]
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in hiding})


# --- process -------------------------------------------------------------------------------------
def report(error: Any) -> str:
    """Print why there is no answer, and return it. What is ours has a `kind`, or is a text."""
    ours = isinstance(error, str) or hasattr(error, "kind")
    told = visible(str(error) if ours else f"{type(error).__name__}: {error}")
    with contextlib.suppress(OSError):  # where nobody can read it any more
        print(f"error: {told}", file=sys.stderr)
    return told


def as_process(main: Callable[[], int | None]) -> None:
    """Run a `main` and exit with its code. What it raises becomes a line, never a traceback."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")

    def ended(*_: Any) -> NoReturn:
        """As Ctrl-C, and a chat gets no more input, so that it ends too."""
        sys.stdin = open(os.devnull)  # noqa: SIM115
        raise KeyboardInterrupt

    for number in signal.valid_signals() & {1, 3, 15}:  # SIGHUP, SIGQUIT, SIGTERM
        if signal.getsignal(number) != signal.SIG_IGN:  # of nohup
            signal.signal(number, ended)
    try:
        code = main() or 0
        sys.stdout.flush()
    except BrokenPipeError:  # who reads the output has gone
        code = 0
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # a full disk, or a fault of ours
        report(error)
        code = 2 if getattr(error, "kind", "") == "settings" else 1
    os._exit(code)  # not to flush once more


if __name__ == "__main__":
    as_process(lambda: print(visible(complete(" ".join(sys.argv[1:]) or "Say hello."))))
