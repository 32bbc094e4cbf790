"""What a user makes of documents of many lengths."""
