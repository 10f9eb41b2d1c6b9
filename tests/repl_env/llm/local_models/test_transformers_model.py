"""A local model of transformers: prompts, batches, counts, cancellation, errors."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from repl_env.errors import ModelError
from repl_env.rlm import TransformersModel
from tests.repl_env.environment_internals import tokenizer_of
from tests.repl_env.llm.local_models import tiny_model
from tests.repl_env.llm.local_models.model_requests import (
    QUESTIONS,
    USER,
    ask,
    ask_all,
    asking,
    threads,
)


async def test_the_prompt_is_the_chat_template_s_and_its_tokens_are_counted(make, words):
    model = make(record_tokens=True, batch_size=1)
    messages = [{"role": "system", "content": "Be brief."}, *USER]

    answer = await ask(model, messages)

    shown = words.decode(answer.tokens.prompt_ids)
    assert shown == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is in the context?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        answer.usage.input_tokens == len(answer.tokens.prompt_ids) == model.count_tokens(messages)
    )
    assert answer.usage.output_tokens == len(answer.tokens.output_ids) == 12
    assert words.decode(answer.tokens.output_ids, skip_special_tokens=True) == answer.text
    assert (answer.finish_reason, answer.truncated) == ("length", True)


async def test_arguments_of_the_template_reach_it(weights):
    words = tiny_model.tokenizer("{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}")
    model = TransformersModel(
        weights, words, template={"mood": "gaily "}, record_tokens=True, max_new_tokens=2
    )

    answer = await ask(model)

    assert words.decode(answer.tokens.prompt_ids) == "gaily What is in the context?"


async def test_parts_of_a_message_are_joined_and_odd_text_is_made_valid(make, words):
    parts = [{"type": "text", "text": "a\ud800"}, {"type": "text", "text": "b"}]
    model = make(record_tokens=True, batch_size=1, max_new_tokens=1)

    answer = await ask(model, [{"role": "user", "content": parts}])

    assert "user\na?b<|im_end|>" in words.decode(answer.tokens.prompt_ids)


async def test_messages_without_a_prompt_are_errors_and_have_an_upper_bound(weights):
    words = tiny_model.tokenizer("{{ raise_exception('roles must alternate') }}")
    model = TransformersModel(weights, words)
    image = [{"role": "user", "content": [{"type": "image", "url": "x"}]}]

    with pytest.raises(ModelError, match="roles must alternate") as refused:
        await ask(model)
    with pytest.raises(ModelError, match="image"):
        await ask(model, image)
    assert (refused.value.kind, refused.value.retryable) == ("request", False)
    assert model.count_tokens(USER) >= len(USER[0]["content"])


# ── batches ──────────────────────────────────────────────────────────────────────────────────────


async def test_concurrent_requests_are_one_batch_with_the_same_answers(make, weights):
    model = make(record_tokens=True, batch_size=len(QUESTIONS))

    together = await ask_all(model, QUESTIONS)
    assert weights.batches == [len(QUESTIONS)]
    model = make(record_tokens=True, batch_size=1)
    alone = [await ask(model, question) for question in QUESTIONS]

    assert len({answer.text for answer in alone}) > 2, "the weights answer everything alike"
    for one, other in zip(together, alone, strict=True):
        assert (one.text, one.usage, one.finish_reason) == (
            other.text,
            other.usage,
            other.finish_reason,
        )
        assert one.tokens.prompt_ids == other.tokens.prompt_ids
        assert one.tokens.output_ids == other.tokens.output_ids
        assert one.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-4)


async def test_more_requests_than_a_batch_holds_are_several_batches(make, weights):
    model = make(batch_size=4, batch_wait=0.01)
    gate = Gate(weights, at=1)
    first = asyncio.create_task(ask(model))
    await gate.wait()

    others = [asyncio.create_task(ask(model, question)) for question in QUESTIONS]
    await asyncio.sleep(0)  # all have come while the first is held
    gate.open.set()
    await asyncio.gather(first, *others)

    assert weights.batches == [1, 4, 2]


async def test_each_request_of_a_batch_has_its_own_limit(make, weights):
    model = make(record_tokens=True, batch_size=4, max_new_tokens=9)
    limits = [1, 7, None, 3]

    cut = await asyncio.gather(
        *(ask(model, QUESTIONS[place], max_output_tokens=n) for place, n in enumerate(limits))
    )
    assert weights.batches == [4]
    whole = await ask_all(model, QUESTIONS[:4])

    assert [answer.usage.output_tokens for answer in cut] == [1, 7, 9, 3]
    assert {answer.finish_reason for answer in cut} == {"length"}
    for short, long in zip(cut, whole, strict=True):
        count = short.usage.output_tokens
        assert short.tokens.output_ids == long.tokens.output_ids[:count]
        assert len(short.tokens.logprobs) == count


async def test_an_answer_ends_with_its_end_token_which_is_counted_and_not_shown(make, weights):
    """A token that the first answer has in its middle is made one that ends answers."""
    free = (await ask(make(record_tokens=True, batch_size=1))).tokens.output_ids
    place = next(n for n in range(3, 12) if free[n] not in free[:n])
    weights.generation_config.eos_token_id = [weights.config.eos_token_id, free[place]]
    model = make(record_tokens=True, batch_size=3)

    ended, other, exact = await asyncio.gather(
        ask(model), ask(model, QUESTIONS[3]), ask(model, max_output_tokens=place + 1)
    )

    assert weights.batches == [1, 3]
    assert ended.tokens.output_ids == exact.tokens.output_ids == free[: place + 1]
    assert ended.finish_reason == exact.finish_reason == "stop"
    assert ended.usage.output_tokens == len(ended.tokens.logprobs) == place + 1
    assert ended.text == tokenizer_of(model).decode(free[:place], skip_special_tokens=True)
    assert other.usage.output_tokens == len(other.tokens.output_ids)


async def test_a_batch_ends_when_the_last_of_it_ended(make, weights):
    """The one that may have most ends by itself, the other at its limit, two tokens later."""
    free = (await ask(make(record_tokens=True, batch_size=1))).tokens.output_ids
    place = next(n for n in range(3, 10) if free[n] not in free[:n])
    weights.generation_config.eos_token_id = [free[place]]
    weights.steps = 0

    ended, cut = await asyncio.gather(
        ask(model := make(batch_size=2), max_output_tokens=400),
        ask(model, QUESTIONS[3], max_output_tokens=place + 3),
    )

    assert (ended.usage.output_tokens, ended.finish_reason) == (place + 1, "stop")
    assert (cut.usage.output_tokens, cut.finish_reason) == (place + 3, "length")
    assert weights.steps == place + 3


async def test_log_probabilities_are_those_of_the_model_for_each_token(make, weights):
    model = make(record_tokens=True, batch_size=2, sampling={"temperature": 0.5, "top_k": 5})

    for answer in await ask_all(model, QUESTIONS[2:4]):
        prompt, output = answer.tokens.prompt_ids, answer.tokens.output_ids
        with torch.no_grad():
            logits = weights(torch.tensor([[*prompt, *output]])).logits[0]
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        expected = rows.gather(1, torch.tensor(output)[:, None])[:, 0].tolist()
        assert answer.tokens.logprobs == pytest.approx(expected, abs=1e-4)


async def test_tokens_are_recorded_only_when_asked_for(make):
    assert (await ask(make(batch_size=1))).tokens is None


def test_one_model_serves_the_loops_of_several_threads(make, weights):
    model = make(batch_size=4)
    answers = {}

    def serve(number):
        answers[number] = asyncio.run(ask(model, QUESTIONS[number]))

    loops = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()

    assert weights.batches == [4]
    assert sorted(answers) == [0, 1, 2, 3]


# ── sampling ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_seed_fixes_an_answer_and_leaves_the_random_numbers_of_the_process(make):
    model = make(sampling={"temperature": 1.5, "seed": 3}, batch_size=8)
    state = torch.random.get_rng_state()

    again = await ask_all(model, [USER] * 3)
    others = [await ask(model.with_sampling(seed=seed)) for seed in range(4, 8)]

    assert len({answer.text for answer in again}) == 1
    assert len({answer.text for answer in others}) > 1
    assert torch.equal(torch.random.get_rng_state(), state)


async def test_requests_with_different_sampling_are_in_different_batches(make, weights):
    model = make(batch_size=2)
    hot, same = model.with_sampling(temperature=2.0), model.with_sampling(temperature=2.0)

    await asyncio.gather(ask(model), ask(hot), ask(model), ask(same))

    assert weights.batches == [2, 2]


async def test_temperature_zero_takes_the_likeliest_token(make, weights):
    greedy = await ask(make(batch_size=1))
    weights.generation_config.do_sample = True
    weights.generation_config.temperature = 3.0
    model = make(batch_size=1)

    assert len({(await ask(model)).text for _ in range(4)}) > 1
    cold = model.with_sampling(temperature=0, top_p=0.5)
    assert {(await ask(cold)).text for _ in range(3)} == {greedy.text}


async def test_removed_and_restored_sampling_has_no_effect(make, weights):
    plain = make(batch_size=2)
    hot = plain.with_sampling(temperature=2.0)
    same = [(plain, hot.with_sampling(temperature=None))]
    same += [(hot, hot.with_sampling(temperature=0).with_sampling(temperature=2.0))]

    for one, other in same:
        await asyncio.gather(ask(one), ask(other))

    assert weights.batches == [2, 2]


async def test_a_model_in_training_mode_answers_without_dropout(words):
    weights = tiny_model.model(words, attention_dropout=0.5)
    model = TransformersModel(weights, words, max_new_tokens=12)
    expected = (await ask(model)).text
    weights.train()
    weights.model.layers[0].eval()

    assert (await ask(model)).text == expected
    assert weights.training and weights.model.layers[1].training
    assert not weights.model.layers[0].training


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ({"temprature": 1}, "temprature"),
        ({"max_new_tokens": 5}, "max_output_tokens"),
        ({"num_beams": 4}, "num_beams"),
        ({"_from_model_config": 1}, "_from_model_config"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_an_invalid_field_of_sampling_is_named(make, sampling, told):
    with pytest.raises((ValueError, TypeError), match=told):
        make(sampling=sampling)
    with pytest.raises((ValueError, TypeError), match=told):
        make().with_sampling(**sampling)


# ── what does not fit, and what breaks ───────────────────────────────────────────────────────────


async def test_a_prompt_over_the_window_fails_its_own_request_alone(words):
    weights = tiny_model.model(words, max_position_embeddings=64)
    model = TransformersModel(weights, words, max_new_tokens=12, batch_size=3, batch_wait=60.0)
    long, near = asking("y" * 80), asking("y" * 48)
    near_tokens = model.count_tokens(near)
    assert 52 < near_tokens < 64

    outcomes = await asyncio.gather(
        ask(model, long), ask(model), ask(model, near), return_exceptions=True
    )

    assert outcomes[0].kind == "request" and "64" in str(outcomes[0])
    assert outcomes[1].usage.output_tokens == 12
    assert outcomes[2].usage.output_tokens == 64 - near_tokens
    assert outcomes[2].finish_reason == "length"


async def test_running_out_of_memory_halves_the_batch_size(make, weights):
    def before(rows):
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    weights.before = before
    model = make(batch_size=6)

    answers = await ask_all(model, QUESTIONS)
    assert all(answer.usage.output_tokens == 12 for answer in answers)
    assert weights.batches == [6, 3, 1, 2, 3, 1, 2]

    weights.batches.clear()
    await ask_all(model, QUESTIONS[:2])
    assert weights.batches == [1, 1]


async def test_running_out_of_memory_for_one_request_is_a_retryable_error(make, weights):
    def before(rows):
        raise torch.OutOfMemoryError("CUDA out of memory")

    weights.before = before

    with pytest.raises(ModelError, match="out of memory") as short:
        await ask(make(batch_size=1))
    assert (short.value.kind, short.value.retryable) == ("memory", True)


async def test_a_request_that_breaks_the_model_fails_for_itself_alone(make, weights, words):
    poison = words.encode("poison")

    def before(rows):
        if any(words.decode(row).count("poison") for row in rows):
            raise RuntimeError("probability tensor contains inf")

    weights.before = before
    model = make(batch_size=4)
    assert poison

    outcomes = await asyncio.gather(
        *(ask(model, question) for question in [*QUESTIONS[:3], asking("poison")]),
        return_exceptions=True,
    )

    assert [type(outcome).__name__ for outcome in outcomes[:3]] == ["Completion"] * 3
    assert isinstance(outcomes[3], ModelError)
    assert (outcomes[3].kind, outcomes[3].retryable) == ("RuntimeError", False)


async def test_invalid_requests_are_refused_by_name(make):
    model = make(name="tiny", batch_size=1)

    assert (await ask(model, model="tiny")).model == "tiny"
    with pytest.raises(ModelError, match="'other'"):
        await ask(model, model="other")
    with pytest.raises(ModelError, match="max_output_tokens"):
        await ask(model, max_output_tokens=0)


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


class Gate:
    """Holds the model at its `at`th step until it is opened."""

    def __init__(self, weights, at):
        self.reached, self.open = threading.Event(), threading.Event()
        self.left = at
        weights.each = self.pass_by

    def pass_by(self):
        self.left -= 1
        if self.left == 0:
            self.reached.set()
            assert self.open.wait(120)

    async def wait(self):
        assert await asyncio.to_thread(self.reached.wait, 60)


async def test_a_cancelled_answer_ends_at_its_next_token(make, weights):
    model = make(batch_size=2, max_new_tokens=400)
    gate = Gate(weights, at=3)
    tasks = [asyncio.create_task(ask(model, question)) for question in QUESTIONS[:2]]
    await gate.wait()

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    gate.open.set()
    await model.close()

    assert all(task.cancelled() for task in tasks)
    assert weights.steps == 3


async def test_other_requests_of_a_batch_get_their_answers(make, weights):
    model = make(batch_size=2)
    expected = await ask_all(model, QUESTIONS[:2])
    gate = Gate(weights, at=3)
    gone, stays = [asyncio.create_task(ask(model, question)) for question in QUESTIONS[:2]]
    await gate.wait()

    gone.cancel()
    gate.open.set()

    assert (await stays) == expected[1]


async def test_a_request_cancelled_in_the_queue_is_not_begun(make, weights):
    model = make(batch_size=1)
    gate = Gate(weights, at=1)
    first = asyncio.create_task(ask(model))
    await gate.wait()
    second, third = [asyncio.create_task(ask(model, question)) for question in QUESTIONS[:2]]
    await asyncio.sleep(0)

    second.cancel()
    await asyncio.wait([second])
    gate.open.set()
    await asyncio.gather(first, third)

    assert weights.batches == [1, 1]


async def test_a_timeout_is_an_error_and_ends_the_answer(make, weights):
    model = make(batch_size=1, max_new_tokens=400)
    gate = Gate(weights, at=2)

    with pytest.raises(ModelError, match=r"no answer in 0\.05 s") as late:
        await ask(model, timeout=0.05)
    gate.open.set()
    await model.close()

    assert late.value.kind == "timeout"
    assert weights.steps <= 2


async def test_closing_fails_waiting_requests_frees_the_thread_and_the_model_works_again(
    make, weights
):
    model = make(batch_size=1, max_new_tokens=400)
    gate = Gate(weights, at=2)
    running = asyncio.create_task(ask(model))
    await gate.wait()
    waiting = asyncio.create_task(ask(model))
    await asyncio.sleep(0)

    closing = asyncio.create_task(model.close())
    outcomes = await asyncio.gather(running, waiting, return_exceptions=True)
    gate.open.set()
    await closing

    assert [outcome.kind for outcome in outcomes] == ["closed", "closed"]
    assert (weights.batches, weights.steps) == ([1], 2)
    assert not threads()
    assert (await ask(model, max_output_tokens=2)).usage.output_tokens == 2


async def test_no_thread_is_left_when_all_is_answered(make):
    model = make(batch_size=2, batch_wait=0.01)
    await ask_all(model, QUESTIONS[:3])

    for thread in threads():
        await asyncio.to_thread(thread.join, 60)

    assert not threads()
    assert (await ask(model)).text
