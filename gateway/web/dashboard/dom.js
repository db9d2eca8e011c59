// Elements out of values. Text becomes text nodes and nothing else: whatever a client has made up stays text.

/** Screens on which everything has its place, as style.css has it. */
export const WIDE = "(min-width: 721px)";

const SVG = "http://www.w3.org/2000/svg";

function dress(node, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

function grow(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** An element: h("p", {class: "note"}, "text", otherElement). */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  grow(node, children);
  dress(node, props); // last, because a select takes a value that is among its options only
  return node;
}

/** An element of a drawing. */
export function s(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  dress(node, props);
  return grow(node, children);
}

/** These children and no others. */
export function fill(node, ...children) {
  const holder = document.createDocumentFragment();
  grow(holder, children);
  node.replaceChildren(holder);
  return node;
}

/** The same for content that is redrawn periodically: the focused element keeps the focus. */
export function refill(node, ...children) {
  const focusable = () => [...node.querySelectorAll("button, a, input, select, summary, [tabindex]")];
  const at = document.activeElement;
  const place = node.contains(at) ? focusable().indexOf(at) : -1;
  const text = at?.textContent;
  fill(node, ...children);
  if (place < 0) return;
  const now = focusable();
  (now[place]?.textContent === text ? now[place] : now.find((each) => each.textContent === text))?.focus({
    preventScroll: true,
  });
}

/** Debounce: `work` runs once there was no call for `wait_ms`. */
export function calmly(work, wait_ms = 250) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...args), wait_ms);
  };
}
