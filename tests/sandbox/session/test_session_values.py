"""Values that cross between host and session, variables, and random numbers."""

from __future__ import annotations

import pytest

from repl_sandbox import AsyncSandbox, HostFunction, Limits, Raised, Sandbox, Session
from tests.internals import set_idle_periods, set_watchdog_period


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "é\U0001f600" * 100_000,
        b"\0\xff",
        b"b" * 200_000,
        {"a": [1, None, 2.5, "x"]},
        [],
        "",
        7,
    ],
    ids=["str", "long str", "bytes", "long bytes", "json", "empty list", "empty", "int"],
)
def test_a_value_arrives_as_it_was(session: Session, value: object) -> None:
    session.set("value", value)  # type: ignore[arg-type]

    if isinstance(value, bytes):
        assert session.run("type(value), len(value), value[-1:]").value == repr(
            (bytes, len(value), value[-1:])
        )
    else:
        assert session.get("value") == value


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({1: "a", "1": "b"}, "1 and '1'"),
        ({"true": 1, True: 2}, "'true' and True"),
        ([{"a": ({None: 1, "null": 2},)}], "None and 'null'"),
        ({"b": {"1.5": 1, 1.5: 2}, "a": {}}, "'1.5' and 1.5"),
    ],
)
def test_keys_that_are_equal_in_json_are_refused_by_name(
    session: Session, value: object, keys: str
) -> None:
    session.set("value", 0)
    with pytest.raises(ValueError, match=f"value must be .* keys {keys} are one key"):
        session.set("value", value)  # type: ignore[arg-type]
    assert session.get("value") == 0


def test_keys_that_are_equal_in_json_are_refused_in_every_direction(sandbox: Sandbox) -> None:
    told: list[object] = []
    host = {"give": lambda: {"a": [{1: "x", "1": "y"}]}, "take": told.append}
    with sandbox.session(host=host, answers="strict") as session:
        session.run("pair = {'a': [{1: 'x', '1': 'y'}]}")
        with pytest.raises(TypeError, match="pair: its keys 1 and '1' are one key in JSON"):
            session.get("pair")
        for code, error in (("take(pair)", "ValueError: take"), ("give()", "ValueError: give")):
            outcome = session.run(code)
            assert isinstance(outcome, Raised)
            assert error in outcome.error.traceback
            assert "its keys 1 and '1' are one key in JSON" in outcome.error.traceback
        outcome = session.run("FINAL(pair)")
        assert [(each.text, each.value) for each in outcome.answers] == [
            ("{'a': [{1: 'x', '1': 'y'}]}", None)
        ]
    assert told == []


def test_an_unreadable_value_has_no_effect_on_the_session(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(memory="256MiB")) as session:
        session.run("class Odd(dict):\n    def items(self): raise LookupError('not now')")
        session.run("odd, wide = Odd(a=1), 'x' * (100 << 20)")
        session.run("import threading\nstop = threading.Event()")
        session.run("waiting = threading.Thread(target=stop.wait)\nwaiting.start()")
        with pytest.raises(TypeError, match="odd: LookupError: not now"):
            session.get("odd")
        with pytest.raises(ValueError, match="wide: "):
            session.get("wide")
        assert session.run("waiting.is_alive()").value == "True"
        session.run("stop.set()")


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1, 2), b"b"])
def test_keys_that_are_no_str_are_refused_in_every_direction(session: Session, key: object) -> None:
    kind = type(key).__name__
    with pytest.raises(TypeError, match=f"value must be .* key .* {kind}; JSON has texts alone"):
        session.set("value", [{"a": {key: 1}}])  # type: ignore[dict-item]
    session.run(f"value = ({{'a': {{{key!r}: 1}}}},)")
    with pytest.raises(TypeError, match=f"value: .* key .* {kind}; JSON has texts alone"):
        session.get("value")


def test_untransferable_values_are_refused_by_name(session: Session) -> None:
    with pytest.raises(TypeError, match="value must be str, bytes, JSON or a table"):
        session.set("value", {1, 2j})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'not a name' is not a name for a variable"):
        session.set("not a name", 1)
    with pytest.raises(ValueError, match="'class' is a keyword"):
        session.set("class", 1)
    with pytest.raises(ValueError, match="is read as 'fi' in code"):
        session.set("\N{LATIN SMALL LIGATURE FI}", 1)
    with pytest.raises(KeyError, match="missing"):
        session.get("missing")
    session.run("f = open('/dev/null')")
    with pytest.raises(TypeError, match="f: "):
        session.get("f")
    session.run("many = [0] * 300_000")
    with pytest.raises(ValueError, match=r"many: .*262,144 values"):
        session.get("many", as_answer=True)
    assert len(session.get("many")) == 300_000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("__builtins__", "__name__", "__doc__", "__spec__", "__annotations__", "__main__"),
        *("_", "_out", "HostCallError", "PolicyError", "answer", "FINAL", "SUBMIT", "final_answer"),
        *("tool", "Missing"),
    ],
)
def test_names_of_the_session_itself_cannot_be_set(sandbox: Sandbox, name: str) -> None:
    host = {"tool": HostFunction(lambda: "real", raises=("Missing",))}
    with sandbox.session(host=host, answers="strict") as session:
        for value in ({}, "x" * 100_000):  # with the first message, and by a file in memory
            with pytest.raises(ValueError, match=f"name: .*{name!r} is .*(own|taken)"):
                session.set(name, value)
        outcome = session.run("tool(), len([1]), __name__")
        assert outcome.value == "('real', 1, '__main__')"
        with session.branch() as branch, pytest.raises(ValueError, match=r"own|taken"):
            branch.set(name, 1)


