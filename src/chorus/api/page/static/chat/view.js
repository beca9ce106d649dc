// A chat with the model that is shown.
import { plural, shortName, day } from "../app/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../app/html.js";
import { Icon } from "../app/icons.js";
import { keepAs, kept } from "../app/kept.js";
import { useValue, Value } from "../app/store.js";
import { Confirm, Notice, spoken, State } from "../app/widgets.js";
import { ask, asRequest, unsaid } from "./answer.js";
import { blank, CHOSEN_MODEL, conversations, forget, keep, open, titleOf } from "./conversations.js";
import { asJson, asMarkdown, save } from "./export.js";
import { Message } from "./message.js";
import { asked, Parameters, settings } from "./settings.js";
import { another, switched } from "./versions.js";

// Outside the view, so that an answer goes on while another view is shown.
const current = new Value(null);
const streaming = new Value(null);
const NOTHING = blank("");
open();
// What another page of this browser made of the conversation since; our own answer is kept when it ends.
conversations.subscribe((list) => {
  const held = current.value;
  const stored = held && list.find((each) => each.id === held.id);
  if (stored && stored.changed > held.changed && streaming.value?.id !== held.id) current.value = stored;
});

/** Asks for the next answer of a conversation, whose last message is somebody's; `versions` are what that answer carries. */
async function next(conversation, chosen, versions) {
  const stop = new AbortController();
  const id = conversation.id;
  const shown = (answer) => {
    const { title } = conversations.value.find((each) => each.id === id) ?? conversation; // it may be renamed meanwhile
    return { ...conversation, title, messages: [...conversation.messages, versions ? { ...answer, versions } : answer] };
  };
  const nothing = unsaid(conversation.model);
  const run = { id, stop, latest: shown(nothing) };
  streaming.value = run;
  current.value = run.latest;
  // A page that goes in mid-answer loses neither the earlier versions nor the way to ask again.
  keep(shown({ ...nothing, status: "stopped" }));
  const show = perFrame(() => {
    if (current.value?.id === id) current.value = run.latest;
  });
  const draw = (answer) => {
    run.latest = shown(answer);
    show();
  };
  spoken.value = "The answer begins";
  const answer = await ask(asRequest(conversation, chosen), stop.signal, draw);
  show.end();
  const whole = keep({ ...shown(answer), changed: conversations.value.find((each) => each.id === id)?.changed ?? 0 });
  if (current.value?.id === id) current.value = whole;
  if (streaming.value === run) streaming.value = null;
  spoken.value = answer.status === "failed" ? `The answer failed: ${answer.note}` : `The answer is ${answer.status === "stopped" ? "stopped" : "complete"}${answer.figures?.tokens ? `, ${plural(answer.figures.tokens, "token")}` : ""}`;
}

/** Tokens come faster than anybody can read: drawn as often as the screen is. */
function perFrame(draw) {
  let frame = 0;
  const later = () => {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
  };
  later.end = () => cancelAnimationFrame(frame);
  return later;
}

function chosenModel(frame) {
  const last = kept(CHOSEN_MODEL);
  return frame?.models.find((model) => model.id === last)?.id ?? frame?.models[0]?.id ?? "";
}

/** The next chat is with this model; one with it that is open goes on. */
export function talkTo(model) {
  keepAs(CHOSEN_MODEL, model);
  if (current.value && current.value.model !== model) current.value = blank(model);
}

