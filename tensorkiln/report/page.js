"use strict";
// The page's data is JSON in elements of its own: `data` has the rows of tables and the places of
// the graph, `text-...` what a row shows when it is opened, which is read only then.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const data = read("data");
const MOST_ROWS = 100; // that are shown before more are asked for

function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// -- cells of tables, by the kind of their column --------------------------------------------------

// What a cell is searched and sorted by: a number, a text, or null for what is not known.
const cellText = (kind, cell) =>
  kind === "number" ? cell[0] : kind === "kernel" ? data.kernels[cell]?.[0] ?? "" : cell;
const cellKey = (kind, cell) => (kind === "number" ? cell[1] : cellText(kind, cell));

const collator = new Intl.Collator("en", { numeric: true }); // conv2d_2 before conv2d_10

// The order of two keys; what is not known is last in both directions.
function compare(a, b, direction) {
  const unknown = (key) => key === null || key === "";
  if (unknown(a) || unknown(b)) return unknown(a) - unknown(b);
  return direction * (typeof a === "number" ? a - b : collator.compare(a, b));
}

function makeDot(kernel) {
  return make("span", { class: `dot c${data.kernels[kernel][1]}` });
}

function makeCell(kind, cell, row) {
  const text = cellText(kind, cell);
  if (kind === "number") {
    const td = make("td", { class: "n" }, text);
    if (cell.length > 2) {
      const bar = make("i");
      bar.style.width = `${100 * cell[2]}%`;
      td.append(make("span", { class: "bar" }, bar));
    }
    return td;
  }
  if (kind === "names") return make("td", { class: "names", title: text }, make("div", {}, text));
  if (kind === "kernel" && cell !== null) {
    return make("td", {}, makeDot(cell), make("a", { href: `#kernel-${cell}` }, text));
  }
  if (kind === "place" && data.graph) {
    return make("td", {}, make("a", { href: `#graph-${row.number}`, title: "show it in the graph" }, text));
  }
  return make("td", {}, text);
}

// -- what an opened row shows ----------------------------------------------------------------------

function makeDetail(blocks) {
  const inside = make("div");
  let sides = null;
  for (const { place, title, text } of blocks) {
    if (place === "about") inside.append(make("div", { class: "about" }, `${title}: ${text}`));
    if (place === "diff") inside.append(make("pre", { class: "diff", tabindex: 0 }, makeDiff(text)));
    if (place === "open") inside.append(make("h3", {}, title), make("pre", { tabindex: 0 }, text));
    if (place === "folded") {
      const pre = make("pre", { tabindex: 0 }, text);
      inside.append(make("details", {}, make("summary", {}, title), pre));
    }
    if (place === "side") {
      if (!sides) inside.append(sides = make("div", { class: "sides" }));
      sides.append(make("div", {}, make("h3", {}, title), make("pre", { tabindex: 0 }, text)));
    }
  }
  return inside;
}

const DIFF_KINDS = [["+++", "file"], ["---", "file"], ["===", "file"], ["@@ ", "hunk"], ["+", "added"], ["-", "removed"]];

function makeDiff(text) {
  return make("code", {}, ...text.split("\n").map((line) => {
    const kind = DIFF_KINDS.find(([start]) => line.startsWith(start));
    return make("i", kind ? { class: kind[1] } : {}, line);
  }));
}

// -- tables ----------------------------------------------------------------------------------------

