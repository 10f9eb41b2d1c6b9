"""The contents of a branch: namespace, files, outputs, random numbers."""

from __future__ import annotations

import pytest

from repl_sandbox import Sandbox, Session
from repl_sandbox.types import Answer
from tests.sandbox.session.branches.branching import CRASH
from tests.sandbox.shown_value import value


def test_a_branch_has_the_namespace_and_runs_independently(session: Session) -> None:
    session.run(
        "import json\nn, rows = 1, [1]\ndef add(k):\n    global n\n    n += k\n    return n"
    )
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "rows.append(2)\n(add(10), json.dumps(rows))") == "(11, '[1, 2]')"
        assert value(session, "(add(1), rows)") == "(2, [1])"
        assert value(branch, "(n, rows, __name__)") == "(11, [1, 2], '__main__')"


def test_hard_links_of_one_file_stay_links_in_a_branch(session: Session) -> None:
    session.run("import os\nos.mkdir('in')\nopen('a', 'w').close()\nos.link('a', 'in/b')")
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "open('a', 'w').write('new')\nopen('in/b').read()") == "'new'"
        assert value(branch, "os.stat('a').st_nlink") == "2"
        assert value(session, "open('a').read()") == "''"


def test_a_branch_with_open_files_recovers(session: Session) -> None:
    session.run("held = [open(str(n), 'w+') for n in range(20)]\nx = 1")
    with session.branch() as branch:
        assert branch.run("open('new', 'w').close()\nx = 2").stderr == ""
        assert value(branch, "[file.read() for file in held] == [''] * 20") == "True"
        outcome = branch.run("import os\nos._exit(1)")
        assert (outcome.state, outcome.lost) == ("rolled_back", ())
        assert value(branch, "x") == "2"


def test_a_branch_of_a_branch_has_the_files_that_are_open(session: Session) -> None:
    """No descriptor of the engine has their numbers."""
    session.run("held = [open(str(n), 'w+') for n in range(20)]")
    with session.branch() as branch, branch.branch() as inner:
        assert (branch.lost, inner.lost) == ((), ())
        assert value(inner, "[file.write('x') for file in held] == [1] * 20") == "True"
        assert value(inner, "[file.close() for file in held] == [None] * 20") == "True"


def test_a_branch_has_what_was_set_last_and_the_outputs_so_far(session: Session) -> None:
    session.run("print('before')")
    session.set("late", "x" * 100_000)
    with session.branch() as branch:
        assert branch.get("late") == "x" * 100_000
        branch.run("print('branch')")
        session.run("print('original')")
        assert value(branch, "(str(_out[1]), str(_out[2]))") == r"('before\n', 'branch\n')"
        assert value(session, "(str(_out[1]), str(_out[2]))") == r"('before\n', 'original\n')"


def test_a_session_that_ran_nothing_can_branch(session: Session) -> None:
    with session.branch() as branch:
        assert value(branch, "6 * 7") == "42"
    assert value(session, "6 * 7") == "42"


def test_a_session_whose_standard_streams_are_closed_can_branch(session: Session) -> None:
    """Descriptors given to the branch must not occupy the numbers of its own streams."""
    session.run("import os\nfor fd in range(3): os.close(fd)\nx = 1")
    with session.branch() as branch:
        outcome = branch.run("print('told')\nx")
        assert (outcome.stdout, outcome.value) == ("told\n", "1")


def test_random_numbers_go_on_or_begin_at_a_seed(session: Session) -> None:
    session.run("import random\nrandom.seed(5)\nrandom.random()")
    with session.branch() as same, session.branch(seed=7) as seeded, session.branch(seed=7) as twin:
        first = value(session, "random.random()")
        assert value(same, "random.random()") == first
        assert value(seeded, "random.random()") == value(twin, "random.random()") != first


