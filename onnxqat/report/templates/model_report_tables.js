// Tables: sort, filter, copy; long ones show their first rows and more on demand.

const PAGE = 60;

/**
 * Make a table. `columns` are {key, title, of(row), show(row), number, bar}; `pick` names the kind of the selection.
 * The filter takes words, and conditions such as `saturated>1%` or `own<20` on a column's key.
 */
function table(name, rows, columns, pick, hint) {
  const state = { by: null, down: false, filter: "", shown: PAGE, rows };
  const body = h("tbody"), more = h("div", { class: "more", hidden: true }), status = h("span", { class: "dim", role: "status" });
  const heads = columns.map((column, k) => h("th", { scope: "col", class: column.number ? "number" : false, "aria-sort": "none" },
    h("button", { type: "button", title: "Sort by " + column.title, on: { click: () => sortBy(k) } }, column.title)));
  const text = (row) => (row.search ||= columns.map((column) => String(column.show(row))).join(" ").toLowerCase());
  const conditions = columns.filter((column) => column.number).map((column) => column.key);
  function refresh() {
    const tests = state.filter.split(/\s+/).filter(Boolean).map((word) => condition(word, columns) || ((row) => text(row).includes(word.toLowerCase())));
    state.rows = rows.filter((row) => tests.every((test) => test(row)));
    if (state.by !== null) {
      const of = columns[state.by].of, sign = state.down ? -1 : 1;
      state.rows.sort((a, b) => compare(of(a), of(b), sign));
    }
    draw();
  }
  function draw() {
    body.replaceChildren(...state.rows.slice(0, state.shown).map(line));
    const rest = state.rows.length - state.shown;
    more.hidden = rest <= 0;
    more.replaceChildren(h("span", null, `${count(Math.min(state.shown, state.rows.length))} of ${count(state.rows.length)} rows`),
      h("button", { type: "button", on: { click: () => { state.shown += 300; draw(); } } }, `Show ${count(Math.min(300, rest))} more`));
    status.textContent = state.filter ? `${count(state.rows.length)} of ${count(rows.length)}` : "";
  }
  function line(row) {
    const made = h("tr", { class: isSelected(pick, row.i) && "chosen" }, columns.map((column) => cell(column, row)));
    made.dataset.i = row.i;
    return made;
  }
  function cell(column, row) {
    const shown = printable(column.show(row));
    const inner = column.pick ? h("button", { type: "button", class: "link", on: { click: () => select(pick, row.i, "table") } }, breakable(shown)) : shown;
    return h("td", { class: column.number ? "number" : column.pick ? "name" : shown.length < 24 ? "short" : "words" }, inner, column.bar && column.bar(row) !== null ? meter(column.bar(row), column.cost) : null);
  }
  function sortBy(k) {
    state.down = state.by === k ? !state.down : Boolean(columns[k].number);
    state.by = k;
    heads.forEach((head, j) => head.setAttribute("aria-sort", j === k ? (state.down ? "descending" : "ascending") : "none"));
    refresh();
    say(`${name} sorted by ${columns[k].title}, ${state.down ? "descending" : "ascending"}`);
  }
  const filter = h("input", { type: "search", "aria-label": `Filter ${name}`, placeholder: hint ? `Words, or ${hint}` : "Filter", title: "Words, and conditions on: " + conditions.join(", "),
    on: { input: (event) => { state.filter = event.target.value; state.shown = PAGE; refresh(); } } });
  const copy = h("button", { type: "button", on: { click: () => copyText([columns.map((c) => c.title), ...state.rows.map((row) => columns.map((c) => c.show(row)))].map((cells) => cells.join("\t")).join("\n"), state.rows.length) } }, "Copy");
  const made = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, h("table", null, h("caption", { class: "hidden" }, name), h("thead", null, h("tr", null, heads)), body), more);
  if (pick) onSelect((from) => {
    body.querySelectorAll("tr.chosen").forEach((each) => each.classList.remove("chosen"));
    if (selection.kind !== pick) return;
    const at = state.rows.findIndex((row) => row.i === selection.i);
    if (at < 0) return;
    if (at >= state.shown && at < 2000) { state.shown = at + 20; draw(); }
    const found = body.querySelector(`tr[data-i="${selection.i}"]`);
    if (!found) return;
    found.classList.add("chosen");
    if (from !== "table") made.scrollTop = Math.max(0, found.offsetTop - made.clientHeight / 3);
  });
  window.addEventListener("beforeprint", () => { state.shown = Math.max(state.shown, 1000); draw(); });
  draw();
  return { made, tools: rows.length > 8 ? [status, filter, copy] : [copy] };
}

/** Let a name break behind its separators, before it breaks within a word. */
function breakable(name) {
  return name.split(/(?<=[/._:])/).flatMap((part) => [part, h("wbr")]).slice(0, -1);
}

function compare(a, b, sign) {
  const missing = (v) => v === null || v === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b); // unknown ones last, whichever way
  return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a === b ? 0 : a < b ? -1 : 1);
}

/** Read `key<number`, with % for hundredths; null for a plain word. */
function condition(word, columns) {
  const found = /^([a-z_]+)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)(%?)$/i.exec(word);
  const column = found && columns.find((each) => each.number && each.key === found[1].toLowerCase());
  if (!column) return null;
  const value = Number(found[3]) / (found[4] ? 100 : 1);
  const tests = { "<": (v) => v < value, ">": (v) => v > value, "<=": (v) => v <= value, ">=": (v) => v >= value, "=": (v) => v === value };
  return (row) => { const own = column.of(row); return own !== null && own !== undefined && tests[found[2]](own); };
}

function copyText(text, rows) {
  const done = () => say(`Copied ${plural(rows, "row", "rows")}`);
  const byHand = () => {
    const area = h("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    done();
  };
  if (navigator.clipboard && window.isSecureContext) navigator.clipboard.writeText(text).then(done, byHand); else byHand();
}
