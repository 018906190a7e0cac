// The side column: all facts on the selected node or quantizer, with links to what it touches.

const fact = (label, value) => value === null || value === undefined || value === "" ? null : [h("dt", null, label), h("dd", null, value)];
const facts = (...found) => h("dl", { class: "facts" }, found.filter(Boolean));

function buildDetail() {
  const aside = document.getElementById("detail"), body = document.getElementById("detail-body");
  aside.prepend(h("button", { type: "button", class: "close", on: { click: () => { aside.classList.remove("open"); select(null, -1, "close"); } } }, "Close"));
  onSelect((from, again) => {
    aside.classList.toggle("open", selection.kind !== null);
    if (again && body.childElementCount) return;
    aside.scrollTop = 0;
    if (selection.kind === null) body.replaceChildren(h("p", { class: "dim" }, "Nothing is selected. Choose a node of the graph, or a row of a table."));
    else body.replaceChildren(...(selection.kind === "node" ? nodeDetail(nodes[selection.i]) : quantizerDetail(quantizers[selection.i])).filter(Boolean));
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && selection.kind !== null && !document.getElementById("search").matches(":focus")) { aside.classList.remove("open"); select(null, -1, "close"); } });
}

function nodeDetail(node) {
  const cost = node.cost;
  return [
    h("p", { class: "name" }, breakable(printable(node.name))),
    h("p", null, node.op, " ", h("span", { class: "tag" + (node.arithmetic === "float" ? " float" : "") }, node.arithmetic), node.block ? h("span", { class: "dim" }, " in " + printable(node.block.split("/").join(" / "))) : null),
    node.reason ? h("p", { class: "note" }, (node.arithmetic === "fused" ? "Without a pair: " : "In float: ") + printable(node.reason)) : null,
    facts(fact("output", printable(node.tensor)), fact("shape", node.shape && node.shape.length ? node.shape.map(printable).join(" × ") : node.shape ? "scalar" : null),
      fact("against float", node.float_db === null ? null : decibel(node.float_db)), fact("share of the noise", cost && share(cost.share)),
      fact("alone, output", cost && decibel(cost.alone_db)), fact("all others, output", cost && cost.off_db !== null && cost.off_db !== undefined ? decibel(cost.off_db) : null),
      fact("multiplications", node.macs === null ? null : count(node.macs)), fact("multiply-bits", node.multiply_bits === null ? null : count(node.multiply_bits)), fact("weights", node.weight_bytes === null ? null : bytes(node.weight_bytes))),
    node.kernels.length ? [h("h3", null, "What the compiler did"), h("table", null, h("thead", null, h("tr", null, ["target", "runs on", "kernel", "LSB"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", null, node.kernels.map((kernel) => h("tr", null,
      h("td", null, printable(targets[kernel.target].name)), h("td", null, h("span", { class: "tag" + (kernel.runs === "float" ? " float" : kernel.runs === "rejected" ? " bad" : "") }, kernel.runs)),
      h("td", null, printable(kernel.kernel || none), kernel.why ? h("p", { class: "note" }, printable(kernel.why)) : null, kernel.microseconds ? h("p", { class: "note" }, number(kernel.microseconds) + " µs") : null), h("td", { class: "number" }, number(kernel.largest_lsb ?? null))))))] : null,
    node.reads.length ? [h("h3", null, "Quantizers it reads"), h("ul", { class: "links" }, node.reads.map((q) => h("li", null, quantizerLink(q), h("span", { class: "dim" }, ` ${quantizers[q].role}, ${quantizers[q].grid}`))))] : null,
    linked("Reads from", producers[node.i]), linked("Read by", consumers[node.i]),
  ].flat();
}
function linked(title, found) {
  if (!found.length) return null;
  return [h("h3", null, title), h("ul", { class: "links" }, found.slice(0, 40).map(([i, q]) => h("li", null, nodeLink(i), h("span", { class: "dim" }, " " + nodes[i].op), q >= 0 ? [" through ", quantizerLink(q, quantizers[q].grid)] : null)), found.length > 40 ? h("li", { class: "dim" }, `and ${found.length - 40} more`) : null)];
}

