"""One byte stream in place of the sockets, pipes and files between a host and a template.

For containers into which descriptors cannot be passed: those with a kernel of their own.
"""
