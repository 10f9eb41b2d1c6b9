"""`REPLEnv`: episodes on a server, with the methods of `LocalREPLEnv`, awaited.

The modules of `repl_env.client` implement the protocol of docs/endpoint.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from repl_env.client.address import ServerAccess, Timeouts
from repl_env.client.requests import EpisodeRequests, checked_timeout
from repl_env.client.session import SessionClient
from repl_env.common.display import AsyncCloseable, DisplayedByRepr, set_module
from repl_env.episode.call_options import FollowUpOptions, ResetOptions
from repl_env.llm.spec import LLM
from repl_env.models import REPLAction, REPLObservation, REPLState, StepResult, action_of, showing

if TYPE_CHECKING:
    import ssl

    from repl_env.client.connection import OutputCallback
    from repl_env.client.files import RemoteFiles
    from repl_env.client.sync_client import SyncREPLEnv
    from repl_env.client.uploads import OnUpload
    from repl_env.episode.contexts import Given
    from repl_env.episode.initial_files import Files
    from repl_sandbox.tables import Settable
    from repl_sandbox.types import JSON


__all__ = [
    "REPLEnv",
    "ReplAction",
    "ReplEnv",
    "ReplObservation",
]

Result = StepResult[REPLObservation]


@set_module("repl_env")
class REPLEnv(DisplayedByRepr, AsyncCloseable):
    """Episodes in a session on a server.

    ```python
    async with REPLEnv("http://localhost:8000") as env:
        await env.reset(context="a long text", task_prompt="How many words?")
        result = await env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.done, result.metadata["final_answer"])  # True 3
    ```
    In blocking code: `with REPLEnv(url).sync() as env:`, the same without `await`.

    The methods are those of `LocalREPLEnv`, except `save`, `load`, `session`, `rubric`, `account`
    and `contexts`, which are not available on a remote session. One request is sent at a time;
    others wait for it. Cancelling an awaited step cancels the step on the server.

    A dropped connection is reopened within the time that the server keeps the session, and a
    pending request is answered after exactly one execution. After that time, or with a server that
    only speaks OpenEnv's frames, calls raise SessionLost, until a reset begins another session.

    Args:
        base_url: http, https, ws or wss, with a path if the server has one.
        api_key: sent as `Authorization: Bearer`; as `X-API-Key` if `headers` has an
            `Authorization`.
        headers: further headers, for instance for a private Space. They are sent to this server
            only; like the key, they are in no repr, error or log.
        connect_timeout_s: time limit of connecting.
        message_timeout_s: time limit of a reply to any request, including the time in the queue.
            None: only the step's own limit and the server's; at intervals, and when a reply is
            overdue, the client asks whether the server still works on it.
        max_message_size_mb: limit on a message from the server in MiB, and on a message to a server
            that reports no limit.
        ping_s: interval of pings on the connection, which counts as lost after three intervals
            without an answer. None: no pings, for tunnels that drop them.
        tls: trusted certificates, if not those of the system.
        provider: None, which OpenEnv's `AutoEnv` passes; a client starts no servers.

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
        timeouts = Timeouts.of(
            connect_timeout_s=connect_timeout_s,
            message_timeout_s=message_timeout_s,
            max_message_size_mb=max_message_size_mb,
            ping_s=ping_s,
        )
        access = ServerAccess.of(base_url, api_key, headers, tls)
        self._use_session(SessionClient(access, timeouts))

    @classmethod
    def _of(cls, session_client: SessionClient) -> Self:
        """Return a client with a session client of its own."""
        made = object.__new__(cls)
        made._use_session(session_client)
        return made

    def _use_session(self, session_client: SessionClient) -> None:
        self._session_client = session_client
        self._requests = EpisodeRequests(session_client)

    def __repr__(self) -> str:
        return f"<REPLEnv {self.base_url[:200]} {self._session_client.condition}>"

    @property
    def base_url(self) -> str:
        """The server's address."""
        return str(self._session_client.access.address)

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs; None without one, and on OpenEnv's servers."""
        return self._session_client.session_id

    def sync(self) -> SyncREPLEnv:
        """Return a blocking client around this one, which must not be used directly from then
        on.
        """
        from repl_env.client.sync_client import SyncREPLEnv

        return SyncREPLEnv(self)

    @property
    def files(self) -> RemoteFiles:
        """The files of the session's workspace: `put`, `get`, `list`, `archive`, awaited.

        ```python
        await env.files.put("train.csv", "a,b\\n1,2\\n")
        await env.execute("rows = open('train.csv').read().split()")
        print(await env.files.get("train.csv"))  # b'a,b\\n1,2\\n'
        ```
        """
        from repl_env.client.files import RemoteFiles

        return RemoteFiles(self._session_client)

    # ── the connection ───────────────────────────────────────────────────────────────────────────

    async def connect(self) -> Self:
        """Connect and open a session, unless there is one; `reset` does so as well.

        Raises:
            ServerUnavailable: the server cannot be reached.
            AuthenticationFailed: the server requires another key.
            CapacityReached, QuotaExceeded: the server has no session for this client now.
        """
        await self._session_client.ensure_open()
        return self

    async def disconnect(self) -> None:
        """End the session and the connection; OpenEnv's name for `close`."""
        await self.close()

    async def close(self) -> None:
        """End the session. Safe to call twice; a reset begins another one."""
        await self._session_client.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

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
        """Raise NotSupported: a client starts no containers."""
        raise NotImplementedError(
            f"start the image yourself (docker run -p 8000:8000 {image}), "
            "then REPLEnv('http://localhost:8000'), or use LocalREPLEnv, which needs no server"
        )

    @classmethod
    def from_env(cls, repo_id: str, *_: Any, **__: Any) -> NoReturn:
        """Raise NotSupported: a client starts no Spaces."""
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
        files: Files | None = None,
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
        """Begin an episode, in a new session of the engine.

        The arguments are those of `LocalREPLEnv.reset`. None means the server's default. Contexts
        from 1 MiB on are first uploaded by HTTP, unless the server has them already: `on_upload` is
        called with the bytes sent and the bytes in total. A `pathlib.Path` is read here, not on the
        server. A token, key or expected answer is sent if it is given, and never taken from the
        environment. A type as `answer_schema` is sent as its JSON schema, which checks answers
        without converting them.

        Raises:
            TypeError, ValueError, OSError: naming the argument; the previous episode is untouched.
            InvalidRequest, TooLarge: the server refuses an argument; likewise.
            ServerError: see `connect`, and `repl_env.errors`.
        """
        return await self._requests.reset(ResetOptions.of(locals()), on_upload)

    async def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> Result:
        """Run the action's code, or submit its answer.

        `timeout_s` limits execution in seconds, without the time of sub-calls; None means the
        server's limit. `timeout` is another name of it. `on_output` is called with "stdout" or
        "stderr" and each piece of text while the code runs; with OpenEnv's server, once at the end
        with all output. An exception of `on_output` ends the step.

        Raises:
            NotReset: no episode has begun, or the client was closed.
            EpisodeDone: the episode is over; the error carries its last result.
            EpisodeAborted: the engine's session is lost, through no fault of the policy.
            SessionLost: the server's session is lost.
            ServerError: see `repl_env.errors`.
            TypeError, ValueError: an argument is invalid; nothing was run.
        """
        limit = checked_timeout(timeout_s, timeout)
        return await self._requests.step(action, limit, on_output)

    async def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: OutputCallback | None = None,
    ) -> Result:
        """Run `code` in one step, for at most `timeout_s` (or `timeout`) seconds of execution.

        ```python
        result = await env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.reward)  # 1.0
        ```
        """
        return await self.step(
            action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output
        )

    async def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step.

        An answer that `answer_schema` refuses is a step with the `error_kind` "answer", and the
        episode goes on. Raises NotReset, EpisodeDone.
        """
        return await self.step(REPLAction(is_final=True, final_answer=answer))

    async def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return await self.execute(showing(name))

    async def follow_up(
        self,
        *,
        task_prompt: str,
        max_iterations: int | None = None,
        expected_answer: Any = None,
        answer_schema: Any = None,
        variables: Mapping[str, Settable] | None = None,
    ) -> Result:
        """Begin another episode in the current session, for a further question on it.

        Variables, files and the context stay; iterations, answer and score start anew, spending on
        sub-calls does not. `variables` are set first. The other arguments are as in `reset`.
        ```python
        await env.execute("words = context.split()\\nFINAL(len(words))")
        await env.follow_up(task_prompt="How many letters?", expected_answer="11")
        print((await env.execute("FINAL(sum(map(len, words)))")).reward)  # 1.0
        ```
        """
        return await self._requests.follow_up(FollowUpOptions.of(locals()))

    async def draft(self) -> JSON:
        """The present value of `answer["content"]`, or None."""
        return await self._requests.draft()

    async def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return await self._requests.state()

    async def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return await self._requests.variable_names()

    async def rollback(self, cells: int = 1) -> tuple[str, ...]:
        """Undo the last `cells` cells; see `REPLEnvironment.rollback`.

        The server keeps as many earlier states as its operator chose (`repl-env serve --undo`).
        Returns descriptions of what could not be restored.
        """
        return await self._requests.rollback(cells)

    async def branch(self, *, seed: int | None = None) -> Self:
        """Return another client in the middle of the same episode, in a copy of the session.

        Both continue independently. `seed` seeds the branch's random numbers. See
        `LocalREPLEnv.branch`. Close both.
        ```python
        await env.execute("words = context.split()")
        async with await env.branch(seed=1) as branch:
            print((await branch.execute("FINAL(len(words))")).reward)  # 1.0
        print((await env.state()).final_answer)  # None
        ```
        """
        return self._of(await self._requests.branch(seed))


# OpenEnv's `AutoEnv` derives these names from the name of a distribution.
ReplEnv = REPLEnv
ReplAction = REPLAction
ReplObservation = REPLObservation
