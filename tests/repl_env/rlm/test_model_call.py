"""Asking: within the budget, behind the gate, and whatever happens, nothing is left behind."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from repl_env.errors import BudgetExceeded, ModelError
from repl_env.rlm import (
    Budget,
    ChatModel,
    Completion,
    Ledger,
    ModelRequest,
    ModelUsage,
    Price,
    RequestGate,
    ScriptedModel,
    Spent,
    as_model,
    call_model,
)

QUESTION = [{"role": "user", "content": "how many words are here"}]


def request(**more):
    return ModelRequest(messages=QUESTION, **more)


class Fake(ChatModel):
    """A model that calls `does` for each request, and counts concurrent requests."""

    name = "fake"

    def __init__(self, does, *, bounded=True, bound=10):
        self.requests = []
        self.in_flight = self.most = 0
        self.bounded = bounded
        self._does = does
        self._bound = bound
        self._lock = threading.Lock()

    def count_tokens(self, messages):
        return self._bound

    async def complete(self, request):
        with self._lock:
            self.requests.append(request)
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
        try:
            return await self._does(request)
        finally:
            with self._lock:
                self.in_flight -= 1


async def refusing(request):
    raise ModelError("refused", "no", usage=ModelUsage(7, 30))


async def test_the_usage_of_a_refused_completion_is_booked():
    ledger = Ledger(Budget(output_tokens=40), prices={"fake": Price(1, 2)})
    with pytest.raises(ModelError):
        await call_model(Fake(refusing), request(), ledger.root)
    assert ledger.root.total == Spent(
        calls=1, failed_calls=1, input_tokens=7, output_tokens=30, usd=67e-6
    )
    assert ledger.root.left().output_tokens == 10


async def test_a_failure_that_reports_nothing_is_no_call_of_unknown_price():
    async def failing(request):
        raise ModelError("refused", "no", usage=ModelUsage())

    ledger = Ledger(Budget())
    with pytest.raises(ModelError):
        await call_model(Fake(failing), request(), ledger.root)
    assert ledger.root.total == Spent(calls=1, failed_calls=1)


async def all_that_is_granted(request):
    """An answer of as many tokens as it may have."""
    await asyncio.sleep(0.001)
    return Completion("word", ModelUsage(10, request.max_output_tokens), "length")


async def for_ever(request):
    await asyncio.Event().wait()


def raising(error):
    async def does(request):
        raise error

    return does


def returning(answer):
    async def does(request):
        return answer

    return does


def soon_over():
    """A tree whose time ends 50 ms after a question was asked, however slow the machine is."""
    return Ledger(Budget(seconds=0.05), clock=lambda: 0.0).root


async def settled():
    for _ in range(8):
        await asyncio.sleep(0)


async def test_an_answer_is_returned_and_paid_for():
    root = Ledger(Budget(usd=1), prices={"fake": Price(1, 2)}).root
    model = Fake(returning(Completion("six", ModelUsage(9, 3))))

    completion = await call_model(model, request(), root, RequestGate(1))

    assert completion == Completion("six", ModelUsage(9, 3))
    assert root.total == Spent(calls=1, input_tokens=9, output_tokens=3, usd=0.000015)
    assert root.left().calls == 199


async def test_an_empty_text_is_an_answer():
    root = Ledger().root
    assert (await call_model(ScriptedModel([""]), request(), root)).text == ""
    assert (root.total.calls, root.total.failed_calls) == (1, 0)


async def test_a_lone_surrogate_is_replaced():
    completion = await call_model(Fake(returning(Completion("a\ud800b"))), request(), Ledger().root)
    assert completion.text == "a?b"


@pytest.mark.parametrize(
    ("asked", "budget", "granted"),
    [(None, None, None), (7, None, 7), (None, 50, 50), (7, 50, 7), (90, 50, 50)],
)
async def test_the_request_has_the_output_limit(asked, budget, granted):
    model = Fake(returning(Completion("")))
    root = Ledger(Budget(output_tokens=budget)).root

    await call_model(model, request(max_output_tokens=asked), root)

    assert model.requests[0].max_output_tokens == granted


async def test_a_model_without_output_limits_reserves_the_rest_and_others_wait():
    leave = asyncio.Event()

    async def does(request):
        await leave.wait()
        return Completion("word", ModelUsage(1, 40))

    model = Fake(does, bounded=False)
    root = Ledger(Budget(output_tokens=100)).root
    tasks = [
        asyncio.create_task(call_model(model, request(max_output_tokens=5), root)) for _ in range(9)
    ]
    await settled()

    assert [each.max_output_tokens for each in model.requests] == [5]
    assert root.left().output_tokens == 0
    leave.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in results] == [Completion] * 3 + [BudgetExceeded] * 6
    # One answer too many, because no call can be divided: not nine.
    assert root.total.output_tokens == 120
    assert model.most == 1


@pytest.mark.parametrize(
    ("given", "left", "told"), [(None, None, None), (5, None, 5), (5, 60, 5), (90, 60, 60)]
)
async def test_the_request_has_the_time_limit(given, left, told):
    model = Fake(returning(Completion("")))
    root = Ledger(Budget(seconds=left), clock=lambda: 1.0).root

    await call_model(model, request(timeout=given), root)

    assert model.requests[0].timeout == told


async def test_the_time_limit_of_the_tree_is_no_model_error():
    root, gate = soon_over(), RequestGate(1)

    with pytest.raises(BudgetExceeded) as refused:
        await call_model(Fake(for_ever), request(), root, gate)

    assert refused.value.field == "seconds"
    assert root.total == Spent(calls=1, failed_calls=1)
    assert gate.in_flight == 0


async def test_the_time_limit_applies_while_waiting_for_the_gate():
    root, gate = soon_over(), RequestGate(1)
    model = Fake(for_ever)

    async with gate:
        with pytest.raises(BudgetExceeded):
            await call_model(model, request(), root, gate)

    assert model.requests == []
    assert (gate.in_flight, gate.waiting) == (0, 0)


async def test_a_model_that_reports_the_tree_s_timeout_first_is_no_model_error():
    now = [0.0]

    async def does(request):
        now[0] = 9.98
        raise ModelError("timeout", "time is up", retryable=True)

    root = Ledger(Budget(seconds=10), clock=lambda: now[0]).root
    with pytest.raises(BudgetExceeded) as refused:
        await call_model(Fake(does), request(), root)
    assert refused.value.field == "seconds"


async def test_a_model_that_turns_a_cancellation_into_an_error_is_no_model_error():
    async def does(request):
        try:
            await for_ever(request)
        except asyncio.CancelledError:
            raise ModelError("connection", "cut") from None

    with pytest.raises(BudgetExceeded):
        await call_model(Fake(does), request(), soon_over())


async def test_a_timeout_of_the_call_is_a_model_error():
    async def slow(messages):
        await asyncio.Event().wait()

    root = Ledger(Budget(seconds=60)).root
    with pytest.raises(ModelError) as failed:
        await call_model(as_model(slow), request(timeout=0.01), root)
    assert failed.value.kind == "timeout"


async def test_a_model_error_is_raised_and_counts():
    error = ModelError("rate_limit", "slow down", retryable=True, retry_after=3.0)
    root, gate = Ledger(Budget(output_tokens=50)).root, RequestGate(1)

    with pytest.raises(ModelError) as failed:
        await call_model(Fake(raising(error)), request(), root, gate)

    assert failed.value is error
    assert root.total == Spent(calls=1, failed_calls=1)
    assert (root.left().output_tokens, gate.in_flight) == (50, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError"),
        (TimeoutError("late"), "timeout"),
        (BudgetExceeded("calls", "of its own"), "BudgetExceeded"),
    ],
)
async def test_any_other_exception_becomes_a_model_error(error, kind):
    root = Ledger().root
    with pytest.raises(ModelError) as failed:
        await call_model(Fake(raising(error)), request(), root)
    assert failed.value.kind == kind
    assert failed.value.__cause__ is error
    assert root.total.failed_calls == 1


@pytest.mark.parametrize("answer", [None, 3, Completion(None), Completion(b"six")])
async def test_an_invalid_completion_is_a_model_error(answer):
    root = Ledger().root
    with pytest.raises(ModelError) as failed:
        await call_model(Fake(returning(answer)), request(), root)
    assert failed.value.kind == "type"
    assert root.total == Spent(calls=1, failed_calls=1)


@pytest.mark.parametrize("bound", [None, -1, 2.5, True])
async def test_an_invalid_token_count_is_a_model_error_and_counts_as_a_call(bound):
    root = Ledger().root
    with pytest.raises(ModelError) as failed:
        await call_model(Fake(all_that_is_granted, bound=bound), request(), root)
    assert failed.value.kind == "type"
    assert root.total == Spent()


@pytest.mark.parametrize("usage", [None, ModelUsage(), ModelUsage(-1, True), "lots"])
async def test_unreported_usage_is_estimated_from_the_texts(usage):
    class Plain(Fake):
        count_tokens = ChatModel.count_tokens

    root = Ledger().root
    model = Plain(returning(Completion("é" * 20, usage)))

    await call_model(model, request(), root)

    assert root.total.output_tokens == 40
    assert root.total.input_tokens >= len(QUESTION[0]["content"])
    assert root.total.estimated_tokens == root.total.input_tokens + 40


async def test_an_estimate_is_no_more_than_the_answer_may_have():
    class Plain(Fake):
        count_tokens = ChatModel.count_tokens

    for bounded, tokens in ((True, 30), (False, 4000)):
        root = Ledger(Budget(output_tokens=30)).root
        await call_model(Plain(returning(Completion("x" * 4000)), bounded=bounded), request(), root)
        assert root.total.output_tokens == tokens


async def test_a_spent_budget_calls_no_model():
    model = Fake(all_that_is_granted)
    root = Ledger(Budget(calls=1)).root
    await call_model(model, request(max_output_tokens=1), root)

    with pytest.raises(BudgetExceeded):
        await call_model(model, request(max_output_tokens=1), root)

    assert len(model.requests) == 1
    assert root.total.calls == 1


async def test_the_price_is_that_of_the_requested_name():
    prices = {"fake": Price(0, 1), "other": Price(0, 7)}
    root = Ledger(Budget(usd=1), prices=prices).root
    model = Fake(all_that_is_granted)

    await call_model(model, request(max_output_tokens=10**5), root)
    await call_model(model, request(max_output_tokens=10**5, model="other"), root)

    assert root.total.usd == 0.8


async def test_cancelling_during_the_model_call_leaves_nothing_behind():
    root, gate = Ledger(Budget(output_tokens=50)).root, RequestGate(1)
    model = Fake(for_ever)
    task = asyncio.create_task(call_model(model, request(), root, gate))
    await settled()
    assert (model.in_flight, gate.in_flight, root.left().output_tokens) == (1, 1, 0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (model.in_flight, gate.in_flight, root.left().output_tokens) == (0, 0, 50)
    assert root.total == Spent(calls=1, failed_calls=1)


async def test_cancelling_while_waiting_for_the_gate_leaves_nothing_behind():
    root, gate = Ledger(Budget(output_tokens=50)).root, RequestGate(1)
    model = Fake(for_ever)
    async with gate:
        task = asyncio.create_task(call_model(model, request(), root, gate))
        await settled()
        assert (gate.waiting, root.left().output_tokens) == (1, 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (gate.in_flight, gate.waiting) == (1, 0)

    assert model.requests == []
    assert root.left().output_tokens == 50
    assert root.total == Spent(calls=1, failed_calls=1)


async def test_cancelling_while_waiting_for_the_budget_leaves_nothing_behind():
    root, gate = Ledger(Budget(output_tokens=50)).root, RequestGate(1)
    held = root.reserve(model=None, input_tokens=0, output_tokens=50)
    model = Fake(all_that_is_granted)
    task = asyncio.create_task(call_model(model, request(), root, gate))
    await settled()
    assert not task.done()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.drop()

    assert model.requests == []
    assert root.total == Spent()
    await call_model(model, request(), root, gate)
    assert root.total.output_tokens == 50


async def test_cancelling_a_whole_tree_at_any_moment_leaves_nothing_behind():
    gate, model = RequestGate(4), Fake(all_that_is_granted)
    for moment in range(0, 40, 3):
        root = Ledger(Budget(calls=None, output_tokens=200)).root
        asks = (call_model(model, request(max_output_tokens=30), root, gate) for _ in range(20))
        tasks = [asyncio.create_task(each) for each in asks]
        for _ in range(moment):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert (gate.in_flight, gate.waiting, model.in_flight) == (0, 0, 0)
        assert root.left().output_tokens == 200 - root.total.output_tokens


def test_500_trees_spend_no_token_more_than_they_may_through_a_gate_of_32():
    """Over four event loops; each tree asks for more than it may, from parent and children."""
    gate, model = RequestGate(32), Fake(all_that_is_granted)
    budgets = {number: 40 + number % 61 for number in range(500)}
    refusals = set()

    async def run(account, depth):
        try:
            await call_model(model, request(max_output_tokens=13), account, gate)
            if depth:
                below = (run(account.open_child(), depth - 1) for _ in range(3))
                await asyncio.gather(*below)
            await call_model(model, request(max_output_tokens=13), account, gate)
        except BudgetExceeded as refused:
            refusals.add(refused.field)
        finally:
            account.close()

    async def tree(number):
        root = Ledger(Budget(output_tokens=budgets[number])).root
        await run(root, 2)
        return number, root

    def thread(numbers):
        async def forest():
            return await asyncio.gather(*(tree(number) for number in numbers))

        return asyncio.run(forest())

    with ThreadPoolExecutor(4) as pool:
        forests = pool.map(thread, [range(start, 500, 4) for start in range(4)])
        trees = [each for forest in forests for each in forest]

    assert len(trees) == 500
    assert refusals == {"output_tokens"}
    for number, root in trees:
        assert root.total.output_tokens == budgets[number]
        assert (root.left().output_tokens, root.open_children) == (0, 0)
    assert model.most <= 32
    assert (gate.in_flight, gate.waiting) == (0, 0)


async def test_parents_that_wait_for_children_hold_no_slot():
    """Five levels deep through a gate for one: nothing stands still."""
    gate, model = RequestGate(1), Fake(all_that_is_granted)
    root = Ledger(Budget(calls=None, output_tokens=10**6, children=None)).root

    async def run(account, depth):
        await call_model(model, request(max_output_tokens=3), account, gate)
        if depth:
            await asyncio.gather(*(run(account.open_child(), depth - 1) for _ in range(3)))
        await call_model(model, request(max_output_tokens=3), account, gate)
        account.close()

    async with asyncio.timeout(120):
        await run(root, 5)

    runs = sum(3**depth for depth in range(6))
    assert (root.total.calls, root.total.children, root.open_children) == (2 * runs, runs - 1, 0)
    assert root.total.output_tokens == 6 * runs
    assert model.most == 1
