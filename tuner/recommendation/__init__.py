"""Which verified configuration a job should run with, and what is known of it."""
