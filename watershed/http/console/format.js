// Numbers as people read them.

const COUNT = new Intl.NumberFormat("en-US");
const HOURS = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const clockFormat = new Intl.DateTimeFormat(undefined, { ...HOURS, second: "2-digit" });
const minuteFormat = new Intl.DateTimeFormat(undefined, HOURS);
const dayOnly = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dayFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", ...HOURS });

const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);
const short = (value, digits) => value.toLocaleString("en-US", { maximumFractionDigits: digits });

export const count = (value) => (isKnown(value) ? COUNT.format(Math.round(value)) : "–");
export const clock = (unix) => clockFormat.format(new Date(unix * 1000));
/** With the day, unless it was in the last hours. */
export const moment = (unix) => (Date.now() / 1000 - unix < 43200 ? clock(unix) : dayFormat.format(new Date(unix * 1000)));
export const minute = (unix) => minuteFormat.format(new Date(unix * 1000));
export const day = (unix) => dayOnly.format(new Date(unix * 1000));
export const dayMinute = (unix) => dayFormat.format(new Date(unix * 1000));

export function seconds(value) {
  if (!isKnown(value)) return "–";
  if (value < 1) return value === 0 ? "0 s" : `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 10) return `${short(value, 1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${short(value / 3600, 1)} h`;
  return `${COUNT.format(Math.round(value / 86400))} days`;
}

function scaled(value, units, step) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  return [value, units[unit]];
}

export function bytes(value) {
  if (!isKnown(value)) return "–";
  const [number, unit] = scaled(value, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
  return `${short(number, number < 10 && unit !== "B" ? 1 : 0)} ${unit}`;
}

export function compact(value) {
  if (!isKnown(value)) return "–";
  const [number, unit] = scaled(value, ["", " k", " M", " G"], 1000);
  return `${short(number, number < 10 ? 1 : 0)}${unit}`;
}

// ---- the unit of an axis, by its highest value

const unitOf = (units) => (highest) => {
  const [size, name] = units.findLast(([size]) => highest >= size) ?? units[0];
  return { size, name };
};
export const secondsUnit = unitOf([[0.001, "ms"], [1, "s"], [60, "min"], [3600, "h"], [86400, "days"]]);
export const bytesUnit = unitOf(["B", "KiB", "MiB", "GiB", "TiB"].map((name, power) => [1024 ** power, name]));
export const rateUnit = unitOf(["/s", "k/s", "M/s", "G/s"].map((name, power) => [1000 ** power, name]));
export const axisNumber = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 6 });

export const rate = (value) => (isKnown(value) ? `${compact(value)}/s` : "–");
export const bytesRate = (value) => (isKnown(value) ? `${bytes(value)}/s` : "–");
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** The commands in a remedy: what stands in backquotes, and calls of `cdc` up to the sentence's next word. */
export function commandsOf(text, name) {
  const found = [...text.matchAll(/`([^`]+)`/g)].map((match) => match[1]);
  const bare = text.replace(/`[^`]*`/g, " ");
  const calls = /\bcdc (?:(?:dlq|snapshot|table|outbox|warehouse|sink|stack|config|view) [a-z]+|(?:check|demo|init|lag|rebuild|repair|run|status|teardown|verify|wait)\b)((?: --?[\w-]+| [A-Z]+\b| [^\s,;:()`]+)*)/g;
  for (const match of bare.matchAll(calls)) {
    const head = match[0].slice(0, match[0].length - match[1].length);
    const kept = [];
    let takesValue = false;
    for (const word of match[1].split(" ").filter(Boolean)) {
      const isOption = word.startsWith("-");
      if (!isOption && !takesValue && word !== name && !/^[A-Z]{2,}$/.test(word)) break;
      kept.push(word);
      takesValue = isOption && !["--drop-old", "--cancel", "--rollback", "--fresh", "--all", "--json"].includes(word);
    }
    found.push([head, ...kept].join(" "));
  }
  return [...new Set(found.map((one) => one.trim()).filter((one) => /^(cdc|ALTER|SELECT|curl|psql) /.test(one)))];
}
