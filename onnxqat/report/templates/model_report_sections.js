// The sections between overview and footer.

function buildOverview() {
  const own = variants[0], original = variants.find((variant) => variant.form === "float" && variant !== own);
  const figure = (label, value, note) => value === none ? null : h("div", null, h("dt", null, label), h("dd", null, value, note ? h("small", null, note) : null));
  const part = (a, b) => b ? `${(100 * a / b).toFixed(a / b < 0.1 ? 1 : 0)} % of the float model` : null;
  const db = own.output_db ?? null, ms = own.milliseconds ?? null;
  document.getElementById("figures").append(...[
    figure("weights", bytes(own.weight_bytes), original && part(own.weight_bytes, original.weight_bytes)),
    figure("multiply-bits a sample", large(own.multiply_bits), original && part(own.multiply_bits, original.multiply_bits)),
    figure("output against float", decibel(db), report.samples ? plural(report.samples, "sample", "samples") : null),
    ...Object.entries(own.scores || {}).map(([name, value]) => figure(name, number(value), original && original.scores && original.scores[name] !== undefined ? `float ${number(original.scores[name])}` : null)),
    figure("quantizers", count(own.quantizers), `${nodes.filter((n) => n.op !== "Input" && n.op !== "Output").length} nodes`),
    figure("layers in float", count(own.float_layers)),
    figure("batch in onnxruntime", ms === null ? none : number(ms) + " ms", original && original.milliseconds ? `float ${number(original.milliseconds)} ms` : null),
    figure("file", bytes(own.file_bytes), own.backend ? printable(own.backend) : own.form),
  ].filter(Boolean));
  if ((report.remarks || []).length) document.getElementById("overview").append(h("details", null, h("summary", null, plural(report.remarks.length, "remark", "remarks")), h("ul", null, report.remarks.map((text) => h("li", { class: "note" }, printable(text))))));
}

