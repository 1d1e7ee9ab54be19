"""Pods as endpoints: by a label selector and ports, or by an InferencePool that has both."""
