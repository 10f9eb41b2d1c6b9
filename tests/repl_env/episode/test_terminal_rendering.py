"""Output as a terminal shows it at the end, and what stays as it was written."""

import io

import pytest
from tqdm import tqdm

from repl_env.episode.observations import as_shown, failure, render
from repl_sandbox.types import ErrorInfo, Finished, Raised


def rendered(outcome, limit=8192):
    return render(outcome, failure(outcome), cell=3, limit=limit)


BARS = "".join(f"\r{n:4d}/3000 " + "#" * 40 for n in range(3000))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain\ntext\n", "plain\ntext\n"),
        ("10%\r20%\r100%\n", "100%\n"),
        ("\r10%\r20%", "20%"),
        ("50%\r", "50%"),
        ("0\r1\r2\r\n", "2\n"),
        ("abcdef\rxy\n", "xycdef\n"),
        ("bar 1\r     \rdone\n", "done\n"),
        ("done 10\rdone 9 \nnext", "done 9\nnext"),
        # Line ends of other systems stay.
        ("a\r\nb\r\n", "a\r\nb\r\n"),
        ("a\r\r\nb", "a\r\r\nb"),
        ("a\r\n1%\r2%\nb\r\n", "a\r\n2%\nb\r\n"),
        # Backspaces, and the escape sequences of bars.
        ("|\b/\b-\b done", " done"),
        ("10%\b\b\b20%", "20%"),
        ("N\bNA\bA", "NA"),
        ("downloading\r\x1b[Kdone\n", "done\n"),
        ("downloading\x1b[2K\rdone\n", "done\n"),
        ("downloading\x1b[2K\x1b[1Gdone\n", "done\n"),
        ("a 1\nb 1\x1b[A\ra 2\nb 2\n", "a 2\nb 2\n"),
        ("a 1\n\rb 1\x1b[A\ra 2\n\rb 2\x1b[A\n\nend", "a 2\nb 2\nend"),
        ("a\nb\nc\x1b[2Fx\x1b[Ey", "x\ny\nc"),
        ("a\nb\nc\x1b[2A\r\x1b[Jend", "end"),
        ("a\r\x1b[32m 50%\x1b[0m\r\x1b[32m100%\x1b[0m\n", "100%\n"),
        ("\x1b[?25l1\r2\x1b[?25h", "2"),
        ("\x1b[01;31m\x1b[Kmatch\x1b[m\x1b[K\n", "match\n"),
        # Text without cursor movements keeps its colours, and its blanks.
        ("\x1b[31mred\x1b[0m \n", "\x1b[31mred\x1b[0m \n"),
        ("\x1b[31mred\x1b[0m \r\n1\b2\n", "\x1b[31mred\x1b[0m \r\n2\n"),
        # Nothing is hidden that nothing has replaced.
        ("result\n\x1b[2J\x1b[Hframe\n", "result\nframe\n"),
        ("top\x1b[99Aup\x1b[99Bdown", "topupdown"),
        ("x\x1b[999Cy", "xy"),
        ("\x1b[" + "9" * 20 + "Aa\rb", "b"),
        ("\x1bno escape\ra", "ano escape"),
    ],
)
def test_text_is_what_a_terminal_shows_at_the_end(written, shown):
    assert as_shown(written) == shown


def bars(write):
    file = io.StringIO()
    write(file)
    return as_shown(file.getvalue()).splitlines()


def test_of_progress_bars_the_last_states_are_shown_and_warnings_between_them():
    def nested(file):
        for row in tqdm(range(3), "outer", file=file, mininterval=0):
            for _ in tqdm(range(4), "inner", leave=False, file=file, mininterval=0):
                pass
            file.write(f"WARNING: row {row} is negative\n")

    lines = bars(nested)
    assert [line.partition("WARNING: ")[2] for line in lines[:3]] == [
        f"row {row} is negative" for row in range(3)
    ]
    assert "100%" in lines[3] and "inner" not in "".join(lines)

    def beside(file):
        with (
            tqdm(total=5, position=0, file=file, mininterval=0) as first,
            tqdm(total=9, position=1, file=file, mininterval=0) as second,
        ):
            for _ in range(5):
                first.update()
                second.update()

    assert {line.split("|")[2].split()[0] for line in bars(beside)[:2]} == {"5/5", "5/9"}


@pytest.mark.parametrize(
    "unit", ["a\r", "\r", "a\rb\n", "\x1b[A", "a\b", "\x1b[", "\x1b]", "\n\x1b[A\r\x1b[K", "\r\n"]
)
def test_of_very_many_cursor_moves_the_last_are_applied_in_bounded_memory(unit):
    written = unit * (2_000_000 // len(unit)) + "\n1\r2"

    assert as_shown(written).endswith("\n2")
    assert len(as_shown(written)) <= len(written)


def test_of_very_many_coloured_states_the_last_is_shown():
    assert as_shown("".join(f"\r\x1b[32m{n}\x1b[0m" for n in range(200_000))) == "199999"


def test_long_lines_with_many_cursor_moves_are_unchanged():
    written = "x" * 1_000_000 + "\b-" * 1_000
    assert as_shown(written) == written


def test_the_policy_sees_the_rendered_text_and_the_size_of_the_rest():
    warning = "WARNING:root:row 1500 has a negative price: -3\n"
    assert rendered(Finished(stderr=f"{BARS}{warning}{BARS}\n")).stderr == (
        f"2999/3000 {'#' * 40}{warning}2999/3000 {'#' * 40}\n"
    )
    assert not rendered(Finished(stdout=f"{BARS}\nend\n")).truncated

    long = rendered(Finished(stdout=f"{BARS}\n{'a' * 100}\n{'z' * 100}"), limit=100)
    assert long.truncated
    assert "(truncated, total 252 chars; the rest is in _out[3] as it was written)" in long.stdout
    assert long.stdout.startswith("2999/3000 ###") and long.stdout.endswith("\n" + "z" * 50)


def test_values_and_errors_are_on_separate_lines():
    assert rendered(Finished(stdout="1%\r2%\r", value="7")).stdout == "2%\n7\n"
    error = ErrorInfo("ValueError", "a\rb", "", 1)
    assert rendered(Raised(stderr="1%\r2%", error=error)).stderr == "2%\nValueError: a\rb"
