"""What a server has: step times, settings by GPU, and the options of `vllm serve`."""
