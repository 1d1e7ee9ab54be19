// The live page. Names come from settings and clients, so everything is inserted as text, never as
// markup; an open decision and the keyboard focus survive each frame.
"use strict";

const $ = (selector) => document.querySelector(selector);
const SVG = "http://www.w3.org/2000/svg";
const TERMS = [["rtt_s", "rtt"], ["base_s", "base"], ["prefill_s", "prefill"], ["queue_s", "queue"]];
const LATE_MS = 5000;
const FRAME_EVERY_MS = 1000;

let paused = false;
let hovering = false;

// -- words --------------------------------------------------------------------------------------

const known = (value) => typeof value === "number" && Number.isFinite(value);
const seconds = (s) => !known(s) ? "unknown"
  : s < 0.1 ? `${(s * 1000).toFixed(s < 0.01 ? 2 : 1)} ms`
  : s < 100 ? `${s.toFixed(2)} s` : `${Math.round(s)} s`;
const count = (n) => !known(n) ? "unknown" : n >= 1e4 ? `${Math.round(n / 1000)}k` : `${Math.round(n)}`;
const share = (x) => known(x) ? `${Math.round(x * 100)} %` : "unknown";
const probability = (x) => known(x) ? x.toFixed(2) : "-";
const age = (s) => known(s) ? `${s < 10 ? s.toFixed(1) : Math.round(s)} s ago` : "never";

// -- elements -----------------------------------------------------------------------------------

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function link(to, text) {
  const made = element("a", text);
  made.href = to;
  return made;
}

function row(cells, { head = true, classes = {} } = {}) {
  const made = element("tr");
  cells.forEach((cell, i) => {
    const td = element(head && i === 0 ? "th" : "td", undefined, classes[i]);
    if (head && i === 0) td.scope = "row";
    td.append(cell);
    made.append(td);
  });
  return made;
}

function table(selector, rows) {
  $(`${selector} tbody`).replaceChildren(...rows);
}

// -- the fleet ----------------------------------------------------------------------------------

const MOST_ROWS = 60;
const OUT = new Set(["failing", "on trial", "unreachable"]);
const FINE = new Set(["ok", "not read"]);
const load = (e) => (e.in_flight || 0) + (e.waiting || 0);
const trouble = (e) => OUT.has(e.health) ? 2 : FINE.has(e.health) ? 0 : 1;

function showFleet(frame) {
  const wanted = $("#fleet-find").value.trim().toLowerCase();
  const fits = (e) => [e.endpoint, e.health, e.fault, e.model, e.region].join(" ").toLowerCase().includes(wanted);
  const found = frame.fleet.filter(fits);
  const rows = found.length <= MOST_ROWS ? found
    : found.slice().sort((a, b) => trouble(b) - trouble(a) || load(b) - load(a)).slice(0, MOST_ROWS);
  $("#fleet-count").textContent = rows.length === frame.fleet_total ? `${rows.length}`
    : `${rows.length} of ${frame.fleet_total}${rows.length < found.length ? ", those with problems and the busiest first" : ""}`;
  table("#fleet", rows.map((e) => row([
    e.endpoint, e.fault ? `${e.health}: ${e.fault}` : e.health, e.model, e.region || "-", seconds(e.rtt_s), count(e.in_flight),
    count(e.queued_tokens), count(e.waiting), share(e.kv_usage), share(e.hit_rate),
    probability(e.probability), probability(e.answers), age(e.read_age_s),
  ], { classes: { 1: ["good", "warn", "bad"][e.health === "not read" ? 1 : trouble(e)] } })));
}

// -- decisions ----------------------------------------------------------------------------------

function bar(candidate, most) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  let at = 0;
  const part = (value, className) => {
    const rect = document.createElementNS(SVG, "rect");
    const width = Math.max(0, value) / most * 100;
    rect.setAttribute("x", at);
    rect.setAttribute("width", width);
    rect.setAttribute("height", 10);
    rect.setAttribute("class", className);
    svg.append(rect);
    at += width;
  };
  for (const [term, className] of TERMS) part(candidate[term], className);
  part(Math.min(candidate.cost_s, most) - candidate.latency_s, "risk");
  return svg;
}

// The penalty of a tried model dwarfs everything: bars end at five times the winner's cost.
function longest(shown) {
  const costs = shown.map((c) => c.cost_s).filter(known);
  return Math.min(5 * costs[0], Math.max(...costs)) || 1;
}

// A bar for each of the best candidates, with what it costs and whose it is.
function summaryBars(decision) {
  const bars = element("span", undefined, "bars");
  const best = decision.candidates.slice(0, 3).filter((c) => known(c.cost_s));
  for (const c of best) bars.append(bar(c, longest(best)), element("b", seconds(c.cost_s)), element("span", c.model));
  return bars;
}

