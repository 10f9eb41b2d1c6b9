"""`TrajectoryWriter`: writes events to a file as they happen, one line each.

Each line is one write, so a crash at any point costs at most the present line, and a file that ends
in half a line can still be read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_env.common.display import Closeable, set_module
from repl_env.common.files import PRIVATE, append_line, make_private
from repl_env.errors import REPLError
from repl_env.rlm.model_call import AnyEvent, RunStarted
from repl_env.rlm.trajectory_events import FORMAT, VERSION, as_line, written

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# Bytes of JSON for all contexts of a file: enough to replay small examples, and too little to
# matter next to the turns.
MAX_CONTEXT = 65_536

# The replacement of a secret. Never shorter texts: they occur by chance, and are no secrets.
_HIDDEN = "[secret]"
SHORTEST_SECRET = 8


@set_module("repl_env.rlm")
class TrajectoryWriter(Closeable):
    """Writes the trajectory of one tree of runs; pass it as a `EventHandler`.

    ```python
    with TrajectoryWriter("run.jsonl") as writer:
        RLM(model, trajectory=writer).run(question)
    ```
    Safe to use from several threads. The file has no credentials, unless a prompt, an output or an
    error text contains them; `secrets` are removed from these.

    Args:
        path: the file; its folder must exist.
        overwrite: whether an existing file may be replaced.
        sync: flush each line to the disk before going on, so that not even a crash of the machine
            loses it. The run waits for that, milliseconds for each event.
        figures: keep the figures of observations, as base64, and their displays.
        contexts: those of the root run. One that fits into the rest of `MAX_CONTEXT` is written
            whole; of others only a SHA-256, for recognition.
        settings: JSON about the run for readers of the file. A replay uses "max_depth", "blocks",
            "budget" and "seed".
        secrets: texts of 8 characters or more, which "[secret]" replaces in all texts.

    Raises:
        FileExistsError: the file exists, and `overwrite` is false.
        OSError: the file cannot be written.
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        sync: bool = False,
        figures: bool = True,
        contexts: Mapping[str, Any] | None = None,
        settings: Mapping[str, JSON] | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self.path = Path(path)
        self._secrets = _checked(secrets)
        self._sync, self._figures = sync, figures
        self._lock = threading.Lock()
        self._written = 0
        self._runs: set[str] = set()
        self._broken: OSError | None = None
        header = as_line(
            {
                "format": FORMAT,
                "version": VERSION,
                "created": time.time(),
                "figures": figures,
                "contexts": _contexts(contexts or {}),
                "settings": _settings(settings or {}),
            }
        )
        kind = os.O_TRUNC if overwrite else os.O_EXCL
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | kind
        self._file: int | None = os.open(self.path, flags, PRIVATE)
        try:
            make_private(self._file)
            self._write(header)
        except BaseException:
            self.close()
            raise

    def __call__(self, event: AnyEvent) -> None:
        """Write `event`.

        Raises:
            OSError: it cannot be written. The file has all events before it, and accepts no others:
                a gap would be invisible to readers.
            ValueError: a run of this name has begun before; a file holds one tree.
            REPLError: the writer is closed.
        """
        with self._lock:
            if isinstance(event, RunStarted) and event.run in self._runs:
                raise ValueError(f"{self.path} has a run {event.run!r} already: one tree to a file")
            self._write(written(event, self._written + 1, figures=self._figures))
            self._written += 1
            if isinstance(event, RunStarted):
                self._runs.add(event.run)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _write(self, line: bytes) -> None:
        if self._file is None:
            raise REPLError(f"the trajectory {self.path} is closed")
        if self._broken is not None:
            raise self._broken
        try:
            append_line(self._file, self._without_secrets(line))
            if self._sync:
                os.fdatasync(self._file)
        except OSError as error:
            error.filename = str(self.path)
            self._broken = error
            raise

    def _without_secrets(self, line: bytes) -> bytes:
        """Return the line without secrets.

        Only affected lines are parsed, as a match may be half a number.
        """
        for secret in self._secrets:
            if any(form in line for form in _forms(secret)):
                fields = json.loads(line)
                for each in self._secrets:
                    fields = _hiding(each, fields)
                return as_line(fields)
        return line


def _contexts(contexts: Mapping[str, Any]) -> dict[str, Any]:
    from repl_env.episode.contexts import resolve

    if not contexts:
        return {}
    left, noted = MAX_CONTEXT, {}
    for part in resolve(None, dict(contexts), None, mode="none", preview_length=0).parts:
        kind, value = _as_json(part.value)
        note = {"length": part.length, "sha256": digest(part.value)}
        # A character is at least one byte, so the length alone rules out a long text.
        size = part.length if part.length > left else len(as_line({kind: value}))
        if size <= left:
            left -= size
            note[kind] = value
        noted[part.name] = note
    return noted


def _as_json(value: Any) -> tuple[str, Any]:
    from repl_sandbox.tables import Table  # imported here: a trajectory is read without an engine

    if isinstance(value, str):
        return "text", value
    if isinstance(value, bytes):
        return "base64", base64.b64encode(value).decode("ascii")
    if isinstance(value, Table):
        return "table", base64.b64encode(value.data).decode("ascii")
    return "json", value


def digest(value: Any) -> str:
    """Return the SHA-256 of a context: of its bytes, its text as UTF-8, or its text as JSON."""
    from repl_sandbox.tables import Table

    value = value.data if isinstance(value, Table) else value
    text = value if isinstance(value, (str, bytes)) else json.dumps(value, ensure_ascii=False)
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"settings must be JSON: {error}") from None
    return dict(settings)


def _checked(secrets: Iterable[str]) -> tuple[str, ...]:
    if isinstance(secrets, str):
        raise TypeError("secrets must be several texts, not one str")
    found = set()
    for secret in secrets:
        if not isinstance(secret, str):
            raise TypeError(f"secrets must be texts, not {type(secret).__name__}")
        if len(secret) < SHORTEST_SECRET:
            raise ValueError(f"secrets: one is shorter than {SHORTEST_SECRET} characters")
        found.add(secret)
    # The longest first: one may be a part of another.
    return tuple(sorted(found, key=len, reverse=True))


def _forms(secret: str) -> tuple[bytes, bytes]:
    """Return the forms of a secret in a line, which may be written in two ways."""
    plain = json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "replace")
    return plain, json.dumps(secret)[1:-1].encode()


def _hiding(secret: str, value: Any) -> Any:
    """Return the JSON `value` with each text free of `secret`."""
    if isinstance(value, str):
        return value.replace(secret, _HIDDEN)
    if isinstance(value, dict):
        return {name: _hiding(secret, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hiding(secret, item) for item in value]
    return value
