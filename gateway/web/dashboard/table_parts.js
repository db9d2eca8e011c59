// Parts of tables: sums, a column of a percentile, the field that filters.

import { h } from "./dom.js";
import { span } from "./format.js";

/** The sums of these members of rows, for `total`; a member that no row knows is unknown. */
export const sumOf = (...names) => (rows) =>
  Object.fromEntries(
    names.map((name) => {
      const known = rows.map((row) => row[name]).filter((value) => value !== null && value !== undefined);
      return [name, known.length || !rows.length ? known.reduce((all, value) => all + value, 0) : null];
    }),
  );

/** A column of a 95th percentile in seconds, with that of the time before below it; `before(row)` gives the latter, null: none. */
export const p95Column = (title, name, hint, before) => ({
  title,
  hint,
  isNumber: true,
  sort: (row) => row[name],
  show: (row) => [span(row[name]), (before(row) ?? null) !== null && h("small", { class: "before", data: { before: before(row) } }, ` ${span(before(row))}`)],
});

/** The field that filters; `/` leads to it. */
export function filterField(label, tell) {
  return h("input", {
    type: "search",
    class: "filter",
    placeholder: label,
    "aria-label": label,
    "aria-keyshortcuts": "/",
    spellcheck: "false",
    autocomplete: "off",
    oninput: (event) => tell(event.target.value),
  });
}
