// The keys: who may call, from the file and from the store, and what can be done to each.

import { every } from "./api.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, many, minute, quotaWords } from "./format.js";
import { teamLink } from "./facts.js";
import { editKey } from "./key_form.js";
import { poll } from "./poll.js";
import { empty, into } from "./states.js";
import { Table, filterField } from "./table.js";
import { openKey } from "./view_key.js";

const EVERY_MS = 30_000;

const STATUS = { active: "fine", expired: "near", revoked: "full" };

const COLUMNS = [
  { title: "Key", class: "mono", sort: (key) => key.id, show: (key) => key.id },
  {
    title: "Status",
    sort: (key) => key.status,
    show: (key) => h("span", { class: `pill ${STATUS[key.status] ?? ""}` }, key.status),
  },
  { title: "Team", class: "mono", sort: (key) => key.team ?? "", show: (key) => (key.team ? teamLink(key.team) : NOTHING) },
  {
    title: "Models",
    class: "mono clip",
    sort: (key) => key.models.join(),
    show: (key) => h("span", { title: key.models.join(", ") }, key.models.join(", ")),
  },
  {
    title: "Quotas",
    class: "quota-cell",
    show: (key) =>
      key.quotas.length ? key.quotas.map(quotaWords).join(" · ") : h("span", { class: "unknown" }, "none"),
  },
  {
    title: "Kept in",
    sort: (key) => key.managed_by,
    show: (key) => (key.managed_by === "file" ? "the file" : "the store"),
  },
  { title: "Expires", sort: (key) => key.expires ?? "", show: (key) => minute(key.expires) },
];

export function keys(main, context) {
  const { role, signal, address } = context;
  const place = h("div");
  const note = h("p", { class: "note", role: "status" });
  const open = (key) => {
    location.hash = `#keys/${encodeURIComponent(key.id)}`;
  };
  const table = new Table(COLUMNS, {
    caption: "Keys",
    name: (key) => key.id,
    sort: 0,
    isDown: false,
    open,
    filter: (key, part) =>
      [key.id, key.team ?? "", key.status, ...key.models].some((each) => each.toLowerCase().includes(part)),
  });
  let text = "";
  const look = () =>
    into(
      place,
      signal,
      async () => {
        const { found, isWhole } = await every("keys", {}, signal);
        fill(
          note,
          isWhole
            ? `${many(found.length, "key")}, ${count(found.filter((key) => key.status === "active").length)} active.`
            : `The first ${count(found.length)} keys by id; for the others, ask the admin API or gateway keys.`,
        );
        if (!found.length) {
          fill(
            place,
            empty(
              "No keys yet",
              role === "admin" ? "Make one: its secret is shown once." : "Whoever has the admin token can make one.",
            ),
          );
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
      { "aria-labelledby": "keys-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "keys-title" }, "Keys"),
        filterField("Filter by id, team, model, status", (value) => {
          text = value.trim().toLowerCase();
          table.filter(value);
        }),
        role === "admin" &&
          h(
            "button",
            { type: "button", class: "primary", id: "new-key", onclick: () => editKey(null, look) },
            "New key",
          ),
      ),
      note,
      h("div", { class: "panel flush" }, place),
    ),
  );
  poll(look, EVERY_MS, signal);
  const go = (id) => id && openKey(id, context, look);
  go(address);
  return go;
}
