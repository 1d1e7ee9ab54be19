"""The external processor called by Envoy: the only package that knows its messages."""

from laar.server.extproc.processor import SERVICE, ExternalProcessor

__all__ = ["SERVICE", "ExternalProcessor"]
