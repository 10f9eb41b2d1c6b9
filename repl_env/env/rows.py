"""`EpisodeRows`: episodes as rows of a batch, stepped by the replies of a policy.

The common part of trainer integrations: replies become actions, each row produces one message, and
no row disturbs another by its failure.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from repl_env.common.display import Closeable
from repl_env.common.values import at_least, replace_surrogates
from repl_env.env.async_episode import Result
from repl_env.env.outcomes import Requests, resets_of
from repl_env.env.rollouts import (
    NOT_ENDED,
    EpisodeSummary,
    RecordedRollout,
    RolloutNote,
    RolloutRecorder,
)
from repl_env.env.step import blocks_action, outcome_texts
from repl_env.env.vector import REPLVectorEnv
from repl_env.episode.call_options import RESET_NAMES
from repl_env.models import REPLAction, REPLObservation
from repl_env.parsing.replies import answer_beside, read_reply
from repl_env.rlm.loop import BESIDE, MAX_BLOCKS, NO_CODE, TOO_MANY

# Observations as chat messages that cannot begin or end a turn of the conversation.
#
# Code in a session may print anything, including the tokens of a chat template. A template that
# renders such a message, or a parser that reads the rendered text, would take these tokens for
# turn boundaries. `escaped` breaks each with a backslash: `<|im_end|>` becomes `<\|im_end|>`.

# Tokens of turns, tool output and reasoning in published chat templates: the first character, after
# which the backslash goes, and the rest.
_BORDERS = (
    r"<(?=[|\uff5c])",  # <|im_start|>, <|eot_id|>, <|header_start|>; DeepSeek's full-width bars
    r"<(?=/?[a-z_]{1,24}[|\uff5c]>)",  # <turn|>
    r"<(?=/?(?:start|end)_of_[a-z]{1,16}>)",
    r"<(?=/?(?:s|bos|eos|pad|unk|mask|eod|eot|none)>)",
    r"<(?=/?(?:tool|think|function|system|user|assistant|human)[a-z_]{0,24}>)",
    r"<(?=</?SYS>>)",
    r"\[(?=/?(?:INST|[A-Z]{2,16}_(?:PROMPT|CALLS|TOOLS|RESULTS|CONTENT|ID)|ARGS|THINK)\])",
)
# Words that mark turns in templates without tokens.
_LABEL = re.compile(
    r"(?<!\w)(?:#{2,3} )?"
    r"(?:user|assistant|system|human|ai|bot|gpt|tool|instruction|input|response)\s?:",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|[%}]\}[^{]+\{[{%]")
# TorchRL's own templates for these models are not in the tokenizer.
_LABELS_BY_NAME = {"falcon": ("User:", "Assistant:"), "deepseek": ("User:", "Assistant:")}


def escaped(text: str, tokens: Collection[str] = ()) -> str:
    """Return `text` with each chat template token broken by a backslash, without lone surrogates.

    `tokens` are further tokens, as `template_tokens` finds them. Escaping twice changes nothing.
    """
    return _pattern(frozenset(tokens)).sub(lambda found: f"{found[0]}\\", replace_surrogates(text))


def template_tokens(tokenizer: Any) -> frozenset[str]:
    """Return the texts that mark turns for a Hugging Face tokenizer, for `escaped`.

    These are its special tokens, added tokens that are not words, and labels such as "User:" in its
    chat template.
    """
    added = set(map(str, getattr(tokenizer, "get_added_vocab", dict)()))
    tokens = special_tokens(tokenizer) | {
        token for token in added if not token.strip()[:1].isalnum()
    }
    template = getattr(tokenizer, "chat_template", None) or ""
    tokens |= _labels(template.values() if isinstance(template, dict) else [template])
    name = str(getattr(tokenizer, "name_or_path", "")).lower()
    for family, labels in _LABELS_BY_NAME.items():
        tokens |= set(labels) if family in name else set()
    return frozenset(token for token in tokens if len(token.strip()) > 1)


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """Return the special tokens of a Hugging Face tokenizer, including those without a role.

    The turn tokens of Llama 3 have no role such as "eos", and `all_special_tokens` omits them.
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    unnamed = {str(token) for token in added if getattr(token, "special", False)}
    return frozenset(unnamed | set(map(str, getattr(tokenizer, "all_special_tokens", ()))))


def _labels(templates: Iterable[object]) -> set[str]:
    """Return the labels in the literal texts of templates."""
    return {
        label[0]
        for template in templates
        for literal in _LITERAL.finditer(str(template))
        for label in _LABEL.finditer(literal[0])
    }


@lru_cache(maxsize=16)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """Match the first characters of tokens only, so that overlapping tokens are all found."""
    own = (f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in sorted(tokens))
    return re.compile("|".join((*_BORDERS, *own)))


# The action of a policy's reply, by the rules of RLM runs.


