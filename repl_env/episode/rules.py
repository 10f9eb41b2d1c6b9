"""The rules of one episode, without I/O: the result of each step, and the end.

`Episode` receives events (an outcome of the engine, an answer of the caller) and returns
observations. It knows neither expected answers nor rubrics nor keys, and neither does the session;
the environment does the scoring.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from repl_env.episode.answers import AnswerSheet, FinalAnswer, Validator, Verdict
from repl_env.episode.contexts import Context
from repl_env.episode.observations import (
    ObservedFailure,
    clip,
    failure,
    on_new_line,
    render,
)
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.models import (
    CodeBlockResult,
    REPLObservation,
    REPLState,
    message_result,
    termination_of,
    trusted,
)
from repl_sandbox.types import (
    ANSWER_NAMES,
    JSON,
    MORE_CHANGES,
    AnyOutcome,
    Change,
    Isolation,
    Usage,
    Variable,
)


@dataclass(frozen=True, slots=True)
class EpisodeConfig:
    """The configuration of an episode; fixed at its reset."""

    episode_id: str
    task_prompt: str
    context: Context
    files: dict[str, bytes]
    max_iterations: int
    max_output_length: int
    helpers: tuple[str, ...] = ()
    validator: Validator | None = None
    memory: int | None = None  # bytes that the session may use, as reported in failures


@dataclass(slots=True)
class EpisodeTotals:
    """The summed cost of an episode's steps."""

    execution_seconds: float = 0.0
    waiting_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory: int = 0

    def add(self, usage: Usage) -> None:
        self.execution_seconds += usage.execution_seconds
        self.waiting_seconds += usage.waiting_seconds
        self.cpu_seconds += usage.cpu_seconds
        self.peak_memory = max(self.peak_memory, usage.peak_memory)


