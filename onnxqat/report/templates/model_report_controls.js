// Controls around the graph: pointer, keyboard, colours, blocks, legend.

function buildGraph() {
  const colors = h("select", { id: "colors", on: { change: (event) => recolor(event.target.value) } },
    Object.entries(modes).filter(([, chosen]) => chosen.known !== false).map(([key, chosen]) => h("option", { value: key }, chosen.label)));
  const button = (text, run, label) => h("button", { type: "button", "aria-label": label || false, on: { click: run } }, text);
  const data = h("input", { type: "checkbox", id: "shows-data", on: { change: (event) => { showsData = event.target.checked; arrange(); } } });
  const made = section("graph", "Graph",
    h("label", null, "Colour by ", colors),
    allBlocks.length > 1 ? [button("Collapse blocks", () => collapseAll()), button("Expand", () => { collapsed.clear(); arrange(); })] : null,
    nodes.some(isData) ? h("label", null, data, " shape arithmetic") : null,
    button("−", () => zoom(1 / 1.4), "Zoom out"), button("+", () => zoom(1.4), "Zoom in"), button("Fit", fit, "Fit the whole graph"));
  canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Graph of " + plural(nodes.length, "node", "nodes"), "aria-describedby": "graph-help" });
  pen = canvas.getContext("2d");
  tip = h("div", { class: "tip", hidden: true });
  made.append(h("div", { class: "stage" }, canvas, tip), h("div", { class: "legend", id: "legend" }),
    h("p", { class: "note", id: "graph-help" }, "Drag to move, Ctrl and wheel or a pinch to zoom (the wheel alone once the graph has the focus), double click to open or close a block. Keys: ↑ ↓ follow the edges, ← → the neighbours, Enter the details, c closes and e opens a block, + − 0 zoom. The table of nodes below holds the same."));
  listen();
  // The first layout is made when the size of the canvas is known.
  if (nodes.filter((node) => !isData(node)).length > 400 && allBlocks.length > 1 && !allBlocks[0].startsWith("part ")) collapseAll(1, false);
  new ResizeObserver(() => {
    if (canvas.dataset.fitted) { draw(); return; }
    canvas.dataset.fitted = "yes";
    arrange();
    if (marked() >= 0) { reveal(marked()); draw(); }
  }).observe(canvas);
  redraws.push(() => { view.boxes.forEach((box) => delete box.rgb); draw(); legend(); });
  onSelect((from) => {
    if (marked() >= 0 && from !== "graph") reveal(marked());
    draw();
  });
  legend();
}

function collapseAll(level, whole = true) {
  collapsed.clear();
  const depth = level || Math.max(1, Math.min(...allBlocks.map((block) => block.split("/").length)));
  const outer = new Set(nodes.map((node) => pathsOf(node.block)).filter((paths) => paths.length).map((paths) => paths[Math.min(depth, paths.length) - 1]));
  // One block around everything tells nothing: go down until there are some.
  if (outer.size < 4 && depth < 6 && allBlocks.some((block) => block.split("/").length > depth)) return collapseAll(depth + 1, whole);
  outer.forEach((block) => collapsed.add(block));
  if (whole) arrange();
}

function recolor(name) {
  mode = name;
  document.getElementById("colors").value = name;
  view.boxes.forEach((box) => delete box.rgb);
  draw();
  legend();
}

