"""Whole trees of runs through an endpoint: requests, costs, failures."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections import Counter
from dataclasses import replace

import pytest

from repl_env import LLM, AsyncLocalREPLEnv, LocalREPLEnv
from repl_env.errors import ModelError
from repl_env.rlm import RLM, Budget, OpenAIModel, Price, RequestGate, RunConfig, Trajectory
from repl_env.rlm.answerers import PROBE_PROMPT
from repl_env.rlm.model_call import CallEnded, ModelReplied, RunEnded
from repl_sandbox import Sandbox
from tests.limits import PATIENT
from tests.repl_env.llm.endpoint import HTML, Cut, Drop, Hang, Raw, Reply, Status

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

KEY, HEADER = "sk-very-secret-0123456789", "header-secret-abcdef"

# One of each: a call, a batch, a child run, and a spawned run.
TREE = (
    "one = llm_query('who')\n"
    "many = llm_query_batched([f'part {n}' for n in range(5)])\n"
    "below = rlm_query('child: how long?', context='abc')\n"
    "handle = rlm_spawn('child: how long?', context='abcde')\n"
    "FINAL([one, many, below, handle.result()])"
)
ANSWER = ["to who", [f"to part {n}" for n in range(5)], "3", "5"]


def code(*blocks: str) -> str:
    return "\n\n".join(f"```repl\n{block}\n```" for block in blocks)


def of_run(asked) -> bool:
    """Whether a request is a turn of a run, and not a plain question."""
    role: str = asked.body["messages"][0]["role"]
    return role == "system"


def of_child(asked) -> bool:
    return of_run(asked) and "child:" in asked.body["messages"][1]["content"]


def script(*root: str, child: str = "FINAL(len(context))", query=None):
    """An endpoint that plays the code blocks of `root`, one for each turn, and answers the rest."""

    def answer(asked):
        if not of_run(asked):
            return f"to {asked.prompt}" if query is None else query(asked)
        if of_child(asked):
            return code(child)
        turn = sum(message["role"] == "assistant" for message in asked.body["messages"])
        return code(root[turn])

    return answer


class Account:
    """Counts the answers of an endpoint, by their reported usage."""

    def __init__(self, answer) -> None:
        self._answer = answer
        self.sums: Counter[str] = Counter()

    def __call__(self, asked):
        answer = self._answer(asked)
        text = answer.text if isinstance(answer, Reply) else answer
        if isinstance(text, str):
            self.sums["calls"] += 1
            self.sums["input_tokens"] += sum(
                len(message["content"].split()) for message in asked.body["messages"]
            )
            self.sums["output_tokens"] += len(text.split())
        return answer


@pytest.fixture
async def model_at():
    """Makes models, and closes them."""
    made = []

    def make(served, **options):
        model = OpenAIModel("m", base_url=served.base_url, **options)
        made.append(model)
        return model

    yield make
    for model in made:
        await model.close()


# ── trees ────────────────────────────────────────────────────────────────────────────────────────


@STREAMED
async def test_the_usage_of_a_tree_is_that_of_the_endpoint(rlm, endpoint, model_at, stream) -> None:
    account = Account(script(TREE))
    served = endpoint(account)
    events = []
    prices = {"m": Price(1.0, 2.0)}
    runner = rlm(model_at(served, stream=stream), on_event=events.append, prices=prices)
    result = await runner.arun("Who?", "some text", expected_answer=ANSWER)

    assert result.answer_value == ANSWER
    assert (result.error_kind, result.reward) == (None, 1.0)
    usage, sums = result.usage, account.sums
    assert (usage.calls, usage.failed_calls, usage.children) == (len(served.requests), 0, 2)
    assert usage.calls == 1 + 1 + 5 + 2
    assert (usage.input_tokens, usage.output_tokens) == (
        sums["input_tokens"],
        sums["output_tokens"],
    )
    assert usage.estimated_tokens == 0
    assert usage.usd == pytest.approx((usage.input_tokens + 2 * usage.output_tokens) / 1e6)
    told = [
        event.completion.usage if isinstance(event, ModelReplied) else event.usage
        for event in events
        if isinstance(event, ModelReplied) or (isinstance(event, CallEnded) and not event.child)
    ]
    assert sum(each.output_tokens for each in told) == usage.output_tokens
    assert all(asked.stream is stream for asked in served.requests)


@STREAMED
async def test_an_llm_spec_selects_the_endpoint(rlm, endpoint, stream) -> None:
    served = endpoint(script(TREE))
    llm = LLM("m", served.base_url, KEY, {"X-Gate": HEADER}, {"temperature": 0.5})
    if stream:
        llm = replace(llm, sampling={**llm.sampling, "extra_body": {"best_of": 2}})
    result = await rlm(llm).arun("Who?")

    assert result.answer_value == ANSWER
    for asked in served.requests:
        assert asked.headers["authorization"] == f"Bearer {KEY}"
        assert asked.headers["x-gate"] == HEADER
        assert asked.body["temperature"] == 0.5
        assert asked.body.get("best_of") == (2 if stream else None)


async def test_runs_have_separate_endpoints(rlm, endpoint, model_at) -> None:
    usual = endpoint(script("FINAL(llm_query('who'))"))
    other = endpoint(script("FINAL(llm_query('who', model='big') + '!')"))
    runner = rlm(model_at(usual))
    first = await runner.arun("Who?")
    second = await runner.arun("Who?", llm=LLM("n", other.base_url, KEY))
    third = await runner.arun("Who?")

    assert (first.final_answer, second.final_answer, third.final_answer) == (
        "to who", "to who!", "to who",
    )  # fmt: skip
    assert [asked.body["model"] for asked in other.requests] == ["n", "big"]
    assert len(usual.requests) == 4
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in other.requests)
    assert not any("authorization" in asked.headers for asked in usual.requests)


def test_an_episode_that_is_stepped_may_name_an_endpoint(endpoint, sandbox) -> None:
    served = endpoint(script(TREE))
    llm = LLM("m", served.base_url, KEY, {"X-Gate": HEADER})
    with LocalREPLEnv(sandbox=sandbox) as env:
        env.reset(llm=llm, rlm_max_depth=2, expected_answer=str(ANSWER))
        step = env.execute(TREE)
        state = env.state()

    assert (step.metadata["answer_value"], step.metadata["error_kind"]) == (ANSWER, None)
    assert len(served.requests) == 1 + 5 + 2
    assert served.requests[0].headers["x-gate"] == HEADER
    told = "".join(map(repr, (step, state, llm))) + state.model_dump_json()
    assert KEY not in told
    assert HEADER not in told


async def test_connections_of_an_llm_spec_close_with_their_user(rlm, endpoint, sandbox) -> None:
    served = endpoint(script("FINAL(llm_query('who'))"))
    llm = LLM("m", served.base_url)
    runner = rlm(llm)
    await asyncio.gather(*(runner.arun("Who?") for _ in range(3)))
    assert await asyncio.to_thread(served.wait_closed, 60)
    await runner.arun("Who?", llm=llm)
    assert await asyncio.to_thread(served.wait_closed, 60)
    async with AsyncLocalREPLEnv(sandbox=sandbox) as env:
        await env.reset(llm=llm)
        assert (await env.execute("FINAL(llm_query('me'))")).metadata["final_answer"] == "to me"
    assert await asyncio.to_thread(served.wait_closed, 60)

    assert len(served.requests) == 3 * 2 + 2 + 1


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────


LOOK = (
    "import gc, os\n"
    "found = [str(k) + str(v) for k, v in os.environ.items()]\n"
    "found += [o for o in gc.get_objects() if isinstance(o, str)]\n"
    "found += [repr(vars(o)) for o in gc.get_objects() if hasattr(o, '__dict__')][:20000]\n"
    "found += [repr(list(globals().items()))]\n"
    "hit = [name for name in ('sk-very-' + 'secret', 'header-' + 'secret') if\n"
    "       any(name in text for text in found if 'found +=' not in text)]\n"
    "failed = llm_query('fail')\n"
    "FINAL(str((hit, failed)))"
)


async def test_keys_reach_the_endpoint_and_nothing_else(rlm, endpoint, tmp_path, caplog) -> None:
    def query(asked):
        secrets = f"{asked.headers['authorization']} and {asked.headers['x-gate']}"
        return Status(400, {"error": {"message": f"not allowed: {secrets}"}})

    served = endpoint(script(LOOK, query=query))
    llm = LLM("m", served.base_url, KEY, {"X-Gate": HEADER})
    events = []
    runner = rlm(llm, trajectory=tmp_path / "run.jsonl", on_event=events.append)
    result = await runner.arun("Who?")

    assert {asked.headers["authorization"] for asked in served.requests} == {f"Bearer {KEY}"}
    assert result.final_answer.startswith("([], 'Error: request: status 400: not allowed: Bearer")
    assert "[secret]" in result.final_answer
    told = [repr(runner), repr(vars(runner)), repr(result), caplog.text]
    told += [repr(event) for event in events]
    told += [(tmp_path / "run.jsonl").read_text(), json.dumps(result.trajectory.samples())]
    assert not [text for text in told if KEY in text or HEADER in text]


async def test_the_error_of_a_failed_root_has_no_key(rlm, endpoint, tmp_path) -> None:
    served = endpoint(lambda asked: Status(401, {"error": {"message": str(asked.headers)}}))
    runner = rlm(
        LLM("m", served.base_url, KEY, {"X-Gate": HEADER}), trajectory=tmp_path / "run.jsonl"
    )
    with pytest.raises(ModelError) as caught:
        await runner.arun("Who?")

    assert caught.value.kind == "authentication"
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value.result)  # type: ignore[attr-defined]
    told += (tmp_path / "run.jsonl").read_text()
    assert KEY not in told
    assert HEADER not in told


# ── failures ─────────────────────────────────────────────────────────────────────────────────────

FAILURES = {
    "html": (Status(500, HTML), "server"),
    "hang": (Hang(), "timeout"),
    "cut": (Cut("half an answer that is cut"), "connection"),
    "dropped": (Drop(), "connection"),
    "limited": (Status(429, {"error": "slow down"}), "rate_limit"),
}


@pytest.fixture(params=[*FAILURES, "down"])
def failing(request):
    """An endpoint's way of failing a request, and the kind of the error."""
    if request.param == "down":
        return None, "connection"
    return FAILURES[request.param]


