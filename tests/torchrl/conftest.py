"""These tests run where TorchRL is installed: `make test-torchrl`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HERE = find_spec("torchrl") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Leave out warnings of TorchRL about TorchRL; those of ours are errors, as everywhere."""
    if HERE:
        for kind in ("DeprecationWarning", "FutureWarning", "UserWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")


# ChatML, with the assistant's part marked for masks of its tokens.
CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{%- else %}{{ message['content'] + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
_TEXTS = [
    "```python\nprint(len(context.split()))\nFINAL(answer)\n```",
    "You are a helpful assistant. How many words are in the context?",
    "Code block 1 output: (no output) ERROR: ZeroDivisionError: division by zero",
]


@pytest.fixture(scope="session")
def tokenizer():
    """A byte-level tokenizer of some 400 tokens, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_TEXTS * 3, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
    )
    made.chat_template = CHATML
    return made


@pytest.fixture(scope="session")
def model(tokenizer):
    """A causal language model of some 40,000 random parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).eval()
