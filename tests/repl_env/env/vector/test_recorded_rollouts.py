"""The facts of episodes by their names; rollouts as trajectory files, whatever the disk does."""

from __future__ import annotations

import pickle
import resource
import stat
import threading
import warnings
from pathlib import Path

import pytest

from repl_env import EpisodeSummary
from repl_env.display.files import NamedFiles
from repl_env.display.viewer import ViewData
from repl_env.env.rollouts import EpisodeShares, RolloutNote
from repl_env.env.rows import EpisodeRows
from repl_env.rlm import Trajectory
from tests.training.lost_sessions import lose

LOOK = "```python\nn = len(context.split())\nprint(n)\n```"
RIGHT, FAILS = "```python\nFINAL(n)\n```", "```python\n1 / 0\n```"
HIDDEN = "the-hidden-answer-4711"


def task(words: int, **more):
    return {
        "context": " ".join(["a"] * words),
        "task_prompt": "How many words?",
        "expected_answer": str(words),
        **more,
    }


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


def play(rows: EpisodeRows, tasks, *turns, **more):
    """The last results of an episode in each row."""
    rows.reset(tasks, **more)
    for replies in turns:
        results = rows.step(replies)
    return results


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def test_the_facts_of_episodes():
    with EpisodeRows(2) as rows:
        tasks = [task(3), task(2, max_iterations=3)]
        won, lost = play(rows, tasks, [LOOK, FAILS], [FAILS, "I am lost."])
        assert won.episode.stop_reason is None and won.episode.answer is None
        won, lost = rows.step([RIGHT, FAILS])
    assert won.episode.to_dict() == {
        "answer": "3",
        "answer_value": 3,
        "steps": 3,
        "error_kinds": [None, "exception", None],
        "components": {"process": pytest.approx(-0.05), "outcome": 1.0},
        "reward": pytest.approx(0.95),
        "task_reward": 1.0,
        "masked": False,
        "stop_reason": "answer",
    }
    facts = lost.episode.to_dict()
    assert facts["error_kinds"] == ["exception", "format", "exception"]
    assert facts["reward"] == pytest.approx(-0.2) and facts["task_reward"] == 0.0
    assert (facts["answer"], facts["stop_reason"]) == (None, "max_iterations")


def test_a_reply_after_the_end_changes_no_fact():
    with EpisodeRows(1) as rows:
        (ended,) = play(rows, [task(3)], [LOOK], [RIGHT])
        (again,) = rows.step([FAILS])
    assert again.episode == ended.episode and again.reward == 0.0


def test_a_masked_episode_has_no_reward():
    with EpisodeRows(1) as rows:
        play(rows, [task(3)], [LOOK])
        lose(rows.environments.environments[0].session)
        (last,) = rows.step([RIGHT])
    facts = last.episode.to_dict()
    assert (facts["masked"], facts["reward"], facts["task_reward"]) == (True, None, None)
    assert (facts["error_kinds"], facts["stop_reason"]) == ([None, "sandbox"], "aborted")


def test_shares_of_batches():
    shares = EpisodeShares()
    plain = EpisodeSummary(error_kinds=(None,), stop_reason="answer").to_dict()
    failed = EpisodeSummary(error_kinds=("exception", "exception", "format")).to_dict()
    assert shares.of([plain, failed, EpisodeSummary().lost().to_dict(), plain]) == {
        "masked_share": 0.25,
        "answered_share": 0.5,
        "failed_share": 0.5,
        "failed_share/exception": 0.25,
        "failed_share/format": 0.25,
        "failed_share/sandbox": 0.25,
    }
    later = shares.of([plain])
    assert later["failed_share/exception"] == 0.0 and later["answered_share"] == 1.0
    assert set(shares.of([]).values()) == {0.0}


# ── records ──────────────────────────────────────────────────────────────────────────────────────


