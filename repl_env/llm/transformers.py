"""`TransformersModel`: a model of Hugging Face transformers, in this process.

Needs the extra `transformers`. The model and its tokenizer are used in one thread, by several
requests at a time (`batching.py`).
"""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from repl_env.common.display import set_module
from repl_env.common.values import replace_surrogates
from repl_env.errors import ModelError
from repl_env.interfaces import Message
from repl_env.llm.base import ChatModel, Completion, ModelRequest, ModelUsage, TokenTrace
from repl_env.llm.batching import (
    BatchedRequest,
    Generated,
    GenerationRow,
    RequestBatcher,
    SamplingOptions,
    generate,
)

# Chat messages as token ids, through the chat template of a Hugging Face tokenizer.
#
# Nothing here imports a tokenizer's library: any object with these methods is a tokenizer.


class ChatTokenizer(Protocol):
    """The part of a tokenizer that prompts and samples need.

    Tokenizers of `transformers` have it.
    """

    all_special_ids: list[int]

    def apply_chat_template(self, conversation: Any, tokenize: bool = True, **kwargs: Any) -> Any:
        """Return the conversation as token ids, or as text if `tokenize` is False."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """Return the text of `token_ids`."""


def prompt_ids(
    tokenizer: ChatTokenizer, messages: Sequence[Message], template: Mapping[str, Any]
) -> list[int]:
    """Return the prompt of a model that answers `messages`, with the head of its turn.

    `template` are arguments of the chat template, such as `enable_thinking`.

    Raises:
        ValueError: a message has parts that are not text. Errors of the template are passed on.
    """
    # return_dict: the default changed between versions of transformers.
    ids = tokenizer.apply_chat_template(
        plain(messages), add_generation_prompt=True, return_dict=False, **template
    )
    return [int(token) for token in ids]


def rendered(
    tokenizer: ChatTokenizer, messages: Sequence[Message], template: Mapping[str, Any], head: bool
) -> str:
    """Return the prompt as text; without the head of the next turn unless `head`."""
    text = tokenizer.apply_chat_template(
        plain(messages), tokenize=False, add_generation_prompt=head, **template
    )
    return str(text)


def plain(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `messages` in the form that every template accepts: content is one valid text.

    Raises:
        ValueError: a part of a message is not text.
    """
    return [{**message, "content": _text(message["content"])} for message in messages]


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return replace_surrogates(content)
    kinds = {str(part.get("type", "text")) for part in content}
    if kinds - {"text"}:
        raise ValueError(f"a message has parts of type {sorted(kinds - {'text'})}; only text goes")
    return replace_surrogates("".join(str(part["text"]) for part in content))


# A transformers model and its tokenizer: given objects, a folder, or the hub.
#
# Torch and transformers are imported on first use.


def hub_arguments(token: str | None, local_files_only: bool) -> dict[str, Any]:
    """Return the arguments of a download: never with a stored login."""
    return {
        "token": token or os.environ.get("HF_TOKEN") or False,
        "local_files_only": local_files_only,
        "trust_remote_code": False,  # None would ask on the terminal
    }


def source_of(model: Any) -> str:
    """Return the origin of `model`; empty if unknown.

    Raises:
        TypeError: it is neither a model nor the name of one.
    """
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if not (hasattr(model, "generate") and hasattr(model, "config")):
        message = f"a model of transformers, a folder or a name, not {type(model).__name__}"
        raise TypeError(f"model must be {message}")
    return str(model.config.name_or_path or "")


def load_model(model: Any, device: str | None, dtype: Any, hub: Mapping[str, Any]) -> Any:
    """Return `model` itself, or load it from the folder or name, on `device`.

    Raises:
        ValueError: it is not a causal language model. OSError: it cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM

    if isinstance(model, str | os.PathLike):
        model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **hub)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if model.config.is_encoder_decoder:
        raise ValueError(
            "model must continue its prompt; this one encodes it and writes another text"
        )
    return model if device is None else model.to(device)


def load_tokenizer(tokenizer: Any, source: str, hub: Mapping[str, Any]) -> Any:
    """Return `tokenizer` itself, or load it from its name or from `source`.

    Raises:
        ValueError: there is none, or it has no chat template. OSError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    if tokenizer is None and not source:
        raise ValueError("tokenizer must be given: the model does not say where it came from")
    if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
        tokenizer = AutoTokenizer.from_pretrained(tokenizer or source, **hub)
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("tokenizer has no chat template; set tokenizer.chat_template")
    return tokenizer


@dataclass(frozen=True, slots=True)
class _Question:
    request: ModelRequest
    sampling: SamplingOptions


