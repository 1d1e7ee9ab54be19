"""The verdict on an endpoint by its answer."""

import pytest

from laar.health import GOOD, Kind, Reply, judge

FULL_TEXT = b'{"error":{"message":"The request queue is full","code":503}}'


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Reply(status=200), GOOD),
        (Reply(status=429, retry_after_s=3.0), Kind.FULL),
        (Reply(status=503, text=b"upstream connect error or disconnect/reset"), Kind.STATUS),
        (Reply(status=503, retry_after_s=1.0), Kind.FULL),
        (Reply(status=503, text=FULL_TEXT), Kind.FULL),
        (Reply(status=200, event=True, text=b'data: {"error":{"code":500}}'), Kind.EVENT),
        (Reply(status=200, event=True, text=b'data: {"error":"boom"}'), Kind.EVENT),
        (Reply(status=200, event=True), Kind.EVENT),  # no byte arrived
        (Reply(status=200, event=True, text=b"data: " + FULL_TEXT), Kind.FULL),
        (Reply(status=200, event=True, text=b'data: {"error":{"code":429}}'), Kind.FULL),
        (Reply(status=200, event=True, text=b'{"error":{"code":400}}'), None),
        (
            Reply(status=200, event=True, text=b'data: {"error":{"type":"BadRequestError"}}'),
            None,
        ),
    ],
)
def test_replies_are_classified_by_whose_fault_they_are(reply, verdict):
    assert judge(reply) == verdict


def test_every_status_belongs_to_a_class():
    for status in range(300, 600):
        of_request = status < 500 or status in (501, 505)
        verdict = None if of_request else Kind.ERROR if status == 500 else Kind.STATUS
        if status in (401, 402, 403, 404):
            verdict = Kind.DENIED
        if status in (429, 529):
            verdict = Kind.FULL
        assert judge(Reply(status=status)) == verdict, status
