// What the page decides without a browser, run by node: `node --test tests/e2e/page/modules.test.mjs`.
import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";

const place = "../../../src/chorus/api/page/static/";
const { EventParser } = await import(`${place}app/events.js`);
const { nodesOf, plain, webAddress } = await import(`${place}app/markdown.js`);
const { coloured } = await import(`${place}app/code.js`);
const { losses } = await import(`${place}app/losses.js`);
const { Connection } = await import(`${place}live/connection.js`);
const { hitShare, remember } = await import(`${place}app/history.js`);
const { bytes, seconds, shortName } = await import(`${place}app/format.js`);
const { another, switched } = await import(`${place}chat/versions.js`);
const { layout, inOrder, linkFacts, runs } = await import(`${place}views/picture.js`);

test("events arrive whole, however their bytes are cut", () => {
  const bytesOf = new TextEncoder().encode(': hello\n\nevent: a\r\ndata: 1\r\ndata: é2\r\n\r\ndata: {"x":3}\n\n');
  for (const size of [1, 2, 3, 7, 100]) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < bytesOf.length; at += size) found.push(...parser.push(bytesOf.slice(at, at + size)));
    assert.deepEqual(found, [{ comment: "hello" }, { event: "a", data: "1\né2" }, { event: "message", data: '{"x":3}' }]);
  }
});

test("an event without an end is refused before it fills the memory", () => {
  const parser = new EventParser();
  const piece = new TextEncoder().encode("x".repeat(1 << 20));
  assert.throws(() => {
    for (let count = 0; count < 6; count += 1) [...parser.push(piece)];
  }, /too long/);
});

test("only addresses of the web are links", () => {
  assert.equal(webAddress("https://example.org/a"), "https://example.org/a");
  for (const other of ["javascript:alert(1)", "JaVaScRiPt:x", "data:text/html,x", "//example.org", "/v1/models", "vbscript:x", "file:///etc", "java\nscript:x"]) assert.equal(webAddress(other), null, other);
});

test("entities are letters, and nonsense stays as it is", () => {
  assert.equal(plain("a &lt;b&gt; &amp;amp; &#65; &#x1F600; &nope; &#0; &#xD800;"), "a <b> &amp; A 😀 &nope; &#0; &#xD800;");
});

/** The words of what is drawn. */
const words = (drawn) => (Array.isArray(drawn) ? drawn.map(words).join("") : typeof drawn === "object" ? words(drawn?.props?.children) : (drawn ?? ""));
const kinds = (drawn) => (Array.isArray(drawn) ? drawn.flatMap(kinds) : drawn && typeof drawn === "object" ? [drawn.type, ...kinds(drawn.props?.children)] : []).filter((kind) => typeof kind === "string");

test("Markdown is drawn as its elements", () => {
  const drawn = nodesOf("# One\n\nsome **bold** and _thin_ `code` [there](https://example.org/)\n\n- a\n  - b\n\n> said\n\n| a | b |\n| - | - |\n| 1 | **2** |\n");
  for (const kind of ["h3", "p", "strong", "em", "code", "a", "ul", "li", "blockquote", "table", "td"]) assert.ok(kinds(drawn).includes(kind), kind);
  const many = nodesOf(Array.from({ length: 300 }, (_, line) => `- a **bold** word of snake_case ${line}`).join("\n"));
  assert.equal(kinds(many).filter((kind) => kind === "strong").length, 300, "marks are counted by the piece");
});

test("odd Markdown does not stop the page: what would take long is shown as it was written", () => {
  const nested = (count) => Array.from({ length: count }, (_, depth) => `${" ".repeat(depth)}- a`).join("\n");
  const odd = {
    emphasis: "**_a".repeat(12_000),
    underscores: `${"_".repeat(60_000)}a`,
    stars: `${"*".repeat(60_000)}a`,
    struck: "~~a~ ".repeat(20_000),
    links: "[a](b".repeat(40_000),
    address: `${"a.".repeat(40_000)}@`,
    url: `http://a${"?!".repeat(60_000)}`,
    lists: nested(620),
    "one line of lists": `${"- ".repeat(30_000)}a`,
    quotes: `${">".repeat(100_000)}a`,
    "a lazy list": `- a\n${"b\n".repeat(60_000)}`,
    "quotes and lists": "> > a\nb\n> - c\nd\n".repeat(8_000),
  };
  for (const [name, text] of Object.entries(odd)) {
    assert.ok(text.length <= 200_000, `${name} is not refused for its length alone`);
    const began = performance.now();
    const drawn = nodesOf(text);
    assert.ok(performance.now() - began < 5000, `${name} took ${Math.round(performance.now() - began)} ms`);
    assert.ok(words(drawn).includes("a"), name);
  }
});

