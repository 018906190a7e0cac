// The graph on a canvas: zoom, pan, collapse, colours, and the same by keyboard.

const SMALLEST_TEXT = 0.42; // zoom below which labels are no longer legible, and boxes alone are drawn
const view = { scale: 1, x: 0, y: 0, boxes: [], links: [], placed: null, of: new Int32Array(nodes.length), hover: -1 };
const collapsed = new Set();
let showsData = false;
let canvas = null, pen = null, tip = null, mode = "arithmetic";

const knownPaths = new Map([["", []]]);
function pathsOf(block) {
  if (!knownPaths.has(block)) knownPaths.set(block, block.split("/").map((_, k, parts) => parts.slice(0, k + 1).join("/")));
  return knownPaths.get(block);
}
const allBlocks = [...new Set(nodes.flatMap((node) => pathsOf(node.block)))];
const isData = (node) => node.arithmetic === "data" && node.op !== "Input" && node.op !== "Output";

/** Make boxes: single nodes, or the outermost collapsed block around them. */
function regroup() {
  const byBlock = new Map();
  view.boxes = [];
  nodes.forEach((node, i) => {
    view.of[i] = -1;
    if (!showsData && isData(node)) return;
    const block = pathsOf(node.block).find((path) => collapsed.has(path));
    if (block !== undefined && byBlock.has(block)) {
      view.of[i] = byBlock.get(block);
      view.boxes[view.of[i]].members.push(i);
      return;
    }
    view.of[i] = view.boxes.length;
    if (block !== undefined) byBlock.set(block, view.of[i]);
    view.boxes.push({ members: [i], block });
  });
  const seen = new Set();
  view.links = [];
  for (const [from, to] of edges) {
    const a = view.of[from], b = view.of[to], key = a * nodes.length + b;
    if (a < 0 || b < 0 || a === b || seen.has(key)) continue;
    seen.add(key);
    view.links.push([a, b]);
  }
  const { width, height } = canvas.getBoundingClientRect();
  view.placed = layOut(view.boxes.length, view.links, Math.max(0.5, (width || 900) / (height || 540)));
}

// What boxes can be coloured by. `of` gives a class or a number 0..1, where 1 is bad; null is unknown.
const arithmeticColors = (name) => {
  if (name === "float") return ["#d98a1f", "#e2a13f"];
  if (name === "fused") return ["#bfe0da", "#35605a"];
  if (name === "data" || name === "several") return ["#c9ced8", "#3d4450"];
  const bits = Math.min(...name.replace(/float/g, "32").match(/\d+/g).map(Number));
  // Without a weight the same hue, paler.
  if (name.startsWith("A")) return bits <= 2 ? ["#cdaee4", "#705089"] : bits <= 4 ? ["#b7b1ec", "#5a5494"] : bits < 8 ? ["#9fd0d6", "#35707a"] : bits === 8 ? ["#a9c1f1", "#3d5b96"] : ["#a6d3b8", "#3d7553"];
  if (bits <= 2) return ["#8f4fc0", "#b98ae0"];
  if (bits <= 4) return ["#6a5fd0", "#9a92f2"];
  if (bits < 8) return ["#2f8f9d", "#5fbecb"];
  return bits === 8 ? ["#4a78d6", "#6c9bf5"] : ["#3c8f5c", "#6fc58f"];
};
const runColors = { integers: ["#4a78d6", "#6c9bf5"], moved: ["#8fb0ea", "#47659e"], float: ["#d98a1f", "#e2a13f"], rejected: ["#c8402f", "#f07a68"], absorbed: ["#c9ced8", "#3d4450"] };
const familyOf = (op) => /Conv/.test(op) ? "convolution" : /MatMul|Gemm|Attention/.test(op) ? "product"
  : /Relu|Sigmoid|Tanh|Clip|Swish|Gelu|Softmax|Silu|Erf|HardS/.test(op) ? "activation" : /Norm/.test(op) ? "normalization"
    : /Pool|Resize|Reduce/.test(op) ? "pooling, resizing" : /Add|Mul|Sub|Div|Pow|Sqrt/.test(op) ? "arithmetic"
      : /Input|Output/.test(op) ? "input, output" : "data movement and others";
const familyColors = { convolution: ["#4a78d6", "#6c9bf5"], product: ["#6a5fd0", "#9a92f2"], activation: ["#3c8f5c", "#6fc58f"], normalization: ["#2f8f9d", "#5fbecb"],
  "pooling, resizing": ["#b0508f", "#dd86bf"], arithmetic: ["#d98a1f", "#e2a13f"], "input, output": ["#6b7484", "#98a2b3"], "data movement and others": ["#c9ced8", "#3d4450"] };
