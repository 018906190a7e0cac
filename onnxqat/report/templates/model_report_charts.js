// Charts as SVG: lines, points, histograms, bars of channels.

const palette = () => isDark() ? ["#6c9bf5", "#f08a4b", "#5fbecb", "#b894e6", "#6fc58f", "#dd86bf", "#e2c04a", "#98a2b3"]
  : ["#3565c9", "#c4551a", "#22808e", "#8450bd", "#2f7d4f", "#a8447f", "#8a6d00", "#5b6474"];

function ticks(low, high, many = 4) {
  const span = high - low || 1, raw = span / many, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}
const decades = (low, high) => ticks(low, high).filter((v) => high - low < 2 || Number.isInteger(v)).map((v) => 10 ** v);
const tickText = (v) => Math.abs(v) >= 1e4 ? large(Math.abs(v)).replace(/^/, v < 0 ? "−" : "") : v !== 0 && Math.abs(v) < 1e-3 ? v.toExponential(0) : String(Number(v.toPrecision(4)));

/** Frame of a chart: {width, height, x(value), y(value), parts}. */
function frame({ x, y, xLabel, yLabel, width = 460, height = 190, logX = false, logY = false }) {
  const left = 48, right = 10, top = 18, bottom = 32;
  const fx = logX ? Math.log10 : (v) => v, fy = logY ? Math.log10 : (v) => v;
  const [x0, x1] = x.map(fx), [y0, y1] = y.map(fy);
  const at = { x: (v) => left + (fx(v) - x0) / (x1 - x0 || 1) * (width - left - right), y: (v) => height - bottom - (fy(v) - y0) / (y1 - y0 || 1) * (height - top - bottom) };
  const parts = [];
  for (const v of logY ? decades(y0, y1) : ticks(y0, y1)) parts.push(h("line", { class: "grid", x1: left, x2: width - right, y1: at.y(v), y2: at.y(v) }), h("text", { x: left - 6, y: at.y(v) + 4, "text-anchor": "end" }, tickText(v)));
  const marks = logX ? decades(x0, x1) : ticks(x0, x1, 5);
  for (const v of marks) parts.push(h("text", { x: at.x(v), y: height - bottom + 14, "text-anchor": "middle" }, tickText(v)));
  parts.push(h("path", { class: "axis", d: `M${left} ${height - bottom}H${width - right}` }),
    h("text", { x: width - right, y: height - 3, "text-anchor": "end" }, xLabel), h("text", { x: left, y: 10 }, yLabel));
  return { width, height, left, right, bottom, top, at, parts };
}

function widened(low, high, part = 0.06) {
  const span = high - low || Math.abs(high) || 1;
  return [low - span * part, high + span * part];
}

