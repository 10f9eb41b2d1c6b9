"""`Recorder`: an environment that records its episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repl_env.common.argument_checks import one_timeout
from repl_env.common.closeable import Closeable
from repl_env.common.set_module import set_module
from repl_env.errors import NotReset
from repl_env.models import REPLAction, REPLObservation, StepResult, action_of, showing
from repl_env.storage.recordings import Recording, Steppable

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

# Arguments of a reset that are or hold secrets; the caller of a replay supplies them again.
SECRETS = frozenset({"hf_token", "llm"})

# Attributes of the environment that read the episode without changing it.
_PASSED_ON = frozenset(
    {
        "account", "subcalls", "contexts", "draft", "files", "list_variables", "rubric", "save",
        "session", "state",
    }
)  # fmt: skip
# Methods that begin an episode which a replay of a recording cannot reach.
_OTHER_BEGINNINGS = frozenset({"follow_up", "load"})

Result = StepResult[REPLObservation]


@set_module("repl_env")
class Recorder(Closeable):
    """An environment that records the current episode. A context manager.

    ```python
    with Recorder(LocalREPLEnv()) as recorder:
        recorder.reset(context="apples 3", seed=7)
        recorder.execute("print(context)", timeout_s=5)
        text = recorder.recording.to_json()
    print(Recording.from_json(text).actions[0].code)  # print(context)
    ```
    It has the methods of `LocalREPLEnv` except `follow_up` and `load`, whose episodes do not begin
    with a reset. Code that runs directly in `session`, and files put with `files`, are not
    recorded.
    """

    def __init__(self, environment: Steppable) -> None:
        self._environment: Any = environment
        self._arguments: dict[str, Any] = {}
        self._actions: list[REPLAction] = []
        self._timeouts: list[float | None] = []
        self._observations: list[REPLObservation] = []

    def __repr__(self) -> str:
        return f"<Recorder of {len(self._actions)} steps in {self._environment!r}>"

    def reset(self, **arguments: Any) -> Result:
        """Reset the environment; secrets are passed on and not recorded."""
        result: Result = self._environment.reset(**arguments)
        self._arguments = {k: _as_it_is(v) for k, v in arguments.items() if k not in SECRETS}
        self._actions, self._timeouts, self._observations = [], [], [_copy(result)]
        return result

    def step(
        self,
        action: REPLAction,
        *,
        timeout_s: float | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Result:
        """Step the environment; `timeout_s` is recorded, other options are passed on."""
        timeout_s = one_timeout(timeout_s, timeout)
        if timeout_s is not None:
            options["timeout_s"] = timeout_s
        result: Result = self._environment.step(action, **options)
        self._actions.append(action.model_copy(deep=True))
        self._timeouts.append(None if timeout_s is None else float(timeout_s))
        self._observations.append(_copy(result))
        return result

    def execute(self, code: str, **options: Any) -> Result:
        """Run `code` in one step."""
        return self.step(action_of(code), **options)

    def submit_final_answer(self, answer: JSON) -> Result:
        """End the episode with `answer` in one step, unless its schema refuses the answer."""
        return self.step(REPLAction(is_final=True, final_answer=answer))

    def get_variable(self, name: str) -> Result:
        """Print the repr of a variable, or of a dotted path from one, in one step."""
        return self.execute(showing(name))

    def branch(self, *, seed: int | None = None) -> Recorder:
        """Branch the environment; both recorders keep the steps so far and continue independently.

        A replay of a branch runs all steps from the reset, without the branch's own `seed`.
        """
        other = Recorder(self._environment.branch(seed=seed))
        other._arguments = self._arguments
        other._actions, other._timeouts = list(self._actions), list(self._timeouts)
        other._observations = list(self._observations)
        return other

    @property
    def recording(self) -> Recording:
        """The episode so far; NotReset if none has begun."""
        if not self._observations:
            raise NotReset
        timeouts = tuple(self._timeouts) if any(self._timeouts) else ()
        steps = tuple(self._actions), tuple(self._observations)
        return Recording(dict(self._arguments), *steps, timeouts)

    def close(self) -> None:
        """Close the environment; the recording stays."""
        self._environment.close()

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED_ON:
            return getattr(self._environment, name)
        explanation = ""
        if name in _OTHER_BEGINNINGS:
            explanation = ": a recording begins with a reset; call it on the environment itself"
        raise AttributeError(f"Recorder has no {name!r}{explanation}", name=name, obj=self)


def _as_it_is(given: Any) -> Any:
    """Return a copy of a container: the caller may change a context later."""
    if isinstance(given, dict):
        return {key: _as_it_is(value) for key, value in given.items()}
    if isinstance(given, list):
        return [_as_it_is(value) for value in given]
    return bytes(given) if isinstance(given, (bytearray, memoryview)) else given


def _copy(result: Result) -> REPLObservation:
    return result.observation.model_copy(deep=True)
