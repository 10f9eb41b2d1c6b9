"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`.
"""
