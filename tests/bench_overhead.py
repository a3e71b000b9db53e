"""What the harness costs beside the bare SDK: time, memory, and time added a step.

    python tests/bench_overhead.py            a table, in some minutes; --quick: in one

Both sides do the same exchange with a scripted endpoint (a process of its own), one after the other
in pairs, so that a noisy machine is as noisy to both. A ratio is the median over the pairs, with
the smallest and the largest of them. "CPU" is user and system time of the whole process, "wall" is
the clock: on a busy machine CPU is the one to trust. POSIX only (os.wait4 tells what a child used).
"""

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from endpoint import Endpoint, Handler, call, say

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
HARNESS = str(ROOT / "harness.py")
QUICK = "--quick" in sys.argv
LINE = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. "

# The same exchange in as little code as the SDK needs.
BARE = """
import json, os, sys
from openai import OpenAI

messages, tools = json.load(open(sys.argv[1]))
client = OpenAI()
while True:
    reply = client.chat.completions.create(
        model=os.environ["AGENT_MODEL"], messages=messages, tools=tools)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        arguments = json.loads(call.function.arguments)
        lines = open(arguments["path"]).readlines()[arguments["start_line"] - 1:]
        result = {"role": "tool", "tool_call_id": call.id, "content": "".join(lines)}
        messages.append(result)
print(message.content)
"""
OURS = "import sys, harness; sys.exit(harness.main(sys.argv[1:]))"
# Put before either: notes the times at which the SDK is entered and left.
STAMPED = """
import atexit, json, time
from openai.resources.chat.completions import Completions

create, stamps = Completions.create, []
def stamp():
    stamps.append((time.process_time(), time.perf_counter()))
def stamped(*given, **options):
    stamp()
    reply = create(*given, **options)
    stamp()
    return reply
Completions.create = stamped
atexit.register(lambda: json.dump(stamps, open("stamps.json", "w")))
"""


def serve():
    """The endpoint: the model's name is the number of replies until the answer."""

    def reply(body):
        endpoint.requests.clear()  # a long run would fill the memory
        step = sum(message["role"] == "tool" for message in body["messages"]) + 1
        if step >= int(body["model"]):
            return say("All is done.")
        return say(
            call("read_file", {"path": "a.txt", "start_line": 1 + step % 2}, f"call{step:05}")
        )

    Handler.disable_nagle_algorithm = True  # its small writes would wait for the client's ACK
    with Endpoint(reply, strict=False) as endpoint:
        print(endpoint.url, flush=True)
        sys.stdin.read()


