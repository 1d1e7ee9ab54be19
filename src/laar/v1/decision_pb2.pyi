import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecisionRecord(_message.Message):
    __slots__ = ("id", "time", "request_id", "policy", "reason", "asked_model", "language", "bucket_tokens", "task", "body_bytes", "picked", "candidates", "tried_models", "exhausted", "overhead_us", "completion")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_MODEL_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PICKED_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    TRIED_MODELS_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_US_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_FIELD_NUMBER: _ClassVar[int]
    id: str
    time: _timestamp_pb2.Timestamp
    request_id: str
    policy: str
    reason: str
    asked_model: str
    language: str
    bucket_tokens: int
    task: str
    body_bytes: int
    picked: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    tried_models: _containers.RepeatedScalarFieldContainer[str]
    exhausted: bool
    overhead_us: int
    completion: Completion
    def __init__(self, id: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ..., policy: _Optional[str] = ..., reason: _Optional[str] = ..., asked_model: _Optional[str] = ..., language: _Optional[str] = ..., bucket_tokens: _Optional[int] = ..., task: _Optional[str] = ..., body_bytes: _Optional[int] = ..., picked: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., tried_models: _Optional[_Iterable[str]] = ..., exhausted: _Optional[bool] = ..., overhead_us: _Optional[int] = ..., completion: _Optional[_Union[Completion, _Mapping]] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("endpoint", "model", "probability", "evidence", "tokens", "cached_tokens", "queued_tokens", "rtt_s", "base_s", "prefill_s", "queue_s", "penalty", "cost_s", "score", "answers", "slow_s", "ttft_s", "others_s")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    BASE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PENALTY_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SLOW_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    OTHERS_S_FIELD_NUMBER: _ClassVar[int]
    endpoint: str
    model: str
    probability: float
    evidence: float
    tokens: float
    cached_tokens: float
    queued_tokens: float
    rtt_s: float
    base_s: float
    prefill_s: float
    queue_s: float
    penalty: float
    cost_s: float
    score: float
    answers: float
    slow_s: float
    ttft_s: float
    others_s: float
    def __init__(self, endpoint: _Optional[str] = ..., model: _Optional[str] = ..., probability: _Optional[float] = ..., evidence: _Optional[float] = ..., tokens: _Optional[float] = ..., cached_tokens: _Optional[float] = ..., queued_tokens: _Optional[float] = ..., rtt_s: _Optional[float] = ..., base_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., penalty: _Optional[float] = ..., cost_s: _Optional[float] = ..., score: _Optional[float] = ..., answers: _Optional[float] = ..., slow_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., others_s: _Optional[float] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("status", "cause", "latency_s", "ttft_s", "prompt_tokens", "completion_tokens", "cached_tokens", "failed")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    TTFT_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    status: int
    cause: str
    latency_s: float
    ttft_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    failed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[int] = ..., cause: _Optional[str] = ..., latency_s: _Optional[float] = ..., ttft_s: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., failed: _Optional[_Iterable[str]] = ...) -> None: ...
