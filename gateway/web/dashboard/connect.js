// How clients and tools are connected: the base URL and settings for each, with a key or a place for it.

import { fill, h } from "./dom.js";
import { switcher } from "./switcher.js";

const NO_KEY = "YOUR_KEY";
const NO_MODEL = "YOUR_MODEL";

const chat = (model) => JSON.stringify({ model, messages: [{ role: "user", content: "Hello!" }] });

// By tool: its title, and its settings for the address of the gateway, a key and a model.
const TOOLS = {
  curl: ["curl", ({ base, key, model }) =>
    `curl ${base}/v1/chat/completions \\\n  -H "Authorization: Bearer ${key}" -H "Content-Type: application/json" \\\n  -d '${chat(model)}'`],
  python: ["Python", ({ base, key, model }) =>
    `# pip install openai\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key="${key}")\nanswer = client.chat.completions.create(\n    model="${model}", messages=[{"role": "user", "content": "Hello!"}]\n)\nprint(answer.choices[0].message.content)`],
  node: ["Node", ({ base, key, model }) =>
    `// npm install openai\nimport OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: "${base}/v1", apiKey: "${key}" });\nconst answer = await client.chat.completions.create({\n  model: "${model}",\n  messages: [{ role: "user", content: "Hello!" }],\n});\nconsole.log(answer.choices[0].message.content);`],
  environment: ["Environment", ({ base, key }) =>
    `export OPENAI_BASE_URL=${base}/v1\nexport OPENAI_API_KEY=${key}`],
  codex: ["Codex", ({ base, key, model }) =>
    `# ~/.codex/config.toml\nmodel = "${model}"\nmodel_provider = "gateway"\n\n[model_providers.gateway]\nname = "Gateway"\nbase_url = "${base}/v1"\nenv_key = "GATEWAY_API_KEY"\nwire_api = "responses"\n\n# in the shell\nexport GATEWAY_API_KEY=${key}`],
  claude: ["Claude Code", ({ base, key, model }) =>
    `export ANTHROPIC_BASE_URL=${base}   # without /v1\nexport ANTHROPIC_AUTH_TOKEN=${key}\nexport ANTHROPIC_MODEL=${model}\nclaude`],
  continue: ["Continue", ({ base, key, model }) =>
    `# ~/.continue/config.yaml\nmodels:\n  - name: Gateway\n    provider: openai\n    model: ${model}\n    apiBase: ${base}/v1\n    apiKey: ${key}`],
  webui: ["Open WebUI", ({ base, key }) =>
    `# Admin Panel, Settings, Connections, OpenAI API; or in the environment:\nOPENAI_API_BASE_URL=${base}/v1\nOPENAI_API_KEY=${key}`],
};

/** The address at which clients reach the gateway, without /v1: that of the configuration, or that of this page. */
export const baseUrl = (publicUrl) => publicUrl ?? new URL(".", document.baseURI).href.replace(/\/$/, "");

/**
 * Settings for each tool, one at a time. `secret`: the key to write into them; without it, a place for it. `models`: a promise
 * of the names that the key may call, the first of which is written into them.
 */
export function connectPanel({ publicUrl, secret = NO_KEY, models = null }) {
  const base = baseUrl(publicUrl);
  const code = h("code");
  const copied = h("span", { role: "status", class: "note" });
  let [shown, model] = ["curl", NO_MODEL];
  const show = (tool) => {
    shown = tool;
    fill(code, TOOLS[tool][1]({ base, key: secret, model }));
    fill(copied);
  };
  models?.then(([first = NO_MODEL]) => {
    model = first;
    show(shown);
  }, () => {}); // the place for a name stays
  const copy = h("button", { type: "button", class: "quiet" }, "Copy");
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      fill(copied, "Copied.");
    } catch {
      fill(copied, "Selected: press Ctrl+C or ⌘C."); // an address without TLS has no clipboard
    }
  });
  show(shown);
  return h(
    "div",
    { class: "connect" },
    h("p", null, "Base URL: ", h("code", { class: "base-url" }, `${base}/v1`)),
    switcher("Tool", Object.fromEntries(Object.entries(TOOLS).map(([name, [title]]) => [name, title])), "curl", show),
    h("pre", { tabindex: "0", "aria-label": "Settings", class: "snippet" }, code),
    h("p", { class: "copy" }, copy, copied),
  );
}
