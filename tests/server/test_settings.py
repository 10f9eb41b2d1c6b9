"""`Settings` and `TenantQuota`: invalid values are refused in the constructor."""

from __future__ import annotations

import pytest

from repl_sandbox import Limits
from repl_server.settings import CONTEXT, Settings
from repl_server.tenants import TenantQuota


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"isolation": "foo"}, ValueError, "isolation"),
        ({"require": "foo"}, ValueError, "require"),
        ({"isolation": "process"}, ValueError, "require"),
        ({"recovery": "never"}, ValueError, "recovery"),
        ({"limits": "1GiB"}, TypeError, "limits"),
        ({"policy": "lint"}, TypeError, "policy"),
        ({"preload": "numpy"}, TypeError, "preload"),
        ({"preload": ("a b",)}, ValueError, "a b"),
        ({"host": None}, TypeError, "host"),
        ({"port": -1}, ValueError, "port"),
        ({"port": 65_536}, ValueError, "port"),
        ({"port": "8000"}, TypeError, "port"),
        ({"api_keys": "keys"}, TypeError, "api_keys"),
        ({"hashed_keys": "a:b"}, TypeError, "hashed_keys"),
        ({"origins": (3,)}, TypeError, "origins"),
        ({"frame_ancestors": "https://a.example"}, TypeError, "frame_ancestors"),
        ({"no_auth": "yes"}, TypeError, "no_auth"),
        ({"max_sessions": 0}, ValueError, "max_sessions"),
        ({"max_waiting": -1}, ValueError, "max_waiting"),
        ({"pool": True}, TypeError, "pool"),
        ({"pool": 9, "max_sessions": 8}, ValueError, "max_sessions"),
        ({"message_bytes": 0}, ValueError, "message_bytes"),
        ({"message_bytes": 2, "inbound_bytes": 1}, ValueError, "inbound_bytes"),
        ({"max_timeout_s": -1, "limits": Limits(timeout=1)}, ValueError, "max_timeout_s"),
        ({"wait_s": float("nan")}, ValueError, "wait_s"),
        ({"idle_s": 0}, ValueError, "idle_s"),
        ({"ping_s": 0}, ValueError, "ping_s"),
        ({"drain_s": "1"}, TypeError, "drain_s"),
        ({"llm": "gpt"}, TypeError, "llm"),
        ({"budget": 5}, TypeError, "budget"),
        ({"quota": {}}, TypeError, "quota"),
    ],
)
def test_a_setting_that_is_wrong_is_refused_by_name(given, error, named) -> None:
    with pytest.raises(error, match=named):
        Settings(**given)


@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (float("inf"), ValueError), ("1", TypeError)]
)
def test_a_quota_that_is_no_number_from_0_is_refused_by_name(value, error) -> None:
    with pytest.raises(error, match="sessions"):
        TenantQuota(sessions=value)


def test_all_sessions_may_be_prepared() -> None:
    assert Settings(pool=8, max_sessions=8).ready == 8


@pytest.mark.parametrize(("most", "ready"), [(64, 2), (1, 1)])
def test_sessions_are_prepared_by_default(most: int, ready: int) -> None:
    assert Settings(max_sessions=most).ready == ready
    assert Settings(max_sessions=most, pool=0).ready == 0


@pytest.mark.parametrize(
    ("timeout", "given", "longest"), [(60, None, 3600), (7200, None, 7200), (60, 60, 60)]
)
def test_the_default_timeout_may_be_requested_explicitly(timeout, given, longest) -> None:
    settings = Settings(limits=Limits(timeout=timeout), max_timeout_s=given)
    assert settings.longest_step_s == longest


def test_one_upload_is_no_larger_than_all_together(monkeypatch) -> None:
    from repl_server.cli_options import of_variables

    assert of_variables("127.0.0.1").context_bytes == CONTEXT
    monkeypatch.setenv("REPL_ENV_MAX_UPLOADS", "64MiB")
    assert of_variables("127.0.0.1").context_bytes == 64 << 20
