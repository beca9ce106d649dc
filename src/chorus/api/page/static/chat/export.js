// A conversation as a file of one's own.
import { titleOf } from "./conversations.js";

export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`, `Model: ${conversation.model}`];
  for (const message of conversation.messages) {
    if (message.role === "user") parts.push("## You", message.content);
    else if (message.role === "tool") parts.push("## Result of a tool", fenced(message.content));
    else {
      parts.push(`## ${message.model}`);
      if (message.reasoning) parts.push(message.reasoning.split("\n").map((line) => `> ${line}`).join("\n"));
      if (message.content) parts.push(message.content);
      for (const call of message.calls ?? []) parts.push(`Calls \`${call.name}\`:`, fenced(call.arguments));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

function fenced(text) {
  const ticks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((found) => found[0].length + 1)));
  return `${ticks}\n${text}\n${ticks}`;
}

export function asJson(conversation) {
  const { id, title, model, changed, messages } = conversation;
  return `${JSON.stringify({ id, title: title || titleOf(conversation), model, changed: new Date(changed).toISOString(), messages }, null, 2)}\n`;
}

export function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
