"""`SessionSubcalls`: answers the sub-calls of one session within one budget.

Model clients hold the API keys, and live as long as their episode. Keys appear in no repr, state,
log or error.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TypeVar

from repl_env.rlm.budget.budget_limits import Budget, Spent
from repl_env.rlm.subcalls.child_runs import ChildEnvironments
from repl_env.rlm.subcalls.episode_subcalls import EpisodeSubcalls
from repl_env.rlm.subcalls.provider import GivenProvider
from repl_env.rlm.subcalls.subcall_settings import Failed, SubcallSettings

from ..protocol.request_error import RequestError
from ..quotas.usage_meters import UsageMeter
from ..settings import Settings
from ..telemetry.recorder import Telemetry

# Modules that the first sub-call would import.
_ASKING = (
    "repl_env.rlm.subcalls.child_runs",
    "repl_env.llm.endpoints.openai_model",
    "repl_env.llm.endpoints.hf_model",
    "openai.resources.chat.completions",
    "huggingface_hub.inference._generated._async_client",
)

# Lists the sub-call functions of a session.
_PROVIDER = GivenProvider()

# Sub-calls that a session without a limit reserves from its tenant's quota.
_MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class _EpisodeSubcalls:
    """The sub-calls of an episode, and how many it has reserved from the tenant's quota."""

    calling: EpisodeSubcalls
    reserved: int


@dataclass(slots=True)
class _SubcallUsage:
    """The usage of a session's finished episodes. Time counts from the creation."""

    began: float = field(default_factory=time.monotonic)
    spent: list[Spent] = field(default_factory=list)

    def remaining(self, whole: Budget) -> Budget:
        """The unused part of a budget."""
        return Budget(
            calls=_less(whole.calls, sum(each.calls for each in self.spent)),
            input_tokens=_less(whole.input_tokens, sum(each.input_tokens for each in self.spent)),
            output_tokens=_less(
                whole.output_tokens, sum(each.output_tokens for each in self.spent)
            ),
            usd=_less(whole.usd, sum(each.usd for each in self.spent)),
            seconds=_less(whole.seconds, time.monotonic() - self.began),
            cpu_seconds=_less(whole.cpu_seconds, sum(each.cpu_seconds for each in self.spent)),
            children=_less(whole.children, sum(each.children for each in self.spent)),
        )


def warm_up(settings: Settings) -> None:
    """Import the model clients, if any are allowed: a second or two that blocks all sessions."""
    if not (settings.llm_urls or settings.llm):
        return
    for module in _ASKING:
        with contextlib.suppress(ImportError):  # reported to the reset that needs the library
            import_module(module)


class SessionSubcalls:
    """A sub-call provider (`repl_env.rlm.subcalls.provider`) for all episodes of one session.

    The episodes share `settings.budget`.
    """

    def __init__(self, settings: Settings, meter: UsageMeter, telemetry: Telemetry) -> None:
        self._settings = settings
        self._meter = meter
        self._telemetry = telemetry
        self._open: list[_EpisodeSubcalls] = []
        self._spending = _SubcallUsage()

    def names(self, settings: SubcallSettings) -> frozenset[str]:
        """As `Provider.names`."""
        return _PROVIDER.names(settings)

    def begin(
        self, settings: SubcallSettings, failed: Failed, home: ChildEnvironments
    ) -> EpisodeSubcalls | None:
        """As `Provider.begin`."""
        if not self.names(settings):
            return None
        self.settle()
        remaining = self._spending.remaining(self._settings.budget)
        reserved = self._reserve(_MANY if remaining.calls is None else remaining.calls)
        budget = replace(remaining, calls=reserved)
        try:
            calling = GivenProvider(budget=budget).begin(settings, failed, home)
        except BaseException:
            self._meter.return_calls(reserved)
            raise
        assert calling is not None
        self._open.append(_EpisodeSubcalls(calling, reserved))
        return calling

    def branch(self) -> SessionSubcalls:
        """The provider of a branch of the session; takes the sub-calls begun for the branch."""
        other = SessionSubcalls(self._settings, self._meter, self._telemetry)
        other._spending = _SubcallUsage(self._spending.began, list(self._spending.spent))
        if len(self._open) > 1:
            other._open.append(self._open.pop())
        return other

    def settle(self) -> None:
        """Record the usage of finished episodes, and return their unused reservations."""
        ended = [each for each in self._open if each.calling.closed]
        self._open = [each for each in self._open if not each.calling.closed]
        for each in ended:
            spent = each.calling.account.total
            self._spending.spent.append(spent)
            self._telemetry.sub_calls(spent)
            self._meter.return_calls(max(0, each.reserved - spent.calls))

    def _reserve(self, calls: int) -> int:
        try:
            return self._meter.reserve_calls(calls)
        except RequestError:
            # The episode may not need any; its first sub-call reports that none are remaining.
            return 0


_T = TypeVar("_T", int, float)


def _less(whole: _T | None, spent: _T) -> _T | None:
    return None if whole is None else max(type(whole)(0), whole - spent)
