// The switch between the schemes: as the system, light, dark. The choice stays in this browser.

import { html, useState } from "../vendor/preact-htm.module.js";

const NEXT = { system: "light", light: "dark", dark: "system" };
const MARKS = { system: "◐", light: "☀", dark: "☾" };
const KEY = "repl-env-theme";

function storedTheme() {
  try {
    const stored = localStorage.getItem(KEY);
    return stored in NEXT ? stored : "system";
  } catch {
    return "system"; // a page from disk may have no storage
  }
}

function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function startTheme() {
  applyTheme(storedTheme());
}

export function ThemeSwitch() {
  const [theme, setTheme] = useState(storedTheme);
  const change = () => {
    const next = NEXT[theme];
    applyTheme(next);
    setTheme(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // as above: the choice lasts until the page is left
    }
  };
  return html`<button type="button" class="quiet" onClick=${change}
    title=${`Colours: ${theme}`} aria-label=${`Colours: ${theme}. Change to ${NEXT[theme]}`}>
    <span aria-hidden="true">${MARKS[theme]}</span></button>`;
}
