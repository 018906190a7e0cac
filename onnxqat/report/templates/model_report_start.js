// Search, theme, address; then all parts in the order of the page.

function buildSearch() {
  const box = document.getElementById("search"), list = document.getElementById("found");
  const names = [...nodes.map((node) => ["node", node.i, node.name, node.op]), ...quantizers.map((q) => ["quantizer", q.i, q.tensor, q.role + ", " + q.grid])];
  let hits = [], at = -1;
  const close = () => { list.hidden = true; box.setAttribute("aria-expanded", "false"); box.removeAttribute("aria-activedescendant"); };
  const choose = (hit) => { close(); box.blur(); select(hit[0], hit[1], "search"); };
  const mark = (k) => {
    at = k;
    [...list.children].forEach((item, j) => item.setAttribute("aria-selected", String(j === k)));
    if (k >= 0) { box.setAttribute("aria-activedescendant", "found-" + k); list.children[k].scrollIntoView({ block: "nearest" }); }
  };
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    hits = words.length ? names.filter(([, , name, more]) => words.every((word) => (name + " " + more).toLowerCase().includes(word))).slice(0, 30) : [];
    list.replaceChildren(...hits.map((hit, k) => h("li", { id: "found-" + k, role: "option", "aria-selected": "false", on: { mousedown: (event) => { event.preventDefault(); choose(hit); } } }, printable(hit[2]), h("span", { class: "dim" }, " " + hit[3]))));
    list.hidden = !hits.length;
    box.setAttribute("aria-expanded", String(hits.length > 0));
    if (words.length) say(hits.length ? plural(hits.length, "result", "results") : "No result");
    mark(hits.length ? 0 : -1);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && hits.length) { event.preventDefault(); mark((at + 1) % hits.length); }
    else if (event.key === "ArrowUp" && hits.length) { event.preventDefault(); mark((at + hits.length - 1) % hits.length); }
    else if (event.key === "Enter" && hits[at]) choose(hits[at]);
    else if (event.key === "Escape") close();
  });
  box.addEventListener("blur", close);
  document.addEventListener("keydown", (event) => { if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); box.focus(); } });
}

function buildTheme() {
  const button = document.getElementById("theme");
  button.addEventListener("click", () => { theme = (theme + 1) % themes.length; button.textContent = "Theme: " + themes[theme]; applyTheme(); });
  systemDark.addEventListener("change", () => applyTheme());
  document.getElementById("print").addEventListener("click", () => window.print());
  window.addEventListener("beforeprint", () => applyTheme("light"));
  window.addEventListener("afterprint", () => applyTheme());
}

function fromAddress() {
  const found = /^#(node|quantizer)=(\d+)$/.exec(location.hash);
  const many = found && (found[1] === "node" ? nodes : quantizers);
  if (found && Number(found[2]) < many.length) select(found[1], Number(found[2]), "address");
}

function follows() {
  const links = new Map([...document.querySelectorAll("#sections a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting) links.forEach((link, id) => { if (id === entry.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current"); });
  }), { rootMargin: "-20% 0px -70% 0px" });
  document.querySelectorAll("main section").forEach((each) => seen.observe(each));
}

applyTheme();
listSection("overview", "Overview");
buildOverview();
buildGraph();
buildSensitivity();
buildQuantizers();
buildNodes();
buildVariants();
buildTargets();
buildFronts();
buildTraining();
buildDetail();
buildSearch();
buildTheme();
follows();
fromAddress();
window.addEventListener("hashchange", fromAddress);
// Charts have colours of the theme in them: they are drawn anew with it.
redraws.push(() => {
  for (const [id, build] of [["front", buildFronts], ["training", buildTraining]]) {
    const old = document.getElementById(id);
    if (!old) continue;
    old.id = "";
    build();
    const made = document.getElementById(id);
    old.replaceWith(made);
    document.querySelector(`#sections li:last-child`).remove();
  }
});
document.querySelectorAll("#search, #theme, #print").forEach((each) => each.removeAttribute("disabled"));
document.documentElement.dataset.ready = String(Math.round(performance.now()));
