"""Words and contracts that every part shares. Imports nothing else of Flightwatch."""
