"""Sessions whose messages take much of an event loop: they are read slowly, beside others."""

from __future__ import annotations

import asyncio
import inspect

from repl_sandbox import AsyncSandbox
from repl_sandbox.session.asyncio_ import LoopShare, ReadPacing


def flood() -> None:
    import os
    import socket
    import threading

    host = socket.socket(fileno=os.dup(1000))
    host.setblocking(True)
    header = b'{"type":"call","call":1,"cell":1,"name":"none","parts":[]}'
    frame = len(header).to_bytes(4, "big") + (7).to_bytes(4, "big") + header + b"[[],{}]"
    sent, stopped = 0, threading.Event()

    def send() -> None:
        nonlocal sent
        while not stopped.is_set():
            sent += 100
            host.sendall(frame * 100)

    host.sendall(frame)
    reply = len(host.recv(1000))
    sending = threading.Thread(target=send)
    sending.start()
    print("begun", flush=True)
    heard = 0
    while sending.is_alive() or heard < sent * reply:
        try:
            heard += len(host.recv(1 << 20))
        except KeyboardInterrupt:
            stopped.set()
            print(heard // reply)


FLOOD = f"{inspect.getsource(flood)}\nflood()"


async def test_a_flood_of_refused_calls_is_answered_slowly_while_others_make_steps():
    async with AsyncSandbox() as sandbox:
        begun = asyncio.Event()
        async with await sandbox.session() as loud, await sandbox.session() as quiet:
            flooding = asyncio.create_task(
                loud.run(FLOOD, timeout=300, on_output=lambda *_: begun.set())
            )
            await begun.wait()
            for _ in range(200):
                await quiet.run("x = 1")
            await loud.interrupt()
            outcome = await flooding

            assert outcome.state == "kept"
            replies = int(outcome.stdout.split()[1])
            # Some 20 replies per step; an unpaced session gets 1,700.
            assert 0 < replies < 200 * 100, replies
            assert (await loud.run("print(6 * 7)")).stdout == "42\n"


async def test_code_that_breaks_the_protocol_again_and_again_gets_its_outcomes():
    header = '{"type":"call","call":1,"cell":1,"name":"no","parts":[],"more":[[],[]]}'
    breach = f"""
import os
header = b'{header}'
os.write(1000, len(header).to_bytes(4, "big") + bytes(4) + header)
while True: pass
"""
    async with AsyncSandbox() as sandbox:
        async with await sandbox.session() as bad, await sandbox.session() as quiet:
            for _ in range(3):
                assert (await quiet.run("print(1)")).stdout == "1\n"
                assert (await bad.run(breach)).reason == "protocol"
            assert (await bad.run("print(6 * 7)")).stdout == "42\n"


# ── the account ──────────────────────────────────────────────────────────────────────────────────


def owing(seconds: float, now: float) -> ReadPacing:
    pace = ReadPacing()
    pace.charge(seconds, now)
    return pace


def test_a_busy_session_has_a_debt_until_it_has_waited():
    pace = ReadPacing()
    for second in range(1, 1000):
        pace.charge(0.015, float(second))
        assert not pace.is_over_share(float(second))
    pace.charge(1.0, 1000.0)
    assert pace.is_over_share(1000.0)
    assert pace.is_over_share(1040.0)
    assert not pace.is_over_share(1060.0)


def test_requests_of_a_client_are_not_charged():
    pace, share = ReadPacing(), LoopShare()
    for step in range(10_000):
        now = 1000.0 + step * 0.001
        pace.begin(share, now)
        pace.charge(0.0005, now)
        assert not pace.is_over_share(now)


def test_sessions_in_debt_wait_only_while_others_use_the_loop():
    share, debtor = LoopShare(), owing(1.0, 1000.0)
    assert debtor.next_read(share, 1000.0) == 1000.0
    ReadPacing().begin(share, 1000.0)
    debtor.charge(1.0, 1000.0)
    assert debtor.next_read(share, 1000.0) > 1004.0
    debtor.begin(share, 1002.0)  # it owes, and so does not count
    debtor.charge(1.0, 1002.0)
    assert debtor.next_read(share, 1002.0) == 1002.0


def test_all_sessions_in_debt_together_have_a_fifth_of_the_loop():
    share = LoopShare()
    debtors = [owing(1.0, 1000.0) for _ in range(20)]
    share.used_at = 1000.0
    free = sorted(each.next_read(share, 1000.0) for each in debtors)
    assert free == [1005.0 + 5 * n for n in range(20)]
