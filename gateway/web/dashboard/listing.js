// A list of things that are made in the page and opened one by one: keys, teams.

import { address as addressOf } from "./address.js";
import { every } from "./api.js";
import { fill, h } from "./dom.js";
import { poll } from "./poll.js";
import { empty, into } from "./states.js";
import { Table, filterField } from "./table.js";

const EVERY_MS = 30_000;

/**
 * Show a list, and keep it fresh. `what` describes the list: `list` (its name in the API and in addresses), `title`,
 * `columns`, `name(thing)`, `matches(thing, part)`, `filterBy`, `note(found, isWhole)`, `none` (title and words of an
 * empty list), `one` (its name on the button and in ids), `edit(thing, then)`, `more(signal)` (what is known of each
 * as `used`, by name), and `open(name, context, changed)`.
 * Returns how to open one by its name.
 */
export function listing(main, context, what) {
  const { can, signal, address } = context;
  const place = h("div");
  const note = h("p", { class: "note", role: "status" });
  const table = new Table(what.columns, {
    caption: what.title,
    name: what.name,
    sort: 0,
    isDown: false,
    href: (thing) => addressOf(what.list, what.name(thing)),
    filter: what.matches,
  });
  let text = "";
  const look = () =>
    into(
      place,
      signal,
      async () => {
        const [{ found: plain, isWhole }, used] = await Promise.all([every(what.list, {}, signal), what.more(signal)]);
        const found = plain.map((thing) => ({ ...thing, used: used.get(what.name(thing)) }));
        fill(note, what.note(found, isWhole));
        if (!found.length) {
          fill(place, empty(...what.none));
          return;
        }
        if (!place.contains(table.node)) fill(place, table.node);
        table.text = text;
        table.show(found);
      },
      look,
    );

  fill(
    main,
    h(
      "section",
      { "aria-labelledby": `${what.list}-title` },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: `${what.list}-title` }, what.title),
        filterField(what.filterBy, (value) => {
          text = value.trim().toLowerCase();
          table.filter(value);
        }),
        can(`POST /admin/api/${what.list}`) &&
          h(
            "button",
            { type: "button", class: "primary", id: `new-${what.one}`, onclick: () => what.edit(null, look, context) },
            `New ${what.one}`,
          ),
      ),
      note,
      h("div", { class: "panel flush" }, place),
    ),
  );
  poll(look, EVERY_MS, signal);
  const go = (name) => name && what.open(name, context, look);
  go(address);
  return go;
}