@set_module("repl_env.rlm")
class TransformersModel(ChatModel):
    """A causal language model with a chat template, on CPU or GPU.

    ```python
    sampling = {"temperature": 0.7, "top_p": 0.9}
    with TransformersModel("Qwen/Qwen3-0.6B", sampling=sampling) as model:
        print(RLM(model).run("How many words?", context=text).final_answer)
    ```
    Concurrent requests, from any tasks and threads, are batched. Answers in lower precision may
    differ with the batch, as everywhere. A request that is cancelled or out of time does not start,
    or ends at its next token. Usage is counted, not estimated.

    Args:
        model: a loaded model, used as it is and on its device; or a folder or a name on the hub.
        tokenizer: likewise, with a chat template; None: the model's own.
        name: in reports and price tables. None: the folder or the name.
        device: None: for a loaded model, its present device; else "cuda" if there is one, or "cpu".
        dtype: of the weights of a model that is loaded here; "auto": as they were saved.
        max_new_tokens: the default limit of an answer.
        sampling: fields of `transformers.GenerationConfig`, and `seed`. Other fields keep the
            model's defaults; temperature 0 takes the likeliest token. An answer with a seed is
            generated alone, and is reproducible if nothing else in the process draws random numbers
            meanwhile.
        batch_size: the most requests in one batch. Halved, permanently, when memory runs out.
        batch_wait: seconds that a request waits for others, unless the batch is full before.
        record_tokens: answers carry a `TokenTrace`. Its log-probabilities are of the model's own
            distribution: before temperature, top_p and top_k, as endpoints give them.
        template: arguments of the chat template, such as `{"enable_thinking": False}`.
        token: for the hub. None: `HF_TOKEN`; a stored login is not used. The token is not kept.
        local_files_only: load nothing from the network.

    Code that comes with a model is not run: load such a model yourself, and pass the loaded model.

    Raises:
        TypeError, ValueError: naming the argument. ImportError: the extra is not installed.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        device: str | None = None,
        dtype: Any = "auto",
        max_new_tokens: int = 2048,
        sampling: Mapping[str, Any] | None = None,
        batch_size: int = 8,
        batch_wait: float = 0.01,
        record_tokens: bool = False,
        template: Mapping[str, Any] | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        _at_least("max_new_tokens", max_new_tokens, 1)
        _at_least("batch_size", batch_size, 1)
        _at_least("batch_wait", batch_wait, 0)
        self._sampling = _with_libraries(sampling or {})
        source = source_of(model)
        self.name = name or source or None
        hub = hub_arguments(token, local_files_only)
        self._model = load_model(model, device, dtype, hub)
        self._tokenizer = load_tokenizer(tokenizer, source, hub)
        self._template = dict(template or {})
        self._max_new_tokens = max_new_tokens
        self._record = record_tokens
        # Rust tokenizers must not be used by two threads at once.
        self._tokenizing = threading.Lock()
        self._batches: RequestBatcher[_Question, Completion] = RequestBatcher(
            self._run, batch_size, batch_wait
        )

    def with_sampling(self, **sampling: Any) -> TransformersModel:
        """Return the same model with other sampling fields; None removes one.

        Both share weights, thread and batches; closing one closes both.
        """
        mine = {**self._sampling.given, **sampling}
        other = copy.copy(self)
        other._sampling = SamplingOptions.of(
            {name: mine[name] for name in mine if mine[name] is not None}
        )
        return other

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer `request`. A schema is not enforced.

        Raises:
            ModelError: "request": the prompt does not fit, or the template refuses the messages;
                "timeout"; "memory" (retryable): there is not enough for this request alone;
                "closed": the model was closed; otherwise the name of an exception of `generate`.
        """
        if request.model not in {None, self.name}:
            raise ModelError("request", f"the model is {self.name!r}, not {request.model!r}")
        if request.max_output_tokens is not None and request.max_output_tokens < 1:
            raise ModelError("request", "max_output_tokens must be at least 1")
        group = self._sampling if self._sampling.seed is None else None
        queued: BatchedRequest[_Question, Completion] = BatchedRequest(
            _Question(request, self._sampling), group
        )
        self._batches.submit(queued)
        try:
            async with asyncio.timeout(request.timeout):
                return await asyncio.wrap_future(queued.answer)
        except TimeoutError as error:
            raise ModelError("timeout", f"no answer in {request.timeout:g} s") from error

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Return the tokens of `messages` as a prompt, with the head of the answer.

        The count is exact; for messages that the template refuses, it is an upper bound.
        """
        try:
            return len(self._prompt_ids(messages))
        except ModelError:
            return super().count_tokens(messages)

    async def close(self) -> None:
        """Fail all running requests, and return when the thread has ended. The weights stay."""
        error = ModelError("closed", "the model was closed")
        await asyncio.to_thread(self._batches.close, error)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────

    def _run(self, batch: Sequence[BatchedRequest[_Question, Completion]]) -> None:
        """Answer each of `batch`; a failing batch is split in halves, down to one request."""
        parts = [batch]
        while parts:
            part = [queued for queued in parts.pop() if not queued.dropped]
            error = self._attempt(part) if part else None
            if error is None:
                continue
            half = len(part) // 2
            if error.kind == "memory":
                _free_memory()
                self._batches.size = min(self._batches.size, half or self._batches.size)
            if not half:
                part[0].fail(error)
                continue
            parts += [part[half:], part[:half]]

    def _attempt(self, part: Sequence[BatchedRequest[_Question, Completion]]) -> ModelError | None:
        """Answer `part`, or return the failure of `generate`."""
        try:
            rows = [(queued, row) for queued in part if (row := self._row(queued)) is not None]
            if rows:
                self._answer(rows, part[0].question.sampling)
        # Boundary: the model may be the user's code. The error goes without its traceback, which
        # would hold the tensors that memory was short of.
        except Exception as error:  # noqa: BLE001
            return _as_model_error(error)
        return None

    def _answer(
        self,
        rows: Sequence[tuple[BatchedRequest[_Question, Completion], GenerationRow]],
        sampling: SamplingOptions,
    ) -> None:
        ends = self._ends()
        pads = [token for token in (self._tokenizer.pad_token_id, *ends, 0) if token is not None]
        prompts = [row for _, row in rows]
        answers = generate(self._model, prompts, sampling, ends, pads[0], self._record)
        for (queued, row), answer in zip(rows, answers, strict=True):
            queued.give(self._completion(row, answer))

    def _row(self, queued: BatchedRequest[_Question, Completion]) -> GenerationRow | None:
        """Return the model's input; None, with a failed request, if there is none."""
        request = queued.question.request
        try:
            prompt = self._prompt_ids(request.messages, request.prefix)
        except ModelError as error:
            queued.fail(error)
            return None
        limit = request.max_output_tokens or self._max_new_tokens
        positions = _positions(self._model)
        if positions is not None and len(prompt) >= positions:
            message = (
                f"the prompt has {len(prompt)} tokens; with its answer it may have {positions}"
            )
            queued.fail(ModelError("request", message))
            return None
        tokens_left = limit if positions is None else positions - len(prompt)
        return GenerationRow(prompt, min(limit, tokens_left), lambda: queued.dropped)

    def _prompt_ids(self, messages: Sequence[Message], prefix: str | None = None) -> list[int]:
        try:
            with self._tokenizing:
                ids = prompt_ids(self._tokenizer, messages, self._template)
                # After the head of the turn, not through the template, which may trim its input.
                prefix_ids = self._tokenizer.encode(prefix or "", add_special_tokens=False)
                return [*ids, *map(int, prefix_ids)]
        # Boundary: a template is a program of the model's makers, and refuses messages by raising.
        except Exception as error:
            raise ModelError("request", f"the chat template: {error}") from error

    def _ends(self) -> tuple[int, ...]:
        """Return the tokens that end an answer: the model's, and the tokenizer's."""
        end_ids = self._model.generation_config.eos_token_id
        ends = list(end_ids) if isinstance(end_ids, list | tuple) else [end_ids]
        known = [token for token in (*ends, self._tokenizer.eos_token_id) if token is not None]
        return tuple(dict.fromkeys(known))

    def _completion(self, row: GenerationRow, answer: Generated) -> Completion:
        output_ids = answer.output[:-1] if answer.ended else answer.output
        with self._tokenizing:
            text = self._tokenizer.decode(output_ids, skip_special_tokens=True)
        return Completion(
            text=text,
            usage=ModelUsage(len(row.prompt), len(answer.output)),
            finish_reason="stop" if answer.ended else "length",
            model=self.name,
            tokens=TokenTrace(tuple(row.prompt), answer.output, answer.logprobs)
            if self._record
            else None,
        )


def _at_least(name: str, value: object, minimum: int) -> None:
    kinds = (int,) if minimum else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        type_name = "an int" if minimum else "a number"
        raise TypeError(f"{name} must be {type_name}, not {type(value).__name__}")
    if not value >= minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")


def _with_libraries(sampling: Mapping[str, Any]) -> SamplingOptions:
    try:
        return SamplingOptions.of(sampling)
    except ImportError as error:
        raise ImportError(
            f"TransformersModel needs the extra: pip install 'repl-env[transformers]' ({error})"
        ) from error


def _positions(model: Any) -> int | None:
    """Return the token limit of prompt and answer together; None if the model has none."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _as_model_error(error: Exception) -> ModelError:
    import torch

    short = isinstance(error, torch.OutOfMemoryError | MemoryError)
    # Torch's error on a CPU has no class of its own.
    if short or "DefaultCPUAllocator" in str(error):
        return ModelError("memory", str(error), retryable=True)
    return ModelError(type(error).__name__, str(error))


def _free_memory() -> None:
    """Release the memory of the failed attempt for a smaller one."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
