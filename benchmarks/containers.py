"""Tier `container`, beside the same tier outside and beside `docker run` and `docker exec`.

Nothing is measured where no engine answers or starts, or where there is no interpreter that a
confined session of this user may read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from repl_sandbox import Sandbox, SandboxError, Session
from tests.containers.image import NoImageError
from tests.containers.ready import IMAGE, address_of, client_of_engine

from .cells import BATCH
from .figure import ROOMY, Figure
from .samples import Timed, interleave, timed
from .work import STEP

# The image's interpreter is Debian's as well, where the image was made of Debian's packages.
_PYTHONS = ("/usr/bin/python3", sys.executable)
_ANSWER = ("python3", "-c", "print(1+1)")


def containers() -> Iterator[Figure]:
    """First and further sessions, and steps."""
    with ExitStack() as stack:
        try:
            client = stack.enter_context(_engine())
            outside = stack.enter_context(_confined())
            sandbox = stack.enter_context(_contained())
        except (NoImageError, SandboxError) as error:
            print(f"containers: not measured: {error}", file=sys.stderr)
            return
        yield from _openings(client, sandbox, outside)
        with sandbox.session() as inside, outside.session() as beside:
            tasks: dict[str, Timed] = {
                "ours": lambda: _steps(inside),
                "floor": lambda: _steps(beside),
            }
            taken = interleave(tasks, rounds=30)
        yield Figure(
            "container_step",
            "step x = 1 in a container, beside tier confined",
            "us",
            taken["ours"],
            taken["floor"],
            "the same in tier confined",
        )


def _openings(client: list[str], sandbox: Sandbox, outside: Sandbox) -> Iterator[Figure]:
    running = [*client, "run", "--rm", "--network=none", IMAGE]
    kept = subprocess.run(
        [*client, "run", "--rm", "--detach", "--network=none", IMAGE, "sleep", "3600"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    try:
        few = interleave(
            {
                "first": _first,
                "run": lambda: _command([*running, *_ANSWER]),
                "exec": lambda: _command([*client, "exec", kept, *_ANSWER]),
                "further": lambda: _further(sandbox),
            },
            rounds=8,
            warm_up=1,
        )
    finally:
        subprocess.run([*client, "rm", "--force", kept], check=True, capture_output=True)
    many = interleave(
        {"ours": lambda: _further(sandbox), "floor": lambda: _further(outside)}, rounds=60
    )
    yield Figure(
        "container_first",
        "first session of a container to 1+1, beside docker run",
        "ms",
        few["first"],
        few["run"],
        "docker run to 1+1",
    )
    further = "further session of a container to 1+1, beside"
    for name in ("run", "exec"):
        told = f"docker {name}"
        shown = f"{further} {told}"
        yield Figure(f"container_{name}", shown, "ms", few["further"], few[name], f"{told} to 1+1")
    yield Figure(
        "container_session",
        f"{further} tier confined",
        "ms",
        many["ours"],
        many["floor"],
        "the same in tier confined",
    )


@contextmanager
def _engine() -> Iterator[list[str]]:
    with (
        tempfile.TemporaryDirectory(prefix="repl-bench-engine-") as folder,
        client_of_engine(Path(folder)) as client,
        mock.patch.dict(os.environ),
    ):
        address = address_of(client)
        if address is not None:
            os.environ["DOCKER_HOST"] = address
        yield client


def _confined() -> Sandbox:
    """A sandbox of the same tier outside; SandboxError: of the last interpreter."""
    *first, last = _PYTHONS
    for python in first:
        try:
            return Sandbox(isolation="confined", python=python, limits=ROOMY, recovery="restart")
        except SandboxError:
            continue
    return Sandbox(isolation="confined", python=last, limits=ROOMY, recovery="restart")


def _contained() -> Sandbox:
    return Sandbox(isolation="container", image=IMAGE, limits=ROOMY, recovery="restart")


def _first() -> float:
    start = time.perf_counter()
    with _contained() as sandbox:
        with sandbox.session() as session:
            _answered(session)
        return time.perf_counter() - start


def _further(sandbox: Sandbox) -> float:
    start = time.perf_counter()
    session = sandbox.session()
    _answered(session)
    seconds = time.perf_counter() - start
    session.close()
    return seconds


def _answered(session: Session) -> None:
    outcome = session.run("1+1")
    if outcome.value != "2":
        raise RuntimeError(f"1+1 came to {outcome!r}")


def _steps(session: Session) -> float:
    return timed(lambda: [session.run(STEP) for _ in range(BATCH)]) / BATCH


def _command(command: Sequence[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    if done.stdout != "2\n":
        raise RuntimeError(f"1+1 came to {done.stdout!r}")
    return time.perf_counter() - start
