"""Functions of cells and of the host in processes that multiprocessing starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Finished, Raised, Sandbox, Session

BEGIN = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
def add(x): return x + 1
def tell(queue): queue.put(1)
def ask(text): return shout(text)
class Own(multiprocessing.get_context("spawn").Process):
    def run(self): pass
class Value: pass
spawn, server, fork = map(multiprocessing.get_context, ("spawn", "forkserver", "fork"))
queue = spawn.Queue()
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Sandbox(isolation="jailed") as sandbox:
        with sandbox.session(host={"shout": str.upper}) as session:
            assert session.run(BEGIN).ok
            yield session


@pytest.mark.parametrize(
    "code",
    [
        "p = spawn.Process(target=tell, args=(queue,)); p.start(); queue.get()",
        "p = server.Process(target=tell, args=(queue,)); p.start(); queue.get()",
        "p = spawn.Process(target=print, args=(Value(),)); p.start(); p.join()",
        "Own().start()",
        "with spawn.Pool(1) as p: p.map(add, [1])",
        "with spawn.Pool(1) as p: p.apply_async(add, [1]).get()",
        "with spawn.Pool(1) as p: list(p.imap(add, [1]))",
        "with server.Pool(1) as p: p.map(add, [1])",
        "with ProcessPoolExecutor(1, mp_context=spawn) as p: p.submit(add, 1).result()",
        "with ProcessPoolExecutor(1, mp_context=spawn) as p: p.submit(abs, Value()).result()",
        "with spawn.Pool(1, initializer=add, initargs=(1,)) as p: p.map(abs, [1])",
    ],
)
def test_a_function_of_a_cell_is_refused_where_a_new_process_cannot_find_it(
    session: Session, code: str
) -> None:
    """It fails as soon as it is sent, and nothing waits for the cell's time-out."""
    outcome = session.run(code)
    assert isinstance(outcome, Raised), outcome
    assert outcome.error.type == "_pickle.PicklingError"
    assert "a process that is started anew cannot find" in outcome.error.message
    assert "get_context('fork')" in outcome.error.message


@pytest.mark.parametrize(
    "code",
    [
        "with fork.Pool(1) as p: print(p.map(add, [1]))",
        "with ProcessPoolExecutor(1) as p: print(list(p.map(add, [1])))",
        "with spawn.Pool(1) as p: print([abs(-2), *p.map(abs, [])])",
        "open('helper.py', 'w').write('def add(x): return x + 1')\n"
        "import helper\nwith spawn.Pool(1) as p: print(p.map(helper.add, [1]))",
        "with ThreadPoolExecutor(1) as p: print(list(p.map(add, [1])))",
    ],
)
def test_other_ways_to_run_it_work(session: Session, code: str) -> None:
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    assert outcome.stdout == "[2]\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("with spawn.Pool(1) as p: p.map(shout, 'a')", "shout() is a function of the host"),
        ("with fork.Pool(1) as p: p.map(ask, 'a')", "use ThreadPoolExecutor, or joblib with"),
        ("with ProcessPoolExecutor(1) as p: list(p.map(ask, 'a'))", "backend='threading'"),
    ],
)
def test_a_function_of_the_host_names_the_threads_that_can_call_it(
    session: Session, code: str, message: str
) -> None:
    outcome = session.run(code)
    assert isinstance(outcome, Raised), outcome
    assert message in outcome.error.message
    assert (
        session.run("with ThreadPoolExecutor(2) as p: print(*p.map(ask, 'ab'))").stdout == "A B\n"
    )
