"""The commands of `laar`, by what people do with them.

Each imports what it needs when it is called: `laar --help` must not load an Envoy's worth of
message types, and serving must not load scikit-learn.
"""
