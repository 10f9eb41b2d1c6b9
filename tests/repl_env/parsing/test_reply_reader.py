"""Replies as models write them: code is run, text is an answer, and nothing else is one."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_env.parsing.replies import read_reply
from repl_env.rlm import ScriptedModel
from repl_env.runner import LocalRLMRunner

CODE = "n = len(context.split())\nFINAL(n)"
LINES = CODE.split("\n")


def indented(by, first=""):
    return "\n".join(f"{first if not number else by}{line}" for number, line in enumerate(LINES))


NAMES = [
    "repl", "repl:", "python", "Python", "python3", "python3.11", "py", "py3", "ipython",
    "ipython3", "jupyter", "pycon", "tool_code", "execute", "exec", "code", "{.python}",
    "{python}", "python:main.py", "python,linenos", "{code-cell} ipython3", 'python title="x"',
    "{.python .numberLines}", "python repl", "Python 3", " python",
    "python-repl", "run_python", "[python]", "(Python)", "\u00a0python", "repl id=1",
    "ipynb", "cpython", "pythoncode", "main.py", "./solve.py", "code_execution", "=python",
    "#!python", "%%python", "@python", "\ufeffpython", "lang=python", "language: python",
]  # fmt: skip

TAGS = ["code", "python", "execute", "execute_ipython", "tool_code", "repl", "CODE"]

# Replies that are run, all of which answer with the number of words in the context: 3.
RUN = {
    **{f"fence {name}": f"So:\n```{name}\n{CODE}\n```\n" for name in NAMES},
    **{f"tag {tag}": f"So:\n<{tag}>\n{CODE}\n</{tag}>\nThen." for tag in TAGS},
    **{f"open tag {tag}": f"So: <{tag}>{CODE}" for tag in TAGS},
    "tag with attributes": f'<code lang="python">\n{CODE}\n</code>',
    "fence in a tag": f"<code>\n```python\n{CODE}\n```\n</code>",
    "llama": f"<|python_tag|>{CODE}<|eom_id|>",
    "llama 4": f"<|python_start|>\n{CODE}\n<|python_end|>\nand so on",
    "tag with bars": f"<|code|>\n{CODE}\n<|/code|>\nand so on",
    "behind text": f"**Step 1:** ```python\n{CODE}\n```",
    "list item": f"- ```python\n{indented('  ', '  ')}\n  ```\n- more",
    "indented list item": f"1. Do:\n\n   ```repl\n{indented('   ', '   ')}\n   ```",
    "numbered fence": f"2. ```repl\n{indented('   ', '   ')}\n   ```",
    "quote": f"> ```python\n{indented('> ', '> ')}\n> ```\nand so on",
    "tildes": f"~~~python\n{CODE}\n~~~",
    "windows": f"So:\n```tool_code\n{CODE}\n```\n".replace("\n", "\r\n"),
    "never closed": f"```repl\n{CODE}",
    "bare": CODE,
    "bare behind text": f"I count:\n\n{CODE}\n\nThat is the number of words.",
    "bare, indented": f"I count:\n\n{indented('    ', '    ')}",
    "bare expression": "FINAL(len(context.split()))",
    "bare f-string": "FINAL(f'{len(context.split())}')",
    "unnamed": f"```\n{CODE}\n```",
    "unnamed expression": "```\nFINAL(len(context.split()))\n```",
    "two unnamed": "```\nn = 3\n```\nand\n```\nFINAL(n)\n```",
    "indented cell": f"```repl\n{indented('    ', '    ')}\n```",
    "tabbed cell": f"```repl\n{indented(chr(9), chr(9))}\n```",
    "prompts": f"```repl\n{indented('>>> ', '>>> ')}\n3\n```",
    "prompts of IPython": "```\nIn [1]: for n in [3]:\n   ...:     FINAL(n)\nOut[1]: 4\n```",
    "a longer fence closed by a short one": f"````py\n{CODE}\n```\nmore",
    "a fence closed by a tag": f"```py\n{CODE}\n</code>\nmore",
    "code beside the name": "```python n = 3\nFINAL(n)\n```",
    "one line": "```python FINAL(3)```",
}  # fmt: skip

# Text after the code, which is never run.
ENDS = [
    "\n```<end_code>\nObservation: 4", "\n```<|im_end|>\n<|im_start|>user\nNo.", "\n```</s>",
    "\n``` and then FINAL(4)", "\n```, which prints it.", "\n``` `n` is it.", "```\nand more",
    "``` and more", "\n<end_code>\nFINAL(4)", "<|im_end|>", "\n```\n```output\nFINAL(4)\n```",
    "\n````\nmore", "```and more", "``` output: 4", "```output\n4\n```", "\n```# end",
    "\n``` python prints it\nx x", "\n``` Python code above\nx x",
    "\n```\n\n```text\nFINAL(4)\n```", "\n```\nFINAL(4)",
]  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_code_is_run_however_it_is_marked(rlm, name):
    result = rlm(ScriptedModel([RUN[name]])).run("?", "one two three")
    assert (result.final_answer, result.iterations) == ("3", 1)


@pytest.mark.parametrize("end", ENDS)
def test_a_block_ends_where_the_model_ends_it(rlm, end):
    result = rlm(ScriptedModel([f"```py\n{CODE}{end}"])).run("?", "one two three")
    assert (result.final_answer, result.iterations) == ("3", 1)


FENCES = "# Title\n```\nplain\n```\n"


@pytest.mark.parametrize(
    ("text", "behind"),
    [
        (FENCES, ""),
        (FENCES, "\nDone:\n```\nplain\n```\n"),
        ("```python\nx = 1\n```\n", "\nThat's '''it'''."),
        ("```\n" * 7, ""),
        ("~~~\n```\n", ""),
        ("```py", "\n```"),
        ("a ```", ""),
    ],
)
def test_fences_in_a_string_do_not_cut_the_block(rlm, text, behind):
    reply = f'```repl\nreport = """{text}"""\nFINAL(report)\n```{behind}'
    assert rlm(ScriptedModel([reply])).run("?").final_answer == text


# Replies without an answer and without code that can be run.
NEITHER = [
    *(f"```{name}\nFINAL(n)\n```" for name in ("json", "bash", "sql", "lua", "haskell", "c++")),
    *(f"```{name}\nsum is 3\nFINAL(n)\n```" for name in ("output", "text", "")),
    "```tool\nn = = 3\nFINAL(n)\n```",
    "<code>\nn = = 3\nFINAL(n)\n</code>",
    "<execute_bash>\nls\nFINAL(n)\n</execute_bash>",
    "n = len(context.split()\nFINAL(n)",
    "I count:\nfor n in context\n    pass\nFINAL(n)",
    "```foo\nn = 3\n```\nFINAL(n)",
    "```code\nsum is 3\nFINAL(n)\n```",
    "```python_output\n3\nFINAL(n)\n```",
    "```pythonoutput\nn = 3\nFINAL(n)\n```",
    f"Action Input: {CODE}",
    "1. n = 3\n2. that is it\nFINAL(n)",
    '<invoke name="python">\n<parameter name="code">n = 3\nFINAL(n)</parameter>\n</invoke>',
    "<solution>n = = 3\nFINAL(n)</solution>",
]


@pytest.mark.parametrize("reply", NEITHER)
def test_code_that_is_not_run_is_no_answer(rlm, reply):
    model = ScriptedModel([reply, "```repl\nFINAL('next')\n```"])
    assert rlm(model).run("?", "one two three").final_answer == "next"
    assert "n" not in model.requests[1].messages[-1]["content"].split()


@pytest.mark.parametrize("comment", ["# ```", "# a ```json fence", "x = 3  # ``` or so"])
def test_a_fence_in_a_comment_does_not_cut_the_block(rlm, comment):
    reply = f"```py\n{comment}\n{CODE}\n```\nand so on"
    assert rlm(ScriptedModel([reply])).run("?", "one two three").final_answer == "3"


def test_text_after_an_unpaired_fence_is_not_run(rlm):
    model = ScriptedModel(["```wolfram!\nx x\n```\n```\nDone", "```repl\nFINAL('next')\n```"])
    assert rlm(model).run("?").final_answer == "next"
    assert "NameError" not in model.requests[1].messages[-1]["content"]


@pytest.mark.parametrize("text", ["Use this:\n```py\nf(1)\n```\nSo.", "```repl\nx = 1\n```"])
@pytest.mark.parametrize("around", ["{}", "I say:\n\n{}\n", "{}<|im_end|>"])
def test_code_in_an_answer_in_prose_is_a_part_of_that_answer(rlm, text, around):
    reply = around.format(f"FINAL({text})")
    assert rlm(ScriptedModel([reply])).run("?").final_answer == text


PROSE = {"Paris": "Paris", "3-1": "3-1", "42": "42", "'Paris'": "Paris", "1,234": "1,234"}


TEXTS = [
    "Two steps:\n1) dig (deep)\n2) fill", "So:\na) one\n- b) two", "yes :) and more", "Paris :",
    "the dog's (and cat's) \"home\"", "**42** | `x` | [a](http://x.y/z_(a))", "(a) and\n(b)",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("around", ["{}", "So:\n{}\nThat is it (I think).", "{} I am sure."])
def test_an_answer_may_contain_parentheses(rlm, text, around):
    reply = around.format(f"FINAL({text})")
    assert rlm(ScriptedModel([reply])).run("?").final_answer == text


AROUND = [
    "{}", "So:\n{}\nDone.", "```\n{}\n```", "```text\n{}\n```", "So:\n```output\n{}\n```",
    "Printed:\n```\n42 7\n```\n{}", "A fence is ```python.\n{}", "<answer>\n{}\n</answer>",
    "```input\n5 3\n```\n{}", "Use <code>n</code>.\n{}", "<code>n</code>\n{}",
]  # fmt: skip


# Lines of an answer as Markdown and chats dress them.
DRESSED = [
    "**FINAL(5)**", "So:\n`FINAL(5)`\nDone.", "__FINAL_VAR(x)__", "> FINAL(x)", "> **FINAL(5)**",
    "***FINAL_VAR('x')***.", "<answer>FINAL(x)</answer>", "FINAL_VAR(\u201cx\u201d)",
    "FINAL\\_VAR('x')",
    "<final_answer> FINAL_VAR(x) </final_answer>", "<thinking>\nFINAL(no)\n</thinking>\nFINAL(5)",
]  # fmt: skip


@pytest.mark.parametrize("reply", DRESSED)
def test_an_answer_in_prose_may_have_markup(rlm, reply):
    result = rlm(ScriptedModel(["```repl\nx = 5\n```", reply])).run("?")
    assert (result.final_answer, result.iterations) == ("5", 2)


@pytest.mark.parametrize(
    "reply",
    [
        "`FINAL(x)` ends the run.", "**FINAL(x)** or **FINAL_VAR(x)**", "Use **FINAL(x)**",
        "`n = 3`\n`FINAL(n)`", "**FINAL(x)", "> n = 3\n> FINAL(n)", "<think>FINAL(x)</think>",
        "> >>> FINAL(n)", "<answer>FINAL(n)",
    ],
)  # fmt: skip
def test_a_mention_of_the_function_is_no_answer(rlm, reply):
    model = ScriptedModel([reply, "```repl\nFINAL('next')\n```"])
    assert rlm(model).run("?").final_answer == "next"


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("text", PROSE)
def test_an_answer_in_prose_is_its_text(rlm, around, text):
    reply = around.format(f"FINAL({text})")
    assert rlm(ScriptedModel([reply])).run("?").final_answer == PROSE[text]


# ── no reply raises ──────────────────────────────────────────────────────────────────────────────

DEEP = 5_000
STRANGE = [
    "{[1]: 2}", '{{"a": 1}}', "{{1}}", "\0", "\ud800", "'\\ud800'", "'\\d'", "9" * 5_000, "1e999",
    "(" * DEEP, "[" * DEEP + "]" * DEEP, "-" * DEEP + "1", "1+" * DEEP + "1", "x." * DEEP + "x",
    "lambda:" * DEEP + "1", "{1:" * DEEP, "f'{" * 200, "*a", "a=1", "yield", "await x", "b'\xe9'",
    "'" + "\\N{x}" * 9, "#", ")", "", "x" * 70_000, "1 if 1else 2", "1is 1",
]  # fmt: skip


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
def test_no_reply_raises_or_warns_at_any_depth(rlm, text):
    replies = [f"FINAL({text})", f"FINAL_VAR({text})", f"```\nFINAL({text})\n```", text]

    def answer(request):
        if request.origin.run == "0":
            return "```repl\nFINAL([str(rlm_query(str(n))) for n in range(4)])\n```"
        asked = next(n for n in range(4) if f'answer to "{n}"' in request.messages[1]["content"])
        return replies[asked]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reply in replies:
            rlm(ScriptedModel([reply] * 3), max_iterations=1).run("?")
        result = rlm(ScriptedModel(answer), max_iterations=1).run("?")
    assert len(result.answer_value) == 4


PIECES = st.sampled_from(
    ["```", "````", "~~~", "\n", " ", "py", "repl", "code", "json", "<code>", "</code>", "FINAL(",
     "FINAL_VAR(", ")", "'''", '"', "n = 3", "x", "=", "{", "[1]", ": 2", "- ", "> ", "1. ", ">>> ",
     "    ", "\t", "\r\n", "<think>", "</think>", "<|im_end|>", "\\", "\0", "é", "\ud800", "#", "(",
     "In [1]: ", "`", "print(", "import re"]
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.booleans())
def test_no_text_breaks_the_reply_parser(text, last):
    meant = read_reply(text, {"n"}, last=last)
    assert not (meant.codes and meant.answer)
    assert all(code.strip() for code in meant.codes)


def test_a_fault_in_a_run_below_is_a_call_that_failed(rlm):
    def broken(event):
        if event.run != "0" and type(event).__name__ == "ModelReplied":
            raise LookupError("no such thing")

    asked = "t = rlm_query('below')\nFINAL([t.ok, str(t)])"

    def answer(request):
        return f"```repl\n{asked if request.origin.run == '0' else 'FINAL(1)'}\n```"

    result = rlm(ScriptedModel(answer), on_event=broken).run("?")
    assert result.answer_value == [False, "Error: child: LookupError: no such thing"]
    assert result.error_kind is None  # the run itself went on to its answer


# ── the work ─────────────────────────────────────────────────────────────────────────────────────

MUCH = 300_000


def lengths():
    return "".join(f"{'`' * length}{name}\n" for length in range(3, 700) for name in ("py", ""))


ADVERSE = {
    "fences": "```py\nx x\n```\n", "openers": "```py\nx x\n", "strings": "```py\ns = '''\n```\n",
    "tags": "<code>\nx x\n</code>\n", "open tags": "x <code> y\n", "quotes": "> ```py\n> x x\n\n",
    "behind": "a: ```py\nx x\n```\n", "answers": "n = = 3\nFINAL(n)\n\nProse.\n",
    "one": "FINAL(x\n", "closers": "FINAL(x) ", "unnamed": "```\nx x\n", "tokens": "x<|im_end|>\n",
}  # fmt: skip


@pytest.mark.parametrize("shape", [*ADVERSE, "lengths"])
def test_the_parsed_part_of_a_reply_is_bounded(shape, monkeypatch):
    """However long it is: the parser of Python is all that takes long."""
    given = []
    parse = compile

    def counted(source, *arguments, **named):
        given.append(len(source))
        return parse(source, *arguments, **named)

    monkeypatch.setattr("ast.compile", counted, raising=False)
    unit = lengths() if shape == "lengths" else ADVERSE[shape]
    read_reply(unit * (MUCH // len(unit) + 1), set())
    assert sum(given) <= 8 * 64 * 1024 + 3 * len(given)
    assert max(given, default=0) <= 64 * 1024 + 3
    assert len(given) <= 8 * 1024


@pytest.mark.parametrize("block", ["'''\n```\n", "x x\n```\n"])
def test_at_most_eight_ends_of_a_block_are_tried(block, monkeypatch):
    given = []
    parse = compile

    def counted(source, *arguments, **named):
        given.append(source)
        return parse(source, *arguments, **named)

    monkeypatch.setattr("ast.compile", counted, raising=False)
    read_reply(f"```py\nx = (\n{block}{'text' * 9}\n" + "```\n'''\n" * 20, set())
    assert 0 < len([source for source in given if source.startswith("x = (")]) <= 8


# ── the runner with the arguments of OpenEnv ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ("The answer is FINAL(Paris (France)), I think.", "Paris (France)"),
        ("So I say: FINAL_VAR(x).", "1"),
        ("blue", "blue"),
        ("x = 5", "x = 5"),
        ("def f(n):\n    return n", "def f(n):\n    return n"),
        ("x = 5\nFINAL(x)", "5"),
    ],
)
def test_a_last_reply_is_no_iteration_and_may_answer_within_a_sentence(last, answer):
    replies = iter(["```repl\nx = 1\n```", last])
    result = LocalRLMRunner(lambda messages: next(replies), max_iterations=1).run("c", "?")
    assert (result.final_answer, result.iterations) == (answer, 1)
