"""Printed forms of an answer: recognised only where a cell writes the text itself."""

from __future__ import annotations

import builtins

import pytest

from repl_sandbox.worker.answers import HOOK

# ── printed forms ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def forms(run):
    """Run a cell and return the printed forms that were recognised."""

    def collect(source: str) -> list[tuple[str, bool]]:
        seen: list[tuple[str, bool]] = []
        result = run(source, printed=lambda text, last: seen.append((text, last)))
        assert result.error is None, result.error.traceback
        return seen

    return collect


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("print('FINAL(42)')", [("FINAL(42)", False)]),
        ("n = 4\nprint(f'FINAL({n})')", [("FINAL(4)", False)]),
        ("n = 4\nprint('FINAL(' + str(n) + ')')", [("FINAL(4)", False)]),
        ("print('FINAL(%d)' % 4)", [("FINAL(4)", False)]),
        ("print('FINAL({})'.format(4))", [("FINAL(4)", False)]),
        ("print('FINAL(' 'x' + ')')", [("FINAL(x)", False)]),
        ("print('FINAL_VAR(x)')", [("FINAL_VAR(x)", False)]),
        ("print('so:', 'FINAL(1)', sep='\\n')", [("FINAL(1)", False)]),
        ("def f():\n    print('FINAL(1)')\nf()\nf()", [("FINAL(1)", False)] * 2),
        ("if True:\n    print('FINAL(1)')", [("FINAL(1)", False)]),
        ("'FINAL(42)'", [("FINAL(42)", True)]),
        ("n = 4\nf'FINAL({n})'", [("FINAL(4)", True)]),
        ("x = 'FINAL(1)'", []),
        ("'FINAL(1)'\nx = 1", []),
        ("context = 'FINAL(1)'\nprint(context)", []),
        ("context = 'FINAL(1)'\n# FINAL step\nprint(context)", []),
        ("context = 'FINAL(1)'\nprint(f'{context}')  # FINAL(", []),
        ("context = 'FINAL(1)'\nprint('' + context)", []),
        ("context = 'FINAL(1)'\ncontext", []),
        ("print(' FINAL(1)')", [(" FINAL(1)", False)]),
        ("print('The FINAL(1)')", []),
        ("print('x', end='FINAL(1)')", []),
        ("print(*['FINAL(1)'])", []),
        ("import sys\nsys.stdout.write('FINAL(1)')", []),
        ("print('FINAL(1)'.lower())", []),
        ("print(b'FINAL(1)')", []),
        ("print('FINAL(1)' * 2)", []),
    ],
)
def test_only_text_that_the_cell_itself_writes_is_a_printed_form(forms, source, seen):
    assert forms(source) == seen


def test_a_printed_form_is_evaluated_once_and_unchanged(run, forms, capsys):
    forms("calls = []\ndef f():\n    calls.append(1)\n    return 5\nprint(f'FINAL({f()})')")

    assert run("calls").value == "[1]"
    assert capsys.readouterr().out == "FINAL(5)\n"


def test_the_hook_is_no_variable_and_no_builtin(run, forms):
    forms("print('FINAL(1)')")
    assert list(run.namespace.variables()) == []
    assert HOOK not in vars(builtins)
    assert all(map(str.isidentifier, vars(builtins)))


def test_without_a_callback_the_cell_runs_as_it_is(run, capsys):
    assert run("def f(): print('FINAL(1)')\nf()\n'FINAL(2)'").value == "'FINAL(2)'"
    assert capsys.readouterr().out == "FINAL(1)\n"


def test_functions_with_printed_forms_still_run_when_they_are_not_looked_for(run, capsys):
    run("def f(): print('FINAL(1)')", printed=lambda text, last: None)
    assert run("f()").error is None
    assert capsys.readouterr().out == "FINAL(1)\n"


def test_an_error_inside_a_printed_form_points_at_its_place(run):
    source = "x = 1\nprint(f'FINAL({1 / 0})')"
    plain = run(source).error.traceback.replace("cell 1", "cell N")
    rewritten = run(source, printed=lambda text, last: None).error.traceback

    assert rewritten.replace("cell 2", "cell N") == plain


def test_a_refused_printed_form_raises_in_the_cell(run):
    def refuse(text: str, last: bool) -> None:
        raise ValueError("not a number")

    error = run("x = 1\nprint('FINAL(x)')", printed=refuse).error

    assert (error.type, error.message, error.line) == ("ValueError", "not a number", 2)
