"""The Model Context Protocol, over HTTP and WebSockets."""
