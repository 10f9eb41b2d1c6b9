"""Files of the workspace go back with the state, up to a budget, and what did not is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from repl_sandbox import Limits, Sandbox, Session
from repl_sandbox.worker import snapshots

TREE = (
    "import os, stat\n"
    "def tree():\n"
    "    found = {}\n"
    "    for folder, folders, files in os.walk('.'):\n"
    "        for name in folders + files:\n"
    "            path = os.path.join(folder, name)\n"
    "            mode = os.lstat(path).st_mode\n"
    "            if stat.S_ISLNK(mode): what = os.readlink(path)\n"
    "            elif stat.S_ISREG(mode): what = open(path, 'rb').read()\n"
    "            else: what = None\n"
    "            found[path] = (oct(mode), what)\n"
    "    return found\n"
    "os.makedirs('a/b/c'); os.mkdir('empty')\n"
    "for path in ('top', 'a/one', 'a/b/c/deep', '\\udc80'):\n"
    "    with open(path, 'w') as file: file.write(ascii(path))\n"
    "os.symlink('top', 'link'); os.symlink('nowhere', 'dangling'); os.chmod('a/one', 0o440)\n"
    "os.chmod('a/b', 0o500)\n"
    "def fifo(name):\n"
    "    try: os.mkfifo(name); print('made', flush=True)\n"
    "    except OSError as error: print(error.strerror, flush=True)\n"
    "before = tree()\n"
)


@pytest.mark.parametrize(
    "spoil",
    [
        "pass",
        "open('top', 'w').close()",
        "open('top', 'a').write('more')",
        "os.unlink('top')",
        "os.rename('top', 'bottom')",
        "os.rename('a', 'z')",
        "os.chmod('a/one', 0o600)",
        "os.chmod('a', 0o700)",
        "os.chmod('a/b', 0o700); os.unlink('a/b/c/deep'); os.rmdir('a/b/c')",
        "os.unlink('link'); os.symlink('a/one', 'link')",
        "os.unlink('link'); os.mkdir('link')",
        "os.unlink('top'); os.symlink('/etc/passwd', 'top')",
        "os.unlink('top'); os.mkdir('top'); open('top/x', 'w').close()",
        "os.unlink('top'); fifo('top')",
        "fifo('fifo')",
        "os.makedirs('new/er/est'); open('new/er/est/x', 'w').close()",
        "os.rmdir('empty'); open('empty', 'w').close()",
        "os.link('top', 'hard')",
        "os.chmod('a/b', 0o700); import shutil; shutil.rmtree('a'); os.rmdir('empty')\n"
        "for p in os.listdir(): os.unlink(p)",
        "os.chmod('top', 0)",
        "os.chmod('a', 0)",
        "os.chmod('.', 0)",
        "os.chmod('a/b', 0o500); os.unlink('a/one'); os.chmod('a', 0o500)",
        "os.utime('top', (1, 1))",
    ],
)
def test_files_are_restored_to_before_the_cell_that_died(copied: Session, spoil: str) -> None:
    copied.run(TREE)
    outcome = copied.run(f"{spoil}\nos._exit(1)")
    assert (outcome.state, outcome.lost) == ("rolled_back", ())
    if "fifo" in spoil:  # elsewhere code makes none
        assert outcome.stdout == "Operation not permitted\n"
    outcome = copied.run("tree() == before")
    assert outcome.value == "True", copied.run("before, tree()")


@pytest.mark.parametrize(
    "spoil",
    [
        "os.unlink('b'); os.link('a', 'b')",
        "os.unlink('a'); os.link('b', 'a')",
        "os.unlink('b'); os.link('one', 'b'); open('one', 'w').write('spoilt')",
        "os.unlink('a'); os.link('two', 'a'); open('two', 'a').write('spoilt')",
        "os.unlink('two'); open('two', 'w').write('spoilt')",
        "os.unlink('one'); os.rename('two', 'one')",
        "os.unlink('one'); os.unlink('two')",
    ],
)
def test_hard_links_of_one_file_are_restored_as_links(copied: Session, spoil: str) -> None:
    """Content restored under one name is never that of another file."""
    copied.run(
        "import os\nfor name in ('a', 'b', 'one'):\n    open(name, 'w').write(name)\n"
        "os.link('one', 'two')"
    )
    outcome = copied.run(f"{spoil}\nos._exit(1)")
    assert (outcome.state, outcome.lost) == ("rolled_back", ())
    names = "('a', 'b', 'one', 'two')"
    assert copied.run(f"[open(n).read() for n in {names}]").value == "['a', 'b', 'one', 'one']"
    assert copied.run(f"[os.stat(n).st_nlink for n in {names}]").value == "[1, 1, 2, 2]"


MAPPED = """
import mmap, os, time
file = open("mapped", "w+b")
file.write(b"0" * 5000)
file.flush()
mapped = mmap.mmap(file.fileno(), 0)
def settle():
    while time.time_ns() - os.stat("mapped").st_ctime_ns < 10**8: time.sleep(0.01)
