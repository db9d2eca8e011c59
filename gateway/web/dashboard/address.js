// The address of what is shown: #view/name?range=7d&group=team. A link shows what its sender saw.

/** The parts of the address: `view`, `name` (decoded) and `query`. */
export function readAddress(hash = location.hash) {
  const [, view, name, query] = /^#?([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/.exec(hash) ?? [];
  return { view: view ?? "", name: decodeURIComponent(name ?? ""), query: new URLSearchParams(query ?? "") };
}

/** The address of a view, of a thing in it, and of its settings; those without a value are left out. */
export function address(view, name = "", settings = {}) {
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value));
  return `#${view}${name ? `/${encodeURIComponent(name)}` : ""}${query.size ? `?${query}` : ""}`;
}

/** Put settings of a view that is shown into the address, without another entry in the history. */
export function noteSettings(view, settings) {
  const { name, query } = readAddress();
  history.replaceState(null, "", address(view, name, { ...Object.fromEntries(query), ...settings }));
}
