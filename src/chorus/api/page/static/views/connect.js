// How to point a client at this address, ready to copy.
import { base } from "../app/address.js";
import { get } from "../app/api.js";
import { Code } from "../app/code.js";
import { html, useEffect, useState } from "../app/html.js";
import { key } from "../app/key.js";
import { Notice } from "../app/widgets.js";

/** The key is never written here: a page may be shown to others. */
const snippets = (address, model, keyed) => {
  const key = keyed ? "YOUR_KEY" : "none";
  return [
    {
      name: "curl",
      language: "bash",
      text: `curl ${address}/v1/chat/completions \\
  -H 'content-type: application/json' \\${keyed ? `\n  -H 'authorization: Bearer ${key}' \\` : ""}
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Hello"}]}'`,
    },
    {
      name: "Claude Code",
      language: "bash",
      text: `export ANTHROPIC_BASE_URL=${address}
export ANTHROPIC_AUTH_TOKEN=${key}
export ANTHROPIC_MODEL=${model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL=${model}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude`,
    },
    {
      name: "OpenCode",
      note: "opencode.json",
      language: "json",
      text: JSON.stringify(
        {
          $schema: "https://opencode.ai/config.json",
          model: `chorus/${model}`,
          provider: { chorus: { npm: "@ai-sdk/openai-compatible", name: "Chorus", options: { baseURL: `${address}/v1`, apiKey: key }, models: { [model]: { name: model } } } },
        },
        null,
        2,
      ),
    },
    {
      name: "Open WebUI",
      language: "bash",
      text: `pip install open-webui
ENABLE_OLLAMA_API=false OPENAI_API_BASE_URL=${address}/v1 OPENAI_API_KEY=${key} open-webui serve --port 3000`,
    },
    {
      name: "LangChain",
      language: "python",
      text: `from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="${address}/v1", api_key="${key}", model="${model}")
print(model.invoke("What is the capital of France?").text)`,
    },
    {
      name: "OpenAI's Python client",
      language: "python",
      text: `from openai import OpenAI

client = OpenAI(base_url="${address}/v1", api_key="${key}")
answer = client.chat.completions.create(model="${model}", messages=[{"role": "user", "content": "Hello"}])
print(answer.choices[0].message.content)`,
    },
  ];
};

/** A name that may stand in any of these texts; others are asked for as the default. */
const speakable = (id) => (/^[\w./:@+-]+$/.test(id ?? "") ? id : "default_model");

export function Connect({ now }) {
  const models = now.frame?.models ?? [];
  const [chosen, choose] = useState("");
  const [health, setHealth] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    get("health").then(setHealth, (error) => setProblem(error.message));
  }, []);
  const address = base.href.replace(/\/$/, "");
  const model = speakable(chosen || models[0]?.id);
  return html`<div class="headline"><h1>Connect</h1>
      ${models.length > 1 && html`<label class="inline">Model <select value=${chosen || models[0].id} onChange=${(event) => choose(event.currentTarget.value)}>${models.map((each) => html`<option key=${each.id} value=${each.id}>${each.id}</option>`)}</select></label>`}
    </div>
    <p class="lead">This server speaks OpenAI's and Anthropic's protocols at <code>${address}</code>.</p>
    <div class="snippets">${snippets(address, model, Boolean(key.value)).map((each) => html`<section key=${each.name} class="panel" aria-label=${each.name}><h2>${each.name}</h2><${Code} text=${each.text} language=${each.language} label=${each.note ?? each.language} /></section>`)}</div>
    <section class="panel configuration">
      <h2>Configuration in force</h2>
      ${problem && html`<${Notice}>${problem}<//>`}
      ${health?.configuration ? html`<${Code} text=${JSON.stringify(health.configuration, null, 2)} language="json" label="secrets are left out" />` : !problem && html`<p class="muted">The server tells it to keys that are for all its models.</p>`}
    </section>`;
}
