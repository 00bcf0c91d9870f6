"""Which job and rank owns a device, found without the training probe. Importing this package imports nothing."""
