"""Files with contents of users are private to their owner, for any umask and earlier mode."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_env.evaluation import ResultsError, ResultsFile
from repl_env.rlm import TrajectoryWriter

WRITERS = {
    "trajectory": lambda path: TrajectoryWriter(path, overwrite=True).close(),
    "results": lambda path: ResultsFile(path).close(),
}


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277])
def mask(request) -> Iterator[int]:
    """The process has this umask."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_new_or_existing_file_becomes_private(write, mask, tmp_path):
    new, there, link = tmp_path / "new", tmp_path / "there", tmp_path / "link"
    link.symlink_to(there)
    write(new)
    assert mode(new) == 0o600
    write(there)
    there.chmod(0o644)
    write(link)
    assert link.is_symlink()
    assert mode(there) == 0o600


def test_a_file_without_results_keeps_its_mode(tmp_path):
    path = tmp_path / "other"
    path.write_text("no results\n")
    path.chmod(0o644)
    with pytest.raises(ResultsError):
        ResultsFile(path)
    assert mode(path) == 0o644


def test_a_device_may_be_written_to():
    before = mode(Path(os.devnull))
    WRITERS["trajectory"](os.devnull)
    assert mode(Path(os.devnull)) == before
