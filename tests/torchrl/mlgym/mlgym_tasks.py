"""A small task, and steps of an environment with it."""

from __future__ import annotations

TOML = """
name = "{name}"
instruction = "Write `number` in number.txt. Braces {{stay}}: {{}} and {{0}}."
metric = "{metric}"
direction = "{direction}"
submission = ["number.txt"]

[scores]
baseline = {baseline}
reference = {reference}

[limits]
steps = 6
evaluation = 10
"""
EVALUATE = "score(float(read('number.txt')))\n"


def block(code):
    return f"Let me see.\n```python\n{code}\n```"


def put(number):
    return f"open('number.txt', 'w').write('{number}')\n"


def steps(env, *replies, begin=None):
    """The tensordicts of the steps that these replies take."""
    current = env.reset() if begin is None else begin
    taken = []
    for reply in replies:
        current["text_response"] = reply
        taken.append(env.step(current))
        current = env.step_mdp(taken[-1])
    return taken


def told(step):
    return step["next", "history"][-1].content


def rewards(taken):
    return [round(step["next", "reward"].item(), 4) for step in taken]


def reply_with(text, tensordict):
    tensordict["text_response"] = text
    return tensordict
