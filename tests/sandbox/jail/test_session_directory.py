"""A session's own directory, whose files may vanish at any time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from repl_sandbox.jail import session_directory

SIZE = 64 << 10


def test_files_that_vanish_as_room_is_made_cost_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a branch do that ends meanwhile: its directory is below that of its original."""
    folder = tmp_path / "session"
    folder.mkdir()
    for name in ("earliest", "second", "third", "latest"):
        (folder / name).write_bytes(bytes(SIZE))
        session_directory.await_tick()
    listed, unlink, ended = os.listdir, os.unlink, []

    def end(name: str, *, dir_fd: int) -> None:
        unlink(name, dir_fd=dir_fd)
        ended.append(name)
        with suppress(FileNotFoundError):
            unlink("third", dir_fd=dir_fd)

    monkeypatch.setattr(os, "listdir", lambda place: [*listed(place), "gone"])
    monkeypatch.setattr(os, "unlink", end)
    removed = session_directory.make_room(str(folder), 2 * SIZE, ())
    monkeypatch.undo()

    assert ended == ["latest"] and removed is not None
    assert sorted(os.listdir(folder)) == ["earliest", "second"]
