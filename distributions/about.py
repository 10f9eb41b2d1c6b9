"""Run by an image's Python: print its version and its kind of machine, as distributions.wheelhouse wants."""

import platform

print(platform.python_version(), platform.machine())
