// What an operator does: a button, a dialog that says what will happen and what it costs, and a line with the server's answer.

import { h, pill, redraw, show } from "./dom.js";
import { clock, count, plural, seconds } from "./format.js";
import { canOperate, post, sentence, watched } from "./data.js";

const OPERATION_MS = 1000;
const RESULTS_MAX = 5;
const results = []; // {key, text, tone, at, id}, the newest first

const about = (rows) => (rows ? `about ${plural(rows, "row")}` : "all their rows");
const many = (tables, rows) => `${tables.length === 1 ? tables[0] : plural(tables.length, "table")}${rows ? `, ${about(rows)}` : ""}`;

/** A field of a dialog: {name, label, hint}, which the reader may leave empty. */
const CONDITION = { name: "where", label: "Only rows that fulfil this condition (SQL)", hint: "status = 'open'. Empty: all rows" };
const SAMPLE = { name: "sample", label: "Rows of a sample", hint: "10000. Empty: all rows", isNumber: true };

/**
 * The operations. Each makes {path, body, title, does, costs, verb, fields, isGrave} of what it is for. `rows`: that the table has, if that
 * is known.
 */
export const OPERATIONS = {
  snapshot: (tables, rows) => ({ path: "snapshots/start", body: { tables }, verb: "Read rows again", title: `Take a snapshot of ${many(tables)}`, fields: [CONDITION],
    does: "Capture reads the rows from the source again and publishes them. Changes are published meanwhile, and stores stay readable.",
    costs: `The source reads ${about(rows)}; the topic and every store take as many writes. A snapshot of all rows ends with the deletion of rows that the source no longer has.` }),
  pause: (tables) => ({ path: "snapshots/pause", body: { tables }, verb: "Pause", title: `Pause the snapshot of ${many(tables)}`,
    does: "Capture reads no further rows until the snapshot is resumed. Changes are published as before.", costs: "Until it is resumed, stores may lack rows that the snapshot has not reached." }),
  resume: (tables) => ({ path: "snapshots/resume", body: { tables }, verb: "Resume", title: `Resume the snapshot of ${many(tables)}`,
    does: "Capture reads on where the snapshot was paused.", costs: "The source is read again, at the configured speed." }),
  cancel: (tables) => ({ path: "snapshots/cancel", body: { tables }, verb: "Cancel the snapshot", title: `Cancel the snapshot of ${many(tables)}`, isGrave: true,
    does: "Capture gives the snapshot up. Rows that it has published stay.", costs: "Rows that it has not reached may be missing from the topic and the stores until a whole snapshot has ended." }),
  stop: (tables, rows) => ({ path: "tables/stop", body: { tables }, verb: "Stop capture", title: `Stop the capture of ${many(tables)}`, isGrave: true,
    does: "Capture publishes no changes of it any more. Stores keep its rows as they are now, and fall behind. Other tables continue.",
    costs: `To start it again, ${about(rows)} must be read.` }),
  start: (tables, rows) => ({ path: "tables/start", body: { tables }, verb: "Start capture", title: `Start the capture of ${many(tables)}`,
    does: "Capture publishes its changes from now on, and reads the rows that exist.", costs: `The source reads ${about(rows)}; the topic and every store take as many writes.` }),
  heal: () => ({ path: "snapshots/heal", body: {}, verb: "Heal the gap", title: "Heal the gap", isGrave: true,
    does: "Capture starts a new epoch with a new slot, compares all rows of all tables with the topics, and publishes those that differ.",
    costs: "All rows of the source and all topics are read once. Events of an outbox that fell into the gap are lost." }),
  reload: () => ({ path: "reload", body: {}, verb: "Read the file", title: "Read the configuration file again",
    does: "Capture and sinks read their files. Tables that are new in it are captured, those that are gone are left. A file with a mistake changes nothing.", costs: "Rows of new tables are read once." }),
  replay: (sink, tables, keys) => ({ path: "dead-letters/replay", body: { sink, ...(tables && { tables }), ...(keys && { keys }) }, verb: "Replay", title: `Replay dead letters of ${sink}`,
    does: `${keys ? "This row is" : "The rejected rows are"} read from the source and published again, so that the store gets them in their present form.`,
    costs: "One read and one write for each row. A row whose cause is not removed is rejected again." }),
  discard: (sink, tables, keys) => ({ path: "dead-letters/discard", body: { sink, ...(tables && { tables }), ...(keys && { keys }) }, verb: "Discard", title: `Discard dead letters of ${sink}`, isGrave: true,
    does: `${keys ? "The record of this row is" : "The records of these rows are"} removed from the list. Nothing is published.`, costs: "The store lacks the rows until they change, and nothing lists them any more. `cdc verify` still finds them." }),
  verify: (sinks, tables, rows) => ({ path: "verify", body: { sinks, ...(tables && { tables }) }, verb: "Compare", title: `Compare ${sinks.length ? sinks.join(", ") : "all stores"} with the source`, fields: [SAMPLE],
    does: `Every row and column ${tables ? `of ${many(tables)} ` : ""}is compared. Nothing is changed.`, costs: `The source and the store read ${about(rows)}. It may take minutes to hours; capture and sinks continue.` }),
  repair: (sinks, tables, rows) => ({ path: "repair", body: { sinks, ...(tables && { tables }) }, verb: "Compare and repair", title: `Repair ${sinks.length ? sinks.join(", ") : "all stores"}`, isGrave: true,
    does: `Every row and column ${tables ? `of ${many(tables)} ` : ""}is compared, and rows that differ are published again.`, costs: `The source and the store read ${about(rows)}; each row that differs is written once more, in every store.` }),
  rebuild: (sink) => ({ path: `sinks/${encodeURIComponent(sink)}/rebuild`, body: {}, verb: "Rebuild", title: `Rebuild ${sink}`, isGrave: true,
    does: "The sink fills a new generation from the topics beside the one that readers see, and swaps them when it is complete.", costs: "All rows of all tables of the store are written again, and until the former generation is removed the store holds both: twice its space." }),
  rollback: (sink) => ({ path: `sinks/${encodeURIComponent(sink)}/rollback`, body: {}, verb: "Roll back", title: `Roll ${sink} back`, isGrave: true,
    does: "Readers see the former generation again, if it is still fed.", costs: "Nothing is written again. What only the present generation has, such as a new mapping, is not seen any more." }),
  cancelRebuild: (sink) => ({ path: `sinks/${encodeURIComponent(sink)}/cancel`, body: {}, verb: "Cancel the rebuild", title: `Cancel the rebuild of ${sink}`, isGrave: true,
    does: "The generation that is being filled is removed. Readers see the present one as before.", costs: "What was filled so far is lost." }),
};

