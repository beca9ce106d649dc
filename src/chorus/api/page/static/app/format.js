// Figures for people. None of these throws, whatever it is given.

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** In the units that machines are sold in. */
export function bytes(count) {
  if (!known(count)) return "–";
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= unit) return `${(count / unit).toFixed(count / unit < 10 ? 1 : 0)} ${name}`;
  }
  return `${Math.round(count)} B`;
}

export function perSecond(count) {
  return known(count) ? `${bytes(count)}/s` : "–";
}

/** A link's, as links are sold. */
export function bits(bytesPerSecond) {
  if (!known(bytesPerSecond)) return "–";
  const rate = bytesPerSecond * 8;
  for (const [unit, name] of [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]) {
    if (rate >= unit) return `${(rate / unit).toFixed(rate / unit < 10 ? 1 : 0)} ${name}`;
  }
  return `${Math.round(rate)} bit/s`;
}

export function number(value, digits = 0) {
  return known(value) ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) : "–";
}

/** Few digits, as many as tell something. */
export function rate(value) {
  return known(value) ? number(value, value !== 0 && value < 10 ? 1 : 0) : "–";
}

export function seconds(value) {
  if (!known(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} days`;
}

export function percent(share) {
  return known(share) ? `${Math.round(share * 100)} %` : "–";
}

export function clock(epochSeconds) {
  if (!known(epochSeconds)) return "–";
  return new Date(epochSeconds * 1000).toLocaleTimeString("en-GB");
}

export function day(epochMilliseconds) {
  const then = new Date(epochMilliseconds);
  const today = new Date().toDateString() === then.toDateString();
  return today ? then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }) : then.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** The last part of a model's id, by which people call it. */
export function shortName(id) {
  return String(id).split("/").filter(Boolean).at(-1) ?? String(id);
}
