// Vercel's AI SDK, asked by a test: node ai_sdk_node.mjs FOLDER PROVIDER <tasks.json >answers.json
//
// FOLDER is its node_modules, PROVIDER openai (the Responses API) or anthropic. Address, key and model come with each
// task; retries are as people have them.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

globalThis.AI_SDK_LOG_WARNINGS = false; // they go to standard output
const [folder, provider] = process.argv.slice(2);
const { resolve } = createRequire(`${folder}/x.js`);
const load = (name) => import(pathToFileURL(resolve(name)));
const { generateText, streamText, tool, stepCountIs } = await load("ai");
const { z } = await load("zod");
const make = {
  openai: async (options) => (await load("@ai-sdk/openai")).createOpenAI(options),
  anthropic: async (options) => (await load("@ai-sdk/anthropic")).createAnthropic(options),
}[provider];

const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `rain in ${city}`,
});

async function ask({ url, key, model, kind }) {
  const asked = {
    model: (await make({ baseURL: url, apiKey: key }))(model),
    prompt: "How is the weather in Oslo?",
    providerOptions: { openai: { store: false } },
    ...(kind === "tool" ? { tools: { weather }, stopWhen: stepCountIs(4) } : {}),
  };
  if (kind !== "stream") {
    const { text, totalUsage, steps } = await generateText(asked);
    return { text, usage: { input_tokens: totalUsage.inputTokens, output_tokens: totalUsage.outputTokens }, steps: steps.length };
  }
  let failure = null;
  const run = streamText({ ...asked, onError: ({ error }) => (failure = error) });
  let pieces = 0;
  let text = "";
  for await (const piece of run.textStream) {
    pieces += 1;
    text += piece;
  }
  if (failure) throw failure;
  const usage = await run.totalUsage;
  return { text, pieces, usage: { input_tokens: usage.inputTokens, output_tokens: usage.outputTokens } };
}

function describe(error) {
  const last = error.lastError ?? error;
  return { name: error.name, code: last.data?.error?.code ?? null, message: last.message ?? String(error), status: last.statusCode ?? null };
}

const read = [];
for await (const piece of process.stdin) read.push(piece);
const answers = [];
for (const task of JSON.parse(Buffer.concat(read).toString())) {
  answers.push(await ask(task).catch((error) => ({ error: describe(error) })));
}
process.stdout.write(JSON.stringify(answers));
