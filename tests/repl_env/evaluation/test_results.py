"""The results file: whole lines stay, half ones go, and no other file is ever touched."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_env.evaluation import Result, ResultsError, ResultsFile
from tests.repl_env.evaluation.result_files import result, written


def read(path: Path) -> list[Result]:
    file = ResultsFile(path)
    file.close()
    return list(file.earlier.values())


def test_results_are_read_when_the_file_is_opened_again(tmp_path: Path) -> None:
    results = [result("a"), result("b", None)]

    assert read(written(tmp_path / "r", *results)) == results


def test_the_last_result_of_a_task_counts(tmp_path: Path) -> None:
    written(tmp_path / "r", result("a", None), result("b"))
    written(tmp_path / "r", result("a", 0.5))

    assert [each.score for each in read(tmp_path / "r")] == [0.5, 1.0]


def test_a_truncated_file_keeps_its_complete_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "r", result("a"), result("b"))
    whole = path.read_bytes()
    ends = [at for at, byte in enumerate(whole, 1) if byte == ord("\n")]
    for cut in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        written(path, result("c"))

        kept = sum(end <= cut for end in ends[2:])
        assert [each.id for each in read(path)] == [*"ab"[:kept], "c"], cut


@pytest.fixture
def disk():
    """Sets the bytes that a file may have, and takes the limit away at the end."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size or before[0], before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_failed_write_leaves_no_partial_line(tmp_path: Path, disk: Callable[[int], None]) -> None:
    path = written(tmp_path / "r", result("a"))
    file = ResultsFile(path)
    disk(path.stat().st_size + 100)
    with pytest.raises(OSError, match="File too large"):
        file.append(result("b"))
    disk(0)
    file.append(result("c"))
    file.close()

    assert read(path) == [result("a"), result("c")]


def test_fresh_discards_earlier_results(tmp_path: Path) -> None:
    path = written(tmp_path / "r", result("a"))
    file = ResultsFile(path, fresh=True)
    file.append(result("b"))
    file.close()

    assert [each.id for each in read(path)] == ["b"]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("text", ["my notes", '{"id": "a"}\n{"id": "b"}\n', "\n"])
def test_a_file_of_another_kind_is_not_changed(tmp_path: Path, text: str, fresh: bool) -> None:
    path = tmp_path / "r"
    path.write_text(text)

    with pytest.raises(ResultsError, match="is not a file of results"):
        ResultsFile(path, fresh=fresh)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"type": "result"}',
        '{"type": "result", "id": 1, "spent": {}}',
        "",
        pytest.param("[" * 200_000, id="deep"),
    ],
)
def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path / "r", result("a"))
    with path.open("a") as file:
        file.write(f"{damage}\n")
    with path.open("a") as file:
        file.write('{"type": "begin"}\n')

    with pytest.raises(ResultsError, match="line 4 is damaged"):
        ResultsFile(path)


def test_two_evaluations_cannot_write_one_file(tmp_path: Path) -> None:
    first = ResultsFile(tmp_path / "r")
    with pytest.raises(ResultsError, match="in use"):
        ResultsFile(tmp_path / "r")
    first.close()
    ResultsFile(tmp_path / "r").close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        ResultsFile(tmp_path / "absent" / "r")


def test_a_device_is_refused() -> None:
    with pytest.raises(ResultsError, match="not a regular file"):
        ResultsFile(Path("/dev/null"))
