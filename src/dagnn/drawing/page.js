"use strict";
// Draws the data of this page. Names are only ever set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const count = data.names.length, MOST_AT_ONCE = 400, ROW = 24, LETTER = 6.4, BOX = 18, LISTED = 40;
const SIGNED = ["#0067ac", "#8fbfe0", "#f4f4f2", "#f0a878", "#c94f00"];
const AMOUNTS = ["#f7f3e8", "#f3c98b", "#e2863c", "#a8420d", "#5c1d04"];
// Of edges: the middle must show on white paper and on black.
const SIGNED_LINES = ["#0067ac", "#6aa0c8", "#a9adb1", "#dc8f58", "#c94f00"];
const AMOUNTS_LINES = ["#b3aea4", "#d9a766", "#d9853f", "#b04a12", "#8a3308"];
const isOutput = new Set(data.outputs), isInput = new Set(data.inputs);
const into = Array.from({ length: count }, () => []), outOf = Array.from({ length: count }, () => []);
data.source.forEach((u, e) => { outOf[u].push(e); into[data.target[e]].push(e); });
const state = { chosen: -1, centre: -1, reach: 60, nodeColumn: "", edgeColumn: "", view: null, shown: [], place: new Map() };
const svg = byId("graph"), NS = "http://www.w3.org/2000/svg";

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children.map((child) => (typeof child === "number" ? String(child) : child)));
  return element;
}
function shape(tag, attributes, parent) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}
const amount = (value) => (value === null || value === undefined ? null : Number(value));
function written(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  return Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(4));
}
const cut = (name, letters) => { const all = Array.from(name); return all.length <= letters ? name : all.slice(0, letters - 1).join("") + "…"; };
const size = (value) => { const number = Math.abs(amount(value) ?? 0); return Number.isNaN(number) ? 0 : number; };

// ---- colours ----

function scaleOf(values, signed, amounts) {
  if (!values) return null;
  let high = 0, below = false;
  for (const value of values) if (typeof value === "number") { high = Math.max(high, Math.abs(value)); below = below || value < 0; }
  return { high: high || 1, below, colours: below ? signed : amounts };
}
function colourOf(scale, value) {
  const share = Math.max(-1, Math.min(1, amount(value) / scale.high));
  const place = (scale.below ? (share + 1) / 2 : share) * (scale.colours.length - 1);
  const low = Math.min(Math.floor(place), scale.colours.length - 2), part = place - low;
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  return [0, 1, 2].map((i) => Math.round(channel(scale.colours[low], i) * (1 - part) + channel(scale.colours[low + 1], i) * part));
}
const rgb = (colour) => `rgb(${colour.join(" ")})`;
const dark = (colour) => 0.2126 * (colour[0] / 255) ** 2.2 + 0.7152 * (colour[1] / 255) ** 2.2 + 0.0722 * (colour[2] / 255) ** 2.2 < 0.36;

// ---- what is shown, and where ----

const edgeSize = (e) => { const values = data.edges[state.edgeColumn]; return values ? size(values[e]) : 1; };

