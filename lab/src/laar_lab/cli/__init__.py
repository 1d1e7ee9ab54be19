"""The commands that laar-lab adds to `laar`, by entry points of the group `laar.commands`."""
