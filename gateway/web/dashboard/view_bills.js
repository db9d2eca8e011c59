// The bill in three parts: records and bill side by side, the statement of a month, and the comparison with a file.

import { readAddress } from "./address.js";
import { recordsPart } from "./bill_records.js";
import { fill, h } from "./dom.js";
import { statementPart } from "./statement.js";
import { invoice } from "./view_invoice.js";

const PARTS = {
  bills: { title: "Records and bill", needs: "GET /admin/api/bills", show: recordsPart },
  statement: { title: "Statement", needs: "GET /admin/api/statement", show: statementPart },
  invoice: { title: "A file", needs: "POST /admin/api/invoice", show: invoice },
};

/** The operations of which one is needed for the view. */
export const BILL_NEEDS = Object.values(PARTS).map(({ needs }) => needs);

export function bills(main, context) {
  const { can, signal, address, kind } = context;
  const known = Object.entries(PARTS).filter(([, { needs }]) => can(needs));
  const tabs = h("nav", { class: "tabs", "aria-label": "Parts of the bill" });
  const place = h("div", { class: "part" });
  let shown = new AbortController();
  fill(main, tabs, place);

  function go(name, view) {
    const [chosen, part] = known.find(([each]) => each === view) ?? known[0];
    shown.abort();
    shown = new AbortController();
    fill(tabs, known.map(([each, { title }]) => h("a", { href: `#${each}`, "aria-current": each === chosen ? "page" : null }, title)));
    part.show(place, { ...context, address: name, query: readAddress().query, signal: AbortSignal.any([signal, shown.signal]) });
  }

  go(address, kind);
  return go;
}