// Name, text, and for columns that are mostly empty: whether a candidate has a value to show.
const WHO = [["Rank", (c) => `${c.rank ?? 1}`], ["Endpoint", (c) => c.endpoint],
  ["Model", (c) => c.model], ["P(correct)", (c) => probability(c.probability)]];
const PRICED = [...WHO, ["Outcomes", (c) => count(c.evidence)],
  ["Round trip", (c) => seconds(c.rtt_s)], ["Answering", (c) => seconds(c.base_s)],
  ["Reading", (c) => seconds(c.prefill_s)], ["Queue", (c) => seconds(c.queue_s)],
  ["P(answers)", (c) => probability(c.answers), (c) => c.answers < 0.995],
  ["Risk", (c) => seconds(c.cost_s - c.latency_s)],
  ["Penalty", (c) => c.penalty > 1 ? `x ${c.penalty.toPrecision(3)}` : "-", (c) => c.penalty > 1],
  ["Cost", (c) => seconds(c.cost_s)]];
const SCORED = [...WHO, ["Score", (c) => known(c.score) ? c.score.toPrecision(3) : "-"]];

function candidates(decision) {
  const priced = known(decision.candidates[0].cost_s);
  const made = element("table");
  const columns = (priced ? PRICED : SCORED)
    .filter(([, , says]) => !says || decision.candidates.some(says));
  const header = element("tr");
  for (const name of [...columns.map(([name]) => name), ...(priced ? ["Breakdown"] : [])]) {
    const th = element("th", name);
    th.scope = "col";
    header.append(th);
  }
  const thead = element("thead");
  thead.append(header);
  const most = longest(decision.candidates);
  const body = element("tbody");
  for (const c of decision.candidates) {
    const cells = columns.map(([, text]) => text(c));
    body.append(priced
      ? row([...cells, bar(c, most)], { classes: { [columns.length]: "bar" } })
      : row(cells));
  }
  made.append(thead, body);
  const scroll = element("div", undefined, "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Candidates");
  scroll.append(made);
  return scroll;
}

function ending(decision) {
  const end = decision.completion;
  if (!end) return "under way";
  const facts = [`${end.status || "no status"} ${end.cause} in ${seconds(end.latency_s)}`];
  if (known(end.ttft_s)) facts.push(`first token ${seconds(end.ttft_s)}`);
  if (known(end.cached_tokens)) facts.push(`${count(end.cached_tokens)} of ${count(end.prompt_tokens)} tokens were cached`);
  if (end.served && end.served !== decision.endpoint) facts.push(`served by ${end.served}`);
  if (decision.prefiller) facts.push(`prompt read by ${decision.prefiller}`);
  if (decision.pulled_from) facts.push(`${count(decision.pulled_tokens)} tokens pulled from ${decision.pulled_from}`);
  if (decision.correct !== undefined) facts.push(decision.correct ? "reported correct" : "reported wrong");
  return facts.join(", ");
}

// "llama x6, phi": a model tried repeatedly is named once.
function counted(names) {
  const times = new Map();
  for (const name of names) times.set(name, (times.get(name) ?? 0) + 1);
  return [...times].map(([name, n]) => n > 1 ? `${name} x${n}` : name).join(", ");
}

function meta(decision) {
  const what = [decision.asked_model || "no model", decision.language, decision.task]
    .filter(Boolean).join(" / ");
  const tried = decision.tried_models.length ? `, tried ${counted(decision.tried_models)}` : "";
  const shadow = decision.mode === "shadow" ? ", shadow" : "";
  return `${new Date(decision.time * 1000).toLocaleTimeString()}, ${what}${tried}, ${decision.reason}${shadow}: ${ending(decision)}`;
}

function fill(details, decision) {
  const summary = details.querySelector("summary");
  summary.replaceChildren(element("span", decision.sentence), element("span", meta(decision), "meta"), summaryBars(decision));
  const left = [...decision.candidates.filter((c) => c.why), ...(decision.filtered ?? [])];
  const filtered = left.map((f) => `${f.endpoint} (${f.model}): ${f.why}`);
  const parts = [candidates(decision)];
  if (decision.candidates_total > decision.candidates.length) {
    parts.push(element("p", `The best ${decision.candidates.length} of ${decision.candidates_total} candidates.`));
  }
  if (filtered.length) parts.push(element("p", `Not considered: ${filtered.join("; ")}.`));
  const names = element("p", `Decision ${decision.id}, request ${decision.request_id}. `);
  names.append(link(`#decision=${decision.id}`, "Link to it"), ", ",
    link(`#until=${Math.ceil(decision.time)}`, "to the decisions up to it"));
  parts.push(names);
  summary.after(...parts);
}

