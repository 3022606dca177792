// Builds elements, and changes a tree that is shown into a new one. Text always becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on") || name === "island" || name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, properties, ...children) => build(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => build(document.createElementNS(SVG, tag), properties, children);

const HANDLERS = ["onclick", "oninput", "onchange", "onkeydown", "onpointerdown", "onpointermove", "onpointerup", "onpointerleave", "onsubmit", "ontoggle"];

function isSame(old, fresh) {
  if (old.nodeType !== fresh.nodeType) return false;
  if (old.nodeType === Node.TEXT_NODE) return true;
  return old.nodeName === fresh.nodeName && (old.dataset?.key ?? "") === (fresh.dataset?.key ?? "");
}

function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether a details element is open is the reader's business.
    if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) old[name] = fresh[name];
  if (old.nodeName === "INPUT" && document.activeElement !== old && !old.hasAttribute("data-own")) old.value = fresh.value;
  old.island = fresh.island;
  if (!fresh.island) children(old, [...fresh.childNodes]);
}

/** Nodes with a data-key are found again wherever they stand, so that a line that is added above moves no other. */
function children(parent, fresh) {
  const known = new Map([...parent.childNodes].filter((node) => node.dataset?.key).map((node) => [node.dataset.key, node]));
  const kept = new Set(fresh.map((node) => node.dataset?.key).filter(Boolean));
  fresh.forEach((node, number) => {
    let old = parent.childNodes[number];
    const same = known.get(node.dataset?.key);
    if (same && same !== old) {
      parent.insertBefore(same, old ?? null);
      old = same;
    }
    if (old === undefined) parent.append(node);
    else if (isSame(old, node)) morph(old, node);
    else if (kept.has(old.dataset?.key)) parent.insertBefore(node, old);
    else parent.replaceChild(node, old);
  });
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

/** Shows `nodes` in `parent`: what stays the same keeps its focus, its selection and its place. Then draws islands. */
export function show(parent, ...nodes) {
  children(parent, nodes.flat(Infinity).filter((node) => node instanceof Node));
  for (const element of parent.querySelectorAll("[data-island]")) element.island?.(element);
}

const SHAPES = {
  good: "M3.5 8.4 6.6 11.5 12.5 4.9",
  warning: "M8 4.4v4.4M8 11.3v.2",
  error: "M5 5l6 6M11 5l-6 6",
  busy: "M8 4.2V8l2.6 1.8",
  idle: "M4.5 8h7",
};
const OUTLINES = { warning: "M8 1.2 15.2 14.2H.8Z", error: "M5 .8h6L15.2 5v6L11 15.2H5L.8 11V5Z" };

/** A sign that differs in shape as well as in colour. A word is always beside it. */
export function sign(tone) {
  const outline = OUTLINES[tone] ? s("path", { class: "sign-fill", d: OUTLINES[tone] }) : s("circle", { class: "sign-fill", cx: 8, cy: 8, r: 7.2 });
  return s("svg", { class: `sign ${tone}`, viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, outline, s("path", { class: "sign-line", d: SHAPES[tone] }));
}

export const pill = (tone, text) => h("span", { class: `pill ${tone}` }, sign(tone), h("span", {}, text));

/** A command with a button that copies it. */
export function command(text, announce) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      announce("The command is copied.");
    } catch {
      getSelection().selectAllChildren(button.previousSibling);
      announce("The command is selected: copy it with the keyboard.");
    }
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  };
  return h("div", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", class: "copy", onclick: copy, "aria-label": `Copy: ${text}` }, "Copy"));
}

/** A bar whose length needs no style in the markup. */
export function bar(share) {
  return h("span", { class: "bar-track", "data-island": true, island: (element) => {
    const inner = element.firstChild ?? element.appendChild(document.createElement("span"));
    inner.style.width = `${(share * 100).toFixed(1)}%`;
  } });
}

/**
 * A table of records. `columns`: {label, isNumber, head}, `head` instead of the label as the heading; `rows`: {key, cells}, the first cell
 * is the heading of its row. On a narrow screen each row becomes a list, in which each cell has its column's label.
 */
export function grid(caption, columns, rows) {
  const kind = (number) => (columns[number].isNumber ? "number" : "");
  return h("table", { class: "grid-table", role: "table" }, h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((one, number) => one.head ?? h("th", { scope: "col", role: "columnheader", class: kind(number) }, one.label)))),
    h("tbody", { role: "rowgroup" }, rows.map(({ key, cells }) => h("tr", { role: "row", "data-key": key },
      cells.map((cell, number) => h(number ? "td" : "th", { role: number ? "cell" : "rowheader", scope: number ? null : "row", class: kind(number), "data-label": number ? columns[number].label : null }, number ? h("div", {}, cell) : cell))))));
}

/** Buttons of which one is chosen. `options`: [value, text, number of what it shows]. */
export const segments = (label, options, chosen, choose) => h("div", { class: "segments", role: "group", "aria-label": label }, options.map(([value, text, number]) =>
  h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => { choose(value); redraw(); } }, text, number !== undefined && h("span", { class: "badge" }, number))));

/** Asks for the page to be drawn again. */
export const redraw = () => document.dispatchEvent(new Event("redraw"));

export const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
