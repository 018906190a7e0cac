"""Rewrites of the deploy form for defects of vendors' compilers, one file each, named for the vendor.

They are passes, but for two that no second run leaves alone: ``rknn_zero_points`` writes scales that one toolkit reads as
others, and ``imx500_quantizers`` another set of operators.
"""
