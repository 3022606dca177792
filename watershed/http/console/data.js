// What the server says, and the last half hour of it: samples from the server, then those of this page.

const KEPT_S = 1800;
const POLL_MS = 2000;
const WAIT_MS = 8000;
const SILENT_POLLS = 2;

export const state = {
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
  try {
    if (given) sessionStorage.setItem(TOKEN, given);
    else sessionStorage.removeItem(TOKEN);
  } catch { /* a browser that keeps nothing: it is asked for again after a reload */ }
}

async function get(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`../v1/${path}`, { signal: AbortSignal.timeout(WAIT_MS), cache: "no-store", headers });
  const found = await answer.json();
  state.needsToken = answer.status === 401 ? found.error : "";
  if (!answer.ok) throw new Error(`${found.error}; ${found.next}`);
  return found;
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
      Object.assign(state, { status: null, letters: null, samples: [], problems: [], failures: 0, awaySince: null });
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
export const newest = (series) => series.at(-1)?.[1] ?? null;
