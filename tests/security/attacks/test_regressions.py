"""Holes that were found and closed, each by the way in which it was used."""

from __future__ import annotations

import json
import operator
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import psutil
import pytest

from repl_sandbox import Finished, Limits, Sandbox, SandboxError
from repl_sandbox.host.template import ResourceBudget
from tests.internals import worker_pid, zygote_pid
from tests.waiting import LONG, PATIENCE, eventually

User: TypeAlias = Callable[[str], Any]

# Script that runs code under a memory limit, for an ordinary user: the kernel shows that user less
# of the session's processes than it shows root.
AS_USER = """
import json
from repl_sandbox import Limits, Sandbox

with Sandbox(limits=Limits(timeout=60)) as sandbox:
    with sandbox.session(limits=Limits(memory={memory!r}, timeout=60)) as session:
        outcome = session.run({code!r})
        print(json.dumps([type(outcome).__name__, getattr(outcome, "reason", None)]))
"""

FAMILY = (
    "import os, time\nblock = bytearray(150 << 20)\n"
    "for i in range(0, len(block), 4096): block[i] = 1\n"
    "children = []\n"
    "for _ in range(4):\n"
    "    child = os.fork()\n"
    "    if child == 0:\n"
    "        {work}time.sleep(0.5)\n        os._exit(0)\n"
    "    children.append(child)\n"
    "[os.waitpid(child, 0) for child in children]"
)
WRITE = "for i in range(0, len(block), 4096): block[i] = 2\n        "

SHARED = (
    "import mmap, time\nblock = mmap.mmap(-1, 400 << 20)\n"
    "for i in range(0, 400 << 20, 4096): block[i] = 1\ntime.sleep(50)"
)


def test_for_an_ordinary_user_too_a_page_counts_once(user: User) -> None:
    assert user(AS_USER.format(memory="400MiB", code=FAMILY.format(work=""))) == ["Finished", None]


def test_pages_that_children_write_count_for_each(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(memory="400MiB", timeout=PATIENCE)) as session:
        outcome = session.run(FAMILY.format(work=WRITE).replace("sleep(0.5)", "sleep(50)"))
        assert getattr(outcome, "reason", None) == "memory", outcome


def test_for_an_ordinary_user_too_shared_memory_counts(user: User) -> None:
    assert user(AS_USER.format(memory="100MiB", code=SHARED)) == ["Killed", "memory"]


def test_page_tables_count(sandbox: Sandbox) -> None:
    """Memory that is only read has no pages of its own, but tables that lead to the zero page."""
    code = (
        "import mmap, time\n"
        "flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000\n"  # MAP_NORESERVE
        "block = mmap.mmap(-1, 64 << 30, flags=flags, prot=mmap.PROT_READ)\n"
        "for i in range(0, 64 << 30, 2 << 20): block[i]\n"
        "time.sleep(50)"
    )
    with sandbox.session(limits=Limits(memory="64MiB", timeout=PATIENCE)) as session:
        outcome = session.run(code)
        assert getattr(outcome, "reason", None) == "memory", outcome


def test_memory_of_the_template_does_not_count() -> None:
    heavy = ["numpy", "asyncio", "doctest", "pydoc_data.topics", "unittest.mock", "xml.dom.minidom"]
    with (
        Sandbox(preload=heavy) as sandbox,
        sandbox.session(limits=Limits(memory="16MiB")) as session,
    ):
        held = psutil.Process(zygote_pid(sandbox)).memory_info()
        assert held.rss - held.shared > 16 << 20
        assert isinstance(session.run("import time\ntime.sleep(0.3)"), Finished)


def test_no_crash_starts_a_program_of_the_host(sandbox: Sandbox) -> None:
    """A core_pattern that is a pipe is followed with a limit of 0, but not with 1 (core(5))."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    expected = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    with sandbox.session() as session:
        outcome = session.run("import resource\nresource.getrlimit(resource.RLIMIT_CORE)")
        assert outcome.value == f"({expected}, {expected})"


NAMESPACES = """
import json
from repl_sandbox import Sandbox

with Sandbox() as sandbox, sandbox.session() as one, sandbox.session() as two:
    print(json.dumps([[[layer.name, layer.active, layer.detail] for layer in s.isolation.layers
                       if layer.name.endswith("namespace")] for s in (one, two)]))
"""


def test_an_ordinary_user_is_shown_which_namespaces_hold_a_session(user: User) -> None:
    """Seen, not inferred: each with its number, and no two sessions with the same."""
    one, two = user(NAMESPACES)
    assert len(one) == len(two) == 7
    for (name, active, first), (_, _, second) in zip(one, two, strict=True):
        assert active
        kind = name.partition(" ")[0]
        assert first.startswith(f"{kind}:[")
        assert first != second


REFUSED_TO_USER = """
import json, os
from repl_sandbox import IsolationError, Sandbox
from repl_sandbox.jail import users

users.enter_namespace(users.CODE_ID)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
try:
    Sandbox(isolation="jailed")
