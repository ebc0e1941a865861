"""Blobs written once and kept: what version 1 of the format looks like."""
