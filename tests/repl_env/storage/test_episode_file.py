"""Episodes in files: a loaded episode continues as the saved one would have."""

from __future__ import annotations

import inspect
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repl_env import (
    LLM,
    AsyncLocalREPLEnv,
    CodeExecutionRubric,
    EpisodeDone,
    ExactMatchRubric,
    LocalREPLEnv,
    NotReset,
    Rubric,
)
from repl_env.env.saving import EpisodeFile
from repl_env.rlm import Budget
from repl_sandbox import AsyncSandbox, CheckpointError, Sandbox, SandboxError
from repl_sandbox.protocol import checkpoints
from tests.limits import PATIENT

TIMES = ("usage", "execution_time", "waiting_time", "total_execution_time")


def shown(result: Any) -> dict[str, Any]:
    """A result without what is another each time."""
    told: dict[str, Any] = result.observation.model_dump()
    told["result"]["execution_time"] = 0
    for name in TIMES:
        told["metadata"].pop(name, None)
    for change in told["result"]["changes"]:
        change["size"] = 0  # a loaded list has less spare capacity
    return told


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episode.repl"


CODE = """
import sys, os, random
sys.path.insert(0, ".")
import mine
def fall(n):
    return fall(n - 1) if n else 1 / 0
drawn = random.random()
rows = context.split()
open("made.txt", "w").write("made")
os.makedirs("a/b")
open("a/b/deep.bin", "wb").write(bytes(range(256)))
answer["content"] = "draft"
"""
STEPS = (
    "random.random(), drawn, rows, mine.two()",
    "fall(2)",
    "open('made.txt').read(), open('a/b/deep.bin', 'rb').read()[255], open('given.txt').read()",
    "rows.append(1)\nlen(context), _",
    "import os\nos._exit(1)",
    "context[:3]",
    "FINAL(7)",
)


def test_the_steps_after_loading_are_those_that_would_have_been(make, path):
    one, two = make(), make()
    one.reset(
        context="one two three",
        task_prompt="How many?",
        files={"given.txt": "given", "mine.py": "def two(): return 2"},
        seed=5,
        max_iterations=20,
        expected_answer=7,
        answer_schema={"type": "integer"},
    )
    one.execute("FINAL('text')")
    assert one.execute(CODE).observation.result.success
    assert one.save(path) == ()
    assert two.load(path) == ()

    before, after = one.state(), two.state()
    assert after == before
    for code in STEPS:
        assert shown(two.execute(code)) == shown(one.execute(code))
    assert two.state().final_answer == "7"
    assert two.state().stop_reason == "answer"


def test_the_reward_of_a_loaded_episode_is_the_same(make, path):
    one, two = make(), make()
    one.reset(expected_answer="42")
    one.save(path)
    two.load(path)
    assert two.execute("FINAL(42)").reward == 1.0
    two.load(path)
    assert two.execute("FINAL(41)").reward == 0.0


def test_an_episode_that_cannot_be_loaded_leaves_the_current_one_as_it_is(make, path, tmp_path):
    saved = make()
    saved.reset(files={"large.bin": "x" * (2 << 20)})
    saved.save(path)
    with LocalREPLEnv(limits=replace(PATIENT, workspace="1MiB")) as env:
        env.reset(expected_answer="42")
        env.execute("x = 5")
        with pytest.raises(OSError):
            env.load(path)
        assert env.execute("x").observation.result.value == "5"
        assert env.execute("FINAL(42)").reward == 1.0


def test_the_last_iteration_is_counted_over_the_file(make, path):
    one, two = make(), make()
    one.reset(max_iterations=2)
    one.execute("answer['content'] = 'so far'")
    one.save(path)
    two.load(path)
    result = two.execute("1")
    assert result.done
    assert result.metadata["final_answer"] == "so far"
    assert result.metadata["stop_reason"] == "max_iterations"


def test_an_episode_that_is_done_stays_done(make, path):
    one, two = make(), make()
    one.reset(expected_answer="x")
    one.execute("FINAL('x')")
    one.save(path)
    two.load(path)
    with pytest.raises(EpisodeDone) as caught:
        two.execute("FINAL('y')")
    assert caught.value.result.reward == 1.0


def test_contexts_of_every_kind_come_back(make, path):
    one, two = make(), make()
    given = {"text": "größe\n", "raw": b"\x00\xff", "rows": [1, {"a": None}]}
    one.reset(contexts=given)
    one.save(path)
    two.load(path)
    assert two.state().context_length == one.state().context_length
    again = two.execute("import os\nos._exit(0)")
    assert again.observation.metadata["error_kind"] == "crash"
    assert two.session.get("text") == "größe\n"
    assert two.execute("raw, rows").observation.result.value == repr((given["raw"], given["rows"]))


def test_values_that_are_not_saved_are_reported_and_removed(make, path):
    one, two = make(), make()
    one.reset()
    one.execute("import os\ngenerator = (n for n in [])\nos.symlink('x', 'link')\nx = 1")
    assert [row.name for row in one.save(path)] == ["generator", "link"]
    assert [row.name for row in two.load(path)] == ["generator"]
    assert "generator" not in two.list_variables()
    assert "x" in two.list_variables()


