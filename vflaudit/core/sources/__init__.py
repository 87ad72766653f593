"""Where data comes from: scikit-learn, a random generator, published files, or the user's own table."""