def limits_for(failure):
    """Seconds for a request: few where it must run into them, and more if those were too few."""
    return (0.5, 5.0, 60.0) if isinstance(failure, Hang) else (60.0,)


@STREAMED
async def test_a_failure_at_the_root_is_an_error_and_no_score(
    rlm, endpoint, model_at, failing, stream
) -> None:
    failure, kind = failing
    served = endpoint(failure or "never asked")
    if failure is None:
        served.close()
    model = model_at(served, stream=stream, timeout=limits_for(failure)[0], max_retries=0)
    with pytest.raises(ModelError) as caught:
        await rlm(model).arun("Who?", expected_answer="x")

    assert (caught.value.kind, caught.value.retryable) == (kind, True)
    result = caught.value.result  # type: ignore[attr-defined]
    assert (result.error_kind, result.reward, result.final_answer) == ("llm", None, None)
    assert (result.usage.calls, result.usage.failed_calls) == (1, 1)


@STREAMED
async def test_a_failure_of_a_sub_call_is_a_text_and_masks_if_its_endpoint_fails_for_everybody(
    rlm, endpoint, model_at, failing, stream
) -> None:
    failure, kind = failing
    asked = code("b = llm_batch(['bad', 'good'])\nFINAL([b[0].ok, b[0], b[1]])")
    main = endpoint(lambda _: asked)
    sub = endpoint(lambda asked: failure if asked.prompt == "bad" else "fine")
    if failure is None:
        sub.close()
    for limit in limits_for(failure):
        model = model_at(sub, stream=stream, timeout=limit, max_retries=0)
        result = await rlm(model_at(main), sub_model=model).arun("Who?", expected_answer="x")
        ok, bad, good = result.answer_value
        if good == "fine":
            break

    assert ok is False
    assert bad.startswith(f"Error: {kind}: ")
    assert "<html>" not in bad
    assert good == ("fine" if failure else bad)
    masked = failure is None  # else the endpoint works, but for one prompt
    assert (result.error_kind, result.reward) == (("llm", None) if masked else (None, 0.0))
    assert result.usage.failed_calls == (1 if failure else 2)