settle()
"""


@pytest.mark.parametrize("spoil", ["mapped[:3] = b'two'", "open('other', 'w').close()"])
def test_a_file_written_by_a_mapping_is_as_after_the_last_cell(copied: Session, spoil: str) -> None:
    """In tmpfs this changes no timestamp."""
    copied.run(MAPPED)
    copied.run("os._exit(1)")  # the surviving process may know less of itself
    copied.run("mapped[:3] = b'one'\nsettle()")
    outcome = copied.run(f"{spoil}\nos._exit(1)")
    assert (outcome.state, outcome.lost) == ("rolled_back", ())
    assert copied.run("mapped[:4], open('mapped', 'rb').read(4)").value == "(b'one0', b'one0')"


def test_files_that_did_not_change_are_not_touched(copied: Session) -> None:
    # The access time is excluded, because storing a file may change it. A file changed just now may
    # be changed again with the same timestamps, and is written again.
    look = "(s := os.stat('same')).st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns"
    wait = "while time.time_ns() - os.stat('same').st_ctime_ns < 10**8: time.sleep(0.01)"
    copied.run(f"import os, time\nopen('same', 'w').close()\nbefore = {look}\n{wait}")
    copied.run("open('other', 'w').close(); os._exit(1)")
    assert copied.run(f"({look}) == before").value == "True"


def test_coarse_file_timestamps_hide_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes between two ticks have one time of change, however long a tick takes."""
    (tmp_path / "f").write_text("one")
    last_tick = (tmp_path / "f").stat().st_ctime_ns
    clock = SimpleNamespace(time_ns=lambda: last_tick + 10**9, clock_gettime_ns=lambda _: last_tick)
    monkeypatch.setattr(snapshots, "time", clock)
    seen = snapshots.FileChanges(str(tmp_path))
    assert [seen.changed(0) for _ in range(3)] == [True] * 3
    last_tick += 1
    assert [seen.changed(0) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize("size", ["(64 << 20) + 1", "100 << 20"])
def test_a_changed_file_over_the_budget_is_named(size: str) -> None:
    limits = Limits(workspace="256MiB", file_size="256MiB", memory="1GiB")
    with (
        Sandbox(isolation="jailed", limits=limits) as sandbox,
        sandbox.session() as session,
    ):
        session.run(f"import os\nos.truncate(os.open('big', os.O_CREAT | os.O_WRONLY), {size})")
        session.run("open('small', 'w').write('kept')")
        assert session.run("open('small', 'w').close(); os._exit(1)").lost == ()
        assert session.run("open('small').read()").value == "'kept'"
        outcome = session.run("open('big', 'w').close(); os._exit(1)")
        assert outcome.lost == ("file 'big': its content was not kept",)
        assert session.run("os.path.getsize('big')").value == "0"


def test_files_beyond_the_budget_are_named() -> None:
    limits = Limits(workspace="256MiB", file_size="256MiB", memory="1GiB")
    with (
        Sandbox(isolation="jailed", limits=limits) as sandbox,
        sandbox.session() as session,
    ):
        session.run(
            "import os\nnames = [f'f{n}' for n in range(5)]\n"
            "for name in names:\n    with open(name, 'wb') as f: f.write(bytes(20 << 20))"
        )
        outcome = session.run("for name in names: open(name, 'w').close()\nos._exit(1)")
        assert outcome.state == "rolled_back"
        assert len(outcome.lost) == 2
        sizes = session.run("sorted(os.path.getsize(name) for name in names)").value
        assert sizes == str([0, 0, 20 << 20, 20 << 20, 20 << 20])


def test_more_files_than_the_limit_are_left_unchanged_and_reported(copied: Session) -> None:
    copied.run("import os\nopen('first', 'w').write('kept')")
    # On a disk that others use it takes its time, here and below.
    assert copied.run("for n in range(10_001): os.mkdir(f'd{n}')", timeout=120).ok
    outcome = copied.run("open('first', 'w').write('new'); os._exit(1)")
    assert outcome.state == "rolled_back"
    assert any("10,000" in name for name in outcome.lost), outcome.lost
    assert copied.run("open('first').read()").value == "'new'"
    # Once they are fewer again, files go back again.
    fewer = "for n in range(10_001): os.rmdir(f'd{n}')\nopen('first', 'w').write('third')"
    assert copied.run(fewer, timeout=120).ok
    assert copied.run("open('first', 'w').close(); os._exit(1)").lost == ()
    assert copied.run("open('first').read()").value == "'third'"


def test_temporary_files_are_not_rolled_back(copied: Session) -> None:
    copied.run("import os, tempfile\npath = os.path.join(tempfile.mkdtemp(), 'x')")
    copied.run("open(path, 'w').close(); os._exit(1)")
    assert copied.run("os.path.exists(path)").value == "True"


def test_files_put_between_cells_survive_a_death(copied: Session) -> None:
    copied.run("import os\nx = 1")
    copied.files.put("folder/given", b"1")
    copied.files.put("folder/given", b"22")
    assert copied.run("os.unlink('folder/given'); os._exit(1)").lost == ()
    assert copied.files.get("folder/given") == b"22"


def test_files_from_before_the_first_cell_are_kept_over_many_cells(
    open_python: str,
) -> None:
    with Sandbox(isolation="confined", python=open_python, history=3) as sandbox:
        with sandbox.session() as session:
            session.files.put("given", "1")
            for number in range(6):
                session.run(f"open('made {number}', 'w').close()")
            session.rollback(3)
            session.rollback(3)  # to an empty namespace, which needs no snapshot

            assert [entry.path for entry in session.files.list()] == ["given"]
