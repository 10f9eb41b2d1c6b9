"""Sub-calls answered by functions of users, one by one or as a batch, or by the episode's model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from repl_env.common.threads import accepts, call_user_function, check_takes, is_async
from repl_env.common.values import check_callable
from repl_env.errors import BudgetExceeded, ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import CallableModel, Completion, as_completion
from repl_env.llm.spec import LLM
from repl_env.rlm.answerers import (
    BUDGET,
    NAMES,
    PROBE_PROMPT,
    Answerer,
    Ended,
    SubcallOrigin,
    SubcallReply,
    SubcallRequest,
    SubcallSettings,
    UserFunction,
    matching_value,
)
from repl_env.rlm.config import SHARE
from repl_env.rlm.ledger import LedgerAccount, Reservation

if TYPE_CHECKING:
    from repl_env.llm.base import ChatModel
    from repl_env.rlm.budget import Budget, Price
    from repl_env.rlm.children import ChildEnvironments, RecursionConfig
    from repl_env.rlm.subcalls import EpisodeSubcalls


# Functions of users that answer sub-calls: one by one, or a batch in one call.


class PromptFunction(CallableModel):
    """A user's function of `(prompt)` or `(prompt, model)`, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # From its own signature: the function passed on here takes messages instead of a prompt.
        wants_model = accepts(function, "", None)

        def ask(messages: list[Message], model: str | None) -> Any:
            prompt = "\n\n".join(str(message["content"]) for message in messages)
            return function(prompt, model) if wants_model else function(prompt)

        async def ask_async(messages: list[Message], model: str | None) -> Any:
            return await ask(messages, model)

        super().__init__(ask_async if is_async(function) else ask)


class BatchFunction(Answerer):
    """A user's function of `(prompts)` or `(prompts, model)`: one call for all."""

    def __init__(
        self, function: Callable[..., Any], default: str | None = None, may_be_shorter: bool = False
    ) -> None:
        self._function = function
        self._takes_model = accepts(function, [], None)
        self._default = default
        # Whether the function, and so this answerer, may return fewer answers.
        self._may_be_shorter = may_be_shorter

    async def probe(self) -> None:
        """Call the function with one short prompt."""
        await self._call([PROBE_PROMPT], self._default)

    async def answer(self, request: SubcallRequest, call: SubcallOrigin) -> SubcallReply:
        """Answer a batch of one."""
        return (await self._answer_all([request], [call], _ignore))[0]

    async def answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        """Make one call with all prompts that the budget admits.

        It counts as one concurrent call.
        """
        if not calls:
            return []
        async with calls[0].slots:
            return await self._answer_all(requests, calls, ended)

    async def _answer_all(
        self, requests: Sequence[SubcallRequest], calls: Sequence[SubcallOrigin], ended: Ended
    ) -> list[SubcallReply]:
        replies: list[SubcallReply | None] = [None] * len(requests)
        with ExitStack() as stack:
            reservations: dict[int, Reservation] = {}
            share = _share(calls[0].account, len(calls)) if calls else None
            for index, (request, call) in enumerate(zip(requests, calls, strict=True)):
                try:
                    reservations[index] = stack.enter_context(self._reserve(request, call, share))
                except BudgetExceeded as error:
                    replies[index] = SubcallReply.failed(error)
            admitted = [requests[index] for index in reservations]
            try:
                answers = await self._ask(admitted, calls[0]) if admitted else []
            except ModelError as error:
                answers = [error] * len(admitted)
            answers_by_reservation = dict(zip(reservations, answers, strict=False))
            for index, answer in answers_by_reservation.items():
                _settle(requests[index], reservations[index], answer)
        for index, answer in answers_by_reservation.items():
            replies[index] = await _reply(requests[index], answer)
        found = [reply for reply in replies if reply is not None]
        for index, reply in enumerate(found):
            ended(index, reply)
        return found

    def _reserve(
        self, request: SubcallRequest, call: SubcallOrigin, share: int | None
    ) -> Reservation:
        # At once or not at all: a call with a part of a batch's reservations must not wait for the
        # rest.
        return call.account.reserve(
            model=request.model or self._default,
            input_tokens=_bound(request.text),
            output_tokens=share,
        )

    async def _ask(
        self, requests: Sequence[SubcallRequest], call: SubcallOrigin
    ) -> Sequence[Completion | ModelError]:
        async with call.gate:
            prompts = [request.text for request in requests]
            return await self._call(prompts, requests[0].model or self._default)

    async def _call(
        self, prompts: list[str], model: str | None
    ) -> Sequence[Completion | ModelError]:
        arguments = (prompts, model) if self._takes_model else (prompts,)
        try:
            answers = await call_user_function(self._function, *arguments)
            if isinstance(answers, str):
                raise TypeError("a function for batches returns a list of answers, not one str")
            answers = list(answers)
            shortened = len(answers) < len(prompts) and self._may_be_shorter
            if not (shortened or len(answers) == len(prompts)):
                raise ValueError(f"{len(answers)} answers to {len(prompts)} prompts")
        # Boundary: a user's function may raise anything.
        except Exception as error:
            raise ModelError(type(error).__name__, str(error)) from error
        return [_completion(answer) for answer in answers]