async def test_a_child_whose_endpoint_fails_masks_its_root(rlm, endpoint, model_at) -> None:
    def answer(asked):
        if of_child(asked) or asked.prompt == PROBE_PROMPT:
            return Status(500, HTML)
        return script("FINAL(rlm_query('child:'))")(asked)

    model = model_at(endpoint(answer), max_retries=0)
    result = await rlm(model).arun("Who?", expected_answer="x")

    assert result.final_answer.startswith("Error: server: status 500")
    assert (result.error_kind, result.reward) == ("llm", None)
    assert {sample["masked"] for sample in result.trajectory.samples()} == {True}


@STREAMED
async def test_transient_failures_are_retried_and_counted_once(
    rlm, endpoint, model_at, stream
) -> None:
    limited = Status(429, {"error": "slow down"}, {"retry-after": "0"})
    served = endpoint([limited, Status(500, HTML, {"retry-after-ms": "1"}), code("FINAL(1)")])
    result = await rlm(model_at(served, stream=stream)).arun("Who?")

    assert (result.final_answer, len(served.requests)) == ("1", 3)
    assert (result.usage.calls, result.usage.failed_calls) == (1, 0)


@STREAMED
@pytest.mark.parametrize(
    "lie",
    [
        {"prompt_tokens": -5, "completion_tokens": -1},
        {"prompt_tokens": "many", "completion_tokens": None},
        {"prompt_tokens": 1.5, "completion_tokens": 10**400},
        [],
        None,
    ],
    ids=["negative", "text", "huge", "list", "none"],
)
async def test_invalid_usage_is_estimated_from_above(rlm, endpoint, model_at, stream, lie) -> None:
    served = endpoint(Reply(code("FINAL(1)"), usage=lie))
    result = await rlm(model_at(served, stream=stream)).arun("Who?")

    asked = sum(len(message["content"]) for message in served.requests[0].body["messages"])
    assert result.final_answer == "1"
    assert asked <= result.usage.input_tokens < 2 * asked
    assert len(code("FINAL(1)")) <= result.usage.output_tokens < 1_000
    estimated = result.usage.input_tokens + result.usage.output_tokens
    assert result.usage.estimated_tokens in (estimated, result.usage.output_tokens)


