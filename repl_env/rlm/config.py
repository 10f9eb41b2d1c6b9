"""The configuration, the result and the transcript of a run, and examples for its prompt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from repl_env.common.display import Displayed, set_module
from repl_env.common.values import at_least, check_callable, of_kind, one_of
from repl_env.interfaces import Message
from repl_env.models import Ending
from repl_env.parsing.blocks import find_code
from repl_env.rlm.budget import Budget, Spent
from repl_sandbox.types import check_seconds

if TYPE_CHECKING:
    from repl_env.errors import BudgetExceeded
    from repl_env.rlm.model_call import TaskNote
    from repl_env.rlm.trajectory import Trajectory
    from repl_sandbox.types import JSON


# Few-shot examples: conversations at the beginning of a run's prompt, as separate turns.

_ROLES = ("user", "assistant")


def checked_examples(value: Any) -> tuple[tuple[Message, ...], ...]:
    """Return the conversations in `value`, each without its system message.

    A conversation is a list of messages, as in `RLMRunResult.messages`: user and assistant
    alternate, and the assistant has the last message. `value` is a list of conversations, or a
    single one.

    Raises:
        TypeError, ValueError: naming the message in `examples`.
    """
    if not _is_list(value):
        raise TypeError(f"examples must be a list of conversations, not {type(value).__name__}")
    alone = bool(value) and isinstance(value[0], Mapping)
    conversations = [value] if alone else value
    return tuple(
        _conversation(messages, "examples" if alone else f"examples[{number}]")
        for number, messages in enumerate(conversations)
    )


def _conversation(value: Any, name: str) -> tuple[Message, ...]:
    if not _is_list(value):
        raise TypeError(f"{name} must be a list of messages, not {type(value).__name__}")
    messages = [_message(each, f"{name}[{place}]") for place, each in enumerate(value)]
    system = bool(messages) and messages[0]["role"] == "system"
    turns = messages[system:]
    for place, message in enumerate(turns):
        if message["role"] != _ROLES[place % 2]:
            problem = f"must be the {_ROLES[place % 2]}'s, not the {message['role']}'s"
            raise ValueError(f"{name}[{place + system}] {problem}: the two take turns")
    if not turns or len(turns) % 2:
        raise ValueError(f"{name} must end with a message of the assistant's")
    return tuple(turns)


def _message(value: Any, name: str) -> Message:
    if not isinstance(value, Mapping) or not {"role", "content"} <= value.keys():
        raise TypeError(f"{name} must be a message: a dict with 'role' and 'content'")
    if not isinstance(value["content"], str):
        raise TypeError(f"{name}['content'] must be a str, not {type(value['content']).__name__}")
    return {"role": str(value["role"]), "content": value["content"]}


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


# The result of a run.


@set_module("repl_env.recursive_backends")
@dataclass(frozen=True, slots=True, repr=False)
class ChildTrace(Displayed):
    """A call that a child run, or a function for sub-calls, answered. The fields are OpenEnv's."""

    depth: int
    duration_s: float
    prompt_preview: str
    result_preview: str | None
    error: str | None = None


@set_module("repl_env")
@dataclass(frozen=True, slots=True, repr=False)
class RLMRunResult(Displayed):
    """The result of a run.

    Args:
        final_answer: the answer as text; None if there is none.
        messages: the conversation as the model saw it last, with its last reply.
        iterations: turns of the model.
        depth: of this run; 0 is the root.
        child_traces: of the recursive calls of this run.
        answer_value: the answer as JSON, if JSON can carry it.
        stop_reason: "answer"; "max_iterations" (an answer, if any, came after the turns were used
            up); "budget" and "timeout" (the content of `answer["content"]` is the answer); "error"
            and "cancelled", which only errors and events carry.
        error_kind: None, or the kind of failure, as in the metadata of steps. "llm" and "sandbox":
            the run says nothing about the model.
        usage: the spending of the run with all runs below it; `own` excludes those.
        reward: of the episode, also without an answer; None without an expected answer or a scoring
            rubric, and if `error_kind` is an infrastructure kind.
        ended: "terminated": a submitted answer ended the episode; "truncated": a limit or a loss
            did, and the content of `answer["content"]` is the answer.
        task_reward: the task's own part of `reward`, without the rubric's `shaping`.
        task: the facts of the task, with the `group_id`, if the caller gave any.
        reason: the part of the budget that ended the run, in words; None otherwise.
        exceeded: the error behind `reason`; its `field` names the part of the budget.
        trajectory: the whole tree.
    """

    final_answer: str | None
    messages: list[Message] = field(repr=False)
    iterations: int
    depth: int = 0
    child_traces: list[ChildTrace] = field(default_factory=list, repr=False)
    answer_value: JSON = field(default=None, repr=False)
    stop_reason: str = "answer"
    error_kind: str | None = None
    usage: Spent = field(default_factory=Spent)
    own: Spent = field(default_factory=Spent, repr=False)
    reward: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    exceeded: BudgetExceeded | None = field(default=None, repr=False, compare=False)
    ended: Ending | None = None
    task_reward: float | None = None
    task: TaskNote | None = field(default=None, repr=False)
    _events: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def group_id(self) -> str | None:
        """The group of samples of one task that the run belongs to."""
        return None if self.task is None else self.task.group_id

    @property
    def trajectory(self) -> Trajectory:
        """The tree of this run and all runs below it."""
        from repl_env.rlm.trajectory import Trajectory

        return Trajectory.of(self._events)


