// What runs and what ran lately: never its text.
import { post } from "../app/api.js";
import { clock, number, percent, plural, rate, seconds, shortName } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { Empty, Notice, spoken, State } from "../app/widgets.js";

const ENDED = { stop: "finished", length: "finished", tool_calls: "finished", error: "failed", timeout: "failed" };

export function Requests({ now }) {
  const { frame } = now;
  const [problem, setProblem] = useState("");
  if (!frame) return html`<h1>Requests</h1><div class="loading" aria-hidden="true"></div>`;
  const { running, recent } = frame.requests;
  const cancel = async (request) => {
    setProblem("");
    try {
      const { cancelled } = await post("requests/cancel", { id: request.id });
      spoken.value = `${plural(cancelled, "request")} cancelled`;
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<div class="headline"><h1>Requests</h1><p class="muted">${frame.admin ? "" : "Those of your key. "}${plural(running.length, "request")} running</p></div>
    ${problem && html`<${Notice} onClose=${() => setProblem("")}>${problem}<//>`}
    <section class="panel" aria-label="Running requests"><h2>Running</h2>
      ${running.length ? html`<${Table} list=${running} admin=${frame.admin} onCancel=${cancel} />` : html`<${Empty} title="Nothing runs">A request shows here from its arrival to its last token.<//>`}
    </section>
    <section class="panel" aria-label="Recent requests"><h2>Recent</h2>
      ${recent.length ? html`<${Table} list=${recent} admin=${frame.admin} />` : html`<p class="muted">None so far.</p>`}
    </section>`;
}

/** A row is the same one when those above it go: whoever stands in it with the keyboard stays there. */
function keyed(list) {
  const known = new Map();
  return list.map((each) => {
    const name = `${each.id} ${each.started_at}`;
    const count = known.get(name) ?? 0;
    known.set(name, count + 1);
    return [`${name} ${count}`, each];
  });
}

function Table({ list, admin, onCancel }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${onCancel ? "Running" : "Recent"}><table class="plain requests">
    <thead><tr><th scope="col">State</th><th scope="col">Model</th>${admin && html`<th scope="col" class="spare">Key</th>`}<th scope="col" class="number">${onCancel ? "Age" : "Took"}</th><th scope="col" class="number spare">Prompt</th><th scope="col" class="number">Tokens</th><th scope="col" class="number">Tokens/s</th><th scope="col" class="number spare">First token</th><th scope="col" class=${onCancel ? "" : "spare"}>${onCancel ? html`<span class="offscreen">Cancel</span>` : "Began"}</th></tr></thead>
    <tbody>${keyed(list).map(([name, each]) => html`<tr key=${name}>
      <td><${State} state=${onCancel ? (each.state === "decode" || each.state === "prefill" ? "running" : "waiting") : (ENDED[each.state] ?? each.state)}>${each.state.replaceAll("_", " ")}<//>${each.resumed ? html` <span class="muted">resumed ${number(each.resumed)}×</span>` : ""}</td>
      <td title=${`${each.endpoint} ${each.id}`}>${shortName(each.model)}</td>
      ${admin && html`<td class="spare">${each.key ?? "–"}</td>`}
      <td class="number">${seconds(each.age_seconds)}</td>
      <td class="number spare">${number(each.prompt_tokens)}${each.cached_tokens ? html`<span class="muted"> ${percent(each.cached_tokens / each.prompt_tokens)} cached</span>` : ""}</td>
      <td class="number">${number(each.generated_tokens)}</td>
      <td class="number">${rate(each.tokens_per_second)}</td>
      <td class="number spare">${seconds(each.ttft_seconds)}</td>
      <td class=${onCancel ? "number" : "number spare"}>${onCancel ? html`<button type="button" class="small" aria-label=${`Cancel request ${each.id}`} onClick=${() => onCancel(each)}>Cancel</button>` : clock(each.started_at)}</td>
    </tr>`)}</tbody>
  </table></div>`;
}
