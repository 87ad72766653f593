"""Shadow training: the adversary trains a protocol many times on rows of its own, all shadows at once where it can."""
