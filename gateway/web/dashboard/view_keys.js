// Keys, their quotas and teams in one table, by key, by owner or by team: spend, the fullest limit, the last call, refusals.

import { address as addressOf, readAddress, replaceAddress } from "./address.js";
import { TITLES, columns, savedColumns, spentInWords } from "./account_columns.js";
import { GROUPINGS, accountsBy, holderOf, isNear } from "./accounts.js";
import { every, get } from "./api.js";
import { fullness, quotaBar } from "./bars.js";
import { fill, h, refill } from "./dom.js";
import { count, day, many } from "./format.js";
import { windowActions } from "./key_actions.js";
import { editKey } from "./key_form.js";
import { poll } from "./poll.js";
import { Reports } from "./reports.js";
import { ownerOf as scopeInWords } from "./scopes.js";
import { empty, into } from "./states.js";
import { switcher } from "./switcher.js";
import { Table } from "./table.js";
import { filterField, sumOf } from "./table_parts.js";
import { editTeam } from "./team_form.js";
import { openKey } from "./view_key.js";
import { openPerson } from "./view_person.js";
import { openTeam } from "./view_team.js";

const EVERY_MS = 30_000;
const DAYS = 30;
const REFUSED_DAYS = 7; // as gateway/store/refusals.py has it
const REFUSED_AT_MOST = 1000;
const FEW = 6; // shared limits beside the table

const CAPTIONS = { key: "Keys", owner: "People", team: "Teams" };
const NONE = { key: "No keys yet.", owner: "No key has an owner, and no person is in the configuration.", team: "No teams yet. Keys of one team share its quotas, beside their own." };
// The view of each grouping in addresses, and who opens one of it.
const VIEW_OF = { key: "keys", owner: "people", team: "teams" };
const OPENS = { keys: openKey, quotas: openKey, people: openPerson, teams: openTeam };

/** A table by one grouping; `redo` looks again. An opened row stays open when numbers change. */
function accountTable(by, can, redo, hasRefused, caption = CAPTIONS[by]) {
  const places = new Map();
  const below = (row) => {
    const found = places.get(row.name) ?? { limits: h("div"), keys: row.keys.length ? accountTable("key", can, redo, hasRefused, `Keys of ${row.name || `no ${by}`}`) : null };
    places.set(row.name, found);
    refill(found.limits, row.windows.length > 0 && h("div", { class: "quotas" }, row.windows.map((window) => quotaBar(window, windowActions(window, redo, can)))));
    found.keys?.show(row.keys);
    return [found.limits, found.keys?.node];
  };
  const table = new Table(columns(by, can, (row) => table.opener(row), hasRefused), {
    caption,
    name: (row) => row.name,
    sort: by === "key" ? 5 : 3,
    href: (row) => (row.settings && row.name ? addressOf(VIEW_OF[by], row.name) : null),
    filter: ({ name, settings, owner, team, keys, windows }, part) =>
      [name, owner, team, settings?.status, settings?.note, ...(settings?.models ?? []), ...keys.map((key) => key.name), ...windows.flatMap((row) => [row.model, row.unit, row.per])].some((each) => (each ?? "").toLowerCase().includes(part)),
    none: NONE[by],
    usual: NONE[by],
    details: (row) =>
      !row.isSum && (row.keys.length || row.windows.length) > 0 && {
        title: !row.keys.length ? many(row.windows.length, "limit") : many(row.keys.length, "key"),
        node: () => below(row),
      },
    total: (rows) => ({ ...sumOf("cost_usd", "refused")(rows), isSum: true, keys: rows.flatMap((row) => row.keys), name: "", windows: [], used: { unpriced: sumOf("unpriced")(rows.map((row) => row.used ?? {})).unpriced ?? 0 } }),
    saved: (rows) => rows.flatMap((row) => (row.windows.length ? row.windows.map((window) => ({ ...row, window })) : [row])),
    savedColumns: savedColumns(by),
  });
  return table;
}

/** The cards of limits that belong to no key, owner or team: those of the whole gateway, of tags and of labels. */
function shared(windows, can, redo) {
  const owned = [...Map.groupBy(windows.filter((row) => !holderOf(row)), (row) => row.scope).values()];
  const fullest = (rows) => Math.max(...rows.map(fullness));
  return owned
    .sort((one, other) => fullest(other) - fullest(one))
    .map((rows) => {
      const words = scopeInWords(rows[0].scope);
      return h("section", { class: "panel" }, h("h3", null, words[0].toUpperCase() + words.slice(1)), rows.map((row) => quotaBar(row, windowActions(row, redo, can))));
    });
}

