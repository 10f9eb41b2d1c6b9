"""The Model Context Protocol of the endpoint, over HTTP and in its frames."""
