"""Recordings: an episode that is run again gives the same, or the differences are told."""

from __future__ import annotations

import json

import pytest

from repl_env import LLM, LocalREPLEnv, NotReset, Recorder, Recording, REPLAction, replay
from repl_sandbox import Sandbox

CELLS = (
    "import random\nprint(random.random(), random.sample(range(100), 5))",
    "names = {'apple', 'pear', 'plum', 'fig', 'kiwi', 'melon'}\nprint(names)",
    "print(object())\n1 / 0",
    "len(context)",
)


@pytest.fixture
def seeded():
    """Environments on sandboxes of their own, whose hashes are the same."""
    with Sandbox(hash_seed=3) as one, Sandbox(hash_seed=3) as two:
        with LocalREPLEnv(sandbox=one) as first, LocalREPLEnv(sandbox=two) as second:
            yield first, second


def record(env, *cells, **arguments):
    recorder = Recorder(env)
    recorder.reset(**arguments)
    for cell in cells:
        recorder.step(REPLAction(code=cell))
    return recorder.recording


def test_with_seeds_an_episode_is_the_same_again(seeded):
    one, two = seeded
    recording = record(one, *CELLS, "FINAL('x')", context="abc", seed=7, expected_answer="x")
    assert len(recording.observations) == len(recording.actions) + 1 == 6
    assert replay(recording, two) == ()


def test_differences_are_told_with_step_field_and_both_values(seeded):
    one, two = seeded
    recording = record(one, "x = 1", "import os\nprint(os.urandom(9).hex())", seed=7)
    (found,) = replay(recording, two)
    assert (found.step, found.field) == (2, "result.stdout")
    assert found.recorded != found.replayed
    assert len(found.recorded) == len(found.replayed) == len("00" * 9 + "\n")


def test_another_context_and_another_reward_are_differences(env):
    recording = record(env, "FINAL(context)", context="abc", expected_answer="abc")
    found = replay(recording, env, context="xyz")
    fields = {(each.step, each.field): each for each in found}
    assert fields[0, "context_preview"].replayed == "xyz"
    assert (fields[1, "reward"].recorded, fields[1, "reward"].replayed) == (1.0, 0.0)
    assert (1, "metadata.final_answer") in fields


def test_an_episode_that_ends_earlier_is_told(env):
    recording = record(env, "FINAL(1) if len(context) == 1 else 0", "x = 2", context="ab")
    found = replay(recording, env, context="a")
    assert found[-1].step == 2
    assert found[-1].field == "action"
    assert found[-1].replayed is None


def test_a_recording_is_text_and_back(env):
    recording = record(env, "x = 1", "FINAL({'a': [1]})", context="größe", max_iterations=4)
    assert Recording.from_json(recording.to_json()) == recording
    assert replay(Recording.from_json(recording.to_json()), env) == ()
    for wrong in ("[]", "{}", "{", '{"reset": {}, "actions": [1], "observations": []}'):
        with pytest.raises(ValueError):
            Recording.from_json(wrong)


def test_secrets_are_not_recorded_and_what_is_no_json_is_said(env):
    recorder = Recorder(env)
    recorder.reset(hf_token="SECRET")
    assert "SECRET" not in recorder.recording.to_json()
    recorder.reset(llm=LLM(api_key="SECRET"))
    assert "SECRET" not in repr(recorder.recording)
    recorder.reset(context=b"raw")
    with pytest.raises(TypeError):
        recorder.recording.to_json()


def test_what_was_recorded_does_not_change_with_its_observation(env):
    recorder = Recorder(env)
    recorder.reset()
    result = recorder.step(REPLAction(code="x = 1"))
    result.observation.available_variables.clear()
    assert "x" in recorder.recording.observations[1].available_variables


def test_before_a_reset_there_is_no_recording():
    with LocalREPLEnv() as env, pytest.raises(NotReset):
        _ = Recorder(env).recording


def test_a_recording_that_lacks_an_observation_is_none(seeded):
    one, _ = seeded
    fields = json.loads(record(one, "1", "2").to_json())
    del fields["observations"][1]
    with pytest.raises(ValueError, match="of 2 actions there are 3 observations, not 2"):
        Recording.from_json(json.dumps(fields))


def test_a_context_that_its_owner_changes_later_is_recorded_as_it_was_given(make) -> None:
    env, table, raw = make(), [{"row": 1}], bytearray(b"raw")
    recorder = Recorder(env)
    recorder.reset(contexts={"table": table, "view": memoryview(raw)})
    recorder.step(REPLAction(code="table, view"))
    table[0]["row"] = 2
    table.append({})
    raw[0] = 0
    assert replay(recorder.recording, env) == ()
