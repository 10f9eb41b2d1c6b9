"""A transformers model and its tokenizer: given objects, a folder, or the hub.

Torch and transformers are imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


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
