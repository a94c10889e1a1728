"""The configuration of a study: its types, what is valid, what there is to choose from, Hydra."""
