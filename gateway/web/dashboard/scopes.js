// The owners of windows: how they are called, and where their windows are changed.

/** Where the windows of a scope are changed. */
export function pathOf(scope, action) {
  const [kind, ...rest] = scope.split(":");
  const name = encodeURIComponent(rest.join(":"));
  if (kind === "gateway") return `quotas/${action}`;
  if (kind === "member") {
    const [team, ...person] = rest.join(":").split("/");
    return `teams/${encodeURIComponent(team)}/members/${encodeURIComponent(person.join("/"))}/${action}`;
  }
  return `${kind === "person" ? "people" : `${kind}s`}/${name}/${action}`;
}

/** The same by kind, as paths of operations. */
export const PLACES = {
  gateway: "quotas",
  key: "keys/{id}",
  team: "teams/{name}",
  person: "people/{person}",
  member: "teams/{name}/members/{person}",
};

/** The owner in words. */
export const ownerOf = (scope) => (scope === "gateway" ? "the whole gateway" : scope.replace(":", " "));
