// The parts of the page that a wall shows (last hour, fleet, who waits, what choices cost), filters,
// "ask why" and settings. Loaded after page.js, whose helpers it uses; it starts the page.
"use strict";

// -- the last hour ------------------------------------------------------------------------------

const SHARES = new Set(["hits", "failed"]);
const FEWEST_BINS = 10;
let hour = null;

function showHour(history) {
  const counted = history.rate.findIndex((v) => v > 0);
  if (counted < 0) return;
  const from = Math.min(counted, history.rate.length - FEWEST_BINS);
  hour = Object.fromEntries(Object.entries(history).filter(([, v]) => Array.isArray(v)).map(([key, v]) => [key, v.slice(from)]));
  const minutes = Math.round(hour.rate.length * history.bin_s / 60);
  $("#hour").textContent = `Curves: the last ${minutes} minutes, from 0; shares to 100 %.`;
}

// The curve of a figure: an area from 0, and a gap where nothing was measured.
function curve(key) {
  const values = hour?.[key] ?? [];
  const measured = values.filter(known);
  if (!measured.length) return undefined;
  const most = SHARES.has(key) ? 1 : Math.max(...measured) || 1;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 240 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const draw = (name, points) => {
    const line = document.createElementNS(SVG, name);
    line.setAttribute("points", points.map((p) => p.join(",")).join(" "));
    svg.append(line);
  };
  let points = [];
  const flush = () => {
    if (!points.length) return;
    if (points.length === 1) points.push([points[0][0] + 2, points[0][1]]);
    draw("polygon", [[points[0][0], 40], ...points, [points[points.length - 1][0], 40]]);
    draw("polyline", points);
    points = [];
  };
  values.forEach((v, i) => {
    if (known(v)) points.push([240 * i / Math.max(1, values.length - 1), 38 - 36 * v / most]);
    else flush();
  });
  flush();
  return svg;
}

// -- the fleet at a glance ----------------------------------------------------------------------

const FEW = 12, MANY = 120;  // a card each, up to `FEW`; above `MANY`, a square each
const MOST_GROUPS = 16;
const waitingIn = (endpoints) => endpoints.reduce((sum, e) => sum + (e.waiting || 0), 0);

function tile(e, size) {
  const made = element("li");
  const out = OUT.has(e.health);
  const hot = known(e.kv_usage) && (e.kv_usage >= 0.9 ? "full" : e.kv_usage >= 0.75 ? "high" : "");
  made.className = [out && "out", !out && (!FINE.has(e.health) || e.waiting > 0) && "odd", hot, !known(e.kv_usage) && "unread"]
    .filter(Boolean).join(" ");
  if (known(e.kv_usage)) made.style.setProperty("--used", `${Math.round(100 * e.kv_usage)}%`);
  const used = known(e.kv_usage) ? `${share(e.kv_usage)} of its KV cache` : "KV cache not known";
  const facts = `${count(e.in_flight)} in flight${e.waiting > 0 ? `, ${count(e.waiting)} waiting` : ""}`;
  const state = FINE.has(e.health) ? "" : e.health;
  made.title = `${e.endpoint}, ${e.model}: ${e.health}, ${used}, ${facts}`;
  if (size === "large") made.append(element("b", e.model), element("span", e.endpoint), element("span", facts), element("span", state || used, state && "state"));
  else {
    if (size === "medium") made.append(element("b", out ? "!" : count(e.in_flight)), element("span", state || (e.waiting > 0 ? `+${count(e.waiting)} wait` : known(e.kv_usage) ? share(e.kv_usage) : "-")));
    else if (out) made.append(element("b", "!"));
    made.append(element("span", made.title, "hidden"));
  }
  made.dataset.endpoint = e.endpoint;
  return made;
}

function showGlance(frame) {
  const fleet = frame.fleet;
  const size = fleet.length <= FEW ? "large" : fleet.length <= MANY ? "medium" : "small";
  const groups = new Map();
  for (const e of fleet) groups.set(e.model, [...groups.get(e.model) ?? [], e]);
  const grouped = size === "large" || groups.size > MOST_GROUPS ? [["", fleet]] : [...groups];
  const shown = fleet.length < frame.fleet_total ? `${fleet.length} of ` : "";
  const models = groups.size > 1 ? `, ${groups.size} models` : "";
  $("#glance-of").textContent = `${shown}${frame.fleet_total} endpoint${frame.fleet_total === 1 ? "" : "s"}${models}`;
  $("#glance").className = size;
  $("#glance").replaceChildren(...grouped.map(([model, endpoints]) => {
    const group = element("div");
    if (model) {
      const inside = waitingIn(endpoints);
      const name = element("h3");
      name.append(element("span", model), element("small", `${endpoints.length}${inside ? `, ${count(inside)} wait` : ""}`));
      group.append(name);
    }
    const list = element("ol");
    list.append(...endpoints.map((e) => tile(e, size)));
    group.append(list);
    return group;
  }));
}

