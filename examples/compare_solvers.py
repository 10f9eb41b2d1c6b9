"""Evaluate two solvers on the same generated tasks, and compare them with an interval."""

import asyncio
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from repl_env.evaluation import (
    EvalTask,
    Evaluation,
    FunctionSolver,
    RecordedResults,
    ResultsFile,
    compare,
    read_dataset,
    read_results,
)
from repl_env.tasks import make_task

CODE = re.compile(r"[A-Z]{3}-\d{5}")
folder = Path(tempfile.mkdtemp())


def first_code(task: EvalTask) -> str:
    """Answer with the first code in the text."""
    found = CODE.search(str(task.context))
    return found[0] if found else ""


def code_beside_the_names(task: EvalTask) -> str:
    """Answer with the code of the sentence that shares most words with the question."""
    words = set(re.findall(r"\w+", task.question))
    sentences = [each for each in re.split(r"(?<=[.!?])\s", str(task.context)) if CODE.search(each)]
    best = max(sentences, key=lambda each: len(words & set(re.findall(r"\w+", each))))
    return "".join(CODE.findall(best)[:1])


async def evaluate(solver: Callable[[EvalTask], str]) -> RecordedResults:
    """Run what the solver's file of results does not have yet, and return all of it."""
    path = folder / f"{solver.__name__}.jsonl"
    results = ResultsFile(path)
    await Evaluation(dataset, FunctionSolver(solver), results=results, concurrency=4).run()
    results.close()
    return read_results(path)


with open(folder / "tasks.jsonl", "w", encoding="utf-8") as file:
    for seed in range(40):
        made = make_task("single_needle", 5_000, seed)
        row = {"id": made.id, "question": made.question, "context": made.context}
        file.write(json.dumps(row | {"answer": made.answer}) + "\n")

dataset = read_dataset(folder / "tasks.jsonl")
before = asyncio.run(evaluate(first_code))
after = asyncio.run(evaluate(code_beside_the_names))
overall = compare(before.results, after.results).differences[0]
print(f"{overall.n} tasks, mean score {overall.before:.2f} and {overall.after:.2f}")
print(f"difference {overall.mean:+.2f}, 95 % interval {overall.low:+.2f} to {overall.high:+.2f}")
