"""The commands, their help and completion, and ``doctor``."""
