"""What making a step takes, where that is measured."""
