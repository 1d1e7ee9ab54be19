"""Paths with a model in them, by form and prefix, as APIs and gateways write them."""

from __future__ import annotations

FORMS = (
    "/v1/models/{}",
    "/v2/models/{}/infer",  # KServe, Triton
    "/v2/models/{}/versions/3/infer",
    "/v2/models/{}/generate_stream",
    "/v1/models/{}:predict",  # KServe, TensorFlow Serving
    "/v1/models/{}/versions/3:predict",
    "/v1beta/models/{}:generateContent",  # Gemini
    "/v1beta/models/{}:streamGenerateContent?alt=sse",
    "/v1beta/tunedModels/{}:countTokens",
    "/v1/projects/p/locations/l/publishers/g/models/{}:predict",  # Vertex
    "/v1/projects/p/locations/l/publishers/g/models/{}:streamRawPredict",
    "/model/{}/invoke",  # Bedrock
    "/model/{}/converse-stream",
    "/openai/deployments/{}/chat/completions?api-version=1",  # Azure
    "/openai/deployments/{}/audio/transcriptions",
    "/v1/engines/{}/completions",
    "/models/{}/v1/chat/completions",  # Hugging Face
    "/hf-inference/models/{}/pipeline/feature-extraction",
    "/models/{}/invocations",
    "/v1/realtime?model={}",
)
PREFIXES = ("", "/gateway/team-1")
