"""`RunConfig`: the settings of the runs of one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from repl_env.common.argument_checks import at_least, check_callable, of_kind, one_of
from repl_env.common.set_module import set_module
from repl_env.interfaces import Message
from repl_env.rlm.budget.budget_limits import Budget
from repl_env.rlm.examples import checked_examples
from repl_env.rlm.transcript import Measure
from repl_sandbox.session_limits import check_seconds

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
            to
            an error or an answer.
        max_outcome: visible characters of one block's outcome.
        max_prompt: the limit of a prompt in units of `measure`; older turns are cut.
        measure: None: characters.
        timeout_s: seconds of execution for one block; None: the sandbox's limit.
        max_output_tokens: of one answer, in runs and to questions. None: the model's own limit; or
            `SHARE` if the budget counts tokens or money, since a call without a limit would reserve
            all
            of it, so that no two calls could run concurrently.
        prompts: "full": `RLM_SYSTEM_PROMPT`, and the question again in each turn; "short": for
            models
            below a billion parameters, `RLM_SYSTEM_PROMPT_SHORT`, and each turn has only the output
            of
            the code.
        examples: conversations before the question, as separate turns; see
            `repl_env.rlm.examples.checked_examples`.
        prefix: the beginning of each reply, such as a fence, which the model continues. Needs a
            model
            with that feature, see `ModelRequest.prefix`. The last turn, which only asks for the
            answer,
            has none.

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
