// The cluster as a picture: ranks in the order in which a token passes them, machines around them, links between.
import { bits, bytes, perSecond } from "../app/format.js";
import { html, useEffect, useRef, useState } from "../app/html.js";
import { tone } from "../app/widgets.js";

const PAD = 16;
const HEAD = 46;
const RANK_HEIGHT = 122;
const NARROWEST = 188;
const WIDEST = 420;
const BESIDE = { rank: 78, node: 128 };
const BELOW = { rank: 40, node: 62 };

/** Ranks by stage, the leader last, and beside each other where they share one. */
export function inOrder(ranks) {
  const from = (rank) => rank.first_layer ?? Infinity;
  return [...ranks].sort((a, b) => from(a) - from(b) || b.rank - a.rank);
}

/** Neighbours of one machine are drawn in one box. */
export function runs(ranks) {
  const found = [];
  for (const rank of ranks) {
    const last = found.at(-1);
    if (last && last.name === rank.node && last.host === rank.host) last.ranks.push(rank);
    else found.push({ name: rank.node, host: rank.host, ranks: [rank] });
  }
  return found;
}

/** Where everything goes, in pixels: in one row if it fits, else one below the other. */
export function layout(cluster, width) {
  const groups = runs(inOrder(cluster.ranks));
  const count = cluster.ranks.length;
  const gaps = (groups.length - 1) * BESIDE.node + (count - groups.length) * BESIDE.rank + groups.length * 2 * PAD;
  const each = Math.min(WIDEST, (width - gaps) / count);
  return each >= NARROWEST ? inRow(groups, each, width, gaps) : inColumn(groups, width);
}

function inRow(groups, each, width, gaps) {
  const count = groups.reduce((sum, group) => sum + group.ranks.length, 0);
  let x = Math.max(0, (width - gaps - each * count) / 2);
  const nodes = groups.map((group) => {
    const inner = group.ranks.length * each + (group.ranks.length - 1) * BESIDE.rank;
    const node = { ...group, x, y: 0, width: inner + 2 * PAD, height: HEAD + RANK_HEIGHT + PAD };
    node.boxes = group.ranks.map((rank, place) => ({ rank, x: x + PAD + place * (each + BESIDE.rank), y: HEAD, width: each, height: RANK_HEIGHT }));
    x += node.width + BESIDE.node;
    return node;
  });
  return { row: true, width, height: HEAD + RANK_HEIGHT + PAD + (count > 1 ? 36 : 2), nodes, links: linksOf(nodes, true) };
}

function inColumn(groups, width) {
  let y = 0;
  const nodes = groups.map((group) => {
    const inner = group.ranks.length * RANK_HEIGHT + (group.ranks.length - 1) * BELOW.rank;
    const node = { ...group, x: 0, y, width, height: HEAD + inner + PAD };
    node.boxes = group.ranks.map((rank, place) => ({ rank, x: PAD, y: y + HEAD + place * (RANK_HEIGHT + BELOW.rank), width: width - 2 * PAD, height: RANK_HEIGHT }));
    y += node.height + BELOW.node;
    return node;
  });
  return { row: false, width, height: y - BELOW.node + 2, nodes, links: linksOf(nodes, false) };
}

function linksOf(nodes, row) {
  const boxes = nodes.flatMap((node) => node.boxes.map((box) => ({ ...box, node })));
  return boxes.slice(1).map((to, place) => {
    const from = boxes[place];
    const far = from.node !== to.node;
    const ends = row
      ? { x1: far ? from.node.x + from.node.width : from.x + from.width, x2: far ? to.node.x : to.x, y1: from.y + from.height / 2, y2: from.y + from.height / 2 }
      : { x1: from.x + 28, x2: from.x + 28, y1: far ? from.node.y + from.node.height : from.y + from.height, y2: far ? to.node.y : to.y };
    return { from: from.rank, to: to.rank, far, shared: from.rank.first_layer === to.rank.first_layer, ...ends };
  });
}

/** What each rank's memory is held against, {most, told}: what the plan booked, else what its machine has, else the largest. */
export function roomOf(cluster) {
  const largest = Math.max(1, ...cluster.ranks.map((rank) => rank.memory_bytes));
  const planned = new Map((cluster.plan?.ranks ?? []).map((rank) => [rank.rank, rank.weight_bytes + rank.cache_bytes + rank.activation_bytes + rank.reserve_bytes]));
  return new Map(
    cluster.ranks.map((rank) => {
      const booked = planned.get(rank.rank);
      const total = cluster.nodes.find((node) => node.name === rank.node)?.memory_total;
      if (booked) return [rank.rank, { most: Math.max(booked, rank.memory_bytes), told: `of ${bytes(booked)} booked` }];
      if (total) return [rank.rank, { most: total, told: `of ${bytes(total)} there` }];
      return [rank.rank, { most: largest, told: `${bytes(rank.weight_bytes)} weights` }];
    }),
  );
}

