"""The model for the sub-calls of a reset: an allowed endpoint, or the model of the operator."""

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
