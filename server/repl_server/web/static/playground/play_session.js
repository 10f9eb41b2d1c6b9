// One session as the page shows it: its cells, variables, episode and connection. All fields that
// components read are signals. The browser keeps the work: the beginning of the episode and its cells.

import { signal } from "../vendor/signals-core.module.js";
import { Connection } from "./connection.js";
import { claim, keep, release, removeOldest } from "./kept_work.js";
import { uploadContext } from "./server_api.js";

const LIVE_CHARACTERS = 100_000; // of running output; the whole output comes with the result
const LIVE_KEPT_MS = 1000; // between two times that running output is kept
const LARGEST_KEPT = 64 << 20; // bytes of an uploaded context that the browser keeps

// Kinds of failures after which the session may have returned to an earlier state by itself, so that
// an undo could take back another cell than the last one.
const REVERTING = new Set(["timeout", "memory", "cpu", "processes", "output", "crash", "sandbox", "llm"]);
const LOST = new Set(["EPISODE_ABORTED", "NOT_RESET"]);
const NO_EPISODE = "The server has lost this episode.";
const DONE = "Not run: the episode has ended.";

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

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

function unfinished({ kind, status }) {
  return kind === "cell" && (status === "queued" || status === "running");
}

// The cells of a database and `coming`, those of the tab's storage, which are newer.
export function merged(kept, coming) {
  const ended = new Set(kept.filter((each) => !unfinished(each)).map(({ id }) => id));
  const newer = coming.filter(({ id }) => !ended.has(id));
  const runs = newer.some(({ status }) => status === "running");
  const older = kept.filter(({ id }) => !newer.some((each) => each.id === id)).map((each) => {
    // Its result did not reach the database; the server repeats that of its last request.
    if (!unfinished(each) || (each.status === "running" && !runs)) return each;
    return { ...each, status: "no result", error: { message: "The page was loaded again before the result was kept." } };
  });
  return [...older, ...newer].sort((one, other) => one.order - other.order);
}

function failed(cell) {
  return cell.observation === null || !cell.observation.result.success;
}

export class PlaySession {
  constructor(title) {
    this.title = title;
    this.connection = new Connection();
    this.work = signal(null); // {id, reset, uploaded, first, task}: what the episode began with
    this.cells = signal([]); // cells by their `status`: "queued", "running", "done", "no result", "skipped"; and tasks
    this.variables = signal(new Map());
    this.last = signal(null); // the latest observation, with reward and done
    this.task = signal(null);
    this.busy = signal(null); // what runs: "start", "cell", "undo", "branch"
    this.unsaved = signal(null); // the last cell, while it ran, until its result is kept
    this.undoing = signal(null); // the id of the request that undoes a cell, which a reloaded page repeats
    this.undoable = signal(0);
    this.notice = signal(null); // {kind: "error" or "note", text}
    this.draft = signal(""); // code in the editor
    this.edited = signal(0); // counts the times that the visitor asked for code to edit
    this.lost = signal(false); // the server has no episode any more
    this.trouble = signal(null); // why the browser does not keep the work
    this.unkept = new Set(); // ids of cells that changed since they were kept
  }

  get token() {
    return this.connection.token;
  }

  // The episode since its last task, as a recording has it.
  get recording() {
    const cells = this.cells.value;
    const begin = cells.findLastIndex((each) => each.kind === "task" && each.first !== null);
    const first = begin < 0 ? this.work.value.first : cells[begin].first;
    const steps = cells.slice(begin + 1).filter((each) => each.kind === "cell" && each.observation !== null && !each.undone);
    const reset = begin < 0 ? this.work.value.reset : { ...this.work.value.reset, ...this.cells.value[begin].given };
    return { reset, first, steps };
  }

  // Starts an episode with what `given` resolves to: {reset, uploaded}, the arguments and the bytes
  // of a context that was uploaded. `task`: {prompt, scored}.
  async start(given, task) {
    await this.exclusively("start", () => this.begin(given, task));
  }

  // As `start`; raises errors.
  async begin(given, task) {
    if (this.connection.state.value === "closed") this.connection.state.value = "unopened";
    if (this.connection.state.value === "unopened") await this.connection.open();
    const { reset, uploaded } = await given();
    const reply = await this.connection.request("reset", reset);
    if (this.work.value !== null) release(this.work.value.id);
    this.cells.value = [];
    this.unkept.clear();
    this.lost.value = false;
    this.unsaved.value = null;
    this.undoable.value = 0;
    this.task.value = task;
    this.work.value = { id: newId(), reset, uploaded, task, first: this.observed(reply, new Map()) };
    claim(this.work.value.id);
    this.keepSoon();
    removeOldest();
  }

