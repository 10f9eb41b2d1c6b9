"""The answers of generated tasks, found again by reading question and context alone."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

from repl_env.tasks.generators import GeneratedTask


def read_again(task: GeneratedTask) -> Any:
    """The answer of `task`, computed without the data of the generator."""
    return _READINGS[task.kind](task.question, task.context)


def _single_needle(question: str, context: str) -> Any:
    (subject,) = re.findall(r"^What is (the code of the .+)\? Answer", question)
    (code,) = re.findall(rf"{subject[1:]} is (\w+-\d+)\.", context)
    return code


def _multi_needle(question: str, context: str) -> Any:
    (room,) = re.findall(r"a key to the (.+)\? Answer", question)
    return sorted(re.findall(rf"(\w+ \w+) holds a key to the {room}\.", context))


def _rows(context: str) -> list[tuple[int, str]]:
    heading, *lines = context.splitlines()
    assert heading == "date | user | label | text"
    cells = [line.split(" | ") for line in lines]
    return [(int(user.removeprefix("user ")), label) for _, user, label, _ in cells]


def _aggregation(question: str, context: str) -> Any:
    rows = _rows(context)
    labels = sorted({label for _, label in rows})
    tally = {label: sum(each == label for _, each in rows) for label in labels}
    if question.startswith("Which label"):
        return next(label for label in labels if tally[label] == max(tally.values()))
    if question.startswith("Of the labels"):
        return next(label for label in labels if tally[label] == min(tally.values()))
    if found := re.match(r"How many lines of user (\d+) have the label (\w+)", question):
        return rows.count((int(found[1]), found[2]))
    if found := re.match(r"How many lines have the label (\w+)", question):
        return tally.get(found[1], 0)
    if found := re.match(r"Does the label (\w+) have more lines than the label (\w+)", question):
        one, other = (tally.get(label, 0) for label in found.groups())
        return "more" if one > other else "fewer" if one < other else "equal"
    found = re.match(r"Which of the users .* with the label (\w+)\?", question)
    assert found, question
    users = sorted({user for user, _ in rows})
    most = max(rows.count((user, found[1])) for user in users)
    return next(user for user in users if rows.count((user, found[1])) == most)


def _pairs(question: str, context: str) -> Any:
    rows = _rows(context)
    tally: dict[tuple[int, str], int] = {}
    for row in rows:
        tally[row] = tally.get(row, 0) + 1

    def has(user: int, label: str, least: int = 1) -> bool:
        return tally.get((user, label), 0) >= least

    users = sorted({user for user, _ in rows})
    if found := re.search(
        r"both users have at least (one|\d+) lines? with the label (\w+)", question
    ):
        least = 1 if found[1] == "one" else int(found[1])
        able = [user for user in users if has(user, found[2], least)]
        return [[a, b] for a, b in combinations(able, 2)]
    found = re.search(
        r"label (\w+), and the other has at least one line with the label (\w+)", question
    )
    assert found, question
    one, other = found.groups()
    return [
        [a, b]
        for a, b in combinations(users, 2)
        if (has(a, one) and has(b, other)) or (has(b, one) and has(a, other))
    ]


_READINGS = {
    "single_needle": _single_needle,
    "multi_needle": _multi_needle,
    "aggregation": _aggregation,
    "pairs": _pairs,
}
