"""Report the outcome of a question to the picker, which learns the accuracy of models from it.

One report per question is enough. It is about the last attempt; from the retries, the picker infers
that earlier attempts were wrong. Reporting only helps later questions, so a failure is returned,
never raised.
"""

from __future__ import annotations

import aiohttp
import orjson

from laar.client.until import Outcome, blocking


async def report_outcome(
    outcome: Outcome,
    admin_url: str,
    *,
    token: str | None = None,
    timeout_s: float = 10.0,
) -> bool:
    """Report the outcome of `until_correct`.

    Args:
        outcome: result of the loop; its last attempt is reported if it was answered and judged.
        admin_url: URL of the picker's admin port.
        token: bearer token, if the picker requires one.
        timeout_s: timeout of the whole call.

    Returns:
        Whether the picker accepted it; False if there was nothing to report.
    """
    last = outcome.attempts[-1]
    if not last.decision_id or last.answer is None or last.error is not None:
        return False
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    body = orjson.dumps({"decision_id": last.decision_id, "correct": last.correct})
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    url = admin_url.rstrip("/") + "/outcomes"
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(url, data=body) as answer,
        ):
            if answer.status != 200:
                return False
            said = orjson.loads(await answer.read())
            return isinstance(said, dict) and said.get("accepted") == 1
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False


report_outcome_sync = blocking(report_outcome)
"""Report an outcome like `report_outcome`, without an event loop."""
