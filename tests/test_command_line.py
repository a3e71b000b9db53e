"""The command line: options, streams, exit codes; most in this process, some as a person runs it."""

import json
import subprocess
import sys

import pexpect
import pytest
from conftest import KEY, ROOT, settings_for
from endpoint import Endpoint, Raw, call, say


def shell(command, endpoint, **env):
    """A command line of a shell, with H for harness.py and S for another script of ours."""
    text = command.replace("H ", "S harness.py ").replace("S ", f"{sys.executable} {ROOT}/")
    return subprocess.run(
        ["bash", "-c", text], env=settings_for(endpoint, **env), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def test_stdout_has_the_answer_and_nothing_else(workspace):
    with Endpoint(say(call("list_dir")), say("Nothing here.")) as endpoint:
        done = shell("H Look.", endpoint)
    assert (done.returncode, done.stdout) == (0, "Nothing here.\n")
    assert "[1] list_dir {}" in done.stderr
    assert "2 steps, 50 tokens" in done.stderr
    assert endpoint.faults == []


def test_the_key_goes_into_the_header_only(harness):
    replies = [say(call("run_shell", {"command": "env"})), say("done")]
    done = harness("-y", "-v", "Look.", replies=replies)
    assert done.endpoint.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in done.out + done.err + json.dumps(done.endpoint.requests)


def test_quiet_prints_no_progress(harness):
    done = harness("-q", "Look.", replies=[say(call("list_dir")), say("done")])
    assert (done.out, done.err) == ("done\n", "")


def test_verbose_prints_whole_results(harness, workspace):
    for n in range(30):
        (workspace / f"file{n}.txt").touch()
    replies = [say(call("list_dir")), say("done")]
    assert "file29.txt" not in harness("Look.", replies=replies).err
    assert "file29.txt" in harness("-v", "Look.", replies=replies).err


def test_words_and_standard_input_together(harness):
    done = harness("review", "this", "-", replies=[say("done")], stdin="the diff\n")
    assert done.endpoint.requests[0]["messages"][-1]["content"] == "review this\n\nthe diff"


def test_options_may_stand_after_the_words(harness):
    done = harness("say", "hi", "--no-tools", replies=[say("hi")])
    assert "tools" not in done.endpoint.requests[0]
    assert "tool_choice" not in done.endpoint.requests[0]
    assert "tool" not in done.endpoint.requests[0]["messages"][0]["content"]


def test_a_long_call_is_shown_by_its_beginning(harness):
    long = call("write_file", {"path": "a.txt", "content": "x" * 5000})
    done = harness("Write.", replies=[say(long), say("done")])
    assert '[1] write_file {"path": "a.txt", "content": "xxx' in done.err
    assert max(map(len, done.err.splitlines())) < 200
    assert "x" * 5000 in harness("-v", "Write.", replies=[say(long), say("done")]).err


def test_system_replaces_the_prompt_and_agents_md_joins_it(harness, workspace):
    (workspace / "AGENTS.md").write_text("Answer in French.\n")
    done = harness("--system", "You are a pirate.", "Hi.", replies=[say("Ho.")])
    system = done.endpoint.requests[0]["messages"][0]["content"]
    assert system.startswith("You are a pirate.")
    assert "Answer in French." in system


def test_agents_md_that_leads_outside_is_not_used(harness, workspace):
    (workspace.parent / "secret").write_text("hunter2")
    (workspace / "AGENTS.md").symlink_to("../secret")
    done = harness("Hi.", replies=[say("Ho.")])
    assert "hunter2" not in json.dumps(done.endpoint.requests)
    assert "AGENTS.md is not used" in done.err


def test_tools_of_a_file_join(harness, workspace):
    text = 'from tools import tool\n\n\n@tool\ndef shout(text: str) -> str:\n    """Shout."""\n    return text.upper()\n'
    (workspace / "mine.py").write_text(text)
    done = harness(
        "--tools", "mine.py", "Hi.", replies=[say(call("shout", {"text": "hi"})), say("done")]
    )
    assert done.endpoint.results == ["HI"]


@pytest.mark.parametrize("text", [None, "def (", "import nothing_of_that_name", "1 / 0"])
def test_a_broken_file_of_tools_is_wrong_usage(harness, workspace, text):
    if text:
        (workspace / "mine.py").write_text(text)
    done = harness("--tools", "mine.py", "Hi.", replies=[say("Ho.")])
    assert done.code == 2
    assert done.err.startswith("error: --tools mine.py: ")
    assert done.err.count("\n") == 1


def test_json_is_one_object(harness):
    done = harness("--json", "Look.", replies=[say(call("list_dir")), say("done")])
    result = json.loads(done.out)
    assert set(result) == {
        "answer", "finish_reason", "steps", "tool_calls", "usage", "seconds", "trace", "error",
    }  # fmt: skip
    assert (result["answer"], result["finish_reason"], result["steps"]) == ("done", "stop", 2)


def test_json_is_one_object_also_when_the_run_fails(harness):
    done = harness("--json", "Hi.", replies=[Raw({"error": {"message": "bad key"}}, 401)])
    assert done.code == 1
    assert json.loads(done.out)["finish_reason"] == "error"
    assert "OPENAI_API_KEY" in json.loads(done.out)["error"]


WRONG_USAGE = [
    (["--frobnicate"], "usage"),
    (["--max-steps", "0", "Hi."], "max-steps"),
    (["--max-steps", "many", "Hi."], "max-steps"),
    (["--approve", "maybe", "Hi."], "approve"),
    (["--backend", "nosuch", "Hi."], "groq"),
    (["--backend", "groq", "Hi."], "GROQ_API_KEY"),
    (["--base-url", "ftp://x", "Hi."], "base URL"),
    (["--base-url", "http://exa mple/v1", "Hi."], "base URL"),
    ([], "no task"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG_USAGE)
def test_wrong_usage_is_exit_code_2_and_one_hint(harness, arguments, told):
    done = harness(*arguments, stdin="")
    assert done.code == 2
    assert told in done.err
    assert done.out == ""


@pytest.mark.parametrize("name", ["AGENT_MAX_STEPS", "AGENT_MAX_CHARS", "AGENT_SHELL_TIMEOUT"])
def test_a_setting_that_is_no_number_is_told(harness, name):
    done = harness("Hi.", env={name: "lots"})
    assert done.code == 2
    assert name in done.err


def test_a_task_given_with_an_unreadable_temperature(harness):
    done = harness("Hi.", env={"AGENT_TEMPERATURE": "warm"}, replies=[say("x")])
    assert done.code == 2
    assert "AGENT_TEMPERATURE" in done.err


def test_temperature_is_sent_only_when_set(harness):
    assert "temperature" not in harness("Hi.", replies=[say("x")]).endpoint.requests[0]
    done = harness("Hi.", replies=[say("x")], env={"AGENT_TEMPERATURE": "0"})
    assert done.endpoint.requests[0]["temperature"] == 0


def test_a_moved_endpoint_is_printed(harness):
    done = harness("Hi.", replies=[say("x")])
    assert done.endpoint.url in done.err


def test_a_closed_pipe_ends_quietly(workspace):
    with Endpoint(say("x" * 200_000)) as endpoint:
        done = shell("H Hi. | head -c 10", endpoint)
    assert done.stdout == "x" * 10
    assert "Error" not in done.stderr


def test_a_terminal_that_cannot_show_everything(workspace):
    with Endpoint(say("\u2713 alpha \U0001f389")) as endpoint:
        done = shell("H Hi.", endpoint, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "alpha" in done.stdout


def test_what_comes_from_outside_cannot_steer_the_terminal(harness, workspace):
    (workspace / "evil").write_text("\x1b]52;c;x\x07\x1b[2J\u202e\n")
    done = harness(
        "-v", "Hi.", replies=[say(call("read_file", {"path": "evil"})), say("\x1b[2Jdone")]
    )
    assert "\x1b" not in done.out + done.err
    assert "\u202e" not in done.err
    assert r"\x1b[2Jdone" in done.out


def test_help_and_version_do_not_load_the_sdk(workspace):
    for option in ("--help", "--version"):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['harness.py', {option!r}]\n"
        code += "import harness\ntry:\n    harness.main()\nfinally:\n    assert 'openai' not in sys.modules"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=30
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_nobody_at_a_terminal_means_no(harness, workspace):
    write = say(call("write_file", {"path": "c.txt", "content": "x"}))
    done = harness("Write.", replies=[write, say("I was not allowed.")], stdin="y\ny\n")
    assert done.endpoint.results[0].startswith("denied: ")
    assert not (workspace / "c.txt").exists()


def test_a_person_at_a_terminal_is_asked(workspace):
    """In a real pseudo-terminal: the whole command is shown, and a no carries its reason."""
    shell = say(
        call("run_shell", {"command": "touch c.txt"}), call("run_shell", {"command": "touch d.txt"})
    )
    with Endpoint(shell, say("done")) as endpoint:
        program, env = [str(ROOT / "harness.py"), "Touch."], settings_for(endpoint, TERM="dumb")
        terminal = pexpect.spawn(sys.executable, program, env=env, encoding="utf-8", timeout=20)
        for answer, command in (("y", "touch c.txt"), ("n keep the folder clean", "touch d.txt")):
            terminal.expect_exact(f"| {command}")
            terminal.expect_exact("exact call: ")
            terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        terminal.close()
    assert terminal.exitstatus == 0
    assert endpoint.results[0] == "(no output)\n[exit code 0]"
    assert endpoint.results[1] == "denied: the user said no. keep the folder clean"
    assert (workspace / "c.txt").exists() and not (workspace / "d.txt").exists()


OTHERS = [  # a command line, its exit code, how much of stdout comes, what stderr says
    ("S probe.py | head -c 9", 0, 9, ""),
    ("{ sleep 0.2; S tools.py; } | true", 0, 0, ""),
    ("S backend.py >&-", 0, 0, ""),
    ("S backend.py >/dev/full", 1, 0, "error: OSError: [Errno 28] No space left on device\n"),
]


@pytest.mark.parametrize(("command", "code", "length", "told"), OTHERS)
def test_the_other_commands_end_quietly_too(workspace, command, code, length, told):
    with Endpoint(say("Hello. " * 20_000)) as endpoint:
        done = shell(command, endpoint)
    assert (len(done.stdout), done.stderr, done.returncode) == (length, told, code)


def test_what_a_tool_prints_is_no_answer(harness, workspace):
    (workspace / "mine.py").write_text(
        "from tools import tool\nprint('loaded')\n\n\n@tool\ndef noisy() -> str:\n"
        "    'Make noise.'\n    print('noise')\n    return 'done'\n"
    )
    done = harness("--tools", "mine.py", "Go.", replies=[say(call("noisy")), say("It is.")])
    assert done.out == "It is.\n" and "loaded\n" in done.err and "noise\n" in done.err
    assert done.endpoint.results == ["done"]


def test_an_empty_system_prompt_is_none(harness):
    done = harness("--system", "", "Hi.", replies=[say("done")])
    assert done.endpoint.requests[0]["messages"][0]["content"].startswith("You answer questions")


def test_nohup_is_respected(workspace):
    hang_up = say(call("run_shell", {"command": "kill -HUP $PPID; sleep 0.2"}))
    with Endpoint(hang_up, say("done")) as endpoint:
        done = shell("trap '' HUP; H -y Hi.", endpoint)
    assert (done.returncode, done.stdout) == (0, "done\n")


CLOSED = [  # what is closed or full, the exit code, stdout
    ("H Hi. >&-", 0, ""),
    ("H Hi. 2>&-", 0, "done\n"),
    ("H Hi. <&-", 0, "done\n"),
    ("H Hi. >/dev/full", 1, ""),
    ("H Hi. 2>/dev/full", 0, "done\n"),
    ("H --inspect Hi. 2> >(exec 0<&-)", 0, "done\n"),
]


@pytest.mark.parametrize(("command", "code", "out"), CLOSED)
def test_streams_that_are_closed_or_full(workspace, command, code, out):
    with Endpoint(say(call("run_shell", {"command": "true"})), say("done")) as endpoint:
        done = shell(command, endpoint)
    assert (done.returncode, done.stdout) == (code, out)
    assert "Traceback" not in done.stderr
    assert endpoint.results[0].startswith("denied: ")


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit(0)", "from tools import tool\n@tool\ndef f(x: dict): ..."]
)
def test_a_file_of_tools_that_ends_the_program(harness, workspace, text):
    (workspace / "mine.py").write_text(text)
    done = harness("--json", "--tools", "mine.py", "Hi.", replies=[say("Ho.")])
    assert done.code == 2
    assert "exit" in text or "a parameter is str, int, float" in done.err
    assert json.loads(done.out)["finish_reason"] == "error"


@pytest.mark.parametrize("word", ["interrupted", "max_steps", "error", "empty"])
def test_the_endpoint_does_not_choose_the_exit_code(harness, word):
    done = harness("Hi.", replies=[say("done", finish=word)])
    assert (done.code, done.out) == (0, "done\n")


def test_inspect_shows_what_went_over_the_wire_without_the_key(harness):
    reply = say("done") | {"echo": KEY}
    done = harness("--inspect", "Hi.", replies=[Raw(reply)])
    assert 'request: {"model": "m"' in done.err
    assert '"echo": "[key]"' in done.err


def test_all_arguments_are_shown_before_a_yes(terminal, workspace):
    tool = 'from tools import tool\n\n\n@tool(asks=True)\ndef deploy(command: str, host: str) -> str:\n    """Deploy."""\n'
    (workspace / "mine.py").write_text(tool)
    with Endpoint(
        say(call("deploy", {"command": "ls", "host": "prod; rm\u202e"})), say("done")
    ) as endpoint:
        child = terminal("-q", "--tools", "mine.py", "Go.", endpoint=endpoint, env={"TERM": "dumb"})
        child.expect_exact("exact call: ")
        assert "prod; rm\\u202e" in child.before
        child.sendline("n")
        child.expect(pexpect.EOF)


def test_the_local_model_script_reads_its_options(command):
    done = command("--gguf", "nosuch.gguf", "Hi.", script="examples/local_model.py")
    assert done.returncode == 2
    assert "there is no file nosuch.gguf" in done.stderr
