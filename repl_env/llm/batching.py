"""Batched answers of a causal language model, and the requests that wait for a batch."""

from __future__ import annotations

import copy
import json
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

# Batched answers of a causal language model, by `generate` of transformers.
#
# Torch and transformers are imported on first use.

# Settings that this module controls, each with the place to set it or the reason.
NOT_SAMPLING: Mapping[str, str] = MappingProxyType(
    {
        "max_new_tokens": "it is an argument of the model, or max_output_tokens of a request",
        "eos_token_id": "set it on the model's generation_config or the tokenizer",
        "pad_token_id": "padding is masked, and never seen",
        "prompt_lookup_num_tokens": "several tokens a step do not stop where each row must",
        "max_length": "give max_new_tokens to the model instead",
        "max_time": "give the request a timeout instead",
        "stop_strings": "a cut inside a token would make wrong token counts",
        "num_beams": "an answer is one sample",
        "num_return_sequences": "ask again for another answer",
        "return_dict_in_generate": "give record_tokens to the model instead",
        "use_cache": "without the cache each token costs a whole prompt",
    }
)
_MEANS_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p")


@dataclass(frozen=True)
class SamplingOptions:
    """The choice of tokens: fields of transformers' `GenerationConfig`, and `seed`.

    Two are equal if their choices are; only requests with equal options share a batch. Other fields
    stay as in the model. Temperature 0 means the likeliest token. `given` is the user's argument.
    """

    key: str
    options: Mapping[str, Any] = field(compare=False)
    given: Mapping[str, Any] = field(compare=False)
    seed: int | None = None

    @classmethod
    def of(cls, sampling: Mapping[str, Any]) -> SamplingOptions:
        """Return options for a user's argument.

        Raises:
            TypeError, ValueError: naming the field.
        """
        from transformers import GenerationConfig

        known = vars(GenerationConfig())
        options = dict(sampling)
        seed = options.pop("seed", None)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"sampling['seed'] must be an int, not {type(seed).__name__}")
        for name in options:
            if name in NOT_SAMPLING:
                raise ValueError(f"sampling[{name!r}] cannot be given: {NOT_SAMPLING[name]}")
            if name not in known or name.startswith("_"):
                raise ValueError(f"sampling[{name!r}] is no field of GenerationConfig, nor seed")
        options = _consistent(options)
        key = json.dumps(options, sort_keys=True, default=repr)
        return cls(key, options, dict(sampling), seed)


