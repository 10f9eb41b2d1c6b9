"""Nodes of a cluster: where their addresses come from, and which one gets the next session.

A node is a server (`repl-env node`). Nodes share nothing and know nothing of each other: the client
asks each one how much room it has (`GET /ready`), and opens each session on one of them.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import json
import os
import random
import re
import socket
import stat
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from repl_env.client.address import ServerAccess, ServerAddress, Timeouts
from repl_env.client.connection import RequestPipeline
from repl_env.client.session import open_session
from repl_env.client.uploads import HttpConnection
from repl_env.common.display import Closeable, set_module
from repl_env.common.files import read_regular
from repl_env.common.values import visible
from repl_env.episode.call_options import ResetOptions
from repl_env.errors import AuthenticationFailed, CapacityReached, ServerUnavailable

# Nodes: the sources of their addresses, and the reports of the nodes.

# The names of node files in a directory that nodes join (`repl-env serve --join DIR`).
NODE_FILE: Final = ".node.json"
_MAX_FILE = 1 << 16  # bytes of a node file
_MAX_NODES = 4096
# Seconds without a change of its file after which a node gets no new sessions. A node rewrites its
# file every `BEAT_S`. Changes are counted on this machine's clock, so clocks may differ.
BEAT_S: Final = 5.0
_SILENT_S = 6 * BEAT_S

# Problems that waiting does not end.
_WRONG_KEY = "the node does not accept this key"
_OPEN_TO_ALL = "every user can write to this directory; chmod o-w"


@set_module("repl_env.cluster")
@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as it reported itself last.

    Attributes:
        url: the address of the server, or the name of a file that names none.
        version: of the server's `repl-env`; "" if it did not answer.
        sessions: the number of open sessions.
        free: the number of sessions that could be opened now.
        waiting: clients in the server's queue.
        problem: why the node gets no new sessions, "" if it does.
    """

    url: str
    version: str = ""
    sessions: int = 0
    free: int = 0
    waiting: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node's address, or the reason why there is none."""

    url: str
    problem: str = ""


Find = Callable[[], Sequence[FoundNode]]


def finder(nodes: str | os.PathLike[str] | Sequence[str]) -> Find:
    """Return a function that returns the present nodes of a source.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if isinstance(nodes, os.PathLike):
        return _Registry(Path(nodes)).find
    if isinstance(nodes, str):
        scheme, separated, rest = nodes.partition("://")
        if separated and scheme == "dns":
            return _Name.parse(rest).find
        if not separated:
            return _Registry(Path(nodes)).find
        nodes = [nodes]
    if not isinstance(nodes, Sequence):
        raise TypeError("nodes must be a list of URLs, a directory, or dns://name:port")
    if not nodes:
        raise ValueError("nodes is empty: name a URL, a directory, or dns://name:port")
    found = tuple(FoundNode(str(ServerAddress.parse(url))) for url in nodes)
    return lambda: found


@dataclass(frozen=True, slots=True)
class _Name:
    """A DNS name with one address for each node, as of a headless service."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> _Name:
        address = ServerAddress.parse(f"http://{text}")
        return cls(address.host, address.port)

    def find(self) -> list[FoundNode]:
        """Look the name up."""
        try:
            rows = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            return [FoundNode(f"dns://{self.host}:{self.port}", f"no address: {error.strerror}")]
        hosts = sorted({str(row[4][0]) for row in rows})
        texts = (f"[{host}]" if ":" in host else host for host in hosts)
        return [FoundNode(f"http://{text}:{self.port}") for text in texts]


def check_directory(folder: Path) -> None:
    """Check that nodes can join `folder`.

    Raises:
        OSError: there is no such directory, or every user can write to it: a user could have the
            clients' keys sent to a server of their own.
    """
    mode = os.stat(folder).st_mode
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, _OPEN_TO_ALL, str(folder))


class _Registry:
    """A directory with one file for each node. No file of another kind is read."""

    def __init__(self, folder: Path) -> None:
        check_directory(folder)
        self._folder = folder
        # By file: its last content, and when this process first saw that content.
        self._contents: dict[str, tuple[bytes, float]] = {}

    def find(self) -> list[FoundNode]:
        """Read the files."""
        try:
            check_directory(self._folder)
            names = sorted(each for each in os.listdir(self._folder) if each.endswith(NODE_FILE))
        except OSError as error:
            return [FoundNode(str(self._folder), f"no directory of nodes: {error.strerror}")]
        gone = self._contents.keys() - set(names)
        for name in gone:
            del self._contents[name]
        return [self._read(name) for name in names[:_MAX_NODES]]

    def _read(self, name: str) -> FoundNode:
        path = self._folder / name
        try:
            content = read_regular(path, _MAX_FILE)
            url = str(ServerAddress.parse(json.loads(content)["url"]))
        except OSError as error:
            return FoundNode(visible(str(path)), f"unreadable: {error.strerror or error}")
        except (ValueError, TypeError, KeyError, RecursionError):
            return FoundNode(visible(str(path)), "not a node's file")
        now = time.monotonic()
        last, since = self._contents.get(name, (b"", now))
        if content != last:
            since = now
        self._contents[name] = content, since
        silent_s = now - since
        problem = f"its file has not changed for {silent_s:.0f} s" if silent_s > _SILENT_S else ""
        return FoundNode(url, problem)


