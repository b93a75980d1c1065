"""What a model is worth, at how many bytes."""
