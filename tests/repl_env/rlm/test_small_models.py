"""Few-shot examples as turns, the short prompt, and replies that are begun for the model."""

import asyncio

import pytest

from repl_env import RLM_SYSTEM_PROMPT_SHORT
from repl_env.rlm import ModelRequest, OpenAIModel, RunConfig, ScriptedModel, Trajectory
from repl_env.rlm.replay import differences, rerun
from tests.repl_env.llm.endpoint import Reply

FENCE = "```repl\n"
LOOK, ANSWER = f"{FENCE}print(context)\n```", f"{FENCE}FINAL(12)\n```"
EXAMPLE = [
    {"role": "user", "content": "Which number has red?"},
    {"role": "assistant", "content": LOOK},
    {"role": "user", "content": "red 12"},
    {"role": "assistant", "content": ANSWER},
]


def shown(request):
    return [(message["role"], message["content"]) for message in request.messages]


@pytest.mark.parametrize("prompts", ["full", "short"])
@pytest.mark.parametrize(
    "examples",
    [EXAMPLE, [EXAMPLE], [EXAMPLE, EXAMPLE[:2]], [[{"role": "system", "content": "s"}, *EXAMPLE]]],
)
def test_examples_are_turns_between_the_system_s_message_and_the_question(rlm, prompts, examples):
    model = ScriptedModel([ANSWER])
    rlm(model, examples=examples, prompts=prompts).run("What is blue?", "blue 7")
    system, *turns, question = shown(model.requests[0])
    expected = [(message["role"], message["content"]) for message in EXAMPLE]
    assert system[0] == "system" and "What is blue?" in question[1]
    assert turns[:4] == expected
    assert turns[4:] == (expected[:2] if len(examples) == 2 else [])


def test_the_turns_of_an_earlier_result_are_an_example(rlm):
    made = rlm(ScriptedModel([LOOK, ANSWER]), prompts="short").run(
        "Which number has red?", "red 12"
    )
    model = ScriptedModel([ANSWER])
    rlm(model, prompts="short", examples=[made.messages]).run("Which has blue?", "blue 7")
    assert shown(model.requests[0]) == [
        ("system", RLM_SYSTEM_PROMPT_SHORT),
        ("user", "Which number has red?\n\n- `context`: str, length 6"),
        ("assistant", LOOK),
        ("user", "red 12"),
        ("assistant", ANSWER),
        ("user", "Which has blue?\n\n- `context`: str, length 6"),
    ]


def test_children_are_shown_the_examples_too(rlm):
    model = ScriptedModel([f"{FENCE}FINAL(rlm_query('deep?'))\n```", ANSWER])
    rlm(model, prompts="short", examples=EXAMPLE).run("?", "")
    assert [shown(request)[1:5] for request in model.requests] == [
        [(message["role"], message["content"]) for message in EXAMPLE]
    ] * 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("text", "examples must be a list"),
        ([3], r"examples\[0\] must be a list of messages"),
        (["text"], r"examples\[0\] must be a list of messages"),
        ([["text"]], r"examples\[0\]\[0\] must be a message"),
        ([[{"role": "user"}]], r"examples\[0\]\[0\] must be a message"),
        ([[]], r"examples\[0\] must end"),
        ([EXAMPLE, EXAMPLE[:3]], r"examples\[1\] must end with a message of the assistant's"),
        (EXAMPLE[:1], "examples must end"),
        ([EXAMPLE[1:]], r"examples\[0\]\[0\] must be the user's"),
        ([[EXAMPLE[0], EXAMPLE[2]]], r"examples\[0\]\[1\] must be the assistant's"),
        ([[*EXAMPLE, {"role": "system", "content": "s"}]], r"\[4\] must be the user's"),
        ([[{"role": "user", "content": None}, EXAMPLE[1]]], "'content'.* must be a str"),
    ],
)
def test_an_invalid_example_is_refused_with_its_index(given, told):
    with pytest.raises((TypeError, ValueError), match=told):
        RunConfig(examples=given)


@pytest.mark.parametrize("given", [{"prompts": "tiny"}, {"prefix": 3}])
def test_other_wrong_arguments_are_refused_by_name(rlm, given):
    with pytest.raises((TypeError, ValueError), match=next(iter(given))):
        rlm(ScriptedModel([]), **given)