# `Transcript`: the conversation of one run, kept within a length.
#
# The session keeps the variables of old turns; the conversation needs only the messages that the
# model must still read. A conversation that grows too long shows its oldest turns in short: the
# code stays, the output goes, and later whole turns go. A cut leaves enough room that the prompt
# then only grows for many turns, because endpoints cache the beginnings of prompts.
#
# A turn costs as much as it adds: its length is added to that of the conversation, its messages
# to the visible ones, and only new messages are compared with the previous prompt. The whole
# conversation is traversed only for a cut, and for a measure other than characters.

# The length of a cut conversation, as a fraction of the limit.
_CUT_TO = 0.5
# Turns at the end that are never cut: the model's present work.
_WHOLE_TURNS = 2

Measure = Callable[[Sequence[Message]], int]


@dataclass(frozen=True, slots=True)
class TranscriptWindow:
    """A prompt: `messages`, of which the first `kept` were in the previous one."""

    messages: tuple[Message, ...]
    kept: int

    @property
    def added(self) -> tuple[Message, ...]:
        """The messages that are new."""
        return self.messages[self.kept :]


@dataclass
class _Turn:
    reply: str
    report: str
    short: str  # replaces the feedback of an old turn
    level: int = 0  # 0: whole, 1: in short, 2: left out

    def messages(self, level: int) -> Sequence[Message]:
        if level == 0:
            return _turn_messages(self.reply, self.report)
        return self._in_short if level == 1 else ()

    @cached_property
    def _in_short(self) -> tuple[Message, ...]:
        code = "\n".join(f"```repl\n{block}\n```" for block in find_code(self.reply).codes)
        return _turn_messages(code or "(no code)", self.short)


class Transcript:
    """The conversation of one run.

    Args:
        initial_messages: the messages before the first turn; the last one is the user's.
        limit: the limit of a prompt, in units of `measure`.
        measure: by default characters. Another one is called with the whole prompt in each turn.
    """

    def __init__(
        self, initial_messages: Sequence[Message], limit: int, measure: Measure | None = None
    ) -> None:
        self._initial_messages = list(initial_messages)
        self._turns: list[_Turn] = []
        self._limit = limit
        self._measure = measure
        self._visible = list(initial_messages)  # the next prompt, unless it is too long
        self._characters = characters(initial_messages)
        self._seen: list[Message] = []
        self._known_count = 0  # messages of `_visible` that are known to begin `_seen`

    def add(self, reply: str, report: str, short: str) -> None:
        """Add a turn: the model's reply, the feedback, and its short form."""
        self._turns.append(_Turn(reply, report, short))
        self._visible += _turn_messages(reply, report)
        self._characters += len(reply) + len(report)

    def append_text(self, text: str) -> None:
        """Append text to the user's last message."""
        addition = f"\n\n{text}"
        if self._turns:
            self._turns[-1].report += addition
        else:
            self._initial_messages[-1] = _with_text(self._initial_messages[-1], addition)
        self._visible[-1] = _with_text(self._visible[-1], addition)
        self._characters += len(addition)
        self._known_count = min(self._known_count, len(self._visible) - 1)

    def prompt(self) -> TranscriptWindow:
        """Return the next prompt of the model."""
        length = self._characters if self._measure is None else self._measure(self._visible)
        if length > self._limit:
            self._cut()
        for before, now in zip(
            self._seen[self._known_count :], self._visible[self._known_count :], strict=False
        ):
            if before != now:
                break
            self._known_count += 1
        return TranscriptWindow(tuple(self._visible), self._known_count)

    def add_reply(self, prompt: TranscriptWindow, reply: str) -> None:
        """Record the reply to the last prompt: from here on, both are known messages."""
        self._seen = [*prompt.messages, {"role": "assistant", "content": reply}]
        self._known_count = len(prompt.messages)

    @property
    def seen(self) -> list[Message]:
        """The last prompt, with the reply to it."""
        return list(self._seen)

    def _cut(self) -> None:
        """Shorten turns, the oldest first, until the conversation has the length of a cut one."""
        target = int(self._limit * _CUT_TO)
        measure = self._measure or characters
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        # Step k has the first k old turns in short; after that, step old + k leaves k of them out.
        steps = range(2 * old)
        step = bisect_left(steps, True, key=lambda step: measure(self._after(step)) <= target)
        self._visible = self._after(step)
        for turn, level in zip(self._turns, self._levels(step), strict=True):
            turn.level = level
        self._characters = characters(self._visible)
        self._known_count = 0

    def _levels(self, step: int) -> list[int]:
        """Return the level of each turn after this number of steps."""
        old = max(0, len(self._turns) - _WHOLE_TURNS)
        return [
            max(turn.level, (index < min(step, old)) + (index < step - old))
            for index, turn in enumerate(self._turns)
        ]

    def _after(self, step: int) -> list[Message]:
        """Return the messages after this number of steps."""
        levels = self._levels(step)
        messages = list(self._initial_messages)
        if left_out := levels.count(2):
            note = (
                f"(The first {left_out} turns are not shown any more. Variables that they made "
                "are still there; SHOW_VARS() lists them.)"
            )
            messages[-1] = _with_text(messages[-1], f"\n\n{note}")
        for turn, level in zip(self._turns, levels, strict=True):
            messages += turn.messages(level)
        return messages


