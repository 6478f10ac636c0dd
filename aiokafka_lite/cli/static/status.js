// Reads the broker's state as JSON and shows it.

import {
  Rate, address, count, lag, milliseconds, seconds, show, size, start, text, time, whole,
} from "./page.js";

const STATES = {
  Stable: "good",
  Empty: "",
  Dead: "bad",
};

const leader = {
  label: "Leader",
  isNumber: true,
  show: (row) => (row.leader < 0 ? { text: "none", pill: "bad" } : String(row.leader)),
  by: (row) => row.leader,
};

const groupState = {
  label: "State",
  show: (row) => ({ text: row.state, pill: STATES[row.state] ?? "busy" }),
  by: (row) => row.state,
};

// Views

const VIEWS = {
  topics: {
    title: "Topics",
    canFind: true,
    empty: "No topics yet. A client that asks for one makes it, and so does --topic NAME:PARTITIONS.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => row.name,
        order: [(row) => Number(row.is_internal), (row) => row.name],
        columns: [
          {
            label: "Topic",
            show: (row) => ({ text: row.name, href: address("topic", row.name) }),
            by: (row) => row.name,
          },
          count("Partitions", "partitions"),
          count("Replicas", "replication"),
          count("Records", "records"),
          size("Size", "size_bytes"),
          {
            label: "Leaders",
            show: (row) =>
              row.leaderless
                ? { text: `${whole.format(row.leaderless)} without`, pill: "bad" }
                : "all there",
            by: (row) => row.leaderless,
          },
          text("Configuration", "configs", { isLong: true, isQuiet: true }),
        ],
      },
    ],
  },

  topic: {
    parent: "topics",
    title: (query) => query.get("name"),
    note: (data) => [`id ${data.id}`, data.configs].filter(Boolean).join(" · "),
    empty: "This topic has no partitions.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => row.partition,
        columns: [
          count("Partition", "partition"),
          leader,
          count("Leader epoch", "leader_epoch"),
          text("Replicas", "replicas"),
          text("In sync", "isr"),
          count("First offset", "start"),
          count("End offset", "end"),
          count("Records", "records"),
          size("Size", "size_bytes"),
        ],
      },
    ],
  },

  groups: {
    title: "Groups",
    canFind: true,
    empty: "No groups. A consumer with a group id makes one.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => row.id,
        order: [(row) => row.id],
        columns: [
          {
            label: "Group",
            show: (row) => ({ text: row.id, href: address("group", row.id) }),
            by: (row) => row.id,
          },
          groupState,
          count("Members", "members"),
          count("Partitions", "partitions"),
          lag,
          text("Type", "type"),
          text("Assignor", "protocol"),
          count("Generation", "generation"),
          count("Coordinator", "coordinator"),
        ],
      },
    ],
  },

  group: {
    parent: "groups",
    title: (query) => query.get("name"),
    note: (data) => `${data.state} · generation ${data.generation} · coordinator ${data.coordinator}`,
    empty: "Nothing committed yet.",
    tables: [
      {
        heading: "Members",
        rows: (data) => data.member_rows,
        total: (data) => data.members,
        empty: "No members now.",
        key: (row) => row.member,
        columns: [
          text("Member", "member", { isLong: true }),
          text("Static id", "instance"),
          text("Client", "client"),
          text("Host", "host"),
          text("Assignment", "assignment", { isLong: true }),
        ],
      },
      {
        heading: "Committed offsets",
        rows: (data) => data.rows,
        key: (row) => `${row.topic}/${row.partition}`,
        order: [(row) => row.topic, (row) => row.partition],
        columns: [
          {
            label: "Topic",
            show: (row) => ({ text: row.topic, href: address("topic", row.topic) }),
            by: (row) => row.topic,
          },
          count("Partition", "partition"),
          count("Committed", "committed"),
          lag,
          text("Metadata", "metadata", { isQuiet: true }),
          text("At", "committed_at_ms", { show: (row) => time(row.committed_at_ms) }),
        ],
      },
    ],
  },

  connections: {
    title: "Connections",
    canFind: true,
    empty: "Nobody is connected.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => `${row.node}/${row.peer}`,
        columns: [
          text("Peer", "peer"),
          text("Client", "client"),
          count("Node", "node"),
          text("Latest request", "request"),
          {
            label: "State",
            show: (row) =>
              row.is_waiting ? { text: "waits for its answer", pill: "busy" } : { text: "idle", pill: "" },
            by: (row) => row.is_waiting,
          },
          count("Idle", "idle_s", { show: (row) => seconds(row.idle_s), isRestless: true }),
        ],
      },
    ],
  },

  requests: {
    title: "Latest requests",
    canFind: true,
    empty: "No requests yet.",
    tables: [
      {
        rows: (data) => data.rows,
        key: (row) => row.number,
        columns: [
          count("Ago", "ago_s", { show: (row) => seconds(row.ago_s), isRestless: true }),
          text("Request", "api"),
          text("Client", "client"),
          text("Peer", "peer"),
          count("Node", "node"),
          size("Size", "size_bytes"),
          {
            label: "Took",
            isNumber: true,
            show: (row) =>
              row.took_ms === null
                ? { text: "waits", pill: "busy" }
                : milliseconds(row.took_ms),
            by: (row) => row.took_ms ?? Infinity,
          },
          {
            label: "Errors",
            show: (row) => (row.errors ? { text: row.errors, pill: "bad" } : "–"),
            by: (row) => row.errors,
          },
        ],
      },
    ],
  },

  nodes: {
    title: "Nodes",
    api: "api/overview",
    empty: "No nodes.",
    tables: [
      {
        rows: (data) => data.nodes,
        total: (data) => data.nodes.length,
        key: (row) => row.id,
        columns: [
          count("Node", "id"),
          text("Address", "address"),
          text("Rack", "rack"),
          {
            label: "State",
            show: (row) =>
              row.is_up ? { text: "up", pill: "good" } : { text: "stopped", pill: "bad" },
            by: (row) => row.is_up,
          },
          count("Connections", "connections"),
        ],
      },
    ],
  },
};

// What stands above every view

const requests = new Rate();

function update(data) {
  show("bootstrap", data.bootstrap_servers);
  const storage = data.storage === "memory" ? "in memory" : data.storage;
  const rate = requests.of(data.requests, performance.now() / 1000);
  show(
    "facts",
    `${whole.format(data.partitions)} partitions · ${storage}` +
      (rate === null ? "" : ` · ${whole.format(Math.round(rate))} requests/s`),
  );
  return data.failure && `The broker met an exception that it did not expect: ${data.failure}`;
}

if (navigator.clipboard) {
  const copy = document.getElementById("copy");
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById("bootstrap").textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
}

start({
  name: "aiokafka_lite",
  views: VIEWS,
  first: "topics",
  silent: "The broker does not answer: what is shown here was so before.",
  update,
});
