"""The loop: what run() does with what a model sends. Each test talks to a real endpoint on loopback."""

import functools
import json
from types import SimpleNamespace

import pytest
from endpoint import Endpoint, Raw, call, history_faults, say

import backend
import harness as module
from tools import REGISTRY


def model_at(endpoint):
    """The scripted endpoint, as what run() asks."""
    at = backend.Endpoint(backend.BACKENDS["openai"], endpoint.url, model="m")
    return functools.partial(backend.chat, backend=at)


def start(endpoint, task="Do it.", **options):
    """run() against a scripted endpoint."""
    return module.run(
        task, model=model_at(endpoint), approve=lambda tool, arguments: (True, ""), **options
    )


def test_an_answer_without_a_call_is_one_step(harness):
    done = harness("Capital of France?", replies=[say("Paris.")])
    assert (done.code, done.out) == (0, "Paris.\n")
    assert len(done.endpoint.requests) == 1


def test_a_call_is_run_and_its_result_is_sent_back(harness, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    done = harness("Read it.", replies=[say(call("read_file", {"path": "a.txt"})), say("alpha")])
    assert done.endpoint.results == ["alpha\n"]
    assert '[1] read_file {"path": "a.txt"}' in done.err
    assert done.out == "alpha\n"


def test_calls_of_one_turn_are_answered_in_their_order(harness, workspace):
    for name in "ab":
        (workspace / name).write_text(name * 3)
    calls = [call("read_file", {"path": name}, "same_id") for name in "ab"]
    done = harness("Read both.", replies=[say(*calls), say("done")])
    assert done.endpoint.results == ["aaa", "bbb"]


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_both_modes_send_what_they_say(harness, mode):
    done = harness(mode, "Hi.", replies=[say(call("list_dir")), say("done")])
    assert {bool(body.get("stream")) for body in done.endpoint.requests} == {mode == "--stream"}
    assert done.out == "done\n"


def test_the_step_limit_ends_with_the_best_answer(harness):
    steps = [say(call("list_files", {"glob_pattern": f"*.{n}"})) for n in range(3)]
    done = harness("--max-steps", "3", "Look.", replies=[*steps, say("So far: nothing.")])
    assert (done.code, done.out) == (3, "So far: nothing.\n")
    assert "step limit" in done.err
    last = done.endpoint.requests[-1]
    assert last["tool_choice"] == "none"
    assert last["tools"] == done.endpoint.requests[0]["tools"]  # the cached prefix holds
    assert "Answer now" in last["messages"][-1]["content"]


def test_the_token_limit_ends_the_same_way(harness):
    replies = [say(call("list_dir")), say("So far.")]
    done = harness("--max-tokens", "20", "Look.", replies=replies)
    assert (done.code, done.out) == (3, "So far.\n")
    assert "token limit" in done.err


def test_an_endpoint_without_usage_still_works(harness):
    done = harness("Hi.", replies=[say(call("list_dir"), usage=None), say("done", usage=None)])
    assert done.code == 0
    assert "0 tokens" in done.err


def test_the_third_same_call_in_a_row_is_not_run(harness, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    same = [say(call("read_file", {"path": "a.txt"}))] * 3
    done = harness("Read.", replies=[*same, say("alpha")])
    assert done.endpoint.results[:2] == ["alpha\n"] * 2
    assert done.endpoint.results[2].startswith("error: not run")
    assert done.code == 0


def test_three_refused_repeats_stop_the_run(harness):
    done = harness("Read.", replies=[*[say(call("list_dir"))] * 5, say("So far.")])
    assert (done.code, done.out) == (3, "So far.\n")
    assert len(done.endpoint.requests) == 6


def test_an_empty_reply_is_nudged_once(harness):
    done = harness("Hi.", replies=[say(call("list_dir")), say(""), say("done")])
    assert done.out == "done\n"
    assert "Now answer the question" in done.endpoint.results[0]


def test_a_result_that_the_model_repeats_is_no_answer(harness):
    told = "error: there is no b.txt in the workspace."
    done = harness("Hi.", replies=[say(call("read_file", {"path": "b.txt"})), say(told), say("no")])
    assert (done.code, done.out) == (0, "no\n")


def test_an_answer_that_begins_like_a_result_is_taken_the_second_time(harness):
    told = "error: disk full. That is what the log says."
    done = harness("What does the log say?", replies=[say(told)])
    assert (done.code, done.out, len(done.endpoint.requests)) == (0, f"{told}\n", 2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--no-tools"], '{"name": "Bob", "parameters": {"a": 1}}'),
        (["--no-tools"], "Use read_file."),
        ([], "Name: run\nParameters: task, model. It works on a task."),
        ([], "**Name** main\n**Arguments** none"),
    ],
)
def test_an_answer_about_names_and_parameters_is_one(harness, arguments, text):
    done = harness(*arguments, "Hi.", replies=[say(text), say("another")])
    assert (done.code, done.out) == (0, f"{text}\n")


def test_a_call_of_no_tool_that_is_written_as_text_is_asked_for_again(harness):
    made = json.dumps({"name": "look", "arguments": {}})
    done = harness("Hi.", replies=[say(made), say("done")])
    assert done.out == "done\n"
    told = done.endpoint.requests[1]["messages"][-1]["content"]
    assert "Tools: " in told and "read_file" in told


def test_two_empty_replies_stop_with_exit_code_3(harness):
    done = harness("Hi.", replies=[say("")])
    assert done.code == 3
    assert "no answer" in done.err
    assert len(done.endpoint.requests) == 2


def test_a_call_that_is_only_described_is_asked_for(harness):
    replies = [say("You can use the `list_dir` function."), say(call("list_dir")), say("done")]
    done = harness("Look.", replies=replies)
    assert done.out == "done\n"
    assert "Make the next call" in done.endpoint.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("named", "told"),
    [("list_dir", "Now answer the question"), ("read_file", "Make the next call")],
)
def test_a_call_that_was_made_already_is_not_asked_for_once_more(harness, named, told):
    described = say(f"You can call the `{named}` function.")
    done = harness("Look.", replies=[say(call("list_dir")), described, say("done")])
    assert done.out == "done\n"
    assert told in done.endpoint.requests[2]["messages"][-1]["content"]


