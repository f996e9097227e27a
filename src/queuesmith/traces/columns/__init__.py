"""From the bytes of a file to the columns of a trace: one set of rules for every reader."""
