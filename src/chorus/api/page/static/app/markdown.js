// Markdown becomes nodes, never HTML: whatever a model writes is text, or one of the elements below.
import { Lexer, Tokenizer } from "../vendor/marked.js";
import { Code } from "./code.js";
import { html, useMemo } from "./html.js";

const LONGEST = 200_000;
const DEEPEST = 24;
const MOST_MARKS = 400;
const LONGEST_WORD = 1000;
const MOST_LINES = 1000;

export function Markdown({ text }) {
  return useMemo(() => html`<div class="prose">${nodesOf(text)}</div>`, [text]);
}

/** Each list in a list is read once more: not for ever. */
class Shallow extends Tokenizer {
  #depth = 0;

  list(text) {
    return this.#within(() => super.list(text));
  }

  blockquote(text) {
    return this.#within(() => super.blockquote(text));
  }

  #within(read) {
    if (this.#depth >= DEEPEST) return undefined;
    this.#depth += 1;
    try {
      return read();
    } finally {
      this.#depth -= 1;
    }
  }
}

/** What would take long, as its time grows with the square of the marks in one piece, stays as it was written. */
class Brief extends Lexer {
  inlineTokens(text, tokens = []) {
    if (!slow(text)) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text });
    return tokens;
  }
}

/** Lines without an empty one among them may all be of one list or quote, which is read from its start again. */
function endless(text) {
  let run = 0;
  return text.split("\n").some((line) => (run = line.trim() ? run + 1 : 0) > MOST_LINES);
}

function slow(text) {
  let marks = 0;
  for (const sign of text) if ("*_~[<".includes(sign) && (marks += 1) > MOST_MARKS) return true;
  return text.split(/[^!-~]+/).some((word) => word.length > LONGEST_WORD);
}

export function nodesOf(text) {
  if (text.length > LONGEST || endless(text)) return html`<pre class="plain">${text}</pre>`;
  let tokens;
  try {
    tokens = new Brief({ gfm: true, breaks: false, tokenizer: new Shallow() }).lex(text);
  } catch {
    return html`<pre class="plain">${text}</pre>`;
  }
  return blocks(tokens, 0);
}

function blocks(tokens, depth) {
  return (tokens ?? []).map((token) => block(token, depth));
}

function block(token, depth) {
  if (depth > DEEPEST) return token.raw ?? "";
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The page has its own first and second headings.
      return html`<${`h${Math.min(6, token.depth + 2)}`}>${inline(token.tokens, depth)}<//>`;
    case "paragraph":
      return html`<p>${inline(token.tokens, depth)}</p>`;
    case "text":
      return token.tokens ? html`<span>${inline(token.tokens, depth)}</span>` : plain(token.text);
    case "code":
      return html`<${Code} text=${token.text} language=${token.lang ?? ""} />`;
    case "blockquote":
      return html`<blockquote>${blocks(token.tokens, depth + 1)}</blockquote>`;
    case "hr":
      return html`<hr />`;
    case "list": {
      const items = token.items.map((item) => html`<li class=${item.task ? "task" : ""}>${item.task && html`<span aria-label=${item.checked ? "done" : "to do"} role="img">${item.checked ? "☑" : "☐"}</span>`} ${blocks(item.tokens.filter((each) => each.type !== "checkbox"), depth + 1)}</li>`);
      return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case "table":
      return html`<div class="scroll" tabindex="0" role="region" aria-label="A table"><table>
        <thead><tr>${token.header.map((cell) => html`<th scope="col">${inline(cell.tokens, depth)}</th>`)}</tr></thead>
        <tbody>${token.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell.tokens, depth)}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    default:
      // HTML among it, and whatever a later lexer may find: as it was written.
      return html`<p class="raw">${token.raw ?? token.text ?? ""}</p>`;
  }
}

function inline(tokens, depth) {
  return (tokens ?? []).map((token) => {
    if (depth > DEEPEST) return token.raw ?? "";
    switch (token.type) {
      case "strong":
        return html`<strong>${inline(token.tokens, depth + 1)}</strong>`;
      case "em":
        return html`<em>${inline(token.tokens, depth + 1)}</em>`;
      case "del":
        return html`<del>${inline(token.tokens, depth + 1)}</del>`;
      case "codespan":
        return html`<code>${token.text}</code>`;
      case "br":
        return html`<br />`;
      case "link":
        return link(token, inline(token.tokens, depth + 1));
      case "image":
        return link(token, `image: ${token.text || token.href}`);
      case "escape":
        return token.text;
      case "text":
        return token.tokens ? inline(token.tokens, depth + 1) : plain(token.text);
      default:
        return token.raw ?? "";
    }
  });
}

/** Only to the web, and nobody there learns where from; anything else stays as it was written. */
function link(token, shown) {
  const href = webAddress(token.href);
  return href ? html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${shown}</a>` : token.raw;
}

export function webAddress(href) {
  try {
    const url = new URL(href);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: " ", hellip: "…", ndash: "–", mdash: "—", times: "×", rarr: "→", larr: "←" };

/** The lexer leaves entities to a browser that would read them as HTML. */
export function plain(text) {
  return text.replace(/&(#\d{1,7}|#x[\da-f]{1,6}|[a-z]{2,8});/gi, (whole, name) => {
    if (name[0] !== "#") return NAMED[name.toLowerCase()] ?? whole;
    const point = name[1].toLowerCase() === "x" ? parseInt(name.slice(2), 16) : Number(name.slice(1));
    return point > 0 && point <= 0x10ffff && !(point >= 0xd800 && point <= 0xdfff) ? String.fromCodePoint(point) : whole;
  });
}