  // Starts another episode in the same session, with its variables.
  async followUp(data, task) {
    await this.exclusively("start", async () => {
      await this.taskItem({ ...this.newItem("task"), task, given: (await data()).reset, status: "running", first: null });
    });
  }

  async taskItem(item) {
    const reply = await this.connection.request("follow_up", item.given);
    this.task.value = item.task;
    this.put({ ...item, status: "done", first: this.observed(reply, this.variables.value) });
  }

  // Runs code once all earlier cells have ended. `mayFail`: a failure does not stop later cells.
  run(code, { mayFail = false } = {}) {
    this.put({ ...this.newItem("cell"), code, mayFail, status: "queued", observation: null, error: null, live: signal([]) });
    this.next();
  }

  // Begins the next cell or task of the queue, unless something runs.
  next() {
    const item = this.cells.value.find((each) => each.status === "queued");
    const state = this.connection.state.value;
    if (item === undefined || this.busy.value !== null || (state !== "open" && state !== "reconnecting")) return;
    if (this.last.value.done && item.kind === "cell") this.put({ ...item, status: "skipped", error: { message: DONE } });
    else if (item.kind === "task") this.exclusively("start", () => this.taskItem(item));
    else this.step(item);
    this.next();
  }

  // Runs a cell; after a reload with the id of its request, which then runs once.
  async step(cell, id = this.connection.nextId()) {
    await this.exclusively("cell", async () => {
      const running = { ...cell, status: "running", request: id };
      this.put(running);
      this.unsaved.value = this.plain(running);
      const known = this.variables.value;
      let done;
      try {
        const reply = await this.patiently("step", { code: cell.code }, { id, onOutput: (piece) => this.addLive(running, piece) });
        done = { ...running, status: "done", observation: this.observed(reply, known) };
        const reverted = REVERTING.has(done.observation.metadata.error_kind);
        this.undoable.value = reverted ? 0 : Math.min(this.connection.facts?.limits.undo ?? 0, this.undoable.value + 1);
      } catch (error) {
        done = { ...running, status: "no result", error: { message: error.message } };
        this.undoable.value = 0;
        this.lost.value = LOST.has(error.code);
      }
      this.put(done);
      if (failed(done) && !done.mayFail && this.connection.state.value !== "closed") this.skip(`Not run: cell ${this.numberOf(done)} failed.`);
    });
  }

  // A request that waits where the server limits requests by time.
  async patiently(type, data, options) {
    for (;;) {
      try {
        return await this.connection.request(type, data, options);
      } catch (error) {
        if (error.code !== "RATE_LIMITED") throw error;
        await new Promise((resolve) => { setTimeout(resolve, (error.retryAfter ?? 1) * 1000); });
      }
    }
  }

  async interrupt() {
    const running = this.cells.value.find(({ kind, status }) => kind === "cell" && status === "running");
    if (running !== undefined) await this.connection.request("cancel", { request: running.request }).catch(() => {});
  }

  // Queued cells do not run; each keeps its code.
  skip(message) {
    for (const each of this.cells.value.filter(({ status }) => status === "queued")) {
      if (each.kind === "cell") this.put({ ...each, status: "skipped", error: { message } });
    }
  }

  // Runs the cells that were skipped, after all others.
  runSkipped() {
    for (const { code, mayFail } of this.takeBack(({ status }) => status === "skipped")) this.run(code, { mayFail });
  }

  // Shows code in the editor, which gets the focus.
  edit(code) {
    this.draft.value = code;
    this.edited.value += 1;
  }

  // Removes the cells for which `wanted` holds from the page, and returns them.
  takeBack(wanted) {
    const taken = this.cells.value.filter(wanted);
    for (const each of taken) this.unkept.add(each.id);
    this.cells.value = this.cells.value.filter((each) => !taken.includes(each));
    this.keepSoon();
    return taken;
  }

  // Undoes the last cell; resolves to its code.
  async undo(id = this.connection.nextId()) {
    const cell = this.cells.value.findLast((each) => each.kind === "cell" && each.observation !== null && !each.undone);
    if (cell === undefined || this.undoable.value === 0) return null;
    return this.exclusively("undo", async () => {
      this.undoing.value = id;
      const { lost, names } = await this.connection.request("rollback", { cells: 1 }, { id });
      const known = this.variablesBefore(cell);
      this.variables.value = new Map(names.map((name) => [name, { ...known.get(name), name, kind: "kept" }]));
      this.undoable.value -= 1;
      this.put({ ...cell, undone: true });
      if (lost.length > 0) this.notice.value = { kind: "note", text: `Not brought back: ${lost.join("; ")}` };
      return cell.code;
    });
  }

