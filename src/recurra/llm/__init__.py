"""Language models: folders of weights, attention as index expressions, text from text."""
