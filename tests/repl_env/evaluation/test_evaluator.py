"""Evaluations: many concurrent tasks, infrastructure errors told apart, results that are kept."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from repl_env.errors import EpisodeAborted, ModelError
from repl_env.evaluation import (
    RUBRICS,
    Evaluation,
    FunctionSolver,
    ResultsFile,
    RLMSolver,
    Solved,
    read_dataset,
    summarize,
)
from repl_env.evaluation.dataset import metric_of
from repl_env.rlm import ScriptedModel, Spent, Trajectory
from repl_env.rubrics import ExactMatchRubric


@pytest.fixture
def dataset(tmp_path: Path):
    """Ten tasks, whose answers are their numbers."""
    path = tmp_path / "tasks.jsonl"
    lines = [
        {
            "id": f"t{n}",
            "question": f"What is {n}?",
            "context": "c",
            "answer": n,
            "metadata": {"kind": "even" if n % 2 == 0 else "odd"},
        }
        for n in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return read_dataset(path)


async def summary_of(dataset, function, **options):
    evaluation = Evaluation(dataset, FunctionSolver(function), **options)
    await evaluation.run()
    return summarize(evaluation)


async def test_scores_are_reported_for_all_and_by_kind(dataset) -> None:
    summary = await summary_of(dataset, lambda task: task.answer if task.answer < 5 else "no")

    assert [(row.name, row.n, row.mean) for row in summary.scores] == [
        ("all", 10, 0.5),
        ("even", 5, 0.6),
        ("odd", 5, 0.4),
    ]
    assert summary.scores[0].low < 0.5 < summary.scores[0].high
    assert not summary.failures


async def test_scores_are_reported_by_split_difficulty_and_group(tmp_path: Path) -> None:
    facts = [{"split": "test", "difficulty": 1}, {"split": "train", "group": "g"}, {"kind": "all"}]
    rows = [
        {"id": str(n), "question": "?", "context": None, "answer": n, "metadata": metadata}
        for n, metadata in enumerate(facts)
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    summary = await summary_of(read_dataset(tmp_path / "tasks.jsonl"), lambda task: 1)

    assert [(row.name, row.n, row.mean) for row in summary.scores] == [
        ("all", 3, pytest.approx(1 / 3)),
        ("all", 1, 0.0),
        ("split test", 1, 0.0),
        ("split train", 1, 1.0),
        ("difficulty 1", 1, 0.0),
        ("group g", 1, 1.0),
    ]


async def test_trajectories_say_which_task_they_are_of(tmp_path: Path) -> None:
    row = {"id": "t1", "question": "?", "context": None, "answer": "1"}
    facts = {"split": "test", "difficulty": "easy", "group_id": "g1"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**row, "metadata": facts}))
    model = ScriptedModel(["```repl\nFINAL(1)\n```"])
    evaluation = Evaluation(
        read_dataset(tmp_path / "tasks.jsonl"), RLMSolver(model, {}, trajectories=tmp_path)
    )
    await evaluation.run()
    (sample,) = Trajectory.load(tmp_path / "t1.jsonl").samples()

    assert {name: sample[name] for name in ("task", *facts)} == {"task": "t1", **facts}
    assert (sample["ended"], sample["reward"]) == ("terminated", 1.0)


async def test_the_requested_number_of_tasks_runs_at_once(dataset) -> None:
    running = most = 0
    full = asyncio.Event()

    async def solve(task):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 4:
            full.set()
        await full.wait()
        running -= 1
        return task.answer

    summary = await summary_of(dataset, solve, concurrency=4)

    assert (most, summary.scored) == (4, 10)


async def test_no_answer_is_a_score_of_zero(dataset) -> None:
    summary = await summary_of(
        dataset, lambda task: Solved(None, stop_reason="iterations", error_kind="exception")
    )

    assert summary.scores[0].mean == 0.0
    assert summary.error_kinds == {"exception": 10}
    assert summary.stop_reasons == {"iterations": 10}


def failing(task):
    match task.answer:
        case 1:
            raise ModelError("rate_limit", "slow down", retryable=True)
        case 2:
            raise EpisodeAborted("sandbox", "gone")
        case 3:
            return Solved("3", 3, error_kind="llm")
        case 4:
            raise KeyError("a bug")
        case 5:
            raise asyncio.CancelledError
        case 6:
            return Solved("6", 6, error_kind="timeout")
    return task.answer


async def test_an_infrastructure_error_is_not_scored_as_zero(dataset) -> None:
    async def solve(task):
        return failing(task)

    summary = await summary_of(dataset, solve)

    assert summary.scores[0].n == 5
    assert summary.scores[0].mean == 1.0
    assert [(each.id, each.error_kind) for each in summary.failures] == [
        ("t1", "llm"),
        ("t2", "sandbox"),
        ("t3", "llm"),
        ("t4", "solver"),
        ("t5", "cancelled"),
    ]
    assert summary.failures[0].error == "rate_limit: slow down"
    assert summary.failures[3].error == "KeyError: 'a bug'"
    assert summary.error_kinds == {"timeout": 1}


async def test_a_failing_metric_is_not_scored_as_zero(dataset) -> None:
    def metric(expected, text, value):
        return 1 / (expected - 3)

    summary = await summary_of(dataset, lambda task: task.answer, metric=metric)

    assert [(each.id, each.error_kind) for each in summary.failures] == [("t3", "rubric")]
    assert summary.scored == 9


async def test_a_metric_that_is_cancelled_from_inside_is_its_own_failure(dataset) -> None:
    async def metric(expected, text, value):
        if expected == 3:
            raise asyncio.CancelledError  # as of a judge's library, which gives up its request
        return 1

    summary = await summary_of(dataset, lambda task: task.answer, metric=metric)

    assert [(each.id, each.error_kind) for each in summary.failures] == [("t3", "rubric")]
    assert summary.scored == 9


@pytest.mark.parametrize("wrong", ["text", "stop_reason", "error_kind", "spent"])
async def test_invalid_results_of_a_solver_end_no_other_task(dataset, tmp_path, wrong) -> None:
    def solve(task):
        return Solved(**{"text": "a", wrong: 5}) if task.answer == 3 else task.answer

    results = ResultsFile(tmp_path / "results.jsonl")
    summary = await summary_of(dataset, solve, results=results)
    results.close()
    again = ResultsFile(tmp_path / "results.jsonl")
    again.close()

    assert [(each.id, each.error_kind) for each in summary.failures] == [("t3", "solver")]
    assert f"TypeError: {wrong} must be a" in (summary.failures[0].error or "")
    assert (summary.scored, len(again.earlier)) == (9, 10)


@pytest.mark.parametrize(
    "wrong", [object(), {"a": object()}, {1, 2}, float("nan"), [float("inf")], {1: 1, "1": 2}]
)
async def test_an_invalid_answer_is_a_failure_of_the_solver(dataset, wrong) -> None:
    summary = await summary_of(dataset, lambda task: wrong if task.answer == 3 else task.answer)

    assert [(each.id, each.error_kind) for each in summary.failures] == [("t3", "solver")]
    assert "the solver's answer" in (summary.failures[0].error or "")
    assert summary.scored == 9


@pytest.mark.parametrize("right", ["a\ud83d", ["a\ud83d"], (1, 2), {"a": [None]}, 1.5, True])
async def test_texts_and_json_values_are_answers(dataset, right) -> None:
    summary = await summary_of(dataset, lambda task: right)

    assert (summary.scored, summary.failures) == (10, ())


async def test_blocking_metrics_run_in_parallel(dataset) -> None:
    both = threading.Barrier(2, timeout=60)

    def judge(expected, answer) -> float:
        both.wait()
        return 1.0

    summary = await summary_of(
        dataset, lambda task: task.answer, metric=metric_of(judge), concurrency=2
    )

    assert summary.scored == 10


def test_a_running_blocking_solver_does_not_delay_the_end(dataset) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def solve(task):
        begun.set()
        go_on.wait(60)

    async def cut() -> None:
        running = asyncio.create_task(summary_of(dataset, solve, concurrency=1))
        await asyncio.to_thread(begun.wait)
        running.cancel()
        await asyncio.wait({running})

    def run() -> None:
        asyncio.run(cut())
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    in_time = ended.wait(30)
    go_on.set()
    thread.join()

    assert in_time


async def test_failed_tasks_run_again_and_scored_ones_do_not(dataset, tmp_path) -> None:
    asked = []

    def solve(task):
        asked.append(task.id)
        return failing(task) if len(asked) <= 10 and task.answer != 5 else task.answer

    for _ in range(2):
        results = ResultsFile(tmp_path / "r")
        summary = await summary_of(dataset, solve, results=results)
        results.close()

    assert sorted(asked[10:]) == ["t1", "t2", "t3", "t4"]
    assert (summary.scored, summary.failures) == (10, ())


@pytest.mark.parametrize("change", ["settings", "line"])
async def test_results_of_other_settings_or_lines_do_not_count(dataset, tmp_path, change) -> None:
    asked = []
    options = {"settings": {"model": "a"}}

    def solve(task):
        asked.append(task.id)
        return 0

    for _ in range(2):
        results = ResultsFile(tmp_path / "r")
        await summary_of(dataset, solve, results=results, **options)
        results.close()
        if change == "settings":
            options = {"settings": {"model": "b"}}
        else:
            text = dataset.path.read_text()
            dataset.path.write_text(text.replace("What is 7", "What was 7"))
            dataset = read_dataset(dataset.path)

    assert sorted(asked[10:]) == (sorted(asked[:10]) if change == "settings" else ["t7"])


async def test_too_many_consecutive_failures_end_an_evaluation(dataset) -> None:
    def solve(task):
        raise ModelError("connection", "refused")

    summary = await summary_of(dataset, solve, concurrency=1, give_up_after=3)

    assert (len(summary.failures), summary.not_run, summary.gave_up) == (3, 7, True)


async def test_an_aborted_evaluation_can_be_run_again(dataset) -> None:
    down = True

    def solve(task):
        if down:
            raise ModelError("connection", "refused")
        return task.answer

    evaluation = Evaluation(dataset, FunctionSolver(solve), concurrency=1, give_up_after=3)
    await evaluation.run()
    down = False
    await evaluation.run()

    summary = summarize(evaluation)
    assert (summary.scored, summary.gave_up) == (10, False)


async def test_a_fatal_error_ends_an_evaluation_and_keeps_its_results(dataset) -> None:
    class NoTier(Exception):
        pass

    begun = asyncio.Event()
    cancelled = []

    async def solve(task):
        if task.answer == 0:
            return 0
        if task.answer == 2:
            await begun.wait()
            raise NoTier
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(task.id)

    evaluation = Evaluation(dataset, FunctionSolver(solve), concurrency=2, fatal=(NoTier,))
    with pytest.raises(NoTier):
        await evaluation.run()

    assert list(evaluation.done) == ["t0"]
    assert cancelled == ["t1"]


async def test_cancelling_cancels_the_solvers_and_keeps_results(dataset) -> None:
    begun = asyncio.Event()
    cancelled = []

    async def solve(task):
        if task.answer == 0:
            return 0
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(task.id)

    evaluation = Evaluation(dataset, FunctionSolver(solve), concurrency=1)
    running = asyncio.create_task(evaluation.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (list(evaluation.done), cancelled) == (["t0"], ["t1"])


async def test_costs_are_summed_and_unknown_costs_are_marked(dataset) -> None:
    spent = Spent(calls=3, input_tokens=10, output_tokens=5, usd=0.5, unpriced_calls=1)
    summary = await summary_of(dataset, lambda task: Solved("1", 1, spent=spent))

    assert (summary.calls, summary.input_tokens, summary.output_tokens) == (30, 100, 50)
    assert (summary.usd, summary.unpriced_calls) == (5.0, 10)


@pytest.fixture
def runs(monkeypatch):
    """A stand-in for the runner that records its arguments and its questions."""
    made = []

    class RLM:
        def __init__(self, model, **options) -> None:
            made.append((model, options))

        async def arun(self, question, context, *, expected_answer, task):
            made.append((question, context, expected_answer, task.id))
            usage = Spent(calls=1)
            if expected_answer == 9:
                error = ModelError("connection", "refused")
                error.result = SimpleNamespace(  # type: ignore[attr-defined]
                    final_answer="partly", stop_reason="error", usage=usage
                )
                raise error
            return SimpleNamespace(
                final_answer=str(expected_answer),
                answer_value=expected_answer,
                stop_reason="answer",
                error_kind=None,
                usage=usage,
            )

    module = ModuleType("repl_env.rlm.runner")
    module.RLM = RLM  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


async def test_a_recursive_model_is_a_solver(dataset, runs) -> None:
    model = ScriptedModel([])
    evaluation = Evaluation(dataset, RLMSolver(model, {"max_depth": 3}), concurrency=1)
    await evaluation.run()
    summary = summarize(evaluation)

    (given, options), asked = runs[:2]
    assert options.pop("on_event")
    assert (given, options, asked) == (model, {"max_depth": 3}, ("What is 0?", "c", 0, "t0"))
    assert (summary.scored, summary.scores[0].mean, summary.calls) == (9, 1.0, 10)
    assert [(each.id, each.error_kind) for each in summary.failures] == [("t9", "llm")]
    assert summary.stop_reasons == {"answer": 9, "error": 1}


# ── what it cannot be made with ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"dataset": "tasks.jsonl"}, TypeError, "dataset must be a Dataset"),
        ({"solver": lambda task: 1}, TypeError, r"solver must be .*FunctionSolver\(function\)"),
        ({"solver": FunctionSolver}, TypeError, "solver must be a solver"),
        ({"metric": "exact"}, TypeError, r"metric must be .*RUBRICS\['exact'\]"),
        ({"metric": lambda expected, answer: 1.0}, TypeError, r"metric_of\(function\)"),
        ({"metric": ExactMatchRubric()}, TypeError, "metric must be"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"concurrency": "8"}, TypeError, "concurrency must be an int"),
        ({"give_up_after": -1}, ValueError, "give_up_after must be at least 0"),
        ({"settings": {"path": Path("x")}}, TypeError, "settings must be JSON"),
    ],
)
def test_bad_arguments_of_an_evaluation_are_named(dataset, arguments, error, named):
    given = {"dataset": dataset, "solver": FunctionSolver(lambda task: task.answer), **arguments}
    with pytest.raises(error, match=named):
        Evaluation(**given)


def test_a_metric_may_be_any_function_of_three(dataset):
    for metric in (RUBRICS["json"], lambda *given: 1.0, metric_of(lambda expected, answer: 1.0)):
        assert Evaluation(dataset, FunctionSolver(int), metric=metric).missing


def test_bad_arguments_of_solvers_are_named():
    with pytest.raises(TypeError, match="function must be callable"):
        FunctionSolver(3)
    with pytest.raises(TypeError, match="model must be a model or a function"):
        RLMSolver("gpt", {})
    with pytest.raises(TypeError, match="trajectories must be a str or a Path"):
        RLMSolver(ScriptedModel([]), {}, 3)


async def test_a_model_may_be_a_function_and_paths_may_be_texts(dataset, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    solver = RLMSolver(lambda messages: "```repl\nFINAL(3)\n```", {}, str(folder))
    with closing(ResultsFile(str(tmp_path / "results.jsonl"))) as results:
        evaluation = Evaluation(read_dataset(str(dataset.path), 4), solver, results=results)
        await evaluation.run()
    await solver.close()
    assert [evaluation.done[f"t{n}"].score for n in range(4)] == [0.0, 0.0, 0.0, 1.0]
    assert len(list(folder.iterdir())) == 4
    for path, limit in ((3, None), ("x", "3"), ("x", -1)):
        with pytest.raises((TypeError, ValueError), match="must be"):
            read_dataset(path, limit)
