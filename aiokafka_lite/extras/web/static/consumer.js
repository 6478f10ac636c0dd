// Reads the consumer's state as JSON and shows it.

import {
  Rate, bytes, count, element, lag, milliseconds, orDash, seconds, show, size, start, tenths, text,
  whole,
} from "./page.js";

// Partitions: rates are how fast their positions move, from one reading to the next.

const GOOD = new Set([
  "fetching", "at_end", "buffered", "awaiting_answer", "answer_not_taken", "about_to_fetch",
]);

function phrase(state) {
  return state.replaceAll("_", " ");
}

function speed(value) {
  if (value === null) return "–";
  return `${value < 100 ? tenths.format(value) : whole.format(Math.round(value))}/s`;
}

const rates = new Map();

function withRates(rows, at_s) {
  const seen = new Set();
  for (const row of rows) {
    const key = `${row.topic}/${row.partition}`;
    seen.add(key);
    if (!rates.has(key)) rates.set(key, new Rate());
    row.rate = row.position === null ? null : rates.get(key).of(row.position, at_s);
  }
  for (const key of rates.keys()) if (!seen.has(key)) rates.delete(key);
  return rows;
}

const state = {
  label: "State",
  show: (row) => ({
    text: phrase(row.state),
    pill: row.is_in_trouble ? "bad" : row.is_paused ? "" : GOOD.has(row.state) ? "good" : "busy",
    hint: row.why,
  }),
  by: (row) => row.state,
  isRestless: true,
  isUrgent: true,
};

const why = text("Why", "why", { isLong: true, isQuiet: true });

const topic = text("Topic", "topic", { isLong: true });
const partition = count("Partition", "partition");
const behind = { ...lag, isRestless: true, isUrgent: true };
const position = count("Position", "position", { isRestless: true });
const broker = count("Broker", "node", { show: (row) => String(orDash(row.node)) });
const EVERYTHING = [
  topic,
  partition,
  state,
  behind,
  count("Rate", "rate", { show: (row) => speed(row.rate), isRestless: true }),
  position,
  count("Committed", "committed", { isRestless: true }),
  count("End", "high_watermark", { isRestless: true }),
  broker,
];
const TROUBLE = [topic, partition, state, why, behind, position, broker];

function partitions(title, filter, empty, columns = EVERYTHING) {
  return {
    title,
    api: "api/partitions",
    filter,
    canFind: true,
    empty,
    tables: [
      {
        rows: (data) => withRates(data.rows, data.measured_at_s),
        key: (row) => `${row.topic}/${row.partition}`,
        order: [(row) => row.topic, (row) => row.partition],
        columns,
      },
    ],
  };
}

const VIEWS = {
  partitions: partitions("Partitions", "all", "No partition is assigned, or none has that name."),
  behind: partitions("Behind the end of the log", "behind", "Everything is read."),
  paused: partitions("Paused", "paused", "Nothing is paused."),
  trouble: partitions("In trouble", "trouble", "No partition is in trouble.", TROUBLE),
  nodes: {
    title: "Brokers",
    empty: "No broker is known yet.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => row.node,
        columns: [
          count("Broker", "node", { show: (row) => String(row.node) }),
          text("Address", "address"),
          {
            label: "State",
            show: (row) =>
              row.is_reachable
                ? { text: "reachable", pill: "good" }
                : { text: `not for ${seconds(row.down_seconds ?? 0)}`, pill: "bad" },
            by: (row) => row.is_reachable,
            isUrgent: true,
          },
          count("In flight", "in_flight"),
          count("Fetches", "fetches_total", { isRestless: true }),
          count("Failed", "fetch_failures_total", {
            show: (row) =>
              row.fetch_failures_total
                ? { text: whole.format(row.fetch_failures_total), pill: "busy" }
                : "0",
          }),
          size("Received", "fetched_bytes_total"),
          count("Latency", "fetch_latency_seconds", {
            show: (row) => latency(row.fetch_latency_seconds),
            isRestless: true,
          }),
          count("Longest", "fetch_latency_max_seconds", {
            show: (row) => latency(row.fetch_latency_max_seconds),
          }),
          count("Throttled", "throttle_seconds", {
            show: (row) =>
              row.throttle_seconds ? { text: seconds(row.throttle_seconds), pill: "busy" } : "–",
          }),
        ],
      },
    ],
  },
};

function latency(value) {
  return value === null ? "–" : milliseconds(value * 1000);
}

// Figures, some with their latest minute as a line

const REMEMBERED = 60;
const SVG = "http://www.w3.org/2000/svg";

