"""The gates G0 to G7 that a policy is led through, the ledger of held-out windows and the proof."""
