"""Trajectories and results of real runs, whose models answer from scripts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from repl_env.evaluation import Evaluation, ResultsFile, RLMSolver, read_dataset
from repl_env.llm.base import Completion, ModelUsage
from repl_env.rlm import RLM, ScriptedModel
from repl_env.rlm.budget import Price

QUESTION = (
    "Each line of `context` is a support ticket: `date | region | text`. In which region did the "
    "share of tickets about billing rise most from the first half of the year to the second?"
)
PRICES = {"worker-large": Price(2.0, 8.0), "worker-small": Price(0.2, 0.8)}

LOOK = """I will look at the data first.

```repl
rows = [line.split(" | ", 2) for line in context.splitlines()]
print(f"{len(rows):,} tickets")
for row in rows[:5]:
    print(row)
```
"""
SLIP = """The texts name their subject in prose, so a small model labels them. First the months.

```repl
months = {row.date[:7] for row in rows}
print(sorted(months))
```
"""
LABEL = '''Rows are lists, not objects. I label a sample of each region with the small model.

```repl
import random

LABELS = "billing, shipping, account, other"
sample = random.Random(7).sample(rows, 24)

def prompt(row):
    """One question for each ticket."""
    return f"Answer with one of {LABELS}.\\n\\n{row[2]}"

labels = llm_query_batched([prompt(row) for row in sample])
print({label: labels.count(label) for label in sorted(set(labels))})
```
'''
PLOT = """Now the share of billing by region and half, as a picture.

```repl
import matplotlib.pyplot as plt

regions = sorted({row[1] for row in rows})
share = {}
for region in regions:
    for half, months in (("first", range(1, 7)), ("second", range(7, 13))):
        mine = [r for r in rows if r[1] == region and int(r[0][5:7]) in months]
        share[region, half] = sum("invoice" in r[2] or "charged" in r[2] for r in mine) / len(mine)

figure, axes = plt.subplots(figsize=(6, 3))
for offset, half in ((-0.2, "first"), (0.2, "second")):
    heights = [share[region, half] for region in regions]
    axes.bar([n + offset for n in range(len(regions))], heights, 0.38, label=half)
axes.set_xticks(range(len(regions)), regions)
axes.set_ylabel("share of billing")
axes.legend(title="half")
plt.show()
```
"""
CHECK = """The rise is clearest in one region. A run of its own checks each of two candidates.

```repl
checks = rlm_query_batched([
    f"How many tickets of the region {region} are about billing in the second half of the year?"
    for region in ("north", "west")
])
print(checks)
```
"""
FINISH = """Both agree with the picture.

