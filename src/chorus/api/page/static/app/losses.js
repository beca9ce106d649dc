// What is said of ranks to those who cannot see them turn red and green.

/** {lost, words}: the ranks that are lost now, `before` being those known so far, and each change in words, once. */
export function losses(before, frame) {
  const lost = new Set(before);
  const words = [];
  for (const { model, ranks } of frame.clusters) {
    for (const { rank, node, state } of ranks) {
      const name = `${rank} ${model}`;
      if (state === "lost" && !lost.has(name)) {
        lost.add(name);
        words.push(`Rank ${rank} on ${node} is lost`);
      }
      if (state === "ready" && lost.delete(name)) words.push(`Rank ${rank} on ${node} is back`);
    }
  }
  return { lost, words: words.join(". ") };
}
