// Refusals of the gateway itself since yesterday, from its log of refusals: the reasons, and the keys. Such calls have no record.

import { address } from "./address.js";
import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, day, fullMoment, recent } from "./format.js";
import { modelOf } from "./refusal_rows.js";
import { empty, into } from "./states.js";
import { Table } from "./table.js";
import { sumOf } from "./table_parts.js";

const READ = 1000;

const codeOf = (row) => row.code ?? `status ${row.status}`;

const COLUMNS = [
  { title: "Key", class: "mono", sort: (row) => row.key ?? "", show: (row) => (row.key ? h("a", { href: address("keys", row.key) }, row.key) : "no known key") },
  { title: "Model", class: "mono clip", sort: modelOf, show: (row) => modelOf(row) || NOTHING },
  { title: "Status", sort: (row) => row.status, show: (row) => row.status },
  { title: "Code", class: "mono", sort: codeOf, show: codeOf },
  { title: "Last", class: "moment", sort: (row) => row.time, show: (row) => h("span", { title: fullMoment(row.time) }, recent(row.time)) },
  { title: "Times", isNumber: true, sort: (row) => row.number, show: (row) => count(row.number) },
];

const nameOf = (row) => JSON.stringify([row.key, modelOf(row), row.status, row.code]);
const mostFirst = (groups) => [...groups.values()].sort((one, other) => other.length - one.length);

/** The refusals since yesterday, equal ones as one row; `look()` reads them again. */
export class RefusedLately {
  constructor(signal) {
    this.signal = signal;
    this.reasons = h("ul", { class: "reasons" });
    this.note = h("p", { class: "note" });
    this.table = new Table(COLUMNS, { caption: "Refused since yesterday, by key", name: nameOf, sort: 5, total: sumOf("number") });
    this.columns = h("div", { class: "columns" }, this.reasons, this.table.node);
    this.node = h("div");
  }

  look() {
    return into(this.node, this.signal, () => this.read(), () => this.look());
  }

  async read() {
    const { data, next } = await get("refusals", { since: day(1), limit: READ }, this.signal);
    if (!data.length) {
      fill(this.node, empty("Nothing was refused", "since yesterday."));
      return;
    }
    if (!this.node.contains(this.columns)) fill(this.node, this.note, this.columns);
    fill(this.note, next ? `Of the newest ${count(READ)} refusals.` : "");
    fill(
      this.reasons,
      mostFirst(Map.groupBy(data, codeOf)).map((rows) =>
        h(
          "li",
          { data: { reason: codeOf(rows[0]) } },
          h("b", { class: "figure-small" }, count(rows.length)),
          h("span", null, h("a", { href: address("calls", "", { outcome: "refused", code: rows[0].code }) }, h("code", null, codeOf(rows[0]))), h("br"), h("small", null, "Last: ", rows[0].message)),
        ),
      ),
    );
    this.table.show(mostFirst(Map.groupBy(data, nameOf)).map((rows) => ({ ...rows[0], number: rows.length })));
  }
}
