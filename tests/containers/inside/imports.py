"""Run in an image: import the modules that are named."""

import sys
from importlib import import_module

for name in sys.argv[1:]:
    import_module(name)