function buildSensitivity() {
  const known = quantizers.filter((q) => q.cost && q.cost.share !== null && q.cost.share !== undefined).map((q) => ({ kind: "quantizer", i: q.i, name: q.tensor, share: q.cost.share, db: q.cost.alone_db }));
  const layers = nodes.filter((n) => n.cost && n.cost.share !== null && n.cost.share !== undefined).map((n) => ({ kind: "node", i: n.i, name: n.name, share: n.cost.share, db: n.cost.alone_db }));
  if (!known.length && !layers.length) return;
  let shown = layers.length ? layers : known, limit = 15;
  const list = h("div", { class: "bars" });
  const which = known.length && layers.length ? [["Layers", layers], ["Tensors", known]].map(([title, rows]) => h("button", { type: "button", "aria-pressed": String(rows === shown), on: { click: (event) => { shown = rows; which.forEach((b) => b.setAttribute("aria-pressed", String(b === event.target))); draw(); } } }, title)) : [];
  const more = h("button", { type: "button", on: { click: () => { limit = limit === 15 ? 400 : 15; draw(); } } });
  const made = section("sensitivity", "Sensitivity", which);
  function draw() {
    shown.sort((a, b) => b.share - a.share);
    const most = shown[0].share || 1;
    list.replaceChildren(...shown.slice(0, limit).map((row) => h("button", { type: "button", class: isSelected(row.kind, row.i) && "chosen", on: { click: () => select(row.kind, row.i, "bars") } },
      h("span", { class: "label" }, printable(row.name)), h("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, h("rect", { class: "track", width: 100, height: 10, rx: 1 }), h("rect", { class: "fill cost", width: 100 * row.share / most, height: 10, rx: 1 })),
      h("span", { class: "value" }, share(row.share)), h("span", { class: "value dim" }, decibel(row.db ?? null)))));
    more.hidden = shown.length <= 15;
    more.textContent = limit === 15 ? `Show all ${count(shown.length)}` : "Show the first 15";
  }
  draw();
  onSelect(draw);
  made.append(h("p", { class: "note" }, "Share of the noise at the output that each causes alone; the ratio behind it is the signal to noise of the output with only that quantized."), list, more);
  if (report.curve) made.append(lineChart("The costliest in float, one after the other", [report.curve], "in float", report.curve.name));
}

function buildTraining() {
  const t = report.training;
  if (!t) return;
  const charts = [["Loss", t.loss, "step", ""], ["Score", t.score, "step", ""], ["Learning rates", t.rates, "step", ""], ["Norm of the gradients", t.gradient_norm, "step", ""],
    ["Scales, over those of the first epoch", t.scales, "step", ""], ["Oscillation: share of codes that turned back", t.oscillation, "step", ""]]
    .map(([title, curves, x, y]) => curves && curves.length ? lineChart(title, curves, x, y) : null).filter(Boolean);
  if (charts.length) {
    const made = section("training", "Training"), place = h("div", { class: "charts" }, charts);
    made.append(place);
  }
}

function buildFronts() {
  const found = (report.fronts || []).filter((front) => front.points.length);
  if (!found.length) return;
  const made = section("front", "Pareto front");
  found.forEach((front) => {
    const rows = front.points.map((point, i) => ({ ...point, i }));
    const listed = table(front.title, rows, [
      { key: "attempt", title: "attempt", of: (p) => p.name, show: (p) => p.name }, { key: "cost", title: front.x_label, number: true, of: (p) => p.x, show: (p) => number(p.x) },
      { key: "quality", title: front.y_label, number: true, of: (p) => p.y, show: (p) => number(p.y) }, { key: "front", title: "on the front", of: (p) => p.front ? "yes" : "no", show: (p) => p.front ? "yes" : "no" }], null);
    made.append(frontChart(front), h("details", null, h("summary", null, "As a table"), h("div", { class: "head" }, listed.tools), listed.made));
  });
}

function buildVariants() {
  const has = (key) => variants.some((variant) => variant[key] !== null && variant[key] !== undefined);
  const scores = [...new Set(variants.flatMap((variant) => Object.keys(variant.scores || {})))];
  const rows = variants.map((variant, i) => ({ ...variant, i }));
  const most = (key) => Math.max(1, ...variants.map((variant) => variant[key] || 0));
  const sized = (key, title, show) => ({ key, title, number: true, of: (v) => v[key] ?? null, show: (v) => show(v[key] ?? null), bar: (v) => variants.length > 1 ? (v[key] || 0) / most(key) : null });
  const listed = table("Models side by side", rows, [
    { key: "model", title: "model", of: (v) => v.name, show: (v) => v.name }, { key: "form", title: "form", of: (v) => v.form, show: (v) => v.form + (v.backend ? ` (${v.backend})` : "") },
    sized("weight_bytes", "weights", bytes), sized("multiply_bits", "multiply-bits", large), { key: "file_bytes", title: "file", number: true, of: (v) => v.file_bytes ?? null, show: (v) => bytes(v.file_bytes) },
    has("output_db") && { key: "output", title: "output", number: true, of: (v) => ratio(v.output_db ?? null), show: (v) => v.form === "float" ? "reference" : decibel(v.output_db) },
    ...scores.map((name) => ({ key: name.replace(/\W/g, "").toLowerCase(), title: name, number: true, of: (v) => (v.scores || {})[name] ?? null, show: (v) => number((v.scores || {})[name] ?? null) })),
    has("milliseconds") && { key: "ms", title: "ms a batch", number: true, of: (v) => v.milliseconds ?? null, show: (v) => number(v.milliseconds ?? null) },
    { key: "float_layers", title: "float layers", number: true, of: (v) => v.float_layers, show: (v) => count(v.float_layers) }].filter(Boolean), null);
  section("variants", "Models side by side", listed.tools).append(listed.made);
}

function buildTargets() {
  if (!targets.length) return;
  const kinds = ["integers", "moved", "float", "rejected", "absorbed"];
  const rows = targets.map((target, i) => { const of = {}; for (const node of nodes) for (const kernel of node.kernels) if (kernel.target === i) of[kernel.runs] = (of[kernel.runs] || 0) + 1; return { ...target, i, runs: of }; });
  const listed = table("Targets", rows, [
    { key: "target", title: "target", of: (t) => t.name, show: (t) => t.name }, { key: "heavy", title: "heavy nodes on integers", number: true, of: (t) => t.total ? t.integer / t.total : null, show: (t) => t.total ? `${t.integer} of ${t.total}` : none, bar: (t) => t.total ? t.integer / t.total : null },
    ...kinds.filter((kind) => rows.some((row) => row.runs[kind])).map((kind) => ({ key: kind, title: kind, number: true, of: (t) => t.runs[kind] || 0, show: (t) => count(t.runs[kind] || 0) })),
    { key: "lsb", title: "largest difference, LSB", number: true, of: (t) => t.largest_lsb ?? null, show: (t) => number(t.largest_lsb ?? null) },
    targets.some((t) => t.status) && { key: "verdict", title: "verdict", of: (t) => t.status || null, show: (t) => t.status || none },
    targets.some((t) => t.reason) && { key: "reason", title: "why", of: (t) => t.reason || null, show: (t) => t.reason || none },
    targets.some((t) => t.milliseconds) && { key: "ms", title: "ms", number: true, of: (t) => t.milliseconds ?? null, show: (t) => number(t.milliseconds ?? null) }].filter(Boolean), null);
  section("targets", "What the compilers did", targets.slice(0, 3).map((target, t) => h("button", { type: "button", on: { click: () => { recolor("target" + t); location.hash = "graph"; } } }, "Show " + printable(target.name) + " in the graph")), listed.tools).append(listed.made);
}

function buildQuantizers() {
  if (!quantizers.length) return;
  const v = (q) => q.values, has = (of) => quantizers.some((q) => of(q) !== null && of(q) !== undefined);
  const column = (key, title, of, show, more) => ({ key, title, number: true, of, show: (q) => show(of(q)), ...more });
  const db = (of) => (q) => { const found = ratio(of(q)); return found === undefined ? null : found; };
  const showDb = (value) => decibel(value === Infinity ? "exact" : value);
  const own = db((q) => v(q) ? v(q).own_db : null), against = db((q) => q.float_db), cost = (q) => q.cost ? q.cost.share ?? null : null, mostCostly = Math.max(1e-30, ...quantizers.map((q) => cost(q) || 0));
  const listed = table("Quantizers", quantizers, [
    { key: "tensor", title: "tensor", pick: true, of: (q) => q.tensor, show: (q) => q.tensor }, { key: "role", title: "role", of: (q) => q.role, show: (q) => q.role }, { key: "type", title: "type", of: (q) => q.grid, show: (q) => q.grid },
    { key: "per", title: "per", of: (q) => q.granularity, show: (q) => q.granularity },
    column("scale", "largest scale", (q) => q.now.scale_high, number), has((q) => q.before) && column("before", "before", (q) => q.before ? q.before.scale_high : null, number),
    has(own) && column("own", "own rounding", own, showDb), has(against) && column("error", "against float", against, showDb), has((q) => v(q)) && column("saturated", "saturated", (q) => v(q) ? v(q).saturated : null, share),
    has((q) => v(q) && v(q).unused_codes) && column("unused", "unused codes", (q) => v(q) && v(q).codes ? v(q).unused_codes / v(q).codes : null, share),
    has(cost) && column("cost", "share of noise", cost, share, { bar: (q) => cost(q) === null ? null : cost(q) / mostCostly, cost: true }),
    { key: "rule", title: "rule", of: (q) => q.rule, show: (q) => q.rule || none }].filter(Boolean), "quantizer", has(own) ? "own<20" : "scale>1");
  section("quantizers", "Quantizers", listed.tools).append(listed.made);
}

function buildNodes() {
  const has = (of) => nodes.some((n) => of(n) !== null && of(n) !== undefined);
  const column = (key, title, of, show, more) => ({ key, title, number: true, of, show: (n) => show(of(n)), ...more });
  const cost = (n) => n.cost ? n.cost.share ?? null : null, error = (n) => ratio(n.float_db);
  const listed = table("Nodes", nodes, [
    { key: "node", title: "node", pick: true, of: (n) => n.name, show: (n) => n.name }, { key: "op", title: "operator", of: (n) => n.op, show: (n) => n.op }, { key: "computes", title: "computes on", of: (n) => n.arithmetic, show: (n) => n.arithmetic },
    has(error) && column("error", "against float", error, (value) => decibel(value === Infinity ? "exact" : value)),
    has(cost) && column("cost", "share of noise", cost, share, { bar: (n) => cost(n) === null ? null : cost(n) / mostCost, cost: true }),
    has((n) => n.multiply_bits) && column("work", "multiply-bits", (n) => n.multiply_bits, large, { bar: (n) => n.multiply_bits === null ? null : n.multiply_bits / mostBits }), has((n) => n.weight_bytes) && column("bytes", "weights", (n) => n.weight_bytes, bytes),
    ...targets.slice(0, 6).map((target, t) => { const run = (n) => { const found = n.kernels.find((kernel) => kernel.target === t); return found ? found.runs + (found.kernel ? ": " + found.kernel : "") : none; }; return { key: "target" + t, title: targets.length === 1 ? "kernel" : printable(target.name), of: run, show: run }; }),
    nodes.some((n) => n.reason) && { key: "reason", title: "why in float", of: (n) => n.reason, show: (n) => n.reason || none }].filter(Boolean), "node", has(error) ? "error<20" : "work>1e6");
  section("nodes", "Nodes", listed.tools).append(listed.made);
}