function legend() {
  const chosen = modes[mode], place = document.getElementById("legend");
  if (!isRamp(chosen)) {
    const many = new Map();
    for (const node of nodes) if (showsData || !isData(node)) { const value = chosen.of(node); if (value !== null) many.set(value, (many.get(value) || 0) + 1); }
    place.replaceChildren(...[...many].sort((a, b) => b[1] - a[1]).map(([name, times]) => h("span", null,
      h("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { width: 10, height: 10, rx: 2, fill: chosen.colors(name)[isDark() ? 1 : 0] })), name + " " + count(times))));
    return;
  }
  const stops = [0, 0.25, 0.5, 0.75, 1].map((part) => h("stop", { offset: part, "stop-color": "rgb(" + ramp(part).join(",") + ")" }));
  place.replaceChildren(h("span", null, chosen.low,
    h("svg", { class: "ramp", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, h("defs", null, h("linearGradient", { id: "ramp" }, stops)), h("rect", { width: 100, height: 6, rx: 1, fill: "url(#ramp)" })), chosen.high),
    h("span", null, "blank: not measured"));
}

function listen() {
  const down = new Map();
  let moved = 0, spanBefore = 0;
  const point = (event) => { const bounds = canvas.getBoundingClientRect(); return [event.clientX - bounds.left, event.clientY - bounds.top]; };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), ...point(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, point(event));
    canvas.setPointerCapture(event.pointerId);
    moved = spanBefore = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId), now = point(event);
    if (!before) return hover(event, now);
    down.set(event.pointerId, now);
    if (down.size === 2) {
      const [a, b] = [...down.values()], span = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (spanBefore) zoom(span / spanBefore, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      spanBefore = span;
      moved = 99;
      return undefined;
    }
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (moved < 4) return undefined;
    canvas.classList.add("moving");
    tip.hidden = true;
    view.x += now[0] - before[0];
    view.y += now[1] - before[1];
    return requestAnimationFrame(draw);
  });
  const up = (event) => {
    canvas.classList.remove("moving");
    if (down.delete(event.pointerId) && event.type === "pointerup" && moved < 4) {
      const box = boxAt(event);
      if (box >= 0 && view.boxes[box].block === undefined) open(box);
      else if (box >= 0) say("Block " + printable(view.boxes[box].block) + ", double click to open");
    }
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => {
    const box = boxAt(event);
    if (box < 0) return;
    if (view.boxes[box].block !== undefined) open(box); else fold(view.boxes[box].members[0]);
  });
  canvas.addEventListener("keydown", onKey);
}

function hover(event, [x, y]) {
  const box = boxAt(event);
  tip.hidden = box < 0;
  canvas.style.cursor = box < 0 ? "" : "pointer";
  if (box < 0) return;
  const { block, members } = view.boxes[box], node = nodes[members[0]], chosen = modes[mode];
  const value = block !== undefined ? plural(members.length, "node", "nodes") : chosen.show ? chosen.show(node) : chosen.of(node) || none;
  tip.textContent = printable(block !== undefined ? block : node.name) + " · " + (block !== undefined ? "block" : node.op) + " · " + value;
  tip.style.left = Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 6) + "px";
  tip.style.top = Math.min(y + 16, canvas.clientHeight - tip.offsetHeight - 6) + "px";
}

function onKey(event) {
  const steps = { ArrowUp: () => follow(producers), ArrowDown: () => follow(consumers), ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: fit,
    c: () => selection.kind === "node" && fold(selection.i), e: () => selection.kind === "node" && view.boxes[view.of[selection.i]].block !== undefined && open(view.of[selection.i]),
    Enter: () => document.getElementById("detail").focus() };
  const run = event.ctrlKey || event.metaKey || event.altKey ? null : steps[event.key];
  if (!run) return;
  event.preventDefault();
  run();
}
function follow(near) {
  const i = marked();
  if (i < 0) { select("node", 0, "keys"); return; }
  const next = near[i].map(([other]) => other).find((other) => view.of[other] >= 0 && view.of[other] !== view.of[i]);
  if (next !== undefined) select("node", next, "keys");
}
function beside(step) {
  const i = marked();
  if (i < 0) { select("node", 0, "keys"); return; }
  const box = view.of[i], { depth, x } = view.placed;
  const row = [...view.boxes.keys()].filter((other) => depth[other] === depth[box]).sort((a, b) => x[a] - x[b]);
  const next = row[row.indexOf(box) + step];
  if (next !== undefined) select("node", view.boxes[next].members[0], "keys");
}
