"""Language models: weights, attention as index expressions, generation."""
