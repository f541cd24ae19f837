// Texts that are hard to read: contrast below WCAG 2.1, 1.4.3 (AA): 4.5, and 3 for large text.
const canvas = document.createElement("canvas");
canvas.width = canvas.height = 1;
const context = canvas.getContext("2d", { willReadFrequently: true });
const known = new Map();
// Any colour that CSS can write, as red, green, blue (0 to 255) and alpha (0 to 1).
const parse = text => {
  if (!known.has(text)) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = "rgba(0,0,0,0)";
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
    known.set(text, [red, green, blue, alpha / 255]);
  }
  return known.get(text);
};
const over = (top, below) => {
  const alpha = top[3];
  return [0, 1, 2].map(i => top[i] * alpha + below[i] * (1 - alpha)).concat(1);
};
const luminance = colour => {
  const [red, green, blue] = colour.slice(0, 3).map(it => it / 255)
    .map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const ratio = (one, other) => {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
};
const opacity = element => {
  let product = 1;
  for (let it = element; it; it = it.parentElement) product *= Number(getComputedStyle(it).opacity);
  return product;
};
// What the browser paints where a page paints nothing.
const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark")
  && matchMedia("(prefers-color-scheme: dark)").matches;
const canvasColour = dark ? [18, 18, 18, 1] : [255, 255, 255, 1];
const background = element => {
  const layers = [];
  for (let it = element; it; it = it.parentElement) {
    const colour = parse(getComputedStyle(it).backgroundColor);
    if (colour[3] > 0) layers.push(colour);
    if (colour[3] === 1) break;
  }
  return layers.reverse().reduce((below, top) => over(top, below), canvasColour);
};
// In a chart what lies below is drawn before: the shapes around the middle of the text, one above the other.
const charts = new Map();
const shapes = svg => {
  if (!charts.has(svg)) {
    const found = [...svg.querySelectorAll("rect, circle, path, polygon")];
    charts.set(svg, found.map(shape => ({ shape, frame: shape.getBoundingClientRect() })));
  }
  return charts.get(svg);
};
const drawnBelow = (text, box) => {
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  let colour = background(text.ownerSVGElement);
  for (const { shape, frame } of shapes(text.ownerSVGElement)) {
    if (frame.left > x || frame.right < x || frame.top > y || frame.bottom < y) continue;
    if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
    const style = getComputedStyle(shape);
    if (style.fill === "none") continue;
    const [red, green, blue, alpha] = parse(style.fill);
    colour = over([red, green, blue, alpha * Number(style.fillOpacity) * opacity(shape)], colour);
  }
  return colour;
};
const faults = new Map();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let texts = 0;
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  const words = node.textContent.trim();
  if (!words || ["SCRIPT", "STYLE", "NOSCRIPT", "TITLE", "title", "desc"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (!element.checkVisibility({ visibilityProperty: true }) || box.width <= 1) continue;
  texts += 1;
  const svg = element.ownerSVGElement;
  const text = svg ? element.closest("text") : null;
  const below = text ? drawnBelow(text, text.getBoundingClientRect()) : background(element);
  const [red, green, blue, alpha] = parse(svg ? style.fill : style.color);
  const colour = over([red, green, blue, alpha * opacity(element)], below);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const found = ratio(colour, below);
  if (found >= (isLarge ? 3 : 4.5)) continue;
  const classes = typeof element.className === "string" ? element.className : element.className.baseVal;
  const where = element.tagName.toLowerCase() + (classes ? "." + classes.trim().split(/\s+/).join(".") : "");
  const round = it => it.slice(0, 3).map(Math.round).join(",");
  const what = `${found.toFixed(2)}: ${round(colour)} on ${round(below)}`;
  if (!faults.has(where + what)) faults.set(where + what, { element: `${where} ${JSON.stringify(words.slice(0, 40))}`, what, by: found });
}
return { texts, faults: [...faults.values()] };
