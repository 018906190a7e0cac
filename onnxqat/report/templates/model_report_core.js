// Data, the one selection, and what all parts share.

const report = JSON.parse(document.getElementById("data").textContent);
const nodes = report.nodes, quantizers = report.quantizers, variants = report.variants, edges = report.edges;
const targets = report.targets || [];

// Defaults are not in the data: every list is there, and what was not measured is null.
nodes.forEach((node, i) => Object.assign(node, {
  i, kernels: node.kernels || [], reason: node.reason || "", cost: node.cost || null, macs: node.macs ?? null,
  multiply_bits: node.multiply_bits ?? null, weight_bytes: node.weight_bytes ?? null, float_db: node.float_db ?? null,
}));
quantizers.forEach((quantizer, i) => Object.assign(quantizer, {
  i, cost: quantizer.cost || null, before: quantizer.before || null, float_db: quantizer.float_db ?? null,
  differing_codes: quantizer.differing_codes ?? null, values: quantizer.now.values || null,
}));
const producers = nodes.map(() => []), consumers = nodes.map(() => []);
for (const [from, to, quantizer] of edges) {
  producers[to].push([from, quantizer]);
  consumers[from].push([to, quantizer]);
}

/** Make an element; text is always text, so that names in a model are never markup. */
function h(name, attributes, ...children) {
  const svg = h.svg.has(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) made.append(child);
  }
  return made;
}
h.svg = new Set(["svg", "g", "rect", "path", "line", "circle", "polyline", "text", "title", "linearGradient", "stop", "defs"]);

/** Show control and direction characters of a name as their escapes, as the terminal does. */
function printable(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const none = "–";
const count = (value) => (value === null || value === undefined ? none : plain.format(value));
const decibel = (value) => (value === null || value === undefined ? none : value === "exact" ? "exact" : value.toFixed(1) + " dB");
const share = (value) => (value === null || value === undefined ? none
  : value === 0 ? "0 %" : value < 0.0001 ? "< 0.01 %" : (100 * value).toFixed(value < 0.1 ? 2 : 1) + " %");
const number = (value) => (value === null || value === undefined ? none : Number(value.toPrecision(4)).toString());
function bytes(value) {
  if (value === null || value === undefined) return none;
  for (const [size, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (value >= size) return (value / size).toFixed(value / size < 10 ? 2 : 1) + " " + unit;
  }
  return value + " B";
}
function large(value) {
  if (value === null || value === undefined) return none;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return (value / size).toPrecision(3) + " " + unit;
  }
  return String(value);
}
const plural = (many, one, more) => count(many) + " " + (many === 1 ? one : more);
/** A ratio as a number to sort by: exact is the best there is. */
const ratio = (value) => (value === "exact" ? Infinity : value);

function say(text) {
  document.getElementById("live").textContent = text;
}

// One selection for all parts: each is told, whoever made it.
const selection = { kind: null, i: -1 };
const watchers = [];
const onSelect = (run) => watchers.push(run);
function select(kind, i, from) {
  if (selection.kind === kind && selection.i === i && from !== "address") {
    watchers.forEach((run) => run(from, true));
    return;
  }
  selection.kind = kind;
  selection.i = i;
  const name = kind === null ? "" : kind === "node" ? nodes[i].name : quantizers[i].tensor;
  if (from !== "address") {
    try {
      history.replaceState(null, "", kind === null ? "#" : "#" + kind + "=" + i);
    } catch {
      // a frame without an address of its own
    }
  }
  if (kind !== null) say("Selected " + kind + " " + printable(name));
  watchers.forEach((run) => run(from, false));
}
/** The node that the selection is about: of a quantizer the one that makes its tensor, or the first that reads it; -1 for none. */
function marked() {
  if (selection.kind === null) return -1;
  return selection.kind === "node" ? selection.i : quantizers[selection.i].maker ?? quantizers[selection.i].readers[0] ?? -1;
}
const isSelected = (kind, i) => selection.kind === kind && selection.i === i;

function nodeLink(i, text) {
  return h("button", { type: "button", class: "link", on: { click: () => select("node", i, "link") } }, printable(text || nodes[i].name));
}
function quantizerLink(i, text) {
  return h("button", { type: "button", class: "link", on: { click: () => select("quantizer", i, "link") } }, printable(text || quantizers[i].tensor));
}

// Theme: that of the system, or the reader's choice for this page.
const themes = ["system", "light", "dark"];
const redraws = [];
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
let theme = 0;
function applyTheme(forced) {
  const wanted = forced || (themes[theme] === "system" ? (systemDark.matches ? "dark" : "light") : themes[theme]);
  document.documentElement.dataset.theme = wanted;
  redraws.forEach((run) => run());
}
const isDark = () => document.documentElement.dataset.theme === "dark";
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Add a section with its heading, and its link at the top of the page. */
function section(id, title, ...tools) {
  const head = h("div", { class: "head" }, h("h2", { id: id + "-title" }, title), tools);
  const made = h("section", { id, "aria-labelledby": id + "-title" }, head);
  document.getElementById("main").append(made);
  listSection(id, title);
  return made;
}
function listSection(id, title) {
  document.getElementById("sections").append(h("li", null, h("a", { href: "#" + id }, title)));
}