class NodeFile(Closeable):
    """The file of a running node in a directory that nodes join, rewritten every `BEAT_S` seconds.

    A file is replaced as a whole, so readers never see a part of one. A node that is killed leaves
    its file behind; the file then changes no more, and the node does not answer.
    """

    def __init__(self, folder: Path, url: str) -> None:
        """Write the file.

        Raises:
            OSError: the directory is not there, or cannot be written to.
        """
        address = ServerAddress.parse(url)
        host = re.sub(r"[^A-Za-z0-9.-]", "-", address.host)
        self._folder, self._url = folder, str(address)
        self._path = folder / f"{host}-{address.port}{NODE_FILE}"
        self._ended = threading.Event()
        self._beats = itertools.count(1)
        self._write()
        self._thread = threading.Thread(target=self._beat, name="repl-node-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the file."""
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            # A file system that fails for a moment: clients use what they have read for half a
            # minute.
            with suppress(OSError):
                self._write()

    def _write(self) -> None:
        row = {"url": self._url, "version": version("repl-env"), "beat": next(self._beats)}
        with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
            try:
                json.dump(row, file)
                os.fchmod(file.fileno(), 0o644)
                file.close()
                os.replace(file.name, self._path)
            except OSError:
                os.unlink(file.name)
                raise


def _probed(found: FoundNode, access: ServerAccess, timeout_s: float) -> NodeStatus:
    """Ask a node how much room it has."""
    if found.problem:
        return NodeStatus(found.url, problem=found.problem)
    with HttpConnection(replace(access, address=ServerAddress.parse(found.url)), timeout_s) as http:
        try:
            response = http.request("GET", "/ready", None, {})
        except ServerUnavailable as error:
            return NodeStatus(found.url, problem=error.message)
    if response.status in (401, 403):
        return NodeStatus(found.url, problem=_WRONG_KEY)
    try:
        return _status_of(found.url, json.loads(response.body))
    except (ValueError, TypeError, KeyError, RecursionError):
        problem = f"no node of repl-env: GET /ready has status {response.status}"
        return NodeStatus(found.url, problem=problem)


def _status_of(url: str, data: Mapping[str, Any]) -> NodeStatus:
    counts = [data[name] for name in ("sessions", "free", "waiting")]
    ready = data["ready"]
    if any(type(count) is not int or count < 0 for count in counts) or type(ready) is not bool:
        raise TypeError
    theirs, ours = visible(str(data.get("version") or ""))[:40], version("repl-env")
    status = NodeStatus(url, theirs, *counts)
    if _series(theirs) != _series(ours):
        found = f"version {theirs}" if theirs else "a version that does not say its number"
        return replace(status, problem=f"it has {found}, this client {ours}")
    return status if ready else replace(status, problem="stopping" if status.free else "")


def _series(text: str) -> list[str]:
    """Return the part of a version within which servers and clients fit."""
    return text.split(".")[:2]


# `Placement`: chooses the node of each session.

# Seconds that a node's report is used for; sessions that this client opens meanwhile are counted.
_FRESH_S = 1.0
# Seconds for which a node gets no sessions after it refused one, or could not be reached.
_AVOIDED_S = 3.0
# Bounds of the pause before another look for room, in seconds.
_PAUSES_S = (0.1, 0.4)
# A node that holds the context already is chosen unless it has this much more than the mean.
_MOST_LOAD = 1.25
_PROBES = 32  # nodes asked at once
# Contexts from here on are uploaded beside the reset, and stay on the node for other sessions.
_SHARED_CHARACTERS = 1 << 20
_SAMPLE = 1 << 14


def _context_hint(options: ResetOptions) -> str:
    """Return a text that is equal for equal large contexts, "" for others."""
    context = options.context
    if not isinstance(context, (str, bytes)) or len(context) < _SHARED_CHARACTERS:
        return ""
    ends = context[:_SAMPLE], context[-_SAMPLE:]
    return hashlib.sha256(repr((len(context), *ends)).encode()).hexdigest()


@dataclass(slots=True)
class _View:
    """The last reports of the nodes, and the sessions placed since."""

    statuses: list[NodeStatus] = field(default_factory=list)
    due: float = 0.0  # of the next look, on the monotonic clock
    placed: Counter[str] = field(default_factory=Counter)
    avoided: dict[str, tuple[float, str]] = field(default_factory=dict)  # until when, and why


class Placement:
    """Opens sessions on nodes. One is used by all event loops and threads of a process."""

    def __init__(
        self, find: Find, access: ServerAccess, *, probe_s: float, queue_s: float, max_waiting: int
    ) -> None:
        self.access = access
        self._find, self._probe_s = find, probe_s
        self._queue_s, self._max_waiting = queue_s, max_waiting
        self._view = _View()
        self._waiting = 0
        self._lock = threading.Lock()  # of the view and the number
        self._looking = threading.Lock()  # held while nodes are asked

    def statuses(self) -> list[NodeStatus]:
        """Ask all nodes now."""
        with self._looking:
            return self._look()

    @property
    def known(self) -> int:
        """The number of nodes at the last look."""
        return len(self._view.statuses)

    async def open(
        self, timeouts: Timeouts, options: ResetOptions | None
    ) -> tuple[ServerAccess, RequestPipeline]:
        """Open a session for the reset `options` on a node, waiting until one has room.

        Raises:
            AuthenticationFailed: no node accepts the key.
            CapacityReached: no node had room in time, or too many wait already.
            ServerError: the chosen node refuses this client for good.
        """
        now, began = time.monotonic, time.monotonic()
        hint = "" if options is None else _context_hint(options)
        with self._queued():
            while True:
                url = await asyncio.to_thread(self._choose, hint)
                left_s = began + self._queue_s - now()
                if url is not None:
                    access = replace(self.access, address=ServerAddress.parse(url))
                    try:
                        async with asyncio.timeout(max(left_s, timeouts.connect_s)):
                            return access, await open_session(access, timeouts)
                    except (ServerUnavailable, CapacityReached) as error:
                        self._avoid(url, error.message)
                    except TimeoutError:
                        self._avoid(url, "it granted no session in time")
                if left_s <= 0:
                    statuses = await asyncio.to_thread(self.statuses)
                    raise CapacityReached(self._why_none(statuses))
                if url is None:
                    await asyncio.sleep(min(random.uniform(*_PAUSES_S), left_s))

    @contextmanager
    def _queued(self) -> Iterator[None]:
        with self._lock:
            if self._waiting >= self._max_waiting:
                raise CapacityReached(f"{self._waiting:,} resets wait already (max_waiting)")
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _choose(self, hint: str) -> str | None:
        """Return the node of the next session, and count it there; None if there is no room."""
        with self._looking:
            if time.monotonic() >= self._view.due:
                self._look()
        with self._lock:
            view = self._view
            now = time.monotonic()
            room = [
                each
                for each in view.statuses
                if not each.problem
                and each.free > view.placed[each.url]
                and view.avoided.get(each.url, (0.0, ""))[0] <= now
            ]
            if not room:
                if view.statuses and all(each.problem == _WRONG_KEY for each in view.statuses):
                    raise AuthenticationFailed(f"no node accepts the key ({view.statuses[0].url})")
                return None
            url = self._nearest(room, hint) if hint else self._emptier(room)
            view.placed[url] += 1
            return url

    def _emptier(self, room: Sequence[NodeStatus]) -> str:
        """Of two nodes at random, the one with more room: many clients that all choose the emptiest
        node would choose the same one.
        """
        pair = random.sample(room, min(2, len(room)))
        return max(pair, key=lambda each: each.free - self._view.placed[each.url]).url

    def _nearest(self, room: Sequence[NodeStatus], hint: str) -> str:
        """The node that each client chooses first for this context (rendezvous hashing), unless it
        has more than its share.
        """
        placed = self._view.placed
        loads = {each.url: each.sessions + placed[each.url] for each in room}
        most = _MOST_LOAD * sum(loads.values()) / len(loads) + 1
        ranked = sorted(loads, key=lambda url: hashlib.sha256(f"{hint} {url}".encode()).digest())
        return next((url for url in ranked if loads[url] <= most), ranked[0])

    def _avoid(self, url: str, reason: str) -> None:
        with self._lock:
            self._view.avoided[url] = time.monotonic() + _AVOIDED_S, reason

    def _look(self) -> list[NodeStatus]:
        found = list({each.url: each for each in self._find()}.values())
        with ThreadPoolExecutor(min(len(found), _PROBES) or 1, "repl-nodes") as threads:
            statuses = list(threads.map(self._probe, found))
        with self._lock:
            now = time.monotonic()
            avoided = {u: each for u, each in self._view.avoided.items() if each[0] > now}
            self._view = _View(statuses, now + _FRESH_S, avoided=avoided)
        return statuses

    def _probe(self, found: FoundNode) -> NodeStatus:
        return _probed(found, self.access, self._probe_s)

    def _why_none(self, statuses: Sequence[NodeStatus]) -> str:
        """Return the sentence with the numbers for a client that found no room."""
        with self._lock:
            avoided, waiting = self._view.avoided, self._waiting
        usable = [each for each in statuses if not each.problem]
        sessions, free = sum(each.sessions for each in usable), sum(each.free for each in usable)
        problems = [f"{each.url}: {each.problem}" for each in statuses if each.problem]
        problems += [f"{url}: {reason}" for url, (_, reason) in avoided.items()]
        listed = "".join(f"; {each}" for each in problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        return (
            f"no node had room within {self._queue_s:g} s: {len(usable)} of {len(statuses)} nodes "
            f"take sessions, {sessions} sessions are open, {free} could be, "
            f"resets that wait: {waiting}{listed}{more}"
        )