/** The same in words, for those who hear it. */
export function inWords(cluster) {
  const parts = inOrder(cluster.ranks).map((rank) => `rank ${rank.rank}${rank.rank === 0 ? ", the leader," : ""} on ${rank.node} holds ${rank.layers ? `layers ${rank.layers}` : "nothing yet"} and is ${rank.state}`);
  return `${cluster.model} on ${cluster.ranks.length === 1 ? "one rank" : `${cluster.ranks.length} ranks`}: ${parts.join("; ")}.`;
}

export function Picture({ cluster, traffic }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const place = box.current;
    const measure = () => setWidth(Math.floor(place.clientWidth));
    const measured = new ResizeObserver(measure);
    measured.observe(place);
    measure();
    return () => measured.disconnect();
  }, []);
  return html`<div class="picture" ref=${box}>${width > 0 && cluster.ranks.length > 0 && html`<${Drawing} cluster=${cluster} traffic=${traffic} width=${width} />`}</div>`;
}

function Drawing({ cluster, traffic, width }) {
  const drawn = layout(cluster, width);
  const layers = Math.max(1, cluster.plan?.model_layers ?? 0, ...cluster.ranks.map((rank) => (rank.last_layer ?? -1) + 1));
  const room = roomOf(cluster);
  const flowing = cluster.rates.tokens_per_second > 0;
  return html`<svg width=${drawn.width} height=${drawn.height} viewBox=${`0 0 ${drawn.width} ${drawn.height}`} role="img" aria-label=${inWords(cluster)}>
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path class="arrow" d="M0 0L8 4L0 8z" /></marker></defs>
    ${drawn.nodes.map((node) => html`<${Node} node=${node} told=${cluster.nodes.find((each) => each.name === node.name)} />`)}
    ${drawn.links.map((link) => html`<${Link} link=${link} row=${drawn.row} cluster=${cluster} traffic=${traffic} flowing=${flowing} />`)}
    ${drawn.row && drawn.links.length > 0 && !drawn.links.some((link) => link.shared) && html`<${WayBack} drawn=${drawn} flowing=${flowing} />`}
    ${drawn.nodes.flatMap((node) => node.boxes).map((each) => html`<${Rank} box=${each} layers=${layers} room=${room.get(each.rank.rank)} />`)}
  </svg>`;
}

function Node({ node, told }) {
  const lost = node.ranks.some((rank) => rank.state === "lost");
  const facts = told
    ? [told.device, told.memory_total && `${bytes(told.memory_available)} of ${bytes(told.memory_total)} free`, told.draining && "draining"]
    : [node.host !== node.name && node.host, node.ranks[0].device && `${node.ranks[0].device}`];
  return html`<g class=${`node ${lost ? "bad" : ""}`}>
    <rect x=${node.x + 0.5} y=${node.y + 0.5} width=${node.width - 1} height=${node.height - 1} rx="14" />
    <text class="node-name" x=${node.x + PAD} y=${node.y + 21}>${fit(node.name, node.width - 2 * PAD, 7.6)}</text>
    <text class="node-facts" x=${node.x + PAD} y=${node.y + 37}>${fit(facts.filter(Boolean).join(" · "), node.width - 2 * PAD, 6.2)}</text>
  </g>`;
}

function Rank({ box, layers, room }) {
  const { rank, x, y, width } = box;
  const inner = width - 28;
  const voice = `voice-${rank.rank % 8}`;
  const cell = inner / layers;
  const held = rank.first_layer === null ? null : { from: rank.first_layer, to: rank.last_layer + 1 };
  return html`<g class=${`rank ${tone(rank.state)} ${voice}`} data-rank=${rank.rank} data-state=${rank.state}>
    <rect class="card" x=${x + 0.5} y=${y + 0.5} width=${width - 1} height=${box.height - 1} rx="10" />
    <text class="rank-name" x=${x + 14} y=${y + 24}>rank ${rank.rank}${rank.rank === 0 ? html`<tspan class="leader" dx="7">leader</tspan>` : ""}</text>
    <text class="rank-state" x=${x + width - 14} y=${y + 24} text-anchor="end"><tspan class="dot">●</tspan> ${rank.state}</text>
    <text class="rank-layers" x=${x + 14} y=${y + 46}>${held ? `layers ${rank.first_layer}–${rank.last_layer}` : "no layers yet"}</text>
    <text class="rank-share" x=${x + width - 14} y=${y + 46} text-anchor="end">${held ? `${held.to - held.from} of ${layers}` : ""}</text>
    <rect class="all-layers" x=${x + 14} y=${y + 56} width=${inner} height="12" rx="3" />
    ${held && html`<rect class="held-layers" x=${x + 14 + held.from * cell} y=${y + 56} width=${Math.max(2, (held.to - held.from) * cell)} height="12" rx="3" />`}
    ${cell > 4 && html`<path class="cuts" d=${Array.from({ length: layers - 1 }, (_, place) => `M${(x + 14 + (place + 1) * cell).toFixed(1)} ${y + 56}v12`).join("")} />`}
    <text class="rank-memory" x=${x + 14} y=${y + 91}>${bytes(rank.memory_bytes)}</text>
    <text class="rank-share" x=${x + width - 14} y=${y + 91} text-anchor="end">${room.told}</text>
    <rect class="all-memory" x=${x + 14} y=${y + 100} width=${inner} height="6" rx="3" />
    <rect class="held-memory" x=${x + 14} y=${y + 100} width=${Math.max(2, (inner * rank.memory_bytes) / room.most)} height="6" rx="3" />
    <rect class="held-weights" x=${x + 14} y=${y + 100} width=${Math.max(0, (inner * Math.min(rank.weight_bytes, rank.memory_bytes)) / room.most)} height="6" rx="3" />
  </g>`;
}

