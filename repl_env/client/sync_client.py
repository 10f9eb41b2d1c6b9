"""`SyncREPLEnv`: `REPLEnv` for blocking code, from `REPLEnv(...).sync()`.

The connection lives on an event loop in a thread that all such clients of a process share: pings
are answered while the caller is busy, and the client works inside a running loop, as in notebooks.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from repl_env.client.requests import check_callback, reentrant_request_error
from repl_env.common.display import Closeable, DisplayedByRepr, set_module
from repl_env.common.threads import CLIENTS
from repl_env.episode.call_options import FollowUpOptions, ResetOptions, options_in
from repl_env.llm.spec import LLM
from repl_env.models import REPLAction, REPLState, action_of, showing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from repl_env.client.client import REPLEnv, Result
    from repl_env.client.files import SyncRemoteFiles
    from repl_env.episode.contexts import Given
    from repl_env.episode.initial_files import Files
    from repl_sandbox.tables import Settable
    from repl_sandbox.types import JSON

T = TypeVar("T")


@set_module("repl_env")
class SyncREPLEnv(DisplayedByRepr, Closeable):
    """Episodes in a session on a server, for blocking code: `REPLEnv(url).sync()`.

    ```python
    with REPLEnv("http://127.0.0.1:8000").sync() as env:
        env.reset(context="a long text", task_prompt="How many words?", expected_answer="3")
        result = env.execute("FINAL(len(context.split()))", timeout_s=5)
        print(result.reward, result.done)  # 1.0 True
    ```
    The methods are those of `LocalREPLEnv` that a remote session can have; see `REPLEnv`, whose
    arguments and errors apply. `on_output` and `on_upload` are called in the caller's thread.
    Ctrl-C cancels a running step. One call at a time; calls of other threads wait for it. It works
    where an event loop runs, as in a notebook. It is neither pickled nor used after a fork.
    """

    def __init__(self, client: REPLEnv) -> None:
        self._client = client
        self._callback_thread: int | None = None  # the thread that its on_output is called in
        CLIENTS.end_at_exit()  # after this client, if the caller closes it at the exit

    def __repr__(self) -> str:
        return f"<SyncREPLEnv of {self._client!r}>"

    @property
    def async_client(self) -> REPLEnv:
        """The asynchronous client underneath. It is used on its loop only."""
        return self._client

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._client.base_url

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs; None without one, and on OpenEnv's servers."""
        return self._client.session_id

    @property
    def files(self) -> SyncRemoteFiles:
        """The files of the session's workspace: `put`, `get`, `list`, `archive`.

        ```python
        env.files.put("train.csv", "a,b\\n1,2\\n")
        env.execute("rows = open('train.csv').read().split()")
        print(env.files.get("train.csv"))  # b'a,b\\n1,2\\n'
        ```
        """
        from repl_env.client.files import SyncRemoteFiles

        return SyncRemoteFiles(self._client.files, self._ask)

    def sync(self) -> SyncREPLEnv:
        """This client."""
        return self

    def connect(self) -> Self:
        """Connect and open a session, unless there is one; see `REPLEnv.connect`."""
        CLIENTS.wait_for(self._client.connect())
        return self

    def disconnect(self) -> None:
        """End the session and the connection; OpenEnv's name for `close`."""
        self.close()

    def close(self) -> None:
        """End the session. Safe to call twice; a reset begins another one."""
        CLIENTS.wait_for(self._client.close())

    def __enter__(self) -> Self:
        return self.connect()

    def reset(
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
        on_upload: Callable[[int, int], object] | None = None,
    ) -> Result:
        """Begin an episode; connect first, if needed.

        Arguments are those of `LocalREPLEnv.reset`; None leaves a value to the server. Contexts and
        files from 1 MiB on are uploaded by their hash, which a later reset finds there;
        `on_upload(sent, total)` is called with bytes.

        Raises:
            ServerUnavailable, AuthenticationFailed, CapacityReached, QuotaExceeded: no session.
            TooLarge, InvalidRequest: naming the limit or the argument.
            TypeError, ValueError, OSError: naming the argument; nothing was sent.
        """

        options = options_in(ResetOptions, locals())

        def start(forward: Callable[..., Awaitable[None]] | None) -> Any:
            return self._client.reset(**options, on_upload=forward)

        return self._ask_with_callback(start, "on_upload", on_upload)

    def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: Callable[[str, str], object] | None = None,
    ) -> Result:
        """Take one step: run the action's code, or submit its answer.

        ```python
        env.step(REPLAction(code="words = context.split()"))
        result = env.step(REPLAction(is_final=True, final_answer=3))
        print(result.reward, result.done)  # 1.0 True
        ```
        Args:
            action: `REPLAction(code=...)`; or with `is_final=True` and `final_answer`; or with
                `format_error`, for a reply that held no action.
            timeout_s, or timeout: seconds that the code may execute, waiting for the host not
                counted; None: as the server has it, 30 by default. Variables outlive a time-out.
            on_output: called with ("stdout" or "stderr", text) as output arrives.

        Returns the observation, with the reward of this step and `done`. Code that raises, times
        out or crashes is an observation with an `error_kind`, not an exception.

        Raises:
            NotReset, EpisodeDone: no episode has begun, or it is over.
            EpisodeAborted, SessionLost: the session is lost; a reset begins another one.
            ServerUnavailable, ReplyTimeout: the server did not answer.
            TypeError, ValueError: naming the argument; nothing was run.
        """

        def start(forward: Callable[..., Awaitable[None]] | None) -> Any:
            return self._client.step(
                action, timeout_s=timeout_s, timeout=timeout, on_output=forward
            )

        return self._ask_with_callback(start, "on_output", on_output)

    def execute(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        on_output: Callable[[str, str], object] | None = None,
    ) -> Result:
        """Run `code` in one step: `step(REPLAction(code=code))`, with its arguments and errors.

        ```python
        printed = []
        result = env.execute(
            "for word in context.split(): print(word)",
            timeout_s=5,
            on_output=lambda stream, text: printed.append(text),
        )
        print("".join(printed) == result.observation.result.stdout)  # True
        ```
        """
        return self.step(action_of(code), timeout_s=timeout_s, timeout=timeout, on_output=on_output)

    def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step.

        An answer that `answer_schema` refuses is a step with the `error_kind` "answer", and the
        episode goes on. Raises NotReset, EpisodeDone.
        """
        return self.step(REPLAction(is_final=True, final_answer=answer))

    def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return self.execute(showing(name))

    def follow_up(
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
        env.execute("words = context.split()\\nFINAL(len(words))")
        env.follow_up(task_prompt="How many letters?", expected_answer="11")
        print(env.execute("FINAL(sum(map(len, words)))").reward)  # 1.0
        ```
        """
        return self._ask(self._client.follow_up(**options_in(FollowUpOptions, locals())))

    def draft(self) -> JSON:
        """The present value of `answer["content"]`, or None."""
        return self._ask(self._client.draft())

    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._ask(self._client.state())

    def list_variables(self) -> list[str]:
        """The names in the session: the context, the policy's variables and the host functions."""
        return self._ask(self._client.list_variables())

    def rollback(self, cells: int = 1) -> tuple[str, ...]:
        """Undo the last `cells` cells; see `REPLEnv.rollback`."""
        return self._ask(self._client.rollback(cells))

    def branch(self, *, seed: int | None = None) -> SyncREPLEnv:
        """Return another client in the middle of the same episode, in a copy of the session.

        Both continue independently; close both. `seed` seeds the branch's random numbers. Raises
        NotReset, CapacityReached, and NotSupported on OpenEnv's servers.
        ```python
        env.execute("words = context.split()")
        with env.branch(seed=1) as branch:
            print(branch.execute("FINAL(len(words))").reward)  # 1.0
        print(env.state().final_answer)  # None
        ```
        """
        return SyncREPLEnv(self._ask(self._client.branch(seed=seed)))

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, which makes requests."""
        if self._callback_thread == threading.get_ident():
            work.close()
            raise reentrant_request_error()
        return CLIENTS.wait_for(work)

    def _ask_with_callback(
        self,
        start: Callable[[Callable[..., Awaitable[None]] | None], Coroutine[Any, Any, Result]],
        name: str,
        callback: Callable[..., object] | None,
    ) -> Result:
        """Return the result of `start(forward)`, and pass what it forwards to `callback` here."""
        check_callback(name, callback)
        if callback is None or self._callback_thread == threading.get_ident():
            return self._ask(start(None))

        returned = partial(self._call_back, callback) if name == "on_output" else callback
        return CLIENTS.wait_with_callback(
            start, lambda *arguments: _check_plain(name, returned(*arguments))
        )

    def _call_back(self, callback: Callable[..., object], *arguments: Any) -> object:
        self._callback_thread = threading.get_ident()
        try:
            return callback(*arguments)
        finally:
            self._callback_thread = None


def _check_plain(name: str, returned: object) -> None:
    """Raise TypeError if a callback returned an awaitable."""
    if isawaitable(returned):
        if iscoroutine(returned):
            returned.close()
        raise TypeError(f"{name} must not be asynchronous here: nobody awaits it")
