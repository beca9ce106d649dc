/** A name nobody else has. Pages on a plain HTTP address have no crypto.randomUUID. */
export function newId() {
  const parts = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(parts, (part) => part.toString(16).padStart(2, "0")).join("");
}
