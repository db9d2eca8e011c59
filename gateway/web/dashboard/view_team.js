// One team: how its quotas stand, and whose keys spend them; and what can be done to it.

import { every, get, remove, teamPath } from "./api.js";
import { quotaBar } from "./bars.js";
import { confirmFirst, openOne } from "./dialog.js";
import { fill, h, refill } from "./dom.js";
import { facts, keptIn, times } from "./facts.js";
import { many } from "./format.js";
import { windowActions } from "./key_actions.js";
import { poll } from "./poll.js";
import { into } from "./states.js";
import { Paces } from "./paces.js";
import { SubjectReport } from "./subject.js";
import { editTeam } from "./team_form.js";

const EVERY_MS = 5000;
const REPORT_EVERY_MS = 60_000;
const KEYS_SHOWN = 200;

function members(keys, isWhole) {
  if (!keys.length) return h("p", { class: "note" }, "No key belongs to it.");
  const left = keys.length - KEYS_SHOWN;
  return h(
    "ul",
    { class: "members" },
    keys
      .slice(0, KEYS_SHOWN)
      .map((key) =>
        h(
          "li",
          null,
          h("a", { class: "mono", href: `#keys/${encodeURIComponent(key.id)}` }, key.id),
          key.status !== "active" && h("span", { class: "tag" }, key.status),
        ),
      ),
    left > 0 && h("li", { class: "note" }, `and ${many(left, "other")}${isWhole ? "" : ", and more"}`),
  );
}

/** The operations that members may use, in words. */
function membersInWords(members) {
  if (!members) return "no keys";
  const models = members.models.includes("*") ? "all models" : members.models.join(", ");
  const itself = members.by_key.length ? `; a key may ${members.by_key.join(" and ")} itself` : "";
  return `${many(members.max_keys, "key")} each, for ${models}${itself}`;
}

function askDelete(team, then) {
  confirmFirst(
    "Delete this team",
    ["Delete the team ", h("b", null, team.name), "? Its usage stays in the reports. A team that has keys stays."],
    "Delete",
    async () => {
      await remove(teamPath(team.name));
      then();
    },
  );
}

/** Open a team by its name; closing leads back to the list. */
export function openTeam(name, context, changed) {
  const { can, signal } = context;
  const { place, about, more, buttons, close, both } = openOne(`Team ${name}`, "#teams", signal);
  const paces = new Paces(both);
  const report = new SubjectReport({ group: "team", name }, "teams", context, both);
  fill(more, report.node);

  const look = () =>
    into(
      place,
      both,
      async () => {
        const [team, { data: windows }, { found: keys, isWhole }] = await Promise.all([
          get(teamPath(name), null, both),
          get("quotas", { team: name }, both).then(async ({ data }) => ({ data: await paces.added(data, { team: name }) })),
          every("keys", { team: name }, both),
        ]);
        const redo = () => {
          look();
          changed();
        };
        const own = windows.filter((row) => row.scope === `team:${name}`);
        refill(
          place,
          own.length
            ? h(
                "div",
                { class: "quotas" },
                own.map((row) => quotaBar(row, windowActions(row, redo, can))),
              )
            : h("p", { class: "note" }, "This team has no quotas; those of its keys and of the gateway bind all the same."),
          [...Map.groupBy(windows.filter((row) => row.person), (row) => row.person)].map(([person, rows]) => [
            h("h3", null, "Of ", person),
            h("div", { class: "quotas" }, rows.map((row) => quotaBar(row, windowActions(row, redo, can)))),
          ]),
        );
        refill(
          about,
          h("h3", null, `${isWhole ? "" : "More than "}${many(keys.length, "key")}`),
          members(keys, isWhole),
          facts({ "Members may make": membersInWords(team.members), "Defined in": keptIn(team), ...times(team) }),
        );
        refill(
          buttons,
          report.calls,
          can("PATCH /admin/api/teams/{name}") &&
            team.managed_by === "store" && [
              h("button", { type: "button", onclick: () => editTeam(team, redo) }, "Edit"),
              h(
                "button",
                {
                  type: "button",
                  class: "danger",
                  onclick: () =>
                    askDelete(team, () => {
                      close();
                      changed();
                    }),
                },
                "Delete",
              ),
            ],
        );
      },
      look,
    );
  poll(look, EVERY_MS, both);
  poll(() => report.look(), REPORT_EVERY_MS, both);
}