function drawing(tag, properties, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

class Figure {
  constructor(label, { hasLine = false } = {}) {
    this.value = element("dd", { textContent: "–" });
    this.note = element("dd");
    const parts = [element("dt", { textContent: label }), this.value];
    this.history = hasLine ? [] : null;
    if (hasLine) {
      this.area = drawing("path", { class: "area" });
      this.line = drawing("path", {});
      const box = { viewBox: `0 0 ${REMEMBERED - 1} 30`, preserveAspectRatio: "none" };
      parts.unshift(drawing("svg", { ...box, "aria-hidden": "true" }, this.area, this.line));
    } else {
      parts.push(this.note);
    }
    document.getElementById("figures").append(element("div", { className: "figure" }, ...parts));
  }

  show(content, note = "") {
    this.value.textContent = content;
    this.note.textContent = note;
  }

  draw(value) {
    if (value === null) return;
    this.history.push(value);
    if (this.history.length > REMEMBERED) this.history.shift();
    const most = Math.max(...this.history, 1);
    const first = REMEMBERED - this.history.length;
    const points = this.history.map((each, at) => `${first + at},${29 - (each / most) * 27}`);
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d", `M${first},30L${points.join("L")}L${REMEMBERED - 1},30Z`);
  }
}

const figures = {
  lag: new Figure("Lag", { hasLine: true }),
  records: new Figure("Records", { hasLine: true }),
  bytes: new Figure("Received", { hasLine: true }),
  buffered: new Figure("Buffered"),
  heartbeat: new Figure("Last heartbeat"),
  loop: new Figure("Event loop late by"),
};
const records = new Rate();
const received = new Rate();
let drawn_at_s = null;

function showFigures(data) {
  const recordRate = records.of(data.records_total, data.measured_at_s);
  const byteRate = received.of(data.fetched_bytes_total, data.measured_at_s);
  figures.lag.show(data.lag === null ? "–" : whole.format(data.lag));
  figures.records.show(speed(recordRate));
  figures.bytes.show(byteRate === null ? "–" : `${bytes(Math.round(byteRate))}/s`);
  if (drawn_at_s !== data.measured_at_s) {
    drawn_at_s = data.measured_at_s;
    figures.lag.draw(data.lag);
    figures.records.draw(recordRate);
    figures.bytes.draw(byteRate);
  }
  figures.buffered.show(bytes(data.buffered_bytes), `of ${bytes(data.buffered_limit_bytes)}`);
  const heartbeat = data.last_heartbeat_age_seconds;
  const fetched = data.last_fetch_age_seconds;
  figures.heartbeat.show(
    heartbeat === null ? "–" : `${seconds(heartbeat)} ago`,
    fetched === null ? "nothing fetched yet" : `last fetch ${seconds(fetched)} ago`,
  );
  figures.loop.show(
    milliseconds(data.loop_lag_seconds * 1000),
    `${milliseconds(data.loop_lag_max_seconds * 1000)} at most`,
  );
}

// A figure of `run` and acknowledgements; without them there is nothing to show.
let handlers = null;

function showHandlers(data) {
  const waiting = data.processing_waiting_for_retry;
  const unfinished = data.processing_uncommitted;
  if (handlers === null) {
    if (!unfinished && !data.processing_finished_total && !data.processing_dead_total) return;
    handlers = new Figure("Handlers");
  }
  const more = [
    [data.processing_delayed_total, "delayed"],
    [data.processing_dropped_total, "dropped"],
  ].flatMap(([count, what]) => (count ? [`, ${whole.format(count)} ${what}`] : []));
  handlers.show(
    data.processing_paused ? "paused" : `${whole.format(data.processing_at_work)} at work`,
    `${whole.format(waiting)} wait for another attempt, ${whole.format(unfinished)} not finished, ` +
      `${whole.format(data.processing_dead_total)} dead letters${more.join("")}`,
  );
}

function update(data) {
  show("client", data.client_id ?? "");
  const group = data.group_id ? `in group ${data.group_id}` : "without a group";
  show("facts", `${group} · ${whole.format(data.records_total)} records so far`);
  const verdict = document.getElementById("verdict");
  verdict.hidden = false;
  verdict.dataset.is = data.verdict;
  show("verdict", data.verdict);
  const reasons = document.getElementById("reasons");
  reasons.hidden = data.reasons.length === 0;
  reasons.dataset.is = data.verdict;
  const told = JSON.stringify(data.reasons);
  if (reasons.dataset.told !== told) {
    reasons.dataset.told = told;
    reasons.replaceChildren(...data.reasons.map((each) => element("li", { textContent: each })));
  }
  showFigures(data);
  showHandlers(data);
  return "";
}

start({
  name: "aiokafka_lite",
  views: VIEWS,
  first: "partitions",
  silent: "The consumer does not answer: what is shown here was so before.",
  update,
});
