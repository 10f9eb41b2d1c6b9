"""The OpenAPI document against the server: whatever is asked is answered as the document says."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from repl_server.app import create_app
from tests.server.conftest import serving
from tests.waiting import PATIENCE

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# Texts about the host that a response must not contain.
TELLING = ("Traceback", 'File "', "site-packages", "repl_server/")

OPERATIONS = {
    found.ok().label: found.ok()
    for found in schemathesis.openapi.from_dict(create_app().openapi()).get_all_operations()
}


@pytest.fixture(scope="module")
def server():
    """A server that lets go of what is opened and left."""
    with serving({"max_sessions": 256, "idle_s": 5.0}) as running:
        yield running


def takes_anything(operation) -> bool:
    return bool(operation.body) or any(True for _ in operation.iter_parameters())


# A route without parameters can be asked in one way, which is right.
QUESTIONS = [
    (name, mode)
    for name, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or takes_anything(operation)
]


@pytest.mark.parametrize(("operation", "mode"), QUESTIONS, ids=lambda each: str(each))
def test_a_route_answers_as_its_document_says(server, operation, mode):
    cases = OPERATIONS[operation].as_strategy(generation_mode=mode)

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case):
        answer = case.call(base_url=server.url, timeout=PATIENCE)
        case.validate_response(answer, checks=CHECKS)
        if answer.status_code >= 400:
            assert not any(word in answer.text for word in TELLING)

    check()


def test_the_document_has_the_routes_of_the_page() -> None:
    assert {"POST /reset", "POST /step", "GET /state", "GET /health", "PUT /contexts/{sha256}"} <= (
        OPERATIONS.keys()
    )