function decisionItem(decision) {
  const details = element("details");
  details.dataset.id = decision.id;
  details.append(element("summary"));
  fill(details, decision);
  return details;
}

function showDecisions(frame) {
  if (filtering()) return;
  const list = $("#list");
  const shown = new Map([...list.querySelectorAll("details")].map((d) => [d.dataset.id, d]));
  for (const decision of frame.decisions) {
    const line = shown.get(decision.id)?.querySelector(".meta");
    if (line) line.textContent = meta(decision);
  }
  // Nobody can click on something that moves away under the pointer.
  const held = shown.size > 0 && hovering;
  $("#held").hidden = !held;
  if (held) return;
  const wanted = new Set(frame.decisions.map((d) => d.id));
  for (const li of [...list.children]) {
    const details = li.querySelector("details");
    // Whatever is open or has the focus stays until it is closed and left.
    const used = details?.open || li.contains(document.activeElement);
    if (!used && !wanted.has(details?.dataset.id)) li.remove();
  }
  list.prepend(...frame.decisions.filter((d) => !shown.has(d.id)).map((d) => {
    const li = element("li");
    li.append(decisionItem(d));
    return li;
  }));
  if (!list.children.length) {
    list.append(element("li", "No decision yet. Send a request through Envoy."));
  }
}

// -- the rest -----------------------------------------------------------------------------------

function figure(name, value, note, curve) {
  const made = element("div");
  const dd = element("dd", value);
  if (note) dd.append(element("small", note));
  made.append(element("dt", name), dd);
  if (curve) dd.append(curve);
  return made;
}

function showFigures(frame) {
  const times = (name, t, key) => t.n
    ? figure(name, seconds(t.p50), `p90 ${seconds(t.p90)}, p99 ${seconds(t.p99)}, of ${t.n}`, curve(key))
    : figure(name, "-", "none measured yet", curve(key));
  const judged = frame.ttca_s;
  const cached = frame.predicted.cached_share;
  $("#figures").replaceChildren(
    figure("Requests a second", known(frame.rate) ? frame.rate.toFixed(1) : "-",
      `${count(frame.decisions_total)} since the start`, curve("rate")),
    times("Time to first token", frame.ttft_s, "ttft_s"),
    judged.n ? times("Time to a correct answer", judged, "ttca_s") : times("Whole answer", frame.latency_s),
    figure("Prompt found in caches", cached.n ? share(cached.measured_p50) : "-",
      cached.n ? `median of ${cached.n} answers` : "none measured yet", curve("hits")),
    figure("Failed", `${frame.failed}`, `of the last ${frame.window}${mostly(frame.failures)}`, curve("failed")),
  );
}

// Whose failures these are: 401s of an engine with a key do not mean that it is broken.
function mostly([most] = []) {
  return most ? `, ${most.count} of them ${most.status ?? "without an answer"} of ${most.model} at ${most.endpoint}` : "";
}

// -- what is wrong, in a sentence ------------------------------------------------------------------

