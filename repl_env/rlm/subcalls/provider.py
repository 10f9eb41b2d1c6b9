"""`GivenProvider`: sub-calls answered by functions of the user, or by the model of the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from repl_env.common.argument_checks import check_callable
from repl_env.concurrency.user_functions import check_takes
from repl_env.llm.model_spec import LLM
from repl_env.rlm.subcalls.subcall_settings import (
    BUDGET,
    NAMES,
    Failed,
    SubcallSettings,
    UserFunction,
)

if TYPE_CHECKING:
    from repl_env.llm.base import ChatModel
    from repl_env.rlm.budget.budget_limits import Budget, Price
    from repl_env.rlm.budget.ledger import LedgerAccount
    from repl_env.rlm.subcalls.answerers import Answerer
    from repl_env.rlm.subcalls.child_runs import ChildEnvironments, RecursionConfig
    from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls


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
        self, settings: SubcallSettings, failed: Failed, environments: ChildEnvironments
    ) -> EpisodeSubcalls | None:
        """Return the sub-calls of one episode."""
        if not self.names(settings):
            return None
        from repl_env.llm.request_gate import REQUESTS
        from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls

        account = self._account()
        if not any(self._given.values()):
            model = environments.model(settings.llm)
            recursion = self._recursion(settings, model)
            return recursion.begin_subcalls(account, settings, failed, environments).close_at_end(
                model
            )
        plain, deep = self._answerers(settings.llm.model)
        slots = settings.slots
        return EpisodeSubcalls(
            plain, deep, account=account, gate=REQUESTS, failed=failed, slots=slots
        )

    def _account(self) -> LedgerAccount:
        from repl_env.rlm.budget.budget_limits import Budget
        from repl_env.rlm.budget.ledger import Ledger

        budget = Budget(calls=None) if self._budget is None else self._budget
        return Ledger(budget, prices=self._prices).root

    def _recursion(self, settings: SubcallSettings, model: ChatModel) -> RecursionConfig:
        from repl_env.rlm.run_config import RunConfig
        from repl_env.rlm.subcalls.child_runs import RecursionConfig

        turns = settings.max_iterations
        run_config = RunConfig() if turns is None else RunConfig(max_iterations=turns)
        if self._budget is not None:
            run_config = run_config.within(self._budget)
        return RecursionConfig(model, model, max_depth=settings.max_depth, run_config=run_config)

    def _answerers(self, default: str | None) -> tuple[Answerer | None, Answerer | None]:
        """Return the answerers of plain and of recursive questions."""
        from repl_env.rlm.subcalls.answerers import ModelAnswerer, SplitAnswerer
        from repl_env.rlm.subcalls.function_answerers import BatchFunction, PromptFunction

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
        from repl_env.llm.model_factory import model_of

        model_of(llm)
