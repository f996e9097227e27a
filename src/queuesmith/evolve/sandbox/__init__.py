"""Candidates of strangers: the allow-list of their text, and the child processes that run them."""