class Table {
  constructor(root, name) {
    const told = data.tables[name];
    this.columns = told.columns;
    this.opener = told.opener;
    this.prefix = told.row;
    this.rows = told.rows.map((cells, number) => ({ cells, number, opens: told.opens[number] }));
    this.shown = this.rows;
    this.limit = MOST_ROWS;
    this.input = make("input", { type: "search", placeholder: "Search", "aria-label": `search ${name}` });
    this.count = make("output", { "aria-live": "polite" });
    this.body = make("tbody");
    this.more = make("button", { class: "more" });
    this.heads = this.columns.map(([title, kind], column) => {
      const button = make("button", {}, title), barred = kind === "number" && this.rows[0]?.cells[column].length > 2;
      button.addEventListener("click", () => this.sort(column));
      return make("th", { scope: "col", class: kind === "number" ? "n" : "" }, button, barred ? make("span", { class: "bar" }) : "");
    });
    this.input.addEventListener("input", () => this.search());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { this.input.value = ""; this.search(); }
    });
    this.more.addEventListener("click", () => this.showAll());
    const head = make("thead", {}, make("tr", {}, ...this.heads));
    root.append(
      make("div", { class: "search" }, this.input, this.count),
      make("table", { class: name }, head, this.body),
      this.more,
    );
    this.show();
  }

  // Sorts by a column; by the same column again, in the other direction. Numbers start with the
  // largest, which is what is looked for.
  sort(column) {
    const kind = this.columns[column][1], head = this.heads[column];
    const was = head.getAttribute("aria-sort");
    const descending = was ? was === "ascending" : kind === "number";
    for (const other of this.heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const key = (row) => cellKey(kind, row.cells[column]);
    this.rows.sort((a, b) => compare(key(a), key(b), descending ? -1 : 1) || a.number - b.number);
    this.search();
  }

  // Shows the rows that have every word of the search in some cell.
  search() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.rows.filter((row) => {
      row.words ??= this.columns.map(([, kind], i) => cellText(kind, row.cells[i])).join("\n").toLowerCase();
      return words.every((word) => row.words.includes(word));
    });
    this.show();
  }

  show() {
    const rows = this.shown.slice(0, this.limit);
    this.body.replaceChildren(...rows.flatMap((row) => this.elements(row)));
    const all = this.rows.length.toLocaleString("en"), found = this.shown.length.toLocaleString("en");
    this.count.textContent = found === all ? `${all} rows` : `${found} of ${all} rows`;
    this.more.hidden = rows.length === this.shown.length;
    this.more.textContent = `Show all ${found}`;
  }

  showAll() {
    this.limit = Infinity;
    this.show();
  }

  elements(row) {
    row.element ??= this.makeRow(row);
    return row.detail && row.isOpen ? [row.element, row.detail] : [row.element];
  }

  makeRow(row) {
    const cells = this.columns.map(([, kind], i) =>
      row.opens && i === this.opener ? this.makeOpener(row, kind, row.cells[i]) : makeCell(kind, row.cells[i], row));
    const still = this.opener >= 0 && !row.opens;
    const element = make("tr", { id: `${this.prefix}-${row.number}`, class: row.opens ? "opens" : still ? "still" : "" }, ...cells);
    if (row.opens) {
      element.addEventListener("click", (event) => {
        const isText = !getSelection().isCollapsed && getSelection().containsNode(element, true);
        if (!event.target.closest("a") && !isText) this.open(row, !row.isOpen);
      });
    }
    return element;
  }

  makeOpener(row, kind, cell) {
    const name = cellText(kind, cell);
    row.button = make("button", { class: "opener", "aria-expanded": false }, name);
    if (kind === "kernel") row.button.prepend(makeDot(cell));
    return make("td", {}, row.button);
  }

  open(row, isOpen) {
    row.isOpen = isOpen;
    this.elements(row);
    if (!row.detail) {
      const inside = makeDetail(read(`text-${this.prefix}-${row.number}`));
      const id = `${this.prefix}-${row.number}-detail`;
      row.detail = make("tr", { class: "detail", id }, make("td", { colspan: this.columns.length }, inside));
      row.button.setAttribute("aria-controls", id);
    }
    row.button.setAttribute("aria-expanded", isOpen);
    row.element.classList.toggle("open", isOpen);
    if (isOpen) row.element.after(row.detail);
    else row.detail.remove();
  }

  // Shows a row, whatever is searched for, and opens it.
  reveal(number) {
    const row = this.rows.find((r) => r.number === number);
    if (!row) return;
    if (!this.shown.includes(row)) { this.input.value = ""; this.search(); }
    if (this.shown.indexOf(row) >= this.limit) this.showAll();
    if (row.opens) this.open(row, true);
    row.element.scrollIntoView();
  }
}

const tables = {};

function makeTable(root) {
  const name = root.dataset.table;
  if (!tables[name]) tables[name] = new Table(root, name);
}

for (const root of document.querySelectorAll("[data-table]")) {
  const folded = root.closest("details");
  if (folded) folded.addEventListener("toggle", () => makeTable(root));
  else makeTable(root);
}

// -- the graph -------------------------------------------------------------------------------------

const HIGH = 36; // of a node, in SVG units
const LONGEST_LABEL = 36; // characters
const SMALLEST = 0.06; // scale at which nodes are still seen

