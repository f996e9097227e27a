"""Windows of a trace: cut, thinned, scaled, joined, frozen in files, read from tables."""

from queuesmith.windows.window import (
    UNKNOWN_ROW,
    Window,
    adjoin,
    cut_windows,
    offered_rate,
    scale_arrivals,
    splice,
    thin,
)

__all__ = [
    "UNKNOWN_ROW",
    "Window",
    "adjoin",
    "cut_windows",
    "offered_rate",
    "scale_arrivals",
    "splice",
    "thin",
]
