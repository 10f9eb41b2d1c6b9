"""`REPLEnv`: episodes on a server, with the methods of `LocalREPLEnv`, awaited.

What it stands on is in `repl_env.remote`; docs/endpoint.md is the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from inspect import isawaitable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from repl_env.errors import NotReset, NotSupported, REPLError, ServerError, SessionLost, TooLarge
from repl_env.llm import LLM
from repl_env.models import (
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    showing,
)
from repl_env.remote import results
from repl_env.remote.access import Access
from repl_env.remote.frames import PLAIN, Request
from repl_env.remote.parcels import LATEST, Parcel
from repl_env.remote.patience import Patience
from repl_env.remote.requests import ResetArguments, action_data, checked_timeout, following_data

if TYPE_CHECKING:
    import ssl

    from repl_env.contexts import Given
    from repl_env.remote.asking import Asking, Hear
    from repl_env.remote.uploading import OnUpload
    from repl_env.sync_client import SyncREPLEnv
    from repl_sandbox.types import JSON

Result = StepResult[REPLObservation]


class REPLEnv:
    """Episodes in a session on a server.

    ```python
    async with REPLEnv("http://localhost:8000") as env:
        await env.reset(context="a long text", task_prompt="How many words?")
        result = await env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.done, result.metadata["final_answer"])
    ```
    In plain code: `with REPLEnv(url).sync() as env:`, the same without `await`.

    The methods are those of `LocalREPLEnv`; not to be had from afar are `save`, `load`, `session`,
    `rubric`, `account` and `contexts`. One request is on its way at a time; others wait for it.
    Whoever cancels a step that is awaited has it cancelled on the server.

    A dropped connection is made again within the time that the server keeps the session, and the
    request under way is answered, having been carried out once. After that, or with a server that
    only knows OpenEnv's frames, it is SessionLost, until a reset begins another session.

    Args:
        base_url: of http, https, ws or wss, with a path if the server is below one.
        api_key: for `Authorization: Bearer`; in `X-API-Key` if `headers` has an `Authorization`.
        headers: more headers, for instance for a private Space. They are sent to this server only,
            and are in no repr, error or log, as the key is.
        connect_timeout_s: to be connected.
        message_timeout_s: for a reply to any request, the waiting for others with it. None: no time
            but the step's own and the server's; from time to time, and when a reply should have
            come, the client asks whether the server still works on it.
        max_message_size_mb: of what the server may send at once, in MiB, and of what is sent to one
            that tells no limit.
        ping_s: between pings on the connection, which is lost after three times as long without an
            answer. None: no pings, for tunnels that drop them.
        tls: the certificates to trust, if not those of the system.
        provider: None, which OpenEnv's `AutoEnv` says; a client starts no servers.

    Raises:
        TypeError, ValueError: naming the argument. Nothing is connected yet.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float | None = None,
        max_message_size_mb: float = 100.0,
        ping_s: float | None = 20.0,
        tls: ssl.SSLContext | None = None,
        provider: None = None,
    ) -> None:
        if provider is not None:
            raise TypeError("provider: a client starts no servers; give the URL of one that runs")
        patience = Patience.of(
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            ping_s=ping_s,
        )
        self._begin(Access.of(base_url, api_key, headers, tls), patience)

    def _begin(self, access: Access, patience: Patience) -> None:
        self._access, self._patience = access, patience
        self._asking: Asking | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()  # of that loop
        self._uploaded: set[str] = set()

    def __repr__(self) -> str:
        said = "closed" if self._asking is None else "lost" if self._asking.lost else "open"
        return f"<REPLEnv {self.base_url} {said}>"

    @property
    def base_url(self) -> str:
        """The server's address."""
        return str(self._access.address)

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs; None without one, and on OpenEnv's servers."""
        told = None if self._asking is None else self._asking.told
        return None if told is None else told.session_id

    def sync(self) -> SyncREPLEnv:
        """This client for plain code. It is used by one or the other from then on."""
        from repl_env.sync_client import SyncREPLEnv

        return SyncREPLEnv(self)

    # ── the connection ───────────────────────────────────────────────────────────────────────────

    async def connect(self) -> Self:
        """Connect and have a session opened, unless there is one; `reset` does it as well.

        Raises:
            ServerUnavailable: the server is not to be reached.
            AuthenticationFailed: it wants another key.
            CapacityReached, QuotaExceeded: it has no session for this client now.
        """
        await self._opened()
        return self

    async def disconnect(self) -> None:
        """End the session and the connection; OpenEnv's name for `close`."""
        await self.close()

    async def close(self) -> None:
        """End the session. Safe to call twice; a reset begins another one."""
        LATEST.forget(lambda parcel: parcel.sha256 in self._uploaded)
        self._uploaded.clear()
        self._check_loop()
        async with self._opening:
            asking, self._asking = self._asking, None
            if asking is not None:
                await asking.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> NoReturn:
        raise TypeError("write `async with`, or in plain code `with REPLEnv(...).sync() as env:`")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client cannot be pickled: its connection is this process's; make another"
        )

    @classmethod
    def from_docker_image(cls, image: str, *_: Any, **__: Any) -> NoReturn:
        """Not here: a client starts no containers."""
        raise NotImplementedError(
            f"start the image yourself (docker run -p 8000:8000 {image}), "
            "then REPLEnv('http://localhost:8000'), or use LocalREPLEnv, which needs no server"
        )

    @classmethod
    def from_env(cls, repo_id: str, *_: Any, **__: Any) -> NoReturn:
        """Not here: a client starts no Spaces."""
        name = "".join(c if c.isalnum() else "-" for c in repo_id.lower())
        raise NotImplementedError(
            f"connect to the Space where it runs: REPLEnv('https://{name}.hf.space')"
        )

    # ── the episode ──────────────────────────────────────────────────────────────────────────────

    async def reset(
        self,
        *,
        context: Given | None = None,
        contexts: Mapping[str, Given] | None = None,
        files: Mapping[str, str | bytes | Path] | None = None,
        task_prompt: str | None = None,
        max_iterations: int | None = None,
        seed: int | None = None,
        episode_id: str | None = None,
        hf_token: str | None = None,
        llm_model: str | None = None,
        llm: LLM | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        rlm_max_depth: int | None = None,
        rlm_max_iterations: int | None = None,
        on_upload: OnUpload | None = None,
    ) -> Result:
        """Begin an episode, in a new session of the engine; see `LocalREPLEnv.reset`.

        What is None is as the server has it. Contexts of 1 MiB and more are uploaded by HTTP first,
        unless the server has them already: `on_upload` is called with the bytes that are there and
        the bytes of all. A `pathlib.Path` is read here, not on the server. A token, key or expected
        answer is sent if it is given, and never taken from the environment. A type as
        `answer_schema` is sent as its JSON schema: answers are checked by it, not converted.

        Raises:
            TypeError, ValueError, OSError: naming the argument; the last episode is untouched.
            InvalidRequest, TooLarge: the server refuses an argument; likewise.
            ServerError: see `connect`, and `repl_env.errors`.
        """
        arguments = ResetArguments(
            context=context,
            contexts=contexts,
            files=files,
            task_prompt=task_prompt,
            max_iterations=max_iterations,
            seed=seed,
            episode_id=episode_id,
            hf_token=hf_token,
            llm_model=llm_model,
            llm=llm,
            expected_answer=expected_answer,
            answer_schema=answer_schema,
            rlm_max_depth=rlm_max_depth,
            rlm_max_iterations=rlm_max_iterations,
        )
        arguments.check()
        asking = await self._opened()
        data, parcels = await arguments.data(named=asking.named)
        try:
            return await self._reset(asking, data, parcels, on_upload)
        except SessionLost:
            if self._asking is not asking:  # it was closed meanwhile, by whoever has this client
                raise
            # An episode needs nothing of the session before, and this one is not there any more.
            return await self._reset(await self._opened(), data, parcels, on_upload)

    async def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        on_output: Hear | None = None,
    ) -> Result:
        """Run the action's code, or submit its answer.

        `timeout_s` limits execution, in seconds, not waiting for sub-calls; None is the server's
        limit. `on_output` is called with "stdout" or "stderr" and each piece of text while the code
        runs, or from an OpenEnv server with all of it at the end; what it raises ends the step.

        Raises:
            NotReset: no episode has begun, or the client was closed.
            EpisodeDone: the episode is over; the error carries its last result.
            EpisodeAborted: the engine's session is gone, by no fault of the policy.
            SessionLost: the session is gone.
            ServerError: see `repl_env.errors`.
            TypeError, ValueError: an argument is wrong; nothing was run.
        """
        data, limit = action_data(action), checked_timeout(timeout_s)
        asking = self._present()
        if limit is not None and not asking.named:
            raise NotSupported("timeout_s: this server takes none, and has a limit of its own")
        stream = asking.named and on_output is not None
        reply = await self._ask(
            "step", data, timeout_s=limit, stream=stream, hear=on_output if stream else None
        )
        result = results.step_result(reply)
        if on_output is not None and not stream:
            await _tell_all(result, on_output)
        return result

    async def execute(
        self, code: str, *, timeout_s: float | None = None, on_output: Hear | None = None
    ) -> Result:
        """One step that runs `code` for at most `timeout_s` seconds of execution."""
        return await self.step(REPLAction(code=code), timeout_s=timeout_s, on_output=on_output)

    async def submit_final_answer(self, answer: JSON) -> Result:
        """One step that ends the episode with `answer`, unless its schema refuses it."""
        return await self.step(REPLAction(is_final=True, final_answer=answer))

    async def get_variable(self, name: str) -> Result:
        """One step that prints the repr of a variable, or of a dotted path from one."""
        return await self.execute(showing(name))

    async def follow_up(
        self,
        *,
        task_prompt: str,
        max_iterations: int | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, str | bytes | JSON] | None = None,
    ) -> Result:
        """Begin another episode in the session that is there; see `LocalREPLEnv.follow_up`."""
        data = following_data(
            task_prompt, max_iterations, expected_answer, answer_schema, variables
        )
        return results.step_result(await self._ask("follow_up", data))

    async def draft(self) -> JSON:
        """What `answer["content"]` holds so far, or None."""
        found: JSON = (await self._ask("draft")).get("value")
        return found

    async def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return results.state(await self._ask("state"))

    async def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables, the functions offered."""
        if self._present().named:
            return list(map(str, results.field(await self._ask("variables"), "names", list)))
        return (await self.state()).namespace_keys

    async def branch(self, *, seed: int | None = None) -> Self:
        """Another client amid the same episode, in a session that is a copy; both go on apart.

        `seed`: of the branch's random numbers. See `LocalREPLEnv.branch`. Close both.
        """
        from repl_env.remote.opening import open_session

        reply = await self._ask("branch", {} if seed is None else {"seed": seed})
        token = results.field(reply, "token", str)
        other = object.__new__(type(self))
        other._begin(self._access, self._patience)
        other._check_loop()
        other._asking = await open_session(self._access, self._patience, token)
        return other

    # ── what they stand on ───────────────────────────────────────────────────────────────────────

    async def _opened(self) -> Asking:
        """The session, or a new one if there is none."""
        from repl_env.remote.opening import open_session

        self._check_loop()
        async with self._opening:
            if self._asking is not None and self._asking.lost:
                lost, self._asking = self._asking, None
                await lost.close()
            if self._asking is None:
                self._asking = await open_session(self._access, self._patience)
            return self._asking

    async def _reset(
        self,
        asking: Asking,
        data: Mapping[str, Any],
        parcels: list[Parcel],
        on_upload: OnUpload | None,
    ) -> Result:
        from repl_env.remote.uploading import upload

        told = asking.told
        _check_sizes(parcels, None if told is None else told.context_bytes)
        for again in (True, False):
            if parcels:
                self._uploaded.update(parcel.sha256 for parcel in parcels)
                most_piece = None if told is None else told.message_bytes
                await upload(parcels, self._access, most_piece=most_piece, on_upload=on_upload)
            try:
                return results.step_result(await asking.ask(Request("reset", data)))
            except ServerError as error:
                # A context that nobody uses may have to make room before it is used.
                if error.code != "UNKNOWN_CONTEXT" or not again:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _present(self) -> Asking:
        """The session; NotReset if there is none, since a step begins none."""
        self._check_loop()
        if self._asking is None:
            raise NotReset
        return self._asking

    async def _ask(
        self,
        kind: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        stream: bool = False,
        hear: Hear | None = None,
    ) -> Mapping[str, Any]:
        asking = self._present()
        if not asking.named and kind not in PLAIN:
            raise NotSupported(f"this server knows OpenEnv's requests alone, and no {kind!r}")
        return await asking.ask(Request(kind, data, timeout_s, stream), hear)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._asking is None and not self._opening.locked():
            self._loop, self._opening = loop, asyncio.Lock()
        else:
            raise REPLError(
                "this client has a connection in another event loop, or another process: use it "
                "in one alone, or `REPLEnv(...).sync()` in plain code"
            )


def _check_sizes(parcels: list[Parcel], most: int | None) -> None:
    for parcel in parcels:
        if most is not None and parcel.size > most:
            raise TooLarge(f"{parcel.name} has {parcel.size:,} bytes; the server takes {most:,}")


async def _tell_all(result: Result, hear: Hear) -> None:
    printed = result.observation.result
    for stream, text in (("stdout", printed.stdout), ("stderr", printed.stderr)):
        told = hear(stream, text) if text else None
        if isawaitable(told):
            await told


# As OpenEnv's `AutoEnv` derives them from the name of a distribution.
ReplEnv = REPLEnv
ReplAction = REPLAction
ReplObservation = REPLObservation