def _consistent(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the `do_sample` that they imply: transformers would ignore
    temperatures.
    """
    if options.get("temperature") == 0:
        left = {name: value for name, value in options.items() if name not in _MEANS_SAMPLING}
        return {**left, "do_sample": False}
    if any(options.get(name) is not None for name in _MEANS_SAMPLING):
        return {"do_sample": True, **options}
    return options


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A prompt of a batch, the token limit of its answer, and whether a caller still waits for
    it.
    """

    prompt: Sequence[int]
    limit: int
    dropped: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of an answer, including the final one; `ended` False: it was cut.

    `logprobs` are empty unless they were requested.
    """

    output: tuple[int, ...]
    ended: bool
    logprobs: tuple[float, ...]


def generate(
    model: Any,
    rows: Sequence[GenerationRow],
    sampling: SamplingOptions,
    ends: Sequence[int],
    pad: int,
    record: bool,
) -> list[Generated]:
    """Answer all `rows` together; results are in their order.

    A row costs no token after one of `ends`, after its own limit, or after it was dropped, except
    for
    the tokens of the other rows. `record`: with log-probabilities, of the model's own distribution,
    before temperature, top_p and top_k.
    """
    import torch
    from transformers import LogitsProcessorList, StoppingCriteriaList

    width = max(len(row.prompt) for row in rows)
    fill = [width - len(row.prompt) for row in rows]
    ids = [[pad] * n + list(row.prompt) for n, row in zip(fill, rows, strict=True)]
    mask = [[0] * n + [1] * len(row.prompt) for n, row in zip(fill, rows, strict=True)]
    stop, recorder = _Stop(rows, width), _Recorder()
    with _answering(model), _seeded(sampling.seed, model.device):
        sequences = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=_config(model, sampling, rows, ends, pad),
            stopping_criteria=StoppingCriteriaList([stop, *[recorder] * record]),
            logits_processor=LogitsProcessorList([recorder.look] * record),
        )
    outputs = sequences[:, width:].tolist()
    chosen = recorder.logprobs() if record else [[] for _ in rows]
    return [_cut(*row, frozenset(ends)) for row in zip(rows, outputs, chosen, strict=True)]


def _cut(
    row: GenerationRow, output: list[int], logprobs: list[float], ends: frozenset[int]
) -> Generated:
    """Return the row's own tokens: after its end come padding or tokens of longer rows."""
    mine = output[: row.limit]
    end = next((place for place, token in enumerate(mine) if token in ends), None)
    length = len(mine) if end is None else end + 1
    return Generated(tuple(mine[:length]), end is not None, tuple(logprobs[:length]))


def _config(
    model: Any,
    sampling: SamplingOptions,
    rows: Sequence[GenerationRow],
    ends: Sequence[int],
    pad: int,
) -> Any:
    config = copy.deepcopy(model.generation_config)
    settings = {
        "num_beams": 1,
        "num_return_sequences": 1,
        "return_dict_in_generate": False,
        "use_cache": True,  # training switches it off
        "max_length": None,
        "max_new_tokens": max(row.limit for row in rows),
        "eos_token_id": list(ends) or None,
        "pad_token_id": pad,
    }
    config.update(**{**settings, **sampling.options})
    return config


@contextmanager
def _seeded(seed: int | None, device: Any) -> Iterator[None]:
    """Use random numbers from `seed` inside; the process's own sequence continues afterwards."""
    import torch

    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _answering(model: Any) -> Iterator[None]:
    """Switch all parts of the model to evaluation inside: training drops parts at random."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


class _Stop:
    """A stopping criterion: rows that are at their limit, or dropped."""

    def __init__(self, rows: Sequence[GenerationRow], width: int) -> None:
        self._rows, self._width = rows, width

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        length = input_ids.shape[1] - self._width
        over = [length >= row.limit or row.dropped() for row in self._rows]
        return torch.tensor(over, device=input_ids.device)


class _Recorder:
    """The log-probability of each chosen token, without keeping those of all the others.

    As a logits processor (`look`) it sees the distribution, and as a stopping criterion the choice.
    Keeping the scores of all steps would take the size of the vocabulary for each token.
    """

    def __init__(self) -> None:
        self._distribution: Any = None
        self._chosen: list[Any] = []

    def look(self, input_ids: Any, scores: Any) -> Any:
        self._distribution = scores.float().log_softmax(-1)
        return scores

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        import torch

        self._chosen.append(self._distribution.gather(1, input_ids[:, -1:]))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def logprobs(self) -> list[list[float]]:
        import torch

        columns: list[list[float]] = torch.cat(self._chosen, 1).tolist()
        return columns


# Requests from any thread, answered in batches by one thread.
#
# The thread exists while there are requests, and ends with the last one: a program does not wait
# at its end, and an unused model holds nothing but itself.

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class BatchedRequest(Generic[Q, A]):
    """One request. Requests of one `group` may share a batch; one with group None runs alone."""

    question: Q
    group: Hashable
    answer: Future[A] = field(default_factory=Future)

    @property
    def dropped(self) -> bool:
        """Whether the caller no longer waits for the answer."""
        return self.answer.done()

    def give(self, answer: A) -> None:
        """Deliver the answer, unless the request was dropped meanwhile."""
        try:
            self.answer.set_result(answer)
        except InvalidStateError:
            pass

    def fail(self, error: Exception) -> None:
        """Deliver the error, unless the request was dropped meanwhile."""
        try:
            self.answer.set_exception(error)
        except InvalidStateError:
            pass


class RequestBatcher(Generic[Q, A]):
    """Takes requests from any thread and hands them to `run`, oldest first.

    Args:
        run: answers or fails each request of a batch; called in the one thread. Its exception fails
            the requests that it did not answer.
        size: the largest number of requests in a batch. May be changed at any time.
        wait: seconds that the oldest request waits for others before it runs in a smaller batch.
    """

    def __init__(
        self, run: Callable[[Sequence[BatchedRequest[Q, A]]], None], size: int, wait: float
    ) -> None:
        self.size = size
        self._run = run
        self._wait = wait
        self._queue: deque[BatchedRequest[Q, A]] = deque()
        self._running: Sequence[BatchedRequest[Q, A]] = ()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, queued: BatchedRequest[Q, A]) -> None:
        """Queue `queued`."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="repl-env batches")
                thread.start()  # may fail; then no request is queued, so none waits forever
                self._thread = thread
            self._queue.append(queued)
            self._changed.notify_all()

    def close(self, error: Exception) -> None:
        """Fail all requests with `error`; return when the thread has ended."""
        with self._changed:
            for queued in (*self._running, *self._queue):
                queued.fail(error)
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._run(batch)
            # Boundary: the thread continues for other requests after any failure.
            except Exception as error:  # noqa: BLE001
                for queued in batch:
                    queued.fail(error)

    def _next(self) -> Sequence[BatchedRequest[Q, A]]:
        """Return the next batch; empty when the thread should end."""
        with self._changed:
            self._running = ()
            while not self._running and self._oldest() is not None:
                # The oldest may be dropped while it waits for others; the next is the oldest then.
                self._changed.wait_for(self._full, self._wait)
                self._running = self._next_batch()
            running_ids = set(map(id, self._running))
            self._queue = deque(queued for queued in self._queue if id(queued) not in running_ids)
            if not self._running:
                self._thread = None
            return self._running

    def _oldest(self) -> BatchedRequest[Q, A] | None:
        while self._queue and self._queue[0].dropped:
            self._queue.popleft()
        return self._queue[0] if self._queue else None

    def _full(self) -> bool:
        oldest = self._oldest()
        return oldest is None or oldest.group is None or len(self._next_batch()) >= self.size

    def _next_batch(self) -> Sequence[BatchedRequest[Q, A]]:
        """Return the oldest request and those that may share its batch."""
        oldest = self._oldest()
        if oldest is None or oldest.group is None:
            return () if oldest is None else (oldest,)
        same_group = (queued for queued in self._queue if queued.group == oldest.group)
        return [queued for queued in same_group if not queued.dropped][: self.size]
