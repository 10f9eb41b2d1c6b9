// A session over the WebSocket protocol `repl-env.v1` (docs/endpoint.md). A dropped socket is opened
// again and the session resumed; unanswered requests are repeated under their ids, so each of them
// runs once.

import { signal } from "../vendor/signals-core.module.js";
import { socketProtocols } from "./api_key.js";

// Close codes after which the session is gone, or belongs to another page.
const TAKEN = 4001;
const ENDINGS = new Map([
  [TAKEN, "Another page has taken over this session."],
  [4401, "The session has ended, because the server no longer accepts the API key."],
  [4404, "The server has ended this session."],
  [4408, "The session has ended, because it was idle for too long."],
  [4429, "The session has ended, because its processor time was used up."],
  [1012, "The session has ended, because the server was shut down."],
]);
const CLOSED = "The session was closed.";
const UNKNOWN = "The server does not have this session any more.";
// Refusals after which the same request may succeed.
const TEMPORARY = new Set(["RATE_LIMITED", "QUOTA_EXCEEDED", "CAPACITY_REACHED"]);
const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;

export class RequestRefused extends Error {
  constructor({ code, message, retry_after: retryAfter = null }) {
    super(message);
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

// Ids differ from those of the page before a reload, since the server repeats its last reply for the
// id of its last request.
function newPrefix() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36)).join("");
}

export class Connection {
  constructor() {
    this.state = signal("unopened"); // then "connecting", "open", "reconnecting", "closed"
    this.lostFor = signal(0); // seconds since the connection was lost
    this.ending = null; // why it is closed
    this.taken = false; // it is closed, because another page has the session
    this.facts = null;
    this.token = null;
    this.pending = new Map();
    this.prefix = newPrefix();
    this.count = 0;
    this.delay = FIRST_DELAY_MS;
    this.lostAt = null;
    this.socket = null;
  }

  // Resolves once there is a session; rejects if there will be none. `token` names a session to
  // resume, such as a branch; without it a new one is opened.
  open(token = null) {
    return new Promise((resolve, reject) => {
      this.opening = { resolve, reject };
      Object.assign(this, { token, facts: null, ending: null, taken: false, delay: FIRST_DELAY_MS });
      this.state.value = "connecting";
      this.connect();
    });
  }

  // Resolves to the data of the reply. `onOutput` receives {stream, text, dropped} while a step runs.
  request(type, data = {}, { onOutput = null, id = this.nextId() } = {}) {
    return new Promise((resolve, reject) => {
      if (this.state.value === "closed") {
        reject(new RequestRefused({ code: "UNKNOWN_SESSION", message: this.ending }));
        return;
      }
      const text = JSON.stringify({ type, id, data, ...(onOutput === null ? {} : { stream: true }) });
      const most = this.facts?.limits.message_bytes ?? Infinity;
      if (new Blob([text]).size > most) {
        // The server would close the socket, and the request would be repeated without end.
        reject(new RequestRefused({ code: "TOO_LARGE", message: `the server takes messages of up to ${most} bytes` }));
        return;
      }
      this.pending.set(id, { text, onOutput, resolve, reject });
      if (this.state.value === "open") this.socket.send(text);
    });
  }

  nextId() {
    this.count += 1;
    return `${this.prefix}-${this.count}`;
  }

  close(told = CLOSED) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "close", id: this.nextId() }));
    this.end(told);
  }

  connect() {
    const address = new URL("ws", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address, socketProtocols());
    this.socket = socket;
    let opened = false;
    socket.onopen = () => {
      opened = true;
      socket.send(JSON.stringify(this.token === null
        ? { type: "open", id: "open", data: {} }
        : { type: "resume", id: "open", data: { token: this.token } }));
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = (event) => {
      if (this.socket === socket && this.state.value !== "closed") this.dropped(event, opened);
    };
  }

  receive({ type, id, data }) {
    if (type === "session") {
      this.facts = data;
      this.token = data.token;
      this.delay = FIRST_DELAY_MS;
      this.lostAt = null;
      this.lostFor.value = 0;
      this.state.value = "open";
      for (const { text } of this.pending.values()) this.socket.send(text);
      this.opening.resolve(data);
    } else if (type === "output") {
      this.pending.get(id)?.onOutput?.(data);
    } else if (id === "open") {
      if (this.token !== null && TEMPORARY.has(data.code)) this.socket.close(); // and try again
      else this.end(this.token !== null && data.code === "UNKNOWN_SESSION" ? UNKNOWN : data.message, new RequestRefused(data));
    } else if (this.pending.has(id)) {
      const { resolve, reject } = this.pending.get(id);
      this.pending.delete(id);
      if (type === "error") reject(new RequestRefused(data));
      else resolve(data);
    }
  }

  dropped(event, opened) {
    if (ENDINGS.has(event.code)) {
      this.taken = event.code === TAKEN;
      this.end(ENDINGS.get(event.code));
    } else if (this.token === null) {
      const told = event.reason || (opened ? "The server closed the connection." : "The server cannot be reached.");
      this.end(told, new RequestRefused({ code: "UNREACHABLE", message: told }));
    } else {
      // Only the server knows whether the session is there, so the page asks until it answers.
      this.lostAt ??= performance.now();
      this.lostFor.value = (performance.now() - this.lostAt) / 1000;
      this.state.value = "reconnecting";
      setTimeout(() => this.state.value === "reconnecting" && this.connect(), this.delay);
      this.delay = Math.min(this.delay * 2, LONGEST_DELAY_MS);
    }
  }

  end(told, error = new RequestRefused({ code: "UNKNOWN_SESSION", message: told })) {
    if (this.state.value === "closed") return;
    this.ending = told;
    this.state.value = "closed";
    this.socket?.close(1000);
    this.opening?.reject(error);
    for (const { reject } of this.pending.values()) reject(error);
    this.pending.clear();
  }
}
