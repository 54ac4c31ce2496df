"""The parts of a scan that the C module does, where it was built; the NumPy beside each is the reference."""