const largest = (of) => Math.max(1e-30, ...nodes.map((node) => of(node) || 0));
const mostBits = largest((node) => node.multiply_bits), mostCost = largest((node) => node.cost && node.cost.share);
const modes = {
  arithmetic: { label: "type and width", of: (node) => node.arithmetic, colors: arithmeticColors },
  operator: { label: "operator", of: (node) => familyOf(node.op), colors: (name) => familyColors[name] },
  error: { label: "error against the float model", low: "50 dB", high: "0 dB", known: nodes.some((node) => node.float_db !== null),
    of: (node) => node.float_db === null ? null : node.float_db === "exact" ? 0 : Math.min(1, Math.max(0, 1 - node.float_db / 50)), show: (node) => decibel(node.float_db) },
  cost: { label: "share of the noise (sensitivity)", low: "none", high: share(mostCost), known: nodes.some((node) => node.cost),
    of: (node) => node.cost && node.cost.share !== null && node.cost.share !== undefined ? Math.sqrt(node.cost.share / mostCost) : null, show: (node) => share(node.cost && node.cost.share) },
  work: { label: "multiply-bits", low: "0", high: large(mostBits), known: nodes.some((node) => node.multiply_bits),
    of: (node) => node.multiply_bits === null ? null : Math.sqrt(node.multiply_bits / mostBits), show: (node) => large(node.multiply_bits) },
};
targets.forEach((target, t) => {
  modes["target" + t] = { label: "compiler: " + printable(target.name), of: (node) => { const found = node.kernels.find((kernel) => kernel.target === t); return found ? found.runs : null; }, colors: (name) => runColors[name] };
});
const isRamp = (chosen) => !chosen.colors;
const mix = (from, to, part) => from.map((c, k) => Math.round(c + (to[k] - c) * part));
const ramp = (part) => isDark() ? mix([44, 52, 64], [255, 128, 64], part) : mix([232, 237, 245], [205, 75, 15], part);

/** Colour of a box as [r, g, b]; of a block the worst of its nodes, and of types and operators the most common one. */
function paint(box) {
  const chosen = modes[mode], values = box.members.map((i) => chosen.of(nodes[i])).filter((value) => value !== null);
  const unknown = isDark() ? [36, 42, 51] : [255, 255, 255];
  if (!values.length) return unknown;
  if (isRamp(chosen)) return ramp(Math.max(...values));
  const classes = new Set(values.filter((value) => value !== "data" && value !== "absorbed"));
  const name = classes.size ? (mode.startsWith("target") ? worstRun([...classes]) : mostCommon(values.filter((value) => classes.has(value)))) : values[0];
  const hex = chosen.colors(name)[isDark() ? 1 : 0];
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}
function mostCommon(values) {
  const times = new Map();
  for (const value of values) times.set(value, (times.get(value) || 0) + 1);
  return [...times].sort((a, b) => b[1] - a[1])[0][0];
}
function worstRun(classes) {
  const rank = ["rejected", "float", "moved", "integers"];
  return classes.sort((a, b) => (rank.indexOf(a) + 9) % 9 - (rank.indexOf(b) + 9) % 9)[0];
}
const light = ([r, g, b]) => 0.2126 * (r / 255) ** 2.2 + 0.7152 * (g / 255) ** 2.2 + 0.0722 * (b / 255) ** 2.2;
const labelOf = (box) => box.block === undefined ? nodes[box.members[0]].op : box.block.split("/").pop() + " (" + box.members.length + ")";

function draw() {
  if (!canvas || !view.placed) return;
  const bounds = canvas.getBoundingClientRect(), dpr = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(bounds.width * dpr) || canvas.height !== Math.round(bounds.height * dpr)) {
    canvas.width = Math.round(bounds.width * dpr);
    canvas.height = Math.round(bounds.height * dpr);
  }
  const { placed, boxes, links, scale } = view;
  pen.setTransform(dpr, 0, 0, dpr, 0, 0);
  pen.clearRect(0, 0, bounds.width, bounds.height);
  pen.setTransform(dpr * scale, 0, 0, dpr * scale, dpr * view.x, dpr * view.y);
  const near = (i) => { const sx = placed.x[i] * scale + view.x, sy = placed.y[i] * scale + view.y; return sx > -200 * scale && sx < bounds.width + 200 * scale && sy > -60 && sy < bounds.height + 60; };
  drawLinks(links, placed, scale, near);
  const labels = scale >= SMALLEST_TEXT, own = marked() < 0 ? -1 : view.of[marked()];
  pen.font = "600 11.5px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  const line = color("--strong"), highlight = color("--link");
  boxes.forEach((box, i) => {
    if (!near(i)) return;
    const rgb = box.rgb ||= paint(box), x = placed.x[i] - BOX.width / 2, y = placed.y[i] - BOX.height / 2;
    pen.fillStyle = "rgb(" + rgb.join(",") + ")";
    if (!labels && i !== own && box.block === undefined) { pen.fillRect(x, y, BOX.width, BOX.height); return; }
    pen.beginPath();
    pen.roundRect(x, y, BOX.width, BOX.height, box.block === undefined ? 5 : 12);
    pen.fill();
    pen.lineWidth = i === own ? 3 / Math.min(scale, 1) : box.block === undefined ? 1 : 2;
    pen.strokeStyle = i === own ? highlight : line;
    pen.stroke();
    if (labels) {
      pen.fillStyle = light(rgb) > 0.3 ? "#10141b" : "#ffffff";
      pen.fillText(printable(labelOf(box)).slice(0, 22), placed.x[i], placed.y[i] + 0.5, BOX.width - 10);
    }
  });
}