def test_the_short_prompt_shows_outputs_alone(rlm):
    model = ScriptedModel([f"{FENCE}1/0\n```", "no code", f"{LOOK}\n{LOOK}", ANSWER])
    rlm(model, prompts="short", tools={"twice": lambda n: 2 * n}).run("?", "abc")
    system, reports = shown(model.requests[0])[0][1], shown(model.requests[-1])[3::2]
    assert system.startswith(RLM_SYSTEM_PROMPT_SHORT) and "`twice(n)`" in system
    error, none, two = [text for _, text in reports]
    assert "ZeroDivisionError" in error and "?" not in error.partition("ERROR")[0]
    assert none.startswith("Your reply had no code block")
    assert two == "abc\n\nabc"


# ── replies that are begun ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("whole", [False, True])
def test_a_reply_goes_on_from_its_prefix(rlm, whole):
    """Some endpoints return the beginning with the rest; it is there once."""
    rests = ["print(context)\n```", "FINAL(12)\n```"]
    model = ScriptedModel([FENCE + rest if whole else rest for rest in rests])
    result = rlm(model, prefix=FENCE).run("?", "red 12")
    assert result.final_answer == "12"
    assert [request.prefix for request in model.requests] == [FENCE, FENCE]
    assert [m["content"] for m in result.messages if m["role"] == "assistant"] == [LOOK, ANSWER]


def test_the_last_turn_has_no_prefix(rlm):
    model = ScriptedModel(["x = 1\n```", "twelve"])
    assert rlm(model, prefix=FENCE, max_iterations=1).run("?").final_answer == "twelve"
    assert [request.prefix for request in model.requests] == [FENCE, None]


def test_a_function_reads_the_prefix_as_the_assistant_s_message(rlm):
    def answer(messages):
        assert messages[-1] == {"role": "assistant", "content": FENCE}
        return "FINAL(12)\n```"

    assert rlm(answer, prefix=FENCE).run("?").final_answer == "12"


def test_a_run_with_examples_and_a_prefix_is_replayed_identically(rlm, tmp_path):
    path = tmp_path / "run.jsonl"
    model = ScriptedModel(["print(context)\n```", "FINAL(12)\n```"])
    given = {"prefix": FENCE, "prompts": "short", "examples": [EXAMPLE]}
    rlm(model, trajectory=path, **given).run("?", "red 12")
    recorded = Trajectory.load(path)
    again = rerun(recorded)
    assert list(differences(recorded, again)) == []
    assert again.root.ended.final_answer == "12"


@pytest.mark.parametrize("prefix", [None, FENCE])
async def test_an_endpoint_continues_the_prefix(endpoint, prefix):
    served = endpoint(Reply("FINAL(12)\n```"))
    model = OpenAIModel("m", base_url=served.base_url, sampling={"top_k": 3})
    asked = [{"role": "user", "content": "?"}]
    answer = await model.complete(ModelRequest(messages=asked, prefix=prefix))
    await model.close()
    body = served.requests[0].body
    told = {name: body.get(name) for name in ("add_generation_prompt", "continue_final_message")}
    assert answer.text == "FINAL(12)\n```" and body["top_k"] == 3
    assert body["messages"][1:] == ([{"role": "assistant", "content": FENCE}] if prefix else [])
    assert list(told.values()) == ([False, True] if prefix else [None, None])


def test_a_local_model_has_the_prefix_in_its_prompt(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    from repl_env.rlm import TransformersModel
    from tests.repl_env.llm.local_models import tiny_model

    words = tiny_model.tokenizer()
    model = TransformersModel(
        tiny_model.model(words), words, max_new_tokens=4, record_tokens=True, batch_size=1
    )
    asked = [{"role": "user", "content": "?"}]
    answer = asyncio.run(model.complete(ModelRequest(messages=asked, prefix=FENCE)))
    asyncio.run(model.close())
    assert words.decode(answer.tokens.prompt_ids).endswith(f"<|im_start|>assistant\n{FENCE}")
    assert not answer.text.startswith(FENCE) and len(answer.tokens.output_ids) == 4
