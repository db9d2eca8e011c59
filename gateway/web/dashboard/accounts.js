// Keys, their owners and teams as rows of one table: what each spends, its limits, its last call and its refusals. Pure.

import { NEARLY, fullness, isSpent } from "./bars.js";
import { folded } from "./people.js";
import { dailyUse } from "./spending.js";
import { total } from "./sums.js";

/** The groupings, by their names in addresses. */
export const GROUPINGS = { key: "keys", owner: "owners", team: "teams" };

const USED = { requests: (row) => row.requests, tokens: (row) => row.total_tokens, usd: (row) => row.cost_usd ?? 0 };

/** The grouping that a window belongs to, and the name there; null: to none. */
export function holderOf(row) {
  if (row.key !== null) return ["key", row.key];
  if (row.person) return ["owner", row.person];
  return row.scope.startsWith("team:") ? ["team", row.team] : null;
}

const groupedBy = (rows, name) => Map.groupBy(rows, (row) => name(row) ?? "");

/** The windows with what their holder uses in a day (`daily`), the fullest first; a person's in a team with what she uses in it. */
function withPace(windows, used, now) {
  const byDay = Map.groupBy(used, (row) => row.day);
  const inTeam = (team) => Map.groupBy(used.filter((row) => row.team === team), (row) => row.day);
  const daily = (unit, byDay) => dailyUse(new Map([...byDay].map(([day, rows]) => [day, rows.reduce((all, row) => all + USED[unit](row), 0)])), now);
  return windows
    .map((row) => (used.length && USED[row.unit] && !row.model ? { ...row, daily: daily(row.unit, row.person && row.team ? inTeam(row.team) : byDay) } : row))
    .sort((one, other) => fullness(other) - fullness(one));
}

/** The windows of others that keep a key from calling: of its owner, its team and the whole gateway. */
const spentAbove = (key, windows) =>
  windows.filter((row) => {
    const [by, name] = holderOf(row) ?? [row.scope];
    const binds = by === "gateway" || (by === "team" && name === key.team) || (by === "owner" && name === folded(key.owner) && (!row.team || row.team === key.team));
    return binds && key.on_exceeded !== "shadow" && isSpent(row);
  });

/**
 * The rows by `by`, one of `GROUPINGS`. `known`: {keys, teams, people, windows, usage (by key, team and day), refusals}. A row has `name`, `key` or
 * `team` (its settings, where it still has some), `keys` (rows of its keys), `windows` (its own, the fullest first), `spent` (windows of others
 * that stop it), `used` (sums of its usage, with the `last` day) and `refused`. Names of the usage that are no longer known have rows, too, so that the sums are those of
 * the report.
 */
export function accountsBy(by, known, now = new Date()) {
  const { keys, teams, people, windows, usage, refusals } = known;
  const owners = new Map(keys.map((key) => [key.id, folded(key.owner)]));
  const nameOf = { key: (row) => row.key, owner: (row) => owners.get(row.key), team: (row) => row.team }[by];
  const used = groupedBy(usage, nameOf);
  const refused = groupedBy(refusals, nameOf);
  const held = groupedBy(windows.filter((row) => holderOf(row)?.[0] === by), (row) => holderOf(row)[1]);
  const settings = new Map(by === "key" ? keys.map((key) => [key.id, key]) : by === "team" ? teams.map((team) => [team.name, team]) : (people ?? []).map((person) => [folded(person.name), person]));
  const members = by === "key" ? null : Map.groupBy(accountsBy("key", known, now), (row) => (by === "owner" ? folded(row.owner) : (row.team ?? "")));
  const living = [...(members ?? [])].filter(([, rows]) => rows.some((row) => row.settings?.status !== "revoked")).map(([name]) => name);
  const names = new Set([...settings.keys(), ...living, ...used.keys(), ...(by === "owner" ? held.keys() : [])].sort());
  return [...names].map((name) => {
    const days = used.get(name) ?? [];
    const its = members?.get(name) ?? [];
    const found = settings.get(name) ?? null;
    return {
      by,
      name,
      settings: found,
      owner: by === "key" ? (found?.owner ?? null) : null,
      team: by === "key" ? (found ? found.team : (days.at(-1)?.team ?? null)) : null,
      keys: its,
      windows: withPace(held.get(name) ?? [], days, now),
      spent: by === "key" && found ? spentAbove(found, windows) : [],
      used: days.length ? { ...total(days), last: days.map((row) => row.day).sort().at(-1) } : null,
      refused: refused.get(name)?.length ?? 0,
      cost_usd: days.length ? total(days).cost_usd : 0,
    };
  });
}

/** Whether a row is near a limit of its own. */
export const isNear = (row) => (fullestOf(row) ?? 0) >= NEARLY;

/** The fullest share of the row's own limits; null: it has none. */
export const fullestOf = (row) => (row.windows.length ? fullness(row.windows[0]) : null);

/** How many keys of a row have spent a limit, or are kept from calling. */
export const stopped = (row) => row.keys.filter((key) => key.windows.some(isSpent) || key.spent.length).length;
