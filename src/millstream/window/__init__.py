"""Windows: what the records of a key amount to in spans of event time."""

from millstream.window.compare import Compare, Compared
from millstream.window.rolling import Rolling
from millstream.window.spans import Days, Every, Hopping, Session, Tumbling, Windowed, Windows
from millstream.window.table import WindowTable
from millstream.window.window import Window

__all__ = [
    "Compare",
    "Compared",
    "Days",
    "Every",
    "Hopping",
    "Rolling",
    "Session",
    "Tumbling",
    "Window",
    "WindowTable",
    "Windowed",
    "Windows",
]
