"""Tables as contexts and variables of an episode: described, copied, saved, recorded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pandas
import polars
import pytest

from repl_env import LocalREPLEnv, REPLAction, REPLEnvironment, REPLVectorEnv
from repl_env.episode.contexts import resolve
from repl_env.rlm import RLM, ScriptedModel, Trajectory, TrajectoryWriter
from repl_env.rlm.replay import differences, rerun
from repl_sandbox.tables import Table

FRAME = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [1.5, None, 3.0]})
KIND = "type(context).__name__, context.shape"
SAME = "('DataFrame', (3, 3))"


def test_a_table_is_a_context_as_itself(env: LocalREPLEnv) -> None:
    result = env.reset(context=FRAME)
    assert result.observation.context_length == 3
    assert "Context loaded (3 rows x 3 columns)" in result.observation.result.stdout
    assert result.observation.context_preview == str(FRAME)
    assert env.execute(KIND).observation.result.value == SAME
    assert env.execute("float(context['c'].sum())").observation.result.value == "4.5"


def test_several_tables_are_variables_of_their_names(env: LocalREPLEnv) -> None:
    result = env.reset(contexts={"left": FRAME, "right": polars.DataFrame({"k": [1]}), "n": "x"})
    assert "left (3 rows x 3 columns), right (1 rows x 1 columns), n (1 chars)" in (
        result.observation.result.stdout
    )
    code = "type(left).__module__.split('.')[0], type(right).__module__.split('.')[0]"
    assert env.execute(code).observation.result.value == "('pandas', 'polars')"


def test_a_default_context_and_variables_of_a_follow_up_may_be_tables() -> None:
    with closing(REPLEnvironment(context=FRAME)) as env:
        env.reset()
        assert env.step(REPLAction(code=KIND)).result.value == SAME
        env.follow_up("And now?", variables={"more": FRAME.head(1)})
        assert env.step(REPLAction(code="more.shape")).result.value == "(1, 3)"


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("head", str(FRAME)[:40]),
        ("head+tail", str(FRAME)[:40]),
        ("structure", "pandas DataFrame, 3 rows x 3 columns ..."),
        ("none", None),
    ],
)
def test_a_preview_shows_the_first_rows_or_the_columns(mode: str, shown: str | None) -> None:
    context = resolve(FRAME, None, None, mode=mode, preview_length=40)  # type: ignore[arg-type]
    assert context.preview == shown
    whole = resolve(FRAME, None, None, mode="structure", preview_length=500).preview
    assert whole == "pandas DataFrame, 3 rows x 3 columns {a: int64, b: str, c: float64}"


def test_other_objects_are_refused_with_what_is_allowed(env: LocalREPLEnv) -> None:
    with pytest.raises(TypeError, match="a table of pandas, polars or pyarrow, not complex"):
        env.reset(context=1j)  # type: ignore[arg-type]


def test_each_environment_of_a_group_gets_its_own_copy() -> None:
    large = pandas.DataFrame({"a": range(200_000)})
    with REPLVectorEnv(2) as envs:
        envs.reset(context=large)
        values = [
            each.observation.result.value
            for each in envs.step(["context['a'] = 0\nint(context['a'].sum())", "len(context)"])
        ]
    assert values == ["0", "200000"]


def test_a_saved_episode_has_its_table_again(env: LocalREPLEnv, tmp_path: Path) -> None:
    env.reset(context=FRAME)
    env.execute("context['d'] = 1")
    env.save(tmp_path / "episode")
    with LocalREPLEnv() as other:
        other.load(tmp_path / "episode")
        assert other.execute("context.shape").observation.result.value == "(3, 4)"


def test_a_trajectory_has_the_table_and_a_replay_compares_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    replies = ["```repl\nFINAL(int(context['a'].sum()))\n```"]
    with TrajectoryWriter(path, contexts={"context": FRAME}) as write:
        result = RLM(ScriptedModel(replies), on_event=write).run("What is the sum?", context=FRAME)
    assert result.final_answer == "6"
    trajectory = Trajectory.load(path)
    table = trajectory.contexts["context"]
    assert isinstance(table, Table)
    assert (table.library, table.rows) == ("pandas", 3)
    assert not differences(trajectory, rerun(trajectory))
    with pytest.raises(ValueError, match="recorded length, but another content"):
        rerun(trajectory, {"context": FRAME.assign(a=7)})
    with pytest.raises(
        ValueError, match="was a DataFrame of length 3, and is a DataFrame of length 2"
    ):
        rerun(trajectory, {"context": FRAME.head(2)})
