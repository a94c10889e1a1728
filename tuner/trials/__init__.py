"""One trial: its set-up, its worker, the protocol between them, and what it came to."""
