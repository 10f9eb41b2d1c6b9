"""Headers of fixed size: of a cell, and of an empty result.

Nearly every step consists of these two messages, so their headers are packed numbers and not JSON.
The first byte distinguishes them from each other and from the brace that begins JSON.
"""

from __future__ import annotations

import struct

CELL_KIND = 1
EMPTY_RESULT_KIND = 2

# The kind and the cell's number; a result adds its peak memory in bytes.
CELL_HEADER = struct.Struct("!BQ")
EMPTY_RESULT_HEADER = struct.Struct("!BQQ")

# The same after the lengths of header and blob that begin every frame: all but the code of a cell.
CELL_FRAME = struct.Struct("!IIBQ")
EMPTY_RESULT_FRAME = struct.Struct("!IIBQQ")
