"""Fitting and evaluation of artifacts, from files of records and with scikit-learn.

No module that serves requests imports this package.
"""
