"""How busy sessions are slowed down: CPU credit, scheduler slices, a throttle for fork bombs."""
