"""Training samples: which tokens are the model's own, asserted token by token."""

from __future__ import annotations

import json

import pytest
import torch

from repl_env.rlm import Completion, ModelRequest, TokenTrace, TransformersModel, sample
from tests.repl_env.llm.local_models import tiny_model

MESSAGES = [
    {"role": "system", "content": "Write code."},
    {"role": "user", "content": "How long is it?"},
    {"role": "assistant", "content": "print(len(context))"},
    {"role": "user", "content": "12"},
]
PROMPT = (
    "<|im_start|>system\nWrite code.<|im_end|>\n"
    "<|im_start|>user\nHow long is it?<|im_end|>\n"
    "<|im_start|>assistant\nprint(len(context))<|im_end|>\n"
    "<|im_start|>user\n12<|im_end|>\n"
    "<|im_start|>assistant\n"
)
REPLY = "```repl\nFINAL(12)\n```"
# Like ChatML, without markers.
BARE = tiny_model.CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
# The prompt is not a prefix of the conversation, so the markers have to locate the reply.
MARKED = tiny_model.CHATML.replace(
    "<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>{% endif"
)


def pieces(made, words) -> list[tuple[str, int]]:
    """Each token as text, with its part in the loss."""
    assert len(made.input_ids) == len(made.loss_mask)
    return [
        (words.decode([token]), mask)
        for token, mask in zip(made.input_ids, made.loss_mask, strict=True)
    ]


def spelled(text: str, words, mask: int) -> list[tuple[str, int]]:
    return [(words.decode([token]), mask) for token in words.encode(text)]


# ── without recorded tokens ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("template", [tiny_model.CHATML, BARE], ids=["marked", "bare"])
def test_reply_and_end_of_turn_are_sampled_and_the_template_s_newline_is_not(template):
    words = tiny_model.tokenizer(template)

    made = sample(MESSAGES, Completion(REPLY, finish_reason="stop"), words)

    assert pieces(made, words) == [
        *spelled(PROMPT, words, 0),
        *spelled(REPLY, words, 1),
        ("<|im_end|>", 1),
        ("\n", 0),
    ]
    assert (made.messages, made.reply, made.logprobs) == (tuple(MESSAGES), REPLY, None)


def test_a_reply_that_was_cut_did_not_end_its_turn():
    words = tiny_model.tokenizer(BARE)

    made = sample(MESSAGES, Completion("FINAL(", finish_reason="length"), words)

    assert pieces(made, words) == [
        *spelled(PROMPT, words, 0),
        *spelled("FINAL(", words, 1),
        ("<|im_end|>", 0),
        ("\n", 0),
    ]


def test_an_empty_reply_is_an_end_of_turn():
    words = tiny_model.tokenizer(BARE)

    made = sample(MESSAGES, "", words)

    assert pieces(made, words) == [*spelled(PROMPT, words, 0), ("<|im_end|>", 1), ("\n", 0)]


def test_the_template_s_own_text_within_a_reply_does_not_end_it():
    words = tiny_model.tokenizer(BARE)
    reply = "a<|im_end|>\n<|im_start|>user\nb"

    made = sample(MESSAGES[:2], reply, words)

    sampled = [token for token, mask in zip(made.input_ids, made.loss_mask, strict=True) if mask]
    assert sampled == [*words.encode(reply), words.eos_token_id]


def test_a_template_that_trims_the_reply_is_followed():
    words = tiny_model.tokenizer(BARE.replace("message.content", "message.content | trim"))

    made = sample(MESSAGES, f"\n{REPLY}  ", words)

    assert pieces(made, words) == [
        *spelled(PROMPT, words, 0),
        *spelled(REPLY, words, 1),
        ("<|im_end|>", 1),
        ("\n", 0),
    ]


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("inside", [True, False], ids=["end inside the mark", "end outside"])
def test_template_markers_locate_the_last_reply_where_the_prompt_does_not(reason, inside):
    ending = "<|im_end|>{% endgeneration %}"
    template = MARKED if inside else MARKED.replace(ending, "{% endgeneration %}<|im_end|>")
    words = tiny_model.tokenizer(template)

    made = sample(MESSAGES, Completion(REPLY, finish_reason=reason), words)

    assert pieces(made, words) == [
        *spelled(PROMPT, words, 0),
        *spelled(REPLY, words, 1),
        ("<|im_end|>", int(reason == "stop")),
        ("\n", 0),
    ]


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", ""), "begin with"),
        (BARE.replace("message.content }}", "message.content | upper }}"), "changes the reply"),
        (
            BARE.replace("{{ message.content }}", "<think></think>{{ message.content }}"),
            "before it",
        ),
        (MARKED.replace("{{ message.content }}", "note{{ message.content }}"), "not the reply"),
        (
            MARKED.replace(
                "{% generation %}", "{% generation %}1{% endgeneration %}:{% generation %}"
            ),
            "one piece",
        ),
    ],
)
def test_a_template_without_a_locatable_reply_is_an_error_with_its_reason(template, told):
    words = tiny_model.tokenizer(template)

    with pytest.raises(ValueError, match=told) as refused:
        sample(MESSAGES, REPLY, words)
    assert "Record token ids" in str(refused.value)


def test_a_token_that_spans_reply_and_template_is_an_error():
    """The reply "us" and what this template puts after it, "er", are one token together."""
    words = tiny_model.tokenizer(
        "{% for m in messages %}{{ m.role + ':\n' + m.content }}er{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
    )
    assert len(words.encode("user")) == 1

    with pytest.raises(ValueError, match="shares a token"):
        sample([{"role": "user", "content": "x"}], "us", words)


