// How clients and tools are connected: the base URL and settings for each, with a key or a place for it.

import { fill, h } from "./dom.js";
import { switcher } from "./switcher.js";

const NO_KEY = "YOUR_KEY";
const NO_MODEL = "YOUR_MODEL";

const HELLO = [{ role: "user", content: "Hello!" }];
const chat = (model) => JSON.stringify({ model, messages: HELLO });

/** The model whose name contains one of these words, the first word first; else the first model. */
const preferred = (names, ...words) => {
  for (const word of words) {
    const found = names.find((name) => name.includes(word));
    if (found) return found;
  }
  return names[0] ?? NO_MODEL;
};

// By tool: its title, the endpoint that it calls (none: it asks for the models itself), the words by which its model is chosen,
// and its settings for the address of the gateway, a key, a model and the names of all models of that endpoint: a text for each
// file and for the shell, with the place where it belongs. tests/browser/slow/test_connect.py runs all of them as they are shown.
const TOOLS = {
  curl: {
    title: "curl",
    endpoint: "chat",
    parts: ({ base, key, model }) => [
      ["In the shell", `curl ${base}/v1/chat/completions \\\n  -H "Authorization: Bearer ${key}" -H "Content-Type: application/json" \\\n  -d '${chat(model)}'`],
    ],
  },
  python: {
    title: "Python",
    endpoint: "chat",
    parts: ({ base, key, model }) => [
      ["In the shell", "pip install openai"],
      ["hello.py", `from openai import OpenAI\n\nclient = OpenAI(base_url="${base}/v1", api_key="${key}")\nanswer = client.chat.completions.create(\n    model="${model}", messages=[{"role": "user", "content": "Hello!"}]\n)\nprint(answer.choices[0].message.content)`],
    ],
  },
  node: {
    title: "Node",
    endpoint: "chat",
    parts: ({ base, key, model }) => [
      ["In the shell", "npm install openai"],
      ["hello.mjs", `import OpenAI from 'openai';\n\nconst client = new OpenAI({ baseURL: "${base}/v1", apiKey: "${key}" });\nconst answer = await client.chat.completions.create({\n  model: "${model}",\n  messages: [{ role: "user", content: "Hello!" }],\n});\nconsole.log(answer.choices[0].message.content);`],
    ],
  },
  environment: {
    title: "Environment",
    parts: ({ base, key }) => [["In the shell", `export OPENAI_BASE_URL=${base}/v1\nexport OPENAI_API_KEY=${key}`]],
  },
  codex: {
    title: "Codex",
    endpoint: "responses",
    prefers: ["codex", "gpt-5"],
    parts: ({ base, key, model }) => [
      ["~/.codex/config.toml", `model = "${model}"\nmodel_provider = "gateway"\n\n[model_providers.gateway]\nname = "Gateway"\nbase_url = "${base}/v1"\nenv_key = "GATEWAY_API_KEY"\nwire_api = "responses"`],
      ["In the shell", `export GATEWAY_API_KEY=${key}\ncodex`],
    ],
  },
  claude: {
    title: "Claude Code",
    endpoint: "messages",
    prefers: ["claude-sonnet", "claude"],
    parts: ({ base, key, model, names }) => [
      ["In the shell", `export ANTHROPIC_BASE_URL=${base}\nexport ANTHROPIC_AUTH_TOKEN=${key}\nexport ANTHROPIC_MODEL=${model}\nexport ANTHROPIC_DEFAULT_HAIKU_MODEL=${preferred(names, "haiku", model)}\nclaude`],
    ],
  },
  continue: {
    title: "Continue",
    endpoint: "chat",
    parts: ({ base, key, model }) => [
      ["~/.continue/config.yaml", `name: Gateway\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: "${model}"\n    provider: openai\n    model: "${model}"\n    apiBase: ${base}/v1\n    apiKey: ${key}`],
    ],
  },
  webui: {
    title: "Open WebUI",
    parts: ({ base, key }) => [
      ["Its environment, or Admin Panel, Settings, Connections, OpenAI API", `OPENAI_API_BASE_URL=${base}/v1\nOPENAI_API_KEY=${key}`],
    ],
  },
};

/** The address at which clients reach the gateway, without /v1: that of the configuration, or that of this page. */
export const baseUrl = (publicUrl) => publicUrl ?? new URL(".", document.baseURI).href.replace(/\/$/, "");

/** One text of a tool's settings, with its place and a button that copies it alone. */
function block([place, text]) {
  const code = h("code", null, text);
  const copied = h("span", { role: "status", class: "note" });
  const copy = h("button", { type: "button", class: "quiet", "aria-label": `Copy: ${place}` }, "Copy");
  copy.addEventListener("click", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(text);
      fill(copied, "Copied.");
    } catch {
      fill(copied, "Selected: press Ctrl+C or ⌘C."); // an address without TLS has no clipboard
    }
  });
  return h(
    "div",
    { class: "setting", data: { place } },
    h("p", { class: "copy" }, h("b", null, place), copied, copy),
    h("pre", { tabindex: "0", "aria-label": place, class: "snippet" }, code),
  );
}

/**
 * Settings for each tool, one at a time. `secret`: the key to write into them; without it, a place for it. `models`: a promise
 * of the models that the key may call, each with `id` and, if they are known, `endpoints`. Each tool gets one that it can use.
 */
export function connectPanel({ publicUrl, secret = NO_KEY, models = null }) {
  const base = baseUrl(publicUrl);
  const texts = h("div", { class: "settings" });
  let [shown, known] = ["curl", null];
  const show = (name) => {
    shown = name;
    const { title, endpoint, prefers = [], parts } = TOOLS[name];
    const names = (known ?? [])
      .filter((model) => !endpoint || !model.endpoints || model.endpoints.includes(endpoint))
      .map((model) => model.id);
    const isMissing = endpoint && known && !names.length;
    fill(
      texts,
      isMissing && h("p", { class: "why" }, `None of the models that this key may call serves ${title} (endpoint: ${endpoint}).`),
      parts({ base, key: secret, model: preferred(names, ...prefers), names }).map(block),
    );
  };
  models?.then((found) => {
    known = found;
    show(shown);
  }, () => {}); // the place for a name stays
  show(shown);
  return h(
    "div",
    { class: "connect" },
    h("p", null, "Base URL: ", h("code", { class: "base-url" }, `${base}/v1`)),
    switcher("Tool", Object.fromEntries(Object.entries(TOOLS).map(([name, { title }]) => [name, title])), shown, show),
    texts,
  );
}
