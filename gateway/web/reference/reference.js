// The API reference: renders openapi.json of this gateway. Text becomes text nodes, never markup.

const DEPTH = 6;
const CALLERS = {
  key: "the key of a client",
  admin: "the admin token",
  viewer: "the viewer token",
  metrics: "the metrics token, if one is set",
};

/** An element with a class, perhaps, and children: nodes or text. */
function h(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.flat(Infinity).filter((child) => child !== null));
  return node;
}

const named = (ref, all) => ref.split("/").slice(1).reduce((at, name) => at[name], all);
const resolved = (schema, all) => (schema.$ref ? { ...named(schema.$ref, all), $ref: schema.$ref } : schema);
const short = (schema) => schema.$ref?.split("/").pop() ?? null;

/** The type of a schema in a few words. */
function typeOf(schema, all) {
  const found = resolved(schema, all);
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  const choices = found.anyOf ?? found.oneOf;
  if (choices) return [...new Set(choices.map((each) => typeOf(each, all)))].join(" | ");
  if (found.items) return `array of ${typeOf(found.items, all)}`;
  return [found.type ?? short(schema) ?? "any"].flat().join(" | ");
}

/** The bounds and the default of a schema. */
function boundsOf(schema) {
  const words = {
    minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", minLength: "minimum length",
    maxLength: "maximum length", maxItems: "at most (items)", pattern: "pattern", format: "format", default: "default",
  };
  return Object.keys(words)
    .filter((name) => schema[name] !== undefined)
    .map((name) => `${words[name]} ${schema[name]}`)
    .join("; ");
}

/** The schema, of all choices and of an array, that has members. */
function membersOf(schema, all) {
  const found = resolved(schema, all);
  if (found.properties) return found;
  const next = [found.items, ...(found.anyOf ?? found.oneOf ?? [])].filter(Boolean);
  return next.map((each) => membersOf(each, all)).find(Boolean) ?? null;
}

function table(heads, rows) {
  return h(
    "table", "",
    h("thead", "", h("tr", "", heads.map((head) => h("th", "", head)))),
    h("tbody", "", rows.map((cells) => h("tr", "", cells.map((cell) => h("td", "", cell))))),
  );
}

/** A table of the members of a schema; members of members open by a click. */
function members(schema, all, depth = 0) {
  const found = membersOf(schema, all);
  if (!found || depth > DEPTH) return h("p", "note", typeOf(schema, all));
  const needed = new Set(found.required ?? []);
  return table(
    ["Member", "Type", "Note"],
    Object.entries(found.properties).map(([name, each]) => [
      h("code", "", name),
      typeOf(each, all),
      [
        [needed.has(name) ? "always there" : "", resolved(each, all).description ?? "", boundsOf(resolved(each, all))]
          .filter(Boolean)
          .join(". "),
        membersOf(each, all) ? lazily("Members", () => members(each, all, depth + 1)) : null,
      ],
    ]),
  );
}

/** Details whose content is made when they are opened, so that a schema may contain itself. */
function lazily(title, make) {
  const node = h("details", "", h("summary", "", title));
  node.addEventListener("toggle", () => node.open && node.children.length === 1 && node.append(make()));
  return node;
}

function callersOf(operation) {
  const names = operation.security.map((each) => Object.keys(each)[0]);
  return names.length && names[0] !== undefined
    ? `Authorization: ${names.map((name) => CALLERS[name] ?? name).join(", or ")}.`
    : "No authorization is needed.";
}

function details(operation, all) {
  const parts = [h("p", "note", callersOf(operation))];
  if (operation.parameters) {
    const rows = operation.parameters.map((each) => [
      h("code", "", each.name), each.in, typeOf(each.schema, all),
      [each.description ?? "", boundsOf(each.schema)].filter(Boolean).join(" "),
    ]);
    parts.push(h("h3", "", "Parameters"), table(["Name", "In", "Type", "Note"], rows));
  }
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content ?? {}))
    parts.push(h("h3", "", `Body, ${media}`), members(schema, all));
  for (const [status, { description, content }] of Object.entries(operation.responses)) {
    const isGood = status < 400;
    parts.push(h("h3", "", `${status} ${description}`));
    for (const [media, { schema }] of Object.entries(content))
      parts.push(h("p", "note", media), isGood ? members(schema, all) : lazily("Error", () => members(schema, all)));
  }
  return h("div", "", parts);
}

function shown(method, path, operation, all) {
  const node = h(
    "details", "operation",
    h("summary", "", h("span", "method", method.toUpperCase()), " ", h("span", "path", path), " ",
      h("span", "summary", operation.summary)),
  );
  node.addEventListener("toggle", () => node.open && node.children.length === 1 && node.append(details(operation, all)));
  return node;
}

function groupOf(path) {
  if (path.startsWith("/v1/")) return "Calls";
  return path.startsWith("/admin/") ? "Admin API" : "Operation and pages";
}

async function draw(place) {
  const address = new URL("openapi.json", document.baseURI);
  const answer = await fetch(address, { cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`openapi.json: status ${answer.status}`);
  const all = await answer.json();
  const groups = new Map();
  for (const [path, methods] of Object.entries(all.paths))
    for (const [method, operation] of Object.entries(methods))
      groups.set(groupOf(path), [...(groups.get(groupOf(path)) ?? []), shown(method, path, operation, all)]);
  const link = h("a", "", "openapi.json");
  link.href = address;
  place.replaceChildren(
    h("h1", "", `${all.info.title} ${all.info.version}`),
    h("p", "note", "The operations of this listener, from ", link, "."),
    ...[...groups].map(([name, nodes]) => h("section", "", h("h2", "", name), nodes)),
  );
}

const place = document.getElementById("reference");
draw(place).catch((error) => {
  place.replaceChildren(h("p", "", `The reference cannot be loaded (${error.message}). Reload the page.`));
});
