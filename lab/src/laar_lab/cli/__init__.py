"""Commands that laar-lab adds to `laar` through the entry point group `laar.commands`."""