/** The nodes around one, nearest first, and of those the ends of the strongest edges first. */
function around(centre, most) {
  const found = new Set([centre]);
  let ring = [centre];
  while (ring.length && found.size < most) {
    const next = [];
    for (const node of ring) {
      const edges = [...into[node], ...outOf[node]].sort((a, b) => edgeSize(b) - edgeSize(a) || a - b);
      for (const e of edges) {
        const other = data.source[e] === node ? data.target[e] : data.source[e];
        if (found.size < most && !found.has(other)) { found.add(other); next.push(other); }
      }
    }
    ring = next;
  }
  return [...found].sort((a, b) => a - b);
}
function layOut(nodes) {
  const here = new Set(nodes), levels = [...new Set(nodes.map((v) => data.levels[v]))].sort((a, b) => a - b);
  const column = new Map(levels.map((level, i) => [level, i]));
  const rows = levels.map(() => []);
  for (const v of nodes) rows[column.get(data.levels[v])].push(v);
  const parents = new Map(), children = new Map(), edges = [];
  for (const v of nodes) {
    parents.set(v, into[v].map((e) => data.source[e]).filter((u) => here.has(u)));
    children.set(v, outOf[v].map((e) => data.target[e]).filter((u) => here.has(u)));
    edges.push(...into[v].filter((e) => here.has(data.source[e])));
  }
  // Barycentres, up and down: a row is sorted by the mean place of its neighbours, then placed as near to them as it fits.
  const y = new Map();
  rows.forEach((row) => row.forEach((v, i) => y.set(v, (i - (row.length - 1) / 2) * ROW)));
  for (let sweep = 0; sweep < 14; sweep++) {
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const near = sweep === 13 ? (v) => [...parents.get(v), ...children.get(v)] : sweep % 2 ? (v) => children.get(v) : (v) => parents.get(v);
      const wanted = new Map(row.map((v) => { const all = near(v); return [v, all.length ? all.reduce((sum, u) => sum + y.get(u), 0) / all.length : y.get(v)]; }));
      row.sort((a, b) => wanted.get(a) - wanted.get(b) || a - b);
      const blocks = [];  // isotonic regression: the least squares that keep the order and the gaps
      row.forEach((v, i) => {
        let mean = wanted.get(v) - i * ROW, length = 1;
        while (blocks.length && blocks.at(-1)[0] > mean) { const [m, n] = blocks.pop(); mean = (mean * length + m * n) / (length + n); length += n; }
        blocks.push([mean, length]);
      });
      let i = 0;
      for (const [mean, length] of blocks) for (let k = 0; k < length; k++, i++) y.set(row[i], mean + i * ROW);
    }
  }
  let x = 0;
  const place = new Map();
  for (const row of rows) {
    const width = Math.max(...row.map((v) => Array.from(cut(data.names[v], letters())).length)) * LETTER + 16;
    for (const v of row) place.set(v, { x, y: y.get(v), width });
    x += width + (narrow() ? 30 : 70 + Math.min(130, 12 * Math.sqrt(edges.length)));
  }
  return { place, edges, rows };
}
function show() {
  const whole = count <= MOST_AT_ONCE && state.reach === 0;
  state.shown = count === 0 ? [] : whole ? data.names.map((_, v) => v) : around(state.centre, state.reach || 60);
  const found = layOut(state.shown);
  Object.assign(state, { place: found.place, edges: found.edges, rows: found.rows });
  stretch();
  paint();
  fit();
}
const narrow = () => svg.getBoundingClientRect().width < 560;
const letters = () => (narrow() ? 15 : 26);
/** Where the picture is flatter than the window, rows move apart. */
function stretch() {
  const box = svg.getBoundingClientRect(), places = [...state.place.values()];
  if (!places.length) return;
  const right = Math.max(...places.map((p) => p.x + p.width)), ys = places.map((p) => p.y);
  const high = Math.max(...ys) - Math.min(...ys) + 2 * BOX, k = Math.min(1.6, (box.width - 24) / right);
  const factor = Math.max(1, Math.min(2.5, ((box.height - 16) / k / high) * 0.9));
  for (const place of places) place.y *= factor;
}
function paint() {
  svg.replaceChildren();
  const plane = shape("g", { id: "plane" }, svg), lines = shape("g", {}, plane), boxes = shape("g", {}, plane);
  const nodeValues = data.nodes[state.nodeColumn], edgeValues = data.edges[state.edgeColumn];
  const nodeScale = scaleOf(nodeValues, SIGNED, AMOUNTS), edgeScale = scaleOf(edgeValues, SIGNED_LINES, AMOUNTS_LINES);
  const near = new Set([state.chosen]);
  if (state.chosen >= 0) for (const e of [...into[state.chosen], ...outOf[state.chosen]]) near.add(data.source[e]).add(data.target[e]);
  const isFar = (...nodes) => state.chosen >= 0 && state.place.has(state.chosen) && !nodes.includes(state.chosen);
  for (const e of [...state.edges].sort((a, b) => edgeSize(a) - edgeSize(b))) {
    const a = state.place.get(data.source[e]), b = state.place.get(data.target[e]), x = a.x + a.width, middle = (x + b.x) / 2;
    const value = edgeValues ? edgeValues[e] : null, has = edgeScale && value !== null;
    const line = shape("path", {
      class: "edge" + (isFar(data.source[e], data.target[e]) ? " faded" : ""),
      d: `M${x},${a.y}C${middle},${a.y} ${middle},${b.y} ${b.x},${b.y}`,
      style: `stroke:${has ? rgb(colourOf(edgeScale, value)) : "var(--line)"}`,
      "stroke-width": has ? 0.7 + (2.6 * Math.min(size(value), edgeScale.high)) / edgeScale.high : 1,
    }, lines);
    if (has && amount(value) < 0) line.setAttribute("stroke-dasharray", "5 3");
    shape("title", {}, line).textContent = `${data.names[data.source[e]]} → ${data.names[data.target[e]]}` +
      (edgeValues ? `: ${written(value)}` : "");
  }
  for (const v of state.shown) {
    const { x, y, width } = state.place.get(v), value = nodeValues ? nodeValues[v] : null;
    const kind = (isOutput.has(v) ? " output" : "") + (v === state.chosen ? " chosen" : "") + (state.chosen >= 0 && state.place.has(state.chosen) && !near.has(v) ? " faded" : "");
    const group = shape("g", { class: "node" + kind, "data-node": v, transform: `translate(${x} ${y})` }, boxes);
    const colour = nodeScale && value !== null ? colourOf(nodeScale, value) : null;
    const face = colour ? rgb(colour) : nodeScale ? "var(--paper)" : "var(--plain)";
    shape("rect", { y: -BOX / 2, width, height: BOX, rx: 5, style: `fill:${face}` }, group);
    const ink = colour ? (dark(colour) ? "#fff" : "#10161d") : "var(--ink)";
    const text = shape("text", { x: width / 2, y: 4, "text-anchor": "middle", style: `fill:${ink}` }, group);
    text.textContent = cut(data.names[v], letters());
    shape("title", {}, group).textContent = data.names[v] + (nodeValues ? `: ${written(value)}` : "");
  }
  byId("legend").replaceChildren(
    ...[["Nodes", state.nodeColumn, nodeScale], ["Edges", state.edgeColumn, edgeScale]].filter((each) => each[2]).map(([what, name, scale]) => {
      const bar = make("i"); bar.style.background = `linear-gradient(to right, ${scale.colours.join(",")})`;
      return make("span", {}, `${what}: ${name} ${written(scale.below ? -scale.high : 0)}`, bar, written(scale.high));
    }), make("span", {}, "Thick border: output" + (edgeScale && edgeScale.below ? "; dashed: negative" : "")));
  const hidden = count - state.shown.length;
  byId("status").textContent = [hidden ? `${state.shown.length.toLocaleString("en")} nodes near “${data.names[state.centre]}”; ${hidden.toLocaleString("en")} of ${count.toLocaleString("en")} are not shown.` : "", ...data.notes].filter(Boolean).join(" ");
  if (state.view) move();
}

