"""Rollouts over sessions with TorchRL: a chat of several turns, whose code runs.

The model is a tiny one with random weights, made on the spot, so that this runs without a network.
It writes no code; replies that are written down stand beside it, to show what a trained one gets.

    pip install 'repl-env[torchrl]'
    python examples/torchrl_chat.py
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict import lazy_stack, set_list_to_stack
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from torchrl.collectors.llm import LLMCollector
from torchrl.data.llm import History
from torchrl.envs.llm import ChatEnv
from torchrl.modules.llm import TransformersWrapper
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from repl_env.integrations.torchrl import DatasetREPLChatEnv, REPLToolTransform
from repl_env.rubrics import REPLRubric

TASKS = [
    {"query": "How many words are in `context`?", "context": "a b c", "expected_answer": 3},
    {"query": "What is the last word of `context`?", "context": "x y", "expected_answer": "y"},
    {"query": "How many words?", "context": "one two", "expected_answer": 2},
    {
        "query": "`context` is a list of numbers in words. What is the sum of all of them?",
        "context": "two three",
        "expected_answer": 5,
    },
]
SYSTEM = (
    "Write Python in a fenced block; it runs, and you see what it printed. End with FINAL(...)."
)
REPLIES = [
    "First a look at it.\n```python\nwords = context.split()\nprint(len(words), words)\n```",
    "```python\nFINAL(len(words) if len(words) == 3 else words[-1])\n```",
]
# ChatML, with the tokens of the policy marked for masks.
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
    "{%- else %}{{ message['content'] + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of some 400 tokens, with a chat template."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([SYSTEM, *REPLIES] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A causal language model of some 40,000 random parameters."""
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


def chat_env(batch_size: int, tokenizer: Any) -> Any:
    """TorchRL's chat in history mode, fed with the tasks, each row with a session."""

    def collated(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
        return {name: [row[name] for row in rows] for name in rows[0]}

    env = ChatEnv.from_dataloader(
        DataLoader(TASKS, batch_size=batch_size, collate_fn=collated),
        batch_size=(batch_size,),
        tokenizer=tokenizer,
        system_prompt=SYSTEM,
    )
    return env.append_transform(REPLToolTransform(rubric=REPLRubric(), max_iterations=3))


def written_down(td: Any) -> Any:
    """A policy that gives the next of `REPLIES`, in every row."""
    history = td["history"].prompt
    turn = (history.batch_size[-1] - 2) // 2  # behind the system's message and the user's
    reply = History(role="assistant", content=REPLIES[turn])
    rows = [lazy_stack([*row.unbind(0), reply]) for row in history.unbind(0)]
    td["history"].full = lazy_stack(rows)
    return td


def history_mode(tokenizer: Any, model: Any) -> None:
    """A rollout with the replies above, then batches of a collector with the model."""
    env = chat_env(2, tokenizer)
    rollout = env.rollout(4, written_down)
    print("history mode, replies written down")
    for row in range(2):
        conversation = rollout[row, -1]["next", "history"].prompt
        for role, content in zip(conversation.role, conversation.content, strict=True):
            print(f"  {role:>9}: {content!r}")
        print(f"  rewards {rollout[row]['next', 'reward'].flatten().tolist()}")
    env.close()

    print("history mode, a collector and a model")
    collector = LLMCollector(
        lambda: chat_env(2, tokenizer),
        policy=policy_of(model, tokenizer, "history"),
        dialog_turns_per_batch=6,
        total_dialog_turns=12,
    )
    for number, batch in enumerate(collector):
        tell(number, batch)
    collector.shutdown()


def tokens_mode(tokenizer: Any, model: Any) -> None:
    """The same with token ids, and four prompts of different length in one batch."""
    print("tokens mode, a collector and a model, a batch of 4 prompts")
    collector = LLMCollector(
        lambda: DatasetREPLChatEnv(
            dataset=TASKS,
            shuffle=False,
            num_envs=4,
            input_mode="tokens",
            tokenizer=tokenizer,
            system_prompt=SYSTEM,
            rubric=REPLRubric(),
            max_iterations=3,
        ),
        policy=policy_of(model, tokenizer, "tokens"),
        dialog_turns_per_batch=12,
        total_dialog_turns=24,
    )
    for number, batch in enumerate(collector):
        tell(number, batch)
        for row in batch.unbind(0):
            # Each prompt begins with the ids that were sampled before it.
            whole, after = row[0]["tokens", "full"], row[1]["tokens", "prompt"]
            assert torch.equal(after[: len(whole)], whole)
        prompts = [len(row[0]["tokens", "prompt"]) for row in batch.unbind(0)]
        print(f"  tokens of the first prompts: {prompts}")
    collector.shutdown()


def policy_of(model: Any, tokenizer: Any, input_mode: str) -> TransformersWrapper:
    """The model as a policy."""
    return TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode=input_mode,
        generate=True,
        generate_kwargs={"max_new_tokens": 16, "do_sample": True},
        pad_output=False,
    )


def tell(number: int, batch: Any) -> None:
    """Print what a batch came to."""
    done, reward = int(batch["next", "done"].sum()), float(batch["next", "reward"].mean())
    print(f"  batch {number}: turns {batch.numel()}   episodes {done}   reward {reward:.3f}")


def main() -> None:
    """All of it, in some seconds."""
    warnings.filterwarnings("ignore", module="torch|tensordict")
    set_list_to_stack(True).set()
    torch.set_num_threads(1)  # enough for a model of this size
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    history_mode(tokenizer, model)
    tokens_mode(tokenizer, model)


if __name__ == "__main__":
    main()
