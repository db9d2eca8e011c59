// The teams: what several keys may spend together, from the file and from the store.

import { h } from "./dom.js";
import { many, quotaWords } from "./format.js";
import { listing } from "./listing.js";
import { editTeam } from "./team_form.js";
import { USED_COLUMNS, usedLately } from "./used_lately.js";
import { openTeam } from "./view_team.js";

const COLUMNS = [
  { title: "Team", class: "mono", sort: (team) => team.name, show: (team) => team.name },
  ...USED_COLUMNS,
  {
    title: "Quotas",
    show: (team) =>
      team.quotas.length ? team.quotas.map(quotaWords).join(" · ") : h("span", { class: "unknown" }, "none"),
  },
  {
    title: "Kept in",
    sort: (team) => team.managed_by,
    show: (team) => (team.managed_by === "file" ? "the file" : "the store"),
  },
];

export function teams(main, context) {
  return listing(main, context, {
    list: "teams",
    one: "team",
    title: "Teams",
    columns: COLUMNS,
    name: (team) => team.name,
    matches: (team, part) => team.name.includes(part),
    filterBy: "Filter by name",
    note: (found, isWhole) =>
      isWhole ? `${many(found.length, "team")}.` : `The first ${many(found.length, "team")} by name.`,
    none: ["No teams yet", "Keys of one team share its quotas, beside their own."],
    more: (signal) => usedLately("team", signal),
    edit: editTeam,
    open: openTeam,
  });
}
