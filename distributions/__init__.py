"""The distributions of a checkout: the native library, wheels, the sdist, wheelhouses."""
