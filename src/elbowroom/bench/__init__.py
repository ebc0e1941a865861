"""Measurements of the codec beside its peers; only the command line imports this."""
