"""Storage that outlives a process: databases and study folders."""
