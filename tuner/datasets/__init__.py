"""Data sets: fetched, checked, split, and kept as the plain files that workers read."""
