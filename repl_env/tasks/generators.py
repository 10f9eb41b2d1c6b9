"""Long-context tasks that are generated, with exact answers.

`make_task(kind, size, seed)` is a pure function: the same bytes on every system and in every
version of Python. `repl-env bench-tasks make` writes datasets of them, `repl-env eval` runs a
solver over such a dataset.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from repl_env.common.display import set_module

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# `GeneratedTask`: a question about a long context, and its one right answer.

MIN_SIZE = 1_000  # below, a context has no room for its question's subject and something beside it
MAX_SIZE = 1_000_000_000  # characters; a task is made, and given to a session, in memory


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True)
class GeneratedTask:
    """A generated task.

    Attributes:
        id: kind, size and seed, from which the task can be made again.
        answer: the right answer as JSON; `answer_text` is the same as text.
        size: the characters asked for; the context has at most these, and less by under one line.
        rubric: how an answer is compared: "exact" or "list" (`repl_env.evaluation`).
    """

    id: str
    kind: str
    question: str
    context: str
    answer: JSON
    size: int
    seed: int
    rubric: str

    @property
    def answer_text(self) -> str:
        """The right answer as it would be written."""
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that trajectories and samples carry."""
        return {"name": self.id, "group": self.kind}

    def record(self) -> dict[str, Any]:
        """The task as a line of a dataset has it."""
        return {
            "id": self.id,
            "question": self.question,
            "context": self.context,
            "answer": self.answer,
            "rubric": self.rubric,
            "metadata": {"kind": self.kind, "size": self.size, "seed": self.seed},
        }


# Choices that are the same on every system and in every version of Python.
#
# Of `random.Random`, only what `random()` returns for a given seed is promised to stay as it is
# (the library's "Notes on Reproducibility"), so every choice here is made of that.

T = TypeVar("T")


