// A session over the WebSocket protocol `repl-env.v1` (docs/endpoint.md). A dropped socket is opened
// again and the session resumed; unanswered requests are repeated under their ids, so each of them
// runs once.

import { signal } from "../vendor/signals-core.module.js";
import { socketProtocols } from "./api_key.js";

// Close codes after which the session is gone, or belongs to another page.
const ENDINGS = new Map([
  [4001, "Another page has taken over this session."],
  [4404, "The session has ended."],
  [4408, "The session ended because it was idle for too long."],
  [4429, "The session ended because its processor time was used up."],
  [1012, "The server is shutting down."],
]);
const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 5000;

export class RequestRefused extends Error {
  constructor({ code, message, retry_after: retryAfter = null }) {
    super(message);
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export class Connection {
  // `token` names a session to resume, such as a branch; without it a new one is opened.
  constructor(token = null) {
    this.state = signal("unopened"); // then "connecting", "open", "reconnecting", "closed"
    this.ending = null; // why it is closed
    this.facts = null;
    this.token = token;
    this.pending = new Map();
    this.count = 0;
    this.delay = FIRST_DELAY_MS;
    this.socket = null;
  }

  // Resolves once there is a session; rejects if there will be none.
  open() {
    return new Promise((resolve, reject) => {
      this.opening = { resolve, reject };
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
      const most = this.facts.limits.message_bytes;
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
    return `page-${this.count}`;
  }

  close() {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: "close", id: this.nextId() }));
    this.end("The session was closed.");
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
      this.state.value = "open";
      for (const { text } of this.pending.values()) this.socket.send(text);
      this.opening.resolve(data);
    } else if (type === "output") {
      this.pending.get(id)?.onOutput?.(data);
    } else if (id === "open") {
      this.end(data.message, new RequestRefused(data));
    } else if (this.pending.has(id)) {
      const { resolve, reject } = this.pending.get(id);
      this.pending.delete(id);
      if (type === "error") reject(new RequestRefused(data));
      else resolve(data);
    }
  }

  dropped(event, opened) {
    if (ENDINGS.has(event.code)) {
      this.end(ENDINGS.get(event.code));
    } else if (this.token === null) {
      const told = event.reason || (opened ? "The server closed the connection." : "The server cannot be reached.");
      this.end(told, new RequestRefused({ code: "UNREACHABLE", message: told }));
    } else if (this.facts !== null && this.lostFor() > this.facts.grace_s * 1000) {
      this.end("The connection was lost for too long, so the session has ended.");
    } else {
      this.state.value = "reconnecting";
      setTimeout(() => this.state.value === "reconnecting" && this.connect(), this.delay);
      this.delay = Math.min(this.delay * 2, LONGEST_DELAY_MS);
    }
  }

  // Milliseconds since the connection was lost, 0 while it is there.
  lostFor() {
    if (this.state.value === "open" || this.lostAt === undefined) this.lostAt = performance.now();
    return performance.now() - this.lostAt;
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
