"""Recordings: a replayed episode is identical, or the differences are reported."""

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


def test_a_seeded_episode_replays_identically(seeded):
    one, two = seeded
    recording = record(one, *CELLS, "FINAL('x')", context="abc", seed=7, expected_answer="x")
    assert len(recording.observations) == len(recording.actions) + 1 == 6
    assert replay(recording, two) == ()


def test_differences_are_reported_with_step_field_and_both_values(seeded):
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


def test_an_episode_that_ends_earlier_is_reported(env):
    recording = record(env, "FINAL(1) if len(context) == 1 else 0", "x = 2", context="ab")
    found = replay(recording, env, context="a")
    assert found[-1].step == 2
    assert found[-1].field == "action"
    assert found[-1].replayed is None


def test_a_recording_is_serialized_and_read_back(env):
    recording = record(env, "x = 1", "FINAL({'a': [1]})", context="größe", max_iterations=4)
    assert Recording.from_json(recording.to_json()) == recording
    assert replay(Recording.from_json(recording.to_json()), env) == ()
    for wrong in ("[]", "{}", "{", '{"reset": {}, "actions": [1], "observations": []}'):
        with pytest.raises(ValueError):
            Recording.from_json(wrong)


def test_secrets_are_not_recorded_and_unrecordable_values_are_reported(env):
    recorder = Recorder(env)
    recorder.reset(hf_token="SECRET")
    assert "SECRET" not in recorder.recording.to_json()
    recorder.reset(llm=LLM(api_key="SECRET"))
    assert "SECRET" not in repr(recorder.recording)
    recorder.reset(context=b"raw")
    with pytest.raises(TypeError):
        recorder.recording.to_json()


def test_a_recording_does_not_change_with_its_observation(env):
    recorder = Recorder(env)
    recorder.reset()
    result = recorder.step(REPLAction(code="x = 1"))
    result.observation.available_variables.clear()
    assert "x" in recorder.recording.observations[1].available_variables


def test_before_a_reset_there_is_no_recording():
    with LocalREPLEnv() as env, pytest.raises(NotReset):
        _ = Recorder(env).recording


def test_a_recording_that_lacks_an_observation_is_refused(seeded):
    one, _ = seeded
    fields = json.loads(record(one, "1", "2").to_json())
    del fields["observations"][1]
    with pytest.raises(ValueError, match="of 2 actions there are 3 observations, not 2"):
        Recording.from_json(json.dumps(fields))


def test_a_context_that_its_caller_changes_later_is_recorded_as_it_was_given(make) -> None:
    env, table, raw = make(), [{"row": 1}], bytearray(b"raw")
    recorder = Recorder(env)
    recorder.reset(contexts={"table": table, "view": memoryview(raw)})
    recorder.step(REPLAction(code="table, view"))
    table[0]["row"] = 2
    table.append({})
    raw[0] = 0
    assert replay(recorder.recording, env) == ()


def test_a_recorder_replaces_its_environment(env):
    heard = []
    recorder = Recorder(env)
    recorder.reset(context="abc", expected_answer=[1])
    recorder.execute("x = [1]\nprint(context)", on_output=lambda *told: heard.append(told))
    assert "".join(text for _, text in heard) == "abc\n"
    assert recorder.get_variable("x").observation.result.stdout == "[1]\n"
    assert "x" in recorder.list_variables()
    assert recorder.state().iteration == 2
    assert recorder.session is env.session
    assert recorder.submit_final_answer([1]).reward == 1.0
    assert len(recorder.recording.actions) == 3
    assert replay(Recording.from_json(recorder.recording.to_json()), env) == ()


def test_a_recorder_closes_its_environment_and_keeps_the_recording(make):
    env = make()
    with Recorder(env) as recorder:
        recorder.reset()
        recorder.execute("1")
    with pytest.raises(NotReset):
        env.execute("1")
    assert len(recorder.recording.actions) == 1


def test_the_time_that_a_step_was_given_is_a_part_of_it(env):
    recorder = Recorder(env)
    recorder.reset()
    recorder.execute("x = 1")
    recorder.execute("while True: pass", timeout_s=0.2)
    recording = Recording.from_json(recorder.recording.to_json())
    assert recording.timeouts == (None, 0.2)
    assert recording.observations[2].error_kind == "timeout"
    given = []

    class Hearing:
        reset = staticmethod(env.reset)

        def step(self, action, **options):
            given.append(options)
            return env.step(action, **options)

    assert [each.field for each in replay(recording, Hearing())] == []
    assert given == [{}, {"timeout_s": 0.2}]


@pytest.mark.parametrize("timeouts", [[1], [None, "1"], [None, float("inf")], 3])
def test_a_recording_with_invalid_times_is_refused(env, timeouts):
    fields = {**json.loads(record(env, "1", "2").to_json()), "timeouts": timeouts}
    with pytest.raises(ValueError, match=r"timeouts|no recording"):
        Recording.from_json(json.dumps(fields))


def test_a_recording_without_times_is_accepted(env):
    recording = record(env, "1", "2")
    fields = json.loads(recording.to_json())
    del fields["timeouts"]
    assert Recording.from_json(json.dumps(fields)) == recording


def test_a_branch_is_recorded_from_the_reset_on(make):
    env = make()
    recorder = Recorder(env)
    recorder.reset()
    recorder.execute("x = 1")
    with recorder.branch() as other:
        other.execute("FINAL(x + 1)")
        recorder.execute("FINAL(x)")
    assert replay(other.recording, env) == ()
    assert other.recording.observations[-1].metadata["final_answer"] == "2"
    assert recorder.recording.observations[-1].metadata["final_answer"] == "1"


@pytest.mark.parametrize("name", ["follow_up", "load"])
def test_an_episode_that_does_not_begin_with_a_reset_is_not_recorded(env, name):
    with pytest.raises(AttributeError, match=f"no '{name}': a recording begins with a reset"):
        getattr(Recorder(env), name)
    with pytest.raises(AttributeError, match=r"Recorder has no 'stpe'$"):
        _ = Recorder(env).stpe
