"""Recommendation of a verified configuration for a job, and its evidence."""