@dataclass(slots=True)
class Episode:
    """One episode from its reset to its end.

    `iteration` counts steps, `cells` the cells of the session. `stop_reason` is None, "answer",
    "max_iterations", "budget", or "crash" after `session_lost`. `masked` stays True once an
    infrastructure failure touched the episode.
    """

    config: EpisodeConfig
    iteration: int = 0
    cells: int = 0
    stop_reason: str | None = None
    final: FinalAnswer | None = None
    masked: bool = False
    totals: EpisodeTotals = field(default_factory=EpisodeTotals)
    answer_sheet: AnswerSheet = field(init=False)
    names: dict[str, None] = field(init=False)  # a dict keeps the order
    names_are_known: bool = True
    endpoint_failed: bool = False  # since the last observation
    isolation: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answer_sheet = AnswerSheet(self.config.validator)
        self.reset_names()

    def set_isolation(self, isolation: Isolation) -> None:
        """Record the isolation of the session, for the metadata of every step."""
        layers = [layer.name for layer in isolation.layers if layer.active]
        self.isolation = {"tier": isolation.tier, "layers": layers}

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.stop_reason is not None

    @property
    def iterations_used_up(self) -> bool:
        """Whether the iterations are used up without an answer."""
        return not self.done and self.iteration >= self.config.max_iterations

    def cell_cancelled(self) -> None:
        """Record that the caller cancelled a cell: it is not a step, but the session counted it.

        An answer that it gave stands, and ends the episode with the next step.
        """
        self.cells += 1
        self.masked = True

    # ── variables ────────────────────────────────────────────────────────────────────────────────

    def reset_names(self, variables: Iterable[Variable] | None = None) -> None:
        """Set the names of a session that starts anew, or that reports its names."""
        if variables is None:
            names = [part.name for part in self.config.context.parts]
        else:
            names = [variable.name for variable in variables]
        self.names = dict.fromkeys([*names, *ANSWER_NAMES, *self.config.helpers])
        self.names_are_known = True

    def _apply_changes(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.name == MORE_CHANGES:
                self.names_are_known = False
            elif change.kind == "deleted":
                self.names.pop(change.name, None)
            else:
                self.names[change.name] = None

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def first_observation(self) -> REPLObservation:
        """Return the observation of the reset."""
        lines = ["REPL environment initialized."]
        if loaded := self.config.context.announcement():
            lines.append(loaded)
        if self.config.task_prompt:
            lines.append(f"Task: {self.config.task_prompt}")
        lines.append(
            "Use answer['content'] to store your answer, and set answer['ready'] = True when done."
        )
        observation = self._observe(message_result("\n".join(lines)), None, Usage())
        observation.metadata["message"] = "Environment ready."
        return observation

    def judge_answer(self, value: JSON) -> FinalAnswer | ValueError:
        """Return `value` as the answer, or the reason of its refusal.

        No side effects; may be offloaded.
        """
        try:  # includes the conversion to text: an int can exceed the limit on digits
            text = "" if value is None else value if isinstance(value, str) else str(value)
            return self.answer_sheet.judge(text, text if value is None else value)
        except ValueError as error:
            return error

    def cell_observation(
        self, outcome: AnyOutcome, verdict: Verdict, *, counts: bool = True
    ) -> REPLObservation:
        """Return the observation of a cell whose answers led to `verdict`; `counts`: as a step.

        In the last iteration without an answer, the caller must then call `give_up`.
        """
        self.answer_sheet.clear()
        self.iteration += counts
        self.cells += 1
        self.totals.add(outcome.usage)
        if outcome.state == "restarted":
            self.reset_names()
        elif outcome.lost:
            # Cells without a snapshot may be rolled back as well, with the names that they bound.
            self.names_are_known = False
        # After a restart, changes exist only if the restart came first, so they are the session's.
        if outcome.changes:
            self._apply_changes(outcome.changes)
        memory = self.config.memory
        failed = failure(outcome, memory)
        if verdict.refusal is not None and verdict.final is None:
            failed = _with_refusal(failed, outcome, verdict.refusal)
        if verdict.final is not None:
            self.final, self.stop_reason = verdict.final, "answer"
        limit = self.config.max_output_length
        result = render(outcome, failed, cell=self.cells, limit=limit, memory=memory)
        self.masked |= "machine" in outcome.limits
        return self._observe(result, self._kind(failed), outcome.usage)

    def submit(self, answer: FinalAnswer | ValueError) -> REPLObservation:
        """Return the observation of an answer that the caller submits instead of code,
        `judge_answer`.
        """
        self.iteration += 1
        if isinstance(answer, ValueError):
            result = message_result("", f"ValueError: the answer was refused: {answer}")
            return self._observe(result, "answer", Usage())
        self.final, self.stop_reason = answer, "answer"
        # A cancelled cell has not reported its failed sub-calls.
        result = message_result("Final answer submitted.")
        observation = self._observe(result, self._kind(None), Usage())
        # As in OpenEnv: after the end there are no variables to look at.
        observation.context_preview = None
        observation.context_length = 0
        observation.available_variables = []
        return observation

    def format_error_observation(self, explanation: str) -> REPLObservation:
        """Return the step of a reply without an action, with its `explanation`; nothing was run.

        In the last iteration, the caller must then call `give_up`.
        """
        self.iteration += 1
        limit = self.config.max_output_length
        result = message_result("", clip(explanation, limit))
        result.truncated = len(explanation) > limit
        return self._observe(result, self._kind(ObservedFailure("format", explanation)), Usage())

    def session_lost(self, error: str) -> REPLObservation:
        """Return the last step of an episode whose code made its session unusable."""
        self.iteration += 1
        self.stop_reason = "crash"
        text = f"SystemError: the code made its session unusable, and the episode ends: {error}"
        failed = ObservedFailure("crash", clip(text, self.config.max_output_length))
        result = message_result("", failed.text)
        return self._observe(result, self._kind(failed), Usage())

    def unchanged_observation(self) -> REPLObservation:
        """Return the observation if the caller takes no further step. `give_up` must follow."""
        return self._observe(message_result(""), self._kind(None), Usage())

    def give_up(
        self,
        observation: REPLObservation,
        answer: FinalAnswer | ValueError | None,
        used_up: str | None = None,
    ) -> REPLObservation:
        """End without an answer: `answer`, the content of the answer dict, counts if it fits.

        `used_up` names the exhausted part of the budget; None: the iterations.
        """
        self.stop_reason = "max_iterations" if used_up is None else "budget"
        if isinstance(answer, FinalAnswer):
            self.final = answer
        message = used_up or f"Maximum iterations ({self.config.max_iterations}) reached."
        result = observation.result
        result.stdout = f"{on_new_line(result.stdout)}{message}"
        usage = Usage(**observation.metadata["usage"])
        kind = observation.metadata["error_kind"] or ("budget" if used_up else None)
        last_observation = self._observe(result, kind, usage)
        last_observation.metadata |= {
            name: value
            for name, value in observation.metadata.items()
            if name not in last_observation.metadata
        }
        return last_observation

    def _kind(self, failed: ObservedFailure | None) -> str | None:
        kind = failed.kind if failed else None
        if self.endpoint_failed:
            self.endpoint_failed = False
            kind = "llm"
        self.masked = self.masked or kind in INFRASTRUCTURE_KINDS
        return kind

    # ── what is shown ────────────────────────────────────────────────────────────────────────────

    def _observe(self, result: CodeBlockResult, kind: str | None, usage: Usage) -> REPLObservation:
        config = self.config
        return trusted(
            REPLObservation,
            result=result,
            context_preview=config.context.preview,
            context_length=config.context.length,
            available_variables=list(self.names),
            iteration=self.iteration,
            max_iterations=config.max_iterations,
            done=self.done,
            reward=0.0,
            metadata=self._metadata(result, kind, usage),
        )

    def _metadata(self, result: CodeBlockResult, kind: str | None, usage: Usage) -> dict[str, Any]:
        config, final = self.config, self.final
        metadata: dict[str, Any] = {
            "task_prompt": config.task_prompt,
            "final_answer": final.text if final else None,
            "answer_value": final.value if final else None,
            "execution_time": usage.execution_seconds,
            "waiting_time": usage.waiting_seconds,
            "error_kind": kind,
            "mask": self.masked,
            "reward_components": {},
            "task_reward": 0.0,
            "usage": {
                "execution_seconds": usage.execution_seconds,
                "waiting_seconds": usage.waiting_seconds,
                "cpu_seconds": usage.cpu_seconds,
                "peak_memory": usage.peak_memory,
            },
            "stop_reason": self.stop_reason,
            "ended": None,
            "truncated": result.truncated,
            "isolation": self.isolation,
        }
        if self.done:
            metadata["ended"] = termination_of(self.done, {"stop_reason": self.stop_reason})
            metadata["total_execution_time"] = self.totals.execution_seconds
            metadata["total_iterations"] = self.iteration
        return metadata

    def state(self) -> REPLState:
        """Return the episode so far."""
        return REPLState(
            episode_id=self.config.episode_id,
            step_count=self.iteration,
            context=self.config.context.text,
            task_prompt=self.config.task_prompt,
            iteration=self.iteration,
            max_iterations=self.config.max_iterations,
            namespace_keys=list(self.names),
            final_answer=self.final.text if self.final else None,
            total_execution_time=self.totals.execution_seconds,
            context_length=self.config.context.length,
            stop_reason=self.stop_reason,
            usage=asdict(self.totals),
        )


def _with_refusal(
    failed: ObservedFailure | None, outcome: AnyOutcome, refusal: str
) -> ObservedFailure:
    """Return the failure of the cell, including the refusal of an answer."""
    if failed is None:
        return ObservedFailure("answer", f"ValueError: the answer was refused: {refusal}")
    # An infrastructure failure keeps its kind: the refusal may be due to lost state.
    infrastructure = failed.kind in INFRASTRUCTURE_KINDS
    if not infrastructure and outcome.error is not None and refusal in outcome.error.message:
        return replace(failed, kind="answer")
    return failed
