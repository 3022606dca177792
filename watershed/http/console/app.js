// The console: sections by the address's hash, the theme, and what is said to readers of the screen.

import { h, pill, s, show } from "./dom.js";
import { clock, count, plural } from "./format.js";
import { every, hasToken, poll, state, useToken } from "./data.js";
import { showResults, clearResults } from "./actions.js";
import { followTerms, glossary, loadGlossary } from "./glossary.js";
import { keptViews } from "./kept-views.js";
import { letters } from "./letters.js";
import { login } from "./login.js";
import { overview } from "./overview.js";
import { oneTable } from "./one-table.js";
import { pipelines } from "./pipelines.js";
import { presentProblems, problems } from "./problems.js";
import { link, parts } from "./route.js";
import { stores } from "./stores.js";
import { system } from "./system.js";
import { tables } from "./tables.js";
import { closeTail } from "./tail.js";

// Name, title, its page of the rest of the address, and the number beside it.
const SECTIONS = [
  ["overview", "Overview", overview, () => null],
  ["tables", "Tables", (announce, rest) => (rest.length ? oneTable(announce, rest) : tables(announce)), (status) => status.tables.length],
  ["stores", "Stores", stores, (status) => status.sinks.length],
  ["views", "Views", keptViews, (status) => status.views.length],
  ["letters", "Dead letters", letters, (status) => status.sinks.reduce((sum, one) => sum + one.dead_letters, 0)],
  ["problems", "Problems", problems, () => presentProblems().length],
  ["pipelines", "Pipelines", pipelines, () => null],
  ["system", "System", system, () => null],
  ["glossary", "Glossary", glossary, () => null],
];
const UNLISTED = ["glossary"]; // words lead to it
const byId = (id) => document.getElementById(id);
// A pipeline without views has no section of them, and one that knows no other none of pipelines.
const HIDDEN = { views: () => !state.status?.views.length, pipelines: () => !state.offered?.pipelines };
const sections = () => SECTIONS.filter(([name]) => !HIDDEN[name]?.());
const chosen = () => sections().find(([name]) => name === parts()[0]) ?? SECTIONS[0];

function announce(text) {
  byId("announcer").textContent = text;
}

// ---- the theme: the system's, unless the reader chose one

const THEMES = {
  auto: ["System", "M12 3a9 9 0 1 0 0 18ZM12 3a9 9 0 0 1 0 18"],
  light: ["Light", "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5"],
  dark: ["Dark", "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z"],
};

function stored() {
  try {
    return localStorage.getItem("watershed-theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function setTheme(name) {
  const theme = name in THEMES ? name : "auto";
  const next = Object.keys(THEMES)[(Object.keys(THEMES).indexOf(theme) + 1) % 3];
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("watershed-theme", theme);
  } catch { /* a browser that keeps nothing: the choice lasts as long as the page */ }
  const button = byId("theme");
  button.setAttribute("aria-label", `Theme: ${THEMES[theme][0]}. Change to ${THEMES[next][0]}`);
  button.title = `Theme: ${THEMES[theme][0]}`;
  button.onclick = () => setTheme(next);
  button.replaceChildren(s("svg", { class: "icon", viewBox: "0 0 24 24", width: 20, height: 20, "aria-hidden": "true" }, s("path", { d: THEMES[theme][1] })));
}

// ---- what is shown

function health(status) {
  const errors = status.problems.filter((one) => one.severity === "error").length;
  const warnings = status.problems.length - errors;
  if (state.awaySince) return ["error", "No answer"];
  if (errors) return ["error", plural(errors, "error")];
  if (warnings) return ["warning", plural(warnings, "warning")];
  return status.capture.state === "not started" ? ["idle", "Not started"] : ["good", "All in step"];
}

function notice() {
  if (!state.awaySince) return [];
  const since = clock(state.awaySince);
  return [h("div", { class: "away", role: "alert" }, pill("error", "No answer"),
    h("p", {}, state.status ? `This process has not answered since ${since}. What is shown is its last state; the console asks again every two seconds.`
      : `This process does not answer (since ${since}). The console asks again every two seconds.`))];
}

let said = "";

function speak() {
  const [, text] = state.status ? health(state.status) : ["", state.awaySince ? "No answer" : ""];
  if (text !== said && text) announce(said || text !== "All in step" ? `Watershed: ${text}` : "");
  said = text;
}

function skeleton() {
  const block = (kind) => h("div", { class: `bone ${kind}` });
  return h("div", { class: "bones", role: "status" }, h("span", { class: "unseen" }, "Loading the status"), block("wide"), block("third"), block("third"), block("third"));
}

let section = ""; // that was drawn last

/** On a phone the sections are a strip that scrolls. (scrollIntoView would also move the place where Tab begins.) */
function revealSection() {
  const strip = byId("nav").firstElementChild;
  const [place, present] = [strip, strip.querySelector("[aria-current]")].map((one) => one?.getBoundingClientRect());
  if (present) strip.scrollLeft += Math.max(0, present.right - place.right) + Math.min(0, present.left - place.left);
}

function draw() {
  const [name, title, view] = chosen();
  const rest = parts().slice(1).filter((part, number) => part !== "" || number === 2);
  if (name !== "tables" || !rest.length) closeTail();
  const { status } = state;
  show(byId("nav"), h("ul", {}, sections().filter(([id]) => !UNLISTED.includes(id)).map(([id, text, , number]) => {
    const badge = status ? number(status) : null;
    return h("li", {}, h("a", { href: link(id), "aria-current": id === name ? "page" : null }, text, badge ? h("span", { class: "badge" }, count(badge)) : null));
  })));
  if (name !== section) revealSection();
  section = name;
  document.title = `${title} · Watershed`;
  show(byId("notice"), ...notice());
  showResults(byId("results"));
  byId("logout").hidden = !hasToken() || Boolean(state.needsToken);
  byId("logout").title = state.user ? `${state.user.name}, role ${state.user.role}` : "";
  byId("raw").hidden = hasToken() || Boolean(state.needsToken); // links can't send a token
  if (state.needsToken) show(byId("view"), ...login(refresh));
  else if (status) {
    const [tone, text] = health(status);
    document.title = `${tone === "good" ? "" : `(${text}) `}${title} · ${status.prefix} · Watershed`;
    show(byId("health"), pill(tone, text));
    byId("where").textContent = status.source.database ? `${status.prefix} · database ${status.source.database}` : status.prefix;
    byId("age").textContent = `Status of ${clock(status.unix_seconds)}`;
    byId("view").classList.toggle("stale", Boolean(state.awaySince));
    show(byId("view"), ...[view(announce, rest)].flat(Infinity));
  } else if (!state.awaySince) show(byId("view"), skeleton());
  else show(byId("view"), h("section", { class: "panel empty" }, h("h2", {}, "Nothing to show yet"), h("p", {}, "The page is loaded, but the process behind it does not answer. Is it running?"), h("code", {}, "cdc run")));
  speak();
}

async function refresh() {
  await poll(chosen()[0] === "letters");
  draw();
}

addEventListener("hashchange", () => {
  draw();
  scrollTo(0, 0);
  byId("main").focus({ preventScroll: true });
  if (chosen()[0] === "letters") refresh();
});
document.addEventListener("redraw", draw);
addEventListener("resize", draw);
addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !isTyping && byId("filter")) {
    event.preventDefault();
    byId("filter").focus();
  }
});

byId("logout").onclick = () => {
  useToken("");
  clearResults();
  closeTail();
  refresh();
};
setTheme(stored());
followTerms();
loadGlossary();
draw();
every(refresh);