def action_of_reply(reply: str, known: Collection[str] = ()) -> REPLAction:
    """Return the action of a reply, which may be any text; no text raises.

    The code blocks of the reply run in order as one step. An answer in prose, such as `FINAL(42)`,
    is submitted, or evaluated in the session if it reads variables, whose names are `known`. A
    reply with neither is a `format_error`. Blocks beyond `MAX_BLOCKS` are left out, and an answer
    beside code does not count, as `metadata["note"]` of the action then says.

    Raises:
        TypeError: the reply is not a str.
    """
    if not isinstance(reply, str):
        raise TypeError(f"a reply must be a str, not {type(reply).__name__}")
    parsed_reply = read_reply(replace_surrogates(reply), known)
    answer, codes = parsed_reply.answer, parsed_reply.codes
    if answer is not None and not (answer.is_variable or answer.is_code):
        return REPLAction(is_final=True, final_answer=answer.text)
    if answer is not None:
        code = f'FINAL_VAR("{answer.text}")' if answer.is_variable else answer.text
        return REPLAction(code=code)
    if not codes:
        return REPLAction(format_error=NO_CODE)
    action = blocks_action(codes[:MAX_BLOCKS])
    notes = [TOO_MANY.format(MAX_BLOCKS, len(codes))] if len(codes) > MAX_BLOCKS else []
    if answer_beside(replace_surrogates(reply), known) is not None:
        notes.append(BESIDE)
    if notes:
        action.metadata["note"] = "\n".join(notes)
    return action


