// The note for a member about her calls whose prompts and answers are kept.

import { get } from "./api.js";
import { fill, h } from "./dom.js";

const shareOf = (share) => (share === 1 ? "all" : `${Math.round(share * 1000) / 10}% of the`);
const callsOf = ({ models, share }) => `${shareOf(share)} calls${models ? ` to ${models.join(", ")}` : ""}`;

/** Shows it in this node, which is hidden where nothing of hers is kept. */
export async function showKept(node, own, signal) {
  const { data } = await get("content", own, signal);
  node.hidden = !data.length;
  if (!data.length) return;
  const rows = data.map((row) => h("li", null, h("b", { class: "mono" }, row.key), `: ${row.calls.map(callsOf).join("; ")}, in ${row.to.join(" and ")}`));
  fill(node, "Prompts and answers of your calls are kept by the operator of this gateway, or go to a program.", h("ul", null, rows));
}