except IsolationError as error:
    print(json.dumps([error.step, error.remedy, str(error)]))
"""


def test_an_ordinary_user_without_user_namespaces_gets_a_remedy(user: User) -> None:
    step, remedy, text = user(REFUSED_TO_USER)
    assert step == "namespaces"
    assert "max_user_namespaces" in remedy
    assert text.count(remedy) == 1


WITHOUT_IDS = """
import json, os
from repl_sandbox import IsolationError, Sandbox
from repl_sandbox.jail import users

users.enter_namespace(0)
try:
    Sandbox(isolation="jailed")
except IsolationError as error:
    with open("/proc/thread-self/children") as file:
        print(json.dumps([error.step, file.read()]))
"""


def test_a_jail_that_cannot_be_built_is_an_error_of_the_sandbox() -> None:
    """The caller must learn the tier before the first session, while there is a choice."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_IDS],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["id maps", ""]


def test_a_session_that_cannot_be_built_leaves_nothing_and_disturbs_none(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sandbox.session() as session:
        zygote = psutil.Process(zygote_pid(sandbox))

        def held() -> tuple[int, int]:
            return len(zygote.children()), psutil.Process().num_fds()

        before = held()
        for _ in range(5):
            # More than setrlimit(2) can carry: the worker cannot finish its jail.
            with monkeypatch.context() as patch:
                patch.setattr(ResourceBudget, "rlimits", lambda self, limits: {"FSIZE": 1 << 70})
                with pytest.raises(SandboxError):
                    sandbox.session()
        assert session.run("6 * 7").value == "42"
        with sandbox.session() as other:
            assert other.run("6 * 7").value == "42"
        # A thread that looks at the sessions opens some for a moment.
        eventually(lambda: all(map(operator.le, held(), before)), lambda: (before, held()))


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.stdout = None\nsys.stderr = None",
        "import sys\ndel sys.stdout, sys.stderr",
        "import sys\nsys.stderr.close()\nsys.stdout.close()",
        "import io, sys\nsys.stdout, sys.stderr = io.StringIO(), io.StringIO()\n"
        "sys.stdout.close()\nsys.stderr.close()",
        "import sys\nclass Odd:\n    @property\n    def closed(self): raise SystemExit\n"
        "    def flush(self): raise SystemExit\nsys.stdout = sys.stderr = Odd()",
    ],
    ids=["none", "deleted", "closed", "others that are closed", "others that raise"],
)
def test_streams_removed_by_a_cell_are_back_in_the_next(sandbox: Sandbox, code: str) -> None:
    """Closed streams alone were restored; a deleted one lost the namespace."""
    with sandbox.session() as session:
        session.run(f"x = 1\n{code}")
        outcome = session.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx")
        assert (outcome.stdout, outcome.stderr, outcome.value) == ("out\n", "err\n", "1")
        assert outcome.state == "kept"


@pytest.mark.parametrize("error", ["TimeoutError('late')", "SystemExit", "KeyboardInterrupt"])
def test_a_signal_handler_that_raises_between_cells_has_no_effect(
    sandbox: Sandbox, error: str
) -> None:
    """An alarm that a cell did not take back came while the worker waited, and ended it."""
    with sandbox.session() as session:
        session.run(
            "import signal\nx = 1\n"
            f"def late(*_): raise {error}\n"
            "signal.signal(signal.SIGALRM, late)"
        )
        session.get("x")  # now a snapshot was taken, and it waits
        os.kill(worker_pid(session), signal.SIGALRM)
        outcome = session.run("x")
        assert (outcome.value, outcome.state) == ("1", "kept")
        assert "signal handler" in outcome.stderr


def test_an_answer_with_more_digits_than_the_host_reads_is_no_breach(sandbox: Sandbox) -> None:
    """The limit of int() is the session's to lift; the host's stays."""
    with sandbox.session(host={"f": lambda x: x}, answers="strict") as session:
        session.run("import sys\nsys.set_int_max_str_digits(0)\nbig = 10 ** 5000\nx = 1")
        outcome = session.run("FINAL(big)\nx")
        assert (outcome.value, outcome.state) == ("1", "kept")
        assert [len(answer.text) for answer in outcome.answers] == [5001]
        assert outcome.answers[0].value is None
        outcome = session.run("f([1, {'a': -big}])")
        assert outcome.error is not None and outcome.error.type == "ValueError"
        assert session.run("f('" + "1" * 5000 + "')[-1]").value == "'1'"
        with pytest.raises(TypeError, match="digits"):
            session.get("big")
        assert session.run("x").value == "1"


def test_no_reply_is_lost_between_threads(sandbox: Sandbox) -> None:
    """A thread that read for all dropped a reply that came before the other thread waited."""
    with sandbox.session(host={"f": lambda x: x}) as session:
        outcome = session.run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool: found = list(pool.map(f, range(1000)))\n"
            "found == list(range(1000))",
        )
        assert outcome.value == "True", outcome
