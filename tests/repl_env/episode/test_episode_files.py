"""`env.files`: the workspace of an episode, put, read and listed by the host."""

from __future__ import annotations

import pytest

from repl_env import AsyncLocalREPLEnv, NotReset, REPLAction, REPLEnvironment, REPLVectorEnv
from repl_env.env.recordings import Recorder

WRITE = "open('out.csv', 'w').write(open('in.csv').read().upper())"


def test_a_submission_is_read_after_the_end_until_the_next_reset(make):
    env = make()
    with pytest.raises(NotReset):
        env.files.get("out.csv")
    env.reset(files={"in.csv": "a,b"})
    env.execute(WRITE)
    assert env.execute("FINAL(1)").done
    assert env.files.get("out.csv") == b"A,B"
    env.files.put("more/x.bin", b"\0\1")
    paths = [each.path for each in env.files.list()]
    assert {"in.csv", "out.csv", "more/x.bin"} <= set(paths)
    env.reset()
    with pytest.raises(FileNotFoundError, match=r"out\.csv"):
        env.files.get("out.csv")
    env.close()
    with pytest.raises(NotReset):
        env.files.list()


def test_a_symbolic_link_of_the_policy_is_not_followed_by_the_host(make, tmp_path):
    (tmp_path / "secret").write_text("of the host")
    env = make()
    env.reset()
    env.execute(f"import os\nos.symlink({str(tmp_path / 'secret')!r}, 'out.csv')")
    with pytest.raises(OSError, match=r"out\.csv"):
        env.files.get("out.csv")


async def test_files_are_awaited_on_an_event_loop(sandbox):
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset()
        await env.files.put("in.csv", "a,b")
        await env.execute(WRITE)
        assert await env.files.get("out.csv") == b"A,B"


async def test_environments_of_a_group_have_files_too(sandbox):
    with REPLVectorEnv(2, sandbox=sandbox) as envs:
        envs.reset(files={"in.csv": "a,b"})
        envs.step([WRITE, WRITE + "; open('out.csv', 'a').write('!')"])
        assert [env.files.get("out.csv") for env in envs.environments] == [b"A,B", b"A,B!"]
    async with REPLVectorEnv(2, sandbox=sandbox) as envs:
        await envs.areset(files={"in.csv": "a,b"})
        await envs.astep([WRITE, None])
        assert await envs.environments[0].files.get("out.csv") == b"A,B"


def test_environments_and_recorders_have_files_too(make, sandbox):
    environment = REPLEnvironment(sandbox=sandbox)
    environment.reset(files={"in.csv": "a,b"})
    environment.step(REPLAction(code=WRITE))
    assert environment.files.get("out.csv") == b"A,B"
    environment.close()
    recorder = Recorder(make())
    recorder.reset(files={"in.csv": "a,b"})
    recorder.execute(WRITE)
    assert recorder.files.get("out.csv") == b"A,B"
