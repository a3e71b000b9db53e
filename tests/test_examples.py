"""The examples: the shop's assistant, and the benchmark with its questions."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from conftest import KEY, ROOT
from endpoint import Endpoint, Raw, call, say

sys.path.insert(0, str(ROOT / "examples"))
import benchmark  # noqa: E402

SHOP, BENCHMARK = "examples/shopbot.py", "examples/benchmark.py"
QUESTIONS = benchmark.read_lines(benchmark.QUESTIONS)
FIELDS = (
    "run_id question_id question category answer model provider evidence_files tools_called "
    "retrieval_method grade failure_label grading_notes repo_sha timestamp harness_version".split()
)


# --- the shop's assistant ------------------------------------------------------------------------
def test_the_shop_looks_up_the_order_then_its_parcel_and_answers(command):
    calls = (
        call("look_up_orders", {"item": "running shoes"}),
        call("get_tracking_status", {"tracking_number": "DH-58213"}),
    )
    with Endpoint(*map(say, calls), say("It comes tomorrow.")) as endpoint:
        done = command(endpoint=endpoint, script=SHOP)
    assert done.returncode == 0 and done.stderr == ""
    assert re.findall("--- Round . *: asking the model ---", done.stdout) == [
        f"--- Round {n}: asking the model ---" for n in (1, 2, 3)
    ]
    assert done.stdout.endswith("\nIt comes tomorrow.\n")
    assert [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]] == [
        "look_up_orders",
        "get_tracking_status",
    ]
    assert "A-1042" in endpoint.results[0] and "A-1043" not in endpoint.results[0]
    assert "Leipzig" in endpoint.results[1]


def test_the_shop_takes_another_question_and_says_an_error_in_one_line(command):
    with Endpoint(Raw({"error": {"message": "no such key"}}, 401)) as endpoint:
        done = command("Is the mat there?", endpoint=endpoint, script=SHOP)
    assert (
        done.returncode == 1
        and endpoint.requests[0]["messages"][-1]["content"] == "Is the mat there?"
    )
    assert done.stdout.splitlines()[-1].startswith("error: ") and "Traceback" not in done.stderr


# --- the questions -------------------------------------------------------------------------------
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["id"])
def test_a_question_is_true_of_this_repository_and_its_pattern_is_strict(question):
    assert re.search(question["pattern"], question["right"])
    assert not re.search(question["pattern"], question["wrong"])
    assert not re.search(question["pattern"], question["question"]) or "check_file" in question
    assert not re.search(question["pattern"], "I cannot see the files, so I have no way to know.")
    for file in question["evidence_files"]:
        assert re.search(question["fact"], (ROOT / file).read_text(encoding="utf-8")), file
    if "count" in question:
        glob, number = question["count"]
        assert len(list(ROOT.glob(glob))) == number


def test_there_are_enough_questions_and_no_answer_is_in_a_copy(tmp_path):
    assert len(QUESTIONS) >= 24 and len({question["category"] for question in QUESTIONS}) >= 4
    assert len({question["id"] for question in QUESTIONS}) == len(QUESTIONS)
    copy = tmp_path / "copy"
    benchmark.shutil.copytree(ROOT, copy, ignore=benchmark.not_copied)
    text = "\n".join(
        path.read_text("utf-8", "replace").lower() for path in copy.rglob("*") if path.is_file()
    )
    assert "def dispatch(" in text and "agent_max_steps=" in text
    assert [q["absent"] for q in QUESTIONS if q.get("absent", "\0") in text] == []
    assert [q["id"] for q in QUESTIONS if q["question"].lower() in text] == []


# --- running -------------------------------------------------------------------------------------
def a_question(number, **more):
    return {
        "id": f"q{number}",
        "category": "finding",
        "question": f"Question {number}: where is dispatch?",
        "pattern": r"tools\.py",
        "evidence_files": ["tools.py"],
    } | more


@pytest.fixture
def bench(workspace):
    """bench(endpoint, *arguments) starts the benchmark as a process; its own questions are asked."""

    def start(endpoint, *arguments):
        settings = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": KEY, "AGENT_MODEL": "m"}
        command = [sys.executable, str(ROOT / BENCHMARK), "run", "--questions", "questions.jsonl"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [*command, *arguments], env=os.environ | settings, cwd=workspace, **pipes
        )

    return start


def write_questions(workspace, *questions):
    text = "".join(json.dumps(question) + "\n" for question in questions)
    (workspace / "questions.jsonl").write_text(text)


def asked(endpoint):
    """The numbers of the questions that came in new conversations."""
    first = [
        body["messages"][1]["content"] for body in endpoint.requests if len(body["messages"]) == 2
    ]
    return sorted(int(re.search(r"Question (\d+)", text)[1]) for text in first)


def test_a_run_records_each_question_and_shows_the_time_left_and_a_table(bench, workspace):
    new = a_question(2, category="changing", pattern="done", evidence_files=[])
    write_questions(
        workspace, a_question(1), new | {"check_file": "new.txt", "check_pattern": "hello"}
    )
    write = call("write_file", {"path": "new.txt", "content": "hello"})
    replies = (
        say(call("search_text", {"query": "^def dispatch"})),
        say("In tools.py."),
        say(write),
        say("done"),
    )
    with Endpoint(*replies) as endpoint:
        process = bench(endpoint, "--name", "one")
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
    found, changed = benchmark.read_lines(workspace / "runs/one.jsonl")
    assert list(found) == list(changed) == FIELDS
    assert (found["grade"], found["retrieval_method"], found["evidence_files"]) == (
        "pass",
        "search",
        ["tools.py"],
    )
    assert (changed["grade"], changed["tools_called"]) == ("pass", ["write_file"])
    assert re.search(r"\[1/2\] q1: pass; \d+ s left", err)
    assert re.search(r"changing +1 +1 +100%  (█+|#+)\n", out)
    assert not (workspace / "new.txt").exists() and not (ROOT / "new.txt").exists()
    assert "run_shell" not in json.dumps(endpoint.requests[0]["tools"])


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_run_killed_in_the_middle_goes_on_and_asks_no_answered_question_twice(
    bench, workspace, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(workspace.parent))  # nobody clears up after a SIGKILL
    write_questions(workspace, *map(a_question, range(3)))
    file = workspace / "runs/m.jsonl"
    with Endpoint(say("tools.py")) as endpoint:
        process = bench(endpoint)
        while not file.exists() or len(file.read_text().splitlines()) < 1:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        before = [record["question_id"] for record in benchmark.read_lines(file)]
        with file.open("a") as lines:
            lines.write('{"question_id": "torn')
        again = bench(endpoint, "--jobs", "2")
        _, err = again.communicate(timeout=30)
    assert again.returncode == 0 and f"{3 - len(before)} questions to ask" in err
    ids = [record["question_id"] for record in benchmark.read_lines(file)]
    assert sorted(ids) == [f"q{n}" for n in range(3)]
    assert all(asked(endpoint).count(int(name[1:])) == 1 for name in before)


def test_two_shards_have_every_question_once_and_are_summed_up_as_one_run(bench, workspace):
    write_questions(workspace, *map(a_question, range(3)))
    with Endpoint(say("tools.py")) as endpoint:
        shards = [bench(endpoint, "--no-tools", "--shard", f"{part}/2") for part in (1, 2)]
        assert [each.communicate(timeout=30) and each.returncode for each in shards] == [0, 0]
    assert asked(endpoint) == [0, 1, 2]
    assert all("tools" not in body for body in endpoint.requests)
    files = sorted((workspace / "runs").iterdir())
    assert [file.name for file in files] == ["m-no-tools.1of2.jsonl", "m-no-tools.2of2.jsonl"]
    assert sorted(
        record["question_id"] for file in files for record in benchmark.read_lines(file)
    ) == [f"q{n}" for n in range(3)]
    assert re.search(r"all +3 +3 +100%", benchmark.summary(benchmark.records_of("m-no-tools")))


def test_a_question_without_an_answer_is_asked_again_and_counted_once(bench, workspace):
    write_questions(workspace, a_question(1))
    with Endpoint(Raw({"error": {"message": "bad key"}}, 401), say("tools.py")) as endpoint:
        process = bench(endpoint)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 1 and "finish_reason error" in err and KEY not in out + err
        (record,) = benchmark.records_of("m")
        assert record["failure_label"] == "endpoint" and "100%" not in out
        assert bench(endpoint).wait(30) == 0
    (record,) = benchmark.read_lines(workspace / "runs/m.jsonl")
    assert record["grade"] == "pass"


# --- grading and tables --------------------------------------------------------------------------
def told(answer="In harness.py.", calls=(), finish_reason="stop", changed=True):
    return {
        "answer": answer,
        "calls": calls,
        "finish_reason": finish_reason,
        "error": "",
        "changed": changed,
    }


COMMON = {
    "run_id": "r",
    "model": "m",
    "provider": "openai",
    "repo_sha": "abc",
    "harness_version": "1",
    "grading_notes": "",
}
RIGHT_FILE = {
    "name": "read_file",
    "arguments": '{"path": "./tools.py"}',
    "result": "text",
    "failed": False,
}
OTHER_FILE = {
    "name": "search_text",
    "arguments": '{"query": "x"}',
    "result": "README.md:3: x\n(1 matches in 1 files)",
    "failed": False,
}
FAILED = {
    "name": "read_file",
    "arguments": '{"path": "x"}',
    "result": "error: there is no x",
    "failed": True,
}


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (told("In tools.py.", [RIGHT_FILE]), ""),
        (told("In tools.py.", [RIGHT_FILE], "max_steps"), ""),
        (told(), "no tool call"),
        (told(calls=[OTHER_FILE]), "wrong file"),
        (told(calls=[RIGHT_FILE, FAILED]), "tool error"),
        (told(calls=[FAILED, RIGHT_FILE]), "wrong answer"),
        (told(calls=[RIGHT_FILE], finish_reason="repeated_call"), "step limit"),
        (told(calls=[RIGHT_FILE], finish_reason="time limit"), "step limit"),
        (told("", finish_reason="error"), "endpoint"),
        (told("", finish_reason="crash"), "crash"),
        (told("In tools.py.", [RIGHT_FILE], changed=False), "wrong answer"),
    ],
)
def test_a_failure_is_labelled_by_the_first_rule_that_fits(outcome, label):
    record = benchmark.record_of(a_question(1), outcome, COMMON)
    assert (record["grade"], record["failure_label"]) == ("fail" if label else "pass", label)
    assert list(record) == FIELDS


@pytest.fixture
def run_r(workspace):
    """A run with a right and a wrong answer, in runs/r.jsonl."""
    write_questions(workspace, a_question(1), a_question(2))
    outcomes = told("tools.py", [RIGHT_FILE]), told(calls=[OTHER_FILE])
    records = [
        benchmark.record_of(a_question(n), outcome, COMMON) for n, outcome in enumerate(outcomes, 1)
    ]
    (workspace / "runs").mkdir()
    benchmark.save(workspace / "runs/r.jsonl", records)
    return records


def grades(run="r"):
    return [(each["grade"], each["failure_label"]) for each in benchmark.records_of(run)]


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    return benchmark.main()


def test_a_person_can_change_a_grade_and_a_label_and_patterns_leave_it_alone(
    run_r, monkeypatch, capsys
):
    grade = ["grade", "r", "--questions", "questions.jsonl"]
    assert (
        main(
            monkeypatch,
            *grade,
            "--question",
            "q2",
            "--set",
            "fail",
            "--label",
            "guessed",
            "--notes",
            "no look",
        )
        == 0
    )
    assert grades() == [("pass", ""), ("fail", "guessed")]
    assert benchmark.records_of("r")[1]["grading_notes"] == "by hand: no look"
    assert main(monkeypatch, *grade) == 0
    assert grades() == [("pass", ""), ("fail", "guessed")]
    answers = iter(["n tool error", "y"])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    assert main(monkeypatch, *grade, "--by-hand") == 0
    assert grades() == [("fail", "tool error"), ("pass", "")]
    assert "In harness.py." in capsys.readouterr().out


def test_grading_again_uses_the_patterns_as_they_are_now(run_r, workspace, monkeypatch):
    write_questions(workspace, a_question(1, pattern="no"), a_question(2, pattern="harness"))
    assert main(monkeypatch, "grade", "r", "--questions", "questions.jsonl") == 0
    assert grades() == [("fail", "wrong answer"), ("pass", "")]


def test_two_runs_are_compared_by_category_and_question_within_80_columns(
    run_r, workspace, monkeypatch, capsys
):
    baseline = COMMON | {"run_id": "b", "grading_notes": benchmark.NO_TOOLS}
    records = [benchmark.record_of(a_question(n), told(), baseline) for n in (1, 2, 3)]
    benchmark.save(workspace / "runs/b.jsonl", records)
    assert main(monkeypatch, "compare", "r", "runs/b.jsonl") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "A: m (openai) with tools" in out and "B: m (openai) without tools" in out
    assert re.search(r"finding +2 .* 50% .* 0% +\+50", out)
    assert re.search("right in A only +1  q1", out) and re.search("right in neither +1  q2", out)
    assert re.search("wrong file +1 +0", out) and re.search("wrong answer +0 +2", out)


def test_what_is_not_there_is_said_in_one_line(workspace, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        main(monkeypatch, "summary", "none")
    assert ended.value.code == 2 and capsys.readouterr().err.startswith(
        "error: there is no run none"
    )
