// Making a team, and changing what its keys may spend together.

import { patch, post, teamPath } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { field, input, quotasField } from "./fields.js";
import { settingsForm } from "./form.js";
import { quotaList } from "./quota_rows.js";

/** The form for a new team (`team` is null), or for one that is there. `then` is told its name. */
export function editTeam(team, then) {
  const isNew = team === null;
  openDialog(
    isNew ? "New team" : `Edit team ${team.name}`,
    (close) => {
      const name = input("", {
        required: true,
        pattern: "[a-z0-9][a-z0-9_.\\-]{0,62}",
        autofocus: true,
        title: "Small letters, digits, - _ . (at most 63)",
      });
      const quotas = quotaList(team?.quotas, "No quota: its keys together may spend without a limit of the team.");
      const before = JSON.stringify(quotas.read());
      const trouble = h("p", { class: "trouble", role: "alert" });
      const save = h("button", { type: "submit", class: "primary" }, isNew ? "Create" : "Save");

      async function send() {
        const wish = { quotas: quotas.read() };
        if (isNew) await post("teams", { name: name.value.trim(), ...wish });
        else if (JSON.stringify(wish.quotas) !== before) await patch(teamPath(team.name), wish);
        close();
      }

      return settingsForm(
        { save, trouble, send, then: () => then(isNew ? name.value.trim() : team.name) },
        isNew && field("name", "Name", name, "In keys, metrics and reports."),
        quotasField("Quotas of all its keys together", quotas),
        h("p", { class: "note" }, "What a key may call stands with the key; a team bounds what its keys spend."),
        trouble,
        h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), save),
      );
    },
    { kind: "wide" },
  );
}
