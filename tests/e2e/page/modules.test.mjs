// What the page decides without a browser, run by node: `node --test tests/e2e/page/modules.test.mjs`.
import assert from "node:assert/strict";
import { test } from "node:test";

const place = "../../../src/chorus/api/page/static/";
const { EventParser } = await import(`${place}app/events.js`);
const { plain, webAddress } = await import(`${place}app/markdown.js`);
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
