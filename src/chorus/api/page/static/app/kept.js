// What this browser keeps for the page; one that keeps nothing has it for as long as the page is open.

export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function keepAs(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // It holds for this page, then.
  }
}
