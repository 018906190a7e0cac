"""Recipes: configuration files for tasks, one YAML file each, with the figures that they reached."""
