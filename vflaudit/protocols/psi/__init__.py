"""Private set intersection: who holds which of the same people, without showing the others."""