$("#glance").addEventListener("click", (event) => {
  const endpoint = event.target.closest("li")?.dataset.endpoint;
  if (!endpoint) return;
  $("#fleet-find").value = endpoint;
  $("#fleet").scrollIntoView({ block: "center" });
});

// -- who waits ----------------------------------------------------------------------------------

const MOST_TURNS = 6;
let turns = [];
const whole = (s) => `${Math.round(s)} s`;

function showWaiting(frame) {
  const inside = waitingIn(frame.fleet);
  const longest = Math.max(...turns.map((t) => t.waited_s));
  const since = Object.entries(frame.problems).filter(([of]) => of.startsWith("full ")).map(([, p]) => p.since_s);
  $("#waiting").replaceChildren(
    figure("at the picker", count(frame.about.waiting)),
    figure("in engines", count(inside)),
    figure("longest", turns.length ? whole(longest) : "-"),
    figure("full since", since.length ? clock(Math.min(...since)) : "-"),
  );
  $("#turns").replaceChildren(...turns.slice(0, MOST_TURNS).map((t) => {
    const li = element("li");
    const most = t.longest_s > 0 ? ` of ${whole(t.longest_s)}` : "";
    li.style.setProperty("--used", `${Math.round(100 * t.waited_s / Math.max(t.longest_s, longest))}%`);
    li.append(element("span", t.session || "no name"), element("span", `${count(t.tokens)} tokens`), element("b", `${whole(t.waited_s)}${most}`));
    return li;
  }));
  if (!turns.length) $("#turns").append(element("li", inside || frame.about.waiting ? "No session waits for room." : "Nobody waits.", "note"));
}

// -- what choices cost --------------------------------------------------------------------------

const MOST_CHOICES = 8;

function showChoices(frame) {
  const choices = Object.entries(frame.choices).sort((a, b) => b[1].decisions - a[1].decisions).slice(0, MOST_CHOICES)
    .map(([model, sums]) => [model, sums.decisions, Object.fromEntries(
      Object.entries(sums).map(([term, s]) => [term, sums.priced ? s / sums.priced : null]))]);
  const most = Math.max(1e-9, ...choices.map(([, , mean]) => mean.cost_s).filter(known));
  const all = Object.values(frame.choices).reduce((sum, of) => sum + of.decisions, 0);
  $("#choices-of").textContent = all ? `of the last ${all}` : "";
  $("#choices").replaceChildren(...choices.flatMap(([model, n, mean]) => [
    element("span", model || "no model"), known(mean.cost_s) ? bar(mean, most) : element("span"),
    element("small", `${share(n / all)} of requests`), element("b", known(mean.cost_s) ? seconds(mean.cost_s) : "-"),
  ]));
  if (!choices.length) $("#choices").append(element("span", "No decision yet. Send a request through Envoy.", "note"));
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
  turns = held;
  $("#sessions").hidden = !counts?.placed;
  if (!counts) return;
  $("#sessions-of").textContent = `${counts.placed} with a place in a cache, ${counts.waiting} waiting for a place`
    + (holds.limit ? `; ${holds.limit} were sent without one, and 9 of 10 turns would have had one after ${seconds(times.enough)}` : "");
  table("#sessions", inside.map((s) => row([s.session || "no name", s.busy ? `${s.busy} in flight` : "idle", s.endpoint,
    count(s.tokens), s.busy ? "-" : seconds(s.idle_s), seconds(s.reread_s)])));
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

function showSettings(config) {
  const at = (path) => path.split(".").reduce((value, name) => value?.[name], config);
  const given = Object.entries(config.origins).filter(([, from]) => from !== "default").map(([path]) => path);
  const paths = [...new Set(["routing.policy", "routing.aim", ...given])];
  const shown = (value) => value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : `${value}`;
  const pending = Object.keys(config.pending_restart);
  $("#settings-note").textContent = pending.length
    ? `${pending.length} wait for a restart: ${pending.join(", ")}` : "the policy, its aim, and what differs from the defaults";
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
