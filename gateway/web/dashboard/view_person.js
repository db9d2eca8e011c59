// One person: what she may spend over all her keys and in her teams, how much of it is used, what can be raised, and her usage.

import { address } from "./address.js";
import { get, patch } from "./api.js";
import { quotaBar } from "./bars.js";
import { openDialog, openOne } from "./dialog.js";
import { fill, h, refill } from "./dom.js";
import { facts } from "./facts.js";
import { quotasField } from "./fields.js";
import { settingsForm } from "./form.js";
import { many } from "./format.js";
import { askEndSessions, windowActions } from "./key_actions.js";
import { poll } from "./poll.js";
import { quotaList } from "./quota_rows.js";
import { into } from "./states.js";
import { SubjectReport } from "./subject.js";

const EVERY_MS = 5000;
const REPORT_EVERY_MS = 60_000;

const path = (name) => `people/${encodeURIComponent(name)}`;

const SOURCES = { file: "her own, in the configuration file", store: "her own, in the store" };

/** The form for the quotas of a person over all her keys. */
function editQuotas(person, then) {
  openDialog(
    `Quotas of ${person.name}`,
    (close) => {
      const quotas = quotaList(person.quotas, "No quota: her keys together may spend without a limit of hers.");
      const trouble = h("p", { class: "trouble", role: "alert" });
      const save = h("button", { type: "submit", class: "primary" }, "Save");
      const again = h("button", { type: "button", id: "usual-quotas" }, "Those of everyone again");
      const send = async (wanted) => {
        await patch(path(person.name), { quotas: wanted });
        close();
      };
      again.addEventListener("click", async () => {
        await send(null);
        then();
      });
      return settingsForm(
        { save, trouble, send: () => send(quotas.read()), then },
        h("p", { class: "note" }, "They bind all that is hers, and replace those of her role or of everyone. What she has used stays counted."),
        quotasField("Quotas over all her keys", quotas),
        trouble,
        h("footer", null, person.managed_by === "store" && again, h("button", { type: "button", onclick: close }, "Cancel"), save),
      );
    },
    { kind: "wide" },
  );
}

/** The windows of a person: over all her keys, then in each of her teams. */
const windowsOf = (windows, redo, can) =>
  [...Map.groupBy(windows, (row) => row.scope)].map(([scope, rows]) => {
    const team = scope.startsWith("member:") ? scope.slice("member:".length).split("/")[0] : null;
    return [h("h3", null, team ? `In the team ${team}` : "Over all her keys"), h("div", { class: "quotas" }, rows.map((row) => quotaBar(row, windowActions(row, redo, can))))];
  });

/** Open a person by her name; closing leads back to the list. */
export function openPerson(name, context, changed) {
  const { can, signal } = context;
  const { place, about, more, buttons, both } = openOne(name, "#people", signal);
  const report = new SubjectReport({ group: "person", name }, "people", context, both);
  fill(more, report.node);

  const look = () =>
    into(
      place,
      both,
      async () => {
        const person = await get(path(name), null, both);
        const redo = () => {
          look();
          changed();
        };
        refill(place, person.windows.length ? windowsOf(person.windows, redo, can) : h("p", { class: "note" }, "She has no quotas of her own or of everyone; those of her keys and teams bind all the same."));
        refill(
          about,
          h("h3", null, many(person.keys.length, "key")),
          h("ul", { class: "members" }, person.keys.map((key) => h("li", null, h("a", { class: "mono", href: address("keys", key) }, key)))),
          facts({ "Her quotas are": SOURCES[person.managed_by] ?? "those of everyone or of her role", ...(person.role ? { Role: person.role } : {}), ...(person.access_ended_by ? { "Access ended by": person.access_ended_by } : {}) }),
        );
        refill(
          buttons,
          report.calls,
          can("GET /admin/api/statement") && h("a", { class: "button", href: "#statement" }, "This month"),
          can("PATCH /admin/api/people/{person}") && person.managed_by !== "file" && h("button", { type: "button", onclick: () => editQuotas(person, redo) }, "Quotas"),
          can("POST /admin/api/people/{person}/end_sessions") && h("button", { type: "button", class: "danger", onclick: () => askEndSessions(person.name) }, "End sessions"),
        );
      },
      look,
    );
  poll(look, EVERY_MS, both);
  poll(() => report.look(), REPORT_EVERY_MS, both);
}
