"""The endpoint of the tests does what tests rely on."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.repl_env.llm.endpoint import HTML, Cut, Drop, Reply, Status

ROOT = Path(__file__).parents[3]


def post(base_url: str, **body) -> tuple[int, str | None, bytes]:
    """The status, the header Retry-After, the body."""
    url = urlsplit(base_url)
    body = {"model": "m", "messages": [{"role": "user", "content": "how many"}], **body}
    with closing(http.client.HTTPConnection(url.hostname, url.port, timeout=60)) as connection:
        path = f"{url.path}/chat/completions"
        connection.request("POST", path, json.dumps(body), {"X-Key": "k"})
        with closing(connection.getresponse()) as response:
            return response.status, response.getheader("Retry-After"), response.read()


def test_the_endpoint_answers_and_keeps_the_request(endpoint) -> None:
    served = endpoint(lambda asked: f"you asked: {asked.prompt}")
    answer = json.loads(post(served.base_url)[2])

    assert answer["choices"][0]["message"]["content"] == "you asked: how many"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert served.requests[0].headers["x-key"] == "k"
    assert served.requests[0].body["model"] == "m"


def test_a_stream_has_the_text_in_pieces_and_then_the_usage(endpoint) -> None:
    served = endpoint(Reply("one two", tokens=([1], [2, 3], [-0.5, -1.0])))
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    events = post(served.base_url, **options)[2].decode().strip().split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]

    assert events[-1] == "data: [DONE]"
    assert "".join(c["delta"].get("content") or "" for c in choices) == "one two"
    assert [i for c in choices for i in c.get("token_ids", [])] == [2, 3]
    assert chunks[0]["prompt_token_ids"] == [1]
    assert chunks[-1]["usage"]["completion_tokens"] == 2


def test_answers_of_a_list_are_returned_in_order(endpoint) -> None:
    limited = Status(429, {"error": "wait"}, {"retry-after": "1"})
    served = endpoint([limited, Status(500, HTML), "a"])
    first, second, third, fourth = [post(served.base_url) for _ in range(4)]

    assert first[:2] == (429, "1")
    assert (second[0], second[2].decode()) == (500, HTML)
    assert (third[0], fourth[0]) == (200, 200)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_answer_ends_early(endpoint, stream: bool) -> None:
    served = endpoint(Cut())

    with pytest.raises(http.client.IncompleteRead):
        post(served.base_url, stream=stream)


def test_a_dropped_connection_has_no_answer(endpoint) -> None:
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        post(endpoint(Drop()).base_url)


def test_the_endpoint_counts_requests_in_flight(endpoint) -> None:
    together = threading.Barrier(3)

    async def wait_for_all(asked):
        await asyncio.to_thread(together.wait, 60)
        return "ok"

    served = endpoint(wait_for_all)
    with ThreadPoolExecutor(3) as pool:
        statuses = list(pool.map(lambda _: post(served.base_url)[0], range(3)))

    assert statuses == [200] * 3
    assert served.most_in_flight == 3


def test_the_endpoint_serves_as_a_process_until_its_input_ends() -> None:
    command = [sys.executable, "-m", "tests.repl_env.llm.endpoint", "--text", "far"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        base_url = process.stdout.readline().strip()
        answer = json.loads(post(base_url)[2])
        process.stdin.close()

        assert answer["choices"][0]["message"]["content"] == "far"
        assert process.wait(60) == 0
