"""The impact study: what errors in kept tensors do to what a network learns."""
