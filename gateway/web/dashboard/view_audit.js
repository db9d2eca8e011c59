// The audit log: who has changed what, and how it was before.

import { address } from "./address.js";
import { get } from "./api.js";
import { openOne } from "./dialog.js";
import { isoTime } from "./csv.js";
import { fill, h } from "./dom.js";
import { fullMoment, moment } from "./format.js";
import { empty, into } from "./states.js";
import { Table } from "./table.js";
import { filterField } from "./table_parts.js";

const AT_ONCE = 200;

const formatted = (value) => (value === null || value === undefined ? "nothing" : JSON.stringify(value, null, 2));

const inFull = (change) => [
  h("p", null, `${change.action.replaceAll("_", " ")}: ${change.kind} ${change.name}, ${fullMoment(change.time)}, by ${change.actor}`),
  h(
    "div",
    { class: "before-after" },
    ["before", "after"].map((when) =>
      h(
        "figure",
        null,
        h("figcaption", null, when === "before" ? "Before" : "After"),
        h("pre", { tabindex: "0" }, formatted(change[when])),
      ),
    ),
  ),
];

const COLUMNS = [
  { title: "Time", saved: [{ title: "time", of: (change) => isoTime(change.time) }, { title: "id", of: (change) => change.id }], sort: (change) => change.time, show: (change) => moment(change.time) },
  { title: "What", sort: (change) => change.action, show: (change) => change.action.replaceAll("_", " ") },
  { title: "Of", class: "mono", sort: (change) => change.name, show: (change) => `${change.kind} ${change.name}` },
  { title: "By", sort: (change) => change.actor, show: (change) => change.actor },
];

export function audit(main, { signal, address: first }) {
  const place = h("div");
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Older changes");
  const table = new Table(COLUMNS, {
    caption: "Changes",
    name: (change) => change.id,
    sort: null,
    href: (change) => address("audit", change.id),
    none: "Nothing has been changed yet.",
    filter: (change, part) =>
      [change.actor, change.action, change.kind, change.name].some((each) =>
        String(each ?? "")
          .toLowerCase()
          .includes(part),
      ),
  });
  let rows = [];
  let next = ""; // null: there are no older ones
  async function read() {
    const page = await get("audit", { limit: AT_ONCE, before: next }, signal);
    rows = [...rows, ...page.data];
    next = page.next;
    if (!place.contains(table.node)) fill(place, table.node);
    table.show(rows);
    more.hidden = !next;
  }
  const look = () => into(place, signal, read, look);
  more.addEventListener("click", look);
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "audit-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "audit-title" }, "Changes"),
        filterField("Filter by who, what, which", (text) => table.filter(text)),
      ),
      h("div", { class: "panel flush" }, place),
      more,
    ),
  );
  const reading = look();

  /** Open the change with this id; older ones are read until it is found. */
  async function open(id) {
    if (!id) return;
    const { place: inside, both } = openOne("One change", "#audit", signal);
    await reading;
    const find = () => rows.find((change) => String(change.id) === id);
    into(inside, both, async () => {
      while (!find() && next) await read();
      const found = find();
      fill(inside, found ? inFull(found) : empty("Not found", "There is no change with this id."));
    });
  }
  open(first);
  return open;
}
