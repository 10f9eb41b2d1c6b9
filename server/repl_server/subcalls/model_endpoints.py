"""Where sub-calls of a reset may go: endpoints that the operator listed, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from pydantic import SecretStr

from repl_env.llm.model_factory import model_of
from repl_env.llm.model_spec import LLM

from ..auth.host_and_port import parse_host_and_port
from ..protocol.request_error import RequestError
from ..protocol.request_models import ModelEndpoint
from ..protocol.validation import validation_error
from ..settings import Settings

# Where a token of Hugging Face is used when no endpoint is named.
HUGGING_FACE = "https://router.huggingface.co/v1"

# Tokens of its router. With any other, its library asks the service that made the token.
_ROUTED = "hf_"

_PORTS = {"http": 80, "https": 443}
# A part of a path that is the same to all servers, proxies and libraries. Some read another path
# from a semicolon, an escape, a backslash, an empty part or a part of dots.
_PART = r"[A-Za-z0-9_~!$&'()+,=:@-][A-Za-z0-9._~!$&'()+,=:@-]*"
_URL = re.compile(rf"([a-z]+)://([^/]+)((?:/{_PART})*)/?", re.ASCII)

# Headers that are not the client's to send: by them a proxy before the listed endpoint, or the
# endpoint itself, would take a request elsewhere, or read it as another one.
_STEERING: Mapping[str, str] = {
    "host": "names another site of the same address",
    "forwarded": "as Host, for what stands behind a proxy",
    "x-forwarded-*": "likewise",
    "x-original-*": "another path, for some proxies",
    "x-rewrite-*": "likewise",
    "x-http-method*": "another method",
    "proxy-*": "is between the server and its proxy",
    "connection": "is about this connection",
    "content-length": "is about this request's body",
    "transfer-encoding": "likewise",
    "te": "is about this connection",
    "trailer": "is about this request's body",
    "upgrade": "another protocol",
    "expect": "is about this request's body",
}


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """An endpoint's address, in a form that can be compared."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> EndpointAddress | None:
        """The address that `url` names; None if it is not plainly one."""
        found = _URL.fullmatch(url)
        if found is None:
            return None
        scheme, address, path = found[1], parse_host_and_port(found[2]), found[3]
        if address is None or scheme not in _PORTS:
            return None
        return cls(scheme, address.host, address.port or _PORTS[scheme], path)


def is_allowed(url: str, urls: tuple[str, ...]) -> bool:
    """Whether `url` is one of `urls`, or below one of them that ends with "/*"."""
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
    """TypeError or ValueError, naming what is wrong, if the operator's own model cannot be one."""
    if llm is not None:
        with suppress(ImportError):  # a reset that needs it is message
            model_of(llm)


def check_list(urls: tuple[str, ...]) -> None:
    """Raises ValueError, naming the first of `urls` that would be no endpoint's."""
    for each in urls:
        plain = each.removesuffix("/*")
        if EndpointAddress.of(plain) is None or "*" in plain:
            raise ValueError(
                f"{each!r} lists no endpoint: https://host/path does, and with /* all below it"
            )


def llm_of(
    settings: Settings,
    *,
    llm: ModelEndpoint | None = None,
    hf_token: SecretStr | None = None,
    llm_model: str | None = None,
) -> LLM:
    """The model that answers the sub-calls of a reset with these arguments.

    A reset that brings neither an endpoint nor a token gets the operator's, by the name it gives.

    Raises:
        Refusal: FORBIDDEN, the endpoint is not listed, or a header would lead elsewhere;
            VALIDATION_ERROR, both forms were given, or what is no token of Hugging Face.
    """
    if llm is not None:
        _check_headers(llm.headers)
        if hf_token is not None or llm_model is not None:
            raise validation_error(
                "data.llm", "goes without llm_model and hf_token: it has both inside"
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
        raise validation_error("data.llm.model", "an endpoint has to be message which model")
    if requested.base_url is None and not (requested.api_key or "").startswith(_ROUTED):
        raise validation_error("data", f"a token of Hugging Face begins with {_ROUTED}")
    if not is_allowed(requested.base_url or HUGGING_FACE, settings.llm_urls):
        address = "Hugging Face" if requested.base_url is None else "this endpoint"
        message = (
            f"sub-calls may not go to {address}: the operator lists where they may, by --llm-url"
        )
        raise RequestError("FORBIDDEN", message)
    return requested


def _of_operator(own: LLM | None, requested: LLM) -> LLM:
    if own is None:
        return LLM()
    return own if requested.model is None else replace(own, model=requested.model)


def _check_headers(headers: Mapping[str, object]) -> None:
    for name in headers:
        # Some servers take one for the other.
        plain = name.strip().lower().replace("_", "-")
        for pattern, reason in _STEERING.items():
            if fnmatchcase(plain, pattern):
                raise RequestError(
                    "FORBIDDEN", f"data.llm.headers: {pattern} may not be set: {reason}"
                )


def _open(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
