"""FedOnce (Wu, Li and He 2022): one-shot vertical learning by unsupervised representations."""
