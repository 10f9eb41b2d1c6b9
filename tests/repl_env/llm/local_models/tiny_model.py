"""A language model of random weights, and a tokenizer trained here: nothing is downloaded."""

from __future__ import annotations

from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

# Threads that share a matrix of this size wait for each other longer than they work.
torch.set_num_threads(1)

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# ChatML, with the mark that says which tokens are the model's own.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}"
    "{{ '\\n' }}{% endfor %}"  # a bare one would be taken for the end of the line of the tag
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = ["the model reads the context", "user assistant system", "print(context)", "FINAL(answer)"]


def tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Byte-level, so any text is tokens and those are the text again."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_vocabulary()),
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[START],
        padding_side="left",
    )
    made.chat_template = template
    return made


@cache
def _vocabulary() -> str:
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(TEXTS, trainer)
    return bare.to_str()


class Watched(Qwen3ForCausalLM):
    """Records its arguments. `before` is called with the rows of each `generate`, first of all."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.batches: list[int] = []
        self.steps = 0
        self.before = self.each = lambda *_: None

    def generate(self, input_ids, **arguments):
        """The default."""
        self.batches.append(len(input_ids))
        self.before(input_ids)
        return super().generate(input_ids=input_ids, **arguments)

    def forward(self, *arguments, **named):
        """The default."""
        self.steps += 1
        self.each()
        return super().forward(*arguments, **named)


def model(words: PreTrainedTokenizerFast, *, scale: float = 12, **changed) -> Watched:
    """The same weights each time; greedy unless it is told otherwise.

    `scale` is what random weights need for answers that are not one token over and over.
    """
    config = Qwen3Config(
        **{
            "vocab_size": len(words),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "eos_token_id": words.eos_token_id,
            "pad_token_id": words.pad_token_id,
            "bos_token_id": None,
            **changed,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made = Watched(config)
    with torch.no_grad():
        for weights in made.parameters():
            if weights.ndim > 1:
                weights.mul_(scale)
    made.eval()
    return made
