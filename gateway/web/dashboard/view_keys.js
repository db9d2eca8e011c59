// The keys: who may call, from the file and from the store, and what can be done to each.

import { h } from "./dom.js";
import { NOTHING, count, many, minute, quotaWords } from "./format.js";
import { teamName } from "./facts.js";
import { statusPill } from "./key_actions.js";
import { editKey } from "./key_form.js";
import { listing } from "./listing.js";
import { USED_COLUMNS, usedLately } from "./used_lately.js";
import { openKey } from "./view_key.js";

const columns = (can) => [
  { title: "Key", class: "mono", sort: (key) => key.id, show: (key) => key.id },
  {
    title: "Status",
    sort: (key) => key.status,
    show: statusPill,
  },
  { title: "Team", class: "mono", sort: (key) => key.team ?? "", show: (key) => (key.team ? teamName(key.team, can) : NOTHING) },
  { title: "Owner", class: "clip", sort: (key) => key.owner ?? "", show: (key) => (key.owner ? h("span", { title: key.owner }, key.owner) : NOTHING) },
  ...USED_COLUMNS,
  {
    title: "Models",
    class: "mono clip",
    sort: (key) => key.models.join(),
    show: (key) => (key.models.includes("*") ? "all" : h("span", { title: key.models.join(", ") }, key.models.join(", "))),
  },
  {
    title: "Quotas",
    class: "quota-cell",
    show: (key) =>
      key.quotas.length
        ? key.quotas.map(quotaWords).join(" · ")
        : h("span", { class: key.team ? "unknown" : "bad" }, key.team ? "those of its team" : "no quota"),
  },
  {
    title: "Kept in",
    sort: (key) => key.managed_by,
    show: (key) => (key.managed_by === "file" ? "the file" : "the store"),
  },
  { title: "Expires", sort: (key) => key.expires ?? "", show: (key) => minute(key.expires) },
];

export function keys(main, context) {
  return listing(main, context, {
    list: "keys",
    one: "key",
    title: "Keys",
    columns: columns(context.can),
    name: (key) => key.id,
    matches: (key, part) =>
      [key.id, key.team ?? "", key.status, key.owner ?? "", key.note ?? "", ...key.models].some((each) => each.toLowerCase().includes(part)),
    filterBy: "Filter by id, team, owner …",
    note: (found, isWhole) =>
      isWhole
        ? `${many(found.length, "key")}, ${count(found.filter((key) => key.status === "active").length)} active.`
        : `The first ${count(found.length)} keys by id; for the others, ask the admin API or gateway keys.`,
    none: [
      "No keys yet",
      context.can("POST /admin/api/keys") ? "Make one: its secret is shown once." : "Whoever has the admin token can make one.",
    ],
    more: (signal) => usedLately("key", signal),
    edit: editKey,
    open: openKey,
  });
}
