"""Tests, laid out as src/ and native/ are."""