class Graph {
  constructor(view) {
    this.view = view;
    this.svg = view.querySelector("svg");
    this.where = view.querySelector(".where");
    this.nodes = data.graph.centres.map(([x, y], i) => {
      const half = data.graph.widths[i] / 2;
      return { i, box: [x - half, y - HIGH / 2, x + half, y + HIGH / 2], make: () => this.makeNode(i) };
    });
    this.edges = data.graph.edges.map((points) => {
      const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
      const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
      return { box, make: () => makeSvg("path", { class: "edge", d: edgePath(points) }) };
    });
    this.below = this.svg.appendChild(makeSvg("g"));
    this.above = this.svg.appendChild(makeSvg("g"));
    this.listen();
    this.top();
  }

  // `x`, `y`: the middle of what is seen. `scale`: pixels of a unit.
  show() {
    const wide = this.view.clientWidth / this.scale, high = this.view.clientHeight / this.scale;
    const box = [this.x - wide / 2, this.y - high / 2, this.x + wide / 2, this.y + high / 2];
    this.svg.setAttribute("viewBox", `${box[0]} ${box[1]} ${wide} ${high}`);
    this.svg.classList.toggle("far", this.scale < 0.3);
    this.where.value = this.y;
    const seen = (part) => part.box[0] < box[2] && part.box[2] > box[0] && part.box[1] < box[3] && part.box[3] > box[1];
    for (const [group, parts] of [[this.below, this.edges], [this.above, this.nodes]]) {
      for (const part of parts) {
        if (!seen(part)) part.element?.remove();
        else if (!part.element?.parentNode) group.append(part.element ??= part.make());
      }
    }
  }

  get whole() {
    const scale = Math.min(this.view.clientWidth / data.graph.width, this.view.clientHeight / data.graph.height);
    return Math.min(Math.max(scale, SMALLEST), 1.2);
  }

  zoom(factor, x = this.x, y = this.y) {
    const scale = Math.min(Math.max(this.scale * factor, this.whole), 4);
    this.x = x + (this.x - x) * this.scale / scale;
    this.y = y + (this.y - y) * this.scale / scale;
    this.scale = scale;
    this.show();
  }

  // Moves by pixels; the graph's edge goes no further than the middle.
  move(x, y) {
    this.x = Math.min(Math.max(this.x + x / this.scale, 0), data.graph.width);
    this.y = Math.min(Math.max(this.y + y / this.scale, 0), data.graph.height);
    this.show();
  }

  // From the first node.
  top() {
    const fit = this.view.clientWidth / data.graph.width;
    this.scale = Math.min(Math.max(fit, 0.9), 1.2); // at which labels can be read
    [this.x] = data.graph.centres[0];
    const half = this.view.clientWidth / this.scale / 2;
    // As near to the first node as leaves all of the width in view, if that fits.
    if (data.graph.width <= 2 * half) this.x = Math.min(Math.max(this.x, data.graph.width - half), half);
    this.y = this.view.clientHeight / this.scale / 2;
    this.show();
  }

  fit() {
    this.scale = this.whole;
    // In the middle, or where the view was, but with nothing beyond the graph's edges.
    const middle = (size, pixels, at) => {
      const half = pixels / this.scale / 2;
      return size <= 2 * half + 1 ? size / 2 : Math.min(Math.max(at, half), size - half);
    };
    this.x = middle(data.graph.width, this.view.clientWidth, this.x);
    this.y = middle(data.graph.height, this.view.clientHeight, this.y);
    this.show();
  }

  reveal(number) {
    const node = this.nodes[number];
    if (!node) return;
    [this.x, this.y] = data.graph.centres[number];
    this.scale = Math.max(this.scale, 1);
    this.show();
    for (const found of this.above.querySelectorAll(".found")) found.classList.remove("found");
    node.element.classList.add("found");
    this.view.scrollIntoView({ block: "center" });
  }

