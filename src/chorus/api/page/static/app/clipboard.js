/** Whether it was copied. Pages on a plain HTTP address of a LAN have no navigator.clipboard. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  area.readOnly = true;
  document.body.append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus?.();
  }
}
