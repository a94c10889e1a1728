"""What outlives a process: databases, and the folders of studies."""
