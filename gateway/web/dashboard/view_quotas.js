// Every limit as a bar: the gateway's, the teams', the keys'; the fullest first.

import { get } from "./api.js";
import { expected, freeAgain, fullness, isSpent, quotaBar } from "./bars.js";
import { fill, h, refill } from "./dom.js";
import { teamName } from "./facts.js";
import { amount, count, many, percent, quotaName } from "./format.js";
import { windowActions } from "./key_actions.js";
import { Paces } from "./paces.js";
import { poll } from "./poll.js";
import { ownerOf as scopeInWords } from "./scopes.js";
import { empty, into } from "./states.js";
import { Table, filterField } from "./table.js";

const EVERY_MS = 15_000;
const FEW = 6; // owners of limits beside the keys

const thin = (row) => {
  const used = h("span", { class: "used" });
  const reserved = h("span", { class: "reserved" });
  const scale = Math.max(row.limit, row.used + row.reserved) || 1;
  used.style.width = `${(100 * row.used) / scale}%`;
  reserved.style.width = `${(100 * row.reserved) / scale}%`;
  const kind = fullness(row) >= 1 ? (row.enforced ? "full" : "near") : fullness(row) >= 0.8 ? "near" : "fine";
  return h(
    "span",
    { class: `thin ${kind}` },
    h("span", { class: "bar-track", "aria-hidden": "true" }, used, reserved),
    h("span", { class: "share-text" }, percent(row.used + row.reserved, row.limit)),
  );
};

/** The owner of a window, in words. */
const ownerOf = (row) => (row.person ? `person ${row.person}` : isOfTeam(row) ? `team ${row.team}` : scopeInWords(row.scope));

/** Whether a window is a team's own. */
const isOfTeam = (row) => row.scope.startsWith("team:");

const columns = (opener, can) => [
  {
    title: "Key",
    class: "mono",
    sort: (row) => row.key,
    show: (row) => h("a", { href: `#keys/${encodeURIComponent(row.key)}` }, row.key),
  },
  { title: "Team", class: "mono", sort: (row) => row.team ?? "", show: (row) => (row.team ? teamName(row.team, can) : "") },
  {
    title: "Fullest quota",
    class: "quota-cell",
    sort: quotaName,
    show: (row) => [quotaName(row), !row.enforced && h("span", { class: "tag" }, "shadow"), opener(row), blocked(row)],
  },
  { title: "How full", class: "wide", isNumber: false, sort: fullness, show: thin },
  { title: "Used", isNumber: true, sort: (row) => row.used, show: (row) => amount(row.unit, row.used) },
  {
    title: "Reserved",
    isNumber: true,
    sort: (row) => row.reserved,
    show: (row) => (row.reserved ? amount(row.unit, row.reserved) : "0"),
  },
  { title: "Limit", isNumber: true, sort: (row) => row.limit, show: (row) => amount(row.unit, row.limit) },
  {
    title: "Free again",
    class: "moment",
    sort: (row) => row.reset_s,
    show: (row) => [h("span", { title: row.reset_at }, freeAgain(row)), expected(row) && [h("br"), expected(row)]],
  },
];

/** The heading of the windows that a person, a team or the whole gateway has. */
const sharers = ({ person, team, scope }, can) => {
  if (!person && scope !== "gateway" && !scope.startsWith("team:")) return h("b", null, scopeInWords(scope));
  return [
    person && ["Person ", h("b", null, person), team && " in the "],
    team ? [person ? "team " : "Team ", teamName(team, can)] : !person && "The whole gateway",
  ];
};

/** Which quotas of others keep a key from calling. */
const blocked = ({ spent }) =>
  spent.length > 0 && h("small", { class: "blocked bad" }, spent.map((row) => `${quotaName(row)} of ${ownerOf(row)}: spent`).join(", "));

/** The fullest window of each key, with its other ones as `others`, and what is spent of its team and of the gateway, which
 * also binds it, as `spent`. */
function fullestOfEach(windows, shared) {
  const byKey = Map.groupBy(windows, (row) => row.key);
  return [...byKey.values()].map((rows) => {
    const [first, ...others] = rows.sort((one, other) => fullness(other) - fullness(one));
    const spent = shared.filter((row) => first.enforced && isSpent(row) && (isOfTeam(row) ? row.team === first.team : row.scope === "gateway"));
    return { ...first, others, spent };
  });
}

/** The spent limits, in words. */
function spentInWords(keys, shared) {
  const full = keys.filter(isSpent).length;
  const owners = [...new Set(shared.filter(isSpent).map(ownerOf))];
  const named = owners.map((owner) => `one of ${owner}`);
  if (!full && !named.length) return `None of ${many(keys.length + shared.length, "limit")} is spent.`;
  const said = [full > 0 && `${count(full)} of ${many(keys.length, "limit")} of keys`, ...named].filter(Boolean);
  return `Spent: ${said.join(", ")}. What needs more gets 429.`;
}

export function quotas(main, { can, signal }) {
  const whole = h("div");
  const place = h("div");
  const pair = h("div", { class: "pair" }, whole);
  const panel = h("div", { class: "panel flush" }, place);
  const note = h("p", { class: "note", role: "status" });
  const paces = new Paces(signal);
  let text = "";
  const table = new Table(columns((row) => table.opener(row), can), {
    caption: "Quotas of keys",
    name: (row) => row.scope,
    sort: 3,
    filter: (row, part) =>
      [row, ...row.others].some((window) =>
        [row.key, row.team, window.model, window.unit, window.per].some((each) => (each ?? "").toLowerCase().includes(part)),
      ),
    none: "No key has a limit of its own.",
    details: ({ others }) =>
      others.length > 0 && {
        title: `${many(others.length, "other")}`,
        node: () => h("div", { class: "quotas" }, others.map((row) => quotaBar(row, windowActions(row, look, can)))),
      },
    saved: (rows) => rows.flatMap((row) => [row, ...row.others]),
  });

  const look = () =>
    into(
      place,
      signal,
      async () => {
        const data = await paces.added((await get("quotas", null, signal)).data);
        const [keys, shared] = [data.filter((row) => row.key !== null), data.filter((row) => row.key === null)];
        const owned = Map.groupBy(shared, (row) => row.scope);
        const fullest = (scope) => Math.max(...owned.get(scope).map(fullness));
        const scopes = [...owned.keys()].sort((one, other) => fullest(other) - fullest(one) || (one < other ? -1 : 1));
        pair.parentNode.insertBefore(pair, scopes.length > FEW ? null : panel); // many of them are below the table
        refill(
          whole,
          scopes.map((scope) =>
            h(
              "section",
              { class: "panel" },
              h(
                "h3",
                null,
                sharers(owned.get(scope)[0], can),
              ),
              owned.get(scope).map((row) => quotaBar(row, windowActions(row, look, can))),
            ),
          ),
        );
        fill(note, spentInWords(keys, shared));
        if (!data.length)
          fill(
            place,
            empty(
              "No limits yet",
              "Keys, teams and the whole gateway may have quotas of requests, tokens and US dollars.",
            ),
          );
        else {
          if (!place.contains(table.node)) fill(place, table.node);
          table.text = text;
          table.show(fullestOfEach(keys, shared));
        }
      },
      look,
    );

  const filter = filterField("Filter by key, team, model, unit", (value) => {
    text = value.trim().toLowerCase();
    table.filter(value);
  });
  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "quotas-title" },
      h("div", { class: "bar" }, h("h2", { id: "quotas-title" }, "Quotas"), filter),
      note,
      pair,
      panel,
    ),
  );
  poll(look, EVERY_MS, signal);
}
