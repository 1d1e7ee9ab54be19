"""Pods as endpoints: by label selector and ports, or by those of an InferencePool."""
