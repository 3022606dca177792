// What the server says, and the last half hour of it: samples from the server, then those of this page.

import { redraw } from "./dom.js";

const KEPT_S = 1800;
const POLL_MS = 2000;
const WAIT_MS = 8000;
const SILENT_POLLS = 2;
const OPERATION_MS = 190000; // a heal waits for transactions that run
const FORGOTTEN_MS = 60000;

export const state = {
  user: null, // {name, role} of the token
  offered: null, // {hours, pipelines}: what the configuration lets the server show
  status: null,
  letters: null,
  lettersError: "",
  samples: [],
  problems: [], // seen in the last half hour, also those that are over
  awaySince: null, // unix seconds
  failures: 0,
  needsToken: "", // why the server gives no answer without one; "" where it does
};

// A tab keeps its token until it is closed. There is no cookie, which pages of other sites could use.
const TOKEN = "watershed-token";
let token = keptToken();

function keptToken() {
  try {
    return sessionStorage.getItem(TOKEN) ?? "";
  } catch {
    return "";
  }
}

export const hasToken = () => token !== "";

/** Sends this token from now on; "" for none. */
export function useToken(given) {
  token = given;
  state.user = null;
  answers.clear();
  try {
    if (given) sessionStorage.setItem(TOKEN, given);
    else sessionStorage.removeItem(TOKEN);
  } catch { /* a browser that keeps nothing: it is asked for again after a reload */ }
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

// A number with more digits than this page's can keep becomes an object that is written with all of its digits.
const EXACT_DIGITS = 15;
const kept = (_, value, context) => (typeof value === "number" && context?.source && context.source.replace(/\D/g, "").length > EXACT_DIGITS && String(value) !== context.source ? JSON.rawJSON(context.source) : value);

async function read(answer) {
  const found = JSON.parse(await answer.text(), kept);
  state.needsToken = answer.status === 401 ? found.error : "";
  if (!answer.ok) throw new Error(found.next ? `${found.error}; next: ${found.next}` : found.error);
  return found;
}

/** What the server says at /v1/`path`. Throws an Error with its sentence. */
export async function get(path, waitMs = WAIT_MS) {
  return read(await fetch(`../v1/${path}`, { signal: AbortSignal.timeout(waitMs), cache: "no-store", headers: headers() }));
}

/** Has the server do something. Throws an Error with its sentence. */
export async function post(path, body) {
  const asked = { method: "POST", headers: { ...headers(), "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return read(await fetch(`../v1/${path}`, { signal: AbortSignal.timeout(OPERATION_MS), ...asked }));
}

// ---- what only some pages show: asked for while they are open

const answers = new Map(); // path → {value, error, atMs, isAsking, usedMs}

/**
 * What the server said last at /v1/`path`: {value, error}. It is asked again every `everyMs` while the page that calls this is shown, and
 * the page is drawn again for each answer.
 */
export function watched(path, everyMs, waitMs = WAIT_MS) {
  const nowMs = Date.now();
  for (const [other, { usedMs }] of answers) if (usedMs < nowMs - FORGOTTEN_MS) answers.delete(other);
  const one = answers.get(path) ?? { value: null, error: "", atMs: 0, isAsking: false, usedMs: nowMs };
  answers.set(path, one);
  one.usedMs = nowMs;
  if (!one.isAsking && !document.hidden && nowMs - one.atMs >= everyMs) ask(path, one, everyMs, waitMs);
  return one;
}

async function ask(path, one, everyMs, waitMs) {
  one.isAsking = true;
  try {
    one.value = await get(path, waitMs);
    one.error = "";
  } catch (error) {
    one.error = sentence(error);
  }
  one.isAsking = false;
  one.atMs = Date.now();
  redraw();
  setTimeout(redraw, everyMs + 5);
}

export const sentence = (error) => (error.name === "TimeoutError" ? "the server has not answered in time" : error instanceof TypeError ? "the server does not answer" : String(error.message ?? error));

const LIVE = ": each change as it arrives";

/**
 * Calls `receive` with each object of an event stream at /v1/`path` and whether it is new (not one of the last ones, which come first), and
 * `failed` with a sentence when it breaks off. Returns a function that ends it. (EventSource can't send a token.)
 */
export function follow(path, receive, failed) {
  const ending = new AbortController();
  const run = async () => {
    try {
      const answer = await fetch(`../v1/${path}`, { signal: ending.signal, cache: "no-store", headers: headers() });
      if (!answer.ok) await read(answer);
      await events(answer.body.pipeThrough(new TextDecoderStream()).getReader(), receive);
      failed("the stream has ended");
    } catch (error) {
      if (!ending.signal.aborted) failed(sentence(error));
    }
  };
  run();
  return () => ending.abort();
}

async function events(reader, receive) {
  let rest = "";
  let isLive = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      isLive ||= lines.includes(LIVE);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      const found = data && JSON.parse(data, kept);
      if (lines.some((line) => /^event: *error$/.test(line))) throw new Error(found.next ? `${found.error}; next: ${found.next}` : found.error);
      if (found) receive(found, isLive);
    }
  }
}

function sampleOf(status) {
  const sinks = {};
  for (const one of status.sinks) sinks[one.sink] = one;
  const budget = status.source.slot?.budget;
  return {
    unix_seconds: status.unix_seconds,
    epoch: status.capture.epoch,
    published: status.capture.seq,
    lag_seconds: status.capture.lag_seconds,
    retained_bytes: budget?.retained_bytes ?? null,
    rate_bytes_per_second: budget?.rate_bytes_per_second ?? null,
    sinks,
  };
}

function add(sample) {
  const last = state.samples.at(-1);
  if (last && sample.unix_seconds <= last.unix_seconds) return;
  state.samples.push(sample);
  while (state.samples[0].unix_seconds < sample.unix_seconds - KEPT_S) state.samples.shift();
}

async function history() {
  const recent = await get("history");
  state.problems = recent.problems;
  const later = recent.samples.length ? recent.samples.at(-1).unix_seconds : 0;
  const own = state.samples.filter((sample) => sample.unix_seconds > later);
  state.samples = [...recent.samples, ...own];
}

async function readLetters(status) {
  if (!status.sinks.some((sink) => sink.dead_letters)) {
    state.letters = { sinks: [] };
    state.lettersError = "";
    return;
  }
  try {
    state.letters = await get("dead-letters");
    state.lettersError = "";
  } catch (error) {
    state.lettersError = String(error.message ?? error);
  }
}

let polls = 0;

/** Asks once. `wantsLetters`: the section that shows them is open. */
export async function poll(wantsLetters) {
  try {
    const status = await get("status");
    if (!state.user || state.failures) [state.user, state.offered] = await Promise.all([get("user"), get("console")]);
    // The first poll, and one after silence, has a past that this page has not seen; problems end between polls.
    if (polls % 3 === 0 || state.failures) await history();
    polls += 1;
    state.status = status;
    state.failures = 0;
    state.awaySince = null;
    add(sampleOf(status));
    if (wantsLetters) await readLetters(status);
  } catch {
    if (state.needsToken) {
      Object.assign(state, { user: null, status: null, letters: null, samples: [], problems: [], failures: 0, awaySince: null });
      return;
    }
    state.failures += 1;
    if (state.failures >= SILENT_POLLS || !state.status) state.awaySince ??= state.status?.unix_seconds ?? Date.now() / 1000;
  }
}

export function every(action) {
  const again = async () => {
    if (!document.hidden) await action();
    setTimeout(again, POLL_MS);
  };
  document.addEventListener("visibilitychange", () => document.hidden || action());
  again();
}

// ---- series, each a list of [unix seconds, value or null]

export const canOperate = () => state.user?.role === "operate";
export const lagOf = (sink) => state.samples.map((one) => [one.unix_seconds, sink ? (one.sinks[sink]?.lag_seconds ?? null) : one.lag_seconds]);
export const retained = () => state.samples.map((one) => [one.unix_seconds, one.retained_bytes]);

const RATE_S = 10; // a rate is that of so many seconds

function rates(value, era) {
  const found = [];
  let from = 0;
  state.samples.forEach((sample, number) => {
    const now = value(sample);
    while (from < number && state.samples[from + 1].unix_seconds <= sample.unix_seconds - RATE_S) from += 1;
    const before = state.samples[from];
    const passed = sample.unix_seconds - before.unix_seconds;
    const known = value(before);
    const isOne = now !== null && known !== null && passed >= 1 && era(before) === era(sample) && now >= known;
    found.push([sample.unix_seconds, isOne ? (now - known) / passed : null]);
  });
  return found;
}

export const publishedRates = () => rates((one) => one.published, (one) => one.epoch);
export const writtenRates = (sink) => rates((one) => one.sinks[sink]?.written ?? null, (one) => one.sinks[sink]?.generation);

// ---- hours of history, from Prometheus

const HOURS_MS = 60000;
const HOURS_WAIT_MS = 20000;

/** {value, error}: `value` has what `lastMinutes` has, for the last hours; the sinks of that time, also those that are gone; and its end. */
export function lastHours(hours) {
  const { value, error } = watched(`history/hours?hours=${hours}`, HOURS_MS, HOURS_WAIT_MS);
  if (!value) return { value: null, error };
  const { start_unix_seconds: from, step_seconds: step, series } = value;
  const of = (figure, sink) => (series.find((one) => one.figure === figure && one.sink === sink)?.values ?? []).map((known, number) => [from + number * step, known]);
  const sinks = [...new Set([...lastMinutes.sinks(), ...series.map((one) => one.sink).filter(Boolean)])];
  return { error, value: { isEmpty: !series.length, now: from + step * ((series[0]?.values.length ?? 1) - 1), sinks: () => sinks, lagOf: (sink) => of("lag_seconds", sink), publishedRates: () => of("rate", null), writtenRates: (sink) => of("rate", sink), retained: () => of("retained_bytes", null) } };
}

export const lastMinutes = { sinks: () => state.status.sinks.map((one) => one.sink), lagOf, publishedRates, writtenRates, retained };
export const newest = (series) => series.at(-1)?.[1] ?? null;
