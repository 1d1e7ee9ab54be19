"""What only fitting and judging an artifact need: files of records, and scikit-learn behind them.

Nothing that serves imports this package.
"""
