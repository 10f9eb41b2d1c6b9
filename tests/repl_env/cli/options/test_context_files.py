"""Variables that files given to a command become."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from repl_env.cli.model_options import contexts_from


@pytest.mark.parametrize("name", ["list", "input", "len", "print", "ValueError"])
def test_a_file_does_not_take_the_name_of_a_builtin(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (name, "other"):
        (tmp_path / f"{file}.txt").write_text("text")
    files = [str(tmp_path / f"{file}.txt") for file in (name, "other")]
    assert set(contexts_from(files)) == {f"{name}_", "other"}
    told = capsys.readouterr().err
    assert f"is the variable {name}_, because {name} is a builtin of Python" in " ".join(
        told.split()
    )
    assert set(contexts_from([f"{name}_={files[0]}"])) == {f"{name}_"}
    with pytest.raises(typer.BadParameter, match=f"{name!r} is a builtin of Python.*{name}_="):
        contexts_from([f"{name}={files[0]}"])


def test_one_file_is_the_context_whatever_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.txt").write_text("text")
    assert set(contexts_from([str(tmp_path / "list.txt")])) == {"context"}
    assert not capsys.readouterr().err


def test_two_files_of_one_name_are_told_apart_by_the_caller(tmp_path: Path) -> None:
    for file in ("list.txt", "list_.txt"):
        (tmp_path / file).write_text("text")
    with pytest.raises(typer.BadParameter, match="there is a context 'list_' already"):
        contexts_from([str(tmp_path / "list.txt"), str(tmp_path / "list_.txt")])
