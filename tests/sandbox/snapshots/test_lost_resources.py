"""Resources that a snapshot cannot bring back are named, and all others are there."""

from __future__ import annotations

import pytest

from repl_sandbox import Session


def after_a_death(session: Session, code: str) -> tuple[str, ...]:
    """Return what is lost when a worker that has run `code` dies in its next cell."""
    outcome = session.run(code)
    assert outcome.ok, outcome
    outcome = session.run("import os; os._exit(1)")
    assert outcome.state == "rolled_back", outcome
    return outcome.lost


def test_without_losses_nothing_is_reported_as_lost(copied: Session) -> None:
    assert after_a_death(copied, "import json, re, threading, subprocess, asyncio\nx = 1") == ()


def test_threads_are_named(copied: Session) -> None:
    code = (
        "import threading\nwait = threading.Event().wait\n"
        "for name in ('one', 'two\\n'): threading.Thread(target=wait, name=name).start()"
    )
    assert after_a_death(copied, code) == ("thread 'one'", r"thread 'two\n'")
    assert copied.run("threading.active_count()").value == "1"


def test_of_many_losses_some_are_named_and_the_rest_counted(copied: Session) -> None:
    code = (
        "import threading\nwait = threading.Event().wait\n"
        "for _ in range(22): threading.Thread(target=wait, daemon=True).start()"
    )
    lost = after_a_death(copied, code)
    assert len(lost) == 21
    assert lost[-1] == "2 more threads"


def test_children_are_ended_and_their_objects_know(copied: Session) -> None:
    code = "import subprocess\nchild = subprocess.Popen(['sleep', '1000'])\npid = child.pid"
    (lost,) = after_a_death(copied, code)
    assert lost == f"child process {copied.get('pid')}, which was ended"
    assert copied.run("child.poll(), child.wait(), child.returncode").value == "(-9, -9, -9)"
    assert copied.run("import os; os.path.exists(f'/proc/{pid}')").value == "False"


def test_processes_of_multiprocessing_are_ended_and_their_objects_know(copied: Session) -> None:
    code = (
        "import multiprocessing, time\nfork = multiprocessing.get_context('fork')\n"
        "child = fork.Process(target=time.sleep, args=(1000,))\nchild.start()"
    )
    lost = after_a_death(copied, code)
    assert any("which was ended" in name for name in lost)
    assert copied.run("child.is_alive(), child.exitcode").value == "(False, -9)"


def test_a_child_that_ended_earlier_keeps_its_status(copied: Session) -> None:
    code = "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'exit 3'])\nchild.wait()"
    assert after_a_death(copied, code) == ()
    assert copied.run("child.returncode").value == "3"


def test_a_pool_of_threads_works_on_though_its_threads_are_gone(copied: Session) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nfrom threading import Event\n"
        "pool = ThreadPoolExecutor(2)\npool.submit(int).result()"
    )
    (lost,) = after_a_death(copied, code)
    assert lost.startswith("thread 'ThreadPoolExecutor")
    assert copied.run("list(pool.map(str, range(3)))").value == "['0', '1', '2']"
    # And where all were at work, with something that waits for one of them.
    code = (
        "from threading import Barrier\nbegun = Barrier(3)\n"
        "def hold(): begun.wait(); Event().wait()\n"
        "held = [pool.submit(hold) for _ in range(2)]\nbegun.wait()\nwaiting = pool.submit(abs, -7)"
    )
    assert len(after_a_death(copied, code)) == 2
    assert copied.run("pool.submit(abs, -8).result(), waiting.result()").value == "(8, 7)"
    with copied.branch() as branch:
        assert branch.run("pool.submit(abs, -9).result()").value == "9"


def test_tasks_end_with_their_loop_and_a_new_one_works(copied: Session) -> None:
    code = (
        "import asyncio\nasync def long(): await asyncio.sleep(1000)\n"
        "task = asyncio.ensure_future(long(), loop=asyncio.get_running_loop())\n"
        "task.set_name('patient')\nawait asyncio.sleep(0)"
    )
    lost = after_a_death(copied, code)
    assert "task 'patient'" in lost
    assert copied.run("await asyncio.sleep(0, 'slept')").value == "'slept'"
    assert copied.run("asyncio.run(asyncio.sleep(0, 'ran'))").value == "'ran'"


def test_a_loop_that_nothing_waits_on_is_no_loss(copied: Session) -> None:
    code = "import asyncio\nawait asyncio.sleep(0)"
    assert after_a_death(copied, code) == ()
    assert copied.run("await asyncio.sleep(0, 'slept')").value == "'slept'"
    assert after_a_death(copied, "asyncio.get_event_loop().close()") == ()


def test_timers_are_named(copied: Session) -> None:
    code = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000)"
    assert after_a_death(copied, code) == ("the real timer",)


