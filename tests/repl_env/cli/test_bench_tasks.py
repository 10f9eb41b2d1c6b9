"""`repl-env bench-tasks make`: datasets that `repl-env eval` takes, the same each time."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from repl_env.evaluation import read_dataset
from tests.repl_env.cli.calls import Call, caller


@pytest.fixture
def make(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    call = caller("bench-tasks", capsys, monkeypatch)
    return lambda out, *more: call("make", "--out", str(out), "--size", "2k", *more)


def test_a_dataset_has_the_kinds_in_turn_and_can_be_read(make: Call, tmp_path: Path) -> None:
    done = make(tmp_path / "d", "--n", "10", "--kind", "pairs, single-needle, single_needle")
    dataset = read_dataset(tmp_path / "d")

    assert done.returncode == 0, done.stderr
    assert [entry.kind for entry in dataset.entries] == ["pairs", "single_needle"] * 5
    assert 1_800 < len(dataset.load(dataset.entries[0]).context) <= 2_000


def test_the_same_options_make_the_same_bytes(make: Call, tmp_path: Path) -> None:
    reports = [
        json.loads(make(tmp_path / name, "--n", "4", "--seed", seed, "--json").stdout)
        for name, seed in (("a", "5"), ("b", "5"), ("c", "6"))
    ]
    digests = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "abc"]

    assert [report["sha256"] for report in reports] == digests
    assert digests[0] == digests[1] != digests[2]
    assert reports[0]["kinds"] == ["single_needle", "multi_needle", "aggregation", "pairs"]


def test_the_report_names_the_kinds_that_were_written(make: Call, tmp_path: Path) -> None:
    told = make(tmp_path / "a", "--n", "2").stdout
    report = json.loads(make(tmp_path / "b", "--n", "2", "--json").stdout)

    assert told == f"{tmp_path / 'a'}: 2 tasks of 2,000 characters (single_needle, multi_needle)\n"
    assert report["kinds"] == ["single_needle", "multi_needle"]


def test_contexts_may_be_files_of_their_own(make: Call, tmp_path: Path) -> None:
    for name, more in (("one", ()), ("two", ("--context-files", str(tmp_path / "texts")))):
        assert make(tmp_path / name, "--n", "4", *more).returncode == 0
    one, two = (read_dataset(tmp_path / name) for name in ("one", "two"))

    assert len(list((tmp_path / "texts").iterdir())) == 4
    for ours, theirs in zip(one.entries, two.entries, strict=True):
        assert one.load(ours) == two.load(theirs)


def test_a_file_that_is_there_is_kept_unless_forced(make: Call, tmp_path: Path) -> None:
    out = tmp_path / "d"
    out.write_text("mine")
    refused = make(out, "--n", "1")

    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert out.read_text() == "mine"
    assert make(out, "--n", "1", "--force").returncode == 0
    assert len(read_dataset(out).entries) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kind", "haystack"), "one of single_needle, multi_needle"),
        (("--kind", " , "), "names no kind"),
        (("--size", "ten"), "is no size"),
        (("--size", "10"), "1,000 to 1,000,000,000"),
        (("--size", "5T"), "is no size"),
        (("--n", "0"), "--n"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_a_wrong_option_is_named(
    make: Call, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = make(tmp_path / "d", *arguments)

    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "d").exists()


def test_force_replaces_files_and_the_targets_of_links(make: Call, tmp_path: Path) -> None:
    link, file, pipe = (tmp_path / name for name in ("link", "file", "pipe"))
    link.symlink_to(file)
    file.write_text("mine")
    os.mkfifo(pipe)

    assert make(link, "--n", "1", "--force").returncode == 0
    assert link.is_symlink() and len(read_dataset(file).entries) == 1
    refused = make(pipe, "--n", "1", "--force")
    assert (refused.returncode, refused.stderr) == (1, f"{pipe}: Not a regular file\n")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("out", "more", "says"),
    [
        ("absent/d", (), "'--out': {tmp}/absent/d: No such file or directory"),
        ("file/d", (), "'--out': {tmp}/file/d: Not a directory"),
        (".", ("--force",), "'--out': {tmp}: Is a directory"),
        ("d", ("--context-files", "{tmp}/file/d"), "'--context-files': {tmp}/file/d: Not a"),
        ("d", ("--context-files", "{tmp}/file"), "'--context-files': {tmp}/file: File exists"),
    ],
)
def test_an_unwritable_folder_is_named_in_the_error(
    make: Call, tmp_path: Path, out: str, more: tuple[str, ...], says: str
) -> None:
    (tmp_path / "file").write_text("mine")
    done = make(tmp_path / out, "--n", "1", *(each.format(tmp=tmp_path) for each in more))

    assert done.returncode == 2
    assert says.format(tmp=tmp_path) in " ".join(done.stderr.replace("│", " ").split())
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
