"""The session's `__main__`: a real module; injected names are no variables."""

from __future__ import annotations

import builtins
import sys

import pytest

from repl_sandbox import HostFunction, Sandbox
from repl_sandbox.worker.namespace import Namespace


def names(namespace: Namespace) -> list[str]:
    return [name for name, _ in namespace.variables()]


def test_the_namespace_is_registered_as_the_main_module(namespace):
    assert sys.modules["__main__"] is namespace.module
    assert namespace.globals is vars(namespace.module)
    assert namespace.globals["__name__"] == "__main__"
    assert namespace.globals["__builtins__"] is builtins
    assert "__file__" not in namespace.globals


def test_a_fresh_one_has_no_variables(namespace):
    assert names(namespace) == []


def test_variables_come_in_the_order_in_which_they_were_bound(namespace):
    namespace.globals.update(b=1, a=2, _private=3)

    assert list(namespace.variables()) == [("b", 1), ("a", 2), ("_private", 3)]


def test_dunder_names_and_those_of_the_repl_are_no_variables(namespace):
    namespace.globals.update(__all__=[], _=1, _out=[], __mangled=2)

    assert names(namespace) == ["__mangled"]


def test_keys_that_are_not_plain_text_are_left_out(namespace):
    class Hostile(str):
        __slots__ = ()

        def __hash__(self):
            return hash("x")

        def __eq__(self, other):
            raise AssertionError("code of the user ran")

    namespace.globals[Hostile("y")] = 1
    namespace.globals[7] = 1  # type: ignore[index]

    assert names(namespace) == []


def test_an_injected_name_is_hidden_while_it_holds_what_was_injected(namespace):
    namespace.inject("tool", print)
    assert names(namespace) == []
    assert namespace.hidden == {"tool"}

    namespace.globals["tool"] = "mine"
    assert names(namespace) == ["tool"]
    assert namespace.hidden == set()


def test_another_name_for_an_injected_object_is_the_users(namespace):
    namespace.inject("tool", print)
    namespace.globals["alias"] = print

    assert names(namespace) == ["alias"]


def test_only_protected_names_are_put_back(namespace):
    namespace.inject("loose", print)
    namespace.inject("tight", len, protected=True)
    namespace.inject("gone", repr, protected=True)
    namespace.globals.update(loose=1, tight=2)
    del namespace.globals["gone"]

    assert sorted(namespace.restore()) == ["gone", "tight"]

    assert namespace.globals["loose"] == 1
    assert namespace.globals["tight"] is len
    assert namespace.globals["gone"] is repr
    assert namespace.restore() == []


def test_a_name_that_is_injected_again_without_protection_loses_it(namespace):
    namespace.inject("tool", print, protected=True)
    namespace.inject("tool", len)
    namespace.globals["tool"] = "mine"

    assert namespace.restore() == []
    assert namespace.globals["tool"] == "mine"


def test_the_last_value_is_kept_under_an_underscore(namespace):
    namespace.show(1)
    namespace.show(2)

    assert namespace.globals["_"] == 2
    assert names(namespace) == []


def test_an_underscore_that_the_user_bound_is_left_alone(namespace):
    namespace.show(1)
    namespace.globals["_"] = "gettext"
    namespace.show(2)

    assert namespace.globals["_"] == "gettext"


_WALKS = {
    "pickle": """
import pickle, types
saved = {n: pickle.dumps(v) for n, v in globals().copy().items() if type(v) is not types.ModuleType}
same = [n for n in ("tool", "texts", "FINAL", "_out") if pickle.loads(saved[n]) is globals()[n]]
""",
    "shelve": """
import shelve, types
with shelve.open("variables") as shelf:
    for name, value in globals().copy().items():
        if type(value) not in (types.ModuleType, shelve.DbfilenameShelf):
            shelf[name] = value
with shelve.open("variables") as shelf:
    same = [n for n in ("tool", "texts", "FINAL", "_out") if shelf[n] is globals()[n]]
""",
    "copy": """
import copy, types
walked = {n: v for n, v in globals().items() if type(v) is not types.ModuleType}
same = [n for n, v in copy.deepcopy(walked).items() if v is globals()[n] and n in walked]
same = [n for n in ("tool", "texts", "FINAL", "_out") if n in same]
""",
    "cloudpickle": """
import cloudpickle
read = cloudpickle.loads(cloudpickle.dumps(dict(globals())))
same = [n for n in ("tool", "texts", "FINAL", "_out") if read[n] is globals()[n]]
""",
    "dill": """
import dill
kept = tool, texts, FINAL, _out
dill.dump_session("session.pickle")
mine = None
dill.load_session("session.pickle")
same = [n for n, v in zip(("tool", "texts", "FINAL", "_out"), kept) if v is globals()[n]]
""",
}


@pytest.mark.parametrize("library", _WALKS)
def test_walks_over_all_globals_find_nothing_that_cannot_be_pickled(library: str) -> None:
    host = {"tool": len, "texts": HostFunction(list, returns="texts")}
    with Sandbox() as sandbox, sandbox.session(host=host, answers="compatible") as session:
        session.run("print('earlier')\nclass Mine: pass\nmine = [Mine(), tool]")
        session.run("page = _out[1]\ndef f(): return tool([1, 2])")
        outcome = session.run(_WALKS[library] + "\nsame")
        assert outcome.ok, outcome
        assert outcome.value == "['tool', 'texts', 'FINAL', '_out']"
        outcome = session.run("f(), len(mine), str(page), _out[1][:7]")
        assert (outcome.value, outcome.stderr) == ("(2, 2, 'earlier\\n', 'earlier')", "")
        assert session.run("FINAL(1)").answers[0].value == 1
