"""The trace: nothing is lost, and a recorded run can be gone on with and played again."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import KEY, ROOT
from endpoint import Endpoint, Raw, call, history_faults, say
from langsmith.schemas import Run

from harness import Result

KILLS = int(os.environ.get("KILLS", "3"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(workspace):
    """The one trace of the workspace, and its lines."""
    (path,) = (workspace / ".harness" / "runs").glob("*.jsonl")
    return path, lines_of(path)


def test_a_run_leaves_a_line_for_each_reply_and_result(harness, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    done = harness(
        "Read.", replies=[say(call("read_file", {"path": "a.txt"})), say("It is alpha.")]
    )
    path, lines = recorded(workspace)
    assert [line["run_type"] for line in lines] == ["chain", "llm", "tool", "llm", "chain"]
    assert lines[2]["outputs"] == {"output": "alpha\n"}
    assert lines[3]["outputs"]["content"] == "It is alpha."
    assert lines[4]["id"] == lines[0]["id"] and lines[4]["outputs"]["answer"] == "It is alpha."
    assert lines[0]["inputs"]["messages"][1] == {"role": "user", "content": "Read."}
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    assert path.with_name(".gitignore").read_text() == "*\n"
    assert KEY not in path.read_text()
    assert done.code == 0


def test_a_key_in_a_result_stays_out_of_the_trace(command, workspace):
    (workspace / "a.txt").write_text(f"the key is {KEY}\n")
    with Endpoint(say(call("read_file", {"path": "a.txt"})), say("Ok.")) as endpoint:
        command("-y", "-q", "Read.", endpoint=endpoint)
    path, lines = recorded(workspace)
    assert KEY not in path.read_text()
    assert lines[2]["outputs"]["output"] == "the key is [key]\n"


def test_the_fields_are_langsmiths(harness, workspace):
    harness("Look.", replies=[say(call("list_dir")), say(call("nothing")), say("Done.")])
    _, lines = recorded(workspace)
    runs = [Run(**line) for line in lines]
    assert {str(run.trace_id) for run in runs} == {lines[0]["id"]}
    assert [run.parent_run_id is None for run in runs] == [True, *[False] * 5, True]
    for run, line in zip(runs, lines, strict=True):
        assert run.dotted_order.split(".")[-1].endswith(str(run.id))
        if run.end_time:
            assert line["latency_ms"] == round(
                (run.end_time - run.start_time).total_seconds() * 1000
            )
    assert runs[4].error.startswith("error: there is no tool 'nothing'")


def test_it_goes_where_it_is_told_or_nowhere(harness, workspace):
    done = harness("--trace", "my.jsonl", "--json", "Hi.", replies=[say("Ho.")])
    assert (
        json.loads(done.out)["trace"] == "my.jsonl" and len(lines_of(workspace / "my.jsonl")) == 3
    )
    done = harness("--no-trace", "--json", "Hi.", replies=[say("Ho.")])
    assert json.loads(done.out)["trace"] is None
    assert not (workspace / ".harness").exists()


def test_it_grows_with_the_run(harness, workspace):
    calls = []
    for number in range(30):
        (workspace / f"{number}.txt").write_text("0123456789abcdef" * 624 + "\n")
        calls.append(say(call("read_file", {"path": f"{number}.txt"})))
    done = harness("--max-steps", "300", "-q", "Read.", replies=[*calls, say("Done.")])
    path, _ = recorded(workspace)
    messages = done.endpoint.requests[-1]["messages"]
    assert len(messages) == 2 + 2 * 30
    assert path.stat().st_size <= 1.2 * len(json.dumps(messages))


def counting(body):
    """A model that appends one letter after the other to a file, and then answers."""
    results = sum(message["role"] == "tool" for message in body["messages"])
    if results == 5:
        return say("All is done.")
    time.sleep(0.02)
    return say(call("run_shell", {"command": f"echo {'abcde'[results]} >>letters"}))


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_run_is_resumed_and_ends_with_the_same_answer(start, workspace, number):
    with Endpoint(counting) as endpoint:
        run = start("-y", "-q", "--trace", "run.jsonl", "Write the letters.", endpoint=endpoint)
        deadline = time.monotonic() + 20
        while not (workspace / "run.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.4))
        run.send_signal(signal.SIGKILL)
        run.wait()
        again = start("-y", "-q", "--resume", "run.jsonl", endpoint=endpoint)
        out, err = again.communicate()
    assert out == "All is done.\n", err
    assert endpoint.faults == []
    messages = endpoint.requests[-1]["messages"]
    ids = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert len(ids) == len(set(ids)) == 5
    interrupted = sum(m["content"].startswith("error: interrupted") for m in messages)
    written = (workspace / "letters").read_text().split()
    assert 5 - interrupted <= len(written) <= 5 and written == sorted(set(written))


def test_a_torn_last_line_is_passed_over(harness, workspace):
    harness("--trace", "r.jsonl", "Look.", replies=[say(call("list_dir")), say("Done.")])
    whole = (workspace / "r.jsonl").read_text().splitlines(keepends=True)
    (workspace / "r.jsonl").write_text("".join(whole[:3]) + whole[3][:-40])
    done = harness("--resume", "r.jsonl", replies=[say("Done, again.")])
    assert done.out == "Done, again.\n"
    assert len(done.endpoint.results) == 1
    assert done.endpoint.requests[0]["messages"][1]["content"] == "Look."
    lines = (workspace / "r.jsonl").read_text().splitlines()
    assert lines[3] == whole[3][:-40]
    assert [json.loads(line)["run_type"] for line in lines[4:]] == ["chain", "llm", "chain"]


def test_a_finished_run_goes_on_with_a_new_task(harness, workspace):
    harness("Hi.", replies=[say("Ho.")])
    done = harness("--resume", "And", "now?", replies=[say("Bye.")])
    said = [message["content"] for message in done.endpoint.requests[0]["messages"][1:]]
    assert said == ["Hi.", "Ho.", "And now?"]
    _, lines = recorded(workspace)
    assert [line["run_type"] for line in lines] == ["chain", "llm", "chain"] * 2


def test_a_run_at_its_limit_goes_on(harness, workspace):
    replies = [say(call("list_dir")), say("Not yet.")]
    assert harness("--max-steps", "1", "Look.", replies=replies).code == 3
    done = harness("--resume", replies=[say("Now.")])
    assert (done.code, done.out) == (0, "Now.\n")
    said = [message["content"] for message in done.endpoint.requests[0]["messages"]]
    assert said[-2:] == ["Not yet.", "(Go on.)"]


def test_a_shortened_conversation_is_known_to_the_trace(harness, workspace):
    (workspace / "big.txt").write_text("0123456789abcdef\n" * 500)
    calls = [say(call("read_file", {"path": "big.txt", "start_line": n})) for n in (1, 2, 3)]
    overlong = Raw({"error": {"message": "maximum context length is 9"}}, 400)
    first = harness(
        "--max-steps",
        "9",
        "Look.",
        replies=[*calls, overlong, say(call("list_dir")), Raw("x", 404)],
    )
    assert first.code == 1
    done = harness("--resume", replies=[say("Done.")])
    before, after = first.endpoint.requests[-1]["messages"], done.endpoint.requests[-1]["messages"]
    assert after[: len(before) - 1] == before[:-1]
    assert after[-1]["content"].startswith(before[-1]["content"])


NO_ROLE = {"run_type": "chain", "inputs": {"from": 0, "messages": [{"content": "x"}]}}
NO_TEXT = {
    "run_type": "chain",
    "inputs": {"from": 0, "messages": [{"role": "user", "content": None}]},
}
NO_RECORD = ["", "no JSON\n", "[1]\n", "{}\n", '{"run_type": "llm"}\n', "\xff\n"]
NO_RECORD += [json.dumps(line | {"outputs": None}) for line in (NO_ROLE, NO_TEXT)]


@pytest.mark.parametrize("text", NO_RECORD)
def test_what_is_no_record_is_said(harness, workspace, text):
    (workspace / "r.jsonl").write_text(text, encoding="latin-1")
    for option in ("--resume", "--replay"):
        done = harness(option, "r.jsonl", "--json", env={"AGENT_BACKEND": "groq"})
        assert done.code == 2 and "no recorded run" in done.err
        assert "no recorded run" in json.loads(done.out)["error"]


@pytest.mark.parametrize("wrong", [{"tool_calls": [{"bogus": 1}]}, {"usage": 7}, {"extra": 1}])
def test_a_wrong_record_is_said_as_json_too(harness, workspace, wrong):
    lines = (ROOT / "examples/tour.jsonl").read_text().splitlines()
    reply = json.loads(lines[1])
    reply["outputs"] |= wrong
    (workspace / "r.jsonl").write_text("\n".join([lines[0], json.dumps(reply)]) + "\n")
    done = harness("--json", "--replay", "r.jsonl")
    assert done.code == 1 and done.err.startswith("error: ")
    assert set(json.loads(done.out)) == set(vars(Result()))


def test_a_link_does_not_lead_the_record_elsewhere(harness, workspace):
    (elsewhere := workspace.parent / "elsewhere").mkdir()
    (workspace / ".harness").symlink_to(elsewhere)
    done = harness("Hi.", replies=[say("Ho.")])
    assert (done.code, done.out) == (0, "Ho.\n") and "behind a link" in done.err
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replay", str(ROOT / "examples/tour.jsonl"), "And?"], "takes no task"),
        (["--replay", str(ROOT / "examples/tour.jsonl"), "--resume"], "not allowed with"),
        (["--resume", str(ROOT / "examples/tour.jsonl"), "--trace", "t"], "not allowed with"),
    ],
)
def test_one_record_at_a_time(harness, arguments, told):
    done = harness(*arguments)
    assert done.code == 2 and told in done.err


def test_nothing_to_go_on_with(harness):
    done = harness("--resume")
    assert done.code == 2 and "no recorded run" in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_does_not_lose_the_answer(harness):
    done = harness("--trace", "/dev/full", "Hi.", replies=[say("Ho.")])
    assert (done.code, done.out) == (0, "Ho.\n")
    assert done.err.count("not recorded") == 1


def test_a_folder_that_takes_no_file_does_not_lose_the_answer(harness, workspace):
    (workspace / ".harness").write_text("a file in the way")
    done = harness("Hi.", "--json", replies=[say("Ho.")])
    result = json.loads(done.out)
    assert (done.code, result["answer"], result["trace"]) == (0, "Ho.", None)
    assert done.err.count("not recorded") == 1


def test_a_replay_needs_no_endpoint(harness, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    harness(
        "--trace",
        "r.jsonl",
        "Read.",
        replies=[say(call("read_file", {"path": "a.txt"})), say("alpha")],
    )
    done = harness("--replay", "r.jsonl")
    assert (done.code, done.out) == (0, "alpha\n")
    assert '[1] read_file {"path": "a.txt"}' in done.err
    assert "not the recorded one" not in done.err
    (workspace / "a.txt").write_text("beta\n")
    done = harness("--replay", "r.jsonl")
    assert (done.code, done.out) == (0, "alpha\n")
    assert "not the recorded one" in done.err
    assert len(lines_of(workspace / "r.jsonl")) == 5


def test_a_replay_does_not_load_the_sdk(harness, workspace):
    harness("--trace", "r.jsonl", "Hi.", replies=[say("Ho.")])
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['harness.py', '--replay', 'r.jsonl']\n"
    code += "import harness\nassert harness.main() == 0 and 'openai' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Ho.\n"), done.stderr


def test_a_record_of_several_runs_is_played_run_by_run(harness, workspace):
    harness("--trace", "r.jsonl", "One.", replies=[say(call("list_dir")), say("first")])
    harness("--resume", "r.jsonl", "Two.", replies=[say("second")])
    assert harness("--replay", "r.jsonl").out == "first\nsecond\n"


def test_a_record_that_breaks_off_says_so(harness, workspace):
    harness("--trace", "r.jsonl", "One.", replies=[say(call("list_dir")), Raw("no", 404)])
    done = harness("--replay", "r.jsonl")
    assert done.code == 1 and "the recorded run ends here" in done.err


def test_ctrl_c_leaves_a_record_to_go_on_with(start, workspace):
    with Endpoint(say(call("list_dir")), Raw(say("late"), sleep=20), say("Done.")) as endpoint:
        run = start("-y", "-q", "Look.", endpoint=endpoint)
        deadline = time.monotonic() + 20
        while len(endpoint.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        assert run.wait(10) == 130
        out, err = start("-y", "-q", "--resume", endpoint=endpoint).communicate()
    assert out == "Done.\n", err
    assert history_faults(endpoint.requests[-1]["messages"]) == []
    assert "interrupted" not in json.dumps(endpoint.requests[-1])


def test_the_tour_is_played_as_it_was_recorded(harness, workspace, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = harness("--replay", "examples/tour.jsonl")
    assert done.code == 0 and done.out.endswith(
        "So, the number of workers pytest-xdist starts is 2.\n"
    )
    assert done.err.count("\n[") + done.err.startswith("[") == 3
    assert "not the recorded one" not in done.err


JQ = re.findall(r"^jq (.*?) FILE\b", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq")
@pytest.mark.parametrize(
    ("command", "told"), list(zip(JQ, ["search_text", "5192", '"post"'], strict=True))
)
def test_what_the_readme_asks_jq(command, told):
    file = ROOT / "examples" / "tour.jsonl"
    done = subprocess.run(f"jq {command} {file}", shell=True, capture_output=True, text=True)
    assert done.returncode == 0 and told in done.stdout, done.stderr


@pytest.mark.skipif(not shutil.which("jq"), reason="needs jq")
def test_what_goes_to_langsmith_has_each_run_once(workspace):
    command = f"jq {JQ[2]} {ROOT / 'examples' / 'tour.jsonl'}"
    runs = json.loads(subprocess.run(command, shell=True, capture_output=True).stdout)["post"]
    assert sorted(run["run_type"] for run in runs) == ["chain", *["llm"] * 5, *["tool"] * 3]
    assert all(Run(**run).end_time for run in runs)
    assert all(run["dotted_order"].startswith(runs[0]["dotted_order"][:21]) for run in runs)


def test_a_finished_run_is_not_asked_again(harness, workspace):
    harness("Hi.", replies=[say("Ho.")])
    done = harness("--resume", env={"AGENT_BACKEND": "groq"})
    assert (done.code, done.out) == (0, "Ho.\n")