function drawLinks(links, placed, scale, near) {
  const own = marked() < 0 ? -1 : view.of[marked()];
  const trace = (a, b) => {
    const y0 = placed.y[a] + BOX.height / 2, y1 = placed.y[b] - BOX.height / 2, x0 = placed.x[a], x1 = placed.x[b];
    if (placed.column[a] === placed.column[b] && y1 >= y0) {
      const bend = Math.min(40, (y1 - y0) / 2);
      pen.moveTo(x0, y0);
      if (Math.abs(x0 - x1) < 1) pen.lineTo(x1, y1); else pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
    } else {
      // Into another column, or back up: from side to side.
      const side = placed.column[a] <= placed.column[b] ? BOX.width / 2 : -BOX.width / 2, end = placed.column[a] === placed.column[b] ? -side : side;
      pen.moveTo(x0 + side, placed.y[a]);
      pen.bezierCurveTo(x0 + 1.5 * side, placed.y[a], x1 - 1.5 * end, placed.y[b], x1 - end, placed.y[b]);
    }
  };
  pen.lineWidth = 1 / Math.min(1, Math.max(scale, 0.25));
  pen.strokeStyle = color("--strong");
  pen.globalAlpha = 0.8;
  pen.beginPath();
  for (const [a, b] of links) if (near(a) || near(b)) trace(a, b);
  pen.stroke();
  pen.globalAlpha = 1;
  if (own < 0) return;
  pen.lineWidth = 2.5 / Math.min(1, scale);
  pen.strokeStyle = color("--link");
  pen.beginPath();
  for (const [a, b] of links) if (a === own || b === own) trace(a, b);
  pen.stroke();
}

function fit() {
  const { width, height } = canvas.getBoundingClientRect(), pad = 24;
  view.scale = Math.min(1.25, (width - 2 * pad) / view.placed.width, (height - 2 * pad) / view.placed.height);
  view.x = (width - view.placed.width * view.scale) / 2;
  view.y = (height - view.placed.height * view.scale) / 2;
  draw();
}
function zoom(factor, x, y) {
  const { width, height } = canvas.getBoundingClientRect(), cx = x ?? width / 2, cy = y ?? height / 2;
  const scale = Math.min(3, Math.max(0.01, view.scale * factor)), part = scale / view.scale;
  view.x = cx - (cx - view.x) * part;
  view.y = cy - (cy - view.y) * part;
  view.scale = scale;
  draw();
}
function reveal(i) {
  if (!view.placed) return;
  if (view.of[i] < 0) { showsData = true; document.getElementById("shows-data").checked = true; arrange(false); }
  const box = view.of[i], { width, height } = canvas.getBoundingClientRect();
  const sx = view.placed.x[box] * view.scale + view.x, sy = view.placed.y[box] * view.scale + view.y;
  if (view.scale < SMALLEST_TEXT) view.scale = 0.9;
  else if (sx > 90 && sx < width - 90 && sy > 30 && sy < height - 30) return;
  view.x = width / 2 - view.placed.x[box] * view.scale;
  view.y = height / 2 - view.placed.y[box] * view.scale;
}
function arrange(whole = true) {
  regroup();
  if (whole) fit(); else draw();
}
function boxAt(event) {
  const bounds = canvas.getBoundingClientRect();
  const x = (event.clientX - bounds.left - view.x) / view.scale, y = (event.clientY - bounds.top - view.y) / view.scale;
  for (let i = view.boxes.length - 1; i >= 0; i--) {
    if (Math.abs(view.placed.x[i] - x) <= BOX.width / 2 && Math.abs(view.placed.y[i] - y) <= BOX.height / 2) return i;
  }
  return -1;
}
function open(box) {
  const { block, members } = view.boxes[box];
  if (block === undefined) select("node", members[0], "graph");
  else { collapsed.delete(block); arrange(false); reveal(members[0]); draw(); say("Opened block " + printable(block)); }
}
function fold(i) {
  const deepest = [...pathsOf(nodes[i].block)].reverse().find((path) => !collapsed.has(path));
  if (deepest) { collapsed.add(deepest); arrange(false); reveal(i); draw(); say("Collapsed block " + printable(deepest)); }
}
