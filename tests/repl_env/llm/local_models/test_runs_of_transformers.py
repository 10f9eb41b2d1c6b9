"""Runs of a real model of transformers, tiny and with random weights, so its text is noise."""

import pytest

from repl_env.rlm import RunConfig, TransformersModel
from repl_env.rlm.model_call import ModelReplied
from tests.repl_env.llm.local_models.tiny_model import model as random_model
from tests.repl_env.llm.local_models.tiny_model import tokenizer


@pytest.fixture(scope="module")
def tiny():
    words = tokenizer()
    weights = random_model(words, max_position_embeddings=32_768)
    return TransformersModel(
        weights, words, name="tiny", max_new_tokens=12, batch_size=4, record_tokens=True
    )


def test_a_model_that_writes_no_code_is_prompted_and_has_a_last_turn(rlm, tiny):
    events = []
    result = rlm(tiny, max_iterations=2, on_event=events.append).run("What is it?", "a text")
    replies = [event for event in events if isinstance(event, ModelReplied)]
    assert [event.last for event in replies] == [False, False, True]
    assert "Your reply had no code block" in replies[1].added[0]["content"]
    assert (result.stop_reason, result.iterations, result.usage.calls) == ("max_iterations", 3, 3)
    assert result.usage.estimated_tokens == 0
    used = [event.completion.usage for event in replies]
    assert result.usage.input_tokens == sum(usage.input_tokens for usage in used)
    assert result.usage.output_tokens == sum(usage.output_tokens for usage in used) <= 36
    if result.final_answer is not None:
        assert result.final_answer == replies[-1].completion.text.strip()


def test_turns_become_samples_whose_masks_cover_the_sampled_tokens(rlm, tiny):
    result = rlm(tiny, max_iterations=2).run("What is it?", "a text")
    samples = result.trajectory.samples(tokenizer())
    assert [sample.turn for sample in samples] == [1, 2, 3]
    for sample in samples:
        pairs = zip(sample.input_ids, sample.loss_mask, strict=True)
        sampled = [token for token, own in pairs if own]
        assert sampled
        assert list(sample.input_ids[-len(sampled) :]) == sampled
        assert len(sampled) <= 12


def test_the_limit_of_an_answer_is_the_models_to_the_token(rlm, tiny):
    made = rlm(tiny, max_iterations=1, run_config=RunConfig(max_output_tokens=3))
    assert made.run("What is it?").usage.output_tokens <= 6