function quantizerDetail(q) {
  const now = q.now, v = now.values, before = q.before, many = now.total > 1;
  const zero = (p) => p.zero_point.length > 1 ? `${Math.min(...p.zero_point)} to ${Math.max(...p.zero_point)}` : String(p.zero_point[0] ?? 0);
  const scale = (p) => p.total > 1 ? `${number(p.scale_low)} to ${number(p.scale_high)}` : number(p.scale[0]);
  const moved = before && before.total === now.total ? (now.scale_high / before.scale_high - 1) : null;
  return [
    h("p", { class: "name" }, breakable(printable(q.tensor))),
    h("p", null, q.role, " ", h("span", { class: "tag" }, q.grid), h("span", { class: "dim" }, " per " + q.granularity)),
    facts(fact("rule", q.rule ? printable(q.rule) : "not recorded"), fact("scale", scale(now)), before ? fact("scale before", [scale(before), Math.abs(moved || 0) >= 0.0005 ? h("span", { class: "dim" }, ` (now ${moved > 0 ? "+" : "−"}${(100 * Math.abs(moved)).toFixed(1)} %)`) : null]) : null,
      fact("zero point", zero(now)), before && zero(before) !== zero(now) ? fact("zero point before", zero(before)) : null, fact("grid", `${number(now.clip_low)} to ${number(now.clip_high)}`),
      fact("own rounding", v ? decibel(v.own_db) : null), before && before.values ? fact("own rounding before", decibel(before.values.own_db)) : null, fact("against float", q.float_db === null ? null : decibel(q.float_db)),
      fact("saturated", v ? share(v.saturated) : null), fact("unused codes", v && v.codes ? `${count(v.unused_codes)} of ${count(v.codes)}` : null), fact("dead channels", v && v.dead_channels ? `${v.dead_channels} of ${v.channels}` : null),
      fact("share of the noise", q.cost && share(q.cost.share)), fact("alone, output", q.cost && decibel(q.cost.alone_db)), fact("codes that differ", q.differing_codes === null ? null : count(q.differing_codes))),
    v ? [h("h3", null, "Values"), histogram(q), h("p", { class: "note" }, "Dashed: ends of the grid. ", before && before.values ? "Line: before training. " : "", `${count(v.values)} values, ${number(v.low)} to ${number(v.high)}.`)] : h("p", { class: "note" }, "No histogram: no data were given."),
    v && v.code_counts.length ? [h("h3", null, "Codes"), codeBars(v)] : null,
    many ? [h("h3", null, `Scales of ${count(now.total)} ${q.granularity.startsWith("block") ? "blocks" : "channels"}`), channelBars(now, before), now.shown < now.total ? h("p", { class: "note" }, `Every ${Math.round(now.total / now.shown)}th is shown.`) : null, scaleList(now, before)] : null,
    h("h3", null, "Where it lies"),
    h("ul", { class: "links" }, q.maker !== null && q.maker !== undefined ? h("li", null, "made by ", nodeLink(q.maker)) : h("li", { class: "dim" }, q.role === "activation" ? "an input or a constant" : "a constant"), q.readers.slice(0, 40).map((i) => h("li", null, "read by ", nodeLink(i)))),
  ].flat();
}
function scaleList(now, before) {
  const made = h("details", null, h("summary", null, "Scale and zero point of each"));
  made.addEventListener("toggle", () => {
    if (made.childElementCount > 1) return;
    const both = before && before.scale.length === now.scale.length;
    made.append(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Scales" }, h("table", null, h("thead", null, h("tr", null, ["channel", "scale", "zero point", both && "before"].filter(Boolean).map((t) => h("th", { scope: "col", class: "number" }, t)))),
      h("tbody", null, now.scale.map((s, i) => h("tr", null, [i * Math.round(now.total / now.shown), s, now.zero_point[now.zero_point.length > 1 ? i : 0] ?? 0, both ? before.scale[i] : null].filter((c) => c !== null).map((c) => h("td", { class: "number" }, String(c)))))))));
  });
  return made;
}