export function keys(main, context) {
  const { can, signal, address, kind } = context;
  const [place, cards] = [h("div"), h("div")];
  const [note, spent] = [h("p", { class: "note", role: "status" }), h("p", { class: "note spent" })];
  const pair = h("div", { class: "pair" }, cards);
  const panel = h("div", { class: "panel flush" }, place);
  const reports = new Reports(signal);
  const groupings = Object.fromEntries(Object.entries(GROUPINGS).filter(([by]) => by !== "team" || can("GET /admin/api/teams")));
  const hasRefused = can("GET /admin/api/refusals");
  const tables = new Map();
  let [by, text, known, isNearAlone] = ["key", "", null, Boolean(readAddress().query.get("near"))];

  /** The grouping that an address asks for: #teams, #people; #keys?by=owner and #quotas, as before. */
  const asked = (view) => [{ teams: "team", people: "owner" }[view] ?? readAddress().query.get("by")].find((each) => each in groupings) ?? "key";

  const choice = switcher("One row for each", { key: "key", owner: "person", team: "team" }, asked(kind), (chosen) => {
    replaceAddress(addressOf(VIEW_OF[chosen], "", { near: isNearAlone ? "1" : "" }));
    set(chosen);
  });
  const near = switcher("Which rows", { all: "all", near: "near a limit" }, readAddress().query.get("near") ? "near" : "all", (chosen) => {
    isNearAlone = chosen === "near";
    replaceAddress(addressOf(VIEW_OF[by], "", { near: isNearAlone ? "1" : "" }));
    if (known) draw();
  });
  by = asked(kind);
  for (const button of choice.children) button.hidden = !(button.dataset.choice in groupings);

  function set(chosen) {
    by = chosen;
    for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.choice === by));
    if (known) draw();
    if (known && by === "owner" && known.people === null) look();
  }

  function draw() {
    if (!tables.has(by)) tables.set(by, accountTable(by, can, look, hasRefused));
    const table = tables.get(by);
    const rows = accountsBy(by, known).sort((one, other) => (one.name < other.name ? -1 : 1));
    if (!place.contains(table.node)) fill(place, table.node);
    table.text = text;
    table.of.none = isNearAlone ? "None is near a limit: 80 % of none is used." : table.of.usual;
    table.show(isNearAlone ? rows.filter(isNear) : rows);
    fill(near.querySelector("[data-choice=near]"), `near a limit (${count(rows.filter(isNear).length)})`);
  }

  const look = () =>
    into(
      place,
      signal,
      async () => {
        const [found, teams, people, { data: windows }, usage, refused] = await Promise.all([
          every("keys", {}, signal),
          can("GET /admin/api/teams") ? every("teams", {}, signal) : { found: [] },
          by === "owner" && can("GET /admin/api/people") ? every("people", {}, signal) : { found: known?.people ?? null },
          get("quotas", null, signal),
          reports.by(["key", "team", "day"], day(DAYS - 1), day()),
          hasRefused ? get("refusals", { since: `${day(REFUSED_DAYS - 1)}T00:00:00Z`, limit: REFUSED_AT_MOST }, signal) : { data: [], next: null },
        ]);
        known = { keys: found.found, teams: teams.found, people: people.found, windows, usage, refusals: refused.data };
        const active = known.keys.filter((key) => key.status === "active").length;
        fill(
          note,
          found.isWhole ? `${many(known.keys.length, "key")}, ${count(active)} active; ${many(known.teams.length, "team")}.` : `The first ${count(known.keys.length)} keys by id; for the others, ask the admin API or gateway keys.`,
          refused.next !== null && ` Refused: of the newest ${count(REFUSED_AT_MOST)}.`,
        );
        fill(spent, spentInWords(windows, can));
        const few = shared(windows, can, look);
        refill(cards, few);
        panel.parentNode.insertBefore(pair, few.length > FEW ? null : panel); // many of them are below the table
        if (known.keys.length || known.teams.length || usage.length) draw();
        else fill(place, empty("No keys yet", can("POST /admin/api/keys") ? "Make one: its secret is shown once." : "Whoever has the admin token can make one."));
      },
      look,
    );

  const make = (one, edit, isFirst) =>
    can(`POST /admin/api/${one}s`) && h("button", { type: "button", class: isFirst ? "primary" : null, id: `new-${one}`, onclick: () => edit(null, look, context) }, `New ${one}`);
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "keys-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "keys-title" }, "Keys, quotas and teams"),
        filterField("Filter by name, owner, model …", (value) => {
          text = value.trim().toLowerCase();
          tables.get(by)?.filter(value);
        }),
        make("team", editTeam, false),
        make("key", editKey, true),
      ),
      h("div", { class: "bar" }, h("span", { class: "by" }, "by ", choice), near, note),
      spent,
      panel,
    ),
  );
  poll(look, EVERY_MS, signal);
  const go = (name, view) => {
    if (!name || view === "teams" || view === "people") set(asked(view));
    if (name) (OPENS[view] ?? openKey)(name, context, look);
  };
  go(address, kind);
  return go;
}
