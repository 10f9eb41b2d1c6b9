"""axe-core in a page: faults for people without a mouse, without sight, or who need contrast."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from playwright.sync_api import Page

SCRIPT = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# All rules that are on by themselves, best practices too; `target-size` is of WCAG 2.2 AA and not.
# Frames have the HTML of sessions, which is not ours; styles are all of the page's own origin.
RUN = """async (without) => {
  const rules = Object.fromEntries(without.map((id) => [id, { enabled: false }]));
  rules["target-size"] ??= { enabled: true };
  const options = { iframes: false, preload: false, rules };
  const { violations } = await axe.run(document, options);
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ target, html }) => `${id}: ${help}: ${target.join(" ")} ${html.slice(0, 200)}`));
}"""


def violations(page: Page, without: Sequence[str] = ()) -> list[str]:
    """Return a line for each element of the page that breaks a rule not in `without`."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT)
    found: list[str] = page.evaluate(RUN, list(without))
    return found


# A change is drawn, and drawn anew by what observes it; colours are at the end of their transition.
DRAWN = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  for (const each of document.getAnimations()) if (each instanceof CSSTransition) each.finish();
}"""
WIDTHS = (390, 1280)


class Audit:
    """The violations of many states of pages, reported together at the end."""

    def __init__(self) -> None:
        self._states_of: dict[str, list[str]] = {}
        self.states = 0

    def check(self, state: str, page: Page) -> None:
        """Look at the page in this state: narrow and wide, dark and light."""
        self.states += 1
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 820})
            for scheme in ("dark", "light"):
                page.emulate_media(color_scheme=scheme)
                page.evaluate(DRAWN)
                for line in violations(page):
                    self._states_of.setdefault(line, []).append(f"{state} ({width}, {scheme})")

    def report(self) -> str:
        """Return each violation with the states that have it; "" where there is none."""
        return "\n".join(f"{line}\n    in {states}" for line, states in self._states_of.items())
