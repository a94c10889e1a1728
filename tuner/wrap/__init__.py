"""A user's own training program: its fastest setting and params, proven against its own."""
