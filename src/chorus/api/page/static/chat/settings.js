// How answers are drawn: only what somebody has set is sent, so the server's own defaults hold.
import { html, useState } from "../app/html.js";
import { keepAs, kept } from "../app/kept.js";
import { Value } from "../app/store.js";

const NAME = "chorus.chat.settings";

export const FIELDS = [
  { name: "temperature", label: "Temperature", step: "0.1", min: 0, max: 2, hint: "0 is always the likeliest" },
  { name: "top_p", label: "Top p", step: "0.05", min: 0, max: 1 },
  { name: "top_k", label: "Top k", step: "1", min: 0, max: 1000, whole: true },
  { name: "min_p", label: "Min p", step: "0.05", min: 0, max: 1 },
  { name: "max_tokens", label: "Most tokens", step: "1", min: 1, max: 1000000, whole: true },
  { name: "seed", label: "Seed", step: "1", min: 0, max: 4294967295, whole: true },
  { name: "repetition_penalty", label: "Repetition penalty", step: "0.05", min: 0.1, max: 5 },
];

const NOTHING = { system: "", values: {}, thinking: "", tools: "" };

function before() {
  try {
    return { ...NOTHING, ...JSON.parse(kept(NAME) ?? "{}") };
  } catch {
    return NOTHING;
  }
}

export const settings = new Value(before());

export function change(more) {
  settings.value = { ...settings.value, ...more };
  keepAs(NAME, JSON.stringify(settings.value));
}

/** {system, parameters} as a request takes them; throws with the reason where the tools cannot be read. */
export function asked(held) {
  const parameters = {};
  for (const field of FIELDS) {
    const value = Number(held.values[field.name]);
    if (held.values[field.name] !== undefined && held.values[field.name] !== "" && Number.isFinite(value)) parameters[field.name] = field.whole ? Math.round(value) : value;
  }
  if (held.thinking) parameters.enable_thinking = held.thinking === "on";
  const tools = toolsOf(held.tools);
  if (tools.length) parameters.tools = tools;
  return { system: held.system, parameters };
}

export function toolsOf(text) {
  if (!text.trim()) return [];
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are no JSON: ${error.message}`);
  }
  if (!Array.isArray(found)) throw new Error("The tools are a list: [{\"type\": \"function\", …}].");
  return found.map((tool) => (tool?.type ? tool : { type: "function", function: tool }));
}

export function Parameters({ held }) {
  const [problem, setProblem] = useState("");
  const set = (name) => (event) => change({ values: { ...held.values, [name]: event.currentTarget.value } });
  const tools = (event) => {
    change({ tools: event.currentTarget.value });
    try {
      toolsOf(event.currentTarget.value);
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<div class="parameters">
    <label class="whole">System prompt<textarea rows="2" value=${held.system} onInput=${(event) => change({ system: event.currentTarget.value })}></textarea></label>
    ${FIELDS.map((field) => html`<label key=${field.name} title=${field.hint}>${field.label}<input type="number" inputmode="decimal" step=${field.step} min=${field.min} max=${field.max} placeholder="default" value=${held.values[field.name] ?? ""} onInput=${set(field.name)} /></label>`)}
    <label>Thinking<select value=${held.thinking} onChange=${(event) => change({ thinking: event.currentTarget.value })}><option value="">default</option><option value="on">on</option><option value="off">off</option></select></label>
    <label class="whole">Tools, as JSON<textarea rows="2" class="mono" spellcheck="false" value=${held.tools} onInput=${tools} placeholder='[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'></textarea></label>
    ${problem && html`<p class="problem whole" role="alert">${problem}</p>`}
    <p class="whole"><button type="button" class="small" onClick=${() => { change(NOTHING); setProblem(""); }}>Back to the server's defaults</button></p>
  </div>`;
}
