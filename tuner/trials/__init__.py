"""One trial: its set-up, its worker, the worker's protocol, and the outcome."""
