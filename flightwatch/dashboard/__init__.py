"""The console and the HTTP interface: FastAPI at the root, Dash mounted in it."""
