"""`with_shared`: objects that all sessions of a sandbox begin with, in memory once."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Killed,
    Limits,
    Policy,
    Raised,
    Sandbox,
    SandboxClosed,
    SandboxError,
    Session,
    SessionClosed,
)
from repl_sandbox.host import shared_objects
from tests.conformance import CHECKS, run
from tests.internals import session_links, started, template_parent, worker_pid, zygote_pid
from tests.sandbox.shown_value import value
from tests.waiting import eventually

LARGE = 50_000_000

OBJECTS: dict[str, Any] = {
    "text": "a line\n" * 100_000,
    "data": b"\x00\xff" * 100_000,
    "short": "kurz: ü",
    "blob": b"\xff",
    "table": {"a": [1, 2.5, None, True, -(1 << 70)], "b": {"c": "漢"}},
    "number": 7,
    "nothing": None,
}


@pytest.fixture(scope="module")
def offspring(sandbox: Sandbox) -> Iterator[Sandbox]:
    with sandbox.with_shared(**OBJECTS) as made:
        yield made


@pytest.fixture
def one(offspring: Sandbox) -> Iterator[Session]:
    with offspring.session() as session:
        yield session


# ── what sessions see ────────────────────────────────────────────────────────────────────────────


def test_a_session_begins_with_the_objects_as_its_variables(one: Session) -> None:
    assert [each.name for each in one.variables()] == list(OBJECTS)
    assert value(one, "text == 'a line\\n' * 100_000, data == b'\\x00\\xff' * 100_000") == (
        "(True, True)"
    )
    for name in ("short", "blob", "table", "number", "nothing"):
        assert value(one, name) == (None if OBJECTS[name] is None else repr(OBJECTS[name]))


def test_the_objects_are_no_changes_of_the_first_cell(offspring: Sandbox) -> None:
    with offspring.session() as session:
        assert session.run("x = len(text)").changes[0].name == "x"
    with offspring.session(seed=1, host={"f": abs}) as session:
        assert session.run("pass").changes == ()


def test_changes_of_one_session_to_an_object_are_invisible_to_others(offspring: Sandbox) -> None:
    with offspring.session() as first, offspring.session() as second:
        changes = first.run("table['a'].append(1)\nnumber += 1\ndel data").changes
        assert [(each.kind, each.name) for each in changes] == [
            ("modified", "table"),
            ("modified", "number"),
            ("deleted", "data"),
        ]
        with offspring.session() as later:
            for untouched in (second, later):
                assert value(untouched, "table['a'][-1], number, len(data)") == (
                    f"({-(1 << 70)}, 7, 200000)"
                )
        assert value(first, "table['a'][-1], number, 'data' in globals()") == "(1, 8, False)"


def test_the_worker_after_a_death_has_the_objects(one: Session) -> None:
    assert isinstance(one.run("mine = 1\ndel text\nimport os\nos._exit(1)"), Killed)
    assert value(one, "len(text), 'mine' in globals()") == "(700000, False)"


@pytest.mark.parametrize(
    "piece",
    ["a", "é", "漢", "😀", "\ud800", "\ud83d\ude00", "😀\ud83d\ude00é", "\x00", "ÿĀ"],
    ids=ascii,
)
def test_a_text_is_identical(sandbox: Sandbox, piece: str) -> None:
    times = 70_000
    with (
        sandbox.with_shared(text=piece * times, short=piece) as made,
        made.session() as session,
    ):
        assert value(session, f"text == {piece!a} * {times}") == "True"
        # In Python's own compact form, otherwise equal texts would have unequal hashes.
        assert value(session, f"hash(text) == hash({piece!a} * {times})") == "True"
        assert value(session, f"[*map(ord, short)] == {[*map(ord, piece)]}") == "True"


def test_a_sandbox_with_objects_can_share_more(offspring: Sandbox) -> None:
    with offspring.with_shared(number=8, more=[1], self=2) as made, made.session() as session:
        assert made.shared == {**OBJECTS, "number": 8, "more": [1], "self": 2}
        assert value(session, "number, more, len(text)") == "(8, [1], 700000)"


def test_sessions_with_shared_objects_have_all_layers(offspring: Sandbox) -> None:
    wanted = [check for check in CHECKS if check.group in ("isolation", "limits", "deaths")]
    assert len(wanted) > 20
    report = run(offspring.session, wanted)
    assert [result for result in report.results if result.status != "passed"] == []


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def jailed() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed") as sandbox:
        yield sandbox


def arrays() -> dict[str, Any]:
    numpy = pytest.importorskip("numpy")
    pair = numpy.dtype([("x", "<i2"), ("y", "f8", (2,))])
    return {
        "plain": numpy.arange(6.0).reshape(2, 3),
        "columns": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
        "slices": numpy.arange(20)[::3],
        "scalar": numpy.array(3.5),
        "empty": numpy.empty((0, 3)),
        "bools": numpy.array([True, False]),
        "dates": numpy.array(["2024-02-29", "NaT"], dtype="M8[D]"),
        "words": numpy.array(["ab", "ü"]),
        "swapped": numpy.arange(3, dtype=">i4"),
        "pairs": numpy.zeros(3, pair),
        "large": numpy.arange(1_000_000, dtype="u4"),
    }


def test_an_array_is_the_same_and_can_be_written_to(jailed: Sandbox) -> None:
    given = arrays()
    with jailed.with_shared(**given) as made, made.session() as first, made.session() as second:
        for name, array in given.items():
            code = f"{name}.tobytes()[:99] == {array.tobytes()[:99]!r}"
            code = f"({name}.dtype.str, {name}.shape, {code})"
            assert value(first, code) == repr((array.dtype.str, array.shape, True)), name
            assert value(first, f"{name}.flags.writeable, {name}.flags.owndata") == "(True, True)"
        assert value(first, "columns.flags.f_contiguous, int(large.sum())") == (
            "(True, 499999500000)"
        )
        assert value(first, "pairs.dtype.names") == "('x', 'y')"
        changes = first.run("large[0] = 9").changes
        assert [(each.kind, each.name) for each in changes] == [("modified", "large")]
        assert value(second, "int(large[0])") == "0"


def test_random_numbers_are_each_sessions_own_though_an_array_brought_numpy(
    jailed: Sandbox,
) -> None:
    array = pytest.importorskip("numpy").zeros(2)
    draw = "import numpy, random\nrandom.random(), float(numpy.random.random())"
    with jailed.with_shared(array=array) as made:
        with made.session() as first, made.session() as second:
            assert value(first, draw) != value(second, draw)
        with made.session(seed=1) as first, made.session(seed=1) as second:
            assert value(first, draw) == value(second, draw)


def test_arrays_of_python_objects_are_refused(jailed: Sandbox) -> None:
    numpy = pytest.importorskip("numpy")
    record = numpy.dtype([("x", "O")])
    for array in (numpy.array([[]], dtype=object), numpy.zeros(2, record)):
        with pytest.raises(TypeError, match=r"array: an array of .* no plain data"):
            jailed.with_shared(array=array)
    with pytest.raises(TypeError, match="array must be"):
        jailed.with_shared(array=numpy.ma.masked_array([1, 2], [True, False]))


def test_a_policy_without_numpy_refuses_arrays_and_checks_cells_as_before() -> None:
    array = pytest.importorskip("numpy").zeros(2)
    pytest.importorskip("RestrictedPython")
    with Sandbox(policy=Policy("restricted")) as sandbox:
        with pytest.raises(TypeError, match="array: cells under this policy"):
            sandbox.with_shared(array=array)
        with sandbox.with_shared(text="abc") as made, made.session() as session:
            assert value(session, "len(text)") == "3"
            outcome = session.run("open('/etc/passwd')")
            assert isinstance(outcome, Raised)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def private(pid: int) -> int:
    """Bytes that no other process maps (proc_pid_smaps(5))."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
            return 1024 * sum(int(row.split()[1]) for row in rollup if row.startswith("Private_"))
    except PermissionError:
        pytest.skip("this user may not look at its own processes' memory")