  makeNode(i) {
    const [name, what, note, kernel] = data.tables.nodes.rows[i];
    const [x, y] = data.graph.centres[i], wide = data.graph.widths[i], kind = data.graph.kinds[i];
    const isOp = kind === "op", label = isOp ? what : name;
    const where = !isOp ? "" : kernel === null ? "no kernel of its own" : `kernel ${data.kernels[kernel][0]}`;
    const cut = (text) => (text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL - 1)}…` : text);
    const parts = [
      makeSvg("title", {}, [name, what, note, where].filter(Boolean).join("\n")),
      makeSvg("rect", { x: x - wide / 2, y: y - HIGH / 2, width: wide, height: HIGH, rx: isOp ? 5 : 16 }),
      makeSvg("text", { x, y: note ? y - 2 : y + 4 }, cut(label)),
    ];
    if (note) parts.push(makeSvg("text", { class: "dim", x, y: y + 12 }, cut(note)));
    const colour = kernel === null ? "" : `c${data.kernels[kernel][1]}`;
    const node = makeSvg("g", { class: `node ${kind} ${colour}` });
    // Not a stop of the Tab key: the table of nodes has the same links.
    if (kernel === null) node.append(...parts);
    else node.append(makeSvg("a", { href: `#kernel-${kernel}`, tabindex: -1 }, ...parts));
    return node;
  }

  listen() {
    const acts = { in: () => this.zoom(1.4), out: () => this.zoom(1 / 1.4), top: () => this.top(), whole: () => this.fit() };
    for (const button of this.view.querySelectorAll("button")) button.addEventListener("click", acts[button.name]);
    this.where.addEventListener("input", () => { this.y = Number(this.where.value); this.show(); });
    const step = 80;
    const keys = {
      "+": acts.in, "=": acts.in, "-": acts.out, "Home": acts.top, "0": acts.whole,
      "ArrowLeft": () => this.move(-step, 0), "ArrowRight": () => this.move(step, 0),
      "ArrowUp": () => this.move(0, -step), "ArrowDown": () => this.move(0, step),
    };
    this.view.addEventListener("keydown", (event) => {
      if (event.target !== this.view || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    // The wheel alone scrolls the page. With Ctrl, which pinching a touchpad sends too, it zooms.
    this.view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
      this.zoom(Math.exp(-Math.min(Math.max(event.deltaY, -60), 60) / 300), at.x, at.y);
    }, { passive: false });
    let from = null, moved = 0;
    this.svg.addEventListener("pointerdown", (event) => { from = event; moved = 0; });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) { from = null; return; }
      moved += Math.abs(event.clientX - from.clientX) + Math.abs(event.clientY - from.clientY);
      this.move(from.clientX - event.clientX, from.clientY - event.clientY);
      from = event;
    });
    for (const end of ["pointerup", "pointercancel"]) this.svg.addEventListener(end, () => { from = null; });
    this.svg.addEventListener("click", (event) => { if (moved > 4) { event.preventDefault(); event.stopPropagation(); } }, true);
    this.svg.addEventListener("dragstart", (event) => event.preventDefault());
    addEventListener("resize", () => this.show());
  }
}

function edgePath(points) {
  let [x, y] = points[0], path = `M${x} ${y + HIGH / 2}`;
  y += HIGH / 2;
  points.slice(1).forEach(([toX, toY], i) => {
    const end = i === points.length - 2 ? toY - HIGH / 2 : toY, middle = (y + end) / 2;
    path += `C${x} ${middle} ${toX} ${middle} ${toX} ${end}`;
    [x, y] = [toX, end];
  });
  return path;
}

const graph = data.graph && new Graph(document.querySelector(".view"));

// -- links, light and dark, printing ---------------------------------------------------------------

function openTarget() {
  const [, kind, number] = location.hash.match(/^#(\w+)-(\d+)$/) ?? [];
  if (kind === "graph" && graph) graph.reveal(Number(number));
  const name = Object.keys(data.tables).find((n) => data.tables[n].row === kind);
  if (!name) return;
  const root = document.querySelector(`[data-table=${name}]`);
  if (root.closest("details")) root.closest("details").open = true;
  makeTable(root);
  tables[name].reveal(Number(number));
}

addEventListener("hashchange", openTarget);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a");
  if (link && location.hash && link.getAttribute("href") === location.hash) openTarget(); // which is no change
});
addEventListener("DOMContentLoaded", openTarget); // when all texts are there

const theme = document.getElementById("theme");
const systemDark = matchMedia("(prefers-color-scheme: dark)");

function stored(...value) { // where pages have no storage, the choice lasts as long as the page
  try {
    return value.length ? localStorage.setItem("kiln-theme", value[0]) : localStorage.getItem("kiln-theme");
  } catch {
    return null;
  }
}

function showTheme(chosen) {
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  const isDark = (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
  theme.textContent = isDark ? "Light" : "Dark";
  theme.value = isDark ? "light" : "dark"; // what a click chooses
  theme.title = `${theme.value} colours`;
}

theme.addEventListener("click", () => { stored(theme.value); showTheme(theme.value); });
systemDark.addEventListener("change", () => showTheme());
showTheme(stored());
theme.hidden = false;

addEventListener("beforeprint", () => { for (const table of Object.values(tables)) table.showAll(); });