async def test_an_endpoint_that_counts_too_much_ends_the_run_by_its_budget(
    rlm, endpoint, model_at
) -> None:
    lie = {"prompt_tokens": 1, "completion_tokens": 10**9}
    served = endpoint(Reply(code("answer['content'] = 'draft'"), usage=lie))
    result = await rlm(model_at(served), budget=Budget(output_tokens=1_000)).arun("Who?")

    assert (result.final_answer, result.stop_reason) == ("draft", "budget")
    assert len(served.requests) == 1


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────


@STREAMED
async def test_tokens_of_an_endpoint_reach_trajectory_and_samples(
    rlm, endpoint, model_at, tmp_path, stream
) -> None:
    tokens = ([1, 2], [3, 4, 5], [-0.5, -1.5, -2.5])
    served = endpoint(Reply(code("FINAL(1)"), tokens=tokens))
    model = model_at(served, stream=stream, record_tokens=True)
    path = tmp_path / "run.jsonl"
    await rlm(model, trajectory=path).arun("Who?", expected_answer=1)

    (sample,) = Trajectory.load(path).samples(object())
    assert (sample.input_ids, sample.loss_mask) == ((1, 2, 3, 4, 5), (0, 0, 1, 1, 1))
    assert (sample.logprobs, sample.reward) == ((-0.5, -1.5, -2.5), 1.0)


# ── many at once, and the end ────────────────────────────────────────────────────────────────────


async def test_the_end_of_the_root_ends_every_request(rlm, endpoint, model_at) -> None:
    """The root is cancelled while a batch, a child and a spawned child wait for their answers."""
    waiting = threading.Semaphore(0)

    def answer(asked):
        if of_run(asked) and not of_child(asked):
            return code(
                "hs = [rlm_spawn('child: a') for _ in range(2)]\n"
                "rlm_spawn('child: b', context='b')\n"
                "llm_batch(['x'] * 6)"
            )
        waiting.release()
        return Hang()

    served = endpoint(answer)
    events = []
    tree = rlm(model_at(served), on_event=events.append, max_concurrent_subcalls=3 + 6)
    run = asyncio.create_task(tree.arun("Who?"))
    for _ in range(3 + 6):
        assert await asyncio.to_thread(waiting.acquire, timeout=60)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert await asyncio.to_thread(served.wait_idle, 60)
    ends = [event for event in events if isinstance(event, RunEnded)]
    assert [event.stop_reason for event in ends] == ["cancelled"] * 4