/** Chart of lines [{name, x, y}] with gaps where y is null. */
function lineChart(title, curves, xLabel, yLabel) {
  const xs = curves.flatMap((curve) => curve.x), ys = curves.flatMap((curve) => curve.y).filter((v) => v !== null);
  if (!ys.length) return null;
  const logY = curves.length > 1 && Math.min(...ys) > 0 && Math.max(...ys) / Math.min(...ys) > 100;
  const made = frame({ x: [Math.min(...xs), Math.max(...xs)], y: logY ? [Math.min(...ys) / 1.3, Math.max(...ys) * 1.3] : widened(Math.min(...ys), Math.max(...ys)), xLabel, yLabel, logY });
  const colors = palette();
  const drawn = curves.map((curve, k) => {
    const stroke = colors[k % colors.length];
    let d = "", pen = "M";
    curve.y.forEach((v, i) => { if (v === null) pen = "M"; else { d += pen + made.at.x(curve.x[i]).toFixed(1) + " " + made.at.y(v).toFixed(1); pen = "L"; } });
    const points = curve.x.length <= 60 ? curve.y.map((v, i) => v === null ? null : h("circle", { cx: made.at.x(curve.x[i]), cy: made.at.y(v), r: 2.2, fill: stroke }, h("title", null, `${printable(curve.name)}: ${number(v)} at ${number(curve.x[i])}`))) : [];
    return h("g", null, h("path", { d, fill: "none", stroke, "stroke-width": 1.6, "stroke-linejoin": "round" }, h("title", null, printable(curve.name))), points);
  });
  const names = curves.length > 1 ? h("div", { class: "legend" }, curves.slice(0, 8).map((curve, k) => h("span", null,
    h("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { y: 3, width: 10, height: 4, fill: colors[k % colors.length] })), printable(curve.name))), curves.length > 8 ? h("span", null, `and ${curves.length - 8} more`) : null) : null;
  const last = curves.map((curve) => `${curve.name} ends at ${number(curve.y.filter((v) => v !== null).at(-1))}`).slice(0, 4).join(", ");
  return h("figure", null, h("figcaption", null, title), h("svg", { viewBox: `0 0 ${made.width} ${made.height}`, role: "img", "aria-label": printable(`${title}: ${last}`) }, made.parts, drawn), names);
}

/** Attempts as points, those that no other beats joined by a line. */
function frontChart(front) {
  const points = front.points, xs = points.map((p) => p.x), ys = points.map((p) => p.y);
  const logX = Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 50;
  const xr = logX ? [Math.min(...xs) / 1.2, Math.max(...xs) * 1.2] : widened(Math.min(...xs), Math.max(...xs));
  const made = frame({ x: xr, y: widened(Math.min(...ys), Math.max(...ys), 0.12), xLabel: front.x_label, yLabel: front.y_label, logX, width: 720, height: 260 });
  const best = points.filter((p) => p.front).sort((a, b) => a.x - b.x), [blue, orange] = palette();
  const path = best.map((p, k) => (k ? "L" : "M") + made.at.x(p.x).toFixed(1) + " " + made.at.y(p.y).toFixed(1)).join("");
  const dots = points.map((p) => h("circle", { cx: made.at.x(p.x), cy: made.at.y(p.y), r: p.chosen ? 6 : 4, fill: p.chosen ? orange : p.front ? blue : "none", stroke: p.chosen ? orange : blue, "stroke-width": 1.4 },
    h("title", null, printable(`${p.name}: ${front.x_label} ${number(p.x)}, ${front.y_label} ${number(p.y)}`))));
  const few = points.length <= 12 ? points.map((p) => h("text", { x: Math.min(made.at.x(p.x) + 8, made.width - 90), y: made.at.y(p.y) - 7 }, printable(p.name).slice(0, 26))) : [];
  return h("figure", null, h("figcaption", null, front.title), h("svg", { viewBox: `0 0 ${made.width} ${made.height}`, role: "img", "aria-label": printable(`${front.title}: ${points.length} points, ${best.length} on the front`) }, made.parts, h("path", { d: path, fill: "none", stroke: blue, "stroke-width": 1.4 }), dots, few),
    h("div", { class: "legend" }, h("span", null, "filled: no other is better in both"), points.some((p) => p.chosen) ? h("span", null, "large: the result") : null));
}

/** Histogram of values with the clip range of the grid; `before` is drawn as an outline. */
function histogram(quantizer) {
  const now = quantizer.now, v = now.values, b = quantizer.before && quantizer.before.values;
  const low = Math.min(v.low, b ? b.low : v.low, now.clip_low > v.low - (v.high - v.low) ? now.clip_low : v.low);
  const high = Math.max(v.high, b ? b.high : v.high, now.clip_high < v.high + (v.high - v.low) ? now.clip_high : v.high);
  const made = frame({ x: widened(low, high, 0.02), y: [0, 1.05], xLabel: "value", yLabel: "share of values, square root", width: 380, height: 170 });
  made.parts = made.parts.filter((part) => part.getAttribute("text-anchor") !== "end" || part.textContent === "value");
  const tops = (values) => { const most = Math.max(...values.counts); return values.counts.map((c) => Math.sqrt(c / most)); };
  const base = made.at.y(0), step = (values) => (values.high - values.low) / values.counts.length || (high - low) / 64;
  const bars = tops(v).map((top, i) => {
    if (!top) return null;
    const x0 = v.low + i * step(v), middle = x0 + step(v) / 2;
    return h("rect", { class: middle < now.clip_low || middle > now.clip_high ? "out" : "now", x: made.at.x(x0), width: Math.max(0.6, made.at.x(x0 + step(v)) - made.at.x(x0) - 0.4), y: made.at.y(top), height: base - made.at.y(top) });
  });
  const outline = b ? h("path", { class: "was", d: tops(b).map((top, i) => `${i ? "L" : "M"}${made.at.x(b.low + i * step(b)).toFixed(1)} ${made.at.y(top).toFixed(1)}H${made.at.x(b.low + (i + 1) * step(b)).toFixed(1)}`).join("") }) : null;
  const clip = [now.clip_low, now.clip_high].filter((c) => c >= low && c <= high).map((c) => h("line", { class: "clip", x1: made.at.x(c), x2: made.at.x(c), y1: made.top, y2: base }, h("title", null, "end of the grid: " + number(c))));
  return h("svg", { viewBox: `0 0 ${made.width} ${made.height}`, role: "img", "aria-label": `Histogram of ${count(v.values)} values from ${number(v.low)} to ${number(v.high)}; the grid reaches from ${number(now.clip_low)} to ${number(now.clip_high)}` }, made.parts, bars, outline, clip);
}

/** Histogram of codes; the first and the last hold what saturates. */
function codeBars(values) {
  const most = Math.max(1, ...values.code_counts), wide = 380 / values.code_counts.length;
  const bars = values.code_counts.map((c, i) => h("rect", { class: "now", x: i * wide, width: Math.max(0.5, wide - (wide > 3 ? 1 : 0.3)), y: 60 - 60 * Math.sqrt(c / most), height: 60 * Math.sqrt(c / most) },
    h("title", null, `code ${values.first_code + i * values.codes_per_bin}${values.codes_per_bin > 1 ? " to " + (values.first_code + (i + 1) * values.codes_per_bin - 1) : ""}: ${count(c)}`)));
  const end = values.first_code + (values.codes || 1) - 1;
  return h("svg", { viewBox: "0 0 380 76", role: "img", "aria-label": `Histogram of codes ${values.first_code} to ${end}` }, bars,
    h("path", { class: "axis", d: "M0 60H380" }), h("text", { x: 0, y: 73 }, values.first_code), h("text", { x: 380, y: 73, "text-anchor": "end" }, end));
}

/** One bar per channel's scale; the line is that of before training. */
function channelBars(now, before) {
  const most = Math.max(...now.scale, ...(before ? before.scale : [])), wide = 380 / now.scale.length;
  const bars = now.scale.map((s, i) => h("rect", { class: "now", x: i * wide, width: Math.max(0.3, wide - (wide > 3 ? 1 : 0)), y: 60 - 60 * s / most, height: Math.max(0, 60 * s / most) }, h("title", null, `${i}: ${number(s)}`)));
  const line = before && before.scale.length === now.scale.length ? h("path", { class: "was", d: before.scale.map((s, i) => `${i ? "L" : "M"}${(i * wide).toFixed(1)} ${(60 - 60 * s / most).toFixed(1)}h${wide.toFixed(2)}`).join("") }) : null;
  return h("svg", { viewBox: "0 0 380 62", role: "img", "aria-label": `Scales of ${now.scale.length} channels, from ${number(now.scale_low)} to ${number(now.scale_high)}` }, bars, line, h("path", { class: "axis", d: "M0 60.5H380" }));
}

function meter(part, cost) {
  return h("svg", { class: "cell", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, h("rect", { class: "track", width: 100, height: 10, rx: 2 }), h("rect", { class: cost ? "fill cost" : "fill", width: Math.max(0, Math.min(100, 100 * part)), height: 10, rx: 2 }));
}
