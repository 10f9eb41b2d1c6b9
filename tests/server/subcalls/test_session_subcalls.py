"""Sub-calls of sessions: their models, their common budget, and keys that no session sees."""

import json
import logging

import pytest

from repl_env import LLM
from repl_env.rlm.budget import Budget
from repl_sandbox import Limits
from repl_server.tenants import Tenant, TenantQuota
from tests.repl_env.llm.endpoint import Raw, Status
from tests.server.conftest import ask, peer, serving
from tests.waiting import eventually

KEY = "sk-very-secret-key"
# Owners whose calls are all there, of which none comes back within three minutes.
FIRST, SECOND = "127.0.0.2", "127.0.0.3"


@pytest.fixture(scope="module")
def served():
    from tests.repl_env.llm.endpoint import Endpoint

    with Endpoint("yes") as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def calling(served):
    """A server that lets resets name that endpoint, with a budget of four calls for a session."""
    settings = {
        "llm_urls": (served.base_url,),
        "budget": Budget(calls=4),
        "quota": TenantQuota(calls_per_hour=20),
    }
    with serving(settings) as server:
        yield server


def of(address):
    """The headers of a socket of another tenant."""
    return {"source_address": (address, 0)}


def llm(served):
    return {"model": "m", "base_url": served.base_url, "api_key": KEY}


def test_a_reset_selects_the_model_of_its_sub_calls(calling, served):
    with peer(calling) as one:
        one.reset(llm=llm(served))
        assert one.run("print(llm_query('Is it?'))")["stdout"] == "yes\n"

    assert served.requests[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_budget_is_for_all_episodes_of_a_session(calling, served):
    with peer(calling) as one:
        one.reset(llm=llm(served))
        assert (
            one.run("llm_query_batched(['a', 'b', 'c']); budget()['left']['calls']")["value"] == "1"
        )
        one.reset(llm=llm(served))
        assert one.run("budget()['left']['calls']")["value"] == "1"
        assert one.run("llm_query('d').ok")["value"] == "True"
        assert "BudgetExceeded" in one.run("llm_query('e')")["stderr"]
    with peer(calling) as other:
        other.reset(llm=llm(served))
        assert other.run("budget()['left']['calls']")["value"] == "4"


def test_unused_calls_of_a_session_return_to_its_tenant(calling, served):
    meter = calling.manager.quotas.meter_of(Tenant("address", FIRST))

    def left():
        granted = meter.reserve_calls(1000)
        meter.return_calls(granted)
        return granted

    before = left()
    with peer(calling, **of(FIRST)) as one:
        one.reset(llm=llm(served))
        assert left() == before - 4
        one.run("llm_query('a')")
        one.reset(llm=llm(served))
        assert left() == before - 4
    eventually(lambda: left() == before - 1)


def test_a_failed_reset_returns_its_calls(served):
    settings = {
        "llm_urls": (served.base_url,),
        "limits": Limits(memory="512MiB", workspace="1MiB"),
        "quota": TenantQuota(calls_per_hour=20),
    }
    with serving(settings) as server, peer(server) as one:
        meter = server.manager.quotas.meter_of(Tenant("address", "127.0.0.1"))
        large = {"data.txt": "x" * (2 << 20)}
        for _ in range(3):
            assert one.ask("reset", {"llm": llm(served), "files": large})["type"] == "error"
        one.reset()
        assert meter.reserve_calls(1000) == 20


def test_a_tenant_without_calls_can_go_on_without_them(calling, served):
    meter = calling.manager.quotas.meter_of(Tenant("address", SECOND))
    granted = meter.reserve_calls(1000)
    try:
        with peer(calling, **of(SECOND)) as one:
            one.reset(llm=llm(served))
            assert "BudgetExceeded" in one.run("llm_query('e')")["stderr"]
            assert one.run("1")["value"] == "1"
    finally:
        meter.return_calls(granted)


def test_other_endpoints_are_forbidden_and_the_episode_stays(calling, served):
    with peer(calling, named=True) as one:
        one.open()
        one.reset(llm=llm(served))
        one.run("x = 1")
        for bad in (
            {"llm": {**llm(served), "base_url": "http://127.0.0.1:1/v1"}},
            {"hf_token": "hf_x"},
            {"hf_token": "hf_x", "llm_model": "http://127.0.0.1:1/v1"},
        ):
            assert one.refusal("reset", bad) == "FORBIDDEN"
        assert one.refusal("reset", {"llm": {"base_url": served.base_url}}) == "VALIDATION_ERROR"
        assert one.refusal("reset", {"llm": {"bas_url": "x"}}) == "VALIDATION_ERROR"
        assert one.run("x")["value"] == "1"


def test_without_a_configured_model_sub_calls_fail(calling):
    with peer(calling) as one:
        one.reset(llm_model="m")
        assert "not configured" in one.run("llm_query('a')")["stderr"]


def test_the_operator_s_model(served):
    settings = {"llm": LLM("theirs", served.base_url, KEY)}
    with serving(settings) as server, peer(server) as one:
        one.reset()
        assert one.run("print(llm_query('Is it?'))")["stdout"] == "yes\n"
        assert served.requests[-1].body["model"] == "theirs"
        one.reset(llm_model="another")
        one.run("llm_query('Is it?')")
        assert served.requests[-1].body["model"] == "another"


def test_keys_are_not_visible(calling, endpoint, caplog):
    caplog.set_level(logging.DEBUG)
    loud = endpoint([Status(401, f"wrong key {KEY}"), Status(500, KEY), Raw(KEY.encode())])
    settings = {"llm_urls": (loud.base_url,)}
    with serving(settings) as server, peer(server, named=True) as one:
        seen = [one.open(), one.reset(llm=llm(loud))]
        seen += [one.ask("step", {"code": "print(llm_query('a'))"}) for _ in range(2)]
        seen.append(one.ask("state"))
        seen.append(one.ask("reset", {"llm": {**llm(loud), "model": KEY, "nope": KEY}}))
        seen.append(one.ask("reset", {"llm": {**llm(loud), "base_url": f"http://{KEY}/"}}))
        seen.append(one.ask("reset", {"llm": llm(loud), "hf_token": KEY}))
        code = "import gc\n[o for o in gc.get_objects() if isinstance(o, str) and 'sk-very' in o]"
        seen.append(one.ask("step", {"code": code}))
        (session,) = server.manager.sessions
        seen.append(repr(vars(session)))
        seen.append(ask(server, "GET", "/ready")[2])
    assert KEY not in json.dumps(seen)
    ours = [each for each in caplog.records if not each.name.startswith("websockets.client")]
    assert ours
    assert KEY not in "".join(map(caplog.handler.format, ours))
