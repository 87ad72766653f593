"""SecureBoost (Cheng et al. 2019): vertical gradient-boosted trees."""