def characters(messages: Sequence[Message]) -> int:
    """Return the characters of all messages."""
    return sum(len(str(message["content"])) for message in messages)


def _turn_messages(reply: str, report: str) -> tuple[Message, ...]:
    return {"role": "assistant", "content": reply}, {"role": "user", "content": report}


def _with_text(message: Message, addition: str) -> Message:
    return {**message, "content": f"{message['content']}{addition}"}


# `RunConfig`: the settings of the runs of one tree.

Blocks: TypeAlias = Literal["all", "first", "until_done", "until_error"]

BLOCKS = ("all", "first", "until_done", "until_error")

Prompts: TypeAlias = Literal["full", "short"]

# Tokens of one answer, if tokens are counted: a long answer to a question, and a long turn.
SHARE = 8192


@set_module("repl_env.rlm")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The settings of the runs of one tree.

    Args:
        max_iterations: turns of a run.
        blocks: the code blocks of a reply to run. "all": also after errors, and after an answer for
            their effects on the session; "first"; "until_done": up to an answer; "until_error": up
            to an error or an answer.
        max_outcome: visible characters of one block's outcome.
        max_prompt: the limit of a prompt in units of `measure`; older turns are cut.
        measure: None: characters.
        timeout_s: seconds of execution for one block; None: the sandbox's limit.
        max_output_tokens: of one answer, in runs and to questions. None: the model's own limit; or
            `SHARE` if the budget counts tokens or money, since a call without a limit would reserve
            all of it, so that no two calls could run concurrently.
        prompts: "full": `RLM_SYSTEM_PROMPT`, and the question again in each turn; "short": for
            models below a billion parameters, `RLM_SYSTEM_PROMPT_SHORT`, and each turn has only the
            output of the code.
        examples: conversations before the question, as separate turns; see
            `repl_env.rlm.config.checked_examples`.
        prefix: the beginning of each reply, such as a fence, which the model continues. Needs a
            model with that feature, see `ModelRequest.prefix`. The last turn, which only asks for
            the answer, has none.

    Raises:
        TypeError, ValueError: naming the field.
    """

    max_iterations: int = 30
    blocks: Blocks = "all"
    max_outcome: int = 20_000
    max_prompt: int = 400_000
    measure: Measure | None = None
    timeout_s: float | None = None
    max_output_tokens: int | None = None
    prompts: Prompts = "full"
    examples: Sequence[Sequence[Message]] = ()
    prefix: str | None = None

    def __post_init__(self) -> None:
        one_of(self.blocks, BLOCKS, "blocks")
        one_of(self.prompts, get_args(Prompts), "prompts")
        object.__setattr__(self, "examples", checked_examples(self.examples))
        if self.prefix is not None:
            of_kind(self.prefix, str, "prefix")
        for name in ("max_iterations", "max_outcome", "max_prompt"):
            object.__setattr__(self, name, at_least(getattr(self, name), 1, name))
        if self.measure is not None:
            check_callable(self.measure, "measure")
        if self.timeout_s is not None:
            object.__setattr__(self, "timeout_s", check_seconds(self.timeout_s, "timeout_s"))
        if self.max_output_tokens is not None:
            limit = at_least(self.max_output_tokens, 1, "max_output_tokens")
            object.__setattr__(self, "max_output_tokens", limit)

    def within(self, budget: Budget) -> RunConfig:
        """Return the settings for a tree with this budget."""
        counted = budget.output_tokens is not None or budget.usd is not None
        if self.max_output_tokens is not None or not counted:
            return self
        return replace(self, max_output_tokens=SHARE)
