// The parts of the page other than its frames: last hour, shares, heat strip, filters, "ask why" and
// settings. Loaded after page.js, whose helpers it uses; it starts the page.
"use strict";

// -- the last hour ------------------------------------------------------------------------------

const CURVES = [
  ["rate", "Decisions a second, last minute", (v) => v.toFixed(v < 10 ? 2 : 0)],
  ["ttft_s", "Time to first token", seconds],
  ["ttca_s", "Time to a correct answer", seconds],
  ["hits", "Prompt found in caches, by answers read", share],
  ["failed", "Failed", share],
];
const SHARES = new Set(["hits", "failed"]);

function curve(values, most) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 240 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  // A gap where nothing was measured: a line through it would claim a value.
  let points = [];
  const flush = () => {
    if (!points.length) return;
    const line = document.createElementNS(SVG, "polyline");
    if (points.length === 1) points.push([points[0][0] + 2, points[0][1]]);
    line.setAttribute("points", points.map((p) => p.join(",")).join(" "));
    svg.append(line);
    points = [];
  };
  values.forEach((v, i) => {
    if (known(v)) points.push([240 * i / values.length, 38 - 36 * v / most]);
    else flush();
  });
  flush();
  return svg;
}

function showHour(history) {
  $("#hour").replaceChildren(...CURVES.map(([key, name, say]) => {
    const values = history[key];
    const measured = values.filter(known);
    const top = SHARES.has(key) ? 1 : Math.max(...measured, 0);
    const made = element("figure");
    const latest = measured.length ? say(measured[measured.length - 1]) : "not measured yet";
    const caption = element("figcaption", `${name}: ${latest}`);
    if (measured.length) {
      const range = `between ${say(Math.min(...measured))} and ${say(Math.max(...measured))}`;
      caption.append(element("small", range));
      made.append(caption, curve(values, top || 1));
    } else {
      made.append(caption);
    }
    return made;
  }));
}

// -- shares and heat ----------------------------------------------------------------------------

function meter(part) {
  const made = element("meter");
  made.min = 0;
  made.max = 1;
  made.value = part;
  made.setAttribute("aria-label", share(part));
  return made;
}

const MOST_SHARES = 10;

function showShares(frame) {
  const all = frame.window || 1;
  $("#shares-of").textContent = `of the last ${frame.window} decisions`;
  const rows = (counts) => Object.entries(counts).filter(([name]) => name)
    .sort((a, b) => b[1] - a[1]).slice(0, MOST_SHARES).map(([name, n]) => {
      const cell = element("span", `${share(n / all)} `);
      cell.append(meter(n / all));
      return row([name, `${n}`, cell]);
    });
  table("#shares", [...rows(frame.models), ...rows(frame.endpoints)]);
}

const HEAT = [0.25, 0.5, 0.75, 0.9];

function showHeat(fleet) {
  $("#heat").replaceChildren(...fleet.map((e) => {
    const level = known(e.kv_usage) ? HEAT.filter((edge) => e.kv_usage >= edge).length : "none";
    const bad = e.health === "ok" || e.health === "not read" ? "" : "!";
    const cell = element("li", bad, `heat-${level}`);
    const used = known(e.kv_usage) ? `${share(e.kv_usage)} of the KV cache` : "KV cache not known";
    cell.title = `${e.endpoint}, ${e.model}: ${e.health}, ${used}, ${count(e.in_flight)} in flight`;
    cell.append(element("span", cell.title, "hidden"));
    return cell;
  }));
}

// -- filters ------------------------------------------------------------------------------------

let until = "";  // when the page was opened, in Unix seconds

function filtering() {
  return Boolean($("#filter-text").value.trim() || $("#filter-kind").value || until);
}

async function filterDecisions() {
  const note = $("#filter-note");
  if (!filtering()) {
    note.textContent = "";
    $("#list").replaceChildren();
    return;
  }
  const query = new URLSearchParams({
    limit: "50", find: $("#filter-text").value.trim(), kind: $("#filter-kind").value,
  });
  if (until) query.set("until", until);
  const text = `${query}`;
  try {
    const answer = await fetch(`decisions?${text}`);
    const body = await answer.json();
    if (!answer.ok || !filtering()) return;
    const open = new Set([...document.querySelectorAll("#list details[open]")].map((d) => d.dataset.id));
    $("#list").replaceChildren(...body.decisions.map((d) => {
      const li = element("li");
      const details = decisionItem(d);
      details.open = open.has(d.id);
      li.append(details);
      return li;
    }));
    note.textContent = `${body.decisions.length} of the ${body.remembered} remembered decisions`;
    if (until) note.append(`, up to ${new Date(until * 1000).toLocaleString()}; `, link("#now", "go to now"));
  } catch {
    note.textContent = "the picker could not be reached";
  }
}

