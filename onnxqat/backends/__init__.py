"""Backend tables: one YAML file a backend, validated by ``schema.py``."""