class Bounded:
    """Answers with more words than allowed, cut where the request says.

    The answers begin when as many requests have arrived as may be in flight, so that the limit is
    reached on a loaded machine too.
    """

    def __init__(self, together: int) -> None:
        self.by_tree: Counter[str] = Counter()
        self._missing = together
        self._full = asyncio.Event()

    async def __call__(self, asked):
        self._missing -= 1
        if not self._missing:
            self._full.set()
        await self._full.wait()
        if of_run(asked):
            tree = asked.body["messages"][1]["content"].partition("tree<")[2].partition(">")[0]
            words = code(f"b = llm_batch(['{tree} x'] * 3)\nanswer['content'] = len(b)").split(" ")
            text = " ".join(words)
        else:
            tree, text = asked.prompt.split()[0], "w " * 50
        kept = text.split()[: asked.body["max_tokens"]]
        cut = len(kept) < len(text.split())
        self.by_tree[tree] += len(kept)
        return Reply(" ".join(kept) if cut else text, "length" if cut else "stop")


@pytest.mark.parametrize("trees", [80, pytest.param(500, marks=pytest.mark.slow)])
async def test_concurrent_trees_respect_their_budgets_and_the_gate(
    endpoint, model_at, trees
) -> None:
    """500 sessions at once take about 3 GiB; "restart" because nothing here needs snapshots."""
    answers = Bounded(32)
    served = endpoint(answers)
    gate, most = RequestGate(32), 100
    with Sandbox(limits=PATIENT, recovery="restart") as sandbox:
        runner = RLM(
            model_at(served),
            sandbox=sandbox,
            gate=gate,
            budget=Budget(output_tokens=most),
            run_config=RunConfig(max_output_tokens=40),
        )
        results = await asyncio.gather(*(runner.arun(f"tree<{n}>?") for n in range(trees)))

    assert len(results) == trees
    assert {result.stop_reason for result in results} == {"budget"}
    spent = {str(n): result.usage.output_tokens for n, result in enumerate(results)}
    assert spent == dict(answers.by_tree)
    assert set(spent.values()) == {most}
    assert served.most_in_flight == 32
    assert (gate.in_flight, gate.waiting) == (0, 0)


@STREAMED
async def test_a_reply_without_content_is_a_turn_without_code(
    rlm, endpoint, model_at, stream
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    nothing = [
        Reply(None, message={"reasoning_content": "hm"}),
        Reply(None, "tool_calls", message={"tool_calls": [call]}),
    ]
    served = endpoint([*nothing, code("FINAL(1)")])
    result = await rlm(model_at(served, stream=stream)).arun("Who?", expected_answer="1")

    assert (result.final_answer, result.iterations, result.reward) == ("1", 3, 1.0)
    assert "Your reply had no code block" in served.requests[1].prompt


@STREAMED
async def test_a_malformed_first_reply_ends_no_run(rlm, endpoint, model_at, stream) -> None:
    body = b'{"error": {"code": 502}}'
    bad = Raw(b"data: " + body + b"\n\n", "text/event-stream") if stream else Raw(body)
    served = endpoint([bad, code("FINAL(1)")])
    result = await rlm(model_at(served, stream=stream)).arun("Who?")

    assert (result.final_answer, result.iterations, result.usage.failed_calls) == ("1", 1, 0)


async def test_no_key_is_in_a_result_or_a_trajectory(rlm, endpoint, model_at) -> None:
    def echo(asked):
        return code(f"print({asked.headers['authorization']!r})\nFINAL(llm_query('a'))")

    sub = endpoint(lambda asked: f"I got {asked.headers['authorization']}")
    model, sub_model = (model_at(each, api_key=KEY) for each in (endpoint(echo), sub))
    result = await rlm(model, sub_model=sub_model).arun("Who?")
    trajectory = result.trajectory

    assert sub.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert result.final_answer == "I got Bearer [secret]"
    told = repr([trajectory.messages(), trajectory.samples(), list(trajectory.runs())])
    assert "print('Bearer [secret]')" in told
    assert KEY not in told + repr(result)
