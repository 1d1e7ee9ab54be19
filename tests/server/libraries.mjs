// What OpenAI's and Anthropic's JavaScript libraries see of laar; prints one JSON object.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const messages = [{ role: "user", content: "hello" }];
const chats = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries: 0 });
const claude = new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0 });
const told = {};

async function refusal(call) {
  try {
    await call();
    return null;
  } catch (error) {
    const { error: body } = error;
    return { status: error.status, id: error.requestID, code: error.code ?? body?.error?.code };
  }
}

told.chat = (await chats.chat.completions.create({ model: "m", messages })).choices.length;
const stream = await chats.chat.completions.create({ model: "m", messages, stream: true });
told.events = 0;
for await (const _ of stream) told.events += 1;
const answer = await chats.responses.create({ model: "m", input: "hello" });
told.response = answer.output_text.length;
told.message = (await claude.messages.create({ model: "m", max_tokens: 9, messages })).content.length;
told.deltas = 0;
for await (const _ of claude.messages.stream({ model: "m", max_tokens: 9, messages })) {
  told.deltas += 1;
}
told.listed = (await claude.models.list()).data.filter((model) => model.display_name).length;
told.openai = await refusal(() => chats.chat.completions.create({ model: "nope", messages }));
told.anthropic = await refusal(() =>
  claude.messages.create({ model: "nope", max_tokens: 9, messages }),
);
console.log(JSON.stringify(told));
