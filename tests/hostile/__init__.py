"""Workers that mean harm, and tests that they do none."""
