"""--sandbox: commands in bubblewrap, for real. Skipped where bubblewrap does not work."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time

import pytest
from conftest import left_running

import harness
import tools
from tools import dispatch


def shell(command, **more):
    return dispatch("run_shell", {"command": command} | more, lambda *_: (True, ""))


@pytest.fixture(scope="session")
def works(tmp_path_factory):
    """Whether bubblewrap works on this machine; the reason where it does not."""
    before, environment = os.getcwd(), dict(os.environ)
    os.chdir(tmp_path_factory.mktemp("probe"))
    os.environ["AGENT_SANDBOX"] = "1"
    try:
        told = shell("true")
        return "" if told.endswith("[exit code 0]") else told
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture
def sandbox(works, workspace, monkeypatch, tmp_path):
    """A workspace where commands run in the sandbox, with a home folder that holds secrets."""
    if works:
        pytest.skip(f"no sandbox on this machine: {works}")
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (".ssh/id_ed25519", ".aws/credentials", ".config/x", ".netrc", "notes.txt"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).write_text("hunter2\n")
    return workspace


def files_below(folder):
    return sorted(str(path) for path in folder.rglob("*"))


# --- what works in it ---


def test_the_workspace_is_writable_and_commands_work_as_ever(sandbox):
    assert (
        shell("pwd; echo a > new; mkdir -p b/c; cat new; exit 3") == f"{sandbox}\na\n[exit code 3]"
    )
    assert (sandbox / "new").read_text() == "a\n" and (sandbox / "b/c").is_dir()
    assert shell(f"{sys.executable} -c 'print(6 * 7)'") == "42\n[exit code 0]"
    assert shell("echo x > /tmp/x && cat /tmp/x $HOME/x || touch $HOME/y").startswith("x\n")


def test_the_time_limit_holds_in_it(sandbox):
    started = time.monotonic()
    told = shell("trap '' TERM; echo begun; sleep 60 & setsid sleep 60", timeout=1)
    assert told.startswith("begun\n[timed out after 1 s")
    assert time.monotonic() - started < 5


def test_an_allowed_command_runs_in_it_too(sandbox, monkeypatch):
    monkeypatch.setenv("AGENT_ALLOW", "touch ../beside")
    dispatch("run_shell", {"command": "touch ../beside"})
    assert not (sandbox.parent / "beside").exists()
    monkeypatch.setenv("AGENT_ALLOW", "touch within")
    assert dispatch("run_shell", {"command": "touch within"}) == "(no output)\n[exit code 0]"
    assert (sandbox / "within").exists()


# --- what does not ---


@pytest.mark.parametrize(
    "target",
    ["../beside.txt", "../beside/new.txt", "/etc/agent-was-here", "/usr/agent-was-here", "/x",
     "$HOME/.ssh/authorized_keys", "$HOME/.bashrc"],
)  # fmt: skip
def test_nothing_outside_is_written(sandbox, target):
    (sandbox.parent / "beside").mkdir()
    (sandbox.parent / "beside.txt").write_text("as it was")
    before = files_below(sandbox.parent)
    shell(f"echo changed > {target}")
    assert files_below(sandbox.parent) == before
    assert (sandbox.parent / "beside.txt").read_text() == "as it was"
    assert not any(map(os.path.exists, ("/etc/agent-was-here", "/usr/agent-was-here", "/x")))


@pytest.mark.parametrize(
    "place",
    ["$HOME/.ssh/id_ed25519", "$HOME/.aws/credentials", "$HOME/.config/x", "$HOME/.netrc", "$HOME/notes.txt",
     "../secret.txt", ".env", ".ENV.local", "server.pem", ".harness/run", "/var/log/*", "/run/*", "/proc/1/root/root/.*"],
)  # fmt: skip
def test_secrets_are_out_of_sight(sandbox, place):
    for name in ("../secret.txt", ".env", ".ENV.local", "server.pem", ".harness/run"):
        (sandbox / name).parent.mkdir(exist_ok=True)
        (sandbox / name).write_text("hunter2\n")
    told = shell(f"cat {place}; ln {place} copy; cp {place} copy; mv {place} copy; cat copy")
    assert "hunter2" not in told and "[exit code 1]" in told


def test_the_environment_file_of_the_program_is_out_of_sight(sandbox, monkeypatch, tmp_path):
    program = tmp_path / "program"
    program.mkdir()
    (program / ".env").write_text("GROQ_API_KEY=hunter2\n")
    monkeypatch.setattr(tools, "__file__", str(program / "tools.py"))
    monkeypatch.setenv("PATH", f"{program}:{os.environ['PATH']}")
    assert "hunter2" not in shell(f"ls -a {program}; cat {program}/.env")


def test_a_link_out_of_the_workspace_leads_nowhere(sandbox):
    (sandbox.parent / "secret.txt").write_text("hunter2\n")
    (sandbox / "link").symlink_to(sandbox.parent / "secret.txt")
    assert "hunter2" not in shell("cat link; echo changed > link")
    assert (sandbox.parent / "secret.txt").read_text() == "hunter2\n"


def test_other_processes_are_out_of_sight(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    told = shell("cat /proc/*/environ | tr '\\0' '\\n'; ls -d /proc/[0-9]* | wc -l")
    assert "hunter2" not in told
    child = subprocess.Popen(["sleep", "60"], env={"OPENAI_API_KEY": "hunter2"})
    told = shell(f"cat /proc/{child.pid}/environ; kill -9 {child.pid}")
    assert "hunter2" not in told and child.poll() is None
    child.kill()
    child.wait()


def test_there_is_no_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 2); print('reached')"
        )
        told = shell(f'{sys.executable} -c "{code}"')
        assert "Refused" in told and told.endswith("[exit code 1]")
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "unreachable" in shell(
        f"{sys.executable} -c \"import socket; socket.create_connection(('1.1.1.1', 80), 2)\""
    )


def test_no_socket_of_the_machine_can_be_reached(sandbox, tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "agent.sock"))
        server.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect('{tmp_path}/agent.sock'); print('reached')"
        assert "reached" not in shell(f'{sys.executable} -c "{code}"').replace(code, "")


@pytest.mark.parametrize("how", ["setsid", "nohup setsid", "double fork"])
def test_no_daemon_outlives_the_command(sandbox, how):
    fork = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  time.sleep(60)\n os._exit(0)"
    (sandbox / "daemon.py").write_text(fork)
    start = f"{sys.executable} daemon.py" if "fork" in how else f"{how} sleep 60 &"
    started = time.monotonic()
    shell(f"{start}\nsleep 0.3; echo started")
    assert time.monotonic() - started < 5
    time.sleep(0.2)
    assert not left_running(sandbox)


def test_no_setting_of_the_kernel_is_writable(sandbox):
    assert "writable" not in shell("test -w /proc/sys/kernel/core_pattern && echo writable")


def test_there_is_no_way_to_mount_or_to_become_somebody(sandbox):
    told = shell(
        "grep CapEff /proc/self/status; mount -t tmpfs x /opt; umount /proc/sys; mknod d b 254 0; ls d"
    )
    assert "CapEff:\t0000000000000000" in told and not (sandbox / "d").exists()


# --- .git ---


def test_git_works_but_is_read_only(sandbox):
    subprocess.run(["git", "init", "-q"], check=True)
    (sandbox / "a").write_text("x")
    told = shell(
        "git status --short; echo x > .git/hooks/pre-commit; echo y >> .git/config; mv .git g; rm -rf .git"
    )
    assert "?? a" in told and "Read-only file system" in told
    assert (sandbox / ".git/config").read_text().startswith("[core]")
    assert not (sandbox / ".git/hooks/pre-commit").exists()


def test_git_cannot_be_made_and_is_not_made_for_it(sandbox):
    told = shell(
        "git init -q .; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; rmdir .git; mv .git g"
    )
    assert "Read-only file system" in told
    assert files_below(sandbox) == []


def test_a_git_that_is_a_file_or_a_link_cannot_be_replaced(sandbox):
    (sandbox / ".git").write_text("gitdir: /nowhere\n")
    shell("rm -f .git; echo changed > .git")
    assert (sandbox / ".git").read_text() == "gitdir: /nowhere\n"
    (sandbox / ".git").unlink()
    (sandbox / "real").mkdir()
    (sandbox / ".git").symlink_to("real")
    assert_nothing_runs(sandbox, "not run", "`.git` that is a link")
    assert (sandbox / ".git").is_symlink() and files_below(sandbox / "real") == []


# --- rather not run than run without ---


def assert_nothing_runs(workspace, *why):
    told = shell("touch ran")
    assert not (workspace / "ran").exists()
    assert all(word in told for word in why), told
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert harness.main(["--sandbox", "Hi."]) == 2  # before any endpoint is looked for
    assert all(word in said.getvalue() for word in why)


def test_without_bubblewrap_nothing_runs(workspace, monkeypatch):
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    monkeypatch.setenv("PATH", "/nowhere")
    assert_nothing_runs(workspace, "not run", "apt install bubblewrap")


def test_a_bubblewrap_of_the_workspace_is_none(workspace, monkeypatch):
    (workspace / "bwrap").write_text("#!/bin/sh\ntouch ran\n")
    (workspace / "bwrap").chmod(0o755)
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    monkeypatch.setenv("PATH", str(workspace))
    assert_nothing_runs(workspace, "not run", "apt install bubblewrap")


def test_where_namespaces_are_not_allowed_nothing_runs(workspace, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bwrap").write_text(
        "#!/bin/sh\necho bwrap: setting up uid map: Permission denied\nexit 1\n"
    )
    (tmp_path / "bin/bwrap").chmod(0o755)
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert_nothing_runs(workspace, "setting up uid map: Permission denied")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_on_other_systems_nothing_runs(workspace, monkeypatch, system):
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    # From 3.12 on, `which` asks Windows itself where it believes to be there.
    monkeypatch.setattr(tools.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(tools.sys, "platform", system)
    assert_nothing_runs(workspace, "not run", "needs Linux")


def test_the_home_folder_is_no_workspace_for_it(workspace, monkeypatch):
    monkeypatch.setenv("AGENT_SANDBOX", "1")
    for home in (workspace, workspace / "me"):
        home.mkdir(exist_ok=True)
        monkeypatch.setenv("HOME", str(home))
        assert_nothing_runs(workspace, "not run", "home folder")


@pytest.mark.parametrize("value", ["", "0"])
def test_it_is_off_where_it_is_not_asked_for(workspace, monkeypatch, value):
    monkeypatch.setenv("AGENT_SANDBOX", value)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    assert tools.sandbox() == []
    assert json.loads(json.dumps(shell("echo hi"))) == "hi\n[exit code 0]"
