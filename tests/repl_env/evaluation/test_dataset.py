"""A dataset is checked completely before anything runs, and errors name the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_env.evaluation import DatasetError, read_dataset
from repl_env.rlm import TaskNote
from repl_env.rlm.trajectory_events import task_note

GOOD = {"id": "a", "question": "How many?", "context": "x x", "answer": 2}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "tasks.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def without(name: str) -> dict:
    return {key: value for key, value in GOOD.items() if key != name}


def test_tasks_are_loaded_in_their_order(tmp_path: Path) -> None:
    other = {**GOOD, "id": "b", "context": {"k": [1]}, "rubric": "json", "metadata": {"kind": "n"}}
    dataset = read_dataset(written(tmp_path, GOOD, "", other, "  "))
    first, second = (dataset.load(entry) for entry in dataset.entries)

    assert (first.id, first.question, first.context, first.answer) == ("a", "How many?", "x x", 2)
    assert (second.context, second.rubric, second.metadata) == ({"k": [1]}, "json", {"kind": "n"})
    assert [entry.kind for entry in dataset.entries] == [None, "n"]


def test_each_epoch_has_all_tasks_under_their_own_ids(tmp_path: Path) -> None:
    dataset = read_dataset(written(tmp_path, GOOD, {**GOOD, "id": "b"}), epochs=3)
    ids = [(entry.id, entry.epoch) for entry in dataset.entries]
    assert ids == [("a", 1), ("b", 1), ("a#2", 2), ("b#2", 2), ("a#3", 3), ("b#3", 3)]
    last = dataset.load(dataset.entries[-1])
    assert (last.id, last.question) == ("b#3", "How many?")
    assert [dataset.load(entry).facts["group_id"] for entry in dataset.entries] == ["a", "b"] * 3
    once = read_dataset(written(tmp_path, GOOD))
    assert "group_id" not in once.load(once.entries[0]).facts

    clashing = written(tmp_path, GOOD, {**GOOD, "id": "a#2"})
    assert len(read_dataset(clashing).entries) == 2
    with pytest.raises(DatasetError, match="\"id\" 'a#2' is that of 'a' in epoch 2, too"):
        read_dataset(clashing, epochs=2)
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        read_dataset(clashing, epochs=0)


def test_the_facts_of_a_task_are_those_of_its_metadata(tmp_path: Path) -> None:
    told = {"split": "test", "difficulty": 3, "group": ["odd"], "group_id": "g1", "name": "x"}
    dataset = read_dataset(written(tmp_path, {**GOOD, "metadata": told}))
    (entry,) = dataset.entries

    assert entry.task == TaskNote(name="a", split="test", difficulty="3", group_id="g1")
    assert task_note(dataset.load(entry)) == entry.task


def test_a_context_may_be_a_file_beside_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_bytes("größer\r\n".encode())
    dataset = read_dataset(written(tmp_path, {**without("context"), "context_file": "long.txt"}))

    assert dataset.load(dataset.entries[0]).context == "größer\r\n"


def test_null_means_no_context(tmp_path: Path) -> None:
    dataset = read_dataset(written(tmp_path, {**GOOD, "context": None}))

    assert dataset.load(dataset.entries[0]).context is None


def test_the_names_of_a_reset_mean_the_same(tmp_path: Path) -> None:
    names = {"id": "task_id", "question": "task_prompt", "answer": "expected_answer"}
    renamed = {names.get(name, name): value for name, value in GOOD.items()}
    dataset = read_dataset(written(tmp_path, renamed))
    task = dataset.load(dataset.entries[0])
    assert (task.id, task.question, task.answer) == (GOOD["id"], GOOD["question"], GOOD["answer"])


def test_a_limit_stops_reading_the_dataset(tmp_path: Path) -> None:
    assert len(read_dataset(written(tmp_path, GOOD, "{broken"), limit=1).entries) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "b", "question"', "not JSON"),
        ("[1]", "an object is wanted, not list"),
        ('{"id": NaN}', "NaN is not JSON"),
        (without("id"), '"id" is missing'),
        ({**GOOD, "id": 7}, '"id" must be text'),
        ({**GOOD, "id": ""}, '"id" must be text'),
        (without("question"), '"question" is missing'),
        (without("answer"), '"answer" is missing'),
        ({**GOOD, "answer": None}, '"answer" is missing'),
        ({**GOOD, "expected_answer": 1}, '"answer" and "expected_answer" are one field'),
        (without("context"), 'one of "context" and "context_file"'),
        ({**GOOD, "context_file": "x"}, 'one of "context" and "context_file"'),
        ({**without("context"), "context_file": 3}, '"context_file" must be a path'),
        ({**without("context"), "context_file": "none.txt"}, "none.txt: No such file"),
        ({**GOOD, "rubric": "os:system"}, '"rubric" must be one of exact, fuzzy, json, list'),
        ({**GOOD, "metadata": [1]}, '"metadata" must be an object'),
        ({**GOOD, "rubirc": "list"}, '"rubirc" is no field'),
        (GOOD, "\"id\" 'a' is that of line 1 too"),
        ('{"id": "\\ud800", "question": "q", "context": "", "answer": 1}', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_line_is_reported_with_its_number(tmp_path: Path, line: object, says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        read_dataset(written(tmp_path, GOOD, "", line))

    assert "tasks.jsonl, line 3: " in str(caught.value)
    assert says in str(caught.value)


def test_invalid_utf8_is_reported_with_its_position(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')

    with pytest.raises(DatasetError, match="line 1: not UTF-8 at byte 9"):
        read_dataset(path)


def test_a_context_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG")

    with pytest.raises(DatasetError, match=r"line 1: .*image: not UTF-8"):
        read_dataset(written(tmp_path, {**without("context"), "context_file": "image"}))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_dataset_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(DatasetError, match="no task"):
        read_dataset(written(tmp_path, text))


def test_a_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"absent\.jsonl: No such file"):
        read_dataset(tmp_path / "absent.jsonl")


def test_a_dataset_that_changes_during_an_evaluation_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    dataset = read_dataset(path)
    path.write_text(path.read_text().replace("x x", "y y"))

    with pytest.raises(DatasetError, match="line 1: changed while"):
        dataset.load(dataset.entries[0])


def test_a_changed_context_file_is_another_task(tmp_path: Path) -> None:
    path = written(tmp_path, {**without("context"), "context_file": "c"})
    digests = set()
    for text in ("one", "two"):
        (tmp_path / "c").write_text(text)
        digests.add(read_dataset(path).entries[0].digest)

    assert len(digests) == 2
