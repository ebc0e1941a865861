"""The long-running tests: every float32 pattern, and random properties for as long as you like."""
