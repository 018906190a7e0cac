"""Analyses of a float graph that no backend table is needed for: data flow, signs, masks, normalizations."""
