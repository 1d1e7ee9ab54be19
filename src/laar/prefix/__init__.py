"""Track which endpoint has which prefix of a prompt cached."""
