"""Block-wise reconstruction (AdaRound, BRECQ, QDrop): post-training quantization that learns the rounding of weights.

A few hundred samples and one block after the other, in place of training the whole network:

1. AdaRound: Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", ICML 2020.
2. BRECQ: Li et al., "Pushing the Limit of Post-Training Quantization by Block Reconstruction", ICLR 2021.
3. QDrop: Wei et al., "Randomly Dropping Quantization for Extremely Low-Bit Post-Training Quantization", ICLR 2022.
"""
