"""The image of a template: its memory in a file, of which sessions map no more than they touch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_sandbox import Finished, Sandbox, Session, imaging
from tests.sandbox.conftest import PATIENT
from tests.sandbox.test_working_set import REFUSED, _run, on_request

# Sessions, after which a sandbox is imaged here: it is found out as ever, but sooner.
SOON = 8
MANY = 12
# Of one process without a sandbox: `keep` with the file FD, and how it goes on.
ALONE = """
import gc, json, os
from repl_sandbox.zygote import image
text = "a" * 100_000
numbers = list(range(10_000))
fd = FD
try:
    image.keep(fd, b"")
    failed = False
except OSError:
    failed = True
os.close(fd)
gc.unfreeze()
gc.collect()
import decimal
with open("/proc/self/maps") as maps:
    laid = "/memfd:image" in maps.read()
print(json.dumps([failed, laid, len(text), sum(numbers), str(decimal.Decimal(2) ** 70)]))
"""

# Looks at all that a session has from its template, and has its garbage collected.
EVERYTHING = """
import ast, dataclasses, gc, inspect, json, re, sys, traceback, typing
gc.unfreeze()
gc.collect()
seen, found = set(), list(sys.modules.values())
while found:
    each = found.pop()
    if id(each) not in seen:
        seen.add(id(each))
        repr(type(each)), hash(each) if isinstance(each, (str, bytes)) else None
        found += gc.get_referents(each)
del found, each
len(seen) > 10_000
"""

pytestmark = on_request


@pytest.fixture(scope="module", autouse=True)
def soon() -> Iterator[None]:
    """Not to open hundreds of sessions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(imaging, "WORTH_IT", SOON)
        yield


def _begin_many(sandbox: Sandbox) -> bool:
    """Have as many sessions as it takes, and wait for its end; whether it has been done."""
    _use(sandbox, MANY)
    its = sandbox._template.imaging
    assert its is not None
    its.wait()
    _use(sandbox, 2)  # of which the first may have been made ahead of time
    return its.done


def _use(sandbox: Sandbox, times: int) -> None:
    """One that nothing was told might serve again."""
    for _ in range(times):
        with sandbox.session() as session:
            session.run("1")


def _mapped(session: Session) -> int:
    """Kilobytes of memory, other than of files, that its worker maps."""
    status = Path(f"/proc/{session._core.links.worker_pid}/status").read_text().splitlines()
    rows = dict(row.split(":", 1) for row in status)
    return sum(int(rows[name].split()[0]) for name in ("RssAnon", "RssShmem"))


