"""A crash or a full disk at each write of a study."""
