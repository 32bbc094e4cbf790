"""One file a format: from an open file to chunks of records."""
