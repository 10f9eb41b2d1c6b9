"""The conversation stays within its length, and says what of a prompt was there before."""

from repl_env.rlm.transcript import Transcript, characters

OPENING = [{"role": "system", "content": "rules"}, {"role": "user", "content": "question"}]


def turns(count, limit, size=100):
    """The prompts of so many turns, each with an outcome of `size` characters."""
    transcript = Transcript(OPENING, limit)
    prompts = []
    for number in range(count):
        prompt = transcript.prompt()
        prompts.append(prompt)
        reply = f"```repl\nx{number}\n```"
        transcript.replied(prompt, reply)
        transcript.add(reply, f"{number}:" + "o" * size, f"short {number}")
    return transcript, prompts


def test_a_short_conversation_only_grows():
    _, prompts = turns(4, 10_000)
    assert [len(prompt.messages) for prompt in prompts] == [2, 4, 6, 8]
    assert [prompt.kept for prompt in prompts] == [0, 3, 5, 7]
    assert [len(prompt.added) for prompt in prompts] == [2, 1, 1, 1]
    assert prompts[3].messages[-1]["content"].startswith("2:")


def test_what_is_kept_and_added_gives_the_prompt_again():
    _, prompts = turns(40, 1_500)
    seen = []
    for number, prompt in enumerate(prompts):
        assert (*seen[: prompt.kept], *prompt.added) == prompt.messages
        seen = [*prompt.messages, {"role": "assistant", "content": f"```repl\nx{number}\n```"}]


def test_a_long_conversation_is_cut_at_its_beginning_and_stays_within_the_limit():
    _, prompts = turns(40, 1_500)
    assert all(characters(prompt.messages) <= 1_500 for prompt in prompts)
    last = prompts[-1].messages
    assert last[0] == OPENING[0]
    assert "question" in last[1]["content"]
    assert "turns are not shown any more" in last[1]["content"]
    assert last[-1]["content"].startswith("38:ooo")
    assert [message["role"] for message in last[1:]] == [
        "user" if index % 2 == 0 else "assistant" for index in range(len(last) - 1)
    ]


def test_old_turns_are_first_shown_in_short_with_their_code():
    _, prompts = turns(8, 700)
    cut = next(prompt for prompt in prompts[1:] if len(prompt.added) > 1)
    shown = "\n".join(message["content"] for message in cut.messages)
    assert "short 0" in shown
    assert "```repl\nx0\n```" in shown
    assert "0:ooo" not in shown


def test_a_cut_leaves_room_so_that_prompts_keep_their_beginning():
    _, prompts = turns(60, 3_000)
    cuts = sum(len(prompt.added) > 1 for prompt in prompts[1:])
    assert 0 < cuts < 12


def test_the_user_speaks_on_in_the_last_message():
    transcript, _ = turns(1, 10_000)
    transcript.follow("one more thing")
    assert transcript.prompt().messages[-1]["content"].endswith("ooo\n\none more thing")
    fresh = Transcript(OPENING, 100)
    fresh.follow("hurry")
    assert fresh.prompt().messages[-1]["content"] == "question\n\nhurry"
    assert OPENING[-1]["content"] == "question"
