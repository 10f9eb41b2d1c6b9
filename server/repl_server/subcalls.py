"""Sub-calls of a session on the server: the model that answers them, within one budget."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TypeVar

from pydantic import SecretStr

from repl_env.llm.factory import model_of
from repl_env.llm.spec import LLM
from repl_env.rlm.answerers import SubcallSettings
from repl_env.rlm.budget import Budget, Spent
from repl_env.rlm.children import ChildEnvironments
from repl_env.rlm.providers import GivenProvider
from repl_env.rlm.subcalls import EpisodeSubcalls

from .auth import parse_host_and_port
from .protocol import ModelEndpoint, validation_error
from .quotas import UsageMeter
from .settings import Settings
from .telemetry import Telemetry
from .tenants import RequestError

# The model for the sub-calls of a reset: an allowed endpoint, or the model of the operator.

# The endpoint for tokens of Hugging Face, if the reset names none.
HUGGING_FACE = "https://router.huggingface.co/v1"

# Prefix of tokens for the router. With others, the client library calls the token's own provider.
_ROUTED = "hf_"

_PORTS = {"http": 80, "https": 443}
# A path segment that all servers, proxies and libraries read alike. Some of them normalise paths
# with a semicolon, an escape, a backslash, an empty segment or a dot segment.
_PART = r"[A-Za-z0-9_~!$&'()+,=:@-][A-Za-z0-9._~!$&'()+,=:@-]*"
_URL = re.compile(rf"([a-z]+)://([^/]+)((?:/{_PART})*)/?", re.ASCII)

# Headers that a client may not set, with the reason: a proxy before the allowed endpoint, or the
# endpoint itself, could redirect or reinterpret the request.
_STEERING: Mapping[str, str] = {
    "host": "it selects another site at the same address",
    "forwarded": "it selects another site behind a proxy",
    "x-forwarded-*": "it selects another site behind a proxy",
    "x-original-*": "some proxies take the path from it",
    "x-rewrite-*": "some proxies take the path from it",
    "x-http-method*": "it overrides the method",
    "proxy-*": "it is for the proxy of the server",
    "connection": "it is for this connection only",
    "content-length": "it frames the body",
    "transfer-encoding": "it frames the body",
    "te": "it is for this connection only",
    "trailer": "it frames the body",
    "upgrade": "it changes the protocol",
    "expect": "it delays the body",
}


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """The address of an endpoint in a comparable form."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> EndpointAddress | None:
        """Parse `url`; None unless its meaning is unambiguous."""
        found = _URL.fullmatch(url)
        if found is None:
            return None
        scheme, address, path = found[1], parse_host_and_port(found[2]), found[3]
        if address is None or scheme not in _PORTS:
            return None
        return cls(scheme, address.host, address.port or _PORTS[scheme], path)


def is_allowed(url: str, urls: tuple[str, ...]) -> bool:
    """Return whether `urls` has `url`, or a prefix of `url` that ends with "/*"."""
    address = EndpointAddress.of(url)
    if address is None:
        return False
    for each in urls:
        below = each.endswith("/*")
        found = EndpointAddress.of(each[:-2] if below else each)
        if found is None or replace(found, path="") != replace(address, path=""):
            continue
        if address.path == found.path or (below and address.path.startswith(f"{found.path}/")):
            return True
    return False


def check_own(llm: LLM | None) -> None:
    """Raise TypeError or ValueError if the operator's own model is misconfigured."""
    if llm is not None:
        with suppress(ImportError):  # reported to the reset that needs the library
            model_of(llm)


def check_list(urls: tuple[str, ...]) -> None:
    """Raise ValueError, naming the first of `urls` that is not an endpoint."""
    for each in urls:
        plain = each.removesuffix("/*")
        if EndpointAddress.of(plain) is None or "*" in plain:
            raise ValueError(
                f"llm_urls: {each!r} is not an endpoint: write https://host/path, or append /* for"
                " all below"
            )


def llm_of(
    settings: Settings,
    *,
    llm: ModelEndpoint | None = None,
    hf_token: SecretStr | None = None,
    llm_model: str | None = None,
) -> LLM:
    """The model for the sub-calls of a reset with these arguments.

    A reset without an endpoint and a token gets the operator's model, under the name it gives.

    Raises:
        RequestError: FORBIDDEN, the endpoint is not allowed, or a header could redirect the call;
            VALIDATION_ERROR, both forms were given, or the token is not one of Hugging Face.
    """
    if llm is not None:
        _check_headers(llm.headers)
        if hf_token is not None or llm_model is not None:
            raise validation_error(
                "data.llm", "excludes llm_model and hf_token: it has fields for both"
            )
        requested = LLM(
            model=llm.model,
            base_url=llm.base_url,
            api_key=_open(llm.api_key),
            headers={name: value.get_secret_value() for name, value in llm.headers.items()},
            sampling=llm.sampling,
        )
    else:
        requested = LLM(model=llm_model, api_key=_open(hf_token))
    if not requested.answers:
        return _of_operator(settings.llm, requested)
    if requested.base_url is not None and requested.model is None:
        raise validation_error("data.llm.model", "an endpoint needs the name of a model")
    if requested.base_url is None and not (requested.api_key or "").startswith(_ROUTED):
        raise validation_error("data", f"a token of Hugging Face must begin with {_ROUTED}")
    if not is_allowed(requested.base_url or HUGGING_FACE, settings.llm_urls):
        address = "Hugging Face" if requested.base_url is None else "this endpoint"
        message = f"sub-calls to {address} are not allowed; the operator allows one by --llm-url"
        raise RequestError("FORBIDDEN", message)
    return requested


def _of_operator(own: LLM | None, requested: LLM) -> LLM:
    if own is None:
        return LLM()
    return own if requested.model is None else replace(own, model=requested.model)


def _check_headers(headers: Mapping[str, object]) -> None:
    for name in headers:
        # Some servers treat the two characters alike.
        plain = name.strip().lower().replace("_", "-")
        for pattern, reason in _STEERING.items():
            if fnmatchcase(plain, pattern):
                raise RequestError(
                    "FORBIDDEN", f"data.llm.headers: {pattern} may not be set: {reason}"
                )


def _open(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


# `SessionSubcalls`: answers the sub-calls of one session within one budget.
#
# Model clients hold the API keys, and live as long as their episode. Keys appear in no repr,
# state, log or error.

# Modules that the first sub-call would import.
_ASKING = (
    "repl_env.rlm.children",
    "repl_env.llm.openai",
    "repl_env.llm.hf",
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
    """A sub-call provider (`repl_env.rlm.providers`) for all episodes of one session.

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

    def begin(self, settings: SubcallSettings, home: ChildEnvironments) -> EpisodeSubcalls | None:
        """As `Provider.begin`."""
        if not self.names(settings):
            return None
        self.settle()
        remaining = self._spending.remaining(self._settings.budget)
        reserved = self._reserve(_MANY if remaining.calls is None else remaining.calls)
        budget = replace(remaining, calls=reserved)
        try:
            calling = GivenProvider(budget=budget).begin(settings, home)
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
