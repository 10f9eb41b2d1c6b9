"""Cases that users reported: inputs and right values as data, in reported.jsonl."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from repl_env import LocalREPLEnv, REPLAction, REPLEnvironment
from repl_env.rlm import RLM, ScriptedModel
from repl_sandbox import Sandbox, Session

Case = dict[str, Any]
CASES: dict[str, Case] = {
    case["id"]: case
    for case in map(json.loads, (Path(__file__).parent / "reported.jsonl").read_text().splitlines())
}


def cases_with(area: str, key: str) -> list[Case]:
    """Cases of an area whose correct value is given by `key`."""
    return [case for case in CASES.values() if case["area"] == area and key in case["right"]]


def test_every_case_is_tried() -> None:
    # A case whose right value is a sentence has a test of its own below.
    told = {case["id"] for case in CASES.values() if "text" in case["right"]}
    assert told == {"rollback-fds", "tool-argument-numpy", "openenv-assign"}
    checked = {"last_value", "stdout", "shown_contains", "traceback_contains", "answer", "raises"}
    checked |= {"done", "final_answer", "stdout_contains", "exit", "text"}
    assert {key for case in CASES.values() for key in case["right"]} <= checked


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def raise_value_error(_: int) -> None:
    raise ValueError("no")


# ── the engine ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", cases_with("engine", "last_value"), ids=lambda case: case["id"])
def test_the_last_cell_has_the_right_value(sandbox: Sandbox, case: Case) -> None:
    with sandbox.session() as session:
        *_, last = [session.run(cell) for cell in case["cells"]]

    assert last.value == case["right"]["last_value"]


def test_an_exception_of_a_host_function_is_caught_by_its_name(sandbox: Sandbox) -> None:
    case = CASES["tool-exception-type"]
    with sandbox.session(host={"bad": raise_value_error}) as session:
        (outcome,) = [session.run(cell) for cell in case["cells"]]

    assert outcome.stdout == case["right"]["stdout"]


def test_the_traceback_of_executed_code_shows_the_place(sandbox: Sandbox) -> None:
    case = CASES["exec-traceback"]
    with sandbox.session() as session:
        (outcome,) = [session.run(cell) for cell in case["cells"]]

    assert outcome.error is not None
    assert case["right"]["traceback_contains"] in outcome.error.traceback


def test_a_warning_between_states_of_a_progress_bar_is_shown() -> None:
    case = CASES["tqdm-warning"]
    with LocalREPLEnv() as env:
        env.reset()
        (step,) = [env.execute(cell) for cell in case["cells"]]

    assert case["right"]["shown_contains"] in step.observation.result.stderr


def returned_to(session: Session, sandbox: Sandbox) -> Session:
    session.run("later = 1")
    session.rollback()
    return session


def branched_off(session: Session, sandbox: Sandbox) -> Session:
    return session.branch()


@pytest.mark.parametrize("move", [returned_to, branched_off])
def test_a_pipe_of_an_earlier_cell_never_writes_into_a_later_file(
    sandbox: Sandbox, move: Callable[[Session, Sandbox], Session]
) -> None:
    (cell,) = CASES["rollback-fds"]["cells"]
    with sandbox.session() as session:
        assert session.run(cell).ok
        with move(session, sandbox) as moved:
            assert moved.run("files = [open(f'f{i}', 'w+') for i in range(8)]").ok
            moved.run("p.stdin.write('from the pipe')\np.stdin.flush()")
            moved.run("del p\nimport gc\ngc.collect()")
            kept = moved.run(
                "for i, file in enumerate(files): file.write(str(i)); file.flush()\n"
                "[open(f'f{i}').read() for i in range(8)]"
            )

    assert kept.value == str([str(number) for number in range(8)])


def test_a_host_function_receives_numbers_of_numpy_and_sets(sandbox: Sandbox) -> None:
    (cell,) = CASES["tool-argument-numpy"]["cells"]
    received = []
    with sandbox.session(host={"echo": received.append}) as session:
        assert session.run(cell).ok

    assert received == [{"k": 2, "s": [1]}]


# ── replies of models ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", cases_with("rlm", "answer"), ids=lambda case: case["id"])
def test_the_reply_gives_the_right_answer(case: Case) -> None:
    model = ScriptedModel([case["reply"]] * 2)
    result = RLM(model, max_iterations=2).run("?", case["context"])

    assert result.final_answer == case["right"]["answer"]
    assert result.iterations == 1


@pytest.mark.parametrize("case", cases_with("rlm", "raises"), ids=lambda case: case["id"])
def test_the_reply_raises_nothing(case: Case) -> None:
    model = ScriptedModel([case["reply"]] * 2)

    assert RLM(model, max_iterations=2).run("?", case["context"]).error_kind in (None, "answer")


# ── the environment ──────────────────────────────────────────────────────────────────────────────


def test_an_answer_by_keyword_ends_the_episode() -> None:
    case = CASES["final-answer-keyword"]
    with LocalREPLEnv() as env:
        env.reset()
        step = env.execute(case["code"])

    assert step.done is case["right"]["done"]
    assert step.observation.metadata["final_answer"] == case["right"]["final_answer"]


def test_a_batch_takes_the_values_of_a_dict() -> None:
    case = CASES["batch-dict-values"]
    with LocalREPLEnv(llm_query_fn=lambda prompt: prompt) as env:
        env.reset()
        step = env.execute(case["code"])

    assert step.observation.result.stdout == case["right"]["stdout"]


def test_the_names_that_openenv_exports_can_be_imported() -> None:
    namespace: dict[str, Any] = {}
    exec(CASES["openenv-exports"]["code"], namespace)

    assert namespace["LocalRLMRunner"] and namespace["RLMRunResult"]


def test_a_function_assigned_to_the_environment_is_called() -> None:
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "answer"

    with closing(REPLEnvironment()) as environment:
        environment.llm_query_fn = answer
        environment.reset()
        observation = environment.step(REPLAction(code="print(llm_query('x'))"))

    assert asked == ["x"]
    assert observation.result.stdout == "answer\n"


# ── the command line ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", cases_with("cli", "exit"), ids=lambda case: case["id"])
def test_the_repl_takes_a_file_from_a_pipe(case: Case) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "repl_env", "repl"],
        input=case["stdin"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == case["right"]["exit"], done.stderr
    assert case["right"]["stdout_contains"] in done.stdout