def test_no_token_and_no_function_is_in_the_file(make, path):
    one = make(llm_query_fn=lambda prompt, model: f"{model}: {prompt}")
    llm = LLM(model="small", api_key="SECRET-KEY", headers={"auth": "SECRET-HEADER"})
    one.reset(llm=llm)
    one.save(path)
    assert b"SECRET" not in path.read_bytes()

    with pytest.raises(ValueError, match=r"llm_query.*give them"):
        make().load(path)
    two = make(llm_query_fn=lambda prompt, model: f"{model}, {prompt}")
    two.load(path)
    assert two.execute("llm_query('hi')").observation.result.value == "'small, hi'"
    two.load(path, llm_model="large")
    assert two.execute("llm_query('hi')").observation.result.value == "'large, hi'"


def test_a_type_schema_must_be_given_again_on_load(make, path):
    one, two = make(), make()
    one.reset(answer_schema=int)
    one.save(path)
    with pytest.raises(ValueError, match="answer_schema"):
        two.load(path)
    two.load(path, answer_schema=int)
    assert two.execute("FINAL('12')").metadata["answer_value"] == 12


def test_an_episode_with_another_answers_mode_is_not_loaded(make, path):
    one = make(answers="strict")
    one.reset()
    one.save(path)
    with pytest.raises(ValueError, match=r"answers: .*'strict'"):
        make().load(path)


def test_an_expected_answer_that_is_no_json_cannot_be_saved(make, path):
    env = make()
    env.reset(expected_answer=(1, 2))
    with pytest.raises(TypeError, match="expected_answer"):
        env.save(path)
    assert not path.exists()


def test_an_expected_answer_that_no_file_can_hold_is_refused_by_name(make, path):
    env = make()
    env.reset(expected_answer={"half": "\ud800"})
    with pytest.raises(TypeError, match="expected_answer"):
        env.save(path)
    assert not path.exists()


def test_a_workspace_that_cannot_be_listed_is_an_error(make, path):
    env = make()
    env.reset()
    env.execute("import os\nos.makedirs('closed/inner')\nos.chmod('closed', 0)")
    with pytest.raises(CheckpointError, match="closed to its owner"):
        env.save(path)


def test_a_rubric_may_keep_more_than_the_expected_answer(make, path):
    class Counting(Rubric):
        steps = 0

        def forward(self, action: Any, observation: Any) -> float:
            self.steps += 1
            return float(self.steps)

        def state_dict(self) -> dict[str, int]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    one, two = make(rubric=Counting()), make(rubric=Counting())
    one.reset()
    one.execute("1")
    one.save(path)
    two.load(path)
    assert two.execute("1").reward == 2.0