```repl
rise = {region: share[region, "second"] - share[region, "first"] for region in regions}
best = max(rise, key=rise.get)
print({region: round(value, 3) for region, value in rise.items()})
FINAL(best)
```
"""
BELOW = [
    "```repl\nprint(type(context), len(str(context)))\n```",
    "```repl\nFINAL('about a third')\n```",
]
SCRIPT = [LOOK, SLIP, LABEL, PLOT, CHECK, FINISH]


def tickets() -> str:
    """A year of tickets, in which billing rises in the west."""
    chance = random.Random(3)
    texts = {
        True: ["I was charged twice for one order.", "The invoice names the wrong company."],
        False: ["The parcel came open.", "I cannot sign in.", "Do you ship to islands?"],
    }
    lines = []
    for _ in range(1200):
        month, region = chance.randint(1, 12), chance.choice(["east", "north", "south", "west"])
        rise = 0.25 if region == "west" and month > 6 else 0.0
        text = chance.choice(texts[chance.random() < 0.2 + rise])
        lines.append(f"2025-{month:02}-{chance.randint(1, 28):02} | {region} | {text}")
    return "\n".join(sorted(lines))


def worker(script: list[str], delay: float = 0.05) -> ScriptedModel:
    """A model whose reply to turn n is the n-th text; runs below have a script of their own."""

    async def answer(request):
        replies = sum(message["role"] == "assistant" for message in request.messages)
        below = "How many tickets of the region" in str(request.messages[1]["content"])
        texts = BELOW if below else script
        await asyncio.sleep(delay * (1 + replies % 3))
        text = texts[min(replies, len(texts) - 1)]
        asked = sum(len(str(message["content"])) for message in request.messages) // 4
        return Completion(text, ModelUsage(asked, len(text) // 4), "stop", "worker-large")

    return ScriptedModel(answer, name="worker-large")


def labeller() -> ScriptedModel:
    """A small model that labels one ticket."""

    async def answer(request):
        text = str(request.messages[-1]["content"]).rpartition("\n\n")[2]
        await asyncio.sleep(0.01 + len(text) % 7 / 100)
        label = "billing" if "invoice" in text or "charged" in text else "other"
        return Completion(label, ModelUsage(30 + len(text) // 4, 2), "stop", "worker-small")

    return ScriptedModel(answer, name="worker-small")


def record(path: Path, script: list[str], **options) -> None:
    """Run a script over the tickets, and write its trajectory."""
    rlm = RLM(
        worker(script),
        sub_model=labeller(),
        prices=PRICES,
        trajectory=path,
        max_iterations=12,
        **options.pop("settings", {}),
    )
    rlm.run(QUESTION, tickets(), seed=1, **options)


def record_all(folder: Path) -> Path:
    """Write a group of samples and two evaluations into `folder`; return it."""
    for number, (end, kept) in enumerate(variants(), 1):
        record(
            folder / f"sample-{number}.jsonl",
            [*kept, end],
            expected_answer="west",
            task={"name": "billing-rise", "split": "train", "difficulty": "2"},
            group_id="billing-rise/7",
        )
    record(folder / "billing-by-region.jsonl", SCRIPT, expected_answer="west")
    evaluations(folder)
    return folder


def variants() -> Iterator[tuple[str, list[str]]]:
    """Ends of samples, with the turns before."""
    guess = "```repl\nFINAL({!r})\n```"
    yield guess.format("west"), [LOOK, PLOT]
    yield guess.format("north"), [LOOK]
    yield guess.format("west"), [LOOK, SLIP, PLOT]
    yield "I cannot tell.", [LOOK]
    yield guess.format("The answer is west"), [LOOK, LABEL]
    yield FINISH, [LOOK, PLOT]


def evaluations(folder: Path) -> None:
    """Write a data set of sums, and the results of a careless and of a careful model on it."""
    chance = random.Random(11)
    rows = []
    for number in range(60):
        numbers = [chance.randint(1, 99) for _ in range(chance.choice([3, 8, 20]))]
        kind = {3: "short", 8: "medium", 20: "long"}[len(numbers)]
        rows.append(
            {
                "id": f"sum-{number:03}",
                "question": "Add the numbers in the context.",
                "context": " ".join(map(str, numbers)),
                "answer": str(sum(numbers)),
                "metadata": {"kind": kind},
            }
        )
    dataset = folder / "tasks.json"  # not a file that the viewer lists
    dataset.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    careful = "```repl\nFINAL(str(sum(map(int, context.split()))))\n```"
    careless = "```repl\nFINAL(str(sum(map(int, context.split()[:10]))))\n```"
    off = "```repl\nFINAL(str(sum(map(int, context.split())) + (len(context) % 5 == 0)))\n```"
    # In a thread: the caller's may have the event loop of Playwright.
    with ThreadPoolExecutor(1) as thread:
        for name, reply in (("careless", careless), ("careful", off), ("exact", careful)):
            thread.submit(evaluate, dataset, folder, name, reply).result()


def evaluate(dataset: Path, folder: Path, name: str, reply: str) -> None:
    """Write the results of a model that always replies the same."""
    runs = folder / f"{name}-runs" if name == "careful" else None
    if runs is not None:
        runs.mkdir()
    with closing(ResultsFile(folder / f"{name}.jsonl")) as results:
        model = ScriptedModel(
            lambda request: Completion(reply, ModelUsage(900, 25), "stop", "worker-large"),
            name="worker-large",
        )
        options = {"prices": PRICES, "max_iterations": 2}
        solver = RLMSolver(model, options, runs)
        evaluation = Evaluation(read_dataset(dataset), solver, results=results)
        asyncio.run(evaluation.run())