  // Resolves to a session that is a copy of this one.
  async branch(title) {
    return this.exclusively("branch", async () => {
      const { token } = await this.connection.request("branch", {});
      const other = this.copy(title);
      await other.connection.open(token);
      return other;
    });
  }

  // Resolves to a new session that has begun as this one did, and has its cells in the queue.
  async again(title) {
    return this.exclusively("start", async () => {
      const other = new PlaySession(title);
      const { reset, uploaded, task } = this.work.value;
      if (this.lost.value) this.connection.close(NO_EPISODE); // which would count as a session of the visitor's
      await other.begin(async () => {
        if (reset.uploads !== undefined && uploaded === null) {
          throw new Error("The browser did not keep the context, which is too large. Start a session with its file, then run the cells one by one.");
        }
        if (uploaded !== null) await uploadContext(await uploaded.arrayBuffer());
        return { reset, uploaded };
      }, task);
      other.draft.value = this.draft.value;
      for (const each of this.cells.value.filter(({ undone }) => !undone)) {
        if (each.kind === "cell") other.run(each.code, { mayFail: failed(each) });
        else other.put({ ...other.newItem("task"), task: each.task, given: each.given, status: "queued", first: null });
      }
      return other;
    });
  }

  // Goes on with the session of `token`, and repeats the request that had no reply. Where the server
  // does not have the session, the cells stay, and the connection tells why it is closed.
  async resume(token) {
    const undoing = this.undoing.value;
    await this.connection.open(token).catch(() => {});
    if (this.connection.state.value === "closed") {
      this.stopped();
      return;
    }
    const running = this.cells.value.findLast(({ kind, status }) => kind === "cell" && status === "running");
    if (undoing !== null) await this.undo(undoing);
    else if (running !== undefined) await this.step(running, running.request);
    this.next();
  }

  // Shows the cells of a session that this page does not have.
  end(why) {
    this.connection.token = null;
    this.connection.end(why);
    this.stopped();
  }

  // The work of another page as one of this page's own, so that neither changes the other's.
  becomeCopy() {
    this.work.value = { ...this.work.value, id: newId() };
    claim(this.work.value.id);
    this.cells.value.forEach(({ id }) => this.unkept.add(id));
    this.keepSoon();
  }

  // As `resume`, after another page had the session.
  async takeOver() {
    await this.resume(this.token);
    if (this.connection.state.value === "closed") return;
    const reply = await this.connection.request("variables").catch(() => ({ names: [...this.variables.value.keys()] }));
    this.variables.value = new Map(reply.names.map((name) => [name, { name, kind: "kept" }]));
    this.undoable.value = 0;
    this.notice.value = { kind: "note", text: "Cells that the other page ran are not on this page." };
  }

  // The session is gone: cells that wait for it have no result.
  stopped() {
    this.undoing.value = null;
    for (const each of this.cells.value.filter(({ status }) => status === "running" && each.kind === "cell")) {
      this.put({ ...each, status: "no result", error: { message: `The result did not arrive. ${this.connection.ending}` } });
    }
    this.skip("Not run: the session had ended.");
  }

  close() {
    this.connection.close();
    if (this.work.value !== null) release(this.work.value.id);
  }

  // ── keeping the work ─────────────────────────────────────────────────────────────────────────

  // Shows work that was kept.
  restore({ id, reset, uploaded, first, began, task, undoable, draft }, cells) {
    this.work.value = { id, reset, uploaded, first, task: began };
    this.cells.value = cells.map((each) => (each.kind === "cell" ? { ...each, live: signal(each.live ?? []) } : each));
    this.task.value = task;
    this.undoable.value = undoable;
    this.draft.value = draft;
    this.variables.value = this.variablesBefore(null);
    this.last.value = cells.reduce((last, each) => each.observation ?? each.first ?? last, first);
  }

  // A session with this one's finished cells, as work of its own.
  copy(title) {
    const other = new PlaySession(title);
    const cells = this.cells.value.filter(({ status }) => status === "done").map((each) => this.plain(each));
    other.restore({ ...this.record(), undoable: 0, draft: "" }, cells);
    other.becomeCopy();
    return other;
  }

