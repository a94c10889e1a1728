"""Verification: which configurations are verified, by which runs, and what these prove."""
