"""What a client may make the server hold, in bytes and in time, before it is a request."""
