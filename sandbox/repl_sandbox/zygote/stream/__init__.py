"""One byte stream in place of the sockets, pipes and files that connect a host to a template.

For containers that no descriptor can be passed into: those of a runtime with a kernel of its own.
"""
