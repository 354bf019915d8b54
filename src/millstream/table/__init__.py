"""Tables kept up to date: the newest record of each key, views of a stream, groups of a table, two tables joined."""

from millstream.table.grouped import Grouped
from millstream.table.joined import Kind, TableJoin
from millstream.table.newest import Newest
from millstream.table.view import View

__all__ = ["Grouped", "Kind", "Newest", "TableJoin", "View"]
