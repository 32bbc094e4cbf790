"""What notebooks show of a dataset: its recipe, and who gets which rows of a full step."""
