// What does not fit into the width of the page. `arguments[0]`: whether the medium is paper, on which nothing scrolls.
const isPaper = arguments[0];
const width = document.documentElement.clientWidth;
const name = element => {
  const classes = typeof element.className === "string" ? element.className : element.className.baseVal;
  return element.tagName.toLowerCase() + (element.id ? "#" + element.id : "")
    + (classes ? "." + classes.trim().split(/\s+/).join(".") : "")
    + " " + JSON.stringify((element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40));
};
const clips = element => getComputedStyle(element).overflowX !== "visible";
const isShown = element => element.checkVisibility({ visibilityProperty: true })
  && element.getClientRects().length > 0;
// Something above it scrolls, or cuts it off on purpose.
const isInside = element => {
  for (let above = element.parentElement; above && above !== document.body; above = above.parentElement) {
    if (clips(above)) return true;
  }
  return false;
};
const faults = [];
const page = document.documentElement.scrollWidth;
if (page > width) faults.push({ element: "the page", what: "is wider than its window", by: page - width });
for (const element of document.body.querySelectorAll("*")) {
  if (!isShown(element)) continue;
  const box = element.getBoundingClientRect();
  if (box.width <= 1 || box.height <= 1) continue; // hidden from the eye, for readers of screens
  const svg = element.ownerSVGElement;
  if (svg && element.tagName !== "text") continue;
  if (svg && clips(svg)) {
    const frame = svg.getBoundingClientRect();
    const by = Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
    if (by > 1.5) faults.push({ element: name(element), what: "is cut off by its chart", by });
    continue;
  }
  const past = Math.max(box.right - width, -box.left);
  if (past > 1 && (isPaper || !isInside(element))) {
    faults.push({ element: name(element), what: "reaches past the page", by: past });
  }
  const more = element.scrollWidth - element.clientWidth;
  if (isPaper && clips(element) && element.clientWidth > 0 && more > 1) {
    faults.push({ element: name(element), what: "would have to be scrolled", by: more });
  }
}
for (const svg of document.body.querySelectorAll("svg")) {
  if (!isShown(svg)) continue;
  const texts = [...svg.querySelectorAll("text")].filter(it => it.textContent.trim());
  const boxes = texts.map(it => it.getBoundingClientRect());
  for (let one = 0; one < texts.length; one++) {
    for (let other = one + 1; other < texts.length; other++) {
      const [a, b] = [boxes[one], boxes[other]];
      const by = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      // Lines of text may touch above each other, words beside each other may not.
      if (by > -1 && high > 3) {
        faults.push({ element: name(texts[one]), what: `touches ${name(texts[other])}`, by });
      }
    }
  }
}
return faults;
