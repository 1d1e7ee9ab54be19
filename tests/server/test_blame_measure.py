import asyncio, os, time
from collections import Counter
import numpy as np, pytest
from test_blame import Engine, chat, post, apart, TENANT
pytestmark = pytest.mark.envoy
SECONDS = float(os.environ.get("SECS", "12"))

async def poison_run(gateway, http, shape, how, tenant, vary, dead, share=0.5, n_engines=5):
    engines = [await gateway.enter(Engine(how, took_s=0.075)) for _ in range(n_engines)]
    members = [(e.address, "m") for e in engines]
    gateway.members(*members)
    runner = await gateway.picker(readings={})
    envoy = await gateway.envoy(shape, trust_gateway_headers=True)
    async def good(n):
        return "good", await post(http, envoy, chat(f"{n % 40} hello"), **({TENANT: "good"} if tenant else {}))
    async def bad(n):
        text = f"{n} poison" if vary else "poison " * 30
        return "poison", await post(http, envoy, chat(text), **({TENANT: "bad"} if tenant else {}))
    base = await apart(int(25 * 4), 0.04, good)
    p95base = np.percentile([t for _, (s, t) in base], 95)
    one = lambda n: bad(n) if n % 2 else good(n)
    await apart(int(50 * 3), 0.02, one)
    if dead == "500":
        engines[0].dead = True
    elif dead == "refused":
        await engines[0]._runner.cleanup()
    for e in engines: e.asked.clear()
    reasons0 = dict(runner.picker.metrics.__dict__) if False else None
    n = int(50 * SECONDS)
    ended = await apart(n, 0.02, one)
    goods = [(s, t) for k, (s, t) in ended if k == "good"]
    health = runner.picker.health
    page = runner.picker.metrics.page().decode()
    allf = sum(float(l.rpartition(" ")[2]) for l in page.splitlines() if "all-failing" in l and not l.startswith("#"))
    st = Counter(str(e.breaker.state) for _, e in health.known())
    op = sum(e.breaker.openings for _, e in health.known())
    print(f"RESULT {shape} {how} tenant={tenant} vary={vary} dead={dead}: good lost {sum(s != 200 for s, _ in goods)} of {len(goods)}, "
          f"p95 x {np.percentile([t for _, t in goods], 95) / p95base:.2f}, attempts per poison {sum(e.asked['poison'] for e in engines) / (n / 2):.2f}, "
          f"dead got {engines[0].asked['good'] if dead else '-'} good, all-failing {allf:.0f}, states {dict(st)}, openings {op}", flush=True)

CASES = [("standalone", "500", True, True, ""), ("standalone", "503", True, True, ""), ("standalone", "reset", True, True, ""),
  ("gateway", "500", True, True, ""), ("gateway", "reset", True, True, ""),
  ("standalone", "500", True, True, "500"), ("standalone", "500", True, True, "refused"), ("gateway", "503", True, True, "500"),
  ("standalone", "500", False, False, ""), ("standalone", "500", False, True, ""), ("standalone", "500", False, True, "500")]
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_poison(gateway, http, case):
    await poison_run(gateway, http, *case)

@pytest.mark.parametrize("shape", ["standalone", "gateway"])
async def test_burst(gateway, http, shape):
    small, large = await gateway.enter(Engine(most=6, took_s=0.1)), await gateway.enter(Engine(took_s=0.1))
    gateway.members((small.address, "m"), (large.address, "m"))
    runner = await gateway.picker(readings={})
    envoy = await gateway.envoy(shape)
    out = []
    for k in range(4):
        before = small.asked["good"] - small.refused
        burst = await asyncio.gather(*(post(http, envoy, chat(f"b{k} {n}")) for n in range(40)))
        out.append((small.asked["good"] - small.refused - before, sum(s != 200 for s, _ in burst)))
        await asyncio.sleep(0.5)
    await asyncio.sleep(4)
    small.asked.clear(); large.asked.clear()
    ended = await apart(160, 0.125, lambda n: post(http, envoy, chat(f"t{n}")))
    slot = runner.picker.table.slot(small.address)
    print(f"RESULT burst {shape}: (taken by small, lost) {out}; trickle small {small.asked['good']} of 160, lost {sum(s != 200 for s, _ in ended)}; answers {runner.picker.health.answers(slot, time.monotonic()):.3f}", flush=True)