let waiting = 0;
function filterSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(filterDecisions, 200);
}
$("#filter").addEventListener("input", filterSoon);
$("#filter").addEventListener("submit", (event) => { event.preventDefault(); filterDecisions(); });

// -- a moment -----------------------------------------------------------------------------------

// #decision=ID opens a decision, #until=TIME the decisions up to a time.
function goTo() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const before = until;
  until = /^[0-9]{1,12}$/.test(asked.get("until") ?? "") ? asked.get("until") : "";
  const id = asked.get("decision");
  if (id) {
    $("#id").value = id;
    $("#find").requestSubmit();
  }
  if (until !== before) filterDecisions();
  if (id || until) $("#decisions").scrollIntoView();
}
addEventListener("hashchange", goTo);

// -- sessions -----------------------------------------------------------------------------------

function showSessions({ counts, holds, hold_s: times, inside = [], waiting: held = [] }) {
  $("#sessions").hidden = !counts?.placed && !counts?.waiting;
  if (!counts) return;
  $("#sessions-of").textContent = `${counts.placed} with a place in a cache, ${counts.waiting} waiting for a place`
    + (holds.limit ? `; ${holds.limit} were sent without one, and 9 of 10 turns would have had one after ${seconds(times.enough)}` : "");
  table("#sessions", [
    ...held.map((s) => row([s.session || "no name", "waits", "-", count(s.tokens), `${seconds(s.waited_s)} of ${seconds(s.longest_s)}`, "-"],
      { classes: { 1: "warn" } })),
    ...inside.map((s) => row([s.session || "no name", s.busy ? `${s.busy} in flight` : "idle", s.endpoint,
      count(s.tokens), s.busy ? "-" : seconds(s.idle_s), seconds(s.reread_s)])),
  ]);
}

// -- ask why ------------------------------------------------------------------------------------

$("#ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const note = $("#ask-note");
  note.textContent = "";
  $("#answer").replaceChildren();
  const headers = { "content-type": "application/json" };
  const tried = $("#ask-tried").value.trim();
  if (tried) headers["x-laar-tried-models"] = tried;
  try {
    const answer = await fetch("explain", { method: "POST", body: $("#ask-body").value, headers });
    const body = await answer.json();
    if (!answer.ok) {
      note.textContent = `${answer.status}: ${body.error?.message ?? body.error}`;
      return;
    }
    const details = decisionItem(body);
    details.open = true;
    $("#answer").replaceChildren(details);
  } catch {
    note.textContent = "the picker could not be reached";
  }
});

// -- settings -----------------------------------------------------------------------------------

const WEIGHTS = ["routing.policy", "routing.k_rtt", "routing.k_queue", "routing.k_delay"];

function showSettings(config) {
  const at = (path) => path.split(".").reduce((value, name) => value?.[name], config);
  const given = Object.entries(config.origins).filter(([, from]) => from !== "default").map(([path]) => path);
  const paths = [...new Set([...WEIGHTS, ...given])];
  const shown = (value) => value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : `${value}`;
  const pending = Object.keys(config.pending_restart);
  $("#settings-note").textContent = pending.length
    ? `${pending.length} wait for a restart: ${pending.join(", ")}` : "the policy, its weights, and what differs from the defaults";
  table("#settings", paths.map((path) => {
    const text = shown(at(path));
    return row([path, text.length > 120 ? `${text.slice(0, 120)}...` : text, config.origins[path] ?? "default"]);
  }));
}

follow();
watchPart("context", showContext);
watchPart("history", showHour);
watchPart("config", showSettings);
watchPart("sessions", showSessions);
goTo();
setInterval(() => { if (filtering() && !paused && !hovering) filterDecisions(); }, PART_EVERY_MS);