class Versioned(ExactMatchRubric):
    """Keeps a count, and takes that of its own version only."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self.version, self.steps = version, 0

    def reset(self) -> None:
        super().reset()
        self.steps = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.steps += 1
        return super().forward(action, observation)

    def state_dict(self) -> dict[str, int]:
        return {self.version: self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state[self.version]


@pytest.mark.parametrize("kind", [LocalREPLEnv, AsyncLocalREPLEnv])
async def test_a_rubric_that_refuses_what_was_saved_leaves_the_current_episode(
    sandbox, make, path, kind
):
    saved = make(rubric=Versioned("old"))
    saved.reset(expected_answer="x", max_iterations=3)
    saved.save(path)
    saved.close()
    before = sandbox.statistics().open
    env = kind(sandbox=sandbox, rubric=Versioned("new"))
    await done(env.reset(expected_answer="42", episode_id="mine"))
    await done(env.execute("x = 5"))
    with pytest.raises(KeyError, match="new"):
        await done(env.load(path))
    assert (sandbox.statistics().open, (await done(env.state())).episode_id) == (before + 1, "mine")
    last = await done(env.execute("FINAL(x * 8 + 2)"))
    assert (last.reward, last.observation.iteration, env.rubric.steps) == (1.0, 2, 2)
    await done(env.close())


async def done(result: Any) -> Any:
    """`result`, awaited where it must be."""
    return await result if inspect.isawaitable(result) else result


def test_loading_without_a_free_session_is_an_error_and_changes_nothing(make, path):
    saved = make()
    saved.reset()
    saved.save(path)
    with Sandbox(max_sessions=1) as narrow, LocalREPLEnv(sandbox=narrow) as env:
        env.reset(episode_id="mine")
        with pytest.raises(SandboxError, match="max_sessions=1 sessions are open"):
            env.load(path)
        assert (env.state().episode_id, env.execute("1").observation.iteration) == ("mine", 1)


def test_a_rubric_without_set_expected_cannot_lose_an_answer_silently(make, path):
    one, two = make(rubric=ExactMatchRubric()), make(rubric=CodeExecutionRubric())
    one.reset(expected_answer="x")
    one.save(path)
    two.reset()
    with pytest.raises(ValueError, match="CodeExecutionRubric"):
        two.load(path)
    assert two.execute("1").observation.iteration == 1  # the last episode is untouched


def test_the_file_is_private_and_written_atomically(make, path, tmp_path):
    env = make()
    env.reset()
    env.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    with pytest.raises(OSError):
        env.save(tmp_path / "none" / "such")
    env.execute("class Slow:\n    def __reduce__(self):\n        import os\n        os._exit(1)")
    env.execute("slow = Slow()")
    with pytest.raises(CheckpointError):
        env.save(path)
    assert path.read_bytes() == whole
    assert os.listdir(tmp_path) == [path.name]


def test_an_unwritable_file_is_named_in_the_error(make, tmp_path):
    env = make()
    env.reset(context="some text")
    for target in (tmp_path / "absent" / "episode", tmp_path):
        with pytest.raises(OSError) as raised:
            env.save(target)
        assert raised.value.filename == str(target)
        assert str(raised.value).endswith(repr(str(target)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_begins_as_another_is_not_read(make, path):
    """The path may be an endless device, or, as here, a file larger than the memory."""
    with open(path, "wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(CheckpointError, match="this is not a saved episode"):
        make().load(path)


def test_a_file_that_is_damaged_is_refused_and_the_episode_goes_on(make, path):
    env = make()
    env.reset()
    env.execute("x = 1")
    env.save(path)
    data = path.read_bytes()
    for wrong in (data[:-1], data[:100], b"", data[:50] + b"\x00" + data[51:], b"x" * 1000):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError):
            env.load(path)
    path.write_bytes(checkpoints.pack_container(b"epis", 99, b"[]", []))
    with pytest.raises(CheckpointError, match="version 99"):
        env.load(path)
    with pytest.raises(FileNotFoundError):
        env.load(path.parent / "none")
    assert env.execute("x").observation.result.value == "1"


HEADERS = [
    b"[]",
    b"{}",
    b"[[]]",
    b"[[1,2,3,4]]",
    b'[["episode","","",-1]]',
    b'[["episode","","",5]]',
    b'[["other","","",0]]',
    b'[["episode","","",0]]',
    b"[" * 100_000,
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_a_file_that_is_malformed_is_refused(header):
    with pytest.raises(CheckpointError):
        EpisodeFile.parse(checkpoints.pack_container(b"epis", 1, header, []))


def test_the_state_in_a_file_is_read_strictly(make, path):
    env = make()
    env.reset(context="x")
    env.save(path)
    file = EpisodeFile.parse(path.read_bytes())
    state = json.loads(file.episode.model_dump_json())
    for name, wrong in (("iteration", "1"), ("stop_reason", "why"), ("more", 1), ("names", None)):
        text = json.dumps({**state, name: wrong}).encode()
        rows = json.dumps([["episode", "", "", len(text)]]).encode()
        with pytest.raises(CheckpointError, match=name):
            EpisodeFile.parse(checkpoints.pack_container(b"epis", 1, rows, [text]))


def test_sparse_files_are_not_read_into_memory(env, path):
    env.reset()
    env.execute("for n in range(9):\n    open(f'{n}', 'w').truncate(200 << 20)")
    with pytest.raises(CheckpointError, match="files of more than"):
        env.save(path)
    assert env.execute("1").observation.result.success


def test_saving_before_a_reset_raises_not_reset(env, path):
    with pytest.raises(NotReset):
        env.save(path)


async def test_asynchronous_saving_and_loading(make, path):
    one = make()
    one.reset(context="a b", expected_answer="2")
    one.execute("n = len(context.split())")
    one.save(path)
    async with AsyncSandbox() as sandbox, AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.load(path)
        assert (await env.execute("n")).observation.result.value == "2"
        await env.save(path)
        await env.load(path)
        assert (await env.execute("FINAL(n)")).reward == 1.0


def test_a_path_may_be_text(env, tmp_path):
    env.reset()
    env.save(str(tmp_path / "file"))
    env.load(str(tmp_path / "file"))
    assert Path(tmp_path / "file").exists()


def test_a_link_to_a_file_stays_a_link(env, path, tmp_path):
    path.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(path)
    env.reset(context="x")
    env.save(link)
    assert link.is_symlink()
    env.load(path)
    assert env.execute("context").observation.result.value == "'x'"


def test_a_path_that_is_no_regular_file_is_not_replaced(env, path):
    os.mkfifo(path)  # as a device would be, /dev/null among them
    env.reset()
    with pytest.raises(OSError, match="regular file") as raised:
        env.save(path)
    assert raised.value.filename == str(path)
    assert path.is_fifo()


def test_the_usage_of_sub_calls_is_saved_and_continued(make, tmp_path):
    budget = Budget(calls=3)
    env = make(llm_query_fn=str.upper, budget=budget)
    env.reset()
    env.execute("llm_query('a')\nllm_query('b')")
    env.save(tmp_path / "episode")
    other = make(llm_query_fn=str.upper, budget=budget)
    other.load(tmp_path / "episode")
    assert other.account.total == env.account.total
    assert other.execute("llm_query('c')").observation.result.value == "'C'"
    assert other.execute("llm_query('d')").observation.error_kind == "budget"
