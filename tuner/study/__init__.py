"""A study, from preparation to report, of one framework or of several in turn."""