test("code of C++ has the colours of C", () => {
  for (const name of ["c", "cpp", "c++"]) assert.ok(kinds(coloured("return 1;", name)).includes("span"), name);
});

/** A server for `fetch`: each of `answers` is what one attempt meets, the last of them for ever after. */
function serverOf(answers) {
  const asked = [];
  globalThis.fetch = (url, { headers, signal }) => {
    const answer = answers[Math.min(asked.length, answers.length - 1)];
    asked.push({ url, headers, signal });
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      if (answer === "silence") return;
      if (answer.status) return resolve(new Response(JSON.stringify({ error: { message: answer.why } }), { status: answer.status }));
      const body = new ReadableStream({
        start(stream) {
          stream.enqueue(new TextEncoder().encode('data: {"at": 1}\n\n'));
          if (answer === "ends") stream.close();
          else signal.addEventListener("abort", () => stream.error(signal.reason));
        },
      });
      resolve(new Response(body));
    });
  };
  return asked;
}

async function pass(seconds) {
  for (let tenth = 0; tenth < seconds * 10; tenth += 1) {
    for (let count = 0; count < 3; count += 1) await turn();
    mock.timers.tick(100);
  }
  for (let count = 0; count < 3; count += 1) await turn();
}

async function connected(answers, act) {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const asked = serverOf(answers);
  const states = [];
  const connection = new Connection("", ({ state }) => states.at(-1) !== state && states.push(state));
  try {
    await act(states, asked);
  } finally {
    connection.close();
    mock.timers.reset();
  }
}

test("a server that hangs is offline, however live it was before", () =>
  connected(["lasts", "silence"], async (states) => {
    await pass(1);
    assert.deepEqual(states, ["live"]);
    await pass(20);
    assert.deepEqual(states, ["live", "offline"]);
    await pass(30);
    assert.deepEqual(states, ["live", "offline"]);
  }));

test("a server that never answers is offline after the first attempt, and live when it does answer", () =>
  connected(["silence", "silence", "lasts"], async (states) => {
    await pass(8);
    assert.deepEqual(states, ["offline"]);
    await pass(8);
    assert.deepEqual(states, ["offline", "live"]);
  }));

test("a stream that comes to its usual end does not look offline, and what is refused stays so", async () => {
  await connected(["lasts", "lasts", "lasts"], async (states, asked) => {
    await pass(25); // each falls silent after its frame, and the next one answers
    assert.ok(asked.length >= 3);
    assert.deepEqual(states, ["live"]);
  });
  await connected(["ends", "lasts"], async (states) => {
    await pass(3);
    assert.deepEqual(states, ["live"]);
  });
  await connected([{ status: 503, why: "full" }], async (states) => {
    await pass(25);
    assert.deepEqual(states, ["refused"]);
  });
});

test("the worker's stream ends when no page is seen, and another key has another", async () => {
  const asked = serverOf(["lasts"]);
  const every = globalThis.setInterval;
  globalThis.setInterval = () => {}; // what forgets pages that crashed is not to keep this process
  globalThis.self = {};
  await import(`${place}live/worker.js`);
  globalThis.setInterval = every;
  const opened = () => asked.filter(({ signal }) => !signal.aborted).map(({ headers }) => headers.authorization ?? "");
  const pageOf = () => {
    const port = { heard: [], postMessage: (news) => port.heard.push(news) };
    self.onconnect({ ports: [port] });
    return { port, say: (data) => port.onmessage({ data }) };
  };
  const [first, second] = [pageOf(), pageOf()];
  first.say({ key: "", visible: true });
  second.say({ key: "", visible: true });
  for (let count = 0; count < 20; count += 1) await turn();
  assert.deepEqual(opened(), [""], "one stream for both");
  assert.equal(first.port.heard.at(-1).state, "live");
  assert.equal(second.port.heard.at(-1).state, "live");
  first.say({ key: "", visible: false });
  assert.deepEqual(opened(), [""]);
  second.say({ key: "k", visible: true });
  assert.deepEqual(opened(), ["Bearer k"]);
  second.say({ key: "k", visible: false });
  assert.deepEqual(opened(), []);
  first.say({ key: "k", visible: true });
  assert.deepEqual(opened(), ["Bearer k"]);
  first.say({ bye: true });
  assert.deepEqual(opened(), []);
  assert.equal(asked.length, 3);
});

