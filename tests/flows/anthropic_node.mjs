// Anthropic's official SDK for Node, asked by a test: node anthropic_node.mjs FOLDER <calls.json >answers.json
//
// FOLDER is where the SDK lies. Address and key come from the environment. Calls are made one after the other.

import { pathToFileURL } from "node:url";

const { default: Anthropic, APIError } = await import(pathToFileURL(`${process.argv[2]}/index.mjs`));
const client = new Anthropic();

async function ask(body) {
  const { data, request_id } = await client.messages.create(body).withResponse();
  if (!body.stream) return { data, request_id };
  const events = [];
  try {
    for await (const event of data) events.push(event.type);
  } catch (error) {
    return { events, request_id, error: describe(error) };
  }
  return { events, request_id };
}

function describe(error) {
  if (!(error instanceof APIError)) throw error;
  const { status = null, type = null, requestID = null, message } = error;
  return { name: error.constructor.name, status, type, request_id: requestID, message };
}

const read = [];
for await (const piece of process.stdin) read.push(piece);
const answers = [];
for (const body of JSON.parse(Buffer.concat(read).toString())) {
  answers.push(await ask(body).catch((error) => ({ error: describe(error) })));
}
process.stdout.write(JSON.stringify(answers));
