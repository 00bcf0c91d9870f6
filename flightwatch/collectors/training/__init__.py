"""The training probe: runs inside a user's training process. Importing this imports nothing.

Every module here is Python >= 3.8 syntax and imports torch (when used), the standard library and
`flightwatch.core.vocabulary` alone. Nothing here may raise into, block or wait for the training thread.
"""
