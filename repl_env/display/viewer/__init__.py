"""The viewer of trajectories and evaluations: indexes of files, a server on loopback, an export."""