def test_the_answer_begins_anew(sandbox: Sandbox) -> None:
    with sandbox.session(answers="strict") as session:
        ready = "answer.update(content=4, ready=True)"
        assert [each.text for each in session.run(ready).answers] == ["4"]
        assert not session.run(ready).answers  # it was sent before
        session.run("held = answer")
        session.set("answer", {"content": "", "ready": False})
        assert session.run("answer is held, answer").value == (
            "(True, {'content': '', 'ready': False})"
        )
        assert [each.text for each in session.run(ready).answers] == ["4"]
        session.run("answer = 5")
        session.set("answer", {"content": "", "ready": False})
        assert [each.text for each in session.run(ready).answers] == ["4"]


async def test_names_of_an_asyncio_session_itself_cannot_be_set() -> None:
    async with AsyncSandbox() as sandbox, sandbox.session(host={"tool": len}) as session:
        for name in ("__builtins__", "_out", "tool", "FINAL"):
            with pytest.raises(ValueError, match=r"own|taken"):
                await session.set(name, {})
        assert (await session.run("len([1])")).value == "1"


def test_variables_are_listed_without_injected_names(sandbox: Sandbox) -> None:
    with sandbox.session(host={"tool": print}, answers="strict") as session:
        session.run("numbers = [1, 2, 3]\n_private = 1\n5")
        listed = {
            variable.name: (variable.type, variable.preview) for variable in session.variables()
        }
    assert listed == {"numbers": ("list", "[1, 2, 3]"), "_private": ("int", "1")}


def _need_numpy(sandbox: Sandbox) -> None:
    """Memory of a session: in some tiers it sees less than this process."""
    with sandbox.session() as session:
        if not session.run("import numpy").ok:
            pytest.skip("sessions have no numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import numpy",
        "import numpy.random",
        "from numpy.random import rand\nimport numpy",
        "import importlib.util, numpy.linalg\nimportlib.util.find_spec('numpy.random')",
        "import threading\nt = threading.Thread(target=lambda: __import__('numpy'))\nt.start()\n"
        "t.join()\nimport numpy",
    ],
)
def test_a_seed_holds_for_a_numpy_that_a_cell_imports(sandbox: Sandbox, code: str) -> None:
    _need_numpy(sandbox)

    def drawn(seed: int | None) -> str | None:
        with sandbox.session(seed=seed) as session:
            assert session.run("import sys\n'numpy' in sys.modules").value == "False"
            return session.run(f"{code}\nnumpy.random.rand()").value

    assert drawn(7) == drawn(7) != drawn(8)
    assert drawn(None) != drawn(None)
    with Sandbox(preload=["numpy"]) as loaded, loaded.session(seed=7) as session:
        assert session.run("import numpy\nnumpy.random.rand()").value == drawn(7)


def test_a_seeded_numpy_behaves_as_usual(sandbox: Sandbox) -> None:
    _need_numpy(sandbox)
    code = """
import inspect, sys, numpy.random
print(len(inspect.getsource(numpy.random)) > 100, type(numpy.random.__loader__).__name__)
print([type(each).__name__ for each in sys.meta_path if not isinstance(each, type)])
import importlib
before = numpy.random.rand()
importlib.reload(numpy.random)
print(numpy.random.rand() != before, vars(numpy.random.__loader__).keys())
"""
    with sandbox.session(seed=7) as seeded, sandbox.session() as plain:
        assert seeded.run(code).stdout == plain.run(code).stdout
        with sandbox.session(seed=1) as session, session.branch(seed=2) as branch:
            assert branch.run("import numpy\nnumpy.random.rand()").value == "0.43599490214200376"


def test_a_seed_makes_random_numbers_repeat(sandbox: Sandbox) -> None:
    drawn = []
    for seed in (1, 1, 2, None, None):
        with sandbox.session(seed=seed) as session:
            drawn.append(session.run("import random; random.random()").value)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 4


def test_sessions_of_a_template_that_holds_random_draw_their_own_numbers() -> None:
    with Sandbox(preload=["random"]) as sandbox:
        drawn = []
        for _ in range(3):
            with sandbox.session() as session:
                drawn.append(session.run("import random; random.random()").value)
    assert len(set(drawn)) == 3


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_a_value_of_more_than_half_of_the_memory_limit_can_be_set(
    tier: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the value is copied the session maps it twice; only its own copy counts.

    The session has no snapshots, because the memory of a snapshot that is ending is charged to no
    process for a while, and a watchdog ignores a single measurement.
    """
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    # Look at sessions without a cell 100 times a second and not twice.
    set_idle_periods(monkeypatch, 1)
    set_watchdog_period(monkeypatch, 0.01)
    limits = Limits(timeout=60, memory="200MiB")
    with (
        Sandbox(isolation=tier, python=python, limits=limits, recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        for _ in range(3):
            session.set("value", b"x" * (150 << 20))
            session.run("del value")
        assert session.run("1 + 1").state == "kept"
