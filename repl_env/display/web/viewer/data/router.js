// The place in the viewer, which is the fragment of the address: a path, and a query for filters.

import { signal } from "../../vendor/signals-core.module.js";

function read() {
  // Another fragment is the token of a start, or nothing.
  const [path, query = ""] = location.hash.startsWith("#/") ? location.hash.slice(2).split("?") : [""];
  return { path: path.split("/").filter(Boolean).map(decodePart), query: new URLSearchParams(query) };
}

function decodePart(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

// An address in the viewer. Each part is escaped, so that a name from a file is never more than a name.
export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text === "" ? "" : `?${text}`}`;
}

// Another place, without a step in the history: filters, and the selection by keyboard.
export function replaceRoute(address) {
  history.replaceState(null, "", address);
  route.value = read();
}
