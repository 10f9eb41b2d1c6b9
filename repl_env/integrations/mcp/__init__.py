"""A session as the tools of a Model Context Protocol server; the endpoint serves it, too."""
