"""Host to accelerator: the only room with streams. No rank enters here."""
