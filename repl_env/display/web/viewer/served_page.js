// The viewer on a server of `repl-env view`.

import { startViewer } from "./app.js";
import { ServedSource } from "./data/served_source.js";

const KEY = "repl-env-token";

// The token comes once, in the fragment, and leaves the address bar at once. Other tabs of this origin
// find it in the browser; a server that was started anew has another one.
function readToken() {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found !== null) {
    localStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", "#/");
  }
  return localStorage.getItem(KEY) ?? "";
}

startViewer(new ServedSource(readToken()));
