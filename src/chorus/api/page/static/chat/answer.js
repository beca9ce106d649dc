// One answer as it streams in: what the model thinks, says and calls, and how fast.
import { send } from "../app/api.js";
import { eventsOf } from "../app/events.js";

/** Before anything of it has come. */
export const unsaid = (model) => ({ role: "assistant", content: "", reasoning: "", calls: [], model, status: "waiting", note: "", figures: null });

/** Calls `changed` with the answer so far whenever something has come; resolves with it whole. A stop is no error. */
export async function ask(body, signal, changed) {
  let answer = unsaid(body.model);
  const began = performance.now();
  let first = null;
  const set = (more) => {
    answer = { ...answer, ...more };
    changed(answer);
  };
  set({});
  try {
    const response = await send("v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
    for await (const { data, comment } of eventsOf(response.body)) {
      if (comment !== undefined) {
        if (answer.status === "waiting") set({ note: comment });
        continue;
      }
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message ?? "The answer broke off.");
      const choice = chunk.choices?.[0];
      const said = taken(answer, choice?.delta ?? {});
      if (said && first === null) first = performance.now();
      set({
        ...said,
        ...(said ? { status: "streaming", note: "" } : {}),
        ...(chunk.model ? { model: chunk.model } : {}),
        ...(choice?.finish_reason ? { finish: choice.finish_reason } : {}),
        ...(chunk.usage ? { usage: chunk.usage, measured: chunk.performance ?? chunk.usage.performance ?? null } : {}),
      });
    }
    set({ status: "done", figures: figures(answer, began, first) });
  } catch (error) {
    const stopped = signal.aborted;
    set({ status: stopped ? "stopped" : "failed", note: stopped ? "" : error.message, figures: figures(answer, began, first) });
  }
  return answer;
}

/** What a piece adds to the answer; null where it says nothing. */
export function taken(answer, delta) {
  const more = {};
  if (delta.content) more.content = answer.content + delta.content;
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) more.reasoning = answer.reasoning + thought;
  if (delta.tool_calls?.length) {
    const calls = answer.calls.map((call) => ({ ...call }));
    for (const piece of delta.tool_calls) {
      const place = piece.index ?? 0;
      calls[place] ??= { id: "", name: "", arguments: "" };
      if (piece.id) calls[place].id = piece.id;
      calls[place].name += piece.function?.name ?? "";
      calls[place].arguments += piece.function?.arguments ?? "";
    }
    more.calls = calls;
  }
  return Object.keys(more).length ? more : null;
}

function figures(answer, began, first) {
  const now = performance.now();
  const tokens = answer.usage?.completion_tokens ?? null;
  const seconds = first === null ? 0 : (now - first) / 1000;
  return {
    tokens,
    prompt: answer.usage?.prompt_tokens ?? null,
    cached: answer.usage?.prompt_tokens_details?.cached_tokens ?? 0,
    firstToken: first === null ? null : (first - began) / 1000,
    rate: answer.measured?.generation_tokens_per_second ?? (tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null),
    seconds: (now - began) / 1000,
  };
}

/** The conversation as the server wants it. Reasoning stays here: templates take their own turn's only. */
export function asRequest(conversation, settings) {
  const messages = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const message of conversation.messages) {
    if (message.role === "assistant") {
      if (message.status === "failed" && !message.content && !message.calls?.length) continue;
      messages.push({
        role: "assistant",
        content: message.content,
        ...(message.calls?.length ? { tool_calls: message.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })) } : {}),
      });
    } else if (message.role === "tool") messages.push({ role: "tool", tool_call_id: message.call, content: message.content });
    else messages.push({ role: "user", content: message.content });
  }
  return { model: conversation.model, messages, ...settings.parameters };
}
