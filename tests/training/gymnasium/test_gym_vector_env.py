"""`make_vec`: rows side by side, as Gymnasium's own vector environments step single ones."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from repl_env.integrations.gymnasium import ENV_ID, REPLGymEnv, REPLGymVectorEnv
from tests.training.gymnasium.words import COUNTED, TASKS
from tests.training.trainer_internals import environments_of

MODES = list(AutoresetMode)
ACTIONS = [
    ("print('é😀')", COUNTED, "1 / 0"),
    (COUNTED, "print(context)", "x = 1"),
    ("print(context)", COUNTED, "print(x)"),
    (COUNTED, "FINAL(0)", "import random; print(random.random())"),
]


def made(mode, kind=None, n=3, **arguments):
    arguments = {"tasks": TASKS, "max_iterations": 3, **arguments}
    if kind is None:
        arguments["autoreset_mode"] = mode
    else:
        arguments["vector_kwargs"] = {"autoreset_mode": mode}
    return gymnasium.make_vec(ENV_ID, num_envs=n, vectorization_mode=kind, **arguments)


def played(envs, mode):
    """All values that a few steps return. In the mode "Disabled", rows that ended are reset by a
    mask.
    """
    told = [envs.reset(seed=7)]
    for actions in ACTIONS:
        told.append(envs.step(actions))
        ended = told[-1][2] | told[-1][3]
        if mode is AutoresetMode.DISABLED and ended.any():
            told.append(envs.reset(options={"reset_mask": ended}))
    return told


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_rows_do_what_single_environments_do(mode):
    with (
        closing(made(mode)) as ours,
        closing(made(mode, "sync")) as theirs,
    ):
        assert isinstance(ours, REPLGymVectorEnv)
        assert ours.metadata["autoreset_mode"] is mode
        assert ours.observation_space == theirs.observation_space
        told, expected = played(ours, mode), played(theirs, mode)
        for step, (one, other) in enumerate(zip(told, expected, strict=True)):
            assert data_equivalence(one, other, exact=True), f"{step}: {one} and {other}"
            assert one[0] in ours.observation_space


def test_processes_of_gymnasium_with_shared_memory_see_the_same_texts():
    mode = AutoresetMode.NEXT_STEP
    single = REPLGymEnv(tasks=TASKS)  # a sandbox of this process, which forked ones must not use
    single.reset()
    with (
        closing(made(mode, "async", max_length=2000)) as shared,
        closing(made(mode)) as ours,
    ):
        for one, other in zip(played(shared, mode), played(ours, mode), strict=True):
            assert data_equivalence(one[0], other[0]) and not isinstance(one[0], np.ndarray)
            assert data_equivalence(one[1], other[1])
    single.close()


def test_steps_and_infos_work_in_wrappers():
    envs = DictInfoToList(RecordEpisodeStatistics(made(AutoresetMode.NEXT_STEP)))
    envs.reset(seed=1)
    *_, infos = envs.step([COUNTED] * 3)
    assert [info["episode"]["r"] for info in infos] == [1.0] * 3
    envs.close()


def test_requests_and_masks_name_the_rows():
    with closing(made(AutoresetMode.DISABLED)) as envs:
        requests = [{"context": "a"}, None, {"context": "a b"}]
        observations, infos = envs.reset(seed=1, options={"requests": requests})
        assert infos["_task_id"].tolist() == [False, True, False]
        envs.step(["x = 1"] * 3)
        mask = np.array([False, True, True])
        again, infos = envs.reset(options={"reset_mask": mask, "context": "a b c"})
        assert infos["_iteration"].tolist() == [False, True, True] and again[0] != observations[0]
        texts, *_ = envs.step(["print(x, context)", "print(context)", "print('x' in dir())"])
        assert [text.strip() for text in texts] == ["1 a", "a b c", "False"]


def test_row_that_ended_must_be_reset_where_nothing_resets_it():
    with closing(made(AutoresetMode.DISABLED)) as envs:
        envs.reset(seed=1)
        envs.step([COUNTED, "x = 1", "x = 1"])
        with pytest.raises(ResetNeeded, match=r"\[0\]"):
            envs.step(["x = 1"] * 3)


def test_lost_session_ends_its_row_alone():
    with closing(made(AutoresetMode.NEXT_STEP)) as envs:
        envs.reset(seed=1)
        environments_of(envs)[1].session.close()
        _, _, terminated, truncated, infos = envs.step([COUNTED] * 3)
        assert terminated.tolist() == [True, False, True]
        assert truncated.tolist() == infos["mask"].tolist() == [False, True, False]
        _, _, _, truncated, infos = envs.step([COUNTED] * 3)
        assert not truncated.any() and not infos["mask"].any()


def test_closed_environments_say_so():
    envs = made(AutoresetMode.NEXT_STEP)
    envs.reset(seed=1)
    envs.close()
    envs.close()
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"reset_mask": [True]}, "reset_mask"),
        ({"reset_mask": np.array([1, 0, 1])}, "reset_mask"),
        ({"reset_mask": np.zeros(3, dtype=bool)}, "reset_mask"),
        ({"requests": [{}]}, "requests"),
    ],
)
def test_wrong_options_are_refused_by_name(options, told):
    with closing(made(AutoresetMode.NEXT_STEP)) as envs:
        with pytest.raises(ValueError, match=told):
            envs.reset(options=options)
        with pytest.raises(ValueError, match="seed"):
            envs.reset(seed=[1])
        with pytest.raises(ValueError, match="actions"):
            envs.step(["x"])
