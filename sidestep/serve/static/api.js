// Talking to the server. An answer is kept here until the server says that it is on disk, also over a reload.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", redirect: "error", ...options });
  } catch {
    throw new Refused(0, "the server cannot be reached");
  }
  let content = {};
  try {
    content = await response.json();
  } catch {
    /* what follows says it */
  }
  if (!response.ok) throw new Refused(response.status, content.error ?? `the server said ${response.status}`);
  return content;
}

/** About so long: when a server comes back, not everybody asks it in the same moment. */
export const spread = (time) => time * (0.5 + Math.random() / 2);

export const get = (path) => ask(path);
export const post = (path, body) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

let unsentKey = "";
let waiting = new Map();
const listeners = new Set();
let sending = null;
let pause = 500;

const keep = () => localStorage.setItem(unsentKey, JSON.stringify([...waiting]));

/** Who is at the page: what they left unsent is sent now. */
export function begin(name) {
  unsentKey = `sidestep-unsent-${name}`;
  waiting = new Map(JSON.parse(localStorage.getItem(unsentKey) ?? "[]"));
  if (waiting.size) flush();
}

const tell = (event) => listeners.forEach((listener) => listener(event));

/** Be told of answers: {state: "saving" | "saved" | "unreachable" | "refused", ...}. */
export function onSaving(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Put an answer on its way. It is sent again until the server has it; a newer one of the same trajectory replaces it. */
export function save(answers) {
  for (const answer of answers) waiting.set(answer.trajectory, answer);
  keep();
  return flush();
}

export const unsent = () => waiting.size;
export const unsentFor = (trajectory) => waiting.get(trajectory) ?? null;

export function flush() {
  sending ??= sendAll().finally(() => { sending = null; });
  return sending;
}

async function sendAll() {
  while (waiting.size) {
    const batch = [...waiting.values()].slice(0, 50);
    tell({ state: "saving", count: waiting.size });
    try {
      const { saved, progress } = await post("/api/label", { answers: batch });
      for (const answer of batch) if (waiting.get(answer.trajectory) === answer) waiting.delete(answer.trajectory);
      keep();
      pause = 500;
      tell({ state: "saved", saved, progress });
    } catch (error) {
      if (error.status >= 400 && error.status < 500 && error.status !== 429 && error.status !== 401) {
        // This will not get better by trying again; one bad answer does not hold up the others.
        const bad = batch.length > 1 ? await oneByOne(batch) : batch;
        for (const answer of bad) if (waiting.get(answer.trajectory) === answer) waiting.delete(answer.trajectory);
        keep();
        tell({ state: "refused", reason: error.message });
        continue;
      }
      tell({ state: "unreachable", reason: error.message, count: waiting.size });
      if (error.status === 401) return;
      await new Promise((done) => setTimeout(done, spread(pause)));
      pause = Math.min(pause * 1.6, 8000);
    }
  }
}

async function oneByOne(batch) {
  const done = [];
  for (const answer of batch) {
    try {
      const { saved, progress } = await post("/api/label", { answers: [answer] });
      tell({ state: "saved", saved, progress });
      done.push(answer);
    } catch (error) {
      if (error.status >= 400 && error.status < 500 && error.status !== 429) done.push(answer);
    }
  }
  return done;
}