def test_a_rollout_is_recorded_turn_by_turn(tmp_path):
    with EpisodeRows(1, record=tmp_path) as rows:
        prompt = [
            {"role": "system", "content": "Write cells."},
            {"role": "user", "content": [{"type": "text", "text": "How many?"}], "task": "17"},
        ]
        facts = {"id": "words", "split": "train", "expected_answer": HIDDEN}
        notes = [RolloutNote(prompt, facts, "tool")]
        play(rows, [task(3)], [LOOK], ["I am lost."], [f"Now.\n{RIGHT}"], notes=notes)
        (path,) = files_of(tmp_path)
    trajectory = Trajectory.load(path)
    run = trajectory.root
    assert trajectory.complete and run.question == "How many words?"
    assert run.reward == pytest.approx(0.95) and run.ending == "terminated"
    assert run.final_answer == "3"
    assert (run.task.name, run.task.split) == ("words", "train")
    assert [turn.completion.text for turn in run.turns] == [LOOK, "I am lost.", f"Now.\n{RIGHT}"]
    first, _, last = run.turns
    assert [message["content"] for message in first.messages] == ["Write cells.", "How many?"]
    assert last.messages[:4] == (
        *first.messages,
        {"role": "assistant", "content": LOOK},
        {"role": "tool", "content": "3"},
    )
    assert [cell.code for cell in run.cells] == ["n = len(context.split())\nprint(n)", "FINAL(n)"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_hidden_answers_are_in_no_file(tmp_path):
    hidden = task(3, expected_answer=HIDDEN)
    with EpisodeRows(2, record=tmp_path) as rows:
        facts = {"expected_answer": HIDDEN, "answer": HIDDEN, "task_id": "t"}
        results = play(
            rows, [hidden] * 2, [LOOK] * 2, [RIGHT, f"FINAL({HIDDEN!r})"],
            notes=[RolloutNote(None, facts)] * 2,
        )  # fmt: skip
        assert [result.reward for result in results] == [0.0, 1.0]
        wrong, right = files_of(tmp_path)
    assert HIDDEN.encode() not in wrong.read_bytes()
    assert HIDDEN.encode() in right.read_bytes()  # the policy said it


def test_one_group_in_n_is_recorded_whole_and_the_viewer_lists_it(tmp_path):
    with EpisodeRows(4, record=tmp_path, record_every=2) as rows:
        for _ in range(2):
            play(rows, [task(3), task(2)] * 2, [LOOK] * 4, [RIGHT, FAILS, FAILS, RIGHT])
    # The episodes without an answer end with their environment.
    runs = [Trajectory.load(path).root for path in files_of(tmp_path)]
    assert [run.question for run in runs] == ["How many words?"] * 4
    assert [run.reward for run in runs] == pytest.approx([1.0, -0.05] * 2)
    assert [run.ended.stop_reason for run in runs] == ["answer", "not ended"] * 2
    groups = [run.task.group_id for run in runs]
    assert groups == [groups[0]] * 2 + [groups[2]] * 2 and groups[0] != groups[2]
    listing = ViewData(NamedFiles([tmp_path])).listing()
    assert [file["roots"][0]["group"] for file in listing["files"]] == groups


def test_rollouts_of_one_group_id_are_one_group_whenever_they_begin(tmp_path):
    with EpisodeRows(1, record=tmp_path, record_every=2) as rows:
        for name in ("g", "other", "g"):
            note = RolloutNote(None, {"group_id": name})
            play(rows, [task(3)], [LOOK], [RIGHT], notes=[note])
    runs = [Trajectory.load(path).root for path in files_of(tmp_path)]
    assert [run.task.group_id for run in runs] == ["g", "g"]


@pytest.mark.parametrize("prompt", [[], ["How many?"], [{"role": "user", "content": None}], ""])
def test_prompts_and_facts_of_other_kinds_stop_nothing(tmp_path, prompt):
    with EpisodeRows(1, record=tmp_path) as rows:
        facts = {"id": {"no": "name"}, "difficulty": 0.5, "split": None}
        play(rows, [{"context": "a"}], [LOOK], [RIGHT], notes=[RolloutNote(prompt, facts)])
    run = Trajectory.load(*files_of(tmp_path)).root
    assert (run.task.name, run.task.difficulty, run.question) == (None, "0.5", "")


def test_trainings_of_one_process_in_one_folder_keep_their_files_apart(tmp_path):
    for every in (1, 2):
        with EpisodeRows(1, record=tmp_path, record_every=every) as rows:
            play(rows, [task(3)], [LOOK], [RIGHT])
    assert len(files_of(tmp_path)) == 2


def test_a_masked_rollout_is_recorded_as_masked(tmp_path):
    with EpisodeRows(1, record=tmp_path) as rows:
        play(rows, [task(3)], [LOOK])
        lose(rows.environments.environments[0].session)
        rows.step([RIGHT])
        trajectory = Trajectory.load(*files_of(tmp_path))
    assert trajectory.root.reward is None and trajectory.root.error_kind == "sandbox"
    assert all(sample["masked"] for sample in trajectory.samples())


def test_rollouts_in_threads_and_copies(tmp_path):
    """Each has a file of its own, which is whole."""
    first = EpisodeRows(4, record=tmp_path)
    several = [first, pickle.loads(pickle.dumps(first)), EpisodeRows(4, record=str(tmp_path))]

    def train(rows: EpisodeRows) -> None:
        for _ in range(3):
            play(rows, [task(3)] * 4, [LOOK] * 4, [RIGHT] * 4)
        rows.close()

    threads = [threading.Thread(target=train, args=(rows,)) for rows in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trajectories = [Trajectory.load(path) for path in files_of(tmp_path)]
    assert len(trajectories) == 3 * 3 * 4
    assert all(each.complete and each.root.reward == 1.0 for each in trajectories)


def test_a_full_disk_is_told_once_and_nothing_else_fails(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EpisodeRows(3, record=tmp_path) as rows:
        play(rows, [task(3)] * 3, [LOOK] * 3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # bytes of a file
        try:
            with pytest.warns(RuntimeWarning, match="not recorded.*training goes on") as told:
                results = rows.step([RIGHT] * 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(told) == 1
        assert [result.reward for result in results] == [1.0] * 3 and files_of(tmp_path) == []
        with warnings.catch_warnings(action="error"):
            play(rows, [task(3)] * 3, [LOOK] * 3, [RIGHT] * 3)
    assert len(files_of(tmp_path)) == 3  # there is room again


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path):
    folder = tmp_path / "runs"
    with EpisodeRows(1, record=folder) as rows:
        folder.write_text("in the way")
        play(rows, [task(3)], [LOOK])
        with pytest.warns(RuntimeWarning, match="not recorded"):
            (result,) = rows.step([RIGHT])
        with warnings.catch_warnings(action="error"):
            (again,) = play(rows, [task(3)], [LOOK], [RIGHT])
    assert (result.reward, again.reward) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"record": 3}, TypeError, "record must be"),
        ({"record": __file__}, ValueError, "record must be a folder"),
        ({"record_every": 0}, ValueError, "record_every"),
        ({"record_every": "2"}, TypeError, "record_every"),
    ],
)
def test_bad_arguments_are_named(arguments, error, told):
    with pytest.raises(error, match=told):
        EpisodeRows(1, **arguments)
