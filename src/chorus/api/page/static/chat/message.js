// One message of a conversation.
import { Code } from "../app/code.js";
import { number, rate, seconds, shortName } from "../app/format.js";
import { html, useLayoutEffect, useRef, useState } from "../app/html.js";
import { Icon } from "../app/icons.js";
import { Markdown } from "../app/markdown.js";
import { CopyButton, Notice } from "../app/widgets.js";

export function Message({ message, busy, last, onEdit, onAgain, onSwitch, onResult }) {
  const [editing, setEditing] = useState(false);
  if (message.role === "user") {
    if (editing) return html`<${Editor} text=${message.content} busy=${busy} onCancel=${() => setEditing(false)} onDone=${(text) => { if (onEdit(text)) setEditing(false); }} />`;
    return html`<article class="message user" aria-label="You">
      <div class="bubble">${message.content}</div>
      ${!busy && html`<div class="under"><${Versions} message=${message} onSwitch=${onSwitch} /><button type="button" class="quiet small" onClick=${() => setEditing(true)}><${Icon} name="edit" />Edit</button><${CopyButton} text=${() => message.content} /></div>`}
    </article>`;
  }
  if (message.role === "tool") return html`<article class="message tool" aria-label="Result of a tool"><p class="label"><${Icon} name="tool" />Result</p><pre tabindex="0">${message.content}</pre></article>`;
  return html`<${Answer} message=${message} busy=${busy} last=${last} onAgain=${onAgain} onSwitch=${onSwitch} onResult=${onResult} />`;
}

/** Which of several this is, and the way to the others. */
function Versions({ message, onSwitch }) {
  if (!message.versions) return null;
  const { at, tails } = message.versions;
  const step = (name, label, to) => html`<button type="button" class="quiet small icon-only" aria-label=${label} title=${label} disabled=${!tails[to]} onClick=${() => onSwitch(to)}><${Icon} name=${name} /></button>`;
  return html`<span class="versions">${step("left", "Earlier version", at - 1)}${at + 1}/${tails.length}${step("right", "Later version", at + 1)}</span>`;
}

function Answer({ message, busy, last, onAgain, onSwitch, onResult }) {
  const running = message.status === "waiting" || message.status === "streaming";
  return html`<article class=${`message assistant ${message.status}`} aria-label=${`Answer of ${message.model}`} aria-busy=${running}>
    ${message.reasoning && html`<${Reasoning} text=${message.reasoning} thinking=${running && !message.content} />`}
    ${message.content && html`<${Markdown} text=${message.content} />`}
    ${message.calls?.map((call, place) => html`<${Call} key=${call.id || place} call=${call} open=${last && !busy} onResult=${(text) => onResult(call, text)} />`)}
    ${running && !message.content && !message.reasoning && html`<p class="waiting"><span class="pulse" aria-hidden="true"></span>${message.note || "Waiting for the first token"}</p>`}
    ${message.status === "failed" && html`<${Notice}>${message.note}<//>`}
    ${!running && html`<div class="under">
      <span class="figures-line">${told(message)}</span>
      ${!busy && html`<${Versions} message=${message} onSwitch=${onSwitch} />`}
      <${CopyButton} text=${() => message.content} />
      ${last && !busy && html`<button type="button" class="quiet small" onClick=${onAgain}><${Icon} name="again" />Regenerate</button>`}
    </div>`}
  </article>`;
}

function told(message) {
  const { figures } = message;
  const parts = [shortName(message.model)];
  if (figures?.rate) parts.push(`${rate(figures.rate)} tokens/s`);
  if (figures?.firstToken) parts.push(`first token ${seconds(figures.firstToken)}`);
  if (figures?.tokens) parts.push(`${number(figures.tokens)} tokens`);
  if (figures?.cached) parts.push(`${number(figures.cached)} from cache`);
  if (message.status === "stopped") parts.push("stopped");
  if (message.finish === "length") parts.push("cut at its length");
  return parts.join(" · ");
}

function Reasoning({ text, thinking }) {
  return html`<details class="reasoning"><summary>${thinking ? html`<span class="pulse" aria-hidden="true"></span>Thinking` : "Thought"} <span class="muted">${number(text.length)} characters</span></summary><${Markdown} text=${text} /></details>`;
}

function Call({ call, open, onResult }) {
  const submit = (event) => {
    event.preventDefault();
    onResult(event.currentTarget.elements.result.value);
  };
  return html`<div class="call">
    <p class="label"><${Icon} name="tool" />Calls <code>${call.name}</code></p>
    <${Code} text=${pretty(call.arguments)} language="json" label="arguments" />
    ${open && html`<form class="stack" onSubmit=${submit}><label>What it returns<textarea name="result" rows="2" class="mono"></textarea></label><div><button type="submit">Answer the call</button></div></form>`}
  </div>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Editor({ text, busy, onDone, onCancel }) {
  const [typed, setTyped] = useState(text);
  const area = useRef(null);
  // Before it is seen: whoever types at once must not have the caret moved under their hands.
  useLayoutEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(typed.length, typed.length);
  }, []);
  const submit = (event) => {
    event.preventDefault();
    const said = area.current.value; // what was typed a moment ago may not be drawn yet
    if (said.trim()) onDone(said);
  };
  return html`<form class="message user editing stack" onSubmit=${submit}>
    <label for="edit" class="offscreen">Your message, edited</label>
    <textarea id="edit" ref=${area} rows=${Math.min(12, typed.split("\n").length + 1)} value=${typed} onInput=${(event) => setTyped(event.currentTarget.value)} onKeyDown=${(event) => { if (event.key === "Escape") onCancel(); if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event); }}></textarea>
    <div class="row end"><button type="button" onClick=${onCancel}>Cancel</button><button type="submit" class="main" disabled=${busy}>Send again from here</button></div>
  </form>`;
}
