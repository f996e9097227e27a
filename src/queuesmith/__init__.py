"""A workshop for LLM-serving schedulers."""
