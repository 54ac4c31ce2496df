"""Connections, routes and heartbeats of one client; all of it runs in one event loop."""
