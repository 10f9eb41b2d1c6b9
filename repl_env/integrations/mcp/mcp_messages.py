"""One message of the Model Context Protocol as text: what it is, or the error that answers it.

No I/O. Stricter than the SDK's own reading, which takes a request with a wrong id for a
notification and leaves it without an answer.
"""

from __future__ import annotations

from typing import Any

from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from repl_env.common.values import explain_not_json


class BadMessage(Exception):
    """An invalid message, or a request for an unknown method.

    `code` is JSON-RPC's, `id` that of the request if it has one, `data` what there is to know.
    """

    def __init__(
        self, code: int, message: str, id: RequestId | None = None, data: Any = None
    ) -> None:
        self.code = code
        self.message = message
        self.id = id
        self.data = data
        super().__init__(message)

    def answer(self) -> JSONRPCError:
        """The message that says so to whoever sent it."""
        error_data = ErrorData(code=self.code, message=self.message)
        if self.data is not None:
            error_data.data = self.data
        return JSONRPCError(jsonrpc="2.0", id=self.id, error=error_data)


def parse(text: str | bytes) -> JSONRPCMessage:
    """The message that `text` is; raises BadMessage."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as reason:
        raise BadMessage(PARSE_ERROR, f"the message is no JSON: {reason}") from None
    return message_of(value)


def message_of(value: Any) -> JSONRPCMessage:
    """The message that a value read from JSON is; raises BadMessage."""
    if isinstance(value, list):
        raise BadMessage(INVALID_REQUEST, "batches are not taken: send one object at a time")
    if not isinstance(value, dict):
        raise BadMessage(INVALID_REQUEST, "a message must be an object")
    request_id = _id_of(value)
    _check_plain(value, request_id)
    if value.get("jsonrpc") != "2.0":
        raise BadMessage(INVALID_REQUEST, 'jsonrpc must be "2.0"', request_id)
    if "method" not in value:
        return _answer_of(value, request_id)
    if not isinstance(value["method"], str):
        raise BadMessage(INVALID_REQUEST, "method must be a string", request_id)
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise BadMessage(INVALID_PARAMS, "params must be an object", request_id)
    if request_id is None:
        return JSONRPCNotification(jsonrpc="2.0", method=value["method"], params=params)
    return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=value["method"], params=params)


def _id_of(value: dict[str, Any]) -> RequestId | None:
    if "id" not in value:
        return None
    request_id: RequestId = value["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, (int, str)):
        raise BadMessage(INVALID_REQUEST, "id must be a string or a whole number")
    return request_id


def _answer_of(value: dict[str, Any], request_id: RequestId | None) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_python(value)
    except ValidationError:
        raise BadMessage(INVALID_REQUEST, "a message needs a method", request_id) from None


def _check_plain(value: dict[str, Any], request_id: RequestId | None) -> None:
    """Refuse what is nested too deep, and numbers that JSON has no text for (1e999 is read so)."""
    if problem := explain_not_json(value):
        raise BadMessage(INVALID_REQUEST, problem, request_id)
