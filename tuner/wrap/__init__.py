"""A user's own training program: its fastest runtime setting, proven against its own."""
