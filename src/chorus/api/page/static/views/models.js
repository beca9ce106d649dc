// Which models there are, which are in memory, and what it takes to have another there.
import { post } from "../app/api.js";
import { bytes, clock, number, percent, plural, shortName } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { talkTo } from "../chat/view.js";
import { Empty, Meter, Notice, spoken, State } from "../app/widgets.js";

const needs = (plan) => plan.ranks.reduce((sum, rank) => sum + rank.weight_bytes + rank.cache_bytes + rank.activation_bytes + rank.reserve_bytes, 0);
const IN_MEMORY = new Set(["ready", "recovering", "unanswered", "unreachable", "warming", "broken"]);

export function Models({ now }) {
  const { frame } = now;
  if (!frame) return html`<h1>Models</h1><div class="loading" aria-hidden="true"></div>`;
  return html`<div class="headline"><h1>Models</h1><p class="muted">${number(frame.models.filter((model) => model.state === "ready").length)} of ${plural(frame.models.length, "model")} in memory</p></div>
    ${frame.models.length === 0 && html`<section class="panel"><${Empty} title="No models">This key is for none of the models that are served.<//></section>`}
    ${frame.admin && html`<${Download} frame=${frame} />`}
    <ul class="cards">${frame.models.map((model) => html`<li key=${model.id}><${Model} model=${model} admin=${frame.admin} /></li>`)}</ul>`;
}

function Model({ model, admin }) {
  const [told, setTold] = useState(null);
  const [asking, setAsking] = useState("");
  const act = async (verb, more = {}) => {
    setAsking(verb);
    setTold(null);
    try {
      const answer = await post(`models/${verb}`, { model: model.id, wait: false, ...more });
      spoken.value = answer.told;
      setTold({ kind: "calm", text: answer.told });
    } catch (error) {
      setTold({ kind: "bad", text: error.message, force: verb === "load" && error.status === 409 });
    } finally {
      setAsking("");
    }
  };
  const fits = async () => {
    setAsking("plan");
    try {
      const { today } = await post("cluster/plan", { model: model.id });
      setTold(today.fits ? { kind: "calm", text: `It fits: ${plural(today.plan.ranks.length, "rank")}, ${bytes(needs(today.plan))} in all, if nothing else is loaded.` } : { kind: "bad", text: today.reason });
    } catch (error) {
      setTold({ kind: "bad", text: error.message });
    } finally {
      setAsking("");
    }
  };
  const loading = model.state === "loading" || model.state === "warming" || model.state === "starting";
  const inMemory = IN_MEMORY.has(model.state);
  return html`<section class="panel model" aria-label=${model.id}>
    <div class="hero-head">
      <div><h2>${shortName(model.id)}</h2>${model.id !== shortName(model.id) && html`<p class="muted id">${model.id}</p>`}</div>
      <${State} state=${model.state} />
    </div>
    ${loading && html`<div class="progress"><${Meter} value=${model.progress} most=${1} label=${`Loading ${model.id}`} /><p class="muted">${percent(model.progress)}${model.total_bytes ? ` · ${bytes(model.loaded_bytes)} of ${bytes(model.total_bytes)}` : ""}</p></div>`}
    ${model.detail && model.state !== "ready" && html`<p class=${model.state === "failed" ? "detail bad" : "detail"}>${model.detail}</p>`}
    <dl class="facts">
      <div><dt>Memory</dt><dd>${model.booked_bytes ? bytes(model.booked_bytes) : model.total_bytes ? bytes(model.total_bytes) : "–"}</dd></div>
      <div><dt>Context</dt><dd>${model.context_length ? `${number(model.context_length)} tokens` : "–"}</dd></div>
      ${model.ranks > 0 && html`<div><dt>Ranks</dt><dd>${number(model.ranks)}${model.nodes.length ? ` on ${model.nodes.join(", ")}` : ""}</dd></div>`}
      <div><dt>Requests</dt><dd>${number(model.running)} running${model.waiting ? `, ${number(model.waiting)} waiting` : ""}</dd></div>
      ${model.until && html`<div><dt>Stays until</dt><dd>${clock(model.until)}, unless it is asked for</dd></div>`}
      ${model.pinned && html`<div><dt>Pinned</dt><dd>it never makes room</dd></div>`}
      ${model.aliases.length > 0 && html`<div><dt>Also called</dt><dd>${model.aliases.join(", ")}</dd></div>`}
    </dl>
    ${told && html`<${Notice} kind=${told.kind} onClose=${() => setTold(null)}>${told.text}${told.force && html` <button type="button" class="small" onClick=${() => act("load", { force: true })}>Load it all the same</button>`}<//>`}
    <div class="row">
      <a class="button" href="#chat" aria-label=${`Chat with ${model.id}`} onClick=${() => talkTo(model.id)}>Chat</a>
      ${!inMemory && !loading && html`<button type="button" aria-label=${`Would ${model.id} fit?`} disabled=${asking !== ""} onClick=${fits}>Would it fit?</button>`}
      ${admin && !inMemory && html`<button type="button" class="main" aria-label=${`Load ${model.id}`} disabled=${loading || asking !== "" || model.state === "waiting"} onClick=${() => act("load")}>Load</button>`}
      ${admin && (inMemory || loading) && html`<button type="button" aria-label=${`Unload ${model.id}`} disabled=${asking !== ""} onClick=${() => act("unload")}>Unload</button>`}
    </div>
  </section>`;
}

/** Into the store of the server's machine; it can be used then where the server serves any model. */
function Download({ frame }) {
  const { pulls } = frame;
  const [problem, setProblem] = useState("");
  const known = new Set(frame.models.flatMap((model) => [model.id, ...model.aliases]));
  const act = async (verb, model, done) => {
    setProblem("");
    try {
      await post(`models/${verb}`, { model, wait: false });
      spoken.value = `${model} is being ${done}`;
      return true;
    } catch (error) {
      setProblem(error.message);
      return false;
    }
  };
  const submit = async (event) => {
    event.preventDefault();
    const field = event.currentTarget.elements.pull;
    if (await act("pull", field.value.trim(), "downloaded")) field.value = "";
  };
  const after = (pull) => {
    if (pull.state !== "done" || known.has(pull.model)) return null;
    return frame.any_model ? html`<button type="button" class="small" aria-label=${`Load ${pull.model}`} onClick=${() => act("load", pull.model, "loaded")}>Load</button>` : html`<span class="muted">A server that is started with it serves it.</span>`;
  };
  return html`<section class="panel" aria-label="Download">
    <form class="ask" onSubmit=${submit}><label for="pull">Download a model</label><input id="pull" required maxlength="200" autocomplete="off" spellcheck="false" placeholder="a short name, or owner/name at Hugging Face" /><button type="submit">Download</button></form>
    ${problem && html`<${Notice} onClose=${() => setProblem("")}>${problem}<//>`}
    ${pulls.length > 0 && html`<ul class="pulls">${[...pulls].reverse().map((pull) => html`<li key=${`${pull.model}${pull.started_at}`}>
      <p><strong>${pull.model}</strong> <${State} state=${pull.state === "done" ? "finished" : pull.state}>${pull.state}<//> ${after(pull)}</p>
      ${pull.state === "running" && html`<${Meter} value=${pull.done_bytes} most=${pull.total_bytes ?? 0} label=${`Download of ${pull.model}`} />`}
      <p class=${pull.state === "failed" ? "detail bad" : "muted"}>${pull.detail}${pull.total_bytes ? ` · ${bytes(pull.done_bytes)} of ${bytes(pull.total_bytes)}` : ""}</p>
    </li>`)}</ul>`}
  </section>`;
}