class SeededRandom:
    """A source of choices, seeded by `key`."""

    def __init__(self, *key: str | int) -> None:
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
        self.real = random.Random(int.from_bytes(digest, "big")).random

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        return int(self.real() * limit)

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[int(self.real() * len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `items`, in any order."""
        left = list(items)
        for place in range(count):
            other = place + self.below(len(left) - place)
            left[place], left[other] = left[other], left[place]
        return left[:count]

    def places(self, count: int, limit: int) -> list[int]:
        """`count` different numbers from 0 to `limit` - 1, for a `limit` well above `count`."""
        found: dict[int, None] = {}
        while len(found) < count:
            found[self.below(limit)] = None
        return list(found)


# The words that contexts are made of: an invented harbour, its people and what they write down.

FIRST_NAMES = (
    "Ada Almut Arvid Beata Bruno Carla Cyril Dagny Edda Emil Farah Felix Greta Hanno Hilde Ivo "
    "Jette Jonas Karim Klara Lars Leona Malte Mira Nadia Nils Odile Oskar Petra Quirin Rana Ruben "
    "Selma Stellan Tilda Tomas Ulla Veit Wanda Yusuf"
).split()
LAST_NAMES = (
    "Abel Ahlgren Bergson Brandt Calder Dorn Ekman Falk Garber Halloran Hoffer Iversen Jansky "
    "Kestrel Kolb Lindqvist Marlow Moreau Nadler Nordin Okafor Ortega Pell Pohl Quist Radek Rowan "
    "Sander Sorel Tarn Thiel Ude Vance Voss Weller Winter Xander Yates Zabel Zorn"
).split()
TOWNS = (
    "Aldersund Brakwater Copperhithe Dunmere Eastholm Fennwick Gullhaven Harrowby Ironquay "
    "Jarrowmouth Kelpness Lowmarsh Mossbury Northsluice Otterbank Pebblecombe Quernford Reedham "
    "Saltcross Tidewell Underclyffe Vellhaven Westerpool Yarlstrand"
).split()
QUALITIES = (
    "amber ashen bronze cedar cobalt copper crimson dusty emerald flint gilded granite hazel "
    "indigo ivory jade linen marble ochre pewter russet scarlet slate velvet"
).split()
THINGS = (
    "anchor barrel beacon bellows bridge cabinet capstan chest clock cradle drum engine ferry "
    "furnace gauge lantern ledger lighthouse locker mill pump safe turbine winch"
).split()
ROOMS = (
    "archive boiler-house chapel cistern coalyard drydock granary kitchen laboratory library "
    "mapstore nursery observatory pantry printery quarry signalbox stable tannery vault workshop"
).split()
LABELS = "harvest illness letter repair theft trade visit weather".split()
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

# Sentences of what nobody asks about: who, did what, with what, where or when.
SUBJECTS = (
    "The harbour clerk",
    "A visiting surveyor",
    "The night watch",
    "An apprentice",
    "The pilot's daughter",
    "The older of the two masons",
    "A crew from upriver",
    "The weigh-house keeper",
    "One of the net makers",
    "The schoolmistress",
    "The rope merchant",
    "A retired captain",
)
VERBS = (
    "counted",
    "set down",
    "asked about",
    "paid for",
    "argued over",
    "repainted",
    "carried off",
    "sent back",
    "measured",
    "covered up",
    "made a sketch of",
    "forgot",
)
OBJECTS = (
    "nine crates of lamp oil",
    "the broken railing",
    "a stack of unsigned receipts",
    "the last barrels of tar",
    "a length of chain",
    "the new mooring posts",
    "forty sacks of meal",
    "a pair of oars",
    "the cracked bell",
    "two bolts of sailcloth",
    "the wooden stairs",
    "an empty cart",
)
CIRCUMSTANCES = (
    "before the tide turned",
    "beside the north gate",
    "while it rained",
    "without a word to anyone",
    "for the third time that week",
    "behind the customs shed",
    "as the lamps were lit",
    "on the way to market",
    "under the arches",
    "to the surprise of all",
    "at the end of the pier",
    "in spite of the cold",
)


# Text in which something is hidden: sentences of no weight, with given ones among them.

_PARAGRAPH = 6  # sentences, on average


def filler_sentence(rng: SeededRandom) -> str:
    """One sentence that no question is about."""
    pick = rng.pick
    return f"{pick(SUBJECTS)} {pick(VERBS)} {pick(OBJECTS)} {pick(CIRCUMSTANCES)}."


def hide_lines(rng: SeededRandom, sentences: Sequence[str], size: int) -> str:
    """A text of at most `size` characters that has each of `sentences` once, anywhere."""
    # One character each for what separates it from the next; a new paragraph takes two.
    left = size - sum(len(sentence) + 2 for sentence in sentences)
    pieces: list[str] = []
    while True:
        piece = filler_sentence(rng) + ("\n\n" if rng.below(_PARAGRAPH) == 0 else " ")
        left -= len(piece)
        if left < 0:
            break
        pieces.append(piece)
    places = rng.places(len(sentences), len(pieces) + len(sentences))
    return "".join(_mixed(pieces, dict(zip(places, sentences, strict=True)))).rstrip()


def _mixed(pieces: list[str], hidden: dict[int, str]) -> list[str]:
    """`pieces` in their order, with `hidden` at the places in the result that are its keys."""
    mixed: list[str] = []
    start = 0
    for before, place in enumerate(sorted(hidden)):
        mixed += pieces[start : place - before]
        mixed.append(hidden[place] + " ")
        start = place - before
    return mixed + pieces[start:]


# Needles: facts that stand somewhere in a long text, among others that look the same.
#
# A single needle is one fact. Of several needles, an answer has to name all: nothing in the text
# says how many there are.

# One fact of the same form, about something else, in about this many characters; at least 2.
_BESIDES = 5_000
_MAX_BESIDES = 400
_MAX_NEEDLES = 12


def single_needle(size: int, seed: int) -> GeneratedTask:
    """The code of one thing in one town."""
    rng = SeededRandom("single_needle", size, seed)
    thing, town = _thing(rng), rng.pick(TOWNS)
    answer = _code(rng)
    facts = {(thing, town): answer}
    # The nearest misses: the thing elsewhere, and another thing there.
    facts.setdefault((thing, _other(rng, TOWNS, town)), _code(rng))
    while len(facts) < 1 + _besides(size):
        there = town if len(facts) == 2 else rng.pick(TOWNS)
        facts.setdefault((_thing(rng), there), _code(rng))
    sentences = [f"The code of the {what} in {at} is {code}." for (what, at), code in facts.items()]
    return GeneratedTask(
        id=f"single_needle-{size}-{seed}",
        kind="single_needle",
        question=f"What is the code of the {thing} in {town}? Answer with the code alone.",
        context=hide_lines(rng, sentences, size),
        answer=answer,
        size=size,
        seed=seed,
        rubric="exact",
    )


def multi_needle(size: int, seed: int) -> GeneratedTask:
    """All who hold a key to one room."""
    rng = SeededRandom("multi_needle", size, seed)
    rooms = [f"{quality} {room}" for quality in QUALITIES for room in ROOMS]
    room, *others = rng.some(rooms, 41)
    max_needles = min(_MAX_NEEDLES, 2 + size // 1_000)
    holders = _people(rng, 2 + rng.below(max_needles - 1))
    sentences = [_holds(person, room) for person in holders]
    sentences += [_holds(each, rng.pick(others)) for each in _people(rng, _besides(size))]
    return GeneratedTask(
        id=f"multi_needle-{size}-{seed}",
        kind="multi_needle",
        question=f"Who holds a key to the {room}? Answer with a list of the full names of all.",
        context=hide_lines(rng, sentences, size),
        answer=[*sorted(holders)],
        size=size,
        seed=seed,
        rubric="list",
    )


def _holds(person: str, room: str) -> str:
    return f"{person} holds a key to the {room}."


def _besides(size: int) -> int:
    return max(2, min(_MAX_BESIDES, size // _BESIDES))


def _thing(rng: SeededRandom) -> str:
    return f"{rng.pick(QUALITIES)} {rng.pick(THINGS)}"


def _other(rng: SeededRandom, items: list[str], excluded: str) -> str:
    return rng.pick([item for item in items if item != excluded])


def _code(rng: SeededRandom) -> str:
    letters = "".join(rng.pick("BCDFGHJKLMNPQRSTVWXZ") for _ in range(3))
    return f"{letters}-{10_000 + rng.below(90_000)}"


def _people(rng: SeededRandom, count: int) -> list[str]:
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    return rng.some(names, count)


# Lines of a register: date, user, label, text. Questions are about all of them at once.
#
# The text means nothing, and sometimes names a label that is not the line's: who searches for
# words instead of reading the column counts wrong.

HEADER = "date | user | label | text\n"
_LINE = 100  # characters, about: for how many lines, and so users, a size has room
_YEARS = 3
_FIRST_YEAR = 2031
_DAYS = 28  # of each month: dates need not be dense


@dataclass(frozen=True, slots=True)
class Register:
    """A text of such lines, and how many of them each user has with each label."""

    text: str
    users: tuple[int, ...]
    counts: Counter[tuple[int, str]]

    def of_label(self, label: str) -> int:
        """How many lines have `label`."""
        return sum(self.counts[user, label] for user in self.users)


def users(
    rng: SeededRandom, size: int, lines_each: int, min_users: int, max_users: int
) -> tuple[int, ...]:
    """Numbers of users for a register of `size` characters, about `lines_each` lines for each."""
    count = max(min_users, min(max_users, size // (_LINE * lines_each)))
    return tuple(10_000 + place for place in rng.places(count, 90_000))


def register(
    rng: SeededRandom,
    size: int,
    users: tuple[int, ...],
    label_of: Callable[[int], str],
    first: Sequence[tuple[int, str]] = (),
) -> Register:
    """A register of at most `size` characters; `label_of` gives the label of a user's next line.

    Lines of the users and labels in `first` are in it whatever else is.
    """
    lines = [HEADER]
    counts: Counter[tuple[int, str]] = Counter()
    left = size - len(HEADER)
    user_ids = list(first)
    while True:
        user, label = user_ids.pop() if user_ids else _next(rng, users, label_of)
        # The date of this line follows from the share of the text that is written.
        line = f"{_date(1 - left / size)} | user {user} | {label} | {_text(rng, label)}\n"
        left -= len(line)
        if left < 0:
            return Register("".join(lines), users, counts)
        lines.append(line)
        counts[user, label] += 1


def _next(
    rng: SeededRandom, users: tuple[int, ...], label_of: Callable[[int], str]
) -> tuple[int, str]:
    user = rng.pick(users)
    return user, label_of(user)


def _date(progress: float) -> str:
    day = int(progress * _YEARS * len(MONTHS) * _DAYS)
    month, day = divmod(day, _DAYS)
    year, month = divmod(month, len(MONTHS))
    return f"{day + 1:02} {MONTHS[month]} {_FIRST_YEAR + year}"


def _text(rng: SeededRandom, label: str) -> str:
    if rng.below(8):
        return filler_sentence(rng)
    return f"{filler_sentence(rng)} First noted as {rng.pick(LABELS)}."


# Aggregation: questions whose answer takes every line of a register.
#
# After the tasks of OOLONG (arXiv 2511.02817), with labels that are written down, so that an
# answer is exact. Made anew: nothing of its text is used.

QuestionAndAnswer: TypeAlias = "tuple[str, JSON]"

_TIES = "If several are equal, the first of them by alphabet."


def aggregation(size: int, seed: int) -> GeneratedTask:
    """One of `QUESTIONS` about a register."""
    rng = SeededRandom("aggregation", size, seed)
    # Labels differ in frequency, or every answer about it would hang on a handful of lines.
    slots = [label for label in LABELS for _ in range(3 + rng.below(5))]
    user_ids = users(rng, size, lines_each=10, min_users=3, max_users=200)
    lines = register(rng, size, user_ids, lambda _: rng.pick(slots))
    question, answer = rng.pick(QUESTIONS)(rng, lines)
    return GeneratedTask(
        id=f"aggregation-{size}-{seed}",
        kind="aggregation",
        question=question,
        context=lines.text,
        answer=answer,
        size=size,
        seed=seed,
        rubric="exact",
    )


def _most_frequent(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = min(LABELS, key=lambda label: (-lines.of_label(label), label))
    return f"Which label has the most lines? {_TIES} Answer with the label alone.", label


def _least_frequent(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    present = [label for label in LABELS if lines.of_label(label)]
    label = min(present, key=lambda label: (lines.of_label(label), label))
    return (
        f"Of the labels that occur, which has the fewest lines? {_TIES} "
        "Answer with the label alone."
    ), label


def _of_user(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    user, label = rng.pick(sorted(lines.counts))
    question = f"How many lines of user {user} have the label {label}? Answer with the number."
    return question, lines.counts[user, label]


def _of_label(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = rng.pick(LABELS)
    return (
        f"How many lines have the label {label}? Answer with the number.",
        lines.of_label(label),
    )


def _compared(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    one, other = rng.some(LABELS, 2)
    difference = lines.of_label(one) - lines.of_label(other)
    answer = "more" if difference > 0 else "fewer" if difference < 0 else "equal"
    return (
        f"Does the label {one} have more lines than the label {other}, fewer, or an equal number? "
        'Answer "more", "fewer" or "equal".'
    ), answer


def _busiest(rng: SeededRandom, lines: Register) -> QuestionAndAnswer:
    label = rng.pick(LABELS)
    present = {user for user, _ in lines.counts}
    user = min(present, key=lambda user: (-lines.counts[user, label], user))
    return (
        f"Which of the users in the register has the most lines with the label {label}? If several "
        "are equal, the one with the lowest number. Answer with the user's number."
    ), user


QUESTIONS: tuple[Callable[[SeededRandom, Register], QuestionAndAnswer], ...] = (
    _most_frequent,
    _least_frequent,
    _of_user,
    _of_label,
    _compared,
    _busiest,
)


# Pairs: all pairs of users for which something holds, which takes looking at each with each.
#
# After OOLONG-Pairs of the paper on recursive language models (arXiv 2512.24601), made anew. How
# many pairs there are does not grow with the size of the context: users are at most 40, and write
# under a few labels each.

_INTRODUCTION = "List all pairs of different users for which this holds: "
_FORM = (
    " Answer with a list of pairs [a, b] of the users' numbers, the lower number first in each; "
    "no pair twice."
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on two users, in words and as a symmetric function."""

    text: str
    satisfies: Callable[[int, int], bool]


def pairs(size: int, seed: int) -> GeneratedTask:
    """One of `CONDITIONS` about the users of a register."""
    rng = SeededRandom("pairs", size, seed)
    user_ids = users(rng, size, lines_each=4, min_users=4, max_users=40)
    common = rng.pick(LABELS)
    labels = {user: rng.some(LABELS, 1 + rng.below(3)) for user in user_ids}
    # Two users with a label in common, so that no answer is empty.
    first = [(user, common) for user in user_ids[:2]]
    lines = register(rng, size, user_ids, lambda user: rng.pick(labels[user]), first)
    condition = rng.pick(CONDITIONS)(rng, lines)
    found = [pair for pair in combinations(sorted(user_ids), 2) if condition.satisfies(*pair)]
    return GeneratedTask(
        id=f"pairs-{size}-{seed}",
        kind="pairs",
        question=_INTRODUCTION + condition.text + _FORM,
        context=lines.text,
        answer=[[*pair] for pair in found],
        size=size,
        seed=seed,
        rubric="list",
    )


def _both(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    return Condition(
        f"both users have at least one line with the label {label}.",
        lambda one, other: min(lines.counts[one, label], lines.counts[other, label]) > 0,
    )


def _both_often(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    counts = sorted((lines.counts[user, label] for user in lines.users), reverse=True)
    # As many as the third most have, so that some users with the label are not enough.
    least = max(1, counts[2], counts[len(counts) // 8]) if counts[2] else counts[1]
    return Condition(
        f"both users have at least {least} lines with the label {label}.",
        lambda one, other: min(lines.counts[one, label], lines.counts[other, label]) >= least,
    )


def _one_and_other(rng: SeededRandom, lines: Register) -> Condition:
    label = _label_of_two(rng, lines)
    # Another label that a user has: with the two users of the first, there is a pair.
    second = rng.pick(sorted({each for _, each in lines.counts if each != label} or {label}))

    def holds(one: int, other: int) -> bool:
        counts = lines.counts
        return bool(
            (counts[one, label] and counts[other, second])
            or (counts[other, label] and counts[one, second])
        )

    return Condition(
        f"one of the users has at least one line with the label {label}, and the other has at "
        f"least one line with the label {second}.",
        holds,
    )


def _label_of_two(rng: SeededRandom, lines: Register) -> str:
    """A label that at least two users have."""
    owners = {label: sum((u, label) in lines.counts for u in lines.users) for label in LABELS}
    return rng.pick([label for label, count in owners.items() if count >= 2])


Asking: TypeAlias = Callable[[SeededRandom, Register], Condition]
CONDITIONS: tuple[Asking, ...] = (_both, _both_often, _one_and_other)


# The kinds of tasks, and how one is made.

KINDS: Mapping[str, Callable[[int, int], GeneratedTask]] = MappingProxyType(
    {
        "single_needle": single_needle,
        "multi_needle": multi_needle,
        "aggregation": aggregation,
        "pairs": pairs,
    }
)


def kind_named(text: str) -> str:
    """Return the name of a kind that is written with "_" or with "-".

    Raises:
        TypeError: `text` is not text.
        ValueError: there is no such kind.
    """
    if not isinstance(text, str):
        raise TypeError(f"kind must be a str, not {type(text).__name__}")
    name = text.replace("-", "_")
    if name not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {text!r}")
    return name


@set_module("repl_env.tasks")
def make_task(kind: str, size: int, seed: int) -> GeneratedTask:
    """Return the task of this `kind`, with a context of at most `size` characters.

    The same three arguments always make the same task. A kind may be written with "-" for "_".

    Raises:
        TypeError, ValueError: naming the argument.
    """
    name_of_kind = kind_named(kind)
    for name, value in (("size", size), ("seed", seed)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ValueError(f"size must be from {MIN_SIZE} to {MAX_SIZE} characters, not {size}")
    return KINDS[name_of_kind](size, seed)
