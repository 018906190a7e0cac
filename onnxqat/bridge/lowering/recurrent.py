"""Nothing is lowered yet."""
