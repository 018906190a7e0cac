"""Block-wise reconstruction: a few hundred samples, block after block, in place of training the whole network."""