def test_a_text_that_was_nudged_is_taken_the_second_time(harness):
    done = harness(
        "Which tools do you have?", replies=[say("You can use the `list_dir` function.")]
    )
    assert (done.code, done.out) == (0, "You can use the `list_dir` function.\n")


def test_calls_of_a_cut_off_reply_are_not_run(harness, workspace):
    whole = call("write_file", {"path": "c.txt", "content": "x"})
    done = harness("-y", "Write.", replies=[say(whole, finish="length"), say("done")])
    assert "cut off" in done.endpoint.results[0]
    assert not (workspace / "c.txt").exists()


def test_a_cut_off_answer_is_printed_and_told(harness):
    done = harness("Hi.", replies=[say("The answer is", finish="length")])
    assert (done.code, done.out) == (3, "The answer is\n")
    assert "cut off" in done.err


@pytest.mark.parametrize("reply", [say(finish="content_filter"), say(refusal="I will not.")])
def test_a_filtered_reply_is_said(harness, reply):
    done = harness("Hi.", replies=[reply])
    assert done.code == 1
    assert "filter" in done.err
    assert done.out in ("", "I will not.\n")


def test_text_calls_with_words_after_them_only_read(harness, workspace):
    (workspace / "a.txt").write_text("alpha\n")
    read = '```json\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n```\nThis shows it.'
    write = (
        '{"name": "write_file", "arguments": {"path": "b.txt", "content": "x"}}\nThis writes it.'
    )
    done = harness("-y", "Do.", replies=[say(read), say(write), say("done")])
    assert done.endpoint.results[0] == "alpha\n"
    assert "alone" in done.endpoint.results[1]
    assert not (workspace / "b.txt").exists()


def test_an_overlong_conversation_is_shortened(workspace):
    (workspace / "big.txt").write_text("lorem ipsum\n" * 800)
    too_long = Raw({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}, 400)
    read = [say(call("read_file", {"path": "big.txt", "start_line": n})) for n in (1, 2, 3)]
    with Endpoint(*read, too_long, say("done")) as endpoint:
        result = start(endpoint)
    assert result.answer == "done"
    assert [len(text) < 200 for text in endpoint.results] == [True, False, False]


