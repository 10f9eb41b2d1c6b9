"""`Streamed`: what a step prints, sent while it runs, as far as its reader keeps up."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .replies import Reply, text_of

if TYPE_CHECKING:
    from .hosted import Asked

# Characters that wait for a slow reader; what comes on top is left out, and counted.
_MOST = 1 << 16
# Seconds between two frames: a thousand small prints are not a thousand frames.
_PAUSE = 0.02


class Streamed:
    """The output of the step that was asked for, on its way to whoever waits for its reply."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._texts: list[tuple[str, str]] = []
        self._size = 0
        self._dropped = {"stdout": 0, "stderr": 0}
        self._sender: asyncio.Task[None] | None = None

    def take(self, stream: str, text: str) -> None:
        """Some more of it. Waits for nobody."""
        if self._asked.to.gone:
            return
        kept = text[: _MOST - self._size]
        self._size += len(kept)
        self._dropped[stream] += len(text) - len(kept)
        if kept and self._texts and self._texts[-1][0] == stream:
            self._texts[-1] = (stream, self._texts[-1][1] + kept)
        elif kept:
            self._texts.append((stream, kept))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel()
            await asyncio.wait([sender])
        if error is None:
            await self._flush()

    async def _send(self) -> None:
        while self._texts:
            await self._flush()
            await asyncio.sleep(_PAUSE)
        self._sender = None

    async def _flush(self) -> None:
        texts, self._texts, self._size = self._texts, [], 0
        dropped, self._dropped = self._dropped, {"stdout": 0, "stderr": 0}
        last = {stream: index for index, (stream, _) in enumerate(texts)}
        for index, (stream, text) in enumerate(texts):
            data: dict[str, str | int] = {"stream": stream, "text": text}
            if dropped[stream] and last[stream] == index:
                data["dropped"] = dropped[stream]
            await self._asked.to.deliver(self._asked.request.id, Reply("output", text_of(data)))
