"""The conversation stays within its length, and says what of a prompt was there before."""

import pytest

from repl_env.rlm.config import Transcript, characters

OPENING = [{"role": "system", "content": "rules"}, {"role": "user", "content": "question"}]


def turns(count, limit, size=100, measure=None):
    """The prompts of so many turns, each with an outcome of `size` characters."""
    transcript = Transcript(OPENING, limit, measure)
    prompts = []
    for number in range(count):
        prompt = transcript.prompt()
        prompts.append(prompt)
        reply = f"```repl\nx{number}\n```"
        transcript.add_reply(prompt, reply)
        transcript.add(reply, f"{number}:" + "o" * size, f"short {number}")
    return transcript, prompts


def test_a_short_conversation_only_grows():
    _, prompts = turns(4, 10_000)
    assert [len(prompt.messages) for prompt in prompts] == [2, 4, 6, 8]
    assert [prompt.kept for prompt in prompts] == [0, 3, 5, 7]
    assert [len(prompt.added) for prompt in prompts] == [2, 1, 1, 1]
    assert prompts[3].messages[-1]["content"].startswith("2:")


def test_kept_and_added_messages_make_the_prompt():
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


def test_truncation_leaves_room_so_that_prompts_keep_their_beginning():
    _, prompts = turns(60, 3_000)
    cuts = sum(len(prompt.added) > 1 for prompt in prompts[1:])
    assert 0 < cuts < 12


def test_consecutive_user_texts_share_one_message():
    transcript, _ = turns(1, 10_000)
    transcript.append_text("one more thing")
    assert transcript.prompt().messages[-1]["content"].endswith("ooo\n\none more thing")
    fresh = Transcript(OPENING, 100)
    fresh.append_text("hurry")
    assert fresh.prompt().messages[-1]["content"] == "question\n\nhurry"
    assert OPENING[-1]["content"] == "question"


def test_text_appended_to_a_shown_user_message_counts_as_new_from_there_on():
    transcript, _ = turns(3, 10_000)
    shown = transcript.prompt()
    transcript.add_reply(shown, "no code")
    transcript.append_text("one more thing")
    again = transcript.prompt()
    assert again.kept == len(shown.messages) - 1
    assert [message["content"][-14:] for message in again.added] == ["one more thing"]


def test_a_reply_kept_in_another_form_counts_as_new_from_there_on():
    transcript = Transcript(OPENING, 10_000)
    transcript.add_reply(transcript.prompt(), "a long reply")
    transcript.add("a reply", "a report", "short")
    prompt = transcript.prompt()
    assert (prompt.kept, len(prompt.added)) == (2, 2)


@pytest.mark.parametrize("limit", [400, 700, 1_500, 5_000])
def test_a_custom_measure_truncates_like_characters(limit):
    asked = []

    def measure(messages):
        asked.append(len(messages))
        return characters(messages)

    _, ours = turns(50, limit, measure=measure)
    _, default = turns(50, limit)
    assert [(p.messages, p.kept) for p in ours] == [(p.messages, p.kept) for p in default]
    assert asked


def test_truncation_drops_as_few_turns_as_possible():
    _, prompts = turns(60, 3_000)
    cuts = [prompt for prompt in prompts[1:] if len(prompt.added) > 1]
    assert cuts
    for prompt in cuts:
        # One more complete turn is longer than its short form, or than nothing, by at most this
        # number.
        assert 1_500 - 140 <= characters(prompt.messages) <= 1_500


def test_truncation_takes_linear_time():
    asked = []

    def measure(messages):
        asked.append(len(messages))
        return characters(messages)

    transcript = Transcript(OPENING, 120_000, measure)
    for number in range(1_000):
        transcript.add(f"```repl\nx{number}\n```", "o" * 110, "short")
    prompt = transcript.prompt()
    assert characters(prompt.messages) <= 60_000
    assert len(asked) < 50


def test_the_current_task_is_shown_whole_however_long():
    transcript = Transcript(OPENING, 100)
    for number in range(3):
        transcript.add("reply", f"{number}:" + "o" * 200, "short")
    contents = [message["content"] for message in transcript.prompt().messages]
    assert [content[:2] for content in contents if "ooo" in content] == ["1:", "2:"]
