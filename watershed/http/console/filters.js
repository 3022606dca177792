// Lists of any length: a text and a state to filter by, and pages, so that a thousand lines cost what fifty do.

import { h, redraw, segments } from "./dom.js";
import { count, plural } from "./format.js";

export class Filter {
  /** `what`: a word for one of the things; `states`: what can be chosen; `size`: of a page. */
  constructor(what, states, size = 50) {
    Object.assign(this, { what, states, size, text: "", state: "", page: 0 });
  }

  change(fields) {
    Object.assign(this, { page: 0 }, fields);
    redraw();
  }

  /** Those that match. `name` and `state`: of one of `all`. */
  found(all, name, state) {
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    this.named = all.filter((one) => words.every((word) => name(one).toLowerCase().includes(word)));
    this.counts = new Map();
    for (const one of this.named) this.counts.set(state(one), (this.counts.get(state(one)) ?? 0) + 1);
    return this.state ? this.named.filter((one) => state(one) === this.state) : [...this.named];
  }

  /** The lines of the page that is shown. */
  shown(found) {
    this.page = Math.min(this.page, Math.max(0, Math.ceil(found.length / this.size) - 1));
    return found.slice(this.page * this.size, (this.page + 1) * this.size);
  }

  /** The form, after `found`. */
  form() {
    const options = [["", "all", count(this.named.length)], ...this.states.map((name) => [name, name, count(this.counts.get(name) ?? 0)])];
    return h("div", { class: "filters" },
      h("label", { class: "search" }, h("span", { class: "unseen" }, "Filter by name"),
        h("input", { id: "filter", type: "search", placeholder: "Filter by name  ( / )", autocomplete: "off", spellcheck: "false", value: this.text, oninput: (event) => this.change({ text: event.target.value }) })),
      segments("State", options, this.state, (state) => Object.assign(this, { state, page: 0 })));
  }

  pages(total) {
    const last = Math.max(0, Math.ceil(total / this.size) - 1);
    const from = this.page * this.size;
    const go = (page) => () => {
      this.change({ page });
      scrollTo(0, 0);
    };
    return h("nav", { class: "pages", "aria-label": `Pages of ${this.what}s` },
      h("button", { type: "button", disabled: this.page === 0, onclick: go(this.page - 1) }, "Previous"),
      h("p", { role: "status" }, total ? `${count(from + 1)}–${count(Math.min(total, from + this.size))} of ${plural(total, this.what)}` : `no ${this.what} matches`),
      h("button", { type: "button", disabled: this.page === last, onclick: go(this.page + 1) }, "Next"));
  }
}
