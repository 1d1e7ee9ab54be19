"""The admin port: metrics, health, the page, explanations, outcomes and settings over HTTP."""
