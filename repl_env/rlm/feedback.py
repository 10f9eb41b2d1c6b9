"""`FeedbackWriter`: feedback for the model on the outcomes of its replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from repl_env.common.json_values import replace_surrogates
from repl_env.models import REPLObservation
from repl_env.parsing.reasoning import without_thoughts
from repl_env.rlm.prompt_templates import build_user_prompt, format_observations, shown_result

# Characters of one reply that stay in the conversation. All of its code is run. In a longer one the
# reasoning is cut first: chat templates omit the reasoning of earlier turns, and recognise it by
# both tags.
MAX_REPLY = 100_000
# This many turns with the same code and the same error are a loop, which the model is told.
_SAME_FAILURES = 3

NO_CODE = (
    "Your reply had no code block, so nothing was run. Write code in a block that begins with "
    "```repl; give the final answer with FINAL(...) in such a block."
)
TOO_MANY = "Only the first {} of the {} code blocks were run."
_STUCK = (
    "The same code has failed in the same way {} times now. Do something else: look at the values "
    "that it works on, or take another way to the answer."
)
# Begins with OpenEnv's words: models are trained on them, and test scripts expect them.
LAST = (
    "You have run out of REPL iterations: there are no turns left. Reply with the final answer "
    "now: only the answer itself, as plain text, without code and without explanation."
)
_SHORT = "(What this printed, {:,} characters, is not shown any more; `_out` has it, by cell.)"


class TurnFeedback(NamedTuple):
    """The feedback on a reply: in full, and in short for later turns."""

    reply: str
    text: str
    short_text: str


@dataclass(slots=True)
class FeedbackWriter:
    """Feedback of one run on `question`; `limit` characters are shown of one block's outcome.

    `outcomes_only`: the outcomes alone, without the code and the question.
    """

    question: str
    limit: int
    outcomes_only: bool = False
    _failures: list[tuple[str, str]] = field(default_factory=list)

    def of(
        self,
        turn: int,
        reply: str,
        outcomes: Sequence[tuple[str, REPLObservation]],
        notes: Sequence[str],
    ) -> TurnFeedback:
        """Return the feedback on a turn, whose code and outcomes are `outcomes`."""
        observations = [observation for _, observation in outcomes]
        if (times := self._note_failure(outcomes)) >= _SAME_FAILURES:
            notes = [*notes, _STUCK.format(times)]
        text = "\n\n".join(part for part in self._parts(turn, outcomes, notes) if part)
        printed = sum(len(observation.result.stdout) for observation in observations)
        short = "\n\n".join([_SHORT.format(printed), *notes])
        return TurnFeedback(_shortened_reply(reply), text, short)

    def _parts(
        self, turn: int, outcomes: Sequence[tuple[str, REPLObservation]], notes: Sequence[str]
    ) -> list[str]:
        if self.outcomes_only:
            return [*(shown_result(step.result, self.limit) for _, step in outcomes), *notes]
        outcome_text = format_observations(
            [step for _, step in outcomes], [code for code, _ in outcomes], self.limit
        )
        return [outcome_text, *notes, str(build_user_prompt(self.question, turn)["content"])]

    def _note_failure(self, outcomes: Sequence[tuple[str, REPLObservation]]) -> int:
        """Return how many times in a row the same code has failed in the same way."""
        failed = [
            (code, observation.result.stderr.rsplit("\n", 2)[-1])
            for code, observation in outcomes
            if not observation.result.success
        ]
        if not failed or (self._failures and failed[0] != self._failures[0]):
            self._failures = []
        self._failures += failed[:1]
        return len(self._failures)


def _shortened_reply(reply: str) -> str:
    """Return the part of a reply that stays in the conversation."""
    text = replace_surrogates(reply)
    return text if len(text) <= MAX_REPLY else _within(without_thoughts(text), MAX_REPLY)


def _within(text: str, limit: int) -> str:
    """Return `text` without its middle, if it is longer."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... [{len(text) - limit:,} characters left out] ...\n{text[-half:]}"
