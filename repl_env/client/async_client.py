"""`REPLEnv`: episodes on a server, with the methods of `LocalREPLEnv`, awaited.

What it stands on is in `repl_env.client`; docs/endpoint.md is the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isawaitable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol import reply_results
from repl_env.client.protocol.client_frames import RequestFrame
from repl_env.client.session.request_builder import (
    ResetArguments,
    action_data,
    check_callback,
    checked_timeout,
    following_data,
    plain_int,
)
from repl_env.client.session.session_client import SessionClient
from repl_env.errors import NotSupported
from repl_env.llm.model_spec import LLM
from repl_env.models import REPLAction, REPLObservation, REPLState, StepResult, action_of, showing

if TYPE_CHECKING:
    import ssl

    from repl_env.client.session.request_pipeline import Hear
    from repl_env.client.sync_client import SyncREPLEnv
    from repl_env.client.upload.resumable_upload import OnUpload
    from repl_env.episode.contexts import Given
    from repl_sandbox.types import JSON

__all__ = [
    "REPLEnv",
    "ReplAction",
    "ReplEnv",
    "ReplObservation",
]

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
        patience = Timeouts.of(
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            ping_s=ping_s,
        )
        self._seat = SessionClient(ServerAccess.of(base_url, api_key, headers, tls), patience)

    def __repr__(self) -> str:
        return f"<REPLEnv {self.base_url} {self._seat.condition}>"

    @property
    def base_url(self) -> str:
        """The server's address."""
        return str(self._seat.access.address)

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs; None without one, and on OpenEnv's servers."""
        return self._seat.session_id

    def sync(self) -> SyncREPLEnv:
        """This client for plain code. It is used by one or the other from then on."""
        from repl_env.client.sync_client import SyncREPLEnv

        return SyncREPLEnv(self)

    # ── the connection ───────────────────────────────────────────────────────────────────────────

    async def connect(self) -> Self:
        """Connect and have a session opened, unless there is one; `reset` does it as well.

        Raises:
            ServerUnavailable: the server is not to be reached.
            AuthenticationFailed: it wants another key.
            CapacityReached, QuotaExceeded: it has no session for this client now.
        """
        await self._seat.opened()
        return self

    async def disconnect(self) -> None:
        """End the session and the connection; OpenEnv's name for `close`."""
        await self.close()

    async def close(self) -> None:
        """End the session. Safe to call twice; a reset begins another one."""
        await self._seat.close()

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
        check_callback("on_upload", on_upload)
        return reply_results.step_result(await self._seat.reset(arguments, on_upload))

    async def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: Hear | None = None,
    ) -> Result:
        """Run the action's code, or submit its answer.

        `timeout_s` limits execution, in seconds, not waiting for sub-calls; None is the server's
        limit. `timeout` is another name of it. `on_output` is called with "stdout" or "stderr" and
        each piece of text while the code runs, or from an OpenEnv server with all of it at the end;
        what it raises ends the step.

        Raises:
            NotReset: no episode has begun, or the client was closed.
            EpisodeDone: the episode is over; the error carries its last result.
            EpisodeAborted: the engine's session is gone, by no fault of the policy.
            SessionLost: the session is gone.
            ServerError: see `repl_env.errors`.
            TypeError, ValueError: an argument is wrong; nothing was run.
        """
        data, limit = action_data(action), checked_timeout(timeout_s, timeout)
        check_callback("on_output", on_output)
        named = self._seat.present().named
        if limit is not None and not named:
            raise NotSupported("timeout_s: this server takes none, and has a limit of its own")
        if action.format_error is not None and not named:
            raise NotSupported("format_error: this server has no such step, and would run code")
        stream = named and on_output is not None
        request = RequestFrame("step", data, limit, stream)
        result = reply_results.step_result(
            await self._seat.ask(request, on_output if stream else None)
        )
        if on_output is not None and not stream:
            await _tell_all(result, on_output)
        return result

    async def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: Hear | None = None,
    ) -> Result:
        """One step that runs `code` for at most `timeout_s` (or `timeout`) seconds of execution."""
        return await self.step(
            action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output
        )

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
        return reply_results.step_result(await self._seat.ask(RequestFrame("follow_up", data)))

    async def draft(self) -> JSON:
        """What `answer["content"]` holds so far, or None."""
        found: JSON = (await self._seat.ask(RequestFrame("draft"))).get("value")
        return found

    async def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return reply_results.state(await self._seat.ask(RequestFrame("state")))

    async def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables, the functions offered."""
        if not self._seat.present().named:
            return (await self.state()).namespace_keys
        names = reply_results.field(await self._seat.ask(RequestFrame("variables")), "names", list)
        return list(map(str, names))

    async def branch(self, *, seed: int | None = None) -> Self:
        """Another client amid the same episode, in a session that is a copy; both go on apart.

        `seed`: of the branch's random numbers. See `LocalREPLEnv.branch`. Close both.
        """
        request = RequestFrame("branch", {} if seed is None else {"seed": plain_int(seed)})
        token = reply_results.field(await self._seat.ask(request), "token", str)
        other = object.__new__(type(self))
        other._seat = await self._seat.beside(token)
        return other


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
