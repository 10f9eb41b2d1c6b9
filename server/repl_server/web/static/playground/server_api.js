// Requests over HTTP: whether the server knows the key, contexts, and the files of a session.

import { keyHeaders } from "./api_key.js";
import { RequestRefused } from "./connection.js";

async function ask(path, { token = null, ...options } = {}) {
  const session = token === null ? {} : { "X-Session-Id": token };
  const response = await fetch(path, {
    ...options, headers: { ...keyHeaders(), ...session, ...options.headers }, cache: "no-store",
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new RequestRefused({
    code: told.code ?? "HTTP", message: told.message ?? `the server answered ${response.status}`, retry_after: told.retry_after,
  });
}

// "ok", "key" if a key is missing, "wrong-key" if the server does not know it.
export async function access(hasKey) {
  const response = await fetch("schema", { method: "HEAD", headers: keyHeaders(), cache: "no-store" });
  if (response.status === 401) return hasKey ? "wrong-key" : "key";
  return "ok";
}

export function canUpload() {
  return globalThis.crypto?.subtle !== undefined; // browsers hash only for https and loopback
}

// Stores bytes on the server; resolves to their SHA-256, by which a reset names them.
export async function uploadContext(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const name = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  await ask(`contexts/${name}`, { method: "PUT", body: bytes, headers: { "Content-Type": "application/octet-stream" } });
  return name;
}

function filePath(path) {
  return `files/${path.split("/").map(encodeURIComponent).join("/")}`;
}

export async function listFiles(token) {
  return (await ask("files?limit=1000", { token })).json();
}

export async function putFile(token, path, body) {
  await ask(filePath(path), { token, method: "PUT", body, headers: { "Content-Type": "application/octet-stream" } });
}

export async function getFile(token, path) {
  return (await ask(filePath(path), { token })).blob();
}

export async function getArchive(token) {
  return (await ask("archive", { token })).blob();
}

// Saves a blob as a download of the browser.
export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
