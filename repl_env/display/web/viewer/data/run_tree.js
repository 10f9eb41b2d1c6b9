// The tree of runs of a trajectory, from the rows of its events, which may come in pieces.
//
// run: { id, parent, started, ended, turns, cells, calls, children }
// turn: { run, number, row, cells }   cell: { number, started, ran, calls }
// call: { id, started, ended, child }
// `started`, `ended`, `row` and `ran` are rows of events, or null.

export class RunTree {
  rows = [];
  runs = new Map();
  roots = [];
  broken = 0;
  header = null;
  first = Infinity;
  latest = -Infinity;

  add(rows, generation) {
    for (const row of rows) {
      row.generation = generation;
      row.index = this.rows.length;
      this.rows.push(row);
      this.#take(row);
    }
  }

  // True if each root that began has ended.
  get complete() {
    return this.roots.length > 0 && this.roots.every((run) => run.ended !== null);
  }

  #take(row) {
    if (row.event === "header") {
      this.header = row;
      return;
    }
    if (row.event === "broken" || row.event === "other") {
      this.broken += row.event === "broken" ? 1 : 0;
      return;
    }
    if (row.time !== undefined) {
      this.first = Math.min(this.first, row.time - (row.event === "model_replied" ? row.seconds ?? 0 : 0));
      this.latest = Math.max(this.latest, row.time);
    }
    const run = this.#run(row.run);
    if (row.event === "run_started") run.started = row;
    else if (row.event === "run_ended") run.ended = row;
    else if (row.event === "model_replied") this.#turn(run, row.turn).row = row;
    else if (row.event === "cell_started") this.#cell(run, row).started = row;
    else if (row.event === "cell_ran") this.#cell(run, row).ran = row;
    else if (row.event === "call_started") this.#call(run, row).started = row;
    else if (row.event === "call_ended") this.#call(run, row).ended = row;
  }

  #run(id) {
    let run = this.runs.get(id);
    if (run !== undefined) return run;
    run = {
      id, parent: null, started: null, ended: null, turns: [], turnOf: new Map(), cells: new Map(), calls: new Map(),
      children: [],
    };
    this.runs.set(id, run);
    const dot = id.lastIndexOf(".");
    if (dot < 0) {
      this.roots.push(run);
    } else {
      run.parent = this.#run(id.slice(0, dot));
      run.parent.children.push(run);
      const call = run.parent.calls.get(id);
      if (call !== undefined) call.child = run;
    }
    return run;
  }

  #turn(run, number = 0) {
    let turn = run.turnOf.get(number);
    if (turn === undefined) {
      turn = { run, number, row: null, cells: [], place: run.turns.length };
      run.turnOf.set(number, turn);
      run.turns.push(turn);
    }
    return turn;
  }

  #cell(run, row) {
    const cell = this.#cellNumbered(run, row.cell);
    const turn = this.#turn(run, row.turn);
    if (!turn.cells.includes(cell)) turn.cells.push(cell);
    return cell;
  }

  #cellNumbered(run, number = 0) {
    let cell = run.cells.get(number);
    if (cell === undefined) {
      cell = { number, started: null, ran: null, calls: [] };
      run.cells.set(number, cell);
    }
    return cell;
  }

  #call(run, row) {
    const id = row.call ?? "";
    let call = run.calls.get(id);
    if (call === undefined) {
      call = { id, run, started: null, ended: null, child: this.runs.get(id) ?? null };
      run.calls.set(id, call);
      this.#cellNumbered(run, row.cell).calls.push(call);
    }
    return call;
  }
}

// The messages that the model of a turn was shown, the oldest first, without their texts:
// { role, length, row, place } where `place` is the number in the event's `added`, or "reply" for a reply
// of an earlier turn. From the last turn back: each kept the beginning of what was there before it.
export function promptOf(turn) {
  const pieces = [];
  let wanted = Infinity;
  for (let place = turn.place; place >= 0; place -= 1) {
    const each = turn.run.turns[place];
    if (each.row === null) continue;
    const { added = [], kept = 0 } = each.row;
    const own = kept + added.length;
    if (place !== turn.place && wanted > own) {
      pieces.push({ role: "assistant", length: null, row: each.row, place: "reply", turn: each.number });
    }
    const last = Math.min(added.length, Math.max(0, wanted - kept));
    for (let index = last - 1; index >= 0; index -= 1) {
      const [role, length] = added[index];
      pieces.push({ role, length, row: each.row, place: index, turn: each.number });
    }
    wanted = Math.min(wanted, kept);
    if (wanted === 0) break;
  }
  return pieces.reverse();
}

export function callsOf(turn) {
  return turn.cells.flatMap((cell) => cell.calls);
}

// Texts and numbers of a run for a line of a list.
export function runFacts(run) {
  const { started, ended } = run;
  return {
    question: started?.text ?? "",
    model: started?.model ?? "",
    reward: ended?.reward,
    stop: ended?.stop_reason ?? (started === null ? "" : "running"),
    error: ended?.error_kind ?? "",
    total: ended?.total ?? null,
    seconds: ended?.seconds,
    turns: run.turns.length,
    limit: started?.max_iterations,
  };
}
