"""Pods as endpoints: by label selector and ports, or by an InferencePool's."""