export function Chat({ now }) {
  const held = useValue(current);
  const list = useValue(conversations);
  const busy = useValue(streaming);
  const chosen = useValue(settings);
  const [tuning, setTuning] = useState(false);
  const [listing, setListing] = useState(false);
  const models = now.frame?.models ?? [];
  const conversation = held ?? NOTHING;
  useEffect(() => {
    // Before the first frame nobody knows which models there are.
    if (now.frame && !current.value?.model) current.value = { ...(current.value ?? blank("")), model: chosenModel(now.frame) };
  }, [now.frame]);
  const model = models.find((each) => each.id === conversation.model);
  const mine = busy?.id === conversation.id;

  const setModel = (id) => {
    keepAs(CHOSEN_MODEL, id);
    current.value = { ...conversation, model: id };
    if (conversation.messages.length) keep(current.value);
  };
  /** Whether it is on its way: one answer at a time, and nothing is changed where it cannot be asked for. */
  const say = (messages, versions) => {
    if (streaming.value) return false;
    let parameters;
    try {
      parameters = asked(settings.value);
    } catch (error) {
      current.value = { ...conversation, problem: error.message };
      return false;
    }
    next({ ...conversation, model: conversation.model || chosenModel(now.frame), messages, problem: "" }, parameters, versions);
    return true;
  };
  const again = (place) => {
    const { content, reasoning, calls, versions } = conversation.messages[place];
    // One of which nothing came is no version to go back to.
    const empty = !content && !reasoning && !calls?.length;
    say(conversation.messages.slice(0, place), empty ? versions : another(conversation.messages, place));
  };
  const fresh = () => {
    current.value = blank(conversation.model || chosenModel(now.frame));
    setListing(false);
  };

  return html`<div class=${`chat ${listing ? "listing" : ""}`}>
    <${List} list=${list} at=${conversation.id} busy=${busy} onOpen=${(each) => { current.value = busy?.id === each.id ? busy.latest : each; setListing(false); }} onNew=${fresh} />
    <section class="talk" aria-label="Conversation">
      <div class="talk-head">
        <button type="button" class="quiet icon-only only-phone" aria-label="Conversations" aria-expanded=${listing} onClick=${() => setListing(!listing)}><${Icon} name="list" /></button>
        <h1 class="offscreen">Chat</h1>
        <label class="model-choice"><span class="offscreen">Model</span>
          <select value=${conversation.model} onChange=${(event) => setModel(event.currentTarget.value)} disabled=${Boolean(mine)}>
            ${!model && html`<option value=${conversation.model}>${conversation.model ? `${shortName(conversation.model)} (not served now)` : "no model"}</option>`}
            ${models.map((each) => html`<option key=${each.id} value=${each.id}>${shortName(each.id)}</option>`)}
          </select>
        </label>
        ${model && html`<${State} state=${model.state} />`}
        <span class="grow"></span>
        ${conversation.messages.length > 0 && html`<${Export} conversation=${conversation} />`}
        <button type="button" class="quiet" aria-expanded=${tuning} aria-controls="parameters" onClick=${() => setTuning(!tuning)}><${Icon} name="sliders" /><span class="label">Parameters</span></button>
      </div>
      <div id="parameters" hidden=${!tuning}>${tuning && html`<${Parameters} held=${chosen} />`}</div>
      <${Scroll} conversation=${conversation} busy=${Boolean(busy)} now=${now}
        onEdit=${(place, text) => say([...conversation.messages.slice(0, place), { role: "user", content: text, versions: another(conversation.messages, place) }])}
        onAgain=${again}
        onSwitch=${(place, to) => { current.value = { ...conversation, messages: switched(conversation.messages, place, to) }; keep(current.value); }}
        onResult=${(call, text) => say([...conversation.messages, { role: "tool", call: call.id, content: text }])} />
      ${conversation.problem && html`<${Notice}>${conversation.problem}<//>`}
      <${Composer} busy=${mine} other=${Boolean(busy) && !mine} onStop=${() => busy.stop.abort()} onSend=${(text) => say([...conversation.messages, { role: "user", content: text }])} />
    </section>
  </div>`;
}

function Scroll({ conversation, busy, now, onEdit, onAgain, onSwitch, onResult }) {
  const box = useRef(null);
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current) box.current.scrollTop = box.current.scrollHeight;
  });
  useEffect(() => {
    follows.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  }, [conversation.id]);
  const scrolled = () => {
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < 60;
  };
  const { messages } = conversation;
  return html`<div class="messages" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label="Messages">
    <div class="column">
      ${messages.length === 0 && html`<${Welcome} now=${now} model=${conversation.model} />`}
      ${messages.map((message, place) => html`<${Message} key=${`${conversation.id}/${place}`} message=${message} busy=${busy} last=${place === messages.length - 1} onEdit=${(text) => onEdit(place, text)} onAgain=${() => onAgain(place)} onSwitch=${(to) => onSwitch(place, to)} onResult=${onResult} />`)}
    </div>
  </div>`;
}

function Welcome({ now, model }) {
  const cluster = now.frame?.clusters.find((each) => each.model === model);
  const ranks = cluster?.ranks.length ?? 0;
  return html`<div class="welcome">
    <p class="welcome-title">${model ? shortName(model) : "No model so far"}</p>
    <p class="muted">${ranks > 1 ? `${plural(ranks, "rank")}, one voice.` : ""} What is said here stays in this browser.</p>
  </div>`;
}

function Composer({ busy, other, onSend, onStop }) {
  const [text, setText] = useState("");
  const area = useRef(null);
  const grow = () => {
    const each = area.current;
    each.style.blockSize = "auto";
    each.style.blockSize = `${Math.min(each.scrollHeight + 2, 240)}px`;
  };
  useLayoutEffect(grow, [text]);
  const submit = (event) => {
    event.preventDefault();
    const said = area.current.value.trim(); // what was typed a moment ago may not be drawn yet
    if (busy || other || !said) return;
    if (onSend(said)) setText("");
  };
  const typed = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape" && busy) onStop();
  };
  return html`<form class="composer" onSubmit=${submit}>
    <div class="composer-box">
      <label for="say" class="offscreen">Message</label>
      <textarea id="say" ref=${area} rows="1" placeholder="Say something" value=${text} onInput=${(event) => setText(event.currentTarget.value)} onKeyDown=${typed}></textarea>
      ${busy
        ? html`<button type="button" class="main round" aria-label="Stop" title="Stop (Escape)" onClick=${onStop}><${Icon} name="stop" /></button>`
        : html`<button type="submit" class="main round" aria-label="Send" title="Send (Enter)" disabled=${!text.trim() || other}><${Icon} name="send" /></button>`}
    </div>
    ${other && html`<p class="muted small">Another conversation is being answered.</p>`}
  </form>`;
}

function Export({ conversation }) {
  const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40).replace(/^-|-$/g, "") || "conversation";
  return html`<details class="menu"><summary class="quiet button"><${Icon} name="down" /><span class="label">Export</span></summary><div class="menu-items">
    <button type="button" class="quiet" onClick=${() => save(`${name}.md`, asMarkdown(conversation), "text/markdown")}>Markdown</button>
    <button type="button" class="quiet" onClick=${() => save(`${name}.json`, asJson(conversation), "application/json")}>JSON</button>
  </div></details>`;
}

function List({ list, at, busy, onOpen, onNew }) {
  const [renaming, setRenaming] = useState(null);
  const [going, setGoing] = useState(null);
  return html`<aside class="conversations" aria-label="Conversations">
    <button type="button" class="new" onClick=${onNew}><${Icon} name="plus" />New conversation</button>
    <ul>${list.map((each) => html`<li key=${each.id} class=${each.id === at ? "at" : ""}>${
      renaming === each.id
        ? html`<${Rename} conversation=${each} onDone=${() => setRenaming(null)} />`
        : html`<button type="button" class="open" aria-current=${each.id === at ? "true" : null} onClick=${() => onOpen(each)}><span>${titleOf(each)}</span><small>${day(each.changed)}</small></button>
            <span class="actions"><button type="button" class="quiet icon-only" aria-label=${`Rename ${titleOf(each)}`} onClick=${() => setRenaming(each.id)}><${Icon} name="edit" /></button>
            <button type="button" class="quiet icon-only" aria-label=${`Delete ${titleOf(each)}`} disabled=${busy?.id === each.id} onClick=${() => setGoing(each)}><${Icon} name="trash" /></button></span>`
    }</li>`)}</ul>
    ${going && html`<${Confirm} question=${`Delete “${titleOf(going)}”? It is kept nowhere else.`} action="Delete" onNo=${() => setGoing(null)} onYes=${() => { forget(going.id); if (going.id === at) onNew(); }} />`}
  </aside>`;
}

function Rename({ conversation, onDone }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.select(), []);
  const done = (event) => {
    event.preventDefault();
    keep({ ...conversation, title: event.target.closest("form").elements.title.value.trim().slice(0, 120) });
    onDone();
  };
  return html`<form onSubmit=${done} class="rename"><input name="title" ref=${field} aria-label="Title" defaultValue=${titleOf(conversation)} onBlur=${done} onKeyDown=${(event) => { if (event.key === "Escape") onDone(); }} /></form>`;
}
