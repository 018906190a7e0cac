"""Rewrites of the deploy form for defects of vendors' compilers, one file each, named for the vendor."""
