// The columns of the table of keys, owners and teams, on the page and in its file, and their sentences.

import { address as addressOf } from "./address.js";
import { fullestOf, holderOf, stopped } from "./accounts.js";
import { expected, freeAgain, fullnessKind, isSpent, thinBar } from "./bars.js";
import { h } from "./dom.js";
import { personName, teamName } from "./facts.js";
import { NOTHING, amount, count, day, many, quotaName, quotaWords, usd } from "./format.js";
import { statusPill } from "./key_actions.js";
import { ownerOf as scopeInWords } from "./scopes.js";

export const TITLES = { key: "Key", owner: "Person", team: "Team" };

/** The owner of a window, in words; a team as a link. */
const holder = (row, can) => {
  const [by, name] = holderOf(row) ?? [];
  return by === "team" ? ["team ", teamName(name, can)] : by === "owner" ? ["person ", personName(name, can)] : scopeInWords(row.scope);
};

/** The limits of others that keep a row's keys from calling. */
const blocked = (row, can) =>
  (row.spent.length > 0 || stopped(row) > 0) &&
  h(
    "small",
    { class: "blocked bad" },
    row.spent.length > 0 ? row.spent.map((window, place) => [place > 0 && ", ", quotaName(window), " of ", holder(window, can), ": spent"]) : `${many(stopped(row), "key")} stopped by a spent limit`,
  );

/** The fullest limit of a row: how full, which one, and when it is free again. */
function limitCell(row, can, opener) {
  const [first] = row.windows;
  const settings = row.settings;
  const hasNone = row.by === "key" && settings && !settings.quotas.length;
  const none = h("span", { class: hasNone && !settings.team ? "bad" : "unknown" }, !hasNone ? "none" : settings.team ? "those of its team" : "no quota");
  if (!first && settings?.quotas.length) return [settings.quotas.map(quotaWords).join(" · "), blocked(row, can), opener]; // a new one has no window yet
  if (!first) return [none, blocked(row, can), opener];
  return [
    thinBar(fullnessKind(first), first),
    h("span", { class: "limit-words", title: first.reset_at }, `of ${amount(first.unit, first.limit)}${quotaName(first).replace(/^(requests|tokens|US dollars|calls)/, "")}`, !first.enforced && h("span", { class: "tag" }, "shadow")),
    h("small", { class: "moment" }, expected(first) ?? freeAgain(first)),
    hasNone && [" ", none],
    blocked(row, can),
    opener,
  ];
}

const money = (row) => (row.cost_usd === null ? h("span", { class: "unknown" }, "unknown") : [usd(row.cost_usd), row.used?.unpriced > 0 && h("span", { class: "unknown", title: `The cost of ${many(row.used.unpriced, "call")} is unknown` }, " + ?")]);

export function columns(by, can, opener, hasRefused) {
  const name = (row) => row.name || `no ${by}`;
  const ofKeys = [
    { title: "Status", sort: (row) => row.settings?.status ?? "", show: (row) => (row.settings ? statusPill(row.settings) : h("span", { class: "pill", title: "Its usage stays; the key is gone" }, "gone")) },
    { title: "Owner", class: "clip", sort: (row) => row.owner ?? "", show: (row) => (row.owner ? personName(row.owner, can) : NOTHING) },
    { title: "Team", class: "mono clip", sort: (row) => row.team ?? "", show: (row) => (row.team ? teamName(row.team, can) : NOTHING) },
  ];
  const ofGroups = [{ title: "Keys", isNumber: true, sort: (row) => row.keys.length, show: (row) => count(row.keys.length) }];
  return [
    { title: TITLES[by], class: "mono", sort: (row) => row.name, show: name },
    ...(by === "key" ? ofKeys : ofGroups),
    { title: "30 days", hint: "The spend of the last 30 days", isNumber: true, sort: (row) => row.cost_usd, show: money },
    { title: "Fullest limit", class: "quota-cell", sort: fullestOf, isNumber: false, show: (row) => limitCell(row, can, opener(row)) },
    { title: "Last call", hint: "The last day with a call, of the last 30", class: "moment", sort: (row) => row.used?.last ?? "", show: (row) => row.used?.last ?? NOTHING },
    ...(hasRefused ? [{ title: "Refused", hint: "Requests that the gateway refused in the last 7 days", isNumber: true, sort: (row) => row.refused, show: (row) => (row.refused && row.name && by !== "owner" ? h("a", { href: addressOf("calls", "", { [by]: row.name, outcome: "refused" }) }, count(row.refused)) : count(row.refused)) }] : []),
  ];
}

/** The file: a line for each limit of a row, or one for a row without. */
export const savedColumns = (by) =>
  [
    [TITLES[by].toLowerCase(), (row) => row.name],
    ...(by === "key" ? [["status", (row) => row.settings?.status], ["owner", (row) => row.owner], ["team", (row) => row.team]] : [["keys", (row) => row.keys.length]]),
    ["cost_usd_30_days", (row) => row.cost_usd],
    ["last_call", (row) => row.used?.last],
    ["refused_7_days", (row) => row.refused],
    ["limit", ({ window }) => window && quotaName(window)],
    ...["unit", "used", "reserved", "limit", "reset_at"].map((name) => [name === "limit" ? "limit_amount" : name, ({ window }) => window?.[name]]),
  ].map(([title, sort]) => ({ title, sort: (row) => sort(row) ?? null }));

/** The spent limits, in words. */
export function spentInWords(windows, can) {
  const [keys, shared] = [windows.filter((row) => row.key !== null), windows.filter((row) => row.key === null)];
  const full = keys.filter(isSpent).length;
  const owners = [...Map.groupBy(shared.filter(isSpent), (row) => row.scope).values()].map(([row]) => ["one of ", holder(row, can)]);
  if (!full && !owners.length) return `None of ${many(windows.length, "limit")} is spent.`;
  const said = [...(full ? [`${count(full)} of ${many(keys.length, "limit")} of keys`] : []), ...owners];
  return ["Spent: ", said.map((each, place) => [place > 0 && ", ", each]), ". What needs more gets 429."];
}