@dataclass(frozen=True, slots=True)
class RowResult:
    """The result of one row's reset or step.

    `message` is the text for the policy, free of chat template tokens. `mask`: an infrastructure
    failure touched the episode, which then says nothing about the policy. `episode` has the facts
    of the episode up to this step.
    """

    message: str
    reward: float
    terminated: bool
    truncated: bool
    mask: bool
    observation: REPLObservation = field(repr=False)
    episode: EpisodeSummary = field(default_factory=EpisodeSummary, repr=False)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class EpisodeRows(Closeable):
    """n concurrent episodes, each stepped by the text of a policy's reply.

    ```python
    with EpisodeRows(2) as rows:
        rows.reset([{"context": "a b c", "expected_answer": 3}, {"context": "d e"}])
        first, second = rows.step(["```python\nFINAL(len(context.split()))\n```", "I am lost."])
        print(first.reward, first.terminated, second.message)
    ```
    Args:
        n: the number of rows.
        template_tokens: texts that must not occur in a message, besides those of published chat
            templates; `repl_env.env.rows.template_tokens(tokenizer)` finds those of a tokenizer.
        record: a folder for trajectory files of the rollouts; None: no files.
        record_every: of how many groups of rollouts of one task the first is recorded.
        arguments: those of `LocalREPLEnv`, for every row.

    A pickle holds the arguments and no session: episodes start again with a reset.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    def __init__(
        self,
        n: int,
        *,
        template_tokens: Iterable[str] = (),
        record: str | os.PathLike[str] | None = None,
        record_every: int = 1,
        **arguments: Any,
    ) -> None:
        self._n = at_least(n, 1, "n")
        self._tokens = frozenset(template_tokens)
        self._recording = {"record": record, "record_every": record_every}
        self._recorder = RolloutRecorder.of(record, record_every)
        self._records: list[RecordedRollout | None] = [None] * n
        self._arguments = arguments
        self._envs = REPLVectorEnv(n, **arguments)
        self._last: list[RowResult | None] = [None] * n

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<EpisodeRows {self._envs!r}>"

    @property
    def environments(self) -> REPLVectorEnv:
        """The environments of the rows."""
        return self._envs

    @property
    def last(self) -> tuple[RowResult | None, ...]:
        """The last result of each row; None before its first reset."""
        return tuple(self._last)

    def reset(
        self,
        requests: Requests | None = None,
        *,
        only: Iterable[int] | None = None,
        notes: Sequence[RolloutNote] | None = None,
        **shared: Any,
    ) -> list[RowResult | None]:
        """Begin an episode in every row, or in the rows of `only`; None for the others.

        `notes` are for the records of these rows, in the order of `requests`. The other arguments
        are those of `REPLVectorEnv.reset`, with the same errors.
        """
        only = None if only is None else list(only)
        resets = resets_of(self._n, requests, only, shared, RESET_NAMES)
        self._end_records(resets)
        try:
            self._envs.reset(requests, only=only, **shared)
        finally:
            results = [self._begun(result) for result in self._envs.results]
            for row, result in enumerate(results):
                if result is not None or row in self._envs.errors:
                    self._last[row] = result
            if self._recorder is not None:
                self._begin_records(results, resets, notes)
        return results

    def step(
        self, replies: Sequence[str | REPLAction | None], *, timeout_s: float | None = None
    ) -> list[RowResult | None]:
        """Take the step of each reply concurrently; None is no reply, and no result.

        A `REPLAction` stands for a parsed reply. A row whose session dies is truncated and masked,
        and the others go on. A finished row that gets a reply returns its last result again, with
        reward 0.0. `timeout_s` limits each block's execution.

        Raises:
            TypeError: naming the row whose reply is not text; nothing was run.
            NotReset, Exception: as `REPLVectorEnv.step`.
        """
        if isinstance(replies, str) or len(replies) != self._n:
            raise ValueError(f"replies must be a list of {self._n}, one for each row")
        actions = [self._action(row, reply) for row, reply in enumerate(replies)]
        began = time.time()
        try:
            self._envs.step(actions, timeout_s=timeout_s)
        finally:
            results = [
                None if result is None else self._stepped(row, action, result)
                for row, (action, result) in enumerate(
                    zip(actions, self._envs.results, strict=True)
                )
            ]
            if self._recorder is not None:
                self._record_steps(replies, actions, results, began)
            self._last = [new or last for new, last in zip(results, self._last, strict=True)]
        return results

    def leave(self, row: int, stop_reason: str) -> None:
        """Write the record of a rollout that its trainer ends before its episode has ended."""
        record, last = self._records[row], self._last[row]
        if record is not None and last is not None and record.turns:
            record.end(last.episode, stop_reason)

    def close(self) -> None:
        """Close all sessions. A later reset opens new ones."""
        self._end_records(range(self._n))
        self._last = [None] * self._n
        self._envs.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows_of, (self._n, self._tokens, self._recording, self._arguments)

    def _end_records(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.leave(row, NOT_ENDED)
            self._records[row] = None

    def _begin_records(
        self,
        results: Sequence[RowResult | None],
        resets: Mapping[int, Mapping[str, Any]],
        notes: Sequence[RolloutNote] | None,
    ) -> None:
        """Begin the records of the rows that were reset; a group is of rows that begin together."""
        assert self._recorder is not None
        begun = {row: result for row in resets if (result := results[row]) is not None}
        for row, note in zip(resets, notes or [RolloutNote()] * len(resets), strict=True):
            if (result := begun.get(row)) is not None:
                record = self._records[row] = self._recorder.rollout(resets[row], note)
                record.begun(result.observation)

    def _record_steps(
        self,
        replies: Sequence[str | REPLAction | None],
        actions: Sequence[REPLAction | None],
        results: Sequence[RowResult | None],
        began: float,
    ) -> None:
        for record, reply, action, last, new in zip(
            self._records, replies, actions, self._last, results, strict=True
        ):
            if record is None or action is None or new is None or (last and last.done):
                continue
            said = reply if isinstance(reply, str) else reply_of(action)
            record.step(said, action.code, new.message, new.observation, began=began)
            if new.done:
                record.end(new.episode)

    def _action(self, row: int, reply: str | REPLAction | None) -> REPLAction | None:
        if reply is None:
            return None
        last = self._last[row]
        if last is not None and last.done:
            return REPLAction()  # nothing runs, so the reply need not be parsed
        if isinstance(reply, REPLAction):
            return reply
        try:
            return action_of_reply(reply, last.observation.available_variables if last else ())
        except TypeError as error:
            raise TypeError(f"replies[{row}]: {error}") from None

    def _begun(self, result: Result | None) -> RowResult | None:
        if result is None:
            return None
        return self._row(result, result.observation.result.stdout, EpisodeSummary())

    def _stepped(self, row: int, action: REPLAction | None, result: Result) -> RowResult:
        last = self._last[row]
        if last is not None and last.done:
            return self._row(result, last.message, last.episode)
        note = None if action is None else action.metadata.get("note")
        before = EpisodeSummary() if last is None else last.episode
        return self._row(result, message_of(result.observation, note), before.after(result))

    def _row(self, result: Result, message: str, episode: EpisodeSummary) -> RowResult:
        return RowResult(
            message=escaped(message, self._tokens),
            reward=result.reward or 0.0,
            terminated=result.terminated,
            truncated=result.truncated,
            mask=bool((result.metadata or {}).get("mask")),
            observation=result.observation,
            episode=episode,
        )


def reply_of(action: REPLAction) -> str:
    """Return a reply that means `action`, for records of a policy whose text is not known."""
    if action.is_final:
        return f"FINAL({action.final_answer!r})"
    return f"```repl\n{action.code}\n```" if action.code else ""


def message_of(observation: REPLObservation, note: str | None = None) -> str:
    """Return the text of a step for the policy: each block's outcome, and the end of the
    episode.
    """
    parts = outcome_texts(observation)
    if len(parts) > 1:
        parts = [f"Code block {number} output:\n{part}" for number, part in enumerate(parts, 1)]
        end = observation.result.stdout.rpartition("\n")[2]
        if observation.truncated and end not in parts[-1]:  # the iteration limit, reported last
            parts.append(end)
    return "\n\n".join(parts if note is None else [*parts, note])


def _rows_of(
    n: int, tokens: frozenset[str], recording: Mapping[str, Any], arguments: Mapping[str, Any]
) -> EpisodeRows:
    return EpisodeRows(n, template_tokens=tokens, **recording, **arguments)
