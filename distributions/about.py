"""Run by an image's Python: print the arguments of distributions.wheelhouse for it."""

import platform

print(platform.python_version(), platform.machine())
