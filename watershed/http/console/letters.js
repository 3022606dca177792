// Rows that stores rejected. A row's values are shown when the reader asks for them.

import { command, grid, h } from "./dom.js";
import { OPERATIONS, button } from "./actions.js";
import { count, moment, plural } from "./format.js";
import { canOperate, state } from "./data.js";
import { link } from "./route.js";
import { keyText as askedKey } from "./tail.js";

const WITHHELD = {
  masked: "The row is not shown: the configuration masks columns of this table. `cdc dlq show` prints it.",
  remote: "The row is not shown: other machines can reach this server. `cdc dlq show` prints it.",
  role: "The row is not shown: this needs a user with role operate. `cdc dlq show` prints it.",
  "not held": "The row is not shown: the sink does not hold this table any more. `cdc dlq show` prints it.",
  "not kept": "The row is not kept: the sink keeps no rows, or it is too large.",
};

const keyText = (key) => Object.entries(key).map(([name, value]) => `${name} = ${JSON.stringify(value)}`).join(", ");

function letter(one) {
  return h("li", { class: "letter", "data-key": `${one.sink}/${one.topic}/${one.partition}/${one.offset}` },
    h("div", { class: "letter-head" }, h("a", { class: "mono name", href: link("tables", one.table) }, one.table), one.key && h("a", { class: "mono", href: link("tables", one.table, "row", askedKey(one.key)) }, keyText(one.key)), h("span", { class: "when" }, moment(one.rejected_unix_seconds))),
    h("p", { class: "message" }, one.reason),
    h("p", { class: "hint" }, `version ${one.version}, topic ${one.topic}, partition ${one.partition}, offset ${count(one.offset)}`),
    one.withheld ? h("p", { class: "hint withheld" }, WITHHELD[one.withheld].replaceAll("`", "")) : h("details", {}, h("summary", {}, "Show the row"), h("pre", { tabindex: "0", "aria-label": `Row of ${one.table}` }, JSON.stringify(one.row, null, 2))),
    one.key && canOperate() && h("div", { class: "actions" }, button("Replay…", OPERATIONS.replay(one.sink, [one.table], [askedKey(one.key)])), button("Discard…", OPERATIONS.discard(one.sink, [one.table], [askedKey(one.key)]))));
}

export function letters(announce) {
  const tables = state.status.tables.filter((one) => one.dead_letters || one.skipped);
  const unread = state.lettersError ? h("p", { class: "row-note" }, state.lettersError) : state.letters ? null : h("p", { class: "loading" }, "Loading…");
  const sinks = state.letters?.sinks ?? [];
  return [
    ...sinks.map((sink) => h("section", { class: "panel", "aria-labelledby": `letters-${sink.sink}`, "data-key": sink.sink },
      h("div", { class: "panel-head" }, h("h2", { id: `letters-${sink.sink}` }, `Rejected by ${sink.sink}`), h("p", { class: "hint" }, sink.letters.length < sink.total ? `the last ${count(sink.letters.length)} of ${count(sink.total)}` : plural(sink.total, "row"))),
      h("p", { class: "hint" }, "When the cause is removed, the rows are published again by:"), command(`cdc dlq replay ${sink.sink}`, announce),
      canOperate() && sink.letters.length > 0 && h("div", { class: "actions" }, button("Replay all…", OPERATIONS.replay(sink.sink)), button("Discard all…", OPERATIONS.discard(sink.sink))),
      h("ul", { class: "letters" }, sink.letters.map(letter)))),
    (unread || !sinks.length) && h("section", { class: "panel", "aria-labelledby": "letters-title" }, h("h2", { id: "letters-title" }, "Rows that stores rejected"),
      unread || h("p", { class: "empty-line" }, "No store has rejected a row.")),
    h("section", { class: "panel", "aria-labelledby": "left-title" },
      h("div", { class: "panel-head" }, h("h2", { id: "left-title" }, "Changes that capture could not publish"), h("p", { class: "hint" }, "since the table was first captured")),
      tables.length ? h("div", { class: "scroll", role: "region", "aria-labelledby": "left-title", tabindex: "0" },
        grid("Changes that were left out, of each table", [{ label: "Table" }, { label: "Dead letters", isNumber: true }, { label: "Skipped", isNumber: true }],
          tables.map((one) => ({ key: one.table, cells: [h("a", { class: "mono", href: link("tables", one.table) }, one.table), count(one.dead_letters), count(one.skipped)] }))))
        : h("p", { class: "empty-line" }, "Every change was published.")),
  ];
}