const clock = (s) => new Date(s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// First models without a working endpoint, then endpoints that are out, then failures.
function headline(frame) {
  const isOut = (e) => OUT.has(e.health);
  const out = frame.fleet.filter(isOut);
  const why = (e) => {
    const since = ["endpoint", "scrape", "probe"].map((of) => frame.problems[`${of} ${e.endpoint}`]?.since_s).find(Boolean);
    const what = e.health === "unreachable" ? e.health : e.fault || e.health; // a fault is of its last answers
    return `${e.endpoint} ${what}${since ? ` since ${clock(since)}` : ""}`;
  };
  const some = (list) => list.slice(0, 3).map(why).join("; ") + (list.length > 3 ? `; and ${list.length - 3} more` : "");
  const failed = (model) => {
    const n = !model ? frame.failed : frame.failures.filter((f) => f.model === model).reduce((sum, f) => sum + f.count, 0);
    return n ? ` ${n} of the last ${frame.window} requests failed${model ? " for it" : mostly(frame.failures)}.` : "";
  };
  const models = [...new Set(out.map((e) => e.model))];
  const dead = models.filter((m) => frame.fleet.every((e) => e.model !== m || isOut(e)));
  if (dead.length) {
    const texts = dead.slice(0, 3).map((m) => {
      const own = out.filter((e) => e.model === m);
      return `${m}: ${own.length > 1 ? `all its ${own.length} endpoints are` : "its only endpoint is"} out: ${some(own)}.${failed(m)}`;
    });
    return ["bad", texts.join(" ")];
  }
  const full = Object.keys(frame.problems).filter((of) => of.startsWith("full "));
  if (full.length) {
    const texts = full.slice(0, 3).map((of) => {
      const model = of.slice(5), own = frame.fleet.filter((e) => e.model === model);
      const which = own.length > 1 ? `all its ${own.length} endpoints are` : own.length ? "its only endpoint is" : "every endpoint is";
      return `${model}: ${which} full since ${clock(frame.problems[of].since_s)}.${failed(model)}`;
    });
    const inside = frame.fleet.reduce((sum, e) => sum + (e.waiting || 0), 0);
    return ["bad", `${texts.join(" ")} ${count(inside)} requests wait in engines, ${count(frame.about.waiting)} at the picker.`];
  }
  if (!frame.fleet_total) return ["bad", "No endpoint is known."];
  if (out.length) return ["warn", `${out.length} of ${frame.fleet_total} endpoints take no requests: ${some(out)}. The others do.${failed("")}`];
  const all = frame.fleet_total > 1 ? `All ${frame.fleet_total} endpoints take requests` : "The endpoint takes requests";
  const problems = Object.keys(frame.problems).length;
  if (frame.failed) return ["warn", `${all}.${failed("")}`];
  if (problems) return ["warn", `${all}; ${problems > 1 ? `${problems} problems are` : "a problem is"} listed below.`];
  return ["", frame.window ? `${all}; none of the last ${frame.window} failed.` : `${all}.`];
}

function showHeadline(frame) {
  const [level, text] = headline(frame);
  const line = $("#headline");
  line.className = level;
  if (line.textContent !== text) line.textContent = text;
  $("#events").replaceChildren(...frame.events.slice().reverse().map(([at, what]) => {
    const li = element("li");
    const time = element("time");
    time.append(link(`#until=${Math.ceil(at)}`, new Date(at * 1000).toLocaleTimeString()));
    li.append(time, what);
    return li;
  }));
  if (!frame.events.length) $("#events").append(element("li", "None yet.", "note"));
}

// -- what to do -----------------------------------------------------------------------------------

const REDIRECTS = "clients-get-301-302-or-402";
const OF_STATUS = { 301: REDIRECTS, 302: REDIRECTS, 402: REDIRECTS, 404: "404-unknown-model",
  413: "413-on-long-prompts-images-or-videos", 503: "503-no-answer-or-no-picker" };

function showFailures(frame) {
  $("#failures").hidden = !frame.failures.length;
  $("#failures-of").textContent = `${frame.failed} of the last ${frame.window} requests`;
  // Not rebuilt while unchanged: nobody can click on a link that is replaced every second.
  const shown = JSON.stringify(frame.failures);
  if ($("#failures").dataset.shown === shown) return;
  $("#failures").dataset.shown = shown;
  table("#failures", frame.failures.map((f) => row([
    f.model, f.endpoint, `${f.status ?? "no answer"}`, `${f.count}`,
    link(`runbook#${OF_STATUS[f.status] ?? "an-endpoint-gets-no-requests-or-only-a-few"}`, "Runbook")])));
}

function showPredicted(frame) {
  const names = [["ttft_s", "Time to first token", seconds], ["latency_s", "Whole answer", seconds],
    ["cached_share", "Prompt found in the cache", share]];
  table("#predicted", names.map(([key, name, show]) => {
    const p = frame.predicted[key];
    return row([name, p.n ? show(p.predicted_p50) : "-", p.n ? show(p.measured_p50) : "-", `${p.n}`]);
  }));
  const points = frame.predicted.ttft_s.points;
  const most = Math.max(1e-9, ...points.flat());
  const svg = $("#scatter");
  svg.querySelectorAll("line, circle").forEach((mark) => mark.remove());
  const draw = (name, attributes) => {
    const mark = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) mark.setAttribute(key, value);
    svg.append(mark);
  };
  draw("line", { x1: 0, y1: 200, x2: 200, y2: 0 });
  for (const [x, y] of points) draw("circle", { cx: 195 * x / most + 2, cy: 198 - 195 * y / most, r: 3 });
  $("#predicted-title ~ figure figcaption").textContent = points.length
    ? `First token: predicted to the right, measured upwards, both to ${seconds(most)}; on the line they agree.`
    : "First tokens show up here once answers have been sampled.";
}

