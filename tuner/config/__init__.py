"""The configuration of a study: its types, validation, the available choices, Hydra."""