def test_a_branch_has_its_own_files(session: Session) -> None:
    session.run(
        "import os\nos.makedirs('sub/deep')\nopen('sub/f', 'w').write('old')\nos.chdir('sub')\n"
        "os.symlink('f', 'link')\nlog = open('log', 'a+')\nlog.write('one')\nlog.flush()"
    )
    with session.branch() as branch:
        assert value(branch, "(open('f').read(), open('link').read())") == "('old', 'old')"
        branch.run("open('f', 'w').write('new')\nlog.write(' two')\nlog.flush()")
        session.run("log.write(' three')\nlog.flush()")
        assert value(branch, "(open('f').read(), open('log').read())") == "('new', 'one two')"
        assert value(session, "(open('f').read(), open('log').read())") == "('old', 'one three')"
        assert value(branch, "os.getcwd() == os.path.join(os.environ['HOME'], 'sub')") == "True"
        branch.files.put("given", b"1")
        assert "given" not in {file.path for file in session.files.list()}
        assert "sub/f" in {file.path for file in branch.files.list()}
        assert branch.files.get("sub/f") == b"new"
        assert session.files.get("sub/f") == b"old"


@pytest.mark.parametrize(("files", "size"), [(1, 1 << 20), (1, (1 << 20) + 1), (63, 1), (70, 1)])
def test_any_number_and_size_of_files_is_copied(session: Session, files: int, size: int) -> None:
    session.run(
        "import os\nos.mkdir('d')\n"
        f"for i in range({files}): open(f'd/{{i}}', 'w').write('x' * {size})\n"
        "os.symlink('d/0', 'link')"
    )
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "len(os.listdir('d'))") == str(files)
        assert value(branch, "len(open('link').read()), os.readlink('link')") == f"({size}, 'd/0')"
        branch.run("open('d/0', 'w').close()")
    assert value(session, "len(open('link').read())") == str(size)


def test_threads_children_and_pipes_stay_and_are_named(session: Session) -> None:
    session.run(
        "import os, subprocess, threading\nheld = threading.Event()\n"
        "threading.Thread(target=held.wait, name='waits', daemon=True).start()\n"
        "child = subprocess.Popen(['/bin/sleep', '60']) if os.path.exists('/bin/sleep') else None\n"
        "ends = os.pipe()"
    )
    with session.branch() as branch:
        assert "thread 'waits'" in branch.lost
        assert sum("a pipe" in name for name in branch.lost) == 2
        assert value(branch, "threading.active_count()") == "1"
        assert value(session, "threading.active_count()") == "2"
        assert value(session, "child is None or child.poll() is None") == "True"
        branch.run(CRASH)
    assert value(session, "child is None or child.poll() is None") == "True"


def test_children_alone_stay_and_are_named(session: Session) -> None:
    started = session.run(
        "import os, subprocess\nchild = subprocess.Popen(['/bin/sleep', '60'])"
        " if os.path.exists('/bin/sleep') else None\nchild and child.pid"
    )
    with session.branch() as branch:
        named = (f"child process {started.value}, which was ended",) if started.value else ()
        assert branch.lost == named
        assert value(branch, "child and child.poll()") == ("-9" if started.value else None)
    assert value(session, "child is None or child.poll() is None") == "True"


def test_branches_have_separate_host_functions_and_answers(sandbox: Sandbox) -> None:
    taken: list[tuple[str, object]] = []

    def keep(who: str, answer: Answer) -> None:
        taken.append((who, answer.value))

    with sandbox.session(
        host={"who": lambda: "original"},
        answers="strict",
        on_answer=lambda answer: keep("original", answer),
    ) as session:
        own = {"who": lambda: "branch"}
        with (
            session.branch(host=own, on_answer=lambda answer: keep("branch", answer)) as branch,
            session.branch() as same,
        ):
            assert value(branch, "who()") == "'branch'"
            assert value(session, "who()") == value(same, "who()") == "'original'"
            branch.run("FINAL(1)")
            session.run("FINAL(2)")
        with pytest.raises(ValueError, match="who"):
            session.branch(host={"other": print})
        with pytest.raises(TypeError, match="seed"):
            session.branch(seed="x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seed"):
            session.branch(seed=1 << 63)
    assert taken == [("branch", 1), ("original", 2)]


def test_branches_of_branches(session: Session) -> None:
    session.run("path = [0]\nopen('f', 'w').write('0')")
    with session.branch() as one:
        one.run("path.append(1)\nopen('f', 'w').write('1')")
        with one.branch() as two:
            two.run("path.append(2)")
            assert value(two, "(path, open('f').read())") == "([0, 1, 2], '1')"
            one.close()
            session.run("path.append(9)")
            assert value(two, "(path, open('f').read())") == "([0, 1, 2], '1')"
    assert value(session, "(path, open('f').read())") == "([0, 9], '0')"
