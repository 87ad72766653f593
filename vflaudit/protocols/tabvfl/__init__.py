"""TabVFL (Rashad et al. 2024): TabNet split between guests and a host, its baselines, client failures, evaluation."""
