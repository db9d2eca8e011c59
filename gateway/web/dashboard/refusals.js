// Refusals of the gateway itself, by its metrics: the reasons, and the keys. Such calls have no record.

import { fill, h } from "./dom.js";
import { NOTHING, count } from "./format.js";
import { empty } from "./states.js";
import { Table } from "./table.js";
import { reason } from "./words.js";

const SHOWN = 20;

const COLUMNS = [
  {
    title: "Key",
    class: "mono",
    sort: (row) => row.key,
    show: (row) =>
      row.key && row.key !== "other" ? h("a", { href: `#keys/${encodeURIComponent(row.key)}` }, row.key) : row.key || "no key",
  },
  { title: "Model", class: "mono", sort: (row) => row.model, show: (row) => row.model || NOTHING },
  { title: "Status", sort: (row) => row.status, show: (row) => row.status },
  { title: "Times", isNumber: true, sort: (row) => row.requests, show: (row) => count(row.requests) },
];

/** The refusals since the start; `show(sample)` draws those of a live sample. */
export class RefusedSinceStart {
  constructor() {
    this.reasons = h("ul", { class: "reasons" });
    this.table = new Table(COLUMNS, { caption: "Refused, by key", name: (row) => `${row.key} ${row.model} ${row.status}`, sort: 3 });
    this.columns = h("div", { class: "columns" }, this.reasons, this.table.node);
    this.node = h("div");
    this.shown = "";
  }

  show({ rejections, refused }) {
    const shown = JSON.stringify([rejections, refused]);
    if (shown === this.shown) return; // or what has the focus would lose it
    this.shown = shown;
    const reasons = Object.entries(rejections)
      .filter(([, number]) => number > 0)
      .sort((one, other) => other[1] - one[1]);
    if (!reasons.length) {
      fill(this.node, empty("Nothing was refused", "since the gateway started."));
      return;
    }
    if (!this.node.contains(this.columns)) fill(this.node, this.columns);
    fill(
      this.reasons,
      reasons.map(([name, number]) =>
        h(
          "li",
          { data: { reason: name } },
          h("b", { class: "figure-small" }, count(number)),
          h("span", null, h("code", null, name), h("br"), h("small", null, reason(name))),
        ),
      ),
    );
    this.table.show([...refused].sort((one, other) => other.requests - one.requests).slice(0, SHOWN));
  }
}
