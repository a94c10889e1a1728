"""The frozen values that every room shares: trials, search spaces, fronts, results, errors."""
