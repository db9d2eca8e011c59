// Sums by key, team, model or upstream, with a bar for the chosen measure and a way to narrow the page to one of them.

import { address, readAddress } from "./address.js";
import { fill, h } from "./dom.js";
import { NOTHING } from "./format.js";
import { canNarrow } from "./grouping.js";
import { MEASURES, NUMBERS, total } from "./sums.js";
import { Table } from "./table.js";

const LINKED = { key: "keys", team: "teams", model: "models", upstream: "upstreams" };
const COLUMN_OF = { cost: 6, tokens: 2, requests: 1, errors: 7 };

/** The settings that the page of one has in common with the page that leads to it. */
function shared() {
  const { query } = readAddress();
  return Object.fromEntries(["range", "since", "until", "metric"].map((name) => [name, query.get(name)]));
}

/** Whether the user has pages of the names of a group: operators and viewers have those of models and upstreams. */
export const hasPages = (can) => (group) => group === "key" || can(`GET /admin/api/${group === "team" ? "teams" : "models"}`);

const titleOf = (group) => group[0].toUpperCase() + group.slice(1);
const nameOf = (name, group) => name || (group === "owner" ? "no owner" : NOTHING);

export class GroupTable {
  /** `narrow(group, name)`, if given, is called when a row is chosen; `linked(group)`: whether names lead to pages; `keysOf(owner)` gives the
   * sums of the keys of an owner. */
  constructor(narrow = null, linked = () => false, keysOf = null) {
    Object.assign(this, { narrow, linked, keysOf, places: new Map() });
    this.text = "";
    this.shown = "";
    this.table = null;
  }

  filter(text) {
    this.text = text;
    this.table?.filter(text);
  }

  /** Show the sums of a state (`groups`, `group`, `metric`, and `then` where they are by a second group); returns the element. */
  show({ groups, group, metric, then = "" }) {
    if (this.shown !== `${group} ${metric} ${then}`) {
      this.shown = `${group} ${metric} ${then}`;
      this.table = this.make(group, metric, then);
      this.table.text = this.text.trim().toLowerCase();
    }
    this.table.most = Math.max(...groups.map((row) => MEASURES[metric].of(row) ?? 0), 0) || 1;
    this.table.show(groups);
    return this.table.node;
  }

  make(group, metric, then) {
    const second = then && { title: titleOf(then), class: "mono clip", isExact: true, sort: (row) => row[then], show: (row) => nameOf(row[then], then) };
    const name = {
      title: titleOf(group),
      isExact: true,
      sort: (row) => row[group],
      show: (row) => this.named(row, group, (MEASURES[metric].of(row) ?? 0) / this.table.most),
    };
    return new Table([name, ...(then ? [second] : []), ...NUMBERS], {
      caption: `Usage by ${group}${then ? ` and ${then}` : ""}`,
      name: (row) => (then ? `${row[group]} ${row[then]}` : row[group]),
      sort: COLUMN_OF[metric] + (then ? 1 : 0),
      filter: (row, part) => [row[group], row[then] ?? ""].some((text) => text.toLowerCase().includes(part)),
      none: "No calls in this time.",
      details: (row) => group === "owner" && !then && this.keysOf && { title: "keys", node: () => this.keyTable(row, metric) },
      total,
    });
  }

  /** The sums of the keys of an owner, which are asked for when her row is opened. */
  keyTable(row, metric) {
    const place = this.places.get(row.owner) ?? h("div");
    this.places.set(row.owner, place);
    this.keysOf(row.owner).then((groups) => {
      const table = new GroupTable(null, this.linked);
      fill(place, table.show({ groups, group: "key", metric }));
    }, () => fill(place, h("p", { class: "note" }, "Her keys could not be loaded.")));
    return place;
  }

  named(row, group, part) {
    const share = h("span", { class: "share", "aria-hidden": "true" });
    share.style.width = `${100 * part}%`;
    const name = row[group];
    return h(
      "span",
      { class: "named" },
      share,
      group in LINKED && name && this.linked(group)
        ? h("a", { href: address(LINKED[group], name, shared()), class: "mono" }, name)
        : h("span", { class: "mono" }, nameOf(name, group)),
      group === "owner" && [" ", this.table.opener(row)],
      name && this.narrow && canNarrow(group) && h("button", { type: "button", class: "only", "aria-label": `Filter by ${name}`, onclick: () => this.narrow(group, name) }, "filter"),
    );
  }
}