@pytest.fixture(scope="module", params=["snapshot", "restart"])
def imaged(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(recovery=request.param, limits=PATIENT) as sandbox:
        assert _begin_many(sandbox)
        yield sandbox


@pytest.fixture
def session(imaged: Sandbox) -> Iterator[Session]:
    with imaged.session() as session:
        yield session


@pytest.fixture(scope="module")
def before() -> int:
    """What a session maps of a template that was not."""
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as first:
        first.run("1+1")
        return _mapped(first)


def test_a_session_maps_a_part_of_what_it_did(imaged: Sandbox, before: int) -> None:
    with imaged.session() as session:
        session.run("1+1")
        assert _mapped(session) < 0.6 * before


def test_all_that_the_template_holds_is_there(session: Session) -> None:
    outcome = session.run(EVERYTHING)
    assert isinstance(outcome, Finished), outcome
    assert outcome.value == "True"
    assert session.run("json.loads('[1, 2]'), re.findall('b+', 'abba')").value == (
        "([1, 2], ['bb'])"
    )


def test_what_one_writes_there_no_other_sees(imaged: Sandbox) -> None:
    """Neither the next session, nor one that was there, nor the one after a restart."""
    look = "import json, sys\njson.__doc__[:4]"
    with imaged.session() as before, imaged.session() as writes:
        document = before.run(look).value
        writes.run("import ctypes, json, sys")
        outcome = writes.run(
            "text = json.__doc__\n"
            "ctypes.memmove(id(text) + sys.getsizeof(text) - 1 - len(text), b'else', 4)\n"
            "text[:4]"
        )
        assert outcome.value == "'else'" != document
        assert before.run(look).value == document
        with imaged.session() as after:
            assert after.run(look).value == document


def test_a_session_that_dies_goes_on(session: Session) -> None:
    recovers = session.run("x = 41").state == "kept" and session._core.keeps
    outcome = session.run("import os\nos._exit(1)")
    assert outcome.state == ("rolled_back" if recovers else "restarted")
    assert session.run("x = 41 if 'x' not in dir() else x\nx + 1").value == "42"
    if recovers:
        with session.branch() as branch:
            assert branch.run("x += 1\nx").value == "42"
        assert session.run("x").value == "41"
        session.run("x = 0")
        session.rollback(1)
        assert session.run("x").value == "41"


def test_with_shared_objects_as_well(imaged: Sandbox, before: int) -> None:
    """Of a template that was imaged, from which they have it, and of one that was not."""
    with Sandbox(recovery="restart") as new:
        for template in (imaged, new):
            with template.with_shared(context="a" * (1 << 20)) as sandbox:
                _begin_many(sandbox)
                with sandbox.session() as session:
                    assert session.run("len(context), context[-1]").value == f"({1 << 20}, 'a')"
                    assert _mapped(session) < 0.8 * (before + 1024)


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc/PID/map_files is for root to open")
def test_nobody_writes_to_the_file_nor_puts_pages_there(imaged: Sandbox) -> None:
    zygote = imaged._zygote.pid
    rows = Path(f"/proc/{zygote}/maps").read_text().splitlines()
    laid = [row.split()[0] for row in rows if "/memfd:repl-image" in row]
    assert laid
    for place in laid:
        first, end = (int(each, 16) for each in place.split("-"))
        with open(f"/proc/{zygote}/map_files/{first:x}-{end:x}", "r+b", buffering=0) as file:
            with pytest.raises(PermissionError):
                file.write(b"a")
            with pytest.raises(PermissionError):
                file.truncate(0)
            size = os.fstat(file.fileno()).st_size
            assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == size


def test_who_closes_a_sandbox_meanwhile_leaves_nothing(imaged: Sandbox) -> None:
    for count in (SOON, SOON + 1, MANY):
        with Sandbox(recovery="restart") as sandbox:
            for _ in range(count):
                sandbox.session().close()
            zygote = sandbox._zygote.pid
        assert "repl-imaging" not in [each.name for each in threading.enumerate()]
        assert not Path(f"/proc/{zygote}").exists()


def test_a_process_goes_on_with_its_memory_in_a_file() -> None:
    failed, laid, *rest = _run(ALONE.replace("FD", "os.memfd_create('image')"))
    assert (failed, laid) == (False, True)
    assert rest == [100_000, 49_995_000, str(2**70)]


def test_one_that_cannot_be_laid_goes_on_as_it_was() -> None:
    """What was written to the file must not be lost where that cannot be mapped."""
    written = "os.open(f'/proc/self/fd/{os.memfd_create('image')}', os.O_WRONLY)"
    failed, laid, *rest = _run(ALONE.replace("FD", written.replace("'image'", '"image"')))
    assert (failed, laid) == (True, False)
    assert rest == [100_000, 49_995_000, str(2**70)]


def test_where_the_kernel_refuses_sessions_do_without() -> None:
    many = (
        f"imaging.WORTH_IT = {SOON}\n"
        "with Sandbox(recovery='restart') as sandbox:\n"
        f"    for _ in range({MANY}): sandbox.session().close()\n"
        "    sandbox._template.imaging.wait()\n"
        "    assert not sandbox._template.imaging.done\n"
        "    with sandbox.session() as session: print(json.dumps(session.run('6 * 7').value))\n"
    )
    script = "from repl_sandbox import imaging\n" + REFUSED[: REFUSED.index("with Sandbox()")]
    assert _run(script + many) == "42"