def child(arguments, steps=1, code=0):
    """Run Python to its end: its wall seconds, CPU seconds and peak memory in MB."""
    started = time.perf_counter()
    given = [sys.executable, *map(str, arguments)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    env = os.environ | {"AGENT_MODEL": str(steps)}
    process = subprocess.Popen(given, env=env, stderr=subprocess.PIPE, **pipes)
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == code, said.decode()
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kB elsewhere
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall": time.perf_counter() - started, "CPU": cpu, "MB": usage.ru_maxrss / unit}


def pairs(ours, bare, rounds):
    """What two functions return, called in turn; the first call of each is a warm-up."""
    return [(ours(), bare()) for _ in range(rounds + 1)][1:]


def row(label, numbers, aim, decimals=2):
    """A line of the table: the medians of both sides, their ratio and its spread, the aim."""
    ours, bare = (statistics.median(side) for side in zip(*numbers, strict=True))
    ratios = sorted(a / b for a, b in numbers)
    ratio = statistics.median(ratios)
    spread = f"{ratios[0]:.2f}..{ratios[-1]:.2f}"
    end = f"<= {aim:.2f} {'ok' if ratio <= aim else 'missed'}" if aim else "-"
    print(
        f"{label:27}{ours:8.{decimals}f}{bare:8.{decimals}f}{ratio:7.2f} {spread:>13}  {end}",
        flush=True,
    )


def figure(label, text, aim, good):
    """A line of the table that is no ratio."""
    print(f"{label:27}{text:>36}  {aim} {'ok' if good else 'missed'}", flush=True)


def whole_runs(rounds):
    """Whole processes, import included."""
    for steps, aim in ((1, 1.10), (10, 1.05)):
        ours = lambda n=steps: child([HARNESS, "Read."], n)  # noqa: E731
        runs = pairs(ours, lambda n=steps: child(["-c", BARE, "given.json"], n), rounds)
        name = f"{steps} step{'s' * (steps > 1)}"
        for unit in ("CPU", "wall"):
            row(f"{name}, {unit} s", [(a[unit], b[unit]) for a, b in runs], aim)
        row(f"{name}, peak memory MB", [(a["MB"], b["MB"]) for a, b in runs], 1.10, 1)


def starts(rounds):
    """What needs no model, against a Python that does nothing."""
    child([HARNESS, "--trace", "ten.jsonl", "Read."], 10)
    for name, arguments in (("--help", ["--help"]), ("--replay", ["--replay", "ten.jsonl"])):
        runs = pairs(
            lambda a=arguments: child([HARNESS, *a]), lambda: child(["-c", "pass"]), rounds
        )
        for unit in ("CPU", "wall"):
            numbers = [(1000 * a[unit], 1000 * b[unit]) for a, b in runs]
            row(f"{name}, {unit} ms", numbers, 5, 0)
        listed = [sys.executable, "-X", "importtime", HARNESS, *arguments]
        loaded = b" openai\n" in subprocess.run(listed, capture_output=True).stderr
        figure(f"{name}, imports openai", "yes" if loaded else "no", "no", not loaded)


def a_step(rounds):
    """What a step costs, by the length of the history: all of it, and what lies outside of the
    SDK's `create`, which takes so long with a long history that a difference drowns in its noise.
    Where the whole step is faster than the bare one by a tenth or more, nothing is added."""
    added, steps = {}, 8
    for size in (10, 100, 1000):
        bare, ours = f"{size}.json", f"{size}.jsonl"
        messages = give(bare, size)
        inputs = {"from": 0, "messages": messages}
        trace = json.dumps({"run_type": "chain", "inputs": inputs, "outputs": None})
        sides = (["-c", STAMPED + OURS, "-q", "--resume", ours], ["-c", STAMPED + BARE, bare])
        whole, outside, memory = [], [], []
        for _ in range(rounds):
            Path(ours).write_text(trace)  # each run adds to it
            runs = [measured(side, size // 2 - 1 + steps) for side in sides]
            memory.append([megabytes for megabytes, _ in runs])
            whole += zip(*(differences(stamps[2::2]) for _, stamps in runs), strict=True)
            outside += zip(*(differences(stamps[1:-1])[::2] for _, stamps in runs), strict=True)
        aim = 1 + json_ms(messages)
        row(f"{size} messages, CPU ms", [(a[0], b[0]) for a, b in whole], None, 1)
        faster = statistics.median(a[0] / b[0] for a, b in whole) <= 0.9
        for place, unit in enumerate(("CPU", "wall")):
            one, other = (
                statistics.median(step[side][place] for step in outside) for side in (0, 1)
            )
            text = f"{one:.1f} - {other:.1f} = {one - other:.1f}"
            figure(
                f"  outside the SDK, {unit} ms", text, f"<= {aim:.1f}", faster or one - other <= aim
            )
            added[size, unit] = max(one - other, 0.1)
    growth = added[1000, "CPU"] / added[100, "CPU"]
    figure("  its growth, 1000 to 100", f"{growth:.1f} times", "<= 10", growth <= 10)
    row("1000 messages, memory MB", memory, 1.10, 1)


def measured(arguments, steps):
    """The peak memory of a stamped program, and its stamps."""
    megabytes = child(arguments, steps)["MB"]
    return megabytes, json.loads(Path("stamps.json").read_text())


def differences(stamps):
    """Milliseconds between stamps: CPU and wall."""
    neighbours = itertools.pairwise(stamps)
    return [[1000 * (b - a) for a, b in zip(*two, strict=True)] for two in neighbours]


def give(name, size=2):
    """Write the file that the bare program begins with; returns its messages."""
    from harness import SYSTEM
    from tools import TOOLS

    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Read."}]
    for number in range(size // 2 - 1):
        made = call("read_file", {"path": "a.txt"}, f"made{number:05}")
        messages.append({"role": "assistant", "content": "", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": 2 * LINE})
    Path(name).write_text(json.dumps([messages, TOOLS]))
    return messages


def json_ms(messages):
    """Milliseconds of CPU to write and read a history as JSON, once."""
    times = []
    for _ in range(20):
        started = time.process_time()
        json.loads(json.dumps(messages, ensure_ascii=False))
        times.append(1000 * (time.process_time() - started))
    return statistics.median(times)


def resuming(rounds):
    """A run that goes on with 200 results of 10 kB, and one with nothing to go on with."""
    Path("a.txt").write_text((LINE + "\n") * (9_900 // (len(LINE) + 1)))
    child([HARNESS, "--max-steps", "201", "--trace", "long.jsonl", "Read."], 201)
    trace = Path("long.jsonl")
    whole = trace.read_bytes()

    def resumed():
        trace.write_bytes(whole)  # each run adds to it
        return child([HARNESS, "--resume", "long.jsonl", "And now?"])

    runs = pairs(resumed, lambda: child([HARNESS, "And now?"]), rounds)
    for unit in ("CPU", "wall"):
        ours, fresh = (statistics.median(run[i][unit] for run in runs) for i in (0, 1))
        text = f"{ours:.2f} - {fresh:.2f} = {ours - fresh:.2f}"
        figure(f"--resume of 2 MB, {unit} s", text, "<= 0.3", ours - fresh <= 0.3)


def main():
    """The table, from a folder that is thrown away."""
    server = [sys.executable, __file__, "--serve"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(server, **pipes) as endpoint:
        os.chdir(folder)
        give("given.json")
        Path("a.txt").write_text((LINE + "\n") * 3)
        for name in [n for n in os.environ if n.startswith(("AGENT_", "PYTHON")) or "roxy" in n]:
            del os.environ[name]
        os.environ |= {"OPENAI_BASE_URL": endpoint.stdout.readline().strip()}
        os.environ |= {"OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        os.environ["PYTHONPYCACHEPREFIX"] = folder  # bytecode is kept, as for a user, but here
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        print(f"Python {platform.python_version()}, openai {version('openai')}, {load}")
        print(f"{'':27}{'harness':>8}{'bare':>8}{'ratio':>7} {'min..max':>13}  aim", flush=True)
        starts(5 if QUICK else 25)
        whole_runs(3 if QUICK else 15)
        resuming(2 if QUICK else 9)
        Path("a.txt").write_text((LINE + "\n") * 3)
        a_step(1 if QUICK else 7)
        endpoint.stdin.close()


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main()
