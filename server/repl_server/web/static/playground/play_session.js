// One session as the page shows it: its cells, variables, episode and connection. All fields that
// components read are signals.

import { signal } from "../vendor/signals-core.module.js";
import { Connection } from "./connection.js";

const LIVE_CHARACTERS = 100_000; // of running output; the whole output comes with the result

// Kinds of failures after which the session may have returned to an earlier state by itself, so that
// an undo could take back another cell than the last one.
const REVERTING = new Set(["timeout", "memory", "cpu", "processes", "output", "crash", "sandbox", "llm"]);
const LOST = new Set(["EPISODE_ABORTED", "NOT_RESET"]);

let cellCount = 0;

function variablesAfter(before, observation) {
  const changed = new Map((observation.result.changes ?? []).map((each) => [each.name, each]));
  const names = new Set([...observation.available_variables, ...changed.keys()]);
  const after = new Map();
  for (const name of names) {
    const change = changed.get(name);
    if (change?.kind === "deleted") continue;
    after.set(name, change ?? { ...before.get(name), name, kind: "kept" });
  }
  return after;
}

export class PlaySession {
  constructor(title, { token = null, from = null } = {}) {
    this.title = title;
    this.connection = new Connection(token);
    this.cells = signal(from === null ? [] : from.cells.value.filter((cell) => cell.observation !== null));
    this.variables = signal(from?.variables.value ?? new Map());
    this.last = signal(from?.last.value ?? null); // the latest observation, with reward and done
    this.task = signal(from?.task.value ?? null);
    this.busy = signal(null); // what runs: "start", "cell", "undo", "branch"
    this.undoable = signal(0);
    this.notice = signal(null); // {kind: "error" or "note", text}
    this.recording = from === null ? null : { ...from.recording, steps: [...from.recording.steps] };
    this.draft = signal(""); // code in the editor
    this.branches = 0;
    this.lost = signal(false); // the server has no episode any more
  }

  // Opens the session, unless it is open: a page that nobody uses takes no session.
  async open() {
    if (this.connection.state.value === "closed") this.connection = new Connection();
    if (this.connection.state.value === "unopened") await this.connection.open();
  }

  get token() {
    return this.connection.token;
  }

  // Starts an episode with the arguments that `reset` resolves to. `task`: {prompt, scored}.
  async start(reset, task) {
    await this.exclusively("start", async () => {
      await this.open();
      const given = await reset();
      const reply = await this.connection.request("reset", given);
      this.task.value = task;
      this.lost.value = false;
      this.cells.value = [];
      this.undoable.value = 0;
      this.recording = { reset: given, first: this.observed(reply, new Map()), steps: [] };
    });
  }

  // Starts another episode in the same session, with its variables.
  async followUp(data, task) {
    await this.exclusively("start", async () => {
      const reply = await this.connection.request("follow_up", await data());
      this.task.value = task;
      this.recording = { reset: null, first: this.observed(reply, this.variables.value), steps: [] };
      this.cells.value = [...this.cells.value, { id: `task-${cellCount += 1}`, kind: "task", task, observation: {} }];
    });
  }

  async run(code) {
    await this.exclusively("cell", async () => {
      const cell = { id: `cell-${cellCount += 1}`, kind: "cell", code, live: signal([]), observation: null, error: null, before: this.variables.value };
      this.cells.value = [...this.cells.value, cell];
      this.running = this.connection.nextId();
      let done;
      try {
        const reply = await this.connection.request("step", { code }, { id: this.running, onOutput: (piece) => addLive(cell, piece) });
        done = { ...cell, observation: this.observed(reply, cell.before) };
        this.recording.steps.push({ id: cell.id, code, observation: done.observation });
        const reverted = REVERTING.has(done.observation.metadata.error_kind);
        this.undoable.value = reverted ? 0 : Math.min(this.connection.facts.limits.undo ?? 0, this.undoable.value + 1);
      } catch (error) {
        done = { ...cell, error };
        this.undoable.value = 0;
        this.lost.value = LOST.has(error.code);
      }
      this.cells.value = this.cells.value.map((each) => (each.id === cell.id ? done : each));
    });
  }

  async interrupt() {
    await this.connection.request("cancel", { request: this.running }).catch(() => {});
  }

  // Undoes the last cell; resolves to its code.
  async undo() {
    const cell = this.cells.value.findLast((each) => each.kind === "cell" && each.observation !== null && !each.undone);
    if (cell === undefined || this.undoable.value === 0) return null;
    return this.exclusively("undo", async () => {
      const { lost, names } = await this.connection.request("rollback", { cells: 1 });
      const known = cell.before;
      this.variables.value = new Map(names.map((name) => [name, { ...known.get(name), name, kind: "kept" }]));
      this.undoable.value -= 1;
      this.cells.value = this.cells.value.map((each) => (each.id === cell.id ? { ...each, undone: true } : each));
      this.recording.steps = this.recording.steps.filter((each) => each.id !== cell.id);
      if (lost.length > 0) this.notice.value = { kind: "note", text: `Not brought back: ${lost.join("; ")}` };
      return cell.code;
    });
  }

  // Resolves to a session that is a copy of this one.
  async branch() {
    return this.exclusively("branch", async () => {
      const { token } = await this.connection.request("branch", {});
      this.branches += 1;
      const other = new PlaySession(`${this.title}.${this.branches}`, { token, from: this });
      await other.open();
      other.undoable.value = 0;
      return other;
    });
  }

  close() {
    this.connection.close();
  }

  observed(reply, before) {
    const observation = { ...reply.observation, reward: reply.reward, done: reply.done };
    this.variables.value = variablesAfter(before, observation);
    this.last.value = observation;
    return observation;
  }

  async exclusively(what, work) {
    if (this.busy.value !== null) return null;
    this.busy.value = what;
    this.notice.value = null;
    try {
      return await work();
    } catch (error) {
      this.notice.value = { kind: "error", text: error.message };
      return null;
    } finally {
      this.busy.value = null;
    }
  }
}

function addLive(cell, { stream, text, dropped = 0 }) {
  const pieces = [...cell.live.value];
  const last = pieces[pieces.length - 1];
  const told = dropped > 0 ? `${text}\n[${dropped} characters come with the result]\n` : text;
  if (last !== undefined && last.stream === stream) {
    pieces[pieces.length - 1] = { stream, text: (last.text + told).slice(-LIVE_CHARACTERS) };
  } else {
    pieces.push({ stream, text: told.slice(-LIVE_CHARACTERS) });
  }
  cell.live.value = pieces.slice(-200);
}