def _share(account: LedgerAccount, count: int) -> int | None:
    """Return the tokens of each of `count` answers, so that all fit; None: no limit."""
    budget, left = account.ledger.budget, account.left().output_tokens
    if left is not None:
        return max(1, left // count)
    return None if budget.usd is None else SHARE


def _settle(
    request: SubcallRequest, reservation: Reservation, answer: Completion | ModelError
) -> None:
    if not isinstance(answer, ModelError):  # otherwise the reservation ends as failed
        reservation.settle(
            answer.usage,
            input_estimate=_bound(request.text),
            output_estimate=_bound(answer.text),
            price_model=answer.model or request.model,
        )


async def _reply(request: SubcallRequest, answer: Completion | ModelError) -> SubcallReply:
    if isinstance(answer, ModelError):
        return SubcallReply.failed(answer)
    if request.schema is None:
        return SubcallReply.of(answer)
    try:
        return SubcallReply.of(answer, await matching_value(answer, request.schema))
    except ValueError as error:
        return SubcallReply.failed(ModelError("schema", str(error)))


def _completion(answer: object) -> Completion | ModelError:
    try:
        return as_completion(answer)
    except ModelError as error:
        return error


def _bound(text: str) -> int:
    """Return the bytes of a text, which no byte-level vocabulary exceeds in tokens."""
    return len(text.encode("utf-8", "replace"))


def _ignore(index: int, reply: SubcallReply) -> None:
    pass


# `GivenProvider`: sub-calls answered by functions of the user, or by the model of the episode.


class GivenProvider:
    """Sub-calls answered by the user's functions, otherwise by the model that an episode names.

    A function takes `(prompt, model)` or `(prompt)`, according to its signature; plain or
    asynchronous. Without a batch function, the function for single prompts is called for each;
    without a function for recursive calls, they are plain calls. Without any function, the model of
    a reset answers (`llm`, or `hf_token` and `llm_model`), and child runs answer recursive calls. A
    plain function is called in threads, up to the environment's `max_concurrent_subcalls` at a
    time. `may_be_shorter`: a batch function may return fewer answers, and the code gets fewer.

    Raises:
        TypeError, ValueError: naming an argument that is not a function, budget or price.
    """

    def __init__(
        self,
        llm_query_fn: UserFunction | None = None,
        llm_batch_fn: UserFunction | None = None,
        subcall_fn: UserFunction | None = None,
        subcall_batch_fn: UserFunction | None = None,
        *,
        budget: Budget | None = None,
        prices: Mapping[str, Price] | None = None,
        may_be_shorter: bool = False,
    ) -> None:
        self._given = {
            "llm_query_fn": llm_query_fn,
            "llm_batch_fn": llm_batch_fn,
            "subcall_fn": subcall_fn,
            "subcall_batch_fn": subcall_batch_fn,
        }
        for name, function in self._given.items():
            if function is not None:
                check_callable(function, name)
                check_takes(function, "prompts" if "batch" in name else "prompt", name)
        self._budget, self._prices, self._may_be_shorter = budget, prices, may_be_shorter
        if budget is not None or prices is not None:
            self._account()  # report errors now, not at the first reset

    def function(self, name: str) -> UserFunction | None:
        """Return the function given as the argument `name`."""
        return self._given[name]

    def with_function(self, name: str, function: UserFunction | None) -> GivenProvider:
        """Return a provider with another function for `name`; TypeError if it is not callable."""
        return GivenProvider(
            **{**self._given, name: function},
            budget=self._budget,
            prices=self._prices,
            may_be_shorter=self._may_be_shorter,
        )

    def take_over(self, subcalls: EpisodeSubcalls, settings: SubcallSettings) -> None:
        """Answer the later calls of an episode."""
        subcalls.set_answerers(*self._answerers(settings.llm.model))

    def names(self, settings: SubcallSettings) -> frozenset[str]:
        """Return the functions of the session that have an answerer.

        Raises:
            ImportError, TypeError, ValueError: the model of `settings` cannot be used.
        """
        if not any(self._given.values()):
            if not settings.llm.answers:
                return frozenset()
            _check_endpoint(settings.llm)
            return frozenset((*NAMES, BUDGET))
        plain = self._given["llm_query_fn"] or self._given["llm_batch_fn"]
        return frozenset((*(name for name in NAMES if plain or name.startswith("rlm_")), BUDGET))

    def begin(
        self, settings: SubcallSettings, environments: ChildEnvironments
    ) -> EpisodeSubcalls | None:
        """Return the sub-calls of one episode."""
        if not self.names(settings):
            return None
        from repl_env.llm.base import REQUESTS
        from repl_env.rlm.subcalls import EpisodeSubcalls

        account = self._account()
        if not any(self._given.values()):
            model = environments.model(settings.llm)
            recursion = self._recursion(settings, model)
            return recursion.begin_subcalls(account, settings, environments).close_at_end(model)
        plain, deep = self._answerers(settings.llm.model)
        slots = settings.slots
        return EpisodeSubcalls(plain, deep, account=account, gate=REQUESTS, slots=slots)

    def _account(self) -> LedgerAccount:
        from repl_env.rlm.budget import Budget
        from repl_env.rlm.ledger import Ledger

        budget = Budget(calls=None) if self._budget is None else self._budget
        return Ledger(budget, prices=self._prices).root

    def _recursion(self, settings: SubcallSettings, model: ChatModel) -> RecursionConfig:
        from repl_env.rlm.children import RecursionConfig
        from repl_env.rlm.config import RunConfig

        turns = settings.max_iterations
        run_config = RunConfig() if turns is None else RunConfig(max_iterations=turns)
        if self._budget is not None:
            run_config = run_config.within(self._budget)
        return RecursionConfig(model, model, max_depth=settings.max_depth, run_config=run_config)

    def _answerers(self, default: str | None) -> tuple[Answerer | None, Answerer | None]:
        """Return the answerers of plain and of recursive questions."""
        from repl_env.rlm.answerers import ModelAnswerer, SplitAnswerer

        given = self._given

        def one(name: str) -> Answerer | None:
            function = given[name]
            return None if function is None else ModelAnswerer(PromptFunction(function), default)

        def many(name: str) -> Answerer | None:
            function = given[name]
            return (
                None if function is None else BatchFunction(function, default, self._may_be_shorter)
            )

        single, batch = one("llm_query_fn"), many("llm_batch_fn")
        # The recursive single function takes precedence over the plain batch: a batch of deep
        # questions must not become a batch of shallow ones because the user gave both kinds.
        deep, deep_batch = one("subcall_fn"), many("subcall_batch_fn")
        return (
            SplitAnswerer.of(single, batch),
            SplitAnswerer.of(deep or single, deep_batch or (None if deep else batch)),
        )


def _check_endpoint(llm: LLM) -> None:
    """Check the endpoint before the previous episode ends."""
    if llm.base_url is not None or llm.headers or llm.sampling:
        from repl_env.llm.factory import model_of

        model_of(llm)
