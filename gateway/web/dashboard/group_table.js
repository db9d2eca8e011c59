// Sums by key, team, model or upstream, with a bar for the chosen measure and a way to narrow the page to one of them.

import { address, readAddress } from "./address.js";
import { h } from "./dom.js";
import { NOTHING } from "./format.js";
import { canNarrow } from "./grouping.js";
import { MEASURES, NUMBERS } from "./sums.js";
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

export class GroupTable {
  /** `narrow(group, name)`, if given, is called when a row is chosen; `linked(group)`: whether names lead to pages. */
  constructor(narrow = null, linked = () => false) {
    Object.assign(this, { narrow, linked });
    this.text = "";
    this.shown = "";
    this.table = null;
  }

  filter(text) {
    this.text = text;
    this.table?.filter(text);
  }

  /** Show the sums of a state (`groups`, `group`, `metric`); returns the element. */
  show({ groups, group, metric }) {
    if (this.shown !== `${group} ${metric}`) {
      this.shown = `${group} ${metric}`;
      this.table = this.make(group, metric);
      this.table.text = this.text.trim().toLowerCase();
    }
    this.table.most = Math.max(...groups.map((row) => MEASURES[metric].of(row) ?? 0), 0) || 1;
    this.table.show(groups);
    return this.table.node;
  }

  make(group, metric) {
    const name = {
      title: group[0].toUpperCase() + group.slice(1),
      isExact: true,
      sort: (row) => row[group],
      show: (row) => this.named(row, group, (MEASURES[metric].of(row) ?? 0) / this.table.most),
    };
    return new Table([name, ...NUMBERS], {
      caption: `Usage by ${group}`,
      name: (row) => row[group],
      sort: COLUMN_OF[metric],
      filter: (row, part) => row[group].toLowerCase().includes(part),
      none: "No calls in this time.",
    });
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
        : h("span", { class: "mono" }, name || NOTHING),
      name && this.narrow && canNarrow(group) && h("button", { type: "button", class: "only", "aria-label": `Only ${name}`, onclick: () => this.narrow(group, name) }, "only"),
    );
  }
}
