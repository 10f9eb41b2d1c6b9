// Work that the browser keeps: episodes with their cells, in a database of this site, so that neither
// a reload nor the end of a session loses them. API keys and tokens of sessions are not part of the
// work. The storage of the tab names the work that the tab has open, with the tokens.

import { signal } from "../vendor/signals-core.module.js";

const PLACE = new URL(".", document.baseURI).pathname; // a site may have several playgrounds
const DATABASE = `repl-env-playground ${PLACE}`;
const OPEN = `repl-env-open ${PLACE}`;
const VERSION = 1;
const MOST_WORKS = 20; // kept at once; the oldest that no page has open goes
const OLD_MS = 7 * 24 * 3600 * 1000; // a browser without locks does not tell which work is open
const CLAIM_MS = 2000; // a page that is being reloaded gives up its work within this time

// Why the storage of this tab refuses the list of open work, or null.
export const tabTrouble = signal(null);
// Counts the times that this page gave up a work.
export const releasedCount = signal(0);

let opening = null;
const releases = new Map(); // by work: ends this page's claim

function explained(error) {
  if (error?.name === "QuotaExceededError") return "the browser's storage for this site is full";
  if (error?.name === "SecurityError") return "the browser forbids this page to store anything";
  return `the browser's storage failed (${error?.name ?? "unknown error"})`;
}

function database() {
  opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("works", { keyPath: "id" });
      request.result.createObjectStore("cells", { keyPath: ["work", "id"] });
    };
    request.onsuccess = () => {
      request.result.onclose = () => { opening = null; }; // such as by a visitor who clears the storage
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  }).catch((error) => {
    opening = null; // the next change tries again
    throw error;
  });
  return opening;
}

// Resolves to the result of the request that `act` returns, once the transaction is complete.
async function transaction(mode, act) {
  const open = await database();
  return new Promise((resolve, reject) => {
    const changing = open.transaction(["works", "cells"], mode);
    const asked = act(changing.objectStore("works"), changing.objectStore("cells"));
    changing.oncomplete = () => resolve(asked?.result);
    changing.onabort = () => reject(changing.error);
  });
}

function cellsOf(id) {
  return IDBKeyRange.bound([id], [id, []]);
}

// Keeps a work, and these of its cells; `gone` are ids of cells that it no longer has. Resolves to
// null, or to the reason for which that failed.
export async function keep(work, cells, gone) {
  try {
    await transaction("readwrite", (works, stored) => {
      for (const id of gone) stored.delete([work.id, id]);
      for (const cell of cells) stored.put({ ...cell, work: work.id });
      return works.put(work);
    });
    return null;
  } catch (error) {
    return explained(error);
  }
}

// Resolves to {work, cells}, or null if the browser does not have it.
export async function load(id) {
  try {
    const work = await transaction("readonly", (works) => works.get(id));
    if (work?.first === undefined) return null;
    const cells = await transaction("readonly", (works, stored) => stored.getAll(cellsOf(id)));
    return { work, cells: cells.sort((one, other) => one.order - other.order) };
  } catch {
    return null;
  }
}

async function openElsewhere() {
  const query = await navigator.locks?.query().catch(() => null);
  return new Set((query?.held ?? []).map((lock) => lock.name));
}

// Resolves to the works that no page has open, the newest first.
export async function listEarlier() {
  try {
    const [works, held] = await Promise.all([transaction("readonly", (stored) => stored.getAll()), openElsewhere()]);
    return works.filter(({ id }) => !releases.has(id) && !held.has(lockName(id)))
      .sort((one, other) => other.changed - one.changed);
  } catch {
    return [];
  }
}

export async function remove(id) {
  await transaction("readwrite", (works, cells) => {
    works.delete(id);
    return cells.delete(cellsOf(id));
  }).catch(() => {}); // a browser that forbids storage has nothing to remove
}

export async function removeOldest() {
  const latest = navigator.locks === undefined ? Date.now() - OLD_MS : Infinity;
  for (const { id, changed } of (await listEarlier()).slice(MOST_WORKS)) if (changed < latest) await remove(id);
}

function lockName(id) {
  return `repl-env-work ${id}`;
}

// Resolves to true if this page may change the work, and to false if another page has it open, such as
// the original of a duplicated tab. Browsers without locks tell nothing: there both pages add cells,
// which have ids of their own, and overwrite none.
export function claim(id) {
  if (releases.has(id)) return Promise.resolve(true);
  if (navigator.locks === undefined) {
    releases.set(id, () => { releasedCount.value += 1; });
    return Promise.resolve(true);
  }
  return new Promise((resolve) => {
    const hold = () => new Promise((release) => {
      releases.set(id, release);
      resolve(true);
    });
    navigator.locks.request(lockName(id), { signal: AbortSignal.timeout(CLAIM_MS) }, hold)
      .then(() => { releasedCount.value += 1; }, (error) => resolve(error.name === "SecurityError"));
  });
}

export function release(id) {
  releases.get(id)?.();
  releases.delete(id);
}

// The entries of `rememberOpen` of this tab before its page was reloaded.
export function openBefore() {
  try {
    const entries = JSON.parse(sessionStorage.getItem(OPEN));
    return Array.isArray(entries) ? entries : [];
  } catch {
    return [];
  }
}

export function rememberOpen(entries) {
  try {
    if (entries.length === 0) sessionStorage.removeItem(OPEN);
    else sessionStorage.setItem(OPEN, JSON.stringify(entries));
    tabTrouble.value = null;
  } catch (error) {
    tabTrouble.value = entries.length === 0 ? null : explained(error);
  }
}
