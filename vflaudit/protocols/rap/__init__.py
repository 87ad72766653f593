"""RAP (Zhang et al.): random projection instead of a bottom model, one message per client."""
