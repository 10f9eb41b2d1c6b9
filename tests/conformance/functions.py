"""Functions of the host, and final answers."""

from __future__ import annotations

from .steps import ANY, Check, Like, Run, raises, shows


def _call(name: str, *steps: Run) -> Check:
    return Check(name, "host calls", steps, host=True)


def _answer(name: str, *steps: Run, compatible: bool = False) -> Check:
    return Check(name, "answers", steps, answers="compatible" if compatible else "strict")


FUNCTIONS = (
    _call("a plain function is called", Run("add(2, 3)", shows("5"))),
    _call("keywords and defaults work", Run("add(a=1), add(1, b=5)", shows("(2, 6)"))),
    _call("an asynchronous function is called", Run("add_later('a', 'b')", shows("'ab'"))),
    _call(
        "JSON goes through whole",
        Run("add([{'ü': None}], [1.5, True])", shows("[{'ü': None}, 1.5, True]")),
    ),
    _call(
        "an error arrives by its name and text",
        Run("fail('not there')", raises(Like(r"(.*\.)?LookupError"), "not there")),
    ),
    _call(
        "an error can be caught and read",
        Run(
            "try:\n    fail('x')\nexcept HostCallError as error:\n"
            "    found = error.type, error.message\nfound",
            shows("('LookupError', 'x')"),
        ),
    ),
    _call(
        "an error can be caught as the built-in class that it is of",
        Run(
            "try:\n    fail('x')\nexcept LookupError as error:\n    found = str(error)\nfound",
            shows("'x'"),
        ),
    ),
    _call(
        "wrong arguments are the cell's error",
        Run("add()", raises(Like(r"(.*\.)?TypeError"), Like(".*missing.*"))),
    ),
    _call("arguments that are no JSON are refused", Run("add(object())", raises("TypeError", ANY))),
    _call(
        "a result that is no JSON is refused",
        Run("unsendable()", raises(Like(r"(.*\.)?TypeError"), ANY)),
    ),
    _call(
        "a function has its name and description",
        Run("add.__name__, add.__doc__", shows("('add', 'The sum of two values.')")),
    ),
    _call(
        "threads call at the same time",
        Run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(3) as pool:\n    found = list(pool.map(meet, 'abc'))\nfound",
            shows("['a', 'b', 'c']"),
        ),
    ),
    _call(
        "many calls one after the other", Run("sum(add(n, 0) for n in range(500))", shows("124750"))
    ),
    _call(
        "a function that was overwritten is back in the next cell",
        Run("add = None"),
        Run("add(1, 2)", shows("3", stderr=ANY)),
    ),
    Check(
        "functions that were not offered are not there",
        "host calls",
        (Run("add(1, 2)", raises("NameError", Like("name 'add' is not defined.*"))),),
    ),
    # ── answers ──────────────────────────────────────────────────────────────────────────────────
    _answer(
        "FINAL gives a value",
        Run(
            "_ = FINAL({'n': (1, 2)})", shows(answers=(("FINAL", "{'n': (1, 2)}", {"n": [1, 2]}),))
        ),
    ),
    _answer(
        "FINAL_VAR gives a variable",
        Run("x = [1]\n_ = FINAL_VAR('x')", shows(answers=(("FINAL_VAR", "[1]", [1]),))),
    ),
    _answer(
        "FINAL_VAR of nothing is an error", Run("FINAL_VAR('nothing')", raises("NameError", ANY))
    ),
    _answer(
        "SUBMIT gives fields",
        Run(
            "SUBMIT(a=1, b='x')",
            shows(answers=(("SUBMIT", "{'a': 1, 'b': 'x'}", {"a": 1, "b": "x"}),)),
        ),
    ),
    _answer(
        "final_answer gives a value",
        Run("_ = final_answer('yes')", shows(answers=(("final_answer", "yes", "yes"),))),
    ),
    _answer(
        "the dictionary gives its content when it is ready",
        Run("answer['content'] = 'half'", shows()),
        Run(
            "answer['content'] = 'whole'; answer['ready'] = True",
            shows(answers=(("answer", "whole", "whole"),)),
        ),
    ),
    _answer(
        "several answers come in their order",
        Run("_ = FINAL(1)\n_ = FINAL(2)", shows(answers=(("FINAL", "1", 1), ("FINAL", "2", 2)))),
    ),
    _answer(
        "an answer stands when the cell fails afterwards",
        Run(
            "FINAL('given')\n1 / 0",
            raises(
                "ZeroDivisionError", "division by zero", 2, answers=(("FINAL", "given", "given"),)
            ),
        ),
    ),
    _answer(
        "a value that is no JSON is answered by its text",
        Run("_ = FINAL(1 + 2j)", shows(answers=(("FINAL", "(1+2j)", None),))),
    ),
    _answer("printed text is no answer", Run("print('FINAL(42)')", shows(stdout="FINAL(42)\n"))),
    _answer(
        "a form that the cell itself prints is one where that is asked for",
        Run("print('FINAL(42)')", shows(stdout="FINAL(42)\n", answers=(("printed", "42", "42"),))),
        compatible=True,
    ),
    _answer(
        "a document that is printed never answers",
        Run(
            "text = 'see FINAL(42)'\nprint(text)\nprint('FINAL' + '(42)' if False else text)",
            shows(stdout="see FINAL(42)\n" * 2),
        ),
        compatible=True,
    ),
    Check(
        "names of answers are not there unless asked for",
        "answers",
        (Run("'FINAL' in globals()", shows("False")),),
    ),
)
