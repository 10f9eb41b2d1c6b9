"""The short headers: those of a cell, and of a result that has nothing to tell.

These two messages make up nearly every step, so their headers are numbers of a fixed size and no
JSON. The first byte tells them apart, from one another and from the brace that JSON begins with.
"""

from __future__ import annotations

import struct

CELL_KIND = 1
EMPTY_RESULT_KIND = 2

# The kind and the cell's number; of a result the peak of memory in bytes, too.
CELL_HEADER = struct.Struct("!BQ")
EMPTY_RESULT_HEADER = struct.Struct("!BQQ")

# The same with what begins every frame, the lengths of header and blob: all but a cell's code.
CELL_FRAME = struct.Struct("!IIBQ")
EMPTY_RESULT_FRAME = struct.Struct("!IIBQQ")