function showRest(frame) {
  const ranked = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1]).slice(0, 12);
  table("#reasons", ranked(frame.reasons).map(([name, n]) => row([name, `${n}`])));
  const problems = Object.entries(frame.problems);
  $("#problems").hidden = !problems.length;
  const items = problems.map(([source, p]) => {
    const li = element("li", `${clock(p.since_s)} ${source}: ${p.message}; ${p.remedy} `);
    li.append(link(`.${p.runbook}`, "Runbook"));
    return li;
  });
  const list = $("#problems ul");
  if (list.textContent !== items.map((li) => li.textContent).join("")) list.replaceChildren(...items);
  showFailures(frame);
  showShadow(frame);
}

function showShadow(frame) {
  const s = frame.shadow;
  $("#shadow").hidden = !s.decisions && frame.about.enforced >= 1;
  if (!s.known) {
    $("#shadow p").textContent = `${s.decisions} shadow decisions; which endpoint served them was not reported.`;
    return;
  }
  const more = s.more_correct * 100;
  const worth = known(s.saved_s)
    ? ` Over all of these, laar's choice would have taken ${seconds(Math.abs(s.saved_s))} `
      + `${s.saved_s >= 0 ? "less" : "more"} to a correct answer on average, and been correct `
      + `${Math.abs(more).toFixed(1)} points ${more >= 0 ? "more" : "less"} often, by laar's own estimate.`
    : "";
  $("#shadow p").textContent = `Agreed in ${s.agreed} of ${s.known} (${share(s.agreed / s.known)}).${worth}`;
}

function show(frame) {
  const about = frame.about;
  const mode = about.enforced >= 1 ? "enforcing" : about.enforced <= 0 ? "shadow"
    : `enforcing ${share(about.enforced)}`;
  const others = about.sharing && (about.sharing.connected ? about.sharing.pickers : 0);
  const together = !about.sharing ? "" : others ? `, shares with ${others} more` : ", alone";
  const drained = about.drained.map((e) => `, ${e} has drained`).join("");
  $("#about").textContent = `${about.version}, policy ${about.policy}, ${mode}${together}${drained}`;
  $("#uncalibrated").hidden = about.calibrated !== false;
  showHeadline(frame);
  showFigures(frame);
  showGlance(frame);
  showWaiting(frame);
  showChoices(frame);
  showFleet(frame);
  showDecisions(frame);
  showPredicted(frame);
  showRest(frame);
}

const PART_EVERY_MS = 5000;

// -- the context hook ---------------------------------------------------------------------------

function showContext({ routes }) {
  $("#context").hidden = !routes.length;
  table("#orders", routes.map((r) => row([
    r.guard.state === "off" ? `${r.name} (switched itself off)` : r.name, r.mode,
    count(r.expected.eligible), share(r.expected.hit_share),
    share(r.expected.hit_share_as_received), share(r.guard.gain.cached_share)])));
}

async function watchPart(part, show) {
  try {
    const answer = await fetch(part);
    if (answer.status === 401) return location.reload(); // the token was replaced
    if (answer.ok && !paused) show(await answer.json());
  } catch { /* `follow` shows that the picker is away */ }
  setTimeout(watchPart, PART_EVERY_MS, part, show);
}

// -- the frames ---------------------------------------------------------------------------------

function state(text, lost) {
  const link = $("#link");
  if (link.textContent !== text) link.textContent = text;
  link.classList.toggle("lost", lost);
}

async function follow() {
  try {
    const answer = await fetch("frame", { signal: AbortSignal.timeout(LATE_MS) });
    if (answer.status === 401) return location.reload();
    if (!answer.ok) throw new Error(answer.status);
    const frame = await answer.json();
    state(paused ? "paused" : "live", false);
    if (!paused) show(frame);
  } catch { state("connection lost, reconnecting", true); }
  setTimeout(follow, FRAME_EVERY_MS);
}

$("#pause").addEventListener("click", () => {
  paused = !paused;
  $("#pause").setAttribute("aria-pressed", String(paused));
  $("#pause").textContent = paused ? "Resume" : "Pause";
  state(paused ? "paused" : "live", false);
});

$("#list").addEventListener("pointerenter", (event) => { hovering = event.pointerType === "mouse"; });
$("#list").addEventListener("pointerleave", () => { hovering = false; });

$("#find").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = $("#id").value.trim();
  if (!id) return;
  const note = $("#find-note");
  note.textContent = "";
  $("#found").replaceChildren();
  try {
    const answer = await fetch(`decisions/${encodeURIComponent(id)}`);
    const body = await answer.json();
    if (!answer.ok) {
      note.textContent = body.error?.message ?? body.error ?? `status ${answer.status}`;
      return;
    }
    const details = decisionItem(body);
    details.open = true;
    $("#found").replaceChildren(details);
  } catch {
    note.textContent = "the picker could not be reached";
  }
});
