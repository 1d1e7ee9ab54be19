"""Features of a text, computed as `laar.accuracy.assessor` does for a request."""

from laar.accuracy.features import (
    Features,
    bucket_of_estimate,
    detected_task,
    head_and_tail,
    script_of,
    task_name,
)


def features_of(text: str, tokens: float, *, task: str | None = None) -> Features:
    sample = head_and_tail(text)
    named = task_name(task) if task else ""
    return Features(script_of(sample), bucket_of_estimate(tokens), named or detected_task(sample))
