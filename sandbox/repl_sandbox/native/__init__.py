"""The native core: C files, compiled into one library for each architecture, and its loader."""
