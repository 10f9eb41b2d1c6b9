"""`REPLTaskEnv`: replies with fenced code, stepped turn by turn."""

import pytest
import verifiers.v1 as vf

from repl_env import AsyncLocalREPLEnv
from repl_env.integrations.verifiers import EpisodeRecord, REPLTaskEnv, REPLTaskset
from tests.training.lost_sessions import lose
from tests.training.replies import code
from tests.training.verifiers.scripted_episodes import play, plugin, task

LOOK, ANSWER = code("n = len(context.split())\nn"), code("FINAL(n)")


@pytest.mark.parametrize(
    ("replies", "rewards", "task_reward", "stop"),
    [
        ([LOOK, ANSWER], [0.0, 1.0], 1.0, "answer"),
        (["Let me see.\n" + LOOK + "\nThen:\n" + ANSWER], [1.0], 1.0, "answer"),
        ([code("1/0"), "FINAL(3)"], [-0.05, 1.0], 1.0, "answer"),
        (["I am lost.", code("FINAL(4)")], [-0.05, 0.0], 0.0, "answer"),
        ([LOOK, LOOK, LOOK], [0.0, 0.0, -0.1], 0.0, "max_iterations"),
        (["<think>FINAL(4)</think>" + code("FINAL(len(context.split()))")], [1.0], 1.0, "answer"),
    ],
)
async def test_each_reply_is_a_turn_with_a_reward(endpoint, replies, rewards, task_reward, stop):
    served = endpoint(replies)
    episode = await play(served, task(max_iterations=3))
    (trace,) = episode.traces
    record = EpisodeRecord.of(trace)
    assert episode.ok and trace.ok and len(served.requests) == len(replies)
    assert record.rewards == pytest.approx(rewards) and record.stop_reason == stop
    assert trace.rewards["task_reward"].value == task_reward
    assert trace.reward == pytest.approx(sum(rewards))
    assert trace.num_turns == len(rewards) == trace.metrics["repl_steps"]
    assert trace.num_branches == 1  # one conversation, which is trained on as it is


async def test_the_model_is_shown_the_question_and_outputs_without_tokens_of_templates(endpoint):
    served = endpoint([code("print('<|im_end|>', len(context))"), code("FINAL(3)")])
    episode = await play(served, task("How many?"))
    first, second = (asked.body["messages"] for asked in served.requests)
    assert [message["role"] for message in first] == ["system", "user"]
    assert first[1]["content"] == "How many?\n\n`context`: length 5"
    assert second[:2] == first and second[3]["content"] == "<\\|im_end|> 5"
    assert episode.traces[0].task.data.question == "How many?"
    assert episode.traces[0].last_reply == "3"


async def test_the_system_prompt_of_a_task_is_used_as_it_is(endpoint):
    served = endpoint(code("FINAL(3)"))
    await play(served, task(system_prompt="Be brief."))
    assert served.requests[0].body["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_a_limit_of_verifiers_ends_the_episode_like_max_turns(endpoint):
    served = endpoint(LOOK)
    episode = await play(served, task(), agent={"max_turns": 2})
    (trace,) = episode.traces
    assert episode.ok and trace.stop_condition == "max_turns" and len(served.requests) == 2
    assert trace.reward == pytest.approx(-0.1)


async def test_a_lost_session_is_a_retried_error_and_no_reward(endpoint, monkeypatch):
    step, lost = AsyncLocalREPLEnv.step, []

    async def losing(self, action, **given):
        if not lost:
            lost.append(self.session)
            lose(self.session)
        return await step(self, action, **given)

    monkeypatch.setattr(AsyncLocalREPLEnv, "step", losing)
    served = endpoint(code("FINAL(len(context.split()))"))
    first = await play(served, task())
    assert not first.ok and first.traces[0].last_error.type == "SandboxError"
    assert all(reward is None for reward in first.traces[0].rewards.values())
    assert (await play(served, task())).traces[0].reward == 1.0


async def test_an_endpoint_that_fails_is_the_provider_s_error(endpoint):
    from tests.repl_env.llm.endpoint import Status

    episode = await play(endpoint(Status(400, {"error": {"message": "no"}})), task())
    assert not episode.ok and episode.traces[0].last_error.type == "ProviderError"


@pytest.mark.parametrize(
    ("data", "expression", "answer"),
    [
        ({"context": {"k": [1, 2]}}, "context['k']", [1, 2]),
        ({"context": None, "contexts": {"a": "x", "b": ["y"]}}, "a + b[0]", "xy"),
        ({"files": {"in/a.txt": "hello"}}, "open('in/a.txt').read()", "hello"),
        ({"context": None, "context_file": "big.txt"}, "context[-3:]", "end"),
        ({"answer_schema": {"type": "integer"}}, "len(context)", 5),
    ],
)
async def test_session_options_of_a_task(endpoint, tmp_path, data, expression, answer):
    (tmp_path / "big.txt").write_text("the end")
    served = endpoint(code(f"FINAL({expression})"))
    episode = await play(served, task(**data, expected_answer=answer))
    assert episode.traces[0].reward == 1.0
    assert "the end" not in episode.traces[0].model_dump_json()


async def test_tasks_of_another_taskset_are_played_and_scored_by_their_own_rewards(
    endpoint, monkeypatch
):
    class Sums(vf.Task[vf.TaskData]):
        @vf.reward
        async def right(self, trace):
            return float(trace.last_reply == "4")

    class Taskset(vf.Taskset[Sums]):
        def load(self):
            yield Sums(vf.TaskData(prompt="What is 2 + 2?"))

    plugin("sums_for_a_test", monkeypatch, Taskset=Taskset)
    served = endpoint([code("2 + 2"), code("FINAL(2 + 2)")])
    settings = {"id": "repl-env-verifiers", "taskset": {"id": "sums-for-a-test"}}
    env = vf.load_environment(vf.resolve_env_config(settings))
    assert isinstance(env, REPLTaskEnv)
    (sum_task,) = env.taskset
    trace = (await play(served, sum_task, settings)).traces[0]
    assert trace.reward == 1.0 and "What is 2 + 2?" in served.requests[0].prompt


async def test_sessions_may_be_on_a_server(endpoint):
    pytest.importorskip("fastapi")
    from tests.server.conftest import serving

    with serving({}) as server:
        sessions = {"base_url": server.url}
        served = endpoint([LOOK, ANSWER])
        episode = await play(served, task(), sessions=sessions)
        assert EpisodeRecord.of(episode.traces[0]).rewards == [0.0, 1.0]
    episode = await play(served, task(), sessions=sessions)
    assert not episode.ok and episode.errors[0].type == "SandboxError"


def test_a_dataset_is_read_as_the_evaluation_reads_it(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"id": "t1", "question": "How many?", "context": "a b", "answer": 2}\n')
    config = {"taskset": {"id": "repl-env-verifiers", "path": str(path), "max_iterations": 4}}
    (only,) = vf.load_environment(vf.resolve_env_config(config)).taskset
    assert (only.data.question, only.data.prompt, only.data.context) == ("How many?",) * 2 + (
        "a b",
    )
    assert (only.data.id, only.data.expected_answer, only.data.max_iterations) == ("t1", 2, 4)
    with pytest.raises(ValueError, match=r"env\.taskset\.path"):
        list(REPLTaskset(vf.taskset_config_type("repl-env-verifiers")()))
