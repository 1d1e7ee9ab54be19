"""Features of a text, computed as `laar.accuracy.assessor` does for a request."""

from laar.accuracy.features import Features, bucket_of, language_of, task_name, task_of


def features_of(text: str, tokens: float, *, task: str | None = None) -> Features:
    named = task_name(task) if task else ""
    return Features(language_of(text), bucket_of(tokens), named or task_of(text))