test("a page that gets no port has a stream of its own, and takes no late one", async () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const [every, began] = [globalThis.setInterval, Object.keys(globalThis)];
  const heard = {};
  const listen = (name, act) => (heard[name] = act);
  const frame = { addEventListener: listen, contentWindow: {} };
  const asked = serverOf(["lasts"]);
  try {
    Object.assign(globalThis, {
      setInterval: () => {},
      window: { SharedWorker: true, addEventListener: listen },
      location: { origin: "here" },
      document: { visibilityState: "visible", addEventListener: listen, createElement: () => frame, body: { append: () => {} } },
    });
    const { watch } = await import(`${place}app/live.js`);
    const states = [];
    watch(({ state }) => states.push(state));
    heard.load();
    await pass(2);
    assert.equal(asked.length, 0);
    await pass(2);
    assert.equal(asked.length, 1);
    assert.deepEqual(states, ["live"]);
    const port = { postMessage: () => assert.fail("nobody listens to it") };
    heard.message({ source: frame.contentWindow, origin: "here", data: { chorus: "live" }, ports: [port] });
    heard.visibilitychange();
    assert.equal(asked.length, 1);
    heard.pagehide();
    assert.ok(asked[0].signal.aborted);
  } finally {
    globalThis.setInterval = every;
    for (const name of Object.keys(globalThis)) if (!began.includes(name)) delete globalThis[name];
    mock.timers.reset();
  }
});

test("a rank that is lost and comes back is told once each", () => {
  const frame = (...states) => ({ clusters: [{ model: "m", ranks: states.map((state, number) => ({ rank: number, node: "n", state })) }] });
  const told = [];
  let lost = new Set();
  for (const states of [["ready", "ready"], ["ready", "lost"], ["ready", "lost"], ["ready", "loading"], ["ready", "ready"], ["ready", "ready"]]) {
    const found = losses(lost, frame(...states));
    lost = found.lost;
    told.push(found.words);
  }
  assert.deepEqual(told, ["", "Rank 1 on n is lost", "", "", "Rank 1 on n is back", ""]);
});

const rank = (number, first, last, node) => ({ rank: number, first_layer: first, last_layer: last, node, host: node, state: "ready", memory_bytes: 1, weight_bytes: 1, sent_bytes: number });

test("ranks stand in the order of their layers, and machines around their neighbours", () => {
  const ranks = [rank(0, 20, 29, "a"), rank(1, 10, 19, "b"), rank(2, 0, 9, "b"), rank(3, null, null, "c")];
  assert.deepEqual(inOrder(ranks).map((each) => each.rank), [2, 1, 0, 3]);
  assert.deepEqual(runs(inOrder(ranks)).map((run) => [run.name, run.ranks.length]), [["b", 2], ["a", 1], ["c", 1]]);
});

test("a wide page has one row and a phone one column, and nothing overlaps or leaves it", () => {
  const cluster = { ranks: [rank(0, 20, 29, "a"), rank(1, 10, 19, "b"), rank(2, 0, 9, "b")] };
  for (const width of [320, 390, 700, 1100, 1600]) {
    const drawn = layout(cluster, width);
    assert.equal(drawn.row, width >= 1000, `at ${width}`);
    const boxes = drawn.nodes.flatMap((node) => node.boxes);
    for (const box of [...boxes, ...drawn.nodes]) assert.ok(box.x >= 0 && box.x + box.width <= width + 0.5 && box.y + box.height <= drawn.height, `at ${width}`);
    for (let at = 1; at < boxes.length; at += 1) assert.ok(drawn.row ? boxes[at].x > boxes[at - 1].x + boxes[at - 1].width : boxes[at].y > boxes[at - 1].y + boxes[at - 1].height);
    assert.equal(drawn.links.length, 2);
    assert.deepEqual(drawn.links.map((link) => link.far), [false, true]);
  }
});

