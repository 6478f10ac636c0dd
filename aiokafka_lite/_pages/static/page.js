// What the pages of this package share: tables that take new rows in place, views by address, and
// reading again and again. Whatever is told becomes text nodes and never markup: topics, groups and
// clients are named by strangers.

// Formats

export const whole = new Intl.NumberFormat("en");
export const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? tenths.format(size) : size} ${units[unit]}`;
}

export function seconds(value) {
  if (value < 60) return `${tenths.format(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  return `${Math.floor(value / 3600)} h`;
}

export function orDash(value) {
  return value === null || value === "" ? "–" : value;
}

export function time(ms) {
  return ms < 0 ? "–" : new Date(ms).toLocaleTimeString("en-GB");
}

export function milliseconds(value) {
  return `${value < 10 ? tenths.format(value) : whole.format(Math.round(value))} ms`;
}

export function address(view, name) {
  return `#/${view}?${new URLSearchParams({ name })}`;
}

// Columns: `show` gives the text of a cell, or {text, href}, or {text, pill} and with it a hint;
// `by` what to sort by; `isUrgent` has it stand first where there is room for few.

const narrow = window.matchMedia("(max-width: 40rem)");

function inOrder(columns) {
  if (!narrow.matches) return columns;
  return [...columns.filter((each) => each.isUrgent), ...columns.filter((each) => !each.isUrgent)];
}

export function text(label, field, more = {}) {
  return { label, show: (row) => String(orDash(row[field])), by: (row) => row[field] ?? "", ...more };
}

export function count(label, field, more = {}) {
  return {
    label,
    isNumber: true,
    show: (row) => (row[field] === null ? "–" : whole.format(row[field])),
    by: (row) => row[field] ?? -1,
    ...more,
  };
}

export function size(label, field) {
  return count(label, field, { show: (row) => bytes(row[field]) });
}

export const lag = count("Lag", "lag", {
  show: (row) =>
    row.lag ? { text: whole.format(row.lag), pill: "busy" } : row.lag === null ? "–" : "0",
});

// The page

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function compare(one, other) {
  if (typeof one === "string") return one.localeCompare(other, "en", { numeric: true });
  return one < other ? -1 : Number(one > other);
}

class Table {
  // One table that takes new rows in place: what is focused or selected stays so.

  constructor(spec, empty) {
    this.spec = spec;
    this.rows = new Map();
    this.sorting = null;
    this.columns = inOrder(spec.columns);
    this.headers = this.columns.map((column) => this.makeHeader(column));
    this.body = element("tbody");
    this.table = element("table", {}, element("thead", {}, element("tr", {}, ...this.headers)), this.body);
    this.empty = element("p", { className: "empty", textContent: spec.empty ?? empty, hidden: true });
    this.pager = element("div", { className: "pager", hidden: true });
    this.card = element("div", { className: "card" }, this.table, this.empty, this.pager);
    this.parts = spec.heading ? [element("h3", { textContent: spec.heading }), this.card] : [this.card];
  }

  makeHeader(column) {
    const header = element("th", { scope: "col" }, column.label);
    if (column.isNumber) header.classList.add("number");
    return header;
  }

  sortBy(index) {
    const isSame = this.sorting?.index === index;
    this.sorting = isSame && this.sorting.direction < 0 ? null : { index, direction: isSame ? -1 : 1 };
    this.update(this.latest.rows, this.latest.isWhole);
  }

  showHeaders(isWhole) {
    this.headers.forEach((header, index) => {
      const button = header.querySelector("button");
      if (isWhole && !button) {
        const made = element("button", { type: "button", textContent: this.columns[index].label });
        made.addEventListener("click", () => this.sortBy(index));
        header.replaceChildren(made);
      } else if (!isWhole && button) {
        header.replaceChildren(this.columns[index].label);
      }
      if (this.sorting?.index === index) {
        header.setAttribute("aria-sort", this.sorting.direction > 0 ? "ascending" : "descending");
      } else {
        header.removeAttribute("aria-sort");
      }
    });
  }

  update(rows, isWhole) {
    this.latest = { rows, isWhole };
    if (!isWhole) this.sorting = null; // of a part nobody knows what comes first
    this.showHeaders(isWhole);
    this.empty.hidden = rows.length > 0;
    this.table.hidden = rows.length === 0;
    const unused = new Map(this.rows);
    this.sorted(rows).forEach((row, position) => {
      const key = String(this.spec.key(row));
      unused.delete(key);
      let line = this.rows.get(key);
      if (line) {
        this.refresh(line, row);
      } else {
        line = this.makeRow(row);
        this.rows.set(key, line);
      }
      if (this.body.children[position] !== line) this.body.insertBefore(line, this.body.children[position] ?? null);
    });
    for (const [key, line] of unused) {
      this.rows.delete(key);
      line.remove();
    }
  }

  sorted(rows) {
    // By the column that was asked for, then in the table's own order; a part stays as it came.
    if (!this.latest.isWhole) return rows;
    const order = (this.spec.order ?? []).map((by) => ({ by, direction: 1 }));
    if (this.sorting) {
      const { index, direction } = this.sorting;
      order.unshift({ by: this.columns[index].by, direction });
    }
    return [...rows].sort((one, other) => {
      for (const { by, direction } of order) {
        const result = compare(by(one), by(other));
        if (result) return direction * result;
      }
      return 0;
    });
  }

  makeRow(row) {
    const cells = this.columns.map((column) => {
      const cell = element("td");
      if (column.isNumber) cell.classList.add("number");
      if (column.isLong) cell.classList.add("long");
      if (column.isQuiet) cell.classList.add("quiet");
      fill(cell, column.show(row));
      return cell;
    });
    return element("tr", {}, ...cells);
  }

  refresh(line, row) {
    this.columns.forEach((column, index) => {
      const cell = line.children[index];
      if (fill(cell, column.show(row)) && !column.isRestless) {
        cell.classList.remove("changed");
        void cell.offsetWidth; // starts the animation again
        cell.classList.add("changed");
      }
    });
  }
}

function fill(cell, shown) {
  // Shows a value in a cell; says whether that changed it.
  const { text: content, href, pill, hint } = typeof shown === "string" ? { text: shown } : shown;
  const state = JSON.stringify([content, href, pill, hint]);
  if (cell.dataset.state === state) return false;
  cell.dataset.state = state;
  cell.title = hint ?? "";
  if (href !== undefined) {
    cell.replaceChildren(element("a", { href, textContent: content }));
  } else if (pill !== undefined) {
    cell.replaceChildren(element("span", { className: `pill ${pill}`, textContent: content }));
  } else {
    cell.textContent = content;
  }
  return true;
}

class Screen {
  // One view, for as long as the address says so.

  constructor(route) {
    this.route = route;
    this.view = site.views[route.name];
    const title = typeof this.view.title === "string" ? this.view.title : this.view.title(route.query);
    this.note = element("span", { className: "note" });
    const head = element("div", { className: "head" }, element("h2", { textContent: title }), this.note);
    if (this.view.canFind) head.append(this.makeFind());
    this.tables = this.view.tables.map((spec) => new Table(spec, this.view.empty));
    this.parts = [head, ...this.tables.flatMap((table) => table.parts)];
    document.title = `${title} · ${site.name}`;
  }

  makeFind() {
    const input = element("input", {
      type: "search",
      placeholder: "Find…",
      value: this.route.query.get("find") ?? "",
    });
    input.setAttribute("aria-label", `Find in ${this.view.title}`);
    input.addEventListener("input", () => {
      this.route.query.set("find", input.value);
      this.route.query.delete("page");
      history.replaceState(null, "", `#/${this.route.name}?${this.route.query}`);
      poller.soon();
    });
    return input;
  }

  get url() {
    const query = new URLSearchParams(this.route.query);
    if (this.view.filter) query.set("show", this.view.filter);
    return `${this.view.api ?? `api/${this.route.name}`}?${query}`;
  }

  update(data) {
    if (this.view.note) this.note.textContent = this.view.note(data);
    this.tables.forEach((table) => {
      const rows = table.spec.rows(data);
      const total = table.spec.total ? table.spec.total(data) : data.total;
      table.update(rows, rows.length === total);
      this.showPager(table, rows.length, total, data);
    });
  }

  showPager(table, shown, total, data) {
    const hasPages = !table.spec.total && total > shown;
    table.pager.hidden = shown >= total;
    if (table.pager.hidden) return;
    const first = hasPages ? (data.page - 1) * data.page_rows : 0;
    const label = hasPages && shown
      ? `${whole.format(first + 1)}–${whole.format(first + shown)} of ${whole.format(total)}`
      : `and ${whole.format(total - shown)} more`;
    if (!table.pager.children.length) {
      const turn = (text, by) => {
        const button = element("button", { type: "button", textContent: text });
        button.addEventListener("click", () => this.turn(by));
        return button;
      };
      table.pager.append(element("span"), ...(hasPages ? [turn("Previous", -1), turn("Next", 1)] : []));
    }
    const [note, previous, next] = table.pager.children;
    note.textContent = label;
    if (previous) previous.disabled = data.page <= 1;
    if (next) next.disabled = first + shown >= total;
  }

  turn(by) {
    const page = Math.max(Number(this.route.query.get("page") ?? 1) + by, 1);
    this.route.query.set("page", page);
    location.hash = `#/${this.route.name}?${this.route.query}`;
  }
}

// What stands above every view

const byId = (id) => document.getElementById(id);

export function show(id, content) {
  // Writes only what changed, so that a selection stays.
  const place = byId(id);
  if (place.textContent !== content) place.textContent = content;
}

function showFigures(overview) {
  for (const figure of document.querySelectorAll("[data-figure]")) {
    const value = overview[figure.dataset.figure];
    figure.textContent = whole.format(Array.isArray(value) ? value.length : value);
  }
}

function alarm(message) {
  byId("alarm").hidden = !message;
  show("alarm", message || "");
}

function showState(is, message) {
  const state = byId("state");
  if (state.dataset.is !== is) {
    state.dataset.is = is;
    state.textContent = message;
  }
  byId("view").classList.toggle("stale", is === "gone");
}

export class Rate {
  // How fast a counter goes, between one reading and the next; null for not known.

  constructor() {
    this.latest = null;
    this.rate = null;
  }

  of(value, at_s) {
    // The value at a time; at the same time it is the same reading.
    const earlier = this.latest;
    if (earlier?.at_s === at_s) return this.rate;
    this.latest = { value, at_s };
    const isCounting = earlier !== null && value >= earlier.value && at_s > earlier.at_s;
    this.rate = isCounting ? (value - earlier.value) / (at_s - earlier.at_s) : null;
    return this.rate;
  }
}

// Reading again and again

class Poller {
  constructor() {
    this.timer = 0;
    this.reading = null;
    this.isPaused = false;
  }

  soon() {
    clearTimeout(this.timer);
    this.reading?.abort();
    this.timer = setTimeout(() => this.read(), 0);
  }

  async read() {
    const reading = (this.reading = new AbortController());
    let next_ms = 2000;
    try {
      const [overview, data] = await Promise.all(
        ["api/overview", screen.url].map((url) => this.fetch(url, reading.signal)),
      );
      showFigures(overview.body);
      alarm(site.update(overview.body));
      if (data.isThere) {
        screen.update(data.body);
      } else {
        alarm("This is not there, or no more.");
      }
      next_ms = Math.max(overview.body.refresh_ms, data.body?.refresh_ms ?? 0);
      if (!this.isPaused) showState("live", "Live");
    } catch (error) {
      if (reading.signal.aborted) return;
      showState("gone", "No answer");
      alarm(site.silent);
    }
    if (!this.isPaused && !document.hidden) this.timer = setTimeout(() => this.read(), next_ms);
  }

  async fetch(url, signal) {
    const answer = await fetch(url, { signal });
    if (answer.status === 404) return { isThere: false };
    if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
    return { isThere: true, body: await answer.json() };
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    byId("pause").textContent = isPaused ? "Go on" : "Pause";
    byId("pause").setAttribute("aria-pressed", String(isPaused));
    if (isPaused) {
      clearTimeout(this.timer);
      showState("paused", "Paused");
    } else {
      this.soon();
    }
  }
}

function currentRoute() {
  const [name, query] = location.hash.replace(/^#\//, "").split("?", 2);
  return { name: Object.hasOwn(site.views, name) ? name : site.first, query: new URLSearchParams(query) };
}

function showRoute() {
  const route = currentRoute();
  screen = new Screen(route);
  byId("view").replaceChildren(...screen.parts);
  const inNavigation = screen.view.parent ?? route.name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === inNavigation) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  poller.soon();
}

const poller = new Poller();
let screen;
let site;

export function start(described) {
  // Shows a site: its views by name, the first of them, what its name is, what to say when nobody
  // answers, and update(overview), which shows what stands above and returns what is alarming.
  site = described;
  window.addEventListener("hashchange", showRoute);
  narrow.addEventListener("change", showRoute);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !poller.isPaused) poller.soon();
  });
  byId("pause").addEventListener("click", () => poller.pause(!poller.isPaused));
  showRoute();
}
