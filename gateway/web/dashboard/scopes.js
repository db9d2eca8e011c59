// The owners of windows: how they are called, and where their windows are changed.

/** Where the windows of a scope are changed. */
export function pathOf(scope, action) {
  const [kind, ...rest] = scope.split(":");
  const name = encodeURIComponent(rest.join(":"));
  if (!(kind in PLACES)) return `quotas/${action}`;
  if (kind === "member") {
    const [team, ...person] = rest.join(":").split("/");
    return `teams/${encodeURIComponent(team)}/members/${encodeURIComponent(person.join("/"))}/${action}`;
  }
  return `${kind === "person" ? "people" : `${kind}s`}/${name}/${action}`;
}

/** The body of such a change: it names a scope that has no path of its own. */
export const bodyOf = (scope, body) => (scope === "gateway" || scope.split(":")[0] in PLACES ? body : { ...body, scope });

/** The paths of operations on the scopes that have one, by their kind. */
const PLACES = {
  key: "keys/{id}",
  team: "teams/{name}",
  person: "people/{person}",
  member: "teams/{name}/members/{person}",
};

/** The path of the operations on windows of a scope. */
export const placeOf = (scope) => PLACES[scope.split(":")[0]] ?? "quotas";

/** The owner in words. */
export const ownerOf = (scope) => (scope === "gateway" ? "the whole gateway" : scope.replace(":", " ").replace("_", " "));
