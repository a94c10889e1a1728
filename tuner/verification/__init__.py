"""Which configurations are verified, by which runs, and what these prove."""
