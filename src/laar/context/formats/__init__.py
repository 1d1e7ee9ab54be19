"""The shapes in which prompts hold documents."""