def test_an_unseen_result_is_halved_and_then_it_is_an_error(workspace):
    (workspace / "big.txt").write_text("lorem ipsum\n" * 800)
    too_long = Raw({"error": {"code": "context_length_exceeded"}}, 400)
    with Endpoint(say(call("read_file", {"path": "big.txt"})), too_long) as endpoint:
        result = start(endpoint)
    assert "nothing is left to shorten" in result.error
    sizes = [len(body["messages"][-1]["content"]) for body in endpoint.requests]
    assert sizes[1] > 9000 > sizes[2] > 4000 > sizes[3]


def test_a_conversation_goes_on(workspace):
    messages = []
    with Endpoint(say(call("list_dir")), say("one"), say("two")) as endpoint:
        start(endpoint, "first", messages=messages)
        start(endpoint, "second", messages=messages)
    assert endpoint.faults == []
    assert [m["content"] for m in messages if m["role"] == "user"] == ["first", "second"]
    assert messages[-1]["content"] == "two"


def test_an_error_leaves_a_history_to_go_on_with(workspace):
    messages = []
    with Endpoint(
        say("I will look.", call("list_dir")), Raw({"error": "no"}, 400), say("two")
    ) as endpoint:
        failed = start(endpoint, "first", messages=messages)
        assert (failed.finish_reason, failed.answer) == ("error", "")
        assert start(endpoint, "second", messages=messages).answer == "two"
    assert history_faults(messages) == [] == endpoint.faults


def test_ctrl_c_in_a_tool_leaves_a_history_to_go_on_with(workspace):
    def approve(tool, arguments):
        raise KeyboardInterrupt

    messages = []
    calls = [call("list_dir"), call("run_shell", {"command": "true"}), call("list_dir")]
    with Endpoint(say(*calls), say("two")) as endpoint:
        result = module.run("first", model=model_at(endpoint), approve=approve, messages=messages)
        assert result.finish_reason == "interrupted"
        assert [made["result"] for made in result.tool_calls[1:]] == ["interrupted"]
        assert start(endpoint, "second", messages=messages).answer == "two"
    assert history_faults(messages) == [] == endpoint.faults
    assert [m["content"][:18] for m in messages if m["role"] == "tool"][1:] == [
        "error: interrupted"
    ] * 2


def test_an_assistant_may_have_tools_of_its_own_only(workspace):
    with Endpoint(say(call("run_shell", {"command": "true"})), say("done")) as endpoint:
        start(endpoint, registry={"list_dir": REGISTRY["list_dir"]})
    assert [t["function"]["name"] for t in endpoint.requests[0]["tools"]] == ["list_dir"]
    assert endpoint.results[0].startswith("error: there is no tool 'run_shell'")


def test_a_model_may_be_any_function_with_calls_as_the_sdk_has_them(workspace):
    function = SimpleNamespace(name="run_shell", arguments='{"command": "true"}')
    made = SimpleNamespace(id="call_1", function=function)
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1"}]}
    replies = [
        backend.Reply(None, [made], "tool_calls", {"total_tokens": 5}, message, ""),
        backend.Reply("done", [], "stop", {}, {"role": "assistant", "content": "done"}, ""),
    ]
    result = module.run("Do it.", model=lambda *_, **__: replies.pop(0))
    assert (result.answer, result.usage) == ("done", {"total_tokens": 5})
    assert result.tool_calls[0]["result"] == "denied: it was not allowed"


def test_the_result_has_what_the_run_came_to(workspace):
    with Endpoint(say(call("list_dir")), say("done")) as endpoint:
        result = start(endpoint)
    assert (result.steps, result.finish_reason, result.error) == (2, "stop", "")
    assert result.usage == {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50}
    (made,) = result.tool_calls
    assert (made["name"], made["arguments"]) == ("list_dir", "{}")
    assert made["result"].startswith("(0 files, 0 folders")
    assert json.dumps(result.tool_calls)
