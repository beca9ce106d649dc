// A question that was edited, an answer that was made again: what stood there before is kept with what followed it.
// The message that begins such a part carries {at, tails}: the version that is shown, whose place is empty, and the others.

const MOST = 20;

const versionsOf = (message) => message?.versions ?? { at: 0, tails: [null] };

/** All versions, with the one that is shown put away among them. */
function putAway(messages, place) {
  const { at, tails } = versionsOf(messages[place]);
  const { versions, ...head } = messages[place];
  return tails.with(at, [head, ...messages.slice(place + 1)]);
}

/** What whoever stands at this place next is to carry. */
export function another(messages, place) {
  const tails = putAway(messages, place).slice(1 - MOST);
  return { at: tails.length, tails: [...tails, null] };
}

/** The conversation with another version from this place on. */
export function switched(messages, place, to) {
  const tails = putAway(messages, place);
  const [head, ...rest] = tails[to];
  return [...messages.slice(0, place), { ...head, versions: { at: to, tails: tails.with(to, null) } }, ...rest];
}
