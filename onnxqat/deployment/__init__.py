"""Hand-off to compilers: the deploy form, a real compilation, its numbers and what runs on integers."""
