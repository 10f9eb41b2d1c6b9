"""Costs of a TorchRL chat whose code runs in sessions, beside TorchRL's own interpreter.

TorchRL has an environment of its own, `.venv-torchrl`, in which `benchmarks.torchrl_chats` runs;
where that is not, these rows are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .figure import Figure
from .many import descendants, pss
from .samples import Samples
from .work import CHAT_GROUP, CHAT_ROWS, CHAT_TURNS

_CONTEXT = 20e6
_ROOT = Path(__file__).parents[1]
_PYTHON = _ROOT / ".venv-torchrl" / "bin" / "python"


def chats() -> Iterator[Figure]:
    """The environment's part of a rollout; memory of a group of rows on one context (as root)."""
    if not _PYTHON.exists():
        print("chats of TorchRL are not measured: make .venv-torchrl/.ready", file=sys.stderr)
        return
    command = [str(_PYTHON), "-m", "benchmarks.torchrl_chats"]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        taken = json.loads(_said(process))
        yield Figure(
            "chat_rollout",
            f"environment's part of a TorchRL rollout, {CHAT_ROWS} rows of {CHAT_TURNS} turns",
            "ms",
            Samples(tuple(taken["ours"])),
            Samples(tuple(taken["theirs"])),
            "TorchRL's PythonInterpreter, persistent",
        )
        alone, group, alone_kept, group_kept = (_memory(process) for _ in range(4))
    if os.geteuid() == 0:
        yield _memory_of("chat_group_memory", "no recovery", group - alone)
        yield _memory_of("chat_group_memory_kept", "with recovery", group_kept - alone_kept)


def _memory_of(key: str, which: str, added: float) -> Figure:
    return Figure(
        key,
        f"memory (PSS) that {CHAT_GROUP} TorchRL rows on one 20 MB context add, {which}",
        "MB",
        Samples((added,)),
        Samples((_CONTEXT,)),
        "the context once",
    )


def _memory(process: subprocess.Popen[str]) -> float:
    """Of all sessions and templates that the program has now; only root may look at them."""
    _said(process)  # that they are there
    held = pss(lambda: descendants(process.pid)) if os.geteuid() == 0 else 0.0
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return held


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the rollouts of TorchRL have failed")
    return line
