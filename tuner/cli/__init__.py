"""The commands beside tuning, and ``doctor``."""
