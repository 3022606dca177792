// The words of Watershed's own: what each means, beside it when it is pointed at or focused, and all of them on a page.

import { h, redraw } from "./dom.js";
import { link } from "./route.js";

let words = []; // [word, meaning], from docs/reference/glossary.md

export async function loadGlossary() {
  words = await (await fetch("glossary.json")).json();
  redraw();
  if (document.activeElement?.dataset?.term) showAt(document.activeElement);
}

const meaning = (word) => words.find(([one]) => one === word)?.[1];

/** A word that shows its meaning. `label`: how it is written here. */
export const term = (word, label = word) => h("a", { class: "term", href: link("glossary", word), "data-term": word, "aria-describedby": shownAt?.dataset.term === word ? "tip" : null }, label);

export function glossary(announce, [chosen]) {
  return [h("section", { class: "panel", "aria-labelledby": "glossary-title" },
    h("div", { class: "panel-head" }, h("h2", { id: "glossary-title" }, "Glossary"), h("p", { class: "hint" }, "the words that have a sense of their own here")),
    h("dl", { class: "glossary" }, words.map(([word, text]) => h("div", { class: word === chosen ? "chosen" : "", "data-key": word }, h("dt", { id: `word-${word}` }, word), h("dd", {}, text)))))];
}

// ---- the tooltip, one for the page

const SPACE = 8;
let shownAt = null;

function hide() {
  shownAt?.removeAttribute("aria-describedby");
  shownAt = null;
  document.getElementById("tip").hidden = true;
}

function showAt(element) {
  const text = meaning(element.dataset.term);
  const tip = document.getElementById("tip");
  hide();
  if (!text) return;
  shownAt = element;
  element.setAttribute("aria-describedby", "tip");
  tip.textContent = text;
  tip.hidden = false;
  place();
}

/** Puts the tooltip beside its word. */
function place() {
  const tip = document.getElementById("tip");
  const at = shownAt.getBoundingClientRect();
  tip.style.left = `${Math.max(SPACE, Math.min(at.left, innerWidth - tip.offsetWidth - SPACE))}px`;
  tip.style.top = at.bottom + tip.offsetHeight + SPACE < innerHeight ? `${at.bottom + SPACE / 2}px` : `${at.top - tip.offsetHeight - SPACE / 2}px`;
}

export function followTerms() {
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, ({ target }) => {
      const element = target.closest?.("[data-term]");
      if (element) showAt(element);
      else if (target.id !== "tip" && name === "pointerover") hide();
    });
  }
  document.addEventListener("focusout", hide);
  addEventListener("hashchange", hide);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hide());
  addEventListener("scroll", () => shownAt && place(), { passive: true });
}
