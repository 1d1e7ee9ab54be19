"""The external processor that Envoy calls: the only part of the picker that knows its messages."""

from laar.server.extproc.processor import SERVICE, ExternalProcessor

__all__ = ["SERVICE", "ExternalProcessor"]
