"""HTTP and WebSocket front ends, and the configuration of uvicorn."""
