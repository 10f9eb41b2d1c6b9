// The episode as a recording that `repl_env.env.recordings.Recording.from_json` reads. Cells that
// were undone are left out, so that a replay ends in the same state.

import { save } from "./server_api.js";

function wire({ reward, done, ...rest }) {
  return { ...rest, reward, done };
}

export function recordingText({ reset, first, steps }) {
  return JSON.stringify({
    reset: reset ?? {},
    actions: steps.map(({ code }) => ({ code })),
    observations: [first, ...steps.map(({ observation }) => observation)].map(wire),
    timeouts: steps.map(() => null),
  });
}

export function downloadRecording(session) {
  const blob = new Blob([recordingText(session.recording)], { type: "application/json" });
  save(blob, `episode-${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.json`);
}
