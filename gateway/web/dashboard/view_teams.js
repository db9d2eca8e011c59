// The teams: what several keys may spend together, from the file and from the store.

import { every } from "./api.js";
import { fill, h } from "./dom.js";
import { many, quotaWords } from "./format.js";
import { poll } from "./poll.js";
import { empty, into } from "./states.js";
import { Table, filterField } from "./table.js";
import { editTeam } from "./team_form.js";
import { openTeam } from "./view_team.js";

const EVERY_MS = 30_000;

const COLUMNS = [
  { title: "Team", class: "mono", sort: (team) => team.name, show: (team) => team.name },
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
  const { role, signal, address } = context;
  const place = h("div");
  const note = h("p", { class: "note", role: "status" });
  const open = (name) => {
    location.hash = `#teams/${encodeURIComponent(name)}`;
  };
  const table = new Table(COLUMNS, {
    caption: "Teams",
    name: (team) => team.name,
    sort: 0,
    isDown: false,
    open: (team) => open(team.name),
    filter: (team, part) => team.name.includes(part),
  });
  let text = "";
  const look = () =>
    into(
      place,
      signal,
      async () => {
        const { found, isWhole } = await every("teams", {}, signal);
        fill(note, isWhole ? `${many(found.length, "team")}.` : `The first ${many(found.length, "team")} by name.`);
        if (!found.length) {
          fill(place, empty("No teams yet", "Keys of one team share its quotas, beside their own."));
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
      { "aria-labelledby": "teams-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "teams-title" }, "Teams"),
        filterField("Filter by name", (value) => {
          text = value.trim().toLowerCase();
          table.filter(value);
        }),
        role === "admin" &&
          h(
            "button",
            { type: "button", class: "primary", id: "new-team", onclick: () => editTeam(null, look) },
            "New team",
          ),
      ),
      note,
      h("div", { class: "panel flush" }, place),
    ),
  );
  poll(look, EVERY_MS, signal);
  const go = (name) => name && openTeam(name, context, look);
  go(address);
  return go;
}
