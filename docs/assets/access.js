// For people who use a keyboard or a screen reader: wide tables are tab stops, which arrow keys scroll; the
// buttons of each code block are no landmark of the page. The theme makes both after the page is loaded.
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", mend);
mend();

function mend() {
  for (const nav of document.querySelectorAll("nav.md-code__nav")) {
    const buttons = document.createElement("div");
    buttons.className = nav.className;
    buttons.append(...nav.childNodes);
    nav.replaceWith(buttons);
  }
  for (const table of document.querySelectorAll(".md-typeset__table")) {
    if (table.scrollWidth > table.clientWidth) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
  }
}
