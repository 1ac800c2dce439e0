"""The compiled path on a GPU: Triton kernels of a network, forward and backward."""
