"""What runs on the nodes: sources of rows, the runner that calls them, the agent. Importing this imports nothing."""