def test_shared_memory_is_named(copied: Session) -> None:
    """A snapshot shares it: writes of the lost cell remain."""
    copied.run(
        "import mmap, os\nshared = mmap.mmap(-1, 10)\nown = mmap.mmap(-1, 10, mmap.MAP_PRIVATE)\n"
        "with open('file', 'w+b') as file:\n"
        "    file.write(bytes(10))\n    file.flush()\n    mapped = mmap.mmap(file.fileno(), 0)"
    )
    outcome = copied.run("shared[0] = own[0] = mapped[0] = 1\nos._exit(1)")
    if copied.isolation.tier != "confined":  # a snapshot cannot see its own mappings there
        assert outcome.lost == ("shared memory, which is not copied",)
    assert copied.run("shared[0], own[0], mapped[0]").value == "(1, 0, 0)"


def test_shared_memory_is_known_by_its_access_and_not_by_its_name(copied: Session) -> None:
    copied.run(
        "import mmap, tempfile\n"
        "def mapped(name, flags):\n"
        "    with open(f'{tempfile.gettempdir()}/{name}', 'w+b') as file:\n"
        "        file.write(bytes(10)); file.flush()\n"
        "        return mmap.mmap(file.fileno(), 0, flags)\n"
        "own = mapped('a rw-s b', mmap.MAP_PRIVATE)\n"
        "shared = mapped('c rw-s rwxs d', mmap.MAP_SHARED)\n"
    )
    outcome = copied.run("own[0] = shared[0] = 1\nimport os; os._exit(1)")
    if copied.isolation.tier != "confined":  # as above
        (name,) = outcome.lost
        assert name.startswith("shared memory '/") and "/c rw-s rwxs d'" in name, name
    assert copied.run("shared[0], own[0]").value == "(1, 0)"


def test_pipes_and_sockets_are_named(copied: Session) -> None:
    code = (
        "import os, socket\nreading, writing = os.pipe()\none, other = socket.socketpair()\n"
        "numbers = [reading, writing, one.fileno(), other.fileno()]"
    )
    lost = after_a_death(copied, code)
    pipes = copied.get("numbers")[:2]
    sockets = zip(copied.get("numbers")[2:], ("one", "other"), strict=True)
    assert sorted(lost) == sorted(
        [f"descriptor {fd}, a pipe" for fd in pipes]
        + [f"descriptor {fd}, a socket, which {held!r} holds" for fd, held in sockets]
    )
    closed = "try: os.read(reading, 1)\nexcept OSError as error: found = error.strerror\nfound"
    assert copied.run(closed).value == "'Bad file descriptor'"


@pytest.mark.parametrize("mode", ["r+", "a+", "rb+"])
def test_a_file_is_open_again_where_it_was(copied: Session, mode: str) -> None:
    copied.run("with open('f', 'w') as file: file.write('0123456789')")
    assert (
        after_a_death(copied, f"file = open('f', {mode!r})\nfile.seek(4); at = file.tell()") == ()
    )
    assert copied.run('file.tell(), str(file.read())[-7:].strip("\'")').value == "(4, '456789')"


def test_writes_of_the_lost_cell_to_an_open_file_are_undone(copied: Session) -> None:
    copied.run("file = open('f', 'w')\nfile.write('one\\n'); file.flush()")
    copied.run("import os\nfile.write('lost\\n'); file.flush()\nos._exit(1)")
    copied.run("file.write('two\\n'); file.close()")
    assert copied.run("open('f').read()").value == r"'one\ntwo\n'"


def test_a_file_without_a_name_is_kept_open(copied: Session) -> None:
    code = "import tempfile\nfile = tempfile.TemporaryFile('w+')\nfile.write('here'); file.flush()"
    assert after_a_death(copied, code) == ()
    assert copied.run("file.seek(0); file.read()").value == "'here'"


def test_a_file_that_is_gone_is_named(copied: Session) -> None:
    copied.run("import os, tempfile\nfd, path = tempfile.mkstemp()")
    outcome = copied.run("os.unlink(path); os._exit(1)")
    assert len(outcome.lost) == 1
    assert outcome.lost[0].startswith(f"descriptor {copied.get('fd')}, ")
    assert "No such file" in outcome.lost[0]


def test_a_working_directory_that_is_gone_is_named(copied: Session) -> None:
    copied.run("import os, tempfile\nos.chdir(tempfile.mkdtemp())")
    outcome = copied.run("os.rmdir(os.getcwd()); os._exit(1)")
    assert outcome.lost == ("the working directory, which is gone",)
    assert copied.run("os.getcwd() == os.environ['HOME']").value == "True"


def test_the_working_directory_is_the_same(copied: Session) -> None:
    copied.run("import os\nos.mkdir('inner'); os.chdir('inner')")
    assert copied.run("os.chdir('/'); os._exit(1)").lost == ()
    assert copied.run("os.path.basename(os.getcwd())").value == "'inner'"


def test_handlers_and_masks_of_signals_are_as_they_were(copied: Session) -> None:
    copied.run(
        "import os, signal\nheard = []\n"
        "signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])"
    )
    assert copied.run("signal.signal(signal.SIGUSR2, signal.SIG_IGN); os._exit(1)").lost == ()
    code = "os.kill(os.getpid(), signal.SIGUSR2)\nheard, signal.pthread_sigmask(0, [])"
    value = copied.run(code).value
    assert value is not None
    assert value.startswith("([1], {")
    assert "SIGHUP" in value
    assert "SIGUSR1" not in value
