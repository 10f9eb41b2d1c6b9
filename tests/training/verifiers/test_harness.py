"""`REPLHarness`: our recursive loop, whose calls go to the endpoint that verifiers hands out."""

import pytest
import verifiers.v1 as vf

from repl_env.integrations.verifiers import EpisodeRecord, REPLHarness
from tests.repl_env.llm.endpoint import Reply, Status
from tests.training.replies import code
from tests.training.verifiers.scripted_episodes import play, plugin, task

ASK = code("n = llm_query('How many words has it?', context=context)")


async def test_turns_and_sub_calls_are_branches_of_one_scored_trace(endpoint):
    replies = iter([ASK, "3", code("FINAL(int(n))")])
    served = endpoint(lambda asked: next(replies))
    episode = await play(served, task(), mode="rlm")
    (trace,) = episode.traces
    assert episode.ok and trace.stop_condition == "agent_completed"
    assert trace.reward == 1.0 and trace.last_reply == "3"
    assert EpisodeRecord.of(trace).rewards == [0.0, 1.0]
    assert trace.num_turns == 3 and trace.num_branches == 2
    assert "a b c" in served.requests[1].prompt


@pytest.mark.parametrize(
    ("replies", "rewards"),
    [
        ([code("1/0"), code("FINAL(3)")], [-0.05, 1.0]),
        (["nothing", "FINAL(3)"], [1.0]),
        ([code("x = 1")] * 2 + ["4"], [0.0, 0.0, 0.0]),
    ],
)
async def test_rewards_of_turns(endpoint, replies, rewards):
    episode = await play(endpoint(replies), task(max_iterations=2), mode="rlm")
    assert EpisodeRecord.of(episode.traces[0]).rewards == pytest.approx(rewards)
    assert episode.traces[0].reward == pytest.approx(sum(rewards))


async def test_a_child_works_in_a_session_of_its_own(endpoint):
    replies = iter([code("FINAL(rlm_query('Count.', context='x y'))"), code("FINAL(context)")])
    episode = await play(
        endpoint(lambda asked: next(replies)), task(expected_answer="x y"), mode="rlm"
    )
    assert episode.traces[0].reward == 1.0


async def test_a_limit_of_verifiers_ends_the_run_with_what_it_earned(endpoint):
    episode = await play(endpoint(code("1/0")), task(), mode="rlm", agent={"max_turns": 2})
    (trace,) = episode.traces
    assert episode.ok and trace.stop_condition == "max_turns"
    assert trace.rewards["task_reward"].value == 0.0 and trace.reward == pytest.approx(-0.1)


async def test_a_failing_provider_is_a_provider_error(endpoint):
    episode = await play(endpoint(Status(400, {"error": {"message": "no"}})), task(), mode="rlm")
    assert not episode.ok and episode.traces[0].last_error.type == "ProviderError"


async def test_a_refused_sub_call_is_the_policy_s(endpoint):
    replies = iter(
        [code("print(llm_query('?'))"), Status(400, {"error": {"message": "no"}}), code("FINAL(3)")]
    )
    episode = await play(endpoint(lambda asked: next(replies)), task(), mode="rlm")
    assert episode.ok and not EpisodeRecord.of(episode.traces[0]).mask


async def test_sub_calls_that_fail_for_everybody_mask_the_trace(endpoint):
    """The probe of the endpoint fails as the call does; the turns of the run are answered."""
    turns = iter([code("print(llm_query('?'))"), code("FINAL(3)")])

    def answer(asked):
        is_turn = asked.body["messages"][0]["role"] == "system"
        return next(turns) if is_turn else Status(503, {"error": {"message": "down"}})

    episode = await play(endpoint(answer), task(), mode="rlm")
    assert not episode.ok and episode.traces[0].last_error.type in ("SandboxError", "ProviderError")


async def test_an_empty_reply_is_a_turn(endpoint):
    episode = await play(endpoint([Reply(""), code("FINAL(3)")]), task())
    assert episode.ok and EpisodeRecord.of(episode.traces[0]).rewards == [-0.05, 1.0]


async def test_the_harness_plays_tasks_of_other_tasksets(endpoint, monkeypatch):
    class Sums(vf.Task[vf.TaskData]):
        @vf.reward
        async def right(self, trace):
            return float(trace.last_reply == "4")

    class Taskset(vf.Taskset[Sums]):
        def load(self):
            yield Sums(vf.TaskData(prompt="What is 2 + 2?", system_prompt="Digits only."))

    plugin("sums_of_a_test", monkeypatch, Taskset=Taskset)
    agent = {
        "harness": {"id": "repl-env-verifiers", "prompts": "short", "max_depth": 1},
        "runtime": {"type": "subprocess"},
    }
    settings = {"taskset": {"id": "sums-of-a-test"}, "agent": agent}
    env = vf.load_environment(vf.resolve_env_config(settings))
    assert type(env) is vf.SingleAgentEnv
    served = endpoint(code("FINAL(2 + 2)"))
    trace = (await play(served, next(iter(env.taskset)), settings)).traces[0]
    assert trace.ok and trace.reward == 1.0
    system, question = served.requests[0].body["messages"]
    assert system["content"].endswith("Digits only.")
    assert question["content"] == "What is 2 + 2?"


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ({"runtime": {"type": "docker"}}, "subprocess"),
        ({"harness": {"id": "repl-env-verifiers", "sessions": {"base_url": "http://x"}}}, "chat"),
    ],
)
async def test_unsupported_options_of_the_harness_are_errors(agent, told):
    class Box:
        type = agent.get("runtime", {}).get("type", "subprocess")

    config = {"id": "repl-env-verifiers", **agent.get("harness", {})}
    made = vf.harness_config_type("repl-env-verifiers").model_validate(config)
    with pytest.raises(ValueError, match=told):
        await REPLHarness(made).setup(Box())
