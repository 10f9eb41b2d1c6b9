"""The playground as a visitor uses it."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.waiting import PATIENCE

expect.set_options(timeout=PATIENCE * 1000)


class Playground:
    """The playground of the server at `url`, in `page`."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{url}/")

    @property
    def editor(self) -> Locator:
        """The editor."""
        return self.page.get_by_label("Python code")

    def button(self, name: str) -> Locator:
        """A button by its whole name."""
        return self.page.get_by_role("button", name=name, exact=True)

    def start(self, context: str = "", task: str = "", expected: str = "") -> None:
        """Fill in the form and start a session."""
        for label, text in (("Context –", context), ("Task", task), ("Expected answer", expected)):
            if text:
                self.page.get_by_label(label).fill(text)
        self.button("Start").click()
        expect(self.editor).to_be_visible()

    def begin(self, code: str) -> None:
        """Run code, without waiting for the end."""
        self.editor.fill(code)
        self.editor.press("Shift+Enter")

    def run(self, code: str) -> Locator:
        """Run code; the cell, once it has ended."""
        number = self.page.locator(".cell").count() + 1
        self.begin(code)
        cell = self.cell(number)
        expect(cell.get_by_text("running", exact=True)).to_have_count(0)
        return cell

    def cell(self, number: int) -> Locator:
        """A cell by its number, from 1."""
        return self.page.get_by_role("article", name=f"Cell {number}", exact=True)

    def names(self) -> list[str]:
        """The variables that the page lists."""
        return list(map(str, self.page.locator(".variables .name").all_inner_texts()))
