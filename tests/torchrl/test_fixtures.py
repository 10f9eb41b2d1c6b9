"""The tiny tokenizer and model that the other tests share."""

from __future__ import annotations


def test_tokenizer_marks_the_assistants_tokens(tokenizer):
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes é"}]
    found = tokenizer.apply_chat_template(
        chat, return_dict=True, return_assistant_tokens_mask=True, tokenize=True
    )
    marked = [
        token
        for token, mask in zip(found["input_ids"], found["assistant_masks"], strict=True)
        if mask
    ]
    assert tokenizer.decode(marked) == "yes é<|im_end|>"


def test_model_generates(tokenizer, model):
    prompt = tokenizer(["a", "a longer prompt"], return_tensors="pt", padding=True)
    out = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert out.shape[0] == 2
    assert sum(each.numel() for each in model.parameters()) < 60_000
