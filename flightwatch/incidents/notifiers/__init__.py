"""Channels to people, one file a service."""
