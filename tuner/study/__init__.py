"""A study from its preparation to its report, of one framework or of several in turn."""
