// The viewer in one file: the data is in the page.

import { startViewer } from "./app.js";
import { EmbeddedSource } from "./data/embedded_source.js";

const data = JSON.parse(document.getElementById("data").textContent);
if (!location.hash.startsWith("#/")) location.replace(data.start);
startViewer(new EmbeddedSource(data));