def test_arguments_of_the_template_are_those_of_the_prompt():
    thinking = "{% if add_generation_prompt and quiet %}<think></think>{% endif %}"
    template = BARE.replace(
        "{{ message.content }}",
        "{% if message.role == 'assistant' and loop.last and quiet %}<think></think>{% endif %}"
        "{{ message.content }}",
    )
    words = tiny_model.tokenizer(template + thinking)

    made = sample(MESSAGES, REPLY, words, template={"quiet": True})

    assert pieces(made, words) == [
        *spelled(f"{PROMPT}<think></think>", words, 0),
        *spelled(REPLY, words, 1),
        ("<|im_end|>", 1),
        ("\n", 0),
    ]


# ── with recorded tokens ─────────────────────────────────────────────────────────────────────────


def test_recorded_tokens_are_taken_as_they_are_and_need_no_tokenizer():
    trace = TokenTrace(prompt_ids=(5, 6, 7), output_ids=(8, 9), logprobs=(-0.5, -0.25))

    made = sample(MESSAGES, Completion("text of other tokens", tokens=trace), None)

    assert made.input_ids == (5, 6, 7, 8, 9)
    assert made.loss_mask == (0, 0, 0, 1, 1)
    assert made.logprobs == (-0.5, -0.25)


def test_recorded_output_goes_behind_the_template_s_prompt_where_that_was_not_recorded():
    words = tiny_model.tokenizer(BARE)
    letters = [words.encode(letter)[0] for letter in "context"]
    assert letters != words.encode("context"), "the reply would be tokenised as it was sampled"

    made = sample(
        MESSAGES, Completion("context", tokens=TokenTrace(output_ids=tuple(letters))), words
    )

    assert pieces(made, words) == [
        *spelled(PROMPT, words, 0),
        *((letter, 1) for letter in "context"),
    ]
    assert made.logprobs is None


def test_an_answer_of_no_tokens_has_nothing_sampled():
    made = sample(MESSAGES, Completion("", tokens=TokenTrace(prompt_ids=(1, 2))), None)

    assert (made.input_ids, made.loss_mask) == ((1, 2), (0, 0))


def test_invalid_recorded_tokens_are_errors():
    short = TokenTrace(prompt_ids=(1,), output_ids=(2, 3), logprobs=(-1.0,))

    with pytest.raises(ValueError, match="1 log-probabilities for 2 tokens"):
        sample(MESSAGES, Completion("x", tokens=short), None)
    with pytest.raises(ValueError, match="tokenizer"):
        sample(MESSAGES, REPLY, None)
    with pytest.raises(ValueError, match="tokenizer"):
        sample(MESSAGES, Completion("x", tokens=TokenTrace(output_ids=(1,))), None)


# ── what goes with it, and what comes of it ──────────────────────────────────────────────────────


def test_a_sample_names_its_run_and_turn_and_is_json():
    words = tiny_model.tokenizer(BARE)
    place = {"run": "0.3", "turn": 2, "depth": 1, "parent": "0"}

    made = sample(MESSAGES, REPLY, words, reward=0.5, weight=0.25, masked=True, **place)

    told = json.loads(json.dumps(made.to_dict()))
    assert {name: told[name] for name in place} == place
    assert (told["reward"], told["weight"], told["masked"]) == (0.5, 0.25, True)
    assert told["messages"] == MESSAGES
    assert told["input_ids"] == list(made.input_ids)
    assert told["loss_mask"] == list(made.loss_mask)
    assert told["logprobs"] is None


async def test_a_model_trained_on_samples_reproduces_them():
    """Prompt, mask and end of turn fit together, or it would not learn where to stop."""
    words = tiny_model.tokenizer()
    weights = tiny_model.model(words, scale=3)
    shown = [[{"role": "user", "content": text}] for text in ("context", "answer")]
    replies = ["print(context)", "FINAL(answer)"]
    wanted = [
        sample(messages, reply, words) for messages, reply in zip(shown, replies, strict=True)
    ]
    train(weights, wanted)

    model = TransformersModel(weights, words, record_tokens=True, max_new_tokens=40)
    for messages, reply, old in zip(shown, replies, wanted, strict=True):
        answer = await model.complete(ModelRequest(messages=messages))
        new = sample(messages, answer, words)

        assert (answer.text, answer.finish_reason) == (reply, "stop")
        assert answer.usage.output_tokens == sum(new.loss_mask) == sum(old.loss_mask)
        # The template's newline comes after the end of turn and was not sampled.
        assert new.input_ids == old.input_ids[:-1]
        assert new.loss_mask == old.loss_mask[:-1]
        assert len(new.logprobs) == sum(new.loss_mask)
        assert all(value <= 0 for value in new.logprobs)


def train(weights, samples) -> None:
    """Until the loss on the sampled tokens is small."""
    steps = torch.optim.Adam(weights.parameters(), lr=0.01)
    for _ in range(100):
        loss = sum(loss_of(weights, made) for made in samples)
        steps.zero_grad()
        loss.backward()
        steps.step()
        if loss.item() < 0.03:
            return
    raise AssertionError(f"the loss stays at {loss}")


def loss_of(weights, made):
    ids = torch.tensor([made.input_ids])
    labels = torch.where(torch.tensor([made.loss_mask]) == 1, ids, -100)
    return weights(ids, labels=labels).loss
