// The filters of a report: one name each of key, team, model and upstream, in the address and as chips.

import { fill, h } from "./dom.js";

export const FILTERS = ["key", "team", "model", "upstream"];

/** The filters of the settings of an address, by name. */
export const readFilters = (query) =>
  Object.fromEntries(FILTERS.filter((name) => query.has(name)).map((name) => [name, query.get(name)]));

/** A chip for each filter, with a button that takes it away: `drop(name)`. */
export function chips(filters, drop) {
  return fill(
    h("div", { class: "chips", role: "group", "aria-label": "Filters" }),
    Object.entries(filters).map(([name, value]) =>
      h(
        "button",
        { type: "button", class: "chip", data: { filter: name }, "aria-label": `Remove the filter ${name} ${value}`, onclick: () => drop(name) },
        h("span", null, `${name}: `, h("b", { class: "mono" }, value)),
        h("span", { "aria-hidden": "true" }, "✕"),
      ),
    ),
  );
}
