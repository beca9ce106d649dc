// The plan that holds: who was to hold what, and what one was to get for it.
import { post } from "../app/api.js";
import { bytes, number, rate, seconds } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { Notice } from "../app/widgets.js";

export function Plan({ cluster }) {
  const plan = cluster.plan;
  return html`<section class="panel">
    <h2>Plan</h2>
    ${plan ? html`<${Planned} plan=${plan} />` : html`<p class="muted">Nobody planned this: what each rank holds was given.</p>`}
    <${WhatIf} model=${cluster.model} />
  </section>`;
}

/** What one more machine would bring. */
function WhatIf({ model }) {
  const [told, setTold] = useState(null);
  const [asking, setAsking] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const memory = Number(event.currentTarget.elements.memory.value);
    setAsking(true);
    try {
      setTold(await post("cluster/plan", { model, add: [`new=${memory}GB`] }));
    } catch (error) {
      setTold({ problem: error.message });
    } finally {
      setAsking(false);
    }
  };
  const speed = (outcome) => (outcome?.fits ? `${rate(1 / outcome.plan.prediction.token_seconds)} tokens/s` : "it does not fit");
  return html`<form class="ask" onSubmit=${submit}>
      <label for="memory">What if I add a machine of</label>
      <span class="unit"><input id="memory" type="number" required min="1" max="4096" step="1" defaultValue="16" /> GB</span>
      <button type="submit" disabled=${asking}>${asking ? "Planning" : "Plan it"}</button>
    </form>
    <div aria-live="polite">${told?.problem && html`<${Notice}>${told.problem}<//>`}
    ${told?.then && html`<div class="stack"><p><strong>Today</strong> ${speed(told.today)}, <strong>then</strong> ${speed(told.then)} a stream.</p>
      ${told.then.fits ? html`<${Planned} plan=${told.then.plan} />` : html`<p class="muted">${told.then.reason}</p>`}</div>`}</div>`;
}

export function Planned({ plan }) {
  const told = plan.prediction ?? {};
  return html`
    <table class="plain">
      <thead><tr><th scope="col">Rank</th><th scope="col">Layers</th><th scope="col" class="number">Needs</th><th scope="col" class="number">May take</th></tr></thead>
      <tbody>${(plan.ranks ?? []).map((rank) => html`<tr key=${rank.rank}>
        <th scope="row">${rank.rank}${rank.node !== `rank${rank.rank}` && html` <span class="muted">${rank.node}</span>`}</th>
        <td>${rank.first_layer}–${rank.last_layer}</td>
        <td class="number">${bytes(rank.weight_bytes + rank.cache_bytes + rank.activation_bytes + rank.reserve_bytes)}</td>
        <td class="number">${bytes(rank.memory_bytes)}</td>
      </tr>`)}</tbody>
    </table>
    <dl class="facts">
      ${told.token_seconds > 0 && html`<div><dt>Predicted</dt><dd>${rate(1 / told.token_seconds)} tokens/s</dd></div>`}
      ${told.first_token_seconds !== undefined && html`<div><dt>First token</dt><dd>${seconds(told.first_token_seconds)}</dd></div>`}
      <div><dt>Layers</dt><dd>${number(plan.model_layers)}, ${plan.parallel}</dd></div>
      ${plan.limit && html`<div class="long"><dt>Held back by</dt><dd>${plan.limit}</dd></div>`}
    </dl>
    ${(plan.excluded ?? []).map((each) => html`<p class="muted" key=${each.node}>${each.node} is left out: ${each.reason}</p>`)}
    ${(plan.notes ?? []).map((note) => html`<p class="muted" key=${note}>${note}</p>`)}`;
}