/** A button that asks before it does something; nothing for a reader who may not operate. */
export const button = (label, operation) => canOperate() && h("button", { type: "button", class: "text-button", onclick: () => ask(operation) }, label);

// ---- the dialog



function ask(operation) {

  const dialog = document.getElementById("dialog");
  dialog.setAttribute("aria-labelledby", "dialog-title");
  dialog.setAttribute("aria-describedby", "dialog-does");
  const fields = (operation.fields ?? []).map((one) => h("p", { class: "field" }, h("label", { for: `field-${one.name}` }, one.label),
    h("input", { id: `field-${one.name}`, name: one.name, autocomplete: "off", spellcheck: "false", placeholder: one.hint, ...(one.isNumber && { inputmode: "numeric", pattern: "[1-9][0-9]*" }) })));
  dialog.replaceChildren(h("form", { onsubmit: (event) => { event.preventDefault(); send(dialog, operation); } },
    h("h2", { id: "dialog-title" }, operation.title),
    h("p", { id: "dialog-does" }, operation.does),
    h("p", { class: "costs" }, h("b", {}, "What it costs: "), operation.costs),
    fields,
    h("p", { class: "hint" }, "It is recorded under the name of your user."),
    h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "text-button", onclick: () => dialog.close() }, "Close"),
      h("button", { type: "submit", class: operation.isGrave ? "do-button grave" : "do-button" }, operation.verb))));
  dialog.showModal();
}

async function send(dialog, operation) {
  const body = { ...operation.body };
  for (const one of operation.fields ?? []) {
    const given = dialog.querySelector(`[name="${one.name}"]`).value.trim();
    if (given) body[one.name] = one.isNumber ? Number(given) : given;
  }
  dialog.close();
  const result = { key: `${Date.now()}`, title: operation.title, text: "sent; the server has not answered yet", tone: "busy", at: Date.now() / 1000, id: null };
  results.unshift(result);
  results.splice(RESULTS_MAX);
  redraw();
  try {
    const answer = await post(operation.path, body);
    result.id = answer.id ?? null;
    result.tone = result.id ? "busy" : "good";
    result.text = [answer.answer ?? answer.message, answer.tables?.length ? answer.tables.join(", ") : ""].filter(Boolean).join(": ") || "accepted";
  } catch (error) {
    Object.assign(result, { tone: "error", text: sentence(error) });
  }
  redraw();
}

// ---- the answers

const WORDS = { good: "Done", busy: "Runs", error: "Refused", warning: "Differs" };

/** What a comparison or repair says of itself: its progress, or what it has found. */
function follow(result, run) {
  if (run.status === "failed") Object.assign(result, { tone: "error", text: run.next ? `${run.error}; next: ${run.next}` : run.error });
  else if (run.status === "done") {
    const { drift = 0, undecided = 0 } = run.result ?? {};
    Object.assign(result, { tone: drift || undecided ? "warning" : "good", text: `${plural(drift, "row")} ${drift === 1 ? "differs" : "differ"}${undecided ? `, ${count(undecided)} undecided` : ""}, in ${seconds(run.seconds)}` });
  } else {
    const step = run.progress.at(-1);
    result.text = step ? `${[step.sink, step.table].filter(Boolean).join(", ")}: ${step.step}, ${count(step.done)}${step.total ? ` of about ${count(step.total)}` : ""}` : "begins";
  }
}

function line(result) {
  if (result.id && result.tone === "busy") {
    const { value, error } = watched(`operations/${encodeURIComponent(result.id)}`, OPERATION_MS);
    if (value) follow(result, value);
    else if (error) result.text = error;
  }
  const drop = () => {
    results.splice(results.indexOf(result), 1);
    redraw();
  };
  return h("li", { class: `result ${result.tone}`, "data-key": result.key }, pill(result.tone, WORDS[result.tone]),
    h("p", {}, h("b", {}, `${result.title}: `), result.text), h("span", { class: "when" }, clock(result.at)),
    h("button", { type: "button", class: "text-button", "aria-label": `Dismiss: ${result.title}`, onclick: drop }, "Dismiss"));
}

/** Shows the answers of what was done lately. */
export const showResults = (element) => show(element, results.length ? h("ul", { class: "results" }, results.map(line)) : []);

export const clearResults = () => results.splice(0);
