"""The command line: one module a verb, imported only when its verb is called."""
