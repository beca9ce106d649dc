// Runs before anything is drawn, so that a page in the dark never flashes white.
try {
  const chosen = localStorage.getItem("chorus.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing shows what the system prefers.
}
