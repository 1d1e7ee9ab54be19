"""Fit artifacts to files of records and evaluate them, with scikit-learn.

No module that serves requests imports this package.
"""