// ---- zoom and pan ----

function move() { byId("plane").setAttribute("transform", `translate(${state.view.x} ${state.view.y}) scale(${state.view.k})`); }
function fit() {
  const box = svg.getBoundingClientRect(), places = [...state.place.values()];
  if (!places.length) { state.view = { x: 0, y: 0, k: 1 }; move(); return; }
  const left = Math.min(...places.map((p) => p.x)), right = Math.max(...places.map((p) => p.x + p.width));
  const top = Math.min(...places.map((p) => p.y)) - BOX, bottom = Math.max(...places.map((p) => p.y)) + BOX;
  const k = Math.min(1.6, (box.width - 24) / (right - left), (box.height - 16) / (bottom - top));
  state.view = { k, x: (box.width - k * (left + right)) / 2, y: (box.height - k * (top + bottom)) / 2 };
  move();
}
function zoom(factor, x, y) {
  const box = svg.getBoundingClientRect(), view = state.view, k = Math.max(0.02, Math.min(8, view.k * factor));
  const px = x === undefined ? box.width / 2 : x - box.left, py = y === undefined ? box.height / 2 : y - box.top;
  state.view = { k, x: px - ((px - view.x) * k) / view.k, y: py - ((py - view.y) * k) / view.k };
  move();
}
/** Move a node into sight where it is out of it. */
function reveal(node) {
  const place = state.place.get(node), box = svg.getBoundingClientRect(), view = state.view;
  if (!place) return;
  if (view.k < 0.55) { view.k = 0.9; view.x = box.width / 2 - view.k * (place.x + place.width / 2); view.y = box.height / 2 - view.k * place.y; }
  const x = view.x + view.k * (place.x + place.width / 2), y = view.y + view.k * place.y;
  if (x < 60 || x > box.width - 60) view.x += box.width / 2 - x;
  if (y < 30 || y > box.height - 30) view.y += box.height / 2 - y;
  move();
}
svg.addEventListener("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY * 0.0015), event.clientX, event.clientY); }, { passive: false });
const pointers = new Map();
let travelled = 0;
svg.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event); travelled = 0; });
svg.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (!before) return;
  if (pointers.size === 2) {
    const [other] = [...pointers.values()].filter((each) => each.pointerId !== event.pointerId);
    const length = (a) => Math.hypot(a.clientX - other.clientX, a.clientY - other.clientY) || 1;
    zoom(length(event) / length(before), (event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2);
  } else {
    state.view.x += event.clientX - before.clientX; state.view.y += event.clientY - before.clientY;
    move();
  }
  travelled += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
  if (travelled > 4) { svg.classList.add("dragged"); if (!svg.hasPointerCapture(event.pointerId)) svg.setPointerCapture(event.pointerId); }
  pointers.set(event.pointerId, event);
});
for (const kind of ["pointerup", "pointercancel"]) svg.addEventListener(kind, (event) => { pointers.delete(event.pointerId); svg.classList.remove("dragged"); });
svg.addEventListener("click", (event) => {
  if (travelled > 4) return;
  const node = event.target.closest(".node");
  choose(node ? Number(node.dataset.node) : -1);
});
svg.addEventListener("dblclick", (event) => {
  const node = event.target.closest(".node");
  if (node) { state.centre = Number(node.dataset.node); if (state.reach) show(); }
});

