"""The compiled engine: arrays in, arrays out. Read `loop` first."""