/** {bandwidth, milliseconds} of the way between two machines. A node's own figures are of its way to the machine that serves, which is none of the nodes; two nodes have tried the way between them. */
function measured(link, cluster) {
  const [from, to] = [link.from, link.to].map((rank) => cluster.nodes.find((node) => node.name === rank.node));
  if (!from !== !to) return { bandwidth: (from ?? to).bandwidth_bytes_per_second, milliseconds: (from ?? to).round_trip_ms };
  if (!from) return {};
  const between = (one, other) => cluster.links.find((each) => each.sender === one.node_id && each.receiver === other.node_id);
  const tried = between(from, to) ?? between(to, from);
  return tried ? { bandwidth: tried.measured ? tried.bandwidth : null, milliseconds: tried.round_trip * 1000 } : {};
}

/** What a link is, what was measured of it, what passes over it now. */
export function linkFacts(link, cluster, traffic) {
  const found = link.far ? measured(link, cluster) : {};
  const facts = [found.bandwidth ? bits(found.bandwidth) : (cluster.transport ?? "")];
  if (found.milliseconds) facts.push(`${found.milliseconds.toFixed(2)} ms`);
  const now = traffic?.get(link.from.rank) ?? 0;
  if (now > 0) facts.push(perSecond(now));
  return facts.filter(Boolean);
}

function Link({ link, row, cluster, traffic, flowing }) {
  const lost = [link.from, link.to].some((rank) => rank.state === "lost");
  const facts = linkFacts(link, cluster, traffic);
  const middle = { x: (link.x1 + link.x2) / 2, y: (link.y1 + link.y2) / 2 };
  const lines = row ? [facts.slice(0, 2).join(" · "), facts.slice(2).join(" · ")] : [facts.join(" · "), ""];
  if (row && facts.length === 2 && !link.far) lines.splice(0, 2, facts[0], facts[1]);
  return html`<g class=${`link ${lost ? "bad" : flowing ? "flowing" : ""}`} data-from=${link.from.rank} data-to=${link.to.rank}>
    <line x1=${link.x1 + (row ? 6 : 0)} x2=${link.x2 - (row ? 5 : 0)} y1=${link.y1 + (row ? 0 : 4)} y2=${link.y2 - (row ? 0 : 4)} marker-end="url(#arrow)" marker-start=${link.shared ? "url(#arrow)" : null} />
    ${row
      ? html`<text x=${middle.x} y=${middle.y - 10} text-anchor="middle">${lines[0]}</text><text x=${middle.x} y=${middle.y + 20} text-anchor="middle">${lines[1]}</text>`
      : html`<text x=${middle.x + 16} y=${middle.y + 4}>${lines[0]}</text>`}
  </g>`;
}

/** Only token ids go back to the first stage. */
function WayBack({ drawn, flowing }) {
  const boxes = drawn.nodes.flatMap((node) => node.boxes);
  const first = boxes[0];
  const last = boxes.at(-1);
  const low = first.y + first.height + PAD;
  const x1 = last.x + last.width / 2;
  const x2 = first.x + first.width / 2;
  return html`<g class=${`back ${flowing ? "flowing" : ""}`}>
    <path d=${`M${x1} ${low}v10a8 8 0 0 1 -8 8H${x2 + 8}a8 8 0 0 1 -8 -8v-6`} marker-end="url(#arrow)" />
    <text x=${(x1 + x2) / 2} y=${low + 31} text-anchor="middle">token ids</text>
  </g>`;
}

function fit(text, width, letter) {
  const room = Math.max(4, Math.floor(width / letter));
  return text.length > room ? `${text.slice(0, room - 1)}…` : text;
}