test("the last minutes are kept, what passed over links is a rate, and a hidden page leaves a hole", () => {
  const frame = (at, sent, asked, found) => ({ at, clusters: [{ model: "m", queued: 1, waiting: 2, rates: { tokens_per_second: 5, first_token_seconds: 1 }, cache: { prompt_tokens: asked, cached_tokens: found, hit_rate: 0.5 }, ranks: [{ rank: 1, sent_bytes: sent }] }] });
  let history = remember(new Map(), frame(1, 100, 0, 0));
  history = remember(history, frame(3, 300, 100, 75));
  assert.equal(history.get("m").links.get(1), 100);
  assert.equal(history.get("m").points.at(-1).queue, 3);
  assert.equal(hitShare(history.get("m").points, null), 0.75);
  history = remember(history, frame(60, 300, 100, 75));
  assert.deepEqual(history.get("m").points.map((point) => point.tokens), [5, 5, null, 5]);
  for (let at = 61; at < 400; at += 1) history = remember(history, frame(at, 300, 100, 75));
  assert.ok(history.get("m").points.length <= 180);
});

test("a link says what was measured between its own two machines, and what passes now", () => {
  const nodes = [
    { name: "b", node_id: "id-b", round_trip_ms: 0.4, bandwidth_bytes_per_second: 1.25e9 },
    { name: "c", node_id: "id-c", round_trip_ms: 9, bandwidth_bytes_per_second: 1e6 },
  ];
  const tried = { sender: "id-c", receiver: "id-b", round_trip: 0.002, bandwidth: 2.5e9, measured: true };
  const cluster = { transport: "grpc", nodes, links: [{ ...tried, receiver: "id-a", round_trip: 5 }, tried] };
  const [leader, b, c, near] = [rank(0, 20, 29, "a"), rank(1, 10, 19, "b"), rank(2, 0, 9, "c"), rank(3, 5, 9, "b")];
  const facts = (from, to, more = {}, traffic = new Map()) => linkFacts({ from, to, far: from.node !== to.node }, { ...cluster, ...more }, traffic);
  assert.deepEqual(facts(b, leader), ["10 Gbit/s", "0.40 ms"]);
  assert.deepEqual(facts(c, b), ["20 Gbit/s", "2.00 ms"]);
  assert.deepEqual(facts(b, c), ["20 Gbit/s", "2.00 ms"], "the way back is the same way");
  assert.deepEqual(facts(c, b, { links: [{ ...tried, measured: false }] }), ["grpc", "2.00 ms"], "what is only assumed is no figure");
  assert.deepEqual(facts(c, b, { links: [] }), ["grpc"]);
  assert.deepEqual(facts(near, b), ["grpc"], "of ranks of one machine nothing is measured");
  assert.deepEqual(facts(leader, { ...leader, node: "d" }), ["grpc"]);
  assert.deepEqual(facts(b, leader, {}, new Map([[1, 1500], [0, 7]])), ["10 Gbit/s", "0.40 ms", "1.5 kB/s"]);
});

test("what was edited or made again is kept with what followed it, so many times and no more", () => {
  const first = [{ content: "a" }, { content: "b" }, { content: "c" }];
  const second = [{ content: "A", versions: another(first, 0) }, { content: "B" }];
  const third = [second[0], { content: "BB", versions: another(second, 1) }];
  const texts = (messages) => messages.map((message) => message.content).join("");
  assert.equal(texts(switched(third, 0, 0)), "abc");
  assert.equal(texts(switched(third, 1, 0)), "AB");
  const back = switched(switched(third, 0, 0), 0, 1);
  assert.deepEqual(back, third, "there and back is where one was");
  let many = [{ content: "0" }];
  for (let count = 1; count < 50; count += 1) many = [{ content: String(count), versions: another(many, 0) }];
  assert.equal(many[0].versions.tails.length, 20);
  assert.equal(many[0].versions.at, 19);
  assert.equal(texts(switched(many, 0, 0)), "30");
});

test("figures are for people, and nobody's figure breaks them", () => {
  assert.equal(bytes(1_500_000_000), "1.5 GB");
  assert.equal(seconds(0.0314), "31 ms");
  assert.equal(seconds(75), "1 min 15 s");
  assert.equal(shortName("mlx-community/Qwen3-4B"), "Qwen3-4B");
  for (const odd of [null, undefined, NaN, "<b>", {}]) assert.equal(bytes(odd), "–");
});
