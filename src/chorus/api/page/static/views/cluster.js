// Is it up, who holds what, how fast is it.
import { Spark } from "../app/chart.js";
import { bytes, number, percent, plural, rate, seconds, shortName } from "../app/format.js";
import { hitShare, series } from "../app/history.js";
import { html, useMemo, useState } from "../app/html.js";
import { Empty, Meter, Notice, State } from "../app/widgets.js";
import { Events } from "./events.js";
import { Picture, roomOf } from "./picture.js";
import { Plan } from "./plan.js";

export function Cluster({ now }) {
  const { frame, history } = now;
  const [chosen, choose] = useState(null);
  if (!frame) return html`<${Waiting} now=${now} />`;
  const loaded = frame.clusters;
  const cluster = loaded.find((each) => each.model === chosen) ?? loaded[0];
  return html`
    <div class="headline">
      <h1>Cluster</h1>
      ${loaded.length > 1 && html`<div class="tabs" role="group" aria-label="Model shown">${loaded.map((each) => html`<button type="button" key=${each.model} aria-pressed=${each === cluster} onClick=${() => choose(each.model)}>${shortName(each.model)}</button>`)}</div>`}
    </div>
    ${now.state !== "live" && now.state !== "connecting" && html`<${Notice}>${now.state === "refused" ? now.why : "The server does not answer. What you see is how it was last."}<//>`}
    ${cluster ? html`<${OneCluster} key=${cluster.model} cluster=${cluster} past=${history.get(cluster.model)} frame=${frame} />` : html`<${Nothing} frame=${frame} /><${Events} frame=${frame} />`}`;
}

function Waiting({ now }) {
  return html`<h1>Cluster</h1>${
    now.state === "refused" || now.state === "offline"
      ? html`<${Notice}>${now.why || "The server does not answer."} This page tries again by itself.<//>`
      : html`<div class="loading" aria-hidden="true"></div>`
  }`;
}

function Nothing({ frame }) {
  const waiting = frame.models.filter((model) => model.state !== "unloaded");
  return html`<section class="panel">
    <${Empty} title="No model is loaded">One that is asked for is loaded then; <a href="#models">Models</a> loads one now.<//>
    ${waiting.map((model) => html`<p><${State} state=${model.state} /> ${model.id} ${model.detail}</p>`)}
  </section>`;
}

function OneCluster({ cluster, past, frame }) {
  const row = frame.models.find((model) => model.id === cluster.model);
  const machines = new Set(cluster.ranks.map((rank) => rank.node)).size;
  return html`
    <section class="panel hero" aria-label="Who serves">
      <div class="hero-head">
        <div>
          <h2>${shortName(cluster.model)}</h2>
          <p class="muted">${summary(cluster, machines, row)}</p>
        </div>
        <${State} state=${cluster.state} />
      </div>
      ${cluster.state !== "ready" && cluster.detail && html`<p class="detail">${cluster.detail}${cluster.state === "loading" ? ` · ${percent(cluster.progress)}` : ""}</p>`}
      ${cluster.state === "loading" && html`<${Meter} value=${cluster.progress} most=${1} label="Loaded" />`}
      <${Picture} cluster=${cluster} traffic=${past?.links} />
      ${Object.entries(cluster.problems).map(([where, why]) => html`<${Notice} key=${where}><strong>${where}</strong> ${why}<//>`)}
    </section>
    <${Figures} cluster=${cluster} past=${past} />
    <div class="columns">
      <div class="below"><${Ranks} cluster=${cluster} /><${Events} frame=${frame} /></div>
      <${Plan} cluster=${cluster} admin=${frame.admin} />
    </div>`;
}

function summary(cluster, machines, row) {
  const parts = [plural(cluster.ranks.length, "rank"), plural(machines, "machine"), cluster.parallel, cluster.ranks.length > 1 && cluster.transport, row?.context_length && `${number(row.context_length)} tokens of context`];
  return parts.filter(Boolean).join(" · ");
}

function Figures({ cluster, past }) {
  const points = past?.points ?? [];
  const lines = useMemo(
    () => ({
      tokens: series(points, (point) => point.tokens),
      first: series(points, (point) => point.first),
      queue: series(points, (point) => point.queue),
      hits: series(points, (point, place) => share(points, place)),
    }),
    [points],
  );
  return html`<section class="figures" aria-label="Live figures">
    <${Figure} title="Tokens per second" value=${rate(cluster.rates.tokens_per_second)} line=${lines.tokens} say=${rate} ink="--accent" note=${`${number(cluster.rates.tokens)} in all`} />
    <${Figure} title="First token" value=${seconds(cluster.rates.first_token_seconds)} line=${lines.first} say=${seconds} ink="--voice-1" note="median of the latest" />
    <${Figure} title="Queue" value=${number(cluster.queued + cluster.waiting)} line=${lines.queue} say=${number} ink="--voice-2" note=${`${number(cluster.running)} running`} />
    <${Figure} title="Cache hits" value=${percent(hitShare(points, cluster.cache))} line=${lines.hits} say=${percent} ink="--voice-3" note=${cluster.cache ? (cluster.cache.enabled ? `${number(cluster.cache.tokens)} tokens kept` : "off") : ""} />
  </section>`;
}

function share(points, place) {
  const from = points[Math.max(0, place - 20)];
  const to = points[place];
  if (!from || to.asked === null || from.asked === null) return null;
  if (to.asked > from.asked) return (to.found - from.found) / (to.asked - from.asked);
  return to.asked ? to.found / to.asked : 0;
}

function Figure({ title, value, line, say, ink, note }) {
  const [at, setAt] = useState(null);
  const pointed = at !== null && line[1][at] !== undefined && line[1][at] !== null;
  const ago = pointed ? Math.round(line[0].at(-1) - line[0][at]) : 0;
  return html`<div class="figure">
    <h3>${title}</h3>
    <p class="value">${pointed ? say(line[1][at]) : value}</p>
    <${Spark} points=${line} ink=${ink} onPoint=${setAt} />
    <p class="note">${pointed && ago > 0 ? `${ago} s ago` : note}</p>
  </div>`;
}

function Ranks({ cluster }) {
  const room = roomOf(cluster);
  const cache = cluster.cache;
  return html`<section class="panel">
    <h2>Memory</h2>
    <table class="plain">
      <thead><tr><th scope="col">Rank</th><th scope="col" class="number spare">Weights</th><th scope="col" class="number">In memory</th><th scope="col" class="number spare"><span class="offscreen">Of</span></th><th scope="col" class="wide"><span class="offscreen">Share</span></th></tr></thead>
      <tbody>${cluster.ranks.map((rank) => html`<tr key=${rank.rank}>
        <th scope="row">${rank.rank} <span class="muted">${rank.node}</span></th>
        <td class="number spare">${bytes(rank.weight_bytes)}</td>
        <td class="number">${bytes(rank.memory_bytes)}</td>
        <td class="number spare muted">${room.get(rank.rank).told}</td>
        <td class="wide"><${Meter} value=${rank.memory_bytes} most=${room.get(rank.rank).most} label=${`Memory of rank ${rank.rank}`} tone=${`voice-${rank.rank % 8}`} /></td>
      </tr>`)}</tbody>
    </table>
    <dl class="facts">
      ${cache && html`<div><dt>Cache</dt><dd>${bytes(cache.bytes + cache.live_bytes)} of ${bytes(cache.budget_bytes)}</dd></div>`}
      ${cache?.disk_budget_bytes > 0 && html`<div><dt>On disk</dt><dd>${bytes(cache.disk_bytes)}</dd></div>`}
      <div><dt>Numbers</dt><dd>${[...new Set(cluster.ranks.map((rank) => [rank.dtype, rank.form].filter(Boolean).join(", ")))].join(" · ") || "–"}</dd></div>
      ${cluster.recoveries?.count > 0 && html`<div><dt>Recoveries</dt><dd>${number(cluster.recoveries.count)}, the last in ${seconds(cluster.recoveries.seconds)}</dd></div>`}
      ${cluster.recoveries?.told && html`<div class="long"><dt>Last loss</dt><dd>${cluster.recoveries.told}</dd></div>`}
    </dl>
  </section>`;
}
