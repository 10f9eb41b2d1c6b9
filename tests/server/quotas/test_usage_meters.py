"""Usage counts for the tenant that causes it, and is kept while the tenant still owes it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from repl_server.quotas import IN_USE, RATES, QuotaRegistry
from repl_server.settings import Settings
from repl_server.tenants import ADDRESS_QUOTA, RequestError, Tenant, TenantQuota, is_loopback
from tests.manual_clock import Clock

ALICE, BOB = Tenant("key", "alice"), Tenant("key", "bob")
QUOTA = TenantQuota(
    sessions=2,
    steps_per_second=1,
    requests_per_second=2,
    cpu_seconds_per_hour=36,
    calls_per_hour=10,
    uploaded_bytes=100,
    connections=3,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock) -> QuotaRegistry:
    return QuotaRegistry(QUOTA, clock=clock)


def address(number: int) -> Tenant:
    return Tenant("address", f"198.51.100.{number}")


def test_the_tables_name_each_field_of_a_quota_once() -> None:
    assert sorted([*RATES, *IN_USE]) == sorted(TenantQuota.__dataclass_fields__)


@pytest.mark.parametrize(("count", "limit"), [("step", 10), ("request", 20)])
def test_a_burst_is_ten_seconds_worth(quotas, clock, count, limit) -> None:
    counted = getattr(quotas.meter_of(ALICE), count)
    for _ in range(limit):
        counted()
    with pytest.raises(RequestError) as refused:
        counted()

    assert refused.value.code == "RATE_LIMITED"
    clock.now += refused.value.retry_after
    counted()


def test_tenants_have_separate_quotas(quotas) -> None:
    for _ in range(10):
        quotas.meter_of(ALICE).step()

    quotas.meter_of(BOB).step()


@pytest.mark.parametrize(
    ("take", "give_back", "limit"),
    [
        (lambda meter: meter.open_session(), lambda meter: meter.close_session(), 2),
        (lambda meter: meter.open_connection(), lambda meter: meter.close_connection(), 3),
        (lambda meter: meter.hold_bytes(50), lambda meter: meter.release_bytes(50), 2),
    ],
)
def test_released_amounts_are_free_again(quotas, take, give_back, limit) -> None:
    meter = quotas.meter_of(ALICE)
    for _ in range(limit):
        take(meter)
    with pytest.raises(RequestError) as refused:
        take(meter)

    assert refused.value.code == "QUOTA_EXCEEDED"
    give_back(meter)
    take(meter)


def test_an_amount_is_released_once(quotas) -> None:
    quotas.meter_of(ALICE).open_session()
    quotas.meter_of(ALICE).close_session()

    with pytest.raises(ValueError, match="0 held"):
        quotas.meter_of(ALICE).close_session()


def test_cpu_time_is_charged_after_use_and_refuses_later_steps(quotas, clock) -> None:
    meter = quotas.meter_of(ALICE)
    meter.step()
    meter.spend_cpu(72)  # twice the hour's worth, by one step

    for ask in (meter.step, meter.open_session):
        with pytest.raises(RequestError) as refused:
            ask()
        assert refused.value.code == "QUOTA_EXCEEDED"
        assert refused.value.retry_after == pytest.approx(3700)
    clock.now += 3700
    meter.step()
    meter.open_session()


def test_a_step_refused_for_its_rate_is_not_charged(quotas, clock) -> None:
    meter = quotas.meter_of(ALICE)
    for _ in range(10):
        meter.step()
    for _ in range(100):
        with suppress(RequestError):
            meter.step()
    clock.now += 1

    meter.step()


def test_sub_calls_are_granted_up_to_the_remaining_quota(quotas, clock) -> None:
    meter = quotas.meter_of(ALICE)

    assert meter.reserve_calls(7) == 7
    assert meter.reserve_calls(7) == 3
    with pytest.raises(RequestError, match="10 sub-calls per hour") as refused:
        meter.reserve_calls(1)
    assert refused.value.retry_after == pytest.approx(360)
    meter.return_calls(2)
    assert meter.reserve_calls(5) == 2
    assert meter.reserve_calls(0) == 0


def test_a_quota_of_zero_refuses_without_a_retry_time() -> None:
    none = QuotaRegistry(TenantQuota(steps_per_second=0, calls_per_hour=0))

    for ask in (none.meter_of(ALICE).step, lambda: none.meter_of(ALICE).reserve_calls(1)):
        with pytest.raises(RequestError) as refused:
            ask()
        assert "retry_after" not in refused.value.data()


def test_a_slow_rate_allows_one_request(clock) -> None:
    meter = QuotaRegistry(TenantQuota(steps_per_second=0.01), clock=clock).meter_of(ALICE)
    meter.step()

    with pytest.raises(RequestError) as refused:
        meter.step()
    assert refused.value.retry_after == pytest.approx(100)


@pytest.mark.parametrize(
    ("host", "tenant", "limited"),
    [
        ("0.0.0.0", address(1), True),
        ("::", address(1), True),
        ("127.0.0.1", address(1), False),
        ("localhost", address(1), False),
        ("0.0.0.0", ALICE, False),
    ],
)
def test_without_a_quota_remote_anonymous_clients_have_the_quota_of_addresses(
    host, tenant, limited
) -> None:
    meter = QuotaRegistry(public=not is_loopback(host)).meter_of(tenant)
    for _ in range(ADDRESS_QUOTA.sessions or 0):
        meter.open_session()

    if limited:
        with pytest.raises(RequestError):
            meter.open_session()
    else:
        meter.open_session()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_a_quota_is_a_number_from_0(value) -> None:
    with pytest.raises(ValueError, match="steps_per_second must be at least 0 and finite"):
        TenantQuota(steps_per_second=value)


def test_addresses_without_debt_are_dropped(quotas, clock) -> None:
    for number in range(1000):
        quotas.meter_of(Tenant("address", f"10.0.{number // 256}.{number % 256}")).request()
        clock.now += 1

    assert len(quotas) < 5


def test_beyond_the_bound_no_tenant_with_debt_is_dropped_for_a_new_one(clock) -> None:
    quotas = QuotaRegistry(QUOTA, clock=clock, max_addresses=2)
    quotas.meter_of(address(1)).spend_cpu(36)
    quotas.meter_of(address(2)).open_session()

    with pytest.raises(RequestError) as refused:
        quotas.meter_of(address(3))
    assert refused.value.code == "RATE_LIMITED"
    quotas.meter_of(ALICE).step()  # keys are not crowded out
    with pytest.raises(RequestError):
        quotas.meter_of(address(1)).step()
    quotas.meter_of(address(2)).close_session()
    quotas.meter_of(address(3)).step()


class Forgetting(RuleBasedStateMachine):
    """Quotas that forget say of everybody what quotas that remember all say."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        settings = Settings(quota=QUOTA)
        self.forgetting = QuotaRegistry(settings.quota, clock=self.clock)
        self.remembering = {
            number: QuotaRegistry(settings.quota, clock=self.clock).meter_of(address(number))
            for number in range(6)
        }
        self.sessions = dict.fromkeys(range(6), 0)

    def both(self, number: int, name: str, *arguments: object) -> object:
        answers, waits = [], []
        for meter in (self.forgetting.meter_of(address(number)), self.remembering[number]):
            try:
                answers.append(getattr(meter, name)(*arguments))
            except RequestError as refusal:
                answers.append(refusal.code)
                waits.append(refusal.retry_after or 0)
        assert answers[0] == answers[1]
        assert not waits or waits[0] == pytest.approx(waits[1], abs=1e-3)
        return answers[0]

    @rule(seconds=st.floats(0, 4000))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(number=st.integers(0, 5), name=st.sampled_from(["step", "request"]))
    def ask(self, number: int, name: str) -> None:
        self.both(number, name)

    @rule(number=st.integers(0, 5), seconds=st.floats(0, 100))
    def spend(self, number: int, seconds: float) -> None:
        self.both(number, "spend_cpu", seconds)

    @rule(number=st.integers(0, 5), count=st.integers(0, 12))
    def reserve(self, number: int, count: int) -> None:
        self.both(number, "reserve_calls", count)

    @rule(number=st.integers(0, 5))
    def open(self, number: int) -> None:
        if self.both(number, "open_session") is None:
            self.sessions[number] += 1

    @precondition(lambda self: any(self.sessions.values()))
    @rule(pick=st.integers(0, 5))
    def close(self, pick: int) -> None:
        number = max(self.sessions, key=lambda each: (self.sessions[each] > 0, (each + pick) % 6))
        self.both(number, "close_session")
        self.sessions[number] -= 1

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.forgetting) <= 6


TestForgetting = Forgetting.TestCase
TestForgetting.settings = hypothesis_settings(max_examples=40, stateful_step_count=30)
