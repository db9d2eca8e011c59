// The official SDK for Node, asked by a test: node openai_node.mjs FOLDER <calls.json >answers.json
//
// FOLDER is where the SDK lies. Address and key come from the environment, where the SDK looks for them by itself, and
// everything else is as it is by default, retries among it. Calls are made one after the other; each has an answer.

import { pathToFileURL } from "node:url";

const { default: OpenAI, APIError, toFile } = await import(pathToFileURL(`${process.argv[2]}/index.mjs`));
const client = new OpenAI();

// `path`: chat.completions, completions, embeddings, models, files. `leave_after`: abort the stream after so many chunks.
// `files`: of a form, in base64. `id`: what the method is asked about, in place of a body.
async function ask({ path, body, leave_after, files, method, id }) {
  for (const [name, given] of Object.entries(files)) {
    const made = await Promise.all(given.map((data) => toFile(Buffer.from(data, "base64"), `${name}.wav`)));
    body[name] = made.length === 1 ? made[0] : made;
  }
  const resource = path.split(".").reduce((at, name) => at[name], client);
  if (path === "models") {
    const names = [];
    for await (const model of resource.list()) names.push(model.id);
    return { data: names };
  }
  if (method === "list") {
    const found = [];
    for await (const each of resource.list(body)) found.push(each);
    return { data: found };
  }
  if (method === "content") return { data: await (await resource.content(id)).text() };
  if (path === "audio.speech") {
    return { data: Buffer.from(await (await resource[method](body)).arrayBuffer()).toString("base64") };
  }
  const { data, request_id } = await resource[method](id ?? body).withResponse();
  if (!body.stream) return { data, request_id };
  const chunks = [];
  try {
    for await (const chunk of data) {
      chunks.push(chunk);
      if (chunks.length === leave_after) data.controller.abort();
    }
  } catch (error) {
    return { chunks, request_id, error: told(error) };
  }
  return { chunks, request_id };
}

function told(error) {
  if (!(error instanceof APIError)) throw error;
  const { status = null, code, type, param, requestID, message } = error;
  return { name: error.constructor.name, status, code, type, param, request_id: requestID, message };
}

const read = [];
for await (const piece of process.stdin) read.push(piece);
const answers = [];
for (const call of JSON.parse(Buffer.concat(read).toString())) {
  answers.push(await ask(call).catch((error) => ({ error: told(error) })));
}
process.stdout.write(JSON.stringify(answers));
