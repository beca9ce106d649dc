// What the last minutes were like, of each model, gathered from the frames as they come.

const KEPT = 180;

/** By model {points, sent, links, at}, with the frame's figures added. */
export function remember(history, frame) {
  const next = new Map();
  for (const cluster of frame.clusters) {
    const before = history.get(cluster.model);
    next.set(cluster.model, extended(before, cluster, frame.at));
  }
  return next;
}

function extended(before, cluster, at) {
  const points = before ? before.points.slice(-(KEPT - 1)) : [];
  const last = points.at(-1);
  // A page that was hidden has a hole there, not a line.
  if (last && at - last.at > 5) points.push({ at: last.at + 1, tokens: null, first: null, queue: null, asked: null, found: null });
  points.push({
    at,
    tokens: cluster.rates.tokens_per_second,
    first: cluster.rates.first_token_seconds,
    queue: cluster.queued + cluster.waiting,
    asked: cluster.cache?.prompt_tokens ?? null,
    found: cluster.cache?.cached_tokens ?? null,
  });
  const sent = new Map(cluster.ranks.map((rank) => [rank.rank, rank.sent_bytes]));
  const seconds = before ? at - before.at : 0;
  const links = new Map();
  for (const [rank, count] of sent) {
    const earlier = before?.sent.get(rank);
    links.set(rank, seconds > 0 && earlier !== undefined && count >= earlier ? (count - earlier) / seconds : 0);
  }
  return { points, sent, links, at };
}

/** The share of prompt tokens that were found stored, over the window; of all requests where there was none in it. */
export function hitShare(points, cache) {
  const known = points.filter((point) => point.asked !== null);
  const first = known[0];
  const last = known.at(-1);
  if (first && last && last.asked > first.asked) return (last.found - first.found) / (last.asked - first.asked);
  return cache?.hit_rate ?? null;
}

export function series(points, pick) {
  return [points.map((point) => point.at), points.map(pick)];
}