// ---- the panel ----

function choose(node) {
  state.chosen = node;
  if (node >= 0 && !state.place.has(node)) { state.centre = node; show(); } else paint();
  if (node >= 0) reveal(node);
  describe();
}
const strongest = () => data.names.map((_, v) => v).sort((a, b) => data.strength[b] - data.strength[a] || a - b).slice(0, 25);
const link = (v) => make("button", { type: "button", "data-to": v, onclick: () => choose(v) }, data.names[v] || "(empty name)");
function table(columns, rows) {
  return make("table", {}, make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))))));
}
function edgesTable(title, edges, otherEnd) {
  const columns = Object.keys(data.edges), sorted = [...edges].sort((a, b) => edgeSize(b) - edgeSize(a) || a - b);
  const row = (e) => [link(otherEnd[e]), ...columns.map((name) => written(data.edges[name][e]))];
  const parts = [make("h3", {}, `${title} (${edges.length.toLocaleString("en")})`)];
  if (edges.length) {
    const shown = table(["node", ...columns], sorted.slice(0, LISTED).map(row));
    parts.push(shown);
    if (sorted.length > LISTED) {
      const more = make("button", { class: "more", type: "button" }, `Show all ${sorted.length.toLocaleString("en")}`);
      more.addEventListener("click", () => { shown.replaceWith(table(["node", ...columns], sorted.map(row))); more.remove(); });
      parts.push(more);
    }
  }
  return parts;
}
function describe() {
  const panel = byId("panel"), node = state.chosen, columns = Object.keys(data.nodes);
  panel.scrollTop = 0;
  if (node < 0) {
    panel.replaceChildren(make("h2", {}, count ? "Most important nodes" : "The graph has no nodes"),
      ...(count ? [make("p", {}, columns.length ? `By the absolute value of “${columns[0]}”. Choose a node for its edges.` : "By the sum over their edges. Choose a node for its edges."),
        table(["node", ...columns], strongest().map((v) => [link(v), ...columns.map((name) => written(data.nodes[name][v]))]))] : []));
    return;
  }
  const facts = [["level", data.levels[node]], ["kind", isInput.has(node) ? (isOutput.has(node) ? "input, output" : "input") : isOutput.has(node) ? "output" : "inner node"],
    ...Object.entries(data.texts).map(([name, texts]) => [name, texts[node]]), ...columns.map((name) => [name, written(data.nodes[name][node])])];
  const centre = make("button", { type: "button", id: "centre" }, "Show what is around it");
  centre.addEventListener("click", () => { state.centre = node; if (!state.reach) { state.reach = 60; byId("reach").value = "60"; } show(); reveal(node); });
  panel.replaceChildren(make("h2", {}, data.names[node] || "(empty name)"), make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
    centre, ...edgesTable("Edges in", into[node], data.source), ...edgesTable("Edges out", outOf[node], data.target));
}

// ---- search, keys, theme ----