  // What the storage of the tab has of this session; null without an episode. The storage takes the
  // cells to come at once, while the database may lose its last changes when the page is left.
  entry() {
    if (this.work.value === null) return null;
    const ended = this.connection.state.value === "closed" || this.busy.value === "start";
    const coming = this.cells.value.filter(unfinished).map((each) => this.plain(each));
    const unsaved = this.unsaved.value;
    if (unsaved !== null && !coming.some(({ id }) => id === unsaved.id)) coming.unshift(unsaved);
    return { work: this.work.value.id, title: this.title, token: ended ? null : this.token,
      ending: this.connection.ending, draft: this.draft.value, undoing: this.undoing.value, coming };
  }

  // The page may be gone after this: the output of a running cell is kept now.
  leave() {
    this.cells.value = [...this.cells.value];
    this.keepSoon();
  }

  record() {
    const { uploaded, task, ...rest } = this.work.value;
    return { ...rest, began: task, task: this.task.value, title: this.title, changed: Date.now(), undoable: this.undoable.value,
      draft: this.draft.value, count: this.cells.value.filter(({ kind }) => kind === "cell").length,
      uploaded: uploaded !== null && uploaded.size > LARGEST_KEPT ? null : uploaded };
  }

  // A cell as the browser stores it.
  plain({ live, ...rest }) {
    return live === undefined || rest.status === "done" ? rest : { ...rest, live: live.peek() };
  }

  keepSoon() {
    if (this.keeping) return;
    this.keeping = true;
    queueMicrotask(async () => {
      this.keeping = false;
      const work = this.work.value;
      if (work === null) return;
      const changed = [...this.unkept];
      this.unkept.clear();
      const cells = this.cells.value.filter(({ id }) => changed.includes(id)).map((each) => this.plain(each));
      const gone = changed.filter((id) => !this.cells.value.some((each) => each.id === id));
      this.trouble.value = await keep(this.record(), cells, gone);
      const saved = cells.find(({ id }) => id === this.unsaved.value?.id);
      if (this.trouble.value === null && saved !== undefined && !unfinished(saved)) this.unsaved.value = null;
      if (this.trouble.value !== null && this.work.value === work) changed.forEach((id) => this.unkept.add(id));
    });
  }

  // ── its parts ────────────────────────────────────────────────────────────────────────────────

  newItem(kind) {
    return { id: newId(), kind, order: 1 + Math.max(0, ...this.cells.value.map(({ order }) => order)) };
  }

  // Adds an item, or replaces the one with its id.
  put(item) {
    const known = this.cells.value.some(({ id }) => id === item.id);
    this.cells.value = known ? this.cells.value.map((each) => (each.id === item.id ? item : each)) : [...this.cells.value, item];
    this.unkept.add(item.id);
    this.keepSoon();
  }

  numberOf(cell) {
    return 1 + this.cells.value.filter(({ kind }) => kind === "cell").findIndex(({ id }) => id === cell.id);
  }

  // The variables before a cell ran; with null, those after the last.
  variablesBefore(cell) {
    let known = variablesAfter(new Map(), this.work.value.first);
    for (const each of this.cells.value) {
      if (each.id === cell?.id) break;
      const observation = each.observation ?? each.first ?? null;
      if (observation !== null && !each.undone) known = variablesAfter(known, observation);
    }
    return known;
  }

  observed(reply, before) {
    const observation = { ...reply.observation, reward: reply.reward, done: reply.done };
    this.variables.value = variablesAfter(before, observation);
    this.last.value = observation;
    return observation;
  }

  addLive(cell, piece) {
    addOutput(cell.live, piece);
    this.liveTimer ??= setTimeout(() => {
      this.liveTimer = null;
      this.unkept.add(cell.id);
      this.keepSoon();
    }, LIVE_KEPT_MS);
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
      this.undoing.value = null;
      this.busy.value = null;
      if (this.connection.state.value === "closed") this.stopped();
      this.next();
    }
  }
}

function addOutput(live, { stream, text, dropped = 0 }) {
  const pieces = [...live.value];
  const last = pieces[pieces.length - 1];
  const told = dropped > 0 ? `${text}\n[${dropped} characters come with the result]\n` : text;
  if (last !== undefined && last.stream === stream) {
    pieces[pieces.length - 1] = { stream, text: (last.text + told).slice(-LIVE_CHARACTERS) };
  } else {
    pieces.push({ stream, text: told.slice(-LIVE_CHARACTERS) });
  }
  live.value = pieces.slice(-200);
}
