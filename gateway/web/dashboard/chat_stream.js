// The answer to a chat, streamed or whole, as pieces: `text`, `usage` (of OpenAI’s API) and `error` (a message).

function pieceOf({ choices, usage, error }) {
  const choice = choices?.[0];
  return { text: choice?.delta?.content ?? choice?.message?.content ?? "", usage: usage ?? null, error: error?.message ?? null };
}

/** The pieces of a response. Raises what `fetch` raises when it breaks off, and `Error` where a stream has no end. */
export async function* chatEvents(response) {
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) {
    yield pieceOf(await response.json());
    return;
  }
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the stream ended without [DONE]");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield pieceOf(JSON.parse(line.slice(6)));
    }
  }
}