const search = byId("search"), matches = byId("matches");
let found = [], marked = 0;
function look() {
  const words = search.value.trim().toLowerCase();
  found = [];
  if (words) {
    const rank = (name) => (name === words ? 0 : name.startsWith(words) ? 1 : 2);
    const others = data.texts.name;  // where labels are shown in place of names, both are searched
    data.names.forEach((name, v) => {
      const texts = [name, ...(others && others[v] !== name ? [others[v]] : [])].map((text) => text.toLowerCase()).filter((text) => text.includes(words));
      if (texts.length) found.push([Math.min(...texts.map(rank)), v]);
    });
    found.sort((a, b) => a[0] - b[0] || data.strength[b[1]] - data.strength[a[1]] || a[1] - b[1]);
  }
  const total = found.length;
  found = found.slice(0, 30).map((each) => each[1]);
  marked = 0;
  matches.replaceChildren(...found.map((v, i) => {
    const item = make("li", { role: "option", id: `match-${i}`, "aria-selected": String(i === 0) }, data.names[v]);
    item.addEventListener("pointerdown", (event) => { event.preventDefault(); take(v); });
    return item;
  }), ...(words && !total ? [make("li", { class: "none" }, "No node has this in its name")] : []),
  ...(total > found.length ? [make("li", { class: "none" }, `${(total - found.length).toLocaleString("en")} more: type on`)] : []));
  matches.hidden = !words;
  search.setAttribute("aria-expanded", String(!!words));
  search.setAttribute("aria-activedescendant", found.length ? "match-0" : "");
}
function take(node) { matches.hidden = true; search.setAttribute("aria-expanded", "false"); search.value = data.names[node]; choose(node); svg.focus({ preventScroll: true }); }
search.addEventListener("input", look);
search.addEventListener("blur", () => { matches.hidden = true; });
search.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { search.value = ""; look(); svg.focus(); }
  else if (event.key === "Enter" && found.length) take(found[marked]);
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
    event.preventDefault();
    marked = (marked + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
    found.forEach((_, i) => matches.children[i].setAttribute("aria-selected", String(i === marked)));
    matches.children[marked].scrollIntoView({ block: "nearest" });
    search.setAttribute("aria-activedescendant", `match-${marked}`);
  }
});
function step(key) {
  if (!state.shown.length) return;
  if (state.chosen < 0) { choose(state.place.has(state.centre) ? state.centre : state.shown[0]); return; }
  const node = state.chosen, row = state.rows.find((each) => each.includes(node)) || [], at = row.indexOf(node);
  if (key === "ArrowUp" && at > 0) choose(row[at - 1]);
  if (key === "ArrowDown" && at >= 0 && at < row.length - 1) choose(row[at + 1]);
  const ways = { ArrowLeft: [into[node], data.source], ArrowRight: [outOf[node], data.target] }[key];
  if (ways && ways[0].length) choose(ways[1][[...ways[0]].sort((a, b) => edgeSize(b) - edgeSize(a) || a - b)[0]]);
}
svg.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key.startsWith("Arrow")) { event.preventDefault(); step(event.key); }
  else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") fit();
  else if (event.key === "Escape") choose(-1);
  else if (event.key === "Enter" && state.chosen >= 0) { state.centre = state.chosen; if (state.reach) show(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "/" && !event.target.closest("input, select")) { event.preventDefault(); search.focus(); } });
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (isDark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

// ---- begin ----

document.title = data.title;
byId("title").textContent = data.title;
byId("counts").textContent = `${count.toLocaleString("en")} nodes, ${data.source.length.toLocaleString("en")} edges, ${(Math.max(-1, ...new Set(data.levels)) + 1).toLocaleString("en")} levels`;
for (const [id, columns, key] of [["node-column", data.nodes, "nodeColumn"], ["edge-column", data.edges, "edgeColumn"]]) {
  const names = Object.keys(columns), list = byId(id);
  list.append(...names.map((name) => make("option", { value: name }, name)), make("option", { value: "" }, "no colour"));
  state[key] = names.length ? names[0] : "";
  list.value = state[key];
  if (!names.length) list.parentElement.hidden = true;
  list.addEventListener("change", () => { state[key] = list.value; paint(); describe(); });
}
const reach = byId("reach");
if (count <= MOST_AT_ONCE) reach.append(make("option", { value: "0" }, "all nodes"));
for (const most of [20, 60, 150, 400]) if (most < count) reach.append(make("option", { value: String(most) }, `${most} nearest`));
byId("reach-box").hidden = reach.options.length < 2;
state.reach = count <= MOST_AT_ONCE ? 0 : 60;
reach.value = String(state.reach);
reach.addEventListener("change", () => { state.reach = Number(reach.value); if (state.chosen >= 0) state.centre = state.chosen; show(); });
for (const [id, act] of [["in", () => zoom(1.25)], ["out", () => zoom(0.8)], ["fit", fit]]) byId(id).addEventListener("click", act);
state.centre = count ? strongest()[0] : -1;
show();
describe();
let width = svg.getBoundingClientRect().width;
addEventListener("resize", () => { if (svg.getBoundingClientRect().width !== width) { width = svg.getBoundingClientRect().width; show(); } });
