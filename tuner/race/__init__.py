"""The race of the runtime settings: which of them train fastest on this machine."""
