"""The frozen values that all packages share: trials, search spaces, fronts, results, errors."""