def test_unwritten_shared_data_is_in_memory_once(sandbox: Sandbox) -> None:
    with sandbox.with_shared(text="x" * LARGE, data=b"x" * LARGE, small=[1]) as made:
        sessions = [made.session() for _ in range(4)]
        for session in sessions:
            assert value(session, "text.count('y') + data.count(b'y') + len(small)") == "1"
            alias = "again = [text, data] * 10\ntext is again[2]"
            assert value(session, alias) == "True"
        for session in sessions:
            links = session_links(session)
            assert private(links.worker_pid) + private(links.pid) < LARGE // 5


def test_the_memory_limit_excludes_the_shared_objects(sandbox: Sandbox) -> None:
    with sandbox.with_shared(text="x" * LARGE) as made:
        with made.session(limits=Limits(memory=str(LARGE))) as session:
            assert value(session, f"len(bytearray({LARGE // 2}))") == str(LARGE // 2)
            outcome = session.run(f"bytearray({2 * LARGE})")
            assert outcome.error is not None and outcome.error.type == "MemoryError"


def test_the_least_memory_is_enough_beside_shared_objects() -> None:
    with (
        Sandbox(limits=Limits(memory="16MiB")) as sandbox,
        sandbox.with_shared(text="abc") as made,
        made.session() as session,
    ):
        assert session.run("x = len(text)").ok


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def cycle() -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


def deep(levels: int) -> list[Any]:
    held: list[Any] = []
    for _ in range(levels):
        held = [held]
    return held


def test_keys_that_are_equal_in_json_are_refused_by_name(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"data must be .* keys 1 and '1' are one key"):
        sandbox.with_shared(data={"a": {1: "a", "1": "b"}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (object(), TypeError, "thing must be"),
        ({1, 2}, TypeError, "thing must be"),
        ([b"bytes inside"], TypeError, "thing must be"),
        (float("nan"), ValueError, "thing must be"),
        ([float("inf")], ValueError, "thing must be"),
        (cycle(), ValueError, "thing must be"),
        (deep(10_000), ValueError, "thing"),
        (deep(100_000), ValueError, "thing"),
    ],
    ids=["object", "set", "bytes in JSON", "NaN", "infinity", "cycle", "deep", "deeper"],
)
def test_an_unshareable_object_is_refused_by_name(
    sandbox: Sandbox, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sandbox.with_shared(thing=given)
    with sandbox.session() as session:
        assert value(session, "6 * 7") == "42"


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a.b", "1a", "class", "None", "__name__", "__x__", "_", "_out", "FINAL", "answer"],
)
def test_an_invalid_variable_name_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(ValueError, match=repr(name)):
        sandbox.with_shared(**{name: 1})


def test_a_name_that_python_normalizes_is_refused(sandbox: Sandbox) -> None:
    objects = {"\N{LATIN SMALL LIGATURE FI}": 1}
    with pytest.raises(ValueError, match="is read as 'fi' in code"):
        sandbox.with_shared(**objects)


def test_more_than_the_limit_is_refused_before_it_is_copied(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_objects, "MAX_SHARED", 1_000_000)
    for large in ("x" * 1_000_001, "漢" * 500_001, b"x" * 1_000_001, ["x" * 1_000_001]):
        with pytest.raises(ValueError, match=r"thing: .* 1,000,000 bytes"):
            sandbox.with_shared(thing=large)
    with pytest.raises(ValueError, match="b: "):
        sandbox.with_shared(a=b"x" * 600_000, b=b"x" * 600_000)


def test_a_huge_array_is_refused_by_its_size_alone(sandbox: Sandbox) -> None:
    numpy = pytest.importorskip("numpy")
    nothing = numpy.broadcast_to(numpy.zeros(1), (1 << 32,))
    with pytest.raises(ValueError, match="thing: the limit of shared objects is 17,179,869,184"):
        sandbox.with_shared(thing=nothing)


def test_a_host_function_of_a_shared_name_is_refused(offspring: Sandbox) -> None:
    with pytest.raises(ValueError, match="text is the name of a shared object"):
        offspring.session(host={"text": len})


def test_a_missing_numpy_is_a_clear_error(sandbox: Sandbox) -> None:
    array = pytest.importorskip("numpy").zeros(3)
    with sandbox.session() as session:
        if session.run("import numpy").ok:
            pytest.skip("this interpreter has numpy")
    with pytest.raises(SandboxError, match="numpy, for an array"):
        sandbox.with_shared(array=array)
    with sandbox.session() as session:
        assert value(session, "6 * 7") == "42"


# ── lifetime ─────────────────────────────────────────────────────────────────────────────────────


def below() -> set[int]:
    """The processes that this one has begun, directly or not."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_closing_a_shared_template_ends_its_own_sessions_alone(sandbox: Sandbox) -> None:
    before = below()
    with sandbox.session() as mine:
        made = sandbox.with_shared(x=1)
        session = made.session()
        made.close()
        made.close()
        with pytest.raises((SessionClosed, SandboxError)):
            session.run("x")
        with pytest.raises(SandboxClosed):
            made.session()
        with pytest.raises(SandboxClosed):
            made.with_shared(y=2)
        assert value(mine, "'x' in globals()") == "False"
    # Some earlier process may just have been ending.
    eventually(lambda: below() <= before)


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_closing_the_parent_closes_a_shared_template_first(tier: str, open_python: str) -> None:
    before = below()
    python = None if tier == "jailed" else open_python
    with Sandbox(isolation=tier, python=python) as parent:
        child = parent.with_shared(x=1)
        grandchild = child.with_shared(y=2)
        sessions = [parent.session(), child.session(), grandchild.session()]
        assert value(sessions[2], "x, y") == "(1, 2)"
    for each in (child, grandchild):
        with pytest.raises(SandboxClosed):
            each.session()
        each.close()
    eventually(lambda: below() <= before)


def test_a_shared_template_keeps_its_parent_alive() -> None:
    with Sandbox(isolation="jailed").with_shared(x=1) as made:
        gc.collect()
        with made.session() as session:
            assert value(session, "x") == "1"
        parent = template_parent(made)
        assert parent is not None
    parent.close()


def test_a_template_that_dies_ends_its_own_sessions_alone(sandbox: Sandbox) -> None:
    with sandbox.with_shared(x=1) as made, sandbox.with_shared(x=2) as other:
        session, mine, others = made.session(), sandbox.session(), other.session()
        worker = psutil.Process(worker_pid(session))
        os.kill(zygote_pid(made), 9)
        assert psutil.wait_procs([worker], timeout=60)[1] == []
        with pytest.raises(SandboxError):
            session.run("x")
        with pytest.raises(SandboxError):
            made.session()
        assert (value(mine, "1"), value(others, "x")) == ("1", "2")
        mine.close()


def test_the_settings_of_a_shared_template_are_those_of_its_parent() -> None:
    limits = Limits(timeout=0.2, grace=0.2)
    settings: dict[str, Any] = {"limits": limits, "max_sessions": 2, "ready": 1}
    policy = Policy("lint", imports=["math"])
    with Sandbox(isolation="jailed", policy=policy, **settings) as parent:
        with parent.with_shared(x=1) as made, made.session() as first, made.session():
            assert made.refusals == parent.refusals
            assert not first.run("while True: pass").ok
            assert not first.run("import socket").ok
            assert made.statistics().open == 2
            with pytest.raises(SandboxError, match="max_sessions=2"):
                made.session()
            with parent.session():  # each counts its own
                assert parent.statistics().open == 1


def test_the_next_session_is_made_ahead_of_time_once_two_were_asked_for() -> None:
    with Sandbox(isolation="jailed") as parent, parent.with_shared(x=1) as made:
        with made.session() as session:
            assert session.run("x").value == "1"
        assert made.statistics().ready == 0
        with made.session():
            eventually(lambda: made.statistics().ready == 1)
        with made.session() as session:
            assert session.run("x").value == "1"
        eventually(lambda: made.statistics().ready == 1)


def test_sharing_more_objects_makes_no_session_ahead_of_time() -> None:
    with (
        Sandbox(isolation="jailed") as parent,
        parent.with_shared(x=1) as made,
        made.with_shared(y=2) as more,
    ):
        assert more.statistics().started == 0
        for _ in range(2):
            with more.session() as session:
                assert session.run("x, y").value == "(1, 2)"
        eventually(lambda: more.statistics().ready == 1)


def test_ready_sessions_have_the_objects() -> None:
    with Sandbox(isolation="jailed", ready=2) as parent, parent.with_shared(x=1) as made:
        assert made.statistics().ready == 2
        with made.session() as session:
            assert value(session, "x") == "1"


# ── awaited ──────────────────────────────────────────────────────────────────────────────────────


def test_an_asynchronous_sandbox_shares_too() -> None:
    async def use() -> None:
        async with AsyncSandbox(isolation="jailed") as parent:
            async with parent.with_shared(x=[1]) as made, made.session() as session:
                assert (await session.run("x")).value == "[1]"
            made = await parent.with_shared(x=2)
            async with made.session() as session:
                assert (await session.run("x")).value == "2"
            with pytest.raises(TypeError, match="thing must be"):
                await parent.with_shared(thing=object())
        with pytest.raises(SandboxClosed):
            await made.session()

    asyncio.run(use())


# ── packed elsewhere ─────────────────────────────────────────────────────────────────────────────


def test_packed_objects_are_shared_without_unpacking_on_the_host(
    sandbox: Sandbox,
) -> None:
    with shared_objects.empty() as parcel:
        objects = {"text": "é" * 100_000, "table": {"a": [1, 2.5]}}
        shared_objects.fill(parcel, objects, parsed=True)
        with sandbox.with_parcel(parcel) as made:
            assert dict(made.shared) == dict.fromkeys(objects, shared_objects.PACKED)
            with made.session() as session:
                assert value(session, "len(text), table") == "(100000, {'a': [1, 2.5]})"
            with pytest.raises(ValueError, match="shared object"):
                made.session(host={"text": len})
        # And again: it is the caller's to close.
        with sandbox.with_parcel(parcel) as made, made.session() as session:
            assert value(session, "len(text)") == "100000"


def test_a_cancelled_shared_template_may_close_its_parcel() -> None:
    async def use() -> None:
        async with AsyncSandbox(isolation="jailed") as parent:
            with shared_objects.empty() as parcel:
                shared_objects.fill(parcel, {"x": [1]})
                async with parent.with_parcel(parcel) as made, made.session() as session:
                    assert (await session.run("x")).value == "[1]"
                growing = asyncio.ensure_future(started(parent.with_parcel(parcel)))
                await asyncio.sleep(0)
                growing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await growing
            async with parent.session() as session:
                assert (await session.run("1")).value == "1"
            process = psutil.Process(zygote_pid(parent.plain))
        assert not process.is_running()

    asyncio.run(use())
