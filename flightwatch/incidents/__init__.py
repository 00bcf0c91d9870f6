"""From findings to a person: incidents, alerts and actions."""
